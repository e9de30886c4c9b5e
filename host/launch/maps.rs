//! Tensor maps of row-major matrices.

use einsparse_kernels::abi::{MAP_ADDRESS, MAP_EXTENTS, MAP_STRIDES};

use crate::driver::{
    DeviceMemory, PixelLayout, Swizzle, TensorMap, TensorMapLayout, TensorMapType,
};
use crate::error::Result;
use crate::registry::Dtype;

/// A row-major matrix in device memory: columns and rows, and elements from one row to the next.
pub(crate) struct Flat {
    pub address: u64,
    pub extents: [usize; 2],
    pub leading: usize,
}

/// A row-major matrix for each head in device memory: columns, rows and heads, and elements from one row and one head
/// to the next.
pub(crate) struct Heads {
    pub address: u64,
    pub extents: [usize; 3],
    pub strides: [usize; 2],
}

/// Map of tiles of `[columns, rows]` of a head, 128 bytes wide and swizzled over them, or narrower and not. What is
/// empty is mapped to `empty`.
pub(crate) fn heads_map(
    dtype: Dtype,
    heads: &Heads,
    tile: [usize; 2],
    empty: &DeviceMemory,
) -> Result<[u64; 16]> {
    let there = heads.extents.iter().all(|&e| e > 0) && heads.address != 0;
    let [columns, rows, count] = heads.extents;
    let bytes = dtype.bytes();
    // A stride that nothing is reached by still has to be one.
    let row = heads.strides[0].max(columns) * bytes;
    let head = heads.strides[1].max(columns) * bytes;
    let layout = TensorMapLayout {
        element: match dtype {
            Dtype::Bf16 => TensorMapType::Bf16,
            Dtype::Tf32 => TensorMapType::Tf32,
            Dtype::E4m3 => TensorMapType::U8,
            _ => TensorMapType::F16,
        },
        extents: &[columns, rows, count].map(|e| e.max(1) as u64),
        strides: &[row as u64, head as u64],
        tile: &[tile[0] as u32, tile[1] as u32, 1],
        steps: &[],
        swizzle: match tile[0] * bytes {
            128 => Swizzle::B128,
            _ => Swizzle::None,
        },
    };
    let address = if there { heads.address } else { empty.address() };
    Ok(*TensorMap::tiled(empty.context().is_absent(), address, &layout)?.words())
}

/// Images in device memory, channels last, or anything else of four axes: extents, the innermost first, and elements
/// from one place to the next along all axes but that.
pub(crate) struct Images {
    pub address: u64,
    pub extents: [usize; 4],
    pub strides: [usize; 3],
}

/// Map of boxes of 16-bit elements of images, 128 or 64 bytes of channels each and swizzled over them; along each axis
/// every `steps`th place is copied, `tile` of them. What is empty is mapped to `empty`.
pub(crate) fn images_map(
    dtype: Dtype,
    images: &Images,
    (tile, steps): ([usize; 4], [usize; 4]),
    empty: &DeviceMemory,
) -> Result<[u64; 16]> {
    let own = Lying::of(dtype, images, empty);
    let spanned = [0, 1, 2, 3].map(|axis| (tile[axis] * steps[axis]) as u32);
    let layout = TensorMapLayout {
        element: own.element,
        extents: &own.extents,
        strides: &own.strides,
        tile: &spanned,
        steps: &steps.map(|step| step as u32),
        swizzle: match tile[0] * dtype.bytes() {
            128 => Swizzle::B128,
            _ => Swizzle::B64,
        },
    };
    Ok(*TensorMap::tiled(empty.context().is_absent(), own.address, &layout)?.words())
}

/// Places of a window that moves over images: `[0]` of a pair is along rows, `[1]` along columns.
pub(crate) struct Places {
    /// Positions of zeros in front.
    pub padding: [usize; 2],
    /// From the first tap to the last.
    pub reach: [usize; 2],
    /// From one place to the next.
    pub stride: [usize; 2],
}

