//! A memory limit: A in the memory of the host comes in slabs of rows. The same bits as without a limit, whatever the
//! limit; what does not fit is an error with numbers. The CPU goes through the same slabs.

use crate::support::replay::Replay;
use crate::support::rows::force;
use crate::support::{Bias, Expression, Rng, gpu, gpu_alone, on_both, spread};
use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::registry::{Operation, Row, WalkKind, products};
use einsparse::{
    Context, Error, Operand, Options, Plan, Result, Scalar, SparseTensor, Tensor, Weights,
};

const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Empty rows in front, in runs and at the end; most rows short, some that kernels cut.
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

/// Bytes of columns and values.
fn bytes<T: Scalar>(a: &Csr<T>) -> usize {
    a.values().len() * (4 + size_of::<T>())
}

fn limited(limit: usize, variant: Option<&str>) -> Options {
    Options {
        memory_limit: Some(limit),
        variant: variant.map(str::to_owned),
        ..Options::default()
    }
}

fn planned(
    ctx: &Context,
    operands: &[(&str, Operand<'_, f32>)],
    options: &Options,
) -> Result<Plan<f32>> {
    ctx.plan(TEXT).operands(operands).options(options).build()
}

/// Slabs of a plan, as it prints them.
fn slabs(plan: &dyn std::fmt::Display) -> usize {
    let text = plan.to_string();
    let words: Vec<&str> = text.split(' ').collect();
    let at = words.iter().position(|word| *word == "chunks");
    let at = at.unwrap_or_else(|| panic!("no chunks: {text}"));
    words[at - 1].parse().unwrap()
}

/// Dense operands, and C as it is before a run.
struct Dressed<T> {
    b: Tensor<T>,
    biases: [Tensor<T>; 2],
    start: Dense<T>,
    leading: usize,
}

impl<T: Scalar> Dressed<T> {
    fn new(ctx: &Context, [m, k, n]: [usize; 3]) -> Self {
        let random = |shape: &[usize], seed| {
            let count = shape.iter().product();
            Dense::new(shape.to_vec(), Rng(seed).units(count)).unwrap()
        };
        let upload = |dense: &Dense<T>| ctx.upload_dense(dense).unwrap();
        Dressed {
            b: upload(&random(&[k, n], 5)),
            biases: [upload(&random(&[m], 7)), upload(&random(&[n], 9))],
            start: random(&[m, n], 11),
            leading: n + 16,
        }
    }

    /// C with the gaps between its rows.
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
        let plan = ctx
            .plan(&x.text())
            .operands(&of(planned_with))
            .options(options)
            .build()?;
        check(&plan, plan.workspace_bytes());
        let mut c = ctx.upload_strided(&self.start, self.leading, T::from_f64(77.0))?;
        let stream = ctx.stream()?;
        let operands = of(a);
        for _ in 0..2 {
            // Twice: the second run finds buffers where the first left them.
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

/// Every epilogue with these elements, at limits of 1/2, 1/4 and 1/20 of A.
fn agrees<T: Scalar>(ctx: &Context, n: usize, variant: Option<&str>) {
    let csr = matrix::<T>(pattern(6000));
    let [m, k] = [csr.shape()[0], csr.shape()[1]];
    let dressed = Dressed::<T>::new(ctx, [m, k, n]);
    let (there, pinned) = (ctx.upload(&csr).unwrap(), ctx.pin(&csr).unwrap());
    for (turn, x) in Expression::all().iter().enumerate() {
        let part = [2, 4, 20][turn % 3];
        let limit = bytes(&csr) / part;
        let options = limited(limit, variant);
        let mut taken = String::new();
        // From page-locked memory and from any, planned with one and run with the other.
        let (host, locked) = (Operand::from(&csr), Operand::from(&pinned));
        let given = match turn % 4 {
            0 => (locked.clone(), locked),
            1 => (host.clone(), host),
            2 => (host, locked),
            _ => (locked, host),
        };
        let found = dressed.run(ctx, (x, given.0), (given.1, &options), |plan, bytes| {
            taken = plan.to_string();
            assert!(
                slabs(plan) >= part && bytes <= limit,
                "{plan}: {bytes}, {limit}"
            );
        });
        let found = found.unwrap_or_else(|e| panic!("{}, {variant:?}, 1/{part}: {e}", x.text()));
        let kernel = taken.split(':').next().unwrap();
        let whole = Options {
            variant: (kernel != "cpu").then(|| kernel.to_owned()),
            ..Options::default()
        };
        let a = Operand::from(&there);
        let wanted = dressed
            .run(ctx, (x, a.clone()), (a, &whole), |_, _| {})
            .unwrap();
        same_bits(&(x.text(), taken, part), &found, &wanted);
    }
}

#[test]
fn slabs_give_the_bits_of_the_whole() {
    on_both(&[
        |ctx| agrees::<f32>(ctx, 32, None),
        |ctx| agrees::<f64>(ctx, 20, None),
        |ctx| agrees::<f16>(ctx, 40, None),
        |ctx| agrees::<bf16>(ctx, 7, None),
        |ctx| agrees::<f32>(ctx, 1, None),
    ]);
}

/// Every row of the table that reads slabs, with a C that does not end with a column tile.
#[test]
fn every_kernel_gives_the_bits_of_the_whole() {
    let Some(gpu) = gpu() else { return };
    let reads = |row: &&Row| {
        let product = row.operation == Operation::Product && row.walk == WalkKind::Csr;
        product && row.module == "spmm"
    };
    for row in products().filter(reads) {
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
    let dressed = Dressed::<T>::new(ctx, [csr.shape()[0], csr.shape()[1], n]);
    let (there, pinned) = (ctx.upload(&csr)?, ctx.pin(&csr)?);
    let whole = dressed.run(
        ctx,
        (x, (&there).into()),
        ((&there).into(), &force(row)),
        |_, _| {},
    )?;
    // Partial sums of wide outputs count as well.
    let options = Options {
        memory_limit: Some(bytes(&csr) / 2 + 400 * n * 4),
        ..force(row)
    };
    let of = Operand::from(&pinned);
    let found = dressed.run(ctx, (x, of.clone()), (of, &options), |_, _| {})?;
    same_bits(&row.name, &found, &whole);
    Ok(())
}

/// So many short rows that they go in bundles, whose lists stay or come with their slabs.
#[test]
fn bundles_give_the_bits_of_the_whole() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(40_000));
        let n = 8;
        let dressed = Dressed::<f32>::new(ctx, [csr.shape()[0], csr.shape()[1], n]);
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
            let whole = Options {
                variant: name.map(str::to_owned),
                ..Options::default()
            };
            let a = Operand::from(&there);
            let wanted = dressed
                .run(ctx, (x, a.clone()), (a, &whole), |_, _| {})
                .unwrap();
            same_bits(&(kernel, part), &found, &wanted);
        }
    }
    on_both(&[case]);
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
        let dressed = Dressed::<f32>::new(ctx, [csr.shape()[0], csr.shape()[1], 32]);
        let (one, other) = (ctx.pin(&csr).unwrap(), ctx.pin(&coo).unwrap());
        let x = &Expression::all()[0];
        let options = limited(bytes(&csr) / 3, None);
        let run = |a: &SparseTensor<f32>| {
            let of = Operand::from(a);
            dressed.run(ctx, (x, of.clone()), (of, &options), |plan, _| {
                assert!(slabs(plan) > 2)
            })
        };
        same_bits(&"coo", &run(&one).unwrap(), &run(&other).unwrap());
    }
    on_both(&[case]);
}

