//! Plans: expressions over sparse and dense operands, kernels by name, and runs with operands other than the planned
//! ones.

use einsparse::formats::AnySparse;
use einsparse::registry::products;
use einsparse::{
    Determinism, Operand, Options, Plan, Precision, Scalar, Tensor, Weights, ZerosRule,
};

use crate::gpu::operator_trials::loops::sparse_of;
use crate::gpu::operator_trials::trial::{Outcome, Trial};

type Done = Result<(), Outcome>;

/// Expressions with one sparse operand A, and the axes of all operands.
const TEXTS: &[(&str, &[(&str, &str)])] = &[
    ("C[m,n] = A[m,k] * B[k,n]", &[("A", "mk"), ("B", "kn"), ("C", "mn")]),
    ("C[m,n] = A[m,k] * B[k,n]", &[("A", "mk"), ("B", "kn"), ("C", "mn")]),
    ("C[m,n] += A[m,k] * B[k,n]", &[("A", "mk"), ("B", "kn"), ("C", "mn")]),
    ("C[n,m] = A[m,k] * B[k,n]", &[("A", "mk"), ("B", "kn"), ("C", "nm")]),
    ("C[m,n] = A[m,k] * B[n,k]", &[("A", "mk"), ("B", "nk"), ("C", "mn")]),
    ("C[k,n] = A[m,k] * B[m,n]", &[("A", "mk"), ("B", "mn"), ("C", "kn")]),
    (
        "C[m,n] = relu(A[m,k] * B[k,n] + bias[n])",
        &[("A", "mk"), ("B", "kn"), ("bias", "n"), ("C", "mn")],
    ),
    (
        "C[m,n] = s * A[m,k] * B[k,n] + bias[m]",
        &[("A", "mk"), ("B", "kn"), ("bias", "m"), ("C", "mn")],
    ),
    ("y[m] = A[m,k] * x[k]", &[("A", "mk"), ("x", "k"), ("y", "m")]),
    ("r[m] = A[m,k]", &[("A", "mk"), ("r", "m")]),
    ("s[] = A[m,k]", &[("A", "mk"), ("s", "")]),
    ("D[m,k] = A[m,k]", &[("A", "mk"), ("D", "mk")]),
    ("C[m,n] = A[m,k] * B[k,n] * E[m,n]", &[("A", "mk"), ("B", "kn"), ("E", "mn"), ("C", "mn")]),
    ("C[b,m,n] = A[m,k] * B[b,k,n]", &[("A", "mk"), ("B", "bkn"), ("C", "bmn")]),
];

const FORMATS: [&str; 14] = [
    "csr",
    "csr",
    "coo",
    "ell",
    "groupcoo:4",
    "csc",
    "bsr:16x16",
    "bsr:2x3",
    "blockcoo:16x16",
    "blockgroupcoo:16x16:4",
    "bitmap",
    "bytemap",
    "sell",
    "groupcoo:hybrid",
];

