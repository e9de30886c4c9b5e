//! Prepacked forms if the sparse matrix is transposed, or is the right factor.

use super::*;
use einsparse::ops;

fn both<'a>(a: &'a SparseTensor<f32>, b: &'a Tensor<f32>) -> [(&'static str, Operand<'a, f32>); 2] {
    [("A", a.into()), ("B", b.into())]
}

/// Products with the transpose reorder the values once, and again after an update.
#[test]
fn values_of_a_transpose_are_kept() {
    let Some(gpu) = gpu() else { return };
    // Kernels that reorder values one by one, and kernels that reorder them by tiles.
    for (rows, density) in [(700, 0.05), (3000, 0.1)] {
        let first = matrix::<f32>((rows, 900, density), Format::Csr, 3);
        let second = first.map_values(|v| 2.0 * v);
        let b = Dense::from_fn([rows, 40], |at| ((at[0] + at[1]) % 3) as f32).unwrap();
        let ([db], mut a) = (upload(&gpu, [&b]), gpu.upload(&first).unwrap());
        let text = "C[k,n] = A[m,k] * B[m,n]";
        for (weights, variant) in [
            (Weights::EachRun, None),
            (Weights::Static, None),
            (Weights::Static, Some("spmm_csr_f32_n64")),
            (Weights::Static, Some("batched_permuted_f32_n64")),
        ] {
            a.set_values(first.values()).unwrap();
            let plan = plan_of(&gpu, text, &both(&a, &db), &holding(weights, variant));
            let [old, new] = [&first, &second].map(|a| {
                let operands = [("A", a.into()), ("B", (&b).into())];
                wide(&ops::einsum(&Context::cpu(), text, &operands).unwrap())
            });
            assert!(run(&gpu, &plan, &both(&a, &db)) == old, "{variant:?}");
            a.set_values(second.values()).unwrap();
            if weights == Weights::Static && variant == Some("spmm_csr_f32_n64") {
                let found = run(&gpu, &plan, &both(&a, &db));
                assert!(found == old, "values that were told of by nobody");
            }
            finish(&gpu, |stream| plan.update_values(&both(&a, &db), stream));
            assert!(run(&gpu, &plan, &both(&a, &db)) == new, "{variant:?}");
        }
    }
}

/// Token rows and transposes: kernels over two dense matrices support all of these orders.
#[test]
fn dense_forms_serve_every_order() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::cpu();
    let small = |shape: [usize; 2], by: usize| {
        Dense::from_fn(shape, |at| f16::from_f32(((at[0] + by * at[1]) % 4) as f32)).unwrap()
    };
    let a = matrix::<f16>((96, 200, 0.5), Format::Csr, 5);
    for (text, x, out, swapped) in [
        ("C[m,n] = A[k,m] * B[k,n]", [96, 72], [200, 72], false),
        ("C[t,m] = B[t,k] * A[m,k]", [72, 200], [72, 96], true),
        ("C[t,k] = B[t,m] * A[m,k]", [72, 96], [72, 200], true),
        ("C[m,t] = A[m,k] * B[t,k]", [72, 200], [96, 72], false),
    ] {
        let x = small(x, 3);
        let wanted = einsparse::einsum!(cpu, text, A = &a, B = &x).unwrap();
        assert_eq!(wanted.shape(), out);
        let (da, db) = (gpu.upload(&a).unwrap(), gpu.upload_dense(&x).unwrap());
        let operands = [("A", Operand::from(&da)), ("B", (&db).into())];
        for weights in BOTH {
            let plan = plan_of(&gpu, text, &operands, &holding(weights, None));
            let found = run(&gpu, &plan, &operands);
            assert!(found == wide(&wanted), "{text} {weights:?}: {plan}");
            if swapped {
                assert_eq!(plan.prepacked().as_deref(), Some("dense"), "{text}");
                // The kernel swaps A and B, so the raw addresses of the sparse matrix would be used for the other one.
                let raw = RawSpmm::default();
                let stream = gpu.stream().unwrap();
                // SAFETY: the call returns an error before it reads anything.
                let refused = unsafe { plan.run_raw(&raw, stream.raw()) };
                let reason = refused.unwrap_err().to_string();
                assert!(reason.contains("raw addresses are for"), "{reason}");
            }
        }
    }
}
