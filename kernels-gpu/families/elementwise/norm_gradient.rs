//! Gradients of a layer normalisation (arXiv 1607.06450) of `z = x + y`. With `g = dy * factor`, `o = z - mean` and r
//! the inverse deviation, the gradient of a row is `dx = r (g - mean(g) - r^2 o mean(g o))`. Sums over columns stay
//! within a warp. Sums over rows are computed by parts, which are added in order.

use super::element::element;
use crate::device::lanes;
use crate::device::partial;
use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

const THREADS: u32 = ELEMENTWISE_THREADS;
/// Vectors of a row that a lane keeps in registers.
const KEPT: usize = 4;
/// Rows of a part that the threads load together.
const DOWN: u32 = THREADS / NORM_ACROSS;

buffers! {
    // `nn::encoder` checks the shapes of the operands. `NormGradientLaunch` allocates statistics
    // and partial sums, and sets `ELEMENTWISE_VECTORS` if rows are whole aligned vectors.
    unsafe NormGradientParams {
        x[]: u8, ReadWrite;
        factor<E: Elem>: E, ReadWrite;
        dy: u8, ReadWrite;
        dx<E: Elem>: E, ReadWrite;
        stats: [u32; 2], Fresh;
        partial: f32, Fresh;
        affine: f32, ReadWrite;
    }
}

by_vectors! {
    NormGradientParams NormInput: input;
    NormGradientParams NormParts: parts;
}

/// Vector of a row: sums of x and y, and dy times the factor; zeros past the last column.
#[derive(Clone, Copy)]
struct Vector<const V: usize> {
    z: [f32; V],
    g: [f32; V],
}

/// Loads `N` vectors of a lane from column `first` on, all in flight at once.
#[inline(always)]
fn load<E: Elem<Acc = f32>, const V: usize, const N: usize>(
    p: &NormGradientParams,
    row: u32,
    first: u32,
) -> [Vector<V>; N] {
    let mut raw = [[[0; 4]; 3]; N];
    let matrices = [p.x(0), p.x(1), p.dy()];
    unroll!(k < N, {
        let column = first + k as u32 * 32 * V as u32;
        unroll!(of < 3, {
            let at = element(matrices[of].cast::<E>(), p.row_bytes[of], [row, column]);
            raw[k][of] = at.ld_raw::<V>(column < p.width);
        });
    });
    let mut all = [Vector { z: [0.0; V], g: [0.0; V] }; N];
    unroll!(k < N, {
        let column = first + k as u32 * 32 * V as u32;
        let factor = p.factor::<E>().bytes(column * E::BYTES).ld_raw::<V>(column < p.width);
        unroll!(i < V, {
            all[k].z[i] = E::get(&raw[k][0], i) + E::get(&raw[k][1], i);
            all[k].g[i] = E::get(&raw[k][2], i) * E::get(&factor, i);
        });
    });
    all
}

/// Calls `each` with all vectors of a lane and their columns. Vectors that are not kept are loaded again.
#[inline(always)]
fn over<E: Elem<Acc = f32>, const V: usize>(
    p: &NormGradientParams,
    row: u32,
    kept: &[Vector<V>; KEPT],
    mut each: impl FnMut(&Vector<V>, u32),
) {
    let step = 32 * V as u32;
    let mut column = gpu::thread() % 32 * V as u32;
    unroll!(k < KEPT, {
        if column < p.width {
            each(&kept[k], column);
        }
        column += step;
    });
    while column < p.width {
        each(&load::<E, V, 1>(p, row, column)[0], column);
        column += step;
    }
}

