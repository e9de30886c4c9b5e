//! Tensors with few nonzeros and large extents: conversions, orders and counts take memory in proportion to the
//! nonzeros, or return an error with the numbers. The allocator is limited to 256 MB, and nothing aborts.

use einsparse_formats::fill::{BLOCKS, block_fills};
use einsparse_formats::{
    AnySparse, Coo, Csr, CsrPattern, Dense, Ell, EllPattern, Format, FormatError, Nm, NmPattern,
    Pattern, allocate, generate, io, reorder, stats,
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[path = "../../fuzz/src/memory.rs"]
mod memory;

use memory::{Counting, LIMIT, MOST, TAKEN};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ALL: usize = u32::MAX as usize;

const SHAPES: [[usize; 2]; 12] = [
    [ALL, 0],
    [0, ALL],
    [ALL, 1],
    [1, ALL],
    [ALL, ALL],
    [1 << 20, 1 << 20],
    [15_900_000, 3],
    [3, 15_900_000],
    [3, 300_000],
    [300_000, 3],
    [65_536, 65_536],
    [2_000, 2_000],
];

const FORMATS: &str = "coo csr csc ell bsr:1x1 bsr:65535x65535 bsr:4294967295x1 groupcoo groupcoo:4294967295 \
     groupcoo:3@1 groupcoo:hybrid blockcoo:1x16 blockcoo:32x32 blockgroupcoo:2x2 \
     blockgroupcoo:4x1:1000000 nm:2:4 bitmap bytemap sell bsr:16x4294967295";

/// Allows one test at a time, because memory and limits belong to the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|held| held.into_inner())
}

/// Runs `work` on a tensor of `input` bytes, and checks the bound of its memory and a limit of ten seconds.
fn within<R>(what: &str, input: u64, work: impl FnOnce() -> R) -> R {
    let before = TAKEN.load(Relaxed);
    MOST.store(before, Relaxed);
    let start = Instant::now();
    let result = work();
    let (most, bound) = (MOST.load(Relaxed) - before, 64_000_000 + 16 * input as usize);
    assert!(most <= bound, "{what}: {most} bytes, {bound} at most");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    result
}

fn bytes(sparse: &AnySparse<f32>) -> u64 {
    allocate::bytes_of(&sparse.arrays()) + 4 * sparse.slots() as u64
}

/// Checks that a refusal names the axis, its extent and the bytes.
fn is_readable(error: &FormatError) {
    match error {
        FormatError::Limit { what, count, bytes, limit, .. } => {
            assert!(!what.is_empty() && *count > 0 && *bytes > u128::from(*limit), "{error}");
        }
        FormatError::Overflow { value, limit, .. } => assert!(value > limit, "{error}"),
        FormatError::Memory { bytes, .. } => assert!(*bytes > 1 << 20, "{error}"),
        FormatError::Shape { .. } | FormatError::Group { .. } => {}
        other => panic!("{other}"),
    }
}

/// A matrix with nonzeros at the corners of the shape.
fn corners(shape: [usize; 2]) -> AnySparse<f32> {
    let [rows, cols] = shape.map(|n| n.saturating_sub(1) as u32);
    let mut places = vec![(0, 0), (0, cols), (rows, 0), (rows, cols)];
    places.dedup();
    places.retain(|_| shape[0] * shape[1] > 0);
    let (rows, cols): (Vec<u32>, Vec<u32>) = places.into_iter().unzip();
    let values = vec![1.0; rows.len()];
    let coo = Coo::from_entries(shape.to_vec(), vec![rows, cols], values);
    AnySparse::from(coo.unwrap())
}

#[test]
fn memory_and_time_follow_the_entries() {
    let _alone = alone();
    LIMIT.store(256_000_000, Relaxed);
    for shape in SHAPES {
        let coo = corners(shape);
        let mut refused = 0;
        for text in FORMATS.split(' ') {
            let what = format!("{shape:?} to {text}");
            let format: Format = text.parse().unwrap();
            let made = within(&what, bytes(&coo), || coo.convert(format));
            let made = match made {
                Ok(made) => made,
                Err(error) => {
                    is_readable(&error);
                    refused += 1;
                    continue;
                }
            };
            let back = within(&what, bytes(&made), || made.to_coo());
            match back {
                Ok(back) => assert_eq!(AnySparse::from(back), coo, "{what}"),
                Err(error) => is_readable(&error),
            }
            for next in FORMATS.split(' ') {
                let format: Format = next.parse().unwrap();
                let what = format!("{what} to {next}");
                let found = within(&what, bytes(&made), || made.convert(format).map(drop));
                found.unwrap_or_else(|error| is_readable(&error));
            }
            drop(made);
        }
        let large = shape.contains(&ALL);
        assert!(refused >= if large { 2 } else { 0 }, "{shape:?}: {refused}");
        assert!(refused < FORMATS.split(' ').count() - 1, "{shape:?}: {refused}");
        orders_and_counts(shape, &coo);
    }
    small_ones_are_all_made();
    patterns_without_slots();
    arrays_without_elements();
    generators();
}

