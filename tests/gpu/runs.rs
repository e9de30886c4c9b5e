//! Runs of a plan: equal bits in every run and on every stream, captured graphs, raw addresses between guard bands, and
//! misaligned addresses.

use crate::support::assert_error;
use crate::support::dense::nan;
use crate::support::rows::{by_type, force, formats, products_here, rows_cut, takes_any};
use crate::support::runs::plan_of;
use crate::support::{
    Bias, Expression, GUARD, Problem, Rng, assert_matrix, fill_blocks, gpu, gpu_alone, spread,
};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, IndexArray, Role, f16};
use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
use einsparse::raw::{DeviceMemory, RawSpmm, RawStream};
use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Context, Error, Graph, Operand, Plan, Stream};

const N: usize = 64;
const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Short rows, and two long ones that every row of the table splits.
fn cut_rows(row: &Row) -> CsrPattern {
    match row.walk {
        WalkKind::Block => {
            let (bm, bk) = (row.block.0 as usize, row.block.1 as usize);
            let long = 1200 / bk;
            fill_blocks(&spread(&[1, long, 0, long - 3], long), (bm, bk), bm * 4 - 1, bk * long - 1)
        }
        _ if row.depth < 2600 => spread(&(0..50).chain([900, 17, 1000]).collect::<Vec<_>>(), 1000),
        _ => spread(&(0..50).chain([2600, 17, 2300]).collect::<Vec<_>>(), 2600),
    }
}

/// Calls `$check::<T>(context, row)` for every row of the table with its element type.
macro_rules! each_row {
    ($check:ident($context:expr)) => {
        for row in products_here().filter(|row| takes_any(row)) {
            by_type!(row.dtype, $check($context, row));
        }
    };
}

/// Twenty runs, on two streams that only the plan orders.
fn same_bits<T: Scalar>(context: &Context, row: &'static Row) {
    let pattern = cut_rows(row);
    let mut rng = Rng(21);
    let a = Csr::new(pattern.clone(), rng.units::<T>(pattern.columns().len())).unwrap();
    let a = AnySparse::from(a).convert(formats(row)[0].parse().unwrap()).unwrap();
    let b = Dense::new([pattern.cols(), N], rng.units::<T>(pattern.cols() * N)).unwrap();
    let a = context.upload(a).unwrap();
    let b = context.upload_dense(&b).unwrap();
    let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = plan_of(context, TEXT, &operands, &force(row));
    if context.is_cuda() {
        // The `wgmma` family counts tiles of 128 rows times their column tiles; `vectors`, `staged`, `sell` and
        // `dense_csr` split no rows.
        let right = match row.module {
            "wgmma" => rows_cut(&plan) > Some(0),
            "vectors" | "staged" | "sell" | "dense_csr" => rows_cut(&plan) == Some(0),
            // The two long rows; for unstructured formats at most 19, because rows of more than 32 nonzeros may be
            // split.
            _ if row.block == (1, 1) => (Some(2)..=Some(19)).contains(&rows_cut(&plan)),
            _ => rows_cut(&plan) == Some(2),
        };
        assert!(right, "{plan}");
    }
    let streams = [context.stream().unwrap(), context.stream().unwrap()];
    let mut outs: Vec<_> = (0..20).map(|_| context.zeros::<T>(plan.out_shape()).unwrap()).collect();
    for (i, out) in outs.iter_mut().enumerate() {
        plan.run(&operands, out, &streams[i / 3 % 2]).unwrap();
    }
    context.synchronize().unwrap();
    let bytes = |i: usize| bytemuck::cast_slice::<T, u8>(&outs[i].to_storage().unwrap()).to_vec();
    let first = bytes(0);
    assert!(first.iter().any(|&b| b != 0));
    for i in 1..outs.len() {
        assert!(bytes(i) == first, "{}: run {i} gave other bits than run 0", row.name);
    }
}

#[test]
fn twenty_runs_give_the_same_bits_on_the_gpu() {
    if let Some(gpu) = gpu() {
        each_row!(same_bits(&gpu));
    }
}

#[test]
fn twenty_runs_give_the_same_bits_on_the_cpu() {
    let cpu = Context::cpu();
    // The executor depends on formats, not on kernels: one row of each walk represents its formats.
    for walk in [WalkKind::Csr, WalkKind::GroupCoo] {
        let of_walk = |row: &&Row| row.walk == walk && row.dtype == Dtype::F32;
        same_bits::<f32>(&cpu, products_here().find(of_walk).unwrap());
    }
    let blocks = |row: &&Row| row.walk == WalkKind::Block && row.dtype == Dtype::F16;
    same_bits::<f16>(&cpu, products_here().find(blocks).unwrap());
}

