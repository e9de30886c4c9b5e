//! Plans into a sparse output: products of dense matrices where the output has places.

mod host;
mod plans;
mod product;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use super::joined::{Asked, Joined, run_into};
use super::window::Sums;
use super::{Choice, Options};
use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::einsum::Einsum;
use crate::error::{Error, Refusal, Result};
use crate::families::sddmm::{RawSampled, SampledLaunch};
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::offer::bind::{as_dense, device_tensor, find, wrong};
use crate::offer::{Expression, Types, whole_factor};
use crate::registry::{Scalar, block_of};
use crate::tensor::{AnyOperand, AnySparseTensor, Operand, SparseTensor, erase};
use product::{Product, pattern};

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
pub struct SampledPlan<T: Scalar, Out: Scalar = T> {
    any: AnySampledPlan,
    elements: PhantomData<(T, Out)>,
}

impl<T: Scalar, Out: Scalar> SampledPlan<T, Out> {
    /// The kernel chosen, what it was chosen from, and what was refused.
    pub fn choice(&self) -> &Choice {
        &self.any.choice
    }

    /// The expression as parsed.
    pub fn einsum(&self) -> &Einsum {
        &self.any.expression.einsum
    }

    /// The expression with the output's format written in.
    pub fn indirect(&self) -> &IndirectEinsum {
        &self.any.expression.indirect
    }

    /// Name of the kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.any.variant()
    }

    /// Device bytes this plan holds beside the operands.
    pub fn workspace_bytes(&self) -> usize {
        self.any.workspace_bytes()
    }

    /// Runs on `stream`: new values for `out`, in device memory on a GPU, where nothing is allocated and nothing waited
    /// for. [`SparseTensor::to_host`] reads them. Runs of a plan that cuts windows along k wait for each other, on
    /// whatever stream; a replay of a captured run must not overlap another run of the same plan. Beyond that, the
    /// order of work on different streams is the caller's.
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
        self.any.run(&erase(operands), &mut out.any, stream)
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
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        self.any.run_raw(raw, queue)
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for SampledPlan<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.any.fmt(f)
    }
}

/// A [`SampledPlan`] of any element types.
#[derive(Debug)]
struct AnySampledPlan {
    expression: Expression,
    choice: Choice,
    /// Of an expression with sums of indices: their index arrays.
    sums: Option<Sums>,
    exec: Exec,
}

#[derive(Debug)]
enum Exec {
    Cpu(Product),
    Gpu(Product, Box<SampledLaunch>),
    /// Every other expression: over the places of the output.
    Joined(Box<Joined>),
}