/// Reordering, block fills, and slots of formats.
fn orders_and_counts(shape: [usize; 2], coo: &AnySparse<f32>) {
    let Ok(csr) = coo.to_csr() else { return };
    let (pattern, options) = (csr.pattern(), reorder::Options::default());
    let input = 4 * (pattern.offsets().len() + 3 * pattern.nnz()) as u64;
    let what = format!("orders of {shape:?}");
    let found = [
        within(&what, input, || reorder::reorder_rows(pattern, (32, 32), &options).map(drop)),
        within(&what, input, || reorder::reorder_columns(pattern, (32, 32), &options).map(drop)),
        within(&what, input, || reorder::reorder_both(pattern, (32, 32), &options).map(drop)),
        within(&what, input, || block_fills(pattern, &BLOCKS).map(drop)),
    ];
    for result in found {
        result.unwrap_or_else(|error| is_readable(&error));
    }
    for text in FORMATS.split(' ') {
        let format = text.parse().unwrap();
        let counted = within(&what, input, || stats::slots(pattern, format));
        counted.map(drop).unwrap_or_else(|error| is_readable(&error));
    }
}

fn small_ones_are_all_made() {
    let coo = corners([200, 300]);
    for text in FORMATS.split(' ').filter(|t| !t.contains("65535") && !t.contains("429")) {
        let made = coo.convert(text.parse().unwrap()).unwrap();
        assert_eq!(AnySparse::from(made.to_coo().unwrap()), coo, "{text}");
    }
}

/// Formats whose arrays are empty although the matrix has rows.
fn patterns_without_slots() {
    let none: Vec<f32> = Vec::new();
    let ell = Ell::new(EllPattern::new(ALL, 3, 0, vec![]).unwrap(), none.clone()).unwrap();
    let nm = Nm::new(NmPattern::new(ALL, 0, vec![]).unwrap(), none).unwrap();
    for made in [AnySparse::from(ell), AnySparse::from(nm)] {
        for text in FORMATS.split(' ') {
            let what = format!("{} to {text}", made.format());
            let found = within(&what, 0, || made.convert(text.parse().unwrap()).map(drop));
            found.unwrap_or_else(|error| is_readable(&error));
        }
    }
}

fn arrays_without_elements() {
    for shape in [[0, 1 << 40], [1 << 40, 0], [ALL, 0], [0, ALL]] {
        let dense = Dense::<f32>::new(shape, vec![]).unwrap();
        let mut text = Vec::new();
        within("text", 0, || io::write_matrix_market_to(&mut text, "array", &dense)).unwrap();
        let lines =
            format!("%%MatrixMarket matrix array real general\n{} {}\n", shape[0], shape[1]);
        assert_eq!(String::from_utf8(text).unwrap(), lines);
        for format in FORMATS.split(' ') {
            let what = format!("array {shape:?} to {format}");
            let found = within(&what, 0, || dense.convert(format.parse().unwrap()).map(drop));
            found.unwrap_or_else(|error| is_readable(&error));
        }
    }
}

fn generators() {
    let made: [(&str, Result<CsrPattern, FormatError>); 4] = [
        ("uniform", generate::uniform(ALL, 1, 0.0, 1)),
        ("rows", generate::uniform_rows(ALL, 1, 0, 1)),
        ("pruned", generate::pruned(ALL, 1, 0.0, 0.0, 1.0, 1)),
        ("rmat", generate::rmat(31, 0, 1)),
    ];
    for (name, made) in made {
        is_readable(&made.map(|_| panic!("{name}: 2^31 rows in 64 MB")).unwrap_err());
    }
    assert!(generate::poisson2d::<f64>(20_000, 20_000).is_err());
    assert!(generate::elasticity2d::<f64>(2_000, 2_000).is_err());
}

/// The limit belongs to the process, and conversions within it succeed.
#[test]
fn a_limit_can_be_raised() {
    let _alone = alone();
    let coo = corners([17_000_000, 2]);
    let wanted = "arrays for 17000000 rows take 68000000 bytes, over the limit of 64000768 for a tensor of 48 bytes; \
                  `allocate::set_limits`, `--memory` or EINSPARSE_MEMORY=BYTES raises it";
    assert_eq!(coo.to_csr().unwrap_err().to_string(), wanted);
    let usual = allocate::limits();
    allocate::set_limits(io::Limits { bytes: 68_000_000, ..usual });
    let csr: Csr<f32> = coo.to_csr().unwrap();
    assert_eq!(csr.pattern().offsets().len(), 17_000_001);
    allocate::set_limits(usual);
    assert!(coo.to_csr().is_err());
}
