//! `message`: sum, mean and maximum over the edges of a graph. Beside each the floor of gathered rows through L2 and that of device memory.

use crate::Arguments;
use crate::device::{Gpu, Result};
use crate::families::convert::entries::{row, text};
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::measure;
use einsparse::formats::{Csr, CsrPattern, Dense, f16, generate};
use einsparse::ops::{Aggregate, MessagePassing};
use einsparse::{Context, Scalar, Stream, Tensor};
use std::time::Instant;

pub const OP: &str = "message";

/// Bytes a second out of L2 and of device memory, as measured on an H200.
const L2: f64 = 8.9e12;
const HBM: f64 = 4.27e12;

/// Measures every aggregate.
pub fn run(gpu: &Gpu, arguments: &Arguments, recorder: &mut Recorder) -> Result<()> {
    let name = "rmat17";
    if !arguments.named(name) {
        return Ok(());
    }
    let context = Context::cuda(0).map_err(text)?;
    let pattern = generate::rmat(17, 16, SEED).map_err(text)?;
    let mut wrong = Vec::new();
    for n in [32, 128] {
        for aggregate in [Aggregate::Sum, Aggregate::Mean, Aggregate::Max] {
            let mut bench = Bench {
                gpu,
                arguments,
                recorder,
                context: &context,
            };
            for dtype in arguments.asked(&[Dtype::F32, Dtype::F16]) {
                let found = match dtype {
                    Dtype::F16 => bench.measure::<f16>(name, &pattern, n, aggregate)?,
                    _ => bench.measure::<f32>(name, &pattern, n, aggregate)?,
                };
                wrong.extend(found);
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ")),
    }
}

struct Bench<'a> {
    gpu: &'a Gpu,
    arguments: &'a Arguments,
    recorder: &'a mut Recorder,
    context: &'a Context,
}

/// Every so many rows are checked.
const CHECKED: usize = 61;

impl Bench<'_> {
    /// One aggregate of so many features; what is wrong with it.
    fn measure<T: Scalar>(
        &mut self,
        name: &str,
        p: &CsrPattern,
        n: usize,
        aggregate: Aggregate,
    ) -> Result<Option<String>> {
        let value = |at: usize| T::from_f64((at * 37 % 101) as f64 / 50.0 - 1.0);
        let values: Vec<T> = (0..p.columns().len()).map(value).collect();
        let graph = Csr::new(p.clone(), values).map_err(text)?;
        let x = Dense::new(
            [p.cols(), n],
            (0..p.cols() * n).map(|at| value(at + 5)).collect(),
        );
        let x = x.map_err(text)?;
        let start = Instant::now();
        let layer = MessagePassing::new(self.context, graph.clone(), n, aggregate).map_err(text)?;
        let prepared = start.elapsed().as_secs_f64() * 1e3;
        let on = self.context.upload_dense(&x).map_err(text)?;
        let mut y = self.context.zeros::<T>(&[p.rows(), n]).map_err(text)?;
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        let stream = unsafe { Stream::from_raw(self.gpu.stream.cast()) };
        let times = measure(self.gpu, self.arguments.effort(), &mut || {
            layer.forward(&on, &mut y, &stream).map_err(text)
        })?;
        let found = y.to_dense().map_err(text)?;
        let wrong = wrong(&graph, &x, found.values(), aggregate);
        let (entries, element) = (p.columns().len(), size_of::<T>());
        let gathered = (entries * n * element) as f64 / L2 * 1e3;
        let bytes = entries * (4 + element) + (p.rows() + p.cols()) * n * element;
        let floor = gathered.max(bytes as f64 / HBM * 1e3);
        println!(
            "message {name} {} n {n} {aggregate:?}: {} {:.1} us cold, {:.1} warm; floors {:.1} L2, {:.1} HBM; prepared {prepared:.0} ms{}",
            T::DTYPE.name(),
            layer.variant(),
            times.cold * 1e3,
            times.warm * 1e3,
            gathered * 1e3,
            bytes as f64 / HBM * 1e6,
            wrong
                .as_ref()
                .map_or(String::new(), |w| format!(" WRONG: {w}")),
        );
        if wrong.is_none() {
            self.recorder.add(Row {
                n,
                engine: "einsparse".into(),
                variant: layer.variant().into(),
                ms: times.cold,
                ms_warm: Some(times.warm),
                gflops: Some(2.0 * (entries * n) as f64 / times.cold / 1e6),
                gbps: Some(bytes as f64 / times.cold / 1e6),
                limit_fraction: Some(floor / times.cold),
                prepare_ms: Some(prepared),
                zeros: "strict".into(),
                note: format!("{aggregate:?}").to_lowercase(),
                ..row::<T>(OP, name, "", p)
            })?;
        }
        if aggregate == Aggregate::Max && wrong.is_none() {
            self.gradient::<T>(name, &layer, p, [&on, &y])?;
        }
        Ok(wrong)
    }

    /// The gradient of the largest message, of features alone and of weights too. Its floor: X, Y, winners and gradients of every
    /// entry through L2.
    fn gradient<T: Scalar>(
        &mut self,
        name: &str,
        layer: &MessagePassing<T>,
        p: &CsrPattern,
        [x, y]: [&Tensor<T>; 2],
    ) -> Result<()> {
        let (n, entries) = (x.shape()[1], p.columns().len());
        let dy = self.context.zeros::<T>(y.shape()).map_err(text)?;
        let mut dx = self.context.zeros::<T>(x.shape()).map_err(text)?;
        let mut da = self.context.zeros::<T>(&[entries]).map_err(text)?;
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        let stream = unsafe { Stream::from_raw(self.gpu.stream.cast()) };
        for weights in [false, true] {
            let times = measure(self.gpu, self.arguments.effort(), &mut || {
                let da = weights.then_some(&mut da);
                let run = layer.backward_max([x, y, &dy], &mut dx, da, &stream);
                run.map_err(text)
            })?;
            let kind = if weights { "of weights too" } else { "of X" };
            println!(
                "message {name} {} n {n} gradient of Max, {kind}: {:.1} us cold, {:.1} warm",
                T::DTYPE.name(),
                times.cold * 1e3,
                times.warm * 1e3,
            );
            let walks = if weights { 3 } else { 2 };
            let gathered = entries * n * (2 * size_of::<T>() + 4 * (walks - 1));
            self.recorder.add(Row {
                n,
                engine: "einsparse".into(),
                variant: "message".into(),
                ms: times.cold,
                ms_warm: Some(times.warm),
                limit_fraction: Some(gathered as f64 / L2 * 1e3 / times.cold),
                prepared_bytes: Some(layer.gradient_bytes()),
                zeros: "strict".into(),
                note: format!("gradient of max, {kind}"),
                ..row::<T>(OP, name, "", p)
            })?;
        }
        Ok(())
    }
}

