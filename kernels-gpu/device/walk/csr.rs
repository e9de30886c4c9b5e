//! Rows that start anywhere: loads begin at the aligned place before the row and what lies in front
//! of it is masked (reverse offset, Sputnik, arXiv 2006.10901, section 5.1.2).

use super::Walk;
use crate::abi::Csr;

impl Walk for Csr {
    #[inline(always)]
    fn lead(start: u32) -> u32 {
        start & 3
    }
}
