//! Convolutions of images: the kernel that multiplies everything, and kernels that skip empty channels, images or
//! filters of a dynamic operand.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::abi::Zeros;

use crate::cost::Cost;
use crate::device::Device;
use crate::einsum::{Epilogue, Mode, Windows};
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::families::discover::{ChannelsLaunch, DeviceLists, list_stride};
use crate::families::gather_gemm::found::above;
use crate::families::gather_gemm::{
    ConvolutionAxis, ConvolutionShape, DenseConvLaunch, PitConvLaunch,
};
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::offer::{Candidate, Run, Slot, Source, ZerosRule, as_dense, find, wrong};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor, DenseMatrix, DynamicOptions};

/// Names in refusals.
const FAMILY: &str = "pit_conv";
const DENSE: &str = "dense_conv";

/// Offer, or its refusal; `None` if the kernels do not apply.
type Offered<T> = std::result::Result<T, Option<Refusal>>;

fn refused<T>(family: &str, reason: &str) -> Result<Offered<T>> {
    Ok(Err(Some(Refusal::of(family, reason))))
}

/// Axis along which a dynamic operand is sparse, expected share of nonempty micro-tiles, and threshold.
type Sparse = (ConvolutionAxis, f64, f64);

/// Returns the sparsity of the dynamic operand. If both operands are dynamic, A's channels are skipped.
fn sparse(
    names: &[String; 2],
    dynamic: &[(&str, DynamicOptions)],
    shape: &ConvolutionShape,
) -> Option<Sparse> {
    let of = |at: usize, axis: ConvolutionAxis| {
        let own = dynamic.iter().find(|(own, _)| *own == names[at]);
        own.map(|(_, own)| (axis, own.expected.share(shape.looked(axis)[1]), own.threshold))
    };
    of(0, ConvolutionAxis::Channels).or_else(|| of(1, ConvolutionAxis::Filters))
}

/// Detection and convolution, and the lists that they share.
#[derive(Debug)]
struct Skipping {
    channels: ChannelsLaunch,
    product: PitConvLaunch,
    lists: DeviceLists,
    /// Serializes runs, which share the lists.
    turns: Turns,
}

impl Skipping {
    fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        shape: ConvolutionShape,
        (axis, threshold): (ConvolutionAxis, f64),
    ) -> Result<Self> {
        let looked = shape.looked(axis);
        let channels = ChannelsLaunch::new(device, dtype, looked, above(dtype, threshold))?;
        let lists = channels.lists(device)?;
        let places = (axis == ConvolutionAxis::Filters, list_stride(looked[2]));
        Ok(Skipping {
            channels,
            product: PitConvLaunch::new(device, dtype, shape, places)?,
            lists,
            turns: Turns::new(device)?,
        })
    }

    fn run(&self, all: [DenseMatrix; 3], queue: Queue<'_>) -> Result<()> {
        let run = || self.product.run_found(&self.channels, &self.lists, all, queue);
        self.turns.queue(true, queue.stream(), run)
    }
}

/// Selected implementation.
#[derive(Debug)]
enum Way {
    Skips(Box<Skipping>),
    All(Box<DenseConvLaunch>),
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Way::Skips(own) => own.product.name(),
            Way::All(own) => own.name(),
        }
    }

    fn check(&self, all: [DenseMatrix; 3]) -> Result<()> {
        match self {
            Way::Skips(own) => own.product.check(all),
            Way::All(own) => own.check(all),
        }
    }
}

/// Converts errors for which another kernel may still run to reasons.
fn or_reason<T>(found: Result<T>) -> Result<std::result::Result<T, String>> {
    let size = |error: &Error| {
        matches!(error, Error::NoKernel { .. } | Error::Overflow { .. } | Error::OutOfMemory { .. })
    };
    match found {
        Err(error) if error.name().is_some() || size(&error) => Ok(Err(error.to_string())),
        other => other.map(Ok),
    }
}

/// Kernels of a convolution of images, for runs whose operands they support.
#[derive(Debug)]
pub(crate) struct ImageKernels {
    way: Way,
    /// Selected kernel, then the more expensive ones.
    candidates: Vec<Candidate>,
    /// Slots of A and B, and shapes of A, B and C.
    slots: [Slot; 2],
    shapes: [[usize; 4]; 3],
}

