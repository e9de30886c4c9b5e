//! Sparse convolution, 3 x 3 x 3 submanifold, on a scanned office (EINSPARSE_DATA/point-cloud/office.csv; without it a shell of
//! random voxels): forward, the gradients of input and weights, and the kernel map.
//!
//! `m` = `k` are voxels, `n` the channels in and out, `nnz` the pairs of voxels that meet; rates count the pairs' products
//! alone. A sample of rows is checked in f64. Beside it cuBLAS multiplies dense matrices with as many products, the pairs'
//! rows already gathered: neither gathering nor adding up is in its time.

use crate::case::Values;
use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{Dense, bf16, f16, generate};
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, KernelMapBuilder, SparseConv3d, Voxel};
use einsparse::{Context, Precision, Scalar, Stream, Tensor};
use std::collections::HashMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

/// Every so-manyth row is checked.
const EVERY: usize = 977;
const CHANNELS: [usize; 2] = [64, 128];

/// What all cases share.
struct Cloud {
    name: &'static str,
    voxels: Vec<Voxel>,
    map: Arc<KernelMap>,
    pairs: usize,
}

/// Measures every case.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let (name, voxels) = voxels()?;
    let map = KernelMap::submanifold(&context, &voxels, [3; 3]).map_err(text)?;
    let pairs = map.pairs().map_err(text)?.0;
    let map = Arc::new(map);
    let cloud = Cloud {
        name,
        voxels,
        map,
        pairs,
    };
    kernel_map(gpu, effort, recorder, &context, &cloud)?;
    let mut wrong = Vec::new();
    for channels in CHANNELS {
        let full = Precision::Full;
        let right = [
            forms::<f16>(gpu, effort, recorder, (&context, &cloud), channels, full)?,
            forms::<bf16>(gpu, effort, recorder, (&context, &cloud), channels, full)?,
            forms::<f32>(
                gpu,
                effort,
                recorder,
                (&context, &cloud),
                channels,
                Precision::Tf32,
            )?,
            forms::<f32>(gpu, effort, recorder, (&context, &cloud), channels, full)?,
        ];
        if right.contains(&false) {
            wrong.push(format!("{name}-c{channels}"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("wrong: {}", wrong.join(", "))),
    }
}

/// The office, or the surface of a box with a third of its voxels missing.
pub fn voxels() -> Result<(&'static str, Vec<Voxel>)> {
    let data = std::env::var_os("EINSPARSE_DATA").map_or("data".into(), PathBuf::from);
    let path = data.join("point-cloud/office.csv");
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
            _ => Err(format!("{}: {line:?} is no voxel", path.display())),
        }
    };
    let voxels: Result<Vec<Voxel>> = file.lines().skip(1).map(line).collect();
    Ok(("office", voxels?))
}

fn kernel_map(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    context: &Context,
    cloud: &Cloud,
) -> Result<()> {
    let geometry = ConvGeometry::new([3; 3], [1; 3], [1; 3]).map_err(text)?;
    let count = cloud.voxels.len();
    let builder = KernelMapBuilder::new(context, count, &geometry).map_err(text)?;
    let mut map = KernelMap::submanifold(context, &cloud.voxels, [3; 3]).map_err(text)?;
    let words = cloud.voxels.iter().flatten().copied().collect();
    let dense = Dense::new([count, 4], words).map_err(text)?;
    let voxels = context.upload_dense::<i32>(&dense).map_err(text)?;
    let stream = stream(gpu);
    let times = measure(gpu, effort, &mut || {
        builder.rebuild(&mut map, &voxels, &stream).map_err(text)
    })?;
    let host = KernelMap::submanifold(&Context::cpu(), &cloud.voxels, [3; 3]).map_err(text)?;
    let right = map.to_words().map_err(text)? == host.to_words().map_err(text)?;
    let (pairs, rows) = map.pairs().map_err(text)?;
    recorder.add(Row {
        variant: "kernel_map".into(),
        prepared_bytes: Some(builder.bytes() + map.bytes()),
        note: format!(
            "{}rows multiplied {:.3} of the pairs; PyTorch 4.2 ms, published apart",
            if right { "" } else { "WRONG: " },
            rows as f64 / pairs as f64
        ),
        dtype: "int32".into(),
        ..row(cloud, 0, "", times, right)
    })?;
    match right {
        true => Ok(()),
        false => Err("the map of the GPU is not that of the CPU".into()),
    }
}

