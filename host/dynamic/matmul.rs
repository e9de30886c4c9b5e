//! A product of which one matrix is sparse for one step: its micro-tiles are found, and the others are skipped.

mod left;
mod relu;
mod right;
mod transposed;

use std::fmt;

use super::index::MicroIndex;
use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::offer::{Determinism, Precision};
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::Sum;
use left::LeftProduct;
pub(crate) use relu::ReluProduct;
use right::RightProduct;
use transposed::TransposedProduct;

/// Which matrix of `C[m,n] = A[m,k] * B[k,n]` is sparse for one step.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{DynamicMatmul, MatmulOptions, SparseSide};
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let options = MatmulOptions { sparse: SparseSide::Right, ..MatmulOptions::default() };
/// let mut product = DynamicMatmul::new(&ctx, [1, 8, 8], &options)?;
/// let a = ctx.upload_dense(&Dense::from_fn([1, 8], |i| f16::from_f32(i[1] as f32))?)?;
/// // One row of B holds something.
/// let b = Dense::from_fn([8, 8], |i| if i[0] == 4 { f16::from_f32(5.0) } else { f16::ZERO })?;
/// let (b, mut c) = (ctx.upload_dense(&b)?, ctx.zeros(&[1, 8])?);
/// product.forward(&a, &b, &mut c, &ctx.stream()?)?;
/// assert_eq!(c.to_dense()?.values(), [f16::from_f32(20.0); 8]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SparseSide {
    /// A. Its micro-tiles are of [`height`](MatmulOptions::height) rows by one column; those of an A that lies as
    /// `[k, m]` of one row by 64 columns.
    #[default]
    Left,
    /// B. Its micro-tiles are of one row by 64 columns.
    Right,
    /// C, by its ReLU: `C[m,n] = relu(A[m,k] * B[k,n])`. Its micro-tiles, of [`height`](MatmulOptions::height) rows by
    /// one column, are found while it is stored, for a product of it.
    Output,
}

/// How a [`DynamicMatmul`] finds its operands, and what of them counts.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{DynamicMatmul, MatmulOptions};
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// // Only its second row, of A as [k, m], counts.
/// let a = ctx.upload_dense(&Dense::from_fn([2, 8], |i| f16::from_f32([0.1, 2.0][i[0]]))?)?;
/// let b = ctx.upload_dense(&Dense::from_fn([2, 8], |i| f16::from_f32([5.0, 7.0][i[0]]))?)?;
/// let options = MatmulOptions {
///     transpose_a: true,
///     threshold: 0.5,
///     ..MatmulOptions::default()
/// };
/// let mut product = DynamicMatmul::new(&ctx, [8, 2, 8], &options)?;
/// let mut c = ctx.zeros(&[8, 8])?;
/// product.forward(&a, &b, &mut c, &ctx.stream()?)?;
/// assert_eq!(c.to_dense()?.values(), [f16::from_f32(14.0); 64]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulOptions {
    /// The matrix that is sparse for one step.
    pub sparse: SparseSide,
    /// A lies as `[k, m]`. With a sparse B that is how its rows are read; an A of `[m, k]` is transposed by each
    /// product, in a workspace of A's size.
    pub transpose_a: bool,
    /// Rows of a micro-tile: 128, 64 or 32. Many share a gathered row of B, few have fewer elements beside those that
    /// count. Micro-tiles of 64 columns have one row, whatever stands here.
    pub height: usize,
    /// Elements of at most this magnitude are empty. Of a C, behind its ReLU, only zeros are.
    pub threshold: f64,
    /// [`Determinism::Relaxed`]: micro-tiles are multiplied in the order in which they are found, so rounding changes
    /// from run to run.
    pub determinism: Determinism,
    /// [`Precision::Tf32`]: f32 is rounded to TF32 and multiplied on Tensor Cores, with a sparse A of `[m, k]`. On a
    /// GPU there is no kernel for f32 in full precision.
    pub precision: Precision,
}

