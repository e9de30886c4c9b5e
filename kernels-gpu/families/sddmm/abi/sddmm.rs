//! The module `sddmm`: products of dense matrices at the nonzeros of an unstructured pattern, on CUDA cores. An item is
//! a run of entries of one row; its segment of lanes holds that row of X and gathers rows of Y.

use core::marker::PhantomData;

use crate::abi::{BOTH_ROWS, Dtype, Tile};

/// Entries whose sums a segment computes and stores together; each of them is kept by at least one lane.
pub const SAMPLES: usize = 8;

/// Parameters of a [`Dots`].
pub trait SegmentForm {
    /// Lanes of a segment: 8, 16 or 32.
    const LANES: u32;
    /// Rows of Y that are gathered at once: 4 or 8.
    const FLIGHT: usize;
    /// Thread blocks that a multiprocessor holds.
    const BLOCKS: u32;
}

/// [`SegmentForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct SegmentOf<const LANES: u32, const FLIGHT: usize, const BLOCKS: u32>;

impl<const LANES: u32, const FLIGHT: usize, const BLOCKS: u32> SegmentForm
    for SegmentOf<LANES, FLIGHT, BLOCKS>
{
    const LANES: u32 = LANES;
    const FLIGHT: usize = FLIGHT;
    const BLOCKS: u32 = BLOCKS;
}

/// Tile of the module `sddmm`: a segment of lanes computes an item. A lane holds `REP` vectors of `VEC` elements of
/// each step along k.
#[derive(Clone, Copy, Debug)]
pub struct Dots<const VEC: usize, const REP: usize, F>(PhantomData<F>);

impl<const VEC: usize, const REP: usize, F: SegmentForm> Tile for Dots<VEC, REP, F> {
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = F::BLOCKS;
    /// Elements of one step along k.
    const COLUMNS: u32 = F::LANES * VEC as u32 * REP as u32;
    const ITEMS: u32 = Self::THREADS / F::LANES;
    const BURST: u32 = F::FLIGHT as u32;
    const ORDER: u32 = BOTH_ROWS;
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

/// Parameters of the `sddmm` kernels: `S[m,n] (= | +=) alpha * P[m,n] * X[m,k] * Y[n,k]` where S has an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SddmmParams {
    /// [`Item`](crate::abi::Item)s, none of length 0.
    pub items: u64,
    /// Column of each entry, u32.
    pub columns: u64,
    /// X, row-major `[m, k]`.
    pub x: u64,
    /// Y, row-major `[n, k]`.
    pub y: u64,
    /// The values of S.
    pub values: u64,
    /// The values of P.
    pub mask: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Number of items.
    pub item_count: u32,
    /// Terms of a product.
    pub k: u32,
    /// Bytes from one row of X to the next.
    pub ldx_bytes: u32,
    /// Bytes from one row of Y to the next.
    pub ldy_bytes: u32,
    /// [`FLAG_ACCUMULATE`](crate::abi::FLAG_ACCUMULATE), [`FLAG_MASK_VALUES`](crate::abi::FLAG_MASK_VALUES); for 8-bit
    /// operands `FLAG_OUT_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<SddmmParams>() == 80);
