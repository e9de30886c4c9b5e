//! Ranks on GPUs: one rank, and two on one machine if it has two GPUs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use einsparse::driver::device_count;
use einsparse::formats::Dense;
use einsparse::group::{Group, GroupSum, Partition, Sharded, ShardedOptions, ShardedSpmm};
use einsparse::{Context, Error, Tensor};

#[path = "../group/cases.rs"]
#[allow(dead_code)]
mod cases;
#[path = "../group/cases_moe.rs"]
#[allow(dead_code)]
mod cases_moe;
#[path = "../group/cases_ops.rs"]
#[allow(dead_code)]
mod cases_ops;

use einsparse::formats::{bf16, f16};

use super::models::all::{atoms::Atoms, domains};
use crate::support::replay::Replay;
use crate::support::{Gpu, assert_error, gpu, gpu_alone, skipped, small};
use cases::on_ranks;

/// Kernels that sum rows of at most 32 nonzeros in order, without splitting them.
const IN_ORDER: &str = "spmm_csr_f32_any8";

/// Allows one group at a time: kernels of two communicators on the same GPUs can deadlock.
static TURN: Mutex<()> = Mutex::new(());

struct Two {
    _gpu: Gpu,
    _turn: MutexGuard<'static, ()>,
    contexts: [Context; 2],
}

/// Two GPUs, or `None` after a message with the reason.
fn two() -> Option<Two> {
    let gpu = gpu()?;
    let count = device_count().unwrap_or(0);
    if count < 2 {
        skipped("needs two GPUs", format!("{count} here"));
        return None;
    }
    Some(Two {
        _gpu: gpu,
        _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        contexts: [0, 1].map(|ordinal| Context::cuda(ordinal).unwrap()),
    })
}

fn on_two(cases: &[fn(&[Context])]) {
    let Some(two) = two() else { return };
    cases.iter().for_each(|case| case(&two.contexts));
}

/// A stream waits for a stream of another GPU.
#[test]
fn streams_of_two_gpus_wait_for_each_other() {
    let Some(two) = two() else { return };
    let streams = two.contexts.each_ref().map(|context| context.stream().unwrap());
    for [here, there] in [[0, 1], [1, 0]] {
        let context = &two.contexts[there];
        let n = if small() { 64 } else { 4096 };
        let [a, b, mut c] = [(); 3].map(|()| context.zeros::<f32>(&[n, n]).unwrap());
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let plan = context.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands);
        let plan = plan.build().unwrap();
        for _ in 0..20 {
            plan.run(&operands, &mut c, &streams[there]).unwrap();
        }
        streams[here].wait_for(&streams[there]).unwrap();
        streams[here].synchronize().unwrap();
        assert!(streams[there].raw().is_done().unwrap(), "{here} waits for {there}");
    }
}

#[test]
fn one_rank_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let one = [gpu.clone()];
    cases::products(&one, None);
    cases::products(&one, Some(IN_ORDER));
    cases::transposed(&one);
    cases::sums(&one);
    cases::training_step(&one);
    operations(&one);
    experts(&one);
    force_field(&one);
}

#[test]
fn a_captured_step_of_one_rank_on_the_gpu() {
    let Some(gpu) = gpu_alone() else { return };
    captured(std::slice::from_ref::<Context>(&gpu));
}

