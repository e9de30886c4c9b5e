//! Attention at the entries of masks that are data of each run.

use super::masks::{choose, heads_of};
use super::{AttentionOptions, operands, scale_of};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::attention::cpu::{HostAttention, HostHeads};
use crate::families::attention::queries::{Bits, Flags, Seen};
use crate::families::attention::{
    AttentionExtents, AttentionLaunch, KeyBlocksLaunch, MaskLaunch, RawFlags, RawKeyBlocks,
    resident,
};
use crate::operator::{Operator, Run};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Masks of a run, in the memory of the context. Flags are `i8`, and any value other than 0 sets a flag. An entry is
/// visible if the flag of its block, column, row or diagonal is set. Without flags, all entries are visible. The first
/// axis is the mask; its extent is 1 for flags that apply to all masks.
///
/// A window is a range of diagonals. Tokens with global attention (Longformer, arXiv 2004.05150) are columns and rows.
/// Vertical and slash lines (MInference, arXiv 2407.02490) are columns and diagonals of a causal attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct MaskTensors<'a> {
    /// Blocks of 64 queries and 64 keys, `[masks, ceil(m / 64), ceil(n / 64)]`.
    pub blocks: Option<&'a Tensor<i8>>,
    /// Keys that are visible to every query, `[masks, n]`.
    pub columns: Option<&'a Tensor<i8>>,
    /// Queries to which every key is visible, `[masks, m]`.
    pub rows: Option<&'a Tensor<i8>>,
    /// Diagonals, `[masks, m + n - 1]`, with index `key - query + m - 1`.
    pub diagonals: Option<&'a Tensor<i8>>,
    /// Lengths, `[masks]`: keys at or above the length are hidden. Values are clamped to 0 ..= n.
    pub lengths: Option<&'a Tensor<i32>>,
    /// Visible blocks of 64 keys for each 64 queries, `[masks, ceil(m / 64), most]`, instead of all flags; see
    /// [`DynamicAttention::of_key_blocks`]. They are block indices in any order. Duplicates count once. An index out of
    /// range, such as -1, is ignored.
    pub key_blocks: Option<&'a Tensor<i32>>,
}

/// [`SparseAttention`](super::SparseAttention) with masks that are data. On the GPU, one kernel before the attention
/// converts the masks to tiles of gathered keys and distributes the tiles to the multiprocessors. The masks are not
/// copied to the host, and the host does not wait. A captured CUDA graph can therefore read another mask in every
/// launch. The heads are split into equal groups of adjacent heads that share a mask, such as the heads of a batch item
/// with its own length.
///
/// The workspace has space for every entry: `m (n + 128) / 8` bytes of bits for each mask (two tiles of 1 KB for 128
/// queries and 128 keys). The bits of 64 queries and 128 keys are accessed only if some but not all of these entries
/// are visible. If few blocks of keys are visible to each 64 queries, use [`DynamicAttention::of_key_blocks`]. It reads
/// block indices and allocates memory for these blocks only.
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
    extents: AttentionExtents,
    masks: usize,
    causal: Option<i64>,
    scale: f64,
    /// Maximum number of blocks of keys per 64 queries; `None`: masks are flags.
    most: Option<usize>,
    operator: Operator<Launches>,
    element: std::marker::PhantomData<T>,
}

/// Launches of a run, in their order.
#[derive(Debug)]
struct Launches {
    lists: Lists,
    attention: AttentionLaunch,
}

/// Launch that creates the work lists.
#[derive(Debug)]
enum Lists {
    Flags(Box<MaskLaunch>),
    Blocks(KeyBlocksLaunch),
}

/// Addresses of the masks of a run.
enum RawMasks {
    Flags(RawFlags),
    Blocks(RawKeyBlocks),
}

