//! The table of kernels on the host. This file names no kernel; `rows.rs` of each family does.

use einsparse_kernels::abi::{A_COLUMNS, PANEL_BYTES};
pub use einsparse_kernels::abi::{Dtype, Operation, WalkKind, Zeros};
use einsparse_kernels::families::WgmmaParams;
pub use einsparse_kernels::table::{MODULE_NAMES, Row, kernels, products, rows_of};

use einsparse_formats::{Element, Format};

use crate::error::{Error, Refusal, Result};

/// Element type for which kernels exist. Sealed, as [`Element`] is.
///
/// ```
/// use einsparse::{Context, Result, Scalar};
/// fn ones<T: Scalar>(ctx: &Context) -> Result<einsparse::Tensor<T>> {
///     ctx.upload_dense(&einsparse::formats::Dense::new([3], vec![T::ONE; 3])?)
/// }
/// assert_eq!(ones::<f64>(&Context::cpu())?.to_dense()?.values(), [1.0; 3]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type with kernels",
    label = "not an element type of einsparse",
    note = "element types are f32, f64, and `einsparse::formats::{{f16, bf16}}`; with another output type also i8, \
            i32, and `einsparse::formats::{{E4m3, E5m2}}`"
)]
pub trait Scalar: Element + sealed::Sealed {
    /// Name of the type in the table, computed without TF32.
    const DTYPE: Dtype;
}

mod sealed {
    /// Guarantees that the type has the size of its `Dtype` in the table.
    pub trait Sealed {}
}

/// Implements [`Scalar`] for the types in which values are stored.
macro_rules! scalars {
    ($($dtype:ident: $element:ty,)+) => {
        $(
            impl sealed::Sealed for $element {}

            impl Scalar for $element {
                const DTYPE: Dtype = Dtype::$dtype;
            }

            const _: () = assert!(size_of::<$element>() == <$element as Scalar>::DTYPE.bytes());
        )+
    };
}

scalars! {
    F32: f32,
    F64: f64,
    F16: half::f16,
    Bf16: half::bf16,
    E4m3: einsparse_formats::E4m3,
    E5m2: einsparse_formats::E5m2,
    Int8: i8,
    Int32: i32,
}

/// Runs `$body` with `$T` as the type in which values of `$dtype` are stored.
#[doc(hidden)]
#[macro_export]
macro_rules! with_type {
    (@ $T:ident = $element:ty => $body:expr) => {{
        type $T = $element;
        $body
    }};
    ($dtype:expr, $T:ident => $body:expr) => {{
        use $crate::formats::{E4m3, E5m2, bf16, f16};
        use $crate::registry::Dtype;
        match $dtype {
            Dtype::F32 | Dtype::Tf32 => $crate::with_type!(@ $T = f32 => $body),
            Dtype::F64 => $crate::with_type!(@ $T = f64 => $body),
            Dtype::F16 => $crate::with_type!(@ $T = f16 => $body),
            Dtype::Bf16 => $crate::with_type!(@ $T = bf16 => $body),
            Dtype::E4m3 => $crate::with_type!(@ $T = E4m3 => $body),
            Dtype::E5m2 => $crate::with_type!(@ $T = E5m2 => $body),
            Dtype::Int8 => $crate::with_type!(@ $T = i8 => $body),
            Dtype::Int32 => $crate::with_type!(@ $T = i32 => $body),
        }
    }};
}

/// The row of the table with this name.
pub fn find(name: &str) -> Option<&'static Row> {
    kernels().iter().find(|row| row.name == name)
}

/// Error that no kernel computes `what`, with the reason for each of these rows.
pub(crate) fn none_of<'r>(
    rows: impl Iterator<Item = &'r Row>,
    what: impl Into<String>,
    reason: impl Fn(&Row) -> String,
) -> Error {
    Error::no_kernel(what, rows.map(|row| Refusal::of(row.name, reason(row))))
}

/// Error that no kernel computes `what`, because the rows are for other element types.
pub(crate) fn none_of_type<'r>(
    rows: impl Iterator<Item = &'r Row>,
    what: impl Into<String>,
) -> Error {
    none_of(rows, what, |row| format!("is for {}", row.dtype.name()))
}

/// The first of these rows that has the element type. `what` names the operation in the error.
pub(crate) fn of_type(
    rows: impl Iterator<Item = &'static Row> + Clone,
    dtype: Dtype,
    what: impl Into<String>,
) -> Result<&'static Row> {
    let row = rows.clone().find(|row| row.dtype == dtype);
    row.ok_or_else(|| none_of_type(rows, what))
}

