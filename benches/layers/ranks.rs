//! `ranks`: rows over the GPUs of this machine, for 1, 2 and more ranks. Measures a product of R-MAT 22, as generated
//! and with its nodes in random order. B is stored on every rank, or distributed over the ranks and sent before the
//! products or overlapped with them. Also measures a layer of a graph network with its gradients, gated experts, a
//! force field whose atoms grow with the ranks, and the links alone.
//!
//! All ranks start together and wait for their GPU at the end. Times are measured on the host and are those of the
//! slowest rank. Each operand is many times larger than L2, so there are no warm times. `limit_fraction` is the share
//! of ideal scaling. For the force field, whose work grows with the ranks, it is relative to the time of one rank.

use super::models::all::{atoms::Atoms, domains::Neighbours, force_field::ForceField};
use crate::prelude::*;
use crate::timing::median;
use einsparse::driver::device_count;
use einsparse::dynamic::Gate;
use einsparse::formats::{Permutation, generate};
use einsparse::group::{Group, GroupSum, Halo, Partition};
use einsparse::group::{Sharded, ShardedMoe, ShardedOptions, ShardedSpmm};
use einsparse::nn::{MoeInputs, MoeOptions};
use einsparse::{Error, Graph, Plan, Precision, Scalar, Stream};
use rand::seq::SliceRandom;
use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

pub const OP: &str = "ranks";

const COLUMNS: usize = 128;
/// Number of consecutive runs, and of repetitions.
const TOGETHER: usize = 4;
const TIMES: usize = 5;
/// Cost of a layer's dense products per row, in nonzeros of both sparse products, measured on one GPU.
const ROW_ENTRIES: u64 = 50;
/// Megabytes that a rank sends to each other rank.
const SENT: [usize; 3] = [1, 16, 256];
const LIQUID: &str = "liquid";
/// Force field: grid of a rank's 3,000 atoms (the boxes of the ranks are adjacent along the first axis), max distance
/// of edges, cutoff, channels.
const GRID: [usize; 3] = [20, 15, 10];
const RADIUS: f64 = 5.03;
const CUTOFF: f64 = 4.83;
const CHANNELS: usize = 128;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let gpus = device_count()? as usize;
    let contexts = (0..gpus).map(|gpu| Context::cuda(gpu as u32));
    let contexts = contexts.collect::<einsparse::Result<Vec<_>>>()?;
    let counts: Vec<usize> = (0..).map(|p| 1 << p).take_while(|&n| n <= gpus).collect();
    let scale = if bench.arguments.quick { 18 } else { 22 };
    if bench.arguments.named(&format!("rmat{scale}")) {
        graphs(bench, scale, &contexts, &counts)?;
    }
    if bench.arguments.named(LIQUID) {
        atoms(bench, &contexts, &counts)?;
    }
    Ok(())
}

/// Times of one rank, by case.
type Alone = BTreeMap<String, f64>;

/// Writes the row of a step of several ranks. The first call of a case is that of one rank.
fn scaled(
    bench: &Bench<'_>,
    (alone, case): (&mut Alone, &str),
    (row, name, ranks): (Row, &str, usize),
    (ms, note): (f64, String),
) -> Result<()> {
    let one = *alone.entry(format!("{} {case}", row.workload)).or_insert(ms);
    let row = row.timed(&once(ms)).limit(one / ranks as f64);
    bench.add(row.ours(format!("{name}+{ranks}")).strict().note(note))
}