impl<T: Scalar> DynamicAttention<T> {
    /// Plans attention of `m` queries and `n` keys with `masks` masks, each for `heads / masks` adjacent heads.
    /// `options` are those of [`SparseAttention`](super::SparseAttention) without lengths, which are data here.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a number of masks that does not divide the heads, for lengths, and for inconsistent
    /// options; [`Error::NoKernel`] as for [`SparseAttention::new`](super::SparseAttention::new); [`Error::Overflow`]
    /// for more than 131,072 keys; [`Error::OutOfMemory`].
    pub fn new(
        context: &Context,
        [m, n]: [usize; 2],
        masks: usize,
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::planned(context, [m, n], masks, None, options)
    }

    /// Plans attention at blocks of 64 queries and 64 keys ([`MaskTensors::key_blocks`]). Each 64 queries name at most
    /// `most` blocks, such as the largest ones of a row of pooled scores. Options hide further keys. For each 128
    /// queries of a mask, the workspace holds at most `most` + 1 tiles of 16 bytes, and 12 KB of bits. On a GPU, a
    /// block that both halves of 128 queries name is read once for both.
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
    /// See [`DynamicAttention::new`]; [`Error::Overflow`] also for more than 65,535 masks.
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
            return Err(Error::range("masks", masks, format!("a divisor of {heads} heads")));
        }
        if options.lengths.is_some() {
            return Err(Error::range("lengths", "Some", "None: lengths are data of each run"));
        }
        let extents = AttentionExtents { heads, key_heads, m, n, d: options.dim };
        elements("queries", &[heads, m, options.dim])?;
        elements("keys", &[key_heads, n, options.dim])?;
        elements("masks", &[masks, m.div_ceil(64), n.div_ceil(64)])?;
        elements("diagonals", &[m.saturating_add(n)])?;
        let scale = scale_of(options)?;
        let operator = Operator::new(context, |device| {
            let row = choose::<T>(device.machine(), extents.d, None)?;
            let (causal, blocks) = (options.causal, resident(device.machine(), row));
            let (lists, work) = if let Some(most) = most {
                let limits = (most, causal);
                let (own, work) = KeyBlocksLaunch::new(device, extents, masks, limits, blocks)?;
                (Lists::Blocks(own), work)
            } else {
                let (own, work) = MaskLaunch::new(device, extents, masks, causal, blocks)?;
                (Lists::Flags(Box::new(own)), work)
            };
            let attention = AttentionLaunch::new(device, row, extents, scale, work)?;
            Ok(Launches { lists, attention })
        })?;
        Ok(DynamicAttention {
            extents,
            masks,
            causal: options.causal,
            scale,
            most,
            operator,
            element: std::marker::PhantomData,
        })
    }

    /// Returns the name of the attention kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(|own| own.attention.row().name)
    }

    /// Returns the device memory in bytes, operands excluded.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(|own| match &own.lists {
            Lists::Flags(lists) => lists.bytes() + own.attention.bytes(),
            Lists::Blocks(_) => own.attention.bytes(),
        })
    }

    /// Computes the output `[heads, m, dim]` from queries `[heads, m, dim]`, and keys and values `[key_heads, n, dim]`,
    /// or from heads side by side in rows. `log_sum`, `[heads, m]`, is that of
    /// [`SparseAttention::forward`](super::SparseAttention::forward). On a GPU, the call neither allocates nor waits.
    /// It can be captured in a CUDA graph, each launch of which reads the masks again.
    ///
    /// # Errors
    /// Fails for tensors of another shape or context than planned. [`Error::Operand`] or [`Error::NotPlanned`] if flags
    /// are given and blocks of keys were planned, or the reverse. The output is then unchanged.
    pub fn forward(
        &self,
        [q, k, v]: [&Tensor<T>; 3],
        mask: &MaskTensors<'_>,
        out: &mut Tensor<T>,
        log_sum: Option<&mut Tensor<f32>>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let raw = operands(&run, self.extents, [q, k, v, out], log_sum.as_deref())?;
        let masks = self.check_mask(&run, mask)?;
        run.queue(
            |own, queue| {
                own.attention.run_behind(&raw, queue, true, || match (&own.lists, &masks) {
                    (Lists::Flags(lists), RawMasks::Flags(flags)) => lists.run(flags, queue),
                    (Lists::Blocks(lists), RawMasks::Blocks(blocks)) => lists.run(blocks, queue),
                    _ => Err(Error::operand("mask", "is of another kind than planned")),
                })
            },
            || {
                self.run_on_host([q, k, v], mask, out, log_sum);
                Ok(())
            },
        )
    }

    /// Validates the shapes of the given masks and returns their addresses.
    fn check_mask(&self, run: &Run<'_, Launches>, mask: &MaskTensors<'_>) -> Result<RawMasks> {
        let lengths = match mask.lengths {
            Some(lengths) => run.matrix("lengths", lengths.any(), &[self.masks])?.address,
            None => 0,
        };
        let Some(most) = self.most else {
            if mask.key_blocks.is_some() {
                let fix = "create the attention with `DynamicAttention::of_key_blocks`";
                return Err(Error::not_planned("key_blocks", fix));
            }
            return Ok(RawMasks::Flags(RawFlags { lengths, ..self.check_flags(run, mask)? }));
        };
        for (name, given) in [
            ("blocks", mask.blocks),
            ("columns", mask.columns),
            ("rows", mask.rows),
            ("diagonals", mask.diagonals),
        ] {
            if given.is_some() {
                let reason = "are given together with key_blocks, which replace all flags";
                return Err(Error::operand(name, reason));
            }
        }
        let Some(blocks) = mask.key_blocks else {
            let reason = format!("64 queries were planned with {most} of them");
            return Err(Error::missing_for("key_blocks", reason));
        };
        let (masks, down) = (self.masks_of(blocks.shape()), self.extents.m.div_ceil(64));
        let blocks = run.matrix("key_blocks", blocks.any(), &[masks, down, most])?;
        let row_bytes = blocks.leading * size_of::<i32>();
        Ok(RawMasks::Blocks(RawKeyBlocks {
            blocks: blocks.address,
            mask_bytes: if masks == 1 { 0 } else { down * row_bytes },
            row_bytes,
            lengths,
        }))
    }

    /// Returns the number of masks of a tensor of this shape: 1 for all masks, or one per mask.
    fn masks_of(&self, shape: &[usize]) -> usize {
        match shape.first() {
            Some(1) => 1,
            _ => self.masks,
        }
    }

    fn check_flags(&self, run: &Run<'_, Launches>, mask: &MaskTensors<'_>) -> Result<RawFlags> {
        let AttentionExtents { m, n, .. } = self.extents;
        let (down, across) = (m.div_ceil(64), n.div_ceil(64));
        let count = (m + n).saturating_sub(1);
        let given = |name: &str, tensor: Option<&Tensor<i8>>, of_mask: &[usize]| {
            let Some(tensor) = tensor else {
                return Ok((0, 0));
            };
            let masks = self.masks_of(tensor.shape());
            let shape: Vec<usize> = std::iter::once(masks).chain(of_mask.iter().copied()).collect();
            let address = run.matrix(name, tensor.any(), &shape)?.address;
            let rows: usize = of_mask[..of_mask.len() - 1].iter().product();
            let bytes = if masks == 1 { 0 } else { rows * tensor.leading() };
            Ok::<_, Error>((address, bytes))
        };
        Ok(RawFlags {
            blocks: given("blocks", mask.blocks, &[down, across])?,
            block_row: mask.blocks.map_or(0, Tensor::leading),
            columns: given("columns", mask.columns, &[n])?,
            rows: given("rows", mask.rows, &[m])?,
            diagonals: given("diagonals", mask.diagonals, &[count])?,
            ..RawFlags::default()
        })
    }

    /// Returns the flags of one mask, read from host memory.
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
        let operands = operands.map(|tensor| HostHeads::in_rows(tensor.any(), self.extents.d));
        let flags: Vec<Flags> = (0..self.masks).map(|index| self.flags(mask, index)).collect();
        let each = self.extents.heads / self.masks;
        let masks = (0..self.extents.heads).map(|head| Seen::Flags(&flags[head / each]));
        let attention = HostAttention::new(operands, masks, self.extents, self.scale);
        let log_sum = log_sum.and_then(Tensor::host_mut);
        attention.run(&mut out.any, log_sum);
    }
}
