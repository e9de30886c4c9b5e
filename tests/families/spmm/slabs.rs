//! A memory limit: A in host memory is streamed in chunks of rows. Results have the same bits as without a limit, for
//! any limit. If something does not fit, the error states the sizes. The CPU uses the same chunks.

mod limits;

use crate::support::assert_error;
use crate::support::dense::upload;
use crate::support::replay::Replay;
use crate::support::rows::{force, named, products_here};
use crate::support::runs::{plan_and_run, plan_of};
use crate::support::{Bias, Expression, Rng, gpu, gpu_alone, on_both, on_cpu, on_gpu, spread};
use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::registry::{Operation, Row, WalkKind};
use einsparse::{Context, Error, Operand, Options, Plan, Result, Scalar, SparseTensor, Tensor};

const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Returns a pattern with empty rows at the start, in runs and at the end. Most rows are short, and kernels split some.
fn pattern(rows: usize) -> CsrPattern {
    let len = |row: usize| match row {
        _ if row < 20 || row + 30 > rows => 0,
        _ if row % 1499 == 700 => 400,
        _ if row % 97 == 3 => 70,
        _ if row % 64 < 12 => 0,
        _ => row * 37 % 23,
    };
    spread(&(0..rows).map(len).collect::<Vec<_>>(), 700)
}

fn matrix<T: Scalar>(pattern: CsrPattern) -> Csr<T> {
    let values = Rng(3).units(pattern.columns().len());
    Csr::new(pattern, values).unwrap()
}

/// Returns the bytes of columns and values.
fn bytes<T: Scalar>(a: &Csr<T>) -> usize {
    a.values().len() * (4 + size_of::<T>())
}

fn limited(limit: usize, variant: Option<&str>) -> Options {
    named(variant).memory_limit(limit)
}

