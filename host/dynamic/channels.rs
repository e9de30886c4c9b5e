//! Detection of columns: channels of images, filters of weights.

use std::marker::PhantomData;
use std::sync::Arc;

use einsparse_formats::allocate;
use rayon::prelude::*;

use super::detect::operand;
use super::index::{Lists, MicroIndex};
use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, check_shape, elements};
use crate::families::discover::{ChannelsLaunch, DeviceLists, list_stride};
use crate::families::gather_gemm::found::above;
use crate::kernel::Queue;
use crate::launch::in_turn;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use crate::values::{Buffer, Slice};

/// Finds, for each item of `[items][rows][columns]`, the columns that hold an element above a threshold in any row, and
/// copies them side by side: of activations `[n,h,w,m]` the channels of each image (items n, rows h times w, columns
/// m), of weights `[i,j,m,f]` the filters (one item, rows i times j times m, columns f). Without the host; the pattern
/// may be another at each run (PIT, arXiv 2301.10936, sections 3.1 and 3.3, of convolution: m and f are PIT axes, h and
/// w are not).
///
/// Lists ascend. Elements are f16 or bf16, and columns at most 8192.
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
#[derive(Debug)]
pub struct ChannelDetector<T> {
    context: Context,
    /// Items, rows, columns.
    shape: [usize; 3],
    threshold: f64,
    launch: Option<ChannelsLaunch>,
    shadow: Shadow<ChannelDetector<T>>,
    index: MicroIndex,
    /// Packed rows of a CPU.
    values: Buffer,
    element: PhantomData<T>,
}

impl<T: Scalar> ChannelDetector<T> {
    /// A detector for items, rows and columns. Elements of at most the magnitude `threshold` count for nothing; NaN
    /// counts always, and at 0 both zeros do not.
    ///
    /// # Errors
    /// [`Error::Operand`] for a threshold that is negative or no number; [`Error::Overflow`] for too many rows, columns
    /// or items; [`Error::NoKernel`] for other element types, and [`Error::OutOfMemory`].
    pub fn new(context: &Context, shape: [usize; 3], threshold: f64) -> Result<Self> {
        if threshold.is_nan() || threshold < 0.0 {
            return Err(Error::operand("threshold", format!("is {threshold}, not a magnitude")));
        }
        let [items, rows, columns] = shape;
        elements("A", &shape)?;
        let stride = list_stride(columns);
        let places = elements("lists of columns", &[items, rows, stride])?;
        let (launch, storage, values) = match context.device() {
            None => {
                let values = Buffer::zeros(T::DTYPE, places)?;
                let lists = allocate::filled("lists of columns", items, Vec::new())?;
                (None, Lists::Host(lists), values)
            }
            Some(device) => {
                let launch =
                    ChannelsLaunch::new(device, T::DTYPE, shape, above(T::DTYPE, threshold))?;
                let lists = Lists::Device(launch.lists(device)?, Arc::clone(device));
                (Some(launch), lists, Buffer::zeros(T::DTYPE, 0)?)
            }
        };
        Ok(ChannelDetector {
            context: context.clone(),
            shape,
            threshold,
            launch,
            shadow: Shadow::new(context, |context| Self::new(context, shape, threshold))?,
            index: MicroIndex { panels: items, stride, storage, shadow: None },
            values,
            element: PhantomData,
        })
    }

    /// Queues the detection. Nothing is allocated or waited for: it may be captured in a CUDA graph.
    ///
    /// `a` has the planned columns as its last axis, and as many rows as all items together, whatever the axes:
    /// `[n,h,w,m]` as well as `[n h w, m]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if it is of another shape; [`Error::Operand`] if it belongs to another context, or if it,
    /// or a row of it, is not aligned to 16 bytes.
    pub fn run(&mut self, a: &Tensor<T>, stream: &Stream) -> Result<()> {
        self.shadow.run(stream, |own, stream| own.run(&a.shadow(), stream))?;
        let [items, rows, columns] = self.shape;
        let given = match a.shape().split_last() {
            Some((&width, outer)) => [outer.iter().product(), width],
            None => [1, 1],
        };
        let planned = [items.saturating_mul(rows), columns];
        check_shape("rows and columns", &planned, &given)?;
        match (&self.launch, &self.index.storage) {
            (Some(launch), Lists::Device(lists, _)) => {
                let matrix = operand(&self.context, a, stream)?;
                // SAFETY: the tensor has the planned rows, columns and type; it is the caller's to keep until the
                // stream is done, as with every run.
                let queue = unsafe { Queue::new(stream.raw()) };
                in_turn(self.index.turns(), stream, || launch.run(matrix, lists, queue))
            }
            (None, Lists::Host(_)) => {
                let values = a.any.host().or_elsewhere("A")?;
                self.on_host(values, a.leading());
                Ok(())
            }
            _ => Err(Error::elsewhere("index")),
        }
    }

    /// The columns that the last run found, side by side: as many rows as there are of all items, each of
    /// [`index().stride()`](MicroIndex::stride) places. Behind the columns of an item there are zeros up to a multiple
    /// of 64; what lies behind these means nothing. Waits for all work on the GPU.
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

    /// The kernels, `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        let names = self.launch.as_ref().map(ChannelsLaunch::names);
        names.unwrap_or(["cpu"; 2])
    }

    /// The columns that the last run found, a list for each item.
    pub fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// The kernels and their lists on the GPU of this detector.
    pub(super) fn on_device(&self) -> Result<(&ChannelsLaunch, &DeviceLists)> {
        match (&self.launch, &self.index.storage) {
            (Some(launch), Lists::Device(lists, _)) => Ok((launch, lists)),
            _ => Err(Error::elsewhere("index")),
        }
    }

    /// The same on the CPU.
    fn on_host(&mut self, a: Slice<'_>, leading: usize) {
        if let Lists::Host(lists) = &mut self.index.storage {
            let of = (self.shape, self.index.stride, self.threshold);
            on_host(of, (a, leading), lists, self.values.bytes_mut());
        }
    }
}

/// An item at a time.
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
