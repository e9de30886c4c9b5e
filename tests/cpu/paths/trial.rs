//! Random expressions of up to eight factors, many of them sparse or used twice, and their results by plain loops.

use std::collections::BTreeMap;

use einsparse::formats::convert::prune_to_nm;
use einsparse::formats::reference::{self, Factor};
use einsparse::formats::{AnySparse, Coo, CooPattern, Dense};
use einsparse::{Context, Error, Operand, Options, Scalar};

use crate::support::Rng;
use crate::support::runs::output_of;

const MATRICES: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo:2",
    "groupcoo:hybrid",
    "bsr:2x2",
    "bsr:2x3",
    "blockcoo:3x2",
    "blockgroupcoo:2x2:2",
    "bitmap",
    "sell",
    "nm:2:4",
];
const NAMES: &[&str] = &["i", "j", "k", "l", "m", "n"];

/// First pair of values that are neither equal nor both NaN.
fn first_difference<T: Scalar>(found: &[T], wanted: &[f64]) -> Option<String> {
    let differs = |(f, w): &(&T, &f64)| f.to_f64() != **w && !(f.to_f64().is_nan() && w.is_nan());
    let mut all = found.iter().zip(wanted).enumerate();
    let (at, (f, w)) = all.find(|(_, pair)| differs(pair))?;
    Some(format!("element {at} is {f}, {w} wanted"))
}

/// Expression of up to eight factors, with its operands.
pub struct Trial {
    seed: u64,
    pub text: String,
    extents: Vec<usize>,
    out: Vec<usize>,
    /// Names of the factors, and the numbers of their indices.
    pub factors: Vec<(String, Vec<usize>)>,
    pub sparse: BTreeMap<String, AnySparse<f64>>,
    pub dense: BTreeMap<String, Dense<f64>>,
    pub twice: bool,
}

struct Artist(Rng);

impl Artist {
    fn below(&mut self, n: usize) -> usize {
        (self.0.word() >> 20) as usize % n
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Creates a sparse tensor without stored zeros, because a block format stores zeros as fill.
    fn sparse(&mut self, shape: &[usize]) -> AnySparse<f64> {
        let density = [10, 40, 80][self.below(3)];
        let (mut coords, mut values) = (vec![Vec::new(); shape.len()], Vec::new());
        for point in 0..shape.iter().product() {
            if !self.chance(density) {
                continue;
            }
            let mut left: usize = point;
            for axis in (0..shape.len()).rev() {
                coords[axis].push((left % shape[axis]) as u32);
                left /= shape[axis];
            }
            values.push([-2.0, -1.0, 1.0, 2.0][self.below(4)]);
        }
        let coo = Coo::new(CooPattern::new(shape.to_vec(), coords).unwrap(), values).unwrap();
        let coo = AnySparse::from(coo);
        match (shape.len(), MATRICES[self.below(MATRICES.len())]) {
            (2, "nm:2:4") => prune_to_nm(&coo.to_dense().unwrap()).unwrap().into(),
            (2, format) => coo.convert(format.parse().unwrap()).unwrap(),
            _ => coo,
        }
    }

    fn dense(&mut self, shape: &[usize], nans: bool) -> Dense<f64> {
        let values = (0..shape.iter().product()).map(|_| match nans && self.chance(8) {
            true => f64::NAN,
            false => self.0.integer(),
        });
        let values = values.collect();
        Dense::new(shape.to_vec(), values).unwrap()
    }
}

impl Trial {
    pub fn new(seed: u64) -> Trial {
        let mut a = Artist(Rng(seed.wrapping_mul(0x9e37_79b9).wrapping_add(3)));
        let extents: Vec<usize> = NAMES.iter().map(|_| [1, 3, 4, 4, 5][a.below(5)]).collect();
        let nans = a.chance(25);
        let count = 2 + a.below(7);
        let mut trial = Trial {
            seed,
            text: String::new(),
            extents,
            out: Vec::new(),
            factors: Vec::new(),
            sparse: BTreeMap::new(),
            dense: BTreeMap::new(),
            twice: false,
        };
        for number in 0..count {
            if number > 0 && a.chance(20) {
                trial.again(&mut a);
                continue;
            }
            let order = 1 + a.below(3);
            // Most axes of a sparse tensor have different indices.
            let first = a.below(NAMES.len());
            let step = 1 + a.below(2);
            let own: Vec<usize> =
                (0..order).map(|axis| (first + axis * step) % NAMES.len()).collect();
            let shape: Vec<usize> = own.iter().map(|&i| trial.extents[i]).collect();
            let name = format!("T{number}");
            if a.chance(45) {
                trial.sparse.insert(name.clone(), a.sparse(&shape));
            } else {
                trial.dense.insert(name.clone(), a.dense(&shape, nans));
            }
            trial.factors.push((name, own));
        }
        for index in 0..NAMES.len() {
            let used = trial.factors.iter().any(|(_, own)| own.contains(&index));
            if used && trial.out.len() < 3 && a.chance(35) {
                trial.out.push(index);
            }
        }
        let access = |name: &str, own: &[usize]| {
            let own: Vec<&str> = own.iter().map(|&i| NAMES[i]).collect();
            format!("{name}[{}]", own.join(","))
        };
        let factors = trial.factors.iter().map(|(name, own)| access(name, own));
        let factors: Vec<String> = factors.collect();
        trial.text = format!("Y{} = 2 * {}", &access("", &trial.out), factors.join(" * "));
        trial
    }

