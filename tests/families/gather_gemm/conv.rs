//! Sparse convolutions against sums over pairs, which a standard `HashMap` of voxels finds. Cases: odd and even
//! kernels, strides, channels that do not fill a tile, strided operands, bias and ReLU, both gradients. Values are
//! integers, so results must be equal. The CPU runs the same suite.

mod lists;

use crate::support::assert_error;
use crate::support::rows::kernels_here;
use std::collections::HashMap;
use std::sync::Arc;

use crate::support::dense::{nan, strided};
use crate::support::runs::finish;
use crate::support::{GUARD, Rng, gpu, small};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, KernelMapBuilder, SparseConv3d};
use einsparse::registry::{Dtype, Row};
use einsparse::{Context, Error, Precision, Scalar, Tensor};

/// Returns `count` distinct voxels in a box.
pub fn cloud(count: usize, side: i32, seed: u64) -> Vec<[i32; 4]> {
    let mut rng = Rng(seed);
    let mut seen = HashMap::new();
    let mut voxels = Vec::new();
    while voxels.len() < count {
        let mut at = || (rng.word() >> 33) as i32 % side - side / 2;
        let voxel = [at().rem_euclid(2), at(), at(), at()];
        if seen.insert(voxel, ()).is_none() {
            voxels.push(voxel);
        }
    }
    voxels
}

/// Offset, input and output of every pair.
type Pairs = Vec<(usize, usize, usize)>;

/// Returns output voxels and pairs, by definition.
fn pairs(voxels: &[[i32; 4]], kernel: [i32; 3], stride: [i32; 3]) -> (Vec<[i32; 4]>, Pairs) {
    let places: HashMap<[i32; 4], usize> =
        voxels.iter().enumerate().map(|(i, &v)| (v, i)).collect();
    let mut out: Vec<[i32; 4]> = Vec::new();
    for v in voxels {
        let down = |axis: usize| (f64::from(v[axis + 1]) / f64::from(stride[axis])).floor() as i32;
        let at = [v[0], down(0), down(1), down(2)];
        if !out.contains(&at) {
            out.push(at);
        }
    }
    let mut all = Vec::new();
    let first = kernel.map(|k| if k % 2 == 1 { -(k / 2) } else { 0 });
    for (o, v) in out.iter().enumerate() {
        let mut t = 0;
        for x in 0..kernel[0] {
            for y in 0..kernel[1] {
                for z in 0..kernel[2] {
                    let offset = [x + first[0], y + first[1], z + first[2]];
                    let at = |axis: usize| v[axis + 1] * stride[axis] + offset[axis];
                    if let Some(&i) = places.get(&[v[0], at(0), at(1), at(2)]) {
                        all.push((t, i, o));
                    }
                    t += 1;
                }
            }
        }
    }
    (out, all)
}

/// Uploads a matrix or stack of integers whose row stride exceeds the row by `gap` elements.
fn operand<T: Scalar>(
    ctx: &Context,
    shape: &[usize],
    gap: usize,
    rng: &mut Rng,
) -> (Vec<f64>, Tensor<T>) {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.integer()).collect();
    let own = values.iter().map(|&x| T::from_f64(x)).collect();
    let dense = Dense::new(shape.to_vec(), own).unwrap();
    let leading = shape.last().unwrap() + gap;
    let tensor = strided(ctx, &dense, leading, T::from_f64(f64::NAN));
    (values, tensor)
}

/// Output of a run. It starts as NaN, and the elements between its rows are checked after the run.
struct Out<T> {
    tensor: Tensor<T>,
    shape: Vec<usize>,
}

impl<T: Scalar> Out<T> {
    fn new(ctx: &Context, shape: &[usize], gap: usize) -> Out<T> {
        let leading = shape.last().unwrap() + gap;
        let tensor = strided(ctx, &nan(shape), leading, T::from_f64(GUARD));
        Out { tensor, shape: shape.to_vec() }
    }

    fn assert(&self, wanted: &[f64], what: &str) {
        let width = *self.shape.last().unwrap();
        let leading = self.tensor.leading().max(1);
        for (row, got) in self.tensor.to_storage().unwrap().chunks(leading).enumerate() {
            for (column, got) in got.iter().enumerate() {
                let wanted = if column < width {
                    T::from_f64(wanted[row * width + column])
                } else {
                    T::from_f64(GUARD)
                };
                assert!(*got == wanted, "{what}: ({row}, {column}) is {got}, not {wanted}");
            }
        }
    }
}

struct Case<'a> {
    voxels: &'a [[i32; 4]],
    kernel: [usize; 3],
    stride: [usize; 3],
    channels: [usize; 2],
    gap: usize,
}

