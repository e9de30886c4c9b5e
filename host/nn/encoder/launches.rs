//! Launches of the layers on a GPU, and the device memory that they share.

use super::{EncoderOptions, EncoderWeights, rows};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::attention::{
    AttentionExtents, AttentionLaunch, MaskLaunch, RawAttention, RawFlags, resident,
};
use crate::families::discover::{LiveProduct, PackLaunch, Rows};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Kernels in launch order.
#[derive(Debug)]
pub(super) struct Launches {
    pub(super) pack: PackLaunch,
    pub(super) masks: MaskLaunch,
    pub(super) attention: AttentionLaunch,
    /// Products to queries, keys and values; output projection; up; down.
    pub(super) products: [LiveProduct; 4],
    /// Packed input of a layer; queries, keys and values; attention, later normalised rows; sums; hidden rows. Each
    /// with its number of columns.
    pub(super) rows: [(DeviceMemory, usize); 5],
}

/// Arguments of a run, in addition to the weights.
pub(super) struct EncoderRun<'a> {
    pub options: &'a EncoderOptions,
    /// Whether `x` and `out` have packed rows.
    pub packed: bool,
    /// Maximum number of launches.
    pub steps: usize,
    pub x: Rows,
    pub out: Rows,
    pub lengths: u64,
}

/// Steps that occur once per run: packing and the work list.
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

    /// Queues the layers. Tensors have the planned extents, and runs are serialized.
    ///
    /// Every kernel waits for the previous launch before it exits, and thereby for all earlier launches. Accesses after
    /// the wait are in order, so layers can share rows. Accesses before the wait:
    /// - Writes: only the work list. Its readers, the attention kernels, belong to an earlier run, and have completed
    ///   when packing has.
    /// - Reads: only data that was complete when the previous launch started. Packing and products start the next
    ///   launch after their own wait: when a launch that follows one of them starts, all launches before that one have
    ///   completed. The other kernels start the next launch at once: it can rely only on launches that had completed
    ///   when they started.
    ///
    /// Weights are read before the wait. No kernel here writes them. Launches that wrote them before the layers have
    /// completed before the first product starts, because it follows packing. `live` is read before the wait: packing
    /// writes it and has completed before any launch after the first product starts. The residual rows of a norm are
    /// also read before the wait: a norm follows a product, and packing or a norm wrote the rows before that product.
    pub(super) fn run<T: Scalar>(
        &self,
        run: &EncoderRun<'_>,
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
                self.step(run, number, ends, step, weights, queue)?;
            }
        }
        Ok(())
    }

    /// Queues a step of layer `number`. `ends`: this is the last layer.
    fn step<T: Scalar>(
        &self,
        run: &EncoderRun<'_>,
        number: usize,
        ends: bool,
        step: usize,
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
            // The output replaces the packed rows of the first layer. The rows past the last token stay zero, which
            // keeps what attention gathers there finite.
            _ => norm(weights.second_norm, [normed, sums], packed, false),
        }
    }

    /// Mask that packing wrote. The product between packing and the work list waits for packing, so the work list can
    /// run concurrently with that product.
    fn flags(&self) -> RawFlags {
        let [ranges, live] = self.pack.addresses();
        RawFlags { ranges, live, beside: true, ..RawFlags::default() }
    }
}

/// Address and bytes of a matrix.
fn span<T: Scalar>(matrix: &Tensor<T>) -> (u64, usize) {
    let [inputs, outputs] = [0, 1].map(|axis| matrix.shape().get(axis).map_or(0, |&x| x));
    let elements = match inputs == 0 || outputs == 0 {
        true => 0,
        false => (inputs - 1) * matrix.leading() + outputs,
    };
    (matrix.place(), elements * T::DTYPE.bytes())
}

/// Attention arguments for rows `qkv` of queries, keys and values, and output rows `out`.
fn heads(options: &EncoderOptions, qkv: Rows, out: Rows) -> RawAttention {
    let part = |at: usize| qkv.address + (at * options.width * 2) as u64;
    let strides = |rows: Rows| [options.width / options.heads, rows.leading];
    RawAttention::default()
        .q(part(0))
        .q_strides(strides(qkv))
        .k(part(1))
        .k_strides(strides(qkv))
        .v(part(2))
        .v_strides(strides(qkv))
        .out(out.address)
        .out_strides(strides(out))
        .log_sum(0)
}
