//! Dense convolutions. Every kernel runs by name, over tiles that end inside rows, images, channels and filters, and
//! with every geometry of a layer. Plans and layers are checked for the kernels that they select.

use einsparse::dynamic::ConvolutionAxis::{Channels, Filters};
use einsparse::dynamic::{
    ConvolutionOptions, ConvolutionShape, Dynamic, DynamicConvolution, SparsityHint,
};
use einsparse::formats::{bf16, f16};
use einsparse::registry::Dtype;
use einsparse::{Context, Options, Scalar, ZerosRule};

use super::convolution::{operands, plain, reference};
use crate::support::dense::assert_exact;
use crate::support::dense::{poisoned, strided, upload};
use crate::support::replay::Replay;
use crate::support::rows::{as_on_hopper, is_here, kernels_here, named};
use crate::support::runs::{finish, plan_of};
use crate::support::{gpu, gpu_alone, on_both, small};

const LINE: &str = "C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]";

fn names(dtype: Dtype) -> Vec<&'static str> {
    let own = kernels_here().filter(|row| row.module == "dense_conv");
    own.filter(|row| row.dtype == dtype).map(|row| row.name).collect()
}

/// Returns the shape as an expression.
fn line(s: &ConvolutionShape) -> String {
    let ([sx, sy], [dx, dy]) = (s.stride, s.dilation);
    format!("C[n,x,y,f] = A[n,{sx}*x+{dx}*i,{sy}*y+{dy}*j,m] * B[i,j,m,f]")
}

/// Stages of one tap and of many, more than a ring holds. Tiles end inside a row, inside an image, and past the last
/// image. Channels and filters do not fill a stage or a tile.
fn cases() -> Vec<ConvolutionShape> {
    let mut cases = vec![
        plain([1, 1, 1, 8], [1, 1], 8),
        plain([2, 9, 9, 64], [3, 3], 64),
        plain([3, 7, 7, 72], [3, 3], 264),
        plain([1, 20, 33, 200], [1, 1], 40),
        plain([2, 5, 130, 24], [2, 5], 136),
        ConvolutionShape { stride: [2, 3], dilation: [1, 2], ..plain([3, 17, 22, 40], [3, 2], 72) },
    ];
    if !small() {
        cases.push(plain([5, 14, 14, 128], [3, 3], 256));
        cases.push(plain([3, 9, 8, 512], [3, 3], 512));
    }
    cases
}

fn every_row<T: Scalar>(dtype: Dtype) {
    let Some(gpu) = gpu() else { return };
    let nan = T::from_f64(f64::NAN);
    for s in cases() {
        let [a, b] = operands::<T>(&s, Channels, 1000, 3);
        let wanted = reference(&s, &a, &b);
        let a = gpu.upload_strided(&a, s.channels + 8, nan).unwrap();
        let b = gpu.upload_strided(&b, s.filters + 16, nan).unwrap();
        let [x, y] = s.out().unwrap();
        for name in names(dtype) {
            let given = [("A", (&a).into()), ("B", (&b).into())];
            let plan = plan_of::<T>(&gpu, &line(&s), &given, &named(name));
            assert_eq!(plan.variant(), name, "{plan}");
            let mut c = poisoned::<T>(&gpu, &[s.images, x, y, s.filters]);
            finish(&gpu, |stream| plan.run(&given, &mut c, stream));
            assert_exact(&c, &wanted, &format!("{name} {s:?}"));
        }
    }
}

#[test]
fn dense_conv_rows_of_f16() {
    every_row::<f16>(Dtype::F16);
}

#[test]
fn dense_conv_rows_of_bf16() {
    every_row::<bf16>(Dtype::Bf16);
}

/// Returns a layer that expects no sparsity.
fn of_all<T: Scalar>(context: &Context, s: &ConvolutionShape) -> DynamicConvolution<T> {
    let options = ConvolutionOptions {
        axis: Filters,
        stride: s.stride,
        dilation: s.dilation,
        padding: s.padding,
        expected: Some(SparsityHint::MicroTiles(1.0)),
        ..ConvolutionOptions::default()
    };
    let (a, b) = (
        [s.images, s.size[0], s.size[1], s.channels],
        [s.window[0], s.window[1], s.channels, s.filters],
    );
    DynamicConvolution::new(context, a, b, &options).unwrap()
}

