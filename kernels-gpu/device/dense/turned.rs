//! The way out of a tile that was computed turned over: rows of its accumulators are columns of C.

use super::DenseTile;
use super::out::{Four, Place, each, turned};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::epilogue::{Output, row_bias_fresh, scale};
use crate::device::gpu;
use crate::device::ptx::global;

/// Columns between the two that a lane has of a row.
const BETWEEN: u32 = 4;

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize, const BYTES: usize>
    DenseTile<GROUPS, CHUNKS, CUT, BYTES>
{
    /// Scalar, bias, activation and the stores of `G` neighbouring atoms, 8 rows each.
    #[inline(always)]
    pub(super) fn finish_turned<E: Elem<Acc = f32>, const G: usize>(
        p: &DenseParams,
        place: Place,
        mut atoms: [Four; G],
    ) {
        let o = p.output();
        let lane = gpu::thread_again() % 32;
        let own = Place {
            row: place.row + lane % 4 * 2,
            ..place
        };
        let alpha = scale::<E>(o, p.stages);
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            each(&mut atoms, |g, i, x| {
                let row = own.row + (8 * g + i % 2) as u32;
                E::fma(alpha, x, row_bias_fresh::<E>(o, row, row < p.m))
            });
        }
        if o.flags & FLAG_BIAS_COLUMNS != 0 {
            let bias = [0, BETWEEN].map(|beyond| {
                let column = own.column + beyond;
                let at = o.bias + column as u64 * E::BYTES as u64;
                E::get(&E::load_fresh(at, column < o.n), 0)
            });
            each(&mut atoms, |_, i, x| x + bias[i / 2]);
        }
        if o.flags & FLAG_RELU != 0 {
            each(&mut atoms, |_, _, x| E::relu(x));
        }
        if o.flags & FLAG_GELU != 0 {
            each(&mut atoms, |_, _, x| E::gelu(x));
        }
        let whole = o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS;
        if G == 4 && whole {
            Self::store_lines::<G>(p, own, atoms);
        } else {
            Self::store_each::<E, G>(p, o, own, atoms);
        }
    }

    /// Four lanes have four neighbouring columns; each takes one of the atoms' rows.
    #[inline(always)]
    fn store_lines<const G: usize>(p: &DenseParams, own: Place, atoms: [Four; G]) {
        let lane = gpu::thread_again() % 32;
        let t = lane / 4 % 4;
        unroll!(i < 4, {
            let words = [0, 1, 2, 3].map(|g| atoms[g % G][i].to_bits());
            let four = turned(words, lane, 4);
            let row = own.row + 8 * t + (i % 2) as u32;
            let column = own.column - t + (i / 2) as u32 * BETWEEN;
            if row < p.m && column < p.n {
                let at = p.c + row as u64 * p.ldc_bytes as u64 + column as u64 * 4;
                global::store_v4(at, four);
            }
        });
    }

    /// Element by element.
    #[inline(always)]
    fn store_each<E: Elem<Acc = f32>, const G: usize>(
        p: &DenseParams,
        o: Output,
        own: Place,
        atoms: [Four; G],
    ) {
        unroll!(g < G, most 4, {
            unroll!(i < 4, {
                let row = own.row + (8 * g + i % 2) as u32;
                let column = own.column + (i / 2) as u32 * BETWEEN;
                let at = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * E::BYTES as u64;
                let inside = row < p.m && column < o.n;
                let old = E::load_fresh(at, inside && o.flags & FLAG_ACCUMULATE != 0);
                if inside {
                    E::store::<1>(at, &[atoms[g][i] + E::get(&old, 0)]);
                }
            });
        });
    }
}
