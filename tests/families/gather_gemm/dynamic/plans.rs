//! Plans of ordinary expressions with dynamic operands: what they select, why they use an operand as a dense tensor, and
//! that results equal those of dense operands.

use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::{Csr, CsrPattern, bf16, f16};
use einsparse::{Context, Error, Operand, Options, Plan, Precision, Scalar, Tensor, einsum};

use super::{HEIGHTS, room};
use crate::support::dense::{assert_exact, integers, poisoned, rounded, strided, upload};
use crate::support::rows::{as_on_hopper, here, here_on};
use crate::support::runs::{finish, plan_of, sampled_plan_of};
use crate::support::skipping::{LEFT, RIGHT, Skipping, TRANSPOSED, dense_product, dynamic};
use crate::support::{Rng, assert_error, on_both};

const LINE: &str = "C[m,n] = A[m,k] * B[k,n]";
const BY_COLUMNS: &str = "C[m,n] = A[k,m] * B[k,n]";
const BATCH: &str = "C[z,m,n] = A[z,m,k] * B[z,k,n]";
const BATCH_BY_COLUMNS: &str = "C[z,m,n] = A[z,k,m] * B[z,k,n]";

const TENTH: SparsityHint = SparsityHint::MicroTiles(0.1);
const FULL: SparsityHint = SparsityHint::MicroTiles(1.0);

/// A and B; `which` contains the names of the dynamic ones.
fn operands<'a, T: Scalar>(
    which: &str,
    expected: Option<SparsityHint>,
    [a, b]: [&'a Tensor<T>; 2],
) -> [(&'static str, Operand<'a, T>); 2] {
    let of = |name: &'static str, x: &'a Tensor<T>| {
        let dynamic = Dynamic::new(x);
        let dynamic = expected.map_or(dynamic, |e| Dynamic::new(x).expecting(e));
        (name, if which.contains(name) { dynamic.into() } else { x.into() })
    };
    [of("A", a), of("B", b)]
}

/// A plan for operands of these shapes on a machine without a GPU.
fn planned<T: Scalar>(
    line: &str,
    which: &str,
    expected: Option<SparsityHint>,
    [a, b]: [&[usize]; 2],
    precision: Precision,
) -> Plan<T> {
    let cpu = Context::unchecked_cpu();
    let (a, b) = (cpu.zeros::<T>(a).unwrap(), cpu.zeros::<T>(b).unwrap());
    let options = Options::default().precision(precision);
    plan_of(&cpu, line, &operands(which, expected, [&a, &b]), &options)
}

fn on(name: &str) -> &'static str {
    here_on(&Context::unchecked_cpu().machine(), name)
}

