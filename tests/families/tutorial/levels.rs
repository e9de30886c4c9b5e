//! The kernels that docs/levels.md develops, each against exact integers.

mod launch;

use crate::support::{Rng, gpu, is_built, skipped, small};
use einsparse::formats::f16;
use einsparse::raw::DeviceMemory;
use launch::{Level, levels};
use rayon::prelude::*;

/// A product of small integers whose sums are all exact in f16.
struct Product {
    extents: [usize; 3],
    a: Vec<f16>,
    b: Vec<f16>,
    c: Vec<f16>,
}

impl Product {
    fn new([m, k, n]: [usize; 3]) -> Self {
        let mut rng = Rng(7);
        let (a, b) = (rng.integers::<f16>(m * k), rng.integers::<f16>(k * n));
        let wide = |all: &[f16]| -> Vec<f32> { all.iter().map(|x| x.to_f32()).collect() };
        let (left, right) = (wide(&a), wide(&b));
        let row = |row: &[f32]| {
            let mut sums = vec![0f32; n];
            for (&x, line) in row.iter().zip(right.chunks(n)) {
                for (sum, &y) in sums.iter_mut().zip(line) {
                    *sum += x * y;
                }
            }
            sums.into_par_iter().map(f16::from_f32)
        };
        let c = left.par_chunks(k).flat_map(row).collect();
        Self { extents: [m, k, n], a, b, c }
    }
}

/// One stage and one tile; a few; more tiles than multiprocessors, in groups of unequal size.
#[test]
fn every_level_is_exact() {
    if !is_built("levels") {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let device = gpu.device().unwrap();
    if device.machine().wgmma == 0.0 {
        return skipped("the levels are for Hopper", &device.facts().name);
    }
    let all = [[128, 64, 256], [512, 256, 512], [2176, 192, 2304]];
    for extents in if small() { &all[..2] } else { &all } {
        let product = Product::new(*extents);
        let stream = gpu.stream().unwrap();
        let upload = |values: &[f16]| {
            DeviceMemory::from_slice(device.context(), values, stream.raw()).unwrap()
        };
        let (a, b) = (upload(&product.a), upload(&product.b));
        for row in levels() {
            let mut found = vec![f16::NAN; product.c.len()];
            let c = upload(&found);
            let addresses = [a.address(), b.address(), c.address()];
            let level = Level::new(device, row, product.extents, addresses).unwrap();
            // SAFETY: the memory holds matrices of these extents; it is read back before it is freed.
            unsafe { level.run(stream.raw()) }.unwrap();
            c.read(&mut found, stream.raw()).unwrap();
            let wrong = (0..found.len()).find(|&i| found[i] != product.c[i]);
            if let Some(i) = wrong {
                let (place, n) = ((i / extents[2], i % extents[2]), row.name);
                panic!("{n} {extents:?} {place:?}: {} {}", found[i], product.c[i]);
            }
        }
    }
}
