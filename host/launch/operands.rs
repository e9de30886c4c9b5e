//! Where the operands of one product lie, and how large they are.

use crate::indirect::Orientation;
use crate::registry::Dtype;

/// Device addresses of one run. Leading dimensions in elements. The plan has the row offsets of A.
///
/// ```
/// use einsparse::raw::RawSpmm;
/// let (b, c) = (0x7000_0000, 0x7100_0000); // of another library, [k, 64] and [m, 64]
/// let raw = RawSpmm { b, ldb: 64, c, ldc: 64, ..RawSpmm::default() };
/// assert_eq!(raw.alpha, 1.0); // with `columns` and `values` for `Plan::run_raw`
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawSpmm {
    /// Index array of A: the column (block column) of each slot, u32; 16-byte aligned and readable 8 slots past its
    /// end. For N:M the words of positions, of which the plan keeps its own copy.
    pub columns: u64,
    /// Values of A, one for each slot; 16-byte aligned and readable 8 slots past its end.
    pub values: u64,
    /// B, row-major: `[k, n]`, or `[n, k]` where the plan has it so. Those of a batch follow each other, `ldb` times
    /// their rows apart; C and the gate likewise.
    pub b: u64,
    /// Elements from one row of B to the next.
    pub ldb: usize,
    /// C, row-major: `[m, n]`, or `[n, m]` where the plan has it so.
    pub c: u64,
    /// Elements from one row of C to the next.
    pub ldc: usize,
    /// Bias, one element for each row or column; 0 without.
    pub bias: u64,
    /// Gate of `relu_grad`, of C's shape; 0 without.
    pub gate: u64,
    /// Elements from one row of the gate to the next.
    pub ldg: usize,
    /// Elements from the values of A of one of a batch to those of the next; 0 where all have the same. Families of
    /// single entries alone.
    pub value_stride: usize,
    /// Elements from one B of a batch to the next, where they do not follow each other; 0 where they do. Families of
    /// single entries alone.
    pub b_stride: usize,
    /// The same of C.
    pub c_stride: usize,
    /// Factor of the product: of all scalar factors of the expression, literals included.
    pub alpha: f64,
}

impl Default for RawSpmm {
    /// No addresses, factor 1.
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

/// Device addresses of one run into a sparse output. Leading dimensions in elements.
///
/// ```
/// use einsparse::raw::RawSddmm;
/// let (x, y, values) = (0x7000_0000, 0x7100_0000, 0x7200_0000);
/// let raw = RawSddmm { x, ldx: 64, y, ldy: 64, values, ..RawSddmm::default() };
/// assert_eq!(raw.mask, 0); // with `columns` for `Plan::run_raw`
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawSddmm {
    /// Columns of the output's entries, u32; kernels over blocks do not read them.
    pub columns: u64,
    /// X, row-major: `[m, k]`, or `[k, m]` where the plan has it so.
    pub x: u64,
    /// Elements from one row of X to the next.
    pub ldx: usize,
    /// Y, row-major: `[n, k]`, or `[k, n]` where the plan has it so.
    pub y: u64,
    /// Elements from one row of Y to the next.
    pub ldy: usize,
    /// Values of the mask, one for each slot of the output; 0 without.
    pub mask: u64,
    /// Values of the output, one for each slot.
    pub values: u64,
    /// Factor of the product: of all scalar factors of the expression, literals included.
    pub alpha: f64,
}

impl Default for RawSddmm {
    /// No addresses, factor 1.
    fn default() -> Self {
        RawSddmm { columns: 0, x: 0, ldx: 0, y: 0, ldy: 0, mask: 0, values: 0, alpha: 1.0 }
    }
}

/// Addresses that a plan runs on, by what it computes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum RawOperands<'a> {
    Spmm(&'a RawSpmm),
    Sddmm(&'a RawSddmm),
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
    /// Bytes of B, C and the gate from one of a batch to the next, for the types of B and of C.
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

    /// The addresses of one of the batch.
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
    /// How many products one A is for.
    pub items: usize,
}
