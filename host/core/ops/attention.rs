//! Attention at the entries of a mask, and over a cache of keys and values.

mod cached;
mod dynamic;
mod gradient;
mod masks;
mod structured;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::error::{Error, Result};
use crate::families::attention::cpu::{HostAttention, HostHeads};
use crate::families::attention::queries::{Flags, Mask, Seen, Tiles, Work};
use crate::families::attention::{
    AttentionExtents, AttentionLaunch, AttentionLists, RawAttention, resident,
};
use crate::operator::{Operator, Run};
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};
pub use cached::CachedAttention;
pub use dynamic::{DynamicAttention, MaskTensors};
pub use gradient::AttentionGradient;
#[doc(hidden)]
pub use masks::choose;
use masks::{OwnMask, check_places, extents, hidden};
pub use structured::AttentionMask;
use structured::flags_of_heads;

/// Extents, scale and hidden keys of a [`SparseAttention`].
///
/// ```
/// use einsparse::ops::AttentionOptions;
/// // 32 heads of 128 elements, of keys and values 8; no token sees a later one.
/// let options = AttentionOptions {
///     heads: 32, key_heads: Some(8), dim: 128, causal: Some(0), ..AttentionOptions::default()
/// };
/// assert_eq!(options.scale, None); // 1 / sqrt(128)
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// Heads of queries and of the output. The heads of a batch item are adjacent.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`. Each is shared by `heads / key_heads` adjacent heads of queries.
    /// `None`: equal to `heads`.
    pub key_heads: Option<usize>,
    /// Elements of a query: 64 or 128.
    pub dim: usize,
    /// Factor of the scores, greater than 0; `None`: 1 / sqrt(dim).
    pub scale: Option<f64>,
    /// Hides keys above query + offset. Offset 0 keeps the diagonal and the entries below it.
    pub causal: Option<i64>,
    /// Hides keys at or above a length. The heads are split into equal contiguous groups, such as the items of a batch.
    /// There is one length per group; a group may be a single head.
    pub lengths: Option<Vec<usize>>,
}

