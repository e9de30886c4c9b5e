//! Sums on their way out: joined over the cluster, finished, and stored as lines.
//!
//! A thread block of a cluster finishes as many atoms (16 rows x 8 columns) as any other. Each sends its sums of an atom, as
//! they lie in registers, to the one that finishes it, which adds them in the order of the parts: the same bits every time.

use super::DenseTile;
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::epilogue::{Output, row_bias_fresh, scale};
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{cluster, copy, global, warp};
use crate::frag;

/// An atom's four accumulators of a lane.
pub(super) type Four = [f32; 4];

/// First accumulator of the pair that lies in row 0 or 8 of an atom.
const ROWS: [usize; 2] = [0, 2];

impl DenseParams {
    /// Where results go.
    #[inline(always)]
    pub(super) fn output(&self) -> Output {
        Output {
            c: self.c,
            bias: self.bias,
            alpha: self.alpha,
            ldc_bytes: self.ldc_bytes,
            n: self.n,
            flags: self.flags,
            gate: 0,
            gate_bytes: 0,
        }
    }
}

/// Where a lane's atoms lie in C: row of the upper accumulators, first column of the atom. Turned over, first row of the
/// atom and the lane's column.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub row: u32,
    pub column: u32,
}

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize, const BYTES: usize>
    DenseTile<GROUPS, CHUNKS, CUT, BYTES>
{
    /// Atoms that a thread finishes where the tile is cut.
    const OWN: usize = Self::ATOMS / CUT;

    /// What the copying warp does while sums are sent: the cluster's barriers are those of all threads.
    #[inline(always)]
    pub(super) fn stand_by() {
        if CUT > 1 {
            if Self::OVER_STAGES {
                cluster::arrive();
            }
            cluster::wait();
            cluster::arrive();
            cluster::wait();
        }
    }

    /// Finishes the sums of a warpgroup and stores them, or those that the cluster leaves to this thread block.
    #[inline(always)]
    pub(super) fn leave<E: Elem<Acc = f32>>(p: &DenseParams, acc: &Acc<CHUNKS>) {
        let [top, left] = Self::corner();
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32);
        let own = frag::accumulator(lane, 0).0;
        let place = |warp: u32, atom: u32| {
            if Self::TURNED {
                let row = top + atom * 8;
                let across = warp / 2 * 32 + frag::turned_column(warp % 2 * 16 + own);
                let column = left + across;
                return Place { row, column };
            }
            Place {
                row: top + warp * 16 + own,
                column: left + atom * 8,
            }
        };
        if CUT == 1 {
            unroll!(c < CHUNKS, most 4, {
                unroll!(h < 2, {
                    let four = [0, 1, 2, 3].map(|j| four(acc, c * 8 + h * 4 + j));
                    Self::finish::<E, 4>(p, place(warp, (c * 8 + h * 4) as u32), four);
                });
            });
            return;
        }
        Self::send(acc, lane, warp);
        cluster::arrive();
        cluster::wait();
        // Of all atoms of the tile, warp by warp: this warp's first.
        let own = warp * Self::OWN as u32;
        let first = cluster::rank() * Self::SHARE as u32 + own;
        let atoms = Self::ATOMS as u32;
        let place = place(first / atoms, first % atoms);
        let from = Self::sums() + own * Self::ATOM as u32 + lane * 16;
        match Self::OWN {
            1 => Self::finish::<E, 1>(p, place, Self::join(from)),
            2 => Self::finish::<E, 2>(p, place, Self::join(from)),
            _ => {
                unroll!(g < Self::OWN / 4, {
                    let mut place = place;
                    if Self::TURNED {
                        place.row += g as u32 * 32;
                    } else {
                        place.column += g as u32 * 32;
                    }
                    let from = from + (g * 4 * Self::ATOM) as u32;
                    Self::finish::<E, 4>(p, place, Self::join(from));
                });
            }
        }
    }

    /// Shared memory for the sums.
    #[inline(always)]
    fn sums() -> u32 {
        copy::arena() + Self::SUMS as u32
    }

    /// Sends this warp's atoms to those who finish them.
    #[inline(always)]
    fn send(acc: &Acc<CHUNKS>, lane: u32, warp: u32) {
        // The other thread blocks run, and have read their stages where these make room.
        if Self::OVER_STAGES {
            cluster::arrive();
        }
        cluster::wait();
        let slot = cluster::rank() * Self::SHARE as u32;
        let run = if Self::SHARE < Self::ATOMS {
            Self::SHARE
        } else {
            Self::ATOMS
        };
        let mut to = 0;
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                let atom = c * 8 + j;
                if atom % run == 0 {
                    let index = warp * Self::ATOMS as u32 + atom as u32;
                    let (rank, within) = (index / Self::SHARE as u32, index % Self::SHARE as u32);
                    let at = Self::sums() + (slot + within) * Self::ATOM as u32 + lane * 16;
                    to = cluster::place(at, rank);
                }
                let offset = (atom % run * Self::ATOM) as u32;
                cluster::store_v4(to + offset, four(acc, atom).map(f32::to_bits));
            });
        });
    }

    /// Neighbouring atoms summed over the parts, in their order.
    #[inline(always)]
    fn join<const G: usize>(from: u32) -> [Four; G] {
        let mut sums = [[0f32; 4]; G];
        unroll!(part < CUT, {
            unroll!(g < G, most 4, {
                let at = from + ((part * Self::SHARE + g) * Self::ATOM) as u32;
                let of_part = copy::load_shared_v4(at).map(f32::from_bits);
                unroll!(i < 4, {
                    sums[g][i] = if part == 0 {
                        of_part[i]
                    } else {
                        sums[g][i] + of_part[i]
                    };
                });
            });
        });
        sums
    }

    /// Scalar, bias, activation and the stores of `G` neighbouring atoms.
    #[inline(always)]
    fn finish<E: Elem<Acc = f32>, const G: usize>(
        p: &DenseParams,
        place: Place,
        atoms: [Four; G],
    ) {
        if Self::TURNED {
            Self::finish_turned::<E, G>(p, place, atoms);
        } else {
            Self::finish_plain::<E, G>(p, place, atoms);
        }
    }

    #[inline(always)]
    fn finish_plain<E: Elem<Acc = f32>, const G: usize>(
        p: &DenseParams,
        place: Place,
        mut atoms: [Four; G],
    ) {
        let o = p.output();
        let lane = gpu::thread_again() % 32;
        let Place { row, column } = place;
        let own = column + lane % 4 * 2;
        let alpha = scale::<E>(o, p.stages);
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            let bias = [row, row + 8].map(|row| row_bias_fresh::<E>(o, row, row < p.m));
            each(&mut atoms, |_, i, x| E::fma(alpha, x, bias[i / 2]));
        }
        if o.flags & FLAG_BIAS_COLUMNS != 0 {
            each(&mut atoms, |g, i, x| {
                let column = own + (g * 8 + i % 2) as u32;
                let at = o.bias + column as u64 * E::BYTES as u64;
                x + E::get(&E::load_fresh(at, column < o.n), 0)
            });
        }
        if o.flags & FLAG_RELU != 0 {
            each(&mut atoms, |_, _, x| E::relu(x));
        }
        if o.flags & FLAG_GELU != 0 {
            each(&mut atoms, |_, _, x| E::gelu(x));
        }
        unroll!(r < 2, {
            let row = row + 8 * r as u32;
            if row < p.m {
                let line = o.c + row as u64 * o.ldc_bytes as u64;
                let pairs = atoms.map(|x| [x[ROWS[r]], x[ROWS[r] + 1]]);
                if o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) != FLAG_VECTORS {
                    Self::store_elements::<E, G>(o, line, own, pairs);
                } else {
                    Self::store_pairs::<E, G>(o, line, own, pairs);
                }
            }
        });
        // Lanes of rows that are not there lend theirs a hand all the same.
        if E::BYTES == 2 && G == 4 && o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
            unroll!(r < 2, {
                let row = row + 8 * r as u32;
                let mut words = [0u32; 4];
                unroll!(g < 4, {
                    let x = atoms[g % G];
                    let (a, b) = (x[ROWS[r]], x[ROWS[r] + 1]);
                    words[g] = E::put(&[a, b, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
                });
                let eight = turned(words, lane, 1);
                let column = column + lane % 4 * 8;
                if row < p.m && column < o.n {
                    let at = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 2;
                    global::store_v4(at, eight);
                }
            });
        }
    }

    /// Pairs of neighbours as they lie in registers; those of four atoms leave otherwise where elements are small.
    #[inline(always)]
    fn store_pairs<E: Elem<Acc = f32>, const G: usize>(
        o: Output,
        line: u64,
        column: u32,
        pairs: [[f32; 2]; G],
    ) {
        if E::BYTES == 2 && G == 4 {
            return;
        }
        unroll!(g < G, most 4, {
            let column = column + 8 * g as u32;
            if column < o.n {
                E::store::<2>(line + column as u64 * E::BYTES as u64, &pairs[g]);
            }
        });
    }

    /// Element by element, where C's rows begin anywhere, or onto what C holds.
    #[inline(always)]
    fn store_elements<E: Elem<Acc = f32>, const G: usize>(
        o: Output,
        line: u64,
        column: u32,
        pairs: [[f32; 2]; G],
    ) {
        unroll!(g < G, most 4, {
            unroll!(i < 2, {
                let column = column + (8 * g + i) as u32;
                let at = line + column as u64 * E::BYTES as u64;
                let inside = column < o.n;
                let old = E::load_fresh(at, inside && o.flags & FLAG_ACCUMULATE != 0);
                if inside {
                    E::store::<1>(at, &[pairs[g][i] + E::get(&old, 0)]);
                }
            });
        });
    }
}