/// The first element of some rows that is off by more than rounding of terms and output.
fn wrong<T: Scalar>(graph: &Csr<T>, x: &Dense<T>, y: &[T], aggregate: Aggregate) -> Option<String> {
    let (p, n) = (graph.pattern(), x.shape()[1]);
    let relative = if size_of::<T>() == 2 { 4e-3 } else { 1e-5 };
    for row in (0..p.rows()).step_by(CHECKED) {
        for j in 0..n {
            let terms = p.row(row).map(|at| {
                graph.values()[at].to_f64() * x.values()[p.columns()[at] as usize * n + j].to_f64()
            });
            let terms: Vec<f64> = terms.collect();
            let degree = terms.len().max(1) as f64;
            let size: f64 = terms.iter().map(|t| t.abs()).sum();
            let wanted = match aggregate {
                Aggregate::Sum => terms.iter().sum(),
                Aggregate::Mean => terms.iter().sum::<f64>() / degree,
                Aggregate::Max => terms.iter().copied().reduce(f64::max).unwrap_or(0.0),
            };
            let found = y[row * n + j].to_f64();
            let near = (found - wanted).abs() <= relative * size;
            if !near {
                return Some(format!("({row}, {j}) is {found}, not {wanted}"));
            }
        }
    }
    None
}