/// What all rows of the record share.
fn row(cloud: &Cloud, channels: usize, dtype: &str, times: Times, right: bool) -> Row {
    let flops = 2.0 * (cloud.pairs * channels * channels) as f64;
    Row {
        op: "conv".into(),
        workload: match channels {
            0 => format!("{}-map", cloud.name),
            _ => format!("{}-c{channels}", cloud.name),
        },
        m: cloud.voxels.len(),
        k: cloud.voxels.len(),
        n: channels,
        nnz: cloud.pairs,
        dtype: dtype.into(),
        engine: "einsparse".into(),
        ms: if right { times.cold } else { f64::NAN },
        ms_warm: Some(times.warm),
        gflops: (channels > 0).then_some(flops / times.cold / 1e6),
        zeros: "dense".into(),
        ..Row::default()
    }
}

/// The three products of a convolution, and cuBLAS beside them.
fn forms<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (context, cloud): (&Context, &Cloud),
    c: usize,
    precision: Precision,
) -> Result<bool> {
    let n = cloud.voxels.len();
    let dtype = match precision {
        Precision::Tf32 => "tf32",
        Precision::Full => T::DTYPE.name(),
    };
    let options = ConvOptions {
        precision,
        ..ConvOptions::default()
    };
    let conv = SparseConv3d::<T>::new(&cloud.map, [c, c], &options).map_err(text)?;
    let host = [(vec![n, c], 1), (vec![27, c, c], 2)].map(|(shape, seed)| {
        let values = generate::random_values::<T>(shape.iter().product(), SEED + seed);
        Dense::new(shape, values).map_err(text)
    });
    let [input, weights] = host;
    let (input, weights) = (input?, weights?);
    let (x, w) = (
        context.upload_dense(&input).map_err(text)?,
        context.upload_dense(&weights).map_err(text)?,
    );
    let stream = stream(gpu);
    let mut out = context.zeros::<T>(&[n, c]).map_err(text)?;
    let times = measure(gpu, effort, &mut || {
        conv.run(&x, &w, None, &mut out, &stream).map_err(text)
    })?;
    let worst = error(cloud, (&input, &weights), &out, unit(dtype))?;
    let right = worst <= 1.0;
    let note = format!("err {worst:.2} of the bound{}", published(dtype, c));
    recorder.add(Row {
        variant: conv.variant().into(),
        note,
        prepared_bytes: Some(cloud.map.bytes() + conv.workspace_bytes()),
        ..row(cloud, c, dtype, times, right)
    })?;
    let others = beside(dtype, c)
        .iter()
        .filter(|name| **name != conv.variant());
    for &variant in others {
        let options = ConvOptions {
            variant: Some(variant.into()),
            ..options.clone()
        };
        let conv = SparseConv3d::<T>::new(&cloud.map, [c, c], &options).map_err(text)?;
        let times = measure(gpu, effort, &mut || {
            conv.run(&x, &w, None, &mut out, &stream).map_err(text)
        })?;
        let wrong = error(cloud, (&input, &weights), &out, unit(dtype))?;
        recorder.add(Row {
            variant: variant.into(),
            note: format!("not taken; err {wrong:.2} of the bound"),
            ..row(cloud, c, dtype, times, wrong <= 1.0)
        })?;
    }
    gradients(gpu, effort, recorder, cloud, (&conv, &x, &w), dtype)?;
    dense(gpu, effort, recorder, cloud, c, (dtype, size_of::<T>()))?;
    Ok(right)
}

/// The other kernels of the forward pass.
fn beside(dtype: &str, channels: usize) -> &'static [&'static str] {
    match (dtype, channels) {
        ("f16", 64) => &["conv_f16_n128"],
        ("f16", _) => &["conv_f16_n64"],
        ("tf32", 128) => &["conv_tf32_turned_n64"],
        ("f32", 128) => &["conv_simt_f32_128x64"],
        _ => &[],
    }
}

