//! Formats of unstructured nonzeros made on the GPU against those of a CPU context: equal patterns and equal bits.
//! Faults of patterns are reported at the position where the CPU finds them.

use super::{SHAPES, assert_same, bits, integers, uneven, with_gap, words};
use crate::support::assert_error;
use crate::support::{Rng, gpu, gpu_alone, on_gpu, small, spread};
use einsparse::entries::{Order, RowSorter};
use einsparse::formats::convert::EntryChoice;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format, bf16, f16, generate};
use einsparse::raw::RawConversion;
use einsparse::registry::Scalar;
use einsparse::{Context, Converter, Error, Graph, Tensor};

/// Values of many magnitudes with ties, mostly zero in some rows; a few are NaN, infinities and -0.
fn mixed<T: Scalar>(m: usize, k: usize, seed: u64) -> Dense<T> {
    let salt = Rng(seed).word();
    Dense::from_fn([m, k], |i| {
        let word = Rng(salt ^ ((i[0] as u64) << 32 | i[1] as u64)).word();
        let part = 1 + (i[0] * 7 % 11) as u64;
        T::from_f64(match word % 2003 {
            7 => f64::NAN,
            8 => f64::NEG_INFINITY,
            _ if !(word >> 20).is_multiple_of(part) => [0.0, -0.0][word as usize % 2],
            _ if i[0] % 3 == 0 => (word >> 40) as f64 % 5.0 - 2.0,
            _ => (word as i32) as f64 / (1u64 << (20 + word % 16)) as f64,
        })
    })
    .unwrap()
}

fn choices(seed: usize) -> [EntryChoice; 7] {
    [
        EntryChoice::NonZero,
        EntryChoice::Above(0.0),
        EntryChoice::Above(-0.0),
        EntryChoice::Above([1.0, 0.1, 300.0, f64::INFINITY][seed % 4]),
        EntryChoice::TopPerRow([1, 2, 5, 40, 1 << 20][seed % 5]),
        EntryChoice::TopPerRow(0),
        EntryChoice::TopPerRow(seed % 700),
    ]
}

fn dense<T: Scalar>(gpu: &Context) {
    let cpu = Context::unchecked_cpu();
    let shapes = SHAPES.into_iter().chain([(3, 40_000)]);
    for (seed, (m, k)) in shapes.enumerate() {
        let host = mixed::<T>(m, k, seed as u64);
        // Contiguous rows, aligned rows with a gap, and unaligned rows.
        for gap in [0, 8 - k % 8, 1] {
            let (on_gpu, on_cpu) = (with_gap(gpu, &host, gap), with_gap(&cpu, &host, gap));
            for choice in choices(seed + gap) {
                let made =
                    |ctx: &Context, from: &Tensor<T>| ctx.csr_from_dense(from, choice).unwrap();
                let what = (T::DTYPE, m, k, gap, choice);
                assert_same(&made(gpu, &on_gpu), &made(&cpu, &on_cpu), &what);
            }
            if small() {
                break;
            }
        }
    }
}

#[test]
fn dense_matrices_become_the_same_entries() {
    on_gpu(&[dense::<f32>, dense::<f16>, dense::<bf16>, dense::<f64>]);
}

/// A matrix large enough for the look-back among many thread blocks.
#[test]
fn many_thread_blocks_add_up() {
    let Some(gpu) = gpu() else { return };
    if small() {
        return;
    }
    let (m, k) = (1500, 4096);
    let host = mixed::<f32>(m, k, 77);
    let cpu = Context::unchecked_cpu();
    let on_gpu = gpu.upload_dense(&host).unwrap();
    let on_cpu = cpu.upload_dense(&host).unwrap();
    for choice in [EntryChoice::NonZero, EntryChoice::TopPerRow(333)] {
        let found = gpu.csr_from_dense(&on_gpu, choice).unwrap();
        let wanted = cpu.csr_from_dense(&on_cpu, choice).unwrap();
        assert_same(&found, &wanted, &choice);
    }
}

/// Patterns with rows of all lengths, one long row, runs of empty rows, and all entries in one column.
fn patterns() -> Vec<CsrPattern> {
    let mut all = uneven();
    all.extend([
        generate::uniform(0, 40, 0.5, 1).unwrap(),
        generate::uniform(1, 1, 1.0, 1).unwrap(),
        generate::uniform(2_000_000, 3, 0.00003, 6).unwrap(),
        spread(&[0, 0, 5000, 0, 1, 0, 0, 7, 4096, 0], 5003),
    ]);
    let sparse: Vec<usize> = (0..20_000).map(|r| usize::from(r % 4999 == 17)).collect();
    all.push(spread(&sparse, 3));
    all.push(spread(&[1; 5000], 4));
    all
}

