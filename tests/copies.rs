//! Counts allocations: the values of a sparse tensor are copied once on the way to a context, and a run of a plan on a
//! GPU allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use einsparse::formats::{AnySparse, AsSparse, Csr, CsrPattern, Dense, Format};
use einsparse::{Context, Operand, einsum};

use crate::support::gpu;

/// The system allocator, which counts the allocations of this thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Minimum size in bytes of allocations that are counted, and their number.
    static LARGE: Cell<(usize, usize)> = const { Cell::new((usize::MAX, 0)) };
}

fn note(bytes: usize) {
    // A thread that is ending has no thread-local value.
    let _ = LARGE.try_with(|large| {
        let (least, count) = large.get();
        large.set((least, count + usize::from(bytes >= least)));
    });
}

// SAFETY: the system allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Counts the allocations of this thread of `least` bytes or more.
fn counted<R>(least: usize, run: impl FnOnce() -> R) -> (usize, R) {
    LARGE.set((least, 0));
    let made = run();
    (LARGE.replace((usize::MAX, 0)).1, made)
}

/// Counts the allocations of this thread that are large enough for these values.
fn copies<R>(values: &[f64], run: impl FnOnce() -> R) -> (usize, R) {
    counted(size_of_val(values), run)
}

const ROWS: usize = 64;
const COLS: usize = 4096;

/// Two nonzeros in every four adjacent columns, so that every format can store the matrix.
fn matrix() -> Csr<f64> {
    let columns = (0..ROWS).flat_map(|_| (0..COLS as u32).filter(|c| c % 4 < 2));
    let offsets = (0..=ROWS).map(|row| (row * COLS / 2) as u32).collect();
    let pattern = CsrPattern::new(ROWS, COLS, offsets, columns.collect()).unwrap();
    let values = (0..ROWS * COLS / 2).map(|at| (at % 7 + 1) as f64);
    Csr::new(pattern, values.collect()).unwrap()
}

const FORMATS: [&str; 13] = [
    "coo",
    "csr",
    "csc",
    "bsr:16x16",
    "ell",
    "groupcoo:8",
    "groupcoo:hybrid",
    "blockcoo:16x16",
    "blockgroupcoo:16x16:2",
    "nm:2:4",
    "bitmap",
    "bytemap",
    "sell",
];

#[test]
fn values_are_copied_once() {
    let cpu = Context::cpu();
    let csr = matrix();
    let b = Dense::from_fn([COLS, 1], |_| 1.0).unwrap();
    for format in FORMATS {
        let a = csr.convert(format.parse().unwrap()).unwrap();
        let (copied, there) = copies(a.values(), || cpu.upload(&a).unwrap());
        assert_eq!(copied, 1, "{format}, uploaded");
        assert_eq!(there.to_host().unwrap(), a, "{format}");
        let text = "C[m,n] = A[m,k] * B[k,n]";
        let (of_the_run, _) =
            copies(a.values(), || einsum!(cpu, text, A = &there, B = &b).unwrap());
        let (copied, c) = copies(a.values(), || einsum!(cpu, text, A = &a, B = &b).unwrap());
        assert_eq!(copied, of_the_run + 1, "{format}, in an expression");
        let sums: Vec<f64> = csr.values().chunks(COLS / 2).map(|r| r.iter().sum()).collect();
        assert_eq!(c.to_dense().unwrap().values(), sums, "{format}");
    }
}

/// [`Csr`] and [`Coo`](einsparse::formats::Coo) are the intermediate formats of conversions: they are moved, not
/// copied.
#[test]
fn conversions_copy_values_once() {
    let csr = matrix();
    let dense = csr.to_dense().unwrap();
    for to in ["csr", "coo"].map(|to| to.parse().unwrap()) {
        let (copied, made) = copies(csr.values(), || dense.convert(to).unwrap());
        assert_eq!(copied, 1, "dense to {to}");
        assert_eq!(made.to_csr().unwrap(), csr, "dense to {to}");
        for format in FORMATS {
            let a = csr.convert(format.parse().unwrap()).unwrap();
            let (direct, _) = copies(csr.values(), || match to {
                Format::Csr => drop(a.to_csr().unwrap()),
                _ => drop(a.to_coo().unwrap()),
            });
            let (copied, made) = copies(csr.values(), || a.convert(to).unwrap());
            assert_eq!(copied, direct, "{format} to {to}");
            assert_eq!(made.to_csr().unwrap(), csr, "{format} to {to}");
        }
    }
}

#[test]
fn the_pattern_is_shared() {
    let csr = matrix();
    let any = AnySparse::from(csr.clone());
    let there = Context::cpu().upload(&csr).unwrap();
    let back = there.to_host().unwrap();
    assert!(back.pattern().is(any.pattern()));
    assert!(csr.as_sparse().pattern().is(any.pattern()));
}

/// The operands of a run, and the parameters of its kernel, are on the stack. The simulated GPU passes through the code
/// of the host up to the launch.
#[test]
fn a_run_of_a_plan_does_not_allocate() {
    no_allocations(&Context::absent());
    if let Some(gpu) = gpu() {
        no_allocations(&gpu);
    }
}

fn no_allocations(gpu: &Context) {
    let csr = matrix();
    let pattern = csr.pattern().clone();
    let csr = Csr::new(pattern, csr.values().iter().map(|x| *x as f32).collect()).unwrap();
    let a = gpu.upload(&csr).unwrap();
    let b = gpu.zeros::<f32>(&[COLS, 64]).unwrap();
    let c = gpu.zeros::<f32>(&[ROWS, 64]).unwrap();
    let stream = gpu.stream().unwrap();
    let product: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = gpu.plan("C[m,n] = A[m,k] * B[k,n]").operands(&product).build().unwrap();
    let mut out = gpu.zeros(plan.out_shape()).unwrap();
    let samples: [(&str, Operand<'_, f32>); 3] =
        [("S", (&a).into()), ("X", (&c).into()), ("Y", (&b).into())];
    let mut sampled = gpu.upload(&csr).unwrap();
    let sddmm = gpu.plan("O[m,k] = S[m,k] * X[m,n] * Y[k,n]").operands(&samples);
    let sddmm = sddmm.sparse_output(&sampled).build().unwrap();
    for first in [true, false] {
        let (count, result) = counted(1, || {
            plan.run(&product, &mut out, &stream)?;
            sddmm.run(&samples, &mut sampled, &stream)
        });
        result.unwrap();
        // The first run of a thread may make thread-local values.
        assert!(first || count == 0, "{count} allocations");
    }
    stream.synchronize().unwrap();
}
