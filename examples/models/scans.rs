//! Voxel clouds: a scanned office, and a street scanned by a ray caster, with features and labels of the voxels. Also
//! the network over a dense grid, the reference for the sparse network.

use std::collections::HashSet;
use std::path::PathBuf;

use einsparse::Result;
use einsparse::formats::{Dense, Element, generate};

use super::wiring::{INPUTS, LEVELS, Walk, Wire, Wiring};

/// Voxels `[batch, x, y, z]`, most of them with a label.
pub struct Scan {
    pub name: &'static str,
    pub voxels: Vec<[i32; 4]>,
    pub labels: Vec<i32>,
}

impl Scan {
    /// Creates a scan. Labels are stripes by height and x; every tenth voxel is unlabeled.
    fn new(name: &'static str, voxels: Vec<[i32; 4]>, classes: usize) -> Self {
        let stripe = |v: &[i32; 4]| v[3].div_euclid(6) + 3 * v[1].div_euclid(24);
        let class = |(at, v): (usize, &[i32; 4])| match at % 10 {
            9 => -1,
            _ => stripe(v).rem_euclid(classes as i32),
        };
        let labels = voxels.iter().enumerate().map(class).collect();
        Scan { name, voxels, labels }
    }

    /// Reads the scan of an office in EINSPARSE_DATA, if it exists.
    pub fn office(classes: usize) -> Option<Scan> {
        let data = std::env::var_os("EINSPARSE_DATA").map_or("data".into(), PathBuf::from);
        let text = std::fs::read_to_string(data.join("point-cloud/office.csv")).ok()?;
        let voxel = |line: &str| {
            let words: Option<Vec<i32>> = line.split(',').map(|w| w.trim().parse().ok()).collect();
            match *words? {
                [x, y, z] => Some([0, x, y, z]),
                _ => None,
            }
        };
        let voxels = text.lines().skip(1).map(voxel).collect::<Option<_>>()?;
        Some(Scan::new("office", voxels, classes))
    }

    /// Scan of a spinning lidar, 1.8 m above a plane with 80 boxes: `beams` beams, `steps` steps per turn, voxels of
    /// `size` metres.
    pub fn street([beams, steps]: [usize; 2], size: f64, classes: usize) -> Result<Scan> {
        let drawn = generate::random_values::<f64>(80 * 6, 24);
        let boxes: Vec<[[f64; 2]; 3]> = drawn.chunks(6).enumerate().map(boxed).collect();
        let (mut seen, mut voxels) = (HashSet::new(), Vec::new());
        for ray in 0..beams * steps {
            let (beam, step) = (ray / steps, ray % steps);
            let up = (-25.0 + 28.0 * beam as f64 / beams as f64).to_radians();
            let round = std::f64::consts::TAU * step as f64 / steps as f64;
            let way = [up.cos() * round.cos(), up.cos() * round.sin(), up.sin()];
            let ground = if way[2] < 0.0 { -1.8 / way[2] } else { f64::INFINITY };
            let hits = boxes.iter().filter_map(|sides| hit(sides, way));
            let range = hits.fold(ground, f64::min);
            if range < 80.0 {
                let at = way.map(|w| (w * range / size).floor() as i32);
                let voxel = [0, at[0], at[1], at[2]];
                if seen.insert(voxel) {
                    voxels.push(voxel);
                }
            }
        }
        Ok(Scan::new("street", voxels, classes))
    }

    /// Voxels of a small cube: two planes, and scattered voxels.
    pub fn toy(extent: i32, classes: usize) -> Scan {
        let all = (0..extent.pow(3)).map(|i| {
            let e = extent;
            [0, i / (e * e), i / e % e, i % e]
        });
        let kept =
            |v: &[i32; 4]| v[3] == 2 || v[1] == v[2] || (v[1] * 7 + v[2] * 5 + v[3] * 3) % 11 == 0;
        Scan::new("toy", all.filter(kept).collect(), classes)
    }

    /// Returns four features per voxel; the rest of a row is zero.
    pub fn features<T: Element>(&self) -> Result<Dense<T>> {
        let drawn = generate::random_values::<f32>(self.voxels.len() * INPUTS, 7);
        let values = drawn.iter().enumerate().map(|(at, x)| match at % INPUTS {
            0..4 => T::from_f64(f64::from(*x)),
            _ => T::ZERO,
        });
        Ok(Dense::new([self.voxels.len(), INPUTS], values.collect())?)
    }

    /// Bytes of `channels` channels of 2 bytes at every cell of the cloud's bounding box.
    pub fn dense_bytes(&self, channels: usize) -> f64 {
        let along = |axis: usize| {
            let all = || self.voxels.iter().map(|v| v[axis]);
            f64::from(all().max().unwrap_or(0) - all().min().unwrap_or(0) + 1)
        };
        along(1) * along(2) * along(3) * channels as f64 * 2.0
    }
}