/// The fuller an operand is, the less time skipping saves, and a transpose has a cost. A dense operand is never scanned.
#[test]
fn kernels_are_chosen_by_expected_sparsity() {
    let square: [&[usize]; 2] = [&[4096, 4096]; 2];
    let first = |line, which, expected| {
        planned::<f16>(line, which, expected, square, Precision::Full).choice().candidates[0].name
    };
    for (line, which, expected, wanted) in [
        (LINE, "B", SparsityHint::MicroTiles(0.02), "pit_right_f16_1x64"),
        (LINE, "B", TENTH, "pit_right_f16_1x64"),
        (BY_COLUMNS, "B", SparsityHint::MicroTiles(0.02), "pit_right_f16_1x64"),
        (BY_COLUMNS, "B", TENTH, "pit_right_f16_1x64"),
    ] {
        assert_eq!(first(line, which, Some(expected)), on(wanted), "{line} {expected:?}");
    }
    assert_eq!(first(BY_COLUMNS, "A", None), on("pit_f16_1x64"));
    let full = first(LINE, "", None);
    assert!(!full.starts_with("pit"), "{full}");
    assert_eq!(first(LINE, "A", Some(FULL)), full);
    assert!(first(LINE, "A", Some(SparsityHint::MicroTiles(0.02))).starts_with("pit"));
    for line in [LINE, BY_COLUMNS] {
        let full = first(line, "B", Some(FULL));
        assert!(!full.starts_with("pit"), "{line}: {full}");
        assert_eq!(first(line, "B", Some(SparsityHint::Elements(0.1))), full, "{line}");
    }
    // With stand-ins another height may be fastest, and skipping may be faster at higher shares too.
    if on("pit_f16_128x1") == "pit_f16_128x1" {
        // At 0.005 of the elements, 0.47, 0.27 and 0.15 of the micro-tiles of 128, 64 and 32 rows are nonempty. Fewer
        // rows mean fewer products, and fewer rows that share a row of B.
        for (expected, wanted) in [
            (None, "pit_f16_128x1"),
            (Some(SparsityHint::MicroTiles(0.02)), "pit_f16_128x1"),
            (Some(SparsityHint::Elements(0.005)), "pit_f16_64x1"),
            (Some(SparsityHint::Elements(0.014)), full),
        ] {
            assert_eq!(first(LINE, "A", expected), wanted, "{expected:?}");
        }
    }
    for (m, name) in [(1, "pit_few_f16_16"), (32, "pit_few_f16_32"), (64, "pit_few_f16_64")] {
        let shapes: [&[usize]; 2] = [&[m, 20_480], &[20_480, 5120]];
        let plan = planned::<f16>(LINE, "A", None, shapes, Precision::Full);
        let first = plan.choice().candidates[0].name;
        assert!(as_on_hopper(first).starts_with(name), "{first}: {}", plan.choice());
    }
    let of_f32 = |expected, precision| {
        planned::<f32>(LINE, "A", Some(expected), square, precision).choice().clone()
    };
    let first = of_f32(TENTH, Precision::Tf32).candidates[0].name;
    assert_eq!(first, on("pit_tf32_128x1"));
    assert!(!of_f32(FULL, Precision::Tf32).candidates[0].name.starts_with("pit"));
}

