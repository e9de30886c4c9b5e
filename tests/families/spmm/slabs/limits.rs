//! Memory limits: what they keep on the GPU, what they refuse, and plans without anything to stream.

use super::*;
use crate::support::assert_error;
use crate::support::dense::{upload_values, wide};
use crate::support::runs::output_of;
use einsparse::{Error, Weights};

#[test]
fn what_fits_stays() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(500));
        let dressed = Dressed::new(ctx, &csr, 32);
        let there = ctx.upload(&csr).unwrap();
        let mut pinned = ctx.pin(&csr).unwrap();
        let operands: [(&str, Operand<'_, f32>); 2] =
            [("A", (&pinned).into()), ("B", (&dressed.b).into())];
        let limit = 1 << 20;
        for weights in [Weights::EachRun, Weights::Static] {
            let options = limited(limit, None).weights(weights);
            let plan = planned(ctx, &operands, &options).unwrap();
            let text = plan.to_string();
            assert!(!text.contains("chunks") && plan.workspace_bytes() <= limit, "{text}");
            assert_eq!(text.contains("A kept on the GPU"), ctx.is_cuda(), "{text}");
        }
        let options = limited(limit, None);
        let plan = planned(ctx, &operands, &options).unwrap();
        // The next run copies the new values.
        let negated: Vec<f32> = csr.values().iter().map(|x| -x).collect();
        pinned.set_values(&negated).unwrap();
        assert_eq!(pinned.to_host().unwrap().values(), negated);
        let operands = [("A", (&pinned).into()), ("B", (&dressed.b).into())];
        let c = output_of(ctx, &plan, &operands);
        let whole = [("A", (&there).into()), ("B", (&dressed.b).into())];
        let options = named(ctx.is_cuda().then(|| plan.variant()));
        let (_, wanted) = plan_and_run(ctx, TEXT, &whole, &options);
        for (x, y) in wide(&c).into_iter().zip(wide(&wanted)) {
            assert!((x + y).abs() <= 1e-4, "{x} {y}");
        }
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

#[test]
fn a_limit_that_is_too_small_names_bytes() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(2000));
        let dressed = Dressed::new(ctx, &csr, 32);
        let operands: [(&str, Operand<'_, f32>); 2] =
            [("A", (&csr).into()), ("B", (&dressed.b).into())];
        for limit in [0, 1000, 400 * 8] {
            let options = limited(limit, None);
            let error = planned(ctx, &operands, &options).unwrap_err();
            let Error::Overflow { what, value, limit: of } = &error else { panic!("{error}") };
            assert!(what.contains("400 entries") && *value > *of, "{error}");
            assert_eq!(*of, limit as u128, "{error}");
        }
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

#[test]
fn matrices_without_entries_or_rows() {
    fn case(ctx: &Context) {
        for (rows, limit) in [(0, 0), (0, 1 << 20), (5000, 9000), (5000, 1 << 20)] {
            let pattern = CsrPattern::new(rows, 40, vec![0; rows + 1], Vec::new()).unwrap();
            let a = Csr::new(pattern, Vec::<f32>::new()).unwrap();
            let a = ctx.pin(a).unwrap();
            let b = ctx.zeros::<f32>(&[40, 8]).unwrap();
            let bias = upload_values(ctx, &[rows], (0..rows).map(|i| i as f32).collect());
            let operands: [(&str, Operand<'_, f32>); 3] =
                [("A", (&a).into()), ("B", (&b).into()), ("bias", (&bias).into())];
            let text = "C[m,n] = A[m,k] * B[k,n] + bias[m]";
            let options = limited(limit, None);
            let (plan, c) = plan_and_run(ctx, text, &operands, &options);
            assert!(plan.workspace_bytes() <= limit, "{plan}");
            let mut all = wide(&c).into_iter().enumerate();
            assert!(all.all(|(i, x)| x == (i / 8) as f64), "{plan}");
        }
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

#[test]
fn other_patterns_and_expressions_are_refused() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(2000));
        let [m, k] = [csr.shape()[0], csr.shape()[1]];
        let dressed = Dressed::new(ctx, &csr, 32);
        let options = limited(bytes(&csr) / 2, None);
        let b = Operand::from(&dressed.b);
        let operands = [("A", Operand::from(&csr)), ("B", b.clone())];
        let plan = planned(ctx, &operands, &options).unwrap();
        let mut lens = vec![0; m];
        lens[3] = 5;
        let other = matrix::<f32>(spread(&lens, k));
        let (mut c, stream) = (ctx.upload_dense(&dressed.start).unwrap(), ctx.stream().unwrap());
        let error = plan.run(&[("A", (&other).into()), ("B", b.clone())], &mut c, &stream);
        assert_error!(error, Err(Error::OtherPattern { name, .. }) if name == "A");
        same_bits(&"untouched", c.to_dense().unwrap().values(), dressed.start.values());

        let x = ctx.zeros::<f32>(&[m, 8]).unwrap();
        let transposed = [("A", Operand::from(&csr)), ("X", (&x).into())];
        let text = "Y[k,n] = A[m,k] * X[m,n]";
        let plan = ctx.plan(text).operands(&transposed).options(&options);
        let error = plan.build().unwrap_err();
        assert!(error.to_string().contains("streams A of C[m,n]"), "{error}");
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

#[test]
fn page_locked_tensors_want_a_limit_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    let a = gpu.pin(matrix::<f32>(pattern(300))).unwrap();
    let b = gpu.zeros::<f32>(&[700, 8]).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let error = gpu.plan(TEXT).operands(&operands).build().unwrap_err();
    assert_error!(
        error,
        Error::OtherContext { name, found, .. } if name == "A" && found == "host memory"
    );
    // Operands on the GPU do not count toward the limit; memory that kernels keep does.
    let there = gpu.upload(matrix::<f32>(pattern(300))).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&there).into()), ("B", (&b).into())];
    let error = planned(&gpu, &operands, &limited(16, None)).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
}
