//! Walk over CSR rows, whose first nonzero may have any alignment. Loads begin at the aligned position before the row,
//! and entries before the row are masked (reverse offset memory alignment, Sputnik, arXiv 2006.10901, section 5.1.2).

use super::Walk;
use crate::abi::Csr;

impl Walk for Csr {
    #[inline(always)]
    fn lead(start: u32) -> u32 {
        start & 3
    }
}
