//! Random expressions over random operands, many of them invalid: an error, or the result of plain loops. Memory is
//! poisoned, and guard bands around it must stay unchanged. EINSPARSE_TEST_CASES: number of cases.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use einsparse::driver::trial;
use einsparse::formats::{AnySparse, Dense, bf16, f16};
use einsparse::{Context, Operand, Options, Scalar, SparseTensor, Tensor, Weights, ZerosRule};
use rayon::prelude::*;

use crate::random::first_difference;
use crate::support::dense::strided;
use crate::support::{GUARD, Rng, gpu_alone, small};
use input::Input;
use plans::{Case, Sizes};
use reference::Value;

// Cases are those of `cargo xtask fuzz`.
#[allow(dead_code)]
#[path = "../../fuzz/src/conversions.rs"]
mod conversions;
#[allow(dead_code)]
#[path = "../../fuzz/src/input.rs"]
mod input;
#[allow(dead_code)]
#[path = "../../fuzz/src/outcome.rs"]
mod outcome;
#[allow(dead_code)]
#[path = "../../fuzz/src/plans.rs"]
mod plans;
#[path = "../../fuzz/src/reference.rs"]
mod reference;

/// Extents at the edges of tiles, as large as loops can evaluate.
const WIDE: Sizes = Sizes { extents: &[16, 64, 3, 8, 33, 128, 1, 40], terms: 1 << 16, largest: 3 };
const NARROW: Sizes = Sizes { extents: &[2, 3, 4, 1, 5, 7, 0, 8], terms: 1 << 12, largest: 3 };

/// Numbers of cases by outcome.
#[derive(Default)]
struct Counts {
    nothing: AtomicUsize,
    refused: AtomicUsize,
    refused_runs: AtomicUsize,
    right: AtomicUsize,
    unknown: AtomicUsize,
}

/// Fault of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// One operand is missing.
    Missing,
    /// The length of an index array differs from its shape.
    Length,
    /// One operand has another extent: in the plan, or only in the run.
    Extent,
    ExtentAtRun,
    /// The output has another extent.
    Output,
    /// An operand is missing in the run.
    MissingAtRun,
    /// A sparse operand of the run has another pattern.
    Pattern,
}

const FAULTS: [Fault; 16] = [
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::Missing,
    Fault::Length,
    Fault::Extent,
    Fault::ExtentAtRun,
    Fault::Output,
    Fault::MissingAtRun,
    Fault::Pattern,
];

/// Dense and sparse operands, in the memory of the context and of the host.
struct Operands<T: Scalar> {
    dense: BTreeMap<String, Tensor<T>>,
    host: BTreeMap<String, Dense<T>>,
    sparse: BTreeMap<String, SparseTensor<T>>,
    host_sparse: BTreeMap<String, AnySparse<T>>,
}

fn upload<T: Scalar>(context: &Context, case: &Case, input: &mut Input<'_>) -> Operands<T> {
    let mut all = Operands {
        dense: BTreeMap::new(),
        host: BTreeMap::new(),
        sparse: BTreeMap::new(),
        host_sparse: BTreeMap::new(),
    };
    for (name, value) in &case.values {
        if let Some(sparse) = case.sparse.get(name) {
            let sparse = sparse.map_values(T::from_f64);
            let there = context.upload(&sparse).unwrap();
            all.sparse.insert(name.clone(), there);
            all.host_sparse.insert(name.clone(), sparse);
        } else if let Value::Dense(dense) = value {
            let dense = dense.map(T::from_f64);
            let columns = dense.shape().last().copied().unwrap_or(1);
            let gap = [0, 0, 1, 8, 3, 16][input.below(6)];
            let nan = T::from_f64(f64::NAN);
            let there = context.upload_strided(&dense, columns + gap, nan);
            all.dense.insert(name.clone(), there.unwrap());
            all.host.insert(name.clone(), dense);
        }
    }
    all
}

/// Copies a tensor with an extent changed by one; `None` if that is not possible.
fn other_extent<T: Scalar>(dense: &Dense<T>, input: &mut Input<'_>) -> Option<Dense<T>> {
    let mut shape = dense.shape().to_vec();
    let axis = input.below(shape.len().max(1));
    let extent = shape.get_mut(axis)?;
    *extent = match input.below(2) {
        0 => *extent + 1,
        _ => extent.checked_sub(1)?,
    };
    Dense::from_fn(shape, |_| T::ONE).ok()
}

/// Output of a case: NaN or its previous content, and a guard value between its rows.
fn output<T: Scalar>(context: &Context, case: &Case, gap: usize) -> Tensor<T> {
    let before = case.before.map(T::from_f64);
    let columns = before.shape().last().copied().unwrap_or(1);
    let guard = T::from_f64(GUARD);
    strided(context, &before, columns + gap, guard)
}

