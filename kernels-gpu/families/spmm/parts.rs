//! Partial sums held by several warps: each warp stores its part, and the one that arrives last adds all parts in
//! order.

use crate::device::prelude::*;
use crate::device::split_k::segment_arrives_last;

/// Stores this part of a warp's sums. Returns true for the warp that arrives last, whose `acc` then holds the sums over
/// all parts. `USED` sums of each lane are added: 1 or a multiple of 4. `place`: address of the lane's first sum (or
/// first four sums) of a part; further fours follow 512 bytes apart. `counter`: zero before and after. `AT_ONCE` parts
/// (up to 8) are loaded at once.
#[inline(always)]
pub fn join<const LEN: usize, const USED: usize, const AT_ONCE: usize>(
    place: impl Fn(u32) -> Global<u32, Fresh>,
    counter: Global<u32, Fresh>,
    [own, count]: [u32; 2],
    acc: &mut [f32; LEN],
) -> bool {
    let mine = place(own);
    if USED == 1 {
        mine.st(acc[0].to_bits());
    }
    unroll!(j < USED / 4, {
        let four = [0, 1, 2, 3].map(|i| acc[4 * j + i].to_bits());
        mine.bytes(j as u64 * 512).cast::<[u32; 4]>().st(four);
    });
    if !segment_arrives_last(counter, count, [gpu::opaque_thread() % 32, 32]) {
        return false;
    }
    *acc = [0.0; LEN];
    let mut from = 0;
    while from < count {
        // Parts are added in order.
        let mut fours = [[[0; 4]; 8]; 8];
        unroll!(ahead < AT_ONCE, {
            let at = place(from + ahead as u32);
            let valid = from + (ahead as u32) < count;
            if USED == 1 {
                fours[ahead][0][0] = at.ld_if(valid);
            }
            unroll!(j < USED / 4, {
                fours[ahead][j] = at.bytes(j as u64 * 512).cast::<[u32; 4]>().ld_if(valid)
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
