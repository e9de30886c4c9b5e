//! Convolution with channels, images or filters that are empty for one step.

use super::channels::ChannelDetector;
use super::index::{Lists, MicroIndex};
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::error::{Elsewhere, Error, Result, check_shape};
use crate::families::discover::list_stride;
pub use crate::families::gather_gemm::ConvolutionAxis;
use crate::families::gather_gemm::{ConvolutionShape, DenseConvLaunch, PitConvLaunch};
use crate::kernel::Queue;
use crate::operator::{Operator, Run};
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyTensor, DenseMatrix, SparsityHint, Tensor};
use crate::values::{Sum, with_sums};

/// Options of a [`DynamicConvolution`]. Index 0 of a pair is along x, the rows of an image; index 1 is along y, its
/// columns.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{ConvolutionOptions, DynamicConvolution};
/// use einsparse::formats::f16;
/// let options = ConvolutionOptions { stride: [2, 2], ..ConvolutionOptions::default() };
/// let (a, b) = ([1, 9, 7, 8], [3, 3, 8, 16]);
/// let ctx = Context::cpu();
/// let inside = DynamicConvolution::<f16>::new(&ctx, a, b, &options)?;
/// assert_eq!(inside.shapes(), [a, b, [1, 4, 3, 16]]);
/// let same = DynamicConvolution::<f16>::new(&ctx, a, b, &options.same([3, 3]))?;
/// assert_eq!(same.shapes(), [a, b, [1, 5, 4, 16]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvolutionOptions {
    /// Axis along which elements are empty.
    pub axis: ConvolutionAxis,
    /// Elements of at most this magnitude count as empty.
    pub threshold: f64,
    /// Distance in A of adjacent positions of C.
    pub stride: [usize; 2],
    /// Distance in A of adjacent taps of the window.
    pub dilation: [usize; 2],
    /// Rows and columns of zeros around A, on each side.
    pub padding: [usize; 2],
    /// Expected share of nonempty channels or filters. It selects the method with the shorter predicted time: find and
    /// multiply only these, or multiply all. Without an expectation, or with a threshold, the nonempty ones are always
    /// searched.
    pub expected: Option<SparsityHint>,
}

impl Default for ConvolutionOptions {
    /// Empty channels, exact zeros, every position of A, no padding: `C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]`.
    fn default() -> Self {
        ConvolutionOptions {
            axis: ConvolutionAxis::Channels,
            threshold: 0.0,
            stride: [1; 2],
            dilation: [1; 2],
            padding: [0; 2],
            expected: None,
        }
    }
}

impl ConvolutionOptions {
    /// Sets the padding so that C has the positions of A at stride 1, for windows of odd extents.
    pub fn same(self, window: [usize; 2]) -> Self {
        let padding =
            [0, 1].map(|axis| self.dilation[axis].saturating_mul(window[axis].max(1) - 1) / 2);
        ConvolutionOptions { padding, ..self }
    }
}

/// `C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]`, channels last. A has empty channels or images, or B has empty filters;
/// they may differ in each run. These are the permutable axes n, m and f of a convolution (PIT, arXiv 2301.10936, table
/// 1). Indices x, y, i and j appear in index arithmetic and are not permuted.
///
/// Two kernels list the nonempty channels (filters) and pack their values. A third kernel multiplies only these, with
/// stride, dilation and padding of the [options](ConvolutionOptions). The results of the search are not copied to the
/// host, and all kernels can be captured in a CUDA graph. Element types are f16 and bf16; the CPU supports every
/// element type.
///
/// A micro-tile is multiplied whole (`zeros = Dense`), including zeros of the padding: a weight that is not finite
/// gives NaN there. Empty channels of an image, and empty filters, are not multiplied. If
/// [expected](ConvolutionOptions::expected) is so large that a search takes longer than it saves, all are multiplied.
/// Equal inputs give equal bits.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{ConvolutionOptions, DynamicConvolution};
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let one = f16::from_f32(1.0);
/// let a = Dense::from_fn(vec![1, 4, 4, 8], |i| if i[3] == 2 { one } else { f16::ZERO })?;
/// let b = Dense::from_fn(vec![3, 3, 8, 8], |_| one)?;
/// let (a, b) = (ctx.upload_dense(&a)?, ctx.upload_dense(&b)?);
/// let same = ConvolutionOptions::default().same([3, 3]);
/// let mut convolution = DynamicConvolution::<f16>::new(&ctx, [1, 4, 4, 8], [3, 3, 8, 8], &same)?;
/// let mut c = ctx.zeros::<f16>(&[1, 4, 4, 8])?;
/// convolution.forward(&a, &b, &mut c, &ctx.stream()?)?;
/// assert_eq!(c.to_dense()?.get(&[0, 1, 1, 5]), Some(f16::from_f32(9.0)));
/// assert_eq!(c.to_dense()?.get(&[0, 0, 0, 5]), Some(f16::from_f32(4.0)));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicConvolution<T> {
    shape: ConvolutionShape,
    /// Shapes of A, B and C.
    shapes: [[usize; 4]; 3],
    axis: ConvolutionAxis,
    detector: ChannelDetector<T>,
    operator: Operator<Way>,
}