/// Compares forward with bias and ReLU, and both gradients, with the reference.
fn agree<T: Scalar>(ctx: &Context, case: &Case<'_>, options: &ConvOptions) {
    let geometry = ConvGeometry::new(case.kernel, case.stride, [1; 3]).unwrap();
    let map = Arc::new(KernelMap::new(ctx, case.voxels, &geometry).unwrap());
    let (out, pairs) =
        pairs(case.voxels, case.kernel.map(|k| k as i32), case.stride.map(|s| s as i32));
    assert_eq!(map.voxels(), out);
    assert_eq!(map.pairs().unwrap().0, pairs.len());
    let ([c, m], gap) = (case.channels, case.gap);
    let (inputs, outputs, volume) = (case.voxels.len(), out.len(), map.volume());
    let mut rng = Rng(7);
    let (x, input) = operand::<T>(ctx, &[inputs, c], gap, &mut rng);
    let (w, weights) = operand::<T>(ctx, &[volume, c, m], gap, &mut rng);
    let (b, bias) = operand::<T>(ctx, &[m], 0, &mut rng);
    let (g, gradient) = operand::<T>(ctx, &[outputs, m], gap, &mut rng);
    let conv = SparseConv3d::<T>::new(&map, [c, m], options).unwrap();
    let what = format!(
        "{} {:?} {:?} {c}x{m} +{gap} {:?}",
        conv.variant(),
        case.kernel,
        case.stride,
        T::DTYPE
    );
    let mut sums = vec![0.0; outputs * m];
    let mut to_input = vec![0.0; inputs * c];
    let mut to_weights = vec![0.0; volume * c * m];
    for &(t, i, o) in &pairs {
        for k in 0..c {
            for j in 0..m {
                let weight = (t * c + k) * m + j;
                sums[o * m + j] += x[i * c + k] * w[weight];
                to_input[i * c + k] += g[o * m + j] * w[weight];
                to_weights[weight] += x[i * c + k] * g[o * m + j];
            }
        }
    }
    let mut plain = Out::new(ctx, &[outputs, m], gap);
    finish(ctx, |stream| conv.forward(&input, &weights, None, &mut plain.tensor, stream));
    plain.assert(&sums, &what);
    let options = ConvOptions { relu: true, ..options.clone() };
    let clamped = SparseConv3d::<T>::new(&map, [c, m], &options).unwrap();
    let mut out = Out::new(ctx, &[outputs, m], gap);
    finish(ctx, |stream| clamped.forward(&input, &weights, Some(&bias), &mut out.tensor, stream));
    let finished: Vec<f64> = (0..outputs * m).map(|at| (sums[at] + b[at % m]).max(0.0)).collect();
    out.assert(&finished, &format!("{what}, bias and ReLU"));
    let mut out = Out::new(ctx, &[outputs, m], gap);
    finish(ctx, |stream| clamped.forward(&input, &weights, None, &mut out.tensor, stream));
    let clamped: Vec<f64> = sums.iter().map(|sum| sum.max(0.0)).collect();
    out.assert(&clamped, &format!("{what}, ReLU alone"));
    let mut out = Out::new(ctx, &[inputs, c], gap);
    finish(ctx, |stream| conv.backward_input(&weights, &gradient, &mut out.tensor, stream));
    out.assert(&to_input, &format!("{what}, gradient of the input"));
    let mut out = Out::<T>::new(ctx, &[volume, c, m], gap);
    finish(ctx, |stream| conv.backward_weight(&input, &gradient, &mut out.tensor, stream));
    out.assert(&to_weights, &format!("{what}, gradient of the weights"));
    let mut out = Out::<f32>::new(ctx, &[volume, c, m], gap);
    finish(ctx, |stream| conv.backward_weight(&input, &gradient, &mut out.tensor, stream));
    out.assert(&to_weights, &format!("{what}, gradient of the weights in f32"));
}

const GEOMETRIES: &[([usize; 3], [usize; 3])] = &[
    ([3, 3, 3], [1, 1, 1]),
    ([2, 2, 2], [2, 2, 2]),
    ([3, 3, 3], [2, 2, 2]),
    ([1, 1, 1], [1, 1, 1]),
    ([5, 3, 1], [1, 1, 1]),
    ([5, 5, 5], [1, 2, 3]),
];

const CHANNELS: &[([usize; 2], usize)] = &[
    ([16, 16], 0),
    ([64, 64], 0),
    ([64, 128], 8),
    ([24, 40], 0),
    ([128, 96], 0),
    ([128, 64], 0),
    ([72, 200], 8),
    ([13, 7], 1),
    ([1, 65], 0),
    ([0, 8], 0),
];