/// Replaces the accumulators by functions of themselves.
#[inline(always)]
pub(super) fn each<const G: usize>(atoms: &mut [Four; G], f: impl Fn(usize, usize, f32) -> f32) {
    unroll!(g < G, most 4, {
        unroll!(i < 4, {
            atoms[g][i] = f(g, i, atoms[g][i]);
        });
    });
}

/// The accumulators of an atom.
#[inline(always)]
fn four<const CHUNKS: usize>(acc: &Acc<CHUNKS>, atom: usize) -> Four {
    let (c, j) = (atom / 8, atom % 8);
    [0, 1, 2, 3].map(|i| acc.0[c][4 * j + i])
}

/// Four lanes, whose numbers differ by `apart`, hold a word of each of four atoms; afterwards each of them has one atom's
/// words of all four lanes.
#[inline(always)]
pub(super) fn turned(words: [u32; 4], lane: u32, apart: u32) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = words;
    let odd = lane & apart != 0;
    let ab = warp::exchange(if odd { a } else { b }, apart);
    let cd = warp::exchange(if odd { c } else { d }, apart);
    if odd {
        (a, c) = (ab, cd);
    } else {
        (b, d) = (ab, cd);
    }
    let upper = lane & (2 * apart) != 0;
    let ac = warp::exchange(if upper { a } else { c }, 2 * apart);
    let bd = warp::exchange(if upper { b } else { d }, 2 * apart);
    if upper {
        (a, b) = (ac, bd);
    } else {
        (c, d) = (ac, bd);
    }
    [a, b, c, d]
}
