//! A product of dense matrices that says which micro-tiles of its result are not empty: warps look at the rows that they store, and
//! set a bit for each column in which one of them holds something. Bits do not depend on who comes first.

use super::elem::Elem;
use super::gpu;
use super::ptx::wgmma::Acc;
use super::ptx::{barrier, global, warp};
use super::wgmma::{self, WgmmaElem};
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, lies at the generic address `at`, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: WgmmaElem>(p: &MarkedParams, at: u64);
}

/// Elements of two bytes whose magnitude is not 0, in the top bits of both halves.
#[inline(always)]
fn mark(word: u32) -> u32 {
    ((word & 0x7fff_7fff) + 0x7fff_7fff) & 0x8000_8000
}

impl MarkedParams {
    /// Sets the bits of 64 columns from `column` on for a warp's rows from `row` on. Lane `8 r + c` knows of columns `8 c ..`.
    #[inline(always)]
    fn set(&self, row: u32, column: u32, marks: [u32; 4]) {
        let lane = gpu::thread_again() % 32;
        let mut found = 0;
        unroll!(w < 4, {
            found |= (marks[w] >> 15 & 1 | marks[w] >> 30 & 2) << (2 * w);
        });
        let placed = found << (lane % 4 * 8);
        let low = warp::any_bits(if lane % 8 < 4 { placed } else { 0 });
        let high = warp::any_bits(if lane % 8 < 4 { 0 } else { placed });
        let bits = if lane == 0 { low } else { high };
        if lane < 2 && bits != 0 {
            let word = (row >> self.height) * self.words + column / 32 + lane;
            global::set_bits(self.marks + word as u64 * 4, bits);
        }
    }
}

impl<const CHUNKS: usize> MarkedPanel<CHUNKS> {
    /// As `wgmma` leaves its sums, with a look at what is stored.
    #[inline(always)]
    fn leave<E: Elem<Acc = f32>>(p: &MarkedParams, strip: Strip, half: u32, acc: &mut Acc<CHUNKS>) {
        Panel::<64, 64, CHUNKS, PLAIN>::leave_seen::<E>(
            &p.product,
            strip,
            half,
            |[row, column], seen| {
                let mut marks = [0; 4];
                unroll!(w < 4, {
                    unroll!(j < 4, { marks[w] |= mark(seen[j][w]) });
                });
                p.set(row, column, marks);
            },
            acc,
        );
    }
}

impl<const CHUNKS: usize> Body for MarkedPanel<CHUNKS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: WgmmaElem>(p: &MarkedParams, at: u64) {
        // The product's parameters come first, so its tensor maps lie where that looks for them.
        const { assert!(core::mem::offset_of!(MarkedParams, product) == 0) };
        Panel::<64, 64, CHUNKS, PLAIN>::set_up(at);
        if gpu::thread() >= wgmma::CONSUMERS * 32 {
            barrier::registers_down::<{ wgmma::FEW }>();
            Panel::<64, 64, CHUNKS, PLAIN>::produce(&p.product, at);
        } else {
            barrier::registers_up::<{ wgmma::MANY }>();
            Panel::<64, 64, CHUNKS, PLAIN>::consume_with::<E>(&p.product, |strip, half, acc| {
                Self::leave::<E>(p, strip, half, acc);
            });
        }
    }
}
