//! [`Multiply`] by `ldmatrix` and `mma.sync`.

use super::{BytesElem, Columns, Multiply, Rows, SparseElem, StepElem};
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, matrix};
use crate::device::shared::Shared;
use crate::device::warpgroup::WgmmaElem;

/// Applies `step` to the accumulators of atom `atom` of 16 x 8.
#[inline(always)]
fn add<const C: usize>(acc: &mut Acc<C>, atom: usize, step: impl FnOnce(&mut [f32; 4])) {
    let (c, at) = (atom / 8, atom % 8 * 4);
    let mut sums = [0, 1, 2, 3].map(|i| acc.0[c][at + i]);
    step(&mut sums);
    unroll!(i < 4, { acc.0[c][at + i] = sums[i] });
}

impl<const QUARTERS: bool, const FP8: bool> Synchronous<QUARTERS, FP8> {
    /// `D += A B` of 16 x 8 accumulators.
    #[inline(always)]
    fn step<E: StepElem>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        if FP8 { E::step_fp8(d, a, b) } else { E::step(d, a, b) }
    }

    /// First row of A and first column of B of this warp.
    #[inline(always)]
    fn share<const C: usize>(warp: u32) -> (u32, u32) {
        if QUARTERS { (0, warp * 16 * C as u32) } else { (warp * 16, 0) }
    }

    /// Loads the fragments of two times 8 columns of this warp, from column `16 n` on.
    #[inline(always)]
    fn columns<const C: usize, const TB: i32>(b: Columns<TB>, n: u32) -> [u32; 4] {
        // Of 192 columns a warp has 48, which may cross the boundary of a row of 64 columns.
        if QUARTERS && C == 3 { b.fragments_beyond(n) } else { b.fragments(n, 0) }
    }

    /// Adds the products of fragments. `rows(m)` returns that of 16 rows, `columns(n)` those of two times 8 columns.
    #[inline(always)]
    fn products<E: StepElem, const C: usize>(
        acc: &mut Acc<C>,
        rows: impl Fn(u32) -> Option<[u32; 4]>,
        columns: impl Fn(u32) -> [u32; 4],
    ) {
        if QUARTERS {
            let mut b = [[0u32; 4]; C];
            unroll!(n < C, most 4, { b[n] = columns(n as u32) });
            unroll!(m < 4, {
                if let Some(a) = rows(m as u32) {
                    unroll!(n < C, most 4, {
                        unroll!(half < 2, {
                            add(acc, m * 2 * C + 2 * n + half, |sums| {
                                Self::step::<E>(sums, a, [b[n][2 * half], b[n][2 * half + 1]])
                            });
                        });
                    });
                }
            });
        } else {
            let Some(a) = rows(0) else { return };
            unroll!(c < C, most 4, {
                unroll!(pair < 4, {
                    let b = columns((c * 4 + pair) as u32);
                    unroll!(half < 2, {
                        add(acc, 8 * c + 2 * pair + half, |sums| {
                            Self::step::<E>(sums, a, [b[2 * half], b[2 * half + 1]])
                        });
                    });
                });
            });
        }
    }

    /// Adds the products of two operands in shared memory.
    #[inline(always)]
    fn multiply<E: StepElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, column) = Self::share::<C>(warp);
        let a = Rows::<TA>::from(a, row, lane);
        let b = Columns::<TB>::from(b, column, lane);
        Self::products::<E, C>(acc, |m| Some(a.fragment(m)), |n| Self::columns::<C, TB>(b, n));
    }

    /// [`Self::multiply`] of the first `rows` rows.
    #[inline(always)]
    fn multiply_rows<E: StepElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        rows: u32,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, column) = Self::share::<C>(warp);
        let a = Rows::<TA>::from(a, row, lane);
        let b = Columns::<TB>::from(b, column, lane);
        let is_there = |m: u32| row + m * 16 < rows;
        Self::products::<E, C>(
            acc,
            |m| is_there(m).then(|| a.fragment(m)),
            |n| Self::columns::<C, TB>(b, n),
        );
    }

    /// Adds the products of fragments of A in registers.
    #[inline(always)]
    fn multiply_registers<E: StepElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    ) {
        // Not an assertion: a body may contain both paths, of which one is never taken.
        if QUARTERS {
            return;
        }
        let (_, lane) = gpu::warp_and_lane();
        let b = Columns::<TB>::from(b, 0, lane);
        Self::products::<E, C>(acc, |_| Some(a), |n| b.fragments(n, 0));
    }

    #[inline(always)]
    fn multiply_sparse<
        E: SparseElem,
        const C: usize,
        const M: usize,
        const SELECTOR: i32,
        const TB: i32,
    >(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    ) {
        const { assert!(!QUARTERS || C != 3 || TB == 0, "columns of a warp lie in one tile") };
        let (warp, lane) = gpu::warp_and_lane();
        let (row, column) = Self::share::<C>(warp);
        let a = a.map(|a| Rows::<0>::from(a, row, lane));
        let b = Columns::<TB>::of_two_steps(b, column, lane);
        let columns = |n: u32| [2 * n, 2 * n + 1].map(|n| b.fragment_of_two_steps(n));
        if QUARTERS {
            let mut held = [[[0u32; 4]; 2]; C];
            unroll!(n < C, most 4, { held[n] = columns(n as u32) });
            unroll!(i < M, most 4, {
                unroll!(m < 4, {
                    let meta = meta(i, m);
                    let rows = a[i].fragment(m as u32);
                    unroll!(n < C, most 4, {
                        unroll!(half < 2, {
                            add(&mut acc[i], m * 2 * C + 2 * n + half, |sums| {
                                E::step::<SELECTOR>(sums, rows, held[n][half], meta)
                            });
                        });
                    });
                });
            });
        } else {
            let rows = a.map(|a| a.fragment(0));
            let mut own = [0; M];
            unroll!(i < M, most 4, { own[i] = meta(i, 0) });
            unroll!(c < C, most 4, {
                unroll!(pair < 4, {
                    let b = columns((c * 4 + pair) as u32);
                    unroll!(i < M, most 4, {
                        unroll!(half < 2, {
                            add(&mut acc[i], 8 * c + 2 * pair + half, |sums| {
                                E::step::<SELECTOR>(sums, rows[i], b[half], own[i])
                            });
                        });
                    });
                });
            });
        }
    }

    #[inline(always)]
    fn clear_unless<const C: usize>(acc: &mut Acc<C>, onto: bool) {
        if !onto {
            *acc = Acc::zero();
        }
    }
}

