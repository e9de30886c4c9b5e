//! Direct convolutions over planes. Planes are not staged in shared memory: neighbouring threads share elements in L1.
//! All elements of a thread are loaded at once, so a small plane costs one round trip to L2. Elements outside of a
//! plane are zero, and are multiplied.

mod any;
mod depthwise;
mod few_channels;

use crate::device::prelude::*;
use crate::families::conv2d::abi::*;

/// Loads one element as f32; zero if `ok` is false.
#[inline(always)]
fn one<E: Elem<Acc = f32>>(addr: u64, ok: bool) -> f32 {
    E::get(&E::ld_global::<1>(addr, ok), 0)
}

/// Returns the address of position `(y, x)` of a plane. Addresses outside of the plane are not read.
#[inline(always)]
fn place<E: Elem>(plane: u64, width: u32, y: u32, x: u32) -> u64 {
    let at = y.wrapping_mul(width).wrapping_add(x) as i32;
    plane.wrapping_add((at as i64 * E::BYTES as i64) as u64)
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
    fn input<E: Elem>(&self, p: &Conv2dParams, channel: u32) -> u64 {
        let plane = self.image as u64 * (p.size[0] * p.size[1]) as u64;
        p.input + channel as u64 * p.input_pitch + plane * E::BYTES as u64
    }

    #[inline(always)]
    fn out<E: Elem>(&self, p: &Conv2dParams, channel: u32) -> u64 {
        let plane = self.image as u64 * (p.out_size[0] * p.out_size[1]) as u64;
        p.out + channel as u64 * p.out_pitch + plane * E::BYTES as u64
    }
}

/// Returns the address of a channel's weights in a depthwise convolution.
#[inline(always)]
fn weights<E: Elem>(p: &Conv2dParams, channel: u32) -> u64 {
    p.weights + channel as u64 * (p.window[0] * p.window[1] * E::BYTES) as u64
}

#[inline(always)]
fn bias<E: Elem<Acc = f32>>(p: &Conv2dParams, channel: u32) -> f32 {
    one::<E>(p.bias + (channel * E::BYTES) as u64, p.bias != 0)
}

/// Returns the min value of an output.
#[inline(always)]
fn least(p: &Conv2dParams) -> f32 {
    if p.flags & CONV2D_RELU != 0 { 0.0 } else { f32::NEG_INFINITY }
}
