//! Level 0: the definition of the product. A thread computes one element of C.

use super::{Half, offset};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::families::tutorial::abi::*;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<0> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, _at: u64) {
        // Adjacent threads compute adjacent columns: a warp loads contiguous elements of B and a single element of A.
        let (row, first) = Self::place();
        let column = first + gpu::thread();
        let mut sum = 0.0;
        let mut k = 0;
        while k < p.k {
            let a = E::ld_nc::<1>(p.a + offset::<E>(row, k, p.k), true);
            let b = E::ld_nc::<1>(p.b + offset::<E>(k, column, p.n), true);
            sum = E::fma(E::get(&a, 0), E::get(&b, 0), sum);
            k += 1;
        }
        E::store::<1>(p.c + offset::<E>(row, column, p.n), &[sum]);
    }
}
