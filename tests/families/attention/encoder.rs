//! A Transformer layer over sequences of varying lengths: the GPU against the CPU, and against sequences run one by
//! one.

use crate::support::assert_error;
use crate::support::dense::{poisoned, upload, wide};
use crate::support::replay::Replay;
use crate::support::rows::here;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone, on_gpu};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Encoder, EncoderOptions, EncoderWeights, ResidualNorm};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Tensor};
use std::collections::BTreeSet;

/// Matrices and vectors of a layer in host memory.
pub(super) struct Model<T> {
    pub options: EncoderOptions,
    pub matrices: Vec<[Dense<T>; 2]>,
    norms: Vec<[Dense<T>; 2]>,
}

/// Matrices and vectors of a layer in a context.
pub(super) struct There<T> {
    pub matrices: Vec<[Tensor<T>; 2]>,
    norms: Vec<[Tensor<T>; 2]>,
}

pub(super) fn values<T: Scalar>(
    shape: &[usize],
    size: f64,
    around: f64,
    rng: &mut Rng,
) -> Dense<T> {
    let count = shape.iter().product();
    let values = (0..count).map(|_| T::from_f64(around + size * rng.unit()));
    Dense::new(shape.to_vec(), values.collect()).unwrap()
}

impl<T: Scalar> Model<T> {
    pub fn new(options: EncoderOptions) -> Self {
        Self::seeded(options, 17)
    }

    pub fn seeded(options: EncoderOptions, seed: u64) -> Self {
        let EncoderOptions { width, hidden, .. } = options;
        let mut rng = Rng(seed);
        let mut layer = |inputs: usize, outputs: usize| {
            let size = (3.0 / inputs as f64).sqrt();
            [
                values(&[inputs, outputs], size, 0.0, &mut rng),
                values(&[outputs], 0.1, 0.0, &mut rng),
            ]
        };
        let matrices = vec![
            layer(width, 3 * width),
            layer(width, width),
            layer(width, hidden),
            layer(hidden, width),
        ];
        let mut norm =
            || [values(&[width], 0.2, 1.0, &mut rng), values(&[width], 0.2, 0.0, &mut rng)];
        Model { options, matrices, norms: vec![norm(), norm()] }
    }

    pub fn x(&self, seed: u64) -> Dense<T> {
        let EncoderOptions { items, distance, width, .. } = self.options;
        values(&[items, distance, width], 1.0, 0.0, &mut Rng(seed))
    }

    pub fn upload(&self, context: &Context) -> There<T> {
        let both = |all: &Vec<[Dense<T>; 2]>| {
            let pairs = all.iter().map(|pair| upload(context, pair.each_ref()));
            pairs.collect()
        };
        There { matrices: both(&self.matrices), norms: both(&self.norms) }
    }

    /// Runs the layer in a context. Output rows past a sequence's length stay 77.
    pub fn run(&self, context: &Context, x: &Dense<T>, lengths: &[i32]) -> Vec<f64> {
        self.run_named(context, x, lengths).0
    }

