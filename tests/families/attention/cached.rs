//! One query per head over a cache, against a reference in f64. Cases: lengths around the tile sizes and 0, heads that
//! share keys, sequences split into chunks, many sequences, rows added to the cache. Past its length a sequence's cache
//! is NaN. The CPU runs the same suite.

mod case;

use crate::support::assert_error;
use crate::support::replay::Replay;
use crate::support::{gpu, gpu_alone, on_both, on_cpu, on_gpu, small};
use case::{Case, Shape, bits};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{AttentionOptions, CachedAttention};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Result};

fn shape(batch: usize, [heads, key_heads]: [usize; 2], dim: usize, capacity: usize) -> Shape {
    Shape { batch, heads, key_heads, dim, capacity }
}

/// Lengths: none, one, around a tile, odd, all.
const LENGTHS: [i32; 10] = [0, 1, 200, 16, 17, 65, 127, 63, 33, 199];

fn sizes<T: Scalar>(context: &Context) {
    let ratios = [[1, 1], [8, 8], [6, 3], [8, 2], [8, 1], [32, 2], [3, 1]];
    let ratios = if small() { &ratios[3..5] } else { &ratios[..] };
    for (i, &heads) in ratios.iter().enumerate() {
        for dim in [64, 128] {
            let batch = 1 + i % 5;
            let lengths = LENGTHS.into_iter().cycle().skip(3 * i).take(batch);
            let shape = shape(batch, heads, dim, 200);
            Case::<T>::new(shape, lengths.collect(), i as u64).check(context);
        }
    }
    let shape = shape(LENGTHS.len(), [4, 2], 128, 200);
    Case::<T>::new(shape, LENGTHS.to_vec(), 5).check(context);
}

#[test]
fn one_query_over_a_cache() {
    on_gpu(&[sizes::<f16>, sizes::<bf16>]);
    on_cpu(&[sizes::<f16>, sizes::<f32>]);
}

/// Invalid lengths are clamped to the nearest valid one, and nothing outside of the cache is read or written.
fn lengths_outside<T: Scalar>(context: &Context) {
    let lengths = vec![-1, 101, i32::MAX, i32::MIN, 100];
    Case::<T>::new(shape(5, [4, 2], 64, 100), lengths.clone(), 1).check(context);
    Case::<T>::new(shape(5, [4, 2], 128, 100), lengths, 1).check(context);
}

on_both! {
    lengths_outside_of_the_cache: cpu [lengths_outside::<bf16>], gpu [lengths_outside::<bf16>];
}

/// Whether to use small sizes; the CPU does not split sequences.
fn few(context: &Context) -> bool {
    small() || context.device().is_none()
}

/// One sequence distributed over all multiprocessors, in chunks of maximum length.
fn cut<T: Scalar>(context: &Context) {
    let capacity = if few(context) { 700 } else { 9000 };
    for (heads, dim) in [([1, 1], 64), ([4, 1], 128), ([16, 1], 128), ([4, 2], 64)] {
        for length in [capacity, capacity - 1, 641, 0] {
            let shape = shape(1, heads, dim, capacity);
            Case::<T>::new(shape, vec![length as i32], 9).check(context);
        }
    }
    let two = vec![capacity as i32 - 77, 130];
    Case::<T>::new(shape(2, [8, 4], 128, capacity), two, 10).check(context);
}

#[test]
fn sequences_cut_along_their_keys() {
    on_gpu(&[cut::<f16>, cut::<bf16>]);
    on_cpu(&[cut::<bf16>]);
}

/// More sequences than a warp reads at once, more chunks than thread blocks, and chunks of maximum length.
fn many<T: Scalar>(context: &Context) {
    let [batch, capacity] = match few(context) {
        true => [40, 100],
        false => [150, 2100],
    };
    for dim in [64, 128] {
        let length = |i: usize| match i {
            3 | 70 | 149 => capacity as i32 - i as i32 % 3,
            _ => (i * 37 % 97) as i32,
        };
        let shape = shape(batch, [2, 2], dim, capacity);
        Case::<T>::new(shape, (0..batch).map(length).collect(), 4).check(context);
    }
}