/// Measures products and layers over graphs, experts, and the links.
fn graphs(bench: &Bench<'_>, scale: u32, contexts: &[Context], counts: &[usize]) -> Result<()> {
    let problem = Problem::of(OP, format!("rmat{scale}"), Source::Rmat(scale))?;
    let (m, k, nnz) = problem.extents();
    let a = Csr::new(problem.pattern.clone(), generate::random_values::<f32>(nnz, SEED))?;
    let shuffled = shuffled(&a)?;
    let random = format!("{}_random_order", problem.workload);
    let n = bench.arguments.ns(&[COLUMNS])[0];
    let row = |workload: &str| {
        let flops = 2.0 * nnz as f64 * n as f64;
        Row::new(OP, workload, [m, k, n], nnz, Dtype::F32).flops(flops)
    };
    let mut alone = Alone::new();
    for &ranks in counts {
        let contexts = &contexts[..ranks];
        let case = Case { bench, a: &a };
        for megabytes in SENT.into_iter().filter(|_| ranks > 1) {
            let (both, bytes) = case.link(contexts, megabytes)?;
            for (name, ms) in ["exchange", "exchange_graph"].into_iter().zip(both) {
                let workload = format!("exchange{megabytes}MB");
                let row = Row::new(OP, workload, [0; 3], 0, Dtype::F32).bytes(bytes);
                let row = row.timed(&once(ms)).ours(format!("{name}+{ranks}"));
                bench.add(row.note("bytes that a rank sends"))?;
            }
        }
        let both = &[("", false), ("_overlap", true)][..ranks.min(2)];
        for (workload, a) in [(problem.workload.as_str(), &a), (random.as_str(), &shuffled)] {
            let case = Case { bench, a };
            let own = (row(workload), "replicated", ranks);
            scaled(bench, (&mut alone, ""), own, case.replicated(contexts, n)?)?;
            for &(name, overlap) in both {
                let own = (row(workload), &*format!("sharded{name}"), ranks);
                scaled(bench, (&mut alone, ""), own, case.sharded(contexts, n, overlap)?)?;
            }
        }
        for &(name, overlap) in both {
            let own = (row(&problem.workload), &*format!("layer{name}"), ranks);
            scaled(bench, (&mut alone, "layer"), own, case.layer(contexts, n, overlap)?)?;
        }
        for tokens in TOKENS {
            let (both, note) = case.experts(contexts, tokens)?;
            for (name, ms) in ["experts", "experts_graph"].into_iter().zip(both) {
                let extents = [tokens, QWEN.model, QWEN.hidden];
                let choices = tokens * QWEN.top_k;
                let row = Row::new(OP, "qwen3-30b-a3b", extents, choices, Dtype::Bf16)
                    .flops(6.0 * (choices * QWEN.model * QWEN.hidden) as f64);
                let case = format!("{tokens} {name}");
                scaled(bench, (&mut alone, &case), (row, name, ranks), (ms, note.clone()))?;
            }
        }
    }
    Ok(())
}

/// Measures energy and forces, with an equal number of atoms per rank. Ranks send positions, features between both
/// layers, gradients of both, and sums of energies.
fn atoms(bench: &Bench<'_>, contexts: &[Context], counts: &[usize]) -> Result<()> {
    let [along, across, up] = GRID;
    let mut alone = None;
    for &ranks in counts {
        let all = Atoms::liquid([along * ranks, across, up], RADIUS)?;
        let (ms, note) = clocked(bench, &contexts[..ranks], |group| {
            let context = group.context();
            let (atoms, others) = Neighbours::<f32>::new(group, &all, CHANNELS)?;
            let full = Precision::Full;
            let mut field = ForceField::<f32>::new(context, &atoms, CHANNELS, CUTOFF, full)?;
            let mut positions = atoms.upload(context)?;
            others.join(&mut field, &mut positions, &context.stream()?)?;
            let taken = atoms.count() - atoms.own.len();
            let note = format!(
                "weak scaling: so many atoms a GPU, {taken} of other ranks beside them; energy and forces, edges stay"
            );
            Ok((Box::new(move |stream| field.run(&mut positions, stream)), note))
        })?;
        let (extents, edges) = ([along * across * up, 0, CHANNELS], all.receivers.len() / ranks);
        let row = Row::new(OP, LIQUID, extents, edges, Dtype::F32).timed(&once(ms));
        let row = row.limit(*alone.get_or_insert(ms)).ours(format!("force_field+{ranks}"));
        bench.add(row.strict().note(note))?;
    }
    Ok(())
}

