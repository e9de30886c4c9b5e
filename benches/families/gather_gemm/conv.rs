//! Sparse submanifold convolution, 3 x 3 x 3, on a scanned office (EINSPARSE_DATA/point-cloud/office.csv). If the file
//! is missing, a shell of random voxels is used. Measures the forward run, the gradients of input and weights, and the
//! kernel map.
//!
//! `m` = `k` are voxels, `n` the channels in and out, `nnz` the pairs of neighbouring voxels; rates count only the
//! products of the pairs. A sample of rows is checked in f64. The baseline is cuBLAS on dense matrices with as many
//! products, whose rows are already gathered. Its time excludes the gather and the sums.

use crate::case::Values;
use crate::prelude::*;
use crate::smtx::data_folder;
use einsparse::Precision;
use einsparse::formats::generate;
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, KernelMapBuilder, SparseConv3d};
use std::collections::HashMap;
use std::sync::Arc;

pub const OP: &str = "conv";
/// Stride of the checked rows.
const EVERY: usize = 977;
const CHANNELS: [usize; 2] = [64, 128];

/// Data that all cases share.
struct Cloud<'a> {
    bench: &'a Bench<'a>,
    name: &'static str,
    voxels: Vec<[i32; 4]>,
    map: Arc<KernelMap>,
    pairs: usize,
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let (name, voxels) = voxels()?;
    let map = KernelMap::submanifold(&bench.context, &voxels, [3; 3])?;
    let pairs = map.pairs()?.0;
    let cloud = Cloud { bench, name, voxels, map: Arc::new(map), pairs };
    cloud.kernel_map()?;
    for channels in CHANNELS {
        cloud.forms::<f16>(channels, Dtype::F16)?;
        cloud.forms::<bf16>(channels, Dtype::Bf16)?;
        cloud.forms::<f32>(channels, Dtype::Tf32)?;
        cloud.forms::<f32>(channels, Dtype::F32)?;
    }
    Ok(())
}

/// Voxels of the office, or the surface of a box without a third of its voxels.
pub fn voxels() -> Result<(&'static str, Vec<[i32; 4]>)> {
    let path = data_folder().join("point-cloud/office.csv");
    let Ok(file) = std::fs::read_to_string(&path) else {
        println!("no {}: a box's surface instead", path.display());
        let all = (0..150 * 150 * 4).map(|i| [0, i % 150, i / 150 % 150, i / 22_500]);
        let kept = all.filter(|v| (v[1] * 7 + v[2] * 13 + v[3] * 5) % 3 != 0);
        return Ok(("box", kept.collect()));
    };
    let line = |line: &str| {
        let words: Option<Vec<i32>> = line.split(',').map(|w| w.trim().parse().ok()).collect();
        match words.as_deref() {
            Some(&[x, y, z]) => Ok([0, x, y, z]),
            _ => Err(format!("{}: {line:?} is no voxel", path.display()).into()),
        }
    };
    let voxels: Result<Vec<[i32; 4]>> = file.lines().skip(1).map(line).collect();
    Ok(("office", voxels?))
}

