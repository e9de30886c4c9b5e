//! Gradients of random and of listed expressions: against finite differences in f64, and those of a context against
//! those of the CPU in f64. Gradients of gradients are checked in the same way.
//!
//! An expression is linear in each operand, between the zeros of a ReLU. The difference of two runs, along a random
//! direction over all elements of one operand, is therefore the product of that direction with the gradient.

use std::collections::BTreeMap;

use einsparse::einsum::{Access, Activation, Einsum, IndexExpr, Scalar as Factor};
use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, Dense, Format, generate};
use einsparse::{Context, Error, Gradients, Operand, Plan, Scalar, SparseTensor, Tensor};
use rayon::prelude::*;

use super::draw::Draw;
use super::{first_difference, seeds};
use crate::support::replay::Replay;
use crate::support::{Rng, gpu, gpu_alone, small};

/// An operand, or the output.
#[derive(Clone, Debug)]
enum Given {
    Dense(Dense<f64>),
    Sparse(AnySparse<f64>),
    Number(f64),
}

/// An operand, or the output, in a context, with elements of type `T`.
enum There<T: Scalar> {
    Dense(Tensor<T>),
    Sparse(SparseTensor<T>),
    Number(f64),
}

impl Given {
    fn upload<T: Scalar>(&self, context: &Context) -> There<T> {
        match self {
            Given::Dense(dense) => {
                There::Dense(context.upload_dense(&dense.map(T::from_f64)).unwrap())
            }
            Given::Sparse(sparse) => {
                There::Sparse(context.upload(sparse.map_values(T::from_f64)).unwrap())
            }
            Given::Number(x) => There::Number(*x),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Given::Dense(dense) => dense.shape(),
            Given::Sparse(sparse) => sparse.shape(),
            Given::Number(_) => &[],
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Given::Dense(dense) => dense.values().to_vec(),
            Given::Sparse(sparse) => sparse.values().to_vec(),
            Given::Number(x) => vec![*x],
        }
    }

    fn with_values(&self, values: Vec<f64>) -> Given {
        match self {
            Given::Dense(dense) => Given::Dense(Dense::new(dense.shape(), values).unwrap()),
            Given::Sparse(sparse) => {
                Given::Sparse(sparse.pattern().shared().with_values(values).unwrap())
            }
            Given::Number(_) => Given::Number(values[0]),
        }
    }

    /// Random values in this shape or pattern. They are not close to 0, where a ReLU bends.
    fn random(&self, rng: &mut Rng, exact: bool) -> Given {
        let mut value = || {
            let size = match exact {
                true => 1.0 + (rng.word() >> 63) as f64,
                false => 0.25 + rng.unit().abs(),
            };
            if rng.word() >> 63 == 0 { size } else { -size }
        };
        self.with_values(self.values().iter().map(|_| value()).collect())
    }
}

impl<T: Scalar> There<T> {
    fn operand(&self) -> Operand<'_, T> {
        match self {
            There::Dense(dense) => dense.into(),
            There::Sparse(sparse) => sparse.into(),
            There::Number(x) => (*x).into(),
        }
    }

    fn values(&self) -> Vec<f64> {
        let values = match self {
            There::Dense(dense) => dense.to_dense().unwrap().values().to_vec(),
            There::Sparse(sparse) => sparse.to_host().unwrap().values().to_vec(),
            There::Number(x) => return vec![*x],
        };
        values.into_iter().map(T::to_f64).collect()
    }
}

/// Operands of one type in a context.
struct Uploaded<T: Scalar>(BTreeMap<String, There<T>>);

impl<T: Scalar> Uploaded<T> {
    fn operands(&self) -> Vec<(&str, Operand<'_, T>)> {
        self.0.iter().map(|(name, own)| (&name[..], own.operand())).collect()
    }
}

type Arrays = Vec<(String, Vec<usize>, Vec<u32>)>;

/// An expression with its operands. `out` has the shape or the pattern of the output.
struct Case<'a> {
    text: String,
    operands: BTreeMap<String, Given>,
    arrays: &'a Arrays,
    out: Given,
    /// Whether values are small integers, so that each result is exact.
    exact: bool,
}

