//! `streaming`: A of four times the plan's memory limit is streamed from host memory in chunks. Baselines are a plain
//! copy of the same bytes from page-locked memory, and the product alone with A in device memory. The larger of the two
//! is the min time.
//!
//! Copies overlap with the timed stream, so times are measured on the host, from an idle GPU to an idle GPU. `ms` is
//! one run, `ms_warm` one of several consecutive runs.
//!
//! Then B and C are stored in host memory, with twice the limit. Their columns are copied in chunks.

use crate::prelude::*;
use crate::timing::median;
use einsparse::driver::{PinnedMemory, copy_htod_async};
use einsparse::formats::generate;
use einsparse::ops::HostSpmm;
use einsparse::raw::DeviceMemory;
use std::time::Instant;

pub const OP: &str = "streaming";

const COLUMNS: [usize; 3] = [32, 128, 512];
/// Columns of dense matrices in host memory.
const THROUGH: usize = 256;
/// A's bytes over the plan's memory limit.
const TIMES: usize = 4;
/// Bytes of one copy, about those of a chunk.
const PIECE: usize = 16 << 20;
/// Number of single runs, and of consecutive runs.
const ALONE: usize = 7;
const TOGETHER: usize = 8;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let scale = if bench.arguments.quick { 19 } else { 22 };
    let problem = Problem::of(OP, format!("rmat{scale}"), Source::Rmat(scale))?;
    let (m, k, nnz) = problem.extents();
    // Integers, whose sums are exact.
    let values = generate::small_integers::<f32>(nnz, SEED);
    let csr = Csr::new(problem.pattern.clone(), values)?;
    let bytes = nnz * 8;
    let copy = copied(bench, bytes)?;
    let row = Row::new(OP, &problem.workload, [m, k, 0], nnz, Dtype::F32).bytes(bytes as f64);
    let row = row.by("copy", "pinned").timed(&copy);
    bench.add(row.note(format!("{bytes} bytes to the GPU")))?;
    let a = bench.context.pin(&csr)?;
    for n in bench.arguments.ns(&COLUMNS) {
        let b = bench.tensor(&[k, n], generate::small_integers(k * n, SEED + 1))?;
        let options = forced(None).memory_limit(bytes / TIMES);
        let mut c = bench.zeros(&[m, n])?;
        let mut streamed = |operands: &[(&str, Operand<'_, f32>)]| -> Result<_> {
            let (plan, prepare) = bench.plan::<f32, f32>(SPMM, operands, &options)?;
            println!("{plan}");
            let times = clocked(bench, || Ok(plan.run(operands, &mut c, &bench.stream)?))?;
            let row = Row::product(&problem, n, Dtype::F32).strict().timed(&times);
            let row = row.ours(format!("{}+slabs", plan.variant()));
            let speed = bytes as f64 / times.warm / 1e6;
            Ok((row.prepared(prepare, plan.workspace_bytes()), plan.variant(), speed))
        };
        let (pinned, variant, speed) = streamed(&ab(&a, &b))?;
        let (pageable, _, speed_of_pageable) = streamed(&ab(&csr, &b))?;
        let (product, same) = alone(bench, &csr, (&b, &c), variant)?;
        let floor = copy.warm.max(product.warm);
        let row = Row::product(&problem, n, Dtype::F32).ours(variant).strict();
        bench.add(row.timed(&product).note("A on the GPU"))?;
        let note = format!(
            "from page-locked memory, {TIMES} x the limit, {speed:.1} GB/s of the link ({:.1} alone)",
            bytes as f64 / copy.warm / 1e6
        );
        bench.add(pinned.limit(floor).note(note).error(exact(same)))?;
        let note = format!("from pageable memory, {speed_of_pageable:.1} GB/s of the link");
        bench.add(pageable.limit(floor).note(note).error(exact(same)))?;
    }
    drop(a);
    through(bench, &problem, &csr, &copy)
}

/// Measures B and C in host memory. The min time is a copy of B from page-locked memory; C is copied in the other
/// direction at the same time.
fn through(bench: &Bench<'_>, problem: &Problem, csr: &Csr<f32>, copy: &Times) -> Result<()> {
    let (m, k, nnz) = problem.extents();
    let bytes = (m + k) * THROUGH * 4;
    let b = Dense::new([k, THROUGH], generate::small_integers(k * THROUGH, SEED + 1))?;
    let mut c = Dense::zeros([m, THROUGH])?;
    let a = bench.context.upload(csr)?;
    let mut product = HostSpmm::new(&bench.context, &a, THROUGH, bytes / 2)?;
    println!("{product}");
    let times = clocked(bench, || Ok(product.run(&a, &b, &mut c)?))?;
    let there = bench.context.upload_dense(&b)?;
    let same = einsparse::ops::spmm(&bench.context, &a, &there)?.to_dense()? == c;
    let floor = copy.warm * (k * THROUGH * 4) as f64 / (nnz * 8) as f64;
    let note = format!(
        "B and C on the host, twice the limit, {:.1} GB/s each way",
        (k * THROUGH * 4) as f64 / times.cold / 1e6
    );
    let row = Row::product(problem, THROUGH, Dtype::F32).limit(floor).strict();
    bench.add(row.ours("host_spmm").timed(&times).note(note).error(exact(same)))
}

/// Times the product of the same kernel with A in device memory. Returns whether its result has the same bits.
fn alone(
    bench: &Bench<'_>,
    csr: &Csr<f32>,
    (b, streamed): (&Tensor<f32>, &Tensor<f32>),
    variant: &str,
) -> Result<(Times, bool)> {
    let a = bench.context.upload(csr)?;
    let operands = ab(&a, b);
    let (plan, _) = bench.plan::<f32, f32>(SPMM, &operands, &forced(Some(variant)))?;
    let mut c = bench.zeros(streamed.shape())?;
    let times = clocked(bench, || Ok(plan.run(&operands, &mut c, &bench.stream)?))?;
    let [one, other] = [streamed.to_dense()?, c.to_dense()?];
    let [one, other] = [&one, &other].map(|dense| bytemuck::cast_slice::<f32, u32>(dense.values()));
    Ok((times, one == other))
}

/// Times a copy of `bytes` bytes from page-locked memory, in pieces.
fn copied(bench: &Bench<'_>, bytes: usize) -> Result<Times> {
    let device = bench.context.device().ok_or("no GPU")?;
    let from = PinnedMemory::zeros(device.context(), bytes)?;
    let to = DeviceMemory::alloc(device.context(), PIECE)?;
    clocked(bench, || {
        for piece in from.bytes().chunks(PIECE) {
            // SAFETY: both buffers live until the wait after the last run, and a piece fits.
            unsafe { copy_htod_async(to.address(), piece, bench.raw())? };
        }
        Ok(())
    })
}

/// Times `run` with the host's clock, from an idle GPU to an idle GPU.
fn clocked(bench: &Bench<'_>, mut run: impl FnMut() -> Result<()>) -> Result<Times> {
    let mut of = |count: usize| -> Result<f64> {
        bench.gpu.wait()?;
        let start = Instant::now();
        for _ in 0..count {
            run()?;
        }
        bench.gpu.wait()?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / count as f64)
    };
    of(2)?;
    let mut one = (0..ALONE).map(|_| of(1)).collect::<Result<Vec<_>>>()?;
    let mut all = (0..3).map(|_| of(TOGETHER)).collect::<Result<Vec<_>>>()?;
    Ok(Times { cold: median(&mut one), warm: median(&mut all), host_inside: true })
}
