//! The launches of the layers on a GPU, and what lies between them.

use super::{EncoderOptions, EncoderWeights, rows};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::attention::{
    AttentionExtents, AttentionLaunch, MaskLaunch, RawAttention, RawFlags, resident,
};
use crate::families::discover::{LiveProduct, PackLaunch, Rows};
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Kernels in their order.
#[derive(Debug)]
pub(super) struct Launches {
    /// End of the last run: all share the rows in between.
    pub(super) turns: Turns,
    pub(super) pack: PackLaunch,
    pub(super) masks: MaskLaunch,
    pub(super) attention: AttentionLaunch,
    /// To queries, keys and values; output; up; down.
    pub(super) products: [LiveProduct; 4],
    /// Packed input of a layer; queries, keys and values; attention, later normalised; sums; hidden.
    pub(super) rows: [(DeviceMemory, usize); 5],
}

/// What a run takes, beside weights.
pub(super) struct Run<'a> {
    pub options: &'a EncoderOptions,
    /// `x` and `out` have packed rows.
    pub packed: bool,
    /// Launches at the most.
    pub steps: usize,
    pub x: Rows,
    pub out: Rows,
    pub lengths: u64,
}

/// Steps that a run has once: packing and the work list.
const ONCE: [usize; 2] = [0, 2];

impl Launches {
    pub(super) fn new<T: Scalar>(
        device: &std::sync::Arc<Device>,
        options: &EncoderOptions,
    ) -> Result<Self> {
        let EncoderOptions { items, distance, width, heads, hidden, .. } = *options;
        let dtype = T::DTYPE;
        let extents = [items, distance, width];
        let pack = PackLaunch::new(device, dtype, extents, options.rows(), options.epsilon)?;
        let m = pack.capacity();
        let extents = AttentionExtents { heads, key_heads: heads, m, n: m, d: width / heads };
        let row = crate::ops::attention::choose::<T>(device.machine(), extents.d, None)?;
        let blocks = resident(device.machine(), row);
        let (masks, lists) = MaskLaunch::new(device, extents, 1, None, blocks)?;
        let scale = 1.0 / (extents.d.max(1) as f64).sqrt();
        let attention = AttentionLaunch::new(device, row, extents, scale, lists)?;
        let expected = options.expected.unwrap_or(m);
        let product = |k, n| LiveProduct::new(device, dtype, [m, k, n], expected);
        let zeros =
            |columns: usize| Ok::<_, Error>((device.zeros((m * columns * 2).max(16))?, columns));
        Ok(Launches {
            turns: Turns::new(device)?,
            products: [
                product(width, 3 * width)?,
                product(width, width)?,
                product(width, hidden)?,
                product(hidden, width)?,
            ],
            rows: [zeros(width)?, zeros(3 * width)?, zeros(width)?, zeros(width)?, zeros(hidden)?],
            pack,
            masks,
            attention,
        })
    }

