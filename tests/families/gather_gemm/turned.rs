//! Products with a transposed dynamic operand, batches, expressions that only need one dense pass, and a step of sparse
//! training made of these products.

use einsparse::dynamic::{Dynamic, DynamicMatmul, MatmulOptions};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Determinism, Error, Options, Scalar, Tensor, einsum};

use super::matmul::{dynamic, integers, product, replays};
use crate::support::dense::{poisoned, transposed, upload, upload_values};
use crate::support::rows::{here, here_on, named};
use crate::support::runs::{finish, plan_and_run, plan_of};
use crate::support::{gpu, gpu_alone, on_both};

/// Returns A as `[k, m]`. Pieces of 64 elements of a row are full with a probability of `per_mille` in 1000.
pub(super) fn pieces<T: Scalar>([k, m]: [usize; 2], per_mille: u64, seed: u64) -> Dense<T> {
    transposed(&dynamic::<T>([m, k], 64, per_mille, seed))
}

/// Options for an A that is stored as `[k, m]`.
pub(super) fn transposing(determinism: Determinism) -> MatmulOptions {
    MatmulOptions { transpose_a: true, determinism, ..MatmulOptions::default() }
}

pub(super) fn exact<T: Scalar>(found: &Tensor<T>, wanted: &[f64], what: &str) {
    let found = found.to_dense().unwrap();
    for (i, (found, wanted)) in found.values().iter().zip(wanted).enumerate() {
        let wanted = T::from_f64(*wanted);
        assert!(*found == wanted, "{what}: [{i}] is {found}, not {wanted}");
    }
    assert_eq!(found.values().len(), wanted.len());
}

fn turns<T: Scalar>(context: &Context, extents: [usize; 3], determinism: Determinism) {
    let [m, k, n] = extents;
    let b = integers::<T>([k, n], 5);
    let b_there = context.upload_strided(&b, n + 8, T::ONE).unwrap();
    let mut product_of =
        DynamicMatmul::<T>::new(context, extents, &transposing(determinism)).unwrap();
    for per_mille in [1000, 0, 1, 100, 500, 30] {
        let a = pieces::<T>([k, m], per_mille, 9 + per_mille);
        let a_there = context.upload_strided(&a, m + 16, T::ONE).unwrap();
        let mut c = poisoned::<T>(context, &[m, n]);
        finish(context, |stream| product_of.forward(&a_there, &b_there, &mut c, stream));
        let wanted = product(&transposed(&a), &b);
        exact(&c, &wanted, &format!("{} {extents:?} {per_mille}", T::NAME));
    }
}

#[test]
fn turned_product_on_the_cpu() {
    turns::<f32>(&Context::unchecked_cpu(), [70, 50, 9], Determinism::Strict);
    turns::<f16>(&Context::unchecked_cpu(), [64, 50, 9], Determinism::Strict);
}

#[test]
fn turned_product_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for determinism in [Determinism::Strict, Determinism::Relaxed] {
        for extents in [
            [64, 64, 256],
            [8, 1, 8],
            [200, 300, 264],
            [1000, 64, 8],
            [320, 513, 520],
            [64, 0, 64],
            [0, 64, 64],
        ] {
            turns::<f16>(&gpu, extents, determinism);
            turns::<bf16>(&gpu, extents, determinism);
        }
    }
}

#[test]
fn turned_product_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [256, 512, 256];
    let b = integers::<f16>([k, n], 5);
    let [b_there] = upload(&gpu, [&b]);
    let mut of = DynamicMatmul::new(&gpu, [m, k, n], &transposing(Determinism::Strict)).unwrap();
    let all = [(100, 1), (0, 2), (900, 3), (50, 4)]
        .map(|(per_mille, seed)| pieces([k, m], per_mille, seed));
    let mut run = |a: &_, c: &mut _, stream: &_| of.forward(a, &b_there, c, stream);
    replays(&gpu, &all, [m, n], &mut run, |a| product(&transposed(a), &b));
}

