//! Gradients that skip the empty micro-tiles of a dynamic operand, against plain loops; exact on integers.

use crate::support::assert_error;
use crate::support::rows::{here, here_on};
use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA, SparsityHint};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Determinism, Error, Options, Result, Scalar};

use crate::support::dense::{
    assert_exact, integers, nan, poisoned, strided, transposed, upload, upload_values,
};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::skipping::{dense_product, pieces};
use crate::support::{gpu, gpu_alone, on_both};

const WIDTH: usize = 64;

/// Options of a gradient.
#[derive(Clone, Copy, Debug)]
struct Given {
    of_a: GradientOfA,
    expected: SparsityHint,
    determinism: Determinism,
    /// Whether B's gradient skips micro-tiles, also of small products. Otherwise the plan selects its kernel.
    skips: bool,
}

impl Given {
    fn gradient<T: Scalar>(
        self,
        context: &Context,
        extents: [usize; 3],
    ) -> Result<DynamicMatmulGradient<T>> {
        let skipping = || here(&format!("pit_{}_1x64", T::NAME)).to_owned();
        let variant = self.skips.then(skipping);
        let options = Options::default().determinism(self.determinism).variant(variant.as_deref());
        DynamicMatmulGradient::with_options(context, extents, self.of_a, self.expected, &options)
    }
}

fn options(of_a: GradientOfA, share: f64) -> Given {
    let (expected, determinism) = (SparsityHint::MicroTiles(share), Determinism::Strict);
    Given { of_a, expected, determinism, skips: false }
}

/// Returns A's gradient, reduced to the elements that are requested.
fn of_a<T: Scalar>(a: &Dense<T>, b: &Dense<T>, dc: &Dense<T>, wanted: GradientOfA) -> Vec<f64> {
    let k = a.shape()[1];
    let all = dense_product(dc, &transposed(b));
    let kept = |(i, x): (usize, f64)| {
        let (row, column) = (i / k, i % k);
        let left = column / WIDTH * WIDTH;
        let piece = &a.values()[row * k + left..row * k + k.min(left + WIDTH)];
        let there = match wanted {
            GradientOfA::Relu => a.values()[i].to_f64() > 0.0,
            GradientOfA::MicroTiles => piece.iter().any(|x| x.to_f64() != 0.0),
            _ => true,
        };
        if there { x } else { 0.0 }
    };
    all.into_iter().enumerate().map(kept).collect()
}

/// Runs one gradient over all shares of micro-tiles. Operands have gaps between their rows unless a dense kernel reads
/// them: dense kernels require the row stride of the plan. Outputs start as NaN.
fn skips<T: Scalar>(context: &Context, extents: [usize; 3], given: Given) {
    let [m, k, n] = extents;
    let gradient = given.gradient::<T>(context, extents).unwrap();
    let (b, dc) = (integers::<T>(&[k, n], 3), integers::<T>(&[m, n], 4));
    let skipping = |name: &&str| name.starts_with("pit_") || *name == "cpu";
    let apart = gradient.variants().iter().all(skipping);
    let there = |x: &Dense<T>| {
        let room = match apart {
            true => x.shape()[1].next_multiple_of(8) + 8,
            false => x.shape()[1],
        };
        strided(context, x, room, T::from_f64(f64::NAN))
    };
    let (b_there, dc_there) = (there(&b), there(&dc));
    for per_mille in [1000, 0, 1, 100, 500, 30] {
        let a = pieces::<T>([m, k], per_mille, 9 + per_mille);
        let (a_there, mut da) = (there(&a), there(&nan::<T>(&[m, k])));
        let mut db = poisoned::<T>(context, &[k, n]);
        let operands = [&a_there, &b_there, &dc_there];
        finish(context, |stream| gradient.backward(operands, [&mut da, &mut db], stream));
        let what =
            format!("{} {extents:?} {per_mille} {given:?} {:?}", T::NAME, gradient.variants());
        let wanted = of_a(&a, &b, &dc, given.of_a);
        assert_exact(&da, &wanted, &format!("dA {what}"));
        assert_exact(&db, &dense_product(&transposed(&a), &dc), &format!("dB {what}"));
    }
}

const ALL: [GradientOfA; 3] = [GradientOfA::Whole, GradientOfA::Relu, GradientOfA::MicroTiles];

fn small_extents(cpu: &Context) {
    for wanted in ALL {
        // Gradients by dense kernels too.
        for share in [0.1, 1.0] {
            skips::<f32>(cpu, [33, 200, 9], options(wanted, share));
            skips::<bf16>(cpu, [20, 64, 17], options(wanted, share));
        }
    }
}

/// Lists of several tiles, more panels than a warp reads at once, and partial tiles on every axis.
fn all_extents<T: Scalar>(gpu: &Context) {
    for extents in
        [[64, 64, 64], [1, 8, 8], [200, 136, 72], [300, 320, 136], [129, 2568, 40], [257, 192, 600]]
    {
        for wanted in ALL {
            for determinism in [Determinism::Strict, Determinism::Relaxed] {
                let given = Given { determinism, skips: true, ..options(wanted, 0.02) };
                skips::<T>(gpu, extents, given);
            }
            // B's gradient is dense, A's is as requested.
            skips::<T>(gpu, extents, options(wanted, 1.0));
        }
    }
}

on_both! {
    gradients_of_dynamic_operands: cpu [small_extents], gpu [all_extents::<f16>, all_extents::<bf16>];
}