/// Method on a GPU.
#[derive(Debug)]
enum Way {
    /// Multiplies only the channels or filters that the detector listed.
    Skips(PitConvLaunch),
    All(DenseConvLaunch),
}

impl Way {
    /// Selects the method with the shorter predicted time. Without an expectation, selects the one that skips.
    fn new(
        device: &Device,
        dtype: Dtype,
        shape: ConvolutionShape,
        axis: ConvolutionAxis,
        expected: Option<SparsityHint>,
    ) -> Result<Self> {
        let [_, rows, columns] = shape.looked(axis);
        let lists = (axis == ConvolutionAxis::Filters, list_stride(columns));
        let skips = PitConvLaunch::new(device, dtype, shape, lists);
        let Some(expected) = expected else {
            return skips.map(Way::Skips);
        };
        let all = DenseConvLaunch::new(device, dtype, shape, None);
        let skips_us = |own: &PitConvLaunch| own.cost(expected.share(rows), device.machine()).us;
        match (skips, all) {
            (Ok(skips), Ok(all)) if skips_us(&skips) > all.cost().us => Ok(Way::All(all)),
            (Err(_), Ok(all)) => Ok(Way::All(all)),
            (skips, _) => skips.map(Way::Skips),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Way::Skips(own) => own.name(),
            Way::All(own) => own.name(),
        }
    }
}

/// Combines extents and geometry.
fn shape_of(
    a: [usize; 4],
    b: [usize; 4],
    options: &ConvolutionOptions,
) -> Result<ConvolutionShape> {
    if a[3] != b[2] {
        return Err(Error::Shape {
            index: "channels".into(),
            left: format!("A has {}", a[3]),
            right: format!("B has {}", b[2]),
        });
    }
    Ok(ConvolutionShape {
        images: a[0],
        size: [a[1], a[2]],
        channels: a[3],
        filters: b[3],
        window: [b[0], b[1]],
        stride: options.stride,
        dilation: options.dilation,
        padding: options.padding,
    })
}

