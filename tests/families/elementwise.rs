//! Normalisation, rotary positions, gates and tokens: the GPU against the CPU, and that against formulas written out.

use einsparse::dynamic::Gate;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Activation, Embedding, Glu, Greedy, RmsNorm, Rotary, RotaryOptions};
use einsparse::{Context, Error, Scalar, Tensor};

use crate::support::dense::wide;
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

/// Tokens and features around every width of lanes and vectors.
const EXTENTS: [[usize; 2]; 14] = [
    [1, 1],
    [3, 40],
    [0, 8],
    [5, 0],
    [8, 128],
    [17, 513],
    [1, 4096],
    [64, 1024],
    [24, 1032],
    [7, 5120],
    [16, 8192],
    [3, 70_000],
    [300, 130],
    [264, 4096],
];

fn values<T: Scalar>(shape: &[usize], seed: u64) -> Dense<T> {
    let values = Rng(seed).units::<f64>(shape.iter().product());
    let values = values.iter().map(|x| T::from_f64(2.0 * x));
    Dense::new(shape, values.collect()).unwrap()
}

/// Rows with gaps of NaN, of so many elements.
fn with_gaps<T: Scalar>(ctx: &Context, dense: &Dense<T>, gap: usize) -> Tensor<T> {
    let leading = dense.shape()[1] + gap;
    ctx.upload_strided(dense, leading, T::from_f64(f64::NAN))
        .unwrap()
}

fn gaps_are_left<T: Scalar>(tensor: &Tensor<T>) {
    let (stored, columns) = (tensor.to_storage().unwrap(), tensor.shape()[1]);
    for row in stored
        .chunks(tensor.leading().max(1))
        .filter(|row| row.len() > columns)
    {
        assert!(
            row[columns..].iter().all(|x| x.to_f64().is_nan()),
            "a gap was written"
        );
    }
}

fn near<T: Scalar>(what: &str, found: &[f64], wanted: &[f64], within: f64) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (found - wanted).abs() <= within * (1.0 + wanted.abs()),
            "{} {what} at {at}: {found}, not {wanted}",
            T::NAME
        );
    }
}

/// As a few roundings of the type leave it.
fn within<T: Scalar>() -> f64 {
    match T::NAME {
        "f32" => 4e-6,
        "f16" => 2e-3,
        _ => 1.6e-2,
    }
}

fn turned(columns: bool, [tokens, width]: [usize; 2]) -> [usize; 2] {
    if columns {
        [width, tokens]
    } else {
        [tokens, width]
    }
}

/// The norm of x, the sum x + y, its norm.
fn norms<T: Scalar>(
    ctx: &Context,
    extents: [usize; 2],
    columns: bool,
    gap: usize,
) -> [Vec<f64>; 3] {
    let shape = turned(columns, extents);
    let norm = RmsNorm::<T>::new(ctx, extents, 1e-5, columns).unwrap();
    let mut x = with_gaps(ctx, &values::<T>(&shape, 1), gap);
    let y = with_gaps(ctx, &values::<T>(&shape, 2), gap);
    let factor = ctx.upload_dense(&values::<T>(&[extents[1]], 3)).unwrap();
    let nothing = values::<T>(&shape, 4);
    let [mut first, mut second] = [0, 1].map(|_| with_gaps(ctx, &nothing, gap));
    finish(ctx, |stream| {
        norm.forward(&x, &factor, &mut first, stream)?;
        norm.forward_residual([&mut x, &mut second], &y, &factor, stream)
    });
    gaps_are_left(&x);
    gaps_are_left(&second);
    [wide(&first), wide(&x), wide(&second)]
}

fn norms_agree<T: Scalar>(gpu: &Context) {
    for extents in EXTENTS {
        for (columns, gap) in [
            (false, 0),
            (true, 0),
            (false, 8),
            (true, 8),
            (false, 3),
            (true, 1),
        ] {
            let found = norms::<T>(gpu, extents, columns, gap);
            let wanted = norms::<T>(&Context::cpu(), extents, columns, gap);
            let what = format!("{extents:?}, columns {columns}, gap {gap}");
            for (found, wanted) in found.iter().zip(&wanted) {
                near::<T>(&what, found, wanted, within::<T>());
            }
        }
    }
}

#[test]
fn norms_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    norms_agree::<f32>(&gpu);
    norms_agree::<f16>(&gpu);
    norms_agree::<bf16>(&gpu);
}

