//! Plan of the library with its element type, which a Python plan contains.

use std::sync::{PoisonError, RwLock};

use einsparse::driver::KeptCurrent;
use einsparse::einsum::Mode;
use einsparse::{Context, Error, Operand, Options, Scalar, SparseTensor, Stream};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::exchange::{Foreign, Order, gpu_of, take, type_name, values};
use crate::plan::Given;
use crate::raise;
use crate::sparse::Slots;
use crate::tensor::Tensor;

/// Properties of a plan, constant after planning.
pub struct Facts {
    /// Name of the output.
    pub out: String,
    /// Extents of the output.
    pub shape: Vec<usize>,
    pub accumulates: bool,
    pub variant: &'static str,
}

/// Plan with a hidden element type.
pub trait Typed: Send + Sync {
    fn facts(&self) -> Facts;
    fn explain(&self) -> String;
    fn zeros(&self) -> PyResult<Tensor>;
    fn run(
        &self,
        py: Python<'_>,
        numbers: &[(String, f64)],
        dense: Vec<(String, Foreign)>,
        out: Foreign,
        stream: &Stream,
    ) -> PyResult<()>;
    fn update_values(
        &self,
        py: Python<'_>,
        of: (&str, &Slots),
        array: &Bound<'_, PyAny>,
    ) -> PyResult<()>;
}

/// Guard under which the plan's GPU may be current on this thread. Dropping it restores the previous state.
fn kept_current(context: &Context) -> PyResult<Option<KeptCurrent>> {
    let kept = context.is_cuda().then(KeptCurrent::new);
    kept.transpose().map_err(raise)
}

pub struct Of<T: Scalar> {
    plan: einsparse::Plan<T>,
    context: Context,
    sparse: RwLock<Vec<(String, SparseTensor<T>)>>,
    numbers: Vec<(String, f64)>,
}

impl<T: Scalar> Of<T> {
    pub fn new(
        py: Python<'_>,
        (context, expression): (&Context, &str),
        given: Given<'_>,
        options: &Options,
    ) -> PyResult<Self> {
        let _kept = kept_current(context)?;
        let mut sparse = Vec::new();
        for (name, own) in &given.sparse {
            let typed = own.get().typed::<T>().ok_or_else(|| {
                let others = given.dtype.map(type_name).unwrap_or_default();
                PyValueError::new_err(format!(
                    "operand `{name}`: its values have type {}, those of the other operands {others}",
                    type_name(own.get().dtype)
                ))
            })?;
            let uploaded = context.upload(typed).map_err(|error| match error {
                Error::Format(error) => PyValueError::new_err(format!("operand `{name}`: {error}")),
                other => raise(other),
            });
            sparse.push((name.clone(), uploaded?));
        }
        let mut dense = Vec::new();
        for (name, object) in &given.dense {
            let foreign = take(object, name, gpu_of(object, name)?.map(|_| Order::NONE))?;
            // SAFETY: `given` keeps the object alive for this call, which reads no values.
            dense.push((name.as_str(), unsafe { foreign.into_tensor::<T>(context, name)? }));
        }
        let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::new();
        operands.extend(sparse.iter().map(|(name, a)| (name.as_str(), a.into())));
        operands.extend(dense.iter().map(|(name, d)| (*name, d.into())));
        let indices = given.indices.iter();
        operands.extend(
            indices.map(|(name, (shape, data))| (name.as_str(), Operand::Index(shape, data))),
        );
        operands.extend(given.numbers.iter().map(|(name, x)| (name.as_str(), Operand::Scalar(*x))));
        let plan = context.plan(expression).operands(&operands).options(options);
        let plan = py.detach(|| plan.build()).map_err(raise)?;
        Ok(Of {
            plan,
            context: context.clone(),
            sparse: RwLock::new(sparse),
            numbers: given.numbers,
        })
    }
}

impl<T: Scalar> Of<T> {
    /// Whether values of a sparse operand may be copied unchanged.
    fn has_whole_blocks(&self, name: &str) -> bool {
        let all = self.sparse.read().unwrap_or_else(PoisonError::into_inner);
        let mut own = all.iter().filter(|(own, _)| own == name);
        own.all(|(_, sparse)| sparse.has_whole_blocks())
    }

