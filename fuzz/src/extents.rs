//! Extents at the limits of their types, with few or no nonzeros: an error, or the result of a small matrix. Memory is
//! proportional to the nonzeros.

use einsparse::dynamic::{
    ChannelDetector, ConvolutionOptions, DetectOptions, Detector, Dynamic, DynamicConvolution,
    GroupedGemm, GroupedOptions, Routing,
};
use einsparse::formats::{
    AnySparse, Coo, Dense, Format, Pattern, allocate, fill, io::Limits, reorder, stats,
};
use einsparse::nn::{self, CrossEntropy, Embedding, Moe, MoeOptions, RmsNorm, Rotary};
use einsparse::nn::{RotaryOptions, Router, RouterOptions, Sgd, SgdOptions};
use einsparse::ops::{AttentionOptions, CachedAttention, Conv2d, Conv2dOptions, DynamicAttention};
use einsparse::{Context, Error, Operand};

use super::conversions::FORMATS;
use super::input::Input;
use super::outcome::{Outcome, outcome, refused};
use super::plans::TEXTS;

/// Small extents, and those at the limits of sizes, index types and memory.
fn extent(input: &mut Input<'_>) -> usize {
    const EXTENTS: [usize; 16] = [
        u32::MAX as usize,
        0,
        1,
        3,
        1 << 20,
        15_900_000,
        300_000,
        65_536,
        u32::MAX as usize - 1,
        1 << 31,
        17,
        64,
        4096,
        7_000_000,
        2,
        130,
    ];
    input.one(&EXTENTS)
}

/// Small numbers, and those larger than any memory: an operator may allocate in proportion to its extents.
fn number(input: &mut Input<'_>) -> usize {
    const SMALL: [usize; 8] = [0, 1, 2, 3, 16, 17, 64, 128];
    const LARGE: [usize; 8] = [
        usize::MAX,
        1 << 62,
        1 << 40,
        usize::MAX / 2 + 1,
        1 << 32,
        u32::MAX as usize,
        1 << 31,
        usize::MAX - 63,
    ];
    match input.below(2) {
        0 => input.one(&SMALL),
        _ => input.one(&LARGE),
    }
}

/// One format of each kind, or one with large blocks or groups.
fn format(input: &mut Input<'_>) -> Format {
    const LARGE: [&str; 5] = [
        "bsr:65535x65535",
        "bsr:4294967295x1",
        "groupcoo:4294967295",
        "blockgroupcoo:4x1:1000000",
        "blockcoo:1x4294967295",
    ];
    let text = match input.below(4) {
        0 => input.one(&LARGE),
        _ => input.one(&FORMATS),
    };
    text.parse().expect("a format")
}

/// A few nonzeros anywhere in the shape.
fn sparse(input: &mut Input<'_>, shape: &[usize]) -> Option<AnySparse<f64>> {
    let empty = shape.contains(&0);
    let count = if empty { 0 } else { input.below(9) };
    let mut coords = vec![Vec::new(); shape.len()];
    for _ in 0..count {
        for (axis, &extent) in coords.iter_mut().zip(shape) {
            let at = match input.below(3) {
                0 => extent - 1,
                1 => input.below(extent.min(256)),
                _ => (input.below(256) << 24 | input.below(256)) % extent,
            };
            axis.push(at as u32);
        }
    }
    let values = vec![1.0; count];
    let coo = Coo::from_entries(shape.to_vec(), coords, values);
    coo.ok().map(AnySparse::from)
}

/// Conversions, orders and counts, within the default limits.
fn of_formats(input: &mut Input<'_>) -> Outcome {
    allocate::set_limits(Limits::default());
    let order = input.one(&[2, 2, 2, 2, 1, 3]);
    let shape: Vec<usize> = (0..order).map(|_| extent(input)).collect();
    let Some(coo) = sparse(input, &shape) else {
        return 0;
    };
    let format = format(input);
    let made = match coo.convert(format) {
        Ok(made) => made,
        Err(error) => return refused(&error),
    };
    let mut seen = outcome(&(format, made.slots().min(9)));
    // A format may be larger than its original tensor, and a conversion of it may be larger again.
    let small = allocate::bytes_of(&made.arrays()) + 8 * made.slots() as u64 <= 1 << 20;
    if small {
        let back = made.to_coo().map(AnySparse::from);
        match back {
            Ok(back) => assert_eq!(back, coo, "{format}"),
            Err(error) => seen = outcome(&(seen, refused(&error))),
        }
    }
    if let (true, AnySparse::Csr(csr)) = (small, &made) {
        let (pattern, options) = (csr.pattern(), reorder::Options::default());
        let block = (1 + input.below(64), 1 + input.below(64));
        let order = match input.below(3) {
            0 => reorder::reorder_rows(pattern, block, &options).map(drop),
            1 => reorder::reorder_columns(pattern, block, &options).map(drop),
            _ => reorder::reorder_both(pattern, block, &options).map(drop),
        };
        let fills = fill::block_fills(pattern, &[block]).map(drop);
        let slots = stats::slots(pattern, self::format(input));
        for result in [order, fills, slots.map(drop)] {
            let error = result.err().map(|error| refused(&error));
            seen = outcome(&(seen, error));
        }
        assert_eq!(pattern.shape(), shape);
    }
    seen
}

