//! Epilogue of 64 columns of a warpgroup's accumulators: stored to C through shared memory as whole rows, or element by
//! element if C is not aligned for that.

use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::epilogue::{Output, row_bias};
use crate::device::gpu;
use crate::device::memory::{Global, ReadWrite};
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, matrix, warp};
use crate::device::shared::Shared;
use crate::frag;

/// A lane's accumulators of 64 columns, eight atoms of four.
pub type Chunk = [f32; 32];

/// First accumulator of the pair in row 0 and of the pair in row 8 of an atom.
pub const ROWS: [usize; 2] = [0, 2];

/// Output position of a warpgroup's accumulators, and the calling thread.
#[derive(Clone, Copy)]
pub struct Spot {
    /// Number of rows of C; rows from here on are not stored.
    pub m: u32,
    /// Row and column of C of the tile's first element.
    pub corner: [u32; 2],
    /// Index of the warpgroup, and its [`SMEM_TILE`] bytes of shared memory.
    pub group: u32,
    pub smem: Shared<u8>,
    /// Lane, and warp in the warpgroup.
    pub lane: u32,
    pub warp: u32,
}

impl Spot {
    /// Position of the calling thread.
    #[inline(always)]
    pub fn of(m: u32, corner: [u32; 2], (group, smem): (u32, Shared<u8>)) -> Spot {
        let (lane, warp) = gpu::lane_and_warp();
        Spot { m, corner, group, smem, lane, warp }
    }

    /// [`warp::opaque`] of all fields: offsets derived from it are not kept in registers through a loop.
    #[inline(always)]
    pub fn opaque(self) -> Spot {
        Self::of(self.m, self.corner, (self.group, self.smem))
    }
}

/// Element type of C: fixed at compile time, or selected by flags of the launch.
pub trait TypeOfC {
    fn row_bias(o: Output, row: u32) -> f32;
    /// Adds the bias of a chunk's columns. `column` is the first column of the lane.
    fn add_bias(o: Output, column: u32, x: &mut Chunk);
    /// Adds the old values of C to chunk `c`, loaded in pieces of 16 bytes.
    fn add_old<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &mut Chunk);
    /// Stores chunk `c` in pieces of 16 bytes.
    fn store_pieces<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk);
    /// Stores all chunks in pieces of 16 bytes.
    #[inline(always)]
    fn store_all<const ORDER: u32, const CHUNKS: usize>(o: Output, spot: Spot, acc: &Acc<CHUNKS>) {
        unroll!(c < CHUNKS, most 4, {
            Self::store_pieces::<ORDER>(o, spot, c as u32, &acc.0[c]);
        });
    }

    /// Stores chunk `c` element by element, or adds it to C.
    fn store_elements<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk);
}

impl<E: Elem<Acc = f32>> TypeOfC for E {
    #[inline(always)]
    fn row_bias(o: Output, row: u32) -> f32 {
        row_bias::<E>(o, row)
    }

    #[inline(always)]
    fn add_bias(o: Output, column: u32, x: &mut Chunk) {
        let at = o.bias.cast::<E>().at(column).opaque();
        let inside = o.n.saturating_sub(column);
        unroll!(j < 8, {
            unroll!(i < 2, {
                let k = (8 * j + i) as u32;
                let bias = at.at(k).ld_raw::<1>(k < inside);
                let bias = E::get(&bias, 0);
                unroll!(r < 2, { x[4 * j + ROWS[r] + i] += bias });
            });
        });
    }

    #[inline(always)]
    fn add_old<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
        if E::BYTES == 4 {
            add_words::<E>(o, spot, c, x);
        } else if ORDER & C_COLUMNS == 0 {
            add_rows::<E>(o, spot, c, x);
        } else {
            add_columns::<E>(o, spot, c, x);
        }
    }

    #[inline(always)]
    fn store_pieces<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk) {
        if E::BYTES == 4 {
            store_words::<E>(o, spot, c, x);
        } else if ORDER & C_COLUMNS == 0 {
            store_rows::<E>(o, spot, c, x);
        } else {
            store_columns::<E>(o, spot, c, x);
        }
    }

    #[inline(always)]
    fn store_elements<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk) {
        store_each::<E, ORDER>(o, spot, c, x);
    }
}

