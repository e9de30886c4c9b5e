//! Convolution expressions with a dynamic operand: which kernels a plan selects, why it selects no skipping kernel, and
//! that results equal those of a dense convolution.

use einsparse::dynamic::ConvolutionAxis::{self, Channels, Filters};
use einsparse::dynamic::{ConvolutionShape, Dynamic};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Operand, Options, Scalar, ZerosRule, einsum};

use super::convolution::{operands, plain, reference};
use crate::support::dense::assert_exact;
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::rows::{as_on_hopper, here, named};
use crate::support::runs::{finish, plan_of};
use crate::support::{gpu, gpu_alone, on_both};

const LINE: &str = "C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]";
const STRIDED: &str = "C[n,x,y,f] = A[n,2*x+i,y+2*j,m] * B[i,j,m,f]";

fn strided(a: [usize; 4], window: [usize; 2], filters: usize) -> ConvolutionShape {
    ConvolutionShape { stride: [2, 1], dilation: [1, 2], ..plain(a, window, filters) }
}

/// Runs the expression with a dynamic operand, the one that is sparse along the axis.
fn agrees<T: Scalar>(context: &Context, line: &str, s: ConvolutionShape, axis: ConvolutionAxis) {
    let [a, b] = operands::<T>(&s, axis, 300, 5);
    let wanted = reference(&s, &a, &b);
    let [a, b] = upload(context, [&a, &b]);
    let what = format!("{line} {} {axis:?}", T::NAME);
    let c = match axis {
        Channels => einsum!(context, line, A = Dynamic::new(&a), B = &b),
        Filters => einsum!(context, line, A = &a, B = Dynamic::new(&b)),
    };
    assert_exact(&c.unwrap(), &wanted, &what);
}

fn both<T: Scalar>(context: &Context) {
    for axis in [Channels, Filters] {
        agrees::<T>(context, LINE, plain([2, 9, 8, 16], [3, 3], 24), axis);
        agrees::<T>(context, STRIDED, strided([2, 9, 8, 16], [3, 3], 24), axis);
    }
}

on_both! {
    convolutions_with_a_dynamic_operand: cpu [both::<f32>, both::<f16>], gpu [|gpu| {
        both::<f16>(gpu);
        both::<bf16>(gpu);
        // No f32 kernel skips, so this uses a dense one.
        both::<f32>(gpu);
    }];
}

#[test]
fn plans_of_convolutions_say_what_they_take() {
    let Some(gpu) = gpu() else { return };
    // Large enough that detection is worth its cost.
    let a = gpu.zeros::<f16>(&[32, 58, 58, 256]).unwrap();
    let b = gpu.zeros::<f16>(&[3, 3, 256, 256]).unwrap();
    let plan = |line: &str, a: Operand<'_, f16>, b: Operand<'_, f16>, options: &Options| {
        plan_of(&gpu, line, &[("A", a), ("B", b)], options)
    };
    let usual = Options::default();
    let skips = plan(LINE, Dynamic::new(&a).into(), (&b).into(), &usual);
    assert!(as_on_hopper(skips.variant()).starts_with("pit_conv_f16_"), "{skips}");
    assert!(skips.workspace_bytes() >= 32 * 58 * 58 * 256 * 2);
    assert_eq!(skips.choice().candidates[0].name, skips.variant());
    let filters = plan(LINE, (&a).into(), Dynamic::new(&b).into(), &usual);
    assert!(filters.variant().contains("filters"), "{filters}");
    for (name, taken) in
        [(skips.variant(), true), (filters.variant(), false), (here("pit_conv_bf16_64x256"), false)]
    {
        let named = named(name);
        let given = [("A", Dynamic::new(&a).into()), ("B", (&b).into())];
        let plan = gpu.plan::<f16>(LINE).operands(&given).options(&named);
        let is_taken = plan.build().is_ok_and(|plan| plan.variant() == name);
        assert_eq!(is_taken, taken, "{name}");
    }
    let full = plan(LINE, Dynamic::new(&a).into(), Dynamic::new(&b).into(), &usual);
    assert_eq!(full.variant(), skips.variant());
    let strict = Options::default().zeros(ZerosRule::Strict);
    let odd = gpu.zeros::<f16>(&[3, 3, 256, 20]).unwrap();
    let scaled = "C[n,x,y,f] = 2 * A[n,x+i,y+j,m] * B[i,j,m,f]";
    for (line, b, options, reason) in [
        (LINE, &b, &strict, "Zeros::Strict"),
        (scaled, &b, &usual, "without factors"),
        (LINE, &odd, &usual, "16 bytes"),
    ] {
        let given = [("A", Dynamic::new(&a).into()), ("B", b.into())];
        let plan = plan_of::<f16>(&gpu, line, &given, options);
        let said = plan.choice().to_string();
        assert!(said.contains(reason), "{reason}: {said}");
        assert!(plan.variant().starts_with("einsum"), "{plan}");
    }
}