fn between<T: Scalar>(gpu: &Context) {
    for pattern in patterns() {
        let count = pattern.columns().len();
        if small() && count > 6000 {
            continue;
        }
        let what = (T::DTYPE, pattern.rows(), pattern.cols(), count);
        let host = integers::<T>(pattern);
        let on_gpu = gpu.upload(&host).unwrap();
        let on_cpu = Context::unchecked_cpu().upload(host).unwrap();
        for text in ["coo", "groupcoo", "groupcoo:1", "groupcoo:3", "groupcoo:8", "ell"] {
            let format: Format = text.parse().unwrap();
            // If rows of ELL do not fit on one side, they must not fit on the other.
            match (on_gpu.to_entries(format), on_cpu.to_entries(format)) {
                (Ok(found), Ok(wanted)) => {
                    assert_same(&found, &wanted, &(what, text));
                    if text == "coo" {
                        let (back, csr) = (found.to_entries(Format::Csr), &on_cpu);
                        assert_same(&back.unwrap(), csr, &(what, "back"));
                    }
                }
                (found, wanted) => assert_eq!(found.is_ok(), wanted.is_ok(), "{what:?} {text}"),
            }
        }
        let (found, wanted) = (on_gpu.transposed().unwrap(), on_cpu.transposed().unwrap());
        assert_same(&found, &wanted, &(what, "transposed"));
    }
}

#[test]
fn entries_change_their_format_and_order() {
    on_gpu(&[between::<f32>, between::<f16>, between::<f64>]);
}

#[test]
fn other_formats_are_refused() {
    let cpu = Context::unchecked_cpu();
    let a = cpu.upload(integers::<f32>(generate::karate())).unwrap();

    let columns = Format::GroupCoo { axis: 1, group: Some(2) };
    for format in [Format::Csc, columns] {
        let error = a.to_entries(format).unwrap_err();
        assert_error!(error, Error::StorageFormat { found, .. } if found == "csr");
    }
    assert!(a.to_entries(Format::Coo).unwrap().transposed().is_err());
}

/// One fault at a time, at the start, inside a tile and in the last tile. The GPU returns the same error as the CPU.
#[test]
fn faults_of_patterns_are_found_where_the_cpu_finds_them() {
    let Some(gpu) = gpu() else { return };
    let good = generate::uniform(900, 700, 0.02, 5).unwrap();
    let (m, k, nnz) = (good.rows(), good.cols(), good.columns().len());
    let inside = |row: usize| good.row(row).start + 1;
    let long = |row: &usize| good.row(*row).len() > 2;
    let rows = [1, 200, 860].map(|from| (from..900).find(long).unwrap());
    let mut faults: Vec<(Vec<u32>, Vec<u32>)> =
        vec![(good.offsets().to_vec(), good.columns().to_vec())];
    let mut plant = |change: &dyn Fn(&mut Vec<u32>, &mut Vec<u32>)| {
        let (mut offsets, mut columns) = faults[0].clone();
        change(&mut offsets, &mut columns);
        faults.push((offsets, columns));
    };
    for row in rows {
        plant(&|_, columns| columns[inside(row)] = k as u32);
        plant(&|_, columns| columns[inside(row)] = u32::MAX);
        // Duplicate columns, and columns out of order.
        plant(&|_, columns| columns[inside(row)] = columns[inside(row) - 1]);
        plant(&|_, columns| columns.swap(inside(row), inside(row) - 1));
        plant(&|offsets, _| offsets[row + 1] = offsets[row].wrapping_sub(1));
        plant(&|offsets, _| offsets[row] = u32::MAX);
    }
    plant(&|offsets, _| offsets[0] = 1);
    plant(&|offsets, _| offsets[m] += 1);
    plant(&|offsets, _| offsets[m] -= 1);
    plant(&|offsets, _| offsets.fill(0));
    let held = gpu.zeros::<f32>(&[nnz]).unwrap();
    for (i, (offsets, columns)) in faults.into_iter().enumerate() {
        let there = [words(&gpu, &offsets), words(&gpu, &columns)];
        let [at, columns_at] = there.each_ref().map(|t| t.address().unwrap());
        let arrays = [at, columns_at, held.address().unwrap()];
        // SAFETY: the arrays have the sizes that are passed.
        let found = unsafe { gpu.csr_from_raw::<f32>([m, k], nnz, arrays) };
        match (found, CsrPattern::new(m, k, offsets, columns)) {
            (Ok(found), Ok(wanted)) => {
                assert_eq!(i, 0);
                let wanted = Csr::new(wanted, vec![0f32; nnz]).unwrap();
                assert_eq!(found.to_host().unwrap(), AnySparse::from(wanted));
            }
            (Err(Error::Format(found)), Err(wanted)) => assert_eq!(found, wanted, "fault {i}"),
            (found, wanted) => panic!("fault {i}: {found:?}, {wanted:?}"),
        }
    }
}

