//! Extents of a convolution's kernel, and its offsets.

use crate::error::{Error, Result};

/// Kernel extents, strides and dilations along x, y and z.
///
/// ```
/// use einsparse::ops::{ConvGeometry, KernelMap};
/// let down = ConvGeometry::new([2, 2, 2], [2, 2, 2], [1, 1, 1])?;
/// let voxels = [[0, 0, 0, 0], [0, 1, 1, 0], [0, 4, 0, 0]];
/// let map = KernelMap::new(&einsparse::Context::cpu(), &voxels, &down)?;
/// assert_eq!(map.voxels(), [[0, 0, 0, 0], [0, 2, 0, 0]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvGeometry {
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
}

/// Exclusive limit of coordinates, strides and kernel extents: sums of two do not overflow.
pub(super) const LIMIT: i32 = 1 << 30;

impl ConvGeometry {
    /// Creates a geometry. Offsets of an odd extent `k` are `-(k - 1) / 2 ..= (k - 1) / 2`, and those of an even extent
    /// `0 .. k`, times the dilation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if an extent, stride or dilation is 0, or the kernel has more than 65,536 offsets. Also if
    /// a stride, or an extent times its dilation, is not below 2^30.
    pub fn new(kernel: [usize; 3], stride: [usize; 3], dilation: [usize; 3]) -> Result<Self> {
        for (what, values) in [("extents", kernel), ("strides", stride), ("dilations", dilation)] {
            if values.contains(&0) {
                return Err(Error::range(what, format!("{values:?}"), "above 0"));
            }
        }
        let volume =
            kernel.iter().try_fold(1usize, |v, &k| v.checked_mul(k)).filter(|&v| v <= 1 << 16);
        if volume.is_none() {
            return Err(Error::range("kernel", format!("{kernel:?}"), "of at most 65536 offsets"));
        }
        for axis in 0..3 {
            let reach = kernel[axis].saturating_mul(dilation[axis]);
            if reach.max(stride[axis]) >= LIMIT as usize {
                let (name, found) = (
                    format!("axis {axis}"),
                    format!("a reach of {reach} and a stride of {}", stride[axis]),
                );
                return Err(Error::range(name, found, "below 2^30"));
            }
        }
        Ok(ConvGeometry { kernel, stride, dilation })
    }

    /// Returns the strides.
    pub fn stride(&self) -> [usize; 3] {
        self.stride
    }

    /// Returns whether output voxels are the input voxels.
    pub fn is_submanifold(&self) -> bool {
        self.stride == [1; 3]
    }

    /// Returns the offsets of the kernel, x slowest.
    pub fn offsets(&self) -> Vec<[i32; 3]> {
        let along = |axis: usize| {
            let k = self.kernel[axis] as i32;
            let first = if k % 2 == 1 { -(k / 2) } else { 0 };
            let d = self.dilation[axis] as i32;
            (0..k).map(move |i| (first + i) * d)
        };
        let mut all = Vec::new();
        for x in along(0) {
            for y in along(1) {
                all.extend(along(2).map(|z| [x, y, z]));
            }
        }
        all
    }

    /// Returns the bit of each offset in the sort key of rows. Offsets farther from the centre have higher bits: they
    /// are rarer, so fewer tiles should contain them. From the 33rd offset on, the entry is `u32::MAX` (no bit).
    pub(super) fn ranks(&self) -> Vec<u32> {
        let offsets = self.offsets();
        let far = |t: &usize| {
            let square = |x: i32| i64::from(x) * i64::from(x);
            offsets[*t].iter().map(|&x| square(x)).sum::<i64>()
        };
        let mut nearest: Vec<usize> = (0..offsets.len()).collect();
        nearest.sort_by_key(|t| (far(t), *t));
        let mut ranks = vec![u32::MAX; offsets.len()];
        for (rank, &t) in nearest.iter().enumerate().take(32) {
            ranks[t] = rank as u32;
        }
        ranks
    }
}