/// Operands that cannot be copied in units of 16 bytes use the general kernel. A run whose operand differs from the
/// plan is refused with the operand's name.
#[test]
fn plans_of_convolutions_where_operands_lie_askew() {
    let Some(gpu) = gpu() else { return };
    let s = plain([2, 9, 8, 16], [3, 3], 24);
    let stream = gpu.stream().unwrap();
    for axis in [Channels, Filters] {
        let [a, b] = operands::<f16>(&s, axis, 300, 5);
        let wanted = reference(&s, &a, &b);
        let there = |dense: &Dense<f16>, leading: usize| {
            gpu.upload_strided(dense, leading, f16::ONE).unwrap()
        };
        for leading in [[16, 24], [17, 24], [16, 25]] {
            let (a, b) = (there(&a, leading[0]), there(&b, leading[1]));
            let given = match axis {
                Channels => [("A", Dynamic::new(&a).into()), ("B", (&b).into())],
                Filters => [("A", (&a).into()), ("B", Dynamic::new(&b).into())],
            };
            let plan = gpu.plan::<f16>(LINE).operands(&given).build().unwrap();
            let general = plan.variant().starts_with("einsum");
            assert_eq!(general, leading != [16, 24], "{leading:?}: {plan}");
            let mut c = poisoned::<f16>(&gpu, &[2, 7, 6, 24]);
            plan.run(&given, &mut c, &stream).unwrap();
            stream.synchronize().unwrap();
            assert_exact(&c, &wanted, &format!("{axis:?} {leading:?}"));
        }
        let (planned, askew) = (there(&a, 16), there(&a, 17));
        let b = there(&b, 24);
        let given = [("A", Dynamic::new(&planned).into()), ("B", (&b).into())];
        let plan = gpu.plan::<f16>(LINE).operands(&given).build().unwrap();
        let mut c = gpu.zeros::<f16>(&[2, 7, 6, 24]).unwrap();
        let given = [("A", (&askew).into()), ("B", (&b).into())];
        let error = plan.run(&given, &mut c, &stream).unwrap_err();
        assert_eq!(error.name(), Some("A"), "{error}");
    }
}

/// An output that is passed to planning may have fewer positions than the window has. Nothing is written beyond it.
#[test]
fn plans_of_convolutions_into_fewer_positions() {
    let Some(gpu) = gpu() else { return };
    let s = plain([2, 9, 8, 16], [3, 3], 24);
    let [a, b] = operands::<f16>(&s, Channels, 300, 5);
    let wanted: Vec<f64> = reference(&s, &a, &b)
        .chunks(6 * 24)
        .enumerate()
        .filter(|(row, _)| row % 7 < 5)
        .flat_map(|(_, row)| row.to_vec())
        .collect();
    let (a, b) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
    let mut c = poisoned::<f16>(&gpu, &[2, 5, 6, 24]);
    let given = [("A", Dynamic::new(&a).into()), ("B", (&b).into()), ("C", (&c).into())];
    let plan = gpu.plan::<f16>(LINE).operands(&given).build().unwrap();
    assert!(plan.variant().starts_with("einsum"), "{plan}");
    let given = [("A", Dynamic::new(&a).into()), ("B", (&b).into())];
    finish(&gpu, |stream| plan.run(&given, &mut c, stream));
    assert_exact(&c, &wanted, "five rows of seven");
}

/// A captured graph of a plan reads another pattern at every replay.
#[test]
fn plans_of_convolutions_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let s = plain([3, 10, 10, 64], [3, 3], 64);
    let [a, b] = operands::<f16>(&s, Channels, 500, 1);
    let mut a_there = gpu.upload_dense(&a).unwrap();
    let b_there = gpu.upload_dense(&b).unwrap();
    let given = [("A", Dynamic::new(&a_there).into()), ("B", (&b_there).into())];
    let usual = gpu.plan::<f16>(LINE).operands(&given).build().unwrap();
    let mut all = usual.choice().candidates.iter().map(|own| own.name);
    let skips = named(all.find(|name| name.starts_with("pit_conv")).unwrap());
    let plan = gpu.plan::<f16>(LINE).operands(&given).options(&skips);
    let plan = plan.build().unwrap();
    let mut c = poisoned::<f16>(&gpu, &[3, 8, 8, 64]);
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || {
        let given = [("A", Dynamic::new(&a_there).into()), ("B", (&b_there).into())];
        plan.run(&given, &mut c, &stream)
    });
    for (per_mille, seed) in [(100, 1), (0, 2), (900, 3)] {
        let [a, _] = operands::<f16>(&s, Channels, per_mille, seed);
        a_there.write(&a).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        assert_exact(&c, &reference(&s, &a, &b), &per_mille.to_string());
    }
}
