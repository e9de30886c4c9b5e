//! Gradient of a dense layer's weights, `dW[i,o] = X[n,i] dY[n,o]`, and of its bias, over many rows n. A thread block
//! has a tile of dW and a part of the rows, in their order. Rows of both matrices are contiguous over the tile's
//! columns, so a stage is stored in the order of its loads, as f32. Sums are f32. Products run on CUDA cores, or on
//! Tensor Cores in TF32, which represents every f16 and bf16 exactly.

use crate::device::partial;
use crate::device::prelude::*;
use crate::families::optimizer::abi::*;

const THREADS: u32 = WEIGHT_THREADS;
const INPUTS: u32 = WEIGHT_TILE[0];
const OUTPUTS: u32 = WEIGHT_TILE[1];

buffers! {
    // `nn::weight_gradient` and `nn::bias_gradient` check the shapes of the operands. Their
    // launches allocate the partial sums, and set `WEIGHT_VECTORS` if rows are whole aligned
    // vectors.
    unsafe WeightParams {
        x<E: Elem>: E, ReadWrite;
        dy<E: Elem>: E, ReadWrite;
        gate<E: Elem>: E, ReadWrite;
        partial: f32, Fresh;
        dw: f32, ReadWrite;
        db: f32, ReadWrite;
    }
}

/// A thread's loads of a stage: two vectors of X and one of dY.
#[derive(Clone, Copy)]
struct Loaded {
    x: [[f32; 4]; 2],
    dy: [f32; 4],
    gate: [f32; 4],
}

/// Rounds and stores four elements of a row; those outside are not stored.
#[inline(always)]
fn store_four<E: Elem<Acc = f32>, const VEC: usize>(
    row: Global<E, ReadWrite>,
    column: u32,
    columns: u32,
    four: &[f32; 4],
) {
    let to = row.bytes(column * E::BYTES);
    if VEC == 4 {
        if column < columns {
            to.st_rounded(four);
        }
    } else {
        unroll!(i < 4, {
            if column + (i as u32) < columns {
                to.at(i as u32).st_rounded(&[four[i]]);
            }
        });
    }
}

/// Loads four elements of a row; zeros outside.
#[inline(always)]
fn load_four<E: Elem<Acc = f32>, const VEC: usize>(
    row: Global<E, ReadWrite>,
    column: u32,
    columns: u32,
    inside: bool,
) -> [f32; 4] {
    let at = |i: usize| row.bytes((column + i as u32) * E::BYTES);
    let mut four = [0.0; 4];
    if VEC == 4 {
        let raw = at(0).ld_raw::<4>(inside && column < columns);
        unroll!(i < 4, { four[i] = E::get(&raw, i) });
    } else {
        unroll!(i < 4, {
            let raw = at(i).ld_raw::<1>(inside && column + (i as u32) < columns);
            four[i] = E::get(&raw, 0);
        });
    }
    four
}

#[inline(always)]
fn load<E: Elem<Acc = f32>, const VEC: usize, const GATE: bool>(
    p: &WeightParams,
    from: u32,
    end: u32,
) -> Loaded {
    // Recomputed and not carried through the loop: all registers are in use.
    let thread = gpu::opaque_thread();
    let mut loaded = Loaded { x: [[0.0; 4]; 2], dy: [0.0; 4], gate: [0.0; 4] };
    unroll!(j < 2, {
        let row = from + thread / 32 + 4 * j as u32;
        let column = gpu::block_y() * INPUTS + thread % 32 * 4;
        let x = p.x().row(row, p.x_bytes);
        loaded.x[j] = load_four::<E, VEC>(x, column, p.inputs, row < end);
    });
    let row = from + thread / 16;
    let column = gpu::block_x() * OUTPUTS + thread % 16 * 4;
    let dy = p.dy().row(row, p.dy_bytes);
    loaded.dy = load_four::<E, VEC>(dy, column, p.outputs, row < end);
    if GATE {
        let gate = p.gate().row(row, p.gate_bytes);
        loaded.gate = load_four::<E, VEC>(gate, column, p.outputs, row < end);
    }
    loaded
}

