//! Plans into a sparse output: products of dense matrices where the output has places.

mod choose;
mod host;
mod plans;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::bind::{device_tensor, elsewhere, find, scalar_value, wrong};
use super::choose::known_variant;
use super::into::{sums_fit, whole_factor};
use super::{Choice, Options};
use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, SampledForm, rewrite_sampled};
use crate::launch::{Places, RawSampled, SampledExtents, SampledLaunch};
use crate::registry::{Dtype, Scalar, block_of, find as row_of};
use crate::tensor::{Operand, SparseTensor};
use crate::worklist::Runs;
use choose::sampling;

/// An expression with a sparse output, bound to formats, shapes and a kernel. The output's own pattern says where it is
/// computed (SDDMM); a sparse factor with the output's indices and pattern multiplies by its values.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = Context::cpu();
/// let pattern = CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?;
/// let mut s = ctx.upload(Csr::new(pattern, vec![0.0f32; 2])?)?;
/// let x = ctx.upload_dense(&Dense::new([2, 1], vec![2.0, 3.0])?)?;
/// let y = ctx.upload_dense(&Dense::new([2, 1], vec![5.0, 7.0])?)?;
/// let operands = [("X", (&x).into()), ("Y", (&y).into())];
/// let plan = ctx.plan_sampled("S[m,n] = X[m,k] * Y[n,k]", &operands, &s)?;
/// let stream = ctx.stream()?;
/// plan.run(&operands, &mut s, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(s.to_host()?.values(), [14.0, 15.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SampledPlan<T, Out = T> {
    context: Context,
    einsum: Einsum,
    indirect: IndirectEinsum,
    form: SampledForm,
    shapes: BTreeMap<String, Vec<usize>>,
    out_shape: Vec<usize>,
    extents: SampledExtents,
    block: (usize, usize),
    choice: Choice,
    exec: Exec,
    elements: PhantomData<(T, Out)>,
}

#[derive(Debug)]
enum Exec {
    Cpu,
    Gpu(Box<SampledLaunch>),
}

impl Exec {
    /// The first of the candidates, launched; `None` where a GPU has none.
    fn new(
        context: &Context,
        choice: &Choice,
        extents: SampledExtents,
        out: (Mode, Dtype),
        places: Places<'_>,
    ) -> Result<Option<Exec>> {
        let Some(device) = context.device() else {
            return Ok(Some(Exec::Cpu));
        };
        let Some(row) = choice.candidates.first().and_then(|c| row_of(c.name)) else {
            return Ok(None);
        };
        let launch = SampledLaunch::new(device, row, extents, out, places)?;
        Ok(Some(Exec::Gpu(Box::new(launch))))
    }
}

/// The array that kernels read of a sparse matrix in row order: columns of blocks or of entries.
struct Pattern<'a> {
    runs: &'a Arc<Runs>,
    columns: &'a [u32],
}

fn pattern<'a, T: Scalar>(name: &str, s: &'a SparseTensor<T>) -> Result<Pattern<'a>> {
    let (runs, columns) = s.row_order().ok_or_else(|| Error::Operand {
        name: name.into(),
        reason: format!("is {}, and a sparse output is in row order", s.format()),
    })?;
    Ok(Pattern { runs, columns })
}