fn planned(
    ctx: &Context,
    operands: &[(&str, Operand<'_, f32>)],
    options: &Options,
) -> Result<Plan<f32>> {
    ctx.plan(TEXT).operands(operands).options(options).build()
}

/// Returns the number of chunks of a plan, as it prints them.
fn slabs(plan: &dyn std::fmt::Display) -> usize {
    let text = plan.to_string();
    let words: Vec<&str> = text.split(' ').collect();
    let at = words.iter().position(|word| *word == "chunks");
    let at = at.unwrap_or_else(|| panic!("no chunks: {text}"));
    words[at - 1].parse().unwrap()
}

/// Dense operands, and C before a run.
struct Dressed<T> {
    b: Tensor<T>,
    biases: [Tensor<T>; 2],
    start: Dense<T>,
    leading: usize,
}

impl<T: Scalar> Dressed<T> {
    fn new(ctx: &Context, a: &Csr<T>, n: usize) -> Self {
        let [m, k] = [a.shape()[0], a.shape()[1]];
        let random = |shape: &[usize], seed| {
            let count = shape.iter().product();
            Dense::new(shape.to_vec(), Rng(seed).units(count)).unwrap()
        };
        let [b] = upload(ctx, [&random(&[k, n], 5)]);
        Dressed {
            b,
            biases: upload(ctx, [&random(&[m], 7), &random(&[n], 9)]),
            start: random(&[m, n], 11),
            leading: n + 16,
        }
    }

    /// Returns C with the gaps between its rows.
    fn run(
        &self,
        ctx: &Context,
        (x, a): (&Expression, Operand<'_, T>),
        (planned_with, options): (Operand<'_, T>, &Options),
        check: impl FnOnce(&dyn std::fmt::Display, usize),
    ) -> Result<Vec<T>> {
        let of = |a| {
            let mut operands = vec![("A", a), ("B", (&self.b).into())];
            x.operands(&mut operands, self.biases.each_ref());
            operands
        };
        let plan = ctx.plan(&x.text()).operands(&of(planned_with)).options(options).build()?;
        check(&plan, plan.workspace_bytes());
        let mut c = ctx.upload_strided(&self.start, self.leading, T::from_f64(77.0))?;
        let stream = ctx.stream()?;
        let operands = of(a);
        for _ in 0..2 {
            // Runs twice: the second run reuses the buffers in the state in which the first one left them.
            if !x.accumulate {
                plan.run(&operands, &mut c, &stream)?;
            }
        }
        if x.accumulate {
            plan.run(&operands, &mut c, &stream)?;
        }
        stream.synchronize()?;
        c.to_storage()
    }
}

fn same_bits<T: Scalar>(what: &dyn std::fmt::Debug, one: &[T], other: &[T]) {
    let differs = |(x, y): (&T, &T)| bytemuck::bytes_of(x) != bytemuck::bytes_of(y);
    let at = one.iter().zip(other).position(differs);
    assert!(one.len() == other.len() && at.is_none(), "{what:?}: {at:?}");
}

/// Checks every epilogue with elements of this type, at limits of 1/2, 1/4 and 1/20 of A.
fn agrees<T: Scalar>(ctx: &Context, n: usize, variant: Option<&str>) {
    let csr = matrix::<T>(pattern(6000));
    let dressed = Dressed::new(ctx, &csr, n);
    let (there, pinned) = (ctx.upload(&csr).unwrap(), ctx.pin(&csr).unwrap());
    for (turn, x) in Expression::all().iter().enumerate() {
        let part = [2, 4, 20][turn % 3];
        let limit = bytes(&csr) / part;
        let options = limited(limit, variant);
        let mut taken = String::new();
        // From page-locked memory and from any other host memory, planned with one and run with the other.
        let (host, locked) = (Operand::from(&csr), Operand::from(&pinned));
        let given = match turn % 4 {
            0 => (locked.clone(), locked),
            1 => (host.clone(), host),
            2 => (host, locked),
            _ => (locked, host),
        };
        let found = dressed.run(ctx, (x, given.0), (given.1, &options), |plan, bytes| {
            taken = plan.to_string();
            assert!(slabs(plan) >= part && bytes <= limit, "{plan}: {bytes}, {limit}");
        });
        let found = found.unwrap_or_else(|e| panic!("{}, {variant:?}, 1/{part}: {e}", x.text()));
        let kernel = taken.split(':').next().unwrap();
        let whole = named((kernel != "cpu").then_some(kernel));
        let a = Operand::from(&there);
        let wanted = dressed.run(ctx, (x, a.clone()), (a, &whole), |_, _| {}).unwrap();
        same_bits(&(x.text(), taken, part), &found, &wanted);
    }
}

on_both! {
    slabs_give_the_bits_of_the_whole: cpu [|ctx| agrees::<f32>(ctx, 32, None), |ctx| agrees::<f64>(ctx, 20, None), |ctx| agrees::<f16>(ctx, 40, None), |ctx| agrees::<bf16>(ctx, 7, None), |ctx| agrees::<f32>(ctx, 1, None)],
        gpu [|ctx| agrees::<f32>(ctx, 32, None), |ctx| agrees::<f64>(ctx, 20, None), |ctx| agrees::<f16>(ctx, 40, None), |ctx| agrees::<bf16>(ctx, 7, None), |ctx| agrees::<f32>(ctx, 1, None)];
}

/// Every row of the table that reads chunks, with a C whose last column tile is partial.
#[test]
fn every_kernel_gives_the_bits_of_the_whole() {
    let Some(gpu) = gpu() else { return };
    let reads = |row: &&Row| {
        let product = row.operation == Operation::Product && row.walk == WalkKind::Csr;
        product && row.module == "spmm"
    };
    for row in products_here().filter(reads) {
        let n = (row.columns + row.vector) as usize;
        let x = Expression {
            accumulate: true,
            bias: Bias::Rows,
            relu: true,
            literal: None,
            named: Some(0.5),
        };
        let run = |ctx: &Context| -> Result<()> {
            match row.dtype.name() {
                "f32" => one::<f32>(ctx, row, n, &x),
                "f64" => one::<f64>(ctx, row, n, &x),
                "f16" => one::<f16>(ctx, row, n, &x),
                "bf16" => one::<bf16>(ctx, row, n, &x),
                other => panic!("{other}"),
            }
        };
        run(&gpu).unwrap_or_else(|e| panic!("{}: {e}", row.name));
    }
}

fn one<T: Scalar>(ctx: &Context, row: &'static Row, n: usize, x: &Expression) -> Result<()> {
    let csr = matrix::<T>(pattern(6000));
    let dressed = Dressed::new(ctx, &csr, n);
    let (there, pinned) = (ctx.upload(&csr)?, ctx.pin(&csr)?);
    let whole =
        dressed.run(ctx, (x, (&there).into()), ((&there).into(), &force(row)), |_, _| {})?;
    // Partial sums of wide outputs count as well.
    let options = force(row).memory_limit(bytes(&csr) / 2 + 400 * n * 4);
    let of = Operand::from(&pinned);
    let found = dressed.run(ctx, (x, of.clone()), (of, &options), |_, _| {})?;
    same_bits(&row.name, &found, &whole);
    Ok(())
}

/// Enough short rows to form bundles. The lists of bundles stay on the GPU, or are copied with their chunks.
#[test]
fn bundles_give_the_bits_of_the_whole() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(40_000));
        let n = 8;
        let dressed = Dressed::new(ctx, &csr, n);
        let (there, pinned) = (ctx.upload(&csr).unwrap(), ctx.pin(&csr).unwrap());
        let x = &Expression::all()[2];
        for (part, lists) in [(1, "kept"), (2, "kept"), (20, "copied with them")] {
            let of = Operand::from(&pinned);
            let mut kernel = String::new();
            let options = limited(bytes(&csr) / part, None);
            let found = dressed.run(ctx, (x, of.clone()), (of, &options), |plan, _| {
                kernel = plan.to_string();
                assert!(kernel.contains(&format!("lists {lists}")), "{plan}");
            });
            let found = found.unwrap();
            let name = kernel.split(':').next().filter(|name| *name != "cpu");
            let whole = named(name);
            let a = Operand::from(&there);
            let wanted = dressed.run(ctx, (x, a.clone()), (a, &whole), |_, _| {}).unwrap();
            same_bits(&(kernel, part), &found, &wanted);
        }
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

#[test]
fn coo_is_streamed_as_csr_is() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(3000));
        let pattern = csr.pattern();
        let rows = (0..csr.shape()[0]).flat_map(|row| pattern.row(row).map(move |_| row as u32));
        let coords = vec![rows.collect(), pattern.columns().to_vec()];
        let coo = CooPattern::new(csr.shape().to_vec(), coords).unwrap();
        let coo = AnySparse::from(Coo::new(coo, csr.values().to_vec()).unwrap());
        let dressed = Dressed::new(ctx, &csr, 32);
        let (one, other) = (ctx.pin(&csr).unwrap(), ctx.pin(&coo).unwrap());
        let x = &Expression::all()[0];
        let options = limited(bytes(&csr) / 3, None);
        let run = |a: &SparseTensor<f32>| {
            let of = Operand::from(a);
            dressed.run(ctx, (x, of.clone()), (of, &options), |plan, _| assert!(slabs(plan) > 2))
        };
        same_bits(&"coo", &run(&one).unwrap(), &run(&other).unwrap());
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

#[test]
fn values_of_the_next_run_are_those_of_its_operand() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(3000));
        let dressed = Dressed::new(ctx, &csr, 32);
        let mut pinned = ctx.pin(&csr).unwrap();
        let options = limited(bytes(&csr) / 4, None);
        let b = Operand::from(&dressed.b);
        let operands = [("A", (&pinned).into()), ("B", b.clone())];
        let plan = planned(ctx, &operands, &options).unwrap();
        let stream = ctx.stream().unwrap();
        let [mut one, mut other] = [(); 2].map(|()| ctx.zeros::<f32>(plan.out_shape()).unwrap());
        plan.run(&operands, &mut one, &stream).unwrap();
        let doubled: Vec<f32> = csr.values().iter().map(|x| 2.0 * x).collect();
        // This call waits for the run above.
        pinned.set_values(&doubled).unwrap();
        plan.run(&[("A", (&pinned).into()), ("B", b)], &mut other, &stream).unwrap();
        stream.synchronize().unwrap();
        let (one, other) = (one.to_dense().unwrap(), other.to_dense().unwrap());
        let twice: Vec<f32> = one.values().iter().map(|x| 2.0 * x).collect();
        same_bits(&"doubled", &twice, other.values());
    }
    on_cpu(&[case]);
    on_gpu(&[case]);
}

