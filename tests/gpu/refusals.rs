//! A CPU context and a GPU refuse the same operands with equal messages. Random operators and plans over random
//! operands, many of them invalid, run in both, and their errors are compared. EINSPARSE_TEST_CASES: number of cases;
//! EINSPARSE_TEST_CASE: run one.

mod layers;
mod plans;
mod structures;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use einsparse::Context;
use einsparse::formats::{bf16, f16};
use rayon::prelude::*;

use crate::gpu::operator_trials::results::ignore_results;
use crate::gpu::operator_trials::trial::Trial;
use crate::gpu::operator_trials::{Case, OPERATORS};
use crate::support::{gpu_alone, small};

/// A case in f16, bf16, f32 and f64.
macro_rules! of_types {
    ($($name:literal: $module:ident::$case:ident,)+) => {
        &[$((
            $name,
            [$module::$case::<f16>, $module::$case::<bf16>, $module::$case::<f32>, $module::$case::<f64>],
        )),+]
    };
}

/// Cases in addition to those that trials compute.
const MORE: &[(&str, [Case; 4])] = of_types![
    "plan": plans::plan,
    "plan of a kernel by name": plans::named,
    "update of values": plans::update,
    "plan into a sparse output": plans::sampled,
    "operands of other places": plans::views,
    "rms norm": layers::rms_norm,
    "residual norm": layers::residual_norm,
    "gradient of a norm": layers::norm_gradient,
    "glu": layers::glu,
    "activation": layers::activation,
    "embedding": layers::embedding,
    "greedy": layers::greedy,
    "rotary": layers::rotary,
    "router": layers::router,
    "cross entropy": layers::cross_entropy,
    "gradient of a bias": layers::bias_gradient,
    "gradient of weights": layers::weight_gradient,
    "sgd": layers::sgd,
    "adam": layers::adam,
    "encoder": layers::encoder,
    "convolution of images": structures::conv2d,
    "dynamic convolution": structures::dynamic_convolution,
    "edge geometry": structures::edge_geometry,
    "cached attention": structures::cached_attention,
    "structured attention": structures::structured_attention,
    "gradient of attention": structures::attention_gradient,
    "softmax in place": structures::softmax_in_place,
    "sampled tensor": structures::sampled_tensor,
    "pruning": structures::prune,
    "map of neighbours": structures::kernel_map,
    "spmm of the host": structures::host_spmm,
];

fn operators() -> impl Iterator<Item = &'static (&'static str, [Case; 4])> {
    OPERATORS.iter().chain(MORE)
}

/// Errors of a case in a context, step by step.
fn said(context: &Context, foreign: Option<&Context>, number: u64) -> Vec<String> {
    let count = operators().count();
    let (_, of) = operators().nth(number as usize % count).expect("a case");
    let which = (number as usize / count) % of.len();
    let mut trial = Trial::compared(context, foreign, number + 1);
    let ran = catch_unwind(AssertUnwindSafe(|| of[which](&mut trial)));
    let mut said = trial.said();
    if let Err(panic) = ran {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|w| (*w).to_owned()));
        said.push(format!("{PANIC}{}", words.unwrap_or_default()));
    }
    said
}

const PANIC: &str = "panics: ";

/// Removes addresses, which differ between contexts.
fn without_addresses(said: &str) -> String {
    let mut parts = said.split("0x");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        all += "0x";
        all += part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    all
}

/// Removes names of kernels: the selection depends on the rates of the GPU. All kernels of an element type require the
/// same alignment.
fn without_kernels(said: &str) -> String {
    let mut parts = said.split("; required by ");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        all += "; required by a kernel";
        all += part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    }
    all
}

/// Sorts the lines: kernels are listed in the order of their predicted times, which depends on the rates of the GPU.
fn in_any_order(said: &str) -> String {
    let mut lines: Vec<&str> = said.lines().collect();
    if let [_, rest @ ..] = &mut lines[..] {
        rest.sort_unstable();
    }
    lines.join("\n")
}