impl Default for MatmulOptions {
    /// A sparse A of `[m, k]`, 128 rows, exact zeros, sums in order, f32 in full precision.
    fn default() -> Self {
        MatmulOptions {
            sparse: SparseSide::Left,
            transpose_a: false,
            height: 128,
            threshold: 0.0,
            determinism: Determinism::Strict,
            precision: Precision::Full,
        }
    }
}

impl MatmulOptions {
    /// What no side of a product takes, or not together.
    fn check(&self, items: usize) -> Result<()> {
        let refused = |name: &str, reason: String| Err(Error::operand(name, reason));
        let alone = self.sparse == SparseSide::Output
            || (self.sparse == SparseSide::Left && self.transpose_a);
        match self.sparse {
            _ if alone && items != 1 => refused(
                "batch",
                format!("has {items} items; only a sparse A of [m, k] and a sparse B take several"),
            ),
            SparseSide::Output if self.transpose_a => {
                refused("A", "lies as [k, m]; a product with a ReLU reads it as [m, k]".into())
            }
            SparseSide::Output if self.threshold != 0.0 => refused(
                "threshold",
                format!("is {}; behind a ReLU zeros are empty, and nothing else", self.threshold),
            ),
            _ => Ok(()),
        }
    }
}

/// `C[m,n] = A[m,k] * B[k,n]` with a matrix that is dense in memory and has empty micro-tiles, other ones at each run
/// (PIT, arXiv 2301.10936). The host learns nothing of what was found: all can be captured in a CUDA graph. For f16 and
/// bf16 on a GPU, and f32 of a sparse A of `[m, k]` with [`Precision::Tf32`]; the CPU takes every element type and
/// extent, and f32 in full precision.
///
/// - A sparse A: one kernel finds its micro-tiles of [`height`](MatmulOptions::height) `x 1` and packs their values, a
///   second gathers the rows of B that they meet. Of at most 64 rows of f16 or bf16 that one micro-tile holds
///   it is a single kernel: each of its thread blocks finds the columns of its part of A itself, and reads no rows of B
///   but those that they meet.
/// - A sparse A that lies as `[k, m]` ([`transpose_a`](MatmulOptions::transpose_a)), as the gradient of B in `C = A B`
///   has it, `B' = A^T C'`, and that of the input of a layer with masked weights: one kernel lists, for every 64
///   columns of A, the rows that have a micro-tile of `1 x 64` there, a second gathers these and the rows of B beside
///   them. No copy of A is made.
/// - A sparse B ([`SparseSide::Right`]), masked weights or activations on the right: one kernel lists, for every 64
///   columns of B, the rows that have a micro-tile of `1 x 64` there; one makes the transpose of A, where it does not
///   lie as `[k, m]`; a third gathers the micro-tiles of B and the rows of A's transpose beside them, and stores C
///   transposed. n is a multiple of 8.
/// - A sparse C ([`SparseSide::Output`]), `C = relu(A B)`: the kernel that stores C leaves a bit for each micro-tile of
///   `height x 1` that holds something, a second makes lists of them, with the values that a product of C wants, and
///   reads no other element of C. Rows of A and B are contiguous, n is a multiple of 8.
///
/// A micro-tile is multiplied whole: elements below the threshold in one that counts are multiplied as they are, and a
/// NaN or Inf of the other matrix reaches the rows (of a sparse B the columns) of C that have such a micro-tile there
/// (`zeros = Dense`), no others. Sums ascend along k by default: the same bits every time.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{DynamicMatmul, MatmulOptions, SparseSide};
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let stream = ctx.stream()?;
/// let f = f16::from_f32;
/// let a = ctx.upload_dense(&Dense::from_fn([1, 8], |i| f([1.0, 2.0].get(i[1]).copied().unwrap_or(0.0)))?)?;
/// let b = |i: &[usize]| [[1.0, -9.0, 0.0], [0.0, 4.0, 3.0]].get(i[0])?.get(i[1]).copied();
/// let b = ctx.upload_dense(&Dense::from_fn([8, 8], |i| f(b(i).unwrap_or(0.0)))?)?;
/// let mut c = ctx.zeros(&[1, 8])?;
///
/// let mut left = DynamicMatmul::new(&ctx, [1, 8, 8], &MatmulOptions::default())?;
/// left.forward(&a, &b, &mut c, &stream)?;
/// assert_eq!(c.to_dense()?.values()[..3], [1.0, -1.0, 6.0].map(f));
/// assert_eq!(left.index().to_lists()?, [vec![0, 1]]);
///
/// // The same with a B that is sparse: a list for every 64 columns.
/// let options = MatmulOptions { sparse: SparseSide::Right, ..MatmulOptions::default() };
/// let mut right = DynamicMatmul::new(&ctx, [1, 8, 8], &options)?;
/// right.forward(&a, &b, &mut c, &stream)?;
/// assert_eq!(c.to_dense()?.values()[..3], [1.0, -1.0, 6.0].map(f));
///
/// // A ReLU, and which columns of C it leaves.
/// let options = MatmulOptions { sparse: SparseSide::Output, ..MatmulOptions::default() };
/// let mut relu = DynamicMatmul::new(&ctx, [1, 8, 8], &options)?;
/// relu.forward(&a, &b, &mut c, &stream)?;
/// assert_eq!(c.to_dense()?.values()[..3], [1.0, 0.0, 6.0].map(f));
/// assert_eq!(relu.index().to_lists()?, [vec![0, 2]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicMatmul<T> {
    product: Box<dyn Product<T>>,
    shadow: Shadow<DynamicMatmul<T>>,
}