/// Shapes of the operands and of the output, which is none of them.
fn shapes(
    name: &str,
    operands: &[(&str, AnyOperand<'_>)],
    out: &AnySparseTensor,
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

impl AnySampledPlan {
    fn new(
        (context, types): (&Context, Types),
        text: &str,
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnySparseTensor,
        options: &Options,
    ) -> Result<Self> {
        let einsum = Einsum::parse(text)?;
        let shapes = shapes(&einsum.out.tensor, operands, out)?;
        let extents = einsum.check(&shapes)?;
        // No kernel looks for micro-tiles here: what is dynamic is dense.
        let known = as_dense(operands);
        let operands = known.as_ref().map_or(operands, |(dense, _)| &dense[..]);
        let sums = Sums::of(&einsum, &extents, operands)?;
        let bound = sums.as_ref().map(|sums| sums.bound(operands));
        let asked = Asked {
            types,
            context,
            einsum: sums.as_ref().map_or(&einsum, |sums| &sums.einsum),
            operands: bound.as_deref().unwrap_or(operands),
            options,
        };
        let (indirect, choice, exec) = match Self::product(&asked, out)? {
            Ok(found) => found,
            Err(mut refused) => match Joined::sampled(&asked, out.pattern()) {
                Ok(mut joined) => {
                    let plan = joined.plan_mut();
                    let mut choice = std::mem::take(&mut plan.choice);
                    refused.append(&mut choice.refused);
                    choice.refused = refused;
                    (
                        plan.expression.indirect.clone(),
                        choice,
                        Exec::Joined(Box::new(joined)),
                    )
                }
                Err(Error::NoKernel { indirect, tried }) => {
                    refused.extend(tried);
                    return Err(Error::NoKernel {
                        indirect,
                        tried: refused,
                    });
                }
                Err(other) => return Err(other),
            },
        };
        drop(bound);
        Ok(AnySampledPlan {
            expression: Expression {
                types,
                context: context.clone(),
                einsum,
                indirect,
                shapes,
                out_shape: out.shape().to_vec(),
            },
            choice,
            sums,
            exec,
        })
    }

    fn variant(&self) -> &'static str {
        match &self.exec {
            Exec::Cpu(_) => "cpu",
            Exec::Gpu(_, launch) => launch.row().name,
            Exec::Joined(joined) => joined.plan().variant(),
        }
    }

    fn workspace_bytes(&self) -> usize {
        match &self.exec {
            Exec::Cpu(_) => 0,
            Exec::Gpu(_, launch) => launch.bytes(),
            Exec::Joined(joined) => joined.plan().workspace_bytes(),
        }
    }

    fn run(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnySparseTensor,
        stream: &Stream,
    ) -> Result<()> {
        self.expression.check_shapes(operands, out.shape())?;
        if let Some((dense, _)) = as_dense(operands) {
            return self.run(&dense, out, stream);
        }
        let alpha = self.expression.factor(operands)?;
        match &self.exec {
            Exec::Cpu(product) => self.run_cpu(product, operands, out, alpha),
            Exec::Joined(joined) => {
                let name = self.expression.einsum.out.tensor.as_str();
                run_into(joined, operands, (name, out), stream)
            }
            Exec::Gpu(product, launch) => {
                // The binding looks at the output and at patterns.
                let queue = self.expression.check_stream(operands, stream)?;
                let raw = self.bind((product, launch), operands, out, alpha)?;
                launch.run(&raw, queue)
            }
        }
    }

    /// [`SampledPlan::run_raw`] behind its promise.
    fn run_raw(&self, raw: &RawSampled, queue: Queue<'_>) -> Result<()> {
        self.expression.context.expect_device()?;
        whole_factor(self.expression.types.out, raw.alpha)?;
        match &self.exec {
            Exec::Cpu(product) | Exec::Gpu(product, _)
                if product.form.mask.is_some() != (raw.mask != 0) =>
            {
                Err(Error::Operand {
                    name: "mask".into(),
                    reason: "is part of the plan or of the addresses, not of both".into(),
                })
            }
            Exec::Gpu(_, launch) => launch.run(raw, queue),
            Exec::Cpu(_) => Ok(()),
            Exec::Joined(_) => Err(Error::NoKernel {
                indirect: self.expression.indirect.to_string(),
                tried: vec![Refusal {
                    name: self.variant().into(),
                    reason: "takes tensors (`SampledPlan::run`): raw addresses are for S[m,n] = P[m,n] * X[m,k] * Y[n,k]"
                        .into(),
                }],
            }),
        }
    }

    /// Addresses of columns and values of a sparse tensor of the planned pattern.
    fn arrays_of(
        &self,
        (product, launch): (&Product, &SampledLaunch),
        name: &str,
        s: &AnySparseTensor,
    ) -> Result<(u64, u64)> {
        let device = self.expression.context.expect_device()?;
        let own = pattern(name, s)?;
        let arrays = s.device().filter(|arrays| arrays.device.is_same(device));
        match arrays {
            Some(arrays)
                if block_of(&s.format()) == product.block && launch.fits(own.runs, own.columns) =>
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
        on: (&Product, &SampledLaunch),
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnySparseTensor,
        alpha: f64,
    ) -> Result<RawSampled> {
        let form = &on.0.form;
        let (x, ldx) = device_tensor(operands, &form.x.name)?;
        let (y, ldy) = device_tensor(operands, &form.y.name)?;
        let mask = match &form.mask {
            None => 0,
            Some(name) => match find(operands, name)? {
                AnyOperand::Sparse(s) => self.arrays_of(on, name, s)?.1,
                other => return Err(wrong(name, "an uploaded sparse tensor", other)),
            },
        };
        let (columns, values) = self.arrays_of(on, &form.output, out)?;
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

impl fmt::Display for AnySampledPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exec {
            Exec::Cpu(_) => write!(
                f,
                "cpu: {} on {}",
                self.expression.indirect, self.expression.context
            ),
            Exec::Joined(joined) => match &self.sums {
                Some(sums) => write!(f, "{joined}, {sums}"),
                None => joined.fmt(f),
            },
            Exec::Gpu(_, launch) => write!(f, "{}: {}", launch.row().name, launch.describe()),
        }
    }
}
