//! Parts of sums that several warps have: each leaves its own, and who arrives last adds all of them in order.

use crate::device::prelude::*;

/// Leaves this part of a warp's sums. True for the warp that arrives last: it has the sums over all parts. Of a lane's
/// sums `USED` count, one or fours; `place`: where the lane's first four (or the one) of a part lie, the others 512
/// bytes apart. `counter`: zero before and after. `AT_ONCE` parts (up to 8) are on their way together.
#[inline(always)]
pub fn join<const LEN: usize, const USED: usize, const AT_ONCE: usize>(
    place: impl Fn(u32) -> u64,
    counter: u64,
    [own, count]: [u32; 2],
    acc: &mut [f32; LEN],
) -> bool {
    let mine = place(own);
    if USED == 1 {
        global::st_b32(mine, acc[0].to_bits());
    }
    unroll!(j < USED / 4, {
        let four = [0, 1, 2, 3].map(|i| acc[4 * j + i].to_bits());
        global::st_v4(mine + j as u64 * 512, four);
    });
    // The lanes' stores come before the barrier, and the one arrival that releases and acquires for the whole GPU
    // behind it.
    warp::sync(u32::MAX);
    let mut before = 0;
    if gpu::opaque_thread() % 32 == 0 {
        before = global::atom_add(counter, 1);
        if before + 1 == count {
            global::st_b32(counter, 0);
        }
    }
    if warp::uniform(before) + 1 != count {
        return false;
    }
    warp::sync(u32::MAX);
    *acc = [0.0; LEN];
    let mut from = 0;
    while from < count {
        // Added in order.
        let mut fours = [[[0; 4]; 8]; 8];
        unroll!(ahead < AT_ONCE, {
            let at = place(from + ahead as u32);
            let valid = from + (ahead as u32) < count;
            if USED == 1 {
                fours[ahead][0][0] = global::ld_cg_b32(at, valid);
            }
            unroll!(j < USED / 4, {
                fours[ahead][j] = global::ld_cg_v4(at + j as u64 * 512, valid)
            });
        });
        unroll!(ahead < AT_ONCE, {
            if USED == 1 {
                acc[0] += f32::from_bits(fours[ahead][0][0]);
            }
            unroll!(j < USED / 4, {
                unroll!(i < 4, { acc[4 * j + i] += f32::from_bits(fours[ahead][j][i]) });
            });
        });
        from += AT_ONCE as u32;
    }
    true
}