#[test]
fn what_fits_stays() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(500));
        let dressed = Dressed::<f32>::new(ctx, [csr.shape()[0], csr.shape()[1], 32]);
        let there = ctx.upload(&csr).unwrap();
        let mut pinned = ctx.pin(&csr).unwrap();
        let operands: [(&str, Operand<'_, f32>); 2] =
            [("A", (&pinned).into()), ("B", (&dressed.b).into())];
        let limit = 1 << 20;
        for weights in [Weights::EachRun, Weights::Static] {
            let options = Options {
                weights,
                ..limited(limit, None)
            };
            let plan = planned(ctx, &operands, &options).unwrap();
            let text = plan.to_string();
            assert!(
                !text.contains("chunks") && plan.workspace_bytes() <= limit,
                "{text}"
            );
            assert_eq!(text.contains("A kept on the GPU"), ctx.is_cuda(), "{text}");
        }
        let options = limited(limit, None);
        let plan = planned(ctx, &operands, &options).unwrap();
        let stream = ctx.stream().unwrap();
        let mut c = ctx.zeros::<f32>(plan.out_shape()).unwrap();
        // Other values come with the next run.
        let negated: Vec<f32> = csr.values().iter().map(|x| -x).collect();
        pinned.set_values(&negated).unwrap();
        assert_eq!(pinned.to_host().unwrap().values(), negated);
        plan.run(
            &[("A", (&pinned).into()), ("B", (&dressed.b).into())],
            &mut c,
            &stream,
        )
        .unwrap();
        stream.synchronize().unwrap();
        let whole: [(&str, Operand<'_, f32>); 2] =
            [("A", (&there).into()), ("B", (&dressed.b).into())];
        let named = Options {
            variant: ctx.is_cuda().then(|| plan.variant().to_owned()),
            ..Options::default()
        };
        let of_whole = planned(ctx, &whole, &named).unwrap();
        let mut wanted = ctx.zeros::<f32>(plan.out_shape()).unwrap();
        of_whole.run(&whole, &mut wanted, &stream).unwrap();
        stream.synchronize().unwrap();
        for (x, y) in c
            .to_dense()
            .unwrap()
            .values()
            .iter()
            .zip(wanted.to_dense().unwrap().values())
        {
            assert!((x + y).abs() <= 1e-4, "{x} {y}");
        }
    }
    on_both(&[case]);
}

#[test]
fn values_of_the_next_run_are_those_of_its_operand() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(3000));
        let dressed = Dressed::<f32>::new(ctx, [csr.shape()[0], csr.shape()[1], 32]);
        let mut pinned = ctx.pin(&csr).unwrap();
        let options = limited(bytes(&csr) / 4, None);
        let b = Operand::from(&dressed.b);
        let operands = [("A", (&pinned).into()), ("B", b.clone())];
        let plan = planned(ctx, &operands, &options).unwrap();
        let stream = ctx.stream().unwrap();
        let [mut one, mut other] = [(); 2].map(|()| ctx.zeros::<f32>(plan.out_shape()).unwrap());
        plan.run(&operands, &mut one, &stream).unwrap();
        let doubled: Vec<f32> = csr.values().iter().map(|x| 2.0 * x).collect();
        // Waits for the run above.
        pinned.set_values(&doubled).unwrap();
        plan.run(&[("A", (&pinned).into()), ("B", b)], &mut other, &stream)
            .unwrap();
        stream.synchronize().unwrap();
        let (one, other) = (one.to_dense().unwrap(), other.to_dense().unwrap());
        let twice: Vec<f32> = one.values().iter().map(|x| 2.0 * x).collect();
        same_bits(&"doubled", &twice, other.values());
    }
    on_both(&[case]);
}

