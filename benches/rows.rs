//! `--rows`: times every row of the table on every case that it can run, to find rows that no case needs.
//!
//! Runs are short: five cold ones and a warm series of .3 ms. `--part i/n` measures every n-th group of cases.
//! `--seconds` ends a part early without loss of results.

mod other;
mod products;
mod sampled;

use crate::Arguments;
use crate::bench::ab;
use crate::device::{Gpu, Reason, Result, check};
use crate::timing::{Effort, Times, measure};
use crate::values::{hash, value};
use cudarc::driver::sys;
use einsparse::driver::trial;
use einsparse::formats::Dense;
use einsparse::registry::{Dtype, Scalar, find, kernels};
use einsparse::{Choice, Context, Error, Operand, Options, SparseTensor, Stream, Tensor};
use rayon::prelude::*;
use serde::Serialize;
use std::cell::RefCell;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

const EFFORT: Effort = Effort { cold: (5, 3), series: 3, warm: (0.3, 1) };
/// Max elements of outputs that are compared.
const COMPARED: usize = 1 << 21;
/// A row is skipped if its prediction is this many times that of the selected row and above this many microseconds.
const HOPELESS: (f64, f64) = (30.0, 2000.0);

/// Line of the record.
#[derive(Serialize)]
struct Line<'l> {
    operation: &'l str,
    case: &'l str,
    row: &'l str,
    family: &'l str,
    chosen: u8,
    predicted_us: Option<f64>,
    cold_us: Option<f64>,
    warm_us: Option<f64>,
    outcome: &'l str,
}

impl<'l> Line<'l> {
    fn new(operation: &'l str, case: &'l str) -> Self {
        Line {
            operation,
            case,
            row: "",
            family: "",
            chosen: 0,
            predicted_us: None,
            cold_us: None,
            warm_us: None,
            outcome: "ok",
        }
    }
}

/// Record of the kernels that each operation launches.
pub struct Launches(csv::Writer<File>);

impl Launches {
    /// Creates the file. Kernels that are loaded from now on are listed.
    pub fn create(file: &Path) -> Result<Self> {
        trial::list();
        Ok(Self(csv::Writer::from_path(file)?))
    }

    /// Writes the kernels that were launched since the last call, as those of operation `op`.
    pub fn of(&mut self, op: &str) -> Result<()> {
        for row in trial::launched() {
            let family = find(&row).map_or("", |row| row.module);
            self.0.serialize(Line {
                row: &row,
                family,
                outcome: "launched",
                ..Line::new(op, "")
            })?;
        }
        Ok(self.0.flush()?)
    }
}

/// Closure that writes an output.
type Run<'m, O> = Box<dyn FnMut(&mut O) -> Result<(), Error> + 'm>;

/// Planned operation: the selected rows, candidates with their predictions, and a closure that runs it.
struct Made<'m, O> {
    taken: Vec<&'static str>,
    candidates: Vec<(&'static str, f64)>,
    run: Run<'m, O>,
}

impl<'m, O> Made<'m, O> {
    /// From the choice of a plan.
    fn chosen(
        choice: &Choice,
        variant: &'static str,
        run: impl FnMut(&mut O) -> Result<(), Error> + 'm,
    ) -> Self {
        let candidates = choice.candidates.iter().map(|c| (c.name, c.cost.us)).collect();
        Self { candidates, ..Self::alone(variant, run) }
    }

    /// From an operator without other candidates.
    fn alone(variant: &'static str, run: impl FnMut(&mut O) -> Result<(), Error> + 'm) -> Self {
        Self { taken: vec![variant], candidates: Vec::new(), run: Box::new(run) }
    }

    /// Runs once and times. Returns the times, and the distance from the first result of the case.
    fn measured(
        mut self,
        gpu: &Gpu,
        (out, start): (&mut O, u8),
        truth: &mut Option<Vec<f64>>,
    ) -> Result<(Times, f64)>
    where
        O: Written,
    {
        out.fill(gpu, start)?;
        (self.run)(out)?;
        gpu.wait()?;
        let found = out.read()?;
        let off = truth.as_ref().map_or(0.0, |truth| distance(truth, &found));
        truth.get_or_insert(found);
        Ok((measure(gpu, EFFORT, &mut || Ok((self.run)(out)?))?, off))
    }
}

/// Output of an operation.
trait Written {
    const DTYPE: Dtype;
    /// Sets all bytes.
    fn fill(&self, gpu: &Gpu, byte: u8) -> Result<()>;
    /// Values for a comparison; none of large outputs.
    fn read(&self) -> Result<Vec<f64>>;
}

