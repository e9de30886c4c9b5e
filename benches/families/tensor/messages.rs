//! `message`: sum, mean and maximum over the edges of a graph. Notes contain two min times: that of gathered rows
//! through L2, and that of device memory.

use crate::families::convert::entries::row;
use crate::prelude::*;
use einsparse::formats::{CsrPattern, generate};
use einsparse::ops::{Aggregate, MessagePassing};

pub const OP: &str = "message";

/// Bytes per second of L2 and of device memory, measured on an H200.
const L2: f64 = 8.9e12;
const HBM: f64 = 4.27e12;

/// Name of the graph.
const NAME: &str = "rmat17";
/// Stride of the checked rows.
const CHECKED: usize = 61;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    if !bench.arguments.named(NAME) {
        return Ok(());
    }
    let pattern = generate::rmat(17, 16, SEED)?;
    let mut wrong = Vec::new();
    for n in [32, 128] {
        for aggregate in [Aggregate::Sum, Aggregate::Mean, Aggregate::Max] {
            for dtype in bench.arguments.dtypes(&[Dtype::F32, Dtype::F16]) {
                let found = match dtype {
                    Dtype::F16 => measured::<f16>(bench, &pattern, n, aggregate)?,
                    _ => measured::<f32>(bench, &pattern, n, aggregate)?,
                };
                wrong.extend(found);
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ").into()),
    }
}

/// Measures one aggregate of `n` features. Returns a description of a wrong result.
fn measured<T: Scalar>(
    bench: &Bench<'_>,
    p: &CsrPattern,
    n: usize,
    aggregate: Aggregate,
) -> Result<Option<String>> {
    let value = |at: usize| T::from_f64((at * 37 % 101) as f64 / 50.0 - 1.0);
    let values: Vec<T> = (0..p.columns().len()).map(value).collect();
    let graph = Csr::new(p.clone(), values)?;
    let x = (0..p.cols() * n).map(|at| value(at + 5)).collect();
    let x = Dense::new([p.cols(), n], x)?;
    let made = || MessagePassing::new(&bench.context, graph.clone(), n, aggregate);
    let (layer, prepared) = timed(|| Ok(made()?))?;
    let on = bench.upload(&x)?;
    let mut y = bench.zeros::<T>(&[p.rows(), n])?;
    let times = bench.measure(|| layer.forward(&on, &mut y, &bench.stream))?;
    let found = y.to_dense()?;
    let wrong = wrong(&graph, &x, found.values(), aggregate);
    let (entries, element) = (p.columns().len(), size_of::<T>());
    let gathered = (entries * n * element) as f64 / L2 * 1e3;
    let bytes = entries * (4 + element) + (p.rows() + p.cols()) * n * element;
    let said = wrong.as_ref().map(|wrong| format!(" WRONG: {wrong}"));
    println!(
        "message {NAME} {} n {n} {aggregate:?}: {} {:.1} us cold, {:.1} warm; floors {:.1} L2, {:.1} HBM; prepared \
         {prepared:.0} ms{}",
        T::DTYPE.name(),
        layer.variant(),
        times.cold * 1e3,
        times.warm * 1e3,
        gathered * 1e3,
        bytes as f64 / HBM * 1e6,
        said.unwrap_or_default(),
    );
    if wrong.is_some() {
        return Ok(wrong);
    }
    let row = Row { n, ..row::<T>(OP, NAME, p) }
        .ours(layer.variant())
        .timed(&times)
        .flops(2.0 * (entries * n) as f64)
        .bytes(bytes as f64)
        .limit(gathered.max(bytes as f64 / HBM * 1e3))
        .prepared(prepared, None);
    let note = format!("{aggregate:?}").to_lowercase();
    bench.add(row.strict().note(note))?;
    if aggregate == Aggregate::Max {
        gradient::<T>(bench, &layer, p, [&on, &y])?;
    }
    Ok(None)
}

/// Measures the gradient of the max message, of features alone and of weights too. Min time: X, Y, argmax indices and
/// gradients of every nonzero through L2.
fn gradient<T: Scalar>(
    bench: &Bench<'_>,
    layer: &MessagePassing<T>,
    p: &CsrPattern,
    [x, y]: [&Tensor<T>; 2],
) -> Result<()> {
    let (n, entries) = (x.shape()[1], p.columns().len());
    let dy = bench.zeros::<T>(y.shape())?;
    let mut dx = bench.zeros::<T>(x.shape())?;
    let mut da = bench.zeros::<T>(&[entries])?;
    for weights in [false, true] {
        let times = bench.measure(|| {
            let da = weights.then_some(&mut da);
            layer.backward_max([x, y, &dy], &mut dx, da, &bench.stream)
        })?;
        let (kind, walks) = match weights {
            true => ("of weights too", 3),
            false => ("of X", 2),
        };
        println!(
            "message {NAME} {} n {n} gradient of Max, {kind}: {:.1} us cold, {:.1} warm",
            T::DTYPE.name(),
            times.cold * 1e3,
            times.warm * 1e3,
        );
        let gathered = entries * n * (2 * size_of::<T>() + 4 * (walks - 1));
        let row = Row { n, ..row::<T>(OP, NAME, p) }
            .ours("message")
            .timed(&times)
            .limit(gathered as f64 / L2 * 1e3)
            .prepared(None, layer.gradient_bytes());
        bench.add(row.strict().note(format!("gradient of max, {kind}")))?;
    }
    Ok(())
}

/// First element of some rows whose error exceeds rounding of terms and output.
fn wrong<T: Scalar>(graph: &Csr<T>, x: &Dense<T>, y: &[T], aggregate: Aggregate) -> Option<String> {
    let (p, n) = (graph.pattern(), x.shape()[1]);
    let relative = if size_of::<T>() == 2 { 4e-3 } else { 1e-5 };
    for row in (0..p.rows()).step_by(CHECKED) {
        for j in 0..n {
            let term = |at: usize| {
                graph.values()[at].to_f64() * x.values()[p.columns()[at] as usize * n + j].to_f64()
            };
            let sum: Sum = p.row(row).map(term).collect();
            let wanted = match aggregate {
                Aggregate::Sum => sum.value,
                Aggregate::Mean => sum.value / p.row(row).len().max(1) as f64,
                Aggregate::Max => p.row(row).map(term).reduce(f64::max).unwrap_or(0.0),
            };
            let found = y[row * n + j].to_f64();
            let near = (found - wanted).abs() <= relative * sum.size;
            if !near {
                return Some(format!("({row}, {j}) is {found}, not {wanted}"));
            }
        }
    }
    None
}
