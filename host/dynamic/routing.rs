//! What a router chose, sorted by expert: the index of products that take each row to its own matrix.

use std::ops::Range;
use std::sync::Arc;

use super::detect::operand;
use einsparse_formats::allocate;

use crate::context::{Context, Shadow};
use crate::device::{Device, Stream};
use crate::error::{Elsewhere, Error, Result, check_shape};
use crate::families::convert::DenseMatrix;
use crate::families::discover::{DeviceRoutes, RouteLaunch};
use crate::kernel::Queue;
use crate::launch::{Turns, in_turn};
use crate::tensor::{AnyTensor, Tensor};

/// The `top_k` experts of each of a number of tokens, other ones at each run, as slots sorted by expert: choice `j` of
/// token `t` is number `t * top_k + j`, and each has a slot; an expert's slots are neighbours, in the order of the
/// choices. Sorted on the device, in two kernels, stable and without atomics on values: the same slots at every run. A
/// choice that names no expert (negative, or past the last one) gets a slot behind those of all experts: products make
/// zeros of its row.
///
/// Up to 1024 experts.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::Routing;
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// let choices = ctx.upload_dense(&Dense::new([3, 2], vec![2i32, 0, 0, -1, 2, 1])?)?;
/// let mut routing = Routing::new(&ctx, [3, 2], 3)?;
/// routing.run(&choices, &ctx.stream()?)?;
/// assert_eq!(routing.order()?, [1, 2, 5, 0, 4, 3]);
/// assert_eq!(routing.offsets()?, [0, 2, 3, 5, 6]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Routing {
    context: Context,
    tokens: usize,
    top_k: usize,
    experts: Range<usize>,
    storage: Routes,
    shadow: Shadow<Routing>,
}

/// Where the slots are.
#[derive(Debug)]
pub(crate) enum Routes {
    Host { order: Vec<u32>, offsets: Vec<u32> },
    Device(Box<OnDevice>),
}

/// Slots of a GPU, and what finds them.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub routes: DeviceRoutes,
    pub device: Arc<Device>,
    launch: RouteLaunch,
}

impl Routing {
    /// Room for the choices of `[tokens, top_k]` among `experts`.
    ///
    /// # Errors
    /// [`Error::Operand`] without experts or choices of a token; [`Error::Overflow`] for 2^30 choices and more, or more
    /// than 1024 experts; [`Error::OutOfMemory`].
    pub fn new(context: &Context, shape: [usize; 2], experts: usize) -> Result<Self> {
        Self::among(context, shape, 0..experts)
    }

