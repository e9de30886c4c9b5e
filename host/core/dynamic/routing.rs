//! Choices of a router, sorted by expert: the index of products that multiply each row with the matrix of its expert.

use std::ops::Range;
use std::sync::Arc;

use einsparse_formats::allocate;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::DeviceMemory;
use crate::error::{Elsewhere, Error, Result};
use crate::families::discover::{DeviceRoutes, RouteLaunch};
use crate::launch::{Turns, in_turn};
use crate::operator::Operator;
use crate::tensor::Tensor;

/// Slots of the choices of a router: `top_k` experts per token, sorted by expert. The choices may differ in each run.
/// Choice `j` of token `t` has number `t * top_k + j`, and each choice has a slot. The slots of an expert are adjacent,
/// in the order of the choices. Two kernels sort on the device, stably and without atomics on values: equal choices
/// give equal slots. A choice that names no expert (negative, or past the last one) gets a slot after those of all
/// experts, and products write zeros to its row.
///
/// The max number of experts is 1024.
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
    tokens: usize,
    top_k: usize,
    experts: Range<usize>,
    operator: Operator<DeviceRouting>,
    /// Slots on a CPU context.
    host: HostRoutes,
}

/// Slots in host memory.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct HostRoutes {
    /// Choice of each slot.
    pub order: Vec<u32>,
    /// First slot of each expert and of the choices without an expert, then the number of slots.
    pub offsets: Vec<u32>,
}

/// Slots on a GPU, and the kernels that compute them.
#[derive(Debug)]
struct DeviceRouting {
    routes: DeviceRoutes,
    launch: RouteLaunch,
}

impl Routing {
    /// Creates a routing for choices of `[tokens, top_k]` among `experts`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if there are no experts, or no choices per token; [`Error::Overflow`] for 2^30 or more
    /// choices, or more than 1024 experts; [`Error::OutOfMemory`].
    pub fn new(context: &Context, shape: [usize; 2], experts: usize) -> Result<Self> {
        Self::among(context, shape, 0..experts)
    }

