//! 16 columns by the atoms of single warps (`mma.m16n8k16`): fewer instructions than a `wgmma` with what belongs to it, and nothing to
//! wait for.

use super::ThinElem;
use crate::device::gpu;
use crate::device::ptx::matrix;
use crate::device::ptx::wgmma_thin::Thin;

/// Bytes of a row of B in a stage; its two chunks of 16 bytes are exchanged in every second four rows.
const ROW: u32 = 32;

/// Where this lane's rows of B start, for [`multiply`], and whether there are more than 8 columns.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    from: u32,
    /// The same for all lanes.
    two: bool,
}

impl Columns {
    /// Of a strip with so many columns.
    #[inline(always)]
    pub(super) fn new(columns: u32) -> Columns {
        let (lane, two) = (gpu::thread() % 32, columns > 8);
        // Four matrices of 8 x 8: of 16 rows both chunks, or of 32 rows the first.
        let (row, chunk) = if two {
            (lane % 16, lane / 16)
        } else {
            (lane, 0)
        };
        Columns {
            from: row * ROW + (chunk ^ (row / 4 % 2)) * 16,
            two,
        }
    }
}

/// `acc += A B` over `STEPS` squares of 16 columns of A; B at shared `b`.
#[inline(always)]
pub(super) fn multiply<E: ThinElem, const N: usize, const STEPS: usize>(
    acc: &mut Thin<N>,
    a: [[u32; 4]; STEPS],
    b: u32,
    columns: Columns,
) {
    let d = &mut acc.0;
    let from = b + columns.from;
    let mut first = [d[0], d[1], d[2], d[3]];
    if columns.two {
        let mut second = [d[4], d[5], d[6], d[7]];
        unroll!(t < STEPS, {
            let f = matrix::ldmatrix_x4_trans(from + t as u32 * 16 * ROW);
            E::mma_atom(&mut first, a[t], [f[0], f[1]]);
            E::mma_atom(&mut second, a[t], [f[2], f[3]]);
        });
        unroll!(i < 4, { d[4 + i] = second[i] });
    } else {
        unroll!(t < STEPS / 2, {
            let f = matrix::ldmatrix_x4_trans(from + t as u32 * 32 * ROW);
            E::mma_atom(&mut first, a[2 * t], [f[0], f[1]]);
            E::mma_atom(&mut first, a[2 * t + 1], [f[2], f[3]]);
        });
    }
    unroll!(i < 4, { d[i] = first[i] });
}