/// Multiplies by the scalar and adds the biases of the lane's two rows.
#[inline(always)]
pub fn scaled(x: &Chunk, alpha: f32, bias: [f32; 2]) -> Chunk {
    let mut out = *x;
    unroll!(j < 8, {
        unroll!(i < 4, {
            out[4 * j + i] = matrix::fma_f32(alpha, x[4 * j + i], bias[i / 2]);
        });
    });
    out
}

#[inline(always)]
pub fn relu(x: &mut Chunk) {
    unroll!(j < 8, {
        unroll!(i < 4, { x[4 * j + i] = F32::relu(x[4 * j + i]) });
    });
}

/// Column bias and activation of chunk `c`. GELU handles `ATOMS` atoms at a time: the branches between them keep ptxas
/// from interleaving all of them, which would spill.
#[inline(always)]
pub fn activate<T: TypeOfC, const ATOMS: usize>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
    if o.flags & FLAG_BIAS_COLUMNS != 0 {
        T::add_bias(o, spot.corner[1] + c * 64 + spot.lane % 4 * 2, x);
    }
    if o.flags & FLAG_RELU != 0 {
        relu(x);
    }
    unroll!(j < 8 / ATOMS, {
        if warp::opaque(o.flags) & FLAG_GELU != 0 {
            unroll!(i < 4 * ATOMS, {
                let k = 4 * ATOMS * j + i;
                x[k] = F32::gelu(x[k]);
            });
        }
    });
}

/// Eight elements, set to zero where their gate is not positive.
#[inline(always)]
pub(crate) fn where_positive<E: ElemInfo>(gate: [u32; 4], eight: [u32; 4]) -> [u32; 4] {
    let mut out = eight;
    unroll!(w < 4, {
        out[w] = eight[w]
            & match E::DTYPE {
                Dtype::Bf16 => matrix::positive_bf16x2(gate[w]),
                _ => matrix::positive_f16x2(gate[w]),
            };
    });
    out
}

/// Eight adjacent elements of C from this row and column on, set to zero if the gate is not positive.
#[inline(always)]
fn gated<E: Elem<Acc = f32>>(
    o: Output,
    (row, column): (u32, u32),
    inside: bool,
    eight: [u32; 4],
) -> [u32; 4] {
    if o.flags & FLAG_GATE == 0 {
        return eight;
    }
    let at = o.gate.row(row, o.gate_bytes).cast::<u16>().at(column);
    where_positive::<E>(at.cast::<[u32; 4]>().ld_once_if(inside), eight)
}