/// Plans of batches list the kernels whose micro-tiles end where items end.
#[test]
fn kernels_of_batches_end_where_items_end() {
    let candidates = |line, which, a: &[usize]| {
        let shapes = [a, &[4, 1024, 1024]];
        let plan = planned::<f16>(line, which, None, shapes, Precision::Full);
        plan.choice().candidates().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let names = candidates(BATCH, "A", &[4, 1024, 1024]);
    for height in HEIGHTS {
        assert!(names.contains(&on(&format!("pit_f16_{height}x1"))), "{names:?}");
    }
    assert_eq!(candidates(BATCH, "A", &[4, 96, 1024]), [on("pit_f16_32x1")]);
    for line in [BATCH, BATCH_BY_COLUMNS] {
        let names = candidates(line, "B", &[4, 1024, 1024]);
        assert_eq!(names, [on("pit_right_f16_1x64")], "{line}");
    }
}

/// Other expressions and shares use the operand as a dense tensor, and the plan states the reason.
#[test]
fn plans_state_why_a_dynamic_operand_is_dense() {
    let square: [&[usize]; 2] = [&[64, 64]; 2];
    let odd: [&[usize]; 2] = [&[63, 63]; 2];
    let uneven: [&[usize]; 2] = [&[60, 60]; 2];
    let batch: [&[usize]; 2] = [&[4, 1024, 1024]; 2];
    for (line, which, expected, shapes, reason) in [
        (LINE, "", None, square, ""),
        (LINE, "A", Some(FULL), square, "nearly all micro-tiles"),
        ("C[m,n] = 2 * A[m,k] * B[k,n]", "A", None, square, "without factors"),
        ("C[m,n] = relu(A[m,k] * B[k,n])", "A", None, square, "without factors"),
        ("C[n,m] = A[m,k] * B[k,n]", "A", None, square, "computes C[m,n]"),
        (LINE, "A", None, odd, "by 16 bytes"),
        (BY_COLUMNS, "A", None, [&[64, 60], &[64, 64]], "pieces of rows of A by 16 bytes"),
        ("C[m,n] = 2 * A[m,k] * B[k,n]", "B", None, square, "without factors"),
        ("C[m,n] = A[m,k] * B[n,k]", "B", None, square, "refused: computes C[m,n]"),
        (LINE, "B", None, uneven, "pieces of rows of B by 16 bytes"),
        (BATCH_BY_COLUMNS, "A", None, batch, "not with A[z,k,m]"),
        (BATCH, "A", Some(FULL), batch, "nearly all micro-tiles"),
        ("C[z,m,n] = relu(A[z,m,k] * B[z,k,n])", "A", None, batch, "epilogue"),
    ] {
        let plan = planned::<f16>(line, which, expected, shapes, Precision::Full);
        let skips = plan.choice().candidates().any(|(name, _)| name.starts_with("pit"));
        let choice = plan.choice().to_string();
        assert!(!skips && choice.contains(reason), "{line} {which} {reason}: {choice}");
        assert_eq!(choice.contains("pit"), !which.is_empty(), "{line} {which}: {choice}");
    }
    let of_f32 = planned::<f32>(LINE, "A", Some(TENTH), square, Precision::Full);
    let choice = of_f32.choice().to_string();
    assert!(choice.contains("f16 and bf16") && choice.contains("Precision::Tf32"), "{choice}");
    assert!(!of_f32.choice().candidates().any(|(name, _)| name.starts_with("pit")));
    // A kernel for a dynamic A refuses a dynamic B. If both are dynamic, kernels for either are candidates.
    for (line, which) in [(LINE, "B"), ("C[m,n] = B[m,k] * A[k,n]", "A")] {
        let right = planned::<f16>(line, which, None, square, Precision::Full).choice().to_string();
        assert!(right.contains("of the first matrix"), "{right}");
    }
    let both = planned::<f16>(LINE, "AB", None, square, Precision::Full).choice().to_string();
    for name in ["pit_right_f16_1x64", "pit_f16_128x1"] {
        assert!(both.contains(on(name)), "{both}");
    }
}

/// Plans run one product over several densities, by each of these kernels or by the selected one.
fn agree<T: Scalar>(
    context: &Context,
    (line, skipping): (&str, Skipping),
    precision: Precision,
    variants: &[Option<&str>],
) {
    let which = if skipping.right { "B" } else { "A" };
    let extents @ [m, _, n] = [if skipping.by_columns { 304 } else { 301 }, 200, 264];
    for &variant in variants {
        let variant = variant.map(here);
        let drawn = skipping.draw::<T>(extents, 30, (7, Rng::integer));
        let [a, b] = skipping.stored(drawn.each_ref());
        let gap = if skipping.by_columns { room(a.shape()[1]) } else { 0 };
        let mut a = strided(context, &a, a.shape()[1] + gap, T::from_f64(f64::NAN));
        let [mut b] = upload(context, [&b]);
        let options = Options::default().precision(precision).variant(variant);
        let plan = plan_of(context, line, &operands(which, None, [&a, &b]), &options);
        if let Some(variant) = variant {
            assert_eq!(plan.variant(), variant);
            if skipping.right {
                let said = plan.to_string();
                assert_eq!(said.contains("transpose_16"), !skipping.by_columns, "{said}");
                assert!(said.contains("detect_16_1x64"), "{said}");
            }
        }
        let mut wanted = Vec::new();
        for per_mille in [1000, 0, 100, 30] {
            let drawn = skipping.draw::<T>(extents, per_mille, (7 + per_mille, Rng::integer));
            let [new_a, new_b] = skipping.stored(drawn.each_ref());
            a.write(&new_a).unwrap();
            b.write(&new_b).unwrap();
            let mut c = poisoned::<T>(context, &[m, n]);
            let operands = operands(which, None, [&a, &b]);
            finish(context, |stream| plan.run(&operands, &mut c, stream));
            wanted = skipping.exact(drawn.each_ref());
            assert_exact(&c, &wanted, &format!("{plan}, {per_mille}"));
        }
        let once = match which {
            "A" => einsum!(*context, line, A = Dynamic::new(&a), B = &b),
            _ => einsum!(*context, line, A = &a, B = Dynamic::new(&b)),
        };
        assert_exact(&once.unwrap(), &wanted, line);
    }
}

const LEFT_LINE: (&str, Skipping) = (LINE, Skipping { height: 64, ..LEFT });
const TRANSPOSED_LINE: (&str, Skipping) = (BY_COLUMNS, TRANSPOSED);
const RIGHT_LINES: [(&str, Skipping); 2] =
    [(LINE, RIGHT), (BY_COLUMNS, Skipping { by_columns: true, ..RIGHT })];

fn by_the_cpu<T: Scalar>(cpu: &Context) {
    for product in RIGHT_LINES.into_iter().chain([LEFT_LINE, TRANSPOSED_LINE]) {
        agree::<T>(cpu, product, Precision::Full, &[None]);
    }
}

fn by_kernels(gpu: &Context) {
    let full = Precision::Full;
    let heights = [Some("pit_f16_128x1"), Some("pit_f16_64x1"), Some("pit_f16_32x1")];
    agree::<f16>(gpu, LEFT_LINE, full, &heights);
    agree::<bf16>(gpu, LEFT_LINE, full, &[None, Some("pit_bf16_128x1")]);
    agree::<f32>(gpu, LEFT_LINE, full, &[None]);
    let heights = HEIGHTS.map(|height| format!("pit_tf32_{height}x1"));
    let heights = heights.each_ref().map(|name| Some(name.as_str()));
    agree::<f32>(gpu, LEFT_LINE, Precision::Tf32, &heights);
    agree::<bf16>(gpu, TRANSPOSED_LINE, full, &[Some("pit_bf16_1x64")]);
    for product in RIGHT_LINES {
        agree::<f16>(gpu, product, full, &[Some("pit_right_f16_1x64"), None]);
        agree::<bf16>(gpu, product, full, &[Some("pit_right_bf16_1x64")]);
        agree::<f32>(gpu, product, full, &[None]);
    }
}

on_both! {
    plans_with_dynamic_operands: cpu [by_the_cpu::<f32>, by_the_cpu::<bf16>], gpu [by_kernels];
    /// Sums and elementwise products read a dynamic operand once, which is also the cost of detecting its micro-tiles.
    /// They therefore run as for a dense operand.
    sums_and_elementwise_products: cpu [dense_passes], gpu [dense_passes];
    steps_of_sparse_training: cpu [training], gpu [training];
}

fn dense_passes(context: &Context) {
    let [a, b] = [dynamic::<f16>([96, 80], 32, 200, 3), integers::<f16>(&[96, 80], 4)];
    let [x, y] = upload(context, [&a, &b]);
    let sums = einsum!(*context, "S[m] = A[m,k]", A = Dynamic::new(&x)).unwrap();
    let rows = a.values().chunks(80);
    let wanted: Vec<f64> = rows.map(|row| row.iter().map(|v| v.to_f64()).sum()).collect();
    assert_exact(&sums, &wanted, "sums");
    let each = einsum!(*context, "C[m,k] = A[m,k] * B[m,k]", A = Dynamic::new(&x), B = &y).unwrap();
    let both = a.values().iter().zip(b.values());
    let wanted: Vec<f64> = both.map(|(a, b)| a.to_f64() * b.to_f64()).collect();
    assert_exact(&each, &wanted, "products");
}

/// Forward and the gradient of the input of `Y = W X`, where W is masked differently at each step in blocks of 32 x 64.
fn training(context: &Context) {
    let [out, input, tokens] = [192, 256, 264];
    let [x, d_y] = [integers::<f16>(&[input, tokens], 1), integers::<f16>(&[out, tokens], 2)];
    let [x_there, d_y_there] = upload(context, [&x, &d_y]);
    let mut w_there = context.zeros::<f16>(&[out, input]).unwrap();
    for step in 0..3u64 {
        let blocks = dynamic::<f16>([out / 32, input / 64], 1, 300, 50 + step);
        let mut w = integers::<f16>(&[out, input], 60 + step);
        for (at, value) in w.values_mut().iter_mut().enumerate() {
            if blocks.values()[at / input / 32 * (input / 64) + at % input / 64] == f16::ZERO {
                *value = f16::ZERO;
            }
        }
        w_there.write(&w).unwrap();
        let y =
            einsum!(*context, "Y[o,t] = W[o,i] * X[i,t]", W = Dynamic::new(&w_there), X = &x_there);
        assert_exact(&y.unwrap(), &dense_product(&w, &x), "forward");
        let d_x = einsum!(
            *context,
            "Y[i,t] = W[o,i] * X[o,t]",
            W = Dynamic::new(&w_there),
            X = &d_y_there
        );
        let wanted = dense_product(&crate::support::dense::transposed(&w), &d_y);
        assert_exact(&d_x.unwrap(), &wanted, "gradient of the input");
    }
}

/// The CPU multiplies elements up to the threshold too.
#[test]
fn thresholds_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    let [a, b] = [integers::<f32>(&[9, 7], 1), integers::<f32>(&[7, 5], 2)];
    let [a_there, b_there] = upload(&cpu, [&a, &b]);
    let small = Dynamic::new(&a_there).threshold(100.0);
    let c = einsum!(cpu, LINE, A = small, B = &b_there).unwrap();
    assert_exact(&c, &rounded::<f32>(&dense_product(&a, &b)), LINE);
    let plan = cpu.plan(LINE).operand("A", Dynamic::new(&a_there).threshold(-1.0));
    let error = plan.operand("B", &b_there).build().unwrap_err();
    assert_error!(error, Error::Operand { name, .. } if name == "A");
}

