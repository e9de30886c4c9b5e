//! Generation by a decoder with pruned linear layers. Weights are stored as bitmaps; the baseline stores them dense.
//! Features of tokens are columns if weights are sparse, and rows if they are dense.

use einsparse::formats::{Dense, bf16};
use einsparse::{Context, Result, Scalar};

use super::checkpoint::Checkpoint;
use super::common::{Measured, Memory, Run, largest_error};
use super::decoder::Decoder;
use super::pruned::{HostWeights, Shape};

/// Error of the logits after `steps` steps against the dense model in f64. Asserts that two runs give the same bits.
pub fn checked(ctx: &Context, batch: usize, steps: usize) -> Result<f64> {
    let shape =
        Shape { layers: 2, width: 256, hidden: 384, heads: [4, 2], vocabulary: 96, capacity: 16 };
    error(ctx, shape, &HostWeights::new(&shape, 0.5)?, batch, steps)
}

/// Error as in [`checked`], for these weights.
pub fn error(
    ctx: &Context,
    shape: Shape,
    weights: &HostWeights,
    batch: usize,
    steps: usize,
) -> Result<f64> {
    let run = || -> Result<_> {
        let mut model = Decoder::<bf16>::new(ctx, shape, weights, batch, false)?;
        logits(&mut model, ctx, steps)
    };
    let found = run()?;
    assert_eq!(found, run()?, "two runs differ");
    let cpu = Context::unchecked_cpu();
    let mut dense = Decoder::<f64>::new(&cpu, shape, weights, batch, true)?;
    Ok(largest_error(&found, &logits(&mut dense, &cpu, steps)?))
}

/// Logits after `steps` steps. Each sequence begins with a different token, and continues with the next number.
fn logits<T: Scalar>(model: &mut Decoder<T>, ctx: &Context, steps: usize) -> Result<Vec<f64>> {
    let (stream, batch) = (ctx.stream()?, model.tokens.shape()[0]);
    let vocabulary = (model.logits().shape().iter().product::<usize>() / batch) as i32;
    for step in 0..steps {
        // These are not the model's own tokens: rounding decides between logits that are close.
        let tokens = (0..batch).map(|t| (7 * t + step) as i32 % vocabulary).collect();
        model.tokens.write(&Dense::new([batch], tokens)?)?;
        model.step(&stream)?;
        stream.synchronize()?;
    }
    let logits = model.logits().to_dense()?;
    let [first, second] = [logits.shape()[0], logits.shape()[1]];
    let values: Vec<f64> = logits.values().iter().map(|x| x.to_f64()).collect();
    // Ordered by sequence.
    Ok(match first == batch {
        true => values,
        false => (0..second)
            .flat_map(|t| (0..first).map(move |v| (v, t)))
            .map(|(v, t)| values[v * second + t])
            .collect(),
    })
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let mut worst: f64 = 0.0;
    for batch in [1, 8] {
        worst = worst.max(checked(ctx, batch, 3)?);
    }
    println!("2 layers of 256 features: largest error of logits {worst:.1e}");
    assert!(worst < 0.04);
    let (mut shape, past) = match run.toy {
        true => (
            Shape {
                layers: 1,
                width: 128,
                hidden: 256,
                heads: [2, 2],
                vocabulary: 64,
                capacity: 64,
            },
            8,
        ),
        false => (
            Shape {
                layers: 4,
                width: 4096,
                hidden: 11_008,
                heads: [32, 32],
                vocabulary: 32_000,
                capacity: 1280,
            },
            1024,
        ),
    };
    let mut file = match &run.arguments.file {
        Some(paths) => Some(Checkpoint::open(paths)?),
        None => None,
    };
    if let Some(file) = &file {
        shape.layers = file.llama_layers();
    }
    let batches = run.arguments.batch.clone().unwrap_or(vec![1, 16, 64]);
    let mut twins = Vec::new();
    for density in [0.5, 0.3] {
        let weights = match &mut file {
            Some(file) => file.llama(&shape, density)?,
            None => HostWeights::new(&shape, density)?,
        };
        for (at, &batch) in batches.iter().enumerate() {
            if twins.len() == at {
                let mut twin = Decoder::<bf16>::new(ctx, shape, &weights, batch, true)?;
                twin.lengths.write(&Dense::new([batch], vec![past; batch])?)?;
                twins.push((run.time(|stream| twin.layers(stream))?, twin.bytes()));
            }
            let memory = Memory::before(ctx);
            let mut model = Decoder::<bf16>::new(ctx, shape, &weights, batch, false)?;
            model.lengths.write(&Dense::new([batch], vec![past; batch])?)?;
            let times = run.time(|stream| model.layers(stream))?;
            let (dense, dense_bytes) = twins[at];
            let share = model.bytes() as f64 / dense_bytes as f64;
            let note =
                format!("weights {share:.3} of the dense bytes; {}", model.variants().join(" "));
            let row = |case: String, times, twin| Measured {
                case,
                dtype: "bf16",
                times,
                work: (batch as f64, "tokens"),
                twin,
                held: memory.since(ctx),
                error: Some(worst),
                note: note.clone(),
            };
            let case = format!(
                "decode {} layers, density {density}, batch {batch}, {past} past",
                shape.layers
            );
            let products = shape.products().map(|[o, i]| [batch, i, o]);
            let row_of = row(case, times, Some(("dense weights".into(), dense)));
            run.report_with(row_of, shape.layers, &products);
            if batch == 1 {
                let times = run.time(|stream| model.step(stream))?;
                let case = format!(
                    "decode a token, {} layers and vocabulary, density {density}",
                    shape.layers
                );
                run.report(row(case, times, None));
            }
        }
    }
    Ok(())
}
