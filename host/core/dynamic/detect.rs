//! Detection of the nonempty micro-tiles of a matrix, or of a mask of one.

use std::borrow::Cow;
use std::marker::PhantomData;

use super::index::{Lists, MicroIndex};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, check_shape, elements};
use crate::families::discover::{DetectLaunch, DeviceLists, Looked, list_stride};
use crate::families::gather_gemm::found::above;
use crate::kernel::Queue;
use crate::offer::Determinism;
use crate::operator::Operator;
use crate::parallel;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyTensor, Tensor};
use crate::values::Slice;

/// Options of a [`Detector`]: the elements that count, and the order of the lists.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{DetectOptions, Detector};
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// // A mask of 2 x 128 bits: word 1 of row 0 has bit 35.
/// let mask = ctx.upload_dense(&Dense::new([2, 4], vec![0i32, 8, 0, 0, 0, 0, 0, 0])?)?;
/// let options = DetectOptions { bits: Some(128), ..DetectOptions::default() };
/// let detector = Detector::<i32>::new(&ctx, [2, 4], (32, 1), &options)?;
/// let mut index = detector.index()?;
/// detector.run(&mask, &mut index, &ctx.stream()?)?;
/// assert_eq!(index.to_lists()?, [vec![35]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DetectOptions {
    /// Elements of at most this magnitude are empty; NaN is never empty. At 0, exact zeros of both signs are empty.
    pub threshold: f64,
    /// [`Determinism::Strict`]: lists ascend. [`Determinism::Relaxed`]: lists are in the order in which thread blocks
    /// append to them, which differs from run to run.
    pub determinism: Determinism,
    /// Number of columns, if the matrix is a bit mask: bit `j % 32` of word `j / 32` of a row (of `i32`) is that of
    /// column j.
    pub bits: Option<usize>,
}

/// Finds the nonempty micro-tiles of a matrix, in one pass and without the host (PIT, arXiv 2301.10936, section 3.3).
/// Micro-tiles of several rows, `h x w`, are listed along the columns, one list per `h` rows: the k axis of a left
/// operand. Micro-tiles of one row, `1 x w`, are listed along the rows, one list per `w` columns: the m axis of a left
/// operand.
///
/// Elements are f32, f16 and bf16, on the CPU also f64. `i8` is a boolean mask, in which every value except 0 counts;
/// `i32` holds words of a bit mask. On a GPU, micro-tiles are 128x1, 64x1, 32x1, 16x16, 1x32 and 1x64; on the CPU they
/// are arbitrary. Detectors of [lengths](Detector::lengths) and [choices](Detector::choices) make lists of rows from
/// numbers.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::Detector;
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// let a = ctx.upload_dense(&Dense::from_fn(vec![64, 3], |i| if i == [40, 1] { 2.0f32 } else { 0.0 })?)?;
/// let detector = Detector::<f32>::new(&ctx, [64, 3], (32, 1), &Default::default())?;
/// let mut index = detector.index()?;
/// detector.run(&a, &mut index, &ctx.stream()?)?;
/// assert_eq!(index.to_lists()?, [vec![], vec![1]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Detector<T> {
    pub(super) kind: Kind,
    pub(super) operator: Operator<DetectLaunch>,
    pub(super) element: PhantomData<T>,
}

/// Objects that are listed.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Micro-tiles of a matrix.
    Tiles { shape: [usize; 2], micro: (usize, usize), options: DetectOptions },
    /// Rows of sequences.
    Lengths { count: usize, distance: usize },
    /// Choices by expert.
    Choices { count: usize, experts: usize },
}

impl<T: Scalar> Detector<T> {
    /// Creates a detector for matrices of this shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the micro-tile is empty or the threshold is negative or NaN. [`Error::ElementType`] or
    /// [`Error::Shape`] if a bit mask has another element type or another width. [`Error::NoKernel`] for element types
    /// and, on a GPU, micro-tiles without a kernel. [`Error::Overflow`] for extents past 2^31.
    pub fn new(
        context: &Context,
        shape: [usize; 2],
        micro: (usize, usize),
        options: &DetectOptions,
    ) -> Result<Self> {
        Self::of(context, T::DTYPE, shape, micro, options.clone())
    }

    /// Queues the detection. It does not allocate and does not wait, and can be captured in a CUDA graph.
    ///
    /// # Errors
    /// [`Error::Shape`] if the matrix (the numbers) does not have the planned shape, or the index is of another
    /// detector. [`Error::OtherContext`] if one of them is in another context.
    pub fn run(&self, matrix: &Tensor<T>, index: &mut MicroIndex, stream: &Stream) -> Result<()> {
        self.detect(matrix.any(), index, stream)
    }
}

impl<T> Detector<T> {
    pub(crate) fn of(
        context: &Context,
        dtype: Dtype,
        shape: [usize; 2],
        micro: (usize, usize),
        options: DetectOptions,
    ) -> Result<Self> {
        let looked = looked(dtype, shape, micro, &options)?;
        elements("A", &shape)?;
        let ordered = options.determinism == Determinism::Strict;
        let columns = options.bits.unwrap_or(shape[1]);
        let operator = Operator::new(context, |device| {
            let above = above(dtype, options.threshold);
            let extents = [shape[0], columns];
            let how = (above, ordered);
            DetectLaunch::tiles(device, looked, extents, micro, how)
        })?;
        let kind = Kind::Tiles { shape, micro, options };
        Ok(Detector { kind, operator, element: PhantomData })
    }

