//! Depthwise convolutions with windows of 3 x 3: a thread reads each row of the windows of its outputs once.

use super::*;

/// Raw elements of a row that a thread reads. With vectors these include the element to the left of the vectors, and
/// with stride 1 the one to the right. Without vectors they are three adjacent elements.
#[derive(Clone, Copy)]
struct Row {
    left: Raw,
    own: [Raw; 2],
    right: Raw,
}

/// Whether the left, own and right elements are inside the plane's columns.
type Columns = [bool; 3];

impl Row {
    const NONE: Row = Row { left: [0; 4], own: [[0; 4]; 2], right: [0; 4] };

    /// Loads the row whose own elements begin at `at`: one address, and offsets known at compile time.
    #[inline(always)]
    fn load<E: Elem, const VEC: usize, const STRIDE: usize>(
        at: Global<E, ReadWrite>,
        inside: bool,
        [left, own, right]: Columns,
    ) -> Row {
        let mut row = Row::NONE;
        row.left = at.wrapping_at(-1i64 as u64).ld_raw::<1>(inside && left);
        row.own[0] = at.ld_raw::<VEC>(inside && own);
        if VEC > 1 && STRIDE == 2 {
            row.own[1] = at.wrapping_at(VEC as u64).ld_raw::<VEC>(inside && own);
        } else {
            row.right = at.wrapping_at(VEC as u64).ld_raw::<1>(inside && right);
        }
        row
    }

    /// Returns element `k`, counted from the first one that the first output uses.
    #[inline(always)]
    fn get<E: Elem<Acc = f32>, const VEC: usize, const STRIDE: usize>(&self, k: usize) -> f32 {
        let vectors = if VEC > 1 { STRIDE } else { 1 };
        if k == 0 {
            E::get(&self.left, 0)
        } else if k <= VEC * vectors {
            E::get(&self.own[(k - 1) / VEC % 2], (k - 1) % VEC)
        } else {
            E::get(&self.right, 0)
        }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const VEC: usize, const STRIDE: usize>
    Kernel<W, E, Conv2dParams> for Depthwise<VEC, STRIDE>
{
    #[inline(always)]
    unsafe fn run(p: &Conv2dParams, _: Maps) {
        const { assert!((VEC == 1 || VEC == 4) && (STRIDE == 1 || STRIDE == 2)) };
        grid::launch_dependents();
        let index = gpu::block_x() * CONV2D_THREADS + gpu::thread();
        if index >= p.work {
            return;
        }
        let piece = Piece::of(p, index);
        let [height, width] = p.size;
        let (y, x) = (piece.down * Self::ITEMS, piece.across * VEC as u32);
        // With vectors the padding is 1.
        let left = (x * STRIDE as u32).wrapping_sub(if VEC > 1 { 1 } else { p.padding[1] });
        let right = left.wrapping_add(VEC as u32 + 1);
        let columns = [left < width, left.wrapping_add(1) < width, right < width];
        let first = (y * STRIDE as u32).wrapping_sub(p.padding[0]);
        let plane = piece.input::<E>(p, piece.channel);
        let mut at = place(plane, width, first, left.wrapping_add(1));
        grid::wait_dependency();
        let mut rows = [Row::NONE; 6];
        unroll!(k < 6, {
            if k < (Self::ITEMS as usize - 1) * STRIDE + 3 {
                let inside = first.wrapping_add(k as u32) < height;
                rows[k] = Row::load::<E, VEC, STRIDE>(at, inside, columns);
                at = at.wrapping_bytes((width * E::BYTES) as u64);
            }
        });
        let from = weights::<E>(p, piece.channel);
        let mut taps = [[0.0; 3]; 3];
        unroll!(i < 3, {
            unroll!(j < 3, {
                taps[i][j] = one(from.at((i * 3 + j) as u64), true);
            });
        });
        let start = bias::<E>(p, piece.channel);
        let (out, least) = (piece.out::<E>(p, piece.channel), least(p));
        let mut to = place(out, p.out_size[1], y, x);
        unroll!(r < 4, {
            if r < Self::ITEMS as usize && y + (r as u32) < p.out_size[0] {
                let mut sums = [start; VEC];
                unroll!(i < 3, {
                    unroll!(j < 3, {
                        unroll!(v < VEC, most 4, {
                            let x = rows[r * STRIDE + i].get::<E, VEC, STRIDE>(v * STRIDE + j);
                            sums[v] = matrix::fma_f32(taps[i][j], x, sums[v]);
                        });
                    });
                });
                to.st_rounded(&sums.map(|sum| matrix::max_nan(sum, least)));
                to = to.bytes(p.out_size[1] * E::BYTES);
            }
        });
    }
}