fn one<T: Scalar>(context: &Context, input: &mut Input<'_>, sizes: &Sizes, counts: &Counts) {
    let count = |of: &AtomicUsize| {
        of.fetch_add(1, Ordering::Relaxed);
    };
    let Ok(case) = Case::draw(input, sizes) else {
        return count(&counts.nothing);
    };
    let text = case.text.as_str();
    let mut fault = FAULTS[input.below(FAULTS.len())];
    let own = upload::<T>(context, &case, input);
    let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::new();
    for (name, value) in &case.values {
        // A run on a GPU requires operands in device memory.
        let is_on_host = !context.is_cuda() && input.below(8) == 0;
        let operand = match (value, own.sparse.get(name)) {
            (_, Some(_)) if is_on_host => (&own.host_sparse[name]).into(),
            (_, Some(sparse)) => sparse.into(),
            (Value::Dense(_), _) if is_on_host => (&own.host[name]).into(),
            (Value::Dense(_), _) => (&own.dense[name]).into(),
            (Value::Index(shape, slots), _) => Operand::Index(shape, slots),
            (Value::Number(x), _) => Operand::Scalar(*x),
        };
        operands.push((name, operand));
    }
    let chosen = input.below(operands.len().max(1));
    let replaced: Option<Dense<T>> = match operands.get(chosen) {
        Some((_, Operand::Dense(_) | Operand::HostDense(_))) => {
            other_extent(&own.host[operands[chosen].0], input)
        }
        _ => None,
    };
    let pattern = match operands.get(chosen) {
        Some((name, Operand::Sparse(_))) => {
            let shape = case.sparse[*name].shape().to_vec();
            let coo = conversions::coo(input, &shape, 24);
            let other = einsparse::formats::AnySparse::from(coo);
            let format = case.sparse[*name].format();
            let other = other.convert(format).map(|a| a.map_values(T::from_f64));
            other.ok().map(|a| context.upload(a).unwrap())
        }
        _ => None,
    };
    let short: Option<(&[usize], Vec<u32>)> = match operands.get(chosen) {
        Some((_, Operand::Index(shape, slots))) => {
            let slots = match input.below(2) {
                0 => slots.iter().copied().chain([1]).collect(),
                _ => slots[..slots.len().saturating_sub(1)].to_vec(),
            };
            (slots.len() != shape.iter().product::<usize>()).then_some((*shape, slots))
        }
        _ => None,
    };
    let is_number = matches!(operands.get(chosen), Some((_, Operand::Scalar(_))));
    // A fault that does not apply to this case is dropped. Numbers are required at the run, not in the plan.
    fault = match fault {
        Fault::Missing if is_number => Fault::None,
        Fault::Length if short.is_none() => Fault::None,
        Fault::Extent | Fault::ExtentAtRun if replaced.is_none() => Fault::None,
        Fault::Pattern if pattern.is_none() => Fault::None,
        Fault::Missing | Fault::MissingAtRun if operands.is_empty() => Fault::None,
        other => other,
    };
    let sound = operands.clone();
    match fault {
        Fault::Missing => drop(operands.remove(chosen)),
        Fault::Length => {
            let (shape, slots) = short.as_ref().unwrap();
            operands[chosen].1 = Operand::Index(shape, slots);
        }
        Fault::Extent => operands[chosen].1 = replaced.as_ref().unwrap().into(),
        _ => {}
    }
    // Gaps that were not planned are refused.
    let gap = [0, 0, 8, 1][input.below(4)] * usize::from(case.is_output_given);
    let (mut out, given) = (output(context, &case, gap), output(context, &case, gap));
    if case.is_output_given {
        operands.push((&case.einsum.out.tensor, (&given).into()));
    }
    let mut options = Options::default()
        .zeros([ZerosRule::Dense, ZerosRule::Strict][input.below(2)])
        .weights([Weights::EachRun, Weights::EachRun, Weights::Static][input.below(3)]);
    let told = || format!("{text} {:?} {} {fault:?}", case.shapes, T::NAME);
    let plan = match context.plan(text).operands(&operands).options(&options).build() {
        Ok(plan) => plan,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return count(&counts.refused);
        }
    };
    assert!(!matches!(fault, Fault::Missing | Fault::Length), "{} is planned: {plan}", told());
    let names: Vec<_> = plan.choice().candidates.iter().map(|c| c.name).collect();
    let plan = match input.below(3) {
        // Also forces kernels that the selection would not choose.
        0 if !names.is_empty() => {
            options.variant = Some(names[input.below(names.len())].into());
            let other = context.plan(text).operands(&operands).options(&options).build();
            other.unwrap_or_else(|e| panic!("{} by {:?}: {e}", told(), options.variant))
        }
        _ => plan,
    };
    let mut own_operands = if fault == Fault::Extent { operands } else { sound };
    own_operands.retain(|(name, o)| {
        !matches!(o, Operand::Index(..)) && *name != case.einsum.out.tensor.as_str()
    });
    let place = own_operands
        .iter()
        .position(|(name, _)| Some(*name) == case.values.keys().nth(chosen).map(String::as_str));
    let stream = context.stream().unwrap();
    let mut smaller = None;
    match (fault, place) {
        (Fault::MissingAtRun, Some(place)) => drop(own_operands.remove(place)),
        (Fault::ExtentAtRun, Some(place)) => {
            own_operands[place].1 = replaced.as_ref().unwrap().into();
        }
        (Fault::Pattern, Some(place)) => own_operands[place].1 = pattern.as_ref().unwrap().into(),
        (Fault::Output, _) => {
            let other = other_extent(&case.before.map(T::from_f64), input);
            smaller = other.map(|o| context.upload_dense(&o).unwrap());
        }
        _ => {}
    }
    let ran = plan.run(&own_operands, smaller.as_mut().unwrap_or(&mut out), &stream);
    stream.synchronize().unwrap_or_else(|e| panic!("{}: {plan}: {e}", told()));
    let must_fail = smaller.is_some_and(|c| c.shape() != plan.out_shape())
        || place.is_some() && matches!(fault, Fault::MissingAtRun | Fault::ExtentAtRun);
    match ran {
        Ok(()) => assert!(!must_fail, "{} runs: {plan}", told()),
        Err(error) => {
            let is_fault = must_fail || matches!(fault, Fault::Pattern | Fault::Extent);
            let has_shape = out.shape() == plan.out_shape();
            assert!(is_fault || !has_shape, "{}: {plan}: {error}", told());
            return count(&counts.refused_runs);
        }
    }
    if !matches!(fault, Fault::None | Fault::Missing | Fault::Length) && place.is_some() {
        return count(&counts.unknown);
    }
    let Some(wanted) = case.wanted(&case.extents()) else {
        return count(&counts.unknown);
    };
    let found = out.to_dense().unwrap().into_values();
    if let Some(difference) = first_difference(&found, wanted.values()) {
        panic!("{}: {plan}\n  {difference}", told());
    }
    let columns = out.shape().last().copied().unwrap_or(1);
    let stored = out.to_storage().unwrap();
    let rows = stored.chunks(out.leading().max(1));
    let between = rows.flat_map(|row| row.get(columns..).unwrap_or_default());
    let untouched = |x: &T| x.to_f64() == GUARD;
    assert!(between.into_iter().all(untouched), "{}: gaps", told());
    count(&counts.right);
}