#[test]
fn a_limit_that_is_too_small_names_bytes() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(2000));
        let dressed = Dressed::<f32>::new(ctx, [csr.shape()[0], csr.shape()[1], 32]);
        let operands: [(&str, Operand<'_, f32>); 2] =
            [("A", (&csr).into()), ("B", (&dressed.b).into())];
        for limit in [0, 1000, 400 * 8] {
            let options = limited(limit, None);
            let error = planned(ctx, &operands, &options).unwrap_err();
            let Error::Overflow {
                what,
                value,
                limit: of,
            } = &error
            else {
                panic!("{error}")
            };
            assert!(what.contains("400 entries") && *value > *of, "{error}");
            assert_eq!(*of, limit as u128, "{error}");
        }
    }
    on_both(&[case]);
}

#[test]
fn matrices_without_entries_or_rows() {
    fn case(ctx: &Context) {
        for (rows, limit) in [(0, 0), (0, 1 << 20), (5000, 9000), (5000, 1 << 20)] {
            let pattern = CsrPattern::new(rows, 40, vec![0; rows + 1], Vec::new()).unwrap();
            let a = ctx
                .pin(Csr::new(pattern, Vec::<f32>::new()).unwrap())
                .unwrap();
            let b = ctx.zeros::<f32>(&[40, 8]).unwrap();
            let bias = ctx
                .upload_dense(&Dense::from_fn([rows], |i| i[0] as f32).unwrap())
                .unwrap();
            let operands: [(&str, Operand<'_, f32>); 3] = [
                ("A", (&a).into()),
                ("B", (&b).into()),
                ("bias", (&bias).into()),
            ];
            let text = "C[m,n] = A[m,k] * B[k,n] + bias[m]";
            let options = limited(limit, None);
            let plan = ctx
                .plan(text)
                .operands(&operands)
                .options(&options)
                .build()
                .unwrap();
            assert!(plan.workspace_bytes() <= limit, "{plan}");
            let (mut c, stream) = (ctx.zeros::<f32>(&[rows, 8]).unwrap(), ctx.stream().unwrap());
            plan.run(&operands, &mut c, &stream).unwrap();
            stream.synchronize().unwrap();
            let all = c.to_dense().unwrap();
            let right = all
                .values()
                .iter()
                .enumerate()
                .all(|(i, &x)| x == (i / 8) as f32);
            assert!(right, "{plan}");
        }
    }
    on_both(&[case]);
}

#[test]
fn other_patterns_and_expressions_are_refused() {
    fn case(ctx: &Context) {
        let csr = matrix::<f32>(pattern(2000));
        let [m, k] = [csr.shape()[0], csr.shape()[1]];
        let dressed = Dressed::<f32>::new(ctx, [m, k, 32]);
        let options = limited(bytes(&csr) / 2, None);
        let b = Operand::from(&dressed.b);
        let operands = [("A", Operand::from(&csr)), ("B", b.clone())];
        let plan = planned(ctx, &operands, &options).unwrap();
        let mut lens = vec![0; m];
        lens[3] = 5;
        let other = matrix::<f32>(spread(&lens, k));
        let (mut c, stream) = (
            ctx.upload_dense(&dressed.start).unwrap(),
            ctx.stream().unwrap(),
        );
        let error = plan.run(&[("A", (&other).into()), ("B", b.clone())], &mut c, &stream);
        assert!(
            matches!(error, Err(Error::Operand { ref name, .. }) if name == "A"),
            "{error:?}"
        );
        same_bits(
            &"untouched",
            c.to_dense().unwrap().values(),
            dressed.start.values(),
        );

        let x = ctx.zeros::<f32>(&[m, 8]).unwrap();
        let transposed = [("A", Operand::from(&csr)), ("X", (&x).into())];
        let text = "Y[k,n] = A[m,k] * X[m,n]";
        let error = ctx
            .plan(text)
            .operands(&transposed)
            .options(&options)
            .build()
            .unwrap_err();
        assert!(error.to_string().contains("streams A of C[m,n]"), "{error}");
    }
    on_both(&[case]);
}

#[test]
fn page_locked_tensors_want_a_limit_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    let a = gpu.pin(matrix::<f32>(pattern(300))).unwrap();
    let b = gpu.zeros::<f32>(&[700, 8]).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let error = gpu.plan(TEXT).operands(&operands).build().unwrap_err();
    assert!(
        error.to_string().contains("Options::memory_limit"),
        "{error}"
    );
    // What lies on the GPU counts not, what kernels keep does.
    let there = gpu.upload(matrix::<f32>(pattern(300))).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&there).into()), ("B", (&b).into())];
    let error = gpu
        .plan(TEXT)
        .operands(&operands)
        .options(&limited(16, None))
        .build()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("bytes of the GPU, and the limit is 16"),
        "{error}"
    );
}

