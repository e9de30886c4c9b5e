//! Plans without a GPU: candidate rows, the reasons of other rows, and the printed form of plans.

mod advice;
mod errors;
mod gradients;
mod names;
mod printed;
mod vectors;

use crate::support::dense::strided;
use crate::support::rows::{by_type, named, product_dtypes};
use crate::support::runs::plan_of;
use einsparse::formats::convert::prune_to_nm;
use einsparse::formats::{AnySparse, Bsr, Dense, Format, bf16, f16, generate};
use einsparse::kernels::abi::ON_THE_LEFT;
use einsparse::registry::{Dtype, Row, Scalar, WalkKind, Zeros, find, products};
use einsparse::{
    Choice, Context, Error, Options, Plan, Precision, SparseTensor, Stream, Tensor, ZerosRule,
};

const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// A 96 x 96 matrix of full 16 x 16 blocks in a format, for the selection.
fn matrix<T: Scalar>(format: &str) -> AnySparse<T> {
    let pattern = generate::blocks(96, 96, (16, 16), 0.5, 1).unwrap();
    let values = vec![T::ONE; pattern.columns().len() * 256];
    let full = AnySparse::from(Bsr::new(pattern, values).unwrap());
    match format.parse().unwrap() {
        Format::Nm { .. } => prune_to_nm(&full.to_dense().unwrap()).unwrap().into(),
        format => full.convert(format).unwrap(),
    }
}

fn choice<T: Scalar>(format: &str, n: usize, options: &Options) -> Choice {
    let b = Dense::<T>::zeros([96, n]).unwrap();
    let a = matrix::<T>(format);
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let plan = plan_of(&Context::cpu(), TEXT, &operands, options);
    let mut choice = plan.choice().clone();
    // Refusals by families that compute other operations name no row.
    choice.refused.retain(|refusal| find(&refusal.name).is_some());
    choice
}

/// Whether only kernels for any expression remain, and no kernel for products.
fn only_general(choice: &Choice) -> bool {
    let general = |c: &einsparse::plan::Candidate| c.name.starts_with("einsum_");
    !choice.candidates.is_empty() && choice.candidates.iter().all(general)
}

/// Candidates that read the operand in its stored form.
fn candidates(choice: &Choice) -> Vec<&'static Row> {
    let read = choice.candidates.iter().filter(|c| c.prepacked.is_none());
    read.map(|c| products().find(|row| row.name == c.name).unwrap()).collect()
}

/// Reasons of the refused rows that `of` selects.
fn reasons(choice: &Choice, of: impl Fn(&Row) -> bool) -> Vec<&str> {
    let machine = Context::cpu().machine();
    let runs = |row: &Row| machine.lacks(row).is_none();
    let picked = |r: &&einsparse::error::Refusal| {
        products().any(|row| row.name == r.name && runs(row) && of(row))
    };
    choice.refused.iter().filter(picked).map(|r| r.reason.as_str()).collect()
}

fn all_say(reasons: &[&str], words: &str) {
    assert!(
        !reasons.is_empty() && reasons.iter().all(|r| r.contains(words)),
        "{words:?}: {reasons:?}"
    );
}

#[test]
fn every_row_of_the_element_type_is_a_candidate_or_refused() {
    fn complete<T: Scalar>() {
        let stored = |dtype| if dtype == Dtype::Tf32 { Dtype::F32 } else { dtype };
        for format in [
            "csr",
            "coo",
            "ell",
            "sell",
            "groupcoo:4",
            "groupcoo:1",
            "bsr:16x16",
            "blockcoo:32x32",
            "blockgroupcoo:64x64:2",
        ] {
            for n in [1, 64] {
                let choice = choice::<T>(format, n, &Options::default());
                let of_type: Vec<_> = products()
                    .filter(|row| stored(row.dtype) == T::DTYPE)
                    .map(|row| row.name)
                    .collect();
                let named = choice.candidates.iter().map(|c| c.name.to_owned());
                // Kernels for any expression are queried only if every row refuses.
                let mut named: Vec<_> = named
                    .filter(|name| !name.starts_with("einsum_"))
                    .chain(choice.refused.iter().map(|r| r.name.clone()))
                    .collect();
                named.sort_by_key(|name| of_type.iter().position(|n| n == name));
                assert_eq!(named, of_type, "{format}");
                assert!(
                    choice.candidates.iter().all(|c| c.cost.us.is_finite() && c.cost.us > 0.0),
                    "{choice}"
                );
                assert!(choice.candidates.is_sorted_by(|a, b| a.cost.us <= b.cost.us), "{choice}");
            }
        }
    }
    for dtype in product_dtypes() {
        by_type!(dtype, complete());
    }
}

