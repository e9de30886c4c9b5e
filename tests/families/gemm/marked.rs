//! Products with a ReLU that mark the micro-tiles of their output. Values must equal the product, and lists must equal
//! those of a detection.

use einsparse::dynamic::{DynamicMatmul, MatmulOptions, SparseSide};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Error, Scalar};

use crate::families::gather_gemm::feed_forward::{first_weights, inputs};
use crate::families::gather_gemm::matmul::product;
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::{gpu, gpu_alone};

/// Returns the rounded product, and the nonzero columns of every `height` rows.
fn reference<T: Scalar>(x: &Dense<T>, u: &Dense<T>, height: usize) -> (Vec<T>, Vec<Vec<u32>>) {
    let n = u.shape()[1];
    let values: Vec<T> = product(x, u).into_iter().map(|x| T::from_f64(x.max(0.0))).collect();
    let panels = values.chunks((height * n).max(1));
    let lists = panels.map(|panel| {
        let full = |&j: &u32| panel.iter().skip(j as usize).step_by(n).any(|x| x.to_f64() != 0.0);
        (0..n as u32).filter(full).collect()
    });
    let lists = lists.collect();
    (values, lists)
}

fn options(height: usize) -> MatmulOptions {
    MatmulOptions { sparse: SparseSide::Output, height, ..MatmulOptions::default() }
}

fn marks<T: Scalar>(context: &Context, extents: [usize; 3], height: usize) {
    let [m, k, n] = extents;
    let mut product = DynamicMatmul::<T>::new(context, extents, &options(height)).unwrap();
    let stream = context.stream().unwrap();
    // Bits of one run must not remain in the next.
    for seed in 1..4 {
        let (x, u) = (inputs::<T>([m, k], seed), first_weights::<T>([k, n], seed));
        let [a, b] = upload(context, [&x, &u]);
        let mut c = poisoned::<T>(context, &[m, n]);
        product.forward(&a, &b, &mut c, &stream).unwrap();
        stream.synchronize().unwrap();
        let (values, lists) = reference(&x, &u, height);
        let what = (T::NAME, extents, height, seed, product.variants());
        assert!(c.to_dense().unwrap().values() == values, "{what:?}");
        assert!(product.index().to_lists().unwrap() == lists, "{what:?}");
    }
}

#[test]
fn marked_products_on_the_cpu() {
    marks::<f32>(&Context::unchecked_cpu(), [70, 30, 50], 32);
    marks::<bf16>(&Context::unchecked_cpu(), [5, 30, 50], 128);
}

#[test]
fn marked_products_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for height in [128, 64, 32] {
        for extents in [
            [128, 64, 256],
            [1, 8, 8],
            [300, 200, 264],
            [513, 320, 520],
            [64, 48, 2000],
            // Output tiles that are split along k.
            [130, 4096, 72],
            [2000, 64, 1032],
        ] {
            marks::<f16>(&gpu, extents, height);
            marks::<bf16>(&gpu, extents, height);
        }
    }
}

/// A captured graph clears its bits at every replay.
#[test]
fn marked_products_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [256, 64, 512];
    let u = first_weights::<f16>([k, n], 3);
    let b = gpu.upload_dense(&u).unwrap();
    let mut a = gpu.zeros::<f16>(&[m, k]).unwrap();
    let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
    let mut product = DynamicMatmul::<f16>::new(&gpu, [m, k, n], &options(128)).unwrap();
    let stream = gpu.stream().unwrap();
    let run = || product.forward(&a, &b, &mut c, &stream);
    let mut graph = Replay::of(&stream, run);
    for seed in 1..5 {
        let mut x = inputs::<f16>([m, k], seed).values().to_vec();
        if seed == 2 {
            x.fill(f16::ZERO);
        }
        let x = Dense::new(vec![m, k], x).unwrap();
        a.write(&x).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let (values, lists) = reference(&x, &u, 128);
        assert!(c.to_dense().unwrap().values() == values, "{seed}");
        assert!(product.index().to_lists().unwrap() == lists, "{seed}");
    }
}

#[test]
fn marked_products_refuse_what_they_cannot() {
    let cpu = Context::unchecked_cpu();
    let refused = |options: &MatmulOptions, name: &str| {
        let error = DynamicMatmul::<f16>::new(&cpu, [8, 8, 8], options).unwrap_err();
        assert!(matches!(&error, Error::Operand { name: own, .. } if own == name), "{error}");
    };
    refused(&options(0), "C");
    let plain = options(128);
    let transpose_a = true;
    refused(&MatmulOptions { transpose_a, ..plain.clone() }, "A");
    for threshold in [0.5, f64::NAN] {
        refused(&MatmulOptions { threshold, ..plain.clone() }, "threshold");
    }
    let error = DynamicMatmul::<f16>::batched(&cpu, 2, [8, 8, 8], &plain).unwrap_err();
    assert!(error.to_string().contains("has 2 items"), "{error}");
    let Some(gpu) = gpu() else { return };
    let error = DynamicMatmul::<f32>::new(&gpu, [8, 8, 8], &options(128)).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    let error = DynamicMatmul::<f16>::new(&gpu, [8, 8, 8], &options(48)).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
}
