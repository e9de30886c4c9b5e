//! From an expression and its operands to a kernel: parse, check, rewrite, choose. A plan is built once
//! and runs many times, with new values, without allocating.

mod adaptive;
mod arrays;
mod bind;
mod choose;
mod convolution;
mod dots;
mod einsum;
mod family;
mod into;
mod joined;
mod kept;
mod options;
mod path;
mod pattern;
mod pit;
mod problem;
mod refuse;
mod rows;
mod sampled;
mod tensor_product;
mod window;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, SpmmForm, rewrite, rewrite_dense};
use crate::launch::{Launch, RawSpmm};
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};
use adaptive::Adaptive;
use family::{Compiled, write_kernel};
use joined::{Asked, Joined, sparse_among, sparse_factors};
use kept::Kept;
use window::{Sums, Windowed};

pub use choose::{Candidate, Choice};
pub(crate) use convolution::multiplied_as;
pub(crate) use dots::{dots_row, mark_padding};
pub use joined::PositionLists;
pub use kept::KeptForm;
pub use options::{Determinism, Options, Precision, ValuesRule, ZerosRule};
pub use path::{Path, Step};
pub(crate) use pattern::PlannedPattern;
pub use problem::Problem;
pub(crate) use rows::rows_of;
pub use sampled::SampledPlan;

#[derive(Debug)]
enum Exec<T: Scalar, Out: Scalar> {
    Cpu,
    Spmm(Launch, Box<SpmmForm>),
    Kept(Box<Kept<T, Out>>),
    Joined(Box<Joined<T, Out>>),
    Adaptive(Box<Adaptive<T, Out>>),
    Windowed(Box<Windowed<T, Out>>),
    Family(Box<dyn Compiled<T, Out>>),
}

/// An expression bound to formats, shapes and a kernel, over elements `T` into elements `Out`.
///
/// ```
/// use einsparse::{Context, Options};
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = Context::cpu();
/// let pattern = CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?;
/// let a = ctx.upload(Csr::new(pattern, vec![2.0f32, 3.0, 4.0])?)?;
/// let b = ctx.upload_dense(&Dense::from_fn(vec![3, 2], |i| (i[0] * 2 + i[1]) as f32)?)?;
/// let operands = [("A", (&a).into()), ("B", (&b).into())];
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]", &operands, &Options::default())?;
/// let mut c = ctx.zeros(plan.out_shape())?;
/// let stream = ctx.stream()?;
/// plan.run(&operands, &mut c, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(c.to_dense()?.values(), &[8.0, 10.0, 8.0, 15.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Plan<T: Scalar, Out: Scalar = T> {
    context: Context,
    einsum: Einsum,
    indirect: IndirectEinsum,
    out_shape: Vec<usize>,
    shapes: BTreeMap<String, Vec<usize>>,
    exec: Exec<T, Out>,
    choice: Choice,
    elements: PhantomData<(T, Out)>,
}

impl Context {
    /// Plans an expression for operands of these formats and shapes. The output may be among them, to give the
    /// extent of a scattered axis or its leading dimension.
    pub fn plan<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<Plan<T>> {
        Plan::new(self, text, operands, options)
    }
}