impl MmaSync {
    /// Selects the first of two fragments of A.
    pub const FIRST: u32 = 1;
    /// Selects the second of two fragments of A.
    pub const SECOND: u32 = 2;

    /// `D += A B` over [`STEPS`] k-steps for two groups of 16 rows of each warp, or for the groups in `WHICH`. Each
    /// group has its own accumulators. `a` returns the fragment of A of a k-step and a group. B is loaded once for both
    /// groups.
    #[inline(always)]
    pub fn mma_two<E: StepElem, const C: usize, const TB: i32, const WHICH: u32>(
        acc: &mut [Acc<C>; 2],
        a: impl Fn(usize, usize) -> [u32; 4],
        b: u64,
    ) {
        let (_, lane) = gpu::warp_and_lane();
        let b = Columns::<TB>::from(b, 0, lane);
        unroll!(step < STEPS, most 4, {
            let mut rows = [[0; 4]; 2];
            unroll!(i < 2, {
                if WHICH >> i & 1 != 0 {
                    rows[i] = a(step, i);
                }
            });
            unroll!(c < C, most 4, {
                unroll!(pair < 4, {
                    let b = b.fragments((c * 4 + pair) as u32, step as u32);
                    unroll!(half < 2, {
                        unroll!(i < 2, {
                            if WHICH >> i & 1 != 0 {
                                add(&mut acc[i], 8 * c + 2 * pair + half, |sums| {
                                    E::step(sums, rows[i], [b[2 * half], b[2 * half + 1]])
                                });
                            }
                        });
                    });
                });
            });
        });
    }
}

