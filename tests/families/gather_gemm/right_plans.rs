//! Plans with a dynamic operand on the right: what they select, why they select no skipping kernel, and that results
//! equal those of a dense operand.

use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::{bf16, f16};
use einsparse::{Context, Operand, Scalar, einsum};

use super::matmul::{integers, product};
use super::right::{left, room};
use super::turned::{exact, pieces};
use crate::support::dense::poisoned;
use crate::support::gpu;
use crate::support::rows::{here, here_on, named};
use crate::support::runs::{finish, plan_of};

const LINE: &str = "C[m,n] = A[m,k] * B[k,n]";
const BY_COLUMNS: &str = "C[m,n] = A[k,m] * B[k,n]";

/// Returns the kernel that a plan of `line` selects for a B of this expected sparsity.
fn taken(line: &str, expected: SparsityHint) -> &'static str {
    let cpu = Context::unchecked_cpu();
    let a = cpu.zeros::<f16>(&[4096, 4096]).unwrap();
    let b = cpu.zeros::<f16>(&[4096, 4096]).unwrap();
    let b = Dynamic::new(&b).expecting(expected);
    let operands = [("A", (&a).into()), ("B", b.into())];
    let plan = cpu.plan(line).operands(&operands).build().unwrap();
    plan.choice().candidates[0].name
}

/// The fuller B is, the less time skipping saves, and a transpose has a cost.
#[test]
fn right_operands_are_chosen_for_by_their_share() {
    for line in [LINE, BY_COLUMNS] {
        for share in [0.02, 0.1] {
            let name = taken(line, SparsityHint::MicroTiles(share));
            let wanted = here_on(&Context::unchecked_cpu().machine(), "pit_right_f16_1x64");
            assert_eq!(name, wanted, "{line} {share}");
        }
        let full = taken(line, SparsityHint::MicroTiles(1.0));
        assert!(!full.starts_with("pit"), "{line}: {full}");
        assert_eq!(taken(line, SparsityHint::Elements(0.1)), full, "{line}");
    }
}

/// The reasons for which a right operand is used as a dense tensor.
#[test]
fn plans_say_why_right_operands_are_dense() {
    let cpu = Context::unchecked_cpu();
    let square = |n: usize| cpu.zeros::<f16>(&[n, n]).unwrap();
    let (a, b, odd) = (square(64), square(64), square(60));
    let said = |line: &str, a: Operand<'_, f16>, b: Operand<'_, f16>| {
        let operands = [("A", a), ("B", b)];
        let plan = cpu.plan(line).operands(&operands).build().unwrap();
        let choice = plan.choice().to_string();
        let own = choice.lines().filter(|line| line.contains("pit"));
        own.collect::<Vec<_>>().join("\n")
    };
    let (x, y) = (Dynamic::new(&a), Dynamic::new(&b));
    for (found, reason) in [
        (said("C[m,n] = 2 * A[m,k] * B[k,n]", (&a).into(), y.into()), "without factors"),
        (said("C[m,n] = A[m,k] * B[n,k]", (&a).into(), y.into()), "refused: computes C[m,n]"),
        (said(LINE, x.into(), (&b).into()), "of the second matrix"),
        (said(LINE, (&odd).into(), Dynamic::new(&odd).into()), "pieces of rows of B by 16 bytes"),
    ] {
        assert!(found.contains(reason), "{reason}: {found}");
        assert!(!found.contains("pit_right_f16"), "{reason}: {found}");
    }
    // If both operands are dynamic, kernels for either are among the candidates.
    let found = said(LINE, x.into(), y.into());
    for name in ["pit_right_f16_1x64", "pit_f16_128x1"] {
        assert!(found.contains(here_on(&cpu.machine(), name)), "{found}");
    }
}

fn agree<T: Scalar>(context: &Context, line: &str, variant: Option<&str>) {
    let [m, k, n] = [301, 200, 264];
    let by_columns = line == BY_COLUMNS;
    let a = integers::<T>([m, k], 5);
    let a_there = left(context, &a, by_columns, if by_columns { room(m) } else { 0 });
    let mut b_there = context.zeros::<T>(&[k, n]).unwrap();
    let operands = [("A", (&a_there).into()), ("B", Dynamic::new(&b_there).into())];
    let plan = plan_of(context, line, &operands, &named(variant));
    if let Some(variant) = variant {
        assert_eq!(plan.variant(), variant);
        let said = plan.to_string();
        assert_eq!(said.contains("transpose_16"), !by_columns, "{said}");
        assert!(said.contains("detect_16_1x64"), "{said}");
    }
    for per_mille in [1000, 0, 100, 30] {
        let b = pieces::<T>([k, n], per_mille, 7 + per_mille);
        b_there.write(&b).unwrap();
        let mut c = poisoned::<T>(context, &[m, n]);
        let operands = [("A", (&a_there).into()), ("B", Dynamic::new(&b_there).into())];
        finish(context, |stream| plan.run(&operands, &mut c, stream));
        exact(&c, &product(&a, &b), &format!("{plan}, {per_mille}"));
    }
    let once = match by_columns {
        true => einsum!(*context, BY_COLUMNS, A = &a_there, B = Dynamic::new(&b_there)),
        false => einsum!(*context, LINE, A = &a_there, B = Dynamic::new(&b_there)),
    };
    let b = b_there.to_dense().unwrap();
    exact(&once.unwrap(), &product(&a, &b), line);
}

#[test]
fn plans_with_dynamic_right_operands() {
    for line in [LINE, BY_COLUMNS] {
        agree::<f32>(&Context::unchecked_cpu(), line, None);
        agree::<bf16>(&Context::unchecked_cpu(), line, None);
    }
    let Some(gpu) = gpu() else { return };
    for line in [LINE, BY_COLUMNS] {
        agree::<f16>(&gpu, line, Some(here("pit_right_f16_1x64")));
        agree::<bf16>(&gpu, line, Some(here("pit_right_bf16_1x64")));
        agree::<f16>(&gpu, line, None);
        agree::<f32>(&gpu, line, None);
    }
}
