//! Convolutions with a dynamic operand: the kernels that skip its empty channels, images or filters.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::abi::Zeros;

use crate::context::Context;
use crate::device::Device;
use crate::einsum::{Einsum, Epilogue, Mode, Windows};
use crate::error::{Error, Refusal, Result};
use crate::families::convert::DenseMatrix;
use crate::families::discover::{ChannelsLaunch, DeviceLists, list_stride};
use crate::families::gather_gemm::found::above;
use crate::families::gather_gemm::{ConvolutionAxis, ConvolutionShape, PitConvLaunch};
use crate::launch::Turns;
use crate::offer::bind::{as_dense, device_tensor, find};
use crate::offer::{Candidate, Options, Run, Types, ZerosRule};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor, SparsityHint};

/// Name in refusals.
const FAMILY: &str = "pit_conv";

/// What is offered, or why not; `None` where nobody asked.
type Offered<T> = std::result::Result<T, Option<Refusal>>;

fn refused<T>(reason: &str) -> Result<Offered<T>> {
    Ok(Err(Some(Refusal::of(FAMILY, reason))))
}

/// The axis along which a dynamic operand is sparse, and the share of its micro-tiles that is expected to hold
/// something. Of two dynamic operands A's channels are skipped.
fn sparse(
    names: &[String; 2],
    dynamic: &[(&str, SparsityHint)],
    shape: &ConvolutionShape,
) -> Option<(ConvolutionAxis, f64)> {
    let of = |name: &String| dynamic.iter().find(|(own, _)| own == name);
    let area = |pair: [usize; 2]| pair[0].saturating_mul(pair[1]);
    let filter = area(shape.window).saturating_mul(shape.channels);
    let [a, b] = [of(&names[0]), of(&names[1])];
    let channels =
        a.map(|(_, expected)| (ConvolutionAxis::Channels, expected.share(area(shape.size))));
    channels.or_else(|| b.map(|(_, expected)| (ConvolutionAxis::Filters, expected.share(filter))))
}

/// Detection and convolution, with the lists between them.
#[derive(Debug)]
struct Kernels {
    channels: ChannelsLaunch,
    product: PitConvLaunch,
    lists: DeviceLists,
    /// Shapes of A, B and C.
    shapes: [[usize; 4]; 3],
}

impl Kernels {
    fn new(
        device: &Device,
        dtype: Dtype,
        shape: ConvolutionShape,
        axis: ConvolutionAxis,
    ) -> Result<Self> {
        let (shapes, looked) = (shape.shapes()?, shape.looked(axis));
        let channels = ChannelsLaunch::new(device, dtype, looked, above(dtype, 0.0))?;
        let lists = channels.lists(device)?;
        let places = (axis == ConvolutionAxis::Filters, list_stride(looked[2]));
        Ok(Kernels {
            channels,
            product: PitConvLaunch::new(device, dtype, shape, places)?,
            lists,
            shapes,
        })
    }

    /// Or why there are none that compute just this output.
    fn writing(
        out: &[usize],
        (device, dtype): (&Arc<Device>, Dtype),
        shape: ConvolutionShape,
        axis: ConvolutionAxis,
    ) -> Result<std::result::Result<Self, String>> {
        let found = shape.out().and_then(|[x, y]| {
            if *out != [shape.images, x, y, shape.filters] {
                return Ok(Err(format!(
                    "computes all {x} x {y} positions of the window, and the output is {out:?}"
                )));
            }
            Self::new(device, dtype, shape, axis).map(Ok)
        });
        match found {
            // What another kernel may still compute.
            Err(
                error @ (Error::NoKernel { .. }
                | Error::Overflow { .. }
                | Error::OutOfMemory { .. }
                | Error::Shape { .. }
                | Error::Operand { .. }),
            ) => Ok(Err(error.to_string())),
            other => other,
        }
    }
}

/// What runs where a dynamic operand leaves channels, images or filters empty.
#[derive(Debug)]
pub(crate) struct Skipping {
    kernels: Kernels,
    /// Runs share the lists.
    turns: Turns,
    /// A and B.
    names: [String; 2],
    expected: f64,
}

