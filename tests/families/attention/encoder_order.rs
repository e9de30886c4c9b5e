//! Encoder layers among other work of a stream, without synchronization in between; and a layer without hidden
//! elements.

use super::encoder::{Model, There, assert_near, options, values};
use crate::support::dense::wide;
use crate::support::{Rng, gpu};
use einsparse::driver::copy_dtod_async;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Encoder, EncoderOptions};
use einsparse::registry::Scalar;
use einsparse::{Context, Operand, Stream, Tensor};

/// The second layer reads the rows of the first one immediately, and the next run of the first one overwrites them.
#[test]
fn encoder_layers_behind_one_another() {
    let Some(gpu) = gpu() else { return };
    let options = options(6, 90, 128, 2);
    let models = [3, 8].map(|seed| Model::<f16>::seeded(options, seed));
    let lengths = [90, 3, 40, 0, 77, 1];
    let layers = [0, 1].map(|_| Encoder::<f16>::new(&gpu, &options).unwrap());
    let there = models.each_ref().map(|model| model.upload(&gpu));
    let there_lengths = upload(&gpu, &Dense::new([6], lengths.to_vec()).unwrap());
    let stream = gpu.stream().unwrap();
    let xs: Vec<_> = (0..4).map(|seed| upload(&gpu, &models[0].x(seed))).collect();
    let mut between = models[0].marked(&gpu);
    let mut outs: Vec<_> = xs.iter().map(|_| models[1].marked(&gpu)).collect();
    for (x, out) in xs.iter().zip(&mut outs) {
        let own = there.each_ref().map(|own| [own.weights()]);
        layers[0].forward(x, &there_lengths, &own[0], &mut between, &stream).unwrap();
        layers[1].forward(&between, &there_lengths, &own[1], out, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    for (seed, (x, out)) in xs.iter().zip(&outs).enumerate() {
        // The first layer runs again and is synchronized. The second layer must return the same bits for its rows.
        let own = [there[0].weights()];
        layers[0].forward(x, &there_lengths, &own, &mut between, &stream).unwrap();
        stream.synchronize().unwrap();
        let what = format!("x {seed}");
        let cpu = Context::unchecked_cpu();
        let first = models[0].run(&cpu, &x.to_dense().unwrap(), &lengths);
        assert_near::<f16>(&wide(&between), &first, &what);
        let second = models[1].run(&cpu, &between.to_dense().unwrap(), &lengths);
        assert_near::<f16>(&wide(out), &second, &what);
    }
}

/// The first product reads its weights and biases before the preceding launch, which packs, has ended. Kernels and
/// copies that write them precede packing.
#[test]
fn encoder_takes_weights_written_just_ahead() {
    let Some(gpu) = gpu() else { return };
    let model = Model::<f16>::new(options(6, 90, 128, 2));
    let lengths = [90, 3, 40, 0, 77, 1];
    let layer = Encoder::<f16>::new(&gpu, &model.options).unwrap();
    let stream = gpu.stream().unwrap();
    let mut there = model.upload(&gpu);
    let x = upload(&gpu, &model.x(6));
    let there_lengths = upload(&gpu, &Dense::new([6], lengths.to_vec()).unwrap());
    let [matrix, bias] = &model.matrices[0];
    let original = upload(&gpu, matrix);
    // Factors are powers of two, so that products with them are exact.
    let factors = [1.0, 0.5, -1.0, 0.25, -0.5, 1.0];
    let diagonals = factors.map(|factor| upload(&gpu, &diagonal(128, factor)));
    let biases = factors.map(|factor| upload(&gpu, &times(bias, factor)));
    let write = Writer::new(&gpu, [&diagonals[0], &original], &stream);
    let mut outs = factors.map(|_| model.marked(&gpu));
    for (i, out) in outs.iter_mut().enumerate() {
        // The matrix and the bias are in turn the last write before the layer.
        if i % 2 == 0 {
            write.bias(&biases[i], &there);
            write.matrix(&diagonals[i], &mut there);
        } else {
            write.matrix(&diagonals[i], &mut there);
            write.bias(&biases[i], &there);
        }
        let weights = [there.weights()];
        layer.forward(&x, &there_lengths, &weights, out, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    for (factor, out) in factors.into_iter().zip(&outs) {
        let mut scaled = Model::<f16>::new(model.options);
        scaled.matrices[0] = [times(matrix, factor), times(bias, factor)];
        let wanted = scaled.run(&Context::unchecked_cpu(), &model.x(6), &lengths);
        assert_near::<f16>(&wide(out), &wanted, &format!("times {factor}"));
    }
}

fn upload<T: Scalar>(context: &Context, dense: &Dense<T>) -> Tensor<T> {
    context.upload_dense(dense).unwrap()
}

fn diagonal(extent: usize, factor: f64) -> Dense<f16> {
    let of = |i: &[usize]| f16::from_f64(if i[0] == i[1] { factor } else { 0.0 });
    Dense::from_fn(vec![extent; 2], of).unwrap()
}

fn times(dense: &Dense<f16>, factor: f64) -> Dense<f16> {
    dense.map(|x| f16::from_f64(x.to_f64() * factor))
}

/// Writes weights of queries, keys and values on the stream: the matrix by a kernel, biases by a copy.
struct Writer<'a> {
    plan: einsparse::Plan<f16>,
    original: &'a Tensor<f16>,
    stream: &'a Stream,
}

impl<'a> Writer<'a> {
    fn new(gpu: &Context, [factor, original]: [&'a Tensor<f16>; 2], stream: &'a Stream) -> Self {
        let operands: [(&str, Operand<'_, f16>); 2] =
            [("A", factor.into()), ("B", original.into())];
        let text = "C[m,n] = A[m,k] * B[k,n]";
        Writer { plan: gpu.plan(text).operands(&operands).build().unwrap(), original, stream }
    }

    fn matrix(&self, factor: &Tensor<f16>, there: &mut There<f16>) {
        let operands: [(&str, Operand<'_, f16>); 2] =
            [("A", factor.into()), ("B", self.original.into())];
        let to = &mut there.matrices[0][0];
        self.plan.run(&operands, to, self.stream).unwrap();
    }

    fn bias(&self, from: &Tensor<f16>, there: &There<f16>) {
        let to = &there.matrices[0][1];
        let [from_at, to_at] = [from, to].map(|tensor| tensor.address().unwrap());
        let bytes = to.shape()[0] * size_of::<f16>();
        // SAFETY: both tensors hold `bytes` bytes, and the test waits for the stream before it drops them.
        unsafe { copy_dtod_async(to_at, from_at, bytes, self.stream.raw()).unwrap() };
    }
}

fn nothing_hidden<T: Scalar>() -> Model<T> {
    Model::new(EncoderOptions { hidden: 0, ..options(3, 20, 128, 2) })
}

/// Only the second bias of the feed-forward network remains.
#[test]
fn encoder_without_a_hidden_element() {
    let cpu = Context::unchecked_cpu();
    let lengths = [20, 0, 7];
    let model = nothing_hidden::<f32>();
    let mut same = nothing_hidden::<f32>();
    same.options.hidden = 8;
    let mut rng = Rng(9);
    same.matrices[2] = [values(&[128, 8], 1.0, 0.0, &mut rng), values(&[8], 1.0, 0.0, &mut rng)];
    same.matrices[3][0] = values(&[8, 128], 0.0, 0.0, &mut rng);
    let x = model.x(2);
    let found = model.run(&cpu, &x, &lengths);
    assert_eq!(found, same.run(&cpu, &x, &lengths));
    let Some(gpu) = gpu() else { return };
    nothing_hidden_on::<f16>(&gpu, &lengths);
    nothing_hidden_on::<bf16>(&gpu, &lengths);
}

fn nothing_hidden_on<T: Scalar>(gpu: &Context, lengths: &[i32]) {
    let model = nothing_hidden::<T>();
    let x = model.x(2);
    let wanted = model.run(&Context::unchecked_cpu(), &x, lengths);
    assert_near::<T>(&model.run(gpu, &x, lengths), &wanted, "nothing hidden");
}
