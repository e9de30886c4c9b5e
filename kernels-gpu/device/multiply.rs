//! Products of a warpgroup over 32 bytes of depth: `wgmma`, or `ldmatrix` and `mma.sync` of the same operands in shared
//! memory. A body names its operands by [`frag::descriptor`] and takes the atom as a parameter.

use super::gpu;
use super::ptx::wgmma::{self, Acc};
use super::ptx::{barrier, copy, matrix};
use super::warpgroup::WgmmaElem;
use crate::abi::*;
use crate::frag;

/// An element type that `mma.sync` multiplies.
pub trait StepElem {
    /// `D += A B` of 16 x 8 sums, 32 bytes deep. The fragments are what `ldmatrix` delivers, whatever the type.
    fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
    /// The same where Tensor Cores multiply fp8.
    #[inline(always)]
    fn step_fp8(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        Self::step(d, a, b)
    }
}

macro_rules! step {
    ($($elem:ident: $mma:ident;)+) => {$(
        impl StepElem for $elem {
            #[inline(always)]
            fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                matrix::$mma(d, a, b)
            }
        }
    )+};
}

step! {
    F16: mma_f16;
    Bf16: mma_bf16;
    Tf32: mma_tf32;
}

impl StepElem for Int8 {
    #[inline(always)]
    fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        let mut sums = d.map(f32::to_bits);
        matrix::mma_s8_k32(&mut sums, a, b);
        *d = sums.map(f32::from_bits);
    }
}

/// Types of 8 bits are multiplied as f16, which holds each of their values. Which product of a sum comes first does not
/// matter: either half of the bytes of each fragment's register makes a product of 16 deep.
macro_rules! by_f16 {
    ($($elem:ident: $convert:ident, $own:ident;)+) => {$(
        impl StepElem for $elem {
            #[inline(always)]
            fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                let wide = |x: u32| [matrix::$convert(x), matrix::$convert(x >> 16)];
                let [a0, a1, a2, a3] = a.map(wide);
                let [b0, b1] = b.map(wide);
                matrix::mma_f16(d, [a0[0], a1[0], a0[1], a1[1]], b0);
                matrix::mma_f16(d, [a2[0], a3[0], a2[1], a3[1]], b1);
            }

            #[inline(always)]
            fn step_fp8(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                matrix::$own(d, a, b)
            }
        }
    )+};
}

by_f16! {
    E4m3: f16x2_from_e4m3, mma_e4m3;
    E5m2: f16x2_from_e5m2, mma_e5m2;
}

/// An element type of 8 bits that warpgroups multiply.
pub trait BytesElem: ElemInfo + StepElem {
    /// `wgmma` keeps fewer bits of a sum than f32 has: sums over a stage are added to f32 registers of their own.
    const PROMOTED: bool;
    /// Accumulators are i32, in f32 registers.
    const WHOLE: bool;
    /// `D = A B` by `wgmma`, or `D += A B` where `onto`.
    fn wgmma<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
}

macro_rules! bytes {
    ($($name:ident: $mma:ident, promoted $promoted:literal, whole $whole:literal;)+) => {$(
        impl BytesElem for $name {
            const PROMOTED: bool = $promoted;
            const WHOLE: bool = $whole;
            #[inline(always)]
            fn wgmma<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
                acc.$mma(a, b, onto)
            }
        }
    )+};
}

bytes! {
    E4m3: mma_e4m3, promoted true, whole false;
    E5m2: mma_e5m2, promoted true, whole false;
    Int8: mma_s8, promoted false, whole true;
}

/// An element type with a sparse atom: A keeps two of four along k, 32 bytes a step, and B has 64 bytes a step.
pub trait SparseElem {
    /// B lies as `[k, n]`, else as `[n, k]`.
    const B_ROWS: bool;
    /// `D += A B` by `wgmma`.
    fn wgmma<const C: usize, const SELECTOR: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32);
    /// `D += A B` of 16 x 8 sums.
    fn step<const SELECTOR: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32);
}

impl SparseElem for F16 {
    const B_ROWS: bool = true;
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_f16::<S>(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_f16::<S>(d, a, b, meta)
    }
}

impl SparseElem for Bf16 {
    const B_ROWS: bool = true;
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_bf16::<S>(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_bf16::<S>(d, a, b, meta)
    }
}

impl SparseElem for Int8 {
    const B_ROWS: bool = false;
    /// The selector is 0.
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_s8(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_s8::<0>(d, a, b, meta)
    }
}

