//! Attention at the entries of masks that are known only while running.

use super::masks::{choose, heads_of};
use super::{AttentionOptions, check_operands, raw, scale_of};
use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::attention::cpu::{HostAttention, HostHeads};
use crate::families::attention::queries::{Bits, Flags, Seen};
use crate::families::attention::{
    AttentionExtents, AttentionLaunch, KeyBlocksLaunch, MaskLaunch, RawFlags, RawKeyBlocks,
    resident,
};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// The masks of a run, as they lie in the memory of the context: flags of `i8`, of which whatever is not 0 counts. An
/// entry is there if its block, its column, its row or its diagonal is; without any flags all are. The first axis is of
/// masks, or 1 for flags that serve all masks.
///
/// A window is a run of diagonals; tokens with global attention (Longformer, arXiv 2004.05150) are columns and rows;
/// vertical and slash lines (MInference, arXiv 2407.02490) are columns and diagonals of a causal attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct MaskTensors<'a> {
    /// Blocks of 64 queries and 64 keys, `[masks, ceil(m / 64), ceil(n / 64)]`.
    pub blocks: Option<&'a Tensor<i8>>,
    /// Keys that every query sees, `[masks, n]`.
    pub columns: Option<&'a Tensor<i8>>,
    /// Queries that see every key, `[masks, m]`.
    pub rows: Option<&'a Tensor<i8>>,
    /// Diagonals, `[masks, m + n - 1]`: number `key - query + m - 1`.
    pub diagonals: Option<&'a Tensor<i8>>,
    /// Keys from a length on are hidden, `[masks]`; below 0 is 0, above n is n.
    pub lengths: Option<&'a Tensor<i32>>,
    /// In place of all flags, for [`DynamicAttention::of_key_blocks`]: the blocks of 64 keys that each 64 queries see,
    /// by number and in any order, `[masks, ceil(m / 64), most]`. A block named twice counts once; a number that no
    /// block has, such as -1, names none.
    pub key_blocks: Option<&'a Tensor<i32>>,
}

/// [`SparseAttention`](super::SparseAttention) with masks that are data: what they say is turned into tiles of
/// gathered keys and dealt to the multiprocessors on the GPU, by one kernel in front of the attention. The host learns
/// nothing and waits for nothing; another mask every run works inside a captured CUDA graph. Neighbouring heads share a
/// mask in equal parts, such as the heads of an item of a batch, whose lengths differ.
///
/// Room is made for every entry: of each mask `m (n + 128) / 8` bytes of bits (two of 1 KB for 128 queries and 128
/// keys), of which only those are touched that belong to 64 queries and 128 keys with some entries, but not all. Where each 64
/// queries see few blocks of keys, [`DynamicAttention::of_key_blocks`] takes their numbers, and room for those alone.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::ops::{AttentionOptions, DynamicAttention, MaskTensors};
/// let ctx = Context::cpu();
/// let options = AttentionOptions { heads: 1, dim: 64, ..AttentionOptions::default() };
/// let attention = DynamicAttention::new(&ctx, [2, 2], 1, &options)?;
/// let ones = ctx.upload_dense(&Dense::from_fn([1, 2, 64], |_| f16::ONE)?)?;
/// let v = ctx.upload_dense(&Dense::from_fn([1, 2, 64], |i| f16::from_f32([4.0, 8.0][i[1]]))?)?;
/// let mut out = ctx.zeros(&[1, 2, 64])?;
/// let stream = ctx.stream()?;
/// let columns = ctx.upload_dense(&Dense::new([1, 2], vec![0i8, 1])?)?;
/// let mask = MaskTensors { columns: Some(&columns), ..MaskTensors::default() };
/// attention.forward([&ones, &ones, &v], &mask, &mut out, None, &stream)?;
/// assert_eq!(out.to_dense()?.values(), [f16::from_f32(8.0); 128]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicAttention<T> {
    context: Context,
    extents: AttentionExtents,
    masks: usize,
    causal: Option<i64>,
    scale: f64,
    /// Blocks of keys that 64 queries name at the most; `None`: masks are flags.
    most: Option<usize>,
    launch: Prepared<(Lists, AttentionLaunch)>,
    element: std::marker::PhantomData<T>,
}

/// What makes the work lists.
#[derive(Debug)]
enum Lists {
    Flags(Box<MaskLaunch>),
    Blocks(KeyBlocksLaunch),
}

