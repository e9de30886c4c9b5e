//! Attention at the nonzeros of a mask, against a reference in f64. Cases: numbers of queries and keys around the tile
//! sizes, queries without keys, hidden keys, queries split along their keys, NaN and Inf. Masks are given by entries
//! and by blocks, shared by all heads or one per head. The CPU runs the same suite.

mod case;
mod gradient;

use crate::support::assert_error;
use crate::support::dense::{nan, upload};
use crate::support::{gpu, gpu_alone, small, spread};
use case::{Case, bits, csr, variants};
use einsparse::formats::{CsrPattern, Dense, bf16, f16};
use einsparse::ops::{AttentionOptions, SparseAttention};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Graph, SparseTensor};

/// Options with `heads` heads of `dim` elements; scale and masks keep their defaults.
fn plain(heads: usize, dim: usize) -> AttentionOptions {
    AttentionOptions { heads, dim, ..AttentionOptions::default() }
}

/// Pattern with row lengths of none, one, some and all columns.
fn uneven(rows: usize, columns: usize) -> CsrPattern {
    let len = |row: usize| match row % 5 {
        0 => 0,
        1 => 1,
        2 => columns,
        _ => (row * 7919) % (columns + 1),
    };
    spread(&(0..rows).map(len).collect::<Vec<_>>(), columns)
}

fn sizes<T: Scalar>(context: &Context) {
    let all =
        [(1, 1), (63, 64), (64, 65), (65, 127), (128, 128), (129, 200), (300, 129), (200, 700)];
    let all = if small() { &all[4..6] } else { &all[..] };
    for (i, &(m, n)) in all.iter().enumerate() {
        for dim in [64, 128] {
            let options = plain(1 + i % 3, dim);
            Case::<T>::new(vec![uneven(m, n)], options, i as u64).check(context, "csr");
        }
    }
}

/// Runs a suite with both element types on the GPU and on the CPU.
macro_rules! everywhere {
    ($suite:ident) => {
        if let Some(context) = gpu() {
            $suite::<f16>(&context);
            $suite::<bf16>(&context);
        }
        $suite::<f16>(&Context::unchecked_cpu());
    };
}

#[test]
fn sizes_around_the_tiles() {
    everywhere!(sizes);
}

fn hidden<T: Scalar>(context: &Context) {
    let dense = spread(&[300; 300], 300);
    for (causal, lengths, scale) in [
        (Some(0), None, None),
        (Some(-3), None, Some(1.0)),
        (Some(70), Some(vec![250]), None),
        (None, Some(vec![300, 0, 64, 129]), Some(0.01)),
        (Some(0), Some(vec![77, 1000]), None),
    ] {
        let options = AttentionOptions { causal, lengths, scale, ..plain(4, 64) };
        Case::<T>::new(vec![dense.clone()], options.clone(), 7).check(context, "csr");
        Case::<T>::new(vec![uneven(300, 300)], options, 8).check(context, "csr");
    }
}

#[test]
fn keys_above_and_beyond_are_hidden() {
    everywhere!(hidden);
}

fn formats<T: Scalar>(context: &Context) {
    let pattern = uneven(150, 260);
    for format in ["csr", "coo", "ell", "groupcoo:4"] {
        Case::<T>::new(vec![pattern.clone()], plain(2, 128), 3).check(context, format);
    }
    for edge in [16, 32, 64, 128] {
        let (m, n) = (4 * edge - 5, 6 * edge - 7);
        let pattern = crate::support::fill_blocks(&spread(&[0, 3, 6, 1], 6), (edge, edge), m, n);
        for format in [format!("bsr:{edge}x{edge}"), format!("blockgroupcoo:{edge}x{edge}:2")] {
            Case::<T>::new(vec![pattern.clone()], plain(2, 128), 4).check(context, &format);
        }
    }
}

#[test]
fn masks_in_every_format() {
    everywhere!(formats);
}

fn heads<T: Scalar>(context: &Context) {
    let masks: Vec<_> = [1, 2, 3, 4].iter().map(|&i| spread(&[(i * 40) % 190; 190], 190)).collect();
    Case::<T>::new(masks.clone(), plain(4, 64), 5).check(context, "csr");
    let grouped = AttentionOptions { key_heads: Some(2), ..plain(4, 128) };
    Case::<T>::new(masks, grouped.clone(), 6).check(context, "csr");
    Case::<T>::new(vec![uneven(130, 140)], grouped, 6).check(context, "csr");
}

