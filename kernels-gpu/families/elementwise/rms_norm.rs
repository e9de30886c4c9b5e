//! Root-mean-square normalisation (arXiv 1910.07467) behind a residual sum. What a thread reads stays in its registers, so
//! every element is read once. Tokens in columns: a vector is as many tokens, which a thread block takes together.

use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

const THREADS: u32 = ELEMENTWISE_THREADS;
/// Vectors of both summands that are on their way together.
const AT_ONCE: usize = 4;
const ROUNDS: usize = RMS_KEPT as usize / AT_ONCE;

/// What a thread keeps.
type Kept = [[Raw; AT_ONCE]; ROUNDS];

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RmsNormParams> for RmsNormTile {
    #[inline(always)]
    unsafe fn run(p: &RmsNormParams, _: u64) {
        grid::launch_dependents();
        grid::wait_dependency();
        let of = |vector: u32| p.width <= RMS_SHORT * vector;
        match (
            p.flags & ELEMENTWISE_COLUMNS != 0,
            p.flags & ELEMENTWISE_VECTORS != 0,
            E::BYTES,
        ) {
            (true, true, 4) => tokens::<E, Columns<4>, 4>(p),
            (true, true, _) => tokens::<E, Columns<8>, 8>(p),
            (true, false, _) => tokens::<E, Columns<1>, 1>(p),
            (false, true, 4) if of(4) => tokens::<E, Rows<32, 4>, 4>(p),
            (false, true, 4) => tokens::<E, Rows<THREADS, 4>, 4>(p),
            (false, true, _) if of(8) => tokens::<E, Rows<32, 8>, 8>(p),
            (false, true, _) => tokens::<E, Rows<THREADS, 8>, 8>(p),
            (false, false, _) if of(1) => tokens::<E, Rows<32, 1>, 1>(p),
            (false, false, _) => tokens::<E, Rows<THREADS, 1>, 1>(p),
        }
    }
}

/// How a thread walks over features.
trait Walk {
    /// Threads that share a token.
    const LANES: u32;
    /// Whether the elements of a vector are tokens.
    const ACROSS: bool;
    /// The stored row and column of the thread's vector `k`.
    fn place(k: u32) -> [u32; 2];
}

/// Tokens are rows; vectors of `V` features.
struct Rows<const LANES: u32, const V: u32>;
/// Tokens are columns; vectors of `V` tokens.
struct Columns<const V: u32>;

impl<const LANES: u32, const V: u32> Walk for Rows<LANES, V> {
    const LANES: u32 = LANES;
    const ACROSS: bool = false;

    #[inline(always)]
    fn place(k: u32) -> [u32; 2] {
        let (group, lane) = (gpu::thread() / LANES, gpu::thread() % LANES);
        [
            gpu::block_x() * (THREADS / LANES) + group,
            (k * LANES + lane) * V,
        ]
    }
}

impl<const V: u32> Walk for Columns<V> {
    const LANES: u32 = THREADS;
    const ACROSS: bool = true;

    #[inline(always)]
    fn place(k: u32) -> [u32; 2] {
        [k * THREADS + gpu::thread(), gpu::block_x() * V]
    }
}

#[inline(always)]
fn tokens<E: Elem<Acc = f32>, W: Walk, const V: usize>(p: &RmsNormParams) {
    let mut kept: Kept = [[[0; 4]; AT_ONCE]; ROUNDS];
    unroll!(round < ROUNDS, {
        // The same for all threads.
        let step = W::LANES * if W::ACROSS { 1 } else { V as u32 };
        if (round * AT_ONCE) as u32 * step < p.width {
            kept[round] = load::<E, W, V>(p, round * AT_ONCE);
        }
    });
    let mut squares = [0.0; 8];
    unroll!(round < ROUNDS, {
        unroll!(k < AT_ONCE, {
            unroll!(i < V, {
                let x = E::get(&kept[round][k], i);
                let sum = if W::ACROSS { i } else { 0 };
                squares[sum] = matrix::fma_f32(x, x, squares[sum]);
            });
        });
    });
    let sums = if W::ACROSS { V } else { 1 };
    unroll!(i < 8, {
        if i < sums {
            squares[i] = over_lanes(squares[i]);
        }
    });
    if W::LANES > 32 {
        squares = over_warps(squares, sums);
    }
    let share = matrix::reciprocal(p.width as f32);
    let scales = squares.map(|x| matrix::inverse_root(matrix::fma_f32(x, share, p.epsilon)));
    unroll!(round < ROUNDS, {
        unroll!(k < AT_ONCE, {
            store::<E, W, V>(p, round * AT_ONCE + k, &kept[round][k], &scales);
        });
    });
}

