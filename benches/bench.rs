//! Environment of a bench: the GPU, the command-line arguments, the recorder, and an einsparse context and stream on
//! that GPU.
//!
//! Benches use it to upload operands, to time einsparse and the baselines, and to write rows.

use crate::Arguments;
use crate::check::{largest_error, over, worse};
use crate::device::{Buffer, Gpu, Reason, Result, or_said};
use crate::peers::cublas::{CuBlas, Order};
use crate::peers::torch;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{self, Effort, Times};
use crate::values;
use einsparse::formats::Dense;
use einsparse::raw::{RawSpmm, RawStream};
use einsparse::registry::{self, Scalar};
use einsparse::{Choice, Context, Error, Graph, Operand, Options, Plan, Precision, Stream, Tensor};
use std::time::Instant;

/// The GPU, the arguments, the recorder, and an einsparse context.
pub struct Bench<'a> {
    pub gpu: &'a Gpu,
    pub arguments: &'a Arguments,
    pub recorder: &'a Recorder,
    pub context: Context,
    /// The only stream of the GPU.
    pub stream: Stream,
}

impl<'a> Bench<'a> {
    /// Opens a context on the GPU.
    pub fn new(gpu: &'a Gpu, arguments: &'a Arguments, recorder: &'a Recorder) -> Result<Self> {
        // SAFETY: the stream belongs to the primary context and outlives every bench.
        let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
        Ok(Self { gpu, arguments, recorder, context: Context::cuda(0)?, stream })
    }

    /// Returns the environment with a new context, which has loaded no modules and holds no memory of earlier cases.
    pub fn anew(&self) -> Result<Self> {
        Self::new(self.gpu, self.arguments, self.recorder)
    }