#[test]
fn refusals_say_why() {
    let default = Options::default();
    let csr = choice::<f32>("csr", 64, &default);
    assert!(candidates(&csr).iter().all(|row| row.walk == WalkKind::Csr));
    all_say(
        &reasons(&csr, |row| row.walk == WalkKind::GroupCoo),
        "walks aligned groups of entries in row order, the operand is csr",
    );
    all_say(
        &reasons(&csr, |row| row.dtype == Dtype::Tf32),
        "rounds to TF32, but the plan requires full precision",
    );
    let pairs = choice::<f32>("groupcoo:2", 64, &default);
    all_say(
        &reasons(&pairs, |row| row.walk == WalkKind::GroupCoo),
        "requires a group size divisible by 4, not 2",
    );
    let quads = choice::<f32>("groupcoo:4", 64, &default);
    assert!(candidates(&quads).iter().any(|row| row.walk == WalkKind::GroupCoo));
    let odd = choice::<f32>("csr", 33, &default);
    all_say(
        &reasons(&odd, |row| row.walk == WalkKind::Csr && row.vector == 4),
        "moves 4 elements at once, rows of B and C and their length are aligned to 1",
    );
    assert!(candidates(&odd).iter().all(|row| row.vector == 1));
    let blocks = choice::<f16>("bsr:16x16", 64, &default);
    all_say(
        &reasons(&blocks, |row| row.block == (32, 32) && row.is_plain()),
        "the operand has 16 x 16",
    );
    all_say(
        &reasons(&blocks, |row| row.walk == WalkKind::Csr),
        "walks entries in row order, the operand is bsr:16x16",
    );
    assert!(candidates(&blocks).iter().all(|row| row.block.0 == 16 && row.zeros == Zeros::Dense));
    let left = |row: &Row| row.block == (16, 16) && row.order & ON_THE_LEFT == ON_THE_LEFT;
    all_say(&reasons(&blocks, left), "* B[n,k], wanted is C[m,n] = A[m,k] * B[k,n]");
    let oblong = choice::<f16>("bsr:16x32", 64, &default);
    assert!(candidates(&oblong).iter().all(|row| row.block == (16, 32) && row.module == "wgmma"));
    all_say(
        &reasons(&oblong, |row| row.block == (32, 32) && row.is_plain()),
        "the operand has 16 x 32",
    );
    let large = choice::<f16>("bsr:128x192", 64, &default);
    assert!(candidates(&large).iter().all(|row| row.block == (64, 64) && row.module == "wgmma"));
    assert!(!large.candidates.is_empty() && !oblong.candidates.is_empty());
    assert!(only_general(&choice::<f16>("bsr:48x16", 64, &default)));
    let pruned = choice::<f16>("nm:2:4", 64, &default);
    all_say(
        &reasons(&pruned, |row| matches!(row.walk, WalkKind::Csr | WalkKind::Block)),
        "the operand is nm:2:4",
    );
    assert!(candidates(&pruned).iter().all(|row| row.module == "nm"));
    assert!(!pruned.candidates.is_empty());
    let halves = choice::<f16>("csr", 64, &default);
    all_say(
        &reasons(&halves, |row| row.module == "nm"),
        "walks two of every four neighbours in a row, the operand is csr",
    );
    assert!(only_general(&choice::<f64>("bsr:16x16", 64, &default)));
}