/// Reason why a walk cannot read a format; `None` if it can.
pub fn refuses(walk: WalkKind, format: &Format) -> Option<String> {
    let grouped =
        |axis: usize| (axis != 0).then(|| format!("walks rows, but {format} groups axis {axis}"));
    match (walk, format) {
        (
            WalkKind::Csr | WalkKind::Permuted | WalkKind::Vector | WalkKind::Filled,
            Format::Coo | Format::Csr | Format::Ell,
        ) => None,
        // Rows are ordered by class, and each row is contiguous.
        (WalkKind::Csr, Format::HybridGroupCoo) => None,
        (
            WalkKind::Csr | WalkKind::Permuted | WalkKind::Vector | WalkKind::Filled,
            Format::GroupCoo { axis, .. },
        ) => grouped(*axis),
        (WalkKind::GroupCoo, Format::GroupCoo { axis, group }) => match group {
            Some(g) if g % 4 == 0 => grouped(*axis),
            g => Some(format!("requires a group size divisible by 4, not {}", g.unwrap_or(0))),
        },
        (
            WalkKind::Block,
            Format::Bsr { .. } | Format::BlockCoo { .. } | Format::BlockGroupCoo { .. },
        ) => None,
        (WalkKind::Nm, Format::Nm { .. }) => None,
        (WalkKind::Bitmap, Format::Bitmap) => None,
        (WalkKind::Bytemap, Format::Bytemap) => None,
        (WalkKind::SlicedEll, Format::SlicedEll) => None,
        (walk, format) => Some(format!("walks {}, the operand is {format}", describe(walk))),
    }
}

fn describe(walk: WalkKind) -> &'static str {
    match walk {
        WalkKind::Csr => "entries in row order",
        WalkKind::GroupCoo => "aligned groups of entries in row order",
        WalkKind::Block => "dense blocks in block row order",
        WalkKind::Nm => "two of every four neighbours in a row",
        WalkKind::Permuted => "entries in row order, transposed",
        WalkKind::Bitmap => "bits and values by tiles",
        WalkKind::Bytemap => "places as bytes and values by tiles",
        WalkKind::Vector => "entries in row order, as columns of eight rows",
        WalkKind::Filled => "entries in row order, among zeros",
        WalkKind::SlicedEll => "slices of rows, a lane for each row",
        WalkKind::Listed => "places as data",
        WalkKind::Direct => "no sparse operand",
    }
}

/// Block extents of a format, `(1, 1)` for unstructured formats.
pub fn block_of(format: &Format) -> (usize, usize) {
    match format {
        Format::Bsr { block }
        | Format::BlockCoo { block }
        | Format::BlockGroupCoo { block, .. } => *block,
        _ => (1, 1),
    }
}

/// Whether a kernel computes tiles of C from a tile schedule (`families/gemm/strips.rs`).
pub fn has_strips(row: &Row) -> bool {
    row.takes::<WgmmaParams>()
}

/// Whether a kernel writes C in this type.
pub fn writes(row: &Row, out: Dtype) -> bool {
    match row.dtype {
        Dtype::E4m3 | Dtype::E5m2 => matches!(out, Dtype::F16 | Dtype::Bf16 | Dtype::F32),
        Dtype::Int8 => matches!(out, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::Int32),
        Dtype::Tf32 => out == Dtype::F32,
        own => out == own,
    }
}

/// Whether a block kernel supports blocks of these extents, for the product with the matrix or with its transpose. A
/// kernel supports exactly its own extents. In the modules `wgmma` and `narrow`, its own extents must be the largest
/// pieces into which the block can be cut: at most 64 rows and one stage deep.
pub fn takes_blocks(row: &Row, (bm, bk): (usize, usize), transposed: bool) -> bool {
    let own = (row.block.0 as usize, row.block.1 as usize);
    if !has_strips(row) {
        return own == (bm, bk) && !transposed;
    }
    // Max depth of a piece is the depth of a stage.
    let stage = PANEL_BYTES / row.dtype.bytes();
    let (m, k) = if transposed { (bk, bm) } else { (bm, bk) };
    let whole = |extent: usize, piece: usize| extent.is_multiple_of(piece);
    // A block of one row or column is contiguous in either order; other blocks are row-major.
    let by_column = if bm == 1 || bk == 1 { k == 1 } else { transposed };
    (m.min(64), k.min(stage)) == own
        && whole(m, own.0)
        && whole(k, own.1)
        && (row.order & A_COLUMNS != 0) == by_column
}