#[inline(always)]
fn input<E: Elem<Acc = f32>, const V: usize>(p: &NormGradientParams) {
    let row = gpu::block_x() * (THREADS / 32) + gpu::thread() / 32;
    // Warp-uniform.
    if row >= p.rows {
        return;
    }
    let share = matrix::rcp_approx(p.width as f32);
    let kept = load::<E, V, KEPT>(p, row, gpu::thread() % 32 * V as u32);
    let mut sum = 0.0;
    over::<E, V>(p, row, &kept, |own, _| {
        unroll!(i < V, { sum += own.z[i] });
    });
    let mean = lanes::sum(sum) * share;
    let mut sums = [0.0; 3];
    over::<E, V>(p, row, &kept, |own, _| {
        unroll!(i < V, {
            let (off, g) = (own.z[i] - mean, own.g[i]);
            sums[0] = matrix::fma_f32(off, off, sums[0]);
            sums[1] += g;
            sums[2] = matrix::fma_f32(g, off, sums[2]);
        });
    });
    let [squares, level, along] = sums.map(|sum| lanes::sum(sum) * share);
    let by = matrix::rsqrt_approx(squares + p.epsilon);
    let slope = along * by * by;
    over::<E, V>(p, row, &kept, |own, column| {
        let mut out = [0.0; V];
        unroll!(i < V, {
            let off = own.z[i] - mean;
            out[i] = (own.g[i] - level - off * slope) * by;
        });
        element(p.dx::<E>(), p.row_bytes[3], [row, column]).st_rounded(&out);
    });
    if gpu::thread().is_multiple_of(32) {
        p.stats().at(row).st([mean.to_bits(), by.to_bits()]);
    }
}

#[inline(always)]
fn parts<E: Elem<Acc = f32>, const V: usize>(p: &NormGradientParams) {
    let (across, down) = (gpu::thread() % NORM_ACROSS, gpu::thread() / NORM_ACROSS);
    let width = NORM_ACROSS * V as u32;
    let column = gpu::block_x() * width + across * V as u32;
    let mut first = gpu::block_y() * p.of_part + down;
    let end = ((gpu::block_y() + 1) * p.of_part).min(p.rows);
    let mut sums = [[0.0; V]; 2];
    while first < end {
        let mut raw = [[[0; 4]; 3]; 2];
        let mut stats = [[0; 2]; 2];
        let matrices = [p.x(0), p.x(1), p.dy()];
        unroll!(j < 2, {
            let row = first + j as u32 * DOWN;
            let inside = row < end && column < p.width;
            unroll!(of < 3, {
                let at = element(matrices[of].cast::<E>(), p.row_bytes[of], [row, column]);
                raw[j][of] = at.ld_raw::<V>(inside);
            });
            stats[j] = p.stats().at(row).ld_if(inside);
        });
        unroll!(j < 2, {
            let [mean, by] = stats[j].map(f32::from_bits);
            unroll!(i < V, {
                let z = E::get(&raw[j][0], i) + E::get(&raw[j][1], i);
                let dy = E::get(&raw[j][2], i);
                sums[0][i] = matrix::fma_f32(dy, (z - mean) * by, sums[0][i]);
                sums[1][i] += dy;
            });
        });
        first += 2 * DOWN;
    }
    // SAFETY: `NormParts::SHARED_BYTES` includes two sums of a vector for each thread.
    let sums_of = |which: u32| unsafe { Shared::<f32>::dynamic(which * DOWN * width * 4) };
    unroll!(which < 2, {
        unroll!(i < V, {
            let at = down * width + across * V as u32 + i as u32;
            sums_of(which as u32).at(at).st(sums[which][i]);
        });
    });
    gpu::sync_threads();
    // One thread for each sum of the tile.
    let (which, own) = (gpu::thread() / width, gpu::thread() % width);
    let column = gpu::block_x() * width + own;
    if which < 2 && column < p.width {
        let all = partial::of_column(sums_of(which).at(own), DOWN, width);
        sum_at(p, gpu::block_y(), which, column).st(all);
    }
}

/// Returns the address of a sum of a part.
#[inline(always)]
fn sum_at(p: &NormGradientParams, part: u32, which: u32, column: u32) -> Global<f32, Fresh> {
    p.partial().at((part * 2 + which) as u64 * p.width as u64 + column as u64)
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, NormGradientParams> for NormSum {
    #[inline(always)]
    unsafe fn run(p: &NormGradientParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let (column, which) = (gpu::block_x() * THREADS + gpu::thread(), gpu::block_y());
        if column >= p.width {
            return;
        }
        let all = partial::of_parts(p.parts, |part| sum_at(p, part, which, column));
        let to = which as u64 * p.width as u64 + column as u64;
        p.affine().at(to).st(all);
    }
}