#[test]
fn norms_are_those_written_out() {
    let [tokens, width] = [3, 40];
    for columns in [false, true] {
        let [first, sum, second] = norms::<f64>(&Context::cpu(), [tokens, width], columns, 2);
        let shape = turned(columns, [tokens, width]);
        let [x, y] = [1, 2].map(|seed| values::<f64>(&shape, seed).into_values());
        let factor = values::<f64>(&[width], 3).into_values();
        let at = |t: usize, f: usize| {
            if columns {
                f * tokens + t
            } else {
                t * width + f
            }
        };
        for t in 0..tokens {
            let root = |of: &dyn Fn(usize) -> f64| {
                let squares: f64 = (0..width).map(|f| of(f) * of(f)).sum();
                (squares / width as f64 + 1e-5).sqrt()
            };
            let both = |f: usize| x[at(t, f)] + y[at(t, f)];
            let roots = [root(&|f| x[at(t, f)]), root(&both)];
            for f in 0..width {
                let wanted = [x[at(t, f)] / roots[0], both(f) / roots[1]].map(|x| x * factor[f]);
                assert!((first[at(t, f)] - wanted[0]).abs() < 1e-12);
                assert!((second[at(t, f)] - wanted[1]).abs() < 1e-12);
                assert_eq!(sum[at(t, f)], both(f));
            }
        }
    }
}

const HEADS: [[usize; 4]; 5] = [
    [1, 1, 1, 16],
    [5, 4, 2, 64],
    [16, 8, 8, 128],
    [3, 3, 1, 48],
    [0, 2, 1, 32],
];

fn positions<T: Scalar>(
    ctx: &Context,
    [tokens, heads, key_heads, dim]: [usize; 4],
    columns: bool,
    gap: usize,
) -> Vec<Vec<f64>> {
    let options = RotaryOptions {
        tokens,
        heads,
        key_heads,
        dim,
        tokens_in_columns: columns,
        ..RotaryOptions::default()
    };
    let rotary = Rotary::<T>::new(ctx, &options).unwrap();
    let shape = turned(columns, [tokens, (heads + 2 * key_heads) * dim]);
    let x = with_gaps(ctx, &values::<T>(&shape, 5), gap);
    let lengths = (0..tokens)
        .map(|t| [1, 2, 77, 32_769, 1_000_000][t % 5])
        .collect();
    let lengths = ctx
        .upload_dense(&Dense::new([tokens], lengths).unwrap())
        .unwrap();
    let part = |heads: usize| ctx.zeros::<T>(&[tokens, heads, dim]).unwrap();
    let [mut q, mut k, mut v] = [heads, key_heads, key_heads].map(part);
    finish(ctx, |stream| {
        rotary.forward(&x, &lengths, [&mut q, &mut k, &mut v], stream)
    });
    [q, k, v].iter().map(wide).collect()
}

