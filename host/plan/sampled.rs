//! Plans into a sparse output: products of dense matrices where the output has places.

mod choose;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use einsparse_formats::Format;

use super::bind::{device_tensor, elsewhere, find, scalar_value, wrong};
use crate::context::Context;
use crate::cpu::sampled::{Slots, Strided, sampled};
use crate::device::Stream;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, SampledFactor, SampledForm, rewrite_sampled};
use crate::launch::{RawSampled, SampledExtents, SampledLaunch};
use crate::registry::{Scalar, block_of};
use crate::tensor::{Operand, SparseTensor};
use crate::worklist::Runs;
use choose::choose;

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
pub struct SampledPlan<T> {
    context: Context,
    einsum: Einsum,
    indirect: IndirectEinsum,
    form: SampledForm,
    shapes: BTreeMap<String, Vec<usize>>,
    out_shape: Vec<usize>,
    extents: SampledExtents,
    block: (usize, usize),
    exec: Exec,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Exec {
    Cpu,
    Gpu(Box<SampledLaunch>),
}

/// The array that kernels read of a sparse matrix in row order: columns of blocks or of entries.
struct Pattern<'a> {
    runs: &'a Arc<Runs>,
    columns: &'a [u32],
}

fn pattern<'a, T: Scalar>(name: &str, s: &'a SparseTensor<T>) -> Result<Pattern<'a>> {
    match (s.runs(), crate::tensor::columns_of(s.pattern())) {
        (Some(runs), Some(columns))
            if !matches!(s.format(), Format::Nm { .. } | Format::SlicedEll) =>
        {
            Ok(Pattern { runs, columns })
        }
        _ => Err(Error::Operand {
            name: name.into(),
            reason: format!("is {}, and a sparse output is in row order", s.format()),
        }),
    }
}

impl Context {
    /// Plans an expression whose output is sparse: `S[m,n] (= | +=) P[m,n] * X[m,k] * Y[n,k]`, computed where `out` has
    /// places. P is a sparse factor with the same pattern and may be missing, the axes of X and Y may be swapped, scalar
    /// factors are allowed. On a GPU blocks of multiples of 16 x 16 in f16 and bf16, with X and Y both `[m,k]`, `[n,k]` or
    /// both `[k,m]`, `[k,n]`.
    ///
    /// # Errors
    /// What parsing and checking find; [`Error::NoKernel`] for another form, and on a GPU for a format, type or order of
    /// axes that no kernel of the table takes.
    pub fn plan_sampled<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        out: &SparseTensor<T>,
    ) -> Result<SampledPlan<T>> {
        let einsum = Einsum::parse(text)?;
        let shapes = shapes(&einsum.out.tensor, operands, out)?;
        einsum.check(&shapes)?;
        let mask = super::sparse_among(&einsum, operands)?.map(|(name, _)| name);
        let indirect = rewrite_sampled(&einsum, &out.format(), mask)?;
        let refuse = |tried: Vec<Refusal>| Error::NoKernel {
            indirect: indirect.to_string(),
            tried,
        };
        let Some(form) = SampledForm::of(&einsum, mask) else {
            return Err(refuse(vec![Refusal {
                name: "sampled".into(),
                reason: "a sparse output is S[m,n] (=|+=) P[m,n] * X[m,k] * Y[n,k]".into(),
            }]));
        };
        let own = pattern(&form.output, out)?;
        let k_axis = usize::from(!form.x.columns);
        let extents = SampledExtents {
            m: out.shape()[0],
            n: out.shape()[1],
            k: find(operands, &form.x.name)?.shape()[k_axis],
        };
        let block = block_of(&out.format());
        let exec = match self.device() {
            None => Exec::Cpu,
            Some(device) => {
                let distances = [
                    leading(operands, &form.x.name)?,
                    leading(operands, &form.y.name)?,
                ];
                let hopper = device.machine().wgmma > 0.0;
                let row = choose::<T>(&form, block, distances, hopper).map_err(refuse)?;
                let (runs, columns) = (own.runs, own.columns);
                let launch = SampledLaunch::new(device, row, extents, runs, columns, block)?;
                Exec::Gpu(Box::new(launch))
            }
        };
        Ok(SampledPlan {
            context: self.clone(),
            einsum,
            indirect,
            form,
            shapes,
            out_shape: out.shape().to_vec(),
            extents,
            block,
            exec,
            element: PhantomData,
        })
    }
}

