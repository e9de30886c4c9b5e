//! Convolutions over planes: those of MobileNetV1 that are not matrix products, for one image and for 16.
//!
//! `m` is output channels, `k` taps, `n` positions of the output. Bytes are those of input and output, once.

use crate::operations::{Entry, Own};
use crate::prelude::*;
use einsparse::ops::{Conv2d, Conv2dOptions};

pub const OP: &str = "conv2d";
/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[(OP, Own(run))];

/// Channels, edge of the plane, stride, of the depthwise layers (arXiv 1704.04861, table 1). The five equal layers of
/// 512 channels are measured once.
const DEPTHWISE: [[usize; 3]; 9] = [
    [32, 112, 1],
    [64, 112, 2],
    [128, 56, 1],
    [128, 56, 2],
    [256, 28, 1],
    [256, 28, 2],
    [512, 14, 1],
    [512, 14, 2],
    [1024, 7, 1],
];
const BATCHES: [usize; 2] = [1, 16];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for batch in BATCHES {
        let same = |stride: usize| Conv2dOptions { stride, padding: [1, 1], relu: true };
        let first = ([3, batch, 224, 224], [32, 3, 3, 3], same(2));
        measured::<f32>(bench, "first", first)?;
        measured::<f16>(bench, "first", first)?;
        for [channels, edge, stride] in DEPTHWISE {
            let layer = ([channels, batch, edge, edge], [channels, 1, 3, 3], same(stride));
            measured::<f32>(bench, "depthwise", layer)?;
            measured::<f16>(bench, "depthwise", layer)?;
        }
        let pool = ([1024, batch, 7, 7], [1024, 1, 7, 7], Conv2dOptions::default());
        measured::<f32>(bench, "pool", pool)?;
    }
    Ok(())
}

/// Random integers, so that the check is exact.
fn whole<T: Scalar>(shape: &[usize], seed: u64) -> Result<Dense<T>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let len = shape.iter().product();
    let values = (0..len).map(|_| T::from_f64(f64::from(rng.random_range(-4..=4))));
    Ok(Dense::new(shape, values.collect())?)
}

fn measured<T: Scalar>(
    bench: &Bench<'_>,
    name: &str,
    (input, weights, options): ([usize; 4], [usize; 4], Conv2dOptions),
) -> Result<()> {
    let bench = bench.anew()?;
    let [channels, batch, height, width] = input;
    let places = batch * height * width;
    let x = whole::<T>(&[channels, places], SEED)?;
    let w = whole::<T>(&weights, SEED + 1)?;
    let b = whole::<T>(&[weights[0]], SEED + 2)?;
    let made = |ctx: &Context| -> Result<_> {
        let conv = Conv2d::<T>::new(ctx, input, weights, &options)?;
        let [outputs, batch, down, across] = conv.out_shape();
        let out = ctx.zeros::<T>(&[outputs, batch * down * across])?;
        let operands = (ctx.upload_dense(&x)?, ctx.upload_dense(&w)?, ctx.upload_dense(&b)?);
        Ok((conv, operands, out))
    };
    let (conv, (xs, ws, bs), mut out) = made(&bench.context)?;
    let times = bench.measure(|| conv.forward(&xs, &ws, Some(&bs), &mut out, &bench.stream))?;
    let cpu = Context::cpu();
    let (reference, (xs, ws, bs), mut wanted) = made(&cpu)?;
    reference.forward(&xs, &ws, Some(&bs), &mut wanted, &cpu.stream()?)?;
    let right = out.to_dense()?.values() == wanted.to_dense()?.values();
    let taps: usize = weights[1..].iter().product();
    let places_out = out.shape()[1];
    let case = format!("{name}-{channels}x{height}-s{}-b{batch}", options.stride);
    let moved = channels * places + weights[0] * places_out;
    let row = Row::new(OP, case, [weights[0], taps, places_out], 0, T::NAME)
        .timed(&times)
        .ours(conv.variant())
        .flops(2.0 * (weights[0] * taps * places_out) as f64)
        .bytes((moved * size_of::<T>()) as f64);
    bench.add(row.judged(right, "with bias, and but for the pool with ReLU"))
}
