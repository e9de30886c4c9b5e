//! Experts over ranks, on CPUs and on GPUs.

use einsparse::dynamic::Gate;
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, generate};
use einsparse::group::{Partition, ShardedMoe, ShardedMoeOptions};
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};
use einsparse::{Context, Result, Scalar, Stream, Tensor};

use super::cases::on_ranks;

const TOKENS: usize = 72;
const EXPERTS: usize = 12;

fn layer(top_k: usize, gate: Option<Gate>) -> MoeOptions {
    MoeOptions {
        tokens: TOKENS,
        experts: EXPERTS,
        top_k,
        model: 64,
        hidden: 32,
        activation: match gate {
            None => Activation::Relu,
            Some(_) => Activation::Identity,
        },
        gate,
        transposed: gate.is_some(),
        ..MoeOptions::default()
    }
}

/// Distribution of the choices of tokens.
#[derive(Clone, Copy, Debug)]
enum Routes {
    Even,
    /// Half of the tokens choose the first expert, a quarter the second, and so on; the last experts are not chosen.
    Skewed,
    /// All tokens choose one expert.
    One,
    /// Some choices name no expert.
    Holes,
}

const ROUTES: [Routes; 4] = [Routes::Even, Routes::Skewed, Routes::One, Routes::Holes];

/// Tensors that a layer reads, and the gradient of its output.
struct Operands<T> {
    x: Dense<T>,
    choices: Dense<i32>,
    weights: Dense<f32>,
    up: Dense<T>,
    down: Dense<T>,
    dout: Dense<T>,
}

fn operands<T: Scalar>(o: &MoeOptions, routes: Routes) -> Operands<T> {
    let values = |shape: &[usize], seed: u64, scale: f32| {
        let all: Vec<f32> = generate::random_values(shape.iter().product(), seed);
        let all = all.iter().map(|v| T::from_f64(f64::from(scale * v)));
        Dense::new(shape.to_vec(), all.collect()).unwrap()
    };
    let words: Vec<f32> = generate::random_values(o.tokens * o.top_k, 5);
    let choice = |word: &f32| {
        let word = word.to_bits() >> 3;
        let any = (word % EXPERTS as u32) as i32;
        match routes {
            Routes::Even => any,
            Routes::Skewed => (word.trailing_zeros() as i32).min(EXPERTS as i32 - 4),
            Routes::One => EXPERTS as i32 - 1,
            Routes::Holes if word & 64 == 0 => [-1, EXPERTS as i32][word as usize % 2],
            Routes::Holes => any,
        }
    };
    let choices = words.iter().map(choice).collect();
    let weights = words.iter().map(|word| word.abs()).collect();
    let [up, down] = o.shapes();
    Operands {
        x: values(&[o.tokens, o.model], 1, 1.0),
        choices: Dense::new([o.tokens, o.top_k], choices).unwrap(),
        weights: Dense::new([o.tokens, o.top_k], weights).unwrap(),
        up: values(&up, 2, 0.125),
        down: values(&down, 3, 0.125),
        dout: values(&[o.tokens, o.model], 4, 1.0),
    }
}

fn part<T: Scalar>(dense: &Dense<T>, of: std::ops::Range<usize>) -> Dense<T> {
    let each: usize = dense.shape()[1..].iter().product();
    let mut shape = dense.shape().to_vec();
    shape[0] = of.len();
    Dense::new(shape, dense.values()[of.start * each..of.end * each].to_vec()).unwrap()
}

/// Gradients of tokens, of both stacks, and of weights.
type Gradients<T> = ([Vec<T>; 3], Vec<f32>);

/// Outputs; after training, also the gradients.
type Found<T> = (Vec<T>, Option<Gradients<T>>);

