//! First group of every row of GroupCOO. A thread counts the groups of eight adjacent rows. A scan gives the sum over
//! the threads before it, and a look-back the sum over the thread blocks before its own.

use super::scan;
use super::turns::{look_back_sum, tile_and_run};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for GroupStarts {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let turn = tile_and_run(p);
        let first = turn.tile * ENTRY_TILE + gpu::thread() * 8;
        let offset = |row: u32| p.offsets().at(row).ld_if(row <= p.m);
        let mut groups = [0u32; 8];
        let mut own = 0;
        let mut start = offset(first);
        unroll!(i < 8, {
            let row = first + i as u32;
            let end = offset(row + 1);
            let (whole, rest) = p.group.of(end.wrapping_sub(start));
            groups[i] = if row < p.m { whole + (rest > 0) as u32 } else { 0 };
            own += groups[i];
            start = end;
        });
        let (before, all) = scan(own);
        let mut place = look_back_sum(p, turn, all) + before;
        unroll!(i < 8, {
            let row = first + i as u32;
            // The position after the last row is the number of groups.
            if row <= p.m {
                p.starts().at(row).st(place);
            }
            place += groups[i];
        });
    }
}
