//! Block-sparse linear layer: forward and both gradients. The baseline is the dense layer of the same shape by cuBLAS.
//!
//! `n` is the number of tokens; rates count the products of stored blocks.

use crate::prelude::*;
use crate::problems::full_blocks;
use einsparse::formats::{AnySparse, Format};
use einsparse::nn::{Linear, LinearOptions};

/// Inputs, outputs and tokens.
const EXTENT: usize = 4096;
const EDGES: [usize; 4] = [16, 32, 64, 128];
const DENSITIES: [f64; 3] = [0.5, 0.1, 0.05];

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
    let values: Vec<f16> = values(EXTENT * EXTENT, 1, 1.0);
    let matrix = || Buffer::from_slice(&values);
    let (a, b, c, second) = (matrix()?, matrix()?, matrix()?, matrix()?);
    let gemm =
        |c: &Buffer, order| cublas.gemm(Dtype::F16, [EXTENT; 3], [a.ptr, b.ptr, c.ptr], order);
    let forward = bench.measure(|| gemm(&c, Order::Rows))?;
    let backward = bench.measure(|| {
        gemm(&c, Order::AlongK)?;
        gemm(&second, Order::Turned)
    })?;
    Ok([forward, backward])
}

fn layer(bench: &Bench<'_>, (edge, density): (usize, f64), dense: &[Times; 2]) -> Result<()> {
    let pattern = full_blocks(EXTENT, edge, density, SEED)?;
    let nnz = pattern.columns().len();
    let csr = Csr::new(pattern, values::<f16>(nnz, 1, 1.0))?;
    let format = Format::BlockGroupCoo { block: (edge, edge), group: None };
    let weight = AnySparse::from(csr).convert(format)?;
    let mut layer = Linear::new(&bench.context, weight, EXTENT, &LinearOptions::default())?;
    let filled = |seed| bench.filled(&[EXTENT; 2], seed, 1.0);
    let (x, dy, mut y, mut dx) = (filled(2)?, filled(3)?, filled(4)?, filled(5)?);
    let stream = &bench.stream;
    let [forward, of_input, of_weight] = layer.variants();
    let row = |op: &str, products: usize| {
        Row::new(op, format!("block{edge}-d{density}"), [EXTENT; 3], nnz, Dtype::F16)
            .flops(2.0 * nnz as f64 * EXTENT as f64 * products as f64)
            .dense()
    };
    let (of_forward, of_backward) = (row("layer_forward", 1), row("layer_backward", 2));
    bench.time(of_forward.clone().ours(forward), || layer.forward(&x, &mut y, stream))?;
    bench.time(row("layer_dx", 1).ours(of_input), || {
        layer.backward_input(&x, &dy, &mut dx, stream)
    })?;
    bench.time(row("layer_dw", 1).ours(of_weight), || layer.backward_weight(&x, &dy, stream))?;
    bench.time(of_backward.clone().ours("both"), || layer.backward(&x, &dy, &mut dx, stream))?;
    bench.add(of_forward.by("cublas", "dense").timed(&dense[0]))?;
    bench.add(of_backward.by("cublas", "dense").timed(&dense[1]))
}