    /// Returns the output and the names of the kernels of the products.
    fn run_named(
        &self,
        context: &Context,
        x: &Dense<T>,
        lengths: &[i32],
    ) -> (Vec<f64>, [&'static str; 4]) {
        let layer = Encoder::<T>::new(context, &self.options).unwrap();
        let there = self.upload(context);
        let x = context.upload_dense(x).unwrap();
        let lengths = Dense::new([lengths.len()], lengths.to_vec()).unwrap();
        let lengths = context.upload_dense(&lengths).unwrap();
        let mut out = self.marked(context);
        let stream = context.stream().unwrap();
        let times = if context.device().is_some() { 2 } else { 1 };
        for _ in 0..times {
            let weights = [there.weights()];
            layer.forward(&x, &lengths, &weights, &mut out, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        let [_, products @ ..] = layer.variants();
        (wide(&out), products)
    }

    pub fn marked(&self, context: &Context) -> Tensor<T> {
        let shape = self.x(0).shape().to_vec();
        let marked = Dense::from_fn(shape, |_| T::from_f64(77.0)).unwrap();
        context.upload_dense(&marked).unwrap()
    }
}

impl<T: Scalar> There<T> {
    pub fn weights(&self) -> EncoderWeights<'_, T> {
        let [qkv, out, up, down] = [0, 1, 2, 3].map(|i| self.matrices[i].each_ref());
        EncoderWeights {
            qkv,
            out,
            up,
            down,
            first_norm: self.norms[0].each_ref(),
            second_norm: self.norms[1].each_ref(),
        }
    }
}

/// Results that a layer rounds to the element type: queries, keys and values, weights, attention, its projection, the
/// first norm, hidden rows, their product, the output. The input is one more.
const ROUNDINGS: f64 = 9.0;

/// Both sides round each of these results, to neighbours if their sums differ slightly. Layers and norms keep the mean
/// square at 1. An error of half a unit in the last place of 1, uniform and independent, is `u / sqrt(3)` in root mean
/// square. There are as many errors as roundings on two sides. The bound is ten times their sum: for the largest of a
/// hundred thousand elements, and for values up to 4, whose last rounding is larger in proportion.
pub(super) fn assert_near<T: Scalar>(found: &[f64], wanted: &[f64], what: &str) {
    let digits = if T::NAME == "f16" { 11 } else { 8 };
    let unit = f64::from(digits).exp2().recip();
    let bound = 10.0 * (2.0 * ROUNDINGS).sqrt() * unit / 3_f64.sqrt();
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        let exact = *w == 77.0 && f == w;
        assert!(exact || (f - w).abs() <= bound, "{what}: {i}: {f} for {w}");
    }
}

pub(super) fn options(items: usize, distance: usize, width: usize, heads: usize) -> EncoderOptions {
    EncoderOptions {
        items,
        distance,
        width,
        heads,
        hidden: 2 * width + 64,
        epsilon: 1e-5,
        most: None,
        expected: None,
    }
}

#[test]
fn sequences_do_not_see_each_other() {
    let cpu = Context::unchecked_cpu();
    let model = Model::<f32>::new(options(4, 7, 16, 2));
    let x = model.x(3);
    let lengths = [3, 0, 7, 1];
    let whole = model.run(&cpu, &x, &lengths);
    let alone = Model::<f32> {
        options: EncoderOptions { items: 1, ..model.options },
        ..Model::new(model.options)
    };
    let size = 7 * 16;
    for (item, &length) in lengths.iter().enumerate() {
        let own = Dense::new(vec![1, 7, 16], x.values()[item * size..][..size].to_vec()).unwrap();
        let own = alone.run(&cpu, &own, &[length]);
        assert_eq!(whole[item * size..][..size], own, "{item}");
        assert!(own[length as usize * 16..].iter().all(|&x| x == 77.0));
    }
}

/// Compares the GPU with the CPU, with tiles for the expected number of tokens. If more tokens arrive, thread blocks
/// process further tiles. The kernels that ran are added to `ran`.
fn alike<T: Scalar>(
    gpu: &Context,
    options: EncoderOptions,
    lengths: &[i32],
    expected: &[usize],
    ran: &mut BTreeSet<&'static str>,
) {
    let mut model = Model::<T>::new(options);
    let x = model.x(4);
    let wanted = model.run(&Context::unchecked_cpu(), &x, lengths);
    for &expected in expected {
        model.options.expected = Some(expected);
        let (found, products) = model.run_named(gpu, &x, lengths);
        let what = format!("{:?}: {lengths:?} in {products:?}", model.options);
        assert_near::<T>(&found, &wanted, &what);
        ran.extend(products);
    }
}

fn lengths_of<T: Scalar>(gpu: &Context, ran: &mut BTreeSet<&'static str>) {
    for (items, distance, width, heads) in [(5, 70, 128, 2), (3, 200, 256, 2), (32, 128, 192, 3)] {
        let options = options(items, distance, width, heads);
        let most = distance as i32;
        let some: Vec<i32> = (0..items as i32).map(|i| (i * 37 + 11) % (most + 1)).collect();
        let mut one = vec![0; items];
        one[items - 1] = 1;
        let mut first = vec![-5; items];
        first[0] = most + 9;
        let full = vec![most; items];
        for lengths in [some, vec![0; items], full.clone(), one, first] {
            let mut expected = vec![lengths.iter().sum::<i32>().max(0) as usize];
            if width == 192 && lengths == full {
                expected.extend([1, 700]);
            }
            alike::<T>(gpu, options, &lengths, &expected, ran);
        }
    }
}

#[test]
fn encoder_of_varying_lengths_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let mut ran = BTreeSet::new();
    lengths_of::<f16>(&gpu, &mut ran);
    lengths_of::<bf16>(&gpu, &mut ran);
    // Split and unsplit tiles whose thread blocks process a second one.
    let many = |items| EncoderOptions { hidden: 64, ..options(items, 128, 512, 4) };
    alike::<f16>(&gpu, many(24), &[128; 24], &[1, 300, 1500], &mut ran);
    alike::<bf16>(&gpu, many(8), &[128; 8], &[1, 300], &mut ran);
    // Wide tiles, split along k: many rows are expected, and few arrive.
    let deep = |hidden| EncoderOptions { hidden, ..options(24, 256, 256, 2) };
    let mut few = [0; 24];
    (few[0], few[7]) = (256, 130);
    for (hidden, expected) in [(3072, 2500), (2048, 6000)] {
        alike::<f16>(&gpu, deep(hidden), &few, &[expected], &mut ran);
        alike::<bf16>(&gpu, deep(hidden), &few, &[expected], &mut ran);
    }
    for dtype in ["f16", "bf16"] {
        for tile in ["128x128_k2", "128x128_k4", "128x192", "128x256", "128x256_k2", "128x256_k4"] {
            let name = here(&format!("dense_live_{dtype}_{tile}"));
            assert!(ran.contains(name), "{name} is not among {ran:?}");
        }
    }
}