/// The graph with its nodes in random order. As generated, nodes with many edges come first.
fn shuffled(a: &Csr<f32>) -> Result<Csr<f32>> {
    let mut order: Vec<u32> = (0..a.shape()[0] as u32).collect();
    order.shuffle(&mut StdRng::seed_from_u64(SEED));
    let order = Permutation::new(order)?;
    Ok(order.columns(&order.rows(a)?)?)
}

/// Time measured once, on the host.
fn once(ms: f64) -> Times {
    Times { cold: ms, warm: ms, host_inside: true }
}

/// Small random values, which repeat.
fn some<T: Scalar>(shape: &[usize]) -> einsparse::Result<Dense<T>> {
    let values = generate::random_values::<f32>(1 << 20, SEED);
    let values: Vec<T> =
        (values.iter()).map(|&value| T::from_f64(f64::from(value) / 32.0)).collect();
    let all = values.iter().copied().cycle();
    Ok(Dense::new(shape, all.take(shape.iter().product()).collect())?)
}

/// Writes small random values to the rows of this rank.
fn write(rows: &mut Sharded<Tensor<f32>>) -> einsparse::Result<()> {
    let mut own = rows.local_mut()?;
    let shape = own.shape().to_vec();
    own.write(&some(&shape)?)
}

/// A layer of experts. `tokens`, the number over all ranks, is set by each case.
const QWEN: MoeOptions = MoeOptions {
    tokens: 0,
    experts: 128,
    first: 0,
    top_k: 8,
    model: 2048,
    hidden: 768,
    activation: einsparse::einsum::Activation::Identity,
    gate: Some(Gate::Silu),
    transposed: true,
    scaled: false,
    quantize: false,
};
const TOKENS: [usize; 2] = [4096, 65536];

struct Case<'a> {
    bench: &'a Bench<'a>,
    a: &'a Csr<f32>,
}

/// Closure that a rank runs, and its note.
type Step = (Box<dyn FnMut(&Stream) -> einsparse::Result<()>>, String);

/// Milliseconds of a step of all ranks together, and the note of rank 0.
fn clocked(
    bench: &Bench<'_>,
    contexts: &[Context],
    make: impl Fn(&Group) -> einsparse::Result<Step> + Sync,
) -> Result<(f64, String)> {
    let (ways, note) = both_ways(bench, contexts, false, make)?;
    Ok((ways[0], note))
}

/// Milliseconds of a step. With `captured`, also those of a step that each rank has captured in a CUDA graph, without
/// the host's time.
fn both_ways(
    bench: &Bench<'_>,
    contexts: &[Context],
    captured: bool,
    make: impl Fn(&Group) -> einsparse::Result<Step> + Sync,
) -> Result<(Vec<f64>, String)> {
    bench.gpu.wait()?;
    let groups = Group::local(contexts)?;
    let rank = |group: Group| -> einsparse::Result<(Vec<Vec<f64>>, String)> {
        let stream = group.context().stream()?;
        let (mut step, note) = make(&group)?;
        let clock = |run: &mut dyn FnMut() -> einsparse::Result<()>| {
            let mut times = Vec::new();
            for _ in 0..=TIMES {
                stream.synchronize()?;
                group.barrier()?;
                let start = Instant::now();
                (0..TOGETHER).try_for_each(|_| run())?;
                stream.synchronize()?;
                times.push(start.elapsed().as_secs_f64() * 1e3 / TOGETHER as f64);
            }
            group.barrier()?;
            Ok::<_, Error>(times)
        };
        let mut ways = vec![clock(&mut || step(&stream))?];
        if captured {
            let mut graph = Graph::capture(stream.raw(), |_| step(&stream))?;
            // SAFETY: the operands of the step are alive, and no other run of it is in flight.
            ways.push(clock(&mut || unsafe { graph.launch(stream.raw()) })?);
        }
        Ok((ways, note))
    };
    let results = thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
        let join =
            |rank: thread::ScopedJoinHandle<'_, _>| rank.join().map_err(|_| "a rank panicked");
        ranks.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for result in results {
        all.push(result??);
    }
    let ms = |way: usize| {
        let slowest = |time: usize| {
            let ranks = all.iter().map(|(ways, _)| ways[way][time]);
            ranks.fold(0.0, f64::max)
        };
        // The first run includes one-time initialization.
        let mut times: Vec<f64> = (1..=TIMES).map(slowest).collect();
        median(&mut times)
    };
    let ways = (0..all[0].0.len()).map(ms).collect();
    Ok((ways, all.swap_remove(0).1))
}

