//! Direct convolutions over planes. Planes are not staged in shared memory: neighbouring threads share elements in L1.
//! All elements of a thread are loaded at once, so a small plane costs one round trip to L2. Elements outside of a
//! plane are zero, and are multiplied.

mod any;
mod depthwise;
mod few_channels;

use crate::device::prelude::*;
use crate::families::conv2d::abi::*;

buffers! {
    // `Conv2d::forward` (`host/core/ops/conv2d.rs`) checks the shapes of all operands. `Conv2dLaunch::run` selects a kernel
    // with vectors only for aligned planes (`host/core/families/conv2d`).
    unsafe Conv2dParams {
        input<E: Elem>: E, ReadWrite;
        weights<E: Elem>: E, ReadWrite;
        bias<E: Elem>: E, ReadWrite;
        out<E: Elem>: E, ReadWrite;
    }
}

/// Loads one element as f32; zero if `ok` is false.
#[inline(always)]
fn one<E: Elem<Acc = f32>>(from: Global<E, ReadWrite>, ok: bool) -> f32 {
    E::get(&from.ld_raw::<1>(ok), 0)
}

/// Returns the address of position `(y, x)` of a plane. Addresses outside of the plane are not read.
#[inline(always)]
fn place<E: Elem>(plane: Global<E, ReadWrite>, width: u32, y: u32, x: u32) -> Global<E, ReadWrite> {
    let at = y.wrapping_mul(width).wrapping_add(x) as i32;
    plane.wrapping_at(at as i64 as u64)
}

/// Piece of a thread: channel, image, and position in the output plane.
struct Piece {
    channel: u32,
    image: u32,
    down: u32,
    across: u32,
}

impl Piece {
    #[inline(always)]
    fn of(p: &Conv2dParams, index: u32) -> Piece {
        let (rest, across) = p.across.of(index);
        let (rest, down) = p.down.of(rest);
        let (channel, image) = p.batch.of(rest);
        Piece { channel, image, down, across }
    }

    /// Returns the address of this image's plane of an input channel.
    #[inline(always)]
    fn input<E: Elem>(&self, p: &Conv2dParams, channel: u32) -> Global<E, ReadWrite> {
        let plane = self.image as u64 * (p.size[0] * p.size[1]) as u64;
        p.input().row(channel, p.input_pitch).at(plane)
    }

    #[inline(always)]
    fn out<E: Elem>(&self, p: &Conv2dParams, channel: u32) -> Global<E, ReadWrite> {
        let plane = self.image as u64 * (p.out_size[0] * p.out_size[1]) as u64;
        p.out().row(channel, p.out_pitch).at(plane)
    }
}

/// Returns the address of a channel's weights in a depthwise convolution.
#[inline(always)]
fn weights<E: Elem>(p: &Conv2dParams, channel: u32) -> Global<E, ReadWrite> {
    p.weights().row(channel, p.window[0] * p.window[1] * E::BYTES)
}

#[inline(always)]
fn bias<E: Elem<Acc = f32>>(p: &Conv2dParams, channel: u32) -> f32 {
    one(p.bias::<E>().bytes(channel * E::BYTES), p.bias != 0)
}

/// Returns the min value of an output.
#[inline(always)]
fn least(p: &Conv2dParams) -> f32 {
    if p.flags & CONV2D_RELU != 0 { 0.0 } else { f32::NEG_INFINITY }
}