fn suite<T: Scalar>(ctx: &Context, options: &ConvOptions) {
    let counts: &[usize] = if small() { &[130] } else { &[0, 1, 63, 129, 300, 900] };
    for &count in counts {
        let voxels = cloud(count, 12, 3 + count as u64);
        for (g, &(kernel, stride)) in GEOMETRIES.iter().enumerate() {
            for (i, &(channels, gap)) in CHANNELS.iter().enumerate() {
                // Covers every geometry and every shape, but not all combinations.
                if count < 900 && (i + g) % 4 != 0 || count == 900 && g > 0 && (i + g) % 3 != 0 {
                    continue;
                }
                let voxels = &voxels;
                agree::<T>(ctx, &Case { voxels, kernel, stride, channels, gap }, options);
            }
        }
    }
}

fn tf32() -> ConvOptions {
    ConvOptions { precision: Precision::Tf32, ..ConvOptions::default() }
}

#[test]
fn convolutions_agree_on_the_cpu() {
    suite::<f32>(&Context::unchecked_cpu(), &ConvOptions::default());
    suite::<f64>(&Context::unchecked_cpu(), &ConvOptions::default());
}

#[test]
fn convolutions_of_halves_agree() {
    let Some(gpu) = gpu() else { return };
    suite::<f16>(&gpu, &ConvOptions::default());
    suite::<bf16>(&gpu, &ConvOptions::default());
}

#[test]
fn convolutions_of_f32_agree() {
    let Some(gpu) = gpu() else { return };
    suite::<f32>(&gpu, &ConvOptions::default());
}

#[test]
fn convolutions_in_tf32_agree() {
    let Some(gpu) = gpu() else { return };
    suite::<f32>(&gpu, &tf32());
}

