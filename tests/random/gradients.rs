//! Gradients of random expressions, against finite differences in f64 and against gradients of gradients.
//!
//! An expression is linear in each operand, between the zeros of a ReLU. The difference of two runs, along a random
//! direction over all elements of one operand, is therefore the product of that direction with the gradient.

use std::collections::BTreeMap;

use einsparse::einsum::{Access, Einsum, IndexExpr, Scalar};
use einsparse::formats::{AnySparse, Coo, CooPattern, Dense, Format};
use einsparse::{Context, Error, Gradients, Operand, Options, Plan, SparseTensor, Tensor};
use rayon::prelude::*;

use super::draw::Draw;
use super::seeds;
use crate::support::Rng;

/// An operand, or the output.
#[derive(Clone, Debug)]
enum Given {
    Dense(Dense<f64>),
    Sparse(AnySparse<f64>),
    Scalar(f64),
}

/// The same in a context, in the type of the operands.
enum There {
    Dense(Tensor<f64>),
    Sparse(SparseTensor<f64>),
    Scalar(f64),
}

impl Given {
    fn upload(&self, context: &Context) -> There {
        match self {
            Given::Dense(dense) => There::Dense(context.upload_dense(dense).unwrap()),
            Given::Sparse(sparse) => There::Sparse(context.upload(sparse).unwrap()),
            Given::Scalar(x) => There::Scalar(*x),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Given::Dense(dense) => dense.values().to_vec(),
            Given::Sparse(sparse) => sparse.values().to_vec(),
            Given::Scalar(x) => vec![*x],
        }
    }

    fn with_values(&self, values: Vec<f64>) -> Given {
        match self {
            Given::Dense(dense) => Given::Dense(Dense::new(dense.shape(), values).unwrap()),
            Given::Sparse(sparse) => {
                Given::Sparse(sparse.pattern().shared().with_values(values).unwrap())
            }
            Given::Scalar(_) => Given::Scalar(values[0]),
        }
    }

    /// The same shape or pattern, with random values.
    fn random(&self, rng: &mut Rng) -> Given {
        // Not close to 0, where a ReLU bends.
        let values = self.values().iter().map(|_| 0.25 + rng.unit().abs()).collect::<Vec<_>>();
        let signs = values.iter().map(|x| if rng.word() >> 63 == 0 { *x } else { -x });
        self.with_values(signs.collect())
    }
}

impl There {
    fn operand(&self) -> Operand<'_, f64> {
        match self {
            There::Dense(dense) => dense.into(),
            There::Sparse(sparse) => sparse.into(),
            There::Scalar(x) => (*x).into(),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            There::Dense(dense) => dense.to_dense().unwrap().values().to_vec(),
            There::Sparse(sparse) => sparse.to_host().unwrap().values().to_vec(),
            There::Scalar(x) => vec![*x],
        }
    }
}

type Arrays = Vec<(String, Vec<usize>, Vec<u32>)>;

/// An expression with its operands. `out` has the shape or the pattern of the output.
struct Case<'a> {
    context: &'a Context,
    text: String,
    operands: BTreeMap<String, Given>,
    arrays: &'a Arrays,
    out: Given,
}

/// What one case has shown.
#[derive(Default)]
pub struct Shown {
    pub agree: usize,
    pub second: usize,
    pub refused: BTreeMap<String, usize>,
}

impl Shown {
    fn add(&mut self, other: Shown) {
        self.agree += other.agree;
        self.second += other.second;
        for (reason, n) in other.refused {
            *self.refused.entry(reason).or_default() += n;
        }
    }
}