impl Case<'_> {
    fn link(&self, contexts: &[Context], megabytes: usize) -> Result<(Vec<f64>, f64)> {
        let (ranks, n) = (contexts.len(), 256);
        let rows = megabytes * 1024;
        let deal = Partition::even(ranks * rows, ranks);
        let (both, _) = both_ways(self.bench, contexts, true, |group| {
            // A pattern of one row that refers to all rows, so each rank receives every row of the others.
            let columns = (0..(ranks * rows) as u32).collect();
            let offsets = vec![0, (ranks * rows) as u32];
            let pattern = einsparse::formats::CsrPattern::new(1, ranks * rows, offsets, columns)?;
            let halo = Halo::<f32>::new(group, &pattern, &deal, n)?;
            let mut x = halo.tensor()?;
            Ok((Box::new(move |stream| halo.exchange(&mut x, stream)), String::new()))
        })?;
        Ok((both, ((ranks - 1) * rows * n * 4) as f64))
    }

    fn replicated(&self, contexts: &[Context], n: usize) -> Result<(f64, String)> {
        let deal = Partition::balanced(self.a.pattern(), n, contexts.len());
        clocked(self.bench, contexts, |group| {
            let context = group.context();
            let own = Sharded::of(group, self.a, &deal)?;
            let a = context.upload(own.local())?;
            let b = context.upload_dense(&some::<f32>(&[self.a.shape()[1], n])?)?;
            let plan: Plan<f32> = context.plan(SPMM).operand("A", &a).operand("B", &b).build()?;
            let mut c = context.zeros(plan.out_shape())?;
            let note = format!("B on every rank, {}", plan.variant());
            let step = move |stream: &Stream| {
                plan.run(&[("A", (&a).into()), ("B", (&b).into())], &mut c, stream)
            };
            Ok((Box::new(step), note))
        })
    }

    fn sharded(&self, contexts: &[Context], n: usize, overlap: bool) -> Result<(f64, String)> {
        let deal = Partition::balanced(self.a.pattern(), n, contexts.len());
        let options = ShardedOptions { overlap, ..ShardedOptions::default() };
        clocked(self.bench, contexts, |group| {
            let own = Sharded::of(group, self.a, &deal)?;
            let product = ShardedSpmm::new(group, &own, &deal, n, &options)?;
            let (mut b, mut c) = (product.operand()?, product.output()?);
            write(&mut b)?;
            let note = product.to_string().replace('\n', ";");
            println!("{product}");
            Ok((Box::new(move |stream| product.run(&mut b, &mut c, stream)), note))
        })
    }

    /// Measures `Y = A (X W)`, and the gradients of X and W from that of Y.
    fn layer(&self, contexts: &[Context], n: usize, overlap: bool) -> Result<(f64, String)> {
        let options = ShardedOptions { overlap, ..ShardedOptions::default() };
        let counts = self.a.pattern().offsets().windows(2).map(|w| w[1] - w[0]);
        let costs = counts.map(|count| u64::from(count) + ROW_ENTRIES);
        let deal = Partition::of_costs(costs, contexts.len());
        clocked(self.bench, contexts, |group| {
            let (context, rows) = (group.context(), deal.range(group.rank()).len());
            let own = Sharded::of(group, self.a, &deal)?;
            let forward = ShardedSpmm::new(group, &own, &deal, n, &options)?;
            let backward = ShardedSpmm::transposed(group, &own, &deal, n, &options)?;
            let zeros = |rows: usize| context.zeros::<f32>(&[rows, n]);
            let filled = |rows: usize| context.upload_dense(&some(&[rows, n])?);
            let (x, w, mut dx, mut dw) = (filled(rows)?, filled(n)?, zeros(rows)?, zeros(n)?);
            let (mut z, mut y) = (forward.operand()?, forward.output()?);
            let (mut dy, mut dz) = (backward.operand()?, backward.output()?);
            write(&mut dy)?;
            let plan = |text, a: &Tensor<f32>, b: &Tensor<f32>| -> einsparse::Result<Plan<f32>> {
                context.plan(text).operand("A", a).operand("B", b).build()
            };
            let along = plan(SPMM, &x, &w)?;
            let weights = einsparse::nn::WeightGradient::<f32, f32>::new(context, [rows, n, n])?;
            let sum = GroupSum::new(group, &[n, n])?;
            let note = format!(
                "forward, gradients of X and W; {}",
                forward.to_string().replace('\n', ";")
            );
            let step = move |stream: &Stream| {
                along.run(
                    &[("A", (&x).into()), ("B", (&w).into())],
                    &mut *z.local_mut()?,
                    stream,
                )?;
                forward.run(&mut z, &mut y, stream)?;
                backward.run(&mut dy, &mut dz, stream)?;
                let local = dz.local()?;
                weights.backward_weight(&x, &local, &mut dw, None, stream)?;
                // Multiplies by the transposed weights, which have the same size.
                let back = [("A", (&*local).into()), ("B", (&w).into())];
                along.run(&back, &mut dx, stream)?;
                drop(local);
                sum.run(&mut dw, stream)
            };
            Ok((Box::new(step), note))
        })
    }

    /// Measures experts that are chosen uniformly, with evenly distributed tokens.
    fn experts(&self, contexts: &[Context], tokens: usize) -> Result<(Vec<f64>, String)> {
        let options = MoeOptions { tokens, ..QWEN };
        let deal = Partition::even(tokens, contexts.len());
        both_ways(self.bench, contexts, true, |group| {
            let (context, own) = (group.context(), deal.range(group.rank()));
            let mut layer = ShardedMoe::new(group, &options, &deal, &Default::default())?;
            let values = |shape: &[usize]| context.upload_dense(&some::<bf16>(shape)?);
            let [up, down] = layer.shapes();
            let (up, down) = (values(&up)?, values(&down)?);
            let x = values(&[own.len(), options.model])?;
            let mut rng = StdRng::seed_from_u64(SEED + group.rank() as u64);
            let shape = [own.len(), options.top_k];
            let choice = |_| rng.random_range(0..options.experts as i32);
            let choices = (0..own.len() * options.top_k).map(choice).collect();
            let choices = context.upload_dense(&Dense::new(shape, choices)?)?;
            let weights = context.upload_dense(&Dense::from_fn(shape, |_| 0.125f32)?)?;
            let mut out = context.zeros::<bf16>(&[own.len(), options.model])?;
            let note = format!("{}; {:?}", layer.to_string().replace('\n', ";"), layer.variants());
            println!("{layer}");
            let step = move |stream: &Stream| {
                layer.forward(
                    &MoeInputs {
                        x: &x,
                        choices: &choices,
                        weights: &weights,
                        up: (&up).into(),
                        down: (&down).into(),
                    },
                    &mut out,
                    stream,
                )
            };
            Ok((Box::new(step), note))
        })
    }
}