#[test]
fn options_exclude_rows() {
    let strict = Options::default().zeros(ZerosRule::Strict);
    let blocks = choice::<f16>("blockgroupcoo:16x16:2", 64, &strict);
    assert!(only_general(&blocks));
    all_say(
        &reasons(&blocks, |row| row.block == (16, 16) && row.is_plain()),
        "the plan requires Zeros::Strict",
    );
    assert!(!choice::<f16>("csr", 64, &strict).candidates.is_empty());
    let tf32 = Options::default().precision(Precision::Tf32);
    assert!(only_general(&choice::<f32>("bsr:16x16", 64, &Options::default())));
    assert!(
        candidates(&choice::<f32>("bsr:16x16", 64, &tf32))
            .iter()
            .all(|row| row.dtype == Dtype::Tf32 && row.block.0 == 16)
    );
}

#[test]
fn alignment_excludes_wider_loads() {
    let any = Options::default().alignment(1);
    assert!(candidates(&choice::<f32>("csr", 64, &any)).iter().all(|row| row.vector == 1));
    let two = Options::default().alignment(2);
    assert!(candidates(&choice::<f64>("csr", 64, &two)).iter().any(|row| row.vector == 2));
}

#[test]
fn a_named_row_is_the_only_candidate() {
    for row in products().filter(|row| row.dtype == Dtype::F32 && row.walk == WalkKind::Csr) {
        let forced = choice::<f32>("csr", 64, &named(row.name));
        assert_eq!(forced.candidates.iter().map(|c| c.name).collect::<Vec<_>>(), [row.name]);
        all_say(
            &forced.refused.iter().map(|r| r.reason.as_str()).collect::<Vec<_>>(),
            &format!("the plan requires {}", row.name),
        );
    }
}

#[test]
fn leading_dimensions_count_for_the_choice() {
    let cpu = Context::cpu();
    let (a, b) = (matrix::<f32>("csr"), Dense::<f32>::zeros([96, 64]).unwrap());
    let a = cpu.upload(a).unwrap();
    let widest = |ldb: usize, ldc: usize| {
        let b = cpu.upload_strided(&b, ldb, 0.0).unwrap();
        let c = strided(&cpu, &Dense::zeros([96, 64]).unwrap(), ldc, 0.0);
        let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
        let plan = cpu.plan::<f32>(TEXT).operands(&operands).build().unwrap();
        candidates(plan.choice()).iter().map(|row| row.vector).max()
    };
    assert_eq!(
        [widest(64, 64), widest(65, 64), widest(64, 67), widest(68, 72)],
        [Some(4), Some(1), Some(1), Some(4)]
    );
}

#[test]
fn plans_and_tensors_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Context>();
    shared::<Stream>();
    shared::<Error>();
    fn each<T: Scalar>() {
        shared::<Plan<T>>();
        shared::<Tensor<T>>();
        shared::<SparseTensor<T>>();
    }
    each::<f32>();
    each::<f64>();
    each::<f16>();
    each::<bf16>();
}

#[test]
fn two_of_four_comes_in_one_order_of_axes() {
    let a = matrix::<f16>("nm:2:4");
    let said = |text: &str, shape: &[usize]| {
        let b = Dense::<f16>::zeros(shape.to_vec()).unwrap();
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let plan = Context::cpu().plan(text).operands(&operands).build();
        let choice = plan.unwrap().choice().clone();
        let general = |name: &str| name.starts_with("einsum_");
        assert_eq!(
            choice.candidates.iter().all(|c| general(c.name)),
            text != "C[z,m,n] = A[m,k] * B[z,k,n]",
            "{text}"
        );
        let reasons = reasons(&choice, |row| row.module == "nm");
        reasons.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for (text, words) in [
        ("C[k,n] = A[m,k] * B[m,n]", "walks rows of A, and the product takes its transpose"),
        ("C[m,n] = A[m,k] * B[n,k]", "wanted is C[m,n] = A[m,k] * B[n,k]"),
        ("C[n,m] = A[m,k] * B[n,k]", "wanted is C[n,m] = A[m,k] * B[n,k]"),
    ] {
        let said = said(text, &[96, 96]);
        all_say(&said.iter().map(String::as_str).collect::<Vec<_>>(), words);
    }
    assert!(said("C[z,m,n] = A[m,k] * B[z,k,n]", &[3, 96, 64]).is_empty());
}
