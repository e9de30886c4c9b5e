//! How the slots of a warp's vectors belong to rows, and maxima and sums over these: a segmented scan (Blelloch, "Prefix sums and their
//! applications", 1990, 1.5) inside the lanes and over them, by shuffles.

use crate::device::gpu;
use crate::device::ptx::{matrix, warp};

#[inline(always)]
pub(super) fn lane() -> u32 {
    gpu::thread_again() % 32
}

/// Maximum, NaN if one of the two is, or sum.
#[inline(always)]
fn join<const MAX: bool>(a: f32, b: f32) -> f32 {
    if MAX {
        matrix::max_or_nan(a, b)
    } else {
        matrix::add_f32(a, b)
    }
}

/// Bit `i`?
#[inline(always)]
pub(super) fn has(bits: u32, i: usize) -> bool {
    bits >> i & 1 != 0
}

/// How a lane's slots belong to rows.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    starts: u32,
    /// Bit i: a row ends at slot i.
    ends: u32,
    /// Lanes in front, up to the one in which the row of this lane's last slot starts.
    reach: u32,
    /// The next lane behind in which a row ends.
    next: u32,
}

impl Parts {
    #[inline(always)]
    pub(super) fn new<const VEC: usize>(starts: u32) -> Parts {
        let lane = lane();
        let after = warp::shuffle::<32>(starts, lane + 1 & 31, !0);
        // Behind the last lane there is nothing.
        let after = if lane == 31 { 1 } else { after };
        let ends = (starts | (after & 1) << VEC) >> 1;
        let up_to_here = !(!1 << lane);
        // In the first lane a row starts.
        let started = warp::ballot(starts != 0) & up_to_here;
        let ending = warp::ballot(ends != 0) & !up_to_here;
        Parts {
            starts,
            ends,
            reach: lane.wrapping_sub(31 - started.leading_zeros()),
            next: ending.trailing_zeros() & 31,
        }
    }

    /// Slots in front of the first start behind slot 0: the lane's first part.
    #[inline(always)]
    fn first(self) -> u32 {
        warp::again(self.starts & !1).trailing_zeros()
    }

    /// Has no lane of the warp more than two parts?
    #[inline(always)]
    pub(super) fn are_few(self) -> bool {
        let divided = self.starts & !1;
        warp::ballot(divided & divided.wrapping_sub(1) != 0) == 0
    }

    /// A step of the scan over lanes.
    #[inline(always)]
    fn step<const MAX: bool>(self, own: f32, distance: u32) -> f32 {
        let more = f32::from_bits(warp::shuffle_up(own.to_bits(), distance));
        if distance <= self.reach {
            join::<MAX>(own, more)
        } else {
            own
        }
    }

    /// What the rows of a lane's first slot and of its last one add up to, if the first has `first` in this lane up to its end, and the last
    /// `last` from its start on; and whether the row of the last slot ends there.
    #[inline(always)]
    fn totals<const VEC: usize, const MAX: bool>(self, first: f32, last: f32) -> (f32, f32) {
        let mut own = last;
        own = self.step::<MAX>(own, 1);
        own = self.step::<MAX>(own, 2);
        if warp::ballot(self.reach >= 4) != 0 {
            own = self.step::<MAX>(own, 4);
            own = self.step::<MAX>(own, 8);
            own = self.step::<MAX>(own, 16);
        }
        let front = f32::from_bits(warp::shuffle_up(own.to_bits(), 1));
        let here = if has(self.starts, 0) {
            first
        } else {
            join::<MAX>(front, first)
        };
        let there = f32::from_bits(warp::shuffle::<32>(here.to_bits(), self.next, !0));
        let last = if has(self.ends, VEC - 1) { last } else { there };
        (if self.ends == 0 { there } else { here }, last)
    }

    /// For each slot maximum or sum over its row, the same bits in all of them, however many rows a lane has.
    #[inline(always)]
    fn over_many<const VEC: usize, const MAX: bool>(
        self,
        values: &[f32; VEC],
        neutral: f32,
    ) -> [f32; VEC] {
        let mut out = [neutral; VEC];
        let mut own = neutral;
        let starts = warp::again(self.starts);
        unroll!(i < VEC, {
            let in_front = if has(starts, i) { neutral } else { own };
            own = join::<MAX>(in_front, values[i]);
            out[i] = own;
        });
        let ends = warp::again(self.ends);
        unroll!(down < VEC, {
            if down > 0 && !has(ends, VEC - 1 - down) {
                out[VEC - 1 - down] = out[VEC - down];
            }
        });
        let (first, last) = self.totals::<VEC, MAX>(out[0], own);
        let (first_slots, ended) = (self.first(), 32 - warp::again(self.ends).leading_zeros());
        unroll!(i < VEC, {
            out[i] = if i as u32 >= ended { last } else { out[i] };
            out[i] = if (i as u32) < first_slots {
                first
            } else {
                out[i]
            };
        });
        out
    }

    /// The same of at most two rows in a lane: of the first `k` slots, and of the others.
    #[inline(always)]
    fn over_two<const VEC: usize, const MAX: bool>(
        self,
        values: &[f32; VEC],
        neutral: f32,
    ) -> (f32, f32) {
        let (mut first, mut last) = (join::<MAX>(values[0], neutral), neutral);
        let slots = self.first();
        unroll!(i < VEC, {
            if i > 0 {
                if (i as u32) < slots {
                    first = join::<MAX>(first, values[i]);
                } else {
                    last = join::<MAX>(last, values[i]);
                }
            }
        });
        let divided = VEC as u32 > slots;
        self.totals::<VEC, MAX>(first, if divided { last } else { first })
    }

    /// For each slot maximum or sum over its row.
    #[inline(always)]
    pub(super) fn over_rows<const VEC: usize, const MAX: bool, const FEW: bool>(
        self,
        values: &[f32; VEC],
        neutral: f32,
        finish: impl Fn(f32) -> f32,
    ) -> [f32; VEC] {
        let mut out = [neutral; VEC];
        if FEW {
            let (first, last) = self.over_two::<VEC, MAX>(values, neutral);
            let (first, last) = (finish(first), finish(last));
            let slots = self.first();
            unroll!(i < VEC, {
                out[i] = if i == 0 || (i as u32) < slots {
                    first
                } else {
                    last
                };
            });
        } else {
            let all = self.over_many::<VEC, MAX>(values, neutral);
            unroll!(i < VEC, { out[i] = finish(all[i]) });
        }
        out
    }
}
