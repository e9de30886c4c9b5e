//! Detection of nonempty columns: channels of images, filters of weights.

use std::marker::PhantomData;

use rayon::prelude::*;

use super::index::{Lists, MicroIndex};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, check_shape, elements};
use crate::families::discover::{ChannelsLaunch, DeviceLists, list_stride};
use crate::families::gather_gemm::found::above;
use crate::operator::Operator;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use crate::values::{Buffer, Slice};

/// Finds, for each item of `[items][rows][columns]`, the columns that have an element above a threshold in any row, and
/// packs them. For activations `[n,h,w,m]` these are the channels of each image (items n, rows h times w, columns m).
/// For weights `[i,j,m,f]` these are the filters (one item, rows i times j times m, columns f). The host does not take
/// part, and the pattern may differ in each run. Source: PIT, arXiv 2301.10936, sections 3.1 and 3.3. In a convolution,
/// m and f are PIT axes; h and w are not.
///
/// Lists ascend. Elements are f16 or bf16. The max number of columns is 8192.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::ChannelDetector;
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let four = f16::from_f32(4.0);
/// // Two images of 2 x 2, of eight channels.
/// let a = Dense::from_fn(vec![2, 2, 2, 8], |i| if i == [1, 0, 1, 2] { four } else { f16::ZERO })?;
/// let a = ctx.upload_dense(&a)?;
/// let mut channels = ChannelDetector::<f16>::new(&ctx, [2, 4, 8], 0.0)?;
/// channels.run(&a, &ctx.stream()?)?;
/// assert_eq!(channels.index().to_lists()?, [vec![], vec![2]]);
/// // A row of 64 places for each row: that of image 1, row 1.
/// assert_eq!(channels.packed()?[(4 + 1) * 64], four);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[doc(hidden)]
#[derive(Debug)]
pub struct ChannelDetector<T> {
    /// Items, rows, columns.
    shape: [usize; 3],
    threshold: f64,
    operator: Operator<ChannelsLaunch>,
    index: MicroIndex,
    /// Packed rows on a CPU.
    values: Buffer,
    element: PhantomData<T>,
}

impl<T: Scalar> ChannelDetector<T> {
    /// Creates a detector for items, rows and columns. Elements with a magnitude of at most `threshold` count as zero.
    /// NaN always counts as nonzero. At threshold 0, zeros of both signs count as zero.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the threshold is negative or NaN; [`Error::Overflow`] if there are too many rows,
    /// columns or items; [`Error::NoKernel`] for other element types; [`Error::OutOfMemory`].
    pub fn new(context: &Context, shape: [usize; 3], threshold: f64) -> Result<Self> {
        if threshold.is_nan() || threshold < 0.0 {
            return Err(Error::range("threshold", threshold, ">= 0"));
        }
        let [items, rows, columns] = shape;
        elements("A", &shape)?;
        let stride = list_stride(columns);
        let places = elements("lists of columns", &[items, rows, stride])?;
        let operator = Operator::new(context, |device| {
            ChannelsLaunch::new(device, T::DTYPE, shape, above(T::DTYPE, threshold))
        })?;
        let written = match operator.launch() {
            Some(launch) => Some(launch.lists(context.planned_on()?)?),
            None => None,
        };
        let index = MicroIndex::new(context, [items, stride], written)?;
        let values = Buffer::zeros(T::DTYPE, if context.is_cuda() { 0 } else { places })?;
        Ok(ChannelDetector { shape, threshold, operator, index, values, element: PhantomData })
    }

    /// Queues the detection. It does not allocate and does not wait, and can be captured in a CUDA graph.
    ///
    /// The last axis of `a` has the planned number of columns. The product of the other axes is the number of rows of
    /// all items, so both `[n,h,w,m]` and `[n h w, m]` are accepted.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape differs; [`Error::OtherContext`] if `a` belongs to another context;
    /// [`Error::Alignment`] if its address or row stride is not a multiple of 16 bytes.
    pub fn run(&mut self, a: &Tensor<T>, stream: &Stream) -> Result<()> {
        let [items, rows, columns] = self.shape;
        let given = match a.shape().split_last() {
            Some((&width, outer)) => [outer.iter().product(), width],
            None => [1, 1],
        };
        let planned = [items.saturating_mul(rows), columns];
        check_shape("rows and columns", &planned, &given)?;
        let run = self.operator.start(stream)?;
        let matrix = run.matrix("A", a.any(), a.shape())?;
        let Self { index, values, .. } = self;
        let of = (self.shape, index.stride, self.threshold);
        match &mut index.storage {
            Lists::Device(lists, _) => run.queue(
                |launch, queue| {
                    let order = &lists.turns;
                    order.queue(true, queue.stream(), || launch.run(matrix, lists, queue))
                },
                || Ok(()),
            ),
            Lists::Host(lists, checked) => run.queue(
                |launch, queue| match checked {
                    Some(checked) => launch.run(matrix, checked, queue),
                    None => Ok(()),
                },
                || {
                    let a = a.any.host().or_elsewhere("A")?;
                    on_host(of, (a, matrix.leading), lists, values.bytes_mut());
                    Ok(())
                },
            ),
        }
    }

    /// Packed columns that the last run found, with the rows of all items. Each row has
    /// [`index().stride()`](MicroIndex::stride) elements. The columns of an item are followed by zeros up to a multiple
    /// of 64. Elements after these are undefined. Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails.
    pub fn packed(&self) -> Result<Vec<T>> {
        let Lists::Device(lists, device) = &self.index.storage else {
            return Ok(self.values.view().typed().unwrap_or_default().to_vec());
        };
        let [items, rows, _] = self.shape;
        let mut values = vec![T::ZERO; items * rows * self.index.stride];
        if let Some(packed) = lists.packed.as_ref().filter(|_| !values.is_empty()) {
            device.read(packed, &mut values)?;
        }
        Ok(values)
    }

    /// Names of the kernels; `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        self.operator.variants(ChannelsLaunch::names)
    }

    /// Columns that the last run found, one list per item.
    pub fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// Launch and lists, on a GPU or on the simulated one.
    pub(super) fn on_device(&self) -> Result<(&ChannelsLaunch, &DeviceLists)> {
        Ok((self.operator.launch().or_elsewhere("index")?, self.index.lists()?))
    }
}

/// Processes one item at a time.
fn on_host(
    ([_, rows, columns], stride, threshold): ([usize; 3], usize, f64),
    (a, leading): (Slice<'_>, usize),
    lists: &mut [Vec<u32>],
    packed: &mut [u8],
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let counts = |value: f64| value.is_nan() || value.abs() > threshold;
    let (wide, size) = (a.widen::<f64>(), a.dtype().bytes());
    let packed = packed.par_chunks_mut(rows * stride * size);
    let items = lists.par_iter_mut().zip(packed).enumerate();
    items.for_each(|(item, (list, packed))| {
        let first = |i: usize| (item * rows + i) * leading;
        let mut full = vec![false; columns];
        for i in 0..rows {
            for (full, &value) in full.iter_mut().zip(&wide[first(i)..]) {
                *full |= counts(value);
            }
        }
        list.clear();
        list.extend((0..columns as u32).filter(|&column| full[column as usize]));
        for (i, to) in packed.chunks_mut(stride * size).enumerate() {
            let from = &a.bytes()[first(i) * size..][..columns * size];
            for (to, &column) in to.chunks_mut(size).zip(list.iter()) {
                to.copy_from_slice(&from[column as usize * size..][..size]);
            }
            to[list.len() * size..list_stride(list.len()) * size].fill(0);
        }
    });
}