/// Shapes of the operands and of the output, which is none of them.
fn shapes<T: Scalar, Out: Scalar>(
    name: &str,
    operands: &[(&str, Operand<'_, T>)],
    out: &SparseTensor<Out>,
) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes: BTreeMap<String, Vec<usize>> = operands
        .iter()
        .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
        .collect();
    match shapes.insert(name.into(), out.shape().to_vec()) {
        None => Ok(shapes),
        Some(_) => Err(Error::Operand {
            name: name.into(),
            reason: "is the output, which is given beside the operands".into(),
        }),
    }
}

impl<T: Scalar, Out: Scalar> SampledPlan<T, Out> {
    fn new(
        context: &Context,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        out: &SparseTensor<Out>,
        options: &Options,
    ) -> Result<Self> {
        let einsum = Einsum::parse(text)?;
        let shapes = shapes(&einsum.out.tensor, operands, out)?;
        einsum.check(&shapes)?;
        let mask = super::sparse_among(&einsum, operands)?.map(|(name, _)| name);
        let indirect = rewrite_sampled(&einsum, &out.format(), mask)?;
        let refuse = |tried: Vec<Refusal>| Error::NoKernel {
            indirect: indirect.to_string(),
            tried,
        };
        let form = SampledForm::of(&einsum, mask).ok_or_else(|| {
            refuse(vec![Refusal {
                name: "sampled".into(),
                reason: "a sparse output is S[m,n] (=|+=) P[m,n] * X[m,k] * Y[n,k]".into(),
            }])
        })?;
        let own = pattern(&form.output, out)?;
        let k_axis = usize::from(!form.x.columns);
        let extents = SampledExtents {
            m: out.shape()[0],
            n: out.shape()[1],
            k: find(operands, &form.x.name)?.shape()[k_axis],
        };
        known_variant(&indirect, options)?;
        sums_fit(T::DTYPE, extents.k as u64)?;
        let places = Places {
            runs: own.runs,
            columns: own.columns,
            block: block_of(&out.format()),
        };
        let choice = sampling(
            &form,
            extents,
            places,
            operands,
            (out.format(), Out::DTYPE, options),
        )
        .candidates(&context.machine(), options);
        let exec = Exec::new(context, &choice, extents, (form.mode, Out::DTYPE), places)?
            .ok_or_else(|| refuse(choice.refused.clone()))?;
        Ok(SampledPlan {
            context: context.clone(),
            einsum,
            indirect,
            form,
            shapes,
            out_shape: out.shape().to_vec(),
            extents,
            block: places.block,
            choice,
            exec,
            elements: PhantomData,
        })
    }

    /// The kernel chosen, what it was chosen from, and what was refused.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The expression as parsed.
    pub fn einsum(&self) -> &Einsum {
        &self.einsum
    }

    /// The expression with the output's format written in.
    pub fn indirect(&self) -> &IndirectEinsum {
        &self.indirect
    }

    /// Name of the kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        match &self.exec {
            Exec::Cpu => "cpu",
            Exec::Gpu(launch) => launch.row().name,
        }
    }

    /// Device bytes this plan holds beside the operands.
    pub fn workspace_bytes(&self) -> usize {
        match &self.exec {
            Exec::Cpu => 0,
            Exec::Gpu(launch) => launch.bytes(),
        }
    }

    /// Runs on `stream`: new values for `out`, in device memory on a GPU, where nothing is allocated and nothing waited
    /// for. [`SparseTensor::to_host`] reads them. Runs of a plan that cuts windows along k wait for each other, on
    /// whatever stream; a replay of a captured run must not overlap another run of the same plan. Beyond that, the order
    /// of work on different streams is the caller's.
    ///
    /// # Errors
    /// Operands of another shape, pattern or context than planned; output untouched. In a CPU context any pattern in row
    /// order will do.
    pub fn run(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut SparseTensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(operands, out)?;
        let mut alpha = 1.0;
        for factor in &self.form.scalars {
            alpha *= scalar_value(operands, factor)?;
        }
        whole_factor::<Out>(alpha)?;
        match &self.exec {
            Exec::Cpu => self.run_cpu(operands, out, alpha),
            Exec::Gpu(launch) => {
                let device = self.context.expect_device()?;
                if !stream.belongs_to(device) {
                    return Err(elsewhere("stream"));
                }
                let raw = self.bind(launch, operands, out, alpha)?;
                // SAFETY: shapes, pattern and places were checked; the tensors are borrowed for the call, and
                // device memory is freed only after the work queued on the context.
                unsafe { launch.run(&raw, stream.raw()) }
            }
        }
    }

    /// Runs on raw device addresses and a raw stream, for users of other CUDA crates.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern, in the primary context of the plan's
    /// GPU, until the work is done; the output overlaps neither X nor Y; `stream` is a stream of that context, which this
    /// call makes current on the thread. Replays of captured runs are ordered by the caller.
    ///
    /// # Errors
    /// [`Error::Operand`] for addresses less aligned than planned, or a mask that is missing or was not planned with;
    /// [`Error::Cuda`] on a CPU context.
    pub unsafe fn run_raw(&self, raw: &RawSampled, stream: RawStream<'_>) -> Result<()> {
        self.context.expect_device()?;
        whole_factor::<Out>(raw.alpha)?;
        if self.form.mask.is_some() != (raw.mask != 0) {
            return Err(Error::Operand {
                name: "mask".into(),
                reason: "is part of the plan or of the addresses, not of both".into(),
            });
        }
        match &self.exec {
            // SAFETY: the caller's promise.
            Exec::Gpu(launch) => unsafe { launch.run(raw, stream) },
            Exec::Cpu => Ok(()),
        }
    }

    fn check(&self, operands: &[(&str, Operand<'_, T>)], out: &SparseTensor<Out>) -> Result<()> {
        let given = operands.iter().map(|(name, o)| (*name, o.shape()));
        let all = given.chain([(self.form.output.as_str(), out.shape())]);
        for (name, shape) in all {
            let planned = self.shapes.get(name).ok_or_else(|| Error::Operand {
                name: name.into(),
                reason: "is not part of the plan".into(),
            })?;
            if planned != shape {
                return Err(Error::Shape {
                    index: name.into(),
                    left: format!("planned with {planned:?}"),
                    right: format!("run with {shape:?}"),
                });
            }
        }
        Ok(())
    }

    /// Addresses of columns and values of a sparse tensor of the planned pattern.
    fn arrays_of<S: Scalar>(
        &self,
        launch: &SampledLaunch,
        name: &str,
        s: &SparseTensor<S>,
    ) -> Result<(u64, u64)> {
        let device = self.context.expect_device()?;
        let own = pattern(name, s)?;
        let arrays = s.device().filter(|arrays| arrays.device.is_same(device));
        match arrays {
            Some(arrays)
                if block_of(&s.format()) == self.block && launch.fits(own.runs, own.columns) =>
            {
                Ok((arrays.columns.address(), arrays.values.address()))
            }
            _ => Err(Error::Operand {
                name: name.into(),
                reason: "has not the pattern, the format or the context that was planned".into(),
            }),
        }
    }

    fn bind(
        &self,
        launch: &SampledLaunch,
        operands: &[(&str, Operand<'_, T>)],
        out: &SparseTensor<Out>,
        alpha: f64,
    ) -> Result<RawSampled> {
        let device = self.context.expect_device()?;
        for name in [&self.form.x.name, &self.form.y.name] {
            match find(operands, name)? {
                Operand::Dense(d) if d.device().is_some_and(|on| on.is_same(device)) => {}
                Operand::Dense(_) => return Err(elsewhere(name)),
                other => return Err(wrong(name, "an uploaded dense tensor", other)),
            }
        }
        let (x, ldx) = device_tensor(operands, &self.form.x.name)?;
        let (y, ldy) = device_tensor(operands, &self.form.y.name)?;
        let mask = match &self.form.mask {
            None => 0,
            Some(name) => match find(operands, name)? {
                Operand::Sparse(s) => self.arrays_of(launch, name, s)?.1,
                other => return Err(wrong(name, "an uploaded sparse tensor", other)),
            },
        };
        let (columns, values) = self.arrays_of(launch, &self.form.output, out)?;
        Ok(RawSampled {
            columns,
            x,
            ldx,
            y,
            ldy,
            mask,
            values,
            alpha,
        })
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for SampledPlan<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exec {
            Exec::Cpu => write!(f, "cpu: {} on {}", self.indirect, self.context),
            Exec::Gpu(launch) => write!(f, "{}: {}", launch.row().name, launch.describe()),
        }
    }
}