/// Gradients by `backward` of a layer: of tokens, both stacks and weights, in shapes like these.
fn gradients<T: Scalar>(
    context: &Context,
    like: ([&Tensor<T>; 3], &Tensor<f32>),
    stream: &Stream,
    backward: impl FnOnce(MoeGradients<'_, T>) -> Result<()>,
) -> Result<Gradients<T>> {
    let [x, up, down] = like.0.map(|like| context.zeros(like.shape()));
    let (mut x, mut up, mut down) = (x?, up?, down?);
    let mut weights = context.zeros(like.1.shape())?;
    backward(MoeGradients { x: &mut x, weights: &mut weights, up: &mut up, down: &mut down })?;
    stream.synchronize()?;
    let rows = [x.to_dense()?, up.to_dense()?, down.to_dense()?];
    Ok((rows.map(Dense::into_values), weights.to_dense()?.into_values()))
}

/// Runs over ranks twice, and checks for equal bits.
fn sharded<T: Scalar>(
    contexts: &[Context],
    o: &MoeOptions,
    operands: &Operands<T>,
    tokens: &Partition,
    options: &ShardedMoeOptions,
) -> Found<T> {
    let results = on_ranks(contexts, |group| {
        let (ctx, own) = (group.context(), tokens.range(group.rank()));
        let stream = ctx.stream()?;
        let mut layer = ShardedMoe::<T>::new(&group, o, tokens, options)?;
        let experts = layer.experts();
        assert!(layer.to_string().contains(&format!("experts {experts:?}")));
        let x = ctx.upload_dense(&part(&operands.x, own.clone()))?;
        let choices = ctx.upload_dense(&part(&operands.choices, own.clone()))?;
        let weights = ctx.upload_dense(&part(&operands.weights, own.clone()))?;
        let up = ctx.upload_dense(&part(&operands.up, experts.clone()))?;
        let down = ctx.upload_dense(&part(&operands.down, experts))?;
        assert_eq!(layer.shapes().map(Vec::from), [up.shape(), down.shape()]);
        let dout = ctx.upload_dense(&part(&operands.dout, own.clone()))?;
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut out = ctx.zeros(&[own.len(), o.model])?;
            let inputs = MoeInputs {
                x: &x,
                choices: &choices,
                weights: &weights,
                up: (&up).into(),
                down: (&down).into(),
            };
            layer.forward(&inputs, &mut out, &stream)?;
            stream.synchronize()?;
            let out = out.to_dense()?.into_values();
            if !options.training {
                runs.push((out, None));
                continue;
            }
            let like = ([&x, &up, &down], &weights);
            let own =
                gradients(ctx, like, &stream, |to| layer.backward(&inputs, &dout, to, &stream))?;
            runs.push((out, Some(own)));
        }
        Ok(runs)
    });
    let mut all: Vec<Found<T>> = Vec::new();
    for own in results.into_iter().map(|own| own.unwrap()) {
        assert!(own[0] == own[1], "two runs differ");
        all.push(own.into_iter().next().unwrap());
    }
    let mut whole = all.remove(0);
    for (out, gradients) in all {
        whole.0.extend(out);
        if let (Some((rows, weights)), Some(own)) = (&mut whole.1, gradients) {
            rows.iter_mut().zip(own.0).for_each(|(a, b)| a.extend(b));
            weights.extend(own.1);
        }
    }
    whole
}

/// The layer on one GPU.
fn alone<T: Scalar>(context: &Context, o: &MoeOptions, from: &Operands<T>) -> Result<Found<T>> {
    let stream = context.stream()?;
    let [x, up, down, dout] =
        [&from.x, &from.up, &from.down, &from.dout].map(|d| context.upload_dense(d));
    let (x, up, down, dout) = (x?, up?, down?, dout?);
    let choices = context.upload_dense(&from.choices)?;
    let weights = context.upload_dense(&from.weights)?;
    let mut layer = Moe::for_training(context, o)?;
    let mut out = context.zeros(x.shape())?;
    let inputs = MoeInputs {
        x: &x,
        choices: &choices,
        weights: &weights,
        up: (&up).into(),
        down: (&down).into(),
    };
    layer.forward(&inputs, &mut out, &stream)?;
    let like = ([&x, &up, &down], &weights);
    let own = gradients(context, like, &stream, |to| layer.backward(&inputs, &dout, to, &stream))?;
    Ok((out.to_dense()?.into_values(), Some(own)))
}