/// Numbers of gradients that agree, and reasons of refusals.
#[derive(Debug, Default)]
pub struct Shown {
    pub agree: usize,
    pub second: usize,
    pub refused: BTreeMap<String, usize>,
}

impl Shown {
    pub fn add(&mut self, other: Shown) {
        self.agree += other.agree;
        self.second += other.second;
        for (reason, n) in other.refused {
            *self.refused.entry(reason).or_default() += n;
        }
    }

    fn refuse(&mut self, error: &Error) {
        let reason = match error {
            Error::NoKernel { tried, .. } => format!("no kernel: {:?}", tried.first()),
            other => other.to_string().replace('\n', " "),
        };
        *self.refused.entry(reason).or_default() += 1;
    }
}

impl Case<'_> {
    fn upload<T: Scalar>(&self, context: &Context) -> Uploaded<T> {
        let all = self.operands.iter().map(|(name, own)| (name.clone(), own.upload(context)));
        Uploaded(all.collect())
    }

    /// Whether the expression names this array.
    fn reads(&self, array: &str) -> bool {
        self.text.contains(&format!("{array}["))
    }

    fn plan<T: Scalar>(&self, context: &Context, there: &Uploaded<T>) -> Result<Plan<T>, Error> {
        let e = Einsum::parse(&self.text).unwrap();
        let mut operands = there.operands();
        for (name, shape, data) in self.arrays.iter().filter(|(name, ..)| self.reads(name)) {
            operands.push((name, Operand::Index(shape, data)));
        }
        let out = self.out.upload(context);
        let plan = context.plan(&self.text);
        match &out {
            There::Sparse(out) => plan.operands(&operands).sparse_output(out).build(),
            _ => {
                operands.push((&e.out.tensor, out.operand()));
                plan.operands(&operands).build()
            }
        }
    }

    /// Runs the plan into an output of zeros, and returns its values.
    fn run<T: Scalar>(&self, context: &Context, plan: &Plan<T>, there: &Uploaded<T>) -> Vec<f64> {
        let zeros = self.out.with_values(vec![0.0; self.out.values().len()]);
        let stream = context.stream().unwrap();
        let mut out = zeros.upload(context);
        match &mut out {
            There::Dense(out) => plan.run(&there.operands(), out, &stream).unwrap(),
            There::Sparse(out) => plan.run(&there.operands(), out, &stream).unwrap(),
            There::Number(_) => unreachable!(),
        }
        stream.synchronize().unwrap();
        out.values()
    }

    /// Returns the sums before the activation.
    fn sums(&self) -> Given {
        let cpu = Context::unchecked_cpu();
        let there = self.upload::<f64>(&cpu);
        let mut e = Einsum::parse(&self.text).unwrap();
        e.epilogue.activation = Activation::Identity;
        let (text, operands, out) = (e.to_string(), self.operands.clone(), self.out.clone());
        let case = Case { text, operands, out, ..*self };
        let plan = case.plan(&cpu, &there).unwrap();
        self.out.with_values(case.run(&cpu, &plan, &there))
    }

    /// Returns the gradient by an operand, and the expression of its last term.
    fn gradient<T: Scalar>(
        &self,
        context: &Context,
        operand: &str,
        (seed, value): (&Given, &[f64]),
    ) -> Result<(Vec<f64>, Einsum), Error> {
        let mut there = self.upload::<T>(context);
        let plan = self.plan(context, &there)?;
        let mut gradients = plan.gradients(&[operand])?;
        let name = &plan.einsum().out.tensor;
        there.0.insert(format!("d{name}"), seed.upload(context));
        // The sums and C: a ReLU is differentiated by one of them, and a GELU by the sums.
        let value = self.out.with_values(value.to_vec());
        there.0.insert(format!("{name}'"), self.sums().upload(context));
        there.0.insert(name.clone(), value.upload(context));
        there.0.retain(|own, _| {
            ![name.clone(), format!("{name}'")].contains(own)
                || gradients.to_string().contains(&format!(", {own}["))
        });
        let stream = context.stream().unwrap();
        // The second run overwrites the results of the first.
        for _ in 0..2 {
            gradients
                .run(&there.operands(), &stream)
                .unwrap_or_else(|error| panic!("{}: {gradients}: {error}", self.text));
        }
        stream.synchronize().unwrap();
        let found = match &self.operands[operand] {
            Given::Sparse(_) => gradients.sparse(operand)?.to_host()?.values().to_vec(),
            _ => gradients.dense(operand)?.to_dense()?.values().to_vec(),
        };
        let term = gradients.plans().last().unwrap().einsum().clone();
        Ok((found.into_iter().map(T::to_f64).collect(), term))
    }

    /// Checks the gradients by all operands, and their own gradients up to `depth`. `agree` compares one of them: of the
    /// case, by an operand, with this gradient of the output and this output.
    fn check(&self, rng: &mut Rng, depth: usize, agree: &Agree<'_>) -> Shown {
        let mut shown = Shown::default();
        let cpu = Context::unchecked_cpu();
        let there = self.upload::<f64>(&cpu);
        let value = match self.plan(&cpu, &there) {
            Ok(plan) => self.run(&cpu, &plan, &there),
            Err(error) => {
                shown.refuse(&error);
                return shown;
            }
        };
        let e = Einsum::parse(&self.text).unwrap();
        let seed = self.out.random(rng, self.exact);
        let gate = e.epilogue.gate.as_ref().map(|gate| gate.tensor.clone());
        for operand in self.operands.keys().filter(|own| Some(*own) != gate.as_ref()) {
            let term = match agree(self, operand, (&seed, &value), rng) {
                Ok(term) => term,
                Err(error) => {
                    shown.refuse(&error);
                    continue;
                }
            };
            shown.agree += 1;
            if depth > 0 {
                let own = self.of_gradient(&term, operand, &seed).check(rng, depth - 1, agree);
                shown.second += own.agree + own.second;
                own.refused.into_iter().for_each(|(reason, n)| {
                    *shown.refused.entry(format!("second: {reason}")).or_default() += n;
                });
            }
        }
        shown
    }

    /// The expression of a gradient, as a case of its own.
    fn of_gradient(&self, term: &Einsum, operand: &str, seed: &Given) -> Case<'_> {
        let e = Einsum::parse(&self.text).unwrap();
        let mut operands = self.operands.clone();
        for name in [format!("d{}", e.out.tensor), format!("d{}'", e.out.tensor)] {
            operands.insert(name, seed.clone());
        }
        for access in term.right() {
            if let Some(index) = access.tensor.strip_prefix("ones_") {
                let extent = e.check(&self.shapes()).unwrap().get(index).unwrap();
                let ones = Dense::new([extent], vec![1.0; extent]).unwrap();
                operands.insert(access.tensor.clone(), Given::Dense(ones));
            }
        }
        operands.retain(|name, _| {
            term.right().any(|access| access.tensor == *name)
                || term.scalars.iter().any(|scalar| scalar.to_string() == *name)
        });
        let out = match &self.operands[operand] {
            Given::Number(_) => Given::Dense(Dense::new([], vec![0.0]).unwrap()),
            own => own.clone(),
        };
        Case { text: term.to_string(), operands, arrays: self.arrays, out, exact: self.exact }
    }

    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let e = Einsum::parse(&self.text).unwrap();
        let operands = self.operands.iter().map(|(name, own)| (name.clone(), own.shape().to_vec()));
        let arrays = self.arrays.iter().filter(|(name, ..)| self.reads(name));
        let arrays = arrays.map(|(name, shape, _)| (name.clone(), shape.clone()));
        operands.chain(arrays).chain([(e.out.tensor, self.out.shape().to_vec())]).collect()
    }

    /// Compares the gradient with differences along random directions. At a bend of a ReLU the next direction decides.
    fn differences(
        &self,
        operand: &str,
        (seed, value): (&Given, &[f64]),
        rng: &mut Rng,
    ) -> Result<Einsum, Error> {
        const STEP: f64 = 1e-6;
        let cpu = Context::unchecked_cpu();
        let (found, term) = self.gradient::<f64>(&cpu, operand, (seed, value))?;
        let mut there = self.upload::<f64>(&cpu);
        let plan = self.plan(&cpu, &there)?;
        let own = &self.operands[operand];
        let (values, seed) = (own.values(), seed.values());
        // At the zeros that fill blocks, a ReLU bends.
        let bends = self.text.contains("relu");
        let mut last = String::new();
        for _ in 0..3 {
            let each = |x: &f64| if bends && *x == 0.0 { 0.0 } else { rng.unit() };
            let direction: Vec<f64> = values.iter().map(each).collect();
            let mut at = |step: f64| -> f64 {
                let moved = values.iter().zip(&direction).map(|(x, d)| x + step * d);
                let moved = own.with_values(moved.collect()).upload(&cpu);
                there.0.insert(operand.to_owned(), moved);
                self.run(&cpu, &plan, &there).iter().zip(&seed).map(|(c, d)| c * d).sum()
            };
            let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let along = found.iter().zip(&direction).map(|(g, d)| g * d);
            let size = 1.0 + at(0.0).abs() + along.clone().map(f64::abs).sum::<f64>();
            let along: f64 = along.sum();
            if (difference - along).abs() <= 1e-7 * size {
                return Ok(term);
            }
            last = format!("the difference is {difference}, {term} gives {along}");
        }
        panic!("{} by {operand}: {last}", self.text);
    }

    /// Compares the gradient of a context with that of the CPU in f64.
    fn same<T: Scalar>(
        &self,
        context: &Context,
        operand: &str,
        given: (&Given, &[f64]),
    ) -> Result<Einsum, Error> {
        let (found, term) = self.gradient::<T>(context, operand, given)?;
        let (wanted, _) = self.gradient::<f64>(&Context::unchecked_cpu(), operand, given)?;
        let found: Vec<T> = found.into_iter().map(T::from_f64).collect();
        if self.text.contains("gelu") {
            let far = |(f, w): (&T, &f64)| (f.to_f64() - w).abs() > 1e-4 * (1.0 + w.abs());
            let at = found.iter().zip(&wanted).position(far);
            assert_eq!(at, None, "{} by {operand}, {}: {term}", self.text, T::NAME);
        } else if let Some(difference) = first_difference(&found, &wanted) {
            panic!("{} by {operand}, {}: {term}: {difference}", self.text, T::NAME);
        }
        Ok(term)
    }
}

