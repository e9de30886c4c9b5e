//! Tests of ranks that run on CPUs and on GPUs.

use std::thread;

use einsparse::formats::{Csr, Dense, generate};
use einsparse::group::{Group, GroupSum, Partition, Sharded, ShardedOptions, ShardedSpmm};
use einsparse::{Context, Options, Result};

use crate::support::rows::named;
use crate::support::runs::plan_and_run;

/// Runs a function on every rank, with one thread each.
pub fn on_ranks<R: Send>(
    contexts: &[Context],
    work: impl Fn(Group) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let groups = Group::local(contexts).unwrap();
    let work = &work;
    thread::scope(|scope| {
        let start = |group| scope.spawn(move || work(group));
        let ranks: Vec<_> = groups.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A weighted graph in which some nodes have many edges.
pub fn graph(nodes: usize, edges: usize, seed: u64) -> Csr<f32> {
    let scale = nodes.next_power_of_two().ilog2();
    let all = generate::rmat(scale, edges, seed).unwrap();
    // The first nodes of the generated graph.
    let mut offsets = vec![0];
    let mut columns = Vec::new();
    for row in 0..nodes {
        let own = &all.columns()[all.row(row)];
        columns.extend(own.iter().filter(|&&c| (c as usize) < nodes));
        offsets.push(columns.len() as u32);
    }
    let values = generate::random_values(columns.len(), seed);
    let pattern = einsparse::formats::CsrPattern::new(nodes, nodes, offsets, columns).unwrap();
    Csr::new(pattern, values).unwrap()
}

fn longest(a: &Csr<f32>) -> u32 {
    let offsets = a.pattern().offsets();
    offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
}

fn rows_of(dense: &Dense<f32>, rows: std::ops::Range<usize>) -> Dense<f32> {
    let n = dense.shape()[1];
    let values = dense.values()[rows.start * n..rows.end * n].to_vec();
    Dense::new([rows.len(), n], values).unwrap()
}

fn random(rows: usize, n: usize, seed: u64) -> Dense<f32> {
    Dense::new([rows, n], generate::random_values(rows * n, seed)).unwrap()
}

/// Product on one rank, with this kernel.
fn alone(context: &Context, a: &Csr<f32>, b: &Dense<f32>, options: &Options) -> Vec<f32> {
    let (a, b) = (context.upload(a).unwrap(), context.upload_dense(b).unwrap());
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let (_, c) = plan_and_run(context, "C[m,n] = A[m,k] * B[k,n]", &operands, options);
    c.to_dense().unwrap().into_values()
}

/// Joins, for each case, the local rows of all ranks in order.
fn joined(results: Vec<Result<Vec<Vec<f32>>>>) -> Vec<Vec<f32>> {
    let mut ranks = results.into_iter().map(|rank| rank.unwrap());
    let mut all = ranks.next().unwrap();
    for rank in ranks {
        all.iter_mut().zip(rank).for_each(|(all, rows)| all.extend(rows));
    }
    all
}

fn near(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        let bound = 1e-4 * (1.0 + wanted.abs());
        assert!((found - wanted).abs() <= bound, "{found} for {wanted}");
    }
}

/// Products with rows and columns distributed evenly, by cost, and so that some ranks get zero rows. Results have the
/// bits of one rank if both run this kernel and no row is split. Otherwise, on a GPU or with overlapped communication,
/// they are near.
pub fn products(contexts: &[Context], variant: Option<&str>) {
    let size = contexts.len();
    let plan = named(variant);
    let sizes = [(200, 7, 32), (97, 3, 128), (3, 2, 8), (512, 40, 64)];
    let mut cases = Vec::new();
    for (seed, (nodes, edges, n)) in sizes.into_iter().enumerate() {
        let a = graph(nodes, edges, seed as u64);
        let deals = [
            Partition::even(nodes, size),
            Partition::balanced(a.pattern(), n, size),
            Partition::of_counts(&[&[u32::MAX / 2][..], &vec![0; nodes - 1]].concat(), n, size),
        ];
        for (rows, columns) in [(0, 0), (1, 1), (1, 0), (2, 2), (0, 2)] {
            for overlap in [false, true] {
                let deals = [rows, columns].map(|deal| deals[deal].clone());
                cases.push((a.clone(), random(nodes, n, 5), deals, overlap));
            }
        }
    }
    let results = on_ranks(contexts, |group| {
        let stream = group.context().stream()?;
        let case = |(a, b, [rows, columns], overlap): &(_, Dense<f32>, [Partition; 2], _)| {
            let (own, n) = (columns.range(group.rank()), b.shape()[1]);
            let options = ShardedOptions { plan: plan.clone(), overlap: *overlap };
            let mine = Sharded::of(&group, a, rows)?;
            let product = ShardedSpmm::new(&group, &mine, columns, n, &options)?;
            let (mut x, mut y) = (product.operand()?, product.output()?);
            // In later runs, the halo contains old rows; equal inputs must still give equal bits.
            let mut runs = Vec::new();
            for factor in [1.0, 3.0, 1.0] {
                let own = rows_of(b, own.clone()).map(|v| factor * v);
                x.local_mut()?.write(&own)?;
                product.run(&mut x, &mut y, &stream)?;
                stream.synchronize()?;
                runs.push(y.to_dense()?.into_values());
            }
            assert_eq!(runs[0], runs[2]);
            let said = format!("rank {} of {size}: rows", group.rank());
            assert!(product.to_string().starts_with(&said));
            Ok(runs.swap_remove(0))
        };
        cases.iter().map(case).collect()
    });
    for ((a, b, deals, overlap), found) in cases.iter().zip(joined(results)) {
        let wanted = alone(&contexts[0], a, b, &plan);
        let whole_rows = longest(a) <= 32 && variant.is_some();
        if !overlap && (whole_rows || !contexts[0].is_cuda()) {
            assert_eq!(found, wanted, "{deals:?}");
        } else {
            near(&found, &wanted);
        }
    }
}

/// `C[k,n] = A[m,k] * B[m,n]`: near the result of one rank, and equal bits in two runs.
pub fn transposed(contexts: &[Context]) {
    let size = contexts.len();
    let sizes = [(150, 9, 16), (4, 2, 8), (300, 20, 32)];
    let cases = sizes.map(|(nodes, edges, n)| (graph(nodes, edges, 11), random(nodes, n, 6)));
    let results = on_ranks(contexts, |group| {
        let stream = group.context().stream()?;
        let mut all = Vec::new();
        for (a, b) in &cases {
            let n = b.shape()[1];
            let rows = Partition::balanced(a.pattern(), n, size);
            let columns = Partition::even(b.shape()[0], size);
            let mine = Sharded::of(&group, a, &rows)?;
            let mut found = Vec::new();
            for overlap in [false, true] {
                let options = ShardedOptions { overlap, ..ShardedOptions::default() };
                let product = ShardedSpmm::transposed(&group, &mine, &columns, n, &options)?;
                let (mut x, mut y) = (product.operand()?, product.output()?);
                x.local_mut()?.write(&rows_of(b, rows.range(group.rank())))?;
                // Sums of a previous run must not remain.
                for _ in 0..2 {
                    product.run(&mut x, &mut y, &stream)?;
                    stream.synchronize()?;
                    found.push(y.to_dense()?.into_values());
                }
            }
            assert!(found[0] == found[1] && found[2] == found[3]);
            if !group.context().is_cuda() {
                assert_eq!(found[0], found[2]);
            }
            all.push(found.swap_remove(0));
            all.push(found.swap_remove(1));
        }
        Ok(all)
    });
    for ((a, b), found) in cases.iter().zip(joined(results).chunks(2)) {
        let turned = einsparse::formats::convert::transpose_csr(a).unwrap();
        let wanted = alone(&contexts[0], &turned, b, &Options::default());
        found.iter().for_each(|found| near(found, &wanted));
    }
}

/// Sums over ranks: near the reference, and equal bits on every rank.
pub fn sums(contexts: &[Context]) {
    const LENGTHS: [usize; 5] = [1, 3, 8, 1000, 4099];
    let part = |len: usize, rank: usize| generate::random_values::<f32>(len, rank as u64);
    let results = on_ranks(contexts, |group| {
        let context = group.context();
        let stream = context.stream()?;
        let sum = |len| {
            let own = Dense::new([len], part(len, group.rank()))?;
            let mut tensor = context.upload_dense(&own)?;
            GroupSum::new(&group, &[len])?.run(&mut tensor, &stream)?;
            stream.synchronize()?;
            Ok(tensor.to_dense()?.into_values())
        };
        LENGTHS.map(sum).into_iter().collect::<Result<Vec<_>>>()
    });
    let results: Vec<_> = results.into_iter().map(|r| r.unwrap()).collect();
    for found in &results {
        assert_eq!(found, &results[0]);
        for (len, found) in LENGTHS.into_iter().zip(found) {
            let parts: Vec<_> = (0..contexts.len()).map(|rank| part(len, rank)).collect();
            for (place, sum) in found.iter().enumerate() {
                let wanted: f64 = parts.iter().map(|part| f64::from(part[place])).sum();
                let bound = 1e-6 * contexts.len() as f64;
                assert!((f64::from(*sum) - wanted).abs() <= bound, "{sum} for {wanted}");
            }
        }
    }
}

/// `Y = A (X W)` and the gradients of X and W from that of Y: over ranks as on one rank.
pub fn training_step(contexts: &[Context]) {
    const WIDTH: [usize; 2] = [16, 8];
    let (nodes, [inner, outer]) = (120, WIDTH);
    let a = graph(nodes, 6, 21);
    let (x, w, dy) = (random(nodes, inner, 1), random(inner, outer, 2), random(nodes, outer, 3));
    let step = |contexts: &[Context]| {
        let rows = Partition::balanced(a.pattern(), outer, contexts.len());
        on_ranks(contexts, |group| {
            let (context, own) = (group.context(), rows.range(group.rank()));
            let stream = context.stream()?;
            let mine = Sharded::of(&group, &a, &rows)?;
            let forward = ShardedSpmm::new(&group, &mine, &rows, outer, &Default::default())?;
            let backward =
                ShardedSpmm::transposed(&group, &mine, &rows, outer, &Default::default())?;
            let x = context.upload_dense(&rows_of(&x, own.clone()))?;
            let w = context.upload_dense(&w)?;
            let (mut z, mut y) = (forward.operand()?, forward.output()?);
            let product = |text: &str,
                           a: &einsparse::Tensor<f32>,
                           b: &einsparse::Tensor<f32>,
                           c: &mut einsparse::Tensor<f32>| {
                let operands = [("A", a.into()), ("B", b.into())];
                let plan = context.plan(text).operands(&operands).build()?;
                plan.run(&operands, c, &stream)
            };
            product("C[m,n] = A[m,k] * B[k,n]", &x, &w, &mut *z.local_mut()?)?;
            forward.run(&mut z, &mut y, &stream)?;
            let (mut dy_own, mut dz) = (backward.operand()?, backward.output()?);
            dy_own.local_mut()?.write(&rows_of(&dy, own))?;
            backward.run(&mut dy_own, &mut dz, &stream)?;
            let mut dw = context.zeros(&[inner, outer])?;
            product("C[m,n] = A[k,m] * B[k,n]", &x, &*dz.local()?, &mut dw)?;
            GroupSum::new(&group, &[inner, outer])?.run(&mut dw, &stream)?;
            stream.synchronize()?;
            Ok([y.to_dense()?, dz.to_dense()?, dw.to_dense()?].map(Dense::into_values))
        })
    };
    let all = |results: Vec<Result<[Vec<f32>; 3]>>| {
        let mut whole = [Vec::new(), Vec::new(), Vec::new()];
        for [y, dz, dw] in results.into_iter().map(|r| r.unwrap()) {
            whole[0].extend(y);
            whole[1].extend(dz);
            whole[2] = dw;
        }
        whole
    };
    let (found, wanted) = (all(step(contexts)), all(step(&contexts[..1])));
    for (found, wanted) in found.iter().flatten().zip(wanted.iter().flatten()) {
        assert!((found - wanted).abs() <= 1e-3 * (1.0 + wanted.abs()), "{found} for {wanted}");
    }
}