/// Plans on the CPU over operands without elements, or with few nonzeros. They run only if the output is small.
fn of_plans(input: &mut Input<'_>) -> Outcome {
    // Terms may take 64 times this limit.
    let bytes = 400_000;
    allocate::set_limits(Limits { bytes, ..Limits::default() });
    let text = input.one(&TEXTS);
    let einsum: einsparse::einsum::Einsum = text.parse().expect("a line of the list");
    let mut names: Vec<(String, Vec<usize>)> = Vec::new();
    let extents: Vec<(String, usize)> =
        einsum.index_names().iter().map(|name| ((*name).to_owned(), extent(input))).collect();
    let mut visit = |access: &einsparse::einsum::Access| {
        let one = |index: &einsparse::einsum::IndexExpr| match index {
            einsparse::einsum::IndexExpr::Name(name) => {
                extents.iter().find(|(own, _)| own == name).map_or(1, |own| own.1)
            }
            _ => 3,
        };
        let shape = access.indices.iter().map(one).collect();
        if access.tensor != einsum.out.tensor && names.iter().all(|(own, _)| *own != access.tensor)
        {
            names.push((access.tensor.clone(), shape));
        }
    };
    einsum.right().for_each(|access| access.for_each_access(&mut visit));
    let mut held: Vec<(String, Held)> = Vec::new();
    for (name, shape) in names {
        let elements = shape.iter().fold(1usize, |n, &extent| n.saturating_mul(extent));
        let value = if elements <= 1 << 12 {
            Held::Dense(Dense::new(shape, vec![1.0; elements]).expect("so many values"))
        } else {
            match sparse(input, &shape) {
                Some(coo) => match coo.convert(format(input)) {
                    Ok(made) => Held::Sparse(made),
                    Err(_) => Held::Sparse(coo),
                },
                None => return 1,
            }
        };
        held.push((name, value));
    }
    run(text, &held)
}

enum Held {
    Dense(Dense<f64>),
    Sparse(AnySparse<f64>),
}

