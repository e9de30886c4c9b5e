//! Block-sparse linear layer: forward and both gradients. The baseline is the dense layer of the same shape by cuBLAS.
//!
//! `n` is the number of tokens; rates count the products of stored blocks.

use crate::prelude::*;
use crate::problems::full_blocks;
use einsparse::formats::{AnySparse, Format};
use einsparse::nn::{Linear, LinearOptions};
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

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let dense = dense(bench)?;
    for density in DENSITIES {
        for edge in EDGES {
            layer(&bench.anew()?, (edge, density), &dense)?;
        }
    }
    Ok(())
}

/// Times a dense layer of these extents: forward, and both gradients.
fn dense(bench: &Bench<'_>) -> Result<[Times; 2]> {
    let cublas = CuBlas::open(bench.gpu, false)?;
    let values: Vec<f16> = (0..EXTENT * EXTENT).map(value).collect();
    let matrix = || Buffer::from_slice(&values);
    let (a, b, c) = (matrix()?, matrix()?, matrix()?);
    let second = Buffer::new(EXTENT * EXTENT * 2)?;
    let all = [a.ptr, b.ptr, c.ptr];
    let forward = bench.measure(|| cublas.gemm(Dtype::F16, [EXTENT; 3], all))?;
    let backward = bench.measure(|| {
        cublas.gemm_by_rows(Dtype::F16, [EXTENT; 3], all)?;
        cublas.gemm_turned(Dtype::F16, [EXTENT; 3], [a.ptr, b.ptr, second.ptr])
    })?;
    Ok([forward, backward])
}

fn layer(bench: &Bench<'_>, (edge, density): (usize, f64), dense: &[Times; 2]) -> Result<()> {
    let pattern = full_blocks(EXTENT, edge, density, SEED)?;
    let nnz = pattern.columns().len();
    let csr = Csr::new(Arc::new(pattern), (0..nnz).map(value).collect())?;
    let format = Format::BlockGroupCoo { block: (edge, edge), group: None };
    let weight = AnySparse::from(csr).convert(format)?;
    let mut layer = Linear::new(&bench.context, weight, EXTENT, &LinearOptions::default())?;
    let filled = |seed: usize| {
        let shape = vec![EXTENT, EXTENT];
        bench.upload(&Dense::from_fn(shape, |i| value(i[0] * EXTENT + i[1] + seed))?)
    };
    let (x, dy) = (filled(1)?, filled(2)?);
    let zeros = || bench.zeros(&[EXTENT, EXTENT]);
    let (mut y, mut dx) = (zeros()?, zeros()?);
    let stream = &bench.stream;
    let [forward, of_input, of_weight] = layer.variants();
    let add = |op: &str, [engine, variant]: [&str; 2], products: usize, times: &Times| {
        let flops = 2.0 * nnz as f64 * EXTENT as f64 * products as f64;
        let workload = format!("block{edge}-d{density}");
        let row = Row::new(op, workload, [EXTENT; 3], nnz, Dtype::F16).by(engine, variant);
        bench.add(row.timed(times).flops(flops).dense())
    };
    let times = bench.measure(|| layer.forward(&x, &mut y, stream))?;
    add("layer_forward", ["einsparse", forward], 1, &times)?;
    let times = bench.measure(|| layer.backward_input(&x, &dy, &mut dx, stream))?;
    add("layer_dx", ["einsparse", of_input], 1, &times)?;
    let times = bench.measure(|| layer.backward_weight(&x, &dy, stream))?;
    add("layer_dw", ["einsparse", of_weight], 1, &times)?;
    let times = bench.measure(|| layer.backward(&x, &dy, &mut dx, stream))?;
    add("layer_backward", ["einsparse", "both"], 2, &times)?;
    add("layer_forward", ["cublas", "dense"], 1, &dense[0])?;
    add("layer_backward", ["cublas", "dense"], 2, &dense[1])
}