    /// The stream, for runs on raw addresses.
    pub fn raw(&self) -> RawStream<'static> {
        // SAFETY: the stream belongs to the primary context and outlives every bench.
        unsafe { RawStream::from_raw(self.gpu.stream.cast()) }
    }

    /// Number of runs per time.
    pub fn effort(&self) -> Effort {
        self.arguments.effort()
    }

    /// Times `run`, which queues the operation on the GPU's stream and returns at once.
    pub fn measure<E: Into<Reason>>(
        &self,
        mut run: impl FnMut() -> Result<(), E>,
    ) -> Result<Times> {
        timing::measure(self.gpu, self.effort(), &mut || run().map_err(E::into))
    }

    pub fn add(&self, row: Row) -> Result<()> {
        self.recorder.add(row)
    }

    /// Queues `run` on an idle stream and waits for it.
    pub fn once<E: Into<Reason>>(&self, run: impl FnOnce() -> Result<(), E>) -> Result<()> {
        run().map_err(E::into)?;
        self.gpu.wait()
    }

    /// Times `run` and writes the row.
    pub fn time<E: Into<Reason>>(
        &self,
        row: Row,
        run: impl FnMut() -> Result<(), E>,
    ) -> Result<Times> {
        let times = self.measure(run)?;
        self.add(row.timed(&times))?;
        Ok(times)
    }

    /// Opens cuBLAS. If it is missing, prints why its rows are left out.
    pub fn cublas(&self, tf32: bool) -> Option<CuBlas> {
        or_said(CuBlas::open(self.gpu, tf32), "engine cublas")
    }

    /// Times cuBLAS on the whole product of two matrices at these addresses, in the precision of `dtype`. The row has a
    /// variant.
    pub fn whole(
        &self,
        row: Row,
        (dtype, extents, order): (Dtype, [usize; 3], Order),
        [a, b]: [u64; 2],
    ) -> Result<()> {
        let Some(cublas) = self.cublas(dtype == Dtype::Tf32) else {
            return Ok(());
        };
        let c = Buffer::new(extents[0] * extents[2] * dtype.size())?;
        let row = Row { engine: cublas.engine().into(), ..row };
        self.time(row, || cublas.gemm(dtype, extents, [a, b, c.ptr], order)).map(drop)
    }

    /// Measures PyTorch's implementations and writes a row of the fastest.
    pub fn torch(&self, row: Row, what: &str, asked: &str) -> Result<()> {
        if !self.arguments.wants_engine("torch") {
            return Ok(());
        }
        match torch::fastest(torch::measure(what, asked)) {
            Some((name, times)) => self.add(row.by("torch", name).timed(&times)),
            None => Ok(()),
        }
    }

    pub fn upload<T: Scalar>(&self, dense: &Dense<T>) -> Result<Tensor<T>> {
        Ok(self.context.upload_dense(dense)?)
    }

    /// Uploads values that are uniform in `-most..most`.
    pub fn filled<T: Scalar>(&self, shape: &[usize], seed: usize, most: f64) -> Result<Tensor<T>> {
        self.upload(&values::dense(shape, seed, most))
    }

    pub fn uploads<T: Scalar, const N: usize>(
        &self,
        all: [&Dense<T>; N],
    ) -> Result<[Tensor<T>; N]> {
        let all: Vec<Tensor<T>> = all.iter().map(|x| self.upload(x)).collect::<Result<_>>()?;
        all.try_into().map_err(|_| "as many as given".into())
    }

    /// Uploads values as a tensor.
    pub fn tensor<T: Scalar>(&self, shape: &[usize], values: Vec<T>) -> Result<Tensor<T>> {
        self.upload(&Dense::new(shape.to_vec(), values)?)
    }

    pub fn zeros<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        Ok(self.context.zeros(shape)?)
    }

    /// Kernels that this GPU runs.
    pub fn kernels(&self) -> impl Iterator<Item = &'static registry::Row> + Clone {
        let machine = self.context.machine();
        registry::kernels().iter().filter(move |row| machine.lacks(row).is_none())
    }

    /// Tensor of NaN on the GPU: elements that a kernel does not write are detected.
    pub fn poisoned<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        let count = shape.iter().product();
        self.tensor(shape, vec![T::from_f64(f64::NAN); count])
    }

    /// Returns a plan, and the planning time in milliseconds.
    pub fn plan<In: Scalar, Out: Scalar>(
        &self,
        expression: &str,
        operands: &[(&str, Operand<'_, In>)],
        options: &Options,
    ) -> Result<(Plan<In, Out>, f64)> {
        timed(|| {
            Ok(self
                .context
                .plan(expression)
                .operands(operands)
                .output()
                .options(options)
                .build()?)
        })
    }

    /// The plan's choice (`None`), and the other kernels of a choice that the arguments select.
    pub fn variants(&self, choice: &Choice) -> Vec<Option<&'static str>> {
        let names = choice.candidates.iter().map(|c| c.name);
        let names = names.filter(|name| self.arguments.forces(name));
        [None].into_iter().chain(names.map(Some)).collect()
    }

    /// Runs once, checks the output, times `run`, and writes the row. `check` returns the error in multiples of its
    /// bound.
    pub fn checked<O, E: Into<Reason>>(
        &self,
        row: Row,
        out: &mut O,
        mut run: impl FnMut(&mut O) -> Result<(), E>,
        check: impl FnOnce(&O) -> Result<f64>,
    ) -> Result<Times> {
        self.once(|| run(out))?;
        let error = check(out)?;
        let times = self.measure(|| run(out))?;
        self.add(row.timed(&times).error(error))?;
        Ok(times)
    }

    /// Makes a step on the CPU and on the GPU, compares their results, times the GPU, and writes the row. A difference
    /// is at most `within` of the max element.
    pub fn against_cpu<T: Scalar, const N: usize>(
        &self,
        make: impl Fn(&Context) -> Result<Step<T, N>>,
        within: [f64; N],
    ) -> Result<()> {
        let cpu = Context::cpu();
        let (_, mut wanted, mut reference) = make(&cpu)?;
        reference(&mut wanted, &cpu.stream()?)?;
        let (row, mut found, mut run) = make(&self.context)?;
        let check = |found: &[Tensor<T>; N]| {
            let pairs = found.iter().zip(&wanted).zip(within);
            let errors = pairs
                .map(|((found, wanted), within)| Ok(over(largest_error(found, wanted)?, within)));
            Ok(errors.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, worse))
        };
        self.checked(row, &mut found, |out| run(out, &self.stream), check).map(drop)
    }

    /// Plans a product, checks its output, times it, and writes the row. A row without a variant gets the name of the
    /// kernel.
    pub fn product<In: Scalar, Out: Scalar>(
        &self,
        row: Row,
        (expression, options): (&str, &Options),
        operands: &[(&str, Operand<'_, In>)],
        check: impl FnOnce(&Tensor<Out>) -> Result<f64>,
    ) -> Result<(Plan<In, Out>, Times)> {
        let (plan, prepare_ms) = self.plan(expression, operands, options)?;
        let mut out = self.poisoned(plan.out_shape())?;
        let row = match row.variant.as_str() {
            "" => row.ours(plan.variant()),
            _ => row.also(plan.variant()),
        };
        let row = row.prepared(prepare_ms, plan.workspace_bytes());
        let run = |out: &mut Tensor<Out>| plan.run(operands, out, &self.stream);
        let times = self.checked(row, &mut out, run, check)?;
        Ok((plan, times))
    }

    /// Times `run`, captured once and launched as a CUDA graph.
    pub fn in_a_graph(&self, mut run: impl FnMut() -> Result<()>) -> Result<Times> {
        // The first call loads modules and allocates memory, which cannot be captured.
        self.once(&mut run)?;
        let capture = |_| {
            run().map_err(|reason| Error::Cuda {
                call: "capture".into(),
                code: None,
                reason: reason.to_string(),
            })
        };
        let mut graph = Graph::capture(self.stream.raw(), capture)?;
        // SAFETY: the operands of the captured run outlive the measurement: the caller holds them.
        self.measure(|| unsafe { graph.launch(self.stream.raw()) })
    }
}

/// Row of a step, its results, and the closure that computes them.
pub type Step<T, const N: usize> =
    (Row, [Tensor<T>; N], Box<dyn FnMut(&mut [Tensor<T>; N], &Stream) -> Result<()>>);

/// Operands `A` and `B`.
pub fn ab<'a, T: Scalar>(
    a: impl Into<Operand<'a, T>>,
    b: impl Into<Operand<'a, T>>,
) -> [(&'static str, Operand<'a, T>); 2] {
    [("A", a.into()), ("B", b.into())]
}

/// Device address of a tensor.
pub fn at<T: Scalar>(tensor: &Tensor<T>) -> Result<u64> {
    let address = tensor.address();
    address.ok_or_else(|| "the operands are not on the GPU".into())
}

/// Returns the result of `make`, and its time on the host in milliseconds.
pub fn timed<T>(make: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let made = make()?;
    Ok((made, start.elapsed().as_secs_f64() * 1e3))
}

/// Product on addresses: columns and values of A, B, and C of `n` columns.
pub fn raw_spmm([columns, values, b, c]: [u64; 4], n: usize) -> RawSpmm {
    RawSpmm::default().columns(columns).values(values).b(b).ldb(n).c(c).ldc(n)
}

/// Options that force the row of this name; `None` leaves the choice to the plan.
pub fn forced(variant: Option<&str>) -> Options {
    Options::default().variant(variant)
}

/// Options with the precision of an element type.
pub fn precise(dtype: Dtype) -> Options {
    let precision = match dtype {
        Dtype::Tf32 => Precision::Tf32,
        _ => Precision::Full,
    };
    Options::default().precision(precision)
}