struct Drawn<T: Scalar> {
    text: &'static str,
    a: AnySparse<T>,
    /// Shapes of the dense operands, and of the output.
    dense: Vec<(&'static str, Vec<usize>)>,
    out: Vec<usize>,
}

fn extents(t: &mut Trial<'_>) -> impl Fn(char) -> usize + use<> {
    let [m, k, n, b] = [t.rows(), t.rows(), t.columns(), t.one(&[1, 2, 0])];
    move |axis| match axis {
        'm' => m,
        'k' => k,
        'n' => n,
        _ => b,
    }
}

fn drawn<T: Scalar>(t: &mut Trial<'_>) -> Result<Drawn<T>, Outcome> {
    let (text, all) = t.one(TEXTS);
    let extent = extents(t);
    let shape = |axes: &str| -> Vec<usize> { axes.chars().map(&extent).collect() };
    let own = shape(all[0].1);
    let share = t.one(&[0, 3, 16, 64]);
    let entries = t.entries(&own, share);
    let format = t.one(&FORMATS);
    let a = sparse_of::<T>(&own, &entries, format)?;
    let dense = all[1..all.len() - 1].iter();
    Ok(Drawn {
        text,
        a,
        dense: dense.map(|&(name, axes)| (name, shape(axes))).collect(),
        out: shape(all[all.len() - 1].1),
    })
}

fn options(t: &mut Trial<'_>) -> Options {
    Options::default()
        .precision(t.one(&[Precision::Full, Precision::Full, Precision::Tf32]))
        .zeros(t.one(&[ZerosRule::Dense, ZerosRule::Dense, ZerosRule::Strict]))
        .determinism(t.one(&[Determinism::Strict, Determinism::Strict, Determinism::Relaxed]))
        .weights(t.one(&[Weights::EachRun, Weights::EachRun, Weights::Static]))
        .alignment(t.one(&[None, None, Some(1), Some(2), Some(8), Some(3), Some(0)]))
        .memory_limit(t.one(&[None, None, None, Some(0), Some(1 << 20)]))
}

fn places<T: Scalar>(t: &mut Trial<'_>, d: &Drawn<T>) -> Vec<(&'static str, Tensor<T>)> {
    let mut all: Vec<_> = d
        .dense
        .iter()
        .map(|(name, shape)| (*name, t.given::<T>(name, shape, |_, _| 1.0).there))
        .collect();
    if t.once_in(12) && !all.is_empty() {
        let at = t.below(all.len());
        all.remove(at);
    }
    all
}

type Named<'a, T> = Vec<(&'static str, Operand<'a, T>)>;

/// Bound operands: A, the dense operands and the scalar.
fn bound<'a, T: Scalar>(
    text: &str,
    a: Operand<'a, T>,
    dense: &'a [(&'static str, Tensor<T>)],
) -> Named<'a, T> {
    let mut all: Named<'a, T> = vec![("A", a)];
    all.extend(dense.iter().map(|(name, tensor)| (*name, tensor.into())));
    if text.contains("s * ") {
        all.push(("s", 2.0.into()));
    }
    all
}

/// Builds a plan, and runs it with different operands.
fn planned<T: Scalar>(t: &mut Trial<'_>, options: &Options) -> Done {
    t.aim(6);
    let d = drawn::<T>(t)?;
    let plan: Plan<T> = {
        // With a memory limit, a GPU streams A from host memory. A CPU context refuses device memory.
        let a = match options.memory_limit {
            Some(_) => t.context.upload(d.a.map_values(|x| x)).unwrap(),
            None => t.sparse("A", &d.a),
        };
        let dense = places(t, &d);
        let operands = bound(d.text, (&a).into(), &dense);
        let made = t.context.plan(d.text).operands(&operands).options(options).build();
        t.made(made)?
    };
    let other = other_pattern(t, &d)?;
    let a = t.sparse("A", &other);
    let dense = places(t, &d);
    let operands = bound(d.text, (&a).into(), &dense);
    let mut out = t.given::<T>("out", &d.out, |_, _| 0.0).there;
    t.queue(|stream| plan.run(&operands, &mut out, stream))
}

/// The planned A, or one of another pattern or format.
fn other_pattern<T: Scalar>(t: &mut Trial<'_>, d: &Drawn<T>) -> Result<AnySparse<T>, Outcome> {
    if !t.once_in(5) {
        return Ok(d.a.map_values(|x| x));
    }
    let entries = t.entries(d.a.shape(), 10);
    let format = match t.once_in(2) {
        true => d.a.format().to_string(),
        false => t.one(&FORMATS).to_owned(),
    };
    sparse_of::<T>(d.a.shape(), &entries, &format)
}

pub fn plan<T: Scalar>(t: &mut Trial<'_>) -> Done {
    let options = options(t);
    planned::<T>(t, &options)
}

pub fn named<T: Scalar>(t: &mut Trial<'_>) -> Done {
    let all: Vec<&str> = products().map(|row| row.name).collect();
    let own: Vec<&str> =
        products().filter(|row| row.dtype.name() == T::NAME).map(|row| row.name).collect();
    let name = match t.below(8) {
        0 => "spmm_of_dreams",
        1 => t.one(&all),
        _ => t.one(&own),
    };
    let options = options(t).variant(name);
    planned::<T>(t, &options)
}

