//! Sampled shares of nonzeros, measured times of tiles, and plans that choose again at each run.

use crate::support::rows::here;
use einsparse::dynamic::{Dynamic, HeightTimes, ShareSample, SparsityHint, TileTimes};
use einsparse::formats::{bf16, f16};
use einsparse::{Context, Determinism, Error, Options, Plan, Scalar, Tensor};

use crate::families::gather_gemm::matmul::{dynamic, integers, product};
use crate::support::runs::{finish, plan_of};
use crate::support::{gpu, gpu_alone, on_gpu, skipped, small};

const LINE: &str = "C[m,n] = A[m,k] * B[k,n]";

/// With fewer than 264 boxes, all boxes are read. The shares are then exact to 1/65,535.
fn samples<T: Scalar>(gpu: &Context) {
    let cpu = Context::unchecked_cpu();
    for shape @ [m, k] in [[300, 500], [128, 64], [1, 1], [129, 65], [2000, 300], [40, 4097]] {
        let on = ShareSample::<T>::new(gpu, shape, 0.0).unwrap();
        let wanted = ShareSample::<T>::new(&cpu, shape, 0.0).unwrap();
        let stream = gpu.stream().unwrap();
        let cpu_stream = cpu.stream().unwrap();
        for (height, per_mille) in [(32, 100), (64, 300), (128, 500), (1, 5), (1, 0), (32, 1000)] {
            let a = dynamic::<T>([m, k], height, per_mille, 3 + per_mille);
            wanted.run(&cpu.upload_dense(&a).unwrap(), &cpu_stream).unwrap();
            // Contiguous rows, and rows whose alignment does not allow loads of 16 bytes.
            for room in [k, k.next_multiple_of(8) + 8, k + 1] {
                // Elements past the last column do not count.
                let there = gpu.upload_strided(&a, room, T::ONE).unwrap();
                on.run(&there, &stream).unwrap();
                stream.synchronize().unwrap();
                let (found, wanted) = (on.latest().unwrap(), wanted.latest().unwrap());
                for (found, wanted) in found.into_iter().zip(wanted) {
                    let text = format!("{shape:?} {height} {per_mille} {room}");
                    assert!((found - wanted).abs() < 2e-5, "{text}: {found} {wanted}");
                }
            }
        }
    }
}

#[test]
fn shares_by_a_sample_on_the_gpu() {
    on_gpu(&[samples::<f16>, samples::<bf16>]);
}

/// In a matrix with more boxes than are sampled, the share approximates that of the matrix. Each run takes another
/// sample.
#[test]
fn shares_of_a_large_matrix() {
    let Some(gpu) = gpu() else { return };
    let a = gpu.upload_dense(&dynamic::<f16>([4096, 4096], 64, 100, 7)).unwrap();
    let sample = ShareSample::<f16>::new(&gpu, [4096, 4096], 0.0).unwrap();
    let mut all = Vec::new();
    for _ in 0..4 {
        finish(&gpu, |stream| sample.run(&a, stream));
        let [low, middle, high] = sample.latest().unwrap();
        // 264 boxes of 128 x 64 elements hold 264 x 128 micro-tiles of 64 rows: a standard deviation of .0016.
        assert!((middle - 0.1).abs() < 0.012, "{middle}");
        assert!(low > 0.07 && low <= middle, "{low}");
        assert!((high - 0.19).abs() < 0.02, "{high}");
        all.push(middle);
    }
    assert!(all.iter().any(|x| *x != all[0]), "{all:?}");
}