#[test]
fn positions_on_the_gpu() {
    fn agree<T: Scalar>(gpu: &Context) {
        for heads in HEADS {
            for (columns, gap) in [(false, 0), (true, 0), (false, 8), (true, 3)] {
                let found = positions::<T>(gpu, heads, columns, gap);
                let wanted = positions::<T>(&Context::cpu(), heads, columns, gap);
                for (found, wanted) in found.iter().zip(&wanted) {
                    near::<T>(
                        &format!("{heads:?}, columns {columns}"),
                        found,
                        wanted,
                        within::<T>(),
                    );
                }
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    agree::<f32>(&gpu);
    agree::<f16>(&gpu);
    agree::<bf16>(&gpu);
}

/// What attention sees of two positions is how far they are apart, and values are as they were.
#[test]
fn scores_depend_on_the_distance() {
    let options = RotaryOptions {
        tokens: 2,
        dim: 32,
        ..RotaryOptions::default()
    };
    let cpu = Context::cpu();
    let rotary = Rotary::<f64>::new(&cpu, &options).unwrap();
    let one = values::<f64>(&[1, 96], 6).into_values();
    let x = cpu
        .upload_dense(&Dense::new([2, 96], [one.clone(), one.clone()].concat()).unwrap())
        .unwrap();
    let score = |from: i32, to: i32| {
        let lengths = cpu
            .upload_dense(&Dense::new([2], vec![from, to]).unwrap())
            .unwrap();
        let mut parts = [0; 3].map(|_| cpu.zeros(&[2, 1, 32]).unwrap());
        rotary
            .forward(&x, &lengths, parts.each_mut(), &cpu.stream().unwrap())
            .unwrap();
        let [q, k, v] = parts.map(|part| wide(&part));
        assert_eq!(v[..32], one[64..]);
        q[..32]
            .iter()
            .zip(&k[32..])
            .map(|(a, b)| a * b)
            .sum::<f64>()
    };
    assert!((score(5, 9) - score(105, 109)).abs() < 1e-9);
    assert!((score(5, 9) - score(5, 10)).abs() > 1e-3);
    // The first position turns nothing.
    let straight: f64 = one[..32].iter().zip(&one[32..64]).map(|(a, b)| a * b).sum();
    assert!((score(1, 1) - straight).abs() < 1e-12);
}

fn gated<T: Scalar>(
    ctx: &Context,
    gate: Gate,
    [tokens, width]: [usize; 2],
    columns: bool,
    gap: usize,
) -> Vec<f64> {
    let glu = Glu::<T>::new(ctx, gate, [tokens, width], columns).unwrap();
    let x = with_gaps(
        ctx,
        &values::<T>(&turned(columns, [tokens, 2 * width]), 7),
        gap,
    );
    let mut out = with_gaps(ctx, &values::<T>(&turned(columns, [tokens, width]), 8), gap);
    finish(ctx, |stream| glu.forward(&x, &mut out, stream));
    gaps_are_left(&out);
    wide(&out)
}

#[test]
fn gates_on_the_gpu() {
    fn agree<T: Scalar>(gpu: &Context) {
        for gate in [Gate::Silu, Gate::Gelu, Gate::Relu] {
            for extents in EXTENTS {
                for (columns, gap) in [(false, 0), (true, 0), (false, 8), (true, 1)] {
                    let found = gated::<T>(gpu, gate, extents, columns, gap);
                    let wanted = gated::<T>(&Context::cpu(), gate, extents, columns, gap);
                    near::<T>(
                        &format!("{gate:?} {extents:?}, columns {columns}"),
                        &found,
                        &wanted,
                        within::<T>(),
                    );
                }
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    agree::<f32>(&gpu);
    agree::<f16>(&gpu);
    agree::<bf16>(&gpu);
}

#[test]
fn gates_are_those_written_out() {
    let x = values::<f64>(&[3, 80], 7).into_values();
    let found = gated::<f64>(&Context::cpu(), Gate::Silu, [3, 40], false, 0);
    for (at, found) in found.iter().enumerate() {
        let [gate, other] = [0, 40].map(|by| x[at / 40 * 80 + by + at % 40]);
        assert!((found - gate / (1.0 + (-gate).exp()) * other).abs() < 1e-12);
    }
}

/// A function of every element, and its gradient.
fn activated<T: Scalar>(ctx: &Context, gate: Gate, extents: [usize; 2], gap: usize) -> Vec<f64> {
    let x = with_gaps(ctx, &values::<T>(&extents, 3), gap);
    let dy = with_gaps(ctx, &values::<T>(&extents, 4), gap);
    let mut y = with_gaps(ctx, &Dense::zeros(extents).unwrap(), gap);
    let mut dx = with_gaps(ctx, &Dense::zeros(extents).unwrap(), gap);
    let function = Activation::new(ctx, gate, extents).unwrap();
    finish(ctx, |stream| {
        function.forward(&x, &mut y, stream)?;
        function.backward(&x, &dy, &mut dx, stream)
    });
    gaps_are_left(&y);
    gaps_are_left(&dx);
    let mut all = wide(&y);
    all.extend(wide(&dx));
    all
}

#[test]
fn activations_on_the_gpu() {
    fn agree<T: Scalar>(gpu: &Context) {
        for gate in [Gate::Silu, Gate::Gelu, Gate::Relu] {
            for extents in EXTENTS {
                for gap in [0, 8, 1] {
                    let found = activated::<T>(gpu, gate, extents, gap);
                    let wanted = activated::<T>(&Context::cpu(), gate, extents, gap);
                    near::<T>(
                        &format!("{gate:?} {extents:?}"),
                        &found,
                        &wanted,
                        within::<T>(),
                    );
                }
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    agree::<f32>(&gpu);
    agree::<f16>(&gpu);
    agree::<bf16>(&gpu);
}

#[test]
fn activations_are_those_written_out() {
    let [x, dy] = [3, 4].map(|seed| values::<f64>(&[3, 40], seed).into_values());
    let found = activated::<f64>(&Context::cpu(), Gate::Silu, [3, 40], 2);
    for (at, (x, dy)) in x.iter().zip(&dy).enumerate() {
        let s = 1.0 / (1.0 + (-x).exp());
        assert!((found[at] - x * s).abs() < 1e-12);
        assert!((found[120 + at] - dy * (s + x * s * (1.0 - s))).abs() < 1e-12);
    }
}

/// Features of tokens, some of which there are none of; then the largest of each, and what becomes of lengths.
fn tokens<T: Scalar>(
    ctx: &Context,
    [count, vocabulary, width]: [usize; 3],
    columns: bool,
) -> (Vec<f64>, Vec<i32>, Vec<i32>) {
    let table = values::<T>(&[vocabulary, width], 9);
    // Two that are alike, and some that are none.
    let values = table.values().iter().enumerate();
    let values = values.map(|(at, &x)| match (at / width, at % width) {
        (1, 3 | 7) => T::from_f64(9.0),
        (2, f) if f % 2 == 0 => T::from_f64(f64::NAN),
        (3, _) => T::from_f64(f64::NAN),
        _ => x,
    });
    let table = ctx
        .upload_dense(&Dense::new([vocabulary, width], values.collect()).unwrap())
        .unwrap();
    let numbers = (0..count).map(|t| match t % 7 {
        5 => -1,
        6 => vocabulary as i32,
        t => (t * 31 % vocabulary) as i32,
    });
    let mut numbers = ctx
        .upload_dense(&Dense::new([count], numbers.collect()).unwrap())
        .unwrap();
    let mut lengths = ctx
        .upload_dense(&Dense::new([count], (0..count as i32).collect()).unwrap())
        .unwrap();
    let embedding = Embedding::<T>::new(ctx, [vocabulary, width], count, columns).unwrap();
    let greedy = Greedy::<T>::new(ctx, [count, width], columns).unwrap();
    let mut out = ctx.zeros::<T>(&turned(columns, [count, width])).unwrap();
    finish(ctx, |stream| {
        embedding.forward(&table, &numbers, &mut out, stream)?;
        greedy.forward(&out, &mut numbers, Some(&mut lengths), stream)
    });
    let words = |tensor: &Tensor<i32>| tensor.to_dense().unwrap().into_values();
    (wide(&out), words(&numbers), words(&lengths))
}

const TOKENS: [[usize; 3]; 5] = [
    [1, 5, 16],
    [9, 5, 40],
    [64, 1000, 513],
    [16, 8, 4096],
    [3, 4, 32_000],
];

#[test]
fn tokens_on_the_gpu() {
    fn agree<T: Scalar>(gpu: &Context) {
        for extents in TOKENS {
            for columns in [false, true] {
                let found = tokens::<T>(gpu, extents, columns);
                let wanted = tokens::<T>(&Context::cpu(), extents, columns);
                let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found.0), bits(&wanted.0), "{} {extents:?}", T::NAME);
                assert_eq!(
                    found.1,
                    wanted.1,
                    "{} {extents:?}, columns {columns}",
                    T::NAME
                );
                assert_eq!(found.2, wanted.2);
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    agree::<f32>(&gpu);
    agree::<f16>(&gpu);
    agree::<bf16>(&gpu);
}

#[test]
fn the_first_of_the_largest_is_the_next_token() {
    let (_, next, lengths) = tokens::<f32>(&Context::cpu(), [9, 5, 40], false);
    // Row 1 holds 9 twice; rows 3 and those that are none hold nothing.
    assert_eq!((next[1], next[4], next[5], next[6]), (3, next[4], 0, 0));
    assert_eq!(lengths, (1..=9).collect::<Vec<i32>>());
}

#[test]
fn a_captured_step_generates_one_token_after_the_other() {
    let Some(gpu) = gpu_alone() else { return };
    // Each token's row is largest where the next one is.
    let table = Dense::from_fn(vec![8, 8], |i| {
        f16::from_f32(f32::from(u8::from(i[1] == (i[0] + 3) % 8)))
    })
    .unwrap();
    let table = gpu.upload_dense(&table).unwrap();
    let one = |x: i32| {
        gpu.upload_dense(&Dense::new([1], vec![x]).unwrap())
            .unwrap()
    };
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
        // SAFETY: what the graph names is alive, and nothing else uses it.
        unsafe { graph.run() };
    }
    stream.synchronize().unwrap();
    let steps = length.to_dense().unwrap().values()[0] - 1;
    assert!(steps >= 4);
    assert_eq!(token.to_dense().unwrap().values()[0], (2 + 3 * steps) % 8);
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Context::cpu();
    let refused = |result: Result<(), Error>, words: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    refused(
        RmsNorm::<f32>::new(&cpu, [1, 8], f64::NAN, false).map(drop),
        "epsilon",
    );
    let options = RotaryOptions {
        dim: 24,
        ..RotaryOptions::default()
    };
    refused(Rotary::<f32>::new(&cpu, &options).map(drop), "24");
    let options = RotaryOptions {
        base: 0.0,
        ..RotaryOptions::default()
    };
    refused(Rotary::<f32>::new(&cpu, &options).map(drop), "base");
    let stream = cpu.stream().unwrap();
    let norm = RmsNorm::<f32>::new(&cpu, [2, 8], 0.0, true).unwrap();
    let zeros = |shape: &[usize]| cpu.zeros::<f32>(shape).unwrap();
    let (x, factor, mut out) = (zeros(&[8, 2]), zeros(&[8]), zeros(&[2, 8]));
    refused(norm.forward(&x, &factor, &mut out, &stream), "out");
    let glu = Glu::<f32>::new(&cpu, Gate::Silu, [2, 8], false).unwrap();
    refused(glu.forward(&zeros(&[2, 8]), &mut out, &stream), "x");
    let Some(gpu) = gpu() else { return };
    refused(
        RmsNorm::<f64>::new(&gpu, [1, 8], 0.0, false).map(drop),
        "f64",
    );
}
