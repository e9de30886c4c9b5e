//! Extents of a convolution's kernel, and where its offsets lie.

use crate::error::{Error, Result};

/// Kernel, strides and dilation along x, y and z.
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

/// Coordinates, strides and reaches stay below: sums of two do not overflow.
pub(super) const LIMIT: i32 = 1 << 30;

impl ConvGeometry {
    /// Offsets of an odd extent `k` are `-(k - 1) / 2 ..= (k - 1) / 2`, of an even one `0 .. k`, times the dilation.
    ///
    /// # Errors
    /// [`Error::Operand`] where an extent, stride or dilation is 0, or a kernel reaches beyond 2^30.
    pub fn new(kernel: [usize; 3], stride: [usize; 3], dilation: [usize; 3]) -> Result<Self> {
        let refused = |reason: String| Error::operand("kernel", reason);
        for (what, values) in [("extents", kernel), ("strides", stride), ("dilations", dilation)] {
            if values.contains(&0) {
                return Err(refused(format!("{what} {values:?} must be above 0")));
            }
        }
        let volume =
            kernel.iter().try_fold(1usize, |v, &k| v.checked_mul(k)).filter(|&v| v <= 1 << 16);
        if volume.is_none() {
            return Err(refused(format!("{kernel:?} has more than 65536 offsets")));
        }
        for axis in 0..3 {
            let reach = kernel[axis].saturating_mul(dilation[axis]);
            if reach.max(stride[axis]) >= LIMIT as usize {
                return Err(refused(format!(
                    "reaches {reach} along axis {axis}, which is not below 2^30"
                )));
            }
        }
        Ok(ConvGeometry { kernel, stride, dilation })
    }

    /// Strides.
    pub fn stride(&self) -> [usize; 3] {
        self.stride
    }

    /// Whether output voxels are the input voxels.
    pub fn is_submanifold(&self) -> bool {
        self.stride == [1; 3]
    }

    /// Offsets of the kernel, x slowest.
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

    /// The bit of each offset in the key by which rows are ordered: the farther from the centre, the higher, for the
    /// rarer an offset is, the fewer tiles should have it. Offsets from the 33rd on have none: `u32::MAX`.
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
