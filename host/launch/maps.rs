//! Tensor maps of row-major matrices.

use crate::driver::{DeviceMemory, Swizzle, TensorMap, TensorMapLayout, TensorMapType};
use crate::error::Result;
use crate::registry::Dtype;

/// A row-major matrix in device memory: columns and rows, and elements from one row to the next.
pub(super) struct Flat {
    pub address: u64,
    pub extents: [usize; 2],
    pub leading: usize,
}

/// Map of tiles of `[columns, rows]`, swizzled over `swizzled` elements, 0 for not at all. What is empty is mapped to `empty`.
pub(super) fn tensor_map(
    dtype: Dtype,
    matrix: &Flat,
    tile: [usize; 2],
    swizzled: usize,
    empty: &DeviceMemory,
) -> Result<[u64; 16]> {
    let element = match dtype {
        Dtype::Bf16 => TensorMapType::Bf16,
        Dtype::E4m3 | Dtype::E5m2 | Dtype::Int8 => TensorMapType::U8,
        Dtype::F32 => TensorMapType::F32,
        _ => TensorMapType::F16,
    };
    let (bytes, [columns, rows]) = (dtype.bytes(), matrix.extents);
    // A matrix without elements is never read, but the driver wants an address and extents.
    let there = columns > 0 && rows > 0 && matrix.address != 0;
    let stride = (matrix.leading.max(columns) * bytes).next_multiple_of(16) as u64;
    let layout = TensorMapLayout {
        element,
        extents: &[columns.max(1) as u64, rows.max(1) as u64],
        strides: &[stride],
        tile: &[tile[0] as u32, tile[1] as u32],
        swizzle: match swizzled * bytes {
            128 => Swizzle::B128,
            64 => Swizzle::B64,
            0 => Swizzle::None,
            _ => Swizzle::B32,
        },
    };
    let address = if there {
        matrix.address
    } else {
        empty.address()
    };
    Ok(*TensorMap::encode_tiled(address, &layout)?.words())
}
