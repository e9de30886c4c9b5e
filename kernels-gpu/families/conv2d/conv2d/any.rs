//! Depthwise convolutions with other windows: a thread for each output, or a warp if the window is the plane.

use super::*;
use crate::device::lanes;

/// Elements of a row of a window.
type Line = [f32; CONV2D_WINDOW as usize];

/// Loads row `i` of the window and of the weights; zeros past its end, and past the last row.
#[inline(always)]
fn load<E: Elem<Acc = f32>>(
    p: &Conv2dParams,
    [plane, weights]: [Global<E, ReadWrite>; 2],
    [y, x]: [u32; 2],
    i: u32,
) -> [Line; 2] {
    let (mut values, mut taps) = ([0.0; 7], [0.0; 7]);
    let y = y.wrapping_add(i);
    let inside = i < p.window[0] && y < p.size[0];
    let at = place(plane, p.size[1], y, x);
    let of_row = weights.bytes(i * p.window[1] * E::BYTES);
    unroll!(j < 7, {
        let own = (j as u32) < p.window[1];
        let inside = inside && x.wrapping_add(j as u32) < p.size[1];
        values[j] = one(at.wrapping_at(j as u64), own && inside);
        taps[j] = one(of_row.at(j as u64), own && i < p.window[0]);
    });
    [values, taps]
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, Conv2dParams> for DepthwiseAny {
    #[inline(always)]
    unsafe fn run(p: &Conv2dParams, _: Maps) {
        const { assert!(CONV2D_WINDOW == 7) };
        grid::launch_dependents();
        let index = gpu::block_x() * CONV2D_THREADS + gpu::thread();
        if index >= p.work {
            return;
        }
        let piece = Piece::of(p, index);
        let from = [piece.input::<E>(p, piece.channel), weights::<E>(p, piece.channel)];
        let start = [
            (piece.down * p.stride).wrapping_sub(p.padding[0]),
            (piece.across * p.stride).wrapping_sub(p.padding[1]),
        ];
        grid::wait_dependency();
        let mut sum = bias::<E>(p, piece.channel);
        let mut next = load(p, from, start, 0);
        let mut i = 0;
        while i < p.window[0] {
            let [values, taps] = next;
            i += 1;
            next = load(p, from, start, i);
            unroll!(j < 7, {
                sum = matrix::fma_f32(taps[j], values[j], sum);
            });
        }
        let out = piece.out::<E>(p, piece.channel);
        let to = place(out, p.out_size[1], piece.down, piece.across);
        to.st_rounded(&[matrix::max_nan(sum, least(p))]);
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, Conv2dParams> for DepthwisePlane {
    #[inline(always)]
    unsafe fn run(p: &Conv2dParams, _: Maps) {
        grid::launch_dependents();
        let index = gpu::block_x() * (CONV2D_THREADS / 32) + gpu::thread() / 32;
        if index >= p.work {
            return;
        }
        let piece = Piece::of(p, index);
        let plane = piece.input::<E>(p, piece.channel);
        let taps = weights::<E>(p, piece.channel);
        let places = p.size[0] * p.size[1];
        grid::wait_dependency();
        let mut sum = 0.0;
        let mut at = gpu::thread() % 32;
        while at < places {
            let (mut values, mut own) = ([0.0; 4], [0.0; 4]);
            unroll!(k < 4, {
                let at = at + 32 * k as u32;
                values[k] = one(plane.at(at), at < places);
                own[k] = one(taps.at(at), at < places);
            });
            unroll!(k < 4, { sum = matrix::fma_f32(own[k], values[k], sum) });
            at += 128;
        }
        sum = lanes::sum(sum);
        if gpu::thread().is_multiple_of(32) {
            let sum = sum + bias::<E>(p, piece.channel);
            piece.out::<E>(p, piece.channel).st_rounded(&[matrix::max_nan(sum, least(p))]);
        }
    }
}