on_both! {
    many_sequences: cpu [many::<bf16>], gpu [many::<bf16>];
}

/// Scores that grow or fall from tile to tile. The running maximum must always be right.
fn growing<T: Scalar>(context: &Context) {
    for sign in [1.0, -1.0] {
        let mut case = Case::<T>::new(shape(1, [2, 1], 64, 600), vec![600], 2);
        case.q = Dense::from_fn(vec![1, 2, 64], |_| T::ONE).unwrap();
        let key = |i: &[usize]| T::from_f64(sign * (i[2] / 4) as f64 / 8.0);
        case.k = Dense::from_fn(vec![1, 1, 600, 64], key).unwrap();
        case.check(context);
    }
}

on_both! {
    the_largest_score_may_be_anywhere: cpu [growing::<f16>], gpu [growing::<f16>];
}

/// A NaN or Inf affects the query heads that share its key head, and no others.
fn planted<T: Scalar>(context: &Context) {
    for (bad, in_values) in
        [(f64::NAN, false), (f64::INFINITY, false), (f64::NAN, true), (f64::INFINITY, true)]
    {
        let mut case = Case::<T>::new(shape(3, [4, 2], 128, 150), vec![150, 149, 150], 3);
        let operand = if in_values { &mut case.v } else { &mut case.k };
        let clean = operand.clone();
        // An element of the first key head of the second sequence.
        let place = |i: &[usize]| i[0] == 1 && i[1] == 0 && i[2] == 140;
        let at = |i: &[usize]| ((i[0] * 2 + i[1]) * 150 + i[2]) * 128 + i[3];
        let value = |i: &[usize]| match place(i) {
            true => T::from_f64(bad),
            false => clean.values()[at(i)],
        };
        *operand = Dense::from_fn(vec![3, 2, 150, 128], value).unwrap();
        let out = case.run(context);
        for (row, out) in out.chunks(128).enumerate() {
            let finite = out.iter().filter(|x| x.to_f64().is_finite()).count();
            // A score of -Inf has weight 0.
            match row {
                4 | 5 if in_values || bad.is_nan() => assert_eq!(finite, 0, "{bad} {row}"),
                4 | 5 => assert!(finite == 0 || finite == 128, "{bad} {row}"),
                _ => assert_eq!(finite, 128, "{bad} {in_values} {row}"),
            }
        }
    }
}

on_both! {
    planted_nan_and_inf: cpu [planted::<bf16>], gpu [planted::<bf16>];
}

/// The bits of a sequence's result do not depend on the lengths of other sequences.
fn alone<T: Scalar>(context: &Context) {
    let one = shape(3, [8, 2], 128, 3000);
    let mut case = Case::<T>::new(one, vec![2500, 1, 3000], 6);
    let first = case.run(context);
    case.lengths = vec![2500, 3000, 0];
    let of_one = 8 * 128;
    let second = case.run(context);
    assert_eq!(bits(&first[..of_one]), bits(&second[..of_one]));
}

on_both! {
    sequences_do_not_depend_on_each_other: cpu [alone::<f16>], gpu [alone::<f16>];
}