/// Where the masks of a run lie.
enum RawMasks {
    Flags(RawFlags),
    Blocks(RawKeyBlocks),
}

impl<T: Scalar> DynamicAttention<T> {
    /// Attention of `m` queries and `n` keys with so many masks, each of as many neighbouring heads. `options` as in
    /// [`SparseAttention`](super::SparseAttention), without lengths, which are data here.
    ///
    /// # Errors
    /// [`Error::Operand`] for masks that do not divide the heads, for lengths, and options that do not fit each other;
    /// [`Error::NoKernel`] as [`SparseAttention::new`](super::SparseAttention::new); [`Error::Overflow`] for
    /// more than 131,072 keys; [`Error::OutOfMemory`].
    pub fn new(
        context: &Context,
        [m, n]: [usize; 2],
        masks: usize,
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::planned(context, [m, n], masks, None, options)
    }

    /// Attention at blocks of 64 queries and 64 keys, of which each 64 queries name at most `most`, such as the greatest
    /// of a row of pooled scores: [`MaskTensors::key_blocks`]. Options hide keys on top of it. Room is made for `most`
    /// blocks, 16 bytes each, and 12 KB of bits of 128 queries. On a GPU, blocks that both halves of 128 queries name are
    /// read once for both.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Dense, f16};
    /// use einsparse::ops::{AttentionOptions, DynamicAttention, MaskTensors};
    /// let ctx = Context::cpu();
    /// let options = AttentionOptions { heads: 1, dim: 64, ..AttentionOptions::default() };
    /// let attention = DynamicAttention::of_key_blocks(&ctx, [64, 128], 1, 2, &options)?;
    /// let q = ctx.zeros::<f16>(&[1, 64, 64])?;
    /// let k = ctx.zeros(&[1, 128, 64])?;
    /// let v = ctx.upload_dense(&Dense::from_fn([1, 128, 64], |i| f16::from_f32((i[1] / 64) as f32))?)?;
    /// let second = ctx.upload_dense(&Dense::new([1, 1, 2], vec![1, -1])?)?;
    /// let mask = MaskTensors { key_blocks: Some(&second), ..MaskTensors::default() };
    /// let mut out = ctx.zeros(&[1, 64, 64])?;
    /// attention.forward([&q, &k, &v], &mask, &mut out, None, &ctx.stream()?)?;
    /// assert_eq!(out.to_dense()?.values(), [f16::ONE; 64 * 64]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`DynamicAttention::new`]; [`Error::Overflow`] also for more than 65,535 masks.
    pub fn of_key_blocks(
        context: &Context,
        [m, n]: [usize; 2],
        masks: usize,
        most: usize,
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::planned(context, [m, n], masks, Some(most), options)
    }

    fn planned(
        context: &Context,
        [m, n]: [usize; 2],
        masks: usize,
        most: Option<usize>,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let (heads, key_heads) = heads_of(options, 1)?;
        if masks == 0 || !heads.is_multiple_of(masks) {
            let reason = format!("are {masks}, which do not divide {heads} heads into equal parts");
            return Err(Error::operand("masks", reason));
        }
        if options.lengths.is_some() {
            return Err(Error::operand("lengths", "are data of each run here"));
        }
        let extents = AttentionExtents { heads, key_heads, m, n, d: options.dim };
        elements("queries", &[heads, m, options.dim])?;
        elements("keys", &[key_heads, n, options.dim])?;
        elements("masks", &[masks, m.div_ceil(64), n.div_ceil(64)])?;
        elements("diagonals", &[m.saturating_add(n)])?;
        let scale = scale_of(options)?;
        let launch = context.prepared(|device| {
            let row = choose::<T>(device.machine(), extents.d, None)?;
            let (causal, blocks) = (options.causal, resident(device.machine(), row));
            let (tiles, lists) = if let Some(most) = most {
                let limits = (most, causal);
                let (own, lists) = KeyBlocksLaunch::new(device, extents, masks, limits, blocks)?;
                (Lists::Blocks(own), lists)
            } else {
                let (own, lists) = MaskLaunch::new(device, extents, masks, causal, blocks)?;
                (Lists::Flags(Box::new(own)), lists)
            };
            let attention = AttentionLaunch::new(device, row, extents, scale, lists)?;
            Ok((tiles, attention))
        })?;
        Ok(DynamicAttention {
            context: context.clone(),
            extents,
            masks,
            causal: options.causal,
            scale,
            most,
            launch,
            element: std::marker::PhantomData,
        })
    }

