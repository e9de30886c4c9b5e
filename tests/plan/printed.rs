//! Printed form of choices and plans.

use super::{TEXT, choice, matrix};
use crate::support::runs::plan_of;
use einsparse::formats::{Dense, f16};
use einsparse::{Choice, Context, Options};
use std::collections::BTreeSet;

#[test]
fn a_choice_prints_candidates_and_refusals() {
    let text = choice::<f16>("bsr:16x16", 64, &Options::default()).to_string();
    let lines: Vec<_> = text.lines().collect();
    // The first candidate of a GPU is not marked, because the CPU executor runs the plan.
    assert!(lines[0].starts_with("   ") && !text.contains("->"), "{text}");
    let taken = Choice { taken: true, ..choice::<f16>("bsr:16x16", 64, &Options::default()) };
    let taken = taken.to_string();
    assert!(taken.starts_with("-> ") && taken.matches("->").count() == 1, "{taken}");
    for words in [" us (hbm ", ", gather ", ", compute ", ", latency ", "zeros = Dense"] {
        assert!(lines[0].contains(words), "{words} not in {}", lines[0]);
    }
    let candidates = lines.iter().filter(|line| !line.starts_with("   refused: ")).count();
    assert!(lines[1].starts_with("   ") && candidates >= 4, "{text}");
    assert!(lines[candidates..].iter().all(|line| line.starts_with("   refused: ")), "{text}");
    // Each reason is printed once, for all kernels that have it.
    let refusals = &lines[candidates..];
    let reasons: BTreeSet<_> = refusals.iter().map(|l| l.rsplit_once(": ").unwrap().0).collect();
    assert_eq!(reasons.len(), refusals.len(), "{text}");
    assert!(refusals.iter().any(|line| line.contains(" .. ")), "{text}");
    assert_eq!(Choice::default().to_string(), "");
}

#[test]
fn a_plan_prints_itself_and_its_stages() {
    let b = Dense::<f32>::zeros([96, 64]).unwrap();
    let a = matrix::<f32>("groupcoo:4");
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let plan = plan_of(&Context::cpu(), TEXT, &operands, &Options::default());
    assert_eq!(plan.einsum().to_string(), TEXT);
    assert_eq!(plan.indirect().to_string(), "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]");
    assert_eq!(
        (plan.variant(), plan.out_shape(), plan.workspace_bytes()),
        ("cpu", &[96, 64][..], 0)
    );
    assert!(plan.to_string().starts_with("cpu: parallel executor on CPU ("), "{plan}");
    // A format without row order has no candidates for products.
    let csc = choice::<f32>("csc", 64, &Options::default());
    let gathers = |c: &einsparse::plan::Candidate| c.name.starts_with("mttkrp_f32_g1_");
    assert!(!csc.candidates.is_empty() && csc.candidates.iter().all(gathers), "{csc}");
}