impl<const QUARTERS: bool, const FP8: bool> Multiply for Synchronous<QUARTERS, FP8> {
    #[inline(always)]
    fn setmaxnreg_dec<const COUNT: u32>() {}

    #[inline(always)]
    fn setmaxnreg_inc<const COUNT: u32>() {}

    #[inline(always)]
    fn fence<const C: usize>(_: &mut Acc<C>) {}

    #[inline(always)]
    fn commit() {}

    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(_: &mut Acc<C>) {}

    #[inline(always)]
    fn fence_proxy_async() {}

    #[inline(always)]
    fn mma<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        Self::multiply::<E, C, TA, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_registers<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    ) {
        Self::multiply_registers::<E, C, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_fragments<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: u64,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let (_, column) = Self::share::<C>(warp);
        let b = Columns::<TB>::from(b, column, lane);
        Self::products::<E, C>(acc, a, |n| Self::columns::<C, TB>(b, n));
    }

    #[inline(always)]
    fn mma_rows<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        rows: u32,
    ) {
        Self::multiply_rows::<E, C, TA, TB>(acc, a, b, rows);
    }

    #[inline(always)]
    fn mma_tf32<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
        Self::clear_unless(acc, onto);
        Self::multiply::<Tf32, C, 0, 0>(acc, a, b);
    }

    #[inline(always)]
    fn mma_tf32_registers<const C: usize>(acc: &mut Acc<C>, a: [u32; 4], b: u64) {
        if QUARTERS {
            return;
        }
        let (_, lane) = gpu::warp_and_lane();
        let b = Columns::<0>::from(b, 0, lane);
        let rounded = |n| b.fragments(n, 0).map(matrix::cvt_rna_tf32);
        Self::products::<Tf32, C>(acc, |_| Some(a), rounded);
    }

    #[inline(always)]
    fn mma_bytes<E: BytesElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
        Self::clear_unless(acc, onto);
        Self::multiply::<E, C, 0, 0>(acc, a, b);
    }

    #[inline(always)]
    fn mma_sparse<E: SparseElem, const C: usize, const M: usize, const SELECTOR: i32>(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    ) {
        if E::B_ROWS {
            Self::multiply_sparse::<E, C, M, SELECTOR, 1>(acc, a, b, meta);
        } else {
            Self::multiply_sparse::<E, C, M, SELECTOR, 0>(acc, a, b, meta);
        }
    }

    #[inline(always)]
    fn exchange_quarters<const C: usize>(acc: &mut Acc<C>, smem: Shared<u8>, id: u32) {
        if !QUARTERS {
            return;
        }
        let (warp, lane) = gpu::warp_and_lane();
        let smem = smem.bytes(lane * 16).cast::<[u32; 4]>();
        // A fast warp must not overwrite data that another warp still reads here, or still stores from the previous
        // tile.
        barrier::sync_named(id, 128);
        // Each round exchanges one atom of each group of 16 rows: the warp sends and receives the same four atoms of
        // its registers.
        unroll!(n < 2 * C, {
            unroll!(m < 4, {
                let atom = m * 2 * C + n;
                let (c, at) = (atom / 8, atom % 8 * 4);
                let four = [0, 1, 2, 3].map(|i| acc.0[c][at + i].to_bits());
                smem.bytes((m as u32 * 4 + warp) * 512).st(four);
            });
            barrier::sync_named(id, 128);
            unroll!(m < 4, {
                let atom = m * 2 * C + n;
                let (c, at) = (atom / 8, atom % 8 * 4);
                let four = smem.bytes((warp * 4 + m as u32) * 512).ld();
                unroll!(i < 4, { acc.0[c][at + i] = f32::from_bits(four[i]) });
            });
            barrier::sync_named(id, 128);
        });
    }
}
