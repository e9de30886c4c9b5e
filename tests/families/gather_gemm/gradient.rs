//! Gradients of products with an operand that is sparse for one step, against plain loops; exact on integers.

use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA, SparsityHint};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Determinism, Scalar};

use super::matmul::{dynamic, integers, product};
use crate::support::dense::{poisoned, transposed, upload};
use crate::support::runs::finish;
use crate::support::{on_cpu, on_gpu};

fn gradients<T: Scalar>(context: &Context) {
    for [m, k, n] in [[1, 64, 40], [32, 136, 72], [200, 96, 128]] {
        for (relu, per_mille) in [(true, 100), (false, 100), (true, 0), (true, 1000)] {
            let mut a = dynamic::<T>([m, k], m.min(64), per_mille, 7);
            if relu {
                let values = a.values().iter().map(|x| T::from_f64(x.to_f64().max(0.0)));
                a = Dense::new(vec![m, k], values.collect()).unwrap();
            }
            let (b, dc) = (integers::<T>([k, n], 3), integers::<T>([m, n], 4));
            let [mut da, mut db] = [[m, k], [k, n]].map(|shape| poisoned::<T>(context, &shape));
            let [a_there, b_there, dc_there] = upload(context, [&a, &b, &dc]);
            let of_a = match relu {
                true => GradientOfA::Relu,
                false => GradientOfA::Whole,
            };
            // Gradients by dense kernels.
            let expected = SparsityHint::MicroTiles(1.0);
            let (extents, order) = ([m, k, n], Determinism::Strict);
            let made = DynamicMatmulGradient::<T>::new(context, extents, of_a, expected, order);
            let gradient = made.unwrap();
            let operands = [&a_there, &b_there, &dc_there];
            finish(context, |stream| gradient.backward(operands, [&mut da, &mut db], stream));
            let gate =
                |(x, a): (f64, &T)| T::from_f64(if relu && a.to_f64() <= 0.0 { 0.0 } else { x });
            let wanted = product(&dc, &transposed(&b));
            let wanted: Vec<T> = wanted.into_iter().zip(a.values()).map(gate).collect();
            let what = (T::NAME, m, k, n, relu, per_mille, gradient.variants());
            assert!(da.to_dense().unwrap().values() == wanted, "dA {what:?}");
            let wanted = product(&transposed(&a), &dc).into_iter().map(T::from_f64);
            let wanted: Vec<T> = wanted.collect();
            assert!(db.to_dense().unwrap().values() == wanted, "dB {what:?}");
        }
    }
}

#[test]
fn dynamic_gradients_on_the_cpu() {
    on_cpu(&[gradients::<f32>, gradients::<bf16>]);
}

#[test]
fn dynamic_gradients_on_the_gpu() {
    on_gpu(&[gradients::<f16>, gradients::<bf16>]);
}