fn near<T: Scalar>(what: &str, found: &[T], wanted: &[T]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let pairs = found.iter().zip(wanted);
    let off = norm(&mut pairs.map(|(a, b)| a.to_f64() - b.to_f64()));
    let size = norm(&mut wanted.iter().map(|b| b.to_f64()));
    let bound = if size_of::<T>() == 2 { 1e-2 } else { 1e-5 };
    assert!(off <= bound * size, "{what}: {off} of {size}");
}

fn near_all<T: Scalar>(what: &str, found: &Found<T>, wanted: &Found<T>) {
    near(what, &found.0, &wanted.0);
    if let (Some((rows, weights)), Some((rows_wanted, weights_wanted))) = (&found.1, &wanted.1) {
        near(what, weights, weights_wanted);
        for (found, wanted) in rows.iter().zip(rows_wanted) {
            near(what, found, wanted);
        }
    }
}

/// Partitions of tokens: evenly, and all tokens on the first rank.
fn deals(size: usize) -> [Partition; 2] {
    let counts = [&[u32::MAX / 2][..], &[0; TOKENS - 1]].concat();
    [Partition::even(TOKENS, size), Partition::of_counts(&counts, 8, size)]
}

/// Near the layer on one GPU; equal bits with one expert per token or with one rank. With a fixed number of shares, the
/// bits of one rank.
pub fn experts<T: Scalar>(contexts: &[Context]) {
    let size = contexts.len();
    for (top_k, gate) in [(1, None), (3, None), (2, Some(Gate::Silu))] {
        let o = layer(top_k, gate);
        for routes in ROUTES {
            let from = operands::<T>(&o, routes);
            let one = alone(&contexts[0], &o, &from).unwrap();
            let plain = ShardedMoeOptions::default();
            let twelve = ShardedMoeOptions { shares: Some(EXPERTS), ..plain };
            let whole = Partition::even(TOKENS, 1);
            let wanted = sharded(&contexts[..1], &o, &from, &whole, &twelve);
            for tokens in deals(size) {
                let what = format!("{o:?}, {routes:?}, {tokens:?}");
                let found = sharded(contexts, &o, &from, &tokens, &plain);
                near_all(&what, &found, &one);
                // A gated layer rounds its sums in training.
                let kernels_differ = contexts[0].is_cuda() && (size > 1 || gate.is_some());
                if !kernels_differ && (size == 1 || top_k == 1) {
                    assert!(found.0 == one.0, "{what}");
                }
                let found = sharded(contexts, &o, &from, &tokens, &twelve);
                assert!(found == wanted, "{what}, in shares");
            }
        }
    }
}

/// Gradients near those of one GPU; with a fixed number of shares, the bits of one rank.
pub fn expert_gradients<T: Scalar>(contexts: &[Context]) {
    for (top_k, gate) in [(1, None), (2, Some(Gate::Silu))] {
        let o = layer(top_k, gate);
        for routes in ROUTES {
            let from = operands::<T>(&o, routes);
            let one = alone(&contexts[0], &o, &from).unwrap();
            let plain = ShardedMoeOptions { training: true, ..ShardedMoeOptions::default() };
            let twelve = ShardedMoeOptions { shares: Some(EXPERTS), ..plain };
            let whole = Partition::even(TOKENS, 1);
            let wanted = sharded(&contexts[..1], &o, &from, &whole, &twelve);
            near_all("one rank in shares", &wanted, &one);
            for tokens in deals(contexts.len()) {
                let what = format!("gradients of {o:?}, {routes:?}, {tokens:?}");
                near_all(&what, &sharded(contexts, &o, &from, &tokens, &plain), &one);
                let found = sharded(contexts, &o, &from, &tokens, &twelve);
                assert!(found == wanted, "{what}, in shares");
            }
        }
    }
}
