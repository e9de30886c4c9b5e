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
        let host = KernelMap::submanifold(&Context::cpu(), &self.voxels, [3; 3])?;
        let (pairs, rows) = map.pairs()?;
        let share = rows as f64 / pairs as f64;
        let note =
            format!("rows multiplied {share:.3} of the pairs; PyTorch 4.2 ms, published apart");
        let row = self.row(0, "int32").ours("kernel_map").note(note);
        bench.checked(
            row.prepared(None, builder.bytes() + map.bytes()),
            &mut (),
            |()| builder.rebuild(&map, &voxels, &bench.stream),
            |()| Ok(exact(map.to_words()? == host.to_words()?)),
        )?;
        Ok(())
    }

    /// Row of the record with the values that all rows share.
    fn row(&self, channels: usize, dtype: &str) -> Row {
        let count = self.voxels.len();
        let workload = match channels {
            0 => format!("{}-map", self.name),
            _ => format!("{}-c{channels}", self.name),
        };
        let row = Row::new(OP, workload, [count, count, channels], self.pairs, dtype).dense();
        match channels {
            0 => row,
            _ => row.flops(2.0 * (self.pairs * channels * channels) as f64),
        }
    }

    /// Measures the three products of a convolution, and cuBLAS. Tests check the gradients.
    fn forms<T: Scalar>(&self, c: usize, kind: Dtype) -> Result<()> {
        let (n, dtype) = (self.voxels.len(), &*kind.to_string());
        let (input, weights) =
            (values::dense::<T>(&[n, c], 1, NORMAL), values::dense::<T>(&[27, c, c], 2, NORMAL));
        let [x, w] = &self.bench.uploads([&input, &weights])?;
        let mut taken = "";
        for variant in [None].into_iter().chain(beside(dtype, c).iter().copied().map(Some)) {
            let known = |name| name != taken && self.bench.kernels().any(|row| row.name == name);
            if !variant.is_none_or(known) {
                continue;
            }
            let options = ConvOptions {
                precision: precise(kind).precision,
                variant: variant.map(str::to_owned),
                ..ConvOptions::default()
            };
            let conv = SparseConv3d::<T>::new(&self.map, [c, c], &options)?;
            let row = self.row(c, dtype).ours(conv.variant());
            let row = match variant {
                None => row
                    .prepared(None, self.map.bytes() + conv.workspace_bytes())
                    .note(published(dtype, c)),
                Some(_) => row.note("not taken"),
            };
            let mut out = self.bench.poisoned::<T>(&[n, c])?;
            self.bench.checked(
                row,
                &mut out,
                |out| conv.forward(x, w, None, out, &self.bench.stream),
                |out| self.error((&input, &weights), out, unit(kind)),
            )?;
            if variant.is_some() {
                continue;
            }
            taken = conv.variant();
            let bench = self.bench.anew()?;
            bench.time(self.row(c, dtype).ours("input_gradient"), || {
                conv.backward_input(w, x, &mut out, &bench.stream)
            })?;
            let mut to_weights = bench.zeros::<T>(&[27, c, c])?;
            let row = self.row(c, dtype).ours("weight_gradient");
            bench.time(row.prepared(None, conv.workspace_bytes()), || {
                conv.backward_weight(x, x, &mut to_weights, &bench.stream)
            })?;
        }
        // cuBLAS on as many products, with gathered rows.
        let values = Values::new(kind);
        let (a, b) = (values.upload(self.pairs * c, 0)?, values.upload(c * c, 77)?);
        let note = "as many products, rows gathered before, sums of offsets left out";
        let row = self.row(c, dtype).named("one dense product").note(note);
        self.bench.whole(row, (kind, [self.pairs, c, c], Order::Rows), [a.ptr, b.ptr])
    }

    /// Max error of a sample of rows, in multiples of its bound: rounding of two operands (TF32) or of the result, and
    /// of sums in f32.
    fn error<T: Scalar>(
        &self,
        (input, weights): (&Dense<T>, &Dense<T>),
        out: &Tensor<T>,
        unit: f64,
    ) -> Result<f64> {
        let c = input.shape()[1];
        let voxels = &self.voxels;
        let places: HashMap<[i32; 4], usize> = voxels.iter().copied().zip(0..).collect();
        let terms = |o: usize, sums: &mut [Sum]| {
            let v = voxels[o];
            for t in 0..27usize {
                let offset = [t / 9, t / 3 % 3, t % 3].map(|x| x as i32 - 1);
                let at = [v[0], v[1] + offset[0], v[2] + offset[1], v[3] + offset[2]];
                let Some(&i) = places.get(&at) else { continue };
                for k in 0..c {
                    let x = input.values()[i * c + k].to_f64();
                    add_line(sums, x, &weights.values()[(t * c + k) * c..]);
                }
            }
        };
        let rows = (0..voxels.len()).step_by(EVERY);
        Ok(rows_error(out.to_dense()?.values(), c, rows, terms, relative(2.0 * unit + 1e-5)))
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
        ("f16", 64) => "Insum 0.0937 ms, its lazy form 0.0763, PyTorch 1.27",
        ("f16", 128) => "Insum 0.237 ms, its lazy form 0.183, PyTorch 1.84",
        ("tf32", 64) => "Insum 0.191 ms, its lazy form 0.158, PyTorch 1.39",
        ("tf32", 128) => "Insum 0.628 ms, its lazy form 0.610, PyTorch 2.04",
        ("f32", 64) => "PyTorch 1.51 ms",
        ("f32", 128) => "PyTorch 2.70 ms",
        ("bf16", 64) => "PyTorch 1.31 ms",
        ("bf16", 128) => "PyTorch 1.86 ms",
        _ => "",
    }
}