/// A product that sends rows of B, and a sum over ranks, both captured once: each replay uses the current values.
fn captured(contexts: &[Context]) {
    let a = cases::graph(300, 9, 3);
    let deal = Partition::even(300, contexts.len());
    let ranks = on_ranks(contexts, |group| {
        let (context, own) = (group.context(), deal.range(group.rank()).len());
        let stream = context.stream()?;
        for overlap in [false, true] {
            let options = ShardedOptions { overlap, ..ShardedOptions::default() };
            let mine = Sharded::of(&group, &a, &deal)?;
            let product = ShardedSpmm::new(&group, &mine, &deal, 32, &options)?;
            let (mut x, mut y) = (product.operand()?, product.output()?);
            let sum = GroupSum::new(&group, &[300])?;
            let mut total = context.zeros::<f32>(&[300])?;
            let write = |x: &mut Sharded<Tensor<f32>>, total: &mut Tensor<f32>, by: f32| {
                x.local_mut()?.write(&Dense::from_fn([own, 32], |i| by * i[1] as f32)?)?;
                total.write(&Dense::from_fn([300], |i| by * i[0] as f32)?)
            };
            let queue = |x: &mut _, y: &mut _, total: &mut _| {
                product.run(x, y, &stream)?;
                sum.run(total, &stream)
            };
            let mut wanted = Vec::new();
            for by in [1.0, 2.0] {
                write(&mut x, &mut total, by)?;
                queue(&mut x, &mut y, &mut total)?;
                stream.synchronize()?;
                wanted.push((y.to_dense()?, total.to_dense()?));
            }
            let mut replay = Replay::of(&stream, || queue(&mut x, &mut y, &mut total));
            for (by, of) in [(1.0, 0), (2.0, 1), (1.0, 0)] {
                write(&mut x, &mut total, by)?;
                // SAFETY: product, sum and tensors are alive.
                unsafe { replay.run() };
                assert!((y.to_dense()?, total.to_dense()?) == wanted[of]);
            }
        }
        group.barrier()
    });
    ranks.into_iter().for_each(|rank| rank.unwrap());
}

fn operations(contexts: &[Context]) {
    cases_ops::sampled(contexts);
    cases_ops::sequences(contexts);
    cases_ops::heads_of_ranks(contexts);
    cases_ops::attention_gradient::<f16>(contexts);
    cases_ops::messages(contexts);
    cases_ops::neighbours(contexts);
}

fn experts(contexts: &[Context]) {
    cases_moe::experts::<bf16>(contexts);
    cases_moe::experts::<f16>(contexts);
    cases_moe::expert_gradients::<bf16>(contexts);
}

fn force_field(contexts: &[Context]) {
    let atoms = Atoms::liquid([7, 2, 3], 3.6).unwrap();
    for channels in [8, 32, 128] {
        let error = domains::error::<f32>(contexts, &atoms, channels, 3.5).unwrap();
        assert!(error < 2e-5, "{channels} channels: {error}");
    }
}

#[test]
fn runs_on_two_gpus_are_captured() {
    on_two(&[captured]);
}

#[test]
fn a_force_field_on_two_gpus() {
    on_two(&[force_field]);
}

#[test]
fn operations_on_two_gpus() {
    on_two(&[operations]);
}

#[test]
fn experts_on_two_gpus() {
    on_two(&[experts]);
}

#[test]
fn products_on_two_gpus() {
    on_two(&[|two| cases::products(two, Some(IN_ORDER)), |two| cases::products(two, None)]);
}

#[test]
fn gradients_and_sums_on_two_gpus() {
    on_two(&[cases::transposed, cases::sums, cases::training_step]);
}

/// A rank leaves while the other waits in a kernel of NCCL: the other rank gets an error within ten seconds and does
/// not hang.
#[test]
fn a_rank_that_leaves_ends_what_is_queued() {
    let Some(two) = two() else { return };
    let two = &two.contexts;
    let results = on_ranks(two, |group| {
        let context = group.context();
        let sum = GroupSum::<f32>::new(&group, &[1 << 20])?;
        let mut tensor = context.zeros(&[1 << 20])?;
        let stream = context.stream()?;
        sum.run(&mut tensor, &stream)?;
        stream.synchronize()?;
        if group.rank() == 1 {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        let ended = sum.run(&mut tensor, &stream).and(stream.synchronize());
        assert_error!(ended, Err(Error::Rank { rank: 1, .. }));
        assert!(tensor.to_dense().is_err());
        Ok(start.elapsed())
    });
    for result in results {
        assert!(result.unwrap() < Duration::from_secs(10));
    }
    // The GPUs remain usable.
    let results = on_ranks(two, |group: Group| group.barrier());
    assert!(results.into_iter().all(|r| r.is_ok()));
    for context in two {
        context.synchronize().unwrap();
    }
}
