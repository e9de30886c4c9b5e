//! Plans of several factors, several of them sparse, against plain loops: pairwise, by position lists, and all at once.

mod trial;

use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, CsrPattern, Dense, f16};
use einsparse::{Context, Error, Operand, Options};
use rayon::prelude::*;

use super::problem::integers;
use crate::support::runs::plan_and_run;
use trial::Trial;

fn pair_by_pair() -> Options {
    Options::default().variant("path")
}

#[test]
fn expressions_of_up_to_eight_factors_agree_with_plain_loops() {
    (0..3000u64).into_par_iter().for_each(|seed| {
        let trial = Trial::new(seed);
        for options in [Options::default(), pair_by_pair()] {
            match seed % 3 {
                0 => trial.run::<f32>(&options),
                _ => trial.run::<f64>(&options),
            }
        }
    });
}

#[test]
fn the_expressions_are_of_every_kind() {
    let trials: Vec<Trial> = (0..3000).map(Trial::new).collect();
    let count = |what: &str, is: &dyn Fn(&Trial) -> bool| {
        let found = trials.iter().filter(|t| is(t)).count();
        assert!(found >= 60, "{what}: {found}");
    };
    for n in 2..=8 {
        count(&format!("{n} factors"), &|t| t.factors.len() == n);
    }
    count("three sparse ones", &|t| t.sparse.len() >= 3);
    count("a sparse one twice", &|t| t.twice);
    for format in ["bsr", "blockcoo", "blockgroupcoo", "nm"] {
        let own = |t: &Trial| {
            let format_of = |a: &AnySparse<f64>| a.format().to_string().starts_with(format);
            t.sparse.len() > 1 && t.sparse.values().any(format_of)
        };
        count(&format!("{format} beside another"), &own);
    }
    count("NaN beside sparse ones", &|t| {
        let nan = |d: &Dense<f64>| d.values().iter().any(|v| v.is_nan());
        !t.sparse.is_empty() && t.dense.values().any(nan)
    });
    let ctx = Context::cpu();
    let pairwise = trials.iter().take(300).filter(|t| {
        let sparse = t.sparse.iter().map(|(n, a)| (n.as_str(), Operand::from(a)));
        let dense = t.dense.iter().map(|(n, d)| (n.as_str(), Operand::from(d)));
        let operands: Vec<_> = sparse.chain(dense).collect();
        ctx.contraction_path(&t.text, &operands).unwrap().is_some()
    });
    let pairwise = pairwise.count();
    assert!((60..290).contains(&pairwise), "{pairwise} of 300 pair by pair");
}

fn csr(shape: [usize; 2], places: &[[u32; 2]]) -> AnySparse<f32> {
    let axis = |axis: usize| places.iter().map(|p| p[axis]).collect();
    let pattern = CooPattern::new(shape.to_vec(), vec![axis(0), axis(1)]).unwrap();
    let values = vec![1.0; places.len()];
    AnySparse::from(Coo::new(pattern, values).unwrap()).convert("csr".parse().unwrap()).unwrap()
}

/// Rows without nonzeros stay zero, whatever values later factors contain there.
#[test]
fn elements_without_a_term_are_left_out() {
    let ctx = Context::cpu();
    // Row 1 of A is empty. B is NaN in the rows that no nonzero of A reads.
    let a = csr([3, 40], &[[0, 3], [0, 5], [0, 7], [2, 3], [2, 5], [2, 9]]);
    let b = Dense::from_fn([40, 30], |i| if [3, 5, 7, 9].contains(&i[0]) { 1.0 } else { f32::NAN });
    let (b, c) = (b.unwrap(), integers::<f32>(&[30, 100], 1));
    let text = "Y[m,n] = A[m,k] * B[k,l] * C[l,n] * D[m]";
    let d = Dense::new([3], vec![1.0, f32::INFINITY, 1.0]).unwrap();
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into()), ("D", (&d).into())];
    let path = ctx.contraction_path(text, &operands).unwrap().unwrap();
    assert!(path.contains("A[m,k] * B[k,l]"), "{path}");
    let (_, y) = plan_and_run(&ctx, text, &operands, &Options::default());
    let y = y.to_dense().unwrap();
    assert_eq!(y.values()[100..200], [0.0; 100], "{path}");
    assert!(y.values().iter().all(|v| v.is_finite()));
}

#[test]
fn intermediate_results_are_not_rounded_to_the_element_type() {
    let ctx = Context::cpu();
    let fill =
        |shape: [usize; 2], value: f64| Dense::from_fn(shape, |_| f16::from_f64(value)).unwrap();
    // The first product is 204,800, which is above the maximum of f16.
    let (a, b, c) = (fill([1, 512], 20.0), fill([512, 1], 20.0), fill([1, 1], 0.125));
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
    let text = "Y[i,l] = A[i,j] * B[j,k] * C[k,l]";
    let (plan, y) = plan_and_run(&ctx, text, &operands, &pair_by_pair());
    assert!(plan.to_string().contains("P0["), "{plan}");
    assert_eq!(y.to_dense().unwrap().values()[0].to_f32(), 25_600.0);
}