/// Runs on two streams use the buffers one after the other, and a graph replays them.
#[test]
fn runs_share_their_buffers_in_turn() {
    let Some(gpu) = gpu_alone() else { return };
    let csr = matrix::<f32>(pattern(6000));
    let dressed = Dressed::new(&gpu, &csr, 32);
    let (pinned, there) = (gpu.pin(&csr).unwrap(), gpu.upload(&csr).unwrap());
    let operands: [(&str, Operand<'_, f32>); 2] =
        [("A", (&pinned).into()), ("B", (&dressed.b).into())];
    let options = limited(bytes(&csr) / 7, None);
    let plan = plan_of(&gpu, TEXT, &operands, &options);
    let whole: [(&str, Operand<'_, f32>); 2] = [("A", (&there).into()), ("B", (&dressed.b).into())];
    let (_, wanted) = plan_and_run(&gpu, TEXT, &whole, &named(plan.variant()));
    let wanted = wanted.to_dense().unwrap();
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    let mut out = [(); 4].map(|()| gpu.zeros::<f32>(plan.out_shape()).unwrap());
    for (turn, c) in out.iter_mut().enumerate() {
        plan.run(&operands, c, &streams[turn % 2]).unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    for c in &out {
        same_bits(&"in turn", c.to_dense().unwrap().values(), wanted.values());
    }
    let mut c = gpu.zeros::<f32>(plan.out_shape()).unwrap();
    let mut replay = Replay::of(&streams[0], || plan.run(&operands, &mut c, &streams[0]));
    for _ in 0..3 {
        // SAFETY: the plan and its operands are alive.
        unsafe { replay.run() };
    }
    drop(replay);
    same_bits(&"replayed", c.to_dense().unwrap().values(), wanted.values());
    // A run after replays; and a capture with memory that is not page-locked, which is refused.
    c.write(&Dense::zeros(plan.out_shape()).unwrap()).unwrap();
    plan.run(&operands, &mut c, &streams[1]).unwrap();
    streams[1].synchronize().unwrap();
    same_bits(&"behind", c.to_dense().unwrap().values(), wanted.values());
    let host: [(&str, Operand<'_, f32>); 2] = [("A", (&csr).into()), ("B", (&dressed.b).into())];
    let graph =
        einsparse::Graph::capture(streams[0].raw(), |_| plan.run(&host, &mut c, &streams[0]));
    assert_error!(graph.unwrap_err(), Error::Capture { name, .. } if name == "A");
}
