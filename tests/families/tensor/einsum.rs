//! Random expressions on a GPU, through every kernel of the general family that can run them.

use crate::support::rows::{kernels_here, named};
use std::collections::BTreeSet;

use einsparse::formats::{AnySparse, Dense, bf16, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Operand, SparseTensor, Tensor};

use crate::random::draw::Draw;
use crate::random::{first_difference, seeds};
use crate::support;

/// Prefix of the names of the general family's rows.
const FAMILY: &str = "einsum_";

fn on_the_gpu<T: Scalar>(context: &Context, draw: &Draw) -> Vec<&'static str> {
    let fail = |error: einsparse::Error| -> ! { panic!("{draw}: {error}") };
    let sparse: Option<SparseTensor<T>> = draw.sparse.as_ref().map(|a| {
        let a: AnySparse<T> = a.map_values(|v| T::from_f64(v));
        context.upload(a).unwrap_or_else(|e| fail(e))
    });
    let dense: Vec<(&str, Tensor<T>)> = draw
        .dense
        .iter()
        .map(|(n, d)| (n.as_str(), context.upload_dense(&d.map(T::from_f64)).unwrap()))
        .collect();
    let start: Vec<T> = draw.start.iter().map(|v| T::from_f64(*v)).collect();
    let start = Dense::new(draw.shape.clone(), start).unwrap();
    let like = context.upload_dense(&start).unwrap();
    let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::new();
    operands.extend(sparse.iter().map(|a| ("A", a.into())));
    operands.extend(dense.iter().map(|(n, d)| (*n, d.into())));
    operands.extend(draw.scalars.iter().map(|(n, v)| (n.as_str(), (*v).into())));
    let mut planned = operands.clone();
    let arrays = draw.arrays.iter();
    planned.extend(arrays.map(|(n, s, d)| (n.as_str(), Operand::Index(s, d))));
    planned.push(("C", (&like).into()));
    let cpu = cpu_choice::<T>(draw);
    let stream = context.stream().unwrap();
    for name in &cpu {
        let options = named(*name);
        let plan = context
            .plan(&draw.text)
            .operands(&planned)
            .options(&options)
            .build()
            .unwrap_or_else(|e| fail(e));
        assert_eq!(plan.variant(), *name, "{draw}");
        let mut out = context.upload_dense(&start).unwrap();
        plan.run(&operands, &mut out, &stream).unwrap_or_else(|e| fail(e));
        stream.synchronize().unwrap();
        let found = out.to_dense().unwrap().into_values();
        if let Some(difference) = first_difference(&found, &draw.wanted) {
            panic!("{plan}, {}: {draw}\n  {difference}", T::NAME);
        }
    }
    cpu
}

/// Returns the general kernels among the candidates of a plan without a GPU.
fn cpu_choice<T: Scalar>(draw: &Draw) -> Vec<&'static str> {
    let context = Context::unchecked_cpu();
    let sparse: Option<AnySparse<T>> =
        draw.sparse.as_ref().map(|a| a.map_values(|v| T::from_f64(v)));
    let dense: Vec<(&str, Dense<T>)> =
        draw.dense.iter().map(|(n, d)| (n.as_str(), d.map(T::from_f64))).collect();
    let start = Dense::from_fn(draw.shape.clone(), |_| T::ZERO).unwrap();
    let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::new();
    operands.extend(sparse.iter().map(|a| ("A", a.into())));
    operands.extend(dense.iter().map(|(n, d)| (*n, d.into())));
    let arrays = draw.arrays.iter();
    operands.extend(arrays.map(|(n, s, d)| (n.as_str(), Operand::Index(s, d))));
    operands.extend(draw.scalars.iter().map(|(n, v)| (n.as_str(), (*v).into())));
    operands.push(("C", (&start).into()));
    let plan = context
        .plan(&draw.text)
        .operands(&operands)
        .build()
        .unwrap_or_else(|e| panic!("{draw}: {e}"));
    let names = plan.choice().candidates.iter().map(|c| c.name);
    names.filter(|n| n.starts_with(FAMILY)).collect()
}

/// Runs the expressions in every way; returns the number of runs, and the kernels that ran.
pub fn run(context: &Context, count: u64) -> (usize, BTreeSet<&'static str>) {
    let (mut runs, mut rows) = (0, BTreeSet::new());
    for seed in seeds(count) {
        let draw = Draw::new(seed);
        let own = match seed % 8 {
            0..4 => on_the_gpu::<f32>(context, &draw),
            4 | 5 => on_the_gpu::<f64>(context, &draw),
            6 => on_the_gpu::<f16>(context, &draw),
            _ => on_the_gpu::<bf16>(context, &draw),
        };
        runs += own.len();
        rows.extend(own);
    }
    (runs, rows)
}

#[test]
fn random_expressions_agree_with_the_reference() {
    let Some(context) = support::gpu() else {
        return;
    };
    if std::env::var("EINSPARSE_TEST_ONLY").is_ok_and(|family| family != "einsum") {
        return;
    }
    let count = if support::small() { 100 } else { 2400 };
    let (runs, rows) = run(&context, count);
    if !support::small() && seeds(count).len() > 1 {
        assert!(2 * runs as u64 >= 3 * count, "{runs} runs");
        let all = kernels_here().filter(|r| r.module == "einsum");
        let idle: Vec<&str> = all.map(|r| r.name).filter(|n| !rows.contains(n)).collect();
        assert!(idle.is_empty(), "never run: {idle:?}");
    }
}