#[test]
fn shares_refuse_what_they_cannot() {
    let cpu = Context::unchecked_cpu();
    let error = ShareSample::<f32>::new(&cpu, [8, 8], 0.0).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    let error = ShareSample::<f16>::new(&cpu, [8, 8], -1.0).unwrap_err();
    assert!(error.to_string().contains("-1"), "{error}");
    let sample = ShareSample::<f16>::new(&cpu, [8, 8], 0.0).unwrap();
    let a = cpu.zeros::<f16>(&[8, 9]).unwrap();
    let error = sample.run(&a, &cpu.stream().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
}

fn adaptive<T: Scalar>(context: &Context, a: &Tensor<T>, b: &Tensor<T>, relaxed: bool) -> Plan<T> {
    let options = Options {
        determinism: match relaxed {
            true => Determinism::Relaxed,
            false => Determinism::Strict,
        },
        ..Options::default()
    };
    let a = Dynamic::new(a).expecting(SparsityHint::LastSteps);
    let operands = [("A", a.into()), ("B", b.into())];
    plan_of(context, LINE, &operands, &options)
}

/// With times that make skipping nearly free, a plan selects a skipping kernel once a step was nearly empty. It selects
/// the dense kernel once a step was full.
#[test]
fn plans_follow_the_steps_before() {
    let Some(gpu) = gpu_alone() else { return };
    let times: TileTimes =
        "height 128 start 1 tile 1 stage 1\nheight 64 start 2 tile 1 stage 0.8\n\
        height 32 start 1000 tile 1 stage 1\ndetect 0\ndense 1"
            .parse()
            .unwrap();
    let [m, k, n] = [512, 2048, 512];
    let mut a = gpu.zeros::<f16>(&[m, k]).unwrap();
    let b = integers::<f16>([k, n], 5);
    let b_there = gpu.upload_dense(&b).unwrap();
    let operands = [("A", (&a).into()), ("B", (&b_there).into())];
    let dense = gpu.plan(LINE).operands(&operands).build().unwrap();
    // The dense kernel takes as long as tiles of 128 rows with a third of the micro-tiles.
    let predicted = dense.choice().candidates[0].cost.us;
    let times = TileTimes { dense: (2.0 + 2048.0 / 64.0 / 3.0) / predicted, ..times };
    gpu.set_tile_times(times);
    let plan = adaptive(&gpu, &a, &b_there, true);
    gpu.set_tile_times(TileTimes::built_in());
    assert!(plan.to_string().contains("chosen at each run"), "{plan}");
    let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
    // Micro-tile height, share of nonzero micro-tiles in 1/1000, and the kernel of the next step.
    for (height, per_mille, next) in [
        (128, 1000, dense.variant()),
        (128, 100, here("pit_f16_128x1")),
        (64, 150, here("pit_f16_64x1")),
        (128, 900, dense.variant()),
        (128, 0, here("pit_f16_128x1")),
    ] {
        let values = dynamic::<f16>([m, k], height, per_mille, 17 + per_mille);
        a.write(&values).unwrap();
        let wanted: Vec<f16> = product(&values, &b).into_iter().map(f16::from_f64).collect();
        for step in 0..2 {
            let operands = [("A", Dynamic::new(&a).into()), ("B", (&b_there).into())];
            finish(&gpu, |stream| plan.run(&operands, &mut c, stream));
            let text = format!("{height} {per_mille}, step {step}: {plan}");
            assert!(c.to_dense().unwrap().values() == wanted, "{text}");
            if step == 1 {
                assert_eq!(plan.variant(), next, "{text}");
            }
        }
    }
}

/// Strict plans do not adapt, and state the reason. On the CPU nothing is chosen.
#[test]
fn strict_plans_do_not_adapt() {
    let cpu = Context::unchecked_cpu();
    let a = cpu.upload_dense(&dynamic::<f16>([64, 64], 32, 100, 1)).unwrap();
    let b = integers::<f16>([64, 64], 5);
    let b_there = cpu.upload_dense(&b).unwrap();
    let plan = adaptive(&cpu, &a, &b_there, true);
    assert_eq!(plan.variant(), "cpu");
    let Some(gpu) = gpu() else { return };
    let a = gpu.zeros::<f16>(&[256, 256]).unwrap();
    let b = gpu.zeros::<f16>(&[256, 256]).unwrap();
    let plan = adaptive(&gpu, &a, &b, false);
    let choice = plan.choice().to_string();
    assert!(choice.contains("Determinism::Relaxed"), "{choice}");
    assert!(!plan.to_string().contains("chosen at each run"), "{plan}");
}

/// Measures for a second. Times are positive and plausible for a GPU, except under a sanitizer.
#[test]
fn times_are_measured() {
    let Some(gpu) = gpu_alone() else { return };
    if small() {
        return skipped("times of tiles", "EINSPARSE_TEST_SMALL=1");
    }
    let times = TileTimes::measure(&gpu).unwrap();
    assert_eq!(times.heights.len(), 3);
    let plausible = |t: &HeightTimes| {
        (0.05..5.0).contains(&t.stage) && t.tile < 20.0 && (0.0..60.0).contains(&t.start)
    };
    let dense = (0.2..5.0).contains(&times.dense);
    assert!(dense && times.heights.values().all(plausible), "{times}");
}
