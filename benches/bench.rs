//! What a bench has at hand: the GPU, what was asked for, where rows go; and a context and a stream of ours on that
//! GPU.
//!
//! With these a bench uploads operands, times ours and the peers, and writes rows.

use crate::Arguments;
use crate::device::{Gpu, Reason, Result};
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{self, Effort, Times};
use einsparse::formats::Dense;
use einsparse::raw::{RawSpmm, RawStream};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Graph, Operand, Options, Plan, Precision, Stream, Tensor};
use std::ops::Deref;
use std::time::Instant;

/// What needs no context of ours.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub gpu: &'a Gpu,
    pub arguments: &'a Arguments,
    pub recorder: &'a Recorder,
}

impl Place<'_> {
    /// How much each figure costs.
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

/// A place with a context of ours.
pub struct Bench<'a> {
    place: Place<'a>,
    pub context: Context,
    /// The GPU's one stream.
    pub stream: Stream,
}

impl<'a> Deref for Bench<'a> {
    type Target = Place<'a>;

    fn deref(&self) -> &Place<'a> {
        &self.place
    }
}

impl<'a> Bench<'a> {
    /// Opens a context there.
    pub fn new(place: Place<'a>) -> Result<Self> {
        Ok(Self {
            place,
            context: Context::cuda(0)?,
            // SAFETY: the stream belongs to the primary context and outlives every bench.
            stream: unsafe { Stream::from_raw(place.gpu.stream.cast()) },
        })
    }

    /// The same with another context: it has loaded no modules and keeps no memory of the cases before.
    pub fn anew(&self) -> Result<Self> {
        Self::new(self.place)
    }

    /// The stream, for runs on addresses.
    pub fn raw(&self) -> RawStream<'static> {
        // SAFETY: as in `new`.
        unsafe { RawStream::from_raw(self.gpu.stream.cast()) }
    }

    pub fn upload<T: Scalar>(&self, dense: &Dense<T>) -> Result<Tensor<T>> {
        Ok(self.context.upload_dense(dense)?)
    }

    /// These values as a tensor on the GPU.
    pub fn tensor<T: Scalar>(&self, shape: &[usize], values: Vec<T>) -> Result<Tensor<T>> {
        self.upload(&Dense::new(shape.to_vec(), values)?)
    }

    pub fn zeros<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        Ok(self.context.zeros(shape)?)
    }

    /// NaN on the GPU: what is not written is seen.
    pub fn poisoned<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        let count = shape.iter().product();
        self.tensor(shape, vec![T::from_f64(f64::NAN); count])
    }

    /// A plan, and the milliseconds that making it took.
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

    /// Times what is queued, captured once and launched as a graph.
    pub fn in_a_graph(&self, mut run: impl FnMut() -> Result<()>) -> Result<Times> {
        // What is loaded and allocated at the first call cannot be captured.
        self.once(&mut run)?;
        let capture = |_| {
            run().map_err(|reason| Error::Cuda {
                call: "capture".into(),
                reason: reason.to_string(),
            })
        };
        let mut graph = Graph::capture(self.stream.raw(), capture)?;
        // SAFETY: what the captured run names outlives this function's caller.
        self.measure(|| unsafe { graph.launch(self.stream.raw()) })
    }
}

/// Where a tensor lies on the GPU.
pub fn at<T: Scalar>(tensor: &Tensor<T>) -> Result<u64> {
    let address = tensor.address();
    address.ok_or_else(|| "the operands are not on the GPU".into())
}

/// What was made, and the milliseconds that it took on the host.
pub fn timed<T>(make: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let made = make()?;
    Ok((made, start.elapsed().as_secs_f64() * 1e3))
}

/// A product on addresses: columns and values of A, B and C of `n` columns.
pub fn raw_spmm([columns, values, b, c]: [u64; 4], n: usize) -> RawSpmm {
    RawSpmm { columns, values, b, ldb: n, c, ldc: n, ..RawSpmm::default() }
}

/// The row of this name, or what the plan takes.
pub fn forced(variant: Option<&str>) -> Options {
    Options { variant: variant.map(str::to_owned), ..Options::default() }
}

/// Options of an element type.
pub fn precise(dtype: Dtype) -> Options {
    let precision = match dtype {
        Dtype::Tf32 => Precision::Tf32,
        _ => Precision::Full,
    };
    Options { precision, ..Options::default() }
}
