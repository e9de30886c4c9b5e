//! A random expression with its operands, and its result by a naive evaluation in f64.

use std::collections::BTreeMap;
use std::fmt;

use einsparse::einsum::{Access, Einsum, IndexExpr};
use einsparse::formats::{AnySparse, Coo, CooPattern, Dense, Format};

use super::evaluate::evaluate;
use crate::support::Rng;

/// Formats that are drawn, as prefixes of their names.
pub const FORMATS: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo",
    "bsr",
    "blockcoo",
    "blockgroupcoo",
    "nm",
    "bitmap",
    "bytemap",
    "sell",
];
const MATRICES: &[&str] = &[
    "coo",
    "csr",
    "csr",
    "csc",
    "ell",
    "groupcoo:2",
    "groupcoo:4",
    "groupcoo:3@1",
    "groupcoo",
    "bsr:2x2",
    "bsr:2x3",
    "blockcoo:3x2",
    "blockcoo:2x2",
    "blockgroupcoo:2x2:2",
    "blockgroupcoo:3x4",
    "nm:2:4",
    "bitmap",
    "bytemap",
    "sell",
];
/// Loop indices.
const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "g", "h"];
/// Maximum number of steps of these loops, without and with a dense index.
const MOST: usize = 6000;
const MOST_WIDE: usize = 600;
/// A dense index, the last one wherever it occurs: lanes iterate over it.
const DENSE: &str = "n";

/// An expression with its operands and its result.
pub struct Draw {
    pub seed: u64,
    pub text: String,
    pub factors: usize,
    pub format: Option<String>,
    pub sparse: Option<AnySparse<f64>>,
    pub dense: Vec<(String, Dense<f64>)>,
    pub arrays: Vec<(String, Vec<usize>, Vec<u32>)>,
    pub scalars: Vec<(String, f64)>,
    pub shape: Vec<usize>,
    pub start: Vec<f64>,
    pub wanted: Vec<f64>,
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.text)?;
        if let (Some(a), Some(format)) = (&self.sparse, &self.format) {
            write!(f, ", A {:?} {format} of {} entries", a.shape(), a.nnz())?;
        }
        for (name, tensor) in &self.dense {
            write!(f, ", {name} {:?}", tensor.shape())?;
        }
        for (name, shape, _) in &self.arrays {
            write!(f, ", {name} {shape:?}")?;
        }
        write!(f, ", output {:?}", self.shape)
    }
}

struct Artist {
    rng: Rng,
    extents: BTreeMap<&'static str, usize>,
    used: Vec<&'static str>,
    /// Extent of the dense index (0 without one), and the number of factors that have it.
    wide: usize,
    moving: usize,
    arrays: Vec<(String, Vec<usize>, Vec<u32>)>,
    dense: Vec<(String, Dense<f64>)>,
}

impl Artist {
    fn below(&mut self, n: usize) -> usize {
        (self.rng.word() >> 20) as usize % n
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Draws a loop index, more often than not one that is already used.
    fn name(&mut self) -> &'static str {
        if !self.used.is_empty() && self.chance(55) {
            let own = self.below(self.used.len());
            return self.used[own];
        }
        let steps: usize = self.used.iter().map(|n| self.extents[n]).product();
        let most = if self.wide > 0 { MOST_WIDE } else { MOST };
        let fresh: Vec<&'static str> = NAMES
            .iter()
            .copied()
            .filter(|n| !self.used.contains(n) && steps * self.extents[n] <= most)
            .collect();
        if fresh.is_empty() {
            let own = self.below(self.used.len());
            return self.used[own];
        }
        let name = fresh[self.below(fresh.len())];
        self.used.push(name);
        name
    }

    /// Draws an index array over loop indices, with values below `bound`.
    fn array(&mut self, base: &str, names: &[String], shape: Vec<usize>, bound: usize) -> String {
        let data = (0..shape.iter().product()).map(|_| self.below(bound) as u32).collect();
        let name = format!("{base}{}", self.arrays.len());
        self.arrays.push((name.clone(), shape, data));
        format!("{name}[{}]", names.join(","))
    }

