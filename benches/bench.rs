//! Environment of a bench: the GPU, the command-line arguments, the recorder, and an einsparse context and stream on
//! that GPU.
//!
//! Benches use it to upload operands, to time einsparse and the baselines, and to write rows.

use crate::Arguments;
use crate::device::{Gpu, Reason, Result};
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{self, Effort, Times};
use einsparse::formats::Dense;
use einsparse::raw::{RawSpmm, RawStream};
use einsparse::registry::{self, Scalar};
use einsparse::{Context, Error, Graph, Operand, Options, Plan, Precision, Stream, Tensor};
use std::ops::Deref;
use std::time::Instant;

/// Environment that needs no einsparse context.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub gpu: &'a Gpu,
    pub arguments: &'a Arguments,
    pub recorder: &'a Recorder,
}

impl Place<'_> {
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
}

/// Environment with an einsparse context.
pub struct Bench<'a> {
    place: Place<'a>,
    pub context: Context,
    /// The only stream of the GPU.
    pub stream: Stream,
}

impl<'a> Deref for Bench<'a> {
    type Target = Place<'a>;

    fn deref(&self) -> &Place<'a> {
        &self.place
    }
}

impl<'a> Bench<'a> {
    /// Opens a context on the GPU of `place`.
    pub fn new(place: Place<'a>) -> Result<Self> {
        Ok(Self {
            place,
            context: Context::cuda(0)?,
            // SAFETY: the stream belongs to the primary context and outlives every bench.
            stream: unsafe { Stream::from_raw(place.gpu.stream.cast()) },
        })
    }

    /// Returns the environment with a new context, which has loaded no modules and holds no memory of earlier cases.
    pub fn anew(&self) -> Result<Self> {
        Self::new(self.place)
    }

    /// The stream, for runs on raw addresses.
    pub fn raw(&self) -> RawStream<'static> {
        // SAFETY: the stream belongs to the primary context and outlives every bench.
        unsafe { RawStream::from_raw(self.gpu.stream.cast()) }
    }

    pub fn upload<T: Scalar>(&self, dense: &Dense<T>) -> Result<Tensor<T>> {
        Ok(self.context.upload_dense(dense)?)
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
    RawSpmm { columns, values, b, ldb: n, c, ldc: n, ..RawSpmm::default() }
}

/// Options that force the row of this name; `None` leaves the choice to the plan.
pub fn forced(variant: Option<&str>) -> Options {
    Options { variant: variant.map(str::to_owned), ..Options::default() }
}

/// Options with the precision of an element type.
pub fn precise(dtype: Dtype) -> Options {
    let precision = match dtype {
        Dtype::Tf32 => Precision::Tf32,
        _ => Precision::Full,
    };
    Options { precision, ..Options::default() }
}