/// Applies the gradient of a ReLU to the values loaded from row `from` on, and writes them back. Tiles at other inputs
/// may read them before or after that: a second application changes nothing.
#[inline(always)]
fn gated<E: Elem<Acc = f32>, const VEC: usize>(
    p: &WeightParams,
    loaded: &mut Loaded,
    from: u32,
    end: u32,
) {
    unroll!(i < 4, {
        // A NaN is not above zero.
        let open = loaded.gate[i] > 0.0;
        loaded.dy[i] = if open { loaded.dy[i] } else { 0.0 };
    });
    let thread = gpu::opaque_thread();
    let row = from + thread / 16;
    let column = gpu::block_x() * OUTPUTS + thread % 16 * 4;
    if gpu::block_y() == 0 && row < end {
        let to = p.dy::<E>().row(row, p.dy_bytes);
        store_four::<E, VEC>(to, column, p.outputs, &loaded.dy);
    }
}

/// Returns the shared address of a stage of X, which that of dY follows.
#[inline(always)]
fn stage_at(stage: u32) -> Shared<[u32; 4]> {
    // SAFETY: `WeightTile::SHARED_BYTES` includes two stages.
    unsafe { Shared::dynamic(stage * WEIGHT_ROWS * (INPUTS + OUTPUTS) * 4) }
}

/// Offset of dY in a stage.
const DY: u32 = WEIGHT_ROWS * INPUTS * 4;

#[inline(always)]
fn store<E: Elem, S: Sums>(stage: u32, loaded: &Loaded) {
    let (at, thread) = (stage_at(stage), gpu::opaque_thread());
    let four = |to: Shared<[u32; 4]>, values: [f32; 4]| {
        let mut bits = values.map(f32::to_bits);
        if matches!(E::DTYPE, Dtype::Tf32) {
            bits = bits.map(matrix::cvt_rna_tf32);
        }
        to.st(bits);
    };
    unroll!(j < 2, {
        let to = (thread + THREADS * j as u32) * 16;
        four(at.bytes(S::place(to, thread / 32)), loaded.x[j]);
    });
    four(at.bytes(DY).bytes(S::place(thread * 16, thread / 16)), loaded.dy);
}

/// Sums of a thread, and the way in which a stage is added to them.
trait Sums {
    const NONE: Self;
    /// Returns the offset of a vector `bytes` from the start of a stage, in row `row` or `row + 4`.
    fn place(bytes: u32, row: u32) -> u32;
    fn add(&mut self, stage: u32);
    /// Stores the sums in the partial sums of the part.
    fn store(&self, p: &WeightParams);
}

/// Loads eight numbers of a row of a stage: four from `at`, and four half a row after it.
#[inline(always)]
fn eight(at: Shared<[u32; 4]>, half: u32) -> [f32; 8] {
    let (low, high) = (at.ld().map(f32::from_bits), at.bytes(half).ld().map(f32::from_bits));
    let mut all = [0.0; 8];
    unroll!(i < 4, {
        all[i] = low[i];
        all[i + 4] = high[i];
    });
    all
}

/// Eight inputs times eight outputs, on CUDA cores.
struct Fma([[f32; 8]; 8]);

impl Sums for Fma {
    const NONE: Self = Fma([[0.0; 8]; 8]);

    #[inline(always)]
    fn place(bytes: u32, _: u32) -> u32 {
        bytes
    }

    #[inline(always)]
    fn add(&mut self, stage: u32) {
        let at = stage_at(stage);
        // Lanes of a warp read 64 bytes of X and 128 of dY, without bank conflicts.
        let thread = gpu::opaque_thread();
        let x_at = at.at(thread / 8);
        let dy_at = at.bytes(DY).at(thread % 8);
        unroll!(k < 8, {
            let x = eight(x_at.bytes(k as u32 * INPUTS * 4), INPUTS * 2);
            let dy = eight(dy_at.bytes(k as u32 * OUTPUTS * 4), OUTPUTS * 2);
            unroll!(i < 8, {
                unroll!(j < 8, {
                    self.0[i][j] = matrix::fma_f32(x[i], dy[j], self.0[i][j]);
                });
            });
        });
    }

    #[inline(always)]
    fn store(&self, p: &WeightParams) {
        unroll!(i < 8, {
            unroll!(j < 8, {
                let half = |at: usize, extent: u32| at as u32 / 4 * extent / 2 + at as u32 % 4;
                let input = half(i, INPUTS) + gpu::thread() / 8 * 4;
                let output = half(j, OUTPUTS) + gpu::thread() % 8 * 4;
                store_sum(p, [input, output], self.0[i][j]);
            });
        });
    }
}

/// 32 inputs times all outputs of the tile for each warp, in the accumulator layout of `mma`.
struct Mma([[[f32; 4]; 8]; 2]);

impl Sums for Mma {
    const NONE: Self = Mma([[[0.0; 4]; 8]; 2]);