/// A, B and C of a run.
type ProductOperands<'m, T> = (&'m Tensor<T>, &'m Tensor<T>, &'m mut Tensor<T>);

/// What [`DynamicMatmul`] runs: by what is sparse, and how it lies.
trait Product<T>: fmt::Debug + Send + Sync {
    fn variants(&self) -> Vec<&'static str>;

    fn index(&self) -> &MicroIndex;

    /// Queues detection and product.
    fn run(&mut self, all: ProductOperands<'_, T>, stream: &Stream) -> Result<()>;

    /// The half that makes the lists.
    fn detect(&mut self, _: &Tensor<T>, _: &Stream) -> Result<()> {
        Err(in_one())
    }

    /// The other half.
    fn multiply(&mut self, _: ProductOperands<'_, T>, _: &Stream) -> Result<()> {
        Err(in_one())
    }
}

impl<T: Scalar> DynamicMatmul<T> {
    /// A product of these extents, `[m, k, n]`, with room for a sparse matrix that is full.
    ///
    /// # Errors
    /// [`Error::Operand`] for a height below 2, a threshold that is no magnitude, and options that do not go together;
    /// [`Error::NoKernel`] for element types and heights without kernel; [`Error::Overflow`],
    /// [`Error::OutOfMemory`].
    pub fn new(context: &Context, extents: [usize; 3], options: &MatmulOptions) -> Result<Self> {
        Self::batched(context, 1, extents, options)
    }

    /// A batch of `items` products, `C[z,m,n] = A[z,m,k] * B[z,k,n]` for extents `[m, k, n]`, in the same kernels.
    /// Where all items share one B, their rows are those of one product.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Operand`] for more than one item of a sparse A whose `m` is no multiple of the
    /// height or that lies as `[k, m]`, or of a sparse C.
    pub fn batched(
        context: &Context,
        items: usize,
        extents: [usize; 3],
        options: &MatmulOptions,
    ) -> Result<Self> {
        options.check(items)?;
        let shadow =
            Shadow::new(context, |context| Self::batched(context, items, extents, options))?;
        let product: Box<dyn Product<T>> = match (options.sparse, options.transpose_a) {
            (SparseSide::Left, false) => {
                Box::new(LeftProduct::batched(context, items, extents, options.clone())?)
            }
            (SparseSide::Left, true) => {
                Box::new(TransposedProduct::new(context, extents, options)?)
            }
            (SparseSide::Right, _) => {
                Box::new(RightProduct::batched(context, items, extents, options)?)
            }
            (SparseSide::Output, _) => {
                Box::new(ReluProduct::new(context, extents, options.height)?)
            }
        };
        Ok(DynamicMatmul { product, shadow })
    }