/// `O = softmax(scale Q K^T at the mask's entries) V` for many heads in one kernel. Scores are never stored in device
/// memory. The mask is a matrix `[m, n]` in row order. It has unstructured nonzeros (CSR, COO, ELL, GroupCOO by rows)
/// or blocks (BSR, BlockCOO, BlockGroupCOO). All elements of a block inside the matrix are entries. The values of the
/// mask are not read. There is one mask for all heads, or one per head. The operation is planned once, and results are
/// bitwise deterministic.
///
/// Sums and softmax are in f32. The weights are rounded to the element type before the product with V, as in
/// FlashAttention (arXiv 2205.14135). The CPU computes in f64. A query without entries, or without a score above -Inf,
/// gets zeros. A NaN or +Inf among the scores of a query makes its output NaN. On a GPU, queries are processed in
/// groups of 64 and keys in gathered tiles of 128. A NaN or Inf in V makes all queries of a group NaN that have an
/// entry in the same tile (`zeros = Dense`). A NaN or Inf in K or Q reaches only its own entries.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense, f16};
/// use einsparse::ops::{AttentionOptions, SparseAttention};
/// let ctx = Context::cpu();
/// // The first query sees the first key only, the second one both.
/// let pattern = CsrPattern::new(2, 2, vec![0, 1, 3], vec![0, 0, 1])?;
/// let mask = ctx.upload(Csr::new(pattern, vec![f16::ONE; 3])?)?;
/// let options = AttentionOptions { heads: 1, dim: 64, scale: Some(1.0 / 64.0), ..AttentionOptions::default() };
/// let attention = SparseAttention::new(&ctx, &[&mask], &options)?;
/// let rows = |rows: [f32; 2]| ctx.upload_dense(&Dense::from_fn([1, 2, 64], |i| f16::from_f32(rows[i[1]]))?);
/// let (q, k, v) = (rows([1.0, 1.0])?, rows([0.0, 3f32.ln()])?, rows([4.0, 8.0])?);
/// let mut out = ctx.zeros(&[1, 2, 64])?;
/// let stream = ctx.stream()?;
/// attention.forward([&q, &k, &v], &mut out, None, &stream)?;
/// stream.synchronize()?;
/// let out = out.to_dense()?;
/// assert_eq!(out.get(&[0, 0, 0]), Some(f16::from_f32(4.0)));
/// assert!((out.values()[64].to_f32() - 7.0).abs() < 1e-2);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SparseAttention<T> {
    own: Masked,
    operator: Operator<AttentionLaunch>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> SparseAttention<T> {
    /// Plans attention at the entries of `masks`: one mask for all heads, or one per head.
    ///
    /// # Errors
    /// [`Error::StorageFormat`] or [`Error::OtherContext`] for masks of other formats or contexts;
    /// [`Error::OutOfRange`] for inconsistent options and a scale that is not a positive number; [`Error::Shape`] for
    /// masks of different shapes; [`Error::NoKernel`] for a type other than f16 and bf16 or a `dim` other than 64 and
    /// 128; [`Error::Overflow`] for more than 2^32 tiles.
    pub fn new(
        context: &Context,
        masks: &[&SparseTensor<T>],
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::with_variant(context, masks, options, None)
    }

    /// [`SparseAttention::new`] with the kernel of this name.
    ///
    /// # Errors
    /// See [`SparseAttention::new`]; [`Error::NoKernel`] if the kernel cannot run this attention.
    pub fn with_variant(
        context: &Context,
        masks: &[&SparseTensor<T>],
        options: &AttentionOptions,
        variant: Option<&str>,
    ) -> Result<Self> {
        let own = Masked::at_entries(context, masks, options)?;
        Self::planned(context, own, variant)
    }

    fn planned(context: &Context, own: Masked, variant: Option<&str>) -> Result<Self> {
        let operator = Operator::new(context, |device| {
            let extents = own.extents;
            let row = choose::<T>(device.machine(), extents.d, variant)?;
            let masks = own.masks.iter();
            let tiles: Vec<Tiles> =
                masks.map(|mask| mask.seen(extents).tiles()).collect::<Result<_>>()?;
            let blocks = resident(device.machine(), row) as usize;
            let work = Work::new(&tiles, &own.of_head, extents.key_heads, blocks)?;
            drop(tiles);
            let lists = AttentionLists::new(device, &work)?;
            AttentionLaunch::new(device, row, extents, own.scale, lists)
        })?;
        Ok(SparseAttention { own, operator, element: std::marker::PhantomData })
    }

    /// Returns the name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(|launch| launch.row().name)
    }

    /// Returns the device memory in bytes, operands excluded: the masks in the kernel's format, and partial sums.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(AttentionLaunch::bytes)
    }

    /// Computes the output `[heads, m, dim]` from queries `[heads, m, dim]`, and keys and values `[key_heads, n, dim]`.
    /// Each of these tensors may instead store its heads side by side in rows, as projections do: `[m, heads dim]`,
    /// `[n, key_heads dim]`. `log_sum`, `[heads, m]`, receives the natural logarithms of the sums of exponentials. They
    /// are -Inf for queries without entries. [`AttentionGradient`] recomputes the weights instead and does not need
    /// them. On a GPU, the call neither allocates nor waits, and it can be captured in a CUDA graph.
    ///
    /// # Errors
    /// Fails for tensors of another shape or context than planned. The output is then unchanged.
    pub fn forward(
        &self,
        [q, k, v]: [&Tensor<T>; 3],
        out: &mut Tensor<T>,
        log_sum: Option<&mut Tensor<f32>>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let raw = operands(&run, self.own.extents, [q, k, v, out], log_sum.as_deref())?;
        run.queue(
            |launch, queue| launch.run(&raw, queue),
            || {
                let operands =
                    [q, k, v].map(|own| HostHeads::in_rows(own.any(), self.own.extents.d));
                let log_sum = log_sum.and_then(Tensor::host_mut);
                self.own.on_host(operands).run(&mut out.any, log_sum);
                Ok(())
            },
        )
    }

    /// Runs on raw device addresses and a raw stream, for users of other CUDA crates.
    ///
    /// # Safety
    /// Until the work is complete, the addresses hold matrices of the planned extents and element type in the primary
    /// context of the GPU. `stream` is a stream of that context, which this call makes current on the thread.
    ///
    /// # Errors
    /// [`Error::Alignment`] for addresses and strides that are not multiples of 16 bytes; [`Error::Cuda`] on a CPU
    /// context.
    pub unsafe fn run_raw(&self, raw: &RawAttention, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.operator.run_raw(stream, |launch, queue| launch.run(raw, queue)) }
    }
}

