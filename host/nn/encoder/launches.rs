//! The layer's launches on a GPU, and what lies between them.

use super::{EncoderOptions, EncoderWeights, rows};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::attention::{
    AttentionExtents, AttentionLaunch, MaskLaunch, RawAttention, RawFlags,
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
    /// Packed input; queries, keys and values; attention, later normalised; sums; hidden.
    pub(super) rows: [(DeviceMemory, usize); 5],
}

impl Launches {
    pub(super) fn new<T: Scalar>(
        device: &std::sync::Arc<Device>,
        options: &EncoderOptions,
    ) -> Result<Self> {
        let EncoderOptions {
            items,
            distance,
            width,
            heads,
            hidden,
            ..
        } = *options;
        let dtype = T::DTYPE;
        let pack = PackLaunch::new(device, dtype, [items, distance, width], options.epsilon)?;
        let m = pack.capacity();
        let extents = AttentionExtents {
            heads,
            key_heads: heads,
            m,
            n: m,
            d: width / heads,
        };
        let row = crate::ops::attention::choose::<T>(extents.d, None)?;
        let (masks, lists) = MaskLaunch::new(device, extents, 1, None)?;
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
            rows: [
                zeros(width)?,
                zeros(3 * width)?,
                zeros(width)?,
                zeros(width)?,
                zeros(hidden)?,
            ],
            pack,
            masks,
            attention,
        })
    }

    /// Queues the layer. Tensors are of the planned extents, and runs follow one another.
    pub(super) fn run<T: Scalar>(
        &self,
        (options, steps): (&EncoderOptions, usize),
        [x, out]: [Rows; 2],
        lengths: u64,
        weights: &EncoderWeights<'_, T>,
        queue: Queue<'_>,
    ) -> Result<()> {
        if self.pack.capacity() == 0 || options.width == 0 {
            return Ok(());
        }
        let at = |tensor: &Tensor<T>| tensor.address().unwrap_or(0);
        let [packed, qkv, normed, sums, hidden] =
            self.rows.each_ref().map(|(memory, columns)| Rows {
                address: memory.address(),
                leading: *columns,
            });
        let flags = self.flags();
        let heads = heads(options, qkv, normed);
        let matrices = [weights.qkv, weights.out, weights.up, weights.down];
        let ahead = matrices.map(|[matrix, _]| span(matrix));
        let product = |which: usize, from: Rows, to: Rows| {
            let [matrix, bias] = matrices[which];
            let operands = [from, rows(matrix), to];
            // Packing says how many rows there are, and is the launch ahead of the first product.
            let live = (flags.live, which > 0);
            // Nothing in here writes weights. Packing and products let the next launch start behind their own wait: at
            // the start of a launch behind one of them, all ahead of that one has ended. So whoever wrote weights ahead
            // of the layer has ended before the first product starts, and packing, which writes `live`, before the
            // others do: the projection, behind attention and work list, which let it start before their own wait, has
            // only packing to go by, and needs no more.
            self.products[which].run(operands, (at(bias), which == 2), live, queue)
        };
        let norm = |own: [&Tensor<T>; 2], operands: [Rows; 2], to: Rows, scatter: bool| {
            // A norm stands behind a product, and all that it reads but the product's result was written ahead of that.
            self.pack
                .norm(operands, own.map(at), (to, scatter, true), queue)
        };
        for step in 0..steps {
            match step {
                0 => self.pack.pack(x, lengths, packed, ahead, queue)?,
                1 => product(0, packed, qkv)?,
                2 => self.masks.run(&flags, queue)?,
                3 => self.attention.run_behind(&heads, queue, false, || Ok(()))?,
                4 => product(1, normed, sums)?,
                5 => norm(weights.first_norm, [packed, sums], normed, false)?,
                6 => product(2, normed, hidden)?,
                7 => product(3, hidden, sums)?,
                _ => norm(weights.second_norm, [normed, sums], out, true)?,
            }
        }
        Ok(())
    }

    /// The mask as packing has left it, which is in front of the product to queries, keys and values.
    fn flags(&self) -> RawFlags {
        let [ranges, live] = self.pack.addresses();
        RawFlags {
            ranges,
            live,
            beside: true,
            ..RawFlags::default()
        }
    }
}

/// Where a matrix begins, and its bytes.
fn span<T: Scalar>(matrix: &Tensor<T>) -> (u64, usize) {
    let [inputs, outputs] = [0, 1].map(|axis| matrix.shape().get(axis).map_or(0, |&x| x));
    let elements = match inputs == 0 || outputs == 0 {
        true => 0,
        false => (inputs - 1) * matrix.leading() + outputs,
    };
    (matrix.address().unwrap_or(0), elements * T::DTYPE.bytes())
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