impl Cloud<'_> {
    fn kernel_map(&self) -> Result<()> {
        let (bench, count) = (self.bench, self.voxels.len());
        let geometry = ConvGeometry::new([3; 3], [1; 3], [1; 3])?;
        let builder = KernelMapBuilder::new(&bench.context, count, &geometry)?;
        let map = KernelMap::submanifold(&bench.context, &self.voxels, [3; 3])?;
        let words = self.voxels.iter().flatten().copied().collect();
        let voxels = bench.tensor::<i32>(&[count, 4], words)?;
        let times = bench.measure(|| builder.rebuild(&map, &voxels, &bench.stream))?;
        let host = KernelMap::submanifold(&Context::cpu(), &self.voxels, [3; 3])?;
        let right = map.to_words()? == host.to_words()?;
        let (pairs, rows) = map.pairs()?;
        let share = rows as f64 / pairs as f64;
        let note =
            format!("rows multiplied {share:.3} of the pairs; PyTorch 4.2 ms, published apart");
        let row = self.row(0, "int32", &times).ours("kernel_map");
        let row = row.prepared(None, builder.bytes() + map.bytes());
        bench.add(row.judged(right, note))?;
        match right {
            true => Ok(()),
            false => Err("the map of the GPU is not that of the CPU".into()),
        }
    }

    /// Row of the record with the values that all rows share.
    fn row(&self, channels: usize, dtype: &str, times: &Times) -> Row {
        let count = self.voxels.len();
        let workload = match channels {
            0 => format!("{}-map", self.name),
            _ => format!("{}-c{channels}", self.name),
        };
        let row = Row::new(OP, workload, [count, count, channels], self.pairs, dtype);
        let row = row.timed(times).dense();
        match channels {
            0 => row,
            _ => row.flops(2.0 * (self.pairs * channels * channels) as f64),
        }
    }

    /// Measures the three products of a convolution, and cuBLAS.
    fn forms<T: Scalar>(&self, c: usize, kind: Dtype) -> Result<()> {
        let (bench, n, dtype) = (self.bench, self.voxels.len(), &*kind.to_string());
        let options = ConvOptions {
            precision: match kind {
                Dtype::Tf32 => Precision::Tf32,
                _ => Precision::Full,
            },
            ..ConvOptions::default()
        };
        let conv = SparseConv3d::<T>::new(&self.map, [c, c], &options)?;
        let drawn = |shape: Vec<usize>, seed| {
            let values = generate::random_values::<T>(shape.iter().product(), SEED + seed);
            Dense::new(shape, values)
        };
        let (input, weights) = (drawn(vec![n, c], 1)?, drawn(vec![27, c, c], 2)?);
        let (x, w) = (bench.upload(&input)?, bench.upload(&weights)?);
        let mut out = bench.zeros::<T>(&[n, c])?;
        let times = bench.measure(|| conv.forward(&x, &w, None, &mut out, &bench.stream))?;
        let worst = self.error((&input, &weights), &out, unit(kind))?;
        let note = format!("err {worst:.2} of the bound{}", published(dtype, c));
        let row = self.row(c, dtype, &times).ours(conv.variant());
        let row = row.prepared(None, self.map.bytes() + conv.workspace_bytes());
        bench.add(row.judged(worst <= 1.0, note))?;
        for &variant in beside(dtype, c) {
            if variant == conv.variant() || bench.kernels().all(|row| row.name != variant) {
                continue;
            }
            let options = ConvOptions { variant: Some(variant.into()), ..options.clone() };
            let conv = SparseConv3d::<T>::new(&self.map, [c, c], &options)?;
            let times = bench.measure(|| conv.forward(&x, &w, None, &mut out, &bench.stream))?;
            let worst = self.error((&input, &weights), &out, unit(kind))?;
            let note = format!("not taken; err {worst:.2} of the bound");
            let row = self.row(c, dtype, &times).ours(variant);
            bench.add(row.judged(worst <= 1.0, note))?;
        }
        self.gradients((&conv, &x, &w), dtype)?;
        self.dense(c, kind)
    }

    /// Measures both gradients. Tests check their values.
    fn gradients<T: Scalar>(
        &self,
        (conv, x, w): (&SparseConv3d<T>, &Tensor<T>, &Tensor<T>),
        dtype: &str,
    ) -> Result<()> {
        let bench = self.bench.anew()?;
        let (n, c, stream) = (x.shape()[0], x.shape()[1], &bench.stream);
        let mut to_input = bench.zeros::<T>(&[n, c])?;
        let times = bench.measure(|| conv.backward_input(w, x, &mut to_input, stream))?;
        bench.add(self.row(c, dtype, &times).ours("input_gradient"))?;
        let mut to_weights = bench.zeros::<T>(&[27, c, c])?;
        let times = bench.measure(|| conv.backward_weight(x, x, &mut to_weights, stream))?;
        let row = self.row(c, dtype, &times).ours("weight_gradient");
        bench.add(row.prepared(None, conv.workspace_bytes()))
    }

    /// Times cuBLAS on as many products, with gathered rows.
    fn dense(&self, c: usize, kind: Dtype) -> Result<()> {
        let Ok(cublas) = CuBlas::open(self.bench.gpu, kind == Dtype::Tf32) else {
            return Ok(());
        };
        let values = Values::new(kind);
        let a = values.upload(self.pairs * c, 0)?;
        let b = values.upload(c * c, 77)?;
        let to = Buffer::new(self.pairs * c * kind.size())?;
        let (extents, all) = ([self.pairs, c, c], [a.ptr, b.ptr, to.ptr]);
        let times = (self.bench).measure(|| cublas.gemm(kind, extents, all))?;
        let engine = match kind {
            Dtype::Tf32 => "cublas-tf32",
            _ => "cublas",
        };
        let note = "as many products, rows gathered before, sums of offsets left out";
        let row = self.row(c, &kind.to_string(), &times);
        self.bench.add(row.by(engine, "one dense product").note(note))
    }

    /// Max error of a sample of rows, in multiples of its bound.
    fn error<T: Scalar>(
        &self,
        (input, weights): (&Dense<T>, &Dense<T>),
        out: &Tensor<T>,
        unit: f64,
    ) -> Result<f64> {
        let c = input.shape()[1];
        let places: HashMap<[i32; 4], usize> = self.voxels.iter().copied().zip(0..).collect();
        let out = out.to_dense()?;
        let mut worst: f64 = 0.0;
        for (o, v) in self.voxels.iter().enumerate().step_by(EVERY) {
            let mut sums = vec![Sum::default(); c];
            for t in 0..27usize {
                let offset = [t / 9, t / 3 % 3, t % 3].map(|x| x as i32 - 1);
                let at = [v[0], v[1] + offset[0], v[2] + offset[1], v[3] + offset[2]];
                let Some(&i) = places.get(&at) else { continue };
                for k in 0..c {
                    let x = input.values()[i * c + k].to_f64();
                    let line = &weights.values()[(t * c + k) * c..][..c];
                    for (sum, w) in sums.iter_mut().zip(line) {
                        sum.add(x * w.to_f64());
                    }
                }
            }
            for (found, sum) in out.values()[o * c..][..c].iter().zip(sums) {
                // Bound: rounding of two operands (TF32) or of the result, and of sums in f32.
                let bound = (2.0 * unit + 1e-5) * sum.size + 1e-9;
                worst = worse(worst, (found.to_f64() - sum.value).abs() / bound);
            }
        }
        Ok(worst)
    }
}

