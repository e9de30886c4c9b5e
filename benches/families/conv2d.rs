//! Convolutions over planes: those of MobileNetV1 that are not matrix products, for one image and for 16.
//!
//! `m` is output channels, `k` taps, `n` positions of the output. Bytes are those of input and output, once.

use crate::prelude::*;
use einsparse::Stream;
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

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for batch in [1, 16] {
        let same = |stride: usize| Conv2dOptions { stride, padding: [1, 1], relu: true };
        let mut layers = vec![("first", [3, batch, 224, 224], [32, 3, 3, 3], same(2))];
        layers.extend(DEPTHWISE.map(|[channels, edge, stride]| {
            ("depthwise", [channels, batch, edge, edge], [channels, 1, 3, 3], same(stride))
        }));
        for (name, input, weights, options) in layers {
            measured::<f32>(bench, name, (input, weights, options))?;
            measured::<f16>(bench, name, (input, weights, options))?;
        }
        let pool = ([1024, batch, 7, 7], [1024, 1, 7, 7], Conv2dOptions::default());
        measured::<f32>(bench, "pool", pool)?;
    }
    Ok(())
}

/// Integers, so that the check is exact.
fn whole<T: Scalar>(shape: &[usize], seed: usize) -> Result<Dense<T>> {
    let values = values::<f32>(shape.iter().product(), seed, 4.5);
    let values = values.iter().map(|x| T::from_f64(f64::from(x.round())));
    Ok(Dense::new(shape, values.collect())?)
}

fn measured<T: Scalar>(
    bench: &Bench<'_>,
    name: &str,
    (input, weights, options): ([usize; 4], [usize; 4], Conv2dOptions),
) -> Result<()> {
    let [channels, batch, height, width] = input;
    let places = batch * height * width;
    let (x, w) = (whole::<T>(&[channels, places], 1)?, whole::<T>(&weights, 2)?);
    let b = whole::<T>(&[weights[0]], 3)?;
    let make = |ctx: &Context| -> Result<Step<T, 1>> {
        let conv = Conv2d::<T>::new(ctx, input, weights, &options)?;
        let [outputs, batch, down, across] = conv.out_shape();
        let out = ctx.zeros::<T>(&[outputs, batch * down * across])?;
        let (xs, ws, bs) = (ctx.upload_dense(&x)?, ctx.upload_dense(&w)?, ctx.upload_dense(&b)?);
        let (taps, places_out) = (weights[1..].iter().product::<usize>(), out.shape()[1]);
        let case = format!("{name}-{channels}x{height}-s{}-b{batch}", options.stride);
        let moved = channels * places + outputs * places_out;
        let row = Row::new(OP, case, [outputs, taps, places_out], 0, T::NAME)
            .ours(conv.variant())
            .flops(2.0 * (outputs * taps * places_out) as f64)
            .bytes((moved * size_of::<T>()) as f64)
            .note("with bias, and but for the pool with ReLU");
        let run = move |[out]: &mut [Tensor<T>; 1], stream: &Stream| {
            Ok(conv.forward(&xs, &ws, Some(&bs), out, stream)?)
        };
        Ok((row, [out], Box::new(run)))
    };
    bench.anew()?.against_cpu(make, [0.0])
}
