//! An expression with operands of small integers, run on the CPU and by the naive reference.

use std::collections::BTreeMap;

use einsparse::cpu::{self, Operands, Output};
use einsparse::einsum::{Access, Activation, Einsum, IndexExpr, Mode, Scalar};
use einsparse::formats::convert::prune_to_nm;
use einsparse::formats::reference::{self, Factor};
use einsparse::formats::{AnySparse, Coo, CooPattern, Dense, Element, Format, generate};
use einsparse::indirect::{IndirectEinsum, rewrite, rewrite_dense};

/// Nonzeros at about a third of the positions, with small integers as values.
pub fn random_coo<T: Element>(shape: &[usize], seed: u64) -> Coo<T> {
    let space: usize = shape.iter().product();
    let places = generate::uniform(1, space, if space == 0 { 0.0 } else { 0.3 }, seed).unwrap();
    let mut coords = vec![Vec::new(); shape.len()];
    for &place in places.columns() {
        let mut place = place as usize;
        for (axis, &n) in shape.iter().enumerate().rev() {
            coords[axis].push((place % n) as u32);
            place /= n;
        }
    }
    let values = generate::small_integers(places.columns().len(), seed);
    Coo::new(CooPattern::new(shape.to_vec(), coords).unwrap(), values).unwrap()
}

pub fn integers<T: Element>(shape: &[usize], seed: u64) -> Dense<T> {
    let n = shape.iter().product();
    Dense::new(shape.to_vec(), generate::small_integers(n, seed)).unwrap()
}

/// Expression with operands of one element type.
pub struct Problem<T> {
    pub e: Einsum,
    pub extents: BTreeMap<String, usize>,
    pub sparse: Option<(String, AnySparse<T>)>,
    pub dense: BTreeMap<String, Dense<T>>,
    pub out: Dense<T>,
}

/// Indices of an access. All of them must be names.
pub fn names(access: &Access) -> Vec<&str> {
    let indices = access.indices.iter();
    indices
        .map(|i| match i {
            IndexExpr::Name(n) => n.as_str(),
            other => panic!("{other} in a problem for the reference"),
        })
        .collect()
}

/// Adds a bias with indices `own` to every element of sums whose indices are `out`.
pub fn add_bias(sums: &mut Dense<f64>, out: &[usize], (own, bias): (&[usize], &Dense<f64>)) {
    let shape = sums.shape().to_vec();
    for (at, sum) in sums.values_mut().iter_mut().enumerate() {
        let (mut place, mut rest) = (vec![0; shape.len()], at);
        for (axis, &n) in shape.iter().enumerate().rev() {
            (place[axis], rest) = (rest % n, rest / n);
        }
        let at = |i: &usize| place[out.iter().position(|o| o == i).unwrap()];
        let at: Vec<usize> = own.iter().map(at).collect();
        *sum += bias.get(&at).unwrap();
    }
}

impl<T: einsparse::Scalar> Problem<T> {
    pub fn new(
        text: &str,
        mode: Mode,
        operand: &str,
        extents: &[(&str, usize)],
        seed: u64,
    ) -> Self {
        let mut e = Einsum::parse(text).unwrap();
        e.mode = mode;
        let extents: BTreeMap<String, usize> =
            extents.iter().map(|(n, x)| (n.to_string(), *x)).collect();
        let shape = |a: &Access| -> Vec<usize> { names(a).iter().map(|n| extents[*n]).collect() };
        let mut sparse = None;
        let mut dense = BTreeMap::new();
        for (i, access) in e.right().enumerate() {
            if access.tensor == operand {
                let coo = random_coo(&shape(access), seed);
                sparse = Some((operand.to_owned(), AnySparse::Coo(coo)));
            } else {
                dense.insert(access.tensor.clone(), integers(&shape(access), seed + 1 + i as u64));
            }
        }
        let out = match mode {
            // The previous contents of the output must not matter.
            Mode::Assign => Dense::from_fn(shape(&e.out), |_| T::from_f64(f64::NAN)).unwrap(),
            Mode::Accumulate => integers(&shape(&e.out), seed + 100),
        };
        Problem { e, extents, sparse, dense, out }
    }