/// Further kernels of the forward pass.
fn beside(dtype: &str, channels: usize) -> &'static [&'static str] {
    match (dtype, channels) {
        ("f16", 64) => &["conv_f16_n128"],
        ("f16", _) => &["conv_f16_n64"],
        ("tf32", 128) => &["conv_tf32_turned_n64"],
        ("f32", 128) => &["conv_simt_f32_128x64"],
        _ => &[],
    }
}

/// Half the distance of neighbours at 1, in the type of the operands or of the stored values.
fn unit(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 | Dtype::Tf32 => f64::powi(2.0, -11),
        Dtype::Bf16 => f64::powi(2.0, -8),
        _ => f64::powi(2.0, -24),
    }
}

/// Published times on the same cloud and kind of GPU, cold.
fn published(dtype: &str, channels: usize) -> &'static str {
    match (dtype, channels) {
        ("f16", 64) => "; Insum 0.0937 ms, its lazy form 0.0763, PyTorch 1.27",
        ("f16", 128) => "; Insum 0.237 ms, its lazy form 0.183, PyTorch 1.84",
        ("tf32", 64) => "; Insum 0.191 ms, its lazy form 0.158, PyTorch 1.39",
        ("tf32", 128) => "; Insum 0.628 ms, its lazy form 0.610, PyTorch 2.04",
        ("f32", 64) => "; PyTorch 1.51 ms",
        ("f32", 128) => "; PyTorch 2.70 ms",
        ("bf16", 64) => "; PyTorch 1.31 ms",
        ("bf16", 128) => "; PyTorch 1.86 ms",
        _ => "",
    }
}