#[test]
fn masks_of_their_own_and_shared_keys() {
    everywhere!(heads);
}

/// Few queries and many keys. Several thread blocks share queries, and the last one to arrive combines their results.
fn cut<T: Scalar>(context: &Context) {
    let n = if small() { 2000 } else { 9000 };
    let mut lens = vec![n; 140];
    lens[3] = 0;
    lens[70] = 1;
    Case::<T>::new(vec![spread(&lens, n)], plain(1, 128), 9).check(context, "csr");
    Case::<T>::new(vec![spread(&lens, n)], plain(2, 64), 9).check(context, "csr");
}

#[test]
fn queries_cut_along_their_keys() {
    everywhere!(cut);
}

/// Scores that grow from tile to tile, some far above all others. The running maximum must always be right.
fn growing<T: Scalar>(context: &Context) {
    let n = 600;
    let mut case = Case::<T>::new(vec![spread(&[n; 70], n)], plain(1, 64), 1);
    case.q = Dense::from_fn(vec![1, 70, 64], |_| T::ONE).unwrap();
    case.k = Dense::from_fn(vec![1, n, 64], |i| T::from_f64((i[1] / 4) as f64 / 16.0)).unwrap();
    case.check(context, "csr");
    case.k = Dense::from_fn(vec![1, n, 64], |i| T::from_f64(-((i[1] / 4) as f64))).unwrap();
    case.check(context, "csr");
}

#[test]
fn the_largest_score_may_be_anywhere() {
    everywhere!(growing);
}

/// A NaN or Inf in K or Q affects only its own entries. One in V affects at most the 64 queries of its tile. Queries
/// without keys stay zero.
fn planted<T: Scalar>(context: &Context) {
    let (m, n, dim) = (256, 512, 64);
    // Row r sees keys 2 r and 2 r + 1; every eighth row sees none.
    let lens: Vec<usize> = (0..m).map(|r| if r % 8 == 0 { 0 } else { 2 }).collect();
    let mut offsets = vec![0];
    let mut columns = Vec::new();
    for (row, &len) in lens.iter().enumerate() {
        columns.extend((0..len as u32).map(|i| 2 * row as u32 + i));
        offsets.push(columns.len() as u32);
    }
    let pattern = CsrPattern::new(m, n, offsets, columns).unwrap();
    for (bad, in_values) in
        [(f64::NAN, false), (f64::INFINITY, false), (f64::NAN, true), (f64::INFINITY, true)]
    {
        let mut case = Case::<T>::new(vec![pattern.clone()], plain(1, dim), 2);
        // Only query 65 sees key 131.
        let operand = if in_values { &mut case.v } else { &mut case.k };
        let clean = operand.clone();
        *operand = Dense::from_fn(vec![1, n, dim], |i| match i[1] {
            131 => T::from_f64(bad),
            _ => clean.values()[i[1] * dim + i[2]],
        })
        .unwrap();
        for variant in variants::<T>(context, dim) {
            let (out, _) = case.run(context, "csr", variant);
            for (row, out) in out.chunks(dim).enumerate() {
                let finite = out.iter().all(|x| x.to_f64().is_finite());
                let zero = out.iter().all(|x| x.to_f64() == 0.0);
                match row {
                    65 => assert!(!finite, "{bad} {in_values} {variant:?}: {out:?}"),
                    _ if row % 8 == 0 => assert!(zero, "{bad} {in_values} {row} {variant:?}"),
                    64..128 if in_values => {}
                    _ => assert!(finite && !zero, "{bad} {in_values} {row} {variant:?}: {out:?}"),
                }
            }
        }
    }
}

#[test]
fn planted_nan_and_inf() {
    everywhere!(planted);
}

