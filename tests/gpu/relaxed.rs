//! Sums in any order: the family `relaxed`.

use super::rows::rows_cut;
use crate::support::{Problem, assert_matrix, gpu, spread};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::registry::{Operation, Row, Scalar, kernels};
use einsparse::{Context, Determinism, Operand, Options};

const N: usize = 64;
const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Parts of cut rows added in any order: exact on whole numbers, for plans that allow it and name it.
#[test]
fn relaxed_rows_add_to_c_on_the_gpu() {
    let relaxed: Vec<&Row> = kernels()
        .iter()
        .filter(|row| row.operation == Operation::Relaxed)
        .collect();
    assert!(!relaxed.is_empty());
    // Short rows, and two that every tile cuts.
    let lens: Vec<usize> = (0..50).chain([2600, 17, 2300]).collect();
    let cpu = Context::cpu();
    let gpu = gpu();
    for row in relaxed {
        let problem = Problem::<f32>::integers(spread(&lens, 2600), 4, N);
        let run = |context: &Context, determinism, text: &str| {
            let (a, b) = (
                context.upload(problem.sparse("csr")).unwrap(),
                context.upload_dense(&problem.b(N)).unwrap(),
            );
            let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
            let options = Options {
                determinism,
                variant: Some(row.name.into()),
                ..Options::default()
            };
            let plan = context.plan(text, &operands, &options).unwrap();
            if context.is_cuda() {
                // The long ones, and at the most those above the least that a row is cut at, 32.
                assert!((Some(2)..=Some(19)).contains(&rows_cut(&plan)), "{plan}");
            }
            let ones = Dense::new([problem.m(), N], vec![1f32; problem.m() * N]).unwrap();
            let mut c = context.upload_dense(&ones).unwrap();
            let stream = context.stream().unwrap();
            plan.run(&operands, &mut c, &stream).unwrap();
            stream.synchronize().unwrap();
            (plan.choice().clone(), c.to_storage().unwrap())
        };
        let added = "C[m,n] += A[m,k] * B[k,n]";
        let (strict, _) = run(&cpu, Determinism::Strict, added);
        assert!(strict.candidates.is_empty(), "{strict}");
        let (stored, _) = run(&cpu, Determinism::Relaxed, TEXT);
        assert!(stored.to_string().contains("as parts come"), "{stored}");
        for context in gpu.iter().map(|g| &**g) {
            let (_, found) = run(context, Determinism::Relaxed, added);
            assert_matrix(&row.name, &found, (problem.m(), N, N), |r, c| {
                problem.exact(r, c) + 1.0
            });
        }
    }
}

/// Nothing brings the transpose in order for them.
#[test]
fn relaxed_rows_refuse_the_transpose() {
    let cpu = Context::cpu();
    let problem = Problem::<f32>::integers(spread(&[1, 2], 3), 4, N);
    let a = cpu.upload(problem.sparse("csr")).unwrap();
    let b = cpu.zeros::<f32>(&[2, N]).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let options = Options {
        determinism: Determinism::Relaxed,
        variant: Some("relaxed_csr_f32_n32".into()),
        ..Options::default()
    };
    let plan = cpu.plan("C[k,n] += A[m,k] * B[m,n]", &operands, &options);
    let choice = plan.unwrap().choice().clone();
    assert!(choice.candidates.is_empty(), "{choice}");
    assert!(
        choice.to_string().contains("takes its transpose"),
        "{choice}"
    );
}

/// Scatters to places that are not sorted, in the general family: exact on whole numbers in any order, and elements of 16 bits
/// in their own.
#[test]
fn relaxed_scatters_add_as_terms_come() {
    let Some(gpu) = gpu() else { return };
    fn check<T: Scalar>(gpu: &Context, n: usize, wanted: &str) {
        let (terms, rows) = (5000u32, 37u32);
        let to: Vec<u32> = (0..terms)
            .map(|p| p.wrapping_mul(2_654_435_761) >> 7)
            .map(|p| p % rows)
            .collect();
        let from: Vec<u32> = (0..terms).map(|p| p * 7 % 53).collect();
        let x = Dense::from_fn([53, n], |i| {
            T::from_f64(((i[0] * 5 + i[1]) % 3) as f64 - 1.0)
        })
        .unwrap();
        let start = Dense::from_fn([rows as usize, n], |i| T::from_f64((i[0] % 4) as f64)).unwrap();
        let mut exact: Vec<f64> = start.values().iter().map(|v| v.to_f64()).collect();
        for (to, from) in to.iter().zip(&from) {
            for c in 0..n {
                exact[*to as usize * n + c] += x.values()[*from as usize * n + c].to_f64();
            }
        }
        let (x, mut out) = (
            gpu.upload_dense(&x).unwrap(),
            gpu.upload_dense(&start).unwrap(),
        );
        let len = [terms as usize];
        let operands = [
            ("I", Operand::Index(&len, &to)),
            ("J", Operand::Index(&len, &from)),
            ("X", (&x).into()),
        ];
        let like = gpu.upload_dense(&start).unwrap();
        let mut planned = operands.to_vec();
        planned.push(("C", (&like).into()));
        let options = Options {
            determinism: Determinism::Relaxed,
            ..Options::default()
        };
        let plan = gpu
            .plan("C[I[p],n] += X[J[p],n]", &planned, &options)
            .unwrap();
        assert!(plan.to_string().contains(wanted), "{plan}");
        let stream = gpu.stream().unwrap();
        plan.run(&operands, &mut out, &stream).unwrap();
        stream.synchronize().unwrap();
        let found = out.to_dense().unwrap();
        let found: Vec<f64> = found.values().iter().map(|v| v.to_f64()).collect();
        assert_eq!(found, exact, "{} columns, {plan}", n);
    }
    for n in [1, 3, 8, 64] {
        check::<f32>(&gpu, n, "added as they come");
        check::<f64>(&gpu, n, "added as they come");
        check::<f16>(&gpu, n, "cut sums");
        check::<bf16>(&gpu, n, "cut sums");
    }
}
