//! Extents larger than any memory: an error with the numbers before anything is allocated, or the value of an empty
//! sum. Fuzzing (`fuzz/src/extents.rs`) draws more of them.

use crate::support::assert_error;
use einsparse::dynamic::{ChannelDetector, Routing};
use einsparse::formats::{
    AnySparse, BlockCooPattern, Coo, Csr, CsrPattern, Dense, EllPattern, FormatError,
    HybridGroupCooPattern, SharedPattern,
};
use einsparse::group::{Group, GroupSum};
use einsparse::nn::{
    Adam, AdamOptions, BiasGradient, CrossEntropy, Embedding, Moe, MoeOptions, RmsNorm, Rotary,
    RotaryOptions, Router, RouterOptions, Sgd, SgdOptions, WeightGradient,
};
use einsparse::ops::{
    Aggregate, AttentionMask, AttentionOptions, CachedAttention, Conv2d, Conv2dOptions,
    ConvGeometry, KernelMap, MessagePassing, SparseAttention,
};
use einsparse::{Context, Error, Operand};

const ROWS: usize = u32::MAX as usize;
const MOST: usize = usize::MAX;

/// Creates a matrix of this shape without nonzeros.
fn empty(shape: [usize; 2]) -> AnySparse<f32> {
    let coo = Coo::from_entries(shape.to_vec(), vec![vec![], vec![]], vec![]);
    AnySparse::from(coo.unwrap())
}