impl<T: Scalar, Out: Scalar> Plan<T, Out> {
    fn new(
        context: &Context,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<Self> {
        Self::of(context, Einsum::parse(text)?, operands, options)
    }

    fn of(
        context: &Context,
        einsum: Einsum,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<Self> {
        let shapes: BTreeMap<String, Vec<usize>> = operands
            .iter()
            .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
            .collect();
        let extents = einsum.check(&shapes)?;
        if let Some(sums) = Sums::of(&einsum, &extents, operands)? {
            let (whole, known) = ((einsum, shapes), (&extents, sums));
            return Self::windowed(context, whole, known, operands, options);
        }
        let adaptive = Adaptive::new(context, &einsum, operands, options)?;
        let adaptive = match adaptive {
            Ok(adaptive) => return Self::adapting(context, einsum, shapes, &extents, adaptive),
            Err(reason) => reason,
        };
        let known = bind::as_dense(operands);
        let (operands, dynamic) = match &known {
            Some((dense, dynamic)) => (&dense[..], &dynamic[..]),
            None => (operands, &[][..]),
        };
        if sparse_factors(&einsum, operands).len() > 1 {
            return Self::joined(context, einsum, shapes, &extents, (operands, options));
        }
        let indirect = match sparse_among(&einsum, operands)? {
            Some((name, format)) => rewrite(&einsum, name, &format)?,
            None => rewrite_dense(&einsum)?,
        };
        let mut plan = Self::chosen(
            context,
            (einsum, indirect, shapes),
            extents,
            (operands, dynamic),
            options,
        )?;
        plan.choice.refused.extend(adaptive);
        Ok(plan)
    }

    /// Several kernels, of which each run takes one.
    fn adapting(
        context: &Context,
        einsum: Einsum,
        shapes: BTreeMap<String, Vec<usize>>,
        extents: &Extents,
        adaptive: Adaptive<T, Out>,
    ) -> Result<Self> {
        Ok(Plan {
            context: context.clone(),
            indirect: adaptive.plan().indirect.clone(),
            choice: adaptive.plan().choice.clone(),
            einsum,
            out_shape: extents.out().to_vec(),
            shapes,
            exec: Exec::Adaptive(Box::new(adaptive)),
            elements: PhantomData,
        })
    }

    /// Several sparse factors: a plan over position lists.
    fn joined(
        context: &Context,
        einsum: Einsum,
        shapes: BTreeMap<String, Vec<usize>>,
        extents: &Extents,
        (operands, options): (&[(&str, Operand<'_, T>)], &Options),
    ) -> Result<Self> {
        let asked = Asked {
            context,
            einsum: &einsum,
            operands,
            options,
        };
        let joined = Joined::dense(&asked, extents.out())?;
        Ok(Plan {
            context: context.clone(),
            indirect: joined.plan().indirect.clone(),
            choice: joined.plan().choice.clone(),
            einsum,
            out_shape: extents.out().to_vec(),
            shapes,
            exec: Exec::Joined(Box::new(joined)),
            elements: PhantomData,
        })
    }

    /// The best kernel for an expression whose formats are written in.
    fn chosen(
        context: &Context,
        (einsum, indirect, shapes): (Einsum, IndirectEinsum, BTreeMap<String, Vec<usize>>),
        extents: Extents,
        operands: bind::Given<'_, '_, T>,
        options: &Options,
    ) -> Result<Self> {
        let out_shape = extents.out().to_vec();
        let asked = (options, Out::DTYPE);
        let choose::Picked { exec, choice } =
            choose::choose(context, (&einsum, &indirect), operands, &extents, asked)?;
        Ok(Plan {
            context: context.clone(),
            einsum,
            indirect,
            out_shape,
            shapes,
            exec,
            choice,
            elements: PhantomData,
        })
    }

    /// Shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.out_shape
    }

    /// The expression as parsed.
    pub fn einsum(&self) -> &Einsum {
        &self.einsum
    }

    /// The expression with the format written in.
    pub fn indirect(&self) -> &IndirectEinsum {
        &self.indirect
    }

    /// The kernel chosen, what it was chosen from, and what was refused.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Name of the kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        match &self.exec {
            Exec::Cpu => "cpu",
            Exec::Spmm(launch, _) => launch.row().name,
            Exec::Kept(kept) => kept.plan().variant(),
            Exec::Joined(joined) => joined.plan().variant(),
            Exec::Adaptive(adaptive) => adaptive.plan().variant(),
            Exec::Windowed(windowed) => windowed.variant(),
            Exec::Family(made) => made.variant(),
        }
    }

    /// The form of the copy of the sparse factor that the plan keeps; `None` where it keeps none.
    pub fn kept(&self) -> Option<KeptForm> {
        match &self.exec {
            Exec::Kept(kept) => Some(kept.form()),
            _ => None,
        }
    }

    /// Device bytes this plan holds beside the operands: work list and partial sums, and what it keeps of the sparse factor.
    pub fn workspace_bytes(&self) -> usize {
        match &self.exec {
            Exec::Cpu => 0,
            Exec::Spmm(launch, _) => launch.bytes(),
            Exec::Kept(kept) => kept.bytes(),
            Exec::Joined(joined) => joined.plan().workspace_bytes(),
            Exec::Adaptive(adaptive) => adaptive.bytes(),
            Exec::Windowed(windowed) => windowed.bytes(),
            Exec::Family(made) => made.bytes(),
        }
    }

    /// Runs on `stream` into `out`. On a GPU nothing is allocated and nothing waited for; the call can be captured
    /// in a CUDA graph. A plan that cuts long rows holds one set of partial sums, one that looks for
    /// micro-tiles one set of lists: its runs wait for each other, on
    /// whatever stream; a replay of a captured run must not overlap another run of the same plan. Beyond that, the
    /// order of work on different streams is the caller's.
    ///
    /// Index arrays written by hand ([`Operand::Index`]) are those of the plan: on a GPU their contents are compared by length and
    /// up to 64 slots only.
    ///
    /// # Errors
    /// Operands of another shape or pattern than planned, factors of an i32 output whose product is no whole number; output
    /// untouched.
    pub fn run(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_shapes(operands, out)?;
        if let Some((dense, _)) = bind::as_dense(operands) {
            return self.run(&dense, out, stream);
        }
        match &self.exec {
            Exec::Cpu => self.run_cpu(operands, out),
            Exec::Spmm(launch, form) => {
                self.check_places(operands, out, stream)?;
                let raw = self.bind(launch, form, operands, out)?;
                // SAFETY: shapes, pattern and places were checked; the tensors are borrowed for the call, and
                // device memory is freed only after the work queued on the context.
                unsafe { launch.run(&raw, stream.raw()) }
            }
            Exec::Kept(kept) => kept.plan().run(&kept.operands(operands)?, out, stream),
            Exec::Joined(joined) => joined.run(operands, out, stream),
            Exec::Adaptive(adaptive) => adaptive.run(operands, out, stream),
            Exec::Windowed(windowed) => windowed.run(self, operands, out, stream),
            Exec::Family(made) => {
                self.check_places(operands, out, stream)?;
                made.run(operands, out, stream)
            }
        }
    }

    /// Queues the taking of new values of the sparse factor, where the plan keeps them ([`ValuesRule::Kept`]); nothing
    /// otherwise. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// A sparse factor of another pattern or context than planned.
    pub fn refresh(&self, operands: &[(&str, Operand<'_, T>)], stream: &Stream) -> Result<()> {
        match &self.exec {
            Exec::Kept(kept) => {
                if !stream.belongs_to(self.context.expect_device()?) {
                    return Err(bind::elsewhere("stream"));
                }
                kept.refresh(kept.values_of(operands)?, stream.raw())
            }
            _ => Ok(()),
        }
    }

    /// Runs an SpMM plan on raw device addresses and a raw stream, for users of other CUDA crates. A plan that keeps its
    /// sparse factor does not read the addresses of it.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern, in the primary context of the
    /// plan's GPU, until the work is done; C overlaps none of them; the parts of edge blocks outside the matrix are
    /// zero; `stream` is a stream of that context, which this call makes current on the thread. Replays of captured
    /// runs are ordered by the caller.
    ///
    /// # Errors
    /// [`Error::Operand`] for addresses less aligned than planned, leading dimensions below the
    /// number of columns, a bias that is missing, or an i32 output times what is no whole number; [`Error::Cuda`] on a CPU context.
    pub unsafe fn run_raw(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        self.context.expect_device()?;
        into::whole_factor::<Out>(raw.alpha)?;
        match &self.exec {
            // SAFETY: the caller's promise.
            Exec::Spmm(launch, _) => unsafe { launch.run(raw, stream) },
            // SAFETY: the caller's promise; the copy is owned by the plan.
            Exec::Kept(kept) => unsafe { kept.plan().run_raw(&kept.raw(raw)?, stream) },
            Exec::Cpu => Ok(()),
            _ => Err(Error::NoKernel {
                indirect: self.indirect.to_string(),
                tried: vec![Refusal {
                    name: self.variant().into(),
                    reason:
                        "takes tensors (`Plan::run`): raw addresses are for products of a matrix"
                            .into(),
                }],
            }),
        }
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for Plan<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exec {
            Exec::Cpu => write!(f, "cpu: parallel executor on {}", self.context),
            Exec::Spmm(launch, _) => write_kernel(f, launch.row(), launch.describe()),
            Exec::Kept(kept) => write!(f, "{}, A kept as {}", kept.plan(), kept.form()),
            Exec::Joined(joined) => joined.fmt(f),
            Exec::Adaptive(adaptive) => adaptive.fmt(f),
            Exec::Windowed(windowed) => windowed.fmt(f),
            Exec::Family(made) => made.fmt(f),
        }
    }
}