/// Compares one gradient. Returns its last term.
type Agree<'a> =
    dyn Fn(&Case<'_>, &str, (&Given, &[f64]), &mut Rng) -> Result<Einsum, Error> + Sync + 'a;

fn by_differences(
    case: &Case<'_>,
    operand: &str,
    given: (&Given, &[f64]),
    rng: &mut Rng,
) -> Result<Einsum, Error> {
    case.differences(operand, given, rng)
}

/// Checks the gradients of a drawn expression.
fn check_drawn(draw: &Draw, depth: usize, exact: bool, agree: &Agree<'_>) -> Shown {
    let mut rng = Rng(draw.seed + 1);
    let mut operands = BTreeMap::new();
    for (name, tensor) in &draw.dense {
        let zeros = Given::Dense(Dense::zeros(tensor.shape()).unwrap());
        operands.insert(name.clone(), zeros.random(&mut rng, exact));
    }
    if let Some(a) = &draw.sparse {
        // Zeros that fill blocks stay zero.
        let fresh = Given::Sparse(a.clone()).random(&mut rng, exact);
        let values = a.values().iter().zip(fresh.values());
        let values = values.map(|(old, new)| if *old == 0.0 { 0.0 } else { new }).collect();
        operands.insert("A".into(), fresh.with_values(values));
    }
    for (name, value) in &draw.scalars {
        operands.insert(name.clone(), Given::Number(*value));
    }
    let out = Given::Dense(Dense::zeros(&draw.shape[..]).unwrap());
    let case = Case { text: draw.text.clone(), operands, arrays: &draw.arrays, out, exact };
    case.check(&mut rng, depth, agree)
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
    "C[m,n] = gelu(S[m,k] * B[k,n] + b[m])",
    "C[n,x,y,f] += gelu(A[n,x,y,m] * B[m,f])",
    "SO[m,n] = gelu(X[m,k] * Y[n,k])",
];

/// Formats of the sparse operands.
const STORED: &[&str] = &[
    "csr",
    "coo",
    "csc",
    "ell",
    "groupcoo:2",
    "bsr:2x2",
    "blockcoo:2x3",
    "bitmap",
    "sell",
    "nm:2:4",
];

/// Checks the gradients of a listed expression, with all sparse operands in one format.
fn check_listed(text: &str, format: &str, seed: u64, exact: bool, agree: &Agree<'_>) -> Shown {
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
            values.push(1.0);
        }
        let pattern = CooPattern::new(shape.to_vec(), coords).unwrap();
        let coo = AnySparse::from(Coo::new(pattern, values).unwrap());
        let stored = match shape.len() {
            2 => coo.clone().convert(format.parse::<Format>().unwrap()).unwrap_or(coo),
            _ => coo,
        };
        let fresh = Given::Sparse(stored.clone()).random(rng, exact);
        let values = stored.values().iter().zip(fresh.values()).map(|(old, new)| old * new);
        fresh.with_values(values.collect())
    };
    let mut arrays: Arrays = Vec::new();
    let mut operands = BTreeMap::new();
    for access in e.right().chain([&e.out]) {
        access.for_each_access(&mut |own| {
            let (name, shape) = (own.tensor.clone(), sizes(own));
            if name.starts_with('K') {
                let data =
                    (0..shape.iter().product()).map(|_| (rng.word() >> 40) as u32 % 5).collect();
                arrays.push((name, shape, data));
            } else if name.starts_with('S') {
                let tensor = operands.remove(&name).unwrap_or_else(|| sparse(&shape, &mut rng));
                operands.insert(name, tensor);
            } else {
                let zeros = Given::Dense(Dense::zeros(&shape[..]).unwrap());
                operands.insert(name, zeros.random(&mut rng, exact));
            }
        });
    }
    for scalar in &e.scalars {
        if let Factor::Name(name) = scalar {
            operands.insert(name.clone(), Given::Number(3.0));
        }
    }
    let out = operands.remove(&e.out.tensor).unwrap();
    let case = Case { text: text.into(), operands, arrays: &arrays, out, exact };
    case.check(&mut rng, 1, agree)
}