    /// The kernels of a [`forward`](Self::forward) in their order, `cpu` on a CPU context.
    pub fn variants(&self) -> Vec<&'static str> {
        self.product.variants()
    }

    /// What the last run found: of a sparse A of `[m, k]` and of C a list of columns for each `height` rows of all
    /// items, of an A of `[k, m]` a list of rows for every 64 columns, of a B these for each item. A run of a single
    /// kernel leaves nothing here.
    pub fn index(&self) -> &MicroIndex {
        self.product.index()
    }

    /// Queues detection and product: A is `[m, k]`, or `[k, m]` by the [options](MatmulOptions), B `[k, n]`, C
    /// `[m, n]`, of more than one item behind an axis for these. Nothing is allocated or waited for. Runs of one
    /// product share the index and wait for each other, on whatever stream; what was captured in a graph is the
    /// caller's to order.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; [`Error::Operand`] if one lies in another context,
    /// and if one that is read or written by 16 bytes does not lie at multiples of them: B, an A of `[k, m]`,
    /// of a sparse C every matrix; or if n is no multiple of 8 with a sparse B.
    pub fn forward(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.run(stream, |own, stream| {
            own.forward(&a.shadow(), &b.shadow(), &mut c.shadow(), stream)
        })?;
        self.product.run((a, b, c), stream)
    }

    /// The half of [`forward`](Self::forward) that makes the lists, of the sparse A in front of
    /// [`multiply`](Self::multiply) or of the sparse C behind it.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Operand`] where the halves are one.
    #[doc(hidden)]
    pub fn detect(&mut self, sparse: &Tensor<T>, stream: &Stream) -> Result<()> {
        self.shadow.run(stream, |own, stream| own.detect(&sparse.shadow(), stream))?;
        self.product.detect(sparse, stream)
    }

    /// The other half: the product. Of a sparse C [`detect`](Self::detect) must follow each.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Operand`] where the halves are one.
    #[doc(hidden)]
    pub fn multiply(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.run(stream, |own, stream| {
            own.multiply(&a.shadow(), &b.shadow(), &mut c.shadow(), stream)
        })?;
        self.product.multiply((a, b, c), stream)
    }
}

fn in_one() -> Error {
    Error::operand("product", "has no halves: it runs as one, by `forward`")
}

/// A product on the CPU, a row of C at a time: `places` are those of A's element and of B's row for a row of C and a
/// place of its list, which `height` rows share.
fn multiply_on_host<A: Sum>(
    [a, b]: [&AnyTensor; 2],
    c: &mut AnyTensor,
    rows: usize,
    (lists, height): (&[Vec<u32>], usize),
    places: &(dyn Fn(usize, usize) -> [usize; 2] + Sync),
) -> Result<()> {
    let a = a.host().or_elsewhere("A")?.widen::<A>();
    let b = b.host().or_elsewhere("B")?.widen::<A>();
    let n = c.shape().last().copied().unwrap_or(0);
    c.store_rows(rows, n, &|row, sums: &mut [A]| {
        for &position in &lists[row / height] {
            let [factor, line] = places(row, position as usize);
            let factor = a[factor];
            for (sum, &x) in sums.iter_mut().zip(&b[line..]) {
                *sum += factor * x;
            }
        }
    })
    .or_elsewhere("C")
}
