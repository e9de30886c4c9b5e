//! A block-sparse linear layer: forward, both gradients, and the dense layer of the same shape on cuBLAS.
//!
//! `n` is the number of tokens; rates count the products of stored blocks.

use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED, full_blocks};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{AnySparse, Csr, Dense, Format, f16};
use einsparse::ops::{BlockLinear, LinearOptions};
use einsparse::{Context, Stream};
use std::fmt::Display;
use std::sync::Arc;

/// Inputs, outputs and tokens.
const EXTENT: usize = 4096;
const EDGES: [usize; 4] = [16, 32, 64, 128];
const DENSITIES: [f64; 3] = [0.5, 0.1, 0.05];

/// Seven bits of a hash as a number in -1..1.
fn value(i: usize) -> f16 {
    let hash = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    f16::from_f32(hash as f32 / 64.0 - 1.0)
}

/// Measures every layer.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let dense = dense(gpu, effort)?;
    for density in DENSITIES {
        for edge in EDGES {
            layer(gpu, effort, recorder, (edge, density), dense)?;
        }
    }
    Ok(())
}

/// A dense layer of these extents: forward, and both gradients.
fn dense(gpu: &Gpu, effort: Effort) -> Result<[Times; 2]> {
    let cublas = CuBlas::open(gpu, false)?;
    let values: Vec<f16> = (0..EXTENT * EXTENT).map(value).collect();
    let [a, b, c] = [&values, &values, &values].map(|v| Buffer::from_slice(v));
    let pointers = [a?, b?, c?];
    let addresses = [0, 1, 2].map(|i: usize| pointers[i].ptr);
    let second = Buffer::new(EXTENT * EXTENT * 2)?;
    let forward = measure(gpu, effort, &mut || {
        cublas.gemm(Dtype::F16, [EXTENT; 3], addresses)
    })?;
    let [a, b, c] = addresses;
    let backward = measure(gpu, effort, &mut || {
        cublas.gemm_by_rows(Dtype::F16, [EXTENT; 3], [a, b, c])?;
        cublas.gemm_turned(Dtype::F16, [EXTENT; 3], [a, b, second.ptr])
    })?;
    Ok([forward, backward])
}

fn layer(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (edge, density): (usize, f64),
    dense: [Times; 2],
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let pattern = full_blocks(EXTENT, edge, density, SEED).map_err(text)?;
    let nnz = pattern.columns().len();
    let csr = Csr::new(Arc::new(pattern), (0..nnz).map(value).collect()).map_err(text)?;
    let format = Format::BlockGroupCoo {
        block: (edge, edge),
        group: None,
    };
    let weight = AnySparse::from(csr).convert(format).map_err(text)?;
    let options = LinearOptions::default();
    let mut layer = BlockLinear::new(&context, weight, EXTENT, options).map_err(text)?;
    let filled = |seed: usize| {
        let shape = vec![EXTENT, EXTENT];
        let dense = Dense::from_fn(shape, |i| value(i[0] * EXTENT + i[1] + seed)).map_err(text)?;
        context.upload_dense(&dense).map_err(text)
    };
    let (x, dy) = (filled(1)?, filled(2)?);
    let shape = [EXTENT, EXTENT];
    let (mut y, mut dx) = (
        context.zeros(&shape).map_err(text)?,
        context.zeros(&shape).map_err(text)?,
    );
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let variants = layer.variants();
    let mut row = |op: &str, engine: &str, variant: &str, products: usize, times: Times| {
        let flops = 2.0 * nnz as f64 * EXTENT as f64 * products as f64;
        recorder.add(Row {
            op: op.into(),
            workload: format!("block{edge}-d{density}"),
            engine: engine.into(),
            variant: variant.into(),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz,
            dtype: Dtype::F16.to_string(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(flops / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        })
    };
    let ours = "einsparse";
    let times = measure(gpu, effort, &mut || {
        layer.forward(&x, &mut y, &stream).map_err(text)
    })?;
    row("layer_forward", ours, variants[0], 1, times)?;
    let times = measure(gpu, effort, &mut || {
        layer
            .backward_input(&x, &dy, &mut dx, &stream)
            .map_err(text)
    })?;
    row("layer_dx", ours, variants[1], 1, times)?;
    let times = measure(gpu, effort, &mut || {
        layer.backward_weight(&x, &dy, &stream).map_err(text)
    })?;
    row("layer_dw", ours, variants[2], 1, times)?;
    let times = measure(gpu, effort, &mut || {
        layer.backward(&x, &dy, &mut dx, &stream).map_err(text)
    })?;
    row("layer_backward", ours, "both", 2, times)?;
    row("layer_forward", "cublas", "dense", 1, dense[0])?;
    row("layer_backward", "cublas", "dense", 2, dense[1])
}

fn text(error: impl Display) -> String {
    error.to_string()
}