    /// Name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(DetectLaunch::name)
    }

    /// Number of lists, and max number of positions in a list.
    fn extents(&self) -> (usize, usize) {
        match &self.kind {
            Kind::Tiles { shape, micro: (h, w), options } => {
                let columns = options.bits.unwrap_or(shape[1]).div_ceil(*w);
                match *h > 1 {
                    true => (shape[0].div_ceil(*h), columns),
                    false => (columns, shape[0]),
                }
            }
            Kind::Lengths { count, distance } => (1, count.saturating_mul(*distance)),
            Kind::Choices { count, experts } => (*experts, *count),
        }
    }

    /// Allocates the index for the results of runs. Runs with one index wait for each other, on any stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn index(&self) -> Result<MicroIndex> {
        let (panels, positions) = self.extents();
        let context = self.operator.context();
        let written = match self.operator.launch() {
            Some(launch) => Some(launch.lists(context.planned_on()?)?),
            None => None,
        };
        MicroIndex::new(context, [panels, list_stride(positions)], written)
    }

    pub(crate) fn detect(
        &self,
        matrix: &AnyTensor,
        index: &mut MicroIndex,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let source = match &self.kind {
            Kind::Tiles { shape, .. } => run.matrix("matrix", matrix, shape)?,
            Kind::Lengths { count, .. } | Kind::Choices { count, .. } => {
                run.matrix("numbers", matrix, &[*count])?
            }
        };
        let (panels, positions) = self.extents();
        let own = [panels, list_stride(positions)];
        check_shape("index", &own, &[index.panels, index.stride])?;
        let search = |launch: &DetectLaunch, lists: &DeviceLists, queue: Queue<'_>| {
            if !lists.hold(launch.room()?) {
                let reason = "was created for another detector and is too small for this one";
                return Err(Error::operand("index", reason));
            }
            // The lists have the size that this launch requires, and exist until the queued work is done.
            lists.turns.queue(true, queue.stream(), || launch.run(source, lists, queue))
        };
        let context = self.operator.context();
        match &mut index.storage {
            Lists::Device(lists, device) if context.holds(Some(device)) => {
                run.queue(|launch, queue| search(launch, lists, queue), || Ok(()))
            }
            Lists::Host(lists, checked) if context.holds(None) => run.queue(
                |launch, queue| match checked {
                    Some(checked) => search(launch, checked, queue),
                    // The detector that created the index does not check.
                    None => Ok(()),
                },
                || {
                    self.on_host(matrix.host().or_elsewhere("matrix")?, source.leading, lists);
                    Ok(())
                },
            ),
            _ => Err(Error::elsewhere("index")),
        }
    }

    pub(super) fn on_host(&self, values: Slice<'_>, leading: usize, lists: &mut [Vec<u32>]) {
        let (_, positions) = self.extents();
        match &self.kind {
            Kind::Tiles { shape, micro, options } => {
                let tiles = HostTiles { values: values.widen(), leading, shape: *shape, options };
                tiles.find(*micro, lists, positions)
            }
            rows => rows.on_host(values.typed().unwrap_or_default(), lists),
        }
    }
}

/// A matrix in host memory, or a mask of one.
struct HostTiles<'a> {
    values: Cow<'a, [f64]>,
    leading: usize,
    shape: [usize; 2],
    options: &'a DetectOptions,
}

impl HostTiles<'_> {
    fn counts(&self, row: usize, column: usize) -> bool {
        let row = &self.values[row * self.leading..];
        match self.options.bits {
            None => row[column].is_nan() || row[column].abs() > self.options.threshold,
            Some(_) => row[column / 32] as i64 >> (column % 32) & 1 != 0,
        }
    }

    /// Finds the nonempty micro-tiles of `h` rows and `w` columns, one panel at a time.
    fn find(&self, (h, w): (usize, usize), lists: &mut [Vec<u32>], positions: usize) {
        let columns = self.options.bits.unwrap_or(self.shape[1]);
        let found = |top: usize, left: usize| {
            (top..(top + h).min(self.shape[0]))
                .any(|row| (left..(left + w).min(columns)).any(|column| self.counts(row, column)))
        };
        parallel::chunks(lists, 1, &|panel, list| {
            let full = |position: &u32| {
                let position = *position as usize;
                match h > 1 {
                    true => found(panel * h, position * w),
                    false => found(position, panel * w),
                }
            };
            list[0].clear();
            list[0].extend((0..positions as u32).filter(full));
        });
    }
}

/// Checks the options and describes the search.
fn looked(
    dtype: Dtype,
    shape: [usize; 2],
    micro: (usize, usize),
    options: &DetectOptions,
) -> Result<Looked> {
    if micro.0 == 0 || micro.1 == 0 {
        let found = format!("{} x {}", micro.0, micro.1);
        return Err(Error::range("micro-tile", found, "at least 1 x 1"));
    }
    let threshold = options.threshold;
    if threshold.is_nan() || threshold < 0.0 {
        return Err(Error::range("threshold", threshold, ">= 0"));
    }
    let exact = matches!(dtype, Dtype::Int8 | Dtype::Int32);
    if exact && threshold != 0.0 {
        return Err(Error::range("threshold", threshold, "0 for a mask of integers"));
    }
    match (dtype, options.bits) {
        (Dtype::Int32, Some(columns)) if columns.div_ceil(32) == shape[1] => Ok(Looked::Bits),
        (Dtype::Int32, Some(columns)) => {
            let words = format!("{columns} columns are {} words", columns.div_ceil(32));
            Err(Error::shape("bits", words, format!("rows have {} words", shape[1])))
        }
        (_, Some(_)) => Err(Error::dtype("bits", "int32", dtype.name())),
        (dtype @ (Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Int8), None) => {
            Ok(Looked::Elements(dtype))
        }
        (dtype, None) => Err(Error::NoKernel {
            indirect: format!("micro-tiles of {}", dtype.name()),
            tried: Vec::new(),
        }),
    }
}
