//! Random operators over random operands, many of them invalid: an error, or the result of plain loops. Memory is
//! poisoned, and guard bands around it must stay unchanged. EINSPARSE_TEST_CASES: number of cases; EINSPARSE_TEST_CASE:
//! run one.

mod attention;
mod entries;
mod experts;
mod layers;
mod lists;
pub mod loops;
mod messages;
pub mod results;
mod rows;
mod tiles;
pub mod trial;
mod voxels;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use einsparse::Context;
use einsparse::driver::trial as memory;
use einsparse::formats::{bf16, f16};
use rayon::prelude::*;

use crate::support::{gpu_alone, small};
use trial::{Outcome, Trial};

/// Runs a case. `Ok`: its result was right.
pub type Case = fn(&mut Trial<'_>) -> Result<(), Outcome>;

/// A case in f16, bf16, f32 and f64. Most kernels support the first two.
macro_rules! operators {
    ($($name:literal: $module:ident::$case:ident,)+) => {
        &[$((
            $name,
            [$module::$case::<f16>, $module::$case::<bf16>, $module::$case::<f32>, $module::$case::<f64>],
        )),+]
    };
}

pub const OPERATORS: &[(&str, [Case; 4])] = operators![
    "routed product": experts::grouped,
    "gradient of a routed product": experts::grouped_gradient,
    "layer of experts": experts::layer,
    "micro-tiles on the left": tiles::left,
    "micro-tiles of a transpose": tiles::on_the_turn,
    "micro-tiles on the right": tiles::right,
    "detector of values": lists::tiles,
    "detector of masks": lists::masks,
    "detector of columns": lists::channels,
    "detector of rows": lists::rows,
    "convolution": voxels::convolution,
    "linear layer of blocks": layers::of_blocks,
    "linear layer of entries": layers::of_entries,
    "feed-forward layer": layers::feed_forward,
    "spmm": entries::spmm,
    "sddmm": entries::sddmm,
    "softmax": entries::softmax,
    "softmax of heads": entries::softmax_of_heads,
    "patterns": entries::patterns,
    "mttkrp": rows::mttkrp,
    "ttm": rows::ttm,
    "products at entries": rows::sampled,
    "tensor product": rows::tensor_product,
    "messages": messages::messages,
    "attention at entries": attention::of_entries,
    "attention by flags": attention::of_flags,
    "attention by blocks of keys": attention::of_key_blocks,
];

/// Numbers of right, refused and unsupported cases of each operator, and the failures.
#[derive(Default)]
struct Counts {
    of: BTreeMap<&'static str, [usize; 3]>,
    lost: Vec<String>,
}

/// Runs the case of this number.
fn run(context: &Context, foreign: Option<&Context>, number: u64, counts: &Mutex<Counts>) {
    let (name, of) = OPERATORS[number as usize % OPERATORS.len()];
    let round = number as usize / OPERATORS.len();
    let mut trial = Trial::new(context, foreign, number + 1);
    let which = round % of.len();
    let ran = catch_unwind(AssertUnwindSafe(|| of[which](&mut trial)));
    let became = match ran {
        Ok(Ok(())) => 0,
        Ok(Err(Outcome::Refused)) => 1,
        Ok(Err(Outcome::Unsupported)) => 2,
        Err(panic) => {
            let element = ["f16", "bf16", "f32", "f64"][which];
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref().copied());
            let (fault, said) = (trial.fault(), said.unwrap_or_default());
            let lost = format!("case {number}: {name} of {element}, {fault}: {said}");
            counts.lock().unwrap().lost.push(lost);
            return;
        }
    };
    counts.lock().unwrap().of.entry(name).or_default()[became] += 1;
}

fn all(context: &Context, foreign: Option<&Context>, cases: u64) {
    let counts = Mutex::new(Counts::default());
    let numbers = match std::env::var("EINSPARSE_TEST_CASE") {
        Ok(one) => vec![one.parse().unwrap()],
        Err(_) => (0..cases).collect(),
    };
    numbers.par_iter().for_each(|&number| run(context, foreign, number, &counts));
    context.synchronize().unwrap();
    let counts = counts.into_inner().unwrap();
    let sum = |became: usize| counts.of.values().map(|own| own[became]).sum::<usize>();
    for (name, [right, refused, unsupported]) in &counts.of {
        println!("{name}: {right} right, {refused} refused, {unsupported} not supported");
    }
    println!(
        "{} cases of operators: {} right, {} refused, {} not supported",
        numbers.len(),
        sum(0),
        sum(1),
        sum(2)
    );
    let lost = &counts.lost;
    assert!(lost.is_empty(), "{} went wrong:\n{}", lost.len(), lost.join("\n"));
    for (name, _) in OPERATORS.iter().filter(|_| numbers.len() > 1 && !small()) {
        let right = counts.of.get(name).map_or(0, |own| own[0]);
        assert!(right > 0, "{name} was never right");
    }
}

/// Minimum number of cases of each operator, so that one of them is right even if a GPU supports only two element
/// types.
const EACH: u64 = 64;

fn asked(otherwise: u64) -> u64 {
    let asked = std::env::var("EINSPARSE_TEST_CASES").ok();
    let asked = asked.map_or(otherwise, |n| n.parse().unwrap());
    asked.max(if small() { EACH / 4 } else { EACH } * OPERATORS.len() as u64)
}

#[test]
fn random_operators_are_refused_or_right_on_the_cpu() {
    all(&Context::unchecked_cpu(), None, asked(6000));
}

#[test]
fn random_operators_are_refused_or_right() {
    let Some(gpu) = gpu_alone() else { return };
    memory::guard();
    all(&gpu, Some(&Context::unchecked_cpu()), asked(if small() { 0 } else { 1500 }));
    let faults = memory::faults();
    let count = faults.len();
    assert!(faults.is_empty(), "{count} writes outside: {faults:?}");
}