/// A plan whose stream was dropped still runs on the next one.
#[test]
fn a_plan_outlives_its_streams() {
    let Some(gpu) = gpu() else { return };
    let row =
        products_here().find(|row| row.dtype == Dtype::F32 && row.walk == WalkKind::Csr).unwrap();
    let problem = Problem::<f32>::integers(cut_rows(row), 4, N);
    let a = gpu.upload(problem.sparse("csr")).unwrap();
    let b = gpu.upload_dense(&problem.b(N)).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = plan_of(&gpu, TEXT, &operands, &force(row));
    for _ in 0..4 {
        let mut c = gpu.zeros(plan.out_shape()).unwrap();
        let stream = gpu.stream().unwrap();
        plan.run(&operands, &mut c, &stream).unwrap();
        drop(stream);
        let found = c.to_storage().unwrap();
        assert_matrix(&row.name, &found, (problem.m(), N, N), |r, c| problem.exact(r, c));
    }
}

/// Captures a graph after a plain run on another stream, and replays it with new values.
fn replayed<T: Scalar>(context: &Context, row: &'static Row) {
    let pattern = cut_rows(row);
    // All problems multiply the same B.
    let problems = [1, 2, 3].map(|seed| Problem::<T>::integers(pattern.clone(), seed, N));
    let format = formats(row).swap_remove(0);
    let mut a = context.upload(problems[0].sparse(&format)).unwrap();
    let b = context.upload_dense(&problems[0].b(N)).unwrap();
    let mut c = context.zeros([pattern.rows(), N].as_slice()).unwrap();
    let (other, stream) = (context.stream().unwrap(), context.stream().unwrap());
    let (plan, mut graph) = {
        let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let plan = plan_of(context, TEXT, &operands, &force(row));
        plan.run(&operands, &mut c, &other).unwrap();
        context.synchronize().unwrap();
        let graph = Graph::capture(stream.raw(), |_| plan.run(&operands, &mut c, &stream));
        (plan, graph.unwrap_or_else(|e| panic!("{}: {e}", row.name)))
    };
    for (i, problem) in problems.iter().enumerate() {
        a.set_values(problem.sparse(&format).values()).unwrap();
        c.write(&nan(&[problem.m(), N])).unwrap();
        // SAFETY: operands, output and plan live past the wait below.
        unsafe { graph.launch(stream.raw()) }.unwrap();
        stream.synchronize().unwrap();
        let found = c.to_storage().unwrap();
        let expected = |r: usize, c: usize| problem.exact(r, c);
        assert_matrix(&(row.name, "replay", i), &found, (problem.m(), N, N), expected);
    }
    // The plan still runs outside of the graph, on the stream from before.
    let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    plan.run(&operands, &mut c, &other).unwrap();
    context.synchronize().unwrap();
}

#[test]
fn a_captured_run_is_replayed_with_new_values() {
    if let Some(gpu) = gpu_alone() {
        each_row!(replayed(&gpu));
    }
}

/// Elements between guard bands in device memory, `shift` elements past an aligned address.
struct Banded {
    memory: DeviceMemory,
    address: u64,
}

/// Number of elements of a band; 16-byte aligned in every element type.
const BAND: usize = 64;

fn banded<T: bytemuck::Pod>(context: &Context, values: &[T], guard: T, shift: usize) -> Banded {
    let mut all = vec![guard; values.len() + 2 * BAND + shift];
    all[BAND + shift..][..values.len()].copy_from_slice(values);
    let device = context.device().unwrap();
    let stream = context.stream().unwrap();
    let memory = DeviceMemory::from_slice(device.context(), &all, stream.raw()).unwrap();
    let address = memory.address() + ((BAND + shift) * size_of::<T>()) as u64;
    Banded { memory, address }
}

/// Columns and values of a sparse matrix, each between bands.
fn banded_sparse<T: Scalar>(context: &Context, host: &AnySparse<T>) -> (Banded, Banded) {
    let arrays = host.arrays();
    let of_axis_1 = [Role::Coordinate { axis: 1 }, Role::Positions { axis: 1 }];
    let is_column = |a: &&IndexArray<'_>| of_axis_1.contains(&a.role);
    let columns = arrays.iter().find(is_column).unwrap().data;
    (
        banded(context, columns, u32::MAX - 1, 0),
        banded(context, host.values(), T::from_f64(f64::NAN), 0),
    )
}

/// Returns the elements between the bands, and checks that the bands are unchanged.
fn between<T: Scalar>(c: &Banded, shift: usize, len: usize, stream: &Stream) -> Vec<T> {
    let mut found = vec![T::ZERO; c.memory.bytes() / size_of::<T>()];
    c.memory.read(&mut found, stream.raw()).unwrap();
    let (before, rest) = found.split_at(BAND + shift);
    let (inside, behind) = rest.split_at(len);
    let untouched = |band: &[T]| band.iter().all(|&x| x == T::from_f64(GUARD));
    assert!(untouched(before) && untouched(behind), "wrote past C");
    inside.to_vec()
}