fn run(text: &str, operands: &[(&str, Operand<'_, f32>)]) -> Result<Vec<f32>, Error> {
    let context = Context::cpu();
    let plan = context.plan(text).operands(operands).build()?;
    let mut out = context.zeros(plan.out_shape())?;
    plan.run(operands, &mut out, &context.stream()?)?;
    Ok(out.to_dense()?.into_values())
}

#[test]
fn a_sum_over_rows_without_entries_is_zero() {
    for shape in [[ROWS, 0], [ROWS, 3], [0, ROWS], [ROWS, ROWS]] {
        let a = empty(shape);
        for text in ["s[] = A[m,k]", "s[] = A[k,m]"] {
            assert_eq!(run(text, &[("A", (&a).into())]), Ok(vec![0.0]), "{shape:?}");
        }
    }
    // Dense operands without elements: nothing is iterated.
    for shape in [[1 << 40, 0], [0, 1 << 40]] {
        let a = Dense::<f32>::new(shape, vec![]).unwrap();
        assert_eq!(run("s[] = A[m,k]", &[("A", (&a).into())]), Ok(vec![0.0]));
    }
}

#[test]
fn rows_of_an_uploaded_matrix_are_bounded() {
    let context = Context::cpu();
    let none: Vec<f32> = Vec::new();
    let ell = EllPattern::new(ROWS, 3, 0, vec![]).unwrap();
    let hybrid = HybridGroupCooPattern::new(ROWS, 3, vec![], vec![], vec![]).unwrap();
    let blocks = BlockCooPattern::new(ROWS, 3, (16, 16), vec![], vec![]).unwrap();
    let patterns: [(SharedPattern, usize); 4] = [
        (ell.into(), ROWS),
        (hybrid.into(), ROWS),
        (blocks.into(), ROWS.div_ceil(16)),
        (empty([ROWS, 3]).pattern().shared(), ROWS),
    ];
    for (pattern, rows) in patterns {
        let a = pattern.with_values(none.clone()).unwrap();
        let error = context.upload(&a).unwrap_err();
        let Error::Format(FormatError::Limit { what, count, limit, .. }) = &error else {
            panic!("{}: {error}", a.format());
        };
        assert_eq!((*count, *limit), (rows as u128, 64_000_000), "{}", a.format());
        assert!(what.ends_with("rows"), "{}: {what}", a.format());
    }
    // GroupCOO stores no array with one element per row, so the number of rows is not bounded.
    let a = empty([ROWS, 3]).convert("groupcoo:2@1".parse().unwrap());
    assert!(context.upload(a.unwrap()).is_ok());
    // Any number of rows is accepted if it is proportional to the number of nonzeros.
    let rows = 9_000_000;
    let pattern = CsrPattern::new(rows, 1, vec![0; rows + 1], vec![]).unwrap();
    assert!(context.upload(Csr::new(pattern, vec![0.0f32; 0]).unwrap()).is_ok());
}

#[test]
fn a_product_names_the_operand_and_the_axis() {
    let (a, b) = (empty([ROWS, 3]), Dense::new([3, 1], vec![1.0f32; 3]).unwrap());
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let error = run("C[m,n] = A[m,k] * B[k,n]", &operands).unwrap_err().to_string();
    let words = ["operand `A`", "4294967295 rows", "34359738360 bytes", "64000000"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn pairs_of_entries_are_bounded() {
    let column = |shape: [usize; 2]| {
        let count = shape[0].max(shape[1]);
        let [rows, cols] = shape.map(|n| match n {
            1 => vec![0; count],
            _ => (0..count as u32).collect(),
        });
        let coo = Coo::from_entries(shape.to_vec(), vec![rows, cols], vec![1.0f32; count]);
        AnySparse::from(coo.unwrap())
    };
    let (a, s) = (column([50_000, 1]), column([1, 50_000]));
    let operands = [("A", (&a).into()), ("S", (&s).into())];
    // 2,500,000,000 pairs are never listed.
    assert_eq!(run("s[] = A[m,k] * S[k,n]", &operands), Ok(vec![2.5e9]));
    assert_eq!(run("C[m] = A[m,k] * S[k,n]", &operands), Ok(vec![5e4; 50_000]));
    let error = Context::cpu().position_lists("C[m] = A[m,k] * S[k,n]", &operands);
    let error = error.unwrap_err().to_string();
    let words = ["A[m,k] * S[k,n]", "2500000000 pairs", "100000000000 bytes"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    let (a, s) = (column([500, 1]), column([1, 500]));
    let operands = [("A", (&a).into()), ("S", (&s).into())];
    assert_eq!(run("s[] = A[m,k] * S[k,n]", &operands), Ok(vec![250_000.0]));
}

#[test]
fn places_of_indices_that_no_number_has_are_refused() {
    let a = Coo::from_entries(vec![ROWS; 3], vec![vec![ROWS as u32 - 1]; 3], vec![1.0f32]).unwrap();
    let operands = [("A", (&a).into()), ("B", (&a).into())];
    let error = run("s[] = A[i,j,k] * B[i,j,k]", &operands).unwrap_err();
    assert_error!(error, Error::Overflow { what, .. } if what == "places of the indices i, j, k");
}

#[test]
fn constructors_refuse_extents_that_no_memory_has() {
    let context = &Context::cpu();
    let moe = |experts, tokens| MoeOptions {
        tokens,
        experts,
        top_k: 1,
        model: 8,
        hidden: 8,
        ..MoeOptions::default()
    };
    let rotary = |heads, dim| RotaryOptions { heads, dim, ..RotaryOptions::default() };
    let attention = |heads| AttentionOptions { heads, dim: 64, ..AttentionOptions::default() };
    let group = Group::local(std::slice::from_ref(context)).unwrap();
    let router = RouterOptions { tokens: MOST, experts: 2, top_k: 1, ..RouterOptions::default() };
    let sgd = SgdOptions { momentum: 0.5, ..SgdOptions::default() };
    let made: Vec<(&str, Result<(), Error>)> = vec![
        ("Routing", Routing::new(context, [2, 1], 1 << 62).map(drop)),
        ("Routing", Routing::new(context, [2, 1], MOST).map(drop)),
        ("Moe", Moe::<f32>::new(context, &moe(MOST, 2)).map(drop)),
        ("Moe", Moe::<f32>::for_training(context, &moe(2, MOST)).map(drop)),
        ("Sgd", Sgd::new(context, &[MOST, 2], &SgdOptions::default()).map(drop)),
        ("Sgd", Sgd::new(context, &[MOST, 2], &sgd).map(drop)),
        ("Adam", Adam::new(context, &[2, MOST], &AdamOptions::default()).map(drop)),
        ("Rotary", Rotary::<f32>::new(context, &rotary(MOST, 64)).map(drop)),
        ("Rotary", Rotary::<f32>::new(context, &rotary(1, MOST - 63)).map(drop)),
        ("Embedding", Embedding::<f32>::new(context, [MOST, 2], 1, false).map(drop)),
        ("RmsNorm", RmsNorm::<f32>::new(context, [2, MOST], 0.0, false).map(drop)),
        ("CrossEntropy", CrossEntropy::<f32>::new(context, [MOST, 2]).map(drop)),
        ("Router", Router::<f32>::new(context, &router).map(drop)),
        ("BiasGradient", BiasGradient::<f32>::new(context, [MOST, 2]).map(drop)),
        ("WeightGradient", WeightGradient::<f32>::new(context, [2, MOST, 2]).map(drop)),
        ("ChannelDetector", ChannelDetector::<f32>::new(context, [1, 1, MOST], 0.0).map(drop)),
        (
            "CachedAttention",
            CachedAttention::<f32>::new(context, [2, 2], &attention(MOST)).map(drop),
        ),
        (
            "CachedAttention",
            CachedAttention::<f32>::new(context, [MOST, 2], &attention(2)).map(drop),
        ),
        (
            "Conv2d",
            Conv2d::<f32>::new(context, [2, MOST, 8, 8], [4, 2, 3, 3], &Conv2dOptions::default())
                .map(drop),
        ),
        ("GroupSum", GroupSum::<f32>::new(&group[0], &[MOST, 2]).map(drop)),
    ];
    for (name, made) in made {
        let error = made.expect_err(name);
        let text = error.to_string();
        let has_numbers = text.split(|c: char| !c.is_ascii_digit()).any(|n| n.len() > 12);
        assert!(has_numbers, "{name}: {text}");
        let known =
            matches!(error, Error::Overflow { .. } | Error::Format(FormatError::Limit { .. }));
        assert!(known, "{name}: {error:?}");
    }
}

#[test]
fn operators_over_patterns_refuse_rows_and_blocks_out_of_proportion() {
    let context = &Context::cpu();
    let graph = empty([ROWS, 3]);
    for aggregate in [Aggregate::Sum, Aggregate::Mean] {
        let error = MessagePassing::<f32>::new(context, &graph, 4, aggregate).unwrap_err();
        assert_error!(error, Error::Format(FormatError::Limit { count: 4294967295, .. }));
    }
    let options = AttentionOptions { heads: 1, dim: 64, ..AttentionOptions::default() };
    let shape = [1 << 29; 2];
    let masks = [AttentionMask::Blocks(vec![[0, 0]])];
    let error = SparseAttention::<f32>::structured(context, shape, &masks, &options).unwrap_err();
    assert_error!(error, Error::Format(FormatError::Limit { count: 70368744177664, .. }));
    let voxels: Vec<[i32; 4]> = (0..60_000).map(|x| [0, x, 0, 0]).collect();
    let geometry = ConvGeometry::new([40; 3], [1; 3], [1; 3]).unwrap();
    let error = KernelMap::new(context, &voxels, &geometry).unwrap_err();
    assert_error!(error, Error::Format(FormatError::Limit { what: "neighbours of voxels", .. }));
}
