//! Plans with a prepacked A: right for every unstructured format, with new values after an update or in each run.

mod transposes;

use crate::support::assert_error;
use crate::support::dense::{upload, wide};
use crate::support::rows::{here, here_on, is_here, named};
use crate::support::runs::{finish, output_of, plan_of};
use crate::support::{Rng, gpu};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format, bf16, convert, f16, generate};
use einsparse::plan::PrepackedForm;
use einsparse::raw::RawSpmm;
use einsparse::registry::Scalar;
use einsparse::{
    Context, Error, Operand, Options, Plan, Precision, SparseTensor, Stream, Tensor, Weights,
    ZerosRule,
};

const TEXT: &str = "C[m,n] = 2 * A[m,k] * B[k,n] + bias[m]";

const BOTH: [Weights; 2] = [Weights::Static, Weights::EachRun];

/// Options with this kernel, or with any.
fn holding(weights: Weights, variant: Option<&str>) -> Options {
    named(variant).weights(weights)
}

/// Forces one kernel over dense matrices, so that the test does not depend on the selection.
fn dense_kernel(dtype: &str, weights: Weights) -> Options {
    holding(weights, Some(here(&format!("wgmma_{dtype}_64x64_n128"))))
}

/// A and B of a product, and its bias.
fn with<'a, T: Scalar>(
    a: &'a SparseTensor<T>,
    b: &'a Tensor<T>,
    bias: &'a Tensor<T>,
) -> [(&'static str, Operand<'a, T>); 3] {
    [("A", a.into()), ("B", b.into()), ("bias", bias.into())]
}

/// Small integers at the nonzeros of a pattern.
fn matrix<T: Scalar>(
    (m, k, density): (usize, usize, f64),
    format: Format,
    seed: u64,
) -> AnySparse<T> {
    let mut rng = Rng(seed);
    let pattern = generate::uniform(m, k, density, seed).unwrap();
    let values =
        (0..pattern.columns().len()).map(|_| T::from_f64((rng.word() % 7) as f64 - 3.0)).collect();
    let csr = AnySparse::from(Csr::new(pattern, values).unwrap());
    csr.convert(format).unwrap()
}

fn product<T: Scalar>(a: &AnySparse<T>, b: &Dense<T>, bias: &Dense<T>) -> Vec<f64> {
    let (n, dense) = (b.shape()[1], a.to_dense().unwrap());
    let (m, k) = (a.shape()[0], a.shape()[1]);
    let at = |row: usize, column: usize| {
        let terms = (0..k)
            .map(|i| dense.values()[row * k + i].to_f64() * b.values()[i * n + column].to_f64());
        2.0 * terms.sum::<f64>() + bias.values()[row].to_f64()
    };
    let all = (0..m).flat_map(|row| (0..n).map(move |column| (row, column)));
    all.map(|(row, column)| at(row, column)).collect()
}

