//! Tensor maps: descriptors from which the tensor copy engine (TMA) of compute capability 9.0 loads a tile.

use std::ffi::c_int;

use super::{DevicePtr, check, sys};
use crate::error::{Error, Result};

/// 128-byte descriptor, passed to a kernel by value (`__grid_constant__`).
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap([u64; 16]);
const _: () = assert!(size_of::<TensorMap>() == 128 && align_of::<TensorMap>() == 64);

/// Element type of the tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum TensorMapType {
    /// 8-bit unsigned.
    U8 = 0,
    /// 16-bit unsigned.
    U16 = 1,
    /// 32-bit unsigned.
    U32 = 2,
    /// 32-bit signed.
    I32 = 3,
    /// 64-bit unsigned.
    U64 = 4,
    /// 64-bit signed.
    I64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// bfloat16.
    Bf16 = 9,
    /// f32, loaded as TF32.
    Tf32 = 11,
}

/// Permutation of the rows of a tile in shared memory. The name states the max inner extent in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Swizzle {
    /// No permutation.
    #[default]
    None = 0,
    /// Over 32 bytes.
    B32 = 1,
    /// Over 64 bytes.
    B64 = 2,
    /// Over 128 bytes.
    B128 = 3,
}

/// Strided tensor and the tile to copy, innermost axis first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapLayout<'a> {
    /// Element type.
    pub element: TensorMapType,
    /// Extents of 1 to 5 axes.
    pub extents: &'a [u64],
    /// Strides in bytes of all axes but the innermost; multiples of 16.
    pub strides: &'a [u64],
    /// Extents of the tile, at most 256 each, including the elements that [`steps`](Self::steps) skip.
    pub tile: &'a [u32],
    /// Element step along each axis, 1 to 8; empty means that all elements are copied.
    pub steps: &'a [u32],
    /// Permutation in shared memory.
    pub swizzle: Swizzle,
}

/// Images in NHWC layout and a tile of their pixels. The tile holds adjacent window positions, and continues over rows
/// and images. Innermost axis first: channels, columns, rows, images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PixelLayout {
    /// Element type.
    pub element: TensorMapType,
    /// Extents.
    pub extents: [u64; 4],
    /// Strides in bytes of all axes but the innermost; multiples of 16.
    pub strides: [u64; 3],
    /// Offset of the first tap of the first window from the first column and row, from -128 to 127.
    pub lower: [i32; 2],
    /// Offset of the first tap of the last window from the last column and row, from -128 to 127.
    pub upper: [i32; 2],
    /// Window strides along columns and rows, 1 to 8.
    pub steps: [u32; 2],
    /// Channels of a tile, 128 bytes in total.
    pub channels: u32,
    /// Pixels of a tile, at most 1024.
    pub pixels: u32,
}

/// Settings of all maps: no interleaving, L2 promotion to 256 bytes, zeros for elements outside of the tensor.
const NO_INTERLEAVE: c_int = 0;
const PROMOTE_TO_256_BYTES: c_int = 3;
const FILL_ZERO: c_int = 0;

impl TensorMap {
    /// Returns the descriptor in the form that params structs hold.
    pub fn words(&self) -> &[u64; 16] {
        &self.0
    }

    /// Encodes a map of the tensor at `address` (16-byte aligned). Elements outside of the tensor are read as zero.
    /// This function reads no element.
    pub fn encode_tiled(address: DevicePtr, layout: &TensorMapLayout<'_>) -> Result<Self> {
        Self::tiled(false, address, layout)
    }

