//! Random expressions: any number of factors, formats of any order, handwritten gathers and scatters, epilogues,
//! scalars. Values are integers, so every result is exact in any order of summation. A failure prints the expression
//! and its seed.

pub mod draw;
mod evaluate;
pub mod gradients;

use einsparse::cpu::{self, Operands, Output};
use einsparse::einsum::Einsum;
use einsparse::formats::{AnySparse, Dense, bf16, f16};
use einsparse::indirect::{rewrite, rewrite_dense};
use einsparse::registry::Scalar;
use rayon::prelude::*;

use draw::Draw;

/// First pair of values that are neither equal nor both NaN.
pub fn first_difference<T: Scalar>(found: &[T], wanted: &[f64]) -> Option<String> {
    assert_eq!(found.len(), wanted.len());
    let differs = |(f, w): &(&T, &f64)| {
        let wanted = T::from_f64(**w);
        **f != wanted && !(f.to_f64().is_nan() && wanted.to_f64().is_nan())
    };
    let at = found.iter().zip(wanted).position(|pair| differs(&pair))?;
    let (f, w) = (found[at], wanted[at]);
    Some(format!("element {at} of {} is {f}, {w} wanted", found.len()))
}

/// Runs the executor, and the steps of the general kernels for every assignment of lanes.
fn on_the_cpu<T: Scalar>(draw: &Draw) {
    let e = Einsum::parse(&draw.text).unwrap_or_else(|e| panic!("{draw}: {e}"));
    let sparse: Option<AnySparse<T>> =
        draw.sparse.as_ref().map(|a| a.map_values(|v| T::from_f64(v)));
    let indirect = match &sparse {
        Some(a) => rewrite(&e, "A", &a.format()),
        None => rewrite_dense(&e),
    };
    let indirect = indirect.unwrap_or_else(|e| panic!("{draw}: {e}"));
    let dense: Vec<(&str, Dense<T>)> =
        draw.dense.iter().map(|(n, d)| (n.as_str(), d.map(T::from_f64))).collect();
    let mut operands = Operands::new();
    for (name, tensor) in &dense {
        operands.dense(name, tensor);
    }
    for (name, shape, data) in &draw.arrays {
        operands.index(name, shape, data).unwrap();
    }
    for (name, value) in &draw.scalars {
        operands.scalar(name, *value);
    }
    if let Some(a) = &sparse {
        operands.sparse(&indirect, a).unwrap();
    }
    let start: Vec<T> = draw.start.iter().map(|v| T::from_f64(*v)).collect();
    let check = |how: &str, values: &[T]| {
        if let Some(difference) = first_difference(values, &draw.wanted) {
            panic!("{how}, {}: {draw}\n  {indirect}\n  {difference}", T::NAME);
        }
    };
    let mut out = start.clone();
    let output = Output::new(&draw.shape, &mut out).unwrap();
    cpu::run(&indirect, &operands, output).unwrap_or_else(|e| panic!("{draw}: {e}"));
    check("executor", &out);
    let mut ways = 1;
    let mut way = 0;
    while way < ways {
        out.copy_from_slice(&start);
        let output = Output::new(&draw.shape, &mut out).unwrap();
        ways = cpu::run_listed(&indirect, &operands, output, way)
            .unwrap_or_else(|e| panic!("way {way}: {draw}: {e}"));
        check(&format!("way {way} of {ways}"), &out);
        way += 1;
    }
}

/// Seeds of the expressions of the suite. EINSPARSE_TEST_SEED=n runs only the n-th.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EINSPARSE_TEST_SEED") {
        Ok(one) => vec![one.parse().expect("a number")],
        Err(_) => (0..count).collect(),
    }
}

#[test]
fn expressions_agree_with_the_reference() {
    seeds(2400).into_par_iter().for_each(|seed| {
        let draw = Draw::new(seed);
        match seed % 8 {
            0..4 => on_the_cpu::<f32>(&draw),
            4 | 5 => on_the_cpu::<f64>(&draw),
            6 => on_the_cpu::<f16>(&draw),
            _ => on_the_cpu::<bf16>(&draw),
        }
    });
}

/// Checks that the suite contains every kind of structure.
#[test]
fn expressions_are_of_every_kind() {
    let draws: Vec<Draw> = (0..2400).map(Draw::new).collect();
    let count = |what: &str, is: &dyn Fn(&Draw) -> bool| {
        let found = draws.iter().filter(|d| is(d)).count();
        assert!(found >= 20, "{what}: {found} of {}", draws.len());
    };
    for n in 1..=5 {
        count(&format!("{n} factors"), &|d| d.factors == n);
    }
    for kind in draw::FORMATS {
        let own = |d: &Draw| d.format.as_ref().is_some_and(|f| f.starts_with(kind));
        count(kind, &own);
    }
    count("order 3 and more", &|d| d.sparse.as_ref().is_some_and(|a| a.shape().len() >= 3));
    count("scatters", &|d| d.text.split('=').next().is_some_and(|l| l.contains("[M")));
    count("gathers", &|d| d.text.contains("[I"));
    count("nested gathers", &|d| d.text.contains("[I") && d.text.contains("[J"));
    count("no sparse operand", &|d| d.sparse.is_none());
    count("`+=`", &|d| d.text.contains("+="));
    count("relu", &|d| d.text.contains("relu("));
    count("gates", &|d| d.text.contains("relu_grad("));
    count("biases", &|d| d.text.contains("+ bias"));
    count("NaN and Inf", &|d| {
        d.dense.iter().any(|(_, t)| t.values().iter().any(|v| !v.is_finite()))
    });
}