impl<T: Scalar> DynamicConvolution<T> {
    /// Creates a convolution of A `[images, rows, columns, channels]` with B `[rows, columns, channels, filters]`. The
    /// workspace is large enough for an A (or B) without empty channels (filters).
    ///
    /// # Errors
    /// - [`Error::Shape`](crate::Error::Shape) if the channels differ, or if the window exceeds the padded image.
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if the window, the stride or the dilation is 0, the threshold
    ///   is negative or NaN, or the stride exceeds 8.
    /// - [`Error::NoKernel`](crate::Error::NoKernel) for element types without a kernel.
    /// - [`Error::Overflow`](crate::Error::Overflow) for 2^31 or more positions of A or C, and on a GPU for more than
    ///   8192 channels (filters, if these are sparse) or 65,535 images.
    /// - [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(
        context: &Context,
        a: [usize; 4],
        b: [usize; 4],
        options: &ConvolutionOptions,
    ) -> Result<Self> {
        let shape = shape_of(a, b, options)?;
        let shapes = shape.shapes()?;
        let axis = options.axis;
        let expected = options.expected.filter(|_| options.threshold == 0.0);
        let operator =
            Operator::new(context, |device| Way::new(device, T::DTYPE, shape, axis, expected))?;
        let [items, rows, columns] = shape.looked(axis);
        // No list is needed if all channels or filters are multiplied.
        let items = match operator.on_gpu() {
            Some(Way::All(_)) => 0,
            _ => items,
        };
        let detector = ChannelDetector::new(context, [items, rows, columns], options.threshold)?;
        Ok(DynamicConvolution { shape, shapes, axis, detector, operator })
    }

    /// Queues detection and product: A is `[n, h, w, m]`, B `[i, j, m, f]`, C `[n, x, y, f]`. Does not allocate and
    /// does not wait. Runs of one convolution wait for each other, on any stream.
    ///
    /// # Errors
    /// - [`Error::Shape`](crate::Error::Shape) if an operand does not have the planned extents.
    /// - [`Error::OtherContext`](crate::Error::OtherContext) if an operand belongs to another context;
    ///   [`Error::Alignment`](crate::Error::Alignment) if A or B is not aligned to 16 bytes with a row stride that is a
    ///   multiple of 8. If channels are skipped, this also holds for C, and
    ///   [`Error::OutOfRange`](crate::Error::OutOfRange) is returned for a number of filters that is not a multiple of
    ///   8.
    pub fn forward(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let all = self.matrices(&run, [a.any(), b.any(), c.any()])?;
        run.queue(
            |way, queue| {
                self.launch(way, all, queue, |launch| {
                    let (channels, lists) = self.detector.on_device()?;
                    launch.run_found(channels, lists, all, queue)
                })
            },
            || Ok(()),
        )?;
        if self.operator.context().is_cuda() {
            return Ok(());
        }
        let sparse = match self.axis {
            ConvolutionAxis::Channels => a,
            ConvolutionAxis::Filters => b,
        };
        self.detector.run(sparse, stream)?;
        self.on_host(a.any(), b.any(), &mut c.any)
    }

    /// Second part of [`forward`](Self::forward): the product with the results of the last detection.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[doc(hidden)]
    pub fn multiply(
        &self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let all = self.matrices(&run, [a.any(), b.any(), c.any()])?;
        run.queue(
            |way, queue| {
                self.launch(way, all, queue, |launch| {
                    launch.run(self.detector.index().lists()?, all, queue)
                })
            },
            || self.on_host(a.any(), b.any(), &mut c.any),
        )
    }

    /// Queues the work of a GPU. `skips` queues the kernel of [`Way::Skips`].
    fn launch(
        &self,
        way: &Way,
        all: [DenseMatrix; 3],
        queue: Queue<'_>,
        skips: impl FnOnce(&PitConvLaunch) -> Result<()>,
    ) -> Result<()> {
        match way {
            Way::All(own) => own.run(all, queue),
            Way::Skips(own) => {
                let lists = self.detector.index().lists()?;
                lists.turns.queue(true, queue.stream(), || skips(own))
            }
        }
    }

    /// First part of [`forward`](Self::forward): finds the nonempty channels or filters.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[doc(hidden)]
    pub fn detect(&mut self, sparse: &Tensor<T>, stream: &Stream) -> Result<()> {
        let [a, b, _] = self.shapes();
        let (name, shape) = match self.axis {
            ConvolutionAxis::Channels => ("A", a),
            ConvolutionAxis::Filters => ("B", b),
        };
        check_shape(name, &shape, sparse.shape())?;
        if let Some(Way::All(_)) = self.operator.on_gpu() {
            return Ok(());
        }
        self.detector.run(sparse, stream)
    }

    fn on_host(&self, a: &AnyTensor, b: &AnyTensor, c: &mut AnyTensor) -> Result<()> {
        let Lists::Host(found, _) = &self.detector.index().storage else {
            return Err(Error::elsewhere("index"));
        };
        let own = OnHost {
            shape: &self.shape,
            out: [self.shapes[2][1], self.shapes[2][2]],
            axis: self.axis,
            found,
        };
        with_sums!(a.dtype(), A => own.run::<A>(a, b, c))
    }

    /// Names of the kernels of a run; `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 3] {
        let [mark, pack] = self.detector.variants();
        [mark, pack, self.operator.variant(Way::name)]
    }

    /// Results of the last run: the channels of each image, or one list of filters. Without lists if a GPU multiplies
    /// all of them.
    pub fn index(&self) -> &MicroIndex {
        self.detector.index()
    }

    /// Shapes of A, B and C.
    pub fn shapes(&self) -> [[usize; 4]; 3] {
        self.shapes
    }

    fn matrices(&self, run: &Run<'_, Way>, [a, b, c]: [&AnyTensor; 3]) -> Result<[DenseMatrix; 3]> {
        let [of_a, of_b, of_c] = &self.shapes;
        Ok([run.matrix("A", a, of_a)?, run.matrix("B", b, of_b)?, run.matrix("C", c, of_c)?])
    }
}

/// Inputs of a product on the CPU.
struct OnHost<'a> {
    shape: &'a ConvolutionShape,
    out: [usize; 2],
    axis: ConvolutionAxis,
    found: &'a [Vec<u32>],
}

impl OnHost<'_> {
    /// Computes one position of C at a time.
    fn run<A: Sum>(&self, a: &AnyTensor, b: &AnyTensor, c: &mut AnyTensor) -> Result<()> {
        let (lda, ldb, shape) = (a.leading(), b.leading(), self.shape);
        let a = a.host().or_elsewhere("A")?.widen::<A>();
        let b = b.host().or_elsewhere("B")?.widen::<A>();
        let all: Vec<u32> = match self.axis {
            ConvolutionAxis::Channels => (0..shape.filters as u32).collect(),
            ConvolutionAxis::Filters => (0..shape.channels as u32).collect(),
        };
        let of_image = self.out[0] * self.out[1];
        c.store_rows(shape.images * of_image, shape.filters, &|row, sums: &mut [A]| {
            let (image, place) = (row / of_image, row % of_image);
            let place = [place / self.out[1], place % self.out[1]];
            let (channels, filters) = match self.axis {
                ConvolutionAxis::Channels => (&self.found[image], &all),
                ConvolutionAxis::Filters => (&all, &self.found[0]),
            };
            for tap in 0..shape.taps() {
                let tap_at = [tap / shape.window[1], tap % shape.window[1]];
                let from = shape
                    .position(place, tap_at)
                    .map(|[x, y]| ((image * shape.size[0] + x) * shape.size[1] + y) * lda);
                for &channel in channels {
                    let factor = from.map_or(A::ZERO, |from| a[from + channel as usize]);
                    let line = &b[(tap * shape.channels + channel as usize) * ldb..];
                    for &filter in filters {
                        sums[filter as usize] += factor * line[filter as usize];
                    }
                }
            }
        })
        .or_elsewhere("C")
    }
}