impl<T: Scalar> Written for Tensor<T> {
    const DTYPE: Dtype = T::DTYPE;

    fn fill(&self, gpu: &Gpu, byte: u8) -> Result<()> {
        let (Some(address), bytes) = (self.address(), elements(self) * size_of::<T>()) else {
            return Ok(());
        };
        // SAFETY: the range is that of the tensor.
        let status = unsafe { sys::cuMemsetD8Async(address, byte, bytes, gpu.stream) };
        check(status, "cuMemsetD8Async")
    }

    fn read(&self) -> Result<Vec<f64>> {
        match elements(self) {
            COMPARED.. => Ok(Vec::new()),
            _ => Ok(self.to_dense()?.values().iter().map(|x| x.to_f64()).collect()),
        }
    }
}

impl<T: Scalar> Written for &RefCell<SparseTensor<T>> {
    const DTYPE: Dtype = T::DTYPE;

    fn fill(&self, _: &Gpu, _: u8) -> Result<()> {
        Ok(())
    }

    fn read(&self) -> Result<Vec<f64>> {
        let tensor = self.borrow();
        let host = tensor.to_host()?;
        let values = Some(host.values()).filter(|values| values.len() < COMPARED);
        Ok(values.into_iter().flatten().map(|x| x.to_f64()).collect())
    }
}

/// Data that all cases share.
struct Rows<'a> {
    gpu: &'a Gpu,
    context: Context,
    arguments: &'a Arguments,
    file: Option<csv::Writer<File>>,
    deadline: Option<Instant>,
    groups: usize,
    cases: usize,
    lines: usize,
    wrong: usize,
}

/// Measures this part of all cases.
pub fn run(gpu: &Gpu, arguments: &Arguments) -> Result<bool> {
    let file = arguments.out.as_deref().map(csv::Writer::from_path);
    let mut rows = Rows {
        gpu,
        context: Context::cuda(0)?,
        arguments,
        file: file.transpose()?,
        deadline: arguments.seconds.map(|s| Instant::now() + Duration::from_secs(s)),
        groups: 0,
        cases: 0,
        lines: 0,
        wrong: 0,
    };
    let start = Instant::now();
    if arguments.part.own == 0 {
        rows.table()?;
    }
    // Products are last: they have the most cases, so a time limit leaves out only some of them.
    let mut outcome = other::run(&mut rows);
    outcome = outcome.and_then(|()| sampled::run(&mut rows));
    outcome = outcome.and_then(|()| products::run(&mut rows));
    println!(
        "{} cases of {} groups, {} lines, {} wrong, {:.0} s{}",
        rows.cases,
        rows.groups,
        rows.lines,
        rows.wrong,
        start.elapsed().as_secs_f64(),
        if rows.is_late() { ", cut short" } else { "" }
    );
    outcome.map(|()| rows.wrong == 0)
}

