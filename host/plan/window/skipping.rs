//! Convolutions with a dynamic operand: the kernels that skip its empty channels, images or filters.

use einsparse_kernels::abi::Zeros;

use super::super::{Options, ZerosRule};
use super::Windows;
use crate::context::Context;
use crate::dynamic::{ConvolutionAxis, ConvolutionOptions, ConvolutionShape, DynamicConvolution};
use crate::einsum::{Einsum, Epilogue, Mode};
use crate::error::{Error, Refusal, Result};
use crate::families::convert::DenseMatrix;
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::offer::bind::{as_dense, device_tensor, elsewhere, find};
use crate::offer::{Candidate, Types};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor, Expected};

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
    dynamic: &[(&str, Expected)],
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

/// The operator, or why there is none that computes just this output.
fn convolution(
    on: (&Context, Dtype),
    shape: ConvolutionShape,
    axis: ConvolutionAxis,
    out: &[usize],
) -> Result<std::result::Result<DynamicConvolution<()>, String>> {
    let found = shape.out().and_then(|[x, y]| {
        if *out != [shape.images, x, y, shape.filters] {
            return Ok(Err(format!(
                "computes all {x} x {y} positions of the window, and the output is {out:?}"
            )));
        }
        let options = ConvolutionOptions {
            axis,
            threshold: 0.0,
        };
        DynamicConvolution::of(on, shape, options).map(Ok)
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

/// Detection and convolution.
#[derive(Debug)]
pub(super) struct Skipping {
    convolution: DynamicConvolution<()>,
    /// Runs share the lists.
    turns: Turns,
    /// A and B.
    names: [String; 2],
    expected: f64,
}

impl Skipping {
    /// `None` without a dynamic operand or a GPU, or the reason why the kernels do not take the expression. `out`: the
    /// extents that the plan found for the output.
    pub(super) fn new(
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
                "computes C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f] without factors and epilogue in the type of the operands",
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
        let convolution = match convolution((context, types.operands), shape, axis, out)? {
            Ok(convolution) => convolution,
            Err(reason) => return refused(&reason),
        };
        let asked = options.variant.as_deref();
        if asked.is_some_and(|name| name != convolution.variants()[2]) {
            return refused("another kernel was asked for");
        }
        let skipping = Skipping {
            convolution,
            turns: Turns::new(device)?,
            names,
            expected,
        };
        match skipping.fits(&dense, None)? {
            true => Ok(Ok(skipping)),
            false => refused("copies 16 bytes at once, which an operand is not a multiple of"),
        }
    }

    /// The product's kernel.
    pub(super) fn variant(&self) -> &'static str {
        self.convolution.variants()[2]
    }

    /// As one of those to choose from.
    pub(super) fn candidate(&self, context: &Context) -> Option<Candidate> {
        let machine = context.device()?.machine();
        Some(Candidate {
            name: self.variant(),
            cost: self.convolution.cost(self.expected, machine)?,
            zeros: Zeros::Dense,
            kept: None,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.convolution.bytes()
    }

    /// Whether the kernels can read these operands, and write this output.
    pub(super) fn fits(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: Option<&AnyTensor>,
    ) -> Result<bool> {
        Ok(self.convolution.takes(self.matrices(operands, out)?))
    }

    /// Operands and output; one that is not known yet is as it should be.
    fn matrices(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: Option<&AnyTensor>,
    ) -> Result<[DenseMatrix; 3]> {
        let shapes = self.convolution.shapes();
        let matrix = |(address, leading): (u64, usize), shape: [usize; 4]| DenseMatrix {
            address,
            rows: shape[0],
            columns: shape[3],
            leading,
        };
        let to = match out {
            Some(out) => (
                out.address().ok_or_else(|| elsewhere("output"))?,
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

    /// Queues both. The plan has checked shapes and places.
    pub(super) fn run(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        queue: Queue<'_>,
    ) -> Result<()> {
        let all = self.matrices(operands, Some(out))?;
        self.turns
            .queue(true, queue.stream(), || self.convolution.queue(all, queue))
    }
}