fn run<T: Scalar>(gpu: &Context, plan: &Plan<T>, operands: &[(&str, Operand<'_, T>)]) -> Vec<f64> {
    wide(&output_of(gpu, plan, operands))
}

fn kept_dense<T: Scalar>(dtype: &str) {
    let Some(gpu) = gpu() else { return };
    for (i, format) in ["csr", "coo", "ell", "groupcoo:4"].into_iter().enumerate() {
        let format: Format = format.parse().unwrap();
        for (m, k, n) in [(3, 5, 8), (65, 130, 24), (200, 129, 64)] {
            let a = matrix::<T>((m, k, 0.3), format, i as u64);
            let b =
                Dense::from_fn([k, n], |at| T::from_f64(((at[0] * 3 + at[1]) % 5) as f64 - 2.0));
            let bias = Dense::from_fn([m], |at| T::from_f64((at[0] % 3) as f64));
            let (b, bias) = (b.unwrap(), bias.unwrap());
            let on_gpu = gpu.upload(&a).unwrap();
            let [db, dbias] = upload(&gpu, [&b, &bias]);
            let operands = with(&on_gpu, &db, &dbias);
            for weights in BOTH {
                let options = dense_kernel(dtype, weights);
                let plan = plan_of(&gpu, TEXT, &operands, &options);
                assert_eq!(plan.prepacked().as_deref(), Some("dense"), "{format}");
                assert!(plan.workspace_bytes() >= m * k * size_of::<T>());
                let said = match weights {
                    Weights::Static => "A prepacked as dense",
                    Weights::EachRun => "A in each run made dense",
                };
                assert!(plan.to_string().ends_with(said), "{plan}");
                let found = run(&gpu, &plan, &operands);
                assert!(found == product(&a, &b, &bias), "{format} {m} x {k} x {n}");
            }
        }
    }
}

#[test]
fn kept_dense_is_the_same_product() {
    kept_dense::<f16>("f16");
    kept_dense::<bf16>("bf16");
}

/// Checks a product by kernels over a prepacked form, also with new values: after an update, or directly.
fn kept_as<T: Scalar>(
    gpu: &Context,
    weights: Weights,
    variants: &[(&str, PrepackedForm)],
    precision: Precision,
) {
    for format in ["csr", "coo", "ell", "groupcoo:4"] {
        let a = matrix::<T>((200, 300, 0.09), format.parse().unwrap(), 3);
        kept_of(gpu, &a, weights, variants, precision);
    }
}

/// Checks the product of this matrix.
fn kept_of<T: Scalar>(
    gpu: &Context,
    first: &AnySparse<T>,
    weights: Weights,
    variants: &[(&str, PrepackedForm)],
    precision: Precision,
) {
    let &[m, k] = first.shape() else {
        unreachable!("a matrix");
    };
    let b = Dense::from_fn([k, 24], |at| T::from_f64(((at[0] + at[1]) % 3) as f64));
    let b = b.unwrap();
    let bias = Dense::from_fn([m], |at| T::from_f64((at[0] % 4) as f64)).unwrap();
    let [db, dbias] = upload(gpu, [&b, &bias]);
    let format = first.format();
    // Slots with value zero get another value.
    let second = first.map_values(|v| T::from_f64(2.0 * v.to_f64() + 1.0));
    for (variant, form) in variants {
        let mut a = gpu.upload(first).unwrap();
        let options = holding(weights, Some(variant)).precision(precision);
        let plan = plan_of(gpu, TEXT, &with(&a, &db, &dbias), &options);
        assert_eq!(plan.prepacked(), Some(form.to_string()), "{format}");
        a.set_values(second.values()).unwrap();
        let operands = with(&a, &db, &dbias);
        if weights == Weights::Static {
            let found = run(gpu, &plan, &operands);
            assert!(found == product(first, &b, &bias), "{format} {variant}");
            finish(gpu, |stream| plan.update_values(&operands, stream));
        }
        let found = run(gpu, &plan, &operands);
        assert!(found == product(&second, &b, &bias), "{format} {variant}");
    }
}

/// 2:4 with few columns, as bitmaps in which each slot has a bit, also if its value is zero.
#[test]
fn two_of_four_is_kept_by_tiles() {
    let Some(gpu) = gpu() else { return };
    let bits = [(here("bitmap_f16_128x16"), PrepackedForm::Sparse(Format::Bitmap))];
    for (m, k) in [(3, 5), (200, 300), (129, 258)] {
        let dense = Dense::from_fn([m, k], |at| {
            f16::from_f32(match (at[0] + at[1] / 4) % 3 {
                0 => 0.0,
                _ => ((at[0] * 7 + at[1] * 5) % 6) as f32 - 2.0,
            })
        });
        let a = AnySparse::from(convert::prune_to_nm(&dense.unwrap()).unwrap());
        kept_of(&gpu, &a, Weights::Static, &bits, Precision::Full);
    }
}

#[test]
fn kept_in_other_forms_is_the_same_product_and_takes_new_values() {
    let Some(gpu) = gpu() else { return };
    let bits = [
        (here("bitmap_f16_128x16"), PrepackedForm::Sparse(Format::Bitmap)),
        (here("bytemap_f16_256x32"), PrepackedForm::Sparse(Format::Bytemap)),
    ];
    kept_as::<f16>(&gpu, Weights::Static, &bits, Precision::Full);
    // SlicedEll kernels of several columns need the tensor copy engine.
    let slices = ["staged_f32_all", "staged_f32_w16_p4"].into_iter().filter(|name| is_here(name));
    let slices = slices.map(|name| (name, PrepackedForm::Sparse(Format::SlicedEll)));
    let slices: Vec<_> = slices.collect();
    let dense = [(here("dense_tf32_64x64"), PrepackedForm::Dense)];
    for weights in BOTH {
        kept_as::<f32>(&gpu, weights, &slices, Precision::Full);
        kept_as::<f32>(&gpu, weights, &dense, Precision::Tf32);
    }
}

/// Two matrices of one pattern on two streams: no product reads the values of another run.
#[test]
fn runs_that_bring_their_values_take_turns() {
    let Some(gpu) = gpu() else { return };
    let (m, k, n) = (1024, 1024, 128);
    let first = matrix::<f16>((m, k, 0.5), Format::Csr, 1);
    let second = first.map_values(|v| f16::from_f32(1.0 - v.to_f32()));
    let b = Dense::from_fn([k, n], |at| f16::from_f32((at[0] % 3) as f32)).unwrap();
    let bias = Dense::from_fn([m], |_| f16::ZERO).unwrap();
    let [db, dbias] = upload(&gpu, [&b, &bias]);
    let both = [&first, &second].map(|a| gpu.upload(a).unwrap());
    let operands = |a| with(a, &db, &dbias);
    let options = dense_kernel("f16", Weights::EachRun);
    let plan = plan_of(&gpu, TEXT, &operands(&both[0]), &options);
    let streams = [(); 2].map(|_| gpu.stream().unwrap());
    let mut outputs: Vec<_> = (0..16).map(|_| gpu.zeros::<f16>(&[m, n]).unwrap()).collect();
    for (i, out) in outputs.iter_mut().enumerate() {
        let of = operands(&both[i % 2]);
        plan.run(&of, out, &streams[i % 2]).unwrap();
    }
    gpu.synchronize().unwrap();
    let wanted = both.each_ref().map(|a| run(&gpu, &plan, &operands(a)));
    assert!(wanted[0] != wanted[1]);
    for (i, out) in outputs.iter().enumerate() {
        let found = wide(out);
        assert!(found == wanted[i % 2], "run {i}");
    }
}

/// A chain of products has no update, so it uses the values of the run.
#[test]
fn chains_take_the_values_of_a_run() {
    let Some(gpu) = gpu() else { return };
    let first = matrix::<f16>((512, 512, 0.5), Format::Csr, 1);
    let second = first.map_values(|v| f16::from_f32(1.0 - v.to_f32()));
    let both = [&first, &second].map(|a| gpu.upload(a).unwrap());
    let dense = |seed: usize| {
        Dense::from_fn([512, 512], |at| f16::from_f32(((at[0] + seed * at[1]) % 3) as f32 / 64.0))
    };
    let (b, e) = (dense(1).unwrap(), dense(2).unwrap());
    let [b, e] = upload(&gpu, [&b, &e]);
    let operands = |a| [("A", Operand::from(a)), ("B", (&b).into()), ("E", (&e).into())];
    let planned = both.each_ref().map(operands);
    let options = holding(Weights::Static, None);
    let text = "C[m,n] = A[m,k] * B[k,j] * E[j,n]";
    let [kept, anew] = [&planned[0], &planned[1]].map(|by| plan_of(&gpu, text, by, &options));
    let found = run(&gpu, &kept, &planned[1]);
    assert!(found == run(&gpu, &anew, &planned[1]));
    assert!(found != run(&gpu, &kept, &planned[0]));
}

/// Kernels that read prepacked values before the preceding launch has ended read new values after an update.
#[test]
fn updates_end_before_kernels_read_ahead() {
    let Some(gpu) = gpu() else { return };
    let (m, k) = (4096, 4096);
    let first = matrix::<f16>((m, k, 0.1), Format::Csr, 1);
    let second = first.map_values(|v| f16::from_f32(1.0 - v.to_f32()));
    let both = [&first, &second].map(|a| gpu.upload(a).unwrap());
    let bias = gpu.zeros::<f16>(&[m]).unwrap();
    for (n, variant) in [
        (1, here("bitmap_f16_256x1_warps6")),
        (16, here("bytemap_f16_256x16")),
        (32, here("bitmap_f16_256x32")),
    ] {
        let b = Dense::from_fn([k, n], |at| f16::from_f32((at[0] % 2) as f32)).unwrap();
        let b = gpu.upload_dense(&b).unwrap();
        let operands = |a| with(a, &b, &bias);
        let options = holding(Weights::Static, Some(variant));
        let plan = plan_of(&gpu, TEXT, &operands(&both[0]), &options);
        let update =
            |i: usize, stream: &Stream| plan.update_values(&operands(&both[i % 2]), stream);
        let wanted = [0, 1].map(|i| {
            finish(&gpu, |stream| update(i, stream));
            run(&gpu, &plan, &operands(&both[i]))
        });
        assert!(wanted[0] != wanted[1]);
        let stream = gpu.stream().unwrap();
        let mut outputs: Vec<_> = (0..32).map(|_| gpu.zeros::<f16>(&[m, n]).unwrap()).collect();
        for (i, out) in outputs.iter_mut().enumerate() {
            // An update before every second product.
            if i % 2 == 0 {
                update(i / 2, &stream).unwrap();
            }
            plan.run(&operands(&both[0]), out, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        for (i, out) in outputs.iter().enumerate() {
            assert!(wide(out) == wanted[i / 2 % 2], "{variant}, run {i}");
        }
    }
}

#[test]
fn kept_values_are_new_when_asked_for() {
    let Some(gpu) = gpu() else { return };
    let (m, k, n) = (70, 96, 32);
    let first = matrix::<f16>((m, k, 0.5), Format::Csr, 1);
    let second = first.map_values(|v| f16::from_f32(v.to_f32() + 1.0));
    let b = Dense::from_fn([k, n], |at| f16::from_f32((at[0] % 3) as f32)).unwrap();
    let bias = Dense::from_fn([m], |_| f16::ZERO).unwrap();
    let mut a = gpu.upload(&first).unwrap();
    let [db, dbias] = upload(&gpu, [&b, &bias]);
    let options = dense_kernel("f16", Weights::Static);
    let plan = plan_of(&gpu, TEXT, &with(&a, &db, &dbias), &options);
    a.set_values(second.values()).unwrap();
    let operands = with(&a, &db, &dbias);
    assert!(run(&gpu, &plan, &operands) == product(&first, &b, &bias));
    finish(&gpu, |stream| plan.update_values(&operands, stream));
    assert!(run(&gpu, &plan, &operands) == product(&second, &b, &bias));

    // Raw addresses: those of A are not read.
    let stream = gpu.stream().unwrap();
    let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
    let raw = RawSpmm::default()
        .b(db.address().unwrap())
        .ldb(n)
        .c(c.address().unwrap())
        .ldc(n)
        .bias(dbias.address().unwrap())
        .alpha(2.0);
    // SAFETY: B, C and bias have the planned shapes and live until the stream is waited for.
    unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap();
    stream.synchronize().unwrap();
    assert!(wide(&c) == product(&second, &b, &bias));

    // Another pattern is refused, for a run and for an update.
    let other = matrix::<f16>((m, k, 0.5), Format::Csr, 2);
    let other = gpu.upload(other).unwrap();
    let wrong = with(&other, &db, &dbias);
    for refused in [plan.run(&wrong, &mut c, &stream), plan.update_values(&wrong, &stream)] {
        assert_error!(refused.unwrap_err(), Error::OtherPattern { name, .. } if name == "A");
    }
}

#[test]
fn forms_are_held_where_they_pay() {
    // The selection does not require a GPU.
    let context = Context::cpu();
    let a = matrix::<f16>((512, 512, 0.5), Format::Csr, 3);
    let a = context.upload(a).unwrap();
    let b = Dense::<f16>::zeros([512, 256]).unwrap();
    let operands = [("A", Operand::from(&a)), ("B", (&b).into())];
    let planned = |weights, zeros| {
        let options = holding(weights, None).zeros(zeros);
        plan_of(&context, "C[m,n] = A[m,k] * B[k,n]", &operands, &options)
    };
    let [kept, each_run] = BOTH.map(|weights| planned(weights, ZerosRule::Dense));
    let first = |plan: &Plan<f16>| plan.choice().candidates[0].clone();
    let as_dense = |plan: &Plan<f16>| {
        let mut candidates = plan.choice().candidates.iter();
        let first = candidates.find(|c| c.prepacked == Some(PrepackedForm::Dense));
        first.unwrap().clone()
    };
    assert!(kept.choice().to_string().contains("A as dense"));
    // A kernel for GPUs without `wgmma` may be slower than one without a prepacked form.
    if here_on(&context.machine(), "dense_csr_f16_64x64") == "dense_csr_f16_64x64" {
        assert_eq!(first(&kept).prepacked, Some(PrepackedForm::Dense), "{}", kept.choice());
        // Repacking in each run costs time, more than the expansion to dense tiles in the kernel `dense_csr`.
        let laid = first(&each_run);
        assert!(laid.cost.us > first(&kept).cost.us);
        assert!(each_run.choice().to_string().contains("A as dense"));
        assert!(laid.name.starts_with("dense_csr"), "{}", each_run.choice());
        assert!(as_dense(&each_run).cost.us > laid.cost.us);
    }
    // `ZerosRule::Strict` excludes implicit zeros.
    for weights in BOTH {
        let strict = planned(weights, ZerosRule::Strict);
        let mut candidates = strict.choice().candidates.iter();
        assert!(candidates.all(|c| c.prepacked != Some(PrepackedForm::Dense)));
    }
    // Kernels without a prepacked form remain candidates.
    let names = |plan: &Plan<f16>| {
        let plain = plan.choice().candidates.iter().filter(|c| c.prepacked.is_none());
        let mut names: Vec<_> = plain.map(|c| c.name).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&each_run), names(&kept));
}

/// A dense corner of a thin matrix exceeds a stage in shared memory. Only the pattern shows that, so the plan takes the
/// next kernel.
#[test]
fn what_no_stage_holds_gives_way_to_the_next() {
    let Some(gpu) = gpu() else { return };
    let (m, k, n) = (256, 2048, 16);
    let mut offsets = vec![0];
    offsets.extend((1..=m as u32).map(|row| row.min(128) * 128));
    let columns = (0..128).flat_map(|_| 0..128).collect();
    let pattern = CsrPattern::new(m, k, offsets, columns).unwrap();
    let a = AnySparse::from(Csr::new(pattern, vec![f16::ONE; 128 * 128]).unwrap());
    let b = Dense::from_fn([k, n], |at| f16::from_f32(((at[0] + at[1]) % 3) as f32)).unwrap();
    let bias = Dense::from_fn([m], |at| f16::from_f32((at[0] % 4) as f32)).unwrap();
    let ([db, dbias], da) = (upload(&gpu, [&b, &bias]), gpu.upload(&a).unwrap());
    let operands = with(&da, &db, &dbias);
    let forced = holding(Weights::Static, Some(here("bytemap_f16_128x16")));
    let plan = gpu.plan(TEXT).operands(&operands).options(&forced);
    assert_error!(plan.build().unwrap_err(), Error::NoKernel { .. });
    let plan = plan_of(&gpu, TEXT, &operands, &holding(Weights::Static, None));
    assert_eq!(run(&gpu, &plan, &operands), product(&a, &b, &bias));
}