impl Case<'_> {
    fn plan(&self, there: &BTreeMap<String, There>, out: &There) -> Result<Plan<f64>, Error> {
        let e = Einsum::parse(&self.text).unwrap();
        let mut operands: Vec<(&str, Operand<'_, f64>)> =
            there.iter().map(|(name, own)| (&name[..], own.operand())).collect();
        for (name, shape, data) in self.arrays {
            if self.text.contains(&format!("{name}[")) {
                operands.push((name, Operand::Index(shape, data)));
            }
        }
        let plan = self.context.plan(&self.text);
        match out {
            There::Sparse(out) => plan.operands(&operands).sparse_output(out).build(),
            _ => {
                operands.push((&e.out.tensor, out.operand()));
                plan.operands(&operands).build()
            }
        }
    }

    /// Runs the plan into an output that starts with zeros, and returns its values.
    fn run(&self, plan: &Plan<f64>, there: &BTreeMap<String, There>) -> Vec<f64> {
        let operands: Vec<(&str, Operand<'_, f64>)> =
            there.iter().map(|(name, own)| (&name[..], own.operand())).collect();
        let zeros = self.out.with_values(vec![0.0; self.out.values().len()]);
        let stream = self.context.stream().unwrap();
        let mut out = zeros.upload(self.context);
        match &mut out {
            There::Dense(out) => plan.run(&operands, out, &stream).unwrap(),
            There::Sparse(out) => plan.run(&operands, out, &stream).unwrap(),
            There::Scalar(_) => unreachable!(),
        }
        stream.synchronize().unwrap();
        out.values()
    }

    /// Checks the gradients by all operands, and their own gradients up to `depth`.
    fn check(&self, rng: &mut Rng, depth: usize, what: &str) -> Shown {
        let mut shown = Shown::default();
        let mut there: BTreeMap<String, There> = self
            .operands
            .iter()
            .map(|(name, own)| (name.clone(), own.upload(self.context)))
            .collect();
        let out = self.out.upload(self.context);
        let plan = match self.plan(&there, &out) {
            Ok(plan) => plan,
            Err(error) => {
                shown.refused.insert(format!("plan: {}", first_words(&error)), 1);
                return shown;
            }
        };
        let e = Einsum::parse(&self.text).unwrap();
        let name = &e.out.tensor;
        let seed = self.out.random(rng);
        let value = self.run(&plan, &there);
        let gate = e.epilogue.gate.as_ref().map(|gate| gate.tensor.clone());
        for operand in self.operands.keys().filter(|own| Some(*own) != gate.as_ref()) {
            let mut gradients: Gradients<f64> = match plan.gradients(&[operand]) {
                Ok(gradients) => gradients,
                Err(error) => {
                    *shown.refused.entry(first_words(&error)).or_default() += 1;
                    continue;
                }
            };
            // The gradient of the sums reads C, or the sums: the output of a run from zeros is both.
            let mut given = vec![(format!("d{name}"), seed.upload(self.context))];
            for own in [name.clone(), format!("{name}'")] {
                if gradients.plans().any(|p| p.einsum().right().any(|a| a.tensor == own)) {
                    given.push((own, self.out.with_values(value.clone()).upload(self.context)));
                }
            }
            let stream = self.context.stream().unwrap();
            let operands: Vec<(&str, Operand<'_, f64>)> = there
                .iter()
                .chain(given.iter().map(|(n, o)| (n, o)))
                .map(|(n, o)| (&n[..], o.operand()))
                .collect();
            gradients
                .run(&operands, &stream)
                .unwrap_or_else(|e| panic!("{what}: {gradients}: {e}"));
            stream.synchronize().unwrap();
            let found = match &self.operands[operand] {
                Given::Sparse(_) => gradients
                    .sparse(operand)
                    .unwrap()
                    .to_host()
                    .unwrap()
                    
                    .values()
                    .to_vec(),
                _ => gradients.dense(operand).unwrap().to_dense().unwrap().values().to_vec(),
            };
            drop(operands);
            self.differences(&plan, &mut there, operand, (&seed.values(), &found), rng)
                .unwrap_or_else(|error| {
                    panic!("{what}: gradient by {operand} of {}: {gradients}: {error}", self.text)
                });
            shown.agree += 1;
            if depth > 0 {
                // The expression of the gradient, as an expression of its own.
                let term = gradients.plans().last().unwrap().einsum().clone();
                let mut operands = self.operands.clone();
                operands.insert(format!("d{name}"), seed.clone());
                operands.insert(format!("d{name}'"), seed.clone());
                for access in term.right() {
                    if let Some(index) = access.tensor.strip_prefix("ones_") {
                        let extent = e.check(&self.shapes()).unwrap().get(index).unwrap();
                        operands.insert(
                            access.tensor.clone(),
                            Given::Dense(Dense::new([extent], vec![1.0; extent]).unwrap()),
                        );
                    }
                }
                let read = |name: &str| {
                    term.right().any(|access| access.tensor == name)
                        || term.scalars.iter().any(|scalar| scalar.to_string() == name)
                };
                operands.retain(|name, _| read(name));
                let out = match &self.operands[operand] {
                    Given::Scalar(_) => Given::Dense(Dense::new(&[][..], vec![0.0]).unwrap()),
                    own => own.clone(),
                };
                let (context, arrays) = (self.context, self.arrays);
                let case = Case { context, text: term.to_string(), operands, arrays, out };
                let own = case.check(rng, depth - 1, what);
                shown.second += own.agree + own.second;
                for (reason, n) in own.refused {
                    *shown.refused.entry(format!("second: {reason}")).or_default() += n;
                }
            }
        }
        shown
    }

    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let mut shapes = BTreeMap::new();
        let shape = |own: &Given| match own {
            Given::Dense(own) => own.shape().to_vec(),
            Given::Sparse(own) => own.shape().to_vec(),
            Given::Scalar(_) => Vec::new(),
        };
        shapes.extend(self.operands.iter().map(|(name, own)| (name.clone(), shape(own))));
        for (name, shape, _) in self.arrays {
            if self.text.contains(&format!("{name}[")) {
                shapes.insert(name.clone(), shape.clone());
            }
        }
        let e = Einsum::parse(&self.text).unwrap();
        shapes.insert(e.out.tensor, shape(&self.out));
        shapes
    }

    /// Compares the gradient with differences along random directions. At a bend of a ReLU the second direction decides.
    fn differences(
        &self,
        plan: &Plan<f64>,
        there: &mut BTreeMap<String, There>,
        operand: &str,
        (seed, found): (&[f64], &[f64]),
        rng: &mut Rng,
    ) -> Result<(), String> {
        const STEP: f64 = 1e-6;
        let own = &self.operands[operand];
        let values = own.values();
        let mut last = String::new();
        for _ in 0..3 {
            // At the zeros that fill blocks, a ReLU bends.
            let bends = self.text.contains("relu");
            let direction = values.iter().map(|x| if bends && *x == 0.0 { 0.0 } else { rng.unit() });
            let direction: Vec<f64> = direction.collect();
            let mut at = |step: f64| {
                let moved = values.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
                there.insert(operand.to_owned(), own.with_values(moved).upload(self.context));
                let out = self.run(plan, there);
                out.iter().zip(seed).map(|(c, d)| c * d).sum::<f64>()
            };
            let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let size: f64 = at(0.0).abs();
            let along: f64 = found.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let scale: f64 =
                1.0 + size + found.iter().zip(&direction).map(|(g, d)| (g * d).abs()).sum::<f64>();
            if (difference - along).abs() <= 1e-7 * scale {
                return Ok(());
            }
            last = format!("the difference is {difference}, the gradient gives {along}");
        }
        Err(last)
    }
}

fn first_words(error: &Error) -> String {
    let text = error.to_string().replace('\n', " ");
    match error {
        Error::NoKernel { tried, .. } => format!("no kernel: {:?}", tried.last()),
        _ => text,
    }
}

/// Checks the gradients of a drawn expression, in a context.
pub fn check(context: &Context, draw: &Draw, depth: usize) -> Shown {
    let mut rng = Rng(draw.seed + 1);
    let mut operands = BTreeMap::new();
    for (name, tensor) in &draw.dense {
        let zeros = Dense::zeros(tensor.shape()).unwrap();
        operands.insert(name.clone(), Given::Dense(zeros).random(&mut rng));
    }
    if let Some(a) = &draw.sparse {
        // Zeros that fill blocks stay zero.
        let fresh = Given::Sparse(a.clone()).random(&mut rng);
        let values = a.values().iter().zip(fresh.values());
        let values = values.map(|(old, new)| if *old == 0.0 { 0.0 } else { new }).collect();
        operands.insert("A".into(), fresh.with_values(values));
    }
    for (name, value) in &draw.scalars {
        operands.insert(name.clone(), Given::Scalar(*value));
    }
    let out = Given::Dense(Dense::zeros(&draw.shape[..]).unwrap());
    let (text, arrays) = (draw.text.clone(), &draw.arrays);
    Case { context, text, operands, arrays, out }.check(&mut rng, depth, &draw.to_string())
}

/// Expressions that are not drawn: affine indices, factors that occur twice, several sparse factors, sparse outputs,
/// outputs along a diagonal, sums without another factor. A name that begins with `S` is sparse, `K` is an index array.
const LISTED: &[&str] = &[
    "C[m,n] = A[m,k] * A[k,n]",
    "C[m,n] = A[m,k] * A[k,l] * A[l,n]",
    "E[] = X[i,k] * W[k,l] * X[i,l]",
    "E[] = S[i,k] * X[i,l] * X[k,l]",
    "C[m] = A[m] * B[m] + A[m]",
    "C[m,n] = s * s * S[m,k] * B[k,n] + b[n]",
    "C[x,f] = A[2*x+i,m] * B[i,m,f]",
    "C[x] = A[2*x+3*i]",
    "C[n,x,y,f] = relu(A[n,x+i,2*y+j,m] * B[i,j,m,f] + b[f])",
    "C[m] = A[m,k]",
    "C[] = A[m,k]",
    "C[m] = S[m,k]",
    "C[] = S[m,k]",
    "C[i,i] = A[i,k] * B[k,i] + b[i]",
    "C[i,i] += relu(A[i,k] * B[k,i])",
    "C[m,n] += relu(S[m,k] * B[k,n])",
    "C[m,n] = S[m,k] * S2[k,n]",
    "C[m,n] = S[m,k] * S2[m,k] * B[k,n]",
    "C[m,n] = S[m,k] * B[k,l] * S2[l,n]",
    "C[K1[p],n] = S[p,k] * B[K2[k],n] * D[p]",
    "C[K1[p],n] += relu(A[p,k] * B[k,n])",
    "SO[m,n] = X[m,k] * Y[n,k]",
    "SO[m,n] = relu(X[m,k] * Y[n,k])",
    "SO[m,n] += relu(2 * X[m,k] * Y[n,k])",
    "SO[m,n] = S[m,n] * X[m,k] * X[n,k]",
    "SO[m,n] = S[m,k] * B[k,n]",
    "SO[m,n] = S[m,n] * d[m]",
    "SO[m,m] = d[m] * e[m]",
    "SO[i,j,k] = X[i,r] * Y[j,r] * Z[k,r]",
];

/// Formats of the sparse operands.
const STORED: &[&str] =
    &["csr", "coo", "csc", "ell", "groupcoo:2", "bsr:2x2", "blockcoo:2x3", "bitmap", "sell", "nm:2:4"];

/// Checks the gradients of a listed expression, with all sparse operands in one format.
fn check_listed(context: &Context, text: &str, format: &str, seed: u64) -> Shown {
    let e = Einsum::parse(text).unwrap();
    let mut rng = Rng(seed);
    // A tensor that occurs twice is square.
    let twice = |a: &Access| e.factors.iter().filter(|b| b.tensor == a.tensor).count() > 1;
    let square = e.factors.iter().any(twice);
    let mut extent = |name| (name, if square { 5 } else { 3 + (rng.word() >> 40) as usize % 6 });
    let extents: BTreeMap<&str, usize> = e.index_names().into_iter().map(&mut extent).collect();
    let sizes = |access: &Access| -> Vec<usize> {
        let size = |index: &IndexExpr| match index {
            IndexExpr::Name(name) => extents[&name[..]],
            IndexExpr::Access(_) => 5,
            IndexExpr::Sum(terms) => {
                1 + terms.iter().map(|t| t.factor * (extents[&t.index[..]] - 1)).sum::<usize>()
            }
        };
        access.indices.iter().map(size).collect()
    };
    let sparse = |shape: &[usize], rng: &mut Rng| {
        let (mut coords, mut values) = (vec![Vec::new(); shape.len()], Vec::new());
        for point in 0..shape.iter().product::<usize>() {
            if rng.word() >> 62 != 0 {
                continue;
            }
            let mut left = point;
            for (axis, extent) in shape.iter().enumerate().rev() {
                coords[axis].push((left % extent) as u32);
                left /= extent;
            }
            values.push(0.25 + rng.unit().abs());
        }
        let pattern = CooPattern::new(shape.to_vec(), coords).unwrap();
        let coo = AnySparse::from(Coo::new(pattern, values).unwrap());
        match shape.len() {
            2 => coo.clone().convert(format.parse::<Format>().unwrap()).unwrap_or(coo),
            _ => coo,
        }
    };
    let mut arrays: Arrays = Vec::new();
    let mut operands = BTreeMap::new();
    for access in e.right().chain([&e.out]) {
        access.for_each_access(&mut |own| {
            let (name, shape) = (own.tensor.clone(), sizes(own));
            if name.starts_with('K') {
                let data = (0..shape.iter().product()).map(|_| (rng.word() >> 40) as u32 % 5).collect();
                arrays.push((name, shape, data));
            } else if name.starts_with('S') {
                let tensor = operands.remove(&name).unwrap_or_else(|| Given::Sparse(sparse(&shape, &mut rng)));
                operands.insert(name, tensor);
            } else {
                let zeros = Given::Dense(Dense::zeros(&shape[..]).unwrap());
                operands.insert(name, zeros.random(&mut rng));
            }
        });
    }
    for scalar in &e.scalars {
        if let Scalar::Name(name) = scalar {
            operands.insert(name.clone(), Given::Scalar(1.5));
        }
    }
    let out = operands.remove(&e.out.tensor).unwrap();
    let what = format!("{text}, {format}, seed {seed}");
    let case = Case { context, text: text.into(), operands, arrays: &arrays, out };
    case.check(&mut rng, 1, &what)
}

#[test]
fn gradients_of_listed_expressions_agree_with_differences() {
    let context = Context::unchecked_cpu();
    for text in LISTED {
        let formats = if text.contains('S') { STORED } else { &STORED[..1] };
        for (seed, format) in formats.iter().enumerate() {
            let shown = check_listed(&context, text, format, seed as u64);
            eprintln!("{text} {format}: {} and {}", shown.agree, shown.second);
            for (reason, n) in &shown.refused {
                eprintln!("   {n} {reason}");
            }
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    let context = Context::unchecked_cpu();
    let count = std::env::var("EINSPARSE_TEST_GRADIENTS").map_or(600, |n| n.parse().unwrap());
    let shown = seeds(count)
        .into_par_iter()
        .map(|seed| check(&context, &Draw::new(seed), usize::from(seed % 4 == 0)));
    let mut all = Shown::default();
    shown.collect::<Vec<_>>().into_iter().for_each(|own| all.add(own));
    eprintln!("{} gradients and {} second ones agree", all.agree, all.second);
    for (reason, n) in &all.refused {
        eprintln!("{n} refused: {reason}");
    }
    assert!(all.agree as u64 > 2 * count && all.second as u64 > count / 2);
    let _ = Options::default();
}
