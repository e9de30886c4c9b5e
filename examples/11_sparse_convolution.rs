//! A layer of a network over a point cloud: a 3 x 3 x 3 submanifold convolution with bias and ReLU, then one of stride 2 that
//! halves the resolution. The cloud is the office of EINSPARSE_DATA, or a sphere's surface. Checked voxel by voxel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use einsparse::formats::{Dense, generate};
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, SparseConv3d, Voxel};
use einsparse::{Context, Result};

const CHANNELS: usize = 16;

fn cloud() -> Vec<Voxel> {
    let data = std::env::var_os("EINSPARSE_DATA").map_or("data".into(), PathBuf::from);
    let office = std::fs::read_to_string(data.join("point-cloud/office.csv")).unwrap_or_default();
    let line = |line: &str| match *line.split(',').collect::<Vec<_>>() {
        [x, y, z] => Some([0, x.parse().ok()?, y.parse().ok()?, z.parse().ok()?]),
        _ => None,
    };
    let voxels: Vec<Voxel> = office.lines().filter_map(line).collect();
    if !voxels.is_empty() {
        return voxels;
    }
    let all = (0..40 * 40 * 40).map(|i| [0, i % 40 - 20, i / 40 % 40 - 20, i / 1600 - 20]);
    let near = |v: &Voxel| (300..360).contains(&(v[1] * v[1] + v[2] * v[2] + v[3] * v[3]));
    all.filter(near).collect()
}

fn main() -> Result<()> {
    let (ctx, voxels) = (Context::new(), cloud());
    let map = Arc::new(KernelMap::submanifold(&ctx, &voxels, [3, 3, 3])?);
    let shapes = [
        vec![voxels.len(), CHANNELS],
        vec![27, CHANNELS, CHANNELS],
        vec![CHANNELS],
    ];
    let random =
        |s: &Vec<usize>| generate::random_values::<f32>(s.iter().product(), s.len() as u64);
    let [x, w, b] = shapes.each_ref().map(random);
    let tensor =
        |i: usize, v: &Vec<f32>| ctx.upload_dense(&Dense::new(shapes[i].clone(), v.clone())?);
    let options = ConvOptions {
        relu: true,
        ..ConvOptions::default()
    };
    let conv = SparseConv3d::<f32>::new(&map, [CHANNELS, CHANNELS], &options)?;
    let (weights, bias) = (tensor(1, &w)?, tensor(2, &b)?);
    let out = conv.forward(&tensor(0, &x)?, &weights, Some(&bias))?;

    let places: HashMap<Voxel, usize> = voxels.iter().copied().zip(0..).collect();
    let values = out.to_dense()?;
    for (o, v) in voxels.iter().enumerate().step_by(101) {
        for m in 0..CHANNELS {
            let mut sum = f64::from(b[m]);
            for t in 0..27i32 {
                let at = [
                    v[0],
                    v[1] + t / 9 - 1,
                    v[2] + t / 3 % 3 - 1,
                    v[3] + t % 3 - 1,
                ];
                for c in 0..places.get(&at).map_or(0, |_| CHANNELS) {
                    let weight = w[(t as usize * CHANNELS + c) * CHANNELS + m];
                    sum += f64::from(x[places[&at] * CHANNELS + c]) * f64::from(weight);
                }
            }
            let got = f64::from(values.values()[o * CHANNELS + m]);
            assert!(
                (got - sum.max(0.0)).abs() < 1e-3,
                "voxel {o}, channel {m}: {got}, not {sum}"
            );
        }
    }
    let halved = ConvGeometry::new([3, 3, 3], [2, 2, 2], [1, 1, 1])?;
    let down = Arc::new(KernelMap::new(&ctx, &voxels, &halved)?);
    let coarse =
        SparseConv3d::<f32>::new(&down, [CHANNELS; 2], &options)?.forward(&out, &weights, None)?;
    println!(
        "{ctx}: {} voxels by {}, then {:?}",
        voxels.len(),
        conv.variant(),
        coarse.shape()
    );
    Ok(())
}
