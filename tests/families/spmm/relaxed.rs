//! Sums in any order: the family `relaxed`.

use crate::support::rows::{kernels_here, named, rows_cut};
use crate::support::runs::{finish, plan_of};
use crate::support::{Problem, assert_matrix, gpu, is_built, spread};
use einsparse::formats::Dense;
use einsparse::registry::{Operation, Row};
use einsparse::{Context, Determinism, Operand, Options};

const N: usize = 64;
const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Parts of split rows are added in any order. Results are exact on integers. Only plans that allow this order and name
/// the kernel use it.
#[test]
fn relaxed_rows_add_to_c_on_the_gpu() {
    let relaxed: Vec<&Row> =
        kernels_here().filter(|row| row.operation == Operation::Relaxed).collect();
    assert!(!relaxed.is_empty());
    // Short rows, and two that every tile splits.
    let lens: Vec<usize> = (0..50).chain([2600, 17, 2300]).collect();
    let cpu = Context::unchecked_cpu();
    let gpu = gpu().filter(|_| is_built("relaxed"));
    for row in relaxed {
        let problem = Problem::<f32>::integers(spread(&lens, 2600), 4, N);
        let run = |context: &Context, determinism, text: &str| {
            let a = context.upload(problem.sparse("csr")).unwrap();
            let b = context.upload_dense(&problem.b(N)).unwrap();
            let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
            let options = Options { determinism, ..named(row.name) };
            let plan = plan_of(context, text, &operands, &options);
            if context.is_cuda() {
                // The long rows are split, and at most those longer than 32, the minimum length of a split.
                assert!((Some(2)..=Some(19)).contains(&rows_cut(&plan)), "{plan}");
            }
            let ones = Dense::new([problem.m(), N], vec![1f32; problem.m() * N]).unwrap();
            let mut c = context.upload_dense(&ones).unwrap();
            finish(context, |stream| plan.run(&operands, &mut c, stream));
            (plan.choice().clone(), c.to_storage().unwrap())
        };
        let added = "C[m,n] += A[m,k] * B[k,n]";
        let (strict, _) = run(&cpu, Determinism::Strict, added);
        assert!(strict.candidates.is_empty(), "{strict}");
        let (stored, _) = run(&cpu, Determinism::Relaxed, TEXT);
        assert!(stored.to_string().contains("as parts come"), "{stored}");
        for context in gpu.iter().map(|g| &**g) {
            let (_, found) = run(context, Determinism::Relaxed, added);
            assert_matrix(&row.name, &found, (problem.m(), N, N), |r, c| problem.exact(r, c) + 1.0);
        }
    }
}

/// These kernels cannot order the values of a transpose.
#[test]
fn relaxed_rows_refuse_the_transpose() {
    let cpu = Context::unchecked_cpu();
    let problem = Problem::<f32>::integers(spread(&[1, 2], 3), 4, N);
    let a = cpu.upload(problem.sparse("csr")).unwrap();
    let b = cpu.zeros::<f32>(&[2, N]).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let options = Options { determinism: Determinism::Relaxed, ..named("relaxed_csr_f32_n32") };
    let plan = plan_of(&cpu, "C[k,n] += A[m,k] * B[m,n]", &operands, &options);
    let choice = plan.choice();
    assert!(choice.candidates.is_empty(), "{choice}");
    assert!(choice.to_string().contains("takes its transpose"), "{choice}");
}