/// Runs on raw addresses. Inputs are surrounded by bands of NaN, the output by bands of a known number.
fn between_bands<T: Scalar>(context: &Context, row: &'static Row) {
    let problem = Problem::<T>::integers(cut_rows(row), 6, N);
    let x = Expression {
        accumulate: false,
        bias: Bias::Columns,
        relu: false,
        literal: Some(2),
        named: None,
    };
    let nan = T::from_f64(f64::NAN);
    let stream = context.stream().unwrap();
    for name in formats(row) {
        let host = problem.sparse(&name);
        let (columns, values) = banded_sparse(context, &host);
        let (b, bias) = (problem.b(N), problem.bias_columns(N));
        let b_raw = banded(context, b.values(), nan, 0);
        let bias_raw = banded(context, bias.values(), nan, 0);
        let c = banded(context, &vec![nan; problem.m() * N], T::from_f64(GUARD), 0);
        let a = context.upload(host).unwrap();
        let b = context.upload_dense(&b).unwrap();
        let bias = context.upload_dense(&bias).unwrap();
        let operands: [(&str, Operand<'_, T>); 3] =
            [("A", (&a).into()), ("B", (&b).into()), ("bias", (&bias).into())];
        let plan = plan_of(context, &x.text(), &operands, &force(row));
        let raw = RawSpmm::default()
            .columns(columns.address)
            .values(values.address)
            .b(b_raw.address)
            .ldb(N)
            .c(c.address)
            .ldc(N)
            .bias(bias_raw.address)
            .alpha(x.alpha());
        // SAFETY: operands have the planned shapes and context, and live past the wait below.
        unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap();
        stream.synchronize().unwrap();
        let inside = between(&c, 0, problem.m() * N, &stream);
        let expected = |r, c| problem.expected(&x, r, c);
        assert_matrix(&(row.name, name, "raw"), &inside, (problem.m(), N, N), expected);
    }
}

#[test]
fn raw_addresses_between_guard_bands() {
    if let Some(gpu) = gpu() {
        each_row!(between_bands(&gpu));
    }
}

/// Checks that the plan refuses the addresses of B and states the remedy.
fn refuses_alignment(plan: &Plan<f32>, raw: &RawSpmm, stream: RawStream<'_>) {
    // SAFETY: the call returns an error before any launch.
    let refused = unsafe { plan.run_raw(raw, stream) };
    let Err(Error::Alignment { name, required, fix, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!((name.as_str(), *required), ("B", 16));
    assert!(fix.contains("Options::alignment"), "{fix}");
}

/// Addresses misaligned by one element: an error that states the remedy, and a plan that supports them.
#[test]
fn misaligned_addresses_are_refused_or_planned_for() {
    let Some(gpu) = gpu() else { return };
    for dtype in [Dtype::F32, Dtype::Tf32] {
        let vector = |row: &&Row| row.dtype == dtype && row.vector == 4;
        let row = products_here().find(vector).unwrap();
        let problem = Problem::<f32>::integers(cut_rows(row), 6, N);
        let format = formats(row).swap_remove(0);
        let a = gpu.upload(problem.sparse(&format)).unwrap();
        let b = gpu.upload_dense(&problem.b(N)).unwrap();
        let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let (columns, values) = banded_sparse(&gpu, &problem.sparse(&format));
        let b_off = banded(&gpu, problem.b(N).values(), f32::NAN, 1);
        let nan = vec![f32::NAN; problem.m() * N];
        let c_off = banded(&gpu, &nan, GUARD as f32, 1);
        let raw = RawSpmm::default()
            .columns(columns.address)
            .values(values.address)
            .b(b_off.address)
            .ldb(N)
            .c(c_off.address)
            .ldc(N);
        let stream = gpu.stream().unwrap();
        let aligned = plan_of(&gpu, TEXT, &operands, &force(row));
        refuses_alignment(&aligned, &raw, stream.raw());
        let options = force(row).variant(None).alignment(1);
        let any = plan_of(&gpu, TEXT, &operands, &options);
        // SAFETY: operands have the planned shapes and live past the wait below.
        unsafe { any.run_raw(&raw, stream.raw()) }.unwrap();
        stream.synchronize().unwrap();
        // A row stride of eight gigabytes is refused before any launch.
        let far = raw.ldb(1 << 31);
        // SAFETY: the call returns an error before any launch.
        let error = unsafe { any.run_raw(&far, stream.raw()) }.unwrap_err();
        assert_error!(error, Error::Overflow { value, .. } if *value == 1 << 33);
        let inside = between(&c_off, 1, problem.m() * N, &stream);
        assert_matrix(&any.variant(), &inside, (problem.m(), N, N), |r, c| problem.exact(r, c));
    }
}

#[test]
fn a_tensor_of_another_context_is_refused() {
    let Some(gpu) = gpu() else { return };
    let pattern = spread(&[2, 3], 6);
    let entries = AnySparse::from(Csr::new(pattern, vec![1f32; 5]).unwrap());
    let there = gpu.upload(entries).unwrap();
    let said = SparseSoftmax::new(&Context::cpu(), &there, &SoftmaxOptions::default());
    assert_error!(said.unwrap_err(), Error::OtherContext { .. });
}