/// Fifty thousand nonzeros on each side of one shared index make 2.5e9 pairs.
#[test]
fn more_pairs_than_a_list_may_have_run_pair_by_pair() {
    let ctx = Context::cpu();
    const N: u32 = 50_000;
    let a = csr([N as usize, 1], &(0..N).map(|i| [i, 0]).collect::<Vec<_>>());
    let b = csr([1, N as usize], &(0..N).map(|i| [0, i]).collect::<Vec<_>>());
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let (plan, y) = plan_and_run(&ctx, "y[] = A[m,k] * B[k,n]", &operands, &Options::default());
    assert!(plan.to_string().contains("pair by pair"), "{plan}");
    assert_eq!(y.to_dense().unwrap().values(), [2.5e9]);
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let plan = ctx.plan(text).operands(&operands).build().unwrap();
    let words = "\n  P0[k,n] = B[k,n]\n  C[m,n] = A[m,k] * P0[k,n]";
    assert!(plan.to_string().contains(words), "{plan}");
    // The factors share no index.
    let (_, y) = plan_and_run(&ctx, "y[] = A[m,k] * B[j,n]", &operands, &Options::default());
    assert_eq!(y.to_dense().unwrap().values(), [2.5e9]);
}

/// Lists of all three factors are too long, and neither A nor B fits in memory as a dense tensor. Lists of A and B
/// remain.
#[test]
fn two_large_sparse_factors_are_joined_within_a_path() {
    let ctx = Context::cpu();
    const N: u32 = 100_000;
    let a: Vec<[u32; 2]> = (0..N).map(|i| [i % 50, i * 40]).collect();
    let b: Vec<[u32; 2]> = (0..N).map(|i| [i * 40, i / 50 % 50]).collect();
    let mut e: Vec<[u32; 2]> = (0..N).map(|i| [i % 50, i / 50]).collect();
    let a = csr([50, 40 * N as usize], &in_order(a));
    let b = csr([40 * N as usize, 50], &b).convert("coo".parse().unwrap()).unwrap();
    e.sort_unstable();
    let e = csr([50, N as usize], &e);
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("E", (&e).into())];
    let text = "Y[m,n] = A[m,k] * B[k,n] * E[n,p]";
    let (plan, y) = plan_and_run(&ctx, text, &operands, &Options::default());
    assert!(plan.to_string().contains("= A[m,k] * B[k,n]"), "{plan}");
    // Each of 2,500 positions sums 40 pairs of nonzeros, and E has 2,000 nonzeros in each row.
    assert_eq!(y.to_dense().unwrap().values(), [80_000.0; 2500]);
}

fn in_order(mut places: Vec<[u32; 2]>) -> Vec<[u32; 2]> {
    places.sort_unstable();
    places
}

/// If neither method can run, the error contains the reasons of both.
#[test]
fn what_runs_in_no_way_is_refused_with_numbers() {
    let ctx = Context::cpu();
    const N: u32 = 100_000;
    let wide = [N as usize; 2];
    let a = csr(wide, &(0..N).map(|i| [i, 0]).collect::<Vec<_>>());
    let b = csr(wide, &(0..N).map(|i| [0, i]).collect::<Vec<_>>());
    let d = csr(wide, &(0..N).map(|i| [i, i]).collect::<Vec<_>>());
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("D", (&d).into())];
    let text = "y[] = A[m,k] * B[k,n] * D[m,n]";
    let error = ctx.plan(text).operands(&operands).build().unwrap_err();
    let Error::NoKernel { tried, .. } = &error else { panic!("{error}") };
    assert_eq!(tried[0].0, "join");
    assert!(tried[0].1.contains("10000000000"), "{error}");
    assert_eq!(tried[1].0, "path");
    assert!(tried[1].1.contains("10000000000 elements"), "{error}");
    assert!(tried[1].1.contains("= 100000"), "{error}");
}

#[test]
fn stored_zeros_of_blocks_are_left_out_of_lists() {
    let ctx = Context::cpu();
    // Blocks of 2 x 2 with one nonzero each: three of four values are fill.
    let a = csr([4, 4], &[[0, 0], [3, 3]]).convert("bsr:2x2".parse().unwrap()).unwrap();
    let pattern = CsrPattern::new(4, 4, vec![0, 1, 2, 2, 3], vec![0, 1, 3]).unwrap();
    let b = Csr::new(pattern, vec![1.0f32, f32::NAN, 5.0]).unwrap();
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let (plan, y) = plan_and_run(&ctx, text, &operands, &Options::default());
    assert_eq!(plan.indirect().to_string(), "C[M[p],N[p]] = AV[P[p]] * BV[Q[p]]");
    let y = y.to_dense().unwrap();
    assert_eq!((y.values()[0], y.values()[15]), (1.0, 5.0));
    assert_eq!(y.values().iter().filter(|v| **v == 0.0).count(), 14);
}
