//! Product with a matrix that is sparse for one step: its nonempty micro-tiles are found, and the others are skipped.

mod left;
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
use right::RightProduct;
use transposed::TransposedProduct;

/// Matrix of `C[m,n] = A[m,k] * B[k,n]` that is sparse for one step.
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
    /// A. Its micro-tiles have [`height`](MatmulOptions::height) rows and one column. If A is stored as `[k, m]`, they
    /// have one row and 64 columns.
    #[default]
    Left,
    /// B. Its micro-tiles have one row and 64 columns.
    Right,
}

/// Options of a [`DynamicMatmul`]: layout of the operands, and elements that count.
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
    /// Whether A is stored as `[k, m]`. With a sparse B, kernels read A in this layout; an A of `[m, k]` is transposed
    /// in each run, in a workspace of A's size.
    pub transpose_a: bool,
    /// Rows of a micro-tile: 128, 64 or 32. With more rows, a gathered row of B is used more often; with fewer rows,
    /// fewer zeros are multiplied. Ignored for micro-tiles of 64 columns, which have one row.
    pub height: usize,
    /// Elements of at most this magnitude are empty.
    pub threshold: f64,
    /// [`Determinism::Relaxed`]: micro-tiles are multiplied in the order in which they are found, so rounding differs
    /// from run to run.
    pub determinism: Determinism,
    /// [`Precision::Tf32`]: f32 is rounded to TF32 and multiplied on Tensor Cores, for a sparse A of `[m, k]`. GPUs
    /// have no kernel for f32 in full precision.
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
    /// Checks that a product with these options supports this number of items.
    fn check(&self, items: usize) -> Result<()> {
        if items != 1 && self.sparse == SparseSide::Left && self.transpose_a {
            let reason =
                format!("has {items} items; only a sparse A of [m, k] and a sparse B take several");
            return Err(Error::operand("batch", reason));
        }
        Ok(())
    }
}

/// `C[m,n] = A[m,k] * B[k,n]` with a matrix that is stored as dense and has empty micro-tiles, which may differ in each
/// run (PIT, arXiv 2301.10936). The results of the search are not copied to the host, and all kernels can be captured
/// in a CUDA graph. GPUs support f16 and bf16, and f32 with [`Precision::Tf32`] for a sparse A of `[m, k]`. The CPU
/// supports every element type and extent, and f32 in full precision.
///
/// - A sparse A: one kernel finds its micro-tiles of [`height`](MatmulOptions::height) `x 1` and packs their values. A
///   second kernel gathers the matching rows of B. If A has at most 64 rows of f16 or bf16, which fit into one
///   micro-tile, a single kernel runs. Each of its thread blocks finds the columns of its part of A, and reads only the
///   matching rows of B.
/// - A sparse A stored as `[k, m]` ([`transpose_a`](MatmulOptions::transpose_a)). This is the layout for the gradient
///   of B in `C = A B`, `B' = A^T C'`, and for the input gradient of a layer with masked weights. One kernel lists, for
///   every 64 columns of A, the rows with a micro-tile of `1 x 64`. A second kernel gathers these and the matching rows
///   of B. A is not copied.
/// - A sparse B ([`SparseSide::Right`]), such as masked weights or activations on the right. One kernel lists, for
///   every 64 columns of B, the rows with a micro-tile of `1 x 64`. One kernel transposes A, unless A is stored as
///   `[k, m]`. A third kernel gathers the micro-tiles of B and the matching rows of A's transpose, and stores C
///   transposed. n must be a multiple of 8.
///
/// A micro-tile is multiplied whole (`zeros = Dense`). Elements below the threshold in a nonempty micro-tile are
/// multiplied as they are. A NaN or Inf of the other matrix reaches only the rows (for a sparse B, the columns) of C
/// that have a nonempty micro-tile at its position. By default, sums ascend along k, and every run gives the same bits.
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
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicMatmul<T> {
    product: Box<dyn Product<T>>,
    shadow: Shadow<DynamicMatmul<T>>,
}