impl Skipping {
    /// `None` without a dynamic operand or a GPU, or the reason why the kernels do not take the expression. `out`: the
    /// extents that the plan found for the output.
    pub(crate) fn new(
        (context, types): (&Context, Types),
        (einsum, form, out): (&Einsum, Option<&Windows>, &[usize]),
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Offered<Self>> {
        let (Some((dense, dynamic)), Some(device)) = (as_dense(operands), context.device()) else {
            return Ok(Err(None));
        };
        let bare = einsum.mode == Mode::Assign
            && einsum.scalars.is_empty()
            && einsum.epilogue == Epilogue::default();
        let Some(form) = form.filter(|_| bare && types.alike()) else {
            return refused(
                "computes C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f] without factors and epilogue \
                 in the type of the operands",
            );
        };
        if options.zeros == ZerosRule::Strict {
            return refused(
                "multiplies zeros inside micro-tiles, and the plan asks for Zeros::Strict",
            );
        }
        let names = form.factors.map(|at| einsum.factors[at].tensor.clone());
        let [a, b] = [find(&dense, &names[0])?, find(&dense, &names[1])?];
        let (&[n, h, w, m], &[i, j, _, f]) = (a.shape(), b.shape()) else {
            return Ok(Err(None));
        };
        let shape = ConvolutionShape {
            stride: form.strides,
            dilation: form.dilations,
            ..ConvolutionShape::new([n, h, w, m], [i, j], f)
        };
        let Some((axis, expected)) = sparse(&names, &dynamic, &shape) else {
            return Ok(Err(None));
        };
        let on = (device, types.operands);
        let kernels = match Kernels::writing(out, on, shape, axis)? {
            Ok(kernels) => kernels,
            Err(reason) => return refused(&reason),
        };
        let asked = options.variant.as_deref();
        if asked.is_some_and(|name| name != kernels.product.name()) {
            return refused("another kernel was asked for");
        }
        let skipping = Skipping {
            kernels,
            turns: Turns::new(device)?,
            names,
            expected,
        };
        let all = skipping.matrices(&dense, None)?;
        match skipping.kernels.product.check(all) {
            Ok(()) => Ok(Ok(skipping)),
            Err(_) => refused("copies 16 bytes at once, which an operand is not a multiple of"),
        }
    }

    /// The product's kernel.
    pub(crate) fn variant(&self) -> &'static str {
        self.kernels.product.name()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.kernels.lists.bytes()
    }

    /// As one of those to choose from.
    pub(crate) fn candidate(&self, context: &Context) -> Option<Candidate> {
        let machine = context.device()?.machine();
        Some(Candidate {
            name: self.variant(),
            cost: self.kernels.product.cost(self.expected, machine),
            zeros: Zeros::Dense,
            prepacked: None,
        })
    }

    /// Queues both, or tells that the kernels cannot read the operands of this run or write its output.
    pub(crate) fn run_if_it_fits(&self, run: &Run<'_>, out: &AnyTensor) -> Result<bool> {
        let queue = run.queue(out)?;
        let all = self.matrices(run.operands, Some(out))?;
        let Kernels {
            channels,
            product,
            lists,
            ..
        } = &self.kernels;
        if product.check(all).is_err() {
            return Ok(false);
        }
        let run = || product.run_found(channels, lists, all, queue);
        self.turns.queue(true, queue.stream(), run).map(|()| true)
    }

    /// Operands and output; one that is not known yet is as it should be.
    fn matrices(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: Option<&AnyTensor>,
    ) -> Result<[DenseMatrix; 3]> {
        let shapes = &self.kernels.shapes;
        let matrix = |(address, leading): (u64, usize), shape: [usize; 4]| DenseMatrix {
            address,
            rows: shape[0],
            columns: shape[3],
            leading,
        };
        let to = match out {
            Some(out) => (
                out.address().ok_or_else(|| Error::elsewhere("output"))?,
                out.leading(),
            ),
            None => (0, shapes[2][3]),
        };
        Ok([
            matrix(device_tensor(operands, &self.names[0])?, shapes[0]),
            matrix(device_tensor(operands, &self.names[1])?, shapes[1]),
            matrix(to, shapes[2]),
        ])
    }
}

impl fmt::Display for Skipping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of what is not empty", self.variant())
    }
}
