//! Normalization, rotary positions, activations and tokens: the GPU against the CPU, the CPU against explicit formulas.

mod gates;
mod norms;
mod positions;
mod tokens;

use einsparse::dynamic::Gate;
use einsparse::formats::Dense;
use einsparse::nn::{Glu, ResidualNormGradient, RmsNorm, Rotary, RotaryOptions};
use einsparse::{Context, Error, Scalar, Tensor};

use crate::support::dense::strided;
use crate::support::{Rng, gpu};

/// Tokens and features around every width of lanes and vectors.
const EXTENTS: [[usize; 2]; 14] = [
    [1, 1],
    [3, 40],
    [0, 8],
    [5, 0],
    [8, 128],
    [17, 513],
    [1, 4096],
    [64, 1024],
    [24, 1032],
    [7, 5120],
    [16, 8192],
    [3, 70_000],
    [300, 130],
    [264, 4096],
];

fn values<T: Scalar>(shape: &[usize], seed: u64) -> Dense<T> {
    let values = Rng(seed).units::<f64>(shape.iter().product());
    let values = values.iter().map(|x| T::from_f64(2.0 * x));
    Dense::new(shape, values.collect()).unwrap()
}

/// Uploads rows with `gap` elements of NaN between them.
fn with_gaps<T: Scalar>(ctx: &Context, dense: &Dense<T>, gap: usize) -> Tensor<T> {
    let leading = dense.shape()[1] + gap;
    strided(ctx, dense, leading, T::from_f64(f64::NAN))
}

fn gaps_are_left<T: Scalar>(tensor: &Tensor<T>) {
    let (stored, columns) = (tensor.to_storage().unwrap(), tensor.shape()[1]);
    for row in stored.chunks(tensor.leading().max(1)).filter(|row| row.len() > columns) {
        assert!(row[columns..].iter().all(|x| x.to_f64().is_nan()), "a gap was written");
    }
}

/// Returns the tolerance: a few roundings of the type.
fn within<T: Scalar>() -> f64 {
    match T::NAME {
        "f32" => 4e-6,
        "f16" => 2e-3,
        _ => 1.6e-2,
    }
}

/// Returns the shape for tokens in columns or in rows.
fn shape_of(columns: bool, [tokens, width]: [usize; 2]) -> [usize; 2] {
    if columns { [width, tokens] } else { [tokens, width] }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Context::unchecked_cpu();
    let refused = |result: Result<(), Error>, name: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.name(), Some(name), "{error}");
    };
    refused(RmsNorm::<f32>::new(&cpu, [1, 8], f64::NAN, false).map(drop), "epsilon");
    let options = RotaryOptions { dim: 24, ..RotaryOptions::default() };
    refused(Rotary::<f32>::new(&cpu, &options).map(drop), "dim");
    let options = RotaryOptions { base: 0.0, ..RotaryOptions::default() };
    refused(Rotary::<f32>::new(&cpu, &options).map(drop), "base");
    let stream = cpu.stream().unwrap();
    let norm = RmsNorm::<f32>::new(&cpu, [2, 8], 0.0, true).unwrap();
    let zeros = |shape: &[usize]| cpu.zeros::<f32>(shape).unwrap();
    let (x, factor, mut out) = (zeros(&[8, 2]), zeros(&[8]), zeros(&[2, 8]));
    refused(norm.forward(&x, &factor, &mut out, &stream), "out");
    let glu = Glu::<f32>::new(&cpu, Gate::Silu, [2, 8], false).unwrap();
    refused(glu.forward(&zeros(&[2, 8]), &mut out, &stream), "x");
    let norm = ResidualNormGradient::<f32>::new(&cpu, [2, 8], -1.0).map(drop);
    refused(norm, "epsilon");
    let Some(gpu) = gpu() else { return };
    assert!(ResidualNormGradient::<f32, f64>::new(&gpu, [2, 8], 0.0).is_err());
    assert!(RmsNorm::<f64>::new(&gpu, [1, 8], 0.0, false).is_err());
}