    /// Converts the sparse operand to another format. For N:M, values that the format cannot store are pruned first.
    pub fn convert(&mut self, format: Format) {
        if let Some((_, tensor)) = &mut self.sparse {
            if matches!(format, Format::Nm { .. }) {
                *tensor = prune_to_nm(&tensor.to_dense().unwrap()).unwrap().into();
            }
            *tensor = tensor.convert(format).unwrap();
        }
    }

    fn rewrite(&self) -> IndirectEinsum {
        match &self.sparse {
            Some((name, tensor)) => rewrite(&self.e, name, &tensor.format()).unwrap(),
            None => rewrite_dense(&self.e).unwrap(),
        }
    }

    fn operands<'a>(&'a self, e: &IndirectEinsum) -> Operands<'a, T> {
        let mut operands = Operands::new();
        if let Some((_, tensor)) = &self.sparse {
            operands.sparse(e, tensor).unwrap();
        }
        for (name, tensor) in &self.dense {
            operands.dense(name, tensor);
        }
        operands
    }

    pub fn run(&self, general: bool) -> Dense<T> {
        let e = self.rewrite();
        let mut out = self.out.clone();
        let shape = out.shape().to_vec();
        let view = Output::new(&shape, out.values_mut()).unwrap();
        let run = if general { cpu::run_nest } else { cpu::run };
        run(&e, &self.operands(&e), view).unwrap_or_else(|error| panic!("{e}: {error}"));
        out
    }

    /// The specified result in f64: sums, bias, ReLU, then the previous output.
    pub fn reference(&self) -> Vec<f64> {
        let index: Vec<&String> = self.extents.keys().collect();
        let number = |a: &Access| -> Vec<usize> {
            names(a).iter().map(|n| index.iter().position(|i| i == n).unwrap()).collect()
        };
        let wide: BTreeMap<_, _> =
            self.dense.iter().map(|(n, d)| (n, d.map(|v| v.to_f64()))).collect();
        let entries = self.sparse.as_ref().map(|(_, tensor)| tensor.entries());
        let numbers: Vec<Vec<usize>> = self.e.factors.iter().map(number).collect();
        let factor = |(i, a): (usize, &Access)| match wide.get(&a.tensor) {
            Some(dense) => (numbers[i].as_slice(), Factor::Dense(dense)),
            None => (numbers[i].as_slice(), Factor::Sparse(entries.as_ref().unwrap())),
        };
        let factors: Vec<_> = self.e.factors.iter().enumerate().map(factor).collect();
        let extents: Vec<usize> = self.extents.values().copied().collect();
        let out = number(&self.e.out);
        let mut sums = reference::einsum(&extents, &out, &factors).unwrap();
        let scale: f64 = self
            .e
            .scalars
            .iter()
            .map(|s| if let Scalar::Literal(v) = s { *v } else { 1.0 })
            .product();
        sums.values_mut().iter_mut().for_each(|sum| *sum *= scale);
        if let Some(bias) = &self.e.epilogue.bias {
            add_bias(&mut sums, &out, (&number(bias), &wide[&bias.tensor]));
        }
        for (at, sum) in sums.values_mut().iter_mut().enumerate() {
            if self.e.epilogue.activation == Activation::Relu && *sum < 0.0 {
                *sum = 0.0;
            }
            if self.e.mode == Mode::Accumulate {
                *sum += self.out.values()[at].to_f64();
            }
        }
        sums.into_values()
    }

    pub fn assert_exact(&self, what: &str) {
        let wanted = self.reference();
        for general in [false, true] {
            let found = self.run(general).map(T::to_f64).into_values();
            assert!(
                found == wanted,
                "{what} general={general}: {}\n{found:?}\n{wanted:?}",
                self.rewrite()
            );
        }
    }
}
