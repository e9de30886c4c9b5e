//! Operations of a decoder between its products, for a token, a batch of tokens, and a sequence.
//!
//! `m` is the tokens, `k` their features. Bytes are those read and written once.

use crate::prelude::*;
use einsparse::dynamic::Gate;
use einsparse::nn::{Embedding, Glu, Greedy, ResidualNormGradient, RmsNorm, Rotary, RotaryOptions};

pub const OP: &str = "elementwise";
/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[(OP, Own(run))];

/// Tokens, and whether they are columns.
const TOKENS: [(usize, bool); 5] = [(1, false), (16, true), (64, false), (64, true), (4096, false)];
const WIDTH: usize = 4096;
const HIDDEN: usize = 11_008;
const HEADS: [usize; 2] = [32, 8];
const DIM: usize = 128;
const VOCABULARY: usize = 32_000;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    TOKENS.into_iter().try_for_each(|(tokens, columns)| measured(&bench.anew()?, tokens, columns))
}

fn measured(bench: &Bench<'_>, tokens: usize, columns: bool) -> Result<()> {
    let (context, stream) = (&bench.context, &bench.stream);
    // Features of the tokens, in their storage order.
    let random = |features: usize| match columns {
        true => bench.filled::<bf16>(&[features, tokens], 0, 1.0),
        false => bench.filled::<bf16>(&[tokens, features], 0, 1.0),
    };
    // Row of an operation that reads and writes so many elements for each token.
    let row = |name: &str, features: usize, elements: usize, variant: &str| {
        let order = if columns { "columns" } else { "rows" };
        Row::new(OP, format!("{name}-{tokens}-{order}"), [tokens, features, 0], 0, Dtype::Bf16)
            .bytes(2.0 * (tokens * elements) as f64)
            .ours(variant)
    };
    let factor = bench.tensor(&[WIDTH], vec![bf16::ONE; WIDTH])?;
    let norm = RmsNorm::<bf16>::new(context, [tokens, WIDTH], 1e-5, columns)?;
    let (mut x, y, mut out) = (random(WIDTH)?, random(WIDTH)?, random(WIDTH)?);
    bench.time(row("norm", WIDTH, 4 * WIDTH, norm.variant()), || {
        norm.forward_residual([&mut x, &mut out], &y, &factor, stream)
    })?;
    // The gradient of a layer norm requires tokens in rows.
    if !columns {
        let norm = ResidualNormGradient::<bf16>::new(context, [tokens, WIDTH], 1e-5)?;
        let (dy, mut dx) = (random(WIDTH)?, random(WIDTH)?);
        let mut affine = bench.zeros(&[2, WIDTH])?;
        bench.time(row("norm-gradient", WIDTH, 4 * WIDTH, norm.variant()), || {
            norm.backward([&x, &y], &factor, &dy, &mut dx, &mut affine, stream)
        })?;
    }
    let [heads, key_heads] = HEADS;
    let width = (heads + 2 * key_heads) * DIM;
    let options = RotaryOptions {
        tokens,
        heads,
        key_heads,
        dim: DIM,
        tokens_in_columns: columns,
        ..RotaryOptions::default()
    };
    let rotary = Rotary::<bf16>::new(context, &options)?;
    let qkv = random(width)?;
    let lengths = bench.tensor(&[tokens], (1..=tokens as i32).collect())?;
    let part = |heads: usize| bench.zeros(&[tokens, heads, DIM]);
    let mut parts = [part(heads)?, part(key_heads)?, part(key_heads)?];
    bench.time(row("rotary", width, 2 * width, rotary.variant()), || {
        rotary.forward(&qkv, &lengths, parts.each_mut(), stream)
    })?;
    let glu = Glu::<bf16>::new(context, Gate::Silu, [tokens, HIDDEN], columns)?;
    let (both, mut gated) = (random(2 * HIDDEN)?, random(HIDDEN)?);
    bench.time(row("gated", HIDDEN, 3 * HIDDEN, glu.variant()), || {
        glu.forward(&both, &mut gated, stream)
    })?;
    // Logits are measured for batches of tokens, not for a sequence.
    if tokens > 64 {
        return Ok(());
    }
    let table = bench.zeros::<bf16>(&[VOCABULARY, WIDTH])?;
    let mut numbers = bench.tensor(&[tokens], (0..tokens as i32).collect())?;
    let embedding = Embedding::new(context, [VOCABULARY, WIDTH], tokens, columns)?;
    bench.time(row("embed", WIDTH, 2 * WIDTH, embedding.variant()), || {
        embedding.forward(&table, &numbers, &mut x, stream)
    })?;
    let logits = random(VOCABULARY)?;
    let greedy = Greedy::<bf16>::new(context, [tokens, VOCABULARY], columns)?;
    bench.time(row("greedy", VOCABULARY, VOCABULARY, greedy.variant()), || {
        greedy.forward(&logits, &mut numbers, None, stream)
    })?;
    Ok(())
}
