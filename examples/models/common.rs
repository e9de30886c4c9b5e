//! Shared by the models: arguments, times, memory, errors.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use einsparse::{Context, Graph, Result, Scalar, Stream, Tensor};

/// Command-line arguments.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub batch: Option<Vec<usize>>,
    pub scale: Option<u32>,
    pub steps: Option<usize>,
    /// Weight files to use instead of seeded weights: one file, or the parts of a model.
    pub file: Option<Vec<PathBuf>>,
}

/// Milliseconds of a run: warm (runs back to back), and cold (with empty caches) if measured.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub warm: f64,
    pub cold: Option<f64>,
}

/// Measures a closure, which queues the same work on every call.
pub type Timer<'a> = &'a dyn Fn(&mut dyn FnMut(&Stream) -> Result<()>) -> Result<Times>;

/// Result of a measurement: a case of a model, and its dense baseline.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The model and its sizes.
    pub case: String,
    pub dtype: &'static str,
    pub times: Times,
    /// Work of a run, and its unit.
    pub work: (f64, &'static str),
    /// Name and times of the baseline.
    pub twin: Option<(String, Times)>,
    /// Bytes of device memory, without the baseline's.
    pub held: Option<u64>,
    /// Largest error, relative to the largest value.
    pub error: Option<f64>,
    /// Kernels, or other remarks.
    pub note: String,
}

/// A case, its element type, and its dense products in order: rows, inputs and outputs of each.
pub type Products = (String, &'static str, Vec<[usize; 3]>);

/// A case, and the lists that reproduce it: lengths of sequences, or offsets and columns of a graph.
pub type Lists = (String, Vec<Vec<u32>>);

/// Context, sizes and results of a run.
#[derive(Default)]
pub struct Run<'a> {
    pub context: Context,
    pub toy: bool,
    pub arguments: Arguments,
    /// Timer that replaces the host clock.
    pub timer: Option<Timer<'a>>,
    pub rows: RefCell<Vec<Measured>>,
    /// Inputs of baselines that only multiply.
    pub products: RefCell<Vec<Products>>,
    /// Inputs of baselines in another process.
    pub lists: RefCell<Vec<Lists>>,
}

impl Run<'_> {
    /// Measures `work`: on a GPU as one CUDA graph, after a run that creates plans.
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
            // SAFETY: the operands of `work` outlive this function, and only this stream uses them.
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

    /// Prints a row and stores it.
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
    /// [`report`](Run::report), which also stores the products of `layers` layers.
    pub fn report_with(&self, row: Measured, layers: usize, products: &[[usize; 3]]) {
        let (case, dtype) = (row.case.clone(), row.dtype);
        let products = products.repeat(layers);
        self.products.borrow_mut().push((case, dtype, products));
        self.report(row);
    }
}

/// Device memory allocated since `before`: the memory of a model, because runs allocate nothing.
#[derive(Debug)]
pub struct Memory(Option<u64>);

impl Memory {
    pub fn before(context: &Context) -> Self {
        Memory(context.free_memory().ok())
    }

    /// Returns the bytes, or `None` on the CPU.
    pub fn since(&self, context: &Context) -> Option<u64> {
        let now = context.free_memory().ok()?;
        Some(self.0?.saturating_sub(now))
    }
}

/// Returns the values of a tensor in row-major order.
pub fn wide<T: Scalar>(tensor: &Tensor<T>) -> Result<Vec<f64>> {
    Ok(tensor.to_dense()?.map(T::to_f64).into_values())
}

/// Returns the largest difference, relative to the largest value.
pub fn largest_error(found: &[f64], wanted: &[f64]) -> f64 {
    let size = wanted.iter().fold(0.0f64, |size, x| size.max(x.abs()));
    let errors = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    // NaN counts as an error.
    let largest = errors.fold(0.0f64, |all, e| if e > all || e.is_nan() { e } else { all });
    largest / size.max(f64::MIN_POSITIVE)
}
