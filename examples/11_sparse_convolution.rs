//! Two layers of a point-cloud network: a submanifold convolution with bias and ReLU, then one of stride 2. The cloud
//! is the office scan in EINSPARSE_DATA, or the surface of a sphere. Checked against the CPU.

use std::path::PathBuf;
use std::sync::Arc;

use einsparse::formats::{Dense, generate};
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, SparseConv3d};
use einsparse::{Context, Result};

const C: usize = 16;

fn cloud() -> Vec<[i32; 4]> {
    let data = std::env::var_os("EINSPARSE_DATA").map_or("data".into(), PathBuf::from);
    let office = std::fs::read_to_string(data.join("point-cloud/office.csv")).unwrap_or_default();
    let line = |line: &str| match *line.split(',').collect::<Vec<_>>() {
        [x, y, z] => Some([0, x.parse().ok()?, y.parse().ok()?, z.parse().ok()?]),
        _ => None,
    };
    let voxels: Vec<[i32; 4]> = office.lines().filter_map(line).collect();
    let all = (0..64_000).map(|i| [0, i % 40 - 20, i / 40 % 40 - 20, i / 1600 - 20]);
    let near = |v: &[i32; 4]| (300..360).contains(&(v[1] * v[1] + v[2] * v[2] + v[3] * v[3]));
    if voxels.is_empty() { all.filter(near).collect() } else { voxels }
}

fn layers(ctx: &Context, voxels: &[[i32; 4]]) -> Result<[Dense<f32>; 2]> {
    let operand = |shape: &[usize]| {
        let values = generate::random_values::<f32>(shape.iter().product(), shape.len() as u64);
        ctx.upload_dense(&Dense::new(shape.to_vec(), values)?)
    };
    let x = operand(&[voxels.len(), C])?;
    let w = operand(&[27, C, C])?;
    let b = operand(&[C])?;
    let options = ConvOptions { relu: true, ..ConvOptions::default() };
    let map = Arc::new(KernelMap::submanifold(ctx, voxels, [3, 3, 3])?);
    let stream = ctx.stream()?;
    let mut first = ctx.zeros(&[map.outputs(), C])?;
    SparseConv3d::new(&map, [C, C], &options)?.forward(&x, &w, Some(&b), &mut first, &stream)?;
    let halved = ConvGeometry::new([3, 3, 3], [2, 2, 2], [1, 1, 1])?;
    let down = Arc::new(KernelMap::new(ctx, voxels, &halved)?);
    let mut second = ctx.zeros(&[down.outputs(), C])?;
    SparseConv3d::new(&down, [C, C], &options)?.forward(&first, &w, None, &mut second, &stream)?;
    stream.synchronize()?;
    println!("{ctx}: {} voxels, then {}", map.outputs(), down.outputs());
    Ok([first.to_dense()?, second.to_dense()?])
}

fn main() -> Result<()> {
    let voxels = cloud();
    let ours = layers(&Context::new(), &voxels)?;
    let checked = layers(&Context::cpu(), &voxels)?;
    for (a, b) in ours.iter().zip(&checked) {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()) * C as f32;
        assert!(a.shape() == b.shape() && a.values().iter().zip(b.values()).all(near));
    }
    Ok(())
}