fn all(context: &Context, cases: u64) {
    let (counts, lost) = (Counts::default(), AtomicUsize::new(0));
    (0..cases).into_par_iter().for_each(|number: u64| {
        let mut rng = Rng(number + 1);
        let bytes: Vec<u8> = (0..96).flat_map(|_| rng.word().to_le_bytes()).collect();
        let halves = |sizes: &Sizes| Sizes { largest: 1, ..*sizes };
        let sizes = if number % 4 == 0 { WIDE } else { NARROW };
        let mut input = Input::new(&bytes);
        let run = AssertUnwindSafe(|| match number / 4 % 4 {
            0 => one::<f64>(context, &mut input, &sizes, &counts),
            1 => one::<f16>(context, &mut input, &halves(&sizes), &counts),
            2 => one::<bf16>(context, &mut input, &halves(&sizes), &counts),
            _ => one::<f32>(context, &mut input, &sizes, &counts),
        });
        if catch_unwind(run).is_err() {
            eprintln!("case {number}");
            lost.fetch_add(1, Ordering::Relaxed);
        }
    });
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let [right, unknown] = [&counts.right, &counts.unknown].map(of);
    println!(
        "{cases} cases: {right} right, {} refused by the plan, {} by the run, {unknown} without a known result, {} no \
         expression",
        of(&counts.refused),
        of(&counts.refused_runs),
        of(&counts.nothing),
    );
    context.synchronize().unwrap();
    assert_eq!(lost.into_inner(), 0, "cases that went wrong");
    assert!(right as u64 * 5 >= cases, "{right} right of {cases}");
}

fn asked(otherwise: u64) -> u64 {
    let asked = std::env::var("EINSPARSE_TEST_CASES").ok();
    asked.map_or(otherwise, |n| n.parse().unwrap())
}

#[test]
fn random_operands_are_refused_or_right_on_the_cpu() {
    all(&Context::cpu(), asked(1000));
}

#[test]
fn random_operands_are_refused_or_right() {
    let Some(gpu) = gpu_alone() else { return };
    trial::guard();
    all(&gpu, asked(if small() { 60 } else { 4000 }));
    let faults = trial::faults();
    let count = faults.len();
    assert!(faults.is_empty(), "{count} writes outside: {faults:?}");
}