/// A NaN in a row of B reaches the 64 columns of A (rows of C) that have a micro-tile there, and no others.
#[test]
fn turned_product_keeps_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [256, 128, 64];
    let mut a = vec![f16::ZERO; k * m];
    a[9 * m + 100] = f16::ONE;
    let mut b = integers::<f16>([k, n], 3).values().to_vec();
    b[9 * n..10 * n].fill(f16::NAN);
    b[11 * n..12 * n].fill(f16::NAN);
    let upload = |shape: [usize; 2], values| upload_values(&gpu, &shape, values);
    let (a, b) = (upload([k, m], a), upload([k, n], b));
    let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
    let mut product =
        DynamicMatmul::new(&gpu, [m, k, n], &transposing(Determinism::Strict)).unwrap();
    finish(&gpu, |stream| product.forward(&a, &b, &mut c, stream));
    for (i, row) in c.to_dense().unwrap().values().chunks(n).enumerate() {
        let there = (64..128).contains(&i);
        assert!(row.iter().all(|x| x.is_nan() == there), "row {i}");
    }
}

#[test]
fn turned_product_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    let plain = transposing(Determinism::Strict);
    let wrong = MatmulOptions { threshold: f64::NAN, ..plain.clone() };
    let error = DynamicMatmul::<f16>::new(&cpu, [8, 8, 8], &wrong).unwrap_err();
    assert!(error.to_string().contains("NaN"), "{error}");
    let error = DynamicMatmul::<f16>::batched(&cpu, 2, [8, 8, 8], &plain.clone()).unwrap_err();
    assert!(error.to_string().contains("has 2 items"), "{error}");
    let Some(gpu) = gpu() else { return };
    let error = DynamicMatmul::<f32>::new(&gpu, [8, 8, 8], &plain.clone()).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    let mut odd = DynamicMatmul::<f16>::new(&gpu, [12, 8, 8], &plain).unwrap();
    let (a, b) = (gpu.zeros(&[8, 12]).unwrap(), gpu.zeros(&[8, 8]).unwrap());
    let mut c = gpu.zeros(&[12, 8]).unwrap();
    let error = odd.forward(&a, &b, &mut c, &gpu.stream().unwrap()).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

fn batches<T: Scalar>(context: &Context, items: usize, extents: [usize; 3], height: usize) {
    let [m, k, n] = extents;
    let options = MatmulOptions { height, ..MatmulOptions::default() };
    let mut batch = DynamicMatmul::<T>::batched(context, items, extents, &options).unwrap();
    let a = dynamic::<T>([items * m, k], height, 200, 3);
    let b = integers::<T>([items * k, n], 4);
    let three = |dense: &Dense<T>, rows: usize| {
        let shape = [items, rows, dense.shape()[1]];
        let dense = Dense::new(shape.to_vec(), dense.values().to_vec()).unwrap();
        context.upload_dense(&dense).unwrap()
    };
    let (a_there, b_there) = (three(&a, m), three(&b, k));
    let mut c = poisoned::<T>(context, &[items, m, n]);
    finish(context, |stream| batch.forward(&a_there, &b_there, &mut c, stream));
    let item = |dense: &Dense<T>, z: usize, rows: usize| {
        let columns = dense.shape()[1];
        let values = dense.values()[z * rows * columns..(z + 1) * rows * columns].to_vec();
        Dense::new([rows, columns], values).unwrap()
    };
    let wanted: Vec<f64> =
        (0..items).flat_map(|z| product(&item(&a, z, m), &item(&b, z, k))).collect();
    exact(&c, &wanted, &format!("{items} of {extents:?} by {height}"));
}

#[test]
fn batches_of_dynamic_products() {
    let cpu = Context::unchecked_cpu();
    batches::<f32>(&cpu, 3, [64, 20, 5], 32);
    let options = MatmulOptions::default();
    let error = DynamicMatmul::<f16>::batched(&cpu, 2, [100, 8, 8], &options).unwrap_err();
    assert!(error.to_string().contains("100 rows"), "{error}");
    let Some(gpu) = gpu() else { return };
    for (items, extents, height) in [
        (3, [256, 200, 264], 128),
        (5, [64, 130, 72], 64),
        (2, [96, 64, 256], 32),
        (1, [100, 64, 256], 64),
    ] {
        if items > 1 {
            batches::<f16>(&gpu, items, extents, height);
        }
        batches::<bf16>(&gpu, items.max(2), [height * 2, extents[1], extents[2]], height);
    }
}

/// Sums and elementwise products read a dynamic operand once, which is also the cost of detecting its micro-tiles. They
/// therefore run as for a dense operand.
fn dense_passes(context: &Context) {
    let a = dynamic::<f16>([96, 80], 32, 200, 3);
    let b = integers::<f16>([96, 80], 4);
    let [x, y] = upload(context, [&a, &b]);
    let sums = einsum!(*context, "S[m] = A[m,k]", A = Dynamic::new(&x)).unwrap();
    let rows = a.values().chunks(80);
    let wanted: Vec<f64> = rows.map(|row| row.iter().map(|v| v.to_f64()).sum()).collect();
    exact(&sums, &wanted, "sums");
    let each = einsum!(*context, "C[m,k] = A[m,k] * B[m,k]", A = Dynamic::new(&x), B = &y).unwrap();
    let both = a.values().iter().zip(b.values());
    let wanted: Vec<f64> = both.map(|(a, b)| a.to_f64() * b.to_f64()).collect();
    exact(&each, &wanted, "products");
}