    /// Reuses the tensor of an earlier factor, at indices with its extents.
    fn again(&mut self, a: &mut Artist) {
        let (name, own) = self.factors[a.below(self.factors.len())].clone();
        let mut other = Vec::new();
        for i in own {
            let same = (0..NAMES.len()).filter(|&j| self.extents[j] == self.extents[i]);
            let same: Vec<usize> = same.collect();
            other.push(same[a.below(same.len())]);
        }
        self.twice |= self.sparse.contains_key(&name);
        self.factors.push((name, other));
    }

    fn wanted(&self) -> Vec<f64> {
        let entries: BTreeMap<_, _> = self.sparse.iter().map(|(n, a)| (n, a.entries())).collect();
        let factor = |(name, own): &'_ (String, Vec<usize>)| -> (Vec<usize>, Factor<'_>) {
            let factor = match self.dense.get(name) {
                Some(dense) => Factor::Dense(dense),
                None => Factor::Sparse(&entries[name]),
            };
            (own.clone(), factor)
        };
        let factors: Vec<_> = self.factors.iter().map(factor).collect();
        let borrowed: Vec<(&[usize], Factor<'_>)> =
            factors.iter().map(|(own, f)| (own.as_slice(), *f)).collect();
        // The reference loops over all indices, including those without a factor.
        let used = |i: usize| self.factors.iter().any(|(_, own)| own.contains(&i));
        let extents = self.extents.iter().enumerate();
        let extents: Vec<usize> = extents.map(|(i, &n)| if used(i) { n } else { 1 }).collect();
        let sums = reference::einsum(&extents, &self.out, &borrowed).unwrap();
        sums.values().iter().map(|sum| 2.0 * sum).collect()
    }

    pub fn run<T: Scalar>(&self, options: &Options) {
        let ctx = Context::cpu();
        let sparse: Vec<(&String, AnySparse<T>)> =
            self.sparse.iter().map(|(n, a)| (n, a.map_values(T::from_f64))).collect();
        let dense: Vec<(&String, Dense<T>)> =
            self.dense.iter().map(|(n, d)| (n, d.map(T::from_f64))).collect();
        let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::new();
        operands.extend(sparse.iter().map(|(n, a)| (n.as_str(), a.into())));
        operands.extend(dense.iter().map(|(n, d)| (n.as_str(), d.into())));
        let plan = ctx.plan(&self.text).operands(&operands).options(options);
        let plan = match plan.build() {
            // Two factors have only one order.
            Err(Error::NoKernel { .. }) if options.variant.is_some() => return,
            plan => {
                plan.unwrap_or_else(|error| panic!("seed {}: {}: {error}", self.seed, self.text))
            }
        };
        let out = output_of(&ctx, &plan, &operands).to_dense().unwrap();
        if let Some(difference) = first_difference(out.values(), &self.wanted()) {
            let formats = self.sparse.iter().map(|(n, a)| format!("{n} {}", a.format()));
            let formats: Vec<String> = formats.collect();
            panic!(
                "seed {}: {} {:?} {formats:?}\n  {plan}\n  {difference}",
                self.seed, self.text, self.extents
            );
        }
    }
}