    /// Sets values, including those that the plan stores. The caller must not hold the GIL: a thread that runs the plan
    /// may wait for it.
    fn renew(
        &self,
        name: &str,
        stream: &Stream,
        set: impl Fn(&mut SparseTensor<T>) -> einsparse::Result<()>,
    ) -> einsparse::Result<()> {
        let mut all = self.sparse.write().unwrap_or_else(PoisonError::into_inner);
        for (_, sparse) in all.iter_mut().filter(|(own, _)| own == name) {
            set(sparse)?;
        }
        let sparse = all.iter().map(|(name, a)| (name.as_str(), a.into()));
        let operands: Vec<(&str, Operand<'_, T>)> = sparse.collect();
        self.plan.update_values(&operands, stream)
    }
}

impl<T: Scalar> Typed for Of<T> {
    fn facts(&self) -> Facts {
        let einsum = self.plan.einsum();
        Facts {
            out: einsum.out.tensor.clone(),
            shape: self.plan.out_shape().to_vec(),
            accumulates: einsum.mode == Mode::Accumulate,
            variant: self.plan.variant(),
        }
    }

    fn explain(&self) -> String {
        let Of { plan, .. } = self;
        format!(
            "Einsum   {}\nIndirect {}\nPlan     {plan}\nKernels\n{}",
            plan.einsum(),
            plan.indirect(),
            plan.choice()
        )
    }

    fn zeros(&self) -> PyResult<Tensor> {
        let _kept = kept_current(&self.context)?;
        Tensor::zeros::<T>(&self.context, self.plan.out_shape()).map_err(raise)
    }

    fn run(
        &self,
        py: Python<'_>,
        numbers: &[(String, f64)],
        dense: Vec<(String, Foreign)>,
        out: Foreign,
        stream: &Stream,
    ) -> PyResult<()> {
        let _kept = kept_current(&self.context)?;
        let tensor = |(name, foreign): (String, Foreign)| {
            // SAFETY: the caller keeps the object alive for this call. On a GPU its library orders its work before that
            // of the stream, and frees in stream order: the stream is its own, or `exchange::hold` recorded the stream.
            let tensor = unsafe { foreign.into_tensor::<T>(&self.context, &name)? };
            Ok((name, tensor))
        };
        let dense: Vec<_> = dense.into_iter().map(tensor).collect::<PyResult<_>>()?;
        // SAFETY: as for the operands; it may be written, and overlaps no operand.
        let mut out =
            unsafe { out.into_tensor::<T>(&self.context, &self.plan.einsum().out.tensor)? };
        let run = || {
            // The GIL is released: a thread that updates the values holds the lock and may wait for the GIL.
            let sparse = self.sparse.read().unwrap_or_else(PoisonError::into_inner);
            let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::with_capacity(8);
            operands.extend(sparse.iter().map(|(name, a)| (name.as_str(), a.into())));
            operands.extend(dense.iter().map(|(name, d)| (name.as_str(), d.into())));
            operands.extend(numbers.iter().map(|(name, x)| (name.as_str(), Operand::Scalar(*x))));
            for (name, x) in &self.numbers {
                if numbers.iter().all(|(given, _)| given != name) {
                    operands.push((name, Operand::Scalar(*x)));
                }
            }
            self.plan.run(&operands, &mut out, stream)
        };
        py.detach(run).map_err(raise)
    }

    fn update_values(
        &self,
        py: Python<'_>,
        (name, slots): (&str, &Slots),
        array: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _kept = kept_current(&self.context)?;
        let gpu = gpu_of(array, name)?.filter(|_| self.context.is_cuda());
        // Blocks at the edge contain values outside the matrix. Only the host path clears them.
        let copied = slots.are_in_order() && py.detach(|| self.has_whole_blocks(name));
        if let (Some(gpu), true) = (gpu, copied) {
            let order = Order::of(None, Some(array), gpu)?;
            let foreign = take(array, name, Some(order))?;
            // SAFETY: as in `run`.
            let tensor = unsafe { foreign.into_tensor::<T>(&self.context, name)? };
            let stream = order.stream();
            let copied =
                py.detach(|| self.renew(name, &stream, |a| a.copy_values(&tensor, &stream)));
            return copied.map_err(|error| of_values(name, error));
        }
        let values = slots.fill(name, values::<T>(array, name)?)?;
        let renew = || {
            let stream = self.context.stream()?;
            self.renew(name, &stream, |a| a.set_values(&values))?;
            stream.synchronize()
        };
        py.detach(renew).map_err(|error| of_values(name, error))
    }
}

/// Adds the operand's name to an error about its new values.
fn of_values(name: &str, error: Error) -> PyErr {
    match error {
        Error::Format(error) => PyValueError::new_err(format!("operand `{name}`: {error}")),
        other => raise(other.with_name(name)),
    }
}