/// Cars and houses: start and end of a box along x, y, z.
fn boxed((at, drawn): (usize, &[f64])) -> [[f64; 2]; 3] {
    let tall = at % 4 == 0;
    let (size, height) = if tall { (6.0, 8.0) } else { (2.0, 1.5) };
    let side = |i: usize| {
        let away = 4.0 + size + 14.0 * drawn[i].abs();
        let middle = if drawn[i] < 0.0 { -away } else { away };
        let half = size * (0.5 + 0.3 * drawn[i + 2].abs().min(2.0));
        [middle - half, middle + half]
    };
    [side(0), side(1), [-1.8, -1.8 + height * (0.7 + 0.3 * drawn[4].abs())]]
}

/// Distance from the origin along a ray to a box.
fn hit(sides: &[[f64; 2]; 3], way: [f64; 3]) -> Option<f64> {
    let (mut near, mut far) = (0.0f64, f64::INFINITY);
    for (side, w) in sides.iter().zip(way) {
        let [a, b] = side.map(|at| at / w);
        near = near.max(a.min(b));
        far = far.min(a.max(b));
    }
    (near <= far && near > 0.0).then_some(near)
}

/// Runs the network over a grid of `extent` cells per axis, in f64, with zeros where no voxel exists. Returns the
/// logits of the voxels.
pub fn dense(scan: &Scan, wiring: &Wiring, parameters: &[f64], extent: usize) -> Result<Vec<f64>> {
    let extents: [usize; LEVELS] = std::array::from_fn(|level| extent >> level);
    let cell = |level: usize, v: [usize; 3]| (v[0] * extents[level] + v[1]) * extents[level] + v[2];
    let mut there = extents.map(|e| vec![false; e * e * e]);
    let place = |v: &[i32; 4]| [1, 2, 3].map(|axis| v[axis] as usize);
    for voxel in &scan.voxels {
        for (level, there) in there.iter_mut().enumerate() {
            there[cell(level, place(voxel).map(|x| x >> level))] = true;
        }
    }
    let all = wiring.buffers.iter();
    let mut grids: Vec<Vec<f64>> = all.map(|&(l, c)| vec![0.0; extents[l].pow(3) * c]).collect();
    let features = scan.features::<f64>()?;
    for (row, voxel) in features.values().chunks(INPUTS).zip(&scan.voxels) {
        grids[0][cell(0, place(voxel)) * INPUTS..][..INPUTS].copy_from_slice(row);
    }
    for wire in &wiring.wires {
        let [(from, wide), (to, out)] = [&wire.from, &wire.to].map(|p| wiring.buffers[p.buffer]);
        let (grid, [c, m]) = (grids[wire.from.buffer].clone(), wire.channels());
        for own in 0..there[to].len() {
            if !there[to][own] {
                continue;
            }
            let e = extents[to];
            let mut sums = parameters[wire.bias..][..m].to_vec();
            for (t, at) in neighbours(wire, [own / (e * e), own / e % e, own % e]) {
                if at.iter().any(|&x| x >= extents[from]) {
                    continue;
                }
                let row = &grid[cell(from, at) * wide + wire.from.columns.start..][..c];
                for (i, x) in row.iter().enumerate() {
                    let weights = &parameters[wire.weights + (t * c + i) * m..][..m];
                    sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * w);
                }
            }
            let put = &mut grids[wire.to.buffer][own * out + wire.to.columns.start..][..m];
            put.iter_mut()
                .zip(sums)
                .for_each(|(to, sum)| *to = if wire.relu { sum.max(0.0) } else { sum });
        }
    }
    let (logits, classes) = (&grids[grids.len() - 1], wiring.buffers[grids.len() - 1].1);
    let rows = scan.voxels.iter().map(|v| &logits[cell(0, place(v)) * classes..][..classes]);
    Ok(rows.flatten().copied().collect())
}

/// Returns kernel offsets and the input cells that an output cell reads. Cells past the edge have huge indices.
fn neighbours(wire: &Wire, own: [usize; 3]) -> Vec<(usize, [usize; 3])> {
    let offset = |t: usize, k: usize| [t / (k * k), t / k % k, t % k];
    let at = |f: &dyn Fn(usize) -> usize| std::array::from_fn(f);
    match wire.walk {
        Walk::Same => {
            (0..27).map(|t| (t, at(&|i| (own[i] + offset(t, 3)[i]).wrapping_sub(1)))).collect()
        }
        Walk::Down => (0..8).map(|t| (t, at(&|i| 2 * own[i] + offset(t, 2)[i]))).collect(),
        Walk::Up => {
            let [x, y, z] = own.map(|x| x % 2);
            vec![((x * 2 + y) * 2 + z, own.map(|x| x / 2))]
        }
        Walk::Each => vec![(0, own)],
    }
}
