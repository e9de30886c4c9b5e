//! Advice on the format of the matrix of a product.

use super::TEXT;
use crate::support::assert_error;
use einsparse::cost::Machine;
use einsparse::formats::{Bsr, Csr, CsrPattern, Dense, Format, f16, generate};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, FormatAdvice, Options, ZerosRule};

fn entries<T: Scalar>(pattern: CsrPattern) -> Csr<T> {
    let values = vec![T::ONE; pattern.columns().len()];
    Csr::new(pattern, values).unwrap()
}

fn advice<T: Scalar>(a: &Csr<T>, n: usize, options: &Options) -> Vec<FormatAdvice> {
    let ctx = Context::cpu();
    let b = Dense::<T>::zeros([a.shape()[1], n]).unwrap();
    let plan = ctx.plan(TEXT).operand("A", a).operand("B", &b);
    plan.options(options).advise_for(&Machine::H200).unwrap()
}

#[test]
fn blocks_are_advised_in_their_size() {
    for side in [16, 32, 64] {
        let block = (side, side);
        let pattern = generate::blocks(2048, 2048, block, 0.1, 3).unwrap();
        let values = vec![f16::ONE; pattern.columns().len() * side * side];
        let a = Bsr::new(pattern, values).unwrap().to_csr().unwrap();
        let all = advice(&a, 512, &Options::default());
        let best = all[0].format.unwrap();
        let grouped = matches!(best, Format::BlockGroupCoo { block: b, .. } if b == block);
        assert!(grouped || best == Format::Bsr { block }, "{best}");
        let least = all[0].microseconds().unwrap();
        let us = |other: &FormatAdvice| other.microseconds();
        assert!(all.iter().filter_map(us).all(|us| us >= least));
    }
}

#[test]
fn entries_and_dense_have_their_place() {
    let thin = entries::<f16>(generate::uniform(2048, 2048, 0.001, 1).unwrap());
    let best = advice(&thin, 512, &Options::default())[0].format.unwrap();
    assert!(!matches!(best, Format::Bsr { .. } | Format::BlockGroupCoo { .. }), "{best}");
    let thick = entries::<f16>(generate::uniform(2048, 2048, 0.4, 1).unwrap());
    assert_eq!(advice(&thick, 512, &Options::default())[0].format, None);
    // A dense product multiplies implicit zeros, which these options exclude.
    let options = Options::default().zeros(ZerosRule::Strict);
    let strict = advice(&thick, 512, &options);
    let dense = strict.iter().find(|one| one.format.is_none()).unwrap();
    assert!(dense.kernel().is_none() && strict[0].kernel().is_some());
    assert!(dense.to_string().contains("no kernel"), "{dense}");
}

/// A plan in the advised format selects the advised kernel, also if no kernel for products supports it.
#[test]
fn advice_is_what_a_plan_takes() {
    planned::<f32>(64, &Options::default());
    planned::<f64>(64, &Options::default());
    planned::<f64>(7, &Options::default());
    let strict = Options::default().zeros(ZerosRule::Strict);
    planned::<f16>(64, &strict);
}

fn planned<T: Scalar>(columns: usize, options: &Options) {
    let ctx = Context::cpu();
    let a = entries::<T>(generate::uniform(1000, 900, 0.02, 1).unwrap());
    let b = Dense::<T>::zeros([900, columns]).unwrap();
    let all = advice(&a, columns, options);
    let formats: Vec<Option<Format>> = all.iter().map(|one| one.format).collect();
    assert!((1..formats.len()).all(|i| !formats[..i].contains(&formats[i])));
    for one in all {
        let Some(format) = one.format else {
            continue;
        };
        let kernel = one.kernel().expect("every format has a kernel");
        let stored = a.convert(format).unwrap();
        let plan = ctx.plan(TEXT).operand("A", &stored).operand("B", &b);
        let plan = plan.options(options).build().unwrap();
        let first = plan.choice().candidates().next();
        let advised = (kernel, one.microseconds().unwrap());
        assert_eq!(first, Some(advised), "{format}");
    }
}

#[test]
fn empty_matrices_and_other_expressions() {
    for (rows, cols) in [(0, 0), (0, 9), (9, 0), (300, 200)] {
        let a = entries::<f32>(CsrPattern::new(rows, cols, vec![0; rows + 1], vec![]).unwrap());
        let all = advice(&a, 8, &Options::default());
        assert!(all.iter().all(|one| !one.values_per_entry.is_nan()));
    }
    let ctx = Context::cpu();
    let a = entries::<f32>(generate::uniform(20, 30, 0.2, 1).unwrap());
    let b = Dense::<f32>::zeros([31, 8]).unwrap();
    let ask = |text| ctx.plan(text).operand("A", &a).operand("B", &b).advise();
    assert_error!(ask(TEXT).unwrap_err(), Error::Shape { left, .. } if left == "30 columns");
    let error = ask("C[n,m] = A[m,k] * B[k,n]").unwrap_err();
    assert_error!(error, Error::Operand { name, .. } if name == "A");
    let error = ctx.plan(TEXT).operand("B", &b).advise().unwrap_err();
    assert_error!(error, Error::Operand { name, .. } if name == "A");
}

/// On the CPU, the advice suits its executor: rows in order, and no form that must be repacked in each run.
#[test]
fn a_cpu_context_is_advised_for_the_cpu() {
    let ctx = Context::cpu();
    let a = entries::<f32>(generate::uniform(2000, 2000, 0.01, 1).unwrap());
    for columns in [1, 128] {
        let b = Dense::<f32>::zeros([2000, columns]).unwrap();
        let plan = ctx.plan(TEXT).operand("A", &a).operand("B", &b);
        let all = plan.advise().unwrap();
        assert_eq!(all[0].format, Some(Format::Csr), "{columns}");
        let at = |wanted: Option<Format>| all.iter().position(|one| one.format == wanted).unwrap();
        assert!(at(Some(Format::SlicedEll)) > 1 && at(None) > at(Some(Format::SlicedEll)));
        for one in &all {
            assert_eq!((one.kernel(), one.microseconds()), (Some("cpu"), None));
            assert!(one.to_string().ends_with("cpu"), "{one}");
        }
    }
}

/// A format whose conversion exceeds the memory limit is last, with the reason, and the conversion returns that error.
#[test]
fn formats_beyond_the_limit_of_memory_are_refused() {
    let a = entries::<f32>(generate::uniform(8000, 8000, 0.001, 1).unwrap());
    let all = advice(&a, 64, &Options::default());
    let (refused, kept): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.refused.is_some());
    assert!(!refused.is_empty() && kept.len() > 3);
    assert_eq!(all[0].format, Some(Format::Csr));
    for one in &all {
        let Some(format) = one.format else {
            continue;
        };
        match (a.convert(format), &one.refused) {
            (Ok(_), None) => assert!(one.kernel().is_some(), "{one}"),
            (Err(error), Some(reason)) => {
                let words = ["slots with padding", "`--memory`", "EINSPARSE_MEMORY"];
                let texts = [reason.clone(), error.to_string(), one.to_string()];
                let all = || texts.iter().flat_map(|t| words.map(|word| t.contains(word)));
                assert!(all().all(|found| found), "{texts:?}");
                assert!(one.kernel().is_none());
            }
            (converted, refused) => panic!("{format}: {:?} {refused:?}", converted.is_ok()),
        }
    }
}