    /// Creates a routing for a range of the experts, such as those of one of several GPUs. The first expert of the
    /// range has the first slots. A choice outside of the range counts as a choice without an expert.
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
        if top_k == 0 {
            return Err(Error::range("top_k", top_k, ">= 1"));
        }
        if experts.is_empty() {
            return Err(Error::range("experts", experts.len(), ">= 1"));
        }
        let count = tokens.saturating_mul(top_k);
        if count >= 1 << 30 {
            return Err(Error::Overflow {
                what: "choices".into(),
                value: count as u128,
                limit: (1 << 30) - 1,
            });
        }
        // Offsets of all experts, and of the slots without an expert.
        allocate::extent("experts", experts.len() as u128, 4, 0)?;
        let operator = Operator::new(context, |device| {
            let launch = RouteLaunch::new(device, count, experts.clone())?;
            Ok(DeviceRouting { routes: launch.routes(device)?, launch })
        })?;
        let host = match context.is_cuda() {
            true => HostRoutes::default(),
            false => HostRoutes {
                order: Vec::new(),
                offsets: allocate::zeroed("offsets of experts", experts.len() + 2)?,
            },
        };
        Ok(Routing { tokens, top_k, experts, operator, host })
    }

    /// Number of tokens, and of choices per token.
    pub fn shape(&self) -> [usize; 2] {
        [self.tokens, self.top_k]
    }

    /// Number of choices of all tokens, each of which has a slot.
    pub fn slots(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.experts.len()
    }

    /// Allocated device bytes.
    pub fn bytes(&self) -> usize {
        self.operator.bytes(|own| own.routes.bytes())
    }

    #[doc(hidden)]
    pub fn context(&self) -> &Context {
        self.operator.context()
    }

    /// Slots in host memory; empty on a GPU.
    #[doc(hidden)]
    pub fn on_host(&self) -> &HostRoutes {
        &self.host
    }

    /// Slots in device memory, on a GPU or on the simulated one.
    #[doc(hidden)]
    pub fn on_device(&self) -> Result<&DeviceRoutes> {
        self.operator.launch().map(|own| &own.routes).or_elsewhere("routing")
    }

    /// Validates that the routing belongs to this context.
    pub(crate) fn check(&self, context: &Context) -> Result<()> {
        match context.holds(self.context().device()) {
            true => Ok(()),
            false => Err(Error::elsewhere("routing")),
        }
    }

    /// Queues the sort of `choices`, `[tokens, top_k]`. It does not allocate and does not wait, and can be captured in
    /// a CUDA graph. Runs, and the products that read their slots, wait for each other, on any stream.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of choices differs; [`Error::OtherContext`] if they are in another context;
    /// [`Error::RowStride`] if they have gaps.
    pub fn run(&mut self, choices: &Tensor<i32>, stream: &Stream) -> Result<()> {
        in_turn(self.turns(), stream, || self.queue(choices, stream))
    }

    /// Workspace order of all work that writes or reads the slots on a GPU.
    #[doc(hidden)]
    pub fn turns(&self) -> Option<Arc<Turns>> {
        self.operator.on_gpu().map(|own| Arc::clone(&own.routes.turns))
    }

    /// [`run`](Self::run) without ordering: the caller orders it with other uses of the slots.
    #[doc(hidden)]
    pub fn queue(&mut self, choices: &Tensor<i32>, stream: &Stream) -> Result<()> {
        let run = self.operator.start(stream)?;
        let source = run.contiguous("choices", choices.any(), &[self.tokens, self.top_k])?;
        run.queue(
            |own, queue| own.launch.run(source, &own.routes, queue),
            || {
                let (values, leading) = choices.host_rows("choices")?;
                let rows = values.chunks(leading.max(1)).take(self.tokens);
                let chosen = rows.flat_map(|row| &row[..self.top_k]).copied();
                sort(chosen, &self.experts, &mut self.host);
                Ok(())
            },
        )
    }

    /// Choice of each slot. Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails.
    pub fn order(&self) -> Result<Vec<u32>> {
        self.read(|own| &own.order, |own| &own.order, self.slots())
    }

    /// First slot of each expert, first slot of the choices without an expert, and the number of slots. Waits for all
    /// work on the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails.
    pub fn offsets(&self) -> Result<Vec<u32>> {
        self.read(|own| &own.offsets, |own| &own.offsets, self.experts() + 2)
    }

    /// Copies an array of the slots from host or device memory.
    fn read(
        &self,
        host: impl FnOnce(&HostRoutes) -> &Vec<u32>,
        there: impl FnOnce(&DeviceRoutes) -> &DeviceMemory,
        count: usize,
    ) -> Result<Vec<u32>> {
        let (Some(own), Some(device)) = (self.operator.on_gpu(), self.context().device()) else {
            return Ok(host(&self.host).clone());
        };
        let mut values = allocate::zeroed("slots of a routing", count)?;
        device.read(there(&own.routes), &mut values)?;
        Ok(values)
    }

    /// Panels that products on a GPU process: expert, first slot, and number of slots (at most 128). Waits for all
    /// work.
    #[doc(hidden)]
    pub fn panels(&self) -> Result<Vec<[u32; 3]>> {
        let (Some(own), Some(device)) = (self.operator.on_gpu(), self.context().device()) else {
            return Ok(Vec::new());
        };
        let mut words = vec![0u32; (1 + own.launch.panels()) * 4];
        device.read(&own.routes.panels, &mut words)?;
        let count = words[0] as usize;
        let records = words.chunks(4).skip(1).take(count);
        Ok(records.map(|r| [r[0], r[1], r[2]]).collect())
    }
}

/// Counting sort on the CPU.
fn sort(
    chosen: impl Iterator<Item = i32> + Clone,
    of: &Range<usize>,
    HostRoutes { order, offsets }: &mut HostRoutes,
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
