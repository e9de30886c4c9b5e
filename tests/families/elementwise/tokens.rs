//! Lookup of tokens, and selection of tokens from logits.

use super::{shape_of, values};
use crate::support::dense::{upload_values, wide};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{gpu_alone, on_gpu};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Embedding, Greedy};
use einsparse::{Context, Scalar, Tensor};

/// Returns features of tokens, some of which are invalid; then the largest of each, and the updated lengths.
fn tokens<T: Scalar>(
    ctx: &Context,
    [count, vocabulary, width]: [usize; 3],
    columns: bool,
) -> (Vec<f64>, Vec<i32>, Vec<i32>) {
    let table = values::<T>(&[vocabulary, width], 9);
    // Two equal elements, and some that are NaN.
    let values = table.values().iter().enumerate();
    let values = values.map(|(at, &x)| match (at / width, at % width) {
        (1, 3 | 7) => T::from_f64(9.0),
        (2, f) if f % 2 == 0 => T::from_f64(f64::NAN),
        (3, _) => T::from_f64(f64::NAN),
        _ => x,
    });
    let table = upload_values(ctx, &[vocabulary, width], values.collect());
    let numbers = (0..count).map(|t| match t % 7 {
        5 => -1,
        6 => vocabulary as i32,
        t => (t * 31 % vocabulary) as i32,
    });
    let mut numbers = upload_values(ctx, &[count], numbers.collect());
    let mut lengths = upload_values(ctx, &[count], (0..count as i32).collect());
    let embedding = Embedding::<T>::new(ctx, [vocabulary, width], count, columns).unwrap();
    let greedy = Greedy::<T>::new(ctx, [count, width], columns).unwrap();
    let mut out = ctx.zeros::<T>(&shape_of(columns, [count, width])).unwrap();
    finish(ctx, |stream| {
        embedding.forward(&table, &numbers, &mut out, stream)?;
        greedy.forward(&out, &mut numbers, Some(&mut lengths), stream)
    });
    let words = |tensor: &Tensor<i32>| tensor.to_dense().unwrap().into_values();
    (wide(&out), words(&numbers), words(&lengths))
}

const TOKENS: [[usize; 3]; 5] =
    [[1, 5, 16], [9, 5, 40], [64, 1000, 513], [16, 8, 4096], [3, 4, 32_000]];

fn tokens_agree<T: Scalar>(gpu: &Context) {
    for extents in TOKENS {
        for columns in [false, true] {
            let found = tokens::<T>(gpu, extents, columns);
            let wanted = tokens::<T>(&Context::unchecked_cpu(), extents, columns);
            let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found.0), bits(&wanted.0), "{} {extents:?}", T::NAME);
            assert_eq!(found.1, wanted.1, "{} {extents:?}, columns {columns}", T::NAME);
            assert_eq!(found.2, wanted.2);
        }
    }
}

#[test]
fn tokens_on_the_gpu() {
    on_gpu(&[tokens_agree::<f32>, tokens_agree::<f16>, tokens_agree::<bf16>]);
}

#[test]
fn the_first_of_the_largest_is_the_next_token() {
    let (_, next, lengths) = tokens::<f32>(&Context::unchecked_cpu(), [9, 5, 40], false);
    // Row 1 holds 9 twice, and the first wins. Row 3 is all NaN; invalid tokens have zero features.
    assert_eq!((next[1], next[3], next[5], next[6]), (3, 0, 0, 0));
    assert_eq!(lengths, (1..=9).collect::<Vec<i32>>());
}

#[test]
fn a_captured_step_generates_one_token_after_the_other() {
    let Some(gpu) = gpu_alone() else { return };
    // Each token's row is largest at the index of the next token.
    let table =
        Dense::from_fn(vec![8, 8], |i| f16::from_f32(f32::from(u8::from(i[1] == (i[0] + 3) % 8))))
            .unwrap();
    let table = gpu.upload_dense(&table).unwrap();
    let one = |x: i32| upload_values(&gpu, &[1], vec![x]);
    let (mut token, mut length) = (one(2), one(1));
    let mut x = gpu.zeros::<f16>(&[1, 8]).unwrap();
    let embedding = Embedding::<f16>::new(&gpu, [8, 8], 1, false).unwrap();
    let greedy = Greedy::<f16>::new(&gpu, [1, 8], false).unwrap();
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || {
        embedding.forward(&table, &token, &mut x, &stream)?;
        greedy.forward(&x, &mut token, Some(&mut length), &stream)
    });
    for _ in 0..4 {
        // SAFETY: all memory that the graph uses is alive, and nothing else uses it.
        unsafe { graph.run() };
    }
    stream.synchronize().unwrap();
    let steps = length.to_dense().unwrap().values()[0] - 1;
    assert!(steps >= 4);
    assert_eq!(token.to_dense().unwrap().values()[0], (2 + 3 * steps) % 8);
}