/// Word `w` of the four words that `stmatrix` stores of columns `16 j` to `16 j + 15`.
#[inline(always)]
fn word<E: Elem<Acc = f32>>(x: &Chunk, j: usize, w: usize) -> u32 {
    let k = 8 * j + 4 * (w / 2) + ROWS[w % 2];
    E::put(&[x[k], x[k + 1], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0]
}

/// Stores accumulators to shared memory as 8 x 8 matrices: those of step `$j` to `$place`. It is a macro, because the
/// compiler orders the instructions of an inlined function differently.
macro_rules! stage {
    ($x:ident, $store:ident, $j:ident => $place:expr) => {
        unroll!($j < 4, {
            let mut words = [0u32; 4];
            unroll!(w < 4, { words[w] = word::<E>($x, $j, w) });
            $place.$store(words);
        });
    };
}

/// Stores a warp's 16 rows of 64 columns to shared memory as rows of 128 bytes. `own`: row and chunk of the lane
/// ([`frag::ldmatrix_x4`]).
#[inline(always)]
pub fn stage_rows<E: Elem<Acc = f32>>(x: &Chunk, smem: Shared<u8>, own: (u32, u32)) {
    stage_piece::<E>(x, smem, (0, PANEL_BYTES as u32), own);
}

/// [`stage_rows`] to rows of `row_bytes`, from 16-byte chunk `first` on.
#[inline(always)]
pub fn stage_piece<E: Elem<Acc = f32>>(
    x: &Chunk,
    smem: Shared<u8>,
    (first, row_bytes): (u32, u32),
    (r, piece): (u32, u32),
) {
    stage!(x, stmatrix, j => smem.bytes(frag::swizzle(r, first + 2 * j as u32 + piece, row_bytes)));
}

/// Byte offset of a lane's row of step `j`, for a 64 x 64 tile that a warpgroup stages transposed. Of the four 8 x 8
/// matrices, two are adjacent along m and two along n.
#[inline(always)]
fn transposed(lane: u32, warp: u32, j: u32) -> u32 {
    let line = (2 * j + lane / 16) * 8 + lane % 8;
    frag::swizzle(line, warp * 2 + lane / 8 % 2, PANEL_BYTES as u32)
}

/// Stores a warpgroup's 64 x 64 accumulators to shared memory, transposed, as rows of 128 bytes.
#[inline(always)]
pub fn stage_columns<E: Elem<Acc = f32>>(x: &Chunk, smem: Shared<u8>, (lane, warp): (u32, u32)) {
    stage!(x, stmatrix_trans, j => smem.bytes(transposed(lane, warp, j as u32)));
}

/// Loads the lane's 16 bytes of row `row` of a tile that is staged as rows of 128 bytes.
#[inline(always)]
pub fn staged(smem: Shared<u8>, row: u32, lane: u32) -> [u32; 4] {
    smem.bytes(frag::swizzle(row, lane % 8, PANEL_BYTES as u32)).cast::<[u32; 4]>().ld()
}

/// Stores chunk `c` through shared memory as whole rows of 128 bytes; each warp stores its own 16 rows. Ordinary
/// stores: the copy engine would queue them after the loads of the next stages.
#[inline(always)]
fn store_rows<E: Elem<Acc = f32>>(o: Output, spot: Spot, c: u32, x: &Chunk) {
    let (lane, warp, [top, left]) = (spot.lane, spot.warp, spot.corner);
    let smem = spot.smem.bytes(warp * 2048);
    let own = frag::ldmatrix_x4(lane);
    let row = top + warp * 16 + lane / 8;
    let column = left + lane % 8 * 8 + c * 64;
    let line = o.c.row(row, o.ldc_bytes).cast::<u16>().at(column).cast::<[u32; 4]>();
    warp::sync(u32::MAX);
    stage!(x, stmatrix, j => smem.bytes(frag::swizzle(own.0, 2 * j as u32 + own.1, PANEL_BYTES as u32)));
    warp::sync(u32::MAX);
    unroll!(j < 4, {
        let eight = staged(smem, j as u32 * 4 + lane / 8, lane);
        let row = row + j as u32 * 4;
        let inside = row < spot.m && column < o.n;
        let eight = gated::<E>(o, (row, column), inside, eight);
        if inside {
            line.bytes(j as u64 * 4 * o.ldc_bytes as u64).st(eight);
        }
    });
}

/// [`store_rows`] for C stored as `[n, m]`: the warpgroup transposes 64 x 64 elements at a time and stores each column
/// as 128 contiguous bytes.
#[inline(always)]
fn store_columns<E: Elem<Acc = f32>>(o: Output, spot: Spot, c: u32, x: &Chunk) {
    let (lane, warp, smem, [top, left]) = (spot.lane, spot.warp, spot.smem, spot.corner);
    let row = top + lane % 8 * 8;
    let line = warp * 16 + lane / 8;
    let column = left + line + c * 64;
    let at = o.c.row(column, o.ldc_bytes).cast::<u16>().at(row).cast::<[u32; 4]>();
    barrier::sync_named(1 + spot.group, 128);
    stage!(x, stmatrix_trans, j => smem.bytes(transposed(lane, warp, j as u32)));
    barrier::sync_named(1 + spot.group, 128);
    unroll!(j < 4, {
        let eight = staged(smem, line + j as u32 * 4, lane);
        let column = column + j as u32 * 4;
        let inside = row < spot.m && column < o.n;
        let eight = gated::<E>(o, (column, row), inside, eight);
        if inside {
            at.bytes(j as u64 * 4 * o.ldc_bytes as u64).st(eight);
        }
    });
}

/// Adds the old values of the elements that [`store_rows`] stores. All rows of 128 bytes are loaded at once, and pass
/// through shared memory to the lanes that hold the accumulators.
#[inline(always)]
fn add_rows<E: Elem<Acc = f32>>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
    let (lane, warp, [top, left]) = (spot.lane, spot.warp, spot.corner);
    let smem = spot.smem.bytes(warp * 2048);
    let own = frag::ldmatrix_x4(lane);
    let row = top + warp * 16 + lane / 8;
    let column = left + lane % 8 * 8 + c * 64;
    let line = o.c.row(row, o.ldc_bytes).cast::<u16>().at(column).cast::<[u32; 4]>();
    let mut old = [[0; 4]; 4];
    unroll!(j < 4, {
        let inside = row + j as u32 * 4 < spot.m && column < o.n;
        old[j] = line.bytes(j as u64 * 4 * o.ldc_bytes as u64).ld_if(inside);
    });
    warp::sync(u32::MAX);
    unroll!(j < 4, { put_back(smem, j as u32 * 4 + lane / 8, lane, old[j]) });
    warp::sync(u32::MAX);
    unroll!(j < 4, {
        let place = frag::swizzle(own.0, 2 * j as u32 + own.1, PANEL_BYTES as u32);
        add_words_of::<E>(x, j, smem.bytes(place).ldmatrix());
    });
}