/// A, B and C of a run.
type ProductOperands<'m, T> = (&'m Tensor<T>, &'m Tensor<T>, &'m mut Tensor<T>);

/// Implementation of [`DynamicMatmul`], by the sparse matrix and its layout.
trait Product<T>: fmt::Debug + Send + Sync {
    fn variants(&self) -> Vec<&'static str>;

    fn index(&self) -> &MicroIndex;

    /// Queues detection and product.
    fn run(&mut self, all: ProductOperands<'_, T>, stream: &Stream) -> Result<()>;

    /// First part: makes the lists.
    fn detect(&mut self, _: &Tensor<T>, _: &Stream) -> Result<()> {
        Err(in_one())
    }

    /// Second part: multiplies.
    fn multiply(&mut self, _: ProductOperands<'_, T>, _: &Stream) -> Result<()> {
        Err(in_one())
    }
}

impl<T: Scalar> DynamicMatmul<T> {
    /// Creates a product of these extents, `[m, k, n]`. The workspace is large enough for a matrix without empty
    /// micro-tiles.
    ///
    /// # Errors
    /// [`Error::Operand`] for a height below 2, a threshold that is negative or NaN, and unsupported combinations of
    /// options. [`Error::NoKernel`] for element types and heights without a kernel. [`Error::Overflow`],
    /// [`Error::OutOfMemory`].
    pub fn new(context: &Context, extents: [usize; 3], options: &MatmulOptions) -> Result<Self> {
        Self::batched(context, 1, extents, options)
    }

    /// Creates a batch of `items` products, `C[z,m,n] = A[z,m,k] * B[z,k,n]` for extents `[m, k, n]`, in the same
    /// kernels. If all items share one B, use one product with the rows of all items.
    ///
    /// # Errors
    /// As [`new`](Self::new). [`Error::Operand`] for more than one item of a sparse A if `m` is not a multiple of the
    /// height or A is stored as `[k, m]`.
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
        };
        Ok(DynamicMatmul { product, shadow })
    }

    /// Names of the kernels of a [`forward`](Self::forward) in their order; `cpu` on a CPU context.
    pub fn variants(&self) -> Vec<&'static str> {
        self.product.variants()
    }

    /// Results of the last run. For a sparse A of `[m, k]`: a list of columns for each `height` rows of all items. For
    /// an A of `[k, m]`: a list of rows for every 64 columns. For B: such lists for each item. A run of a single kernel
    /// does not update the index.
    pub fn index(&self) -> &MicroIndex {
        self.product.index()
    }

    /// Queues detection and product: A is `[m, k]`, or `[k, m]` by the [options](MatmulOptions), B `[k, n]`, C
    /// `[m, n]`. For more than one item, an axis for the items precedes these. Does not allocate and does not wait.
    /// Runs of one product share the index and wait for each other, on any stream. The caller orders runs that were
    /// captured in graphs.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand does not have the planned extents. [`Error::OtherContext`] if an operand is in
    /// another context, or if address or row stride of an operand that is accessed in units of 16 bytes is not a
    /// multiple of 16 bytes: B, and an A of `[k, m]`. [`Error::Operand`] if n is not a multiple of 8 with a sparse B.
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

    /// Part of [`forward`](Self::forward) that makes the lists of a sparse A, before [`multiply`](Self::multiply).
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Operand`] if one kernel runs both parts.
    #[doc(hidden)]
    pub fn detect(&mut self, sparse: &Tensor<T>, stream: &Stream) -> Result<()> {
        self.shadow.run(stream, |own, stream| own.detect(&sparse.shadow(), stream))?;
        self.product.detect(sparse, stream)
    }

    /// Part of [`forward`](Self::forward) that multiplies.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Operand`] if one kernel runs both parts.
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
    Error::operand("product", "cannot run in two steps; call `forward`")
}

/// A product on the CPU, one row of C at a time. For a row of C and a position of its list, `places` returns the index
/// of A's element and of B's row. `height` rows share a list.
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