/// What four warps multiply with: 64 rows of A by `C` x 64 columns of B. Operands are descriptors of shared memory.
pub trait Multiply: AtomInfo {
    /// Gives registers of this warpgroup back, down to `COUNT` a thread, where registers move.
    fn registers_down<const COUNT: u32>();
    /// Takes registers up to `COUNT` a thread for this warpgroup, where registers move.
    fn registers_up<const COUNT: u32>();
    /// Orders earlier accesses to the accumulators before the next product.
    fn fence<const C: usize>(acc: &mut Acc<C>);
    /// Closes a group of products.
    fn commit();
    /// Waits until at most `PENDING` groups are under way.
    fn wait<const C: usize, const PENDING: u32>(acc: &mut Acc<C>);
    /// Makes this thread's writes to shared memory visible to products and the copy engine.
    fn fence_copies();
    /// `D += A B`. `TA`, `TB` 1: the operand is contiguous along m, n instead of k.
    fn mma<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    );
    /// [`Self::mma`] of operands that lie as `ORDER` says.
    #[inline(always)]
    fn mma_ordered<E: WgmmaElem, const C: usize, const ORDER: u32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        match (ORDER & A_COLUMNS != 0, ORDER & B_COLUMNS != 0) {
            (false, false) => Self::mma::<E, C, 0, 1>(acc, a, b),
            (true, false) => Self::mma::<E, C, 1, 1>(acc, a, b),
            (false, true) => Self::mma::<E, C, 0, 0>(acc, a, b),
            (true, true) => Self::mma::<E, C, 1, 0>(acc, a, b),
        }
    }
    /// [`Self::mma`] with the fragment of each warp's 16 rows of A in registers. Not of quarters.
    fn mma_registers<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    );
    /// [`Self::mma`] with A's fragments of 16 rows from wherever they are: of the 16 rows of each warp, asked for by 0, or
    /// those of all 64 for quarters, by 0 to 3. `None`, the same for all lanes, is zeros.
    fn mma_fragments<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: u64,
    );
    /// [`Self::mma`], which may leave out 16 rows of A from `rows` on at a time.
    fn mma_rows<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        rows: u32,
    );
    /// `D += A B` of fragments from wherever they are: A's as of [`Self::mma_fragments`], B's of two times 8 columns, `n` x
    /// 16 columns behind this warp's first. Of `mma.sync` alone.
    fn mma_both<E: StepElem, const C: usize>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: impl Fn(u32) -> [u32; 4],
    );
    /// TF32, `D = A B`, or `D += A B` where `onto`; both contiguous along k. Bits below the 10 of the mantissa are cut
    /// off.
    fn mma_tf32<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
    /// TF32, `D += A B`, with the fragment of each warp's 16 rows of A in registers. Not of quarters. Where no copy
    /// engine rounded B on its way, that is done here.
    fn mma_tf32_registers<const C: usize>(acc: &mut Acc<C>, a: [u32; 4], b: u64);
    /// Elements of 8 bits, `D = A B`, or `D += A B` where `onto`; both contiguous along k.
    fn mma_bytes<E: BytesElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
    /// `D += A B` of `M` times 64 rows, where A keeps two of four along k. `meta` is asked by which 64 rows for the lane's
    /// word of its warp's 16 rows by 0, or for quarters of all 64 by 0 to 3.
    fn mma_sparse<E: SparseElem, const C: usize, const M: usize, const SELECTOR: i32>(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    );
    /// Gives each warp the sums of its 16 rows, all columns, once all products are done. All four warps call it
    /// together; `smem`: [`SMEM_TILE`] bytes that nobody else uses, `id`: a named barrier of their own.
    fn settle<const C: usize>(acc: &mut Acc<C>, smem: u32, id: u32);
}

impl Multiply for Wgmma {
    #[inline(always)]
    fn registers_down<const COUNT: u32>() {
        barrier::registers_down::<COUNT>();
    }

    #[inline(always)]
    fn registers_up<const COUNT: u32>() {
        barrier::registers_up::<COUNT>();
    }

    #[inline(always)]
    fn fence<const C: usize>(acc: &mut Acc<C>) {
        acc.fence();
    }

    #[inline(always)]
    fn commit() {
        wgmma::commit();
    }

    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(acc: &mut Acc<C>) {
        acc.wait::<PENDING>();
    }

    #[inline(always)]
    fn fence_copies() {
        barrier::fence_copies();
    }