/// Checks all listed expressions in all formats.
fn all_listed(exact: bool, agree: &Agree<'_>) -> Shown {
    let formats = |text: &str| if text.contains('S') { STORED } else { &STORED[..1] };
    let each = |text: &&'static str| {
        let mut shown = Shown::default();
        for (seed, format) in formats(text).iter().enumerate() {
            shown.add(check_listed(text, format, seed as u64, exact, agree));
        }
        shown
    };
    let mut all = Shown::default();
    LISTED.par_iter().map(each).collect::<Vec<_>>().into_iter().for_each(|own| all.add(own));
    all
}

/// Checks this many drawn expressions. Each fourth is also differentiated twice.
fn all_drawn(count: u64, exact: bool, agree: &Agree<'_>) -> Shown {
    let each = |seed: u64| check_drawn(&Draw::new(seed), usize::from(seed % 4 == 0), exact, agree);
    let mut all = Shown::default();
    let shown: Vec<Shown> = seeds(count).into_par_iter().map(each).collect();
    shown.into_iter().for_each(|own| all.add(own));
    all
}

/// Number of drawn expressions: EINSPARSE_TEST_GRADIENTS, or `usual`.
fn count(usual: u64) -> u64 {
    std::env::var("EINSPARSE_TEST_GRADIENTS").map_or(usual, |n| n.parse().expect("a number"))
}