/// A gradient runs the kernels that plans select for the expected sparsity, and reports their names.
#[test]
fn gradients_skip_where_plans_do() {
    let cpu = Context::unchecked_cpu();
    let first = |expected| {
        let given = Given { expected, ..options(GradientOfA::Whole, 0.1) };
        let gradient = given.gradient::<f16>(&cpu, [4096, 4096, 4096]);
        let gradient = gradient.unwrap();
        gradient.plan_of_b().unwrap().choice().candidates[0].name
    };
    let skipping = here_on(&cpu.machine(), "pit_f16_1x64");
    assert_eq!(first(SparsityHint::MicroTiles(0.05)), skipping);
    for expected in [SparsityHint::MicroTiles(1.0), SparsityHint::Elements(0.3)] {
        assert_ne!(first(expected), skipping, "{expected:?}");
    }
    let Some(gpu) = gpu() else { return };
    let made = |given: &Given| given.gradient::<f16>(&gpu, [4096, 4096, 4096]).unwrap();
    let whole = made(&options(GradientOfA::Whole, 0.1));
    assert_eq!(whole.variants()[1], skipping, "{whole}");
    assert!(whole.to_string().contains(skipping), "{whole}");
    for wanted in [GradientOfA::Relu, GradientOfA::MicroTiles] {
        let both = made(&options(wanted, 0.1));
        assert_eq!(both.variants(), [here("pit_f16_sampled"), skipping], "{both}");
        assert!(both.plan_of_b().is_none(), "{both}");
    }
    let dense = made(&options(GradientOfA::Relu, 1.0));
    let none = |name: &str| !name.starts_with("pit");
    assert!(dense.variants().into_iter().all(none), "{dense}");
    let own = made(&options(GradientOfA::MicroTiles, 1.0));
    assert_eq!(own.variants()[0], here("pit_f16_sampled"), "{own}");
    assert!(none(own.variants()[1]), "{own}");
}

/// A captured graph reads another pattern at every replay. Values of the previous replay in dA must be cleared.
#[test]
fn gradients_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [512, 256, 264];
    let given = Given { skips: true, ..options(GradientOfA::MicroTiles, 0.05) };
    let gradient = given.gradient::<f16>(&gpu, [m, k, n]).unwrap();
    assert_eq!(gradient.variants(), [here("pit_f16_sampled"), here("pit_f16_1x64")]);
    let (b, dc) = (integers::<f16>(&[k, n], 5), integers::<f16>(&[m, n], 6));
    let [b_there, dc_there] = upload(&gpu, [&b, &dc]);
    let mut a_there = gpu.zeros::<f16>(&[m, k]).unwrap();
    let mut da = poisoned::<f16>(&gpu, &[m, k]);
    let mut db = poisoned::<f16>(&gpu, &[k, n]);
    let stream = gpu.stream().unwrap();
    let operands = [&a_there, &b_there, &dc_there];
    let run = || gradient.backward(operands, [&mut da, &mut db], &stream);
    let mut graph = Replay::of(&stream, run);
    for (per_mille, seed) in [(100, 1), (0, 2), (1000, 3), (1, 4), (50, 5)] {
        let a = pieces::<f16>([m, k], per_mille, seed);
        a_there.write(&a).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let wanted = of_a(&a, &b, &dc, GradientOfA::MicroTiles);
        assert_exact(&da, &wanted, &format!("dA {per_mille}"));
        let wanted = dense_product(&transposed(&a), &dc);
        assert_exact(&db, &wanted, &format!("dB {per_mille}"));
    }
}

/// A NaN in a row of dC reaches A's gradient in the micro-tiles of that row, and no others.
#[test]
fn gradients_keep_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [128, 256, 64];
    let mut a = vec![f16::ZERO; m * k];
    (a[9 * k + 100], a[10 * k + 1]) = (f16::ONE, f16::ONE);
    let mut dc = integers::<f16>(&[m, n], 3).values().to_vec();
    dc[9 * n] = f16::NAN;
    dc[11 * n..12 * n].fill(f16::NAN);
    let upload = |shape: [usize; 2], values| upload_values(&gpu, &shape, values);
    let (a, dc) = (upload([m, k], a), upload([m, n], dc));
    let b = gpu.upload_dense(&integers::<f16>(&[k, n], 4)).unwrap();
    let (mut da, mut db) = (gpu.zeros::<f16>(&[m, k]).unwrap(), gpu.zeros::<f16>(&[k, n]).unwrap());
    let given = options(GradientOfA::MicroTiles, 0.1);
    let gradient = given.gradient::<f16>(&gpu, [m, k, n]).unwrap();
    let outputs = [&mut da, &mut db];
    finish(&gpu, |stream| gradient.backward([&a, &b, &dc], outputs, stream));
    for (i, x) in da.to_dense().unwrap().values().iter().enumerate() {
        let there = i / k == 9 && (64..128).contains(&(i % k));
        assert_eq!(x.is_nan(), there, "row {}, column {}", i / k, i % k);
    }
}

#[test]
fn refusals_of_gradients() {
    let Some(gpu) = gpu() else { return };
    let given = options(GradientOfA::MicroTiles, 0.1);
    let error = given.gradient::<f32>(&gpu, [8, 8, 8]).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
    for extents in [[8, 12, 8], [8, 8, 12]] {
        let error = given.gradient::<f16>(&gpu, extents).unwrap_err();
        assert_error!(error, Error::OutOfRange { value, .. } if value == "12");
    }
    let gradient = given.gradient::<f16>(&gpu, [8, 8, 8]).unwrap();
    let eight = || gpu.zeros::<f16>(&[8, 8]).unwrap();
    let wide = gpu.zeros::<f16>(&[8, 16]).unwrap();
    let (a, b, mut da, mut db) = (eight(), eight(), eight(), eight());
    let stream = gpu.stream().unwrap();
    let outputs = [&mut da, &mut db];
    let error = gradient.backward([&a, &b, &wide], outputs, &stream).unwrap_err();
    assert_error!(error, Error::Shape { .. });
}