    /// Four rows that a warp reads at once are eight banks apart.
    #[inline(always)]
    fn place(bytes: u32, row: u32) -> u32 {
        bytes ^ (row % 4 * 32)
    }

    #[inline(always)]
    fn add(&mut self, stage: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (group, row) = (lane / 4, lane % 4);
        // Offsets of steps of eight columns within 32, in this lane's row.
        let mut steps = [0; 4];
        unroll!(j < 4, { steps[j] = Self::place(32 * j as u32, row) });
        let at = stage_at(stage).cast::<u32>().at(group);
        let x_at = at.at(row * INPUTS).bytes(warp * 128);
        let dy_at = at.bytes(DY).at(row * OUTPUTS);
        let mut x = [[0; 4]; 2];
        unroll!(m < 2, {
            unroll!(i < 4, {
                let below = i as u32 / 2 * 4 * INPUTS * 4;
                x[m][i] = x_at.bytes(steps[2 * m + i % 2] + below).ld();
            });
        });
        unroll!(n < 8, {
            let at = dy_at.bytes(steps[n % 4] + n as u32 / 4 * 128);
            let dy = [at.ld(), at.at(4 * OUTPUTS).ld()];
            unroll!(m < 2, { matrix::mma_tf32(&mut self.0[m][n], x[m], dy) });
        });
    }

    #[inline(always)]
    fn store(&self, p: &WeightParams) {
        let (warp, lane) = gpu::warp_and_lane();
        unroll!(m < 2, {
            unroll!(n < 8, {
                unroll!(i < 4, {
                    let input = warp * 32 + 16 * m as u32 + i as u32 / 2 * 8 + lane / 4;
                    let output = 8 * n as u32 + lane % 4 * 2 + i as u32 % 2;
                    store_sum(p, [input, output], self.0[m][n][i]);
                });
            });
        });
    }
}

/// Returns the address of row `input` of a part's sums.
#[inline(always)]
fn sums_at(p: &WeightParams, part: u32, input: u32) -> Global<f32, Fresh> {
    let row = part as u64 * (p.inputs as u64 + 1) + input as u64;
    p.partial().at(row * p.outputs as u64)
}

/// Stores an element of a tile's sums.
#[inline(always)]
fn store_sum(p: &WeightParams, [input, output]: [u32; 2], sum: f32) {
    let input = gpu::block_y() * INPUTS + input;
    let output = gpu::block_x() * OUTPUTS + output;
    let to = sums_at(p, gpu::block_z(), input).at(output).cast::<u32>();
    let inside = input < p.inputs && output < p.outputs;
    to.st_if(sum.to_bits(), inside);
}

/// Adds the sums of the threads for each of `COLUMNS` columns through shared memory, in order, and stores them after the
/// sums of the inputs.
#[inline(always)]
fn store_bias<const COLUMNS: u32>(p: &WeightParams, sums: [f32; 4], threads: u32) {
    let thread = gpu::thread();
    // SAFETY: the `SHARED_BYTES` of both tiles include four words for each thread.
    let at = unsafe { Shared::<[u32; 4]>::dynamic(0) };
    at.at(thread).st(sums.map(f32::to_bits));
    gpu::sync_threads();
    let output = gpu::block_x() * COLUMNS + thread;
    if gpu::block_y() == 0 && thread < COLUMNS && output < p.outputs {
        let all = partial::of_column(at.cast().at(thread), 4 * threads / COLUMNS, COLUMNS);
        sums_at(p, gpu::block_z(), p.inputs).at(output).st(all);
    }
}

#[inline(always)]
fn tile<E: Elem<Acc = f32>, S: Sums, const VEC: usize, const GATE: bool>(p: &WeightParams) {
    let mut at = gpu::block_z() * p.of_part;
    let end = (at + p.of_part).min(p.rows);
    let mut sums = S::NONE;
    let mut bias = [0.0; 4];
    let mut stage = 0;
    let mut loaded = load::<E, VEC, GATE>(p, at, end);
    while at < end {
        // Slower warps still read the other stage. This stage is free, because all warps have passed the last barrier.
        if GATE {
            gated::<E, VEC>(p, &mut loaded, at, end);
        }
        store::<E, S>(stage, &loaded);
        unroll!(i < 4, { bias[i] += loaded.dy[i] });
        gpu::sync_threads();
        at += WEIGHT_ROWS;
        loaded = load::<E, VEC, GATE>(p, at, end);
        sums.add(stage);
        stage ^= 1;
    }
    sums.store(p);
    // Slower warps still read the last stage.
    gpu::sync_threads();
    store_bias::<OUTPUTS>(p, bias, THREADS);
}