#[test]
fn gradients_of_listed_expressions_agree_with_differences() {
    let shown = all_listed(false, &by_differences);
    assert!(shown.refused.is_empty() && shown.agree > 400, "{shown:?}");
}

#[test]
fn gradients_of_drawn_expressions_agree_with_differences() {
    let shown = all_drawn(count(600), false, &by_differences);
    println!("{} gradients and {} second ones agree", shown.agree, shown.second);
    assert!(shown.refused.is_empty(), "{:?}", shown.refused);
}

/// Checks the gradients of a context with elements of type `T`. One gradient in `most` may be refused: general
/// kernels multiply at most five factors, and one operand in blocks.
fn in_context<T: Scalar>(context: &Context, drawn: u64, most: usize) {
    let agree = |case: &Case<'_>, operand: &str, given: (&Given, &[f64]), _: &mut Rng| {
        case.same::<T>(context, operand, given)
    };
    let mut shown = all_listed(true, &agree);
    shown.add(all_drawn(drawn, true, &agree));
    let agree = shown.agree + shown.second;
    println!("{} gradients and {} second ones agree", shown.agree, shown.second);
    shown.refused.iter().for_each(|(reason, n)| println!("{n} refused: {reason}"));
    let refused: usize = shown.refused.values().sum();
    assert!(agree > 800 && refused * most < agree, "{agree} agree, {refused} are refused");
}

