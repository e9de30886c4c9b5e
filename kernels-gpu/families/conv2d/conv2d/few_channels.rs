//! Convolutions over few input channels, as in the first layer of a network. All weights of eight output channels are
//! stored in shared memory, and every element that a thread reads is multiplied by eight of them.

use super::*;

const OUTPUTS: usize = CONV2D_OUTPUTS as usize;

/// Iterator over the rows of a window, channel by channel.
struct Rows<E> {
    /// Address of the next row.
    at: Global<E, ReadWrite>,
    /// Bytes from the end of a channel's window to the next channel's.
    skip: u64,
    /// Row of the plane, and the first row of the window.
    y: u32,
    first: u32,
    /// Number of remaining rows, of all channels.
    left: u32,
}

/// Elements that are loaded at once: [`CONV2D_ROWS`] rows of at most [`CONV2D_WINDOW`] elements.
type Loaded = [[f32; 8]; CONV2D_ROWS as usize];

impl<E: Elem<Acc = f32>> Rows<E> {
    #[inline(always)]
    fn load<const WINDOW: usize>(&mut self, p: &Conv2dParams, x: u32) -> Loaded {
        let mut loaded = [[0.0; 8]; 3];
        unroll!(r < 3, {
            let inside = self.left > 0 && self.y < p.size[0];
            unroll!(j < WINDOW, {
                let at = self.at.wrapping_at(j as u64);
                let own = (j as u32) < p.window[1] && x.wrapping_add(j as u32) < p.size[1];
                loaded[r][j] = one(at, own && inside);
            });
            self.left = self.left.saturating_sub(1);
            self.y = self.y.wrapping_add(1);
            self.at = self.at.wrapping_bytes((p.size[1] * E::BYTES) as u64);
            if self.y == self.first.wrapping_add(p.window[0]) {
                self.y = self.first;
                self.at = self.at.wrapping_bytes(self.skip);
            }
        });
        loaded
    }
}

/// Returns the number of rows of the window over all channels, rounded up to what is loaded at once.
#[inline(always)]
fn rows(p: &Conv2dParams) -> u32 {
    (p.channels * p.window[0]).div_ceil(CONV2D_ROWS) * CONV2D_ROWS
}

/// Weights in shared memory: `[rows, WINDOW, 8]`.
#[inline(always)]
fn staged() -> Shared<f32> {
    // SAFETY: the host launches with `SHARED_BYTES`, and `Conv2d` admits at most `CONV2D_TAPS` weights an output.
    unsafe { Shared::dynamic(0) }
}

/// Stores the weights of eight output channels as `[rows, WINDOW, 8]`, with zeros for missing ones.
#[inline(always)]
fn stage<E: Elem<Acc = f32>, const WINDOW: u32>(p: &Conv2dParams) {
    let taps = p.channels * p.window[0];
    let first = gpu::block_y() * CONV2D_OUTPUTS;
    let mut at = gpu::thread();
    while at < rows(p) * WINDOW * CONV2D_OUTPUTS {
        let (output, tap) = (first + at % CONV2D_OUTPUTS, at / CONV2D_OUTPUTS);
        let (row, j) = (tap / WINDOW, tap % WINDOW);
        let from = (output as u64 * taps as u64 + row as u64) * p.window[1] as u64 + j as u64;
        let own = output < p.outputs && row < taps && j < p.window[1];
        let weight = one(p.weights::<E>().at(from), own);
        staged().at(at).st(weight);
        at += CONV2D_THREADS;
    }
}

/// Loads the weights of a tap for all eight outputs.
#[inline(always)]
fn eight(at: Shared<f32>) -> [f32; OUTPUTS] {
    let [low, high] = [at, at.at(4)].map(|at| at.cast::<[u32; 4]>().ld().map(f32::from_bits));
    let mut all = [0.0; OUTPUTS];
    unroll!(m < 4, {
        all[m] = low[m];
        all[m + 4] = high[m];
    });
    all
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const WINDOW: u32> Kernel<W, E, Conv2dParams>
    for FewChannels<WINDOW>
{
    #[inline(always)]
    unsafe fn run(p: &Conv2dParams, _: Maps) {
        const { assert!(OUTPUTS == 8 && CONV2D_ROWS == 3 && WINDOW <= CONV2D_WINDOW) };
        match WINDOW {
            3 => window::<E, 3>(p),
            _ => window::<E, 7>(p),
        }
    }
}

#[inline(always)]
fn window<E: Elem<Acc = f32>, const WINDOW: usize>(p: &Conv2dParams) {
    grid::launch_dependents();
    let index = gpu::block_x() * CONV2D_THREADS + gpu::thread();
    // Threads without a piece stage weights too.
    let inside = index < p.work;
    let piece = Piece::of(p, index);
    let y = (piece.down * p.stride).wrapping_sub(p.padding[0]);
    let x = (piece.across * p.stride).wrapping_sub(p.padding[1]);
    grid::wait_dependency();
    let window = (p.window[0] * p.size[1]) as u64 * E::BYTES as u64;
    let mut ahead = Rows {
        at: place(piece.input::<E>(p, 0), p.size[1], y, x),
        skip: p.input_pitch.wrapping_sub(window),
        y,
        first: y,
        left: if inside { p.channels * p.window[0] } else { 0 },
    };
    let mut next = ahead.load::<WINDOW>(p, x);
    let first = gpu::block_y() * CONV2D_OUTPUTS;
    let mut sums = [0.0; OUTPUTS];
    unroll!(m < 8, {
        let output = first + m as u32;
        let own = p.bias != 0 && output < p.outputs;
        sums[m] = one(p.bias::<E>().bytes(output * E::BYTES), own);
    });
    match WINDOW {
        3 => stage::<E, 3>(p),
        _ => stage::<E, 7>(p),
    }
    gpu::sync_threads();
    let mut at = staged();
    let end = at.at(rows(p) * WINDOW as u32 * CONV2D_OUTPUTS).address();
    while at.address() < end {
        let loaded = next;
        next = ahead.load::<WINDOW>(p, x);
        unroll!(r < 3, {
            unroll!(j < WINDOW, {
                let taps = eight(at);
                at = at.at(CONV2D_OUTPUTS);
                unroll!(m < 8, {
                    sums[m] = matrix::fma_f32(taps[m], loaded[r][j], sums[m]);
                });
            });
        });
    }
    let (out, least) = (piece.out::<E>(p, first), least(p));
    let mut to = place(out, p.out_size[1], piece.down, piece.across);
    unroll!(m < 8, {
        if inside && first + (m as u32) < p.outputs {
            to.st_rounded(&[matrix::max_nan(sums[m], least)]);
        }
        to = to.bytes(p.out_pitch);
    });
}