    /// Creates a [`TensorMap`] of device memory. `absent`: only validates the arguments.
    pub fn tiled(absent: bool, address: DevicePtr, layout: &TensorMapLayout<'_>) -> Result<Self> {
        const CALL: &str = "cuTensorMapEncodeTiled";
        let rank = layout.extents.len();
        let all = layout.steps.is_empty() || layout.steps.len() == rank;
        let lengths = layout.strides.len() + 1 == rank && layout.tile.len() == rank && all;
        if !(1..=5).contains(&rank) || !lengths {
            return Err(Error::Cuda {
                call: CALL.into(),
                code: None,
                reason: format!(
                    "{rank} extents, {} strides, {} tile extents and {} steps; want r, r - 1, r and 0 or r with 1 <= \
                     r <= 5",
                    layout.strides.len(),
                    layout.tile.len(),
                    layout.steps.len()
                ),
            });
        }
        encodable(CALL, address, layout.extents, layout.strides)?;
        let mut map = Self([0; 16]);
        if absent {
            return Ok(map);
        }
        let mut element_strides = [1u32; 5];
        for (own, &step) in element_strides.iter_mut().zip(layout.steps) {
            *own = step;
        }
        // SAFETY: the arrays have the lengths that the rank requires (checked above), and `map` is 128 bytes, aligned
        // to 64. The driver stores the address and does not read from it.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                layout.element as c_int,
                rank as u32,
                std::ptr::without_provenance_mut(address as usize),
                layout.extents.as_ptr(),
                layout.strides.as_ptr(),
                layout.tile.as_ptr(),
                element_strides.as_ptr(),
                NO_INTERLEAVE,
                layout.swizzle as c_int,
                PROMOTE_TO_256_BYTES,
                FILL_ZERO,
            )
        };
        check(CALL, code)?;
        Ok(map)
    }

    /// Encodes an im2col map of the images at `address` (16-byte aligned), swizzled over 128 bytes. Pixels outside of
    /// the images are read as zero. This function reads no pixel.
    pub fn encode_pixels(address: DevicePtr, layout: &PixelLayout) -> Result<Self> {
        Self::pixels(false, address, layout)
    }

    /// Creates a [`TensorMap`] of device memory. `absent`: only validates the arguments.
    pub fn pixels(absent: bool, address: DevicePtr, layout: &PixelLayout) -> Result<Self> {
        const CALL: &str = "cuTensorMapEncodeIm2col";
        encodable(CALL, address, &layout.extents, &layout.strides)?;
        let [right, down] = layout.steps;
        let element_strides = [1, right, down, 1];
        let mut map = Self([0; 16]);
        if absent {
            return Ok(map);
        }
        // SAFETY: the arrays have the lengths that rank 4 requires, and `map` is 128 bytes, aligned to 64. The driver
        // stores the address and does not read from it.
        let code = unsafe {
            sys::cuTensorMapEncodeIm2col(
                (&raw mut map).cast(),
                layout.element as c_int,
                4,
                std::ptr::without_provenance_mut(address as usize),
                layout.extents.as_ptr(),
                layout.strides.as_ptr(),
                layout.lower.as_ptr(),
                layout.upper.as_ptr(),
                layout.channels,
                layout.pixels,
                element_strides.as_ptr(),
                NO_INTERLEAVE,
                Swizzle::B128 as c_int,
                PROMOTE_TO_256_BYTES,
                FILL_ZERO,
            )
        };
        check(CALL, code)?;
        Ok(map)
    }
}

/// Validates address, extents and strides as the driver does. It also works for an absent GPU.
fn encodable(call: &str, address: DevicePtr, extents: &[u64], strides: &[u64]) -> Result<()> {
    const EXTENT: u64 = 1 << 32;
    const STRIDE: u64 = 1 << 40;
    let refused = |reason: String| Err(Error::cuda(call, reason));
    if !address.is_multiple_of(16) {
        return refused(format!("address {address:#x} is not a multiple of 16 bytes"));
    }
    if let Some(extent) = extents.iter().find(|e| !(1..=EXTENT).contains(*e)) {
        return refused(format!("an extent is {extent}, outside of 1 to {EXTENT}"));
    }
    if let Some(stride) = strides.iter().find(|s| !s.is_multiple_of(16) || **s >= STRIDE) {
        return refused(format!("a stride is {stride} bytes, not a multiple of 16 below {STRIDE}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_extents_and_strides_are_checked_without_a_gpu() {
        let encode = |address, extent, stride| {
            let layout = TensorMapLayout {
                element: TensorMapType::F16,
                extents: &[64, extent],
                strides: &[stride],
                tile: &[64, 64],
                steps: &[],
                swizzle: Swizzle::B128,
            };
            let made = TensorMap::tiled(true, address, &layout);
            made.map_err(|error| error.to_string())
        };
        assert!(encode(32, 64, 128).is_ok());
        for (address, extent, stride, word) in [
            (8, 64, 128, "address 0x8"),
            (32, 0, 128, "an extent is 0"),
            (32, 64, 136, "a stride is 136"),
            (32, 64, 1 << 40, "a stride is 1099511627776"),
        ] {
            let error = encode(address, extent, stride).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn ranks_that_disagree_are_refused() {
        let layout = TensorMapLayout {
            element: TensorMapType::F16,
            extents: &[64, 64],
            strides: &[],
            tile: &[64, 64],
            steps: &[],
            swizzle: Swizzle::B128,
        };
        let error = TensorMap::encode_tiled(0, &layout).unwrap_err();
        assert!(error.to_string().contains("2 extents, 0 strides"), "{error}");
    }
}