/// [`add_rows`] for C stored as `[n, m]`: adds the old values of the elements that [`store_columns`] stores.
#[inline(always)]
fn add_columns<E: Elem<Acc = f32>>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
    let (lane, warp, smem, [top, left]) = (spot.lane, spot.warp, spot.smem, spot.corner);
    let row = top + lane % 8 * 8;
    let line = warp * 16 + lane / 8;
    let column = left + line + c * 64;
    let at = o.c.row(column, o.ldc_bytes).cast::<u16>().at(row).cast::<[u32; 4]>();
    let mut old = [[0; 4]; 4];
    unroll!(j < 4, {
        let inside = row < spot.m && column + j as u32 * 4 < o.n;
        old[j] = at.bytes(j as u64 * 4 * o.ldc_bytes as u64).ld_if(inside);
    });
    barrier::sync_named(1 + spot.group, 128);
    unroll!(j < 4, { put_back(smem, line + j as u32 * 4, lane, old[j]) });
    barrier::sync_named(1 + spot.group, 128);
    unroll!(j < 4, {
        let place = transposed(lane, warp, j as u32);
        add_words_of::<E>(x, j, smem.bytes(place).ldmatrix_trans());
    });
}

/// Stores the lane's 16 bytes of a row to the address that [`staged`] loads.
#[inline(always)]
fn put_back(smem: Shared<u8>, row: u32, lane: u32, eight: [u32; 4]) {
    smem.bytes(frag::swizzle(row, lane % 8, PANEL_BYTES as u32)).cast::<[u32; 4]>().st(eight);
}

/// Adds the four words of columns `16 j` to `16 j + 15`, in the order of [`word`].
#[inline(always)]
fn add_words_of<E: Elem<Acc = f32>>(x: &mut Chunk, j: usize, words: [u32; 4]) {
    unroll!(w < 4, {
        let k = 8 * j + 4 * (w / 2) + ROWS[w % 2];
        let two = [words[w], 0, 0, 0];
        x[k] += E::get(&two, 0);
        x[k + 1] += E::get(&two, 1);
    });
}

/// Adds the old values of the elements that [`store_words`] stores, one row of the lane at a time.
#[inline(always)]
fn add_words<E: Elem<Acc = f32>>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
    let (down, right) = frag::accumulator(spot.lane, 0);
    let column = spot.corner[1] + c * 64 + right;
    unroll!(r < 2, {
        let row = spot.corner[0] + spot.warp * 16 + down + r as u32 * 8;
        let line = o.c.row(row, o.ldc_bytes).cast::<u32>().at(column).cast::<E>();
        let mut old = [[0; 4]; 8];
        unroll!(j < 8, {
            let inside = row < spot.m && column + (j as u32) * 8 < o.n;
            old[j] = line.bytes(j as u64 * 32).ld_raw::<2>(inside);
        });
        unroll!(j < 8, {
            let k = 4 * j + ROWS[r];
            x[k] += E::get(&old[j], 0);
            x[k + 1] += E::get(&old[j], 1);
        });
    });
}