/// Runs the kernels of other GPUs by name: those for less shared memory, and those without `wgmma`. The latter are not
/// built for a GPU with `wgmma`; they run with `EINSPARSE_ARCH=sm_80` or `sm_86`, which also run the suites above.
#[test]
fn convolutions_of_other_gpus_agree() {
    fn all<T: Scalar>(gpu: &Context, dtype: Dtype, options: &ConvOptions) {
        let others = |row: &&Row| row.module == "conv_mma" || row.name.contains("_any_64x128");
        for row in kernels_here().filter(others).filter(|row| row.dtype == dtype) {
            let options = ConvOptions { variant: Some(row.name.into()), ..options.clone() };
            let geometries = &GEOMETRIES[..if small() { 1 } else { GEOMETRIES.len() }];
            for (i, &(kernel, stride)) in geometries.iter().enumerate() {
                let shapes =
                    [([72, 200], 8), ([16, 16], 0), ([24, 40], 8), ([128, 64], 0), ([64, 128], 0)];
                for (channels, gap) in shapes.into_iter().take(if small() { 1 } else { 5 }) {
                    let voxels = &cloud(129 + 200 * i, 12, 5);
                    let case = Case { voxels, kernel, stride, channels, gap };
                    agree::<T>(gpu, &case, &options);
                }
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    let full = ConvOptions::default();
    all::<f16>(&gpu, Dtype::F16, &full);
    all::<bf16>(&gpu, Dtype::Bf16, &full);
    all::<f32>(&gpu, Dtype::F32, &full);
    all::<f32>(&gpu, Dtype::Tf32, &tf32());
}

/// Kernel maps made on the GPU have the same bits as the CPU's, also transposed and rebuilt.
#[test]
fn maps_of_gpu_and_cpu_have_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    let words = |map: &KernelMap| map.to_words().unwrap();
    for count in [0, 1, 130, 900, if small() { 2000 } else { 60_000 }] {
        let voxels = cloud(count, 90, 3);
        for &(kernel, stride) in GEOMETRIES {
            let geometry = ConvGeometry::new(kernel, stride, [1; 3]).unwrap();
            let host = KernelMap::new(&cpu, &voxels, &geometry).unwrap();
            let made = KernelMap::new(&gpu, &voxels, &geometry).unwrap();
            let what = format!("{count} {kernel:?} {stride:?}");
            assert_eq!(host.voxels(), made.voxels(), "{what}");
            assert!(words(&host) == words(&made), "{what}");
            let turned = [&host, &made].map(|map| words(map.transposed().unwrap()));
            assert!(turned[0] == turned[1], "{what}, transposed");
        }
        let geometry = ConvGeometry::new([3; 3], [1; 3], [2; 3]).unwrap();
        let other = cloud(count, 80, 11);
        let map = KernelMap::new(&gpu, &voxels, &geometry).unwrap();
        let builder = KernelMapBuilder::new(&gpu, count, &geometry).unwrap();
        let dense = Dense::new([count, 4], other.iter().flatten().copied().collect()).unwrap();
        let on_device = gpu.upload_dense::<i32>(&dense).unwrap();
        finish(&gpu, |stream| builder.rebuild(&map, &on_device, stream));
        let host = KernelMap::new(&cpu, &other, &geometry).unwrap();
        assert!(words(&host) == words(&map), "{count}, rebuilt");
        // The reversed cloud has the same number of outputs, in another order.
        let geometry = ConvGeometry::new([2; 3], [2; 3], [1; 3]).unwrap();
        let reversed: Vec<[i32; 4]> = other.iter().rev().copied().collect();
        let map = KernelMap::new(&gpu, &reversed, &geometry).unwrap();
        map.transposed().unwrap();
        let sizes = [count, map.outputs()];
        let builder = KernelMapBuilder::strided(&gpu, sizes, &geometry).unwrap();
        let mut out = gpu.zeros::<i32>(&[map.outputs(), 4]).unwrap();
        finish(&gpu, |stream| builder.rebuild_strided(&map, &on_device, &mut out, stream));
        let host = KernelMap::new(&cpu, &other, &geometry).unwrap();
        assert_eq!(out.to_dense().unwrap().values(), host.voxels().concat());
        assert!(words(&host) == words(&map), "{count}, rebuilt with strides");
        let turned = [&host, &map].map(|map| words(map.transposed().unwrap()));
        assert!(turned[0] == turned[1], "{count}, rebuilt and transposed");
    }
}

/// Errors name the user's mistake.
#[test]
fn mistakes_are_named() {
    let cpu = Context::unchecked_cpu();
    let text =
        |voxels: &[[i32; 4]]| KernelMap::submanifold(&cpu, voxels, [3; 3]).unwrap_err().to_string();
    let twice = text(&[[0, 1, 2, 3], [0; 4], [0, 1, 2, 3]]);
    assert!(twice.contains("voxels 0 and 2 are both [0, 1, 2, 3]"), "{twice}");
    let far = text(&[[0, 1 << 30, 0, 0]]);
    assert!(far.contains("voxel 0"), "{far}");
    assert!(ConvGeometry::new([3, 0, 3], [1; 3], [1; 3]).is_err());
    let map = Arc::new(KernelMap::submanifold(&cpu, &[[0; 4]], [3; 3]).unwrap());
    let conv = SparseConv3d::<f32>::new(&map, [2, 2], &ConvOptions::default()).unwrap();
    let [input, weights] = [vec![1, 3], vec![27, 2, 2]].map(|s| cpu.zeros::<f32>(&s).unwrap());
    let mut out = cpu.zeros::<f32>(&[1, 2]).unwrap();
    let stream = cpu.stream().unwrap();
    let error = conv.forward(&input, &weights, None, &mut out, &stream).unwrap_err();
    assert_error!(
        error,
        Error::Shape { left, right, .. } if left.contains("[1, 2]") && right.contains("[1, 3]")
    );
}

/// A missing neighbor is not multiplied on the CPU, nor by the gradient of the weights on any device. GPU kernels that
/// do multiply it are refused under `ZerosRule::Strict`.
#[test]
fn what_is_missing_is_not_multiplied() {
    let check = |ctx: &Context| {
        let voxels = [[0; 4], [0, 50, 0, 0]];
        let map = Arc::new(KernelMap::submanifold(ctx, &voxels, [3; 3]).unwrap());
        let conv = SparseConv3d::<f16>::new(&map, [16, 16], &ConvOptions::default()).unwrap();
        let ones = |shape: &[usize]| Dense::from_fn(shape.to_vec(), |_| f16::ONE).unwrap();
        let nan = Dense::from_fn([2, 16], |i| if i[0] == 1 { f16::NAN } else { f16::ONE });
        let input = ctx.upload_dense(&ones(&[2, 16])).unwrap();
        let gradient = ctx.upload_dense(&nan.unwrap()).unwrap();
        let mut out = ctx.zeros::<f16>(&[27, 16, 16]).unwrap();
        finish(ctx, |stream| conv.backward_weight(&input, &gradient, &mut out, stream));
        for (at, x) in out.to_dense().unwrap().values().iter().enumerate() {
            assert_eq!(x.is_nan(), at / 256 == 13, "{at}");
        }
    };
    check(&Context::unchecked_cpu());
    let Some(gpu) = gpu() else { return };
    check(&gpu);
    let map = Arc::new(KernelMap::submanifold(&gpu, &[[0; 4]], [3; 3]).unwrap());
    let options = ConvOptions { zeros: einsparse::ZerosRule::Strict, ..ConvOptions::default() };
    let refused = SparseConv3d::<f16>::new(&map, [16, 16], &options).unwrap_err().to_string();
    assert!(refused.contains("Strict"), "{refused}");
}