    /// Draws the index of an axis. Returns its text and its extent.
    fn index(&mut self) -> (String, usize) {
        let name = self.name();
        let extent = self.extents[name];
        if !self.chance(18) {
            return (name.to_owned(), extent);
        }
        let bound = 1 + self.below(9);
        if self.chance(30) {
            let middle = 1 + self.below(6);
            let inner = self.array("J", &[name.to_owned()], vec![extent], middle);
            return (self.array("I", &[inner], vec![middle], bound), bound);
        }
        if self.chance(35) {
            let other = self.name();
            let shape = vec![extent, self.extents[other]];
            let names = [name.to_owned(), other.to_owned()];
            return (self.array("I", &names, shape, bound), bound);
        }
        (self.array("I", &[name.to_owned()], vec![extent], bound), bound)
    }

    fn tensor(&mut self, name: &str, shape: Vec<usize>, faults: bool) {
        let faults = if faults { 4 } else { 0 };
        let values = (0..shape.iter().product())
            .map(|_| match self.chance(faults) {
                true if self.chance(50) => f64::NAN,
                true => f64::INFINITY,
                false => self.rng.integer(),
            })
            .collect();
        self.dense.push((name.to_owned(), Dense::new(shape, values).unwrap()));
    }

    /// Draws the sparse operand. Returns its access, its format and the tensor.
    fn sparse(&mut self) -> (String, String, AnySparse<f64>) {
        let order = [1, 2, 2, 2, 2, 2, 3, 3, 4][self.below(9)];
        let mut names = Vec::new();
        for _ in 0..order {
            let mut name = self.name();
            // Sometimes a diagonal.
            for _ in 0..8 {
                if !names.contains(&name) || self.chance(3) {
                    break;
                }
                name = self.name();
            }
            names.push(name);
        }
        let shape: Vec<usize> = names.iter().map(|n| self.extents[n]).collect();
        let density = [5, 20, 50, 90][self.below(4)];
        let mut coords = vec![Vec::new(); order];
        let mut values = Vec::new();
        for point in 0..shape.iter().product() {
            if !self.chance(density) {
                continue;
            }
            let mut left: usize = point;
            for axis in (0..order).rev() {
                coords[axis].push((left % shape[axis]) as u32);
                left /= shape[axis];
            }
            // Zeros inside blocks are fill, so no nonzero has value zero.
            values.push([-2.0, -1.0, 1.0, 2.0][self.below(4)]);
        }
        let format = match order {
            2 => MATRICES[self.below(MATRICES.len())].to_owned(),
            _ if order == 1 || self.chance(40) => "coo".to_owned(),
            _ => format!("groupcoo:{}@{}", 1 + self.below(4), self.below(order)),
        };
        let coo = Coo::new(CooPattern::new(shape, coords).unwrap(), values).unwrap();
        let wanted: Format = format.parse().unwrap();
        match AnySparse::from(coo.clone()).convert(wanted) {
            Ok(a) => (format!("A[{}]", names.join(",")), format, a),
            // N:M does not support every pattern.
            Err(_) => {
                let a = AnySparse::from(coo);
                (format!("A[{}]", names.join(",")), "coo".to_owned(), a)
            }
        }
    }

    /// Draws a dense factor.
    fn factor(&mut self, number: usize, faults: bool) -> String {
        let order = 1 + self.below(3);
        let (mut indices, mut shape): (Vec<String>, Vec<usize>) =
            (0..order).map(|_| self.index()).unzip();
        if self.wide > 0 && (self.moving == 0 || self.moving == 1 && self.chance(50)) {
            self.moving += 1;
            indices.push(DENSE.to_owned());
            shape.push(self.wide);
        }
        let name = format!("B{number}");
        self.tensor(&name, shape, faults);
        format!("{name}[{}]", indices.join(","))
    }

    /// Extends the right side with bias, activation and gate.
    fn epilogue(&mut self, mut right: String, out: &str, shape: &[usize], plain: bool) -> String {
        let axis = self.below(shape.len().max(1));
        if self.chance(20) && !out[2..].contains('[') {
            let mut names = out[2..out.len() - 1].split(',');
            let name = names.nth(axis).unwrap_or("");
            right = format!("{right} + bias[{name}]");
            self.tensor("bias", vec![shape[axis]], false);
        }
        if plain && self.chance(12) {
            right = format!("relu_grad({right}, G{})", &out[1..]);
            self.tensor("G", shape.to_vec(), false);
        } else if self.chance(15) {
            right = format!("relu({right})");
        }
        right
    }