/// Extents, scale and masks with which an attention and its gradient are planned.
#[derive(Debug)]
struct Masked {
    extents: AttentionExtents,
    scale: f64,
    masks: Vec<HeadMask>,
    /// Index of the mask of each head.
    of_head: Vec<usize>,
}

impl Masked {
    fn at_entries<T: Scalar>(
        context: &Context,
        masks: &[&SparseTensor<T>],
        options: &AttentionOptions,
    ) -> Result<Self> {
        let extents = extents(masks, options)?;
        let scale = scale_of(options)?;
        check_places(context, masks)?;
        let (masks, of_head) = hidden(masks, options, extents)?;
        Ok(Masked {
            extents,
            scale,
            masks: masks.into_iter().map(HeadMask::Entries).collect(),
            of_head,
        })
    }

    /// Creates the planned masks from masks of a known structure.
    fn structured(
        shape: [usize; 2],
        masks: &[AttentionMask],
        options: &AttentionOptions,
    ) -> Result<Self> {
        let (extents, masks, of_head) = flags_of_heads(shape, masks, options)?;
        Ok(Masked { extents, scale: scale_of(options)?, masks, of_head })
    }

    fn on_host<'a>(&'a self, operands: [HostHeads<'a>; 3]) -> HostAttention<'a> {
        let masks = self.of_head.iter();
        let masks = masks.map(|&mask| self.masks[mask].seen(self.extents));
        HostAttention::new(operands, masks, self.extents, self.scale)
    }
}

/// Validates the tensors of a run and returns their addresses and strides.
fn operands<T: Scalar, L>(
    run: &Run<'_, L>,
    extents: AttentionExtents,
    [q, k, v, out]: [&Tensor<T>; 4],
    log_sum: Option<&Tensor<f32>>,
) -> Result<RawAttention> {
    let (queries, keys) = extents.shapes();
    let heads = |name: &str, tensor: &Tensor<T>, [heads, rows, d]: [usize; 3]| {
        let leading = tensor.leading();
        let (matrix, strides) = match tensor.shape().len() {
            2 => (run.matrix(name, tensor.any(), &[rows, heads * d])?, [d, leading]),
            _ => (run.matrix(name, tensor.any(), &[heads, rows, d])?, [rows * leading, leading]),
        };
        Ok::<_, Error>((matrix.address, strides))
    };
    let (q, q_strides) = heads("q", q, queries)?;
    let (k, k_strides) = heads("k", k, keys)?;
    let (v, v_strides) = heads("v", v, keys)?;
    let (out, out_strides) = heads("out", out, queries)?;
    let log_sum = match log_sum {
        Some(log_sum) => run.whole("log_sum", log_sum.any(), &[extents.heads, extents.m])?,
        None => 0,
    };
    Ok(RawAttention { q, q_strides, k, k_strides, v, v_strides, out, out_strides, log_sum })
}

/// Given mask: its entries, or flags.
#[derive(Debug)]
enum HeadMask {
    Entries(OwnMask),
    Flags(Flags),
}

impl HeadMask {
    fn seen(&self, extents: AttentionExtents) -> Seen<'_> {
        match self {
            HeadMask::Entries(own) => Seen::Entries(Mask {
                runs: &own.runs,
                columns: &own.columns,
                block: own.block,
                shape: [extents.m, extents.n],
                causal: own.causal,
                length: own.length,
            }),
            HeadMask::Flags(flags) => Seen::Flags(flags),
        }
    }
}

/// Returns the factor of the scores.
fn scale_of(options: &AttentionOptions) -> Result<f64> {
    let scale = options.scale.unwrap_or_else(|| 1.0 / (options.dim.max(1) as f64).sqrt());
    match scale > 0.0 && scale.is_finite() {
        true => Ok(scale),
        false => Err(Error::range("scale", scale, "> 0 and finite")),
    }
}