/// Shapes of the operands and of the output, which is none of them.
fn shapes<T: Scalar>(
    name: &str,
    operands: &[(&str, Operand<'_, T>)],
    out: &SparseTensor<T>,
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

/// Elements from one row of a dense factor to the next.
fn leading<T: Scalar>(operands: &[(&str, Operand<'_, T>)], name: &str) -> Result<usize> {
    Ok(match find(operands, name)? {
        Operand::Dense(d) => d.leading(),
        other => other.shape()[1],
    })
}

impl<T: Scalar> SampledPlan<T> {
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
        out: &mut SparseTensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(operands, out)?;
        let mut alpha = 1.0;
        for factor in &self.form.scalars {
            alpha *= scalar_value(operands, factor)?;
        }
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

    fn check(&self, operands: &[(&str, Operand<'_, T>)], out: &SparseTensor<T>) -> Result<()> {
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

    /// The values of a sparse tensor of the planned pattern.
    fn values_of(&self, launch: &SampledLaunch, name: &str, s: &SparseTensor<T>) -> Result<u64> {
        let device = self.context.expect_device()?;
        let own = pattern(name, s)?;
        let arrays = s.device().filter(|arrays| arrays.device.is_same(device));
        match arrays {
            Some(arrays)
                if block_of(&s.format()) == self.block && launch.fits(own.runs, own.columns) =>
            {
                Ok(arrays.values.address())
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
        out: &SparseTensor<T>,
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
                Operand::Sparse(s) => self.values_of(launch, name, s)?,
                other => return Err(wrong(name, "an uploaded sparse tensor", other)),
            },
        };
        Ok(RawSampled {
            x,
            ldx,
            y,
            ldy,
            mask,
            values: self.values_of(launch, &self.form.output, out)?,
            alpha,
            accumulate: self.form.mode == Mode::Accumulate,
        })
    }

    fn run_cpu(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut SparseTensor<T>,
        alpha: f64,
    ) -> Result<()> {
        let x = strided(operands, &self.form.x)?;
        let y = strided(operands, &self.form.y)?;
        if out.host().is_none() {
            return Err(elsewhere(&self.form.output));
        }
        let planned = pattern(&self.form.output, out)?;
        let mask = match &self.form.mask {
            None => None,
            Some(name) => Some(host_mask(operands, name, out, &planned)?),
        };
        let runs = Arc::clone(planned.runs);
        let columns = planned.columns.to_vec();
        let slots = Slots {
            runs: &runs,
            columns: &columns,
            block: block_of(&out.format()),
            extents: (self.out_shape[0], self.out_shape[1]),
        };
        let more = (alpha, mask, self.form.mode == Mode::Accumulate);
        sampled((x, y), self.extents.k, slots, more, out.host_values_mut());
        Ok(())
    }
}

/// A dense factor on the host, by its own index and k.
fn strided<'a, T: Scalar>(
    operands: &'a [(&str, Operand<'_, T>)],
    factor: &SampledFactor,
) -> Result<Strided<'a, T>> {
    let name = factor.name.as_str();
    let (values, leading) = match find(operands, name)? {
        Operand::Dense(d) => (d.host().ok_or_else(|| elsewhere(name))?, d.leading()),
        Operand::HostDense(d) => (d.values(), d.shape()[1]),
        other => return Err(wrong(name, "a dense tensor", other)),
    };
    let (row, k) = if factor.columns {
        (1, leading)
    } else {
        (leading, 1)
    };
    Ok(Strided { values, row, k })
}

/// The values of a mask on the host, whose pattern is the output's.
fn host_mask<'a, T: Scalar>(
    operands: &'a [(&str, Operand<'_, T>)],
    name: &str,
    out: &SparseTensor<T>,
    planned: &Pattern<'_>,
) -> Result<&'a [T]> {
    let Operand::Sparse(mask) = find(operands, name)? else {
        return Err(wrong(
            name,
            "an uploaded sparse tensor",
            find(operands, name)?,
        ));
    };
    let own = pattern(name, mask)?;
    let same =
        mask.format() == out.format() && own.runs == planned.runs && own.columns == planned.columns;
    if !same {
        return Err(Error::Operand {
            name: name.into(),
            reason: "has not the pattern or the format of the output".into(),
        });
    }
    let mask = mask.host().ok_or_else(|| elsewhere(name))?;
    Ok(mask.values())
}

impl<T: Scalar> fmt::Display for SampledPlan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exec {
            Exec::Cpu => write!(f, "cpu: {} on {}", self.indirect, self.context),
            Exec::Gpu(launch) => write!(f, "{}: {}", launch.row().name, launch.describe()),
        }
    }
}
