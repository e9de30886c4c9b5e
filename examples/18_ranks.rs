//! One layer of a graph network, `Y = A (X W)`, over several processes. Each process is a rank, which stores its own
//! rows of the graph A, of X and of Y. The weights W are stored on every rank.
//!
//! `cargo run --example 18_ranks` starts two ranks on this machine, `-- 4` starts four. Under a launcher each process
//! is one rank: `torchrun --no-python --nproc-per-node 2 target/debug/examples/18_ranks`.

use std::env;
use std::net::TcpListener;
use std::process::Command;

use einsparse::driver::device_count;
use einsparse::formats::{Csr, Dense, generate};
use einsparse::group::{Group, GroupSum, Partition, Sharded, ShardedSpmm};
use einsparse::nn::WeightGradient;
use einsparse::{Context, Result};

/// Features of a node before and after the layer.
const WIDTHS: [usize; 2] = [64, 32];
const PRODUCT: &str = "C[m,n] = A[m,k] * B[k,n]";

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    match env::var_os("RANK") {
        Some(_) => Ok(rank()?),
        None => launch(env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2)),
    }
}

/// Starts this program once for every rank, with the environment variables that torchrun sets.
fn launch(ranks: usize) -> std::result::Result<(), Box<dyn std::error::Error>> {
    // A free port. Ranks connect at MASTER_PORT + 1, because torchrun listens on MASTER_PORT.
    let port = usize::from(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
    let start = |rank: usize| {
        let [rank, ranks, port] = [rank, ranks, port - 1].map(|number| number.to_string());
        let mut program = Command::new(env::current_exe()?);
        program.envs([("RANK", &rank), ("LOCAL_RANK", &rank)]);
        program.envs([("WORLD_SIZE", &ranks), ("LOCAL_WORLD_SIZE", &ranks)]);
        program.env("MASTER_ADDR", "127.0.0.1");
        program.env("MASTER_PORT", port).spawn()
    };
    let started = (0..ranks).map(start).collect::<std::io::Result<Vec<_>>>()?;
    for (rank, mut process) in started.into_iter().enumerate() {
        let status = process.wait()?;
        assert!(status.success(), "rank {rank} ended with {status}");
    }
    Ok(())
}

/// GPU LOCAL_RANK if each rank of this machine has a GPU; otherwise the CPU.
fn context() -> Result<Context> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let (gpu, ranks) = (number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE"));
    match (gpu, ranks) {
        (Some(gpu), Some(ranks)) if device_count().unwrap_or(0) >= ranks => Context::cuda(gpu),
        _ => Ok(Context::cpu()),
    }
}

fn rank() -> Result<()> {
    // Waits until all ranks have connected.
    let group = Group::from_env(&context()?)?;
    let graph = generate::rmat(10, 8, 1)?;
    let weights = generate::random_values(graph.columns().len(), 2);
    let a = Csr::new(graph, weights)?;
    let rows = Partition::balanced(a.pattern(), WIDTHS[1], group.size());
    let found = layer(&group, &a, &rows)?;
    // Baseline: the layer on one rank.
    let one = &Group::local(&[Context::cpu()])?[0];
    let alone = layer(one, &a, &Partition::even(a.shape()[0], 1))?;
    let own = rows.range(group.rank());
    let own = own.start * WIDTHS[1]..own.end * WIDTHS[1];
    let wanted = [&alone[0][own.clone()], &alone[1][own], &alone[2]];
    for (found, wanted) in found.iter().zip(wanted) {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * (1.0 + b.abs());
        assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(near));
    }
    println!("rank {} of {}: as on one rank", group.rank(), group.size());
    // A rank that exits while others still wait for it causes an error there.
    group.barrier()
}

/// Returns own rows of Y and of the gradient of X W, and the gradient of W, summed over all rows.
fn layer(group: &Group, a: &Csr<f32>, rows: &Partition) -> Result<[Vec<f32>; 3]> {
    let (ctx, own, [inner, outer]) = (group.context(), rows.range(group.rank()), WIDTHS);
    let stream = ctx.stream()?;
    // A real program reads its own rows. Here they are cut out of random ones.
    let part = |n: usize, seed| {
        let all = generate::random_values(rows.rows() * n, seed);
        Dense::new([own.len(), n], all[own.start * n..own.end * n].to_vec())
    };
    let w = Dense::new([inner, outer], generate::random_values(inner * outer, 3))?;
    let (x, w) = (ctx.upload_dense(&part(inner, 4)?)?, ctx.upload_dense(&w)?);

    // Planned once: which rows each rank sends to each other rank, and a kernel for each product.
    let mine = Sharded::of(group, a, rows)?;
    let forward = ShardedSpmm::new(group, &mine, rows, outer, &Default::default())?;
    let backward = ShardedSpmm::transposed(group, &mine, rows, outer, &Default::default())?;
    let weight_gradient = WeightGradient::<f32>::new(ctx, [own.len(), inner, outer])?;
    let sum = GroupSum::new(group, &[inner, outer])?;

    // Forward: Z = X W for own rows, then Y = A Z, which exchanges rows of Z.
    let (mut z, mut y) = (forward.operand()?, forward.output()?);
    let operands = [("A", (&x).into()), ("B", (&w).into())];
    let dense = ctx.plan(PRODUCT).operands(&operands).build()?;
    dense.run(&operands, &mut *z.local_mut()?, &stream)?;
    forward.run(&mut z, &mut y, &stream)?;

    // Backward from dY: dZ = A^T dY, which exchanges partial sums, then dW = X^T dZ, summed over ranks.
    let (mut dy, mut dz) = (backward.operand()?, backward.output()?);
    dy.local_mut()?.write(&part(outer, 5)?)?;
    backward.run(&mut dy, &mut dz, &stream)?;
    let mut dw = ctx.zeros(&[inner, outer])?;
    weight_gradient.backward_weight(&x, &*dz.local()?, &mut dw, None, &stream)?;
    sum.run(&mut dw, &stream)?;
    stream.synchronize()?;

    let (y, dz) = (y.local()?.to_dense()?, dz.local()?.to_dense()?);
    Ok([y, dz, dw.to_dense()?].map(Dense::into_values))
}
