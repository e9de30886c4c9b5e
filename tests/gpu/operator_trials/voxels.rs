//! Sparse convolutions: duplicate or distant voxels, rebuilt maps, and all three products.

use crate::support::runs::finish;
use std::collections::HashMap;
use std::sync::Arc;

use einsparse::formats::Dense;
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, KernelMapBuilder, SparseConv3d};
use einsparse::{Scalar, ZerosRule};

use super::results::same;
use super::trial::{Outcome, Trial};

/// Distinct positions in a small box, on both sides of 0.
fn places(t: &mut Trial<'_>) -> Vec<[i32; 4]> {
    let count = t.one(&[0, 1, 2, 30, 63, 64, 65, 129, 200]);
    let mut all: Vec<[i32; 4]> = Vec::new();
    let mut seen = HashMap::new();
    for _ in 0..count {
        let mut at = || t.below(7) as i32 - 3;
        let voxel = [at().abs() % 2, at(), at(), at()];
        if seen.insert(voxel, ()).is_none() {
            all.push(voxel);
        }
    }
    all
}

fn geometry(t: &mut Trial<'_>) -> einsparse::Result<ConvGeometry> {
    let mut kernel = t.one(&[[3, 3, 3], [1, 1, 1], [2, 2, 2], [3, 1, 2], [5, 1, 1]]);
    let stride = t.one(&[[1; 3], [1; 3], [2; 3], [1, 2, 3]]);
    let dilation = t.one(&[[1; 3], [1; 3], [2, 1, 1]]);
    if t.once_in(4) && t.is_made_wrong("a kernel of no extent") {
        kernel[t.below(3)] = t.one(&[0, 1 << 30, usize::MAX]);
    }
    ConvGeometry::new(kernel, stride, dilation)
}

/// Creates the map, or returns the error for voxels without a valid map.
fn map_of(
    t: &mut Trial<'_>,
    voxels: &[[i32; 4]],
    geometry: &ConvGeometry,
) -> Result<KernelMap, Outcome> {
    let mut given = voxels.to_vec();
    if !voxels.is_empty() && t.is_made_wrong("a voxel twice or beyond 2^30") {
        match t.below(2) {
            0 => given.push(voxels[t.below(voxels.len())]),
            _ => {
                let (at, axis) = (t.below(voxels.len()), t.below(4));
                given[at][axis] = t.one(&[1 << 30, i32::MAX, i32::MIN, -(1 << 30)]);
            }
        }
    }
    let made = KernelMap::new(t.context, &given, geometry);
    let mut map = t.made(made)?;
    if t.is_for_gpu() && !voxels.is_empty() && geometry.is_submanifold() && t.once_in(2) {
        rebuild(t, &mut map, voxels, geometry)?;
    }
    Ok(map)
}

/// Rebuilds maps from positions that are not validated: for any positions, nothing is written out of bounds, and the
/// next map is right.
fn rebuild(
    t: &mut Trial<'_>,
    map: &mut KernelMap,
    voxels: &[[i32; 4]],
    geometry: &ConvGeometry,
) -> Result<(), Outcome> {
    let made = KernelMapBuilder::new(t.context, voxels.len(), geometry);
    let builder = t.made(made)?;
    let wild = (0..voxels.len() * 4).map(|_| match t.once_in(2) {
        true => t.one(&[i32::MIN, i32::MAX, -1, 0, 1 << 30]),
        false => t.below(3) as i32,
    });
    let wild: Vec<i32> = wild.collect();
    for words in [wild, voxels.concat()] {
        let places = Dense::new([voxels.len(), 4], words).unwrap();
        let places = t.context.upload_dense(&places).unwrap();
        finish(t.context, |stream| builder.rebuild(map, &places, stream));
    }
    Ok(())
}

