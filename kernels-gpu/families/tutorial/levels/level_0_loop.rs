//! Level 0: the definition of the product. A thread computes one element of C.

use super::{Half, index};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::families::tutorial::abi::*;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<0> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, _at: Maps) {
        // Adjacent threads compute adjacent columns: a warp loads contiguous elements of B and a single element of A.
        let (row, first) = Self::place();
        let column = first + gpu::thread();
        let mut sum = 0.0;
        let mut k = 0;
        while k < p.k {
            let a = p.a::<E>().at(index(row, k, p.k)).ld_raw::<1>(true);
            let b = p.b::<E>().at(index(k, column, p.n)).ld_raw::<1>(true);
            sum = E::fma(E::get(&a, 0), E::get(&b, 0), sum);
            k += 1;
        }
        p.c::<E>().at(index(row, column, p.n)).st_rounded(&[sum]);
    }
}