/// A captured graph reads other lengths at every launch, and returns equal bits for equal lengths.
#[test]
fn encoder_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let model = Model::<f16>::new(options(6, 90, 128, 2));
    let layer = Encoder::<f16>::new(&gpu, &model.options).unwrap();
    let there = model.upload(&gpu);
    let x = model.x(6);
    let x_there = gpu.upload_dense(&x).unwrap();
    let mut lengths_there = gpu.zeros::<i32>(&[6]).unwrap();
    let mut out = model.marked(&gpu);
    let stream = gpu.stream().unwrap();
    let weights = [there.weights()];
    let run = || layer.forward(&x_there, &lengths_there, &weights, &mut out, &stream);
    let mut graph = Replay::of(&stream, run);
    let mut first: Option<Vec<f64>> = None;
    for lengths in
        [[90, 3, 40, 0, 77, 1], [0; 6], [90; 6], [0, 0, 0, 0, 0, 90], [90, 3, 40, 0, 77, 1]]
    {
        let dense = Dense::new([6], lengths.to_vec()).unwrap();
        lengths_there.write(&dense).unwrap();
        out.write(&model.marked(&Context::unchecked_cpu()).to_dense().unwrap()).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let found = wide(&out);
        let wanted = model.run(&Context::unchecked_cpu(), &x, &lengths);
        assert_near::<f16>(&found, &wanted, &format!("{lengths:?}"));
        if lengths[1] == 3 {
            assert_eq!(first.get_or_insert_with(|| found.clone()), &found);
        }
    }
}

fn norms<T: Scalar>(gpu: &Context) {
    for (rows, columns) in [(1, 8), (9, 768), (200, 1024), (130, 264)] {
        let mut rng = Rng(5);
        let matrix = |rng: &mut Rng| values::<T>(&[rows, columns], 2.0, 0.5, rng);
        let (x, y) = (matrix(&mut rng), matrix(&mut rng));
        let factor = values::<T>(&[columns], 1.0, 1.0, &mut rng);
        let summand = values::<T>(&[columns], 1.0, 0.0, &mut rng);
        let run = |context: &Context| {
            let [x, y, factor, summand] = upload(context, [&x, &y, &factor, &summand]);
            let norm = ResidualNorm::<T>::new(context, [rows, columns], 1e-5).unwrap();
            let mut out = poisoned::<T>(context, &[rows, columns]);
            finish(context, |stream| norm.forward([&x, &y], [&factor, &summand], &mut out, stream));
            wide(&out)
        };
        let unit = if T::NAME == "f16" { 2e-3 } else { 1.6e-2 };
        for (f, w) in run(gpu).iter().zip(run(&Context::unchecked_cpu())) {
            assert!((f - w).abs() <= unit * (1.0 + w.abs()), "{f} for {w}");
        }
    }
}

#[test]
fn residual_norm_on_the_gpu() {
    on_gpu(&[norms::<f16>, norms::<bf16>]);
}

#[test]
fn encoder_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    let error = Encoder::<f16>::new(&cpu, &options(1, 1, 100, 3)).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "heads");
    let negative = EncoderOptions { epsilon: -1.0, ..options(1, 1, 8, 1) };
    assert!(Encoder::<f16>::new(&cpu, &negative).is_err());
    let model = Model::<f32>::new(options(2, 3, 8, 1));
    let layer = Encoder::<f32>::new(&cpu, &options(2, 4, 8, 1)).unwrap();
    let there = model.upload(&cpu);
    let x = cpu.upload_dense(&model.x(1)).unwrap();
    let lengths = cpu.zeros::<i32>(&[2]).unwrap();
    let mut out = model.marked(&cpu);
    let stream = cpu.stream().unwrap();
    let error = layer.forward(&x, &lengths, &[there.weights()], &mut out, &stream).unwrap_err();
    assert_error!(error, Error::Shape { .. });
    let Some(gpu) = gpu() else { return };
    let error = Encoder::<f32>::new(&gpu, &options(1, 8, 64, 1)).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
}