#[inline(always)]
fn run<E: Elem<Acc = f32>, S: Sums>(p: &WeightParams) {
    const { assert!(WEIGHT_ROWS == 8 && THREADS * 8 == INPUTS * OUTPUTS / 8) };
    grid::wait_dependency();
    match (p.flags & WEIGHT_VECTORS != 0, p.gate != 0) {
        (true, false) => tile::<E, S, 4, false>(p),
        (true, true) => tile::<E, S, 4, true>(p),
        (false, false) => tile::<E, S, 1, false>(p),
        (false, true) => tile::<E, S, 1, true>(p),
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, WeightParams> for WeightTile {
    #[inline(always)]
    unsafe fn run(p: &WeightParams, _: Maps) {
        if matches!(E::DTYPE, Dtype::F32) {
            run::<E, Fma>(p);
        } else {
            run::<E, Mma>(p);
        }
    }
}

/// Returns the gradient before bias and ReLU, four elements of four rows: with `x` added, and zeros where the ReLU
/// masks it.
#[inline(always)]
fn ahead<E: Elem<Acc = f32>, const VEC: usize>(
    p: &WeightParams,
    (from, column): (u32, u32),
    end: u32,
) -> [[f32; 4]; 4] {
    let mut all = [[0.0; 4]; 4];
    let (mut more, mut gate) = ([[0.0; 4]; 4], [[1.0; 4]; 4]);
    unroll!(j < 4, {
        let row = from + j as u32 * (BIAS_THREADS / 8);
        let line = |at: Global<E, ReadWrite>, bytes: u32| at.row(row, bytes);
        let load = |at| load_four::<E, VEC>(at, column, p.outputs, row < end);
        all[j] = load(line(p.dy(), p.dy_bytes));
        if p.x != 0 {
            more[j] = load(line(p.x(), p.x_bytes));
        }
        if p.gate != 0 {
            gate[j] = load(line(p.gate(), p.gate_bytes));
        }
    });
    unroll!(j < 4, {
        unroll!(i < 4, {
            let sum = all[j][i] + more[j][i];
            // A NaN is not above zero.
            all[j][i] = if gate[j][i] > 0.0 { sum } else { 0.0 };
        });
    });
    all
}

/// Sums a tile's columns over a part of the rows. Writes the gradient back if it differs from `dy`.
#[inline(always)]
fn bias_tile<E: Elem<Acc = f32>, const VEC: usize>(p: &WeightParams) {
    let thread = gpu::thread();
    let column = gpu::block_x() * BIAS_COLUMNS + thread % 8 * 4;
    let mut at = gpu::block_z() * p.of_part;
    let end = (at + p.of_part).min(p.rows);
    let stores = p.x != 0 || p.gate != 0;
    let mut sums = [0.0; 4];
    while at < end {
        let from = at + thread / 8;
        let all = ahead::<E, VEC>(p, (from, column), end);
        unroll!(j < 4, {
            unroll!(i < 4, { sums[i] += all[j][i] });
            let row = from + j as u32 * (BIAS_THREADS / 8);
            if stores && row < end {
                let to = p.dy::<E>().row(row, p.dy_bytes);
                store_four::<E, VEC>(to, column, p.outputs, &all[j]);
            }
        });
        at += BIAS_ROWS;
    }
    store_bias::<BIAS_COLUMNS>(p, sums, BIAS_THREADS);
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, WeightParams> for BiasTile {
    #[inline(always)]
    unsafe fn run(p: &WeightParams, _: Maps) {
        grid::wait_dependency();
        match p.flags & WEIGHT_VECTORS != 0 {
            true => bias_tile::<E, 4>(p),
            false => bias_tile::<E, 1>(p),
        }
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, WeightParams> for WeightSum {
    #[inline(always)]
    unsafe fn run(p: &WeightParams, _: Maps) {
        grid::wait_dependency();
        let output = gpu::block_x() * THREADS + gpu::thread();
        let input = gpu::block_y();
        let to = match input == p.inputs {
            true => p.db(),
            false => p.dw().row(input, p.dw_bytes),
        };
        if output >= p.outputs || to.is_null() {
            return;
        }
        let all = partial::of_parts(p.parts, |part| sums_at(p, part, input).at(output));
        to.at(output).st(all);
    }
}
