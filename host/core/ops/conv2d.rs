//! Convolution over planes: depthwise, or over all of a few input channels.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Result};
use crate::families::conv2d::{Conv2dLaunch, Conv2dOperands, Conv2dShape, cpu};
use crate::operator::{Operator, Run};
use crate::registry::Scalar;
use crate::tensor::{DenseMatrix, Tensor};

/// Options of a [`Conv2d`]. Index 0 of a pair is the vertical direction, index 1 the horizontal one.
///
/// ```
/// use einsparse::ops::{Conv2d, Conv2dOptions};
/// let halves = Conv2dOptions { stride: 2, padding: [1, 1], ..Conv2dOptions::default() };
/// let ctx = einsparse::Context::cpu();
/// let conv = Conv2d::<f32>::new(&ctx, [64, 1, 112, 112], [64, 1, 3, 3], &halves)?;
/// assert_eq!(conv.out_shape(), [64, 1, 56, 56]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance of adjacent windows, in both directions.
    pub stride: usize,
    /// Rows of zeros above and below, and columns of zeros to the left and to the right. The zeros are multiplied.
    pub padding: [usize; 2],
    /// Applies ReLU to the output, after the bias is added.
    pub relu: bool,
}

impl Default for Conv2dOptions {
    /// Stride 1, no padding, no ReLU.
    fn default() -> Self {
        Conv2dOptions { stride: 1, padding: [0; 2], relu: false }
    }
}

/// Convolution over planes, channels first. The layout is that of a product over channels: a matrix
/// `[channels, batch * height * width]`. A 1x1 convolution is therefore the plan
/// `C[m,n] = relu(A[m,k] * B[k,n] + b[m])` over the same matrices (Sputnik, arXiv 2006.10901, section 7.3.2).
///
/// - Depthwise, weights `[channels, 1, rows, columns]`: `C[c,n,y,x] = A[c,n,s*y+i,s*x+j] * W[c,i,j] + b[c]`. A window
///   as large as the plane with weights of 1 / (height * width) is a global average pool. 16-bit weights would round
///   this factor: use weights of 1, and apply the factor in the next product.
/// - Over all channels, weights `[outputs, channels, rows, columns]`: for few channels, as in a first layer.
///
/// Sums are in f32 on a GPU (f64 on the CPU), in a fixed order. GPU kernels support f32, f16 and bf16. Windows are at
/// most 7 x 7; a depthwise window may also cover the whole plane. For weights over all channels, channels x rows x 3 is
/// at most 512. For windows wider or higher than 3, channels x rows x 7 is at most 512.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::ops::{Conv2d, Conv2dOptions};
/// let ctx = Context::cpu();
/// let x = ctx.upload_dense(&Dense::new([1, 4], vec![1.0f32, 2.0, 3.0, 4.0])?)?; // one channel, one image of 2 x 2
/// let w = ctx.upload_dense(&Dense::new([1, 1, 3, 3], vec![1.0f32; 9])?)?;
/// let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
/// let conv = Conv2d::<f32>::new(&ctx, [1, 1, 2, 2], [1, 1, 3, 3], &options)?;
/// let mut out = ctx.zeros(&[1, 4])?;
/// conv.forward(&x, &w, None, &mut out, &ctx.stream()?)?;
/// assert_eq!(out.to_dense()?.values(), [10.0; 4]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Conv2d<T> {
    shape: Conv2dShape,
    relu: bool,
    operator: Operator<Conv2dLaunch>,
    element: PhantomData<fn() -> T>,
}

impl<T: Scalar> Conv2d<T> {
    /// Plans a convolution of planes `[channels, batch, height, width]` with weights
    /// `[outputs, channels or 1, rows, columns]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for weights of other channels and windows that do not fit,
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for extents of 0; [`Error::NoKernel`](crate::Error::NoKernel) if
    /// no kernel supports the convolution; [`Error::Overflow`](crate::Error::Overflow) for more than 2^28 positions of
    /// a plane or 2^31 of a channel.
    pub fn new(
        context: &Context,
        input: [usize; 4],
        weights: [usize; 4],
        options: &Conv2dOptions,
    ) -> Result<Self> {
        let shape = Conv2dShape::new(input, weights, options.stride, options.padding)?;
        let operator = Operator::new(context, |device| {
            Conv2dLaunch::new(device, T::DTYPE, shape, options.relu)
        })?;
        Ok(Conv2d { shape, relu: options.relu, operator, element: PhantomData })
    }

    /// Returns the shape of the output, `[outputs, batch, height, width]`.
    pub fn out_shape(&self) -> [usize; 4] {
        let [height, width] = self.shape.out_size;
        [self.shape.outputs, self.shape.batch, height, width]
    }

    /// Returns the name of the kernel; `cpu` on a CPU context. Operands whose rows are not whole vectors run a slower
    /// kernel.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(Conv2dLaunch::variant)
    }

    /// Queues the convolution. The input is `[channels, batch * height * width]`, the weights have the planned shape,
    /// and the bias is `[outputs]`. The output is `[outputs, batch * height * width]` with the height and width of its
    /// planes. Rows of input and output may be longer, as plans that move whole vectors require. Elements past the last
    /// position are neither read nor written. The call neither allocates nor waits.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand does not have the planned extents;
    /// [`Error::OtherContext`](crate::Error::OtherContext) if one belongs to another context.
    pub fn forward(
        &self,
        input: &Tensor<T>,
        weights: &Tensor<T>,
        bias: Option<&Tensor<T>>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let shape = &self.shape;
        let [of_input, of_out] = shape.places();
        let [rows, columns] = shape.window;
        let run = self.operator.start(stream)?;
        let operands = Conv2dOperands {
            input: check_planes(&run, "input", input, [shape.channels, of_input])?,
            out: check_planes(&run, "out", out, [shape.outputs, of_out])?,
            weights: run.whole(
                "weights",
                weights.any(),
                &[shape.outputs, shape.each(), rows, columns],
            )?,
            bias: match bias {
                Some(bias) => run.contiguous("bias", bias.any(), &[shape.outputs])?,
                None => 0,
            },
        };
        run.queue(
            |launch, queue| launch.run(&operands, queue),
            || self.on_host(input, weights, bias, out),
        )
    }

    fn on_host(
        &self,
        input: &Tensor<T>,
        weights: &Tensor<T>,
        bias: Option<&Tensor<T>>,
        out: &mut Tensor<T>,
    ) -> Result<()> {
        let weights = weights.host().or_elsewhere("weights")?;
        let (input, bias) = (input.host_rows("input")?, bias.and_then(Tensor::host));
        let own = (input, weights, bias);
        cpu::conv2d(&self.shape, self.relu, own, out.host_rows_mut("out")?);
        Ok(())
    }
}

/// Validates a matrix with one row per channel and at least the planned number of columns.
fn check_planes<T: Scalar>(
    run: &Run<'_, Conv2dLaunch>,
    name: &str,
    tensor: &Tensor<T>,
    planned: [usize; 2],
) -> Result<DenseMatrix> {
    match tensor.shape() {
        [channels, columns] if *channels == planned[0] && *columns >= planned[1] => {
            run.matrix(name, tensor.any(), tensor.shape())
        }
        _ => run.matrix(name, tensor.any(), &planned),
    }
}
