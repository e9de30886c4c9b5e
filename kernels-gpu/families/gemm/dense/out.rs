//! Epilogue of the accumulators: summed over the cluster, finished, and stored in 16-byte lines.
//!
//! Each thread block of a cluster finishes the same number of atoms (16 rows x 8 columns). The others store their sums
//! of an atom, in register order, to the shared memory of the thread block that finishes it. That thread block adds
//! them in the order of the parts, so results are bitwise reproducible.

use super::{DenseTile, Spot};
use crate::device::epilogue::{Output, output, scale};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// A lane's four accumulators of an atom.
type Four = [f32; 4];

/// Neighbouring atoms that a thread finishes, in groups of four.
pub(super) type Own = [[Four; 4]; 8];

impl DenseParams {
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            // `opaque` keeps the test of the flags here: in its loop, module `dense_live` lacks a register for the
            // result.
            flags: warp::opaque(self.flags),
            ..output!(self)
        }
    }
}

/// Position in C of a thread's first atom, at the lane's first accumulator.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub row: u32,
    pub column: u32,
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Atoms that a thread finishes at once: its share of the cluster's atoms, or with quarters those of 16 of the 64
    /// rows.
    const OWN: usize = if F::A::QUARTERS { Self::ATOMS / 4 } else { Self::ATOMS / F::CUT };
    /// Groups of four of these atoms, and atoms in each group.
    pub(super) const FOURS: usize = Self::OWN.div_ceil(4);
    pub(super) const OF_FOUR: usize = if Self::OWN < 4 { Self::OWN } else { 4 };

    /// Bytes of sums received from the other thread blocks of the cluster.
    pub(super) const FROM_OTHERS: u32 = (Self::RECEIVED - Self::RECEIVED / F::CUT) as u32;

    /// Joins the cluster barrier at the end of the copying warps: the barrier counts all threads.
    #[inline(always)]
    pub(super) fn stand_by() {
        if F::CUT > 1 {
            if Self::OVER_STAGES {
                cluster::arrive_relaxed();
            }
            cluster::wait();
        }
    }

    /// Finishes and stores the sums of a warpgroup, or this thread block's share of the cluster's sums.
    #[inline(always)]
    pub(super) fn epilogue<E: Elem<Acc = f32>, S: Spot>(
        p: &DenseParams,
        acc: &Acc<CHUNKS>,
        spot: S,
    ) {
        let (lane, warp) = (gpu::opaque_thread() % 32, gpu::opaque_thread() / 32);
        let mut own: Own = [[[0.0; 4]; 4]; 8];
        if F::A::QUARTERS {
            unroll!(m < 4, {
                unroll!(q < Self::FOURS, {
                    own[q] = [0, 1, 2, 3].map(|g| four(acc, m * Self::OWN + q * 4 + g));
                });
                let place = Self::place_of_quarter(spot, lane, warp, m as u32);
                Self::finish::<E, S>(p, place, &mut own);
            });
            return;
        }
        let place = if F::CUT == 1 {
            unroll!(q < Self::FOURS, {
                own[q] = [0, 1, 2, 3].map(|g| four(acc, q * 4 + g));
            });
            Self::place(spot, lane, warp, 0)
        } else {
            Self::store(acc, lane, warp);
            Self::summed().wait(0);
            // `first` is this warp's first atom among all atoms of the tile, counted warp by warp.
            let mine = warp * Self::OWN as u32;
            let first = cluster::rank() * Self::SHARE as u32 + mine;
            let from = Self::sums().bytes(mine * Self::ATOM as u32).at(lane);
            Self::join(from, &mut own);
            let [warp, atom] = [first / Self::ATOMS as u32, first % Self::ATOMS as u32];
            Self::place(spot, lane, warp, atom)
        };
        Self::finish::<E, S>(p, place, &mut own);
    }

    /// Finishes and stores a thread's atoms.
    #[inline(always)]
    fn finish<E: Elem<Acc = f32>, S: Spot>(p: &DenseParams, place: Place, own: &mut Own) {
        let o = p.output();
        let changed = o.flags & (FLAG_BIAS_ROWS | FLAG_BIAS_COLUMNS | FLAG_RELU | FLAG_GELU) != 0;
        // The cases are separate code paths: instructions that are jumped over still have to be fetched.
        let alpha = scale::<E>(o, p.stages);
        if changed || alpha != 1.0 {
            match S::BIASES {
                Some(at) => Self::add_near::<E>(at, place, alpha, own),
                None => Self::add::<E>(o, p.m, place, alpha, own),
            }
            Self::activate::<E>(o, own);
        }
        if S::BIASES.is_some() || o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
            Self::store_lines::<E, false>(o, p.m, place, own);
        } else if o.flags & FLAG_VECTORS != 0 {
            Self::store_lines::<E, true>(o, p.m, place, own);
        } else {
            Self::store_elements::<E>(o, p.m, place, own);
        }
    }

    /// Position of atom `atom` of the 16 rows (transposed: columns) of a warp.
    #[inline(always)]
    fn place(spot: impl Spot, lane: u32, warp: u32, atom: u32) -> Place {
        let [top, left] = Self::corner(spot);
        let (own, pair) = frag::accumulator(lane, 0);
        if Self::TRANSPOSED {
            let across = warp / 2 * 32 + frag::transposed_column(warp % 2 * 16 + own);
            return Place { row: top + atom * 8 + pair, column: left + across };
        }
        Place { row: top + warp * 16 + own, column: left + atom * 8 + pair }
    }

    /// Position of the first atom in rows `16 m ..` if a warp holds a quarter of the columns of its warpgroup's 64
    /// rows.
    #[inline(always)]
    fn place_of_quarter(spot: impl Spot, lane: u32, warp: u32, m: u32) -> Place {
        const { assert!(!F::A::QUARTERS || F::CUT == 1 && !Self::TRANSPOSED) };
        let [top, left] = Self::corner(spot);
        let (own, pair) = frag::accumulator(lane, 0);
        let across = warp % 4 * 16 * CHUNKS as u32;
        Place { row: top + warp / 4 * 64 + m * 16 + own, column: left + across + pair }
    }

    /// Sums of an atom, one vector for each lane.
    #[inline(always)]
    fn sums() -> Shared<[u32; 4]> {
        // SAFETY: the host launches with the shared memory of the tile, which includes the sums of all parts.
        unsafe { Shared::dynamic(Self::SUMS as u32) }
    }

    /// Stores this warp's atoms to the thread blocks that finish them.
    #[inline(always)]
    fn store(acc: &Acc<CHUNKS>, lane: u32, warp: u32) {
        // After this wait, the other thread blocks run. Where sums overwrite stages, all stages have been read.
        if Self::OVER_STAGES {
            cluster::arrive_relaxed();
        }
        cluster::wait();
        let own = cluster::rank();
        let summed = Self::summed();
        let slot = own * Self::SHARE as u32;
        // Each run of neighbouring atoms belongs to one thread block.
        unroll!(r < Self::ATOMS / Self::RUN, most 4, {
            let index = warp * Self::ATOMS as u32 + (r * Self::RUN) as u32;
            let (rank, within) = (index / Self::SHARE as u32, index % Self::SHARE as u32);
            let at = Self::sums().bytes((slot + within) * Self::ATOM as u32).at(lane);
            if rank == own {
                Self::put_run(acc, r * Self::RUN, |byte, sums| at.bytes(byte).st(sums));
            } else {
                let (to, bar) = (at.remote(rank), summed.remote(rank));
                Self::put_run(acc, r * Self::RUN, |byte, sums| to.bytes(byte).st_async(sums, bar));
            }
        });
        warp::sync(u32::MAX);
        if lane == 0 {
            summed.arrive();
        }
    }

    /// Number of neighbouring atoms of a warp that the same thread block finishes.
    const RUN: usize = if Self::SHARE < Self::ATOMS { Self::SHARE } else { Self::ATOMS };

    /// Stores a run of atoms one after the other. `store` gets the byte offset of an atom, and its sums.
    #[inline(always)]
    fn put_run(acc: &Acc<CHUNKS>, first: usize, store: impl Fn(u32, [u32; 4])) {
        unroll!(c < Self::RUN.div_ceil(8), most 4, {
            unroll!(j < 8, {
                let atom = c * 8 + j;
                if atom < Self::RUN {
                    let sums = four(acc, first + atom).map(f32::to_bits);
                    store((atom * Self::ATOM) as u32, sums);
                }
            });
        });
    }

    /// Sums a thread's atoms over the parts, in the order of the parts.
    #[inline(always)]
    fn join(from: Shared<[u32; 4]>, own: &mut Own) {
        unroll!(q < Self::FOURS, {
            unroll!(part < F::CUT, {
                unroll!(g < Self::OF_FOUR, most 4, {
                    let atom = part * Self::SHARE + q * 4 + g;
                    let of_part = from.bytes((atom * Self::ATOM) as u32).ld().map(f32::from_bits);
                    unroll!(i < 4, {
                        own[q][g][i] = if part == 0 {
                            of_part[i]
                        } else {
                            own[q][g][i] + of_part[i]
                        };
                    });
                });
            });
        });
    }

    /// Row and column of element `i` of an atom.
    #[inline(always)]
    fn element(place: Place, atom: usize, i: usize) -> [u32; 2] {
        let Place { row, column } = place;
        let (along, pair) = ((atom * 8) as u32 + i as u32 % 2, i as u32 / 2);
        if Self::TRANSPOSED {
            [row + along, column + pair * TURNED_BETWEEN]
        } else {
            [row + pair * 8, column + along]
        }
    }

    /// Applies the scalar, and the column biases that are stored in shared memory from `at` on.
    #[inline(always)]
    fn add_near<E: Elem<Acc = f32>>(at: usize, place: Place, alpha: f32, own: &mut Own) {
        // SAFETY: the spot states that the biases are stored there.
        let from = unsafe { Shared::<u16>::dynamic(at as u32) }.at(place.column % Self::COLUMNS);
        unroll!(q < Self::FOURS, {
            unroll!(g < Self::OF_FOUR, most 4, {
                let pair = from.bytes((q * 4 + g) as u32 * 16).cast::<u32>().ld();
                let pair = [pair, 0, 0, 0];
                unroll!(i < 4, {
                    own[q][g][i] = E::fma(alpha, own[q][g][i], E::get(&pair, i % 2));
                });
            });
        });
    }

    #[inline(always)]
    fn add<E: Elem<Acc = f32>>(o: Output, m: u32, place: Place, alpha: f32, own: &mut Own) {
        let [ones, others] = if Self::TRANSPOSED {
            [FLAG_BIAS_COLUMNS, FLAG_BIAS_ROWS]
        } else {
            [FLAG_BIAS_ROWS, FLAG_BIAS_COLUMNS]
        };
        // The preceding launch may have written the bias, so the load bypasses L1.
        // SAFETY: such a load has no further condition.
        let biases = unsafe { o.bias.cast::<E>().with::<Fresh>() };
        let bias = |flag: u32, [row, column]: [u32; 2]| {
            let (at, end) = if flag == FLAG_BIAS_ROWS { (row, m) } else { (column, o.n) };
            let from = biases.at(at);
            E::get(&from.ld_raw::<1>(o.flags & flag != 0 && at < end), 0)
        };
        // Two accumulators of each atom share a row (transposed: a column), and all atoms of a lane have the same two.
        let fixed = [0, 2].map(|i| bias(ones, Self::element(place, 0, i)));
        // Eight lanes need the same biases, so each holds those of one in eight atoms. All loads are issued before the
        // first is used. Registers do not suffice for all biases in each lane, and a load in a branch would be waited
        // for on its own.
        let lane = gpu::opaque_thread() % 32;
        let moves = o.flags & others != 0;
        let mut held = [[0.0f32; 2]; 4];
        if moves {
            unroll!(e < Self::OWN.div_ceil(8), most 4, {
                let atom = 8 * e + (lane / 4) as usize;
                unroll!(i < 2, {
                    held[e][i] = bias(others, Self::element(place, atom, i));
                });
            });
        }
        unroll!(q < Self::FOURS, {
            unroll!(g < Self::OF_FOUR, most 4, {
                let atom = q * 4 + g;
                let from = (atom % 8 * 4) as u32 + lane % 4;
                let moving = held[atom / 8].map(|x| {
                    f32::from_bits(warp::shfl(x.to_bits(), from))
                });
                unroll!(i < 4, {
                    let bias = fixed[i / 2] + moving[i % 2];
                    own[q][g][i] = E::fma(alpha, own[q][g][i], bias);
                });
            });
        });
    }

    /// Applies the activation, one pass for each function: a test for each sum would keep the sums apart.
    #[inline(always)]
    fn activate<E: Elem<Acc = f32>>(o: Output, own: &mut Own) {
        if o.flags & FLAG_RELU != 0 {
            Self::each(own, |four| four.map(E::relu));
        } else if o.flags & FLAG_GELU != 0 {
            Self::each(own, E::gelu_of_four);
        }
    }

    #[inline(always)]
    fn each(own: &mut Own, f: impl Fn(Four) -> Four) {
        unroll!(q < Self::FOURS, {
            unroll!(g < Self::OF_FOUR, most 4, { own[q][g] = f(own[q][g]) });
        });
    }

    /// Stores element by element, for rows of C that begin at any address.
    #[inline(always)]
    fn store_elements<E: Elem<Acc = f32>>(o: Output, m: u32, place: Place, own: &Own) {
        unroll!(q < Self::FOURS, {
            unroll!(g < Self::OF_FOUR, most 4, {
                unroll!(i < 4, {
                    let [row, column] = Self::element(place, q * 4 + g, i);
                    let at = at_c::<E>(o, row, column);
                    let inside = row < m && column < o.n;
                    let old = at.ld_raw::<1>(inside && o.flags & FLAG_ACCUMULATE != 0);
                    if inside {
                        at.st_rounded(&[own[q][g][i] + E::get(&old, 0)]);
                    }
                });
            });
        });
    }
}

/// Distance of the two columns that a lane holds in a row of a transposed tile.
pub(super) const TURNED_BETWEEN: u32 = 4;

/// Address of an element of C, which the preceding launch may have written.
#[inline(always)]
pub(super) fn at_c<E: ElemInfo>(o: Output, row: u32, column: u32) -> Global<E, Fresh> {
    // SAFETY: a load that bypasses L1 has no further condition.
    unsafe { o.c.with::<Fresh>() }.row(row, o.ldc_bytes).cast().at(column)
}

/// Accumulators of an atom.
#[inline(always)]
fn four<const CHUNKS: usize>(acc: &Acc<CHUNKS>, atom: usize) -> Four {
    let (c, j) = (atom / 8 % CHUNKS, atom % 8);
    [0, 1, 2, 3].map(|i| acc.0[c][4 * j + i])
}
