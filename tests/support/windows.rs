//! Expressions with affine indices: cases, and their results by plain loops in f64 that use no index arrays.

use crate::support::dense::{integers, poisoned};
use crate::support::einsum::evaluate;
use crate::support::runs::{finish, plan_of};
use std::collections::BTreeMap;

use super::sized;
use einsparse::einsum::Einsum;
use einsparse::formats::{Coo, CooPattern, Dense};
use einsparse::{Context, Operand, Options, Plan, Scalar, SparseTensor};

/// Expressions, shapes of their operands, and shape of the output. They cover one and two dimensions, strides,
/// dilations, orders of axes, epilogues, and tensors without elements. Shapes of the outputs by hand: `(e - 1 - d * (i
/// - 1)) / s + 1`.
const WINDOWS: &[&str] = &[
    "C[x] = A[x+i] * B[i], A 9, B 3, C 7",
    "C[x] = A[2*x+i] * B[i], A 10, B 3, C 4",
    "C[x] = B[i] * A[3*i+x], A 10, B 3, C 4",
    "C[x,m] = A[3*x,m], A 10x6, C 4x6",
    "C[x,f] = A[2*x+3*i,m] * B[i,m,f], A 20x5, B 4x5x7, C 6x7",
    "C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f], A 2x7x9x5, B 3x3x5x8, C 2x5x7x8",
    "C[n,x,y,f] = A[n,2*x+i,2*y+j,m] * B[i,j,m,f], A 2x8x9x5, B 3x3x5x8, C 2x3x4x8",
    "C[n,x,y,f] = A[n,x+2*i,y+2*j,m] * B[i,j,m,f], A 1x8x9x3, B 3x3x3x4, C 1x4x5x4",
    "C[n,x,y,f] = A[n,3*x+2*i,2*y+j,m] * B[i,j,m,f], A 2x11x6x4, B 2x4x4x9, C 2x3x2x9",
    "C[b,x] = A[b,x+i] * V[i] * Y[b,x], A 3x8, V 3, Y 3x6, C 3x6",
    // The notation of the paper (PIT, table 1).
    "C[n,f,x,y] = A[n,m,x+i,y+j] * B[f,m,i,j], A 2x3x6x7, B 4x3x3x2, C 2x4x4x6",
    "C[n,x,f] = relu(2 * A[n,x+i,m] * B[i,m,f] + bias[f]), A 2x9x4, B 3x4x8, bias 8, C 2x7x8",
    "C[x] = A[2*x+i+3*j] * B[i,j], A 16, B 2x3, C 5",
    "C[x] = A[x+i,x+j] * B[i,j], A 8x7, B 3x3, C 5",
    "C[n] = A[n,x+i] * B[i], A 3x6, B 2, C 3",
    "C[x,f] = A[x+i,m] * B[i,m,f], A 0x3, B 2x3x4, C 0x4",
    "C[x,f] = A[x+i,m] * B[i,m,f], A 5x3, B 0x3x4, C 0x4",
];

/// An expression, its operands with their shapes, and the shape of the output.
pub type Windowed = (&'static str, Vec<(&'static str, Vec<usize>)>, Vec<usize>);

pub fn windows() -> impl Iterator<Item = Windowed> {
    WINDOWS.iter().map(|line| {
        let (text, shapes) = line.split_once(", ").unwrap();
        let mut operands = sized(shapes);
        let (_, out) = operands.pop().unwrap();
        (text, operands, out)
    })
}

/// Integers from -2 to 2: sums of a few hundred products are exact in f16.
pub fn whole(shape: &[usize], seed: u64) -> Dense<f64> {
    integers(shape, seed)
}

/// Computes the result, term by term.
pub fn by_loops(text: &str, operands: &[(&str, Dense<f64>)]) -> Dense<f64> {
    let e = Einsum::parse(text).unwrap();
    let operands: BTreeMap<String, Dense<f64>> =
        operands.iter().map(|(name, dense)| ((*name).to_owned(), dense.clone())).collect();
    let shapes = operands.iter().map(|(name, dense)| (name.clone(), dense.shape().to_vec()));
    let shape = e.check(&shapes.collect()).unwrap().out().to_vec();
    Dense::new(shape, evaluate(&e, &operands, &BTreeMap::new(), None)).unwrap()
}

/// Runs a case in a context, into an output of NaN, and requires the exact result of loops. `look` receives the plan.
pub fn windows_agree<T: Scalar>(context: &Context, look: impl Fn(&str, &Plan<T>)) {
    for (text, shapes, wanted) in windows() {
        let dense = shapes.iter().enumerate();
        let dense: Vec<_> =
            dense.map(|(seed, (name, shape))| (*name, whole(shape, seed as u64 + 7))).collect();
        let on: Vec<_> = dense
            .iter()
            .map(|(name, d)| (*name, context.upload_dense(&d.map(T::from_f64)).unwrap()))
            .collect();
        let operands: Vec<(&str, Operand<'_, T>)> =
            on.iter().map(|(name, d)| (*name, d.into())).collect();
        let plan = plan_of(context, text, &operands, &Options::default());
        assert_eq!(plan.out_shape(), wanted, "{text}");
        assert_eq!(plan.einsum().to_string(), text);
        let mut out = poisoned::<T>(context, &wanted);
        finish(context, |stream| plan.run(&operands, &mut out, stream));
        let found = out.to_dense().unwrap().map(T::to_f64);
        let loops = by_loops(text, &dense);
        assert_eq!(found.values(), loops.values(), "{text}, {}: {plan}", T::DTYPE.name());
        look(text, &plan);
    }
}

/// Checks that a run wrote the values of `full` where `stored` is not zero, and nothing elsewhere.
pub fn full_where_stored(
    what: &str,
    found: &SparseTensor<f64>,
    stored: &Dense<f64>,
    full: &Dense<f64>,
) {
    let found = found.to_host().unwrap().to_dense().unwrap();
    for (at, wanted) in full.values().iter().enumerate() {
        let stored = stored.values()[at] != 0.0;
        let wanted = if stored { *wanted } else { 0.0 };
        assert_eq!(found.values()[at], wanted, "{what}, {at}");
    }
}

/// Nonzeros at positions whose coordinates sum to a multiple of three.
pub fn entries(shape: &[usize]) -> Coo<f64> {
    let all = (0..shape[0] * shape[1]).map(|p| [p / shape[1], p % shape[1]]);
    let places: Vec<_> = all.filter(|[a, b]| (a + b) % 3 == 0).collect();
    let axis = |axis: usize| places.iter().map(|p| p[axis] as u32).collect();
    let pattern = CooPattern::new(shape.to_vec(), vec![axis(0), axis(1)]).unwrap();
    let values = (0..places.len()).map(|v| (v % 5) as f64 + 1.0).collect();
    Coo::new(pattern, values).unwrap()
}