/// If no kernel detects micro-tiles, a dynamic operand is used as a dense tensor.
#[test]
fn dynamic_operands_of_other_plans_are_dense() {
    let cpu = Context::unchecked_cpu();
    let x = cpu.upload_dense(&integers::<f32>(&[2, 3], 1)).unwrap();
    let pattern = CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0]).unwrap();
    let zeros = Csr::new(pattern, vec![0f32; 2]).unwrap();
    let line = "S[m,n] = X[m,k] * Y[n,k]";
    let sampled = |x_is: Operand<'_, f32>| {
        let mut s = cpu.upload(&zeros).unwrap();
        let operands = [("X", x_is), ("Y", (&x).into())];
        let plan = sampled_plan_of(&cpu, line, &operands, &s);
        plan.run(&operands, &mut s, &cpu.stream().unwrap()).unwrap();
        s.to_host().unwrap().values().to_vec()
    };
    assert_eq!(sampled(Dynamic::new(&x).into()), sampled((&x).into()));
    let wide = cpu.upload_dense(&integers::<f32>(&[3, 400], 2)).unwrap();
    let tall = cpu.upload_dense(&integers::<f32>(&[400, 2], 3)).unwrap();
    let path = |first: Operand<'_, f32>| {
        let operands = [("A", first), ("B", (&wide).into()), ("C", (&tall).into())];
        let line = "Y[m,n] = A[m,k] * B[k,l] * C[l,n]";
        cpu.contraction_path(line, &operands).unwrap()
    };
    let found = path(Dynamic::new(&x).into());
    assert!(found.is_some());
    assert_eq!(found, path((&x).into()));
}
