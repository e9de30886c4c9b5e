//! A warpgroup that multiplies: a warp expands its slab of 16 rows of a tile into fragments, four squares side by side.

use super::{Ring, ThinElem};
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::wgmma_thin::Thin;
use crate::device::ptx::{barrier, bits, copy, warp, wgmma};
use crate::frag;

/// Squares of 16 columns in a tile, one `wgmma` each.
const SQUARES: usize = 4;

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool> BitTile<GROUPS, N, ALIGNED> {
    #[inline(always)]
    pub(super) fn consume<E: ThinElem>(p: &BitmapParams) {
        // The same for all lanes, which ptxas has to see.
        let group = warp::shuffle::<32>(gpu::thread() / 128, 0, u32::MAX);
        let mut ring = Ring { slot: 0, parity: 0 };
        let [mut index, end] = p.list();
        while index < end {
            let piece = p.piece(index);
            index += 1;
            if group >= warp::shuffle::<32>(piece.height, 0, u32::MAX) {
                Self::pass(p, &mut ring, piece.stages);
                continue;
            }
            let mut acc = Thin::<N>::zero();
            let mut stage = 0;
            while stage < piece.stages {
                barrier::wait(Self::full(ring.slot), ring.parity);
                let a = Self::fragments(p, ring.slot, group);
                acc.fence();
                Self::multiply::<E>(&mut acc, ring.slot, a);
                wgmma::commit();
                // The fragments' registers are read until then; other warpgroups expand meanwhile.
                acc.wait::<0>();
                Self::free(ring.slot);
                ring.advance(p.stages);
                stage += 1;
            }
            Self::leave::<E>(p, piece, group, &mut acc);
        }
    }

    /// Stages without rows for this warpgroup.
    #[inline(always)]
    fn pass(p: &BitmapParams, ring: &mut Ring, stages: u32) {
        let mut stage = 0;
        while stage < stages {
            barrier::wait(Self::full(ring.slot), ring.parity);
            Self::free(ring.slot);
            ring.advance(p.stages);
            stage += 1;
        }
    }

    /// The fragments of this warp's slab.
    #[inline(always)]
    fn fragments(p: &BitmapParams, slot: u32, group: u32) -> [[u32; 4]; SQUARES] {
        let (warp, lane) = (gpu::thread_again() / 32 % 4, gpu::thread_again() % 32);
        let words = Self::a(p, slot) + group * BIT_BYTES as u32;
        let own = copy::load_shared_b32(words + (warp * 32 + lane) * 4);
        let squares = bits::load_shared_v2(words + 512 + warp * 8);
        let values = copy::load_shared_b32(Self::offsets(slot) + group * 4);
        let before = bits_in_front(own);
        // A byte of `before` and a half of `squares` each.
        let at = |t: u32, square: u32| {
            values + ((before >> (8 * t) & 0xff) + (square & 0xffff)) * 2
        };
        [
            bits::expand(own, at(0, squares[0])),
            bits::expand(own >> 2, at(1, squares[0] >> 16)),
            bits::expand(own >> 4, at(2, squares[1])),
            bits::expand(own >> 6, at(3, squares[1] >> 16)),
        ]
    }

    /// The `wgmma`s of a stage.
    #[inline(always)]
    fn multiply<E: ThinElem>(acc: &mut Thin<N>, slot: u32, a: [[u32; 4]; SQUARES]) {
        let row = (N * 2) as u32;
        let b = frag::descriptor(Self::b(slot), row, 16);
        unroll!(t < SQUARES, {
            // 16 rows further, in units of 16 bytes: the address stands in the lowest bits.
            E::mma_thin::<N>(acc, a[t], b + (t as u32 * row) as u64);
        });
    }

    /// Lets the stage be overwritten, as far as this warp goes.
    #[inline(always)]
    fn free(slot: u32) {
        // One lane arrives for all, when all have read.
        warp::sync_lanes(u32::MAX);
        if gpu::thread_again() % 32 == 0 {
            barrier::arrive(Self::empty(slot));
        }
    }
}

/// In byte t: how many bits of square t are set in the lanes in front. At most 248, so no byte overflows, whatever the sums up to
/// and with the last lane do: what they carry is taken away again.
#[inline(always)]
fn bits_in_front(own: u32) -> u32 {
    // In the two bits of each byte and square, then in four: even squares, odd squares.
    let pairs = own - (own >> 1 & 0x5555_5555);
    let even = (pairs & 0x3333_3333).wrapping_mul(0x0101_0101) >> 24;
    let odd = (pairs >> 2 & 0x3333_3333).wrapping_mul(0x0101_0101) >> 24;
    let both = even | odd << 8;
    let counts = both & 0x0f0f | (both & 0xf0f0) << 12;
    bits::scan(counts).wrapping_sub(counts)
}