impl Rows<'_> {
    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|end| Instant::now() > end)
    }

    /// Writes the table itself, so that a report can list rows without a case.
    fn table(&mut self) -> Result<()> {
        for row in kernels() {
            let operation = format!("{:?}", row.operation);
            self.line(&Line {
                row: row.name,
                family: row.module,
                outcome: &operation,
                ..Line::new("table", "")
            })?;
        }
        Ok(())
    }

    /// Whether the next group of cases, which share operands, is selected and in this part.
    fn wants(&mut self, operation: &str, name: &str) -> bool {
        let part = self.arguments.part;
        // The report counts the f16 and bf16 rows of one tile as one, so f16 alone is timed.
        let counted = !name.contains("bf16");
        if !counted || !self.arguments.wants_op(operation) || !self.arguments.named(name) {
            return false;
        }
        let own = self.groups % part.of == part.own;
        self.groups += 1;
        own && !self.is_late()
    }

    /// Measures a group of cases. If it cannot be prepared, the reason is printed.
    fn group(
        &mut self,
        operation: &str,
        name: &str,
        cases: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if !self.wants(operation, name) {
            return Ok(());
        }
        let (start, lines) = (Instant::now(), self.lines);
        if let Err(reason) = cases(self) {
            println!("{operation} {name}: {reason}");
            // After a fatal error of the GPU, the bench stops.
            self.gpu.wait()?;
        }
        let took = start.elapsed().as_secs_f64();
        println!("{operation} {name}: {} lines, {took:.1} s", self.lines - lines);
        match &mut self.file {
            Some(file) => Ok(file.flush()?),
            None => Ok(()),
        }
    }

    fn line(&mut self, line: &Line<'_>) -> Result<()> {
        self.lines += 1;
        match &mut self.file {
            Some(file) => Ok(file.serialize(line)?),
            None => Ok(()),
        }
    }

    /// Measures one case: the default choice, then every candidate and the `others` by name. The output's bytes are all
    /// `start` before a run. `operands` is the element type of the operands.
    fn case<'m, O: Written>(
        &mut self,
        [operation, case]: [&str; 2],
        (out, start, operands): (&mut O, u8, Dtype),
        others: &[&'static str],
        make: &dyn Fn(Option<&str>) -> Result<Made<'m, O>>,
    ) -> Result<()> {
        if self.is_late() {
            return Ok(());
        }
        self.cases += 1;
        let auto = match make(None) {
            Ok(auto) => auto,
            Err(reason) => return self.refused([operation, case], reason),
        };
        let first = auto.candidates.first().map(|c| c.1);
        let mut names = auto.candidates.clone();
        for name in auto.taken.iter().chain(others) {
            if names.iter().all(|(known, _)| known != name) {
                names.push((name, f64::NAN));
            }
        }
        // The default choice is first, because the others are compared with it.
        names.sort_by_key(|(name, _)| !auto.taken.contains(name));
        let taken = auto.taken.clone();
        let mut auto = Some(auto);
        let mut truth: Option<Vec<f64>> = None;
        for (name, predicted) in names {
            let chosen = taken.contains(&name);
            let mut line = Line {
                row: name,
                family: find(name).map_or("", |row| row.module),
                chosen: u8::from(chosen),
                predicted_us: Some(predicted).filter(|us| us.is_finite()),
                ..Line::new(operation, case)
            };
            if predicted > HOPELESS.1 && first.is_some_and(|us| predicted > us * HOPELESS.0) {
                line.outcome = "left out: hopeless";
                self.line(&line)?;
                continue;
            }
            let made = match auto.take() {
                Some(auto) if chosen => Ok(auto),
                _ => make(Some(name)),
            };
            let said;
            match made.and_then(|made| made.measured(self.gpu, (out, start), &mut truth)) {
                Ok((times, off)) => {
                    line.cold_us = Some(times.cold * 1e3);
                    line.warm_us = Some(times.warm * 1e3);
                    said = format!("WRONG: {off:.1e} from {}", taken.join(" "));
                    if off.is_nan() || off > tolerance(operands, O::DTYPE) {
                        self.wrong += 1;
                        println!("{operation} {case} {name} {said}");
                        line.outcome = &said;
                    } else if times.host_inside {
                        line.outcome = "waits for the host inside";
                    }
                }
                Err(reason) => {
                    said = reason.to_string();
                    line.outcome = &said;
                }
            }
            self.line(&line)?;
            self.gpu.wait().map_err(|reason| format!("{name} on {case}: {reason}"))?;
        }
        Ok(())
    }

    /// Measures a plan with a dense output, with all its candidates and `others`.
    fn plan<T: Scalar, Out: Scalar>(
        &mut self,
        label: [&str; 2],
        expression: &str,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
        others: &[&'static str],
    ) -> Result<()> {
        if self.is_late() {
            return Ok(());
        }
        let (context, stream) = (self.context.clone(), self.stream());
        let planned = |variant: Option<&str>| {
            let options = options.clone().variant(variant.or(options.variant.as_deref()));
            context
                .plan::<T>(expression)
                .operands(operands)
                .output::<Out>()
                .options(&options)
                .build()
        };
        let first = match planned(None) {
            Ok(plan) => plan,
            Err(reason) => return self.refused(label, reason),
        };
        let given = operands.iter().find(|(name, _)| *name == "C");
        let mut out = match given {
            // The output has the row stride of the planned one.
            Some((_, Operand::Dense(like))) => {
                let zeros = Dense::zeros(first.out_shape().to_vec())?;
                context.upload_strided(&zeros, like.leading(), Out::ZERO)?
            }
            _ => context.zeros::<Out>(first.out_shape())?,
        };
        let first = RefCell::new(Some(first));
        let given = |(name, o): &&(&str, _)| *name != "C" && !matches!(o, Operand::Index(..));
        let bound: Vec<_> = operands.iter().filter(given).cloned().collect();
        let make = |variant: Option<&str>| {
            let known = first.borrow_mut().take().filter(|_| variant.is_none());
            let plan = known.map_or_else(|| planned(variant), Ok)?;
            let (choice, taken) = (plan.choice().clone(), plan.variant());
            let (stream, bound) = (&stream, &bound);
            Ok(Made::chosen(&choice, taken, move |out| plan.run(bound, out, stream)))
        };
        // Outputs that are accumulated start at zero.
        let start = if expression.contains("+=") { 0 } else { NAN };
        self.case(label, (&mut out, start, T::DTYPE), others, &make)
    }

    /// The bench's stream, for closures that outlive a borrow of `self`.
    fn stream(&self) -> Stream {
        // SAFETY: the bench's stream belongs to the primary context and outlives every case.
        unsafe { Stream::from_raw(self.gpu.stream.cast()) }
    }

    fn refused(&mut self, [operation, case]: [&str; 2], reason: impl Into<Reason>) -> Result<()> {
        self.cases += 1;
        let reason: String = reason.into().to_string().chars().take(200).collect();
        self.line(&Line { outcome: &reason, ..Line::new(operation, case) })
    }

    /// Records rows that a rule selects and that no name overrides, without a time.
    fn chosen(&mut self, [operation, case]: [&str; 2], names: &[&str]) -> Result<()> {
        self.cases += 1;
        for row in names {
            self.line(&Line {
                row,
                family: find(row).map_or("", |row| row.module),
                chosen: 1,
                outcome: "by rule",
                ..Line::new(operation, case)
            })?;
        }
        Ok(())
    }

    /// Tensor of values.
    fn dense<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        let dense = Dense::new(shape.to_vec(), values(shape.iter().product(), 77))?;
        Ok(self.context.upload_dense(&dense)?)
    }

    /// Tensor of such values with this row stride.
    fn strided<T: Scalar>(&self, shape: &[usize], leading: usize) -> Result<Tensor<T>> {
        let dense = Dense::new(shape.to_vec(), values(shape.iter().product(), 77))?;
        Ok(self.context.upload_strided(&dense, leading, T::ZERO)?)
    }

    /// Measures a product of A and B.
    fn product<'o, T: Scalar, Out: Scalar>(
        &mut self,
        (operation, case): (&str, String),
        expression: &str,
        (a, b): (impl Into<Operand<'o, T>>, &'o Tensor<T>),
        options: &Options,
    ) -> Result<()> {
        self.plan::<T, Out>([operation, &case], expression, &ab(a, b), options, &[])
    }
}