#[test]
fn rows_are_ordered_by_length() {
    let Some(gpu) = gpu() else { return };
    for pattern in patterns() {
        let (m, k) = (pattern.rows(), pattern.cols());
        let lengths: Vec<u32> = pattern.offsets().windows(2).map(|w| w[1] - w[0]).collect();
        let offsets = words(&gpu, pattern.offsets());
        let out = gpu.zeros::<f32>(&[m + 1]).unwrap();
        let stream = gpu.stream().unwrap();
        for order in [Order::Lengths, Order::Classes] {
            let sorter = RowSorter::new(&gpu, [m, k], order).unwrap();
            let [from, to] = [&offsets, &out].map(|t| t.address().unwrap());
            // SAFETY: the arrays have the sizes that the sorter requires, and live past the wait.
            unsafe { sorter.run_raw(from, to, stream.raw()).unwrap() };
            stream.synchronize().unwrap();
            let mut wanted: Vec<u32> = (0..m as u32).collect();
            wanted.sort_by_key(|&r| match (lengths[r as usize], order) {
                (length, Order::Lengths) => std::cmp::Reverse(length),
                (length, Order::Classes) => std::cmp::Reverse(32 - length.leading_zeros()),
            });
            assert!(bits(&out)[..m] == wanted, "{m} x {k} {order:?}");
        }
    }
}

/// A conversion is captured once and replayed over other matrices. With too little capacity, nothing is written past
/// it.
#[test]
fn a_conversion_is_replayed_and_stays_inside() {
    let Some(gpu) = gpu_alone() else { return };
    let (m, k, guard) = (130, 1000, 77f32.to_bits());
    for (choice, capacity) in [
        (EntryChoice::TopPerRow(30), 130 * 30),
        (EntryChoice::NonZero, 130 * 1000),
        (EntryChoice::NonZero, 1234),
    ] {
        let converter = Converter::csr_from_dense::<f32>(&gpu, (m, k), choice).unwrap();
        let mut source = gpu.zeros::<f32>(&[m, k]).unwrap();
        let offsets = words(&gpu, &vec![guard; m + 9]);
        let [columns, out] = [0, 1].map(|_| words(&gpu, &vec![guard; capacity + 8]));
        let raw = RawConversion::default()
            .dense(source.address().unwrap())
            .leading(k)
            .out_offsets(offsets.address().unwrap())
            .out_columns(columns.address().unwrap())
            .out_values(out.address().unwrap())
            .capacity(capacity);
        let stream = gpu.stream().unwrap();
        // SAFETY: the tensors have the sizes that the converter requires and live past the waits below; replays follow
        // each other.
        let graph = Graph::capture(stream.raw(), |s| unsafe { converter.run_raw(&raw, s) });
        let mut graph = graph.unwrap();
        for seed in [21, 22, 23] {
            let host = mixed::<f32>(m, k, seed);
            source.write(&host).unwrap();
            // SAFETY: as for the capture.
            unsafe { graph.launch(stream.raw()) }.unwrap();
            stream.synchronize().unwrap();
            let cpu = Context::unchecked_cpu();
            let wanted = cpu.csr_from_dense(&cpu.upload_dense(&host).unwrap(), choice);
            let wanted = wanted.unwrap().to_host().unwrap();
            let arrays = wanted.arrays();
            let used = arrays[1].data.len().min(capacity);
            assert!(bits(&offsets)[..=m] == *arrays[0].data, "{choice:?} {seed}");
            assert!(bits(&columns)[..used] == arrays[1].data[..used], "{choice:?} {seed}");
            let values: Vec<u32> = wanted.values().iter().map(|v| v.to_bits()).collect();
            assert!(bits(&out)[..used] == values[..used], "{choice:?} {seed}");
            assert!(bits(&offsets)[m + 1..].iter().all(|&v| v == guard));
            assert!(bits(&columns)[capacity..].iter().all(|&v| v == guard));
            assert!(bits(&out)[capacity..].iter().all(|&v| v == guard));
        }
    }
}