impl ImageKernels {
    /// Creates the kernels. Returns `None` for other expressions or without a GPU, or the reason why the kernels do not
    /// support the expression. `out`: the extents of the output in the plan.
    pub(crate) fn new(
        source: &Source<'_, '_>,
        form: Option<&Windows>,
        out: &[usize],
    ) -> Result<Offered<Self>> {
        let Source { types, context, einsum, operands, options } = *source;
        let Some(device) = context.device() else {
            return Ok(Err(None));
        };
        let (dense, dynamic) = as_dense(operands).unwrap_or_else(|| (operands.into(), Vec::new()));
        let family = if dynamic.is_empty() { DENSE } else { FAMILY };
        let bare = einsum.mode == Mode::Assign
            && einsum.scalars.is_empty()
            && einsum.epilogue == Epilogue::default();
        let Some(form) = form else {
            return Ok(Err(None));
        };
        if !bare || !types.alike() {
            return refused(
                family,
                "computes C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f] without factors and epilogue \
                 in the type of the operands",
            );
        }
        if options.zeros == ZerosRule::Strict && !dynamic.is_empty() {
            return refused(
                family,
                "multiplies zeros inside micro-tiles, but the plan requires Zeros::Strict",
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
        let shapes = match or_reason(shape.shapes())? {
            Ok(shapes) if shapes[2] == *out => shapes,
            Ok([_, _, [_, x, y, _]]) => {
                let reason = format!(
                    "computes all {x} x {y} positions of the window, and the output is {out:?}"
                );
                return refused(family, &reason);
            }
            Err(reason) => return refused(family, &reason),
        };
        let sparse = sparse(&names, &dynamic, &shape);
        let [of_a, of_b] = [matrix_of(&names[0], a)?, matrix_of(&names[1], b)?];
        let all = matrices([of_a, of_b], &shapes, None)?;
        let slots = [source.slot(&names[0])?, source.slot(&names[1])?];
        let asked = options.variant.as_deref();
        let found = ways((device, types.operands), shape, sparse, (all, asked))?;
        Ok(match found {
            Ok((way, candidates)) => Ok(ImageKernels { way, candidates, slots, shapes }),
            Err(reason) => Err(Some(Refusal::of(family, reason))),
        })
    }

    pub(crate) fn variant(&self) -> &'static str {
        self.way.name()
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.way {
            Way::Skips(own) => own.lists.bytes(),
            Way::All(_) => 0,
        }
    }

    /// Returns the candidates, the selected one first.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        self.candidates.clone()
    }

    /// Queues the convolution. Returns `false` if the kernels cannot read the operands of this run or write its output.
    pub(crate) fn run_if_it_fits(&self, run: &Run<'_>, out: &AnyTensor) -> Result<bool> {
        let queue = run.queue(out)?;
        let [a, b] = self.slots;
        let all = matrices([run.tensor(a)?, run.tensor(b)?], &self.shapes, Some(out))?;
        if self.way.check(all).is_err() {
            return Ok(false);
        }
        match &self.way {
            Way::Skips(own) => own.run(all, queue)?,
            Way::All(own) => own.run(all, queue)?,
        }
        Ok(true)
    }
}

/// Returns the implementation with the min predicted cost, or the requested one, and all candidates. Only
/// implementations that can read the operands are considered. If there are none, returns the reasons.
fn ways(
    (device, dtype): (&Arc<Device>, Dtype),
    shape: ConvolutionShape,
    sparse: Option<Sparse>,
    (all, asked): ([DenseMatrix; 3], Option<&str>),
) -> Result<std::result::Result<(Way, Vec<Candidate>), String>> {
    let mut reasons = Vec::new();
    let mut ways = Vec::new();
    let mut offer = |way: std::result::Result<(Way, Cost), String>| match way {
        Ok((way, _)) if asked.is_some_and(|name| name != way.name()) => {
            reasons.push("another kernel was asked for".to_owned());
        }
        Ok((way, _)) if way.check(all).is_err() => reasons
            .push("copies 16 bytes at once, which an operand is not a multiple of".to_owned()),
        Ok(way) => ways.push(way),
        Err(reason) => reasons.push(reason),
    };
    if let Some((axis, expected, threshold)) = sparse {
        let skips = or_reason(Skipping::new(device, dtype, shape, (axis, threshold)))?;
        offer(skips.map(|own| {
            let cost = own.product.cost(expected, device.machine());
            (Way::Skips(Box::new(own)), cost)
        }));
    }
    let whole = or_reason(DenseConvLaunch::new(device, dtype, shape, asked))?;
    offer(whole.map(|own| {
        let cost = own.cost();
        (Way::All(Box::new(own)), cost)
    }));
    ways.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    let candidates = ways.iter().map(|(way, cost)| Candidate {
        name: way.name(),
        cost: *cost,
        zeros: Zeros::Dense,
        prepacked: None,
    });
    let candidates: Vec<Candidate> = candidates.collect();
    let first = ways.into_iter().next();
    Ok(first.map(|(way, _)| (way, candidates)).ok_or_else(|| reasons.join("; ")))
}

/// Returns the address of a dense operand, and its row stride in elements.
fn matrix_of(name: &str, operand: &AnyOperand<'_>) -> Result<(u64, usize)> {
    match operand {
        AnyOperand::Dense(d) => Ok((d.address().or_elsewhere(name)?, d.leading())),
        other => Err(wrong(name, "an uploaded dense tensor", other)),
    }
}

/// Returns operands and output. An output that is not yet known is assumed to be aligned and contiguous.
fn matrices(
    [a, b]: [(u64, usize); 2],
    shapes: &[[usize; 4]; 3],
    out: Option<&AnyTensor>,
) -> Result<[DenseMatrix; 3]> {
    let matrix = |(address, leading): (u64, usize), shape: [usize; 4]| DenseMatrix {
        address,
        rows: shape[0],
        columns: shape[3],
        leading,
    };
    let to = match out {
        Some(out) => (out.address().or_elsewhere("output")?, out.leading()),
        None => (0, shapes[2][3]),
    };
    Ok([matrix(a, shapes[0]), matrix(b, shapes[1]), matrix(to, shapes[2])])
}

impl fmt::Display for ImageKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.way {
            Way::Skips(_) => "what is not empty",
            Way::All(_) => "all",
        };
        write!(f, "{} of {what}", self.variant())
    }
}
