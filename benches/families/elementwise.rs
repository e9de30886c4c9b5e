//! Operations of a decoder between its products, for a token, a batch of tokens, and a sequence.
//!
//! `m` is the tokens, `k` their features. Bytes are those read and written once.

use crate::operations::{Entry, Own};
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
    for (tokens, columns) in TOKENS {
        let case = Case { bench: &bench.anew()?, tokens, columns };
        case.norm()?;
        if !case.columns {
            case.norm_gradient()?;
        }
        case.rotary()?;
        case.gated()?;
        case.tokens()?;
    }
    Ok(())
}

struct Case<'a> {
    bench: &'a Bench<'a>,
    tokens: usize,
    columns: bool,
}

impl Case<'_> {
    /// Random features of the tokens, in their storage order.
    fn random(&self, features: usize) -> Result<Tensor<bf16>> {
        let mut rng = StdRng::seed_from_u64(SEED);
        let count = self.tokens * features;
        let values = (0..count).map(|_| bf16::from_f32(rng.random_range(-1.0..1.0)));
        self.bench.tensor(&self.shape(features), values.collect())
    }

    fn shape(&self, features: usize) -> [usize; 2] {
        match self.columns {
            true => [features, self.tokens],
            false => [self.tokens, features],
        }
    }

    /// Writes a row. `elements` is the number of elements read and written.
    fn add(
        &self,
        name: &str,
        (features, elements): (usize, usize),
        variant: &str,
        times: &Times,
    ) -> Result<()> {
        let order = if self.columns { "columns" } else { "rows" };
        let workload = format!("{name}-{}-{order}", self.tokens);
        let row = Row::new(OP, workload, [self.tokens, features, 0], 0, Dtype::Bf16);
        let row = row.timed(times).bytes(2.0 * elements as f64).ours(variant);
        self.bench.add(row)
    }

    fn norm(&self) -> Result<()> {
        let (bench, all) = (self.bench, self.tokens * WIDTH);
        let norm = RmsNorm::<bf16>::new(&bench.context, [self.tokens, WIDTH], 1e-5, self.columns)?;
        let (mut x, y, mut out) = (self.random(WIDTH)?, self.random(WIDTH)?, self.random(WIDTH)?);
        let factor = bench.tensor(&[WIDTH], vec![bf16::ONE; WIDTH])?;
        let times = bench
            .measure(|| norm.forward_residual([&mut x, &mut out], &y, &factor, &bench.stream))?;
        self.add("norm", (WIDTH, 4 * all), norm.variant(), &times)
    }

    /// Measures the gradient of a layer norm whose tokens are rows.
    fn norm_gradient(&self) -> Result<()> {
        let (bench, extents) = (self.bench, [self.tokens, WIDTH]);
        let norm = ResidualNormGradient::<bf16>::new(&bench.context, extents, 1e-5)?;
        let (x, y, dy, mut dx) =
            (self.random(WIDTH)?, self.random(WIDTH)?, self.random(WIDTH)?, self.random(WIDTH)?);
        let factor = bench.tensor(&[WIDTH], vec![bf16::ONE; WIDTH])?;
        let mut affine = bench.zeros(&[2, WIDTH])?;
        let run = || norm.backward([&x, &y], &factor, &dy, &mut dx, &mut affine, &bench.stream);
        let times = bench.measure(run)?;
        let elements = 4 * self.tokens * WIDTH;
        self.add("norm-gradient", (WIDTH, elements), norm.variant(), &times)
    }

    fn rotary(&self) -> Result<()> {
        let [heads, key_heads] = HEADS;
        let (bench, width) = (self.bench, (heads + 2 * key_heads) * DIM);
        let options = RotaryOptions {
            tokens: self.tokens,
            heads,
            key_heads,
            dim: DIM,
            tokens_in_columns: self.columns,
            ..RotaryOptions::default()
        };
        let rotary = Rotary::<bf16>::new(&bench.context, &options)?;
        let x = self.random(width)?;
        let lengths = bench.tensor(&[self.tokens], (1..=self.tokens as i32).collect())?;
        let part = |heads: usize| bench.zeros(&[self.tokens, heads, DIM]);
        let mut parts = [part(heads)?, part(key_heads)?, part(key_heads)?];
        let times =
            bench.measure(|| rotary.forward(&x, &lengths, parts.each_mut(), &bench.stream))?;
        self.add("rotary", (width, 2 * self.tokens * width), rotary.variant(), &times)
    }

    fn gated(&self) -> Result<()> {
        let (bench, all) = (self.bench, self.tokens * HIDDEN);
        let glu =
            Glu::<bf16>::new(&bench.context, Gate::Silu, [self.tokens, HIDDEN], self.columns)?;
        let (x, mut out) = (self.random(2 * HIDDEN)?, self.random(HIDDEN)?);
        let times = bench.measure(|| glu.forward(&x, &mut out, &bench.stream))?;
        self.add("gated", (HIDDEN, 3 * all), glu.variant(), &times)
    }

    fn tokens(&self) -> Result<()> {
        // Logits are measured for batches of tokens, not for a sequence.
        if self.tokens > 64 {
            return Ok(());
        }
        let (bench, columns) = (self.bench, self.columns);
        let table = bench.zeros::<bf16>(&[VOCABULARY, WIDTH])?;
        let mut tokens = bench.tensor(&[self.tokens], (0..self.tokens as i32).collect())?;
        let embedding = Embedding::new(&bench.context, [VOCABULARY, WIDTH], self.tokens, columns)?;
        let mut x = self.random(WIDTH)?;
        let times = bench.measure(|| embedding.forward(&table, &tokens, &mut x, &bench.stream))?;
        let elements = 2 * self.tokens * WIDTH;
        self.add("embed", (WIDTH, elements), embedding.variant(), &times)?;
        let logits = self.random(VOCABULARY)?;
        let greedy = Greedy::<bf16>::new(&bench.context, [self.tokens, VOCABULARY], columns)?;
        let times = bench.measure(|| greedy.forward(&logits, &mut tokens, None, &bench.stream))?;
        let elements = self.tokens * VOCABULARY;
        self.add("greedy", (VOCABULARY, elements), greedy.variant(), &times)
    }
}