    /// Queues the layers. Tensors are of the planned extents, and runs follow one another.
    ///
    /// Every kernel waits for the one ahead before it ends, and so for all ahead: what it writes or reads behind its
    /// own wait is in order, and layers can share rows. That leaves what comes in front of a wait:
    /// - writes: the work list alone, whose readers, attention, belong to an earlier run, and have ended when packing
    ///   has;
    /// - reads: what had been written when the launch ahead started. Packing and products let the next launch start
    ///   behind their own wait: at the start of a launch behind one of them, all ahead of that one has ended. The
    ///   others let it start at once, so behind them no more has ended than at their own start.
    ///
    /// Weights are read so: nothing in here writes them, and whoever wrote them ahead of the layers has ended before
    /// the first product starts, which stands behind packing. `live` is: packing writes it and has ended before any
    /// launch behind the first product starts. A norm's residual rows are: a norm stands behind a product, and they
    /// were written ahead of that, by packing or a norm.
    pub(super) fn run<T: Scalar>(
        &self,
        run: &Run<'_>,
        layers: &[EncoderWeights<'_, T>],
        queue: Queue<'_>,
    ) -> Result<()> {
        if self.pack.capacity() == 0 || run.options.width == 0 {
            return Ok(());
        }
        let mut left = run.steps;
        for (number, weights) in layers.iter().enumerate() {
            let steps = (0..9).filter(|step| number == 0 || !ONCE.contains(step));
            let ends = number + 1 == layers.len();
            for step in steps {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                self.step(run, (number, ends, step), weights, queue)?;
            }
        }
        Ok(())
    }

    /// Queues a step of layer `number`, which `ends` the run or does not.
    fn step<T: Scalar>(
        &self,
        run: &Run<'_>,
        (number, ends, step): (usize, bool, usize),
        weights: &EncoderWeights<'_, T>,
        queue: Queue<'_>,
    ) -> Result<()> {
        let at = |tensor: &Tensor<T>| tensor.place();
        let [packed, qkv, normed, sums, hidden] = self
            .rows
            .each_ref()
            .map(|(memory, columns)| Rows { address: memory.address(), leading: *columns });
        let flags = self.flags();
        let matrices = [weights.qkv, weights.out, weights.up, weights.down];
        let product = |which: usize, from: Rows, to: Rows| {
            let [matrix, bias] = matrices[which];
            let operands = [from, rows(matrix), to];
            let live = (flags.live, number + which > 0);
            self.products[which].run(operands, (at(bias), which == 2), live, queue)
        };
        let norm = |own: [&Tensor<T>; 2], operands: [Rows; 2], to: Rows, scatter: bool| {
            self.pack.norm(operands, own.map(at), (to, scatter, true), queue)
        };
        match step {
            0 => {
                let ahead = matrices.map(|[matrix, _]| span(matrix));
                let x = (run.x, run.packed);
                self.pack.pack(x, run.lengths, packed, ahead, queue)
            }
            1 => product(0, packed, qkv),
            2 => self.masks.run(&flags, queue),
            3 => {
                let heads = heads(run.options, qkv, normed);
                self.attention.run_behind(&heads, queue, false, || Ok(()))
            }
            4 => product(1, normed, sums),
            5 => norm(weights.first_norm, [packed, sums], normed, false),
            6 => product(2, normed, hidden),
            7 => product(3, hidden, sums),
            _ if ends => norm(weights.second_norm, [normed, sums], run.out, !run.packed),
            // To where packing put the rows of the first layer: the zeros behind them are still there, which keep what
            // attention gathers behind the last token finite.
            _ => norm(weights.second_norm, [normed, sums], packed, false),
        }
    }

    /// The mask as packing has left it, which is in front of the product to queries, keys and values.
    fn flags(&self) -> RawFlags {
        let [ranges, live] = self.pack.addresses();
        RawFlags { ranges, live, beside: true, ..RawFlags::default() }
    }
}

/// Where a matrix begins, and its bytes.
fn span<T: Scalar>(matrix: &Tensor<T>) -> (u64, usize) {
    let [inputs, outputs] = [0, 1].map(|axis| matrix.shape().get(axis).map_or(0, |&x| x));
    let elements = match inputs == 0 || outputs == 0 {
        true => 0,
        false => (inputs - 1) * matrix.leading() + outputs,
    };
    (matrix.place(), elements * T::DTYPE.bytes())
}

/// Queries, keys and values beside one another in rows, and the rows that the heads' results go to.
fn heads(options: &EncoderOptions, qkv: Rows, out: Rows) -> RawAttention {
    let part = |at: usize| qkv.address + (at * options.width * 2) as u64;
    let strides = |rows: Rows| [options.width / options.heads, rows.leading];
    RawAttention {
        q: part(0),
        q_strides: strides(qkv),
        k: part(1),
        k_strides: strides(qkv),
        v: part(2),
        v_strides: strides(qkv),
        out: out.address,
        out_strides: strides(out),
        log_sum: 0,
    }
}