    #[inline(always)]
    fn mma<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        E::mma::<C, TA, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_registers<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    ) {
        E::mma_registers::<C, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_fragments<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: u64,
    ) {
        E::mma_registers::<C, TB>(acc, a(0).unwrap_or([0; 4]), b);
    }

    #[inline(always)]
    fn mma_rows<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        _: u32,
    ) {
        E::mma::<C, TA, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_both<E: StepElem, const C: usize>(
        _: &mut Acc<C>,
        _: impl Fn(u32) -> Option<[u32; 4]>,
        _: impl Fn(u32) -> [u32; 4],
    ) {
    }

    #[inline(always)]
    fn mma_tf32<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
        acc.mma_tf32(a, b, onto);
    }

    #[inline(always)]
    fn mma_tf32_registers<const C: usize>(acc: &mut Acc<C>, a: [u32; 4], b: u64) {
        acc.mma_tf32_registers(a, b);
    }

    #[inline(always)]
    fn mma_bytes<E: BytesElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
        E::wgmma(acc, a, b, onto);
    }

    #[inline(always)]
    fn mma_sparse<E: SparseElem, const C: usize, const M: usize, const SELECTOR: i32>(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    ) {
        unroll!(i < M, most 4, { E::wgmma::<C, SELECTOR>(&mut acc[i], a[i], b, meta(i, 0)) });
    }

    #[inline(always)]
    fn settle<const C: usize>(_: &mut Acc<C>, _: u32, _: u32) {}
}

/// What a descriptor says, read back: constants but for the address, where both are inlined.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    at: u32,
    row_bytes: u32,
    between: u32,
}

impl Operand {
    #[inline(always)]
    fn of(descriptor: u64) -> Self {
        Operand {
            at: (descriptor as u32 & 0x3fff) << 4,
            row_bytes: match descriptor >> 62 {
                1 => 128,
                2 => 64,
                _ => 32,
            },
            between: ((descriptor >> 16) as u32 & 0x3fff) * 16,
        }
    }

    /// Shared address of a byte, whose swizzle depends on the address alone.
    #[inline(always)]
    fn swizzled(self, byte: u32) -> u32 {
        frag::swizzled(self.at + byte, self.row_bytes)
    }

    /// Byte of 16-bit element `across` of row `deep`, where rows lie along k.
    #[inline(always)]
    fn across(self, deep: u32, across: u32) -> u32 {
        let bytes = across * 2;
        deep * self.row_bytes + bytes / self.row_bytes * self.between + bytes % self.row_bytes
    }
}

/// A of one step, read as fragments of 16 rows: `TA` 1: contiguous along m.
#[derive(Clone, Copy)]
pub(super) struct Rows<const TA: i32> {
    operand: Operand,
    /// Where this lane reads the first fragment.
    pub(super) first: u32,
}

impl<const TA: i32> Rows<TA> {
    /// From row `row` on, a multiple of 16.
    #[inline(always)]
    pub(super) fn from(descriptor: u64, row: u32, lane: u32) -> Self {
        let operand = Operand::of(descriptor);
        let byte = if TA == 0 {
            let (down, chunk) = frag::ldmatrix_x4(lane);
            (row + down) * operand.row_bytes + chunk * 16
        } else {
            let (deep, chunk) = frag::ldmatrix_x4_columns(lane);
            operand.across(deep, row) + chunk * 16
        };
        Rows { operand, first: operand.swizzled(byte) }
    }

    /// The fragment `m` x 16 rows further on.
    #[inline(always)]
    fn fragment(self, m: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TA == 0 {
            return matrix::ldmatrix_x4(self.first + m * 16 * row_bytes);
        }
        // Rows of the operand are swizzled by bits that this does not change.
        let bytes = m * 32;
        let from = (self.first ^ bytes % row_bytes) + bytes / row_bytes * between;
        matrix::ldmatrix_x4_trans(from)
    }
}

/// B of one step, read as fragments of 16 columns. `TB` 1: contiguous along n.
#[derive(Clone, Copy)]
pub(super) struct Columns<const TB: i32> {
    operand: Operand,
    /// The first column.
    column: u32,
    /// Where this lane reads the first fragment.
    pub(super) first: u32,
}

impl<const TB: i32> Columns<TB> {
    /// From column `column` on, a multiple of 16.
    #[inline(always)]
    pub(super) fn from(descriptor: u64, column: u32, lane: u32) -> Self {
        let operand = Operand::of(descriptor);
        let byte = if TB == 0 {
            let (down, chunk) = frag::ldmatrix_x4_columns(lane);
            (column + down) * operand.row_bytes + chunk * 16
        } else {
            let (deep, chunk) = frag::ldmatrix_x4(lane);
            operand.across(deep, column) + chunk * 16
        };
        Columns { operand, column, first: operand.swizzled(byte) }
    }

    /// The fragments `n` x 16 columns further on, of two times 8 columns; `step` x 32 bytes deeper.
    #[inline(always)]
    pub(super) fn fragments(self, n: u32, step: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TB == 0 {
            return matrix::ldmatrix_x4((self.first ^ step * 32) + n * 16 * row_bytes);
        }
        let bytes = n * 32;
        let from = (self.first ^ bytes % row_bytes) + bytes / row_bytes * between;
        matrix::ldmatrix_x4_trans(from + step * 16 * row_bytes)
    }

