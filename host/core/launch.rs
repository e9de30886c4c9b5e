//! Code that the launches of families share: workspace, tensor maps, flags, checks of addresses and sizes.
//! [`kernel`](crate::kernel) contains the launch itself and the guarantees of its callers.

pub(crate) mod maps;
mod product;
mod turns;

use einsparse_kernels::abi::{
    FLAG_ACCUMULATE, FLAG_BIAS_COLUMNS, FLAG_BIAS_ROWS, FLAG_GATE, FLAG_GELU, FLAG_OUT_BF16,
    FLAG_OUT_F16, FLAG_OUT_F32, FLAG_RELU,
};
use einsparse_kernels::table::Row;

use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::indirect::{BiasAxis, SpmmForm};
use crate::registry::Dtype;

pub(crate) use product::Extents;
pub use product::{Matrix, Product, RawOperands, RawSddmm, RawSpmm, SpmmConfig};
pub use turns::{Turns, in_turn, shared_turns};

/// Largest grid in y.
pub(crate) const MAX_GRID_Y: usize = 65_535;

/// Largest grid in x, and the max number of rows: tiles extend past the last row.
pub(crate) const MAX_GRID_X: usize = i32::MAX as usize;

/// Last part of the text that `explain` prints for a kernel with `workspace` bytes of workspace.
pub(crate) fn footprint(row: &Row, workspace: usize) -> String {
    let (threads, shared) = (row.threads, row.shared_bytes);
    format!("{threads} threads, {shared} bytes of shared memory, {workspace} bytes of workspace")
}

/// Flag that passes the type of C to a kernel of 8-bit operands.
pub(crate) fn out_flag(out: Dtype) -> u32 {
    match out {
        Dtype::F16 => FLAG_OUT_F16,
        Dtype::Bf16 => FLAG_OUT_BF16,
        Dtype::F32 => FLAG_OUT_F32,
        _ => 0,
    }
}

/// Converts a count to u32, or returns an error that names it.
pub(crate) fn small(what: &str, value: usize) -> Result<u32> {
    within(what, value, u32::MAX as usize)
}

/// Converts a count of at most `limit` to u32, or returns an error that names it.
pub(crate) fn within(what: &str, value: usize, limit: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(small) if value <= limit => Ok(small),
        _ => Err(Error::Overflow { what: what.into(), value: value as u128, limit: limit as u128 }),
    }
}

/// Row stride in bytes, for `leading` elements of `element` bytes.
pub(crate) fn row_bytes(of: &str, leading: usize, element: usize) -> Result<u32> {
    let bytes = leading.saturating_mul(element);
    // Every launch calls this function: the message is formatted only on failure.
    u32::try_from(bytes).or_else(|_| small(&format!("bytes of a row of {of}"), bytes))
}

/// Mode and epilogue as flags, and the address of a bias of columns (0 without one). Checks the bias and the row
/// strides.
pub(crate) fn flags(form: &SpmmForm, extents: Extents, raw: &RawSpmm) -> Result<(u32, u64)> {
    let mut flags = 0;
    if form.mode == Mode::Accumulate {
        flags |= FLAG_ACCUMULATE;
    }
    flags |= match form.activation {
        Activation::Identity => 0,
        Activation::Relu => FLAG_RELU,
        Activation::Gelu => FLAG_GELU,
    };
    let Extents { m, k, n, .. } = extents;
    let order = form.order;
    let mut column_bias = 0;
    if let Some((name, axis)) = &form.bias {
        // These are rows and columns of the output as the user gave it. Rows of the kernels are those of the sparse
        // matrix.
        let extent = if (*axis == BiasAxis::Rows) != order.out_columns {
            flags |= FLAG_BIAS_ROWS;
            m
        } else {
            flags |= FLAG_BIAS_COLUMNS;
            column_bias = raw.bias;
            n
        };
        if raw.bias == 0 && extent > 0 {
            return Err(Error::at_zero(name));
        }
    }
    if let Some(name) = &form.gate {
        flags |= FLAG_GATE;
        if raw.gate == 0 && m * n > 0 {
            return Err(Error::at_zero(name));
        }
    }
    let b_width = if order.dense_columns { k } else { n };
    let c_width = if order.out_columns { m } else { n };
    let gate_leading = if form.gate.is_some() { raw.ldg } else { c_width };
    for (name, leading, width) in
        [("B", raw.ldb, b_width), ("C", raw.ldc, c_width), ("gate", gate_leading, c_width)]
    {
        if leading < width {
            return Err(Error::stride(name, leading, format_args!("at least {width}")));
        }
    }
    Ok((flags, column_bias))
}

pub(crate) fn aligned(row: &Row, name: &str, address: u64, leading: usize) -> Result<()> {
    let element = row.dtype.bytes();
    let row_bytes = leading.saturating_mul(element);
    let bytes = row.vector as usize * element;
    aligned_to(name, (address, row_bytes), bytes).map_err(|error| match error {
        Error::Alignment { name, part, found, required, .. } => {
            let fix = format!(
                "required by {}: plan with `Options::alignment` = 1 for operands that are not aligned",
                row.name
            );
            Error::Alignment { name, part, found, required, fix }
        }
        other => other,
    })
}

/// Refuses an address or a row stride in bytes that is not a multiple of `required` bytes.
pub(crate) fn aligned_to(
    name: &str,
    (address, row_bytes): (u64, usize),
    required: usize,
) -> Result<()> {
    if !address.is_multiple_of(required as u64) {
        return Err(Error::alignment(name, "address", address, required));
    }
    if !row_bytes.is_multiple_of(required) {
        return Err(Error::alignment(name, "row stride", row_bytes as u64, required));
    }
    Ok(())
}

/// Refuses an address that is not aligned for loads of 16 bytes.
pub fn in_vectors(name: &str, address: u64) -> Result<()> {
    if address.is_multiple_of(16) {
        return Ok(());
    }
    Err(Error::alignment(name, "address", address, 16))
}