#[test]
fn gradients_of_contexts_on_the_cpu() {
    in_context::<f32>(&Context::cpu(), count(150), 12);
}

#[test]
fn gradients_of_contexts_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    in_context::<f32>(&gpu, if small() { 20 } else { count(600) }, 12);
}

/// A captured run computes the gradients of the values at each launch, and allocates nothing.
#[test]
fn gradients_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let pattern = generate::uniform(3000, 2000, 0.01, 3).unwrap();
    let slots = pattern.columns().len();
    let mut rng = Rng(5);
    let mut draw = |n: usize| -> Vec<f32> { rng.integers(n) };
    let mut a = gpu.upload(Csr::new(pattern, draw(slots)).unwrap()).unwrap();
    let mut b = gpu.upload_dense(&Dense::new([2000, 64], draw(2000 * 64)).unwrap()).unwrap();
    let dc = gpu.upload_dense(&Dense::new([3000, 64], draw(3000 * 64)).unwrap()).unwrap();
    let mut c = gpu.zeros(&[3000, 64]).unwrap();
    let plan = gpu.plan("C[m,n] = relu(A[m,k] * B[k,n])");
    let plan = plan.operand("A", &a).operand("B", &b).build().unwrap();
    let mut gradients = plan.gradients(&["A", "B"]).unwrap();
    let mut once = plan.gradients(&["A", "B"]).unwrap();
    let stream = gpu.stream().unwrap();
    let fresh = [Dense::new([slots], draw(slots)), Dense::new([2000, 64], draw(2000 * 64))];
    let [values, rows] = fresh.map(Result::unwrap);

    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let mut replay = Replay::of(&stream, || {
        plan.run(&operands, &mut c, &stream)?;
        gradients
            .run(&[&operands[..], &[("C", (&c).into()), ("dC", (&dc).into())]].concat(), &stream)
    });
    let free = gpu.free_memory().unwrap();
    a.values_mut().unwrap().write(&values).unwrap();
    b.write(&rows).unwrap();
    // SAFETY: all tensors are alive.
    unsafe { replay.run() };
    let operands =
        [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into()), ("dC", (&dc).into())];
    once.run(&operands, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(gpu.free_memory().unwrap(), free);
    let values = |gradients: &Gradients<f32>| gradients.sparse("A").unwrap().to_host().unwrap();
    assert_eq!(values(&gradients).values(), values(&once).values());
    let rows = |gradients: &Gradients<f32>| gradients.dense("B").unwrap().to_dense().unwrap();
    assert_eq!(rows(&gradients), rows(&once));
}