    /// The kernels, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", |(_, l)| l.row().name)
    }

    /// Device bytes beside the operands.
    pub fn workspace_bytes(&self) -> usize {
        let both = self.launch.as_ref();
        both.map_or(0, |(tiles, attention)| match tiles {
            Lists::Flags(tiles) => tiles.bytes() + attention.bytes(),
            Lists::Blocks(_) => attention.bytes(),
        })
    }

    /// Queries `[heads, m, dim]`, keys and values `[key_heads, n, dim]`, into the output `[heads, m, dim]`, or with heads
    /// side by side in rows; logarithms
    /// of the sums of exponentials, `[heads, m]`, as [`SparseAttention::forward`](super::SparseAttention::forward). On
    /// a GPU nothing is allocated and nothing waited for; the call can be captured in a CUDA graph, and reads the masks
    /// anew at every launch of it.
    ///
    /// # Errors
    /// Tensors of another shape or context than planned; [`Error::Operand`] for flags where blocks of keys were planned,
    /// and the other way round; output untouched.
    pub fn forward(
        &self,
        [q, k, v]: [&Tensor<T>; 3],
        mask: &MaskTensors<'_>,
        out: &mut Tensor<T>,
        log_sum: Option<&mut Tensor<f32>>,
        stream: &Stream,
    ) -> Result<()> {
        let all = [q, k, v, &*out];
        check_operands(&self.context, self.extents, all, log_sum.as_deref())?;
        let masks = self.check_mask(mask)?;
        let place = log_sum.as_ref().map_or(0, |l| l.place());
        let raw = raw([q, k, v, out], self.extents, place);
        // SAFETY: shapes and places were checked; the tensors are borrowed for the call, and device memory is freed
        // only after the work queued on the context. Runs take turns.
        let queue = unsafe { Queue::new(self.context.stream_of(stream)?) };
        let queue_both = |(tiles, attention): &(Lists, AttentionLaunch)| {
            attention.run_behind(&raw, queue, true, || match (tiles, &masks) {
                (Lists::Flags(tiles), RawMasks::Flags(flags)) => tiles.run(flags, queue),
                (Lists::Blocks(tiles), RawMasks::Blocks(blocks)) => tiles.run(blocks, queue),
                _ => Err(Error::operand("mask", "is of another kind than planned")),
            })
        };
        if !self.launch.queue(queue_both)? {
            self.run_on_host([q, k, v], mask, out, log_sum);
        }
        Ok(())
    }

    /// The shapes of the masks that are given, and where they lie.
    fn check_mask(&self, mask: &MaskTensors<'_>) -> Result<RawMasks> {
        if let Some(lengths) = mask.lengths {
            lengths.check("lengths", &self.context, &[self.masks])?;
        }
        let Some(most) = self.most else {
            if mask.key_blocks.is_some() {
                let reason = "are given, and were not planned with `of_key_blocks`";
                return Err(Error::operand("key_blocks", reason));
            }
            return Ok(RawMasks::Flags(self.check_flags(mask)?));
        };
        for (name, given) in [
            ("blocks", mask.blocks),
            ("columns", mask.columns),
            ("rows", mask.rows),
            ("diagonals", mask.diagonals),
        ] {
            if given.is_some() {
                let reason = "are given beside key_blocks, which stand in place of all flags";
                return Err(Error::operand(name, reason));
            }
        }
        let Some(blocks) = mask.key_blocks else {
            let reason = format!("are missing; 64 queries were planned with {most} of them");
            return Err(Error::operand("key_blocks", reason));
        };
        let (masks, down) = (self.masks_of(blocks.shape()), self.extents.m.div_ceil(64));
        blocks.check("key_blocks", &self.context, &[masks, down, most])?;
        let row_bytes = blocks.leading() * size_of::<i32>();
        Ok(RawMasks::Blocks(RawKeyBlocks {
            blocks: blocks.place(),
            mask_bytes: if masks == 1 { 0 } else { down * row_bytes },
            row_bytes,
            lengths: mask.lengths.map_or(0, |l| l.place()),
        }))
    }

    /// One for all masks, or one for each.
    fn masks_of(&self, shape: &[usize]) -> usize {
        match shape.first() {
            Some(1) => 1,
            _ => self.masks,
        }
    }

    fn check_flags(&self, mask: &MaskTensors<'_>) -> Result<RawFlags> {
        let AttentionExtents { m, n, .. } = self.extents;
        let (down, across) = (m.div_ceil(64), n.div_ceil(64));
        let count = (m + n).saturating_sub(1);
        let given = |name: &str, tensor: Option<&Tensor<i8>>, of_mask: &[usize]| {
            let Some(tensor) = tensor else {
                return Ok((0, 0));
            };
            let masks = self.masks_of(tensor.shape());
            let shape: Vec<usize> = std::iter::once(masks).chain(of_mask.iter().copied()).collect();
            tensor.check(name, &self.context, &shape)?;
            let rows: usize = of_mask[..of_mask.len() - 1].iter().product();
            let bytes = if masks == 1 { 0 } else { rows * tensor.leading() };
            Ok::<_, Error>((tensor.place(), bytes))
        };
        Ok(RawFlags {
            blocks: given("blocks", mask.blocks, &[down, across])?,
            block_row: mask.blocks.map_or(0, Tensor::leading),
            columns: given("columns", mask.columns, &[n])?,
            rows: given("rows", mask.rows, &[m])?,
            diagonals: given("diagonals", mask.diagonals, &[count])?,
            lengths: mask.lengths.map_or(0, |l| l.place()),
            ..RawFlags::default()
        })
    }

    /// The flags of one mask, on the host.
    fn flags(&self, mask: &MaskTensors<'_>, index: usize) -> Flags {
        let AttentionExtents { m, n, .. } = self.extents;
        let set = |tensor: Option<&Tensor<i8>>, rows: usize, columns: usize| -> Vec<bool> {
            let Some(tensor) = tensor else {
                return Vec::new();
            };
            let own = if tensor.shape()[0] == 1 { 0 } else { index };
            let (values, leading) = (tensor.host().unwrap_or(&[]), tensor.leading());
            (0..rows * columns)
                .map(|i| values[(own * rows + i / columns) * leading + i % columns] != 0)
                .collect()
        };
        let bits = |tensor: Option<&Tensor<i8>>, count: usize| {
            let all = set(tensor, 1, count);
            Bits::of(count, (0..all.len()).filter(|&i| all[i]))
        };
        let length = mask.lengths.and_then(Tensor::host);
        let length = length.map_or(n, |all| usize::try_from(all[index]).unwrap_or(0).min(n));
        let given = [mask.blocks, mask.columns, mask.rows, mask.diagonals];
        let (down, across) = (m.div_ceil(64), n.div_ceil(64));
        let mut blocks = set(mask.blocks, down, across);
        if let Some(named) = mask.key_blocks {
            let own = if named.shape()[0] == 1 { 0 } else { index };
            let (values, leading) = (named.host().unwrap_or(&[]), named.leading());
            blocks = vec![false; down * across];
            for row in 0..down {
                let names = values.iter().skip((own * down + row) * leading);
                for &block in names.take(self.most.unwrap_or(0)) {
                    let there = usize::try_from(block).is_ok_and(|block| block < across);
                    if there {
                        blocks[row * across + block as usize] = true;
                    }
                }
            }
        }
        Flags {
            shape: [m, n],
            full: mask.key_blocks.is_none() && given.iter().all(Option::is_none),
            blocks,
            columns: bits(mask.columns, n),
            rows: bits(mask.rows, m),
            diagonals: bits(mask.diagonals, (m + n).saturating_sub(1)),
            ranges: Vec::new(),
            causal: self.causal,
            length,
        }
    }

    fn run_on_host(
        &self,
        operands: [&Tensor<T>; 3],
        mask: &MaskTensors<'_>,
        out: &mut Tensor<T>,
        log_sum: Option<&mut Tensor<f32>>,
    ) {
        let operands = operands.map(|tensor| HostHeads::in_rows(tensor, self.extents.d));
        let flags: Vec<Flags> = (0..self.masks).map(|index| self.flags(mask, index)).collect();
        let each = self.extents.heads / self.masks;
        let masks = (0..self.extents.heads).map(|head| Seen::Flags(&flags[head / each]));
        let attention = HostAttention::new(operands, masks, self.extents, self.scale);
        let log_sum = log_sum.and_then(Tensor::host_mut);
        attention.run(&mut out.any, log_sum);
    }
}