    /// The same for some of the experts that are chosen among, such as those of one GPU of several: the first of them
    /// has the first slots, and a choice of any other is one of no expert.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::dynamic::Routing;
    /// use einsparse::formats::Dense;
    /// let ctx = Context::cpu();
    /// let choices = ctx.upload_dense(&Dense::new([4, 1], vec![0i32, 3, 2, 7])?)?;
    /// let mut routing = Routing::among(&ctx, [4, 1], 2..4)?;
    /// routing.run(&choices, &ctx.stream()?)?;
    /// assert_eq!((routing.order()?, routing.offsets()?), (vec![2, 1, 0, 3], vec![0, 1, 2, 4]));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn among(
        context: &Context,
        [tokens, top_k]: [usize; 2],
        experts: Range<usize>,
    ) -> Result<Self> {
        if top_k == 0 || experts.is_empty() {
            let count = experts.len();
            return Err(Error::operand(
                "choices",
                format!("are {top_k} of each token among {count} experts"),
            ));
        }
        let count = tokens.saturating_mul(top_k);
        if count >= 1 << 30 {
            return Err(Error::Overflow {
                what: "choices".into(),
                value: count as u128,
                limit: (1 << 30) - 1,
            });
        }
        // Offsets of all experts, and of the slots of none.
        allocate::extent("experts", experts.len() as u128, 4, 0)?;
        let shadow =
            Shadow::new(context, |context| Self::among(context, [tokens, top_k], experts.clone()))?;
        let storage = match context.device() {
            None => Routes::Host {
                order: Vec::new(),
                offsets: allocate::zeroed("offsets of experts", experts.len() + 2)?,
            },
            Some(device) => {
                let launch = RouteLaunch::new(device, count, experts.clone())?;
                let routes = launch.routes(device)?;
                Routes::Device(Box::new(OnDevice { routes, device: Arc::clone(device), launch }))
            }
        };
        Ok(Routing { context: context.clone(), tokens, top_k, experts, storage, shadow })
    }

    /// Tokens, and choices of each.
    pub fn shape(&self) -> [usize; 2] {
        [self.tokens, self.top_k]
    }

    /// Choices of all tokens, each of which has a slot.
    pub fn slots(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Experts.
    pub fn experts(&self) -> usize {
        self.experts.len()
    }

    /// Device bytes.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Routes::Host { .. } => 0,
            Routes::Device(there) => there.routes.bytes(),
        }
    }

    /// The routing of an absent GPU, on a CPU context.
    pub(crate) fn shadow(&self) -> Option<&Routing> {
        self.shadow.get()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.storage
    }

    /// Queues the sort of `choices`, `[tokens, top_k]`. Nothing is allocated or waited for: it may be captured in a
    /// CUDA graph. Runs, and the products that read what they found, wait for each other, on whatever stream.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are more or fewer; [`Error::Operand`] if they lie in another context, or with gaps.
    pub fn run(&mut self, choices: &Tensor<i32>, stream: &Stream) -> Result<()> {
        in_turn(self.turns(), stream, || self.queue(choices, stream))
    }

    /// Whoever writes or reads the slots on a GPU takes its turn here.
    pub(crate) fn turns(&self) -> Option<Arc<Turns>> {
        match &self.storage {
            Routes::Host { .. } => None,
            Routes::Device(there) => Some(Arc::clone(&there.routes.turns)),
        }
    }

    /// [`run`](Self::run) in the turn of whoever calls.
    pub(crate) fn queue(&mut self, choices: &Tensor<i32>, stream: &Stream) -> Result<()> {
        self.shadow.run(stream, |own, stream| own.queue(&choices.shadow(), stream))?;
        check_shape("choices", &self.shape(), choices.shape())?;
        match &mut self.storage {
            Routes::Host { order, offsets } => {
                let values = choices.host().or_elsewhere("choices")?;
                let rows = values.chunks(choices.leading().max(1)).take(self.tokens);
                let chosen = rows.flat_map(|row| &row[..self.top_k]).copied();
                sort(chosen, &self.experts, order, offsets);
                Ok(())
            }
            Routes::Device(there) => {
                let source = without_gaps(&self.context, "choices", choices, stream)?;
                // SAFETY: as many choices as planned; they and this routing are the caller's to keep until the stream
                // is done.
                let queue = unsafe { Queue::new(stream.raw()) };
                there.launch.run(source.address, &there.routes, queue)
            }
        }
    }

    /// The choice of each slot. Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails.
    pub fn order(&self) -> Result<Vec<u32>> {
        match &self.storage {
            Routes::Host { order, .. } => Ok(order.clone()),
            Routes::Device(there) => {
                let mut order = allocate::zeroed("order of choices", self.slots())?;
                there.device.read(&there.routes.order, &mut order)?;
                Ok(order)
            }
        }
    }

    /// The first slot of each expert, that of the choices of none, and how many slots there are. Waits for all work on
    /// the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails.
    pub fn offsets(&self) -> Result<Vec<u32>> {
        match &self.storage {
            Routes::Host { offsets, .. } => Ok(offsets.clone()),
            Routes::Device(there) => {
                let mut offsets = allocate::zeroed("offsets of experts", self.experts() + 2)?;
                there.device.read(&there.routes.offsets, &mut offsets)?;
                Ok(offsets)
            }
        }
    }

    /// What products of a GPU work through: expert, first slot and slots, at most 128, of each panel. Waits for all
    /// work.
    #[doc(hidden)]
    pub fn panels(&self) -> Result<Vec<[u32; 3]>> {
        let Routes::Device(there) = &self.storage else {
            return Ok(Vec::new());
        };
        let mut words = vec![0u32; (1 + there.launch.panels()) * 4];
        there.device.read(&there.routes.panels, &mut words)?;
        let count = words[0] as usize;
        let records = words.chunks(4).skip(1).take(count);
        Ok(records.map(|r| [r[0], r[1], r[2]]).collect())
    }
}

/// The same on the CPU: a counting sort.
fn sort(
    chosen: impl Iterator<Item = i32> + Clone,
    of: &Range<usize>,
    order: &mut Vec<u32>,
    offsets: &mut [u32],
) {
    let experts = of.len();
    let bin = |choice: i32| match usize::try_from(choice) {
        Ok(expert) if of.contains(&expert) => expert - of.start,
        _ => experts,
    };
    offsets.fill(0);
    for choice in chosen.clone() {
        offsets[bin(choice) + 1] += 1;
    }
    for i in 1..offsets.len() {
        offsets[i] += offsets[i - 1];
    }
    let mut places = offsets.to_vec();
    order.clear();
    order.resize(offsets[experts + 1] as usize, 0);
    for (number, choice) in chosen.enumerate() {
        let place = &mut places[bin(choice)];
        order[*place as usize] = number as u32;
        *place += 1;
    }
}

/// A tensor whose rows lie one behind the other, on the planned GPU.
pub(crate) fn without_gaps(
    context: &Context,
    name: &str,
    tensor: &AnyTensor,
    stream: &Stream,
) -> Result<DenseMatrix> {
    let matrix = operand(context, tensor, stream)?;
    if matrix.leading == matrix.columns {
        return Ok(matrix);
    }
    Err(Error::operand(
        name,
        format!(
            "has rows {} elements apart, {} long; it is read without gaps",
            matrix.leading, matrix.columns
        ),
    ))
}