/// Padding around the images, rows of C at any address, and empty extents.
fn geometry(context: &Context) {
    let around = |padding, stride, dilation, shape: ConvolutionShape| ConvolutionShape {
        padding,
        stride,
        dilation,
        ..shape
    };
    for s in [
        plain([2, 12, 11, 64], [3, 3], 72).same(),
        around([3, 5], [1, 3], [2, 1], plain([2, 12, 11, 136], [2, 4], 24)),
        around([0, 127], [8, 1], [1, 9], plain([1, 30, 20, 16], [3, 15], 12)),
        plain([0, 6, 6, 16], [3, 3], 16),
        plain([2, 6, 6, 0], [3, 3], 16),
        plain([2, 6, 6, 16], [3, 3], 0),
        around([2, 1], [1, 1], [1, 1], plain([2, 0, 6, 16], [3, 3], 16)),
    ] {
        let mut of = of_all::<f16>(context, &s);
        if context.device().is_some() {
            // If a stand-in replaces the kernel, others may be faster for few filters with many taps.
            if is_here("dense_conv_f16_64x64") {
                assert!(of.variants()[2].starts_with("dense_conv_f16"), "{s:?}");
                assert_eq!(of.index().panels(), 0);
            }
        }
        for per_mille in [1000, 400] {
            let [a, b] = operands::<f16>(&s, Filters, per_mille, 5);
            let wanted = reference(&s, &a, &b);
            let a = strided(context, &a, s.channels + 8, f16::NAN);
            let leading = s.filters.next_multiple_of(8) + 8;
            let b = context.upload_strided(&b, leading, f16::NAN).unwrap();
            let mut c = poisoned::<f16>(context, &of.shapes()[2]);
            finish(context, |stream| of.forward(&a, &b, &mut c, stream));
            assert_exact(&c, &wanted, &format!("{s:?} {per_mille}"));
        }
    }
}

on_both! {
    dense_conv_of_every_geometry: cpu [geometry], gpu [geometry];
}

/// Plans detect empty parts if a large part of the operand is empty and detection is cheap relative to the product.
/// Otherwise they do not, and the plan lists its candidates.
#[test]
fn dense_conv_where_looking_does_not_pay() {
    let Some(gpu) = gpu() else { return };
    let a = gpu.zeros::<f16>(&[32, 58, 58, 256]).unwrap();
    let b = gpu.zeros::<f16>(&[3, 3, 256, 256]).unwrap();
    for (expected, skips) in [(0.05, true), (0.1, true), (0.9, false), (1.0, false)] {
        let hint = SparsityHint::MicroTiles(expected);
        let given = [("A", Dynamic::new(&a).expecting(hint).into()), ("B", (&b).into())];
        let plan = gpu.plan::<f16>(LINE).operands(&given).build().unwrap();
        assert_eq!(as_on_hopper(plan.variant()).starts_with("pit_conv"), skips, "{plan}");
        let all = plan.choice().candidates.iter();
        let names: Vec<&str> = all.map(|own| own.name).collect();
        for family in ["pit_conv", "dense_conv"] {
            assert!(names.iter().any(|name| name.starts_with(family)), "{names:?}");
        }
        assert_eq!(names[0], plan.variant());
    }
    let strict = Options::default().zeros(ZerosRule::Strict);
    let given = [("A", (&a).into()), ("B", (&b).into())];
    let dense = plan_of::<f16>(&gpu, LINE, &given, &strict);
    assert!(as_on_hopper(dense.variant()).starts_with("dense_conv"), "{dense}");
}

/// A captured graph reads the current values at each replay.
#[test]
fn dense_conv_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let s = plain([3, 14, 14, 128], [3, 3], 128).same();
    let mut of = of_all::<f16>(&gpu, &s);
    let [a, b] = operands::<f16>(&s, Filters, 1000, 1);
    let [mut a_there, b_there] = upload(&gpu, [&a, &b]);
    let mut c = poisoned::<f16>(&gpu, &of.shapes()[2]);
    let stream = gpu.stream().unwrap();
    let run = || of.forward(&a_there, &b_there, &mut c, &stream);
    let mut graph = Replay::of(&stream, run);
    for seed in [2, 3] {
        let [a, _] = operands::<f16>(&s, Filters, 1000, seed);
        a_there.write(&a).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        assert_exact(&c, &reference(&s, &a, &b), &seed.to_string());
    }
}