/// Removes numbers from a message, to group refusals with one reason.
fn group(said: &str) -> String {
    let mut group = String::new();
    for c in said.chars().take(400) {
        match c.is_ascii_digit() {
            true if group.ends_with('#') => {}
            true => group.push('#'),
            false => group.push(c),
        }
    }
    group
}

/// A case with different errors: number, operator with type, messages of the CPU and of the GPU.
struct Difference {
    number: u64,
    case: String,
    cpu: String,
    gpu: String,
}

fn compare(number: u64, (gpu, is_there): (&Context, bool)) -> Option<Difference> {
    let count = operators().count();
    let name = operators().nth(number as usize % count)?.0;
    let element = ["f16", "bf16", "f32", "f64"][(number as usize / count) % 4];
    let cpu = Context::cpu();
    let foreign = |context| is_there.then_some(context);
    let on_cpu = said(&cpu, foreign(gpu), number);
    let case = format!("{name} of {element}");
    let on_gpu = said(gpu, foreign(&cpu), number);
    // An absent GPU computes no results, so its case ends with a panic where a result is read.
    let is_cut = !is_there && on_gpu.last().is_some_and(|said| said.starts_with(PANIC));
    let steps = match is_cut {
        true => on_gpu.len() - 1,
        false => on_cpu.len().max(on_gpu.len()),
    };
    let at = |all: &[String], step: usize| {
        let said = all.get(step).map_or("(nothing)", String::as_str);
        in_any_order(&without_kernels(&without_addresses(said)))
    };
    let step = (0..steps).find(|&step| {
        let own = at(&on_cpu, step);
        own != at(&on_gpu, step) || own.starts_with(PANIC)
    })?;
    let (cpu, gpu) = (at(&on_cpu, step), at(&on_gpu, step));
    let case = format!("{case}, step {step}");
    Some(Difference { number, case, cpu, gpu })
}

/// The first three differences of each group, and their number.
fn summary(all: &[Difference]) -> String {
    let mut groups: BTreeMap<String, Vec<&Difference>> = BTreeMap::new();
    for own in all {
        let case = own.case.split(" of ").next().unwrap_or_default();
        let key = format!("{case} {} {}", group(&own.cpu), group(&own.gpu));
        groups.entry(key).or_default().push(own);
    }
    let mut text = String::new();
    for own in groups.values() {
        text += &format!("\n{} cases:\n", own.len());
        for Difference { number, case, cpu, gpu } in own.iter().take(3) {
            text += &format!("  case {number}: {case}\n    cpu: {cpu}\n    gpu: {gpu}\n");
        }
    }
    text
}

fn numbers() -> Vec<u64> {
    let set = |name: &str| std::env::var(name).ok().map(|n| n.parse().expect(name));
    match set("EINSPARSE_TEST_CASE") {
        Some(one) => vec![one],
        None => {
            (0..set("EINSPARSE_TEST_CASES").unwrap_or(if small() { 600 } else { 20_400 })).collect()
        }
    }
}

#[test]
fn refusals_of_a_cpu_and_a_gpu_are_the_same() {
    let gpu = gpu_alone();
    // Without a GPU: the checks of an absent one.
    let context = gpu.as_ref().map_or_else(Context::absent, |gpu| (**gpu).clone());
    // A separate thread pool, because other tests on the global pool check their results.
    let pool = rayon::ThreadPoolBuilder::new();
    let pool = pool.start_handler(|_| ignore_results()).build().unwrap();
    let numbers = numbers();
    let mut all: Vec<Difference> = pool.install(|| {
        let cases = numbers.par_iter();
        cases.filter_map(|&number| compare(number, (&context, gpu.is_some()))).collect()
    });
    all.sort_by_key(|own| own.number);
    println!("{} cases, {} differ", numbers.len(), all.len());
    assert!(all.is_empty(), "{} of {} differ:{}", all.len(), numbers.len(), summary(&all));
}