#[test]
fn sums_and_elementwise_products_of_dynamic_operands() {
    on_both(&[dense_passes]);
}

/// Forward and both gradients of `Y = W X`, where W is masked differently at each step in blocks of 32 x 64.
fn training(context: &Context) {
    let [out, input, tokens] = [192, 256, 264];
    let stream = context.stream().unwrap();
    let x = integers::<f16>([input, tokens], 1);
    let x_there = context.upload_dense(&x).unwrap();
    let mut w_there = context.zeros::<f16>(&[out, input]).unwrap();
    let plan = |text: &str, a: &Tensor<f16>, b: &Tensor<f16>| {
        let operands = [("W", Dynamic::new(a).into()), ("X", b.into())];
        plan_of(context, text, &operands, &Options::default())
    };
    let d_y = integers::<f16>([out, tokens], 2);
    let d_y_there = context.upload_dense(&d_y).unwrap();
    let forward = plan("Y[o,t] = W[o,i] * X[i,t]", &w_there, &x_there);
    let backward = plan("Y[i,t] = W[o,i] * X[o,t]", &w_there, &d_y_there);
    let mut y = context.zeros::<f16>(&[out, tokens]).unwrap();
    let mut d_x = context.zeros::<f16>(&[input, tokens]).unwrap();
    for step in 0..3u64 {
        let blocks = dynamic::<f16>([out / 32, input / 64], 1, 300, 50 + step);
        let values = integers::<f16>([out, input], 60 + step);
        let masked = |i: &[usize]| {
            let there = blocks.values()[i[0] / 32 * (input / 64) + i[1] / 64] != f16::ZERO;
            let value = values.values()[i[0] * input + i[1]];
            if there { value } else { f16::ZERO }
        };
        let w = Dense::from_fn(vec![out, input], masked).unwrap();
        w_there.write(&w).unwrap();
        let operands = [("W", Dynamic::new(&w_there).into()), ("X", (&x_there).into())];
        forward.run(&operands, &mut y, &stream).unwrap();
        let operands = [("W", Dynamic::new(&w_there).into()), ("X", (&d_y_there).into())];
        backward.run(&operands, &mut d_x, &stream).unwrap();
        stream.synchronize().unwrap();
        exact(&y, &product(&w, &x), "forward");
        exact(&d_x, &product(&transposed(&w), &d_y), "gradient of the input");
    }
}

#[test]
fn a_step_of_sparse_training() {
    on_both(&[training]);
}

/// Plans list the kernel among dense ones, and run it.
#[test]
fn plans_take_transposed_dynamic_operands() {
    let cpu = Context::unchecked_cpu();
    let a = cpu.zeros::<f16>(&[4096, 4096]).unwrap();
    let operands = [("A", Dynamic::new(&a).into()), ("B", (&a).into())];
    let text = "C[m,n] = A[k,m] * B[k,n]";
    let plan = cpu.plan(text).operands(&operands).build().unwrap();
    let wanted = here_on(&cpu.machine(), "pit_f16_1x64");
    assert_eq!(plan.choice().candidates[0].name, wanted);
    let odd = cpu.zeros::<f16>(&[64, 60]).unwrap();
    let wide = cpu.zeros::<f16>(&[64, 64]).unwrap();
    let operands = [("A", Dynamic::new(&odd).into()), ("B", (&wide).into())];
    let plan = cpu.plan(text).operands(&operands).build().unwrap();
    let choice = plan.choice().to_string();
    assert!(choice.contains("pieces of rows of A"), "{choice}");
    let Some(gpu) = gpu() else { return };
    let (a, b) = (pieces::<bf16>([320, 136], 150, 3), integers([320, 264], 4));
    let (x, y) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
    let operands = [("A", Dynamic::new(&x).into()), ("B", (&y).into())];
    let (plan, c) = plan_and_run(&gpu, text, &operands, &named(here("pit_bf16_1x64")));
    exact(&c, &product(&transposed(&a), &b), &plan.to_string());
}