    /// [`Self::fragments`] of columns that may lie beyond the rows of the first ones.
    #[inline(always)]
    fn fragments_beyond(self, n: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TB == 0 {
            return self.fragments(n, 0);
        }
        let (before, bytes) = (self.column * 2, self.column * 2 + n * 32);
        let from = self.first ^ (before ^ bytes) % row_bytes;
        let groups = bytes / row_bytes - before / row_bytes;
        matrix::ldmatrix_x4_trans(from + groups * between)
    }
}

/// Adds to the sums of atom `atom` of 16 x 8.
#[inline(always)]
fn add<const C: usize>(acc: &mut Acc<C>, atom: usize, step: impl FnOnce(&mut [f32; 4])) {
    let (c, at) = (atom / 8, atom % 8 * 4);
    let mut sums = [0, 1, 2, 3].map(|i| acc.0[c][at + i]);
    step(&mut sums);
    unroll!(i < 4, { acc.0[c][at + i] = sums[i] });
}

impl<const QUARTERS: bool, const FP8: bool> Synchronous<QUARTERS, FP8> {
    /// `D += A B` of 16 x 8 sums.
    #[inline(always)]
    fn step<E: StepElem>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        if FP8 { E::step_fp8(d, a, b) } else { E::step(d, a, b) }
    }

    /// First row of A and first column of B that this warp multiplies.
    #[inline(always)]
    fn share<const C: usize>(warp: u32) -> (u32, u32) {
        if QUARTERS { (0, warp * 16 * C as u32) } else { (warp * 16, 0) }
    }

    /// Fragments of columns of this warp.
    #[inline(always)]
    fn columns<const C: usize, const TB: i32>(b: Columns<TB>, n: u32) -> [u32; 4] {
        // Of 192 columns a warp has 48, of 64 that lie in a row.
        if QUARTERS && C == 3 { b.fragments_beyond(n) } else { b.fragments(n, 0) }
    }

    /// Adds the products of fragments: `rows` m are 16 rows, `columns` n are two times 8 columns.
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
        Self::products::<E, C>(acc, |m| is_there(m).then(|| a.fragment(m)), |n| b.fragments(n, 0));
    }

    /// Adds the products of fragments of A in registers.
    #[inline(always)]
    fn multiply_registers<E: StepElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    ) {
        // No assertion: a body may have both ways, one of them never taken.
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
        let b = Columns::<TB>::from(b, column, lane);
        let columns = |n: u32| {
            let (x, y) = (b.fragments(n, 0), b.fragments(n, 1));
            [[x[0], x[1], y[0], y[1]], [x[2], x[3], y[2], y[3]]]
        };
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
    /// The first of two fragments of A.
    pub const FIRST: u32 = 1;
    /// The second of two fragments of A.
    pub const SECOND: u32 = 2;

    /// `D += A B`, [`STEPS`] steps deep, of two times 16 rows of each warp with sums of their own, or of those that
    /// `WHICH` names. `a`: the fragment of A of a step and of either of the two. B is read once for both.
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
    fn registers_down<const COUNT: u32>() {}

    #[inline(always)]
    fn registers_up<const COUNT: u32>() {}

    #[inline(always)]
    fn fence<const C: usize>(_: &mut Acc<C>) {}

    #[inline(always)]
    fn commit() {}

    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(_: &mut Acc<C>) {}

    #[inline(always)]
    fn fence_copies() {}

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
    fn mma_both<E: StepElem, const C: usize>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: impl Fn(u32) -> [u32; 4],
    ) {
        Self::products::<E, C>(acc, a, b);
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
        let rounded = |n| b.fragments(n, 0).map(matrix::round_tf32);
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
    fn settle<const C: usize>(acc: &mut Acc<C>, smem: u32, id: u32) {
        if !QUARTERS {
            return;
        }
        let (warp, lane) = gpu::warp_and_lane();
        let smem = smem + lane * 16;
        // A warp that is ahead must not overwrite what another one still stores of the sums before.
        barrier::sync_named(id, 128);
        // Of each 16 rows one atom in a round: what a warp sends and what it receives are the same four atoms of its
        // registers.
        unroll!(n < 2 * C, {
            unroll!(m < 4, {
                let atom = m * 2 * C + n;
                let (c, at) = (atom / 8, atom % 8 * 4);
                let four = [0, 1, 2, 3].map(|i| acc.0[c][at + i].to_bits());
                copy::store_shared_v4(smem + (m as u32 * 4 + warp) * 512, four);
            });
            barrier::sync_named(id, 128);
            unroll!(m < 4, {
                let atom = m * 2 * C + n;
                let (c, at) = (atom / 8, atom % 8 * 4);
                let four = copy::load_shared_v4(smem + (warp * 4 + m as u32) * 512);
                unroll!(i < 4, { acc.0[c][at + i] = f32::from_bits(four[i]) });
            });
            barrier::sync_named(id, 128);
        });
    }
}