/// Input row, output row and offset of all pairs.
fn pairs(voxels: &[[i32; 4]], outputs: &[[i32; 4]], geometry: &ConvGeometry) -> Vec<[usize; 3]> {
    let known: HashMap<[i32; 4], usize> = voxels.iter().copied().zip(0..).collect();
    let mut all = Vec::new();
    for (o, out) in outputs.iter().enumerate() {
        for (which, offset) in geometry.offsets().iter().enumerate() {
            let mut at = *out;
            for axis in 0..3 {
                at[axis + 1] = out[axis + 1] * geometry.stride()[axis] as i32 + offset[axis];
            }
            all.extend(known.get(&at).map(|&i| [i, o, which]));
        }
    }
    all
}

/// Output voxels, in the order of their first input voxel.
fn outputs_of(voxels: &[[i32; 4]], geometry: &ConvGeometry) -> Vec<[i32; 4]> {
    let stride = geometry.stride().map(|s| s as i32);
    let mut all = Vec::new();
    for v in voxels {
        let down = |axis: usize| v[axis + 1].div_euclid(stride[axis]);
        let out = [v[0], down(0), down(1), down(2)];
        if !all.contains(&out) {
            all.push(out);
        }
    }
    all
}

pub fn convolution<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(7);
    let (voxels, [c, m]) = (places(t), [t.columns(), t.columns()]);
    let made = geometry(t);
    let geometry = t.made(made)?;
    let map = Arc::new(map_of(t, &voxels, &geometry)?);
    let outputs = outputs_of(&voxels, &geometry);
    let volume = geometry.offsets().len();
    let found = [map.inputs(), map.outputs(), map.volume()];
    assert_eq!(found, [voxels.len(), outputs.len(), volume]);
    let options = ConvOptions {
        relu: t.once_in(3),
        zeros: match t.once_in(8) {
            true => ZerosRule::Strict,
            false => ZerosRule::Dense,
        },
        ..ConvOptions::default()
    };
    let conv = t.made(SparseConv3d::<T>::new(&map, [c, m], &options))?;
    let pairs = pairs(&voxels, &outputs, &geometry);
    let input = t.integers::<T>("input", &[voxels.len(), c]);
    let weights = t.integers::<T>("weights", &[volume, c, m]);
    let bias = t.once_in(2).then(|| t.integers::<T>("bias", &[m]));
    let mut out = t.written::<T>("out", &[outputs.len(), m]);
    let given = bias.as_ref().map(|b| &b.there);
    t.run(&mut out, |out, stream| conv.forward(&input.there, &weights.there, given, out, stream))?;
    let weight = |which: usize, x: usize, y: usize| weights.values[(which * c + x) * m + y];
    let start = |i: usize| bias.as_ref().map_or(0.0, |b| b.values[i % m]);
    let mut wanted: Vec<f64> = (0..outputs.len() * m).map(start).collect();
    for &[i, o, which] in &pairs {
        for (x, y) in (0..c).flat_map(|x| (0..m).map(move |y| (x, y))) {
            wanted[o * m + y] += input.values[i * c + x] * weight(which, x, y);
        }
    }
    if options.relu {
        wanted.iter_mut().for_each(|x| *x = x.max(0.0));
    }
    same(&format!("out of {}", conv.variant()), &out, &wanted);
    let gradient = t.integers::<T>("gradient", &[outputs.len(), m]);
    let mut of_input = t.written::<T>("of_input", &[voxels.len(), c]);
    t.run(&mut of_input, |of_input, stream| {
        conv.backward_input(&weights.there, &gradient.there, of_input, stream)
    })?;
    let mut of_weights = t.written::<T>("of_weights", &[volume, c, m]);
    t.run(&mut of_weights, |of_weights, stream| {
        conv.backward_weight(&input.there, &gradient.there, of_weights, stream)
    })?;
    let mut wanted = [vec![0.0; voxels.len() * c], vec![0.0; volume * c * m]];
    for &[i, o, which] in &pairs {
        for (x, y) in (0..c).flat_map(|x| (0..m).map(move |y| (x, y))) {
            let g = gradient.values[o * m + y];
            wanted[0][i * c + x] += g * weight(which, x, y);
            wanted[1][(which * c + x) * m + y] += g * input.values[i * c + x];
        }
    }
    same("gradient of input", &of_input, &wanted[0]);
    same("gradient of weights", &of_weights, &wanted[1]);
    Ok(())
}