/// Stores adjacent pairs of 4-byte elements from registers: the four lanes of a row fill a sector of 32 bytes.
#[inline(always)]
pub fn store_words<E: Elem<Acc = f32>>(o: Output, spot: Spot, c: u32, x: &Chunk) {
    let (down, right) = frag::accumulator(spot.lane, 0);
    let column = spot.corner[1] + c * 64 + right;
    unroll!(r < 2, {
        let row = spot.corner[0] + spot.warp * 16 + down + r as u32 * 8;
        let line = o.c.row(row, o.ldc_bytes).cast::<u32>().at(column).cast::<E>();
        unroll!(j < 8, {
            let k = 4 * j + ROWS[r];
            if row < spot.m && column + (j as u32) * 8 < o.n {
                line.bytes(j as u64 * 32).st_rounded(&[x[k], x[k + 1]]);
            }
        });
    });
}

/// One element of the output.
#[derive(Clone, Copy)]
pub struct One {
    /// Whether the element is inside of C.
    pub inside: bool,
    /// Addresses in C and in the gate.
    pub c: Global<u8, ReadWrite>,
    pub gate: Global<u8, ReadWrite>,
    /// Value of the accumulator.
    pub x: f32,
}

/// Element type of C that can be stored one element at a time.
pub trait Cell {
    /// Bytes per element.
    const WIDTH: u32;
    /// Stores one element, or adds it to C.
    fn store_one(o: Output, one: One);
}

impl<E: Elem<Acc = f32>> Cell for E {
    const WIDTH: u32 = E::BYTES;

    #[inline(always)]
    fn store_one(o: Output, one: One) {
        let mut x = one.x;
        if o.flags & FLAG_GATE != 0 {
            let gate = E::get(&one.gate.cast::<E>().ld_raw::<1>(one.inside), 0);
            x = if gate > 0.0 { x } else { 0.0 };
        }
        let add = one.inside && o.flags & FLAG_ACCUMULATE != 0;
        let old = E::get(&one.c.cast::<E>().ld_raw::<1>(add), 0);
        if one.inside {
            one.c.cast::<E>().st_rounded(&[x + old]);
        }
    }
}

/// Stores chunk `c` element by element through shared memory, so that adjacent lanes store adjacent elements. Elements
/// follow one another: more loads at a time would take registers that the accumulators need.
#[inline(always)]
pub fn store_each<S: Cell, const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk) {
    let lane = spot.lane;
    let smem = spot.smem.bytes(spot.warp * 2048);
    let (own, right) = frag::accumulator(lane, 0);
    let corner = [spot.corner[0] + spot.warp * 16, spot.corner[1] + c * 64];
    // 32 columns of a warp's 16 rows fill the shared memory of the warp.
    let mut h = warp::opaque(0);
    while h < 2 {
        warp::nounroll();
        warp::sync(u32::MAX);
        let first = place(own, right);
        unroll!(j < 4, {
            // Equal to `place(own, 8 * j + right)`.
            let to = smem.bytes(first ^ (32 * j as u32)).cast::<[u32; 2]>();
            unroll!(r < 2, {
                let k = 4 * j + ROWS[r];
                let two = if h == 0 { [x[k], x[k + 1]] } else { [x[k + 16], x[k + 17]] };
                let two = two.map(f32::to_bits);
                to.bytes(8 * PANEL_BYTES as u32 * r as u32).st(two);
            });
        });
        warp::sync(u32::MAX);
        let mut step = warp::opaque(0);
        while step < 16 {
            warp::nounroll();
            let (down, right) = if ORDER & C_COLUMNS == 0 {
                (step, lane)
            } else {
                (lane % 16, step * 2 + lane / 16)
            };
            let x = smem.bytes(place(down, right)).cast::<f32>().ld();
            let [row, column] = [corner[0] + down, corner[1] + 32 * h + right];
            let [line, place] = if ORDER & C_COLUMNS == 0 { [row, column] } else { [column, row] };
            let along = place as u64 * S::WIDTH as u64;
            let one = One {
                inside: row < spot.m && column < o.n,
                c: o.c.row(line, o.ldc_bytes).bytes(along),
                gate: o.gate.row(line, o.gate_bytes).bytes(along),
                x,
            };
            S::store_one(o, one);
            step += 1;
        }
        h += 1;
    }
}

/// Byte offset of a 4-byte element in 16 rows of 32, for [`store_each`]. Neither stores nor loads have bank conflicts.
#[inline(always)]
fn place(row: u32, column: u32) -> u32 {
    frag::swizzle(row, column / 4, PANEL_BYTES as u32) + column % 4 * 4
}
