//! What the models share: arguments, times, memory, errors.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use einsparse::{Context, Graph, Result, Scalar, Stream, Tensor};

/// What a user asks for.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub batch: Option<Vec<usize>>,
    pub scale: Option<u32>,
    pub steps: Option<usize>,
    /// Weights instead of seeded ones: one file, or the parts of a model.
    pub file: Option<Vec<PathBuf>>,
}

/// Milliseconds of a run: one behind the other, and with empty caches where somebody measures that.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub warm: f64,
    pub cold: Option<f64>,
}

/// Times what it is given, which queues the same on every call.
pub type Timer<'a> = &'a dyn Fn(&mut dyn FnMut(&Stream) -> Result<()>) -> Result<Times>;

/// What was measured: a case of a model, beside its dense twin.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The model and its sizes.
    pub case: String,
    pub dtype: &'static str,
    pub times: Times,
    /// What a run works off, and in what it is counted.
    pub work: (f64, &'static str),
    /// The twin, and what it is.
    pub twin: Option<(String, Times)>,
    /// Bytes of the device, without the twin's.
    pub held: Option<u64>,
    /// The largest, relative to the largest value.
    pub error: Option<f64>,
    /// Kernels, or what there is to say.
    pub note: String,
}

/// A case, its type, and its dense products, one behind the other: rows, inputs and outputs of each.
pub type Products = (String, &'static str, Vec<[usize; 3]>);

/// A case, and lists of numbers by which others do the same: lengths of sequences, or offsets and columns of a graph.
pub type Lists = (String, Vec<Vec<u32>>);

/// Where a model runs, how large, and what came of it.
#[derive(Default)]
pub struct Run<'a> {
    pub context: Context,
    pub toy: bool,
    pub arguments: Arguments,
    /// Instead of the clock of the host.
    pub timer: Option<Timer<'a>>,
    pub rows: RefCell<Vec<Measured>>,
    /// For a peer that multiplies and does nothing else.
    pub products: RefCell<Vec<Products>>,
    /// For a peer in another process.
    pub lists: RefCell<Vec<Lists>>,
}

impl Run<'_> {
    /// Times `work`: on a GPU as one CUDA graph, after a run that makes plans.
    pub fn time(&self, mut work: impl FnMut(&Stream) -> Result<()>) -> Result<Times> {
        if let Some(timer) = &self.timer {
            return timer(&mut work);
        }
        let runs = self.arguments.steps.unwrap_or(if self.toy { 3 } else { 50 });
        let stream = self.context.stream()?;
        work(&stream)?;
        stream.synchronize()?;
        let warm = if self.context.is_cuda() {
            let mut graph = Graph::capture(stream.raw(), |_| work(&stream))?;
            // SAFETY: what `work` names outlives this function, and only this stream uses it.
            let mut replay = || unsafe { graph.launch(stream.raw()) };
            (0..3).try_for_each(|_| replay())?;
            stream.synchronize()?;
            let start = Instant::now();
            (0..runs).try_for_each(|_| replay())?;
            stream.synchronize()?;
            start.elapsed()
        } else {
            let start = Instant::now();
            (0..runs).try_for_each(|_| work(&stream))?;
            start.elapsed()
        };
        let warm = warm.as_secs_f64() * 1e3 / runs as f64;
        Ok(Times { warm, cold: None })
    }

    /// Prints a row, and keeps it.
    pub fn report(&self, row: Measured) {
        let ms = row.times.cold.unwrap_or(row.times.warm);
        let (work, unit) = row.work;
        print!("{} in {}: {ms:.4} ms", row.case, row.dtype);
        print!(", {:.4e} {unit} a second", work / ms * 1e3);
        if let Some(bytes) = row.held {
            print!(", {:.1} MB of the device", bytes as f64 / 1e6);
        }
        if let Some((name, times)) = &row.twin {
            let other = times.cold.unwrap_or(times.warm);
            print!("; {name} {other:.4} ms, {:.2} x", other / ms);
        }
        if let Some(error) = row.error {
            print!("; largest error {error:.1e}");
        }
        println!("; {}", row.note);
        self.rows.borrow_mut().push(row);
    }
}

impl Run<'_> {
    /// [`report`](Run::report), with the products of so many layers.
    pub fn report_with(&self, row: Measured, layers: usize, products: &[[usize; 3]]) {
        let (case, dtype) = (row.case.clone(), row.dtype);
        let products = products.repeat(layers);
        self.products.borrow_mut().push((case, dtype, products));
        self.report(row);
    }
}

/// Memory of the device since it was looked at first: what a model holds, since runs allocate nothing.
#[derive(Debug)]
pub struct Memory(Option<u64>);

impl Memory {
    pub fn before(context: &Context) -> Self {
        Memory(context.free_memory().ok())
    }

    /// Bytes; of the CPU nothing is known.
    pub fn since(&self, context: &Context) -> Option<u64> {
        let now = context.free_memory().ok()?;
        Some(self.0?.saturating_sub(now))
    }
}

/// What a tensor holds, row by row.
pub fn wide<T: Scalar>(tensor: &Tensor<T>) -> Result<Vec<f64>> {
    Ok(tensor.to_dense()?.map(T::to_f64).into_values())
}

/// The largest difference, relative to the largest value.
pub fn largest_error(found: &[f64], wanted: &[f64]) -> f64 {
    let size = wanted.iter().fold(0.0f64, |size, x| size.max(x.abs()));
    let errors = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    // NaN is an error as well.
    let largest = errors.fold(0.0f64, |all, e| if e > all || e.is_nan() { e } else { all });
    largest / size.max(f64::MIN_POSITIVE)
}
