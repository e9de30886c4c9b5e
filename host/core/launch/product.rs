//! Interface of plans to kernels of products: of a matrix and a dense matrix (SpMM), and of two dense matrices at the
//! nonzeros of a pattern (SDDMM). Addresses and extents of their operands.

use std::fmt;
use std::sync::Arc;

use einsparse_formats::SlicedEllPattern;
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::indirect::{Orientation, SpmmForm};
use crate::kernel::Queue;
use crate::registry::Dtype;
use crate::tensor::Transposes;
use crate::worklist::Runs;

/// Matrix A of a product.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Sparse matrix in row order. For a blocked matrix: block columns, and the extents of a block.
    Sparse {
        runs: &'a Arc<Runs>,
        /// Copy of `runs` in device memory, if the tensor has one.
        spans: Option<&'a Arc<DeviceMemory>>,
        columns: &'a [u32],
        block: (usize, usize),
        /// Number of stored blocks.
        stored: usize,
        /// Device address of `columns`.
        address: u64,
        transposes: &'a Transposes,
    },
    /// Sliced ELLPACK.
    Sliced { runs: &'a Arc<Runs>, pattern: &'a Arc<SlicedEllPattern> },
    /// Dense matrix with its row stride in elements.
    Dense { leading: usize },
}

/// Row, form and extents for which a kernel of a product is prepared.
#[derive(Debug)]
pub struct SpmmConfig<'d> {
    pub(crate) device: &'d Arc<Device>,
    pub(crate) row: &'static Row,
    pub(crate) form: SpmmForm,
    pub(crate) extents: Extents,
    /// Element type of C.
    pub(crate) out: Dtype,
}

/// Kernel selected for one pattern, with its work list and workspace. Its runs receive addresses: of an SpMM, or of an
/// SDDMM.
pub trait Product<Raw = RawSpmm>: fmt::Debug + Send + Sync {
    /// Returns the row of the table of kernels.
    fn row(&self) -> &'static Row;

    /// Returns the row stride of a dense A in elements, if the plan depends on it.
    fn leading(&self) -> Option<usize> {
        None
    }

    /// Announces that A changes only before calls of [`a_changed`](Self::a_changed). A kernel may then read A ahead of
    /// earlier work on the stream, or read a copy of its values. Returns whether this kernel does.
    fn keeps_a(&mut self) -> bool {
        false
    }

