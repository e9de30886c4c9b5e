//! Lists without a matrix: rows of sequences of varying lengths, and what a router chose.

use super::detect::{operand, search};
use super::index::{Lists, MicroIndex};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape};
use crate::families::discover::{DetectLaunch, list_stride};
use crate::kernel::Queue;
use crate::tensor::Tensor;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lengths { distance: usize },
    Choices { experts: usize },
}

/// Lengths of sequences, or choices of experts, to lists of rows, on the device.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::RowDetector;
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// let lengths = ctx.upload_dense(&Dense::new([3], vec![2i32, 0, 1])?)?;
/// let rows = RowDetector::lengths(&ctx, 3, 4)?; // sequences begin at rows 0, 4, 8
/// let mut index = rows.index()?;
/// rows.run(&lengths, &mut index, &ctx.stream()?)?;
/// assert_eq!(index.to_lists()?, [vec![0, 1, 8]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct RowDetector {
    context: Context,
    count: usize,
    kind: Kind,
    launch: Option<DetectLaunch>,
}

impl RowDetector {
    /// Rows of `count` sequences that begin `distance` rows apart: one list, ascending. A length below 0 is 0, one
    /// above `distance` is `distance`.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) for rows past 2^32; [`Error::Cuda`](crate::Error::Cuda) if the
    /// kernel does not load.
    pub fn lengths(context: &Context, count: usize, distance: usize) -> Result<Self> {
        let launch = match context.device() {
            None => None,
            Some(device) => Some(DetectLaunch::lengths(device, count, distance)?),
        };
        Ok(RowDetector {
            context: context.clone(),
            count,
            kind: Kind::Lengths { distance },
            launch,
        })
    }

    /// For each of up to 1024 experts, which of `count` choices name it: with the best `k` of each token side by side,
    /// choice `c` is of token `c / k`. On a GPU lists are in any order; a choice of no expert is left out.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) for more experts; [`Error::Cuda`](crate::Error::Cuda) if the kernel
    /// does not load.
    pub fn choices(context: &Context, count: usize, experts: usize) -> Result<Self> {
        let launch = match context.device() {
            None => None,
            Some(device) => Some(DetectLaunch::choices(device, count, experts)?),
        };
        Ok(RowDetector {
            context: context.clone(),
            count,
            kind: Kind::Choices { experts },
            launch,
        })
    }

    /// Lists, and places of a list at the most.
    fn extents(&self) -> (usize, usize) {
        match self.kind {
            Kind::Lengths { distance } => (1, self.count.saturating_mul(distance)),
            Kind::Choices { experts } => (experts, self.count),
        }
    }

    /// The kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", DetectLaunch::name)
    }

    /// Room for what runs find. Runs over the same index must follow one another.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn index(&self) -> Result<MicroIndex> {
        let (panels, positions) = self.extents();
        MicroIndex::of(self.launch.as_ref(), &self.context, [panels, positions])
    }

    /// Queues the lists of `numbers`, lengths or choices, one axis. Nothing is allocated or waited for.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if there are more or fewer, or the index is of another detector;
    /// [`Error::Operand`](crate::Error::Operand) if one lies in another context.
    pub fn run(
        &self,
        numbers: &Tensor<i32>,
        index: &mut MicroIndex,
        stream: &Stream,
    ) -> Result<()> {
        check_shape("numbers", &[self.count], numbers.shape())?;
        let (panels, positions) = self.extents();
        let own = [panels, list_stride(positions)];
        check_shape("index", &own, &[index.panels, index.stride])?;
        match (&self.launch, &mut index.storage) {
            (None, Lists::Host(lists)) => {
                let numbers = numbers.host().ok_or_else(|| Error::elsewhere("numbers"))?;
                self.on_host(numbers, lists);
                Ok(())
            }
            (Some(launch), Lists::Device(lists, device)) => {
                let source = operand(&self.context, numbers, stream)?;
                // SAFETY: as many numbers as planned; they are the caller's to keep until the stream is done, as with
                // every run.
                let queue = unsafe { Queue::new(stream.raw()) };
                search(&self.context, launch, source, (lists, device), queue)
            }
            _ => Err(Error::elsewhere("index")),
        }
    }

    fn on_host(&self, numbers: &[i32], lists: &mut [Vec<u32>]) {
        lists.iter_mut().for_each(Vec::clear);
        for (i, &number) in numbers.iter().take(self.count).enumerate() {
            match self.kind {
                Kind::Lengths { distance } => {
                    let length = usize::try_from(number).unwrap_or(0).min(distance);
                    let first = i * distance;
                    lists[0].extend((first..first + length).map(|row| row as u32));
                }
                Kind::Choices { .. } => {
                    let expert = usize::try_from(number).ok();
                    if let Some(list) = expert.and_then(|expert| lists.get_mut(expert)) {
                        list.push(i as u32);
                    }
                }
            }
        }
    }
}