/// Elements from the first to the last, gaps included.
fn elements<T: Scalar>(tensor: &Tensor<T>) -> usize {
    match tensor.shape() {
        [] => 1,
        [.., 0] => 0,
        [before @ .., last] => {
            let rows: usize = before.iter().product();
            rows.saturating_sub(1) * tensor.leading() + last
        }
    }
}

/// Byte of a NaN in every floating-point type.
const NAN: u8 = 0xff;

/// Uniform in -1..1; for integer types, integers of four bits.
fn values<T: Scalar>(count: usize, start: usize) -> Vec<T> {
    let own = |i: usize| match T::DTYPE {
        Dtype::Int8 | Dtype::Int32 => T::from_f64((hash(i) % 15) as f64 - 7.0),
        _ => value(i),
    };
    (start..start + count).into_par_iter().map(own).collect()
}

/// Max difference of two orders of sums and of two precisions of products.
fn tolerance(operands: Dtype, out: Dtype) -> f64 {
    match (operands, out) {
        (_, Dtype::F64) => 1e-12,
        (Dtype::Int8, _) => 1e-2,
        (_, Dtype::F32) => 2e-3,
        (_, Dtype::F16) => 5e-3,
        _ => 3e-2,
    }
}

/// Distance in the Frobenius norm, relative to `truth`.
fn distance(truth: &[f64], found: &[f64]) -> f64 {
    if truth.len() != found.len() {
        return f64::INFINITY;
    }
    let pairs = truth.par_iter().zip(found);
    let (error, norm) = pairs
        // Sums that overflow to the same infinity are equal, but their difference is NaN.
        .filter(|(t, f)| !(t.is_infinite() && t == f))
        .map(|(t, f)| ((t - f) * (t - f), t * t))
        .reduce(|| (0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    match norm > 0.0 {
        true => (error / norm).sqrt(),
        false => error.sqrt(),
    }
}

/// Names of a module's rows for an element type, without those that replace others.
fn names(module: &str, dtype: Dtype) -> Vec<&'static str> {
    let own = kernels().iter().filter(|row| row.module == module && row.dtype == dtype);
    own.filter(|row| !row.stands_in).map(|row| row.name).collect()
}