/// Map of so many neighbouring places of images, 128 bytes of channels each: the position that the first tap meets,
/// and by an offset those of the others. What is empty is mapped to `empty`.
pub(crate) fn pixels_map(
    dtype: Dtype,
    images: &Images,
    places: &Places,
    count: usize,
    empty: &DeviceMemory,
) -> Result<[u64; 16]> {
    let own = Lying::of(dtype, images, empty);
    // The one element of what is empty is a window's only place.
    let moved = |by: i32| if own.there { by } else { 0 };
    let upper = |axis: usize| moved(places.padding[axis] as i32 - places.reach[axis] as i32);
    let layout = PixelLayout {
        element: own.element,
        extents: own.extents,
        strides: own.strides,
        lower: [1, 0].map(|axis| moved(-(places.padding[axis] as i32))),
        upper: [1, 0].map(upper),
        steps: [1, 0].map(|axis| places.stride[axis] as u32),
        channels: (128 / dtype.bytes()) as u32,
        pixels: count as u32,
    };
    Ok(*TensorMap::pixels(empty.context().is_absent(), own.address, &layout)?.words())
}

/// Images as a map wants them.
struct Lying {
    there: bool,
    element: TensorMapType,
    address: u64,
    extents: [u64; 4],
    strides: [u64; 3],
}

impl Lying {
    fn of(dtype: Dtype, images: &Images, empty: &DeviceMemory) -> Self {
        let there = images.extents.iter().all(|&e| e > 0) && images.address != 0;
        let bytes = dtype.bytes();
        // A stride that nothing is reached by still has to be one.
        let stride = |elements: usize| match there {
            true => (elements * bytes).next_multiple_of(16).max(16) as u64,
            false => 16,
        };
        Lying {
            there,
            element: match dtype {
                Dtype::Bf16 => TensorMapType::Bf16,
                _ => TensorMapType::F16,
            },
            address: if there { images.address } else { empty.address() },
            // Of what is empty one element can be read, and nothing behind it.
            extents: images.extents.map(|e| if there { e as u64 } else { 1 }),
            strides: images.strides.map(stride),
        }
    }
}

/// What threads that copy tiles of a matrix with `cp.async` read in place of a tensor map.
pub(crate) fn strided_map(dtype: Dtype, matrix: &Flat) -> Result<[u64; 16]> {
    let [columns, rows] = matrix.extents;
    strided(dtype, matrix.address, &[columns, rows], &[matrix.leading.max(columns)])
}

/// The same of a matrix for each head.
pub(crate) fn strided_heads(dtype: Dtype, heads: &Heads) -> Result<[u64; 16]> {
    strided(dtype, heads.address, &heads.extents, &heads.strides)
}

/// The same of images.
pub(crate) fn strided_images(dtype: Dtype, images: &Images) -> Result<[u64; 16]> {
    strided(dtype, images.address, &images.extents, &images.strides)
}

/// The same of a tensor of two to four axes, the innermost first, with elements from one place to the next along the
/// others. Nothing is read of what is empty.
fn strided(dtype: Dtype, address: u64, extents: &[usize], strides: &[usize]) -> Result<[u64; 16]> {
    const WHAT: [&str; 4] = ["bytes of a row", "rows", "matrices", "images"];
    let bytes = dtype.bytes();
    let there = address != 0 && extents.iter().all(|&extent| extent > 0);
    let mut words = [0; 16];
    words[MAP_ADDRESS] = address;
    for (axis, &stride) in strides.iter().enumerate() {
        words[MAP_STRIDES + axis] = (stride * bytes) as u64;
    }
    for (axis, &extent) in extents.iter().enumerate().filter(|_| there) {
        let extent = if axis == 0 { extent.saturating_mul(bytes) } else { extent };
        let extent = u64::from(super::small(WHAT[axis], extent)?);
        words[MAP_EXTENTS + axis / 2] |= extent << (axis % 2 * 32);
    }
    Ok(words)
}

/// Map of tiles of `[columns, rows]`, swizzled over `swizzled` elements, 0 for not at all. What is empty is mapped to
/// `empty`.
pub(crate) fn tensor_map(
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
        // The copy engine rounds, to nearest.
        Dtype::Tf32 => TensorMapType::Tf32,
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
        steps: &[],
        swizzle: match swizzled * bytes {
            128 => Swizzle::B128,
            64 => Swizzle::B64,
            0 => Swizzle::None,
            _ => Swizzle::B32,
        },
    };
    let address = if there { matrix.address } else { empty.address() };
    Ok(*TensorMap::tiled(empty.context().is_absent(), address, &layout)?.words())
}