#[test]
fn a_captured_run_repeats_itself() {
    let Some(context) = gpu_alone() else { return };
    let case = Case::<bf16>::new(vec![uneven(300, 3000)], plain(2, 128), 1);
    let masks = case.masks(&context, "csr");
    let attention = SparseAttention::new(&context, &[&masks[0]], &case.options).unwrap();
    let [q, k, v] = upload(&context, [&case.q, &case.k, &case.v]);
    let stream = context.stream().unwrap();
    let mut out = context.zeros::<bf16>(&[2, 300, 128]).unwrap();
    attention.forward([&q, &k, &v], &mut out, None, &stream).unwrap();
    stream.synchronize().unwrap();
    let wanted = out.to_dense().unwrap();
    out.write(&nan(&[2, 300, 128])).unwrap();
    let graph =
        Graph::capture(stream.raw(), |_| attention.forward([&q, &k, &v], &mut out, None, &stream));
    let mut graph = graph.unwrap();
    for _ in 0..3 {
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.launch(stream.raw()).unwrap() };
    }
    stream.synchronize().unwrap();
    assert_eq!(bits(out.to_dense().unwrap().values()), bits(wanted.values()));
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Context::unchecked_cpu();
    let mask = cpu.upload(csr::<f32>(spread(&[1, 2], 3))).unwrap();
    let other = cpu.upload(csr::<f32>(spread(&[1, 2], 4))).unwrap();
    let [bits, bytes] = ["bitmap", "bytemap"].map(|format| {
        let mask = mask.to_host().unwrap().convert(format.parse().unwrap());
        cpu.upload(mask.unwrap()).unwrap()
    });
    let refused = |masks: &[&SparseTensor<f32>], options: AttentionOptions| {
        SparseAttention::new(&cpu, masks, &options).unwrap_err()
    };
    let with = |change: fn(&mut AttentionOptions)| {
        let mut options = plain(4, 8);
        change(&mut options);
        options
    };
    for (masks, options, option, found) in [
        (&[&mask][..], with(|o| o.scale = Some(0.0)), "scale", "0"),
        (&[&mask], with(|o| o.scale = Some(f64::NAN)), "scale", "NaN"),
        (&[&mask], with(|o| o.key_heads = Some(3)), "key_heads", "3"),
        (&[&mask], with(|o| o.key_heads = Some(0)), "key_heads", "0"),
        (&[&mask], with(|o| (o.heads, o.key_heads) = (0, Some(2))), "key_heads", "2"),
        (&[&mask], with(|o| o.lengths = Some(vec![1; 3])), "lengths", "3"),
        (&[&mask, &mask], with(|_| {}), "masks", "2"),
        (&[], with(|_| {}), "masks", "0"),
    ] {
        let error = refused(masks, options);
        assert_error!(
            error,
            Error::OutOfRange { name, value, .. } if name == option && value == found
        );
    }
    for (mask, format) in [(&bits, "bitmap"), (&bytes, "bytemap")] {
        let error = refused(&[mask], with(|_| {}));
        assert_error!(error, Error::StorageFormat { found, .. } if found == format);
    }
    let error = refused(&[&mask, &mask, &mask, &other], with(|_| {}));
    assert_error!(error, Error::Shape { right, .. } if right == "another [2, 4]");
    let attention = SparseAttention::new(&cpu, &[&mask], &plain(1, 8)).unwrap();
    let q = cpu.zeros::<f32>(&[1, 2, 8]).unwrap();
    let k = cpu.zeros::<f32>(&[1, 3, 8]).unwrap();
    let mut out = cpu.zeros::<f32>(&[1, 2, 8]).unwrap();
    let stream = cpu.stream().unwrap();
    let error = attention.forward([&q, &q, &k], &mut out, None, &stream).unwrap_err();
    let wanted = matches!(&error, Error::Shape { index, .. } if index == "k");
    assert!(wanted, "{error}");
    attention.forward([&q, &k, &k], &mut out, None, &stream).unwrap();
    // Empty extents are valid and do nothing.
    let none = SparseAttention::new(&cpu, &[&mask], &plain(0, 8)).unwrap();
    let empty = |rows| cpu.zeros::<f32>(&[0, rows, 8]).unwrap();
    none.forward([&empty(2), &empty(3), &empty(3)], &mut empty(2), None, &stream).unwrap();
}

#[test]
fn other_types_and_widths_have_no_kernel() {
    let Some(context) = gpu() else { return };
    let mask = context.upload(csr::<f32>(spread(&[1, 2], 3))).unwrap();
    let error = SparseAttention::new(&context, &[&mask], &plain(1, 64)).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
    let mask = context.upload(csr::<f16>(spread(&[1, 2], 3))).unwrap();
    let error = SparseAttention::new(&context, &[&mask], &plain(1, 96)).unwrap_err();
    assert_error!(
        error,
        Error::NoKernel { tried, .. }
            if tried.iter().any(|(_, reason)| reason.contains("64, not 96"))
    );
}
