//! `message`: sum, mean and maximum over the edges of a graph. Min times: gathered rows through L2, and bytes of device
//! memory once.

use crate::families::convert::entries::row;
use crate::prelude::*;
use crate::record::{HBM, L2};
use einsparse::formats::{CsrPattern, generate};
use einsparse::ops::{Aggregate, MessagePassing};

pub const OP: &str = "message";

/// Name of the graph.
const NAME: &str = "rmat17";
/// Stride of the checked rows.
const CHECKED: usize = 61;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    if !bench.arguments.named(NAME) {
        return Ok(());
    }
    let pattern = generate::rmat(17, 16, SEED)?;
    for n in [32, 128] {
        for aggregate in [Aggregate::Sum, Aggregate::Mean, Aggregate::Max] {
            for dtype in bench.arguments.dtypes(&[Dtype::F32, Dtype::F16]) {
                match dtype {
                    Dtype::F16 => measured::<f16>(bench, &pattern, n, aggregate)?,
                    _ => measured::<f32>(bench, &pattern, n, aggregate)?,
                }
            }
        }
    }
    Ok(())
}

/// Measures one aggregate of `n` features, and the gradient of the max message.
fn measured<T: Scalar>(
    bench: &Bench<'_>,
    p: &CsrPattern,
    n: usize,
    aggregate: Aggregate,
) -> Result<()> {
    let (entries, element) = (p.columns().len(), size_of::<T>());
    let graph = Csr::new(p.clone(), values::<T>(entries, 1, 1.0))?;
    let x = values::dense::<T>(&[p.cols(), n], 2, 1.0);
    let made = || MessagePassing::new(&bench.context, graph.clone(), n, aggregate);
    let (layer, prepared) = timed(|| Ok(made()?))?;
    let on = bench.upload(&x)?;
    let mut y = bench.poisoned::<T>(&[p.rows(), n])?;
    let gathered = (entries * n * element) as f64 / L2 * 1e3;
    let bytes = (entries * (4 + element) + (p.rows() + p.cols()) * n * element) as f64;
    let row = Row { n, ..row::<T>(OP, NAME, p) }.strict();
    let own = row
        .clone()
        .ours(layer.variant())
        .flops(2.0 * (entries * n) as f64)
        .bytes(bytes)
        .limit(gathered.max(bytes / HBM * 1e3))
        .prepared(prepared, None)
        .note(format!("{aggregate:?}").to_lowercase());
    let run = |y: &mut Tensor<T>| layer.forward(&on, y, &bench.stream);
    bench.checked(own, &mut y, run, |y| error(&graph, &x, y, aggregate))?;
    if aggregate != Aggregate::Max {
        return Ok(());
    }
    let dy = bench.zeros::<T>(y.shape())?;
    let mut dx = bench.zeros::<T>(x.shape())?;
    let mut da = bench.zeros::<T>(&[entries])?;
    for weights in [false, true] {
        let (kind, walks) = match weights {
            true => ("of weights too", 3),
            false => ("of X", 2),
        };
        // X, Y, argmax indices and gradients of every nonzero through L2.
        let gathered = entries * n * (2 * element + 4 * (walks - 1));
        let row = row
            .clone()
            .ours("message")
            .limit(gathered as f64 / L2 * 1e3)
            .prepared(None, layer.gradient_bytes())
            .note(format!("gradient of max, {kind}"));
        bench.time(row, || {
            let da = weights.then_some(&mut da);
            layer.backward_max([&on, &y, &dy], &mut dx, da, &bench.stream)
        })?;
    }
    Ok(())
}

/// Max error of some rows.
fn error<T: Scalar>(
    graph: &Csr<T>,
    x: &Dense<T>,
    y: &Tensor<T>,
    aggregate: Aggregate,
) -> Result<f64> {
    let (p, n) = (graph.pattern(), x.shape()[1]);
    let terms = |row: usize, sums: &mut [Sum]| {
        for at in p.row(row) {
            let own = graph.values()[at].to_f64();
            let line = &x.values()[p.columns()[at] as usize * n..];
            for (sum, x) in sums.iter_mut().zip(line) {
                let term = own * x.to_f64();
                let max = if at == p.row(row).start { term } else { sum.value.max(term) };
                sum.add(term);
                if aggregate == Aggregate::Max {
                    sum.value = max;
                }
            }
        }
        if aggregate == Aggregate::Mean {
            let count = p.row(row).len().max(1) as f64;
            sums.iter_mut().for_each(|sum| sum.value /= count);
        }
    };
    let most = if size_of::<T>() == 2 { 4e-3 } else { 1e-5 };
    let rows = (0..p.rows()).step_by(CHECKED);
    Ok(rows_error(y.to_dense()?.values(), n, rows, terms, relative(most)))
}