/// The thread's vector `k`, scaled.
#[inline(always)]
fn store<E: Elem<Acc = f32>, W: Walk, const V: usize>(
    p: &RmsNormParams,
    k: usize,
    kept: &Raw,
    scales: &[f32; 8],
) {
    let (row, column, inside) = place::<W>(p, k);
    if !inside {
        return;
    }
    let feature = if W::ACROSS { row } else { column };
    let from = p.factor + (feature * E::BYTES) as u64;
    let mut out = [0.0; V];
    if W::ACROSS {
        let factor = E::get(&E::load::<1>(from, true), 0);
        unroll!(i < V, { out[i] = E::get(kept, i) * scales[i] * factor });
    } else {
        let factor = E::load::<V>(from, true);
        unroll!(i < V, {
            out[i] = E::get(kept, i) * scales[0] * E::get(&factor, i)
        });
    }
    let row = p.out + row as u64 * p.out_row as u64;
    E::store::<V>(row + (column * E::BYTES) as u64, &out);
}

#[inline(always)]
fn place<W: Walk>(p: &RmsNormParams, k: usize) -> (u32, u32, bool) {
    let [row, column] = W::place(k as u32);
    let [rows, columns] = if W::ACROSS {
        [p.width, p.tokens]
    } else {
        [p.tokens, p.width]
    };
    (row, column, row < rows && column < columns)
}

/// [`AT_ONCE`] vectors from the thread's vector `first` on; sums are stored.
#[inline(always)]
fn load<E: Elem<Acc = f32>, W: Walk, const V: usize>(
    p: &RmsNormParams,
    first: usize,
) -> [Raw; AT_ONCE] {
    let mut kept = [[0; 4]; AT_ONCE];
    let mut pairs = [[[0; 4]; 2]; AT_ONCE];
    let at = |base: u64, pitch: u32, [row, column]: [u32; 2]| {
        base + row as u64 * pitch as u64 + (column * E::BYTES) as u64
    };
    unroll!(i < AT_ONCE, {
        let (row, column, inside) = place::<W>(p, first + i);
        pairs[i][0] = E::load_own::<V>(at(p.x, p.x_row, [row, column]), inside);
        pairs[i][1] = E::load_own::<V>(at(p.y, p.y_row, [row, column]), inside && p.y != 0);
    });
    unroll!(i < AT_ONCE, {
        kept[i] = pairs[i][0];
        if p.y != 0 {
            let mut sum = [0.0; 8];
            unroll!(j < V, {
                sum[j] = E::get(&pairs[i][0], j) + E::get(&pairs[i][1], j)
            });
            kept[i] = E::put(&sum);
            let (row, column, inside) = place::<W>(p, first + i);
            if inside {
                let mut own = [0.0; V];
                unroll!(j < V, { own[j] = sum[j] });
                E::store::<V>(at(p.x, p.x_row, [row, column]), &own);
            }
        }
    });
    kept
}

/// The sum over a warp, the same bits in every lane.
#[inline(always)]
fn over_lanes(mut x: f32) -> f32 {
    unroll!(step < 5, {
        x += f32::from_bits(warp::exchange(x.to_bits(), 16 >> step))
    });
    x
}

/// Sums over the thread block, in the order of its warps.
#[inline(always)]
fn over_warps(own: [f32; 8], count: usize) -> [f32; 8] {
    let word = |warp: u32, i: usize| copy::arena() + (warp * 8 + i as u32) * 4;
    if gpu::thread().is_multiple_of(32) {
        unroll!(i < 8, {
            if i < count {
                copy::store_shared_b32(word(gpu::thread() / 32, i), own[i].to_bits());
            }
        });
    }
    gpu::sync_threads();
    let mut all = [0.0; 8];
    let mut warp = 0;
    while warp < THREADS / 32 {
        unroll!(i < 8, {
            if i < count {
                all[i] += f32::from_bits(copy::load_shared_b32(word(warp, i)));
            }
        });
        warp += 1;
    }
    all
}
