//! Tensor maps of row-major operands. A kernel that copies with the tensor copy engine gets a map of the driver; a
//! kernel that copies with `cp.async` gets address, extents and strides in the same 16 words.

use einsparse_kernels::abi::{MAP_ADDRESS, MAP_EXTENTS, MAP_STRIDES, TMA};
use einsparse_kernels::table::Row;

use crate::driver::{
    DeviceMemory, PixelLayout, Swizzle, TensorMap, TensorMapLayout, TensorMapType,
};
use crate::error::Result;
use crate::registry::Dtype;

/// Creates the tensor maps of one kernel.
#[derive(Clone, Copy)]
pub(crate) struct Maps<'a> {
    /// Element type of the tensors.
    dtype: Dtype,
    /// Whether the kernel copies with the tensor copy engine.
    engine: bool,
    /// Memory to which maps of empty tensors point: the driver requires a valid address.
    empty: &'a DeviceMemory,
}

/// Row-major matrix in device memory: columns and rows, and the row stride in elements.
pub(crate) struct Flat {
    pub address: u64,
    pub extents: [usize; 2],
    pub leading: usize,
}

/// One row-major matrix per head in device memory: columns, rows and heads, and the strides of rows and heads in
/// elements.
pub(crate) struct Heads {
    pub address: u64,
    pub extents: [usize; 3],
    pub strides: [usize; 2],
}

/// Images in device memory, channels last, or another tensor of four axes: extents, innermost first, and the strides of
/// the outer three axes in elements.
pub(crate) struct Images {
    pub address: u64,
    pub extents: [usize; 4],
    pub strides: [usize; 3],
}

/// Positions of a window that moves over images. `[0]` of a pair is the vertical direction, `[1]` the horizontal one.
pub(crate) struct Places {
    /// Padding before the first row and column.
    pub padding: [usize; 2],
    /// Distance of the last tap from the first.
    pub reach: [usize; 2],
    /// Distance of adjacent positions.
    pub stride: [usize; 2],
}

impl<'a> Maps<'a> {
    /// Maps of tensors of the kernel's element type. `empty`: memory to which maps of empty tensors point.
    pub(crate) fn of(row: &Row, empty: &'a DeviceMemory) -> Self {
        Maps { dtype: row.dtype, engine: row.needs & TMA != 0, empty }
    }

    /// Maps of tensors of another element type.
    pub(crate) fn with_dtype(self, dtype: Dtype) -> Self {
        Maps { dtype, ..self }
    }

    /// Map of tiles of `[columns, rows]`, swizzled over `swizzled` elements; 0 for no swizzle.
    pub(crate) fn matrix(
        self,
        matrix: &Flat,
        tile: [usize; 2],
        swizzled: usize,
    ) -> Result<[u64; 16]> {
        let Flat { address, extents, leading } = *matrix;
        let [columns, rows] = extents;
        if !self.engine {
            return strided(self.dtype, address, &extents, &[leading.max(columns)]);
        }
        let bytes = self.dtype.bytes();
        let stride = (leading.max(columns) * bytes).next_multiple_of(16) as u64;
        let layout = TensorMapLayout {
            element: self.element(),
            extents: &[columns.max(1) as u64, rows.max(1) as u64],
            strides: &[stride],
            tile: &tile.map(|extent| extent as u32),
            steps: &[],
            swizzle: match swizzled * bytes {
                128 => Swizzle::B128,
                64 => Swizzle::B64,
                0 => Swizzle::None,
                _ => Swizzle::B32,
            },
        };
        self.tiled(address, &extents, &layout)
    }

    /// Map of tiles of `[columns, rows]` of a head. Rows of 128 bytes are swizzled over their length; narrower rows are
    /// not swizzled.
    pub(crate) fn heads(self, heads: &Heads, tile: [usize; 2]) -> Result<[u64; 16]> {
        let Heads { address, extents, strides } = *heads;
        if !self.engine {
            return strided(self.dtype, address, &extents, &strides);
        }
        let bytes = self.dtype.bytes();
        // The driver refuses a stride of 0, also along an axis of extent 1.
        let stride = |elements: usize| (elements.max(extents[0]) * bytes) as u64;
        let layout = TensorMapLayout {
            element: self.element(),
            extents: &extents.map(|extent| extent.max(1) as u64),
            strides: &strides.map(stride),
            tile: &[tile[0] as u32, tile[1] as u32, 1],
            steps: &[],
            swizzle: match tile[0] * bytes {
                128 => Swizzle::B128,
                _ => Swizzle::None,
            },
        };
        self.tiled(address, &extents, &layout)
    }

