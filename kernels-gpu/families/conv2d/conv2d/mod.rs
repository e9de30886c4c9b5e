//! Direct convolutions over planes: nothing is staged, neighbours meet in L1. What a thread needs is loaded at once, so
//! that a small plane costs one way to L2 and back. What lies outside of a plane is zero, and is multiplied.

mod any;
mod depthwise;
mod few_channels;

use crate::device::prelude::*;
use crate::families::conv2d::abi::*;

/// One element, as f32; zero where `ok` is false.
#[inline(always)]
fn one<E: Elem<Acc = f32>>(addr: u64, ok: bool) -> f32 {
    E::get(&E::ld_global::<1>(addr, ok), 0)
}

/// The address of place `(y, x)` of a plane; of one outside, an address that is not read.
#[inline(always)]
fn place<E: Elem>(plane: u64, width: u32, y: u32, x: u32) -> u64 {
    let at = y.wrapping_mul(width).wrapping_add(x) as i32;
    plane.wrapping_add((at as i64 * E::BYTES as i64) as u64)
}

/// The piece of a thread: channel, image, and where it lies in the plane of the output.
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

    /// The plane of a channel that this image is.
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

/// Weights of a channel of depthwise convolutions.
#[inline(always)]
fn weights<E: Elem>(p: &Conv2dParams, channel: u32) -> u64 {
    p.weights + channel as u64 * (p.window[0] * p.window[1] * E::BYTES) as u64
}

#[inline(always)]
fn bias<E: Elem<Acc = f32>>(p: &Conv2dParams, channel: u32) -> f32 {
    one::<E>(p.bias + (channel * E::BYTES) as u64, p.bias != 0)
}

/// What an output is at the least.
#[inline(always)]
fn least(p: &Conv2dParams) -> f32 {
    if p.flags & CONV2D_RELU != 0 { 0.0 } else { f32::NEG_INFINITY }
}