/// Both gradients; the tests check what they are.
fn gradients<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    cloud: &Cloud,
    (conv, x, w): (&SparseConv3d<T>, &Tensor<T>, &Tensor<T>),
    dtype: &str,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let stream = stream(gpu);
    let (n, c) = (x.shape()[0], x.shape()[1]);
    let mut to_input = context.zeros::<T>(&[n, c]).map_err(text)?;
    let input_times = measure(gpu, effort, &mut || {
        conv.run_input_gradient(x, w, &mut to_input, &stream)
            .map_err(text)
    })?;
    recorder.add(Row {
        variant: "input_gradient".into(),
        ..row(cloud, c, dtype, input_times, true)
    })?;
    let mut to_weights = context.zeros::<T>(&[27, c, c]).map_err(text)?;
    let weight_times = measure(gpu, effort, &mut || {
        conv.run_weight_gradient(x, x, &mut to_weights, &stream)
            .map_err(text)
    })?;
    recorder.add(Row {
        variant: "weight_gradient".into(),
        prepared_bytes: Some(conv.workspace_bytes()),
        ..row(cloud, c, dtype, weight_times, true)
    })?;
    Ok(())
}

/// cuBLAS on as many products, gathered already.
fn dense(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    cloud: &Cloud,
    c: usize,
    (dtype, bytes): (&str, usize),
) -> Result<()> {
    let Ok(cublas) = CuBlas::open(gpu, dtype == "tf32") else {
        return Ok(());
    };
    let kind = match dtype {
        "f16" => Dtype::F16,
        "bf16" => Dtype::Bf16,
        "tf32" => Dtype::Tf32,
        _ => Dtype::F32,
    };
    let values = Values::new(kind);
    let (a, b) = (
        values.upload(cloud.pairs * c, 0)?,
        values.upload(c * c, 77)?,
    );
    let to = Buffer::new(cloud.pairs * c * bytes)?;
    let times = measure(gpu, effort, &mut || {
        cublas.gemm(kind, [cloud.pairs, c, c], [a.ptr, b.ptr, to.ptr])
    })?;
    recorder.add(Row {
        engine: if dtype == "tf32" {
            "cublas-tf32"
        } else {
            "cublas"
        }
        .into(),
        variant: "one dense product".into(),
        note: "as many products, rows gathered before, sums of offsets left out".into(),
        ..row(cloud, c, dtype, times, true)
    })
}

/// Half the distance of neighbours at 1 in the type of the operands or of what is stored.
fn unit(dtype: &str) -> f64 {
    match dtype {
        "f16" | "tf32" => f64::powi(2.0, -11),
        "bf16" => f64::powi(2.0, -8),
        _ => f64::powi(2.0, -24),
    }
}

/// The worst error of a sample of rows, in multiples of its bound.
fn error<T: Scalar>(
    cloud: &Cloud,
    (input, weights): (&Dense<T>, &Dense<T>),
    out: &Tensor<T>,
    unit: f64,
) -> Result<f64> {
    let c = input.shape()[1];
    let places: HashMap<Voxel, usize> = cloud.voxels.iter().copied().zip(0..).collect();
    let out = out.to_dense().map_err(text)?;
    let mut worst: f64 = 0.0;
    for (o, v) in cloud.voxels.iter().enumerate().step_by(EVERY) {
        let (mut sums, mut sizes) = (vec![0.0; c], vec![0.0; c]);
        for t in 0..27usize {
            let offset = [t / 9, t / 3 % 3, t % 3].map(|x| x as i32 - 1);
            let at = [v[0], v[1] + offset[0], v[2] + offset[1], v[3] + offset[2]];
            let Some(&i) = places.get(&at) else { continue };
            for k in 0..c {
                let x = input.values()[i * c + k].to_f64();
                for m in 0..c {
                    let product = x * weights.values()[(t * c + k) * c + m].to_f64();
                    sums[m] += product;
                    sizes[m] += product.abs();
                }
            }
        }
        for m in 0..c {
            let got = out.values()[o * c + m].to_f64();
            // Rounding of two operands (TF32) or of the result, and of sums in f32.
            let bound = (2.0 * unit + 1e-5) * sizes[m] + 1e-9;
            let error = (got - sums[m]).abs() / bound;
            worst = if error.is_nan() {
                f64::NAN
            } else {
                worst.max(error)
            };
        }
    }
    Ok(worst)
}

/// What others published on the same cloud and kind of GPU, cold.
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

fn stream(gpu: &Gpu) -> Stream {
    // SAFETY: the bench's stream belongs to the primary context and outlives every case.
    unsafe { Stream::from_raw(gpu.stream.cast()) }
}

fn text(e: impl Display) -> String {
    e.to_string()
}