    /// Announces new values of A at this address. The call is queued after the work that writes them, and later kernels
    /// start after that work.
    fn a_changed(&self, _values: u64, _: Queue<'_>) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes of device memory in addition to the operands.
    fn bytes(&self) -> usize;

    /// Describes the geometry for `explain`.
    fn describe(&self) -> String;

    /// Queues the kernel.
    fn run(&self, raw: &Raw, queue: Queue<'_>) -> Result<()>;

    /// Checks that a dense A has the planned row stride.
    fn check_leading(&self, name: &str, leading: usize) -> Result<()> {
        match self.leading() {
            Some(planned) if planned != leading => {
                Err(Error::stride(name, leading, format_args!("{planned} as planned")))
            }
            _ => Ok(()),
        }
    }
}

/// Device addresses of one run of an SpMM. Row strides are in elements. The plan stores the row offsets of A.
///
/// ```
/// use einsparse::raw::RawSpmm;
/// let (b, c) = (0x7000_0000, 0x7100_0000); // of another library, [k, 64] and [m, 64]
/// let raw = RawSpmm::default().b(b).ldb(64).c(c).ldc(64);
/// assert_eq!(raw.alpha, 1.0); // with `columns` and `values` for `Plan::run_raw`
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RawSpmm {
    /// Index array of A: the column (block column) of each slot, as u32. It must be 16-byte aligned and readable 8
    /// slots past its end. For N:M: the words of positions, of which the plan stores a copy.
    pub columns: u64,
    /// Values of A, one per slot. They must be 16-byte aligned and readable 8 slots past the end.
    pub values: u64,
    /// B, row-major: `[k, n]`, or `[n, k]` if planned so. By default, matrices of a batch are contiguous: their
    /// distance is `ldb` times their number of rows. C and `gate` have this layout too.
    pub b: u64,
    /// Row stride of B in elements.
    pub ldb: usize,
    /// C, row-major: `[m, n]`, or `[n, m]` if planned so.
    pub c: u64,
    /// Row stride of C in elements.
    pub ldc: usize,
    /// Bias, one element per row or column; 0 without bias.
    pub bias: u64,
    /// Second operand of `relu_grad`, with the shape of C; 0 without `relu_grad`.
    pub gate: u64,
    /// Row stride of `gate` in elements.
    pub ldg: usize,
    /// Batch stride of the values of A in elements; 0 if the batch shares them. Only for families over unstructured
    /// nonzeros.
    pub value_stride: usize,
    /// Batch stride of B in elements; 0 for contiguous matrices. Only for families over unstructured nonzeros.
    pub b_stride: usize,
    /// Batch stride of C in elements; 0 for contiguous matrices. Only for families over unstructured nonzeros.
    pub c_stride: usize,
    /// Factor of the product: the product of all scalar factors of the expression, including literals.
    pub alpha: f64,
}

setters! {
    RawSpmm { columns: u64, values: u64, b: u64, ldb: usize, c: u64, ldc: usize, bias: u64, gate: u64, ldg: usize, value_stride: usize, b_stride: usize, c_stride: usize, alpha: f64 }
}

impl Default for RawSpmm {
    /// Returns operands without addresses, with factor 1.
    fn default() -> Self {
        RawSpmm {
            columns: 0,
            values: 0,
            b: 0,
            ldb: 0,
            c: 0,
            ldc: 0,
            bias: 0,
            gate: 0,
            ldg: 0,
            value_stride: 0,
            b_stride: 0,
            c_stride: 0,
            alpha: 1.0,
        }
    }
}

/// Device addresses of one run into a sparse output (SDDMM). Row strides are in elements.
///
/// ```
/// use einsparse::raw::RawSddmm;
/// let (x, y, values) = (0x7000_0000, 0x7100_0000, 0x7200_0000);
/// let raw = RawSddmm::default().x(x).ldx(64).y(y).ldy(64).values(values);
/// assert_eq!(raw.mask, 0); // with `columns` for `Plan::run_raw`
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RawSddmm {
    /// Columns of the nonzeros of the output, as u32. Kernels over blocks do not read them.
    pub columns: u64,
    /// X, row-major: `[m, k]`, or `[k, m]` if planned so.
    pub x: u64,
    /// Row stride of X in elements.
    pub ldx: usize,
    /// Y, row-major: `[n, k]`, or `[k, n]` if planned so.
    pub y: u64,
    /// Row stride of Y in elements.
    pub ldy: usize,
    /// Values of the mask, one per slot of the output; 0 without mask.
    pub mask: u64,
    /// Values of the output, one per slot.
    pub values: u64,
    /// Factor of the product: the product of all scalar factors of the expression, including literals.
    pub alpha: f64,
}

setters! {
    RawSddmm { columns: u64, x: u64, ldx: usize, y: u64, ldy: usize, mask: u64, values: u64, alpha: f64 }
}

impl Default for RawSddmm {
    /// Returns operands without addresses, with factor 1.
    fn default() -> Self {
        RawSddmm { columns: 0, x: 0, ldx: 0, y: 0, ldy: 0, mask: 0, values: 0, alpha: 1.0 }
    }
}

/// Addresses of a run, for each kind of product.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum RawOperands<'a> {
    Spmm(&'a RawSpmm),
    Sddmm(&'a RawSddmm),
}

impl RawOperands<'_> {
    /// Returns the product of the scalar factors.
    pub(crate) fn alpha(self) -> f64 {
        match self {
            RawOperands::Spmm(raw) => raw.alpha,
            RawOperands::Sddmm(raw) => raw.alpha,
        }
    }
}

impl<'a> From<&'a RawSpmm> for RawOperands<'a> {
    fn from(raw: &'a RawSpmm) -> Self {
        RawOperands::Spmm(raw)
    }
}

impl<'a> From<&'a RawSddmm> for RawOperands<'a> {
    fn from(raw: &'a RawSddmm) -> Self {
        RawOperands::Sddmm(raw)
    }
}

impl RawSpmm {
    /// Returns the batch strides of B, C and `gate` in bytes, for the types of B and of C.
    pub(crate) fn strides(
        &self,
        order: Orientation,
        extents: Extents,
        types: [Dtype; 2],
    ) -> [u64; 3] {
        let Extents { m, k, n, .. } = extents;
        let b = if order.dense_columns { n } else { k };
        let c = if order.out_columns { n } else { m };
        let bytes = |rows: usize, leading: usize, stride: usize, dtype: Dtype| {
            let elements = match stride {
                0 => (rows as u64).saturating_mul(leading as u64),
                stride => stride as u64,
            };
            elements.saturating_mul(dtype.bytes() as u64)
        };
        let [own, out] = types;
        [
            bytes(b, self.ldb, self.b_stride, own),
            bytes(c, self.ldc, self.c_stride, out),
            bytes(c, self.ldg, 0, out),
        ]
    }

    /// Returns the addresses of one item of the batch.
    pub(crate) fn item(&self, strides: [u64; 3], item: usize) -> RawSpmm {
        let [b, c, gate] = strides.map(|stride| stride.wrapping_mul(item as u64));
        RawSpmm {
            b: self.b.wrapping_add(b),
            c: self.c.wrapping_add(c),
            gate: self.gate.wrapping_add(gate),
            ..*self
        }
    }
}

/// Extents of an SpMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extents {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// Batch size: number of products with one A.
    pub items: usize,
}