/// A captured step adds a token at every launch.
#[test]
fn a_captured_step_lets_sequences_grow() {
    let Some(gpu) = gpu_alone() else { return };
    let own = shape(3, [8, 2], 128, 300);
    let mut case = Case::<bf16>::new(own, vec![300; 3], 8);
    let mut there = case.upload(&gpu);
    let mut lengths = gpu.upload_dense(&case.lengths_dense()).unwrap();
    let attention = CachedAttention::<bf16>::new(&gpu, [3, 300], &own.options()).unwrap();
    let stream = gpu.stream().unwrap();
    let run = || there.append(&attention, &lengths, &stream);
    let mut graph = Replay::of(&stream, run);
    case.add_fresh();
    for lens in [[1, 298, 0], [250, 298, 299], [251, 299, 300], [300, 300, 300]] {
        case.lengths = lens.to_vec();
        lengths.write(&case.lengths_dense()).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        // The step adds the rows that the case holds at the end of each sequence.
        case.add_fresh();
        case.judge(there.out.to_dense().unwrap().values());
    }
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let cpu = Context::unchecked_cpu();
    let options = shape(2, [4, 2], 8, 5).options();
    let refused = |change: fn(&mut AttentionOptions)| {
        let mut options = options.clone();
        change(&mut options);
        CachedAttention::<f32>::new(&cpu, [2, 5], &options).unwrap_err()
    };
    for (option, error) in [
        ("lengths", refused(|o| o.lengths = Some(vec![1]))),
        ("causal", refused(|o| o.causal = Some(0))),
        ("key_heads", refused(|o| o.key_heads = Some(3))),
        ("scale", refused(|o| o.scale = Some(-1.0))),
    ] {
        assert_error!(error, Error::OutOfRange { name, .. } if name == option);
    }
    let attention = CachedAttention::<f32>::new(&cpu, [2, 5], &options)?;
    let (q, new) = (cpu.zeros::<f32>(&[2, 4, 8])?, cpu.zeros(&[2, 2, 8])?);
    let [mut k, mut v] = [cpu.zeros(&[2, 2, 5, 8])?, cpu.zeros(&[2, 2, 5, 8])?];
    let lengths = cpu.zeros::<i32>(&[2])?;
    let mut out = cpu.zeros(&[2, 4, 8])?;
    let stream = cpu.stream()?;
    attention.forward(&q, [&k, &v], &lengths, &mut out, &stream)?;
    let named = |error: Error, name: &str| {
        let found = matches!(&error, Error::Shape { index, .. } if index == name);
        assert!(found, "{name}: {error}");
    };
    let other = attention.forward(&q, [&k, &new], &lengths, &mut out, &stream);
    named(other.unwrap_err(), "v");
    let short = cpu.zeros::<i32>(&[3])?;
    let other = attention.forward(&q, [&k, &v], &short, &mut out, &stream);
    named(other.unwrap_err(), "lengths");
    let other = attention.append(&q, [&new, &q], [&mut k, &mut v], &lengths, &mut out, &stream);
    named(other.unwrap_err(), "new v");
    // Empty extents are valid and do nothing.
    let none = CachedAttention::<f32>::new(&cpu, [0, 5], &options)?;
    let (q, cache) = (cpu.zeros(&[0, 4, 8])?, cpu.zeros(&[0, 2, 5, 8])?);
    let mut out = cpu.zeros(&[0, 4, 8])?;
    none.forward(&q, [&cache, &cache], &cpu.zeros(&[0])?, &mut out, &stream)
}

#[test]
fn what_has_no_kernel_is_refused() {
    let Some(context) = gpu() else { return };
    let error = |dim: usize, heads: [usize; 2]| {
        let options = shape(1, heads, dim, 5).options();
        let made = CachedAttention::<f16>::new(&context, [1, 5], &options);
        made.unwrap_err().to_string()
    };
    let dim = error(96, [1, 1]);
    assert!(dim.contains("is for queries of 64, not 96"), "{dim}");
    let group = error(64, [17, 1]);
    assert!(group.contains("17"), "{group}");
    let options = shape(1, [1, 1], 64, 5).options();
    let other = CachedAttention::<f32>::new(&context, [1, 5], &options);
    let other = other.unwrap_err().to_string();
    assert!(other.contains("is for f16, not f32"), "{other}");
}

/// No sequences, and a cache of capacity 0.
fn nothing<T: Scalar>(context: &Context) {
    Case::<T>::new(shape(0, [4, 2], 64, 10), Vec::new(), 1).check(context);
    Case::<T>::new(shape(2, [4, 2], 128, 0), vec![0, 3], 1).check(context);
}

on_both! {
    caches_of_nothing: cpu [nothing::<f16>], gpu [nothing::<f16>];
}