    /// Map of boxes of images with 128 or 64 bytes of channels, swizzled over them. Along each axis, every `steps`th
    /// position is copied, `tile` of them.
    pub(crate) fn images(
        self,
        images: &Images,
        (tile, steps): ([usize; 4], [usize; 4]),
    ) -> Result<[u64; 16]> {
        if !self.engine {
            return strided(self.dtype, images.address, &images.extents, &images.strides);
        }
        let own = Layout::of(self, images);
        let spanned = [0, 1, 2, 3].map(|axis| (tile[axis] * steps[axis]) as u32);
        let layout = TensorMapLayout {
            element: self.element(),
            extents: &own.extents,
            strides: &own.strides,
            tile: &spanned,
            steps: &steps.map(|step| step as u32),
            swizzle: match tile[0] * self.dtype.bytes() {
                128 => Swizzle::B128,
                _ => Swizzle::B64,
            },
        };
        self.tiled(images.address, &images.extents, &layout)
    }

    /// Map of `count` adjacent window positions of images, 128 bytes of channels each. A copy names the position of the
    /// first tap, and an offset for each other tap.
    pub(crate) fn pixels(
        self,
        images: &Images,
        places: &Places,
        count: usize,
    ) -> Result<[u64; 16]> {
        if !self.engine {
            return strided(self.dtype, images.address, &images.extents, &images.strides);
        }
        let own = Layout::of(self, images);
        // An empty tensor is mapped to one element, which is the only position of a window.
        let moved = |by: i32| if own.exists { by } else { 0 };
        let upper = |axis: usize| moved(places.padding[axis] as i32 - places.reach[axis] as i32);
        let layout = PixelLayout {
            element: self.element(),
            extents: own.extents,
            strides: own.strides,
            lower: [1, 0].map(|axis| moved(-(places.padding[axis] as i32))),
            upper: [1, 0].map(upper),
            steps: [1, 0].map(|axis| places.stride[axis] as u32),
            channels: (128 / self.dtype.bytes()) as u32,
            pixels: count as u32,
        };
        let address = self.address(images.address, &images.extents);
        Ok(*TensorMap::pixels(self.empty.context().is_absent(), address, &layout)?.words())
    }

    fn element(self) -> TensorMapType {
        match self.dtype {
            Dtype::Bf16 => TensorMapType::Bf16,
            Dtype::E4m3 | Dtype::E5m2 | Dtype::Int8 => TensorMapType::U8,
            Dtype::F32 => TensorMapType::F32,
            // The copy engine rounds to nearest.
            Dtype::Tf32 => TensorMapType::Tf32,
            Dtype::F16 => TensorMapType::F16,
            Dtype::F64 => TensorMapType::F64,
            Dtype::Int32 => TensorMapType::I32,
        }
    }

    /// The address of a tensor, or that of other memory if the tensor is empty.
    fn address(self, address: u64, extents: &[usize]) -> u64 {
        if exists(address, extents) { address } else { self.empty.address() }
    }

    fn tiled(
        self,
        address: u64,
        extents: &[usize],
        layout: &TensorMapLayout<'_>,
    ) -> Result<[u64; 16]> {
        let address = self.address(address, extents);
        Ok(*TensorMap::tiled(self.empty.context().is_absent(), address, layout)?.words())
    }
}

/// Whether a tensor has elements.
fn exists(address: u64, extents: &[usize]) -> bool {
    address != 0 && extents.iter().all(|&extent| extent > 0)
}

/// Extents and strides of images as the driver requires them.
struct Layout {
    exists: bool,
    extents: [u64; 4],
    strides: [u64; 3],
}

impl Layout {
    fn of(maps: Maps<'_>, images: &Images) -> Self {
        let exists = exists(images.address, &images.extents);
        let bytes = maps.dtype.bytes();
        // The driver refuses a stride of 0, also along an axis of extent 1.
        let stride = |elements: usize| match exists {
            true => (elements * bytes).next_multiple_of(16).max(16) as u64,
            false => 16,
        };
        Layout {
            exists,
            // An empty tensor is mapped to one readable element.
            extents: images.extents.map(|e| if exists { e as u64 } else { 1 }),
            strides: images.strides.map(stride),
        }
    }
}

/// Words for kernels that copy with `cp.async`: address, extents and strides of a tensor of two to four axes, innermost
/// first. All extents of an empty tensor are 0.
fn strided(dtype: Dtype, address: u64, extents: &[usize], strides: &[usize]) -> Result<[u64; 16]> {
    const WHAT: [&str; 4] = ["bytes of a row", "rows", "matrices", "images"];
    let bytes = dtype.bytes();
    let exists = exists(address, extents);
    let mut words = [0; 16];
    words[MAP_ADDRESS] = address;
    for (axis, &stride) in strides.iter().enumerate() {
        words[MAP_STRIDES + axis] = (stride * bytes) as u64;
    }
    for (axis, &extent) in extents.iter().enumerate().filter(|_| exists) {
        let extent = if axis == 0 { extent.saturating_mul(bytes) } else { extent };
        let extent = u64::from(super::small(WHAT[axis], extent)?);
        words[MAP_EXTENTS + axis / 2] |= extent << (axis % 2 * 32);
    }
    Ok(words)
}