/// Runs on two streams take turns, and a graph replays them.
#[test]
fn runs_share_their_buffers_in_turn() {
    let Some(gpu) = gpu_alone() else { return };
    let csr = matrix::<f32>(pattern(6000));
    let dressed = Dressed::<f32>::new(&gpu, [csr.shape()[0], csr.shape()[1], 32]);
    let (pinned, there) = (gpu.pin(&csr).unwrap(), gpu.upload(&csr).unwrap());
    let operands: [(&str, Operand<'_, f32>); 2] =
        [("A", (&pinned).into()), ("B", (&dressed.b).into())];
    let options = limited(bytes(&csr) / 7, None);
    let plan = gpu
        .plan(TEXT)
        .operands(&operands)
        .options(&options)
        .build()
        .unwrap();
    let whole: [(&str, Operand<'_, f32>); 2] = [("A", (&there).into()), ("B", (&dressed.b).into())];
    let named = Options {
        variant: Some(plan.variant().to_owned()),
        ..Options::default()
    };
    let of_whole = gpu
        .plan(TEXT)
        .operands(&whole)
        .options(&named)
        .build()
        .unwrap();
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    let mut wanted = gpu.zeros::<f32>(plan.out_shape()).unwrap();
    of_whole.run(&whole, &mut wanted, &streams[0]).unwrap();
    streams[0].synchronize().unwrap();
    let wanted = wanted.to_dense().unwrap();
    let mut out = [(); 4].map(|()| gpu.zeros::<f32>(plan.out_shape()).unwrap());
    for (turn, c) in out.iter_mut().enumerate() {
        plan.run(&operands, c, &streams[turn % 2]).unwrap();
    }
    streams
        .iter()
        .for_each(|stream| stream.synchronize().unwrap());
    for c in &out {
        same_bits(&"in turn", c.to_dense().unwrap().values(), wanted.values());
    }
    let mut c = gpu.zeros::<f32>(plan.out_shape()).unwrap();
    let mut replay = Replay::of(&streams[0], || plan.run(&operands, &mut c, &streams[0]));
    let zeros = gpu
        .zeros::<f32>(plan.out_shape())
        .unwrap()
        .to_dense()
        .unwrap();
    for _ in 0..3 {
        // SAFETY: the plan and its operands live on.
        unsafe { replay.run() };
    }
    drop(replay);
    same_bits(&"replayed", c.to_dense().unwrap().values(), wanted.values());
    // A run behind replays, and a graph of memory that is not page-locked.
    c.write(&zeros).unwrap();
    plan.run(&operands, &mut c, &streams[1]).unwrap();
    streams[1].synchronize().unwrap();
    same_bits(&"behind", c.to_dense().unwrap().values(), wanted.values());
    let host: [(&str, Operand<'_, f32>); 2] = [("A", (&csr).into()), ("B", (&dressed.b).into())];
    let graph =
        einsparse::Graph::capture(streams[0].raw(), |_| plan.run(&host, &mut c, &streams[0]));
    assert!(graph.unwrap_err().to_string().contains("page-locked"));
}