pub fn update<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let d = drawn::<T>(t)?;
    let options =
        Options::default().weights(t.one(&[Weights::Static, Weights::Static, Weights::EachRun]));
    let plan: Plan<T> = {
        let a = t.sparse("A", &d.a);
        let dense = places(t, &d);
        let operands = bound(d.text, (&a).into(), &dense);
        let made = t.context.plan(d.text).operands(&operands).options(&options).build();
        t.made(made)?
    };
    let other = other_pattern(t, &d)?;
    let a = t.sparse("A", &other);
    let dense = places(t, &d);
    let mut operands = bound(d.text, (&a).into(), &dense);
    match t.below(6) {
        0 => operands.truncate(1),
        1 => drop(operands.remove(0)),
        2 => operands.push(("A", (&a).into())),
        3 => operands.push(("Z", 1.0.into())),
        _ => {}
    }
    t.queue(|stream| plan.update_values(&operands, stream))
}

pub fn sampled<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(7);
    let [m, n, k] = [t.rows(), t.rows(), t.columns()];
    let text = t.one(&[
        "S[m,n] = X[m,k] * Y[n,k]",
        "S[m,n] += X[m,k] * Y[n,k]",
        "S[m,n] = X[m,k] * Y[k,n]",
        "S[m,n] = X[k,m] * Y[k,n]",
    ]);
    let turned = [text.contains("X[k,m]"), text.contains("Y[k,n]")];
    let shapes = [(m, turned[0]), (n, turned[1])]
        .map(|(extent, turned)| if turned { [k, extent] } else { [extent, k] });
    let entries = t.entries(&[m, n], 16);
    let format = t.one(&FORMATS);
    let s = sparse_of::<T>(&[m, n], &entries, format)?;
    let mut options = options(t);
    let names: Vec<&str> =
        einsparse::kernels::table::kernels().iter().map(|row| row.name).collect();
    if t.once_in(4) {
        options.variant = Some(t.one(&names).into());
    }
    let plan: Plan<T> = {
        let own = t.sparse("S", &s);
        let [x, y] = [("X", shapes[0]), ("Y", shapes[1])]
            .map(|(name, shape)| t.given::<T>(name, &shape, |_, _| 1.0).there);
        let operands = [("X", Operand::from(&x)), ("Y", (&y).into())];
        let made = t.context.plan(text).operands(&operands).options(&options).sparse_output(&own);
        let made = made.build();
        t.made(made)?
    };
    let other = if t.once_in(4) { t.entries(&[m, n], 16) } else { entries };
    let format = if t.once_in(6) { t.one(&FORMATS) } else { format };
    let s = sparse_of::<T>(&[m, n], &other, format)?;
    let mut out = t.sparse("S", &s);
    let [x, y] = [("X", shapes[0]), ("Y", shapes[1])]
        .map(|(name, shape)| t.given::<T>(name, &shape, |_, _| 1.0).there);
    let operands = [("X", Operand::from(&x)), ("Y", (&y).into())];
    t.queue(|stream| plan.run(&operands, &mut out, stream))
}

/// Views and tensors by themselves.
pub fn views<T: Scalar>(t: &mut Trial<'_>) -> Done {
    let shape: Vec<usize> = (0..t.below(4)).map(|_| t.one(&[0, 1, 3, 8])).collect();
    let mut tensor = t.made(t.context.zeros::<T>(&shape))?;
    let (from, to) = (t.below(9), t.below(9));
    t.made(tensor.columns(from..to).map(drop))?;
    let (first, part) = (t.below(9), [t.below(4), t.below(4)]);
    t.made(tensor.part(first, &part).map(drop))?;
    let other: Vec<usize> = (0..t.below(4)).map(|_| t.one(&[0, 1, 3, 8])).collect();
    t.made(tensor.reshape(&other))
}