fn run(text: &str, held: &[(String, Held)]) -> Outcome {
    let context = Context::cpu();
    let operands: Vec<(&str, Operand<'_, f64>)> = held
        .iter()
        .map(|(name, value)| match value {
            Held::Dense(dense) => (name.as_str(), Operand::HostDense(dense)),
            Held::Sparse(sparse) => (name.as_str(), Operand::from(sparse)),
        })
        .collect();
    for (_, value) in held {
        if let Held::Sparse(sparse) = value {
            let _ = context.upload(sparse);
        }
    }
    let plan = match context.plan(text).operands(&operands).build() {
        Ok(plan) => plan,
        Err(error) => return refused(&error),
    };
    let shape = plan.out_shape();
    let elements = shape.iter().fold(1usize, |n, &extent| n.saturating_mul(extent));
    if elements > 1 << 16 {
        return outcome(&shape.len());
    }
    let mut out = context.zeros::<f64>(shape).expect("a small output");
    let stream = context.stream().expect("a stream of the CPU");
    match plan.run(&operands, &mut out, &stream) {
        Ok(()) => outcome(&(elements.min(3), text)),
        Err(error) => refused(&error),
    }
}

/// Constructors: they return an operator, or an error with the numbers.
fn of_operators(input: &mut Input<'_>) -> Outcome {
    allocate::set_limits(Limits::default());
    let context = &Context::cpu();
    let kind = input.below(25);
    let [a, b, c, d] = std::array::from_fn(|_| number(input));
    let attention = AttentionOptions {
        heads: c,
        key_heads: (input.below(2) == 1).then_some(d),
        dim: number(input),
        ..AttentionOptions::default()
    };
    let made: Result<(), Error> = match kind {
        0 => Routing::new(context, [a, b], c).and_then(|routing| {
            let options = GroupedOptions { k: a, n: d, ..GroupedOptions::default() };
            GroupedGemm::<f32>::new(&routing, &options).map(drop)
        }),
        1 => {
            let options = MoeOptions {
                tokens: a,
                experts: b,
                first: c,
                top_k: 1 + input.below(3),
                model: d,
                hidden: number(input),
                ..MoeOptions::default()
            };
            match input.below(2) {
                0 => Moe::<f32>::new(context, &options).map(drop),
                _ => Moe::<f32>::for_training(context, &options).map(drop),
            }
        }
        2 => {
            let momentum = f64::from(input.below(2) as u32) / 2.0;
            let options = SgdOptions { momentum, ..SgdOptions::default() };
            Sgd::new(context, &[a, b], &options).map(drop)
        }
        3 => {
            let options = RotaryOptions {
                tokens: a,
                heads: b,
                key_heads: c,
                dim: input.one(&[64, d, 1 << 40, usize::MAX - 63]),
                ..RotaryOptions::default()
            };
            Rotary::<f32>::new(context, &options).map(drop)
        }
        4 => Embedding::<f32>::new(context, [a, b], c, input.below(2) == 1).map(drop),
        5 => RmsNorm::<f32>::new(context, [a, b], 1e-6, input.below(2) == 1).map(drop),
        6 => CrossEntropy::<f32>::new(context, [a, b]).map(drop),
        7 => {
            let options =
                RouterOptions { tokens: a, experts: b, top_k: c, ..RouterOptions::default() };
            Router::<f32>::new(context, &options).map(drop)
        }
        8 => nn::BiasGradient::<f32>::new(context, [a, b]).map(drop),
        9 => nn::WeightGradient::<f32>::new(context, [a, b, c]).map(drop),
        10 => dynamic_product(context, [a, b, c], f64::from(input.below(3) as u32) - 1.0),
        11 => ChannelDetector::<f32>::new(context, [a, b, c], 0.0).map(drop),
        12 => {
            let options = nn::FeedForwardOptions::default();
            nn::FeedForward::<f32>::new(context, [a, b, c, d], &options).map(drop)
        }
        13 => Detector::<f32>::new(context, [a, b], (c, d), &DetectOptions::default()).map(drop),
        14 => CachedAttention::<f32>::new(context, [a, b], &attention).map(drop),
        15 => DynamicAttention::<f32>::new(context, [a, b], 1, &attention).map(drop),
        16 => {
            let options = Conv2dOptions {
                stride: number(input),
                padding: [number(input), c],
                ..Conv2dOptions::default()
            };
            Conv2d::<f32>::new(context, [a, b, c, d], [a, 1, 3, d], &options).map(drop)
        }
        17 => nn::Activation::<f32>::new(context, nn_gate(), [a, b]).map(drop),
        18 => nn::Glu::<f32>::new(context, nn_gate(), [a, b], false).map(drop),
        19 => {
            let options = ConvolutionOptions {
                stride: [number(input), 1],
                padding: [number(input), c],
                ..ConvolutionOptions::default()
            };
            let b = [3, d, c, number(input)];
            DynamicConvolution::<f32>::new(context, [a, b[3], 3, c], b, &options).map(drop)
        }
        20 => nn::Greedy::<f32>::new(context, [a, b], false).map(drop),
        21 => nn::ResidualNorm::<f32>::new(context, [a, b], 1e-6).map(drop),
        22 => {
            let options = nn::EncoderOptions {
                items: a,
                distance: b,
                width: c,
                heads: 1,
                hidden: d,
                epsilon: 1e-5,
                most: None,
                expected: None,
            };
            nn::Encoder::<einsparse::formats::f16>::new(context, &options).map(drop)
        }
        23 => nn::Adam::new(context, &[a, b, c], &nn::AdamOptions::default()).map(drop),
        _ => context.zeros::<f32>(&[a, b, 0]).map(drop),
    };
    match made {
        Ok(()) => outcome(&kind),
        Err(error) => outcome(&(kind, refused(&error))),
    }
}

/// Plans a product with a dynamic operand of these extents, if the operands fit in memory.
fn dynamic_product(
    context: &Context,
    [m, k, n]: [usize; 3],
    threshold: f64,
) -> Result<(), Error> {
    let (a, b) = (context.zeros::<f32>(&[m, k])?, context.zeros::<f32>(&[k, n])?);
    let a = Dynamic::new(&a).threshold(threshold);
    let plan = context.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", a).operand("B", &b);
    plan.build().map(drop)
}

fn nn_gate() -> einsparse::dynamic::Gate {
    einsparse::dynamic::Gate::Silu
}

/// Runs conversions, plans or constructors.
pub fn extents(data: &[u8]) -> Outcome {
    let mut input = Input::new(data);
    match input.below(3) {
        0 => of_formats(&mut input),
        1 => of_plans(&mut input),
        _ => of_operators(&mut input),
    }
}