    /// Draws access and shape of the output.
    fn output(&mut self) -> (String, Vec<usize>, bool) {
        let order = [1, 1, 2, 2, 2, 3, 3, 4][self.below(8)].min(self.used.len());
        let mut left = self.used.clone();
        let (mut indices, mut shape, mut plain) = (Vec::new(), Vec::new(), true);
        for _ in 0..order {
            let name = left.remove(self.below(left.len()));
            if self.chance(15) {
                let bound = 1 + self.below(9);
                let extent = self.extents[name];
                indices.push(self.array("M", &[name.to_owned()], vec![extent], bound));
                shape.push(bound);
                plain = false;
            } else {
                indices.push(name.to_owned());
                shape.push(self.extents[name]);
            }
        }
        if self.moving > 0 {
            indices.push(DENSE.to_owned());
            shape.push(self.wide);
        }
        (format!("C[{}]", indices.join(",")), shape, plain)
    }
}

impl Draw {
    pub fn new(seed: u64) -> Draw {
        let mut a = Artist {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9).wrapping_add(7)),
            extents: BTreeMap::new(),
            used: Vec::new(),
            wide: 0,
            moving: 0,
            arrays: Vec::new(),
            dense: Vec::new(),
        };
        for name in NAMES {
            let extent = [1, 2, 3, 4, 5, 6, 7, 8, 8, 16, 33][a.below(11)];
            a.extents.insert(name, extent);
        }
        let factors = 1 + a.below(5);
        if a.chance(35) {
            a.wide = [8, 16, 40][a.below(3)];
        }
        let faults = a.chance(12);
        let own = if a.chance(75) { a.below(factors) } else { factors };
        let (mut texts, mut sparse, mut format) = (Vec::new(), None, None);
        for factor in 0..factors {
            if factor == own {
                let (text, kind, tensor) = a.sparse();
                texts.push(text);
                (sparse, format) = (Some(tensor), Some(kind));
            } else {
                texts.push(a.factor(factor, faults));
            }
        }
        let (out, shape, plain) = a.output();
        let mut scalars = Vec::new();
        if a.chance(20) {
            texts.insert(0, "-3".into());
        }
        if a.chance(20) {
            texts.insert(0, "s".into());
            scalars.push(("s".to_owned(), 2.0));
        }
        let right = a.epilogue(texts.join(" * "), &out, &shape, plain);
        let mode = if a.chance(35) { "+=" } else { "=" };
        let text = format!("{out} {mode} {right}");
        let size = shape.iter().product();
        let start: Vec<f64> = match mode {
            "=" => vec![f64::NAN; size],
            _ => (0..size).map(|_| a.rng.integer()).collect(),
        };
        let mut draw = Draw {
            seed,
            text,
            factors,
            format,
            sparse,
            dense: a.dense,
            arrays: a.arrays,
            scalars,
            shape,
            start,
            wanted: Vec::new(),
        };
        draw.wanted = evaluate(&draw);
        draw
    }

    pub fn tensor(&self, name: &str) -> &Dense<f64> {
        let found = self.dense.iter().find(|(n, _)| n == name);
        &found.unwrap_or_else(|| panic!("{self}: no {name}")).1
    }

    pub fn extents(&self, e: &Einsum) -> BTreeMap<String, usize> {
        let shapes = |name: &str| -> Vec<usize> {
            if name == "A" {
                return self.sparse.as_ref().unwrap().shape().to_vec();
            }
            if let Some((_, shape, _)) = self.arrays.iter().find(|(n, ..)| n == name) {
                return shape.clone();
            }
            self.tensor(name).shape().to_vec()
        };
        let mut extents = BTreeMap::new();
        let mut visit = |access: &Access| {
            for (index, extent) in access.indices.iter().zip(shapes(&access.tensor)) {
                if let IndexExpr::Name(n) = index {
                    extents.insert(n.clone(), extent);
                }
            }
        };
        for factor in &e.factors {
            factor.for_each_access(&mut visit);
        }
        extents
    }
}
