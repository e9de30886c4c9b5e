//! Convolutions with a dynamic operand: the kernels that skip its empty channels, images or filters.

use einsparse_kernels::abi::Zeros;

use super::super::bind::{as_dense, device_tensor, elsewhere, find};
use super::super::choose::Candidate;
use super::super::{Options, ZerosRule};
use super::Windows;
use crate::context::Context;
use crate::device::Stream;
use crate::dynamic::{ConvolutionAxis, ConvolutionOptions, ConvolutionShape, DynamicConvolution};
use crate::einsum::{Einsum, Epilogue, Mode};
use crate::error::{Error, Refusal, Result};
use crate::launch::{DenseMatrix, Turns};
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};

/// Name in refusals.
const FAMILY: &str = "pit_conv";

/// Detection and convolution.
#[derive(Debug)]
pub(super) struct Skipping<T: Scalar> {
    convolution: DynamicConvolution<T>,
    /// Runs share the lists.
    turns: Turns,
    /// A and B.
    names: [String; 2],
    expected: f64,
}

impl<T: Scalar> Skipping<T> {
    /// `None` without a dynamic operand or a GPU, or the reason why the kernels do not take the expression.
    pub(super) fn new<Out: Scalar>(
        context: &Context,
        (einsum, form): (&Einsum, Option<&Windows>),
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<std::result::Result<Self, Option<Refusal>>> {
        let (Some((dense, dynamic)), Some(_)) = (as_dense(operands), context.device()) else {
            return Ok(Err(None));
        };
        let refused = |reason: &str| {
            Ok(Err(Some(Refusal {
                name: FAMILY.into(),
                reason: reason.into(),
            })))
        };
        let bare = einsum.mode == Mode::Assign
            && einsum.scalars.is_empty()
            && einsum.epilogue == Epilogue::default();
        let Some(form) = form.filter(|_| bare && T::DTYPE == Out::DTYPE) else {
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
        let of = |name: &String| dynamic.iter().find(|(own, _)| own == name);
        let (axis, expected) = match (of(&names[0]), of(&names[1])) {
            (Some((_, expected)), _) => (ConvolutionAxis::Channels, *expected),
            (None, Some((_, expected))) => (ConvolutionAxis::Filters, *expected),
            (None, None) => return Ok(Err(None)),
        };
        let [a, b] = [find(&dense, &names[0])?, find(&dense, &names[1])?];
        let (Ok(a), Ok(b)) = (
            <[usize; 4]>::try_from(a.shape()),
            <[usize; 4]>::try_from(b.shape()),
        ) else {
            return Ok(Err(None));
        };
        let shape = ConvolutionShape {
            step: form.strides,
            dilation: form.dilations,
            ..ConvolutionShape::new(a, [b[0], b[1]], b[3])
        };
        let convolution = DynamicConvolution::new(
            context,
            shape,
            ConvolutionOptions {
                axis,
                threshold: 0.0,
            },
        );
        let convolution = match convolution {
            Ok(convolution) => convolution,
            // What another kernel may still compute.
            Err(
                error @ (Error::NoKernel { .. }
                | Error::Overflow { .. }
                | Error::OutOfMemory { .. }
                | Error::Shape { .. }
                | Error::Operand { .. }),
            ) => return refused(&error.to_string()),
            Err(error) => return Err(error),
        };
        let asked = options.variant.as_deref();
        if asked.is_some_and(|name| name != convolution.variants()[2]) {
            return refused("another kernel was asked for");
        }
        let skipping = Skipping {
            convolution,
            turns: Turns::new()?,
            names,
            // A channel or a filter comes and goes whole.
            expected: expected.share(shape.size[0] * shape.size[1]),
        };
        match skipping.fits(&dense, None::<&Tensor<Out>>) {
            Ok(true) => Ok(Ok(skipping)),
            _ => refused("copies 16 bytes at once, which an operand is not a multiple of"),
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
    pub(super) fn fits<Out: Scalar>(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: Option<&Tensor<Out>>,
    ) -> Result<bool> {
        Ok(self.convolution.takes(self.matrices(operands, out)?))
    }

    /// Operands and output; one that is not known yet is as it should be.
    fn matrices<Out: Scalar>(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: Option<&Tensor<Out>>,
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
    pub(super) fn run<Out: Scalar>(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let all = self.matrices(operands, Some(out))?;
        self.turns.queue(true, stream.raw(), || {
            // SAFETY: the plan has checked shapes and places; the lists are the convolution's own, and runs follow one another.
            unsafe { self.convolution.queue(all, stream.raw()) }
        })
    }
}
