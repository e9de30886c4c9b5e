//! BERT-base (arXiv 1810.04805) over a batch of sequences of different lengths: twelve layers on the tokens only,
//! compared with the layers over the batch padded to its longest sequence.

use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{Encoder, EncoderOptions, EncoderWeights};
use einsparse::{Context, Result, Scalar, Tensor};

use super::checkpoint::Checkpoint;
use super::common::{Measured, Memory, Run, largest_error};
use super::padded::{Batch, Padded, lengths, taken, wide};

/// Weights and biases of a layer, then factors and summands of its two norms.
pub struct Layer<T>([[Tensor<T>; 2]; 6]);

impl<T: Scalar> Layer<T> {
    /// Creates seeded weights, rounded to f16 for every type.
    fn new(ctx: &Context, o: &EncoderOptions, seed: u64) -> Result<Self> {
        let (width, hidden) = (o.width, o.hidden);
        let mut seeds = 100 * seed..;
        let mut filled = |shape: &[usize], size: f64, around: f64| {
            let seed = seeds.next().unwrap_or(0);
            let values = generate::random_values::<f32>(shape.iter().product(), seed);
            let values = values.iter().map(|x| around + f64::from(*x) * size);
            let values = values.map(|x| T::from_f64(f16::from_f64(x).to_f64()));
            ctx.upload_dense(&Dense::new(shape, values.collect())?)
        };
        let mut product = |inputs: usize, outputs: usize| -> Result<[Tensor<T>; 2]> {
            let size = (1.0 / inputs as f64).sqrt();
            let matrix = filled(&[inputs, outputs], size, 0.0)?;
            Ok([matrix, filled(&[outputs], 0.1, 0.0)?])
        };
        let (qkv, out) = (product(width, 3 * width)?, product(width, width)?);
        let (up, down) = (product(width, hidden)?, product(hidden, width)?);
        let mut norm =
            || -> Result<_> { Ok([filled(&[width], 0.1, 1.0)?, filled(&[width], 0.1, 0.0)?]) };
        Ok(Layer([qkv, out, up, down, norm()?, norm()?]))
    }

    /// Reads the layers of a file.
    fn of_file(ctx: &Context, file: &mut Checkpoint, extents: [usize; 2]) -> Result<Vec<Self>> {
        let all = file.bert::<T>(extents)?.into_iter();
        let there = |own: [Dense<T>; 2]| -> Result<[Tensor<T>; 2]> {
            Ok([ctx.upload_dense(&own[0])?, ctx.upload_dense(&own[1])?])
        };
        let layer = |parts: [[Dense<T>; 2]; 6]| -> Result<Self> {
            let [a, b, c, d, e, f] = parts.map(there);
            Ok(Layer([a?, b?, c?, d?, e?, f?]))
        };
        all.map(layer).collect()
    }

    /// Creates `depth` layers with different weights.
    pub fn stack(ctx: &Context, o: &EncoderOptions, depth: usize) -> Result<Vec<Self>> {
        (0..depth as u64).map(|seed| Self::new(ctx, o, seed)).collect()
    }

    pub fn weights(&self) -> EncoderWeights<'_, T> {
        let [qkv, out, up, down, first_norm, second_norm] = self.0.each_ref().map(|p| p.each_ref());
        EncoderWeights { qkv, out, up, down, first_norm, second_norm }
    }
}

/// Largest error of the f16 layers against f64 on the CPU. Also asserts that two runs, the padded batch, and layers run
/// one by one give the same bits.
pub fn checked(ctx: &Context, depth: usize, o: &EncoderOptions, tokens: usize) -> Result<f64> {
    let batch = Batch::new(o, lengths(o.items, tokens, o.distance))?;
    let layers = Layer::<f16>::stack(ctx, o, depth)?;
    let weights: Vec<_> = layers.iter().map(Layer::weights).collect();
    let o = &EncoderOptions { most: Some(tokens), ..*o };
    let encoder = Encoder::<f16>::new(ctx, o)?;
    let there = ctx.upload_dense(&Dense::new([o.items], batch.lengths.clone())?)?;
    let x = ctx.upload_dense(&batch.packed)?;
    let stream = ctx.stream()?;
    let mut found = Vec::new();
    for _ in 0..2 {
        let mut out = ctx.zeros(&[tokens, o.width])?;
        encoder.forward_packed(&x, &there, &weights, &mut out, &stream)?;
        stream.synchronize()?;
        found.push(out.to_dense()?.into_values());
    }
    let mut between = ctx.upload_dense(&batch.packed)?;
    for layer in &weights {
        let mut out = ctx.zeros(&[tokens, o.width])?;
        encoder.forward_packed(&between, &there, &[*layer], &mut out, &stream)?;
        between = out;
    }
    let mut out = ctx.zeros(batch.padded.shape())?;
    let padded = ctx.upload_dense(&batch.padded)?;
    encoder.forward(&padded, &there, &weights, &mut out, &stream)?;
    stream.synchronize()?;
    found.push(between.to_dense()?.into_values());
    found.push(taken(&out, o.width, &batch.rows)?);
    let what = ["the second run", "single layers", "the padded batch"];
    for (other, what) in found[1..].iter().zip(what) {
        assert_eq!(&found[0], other, "{what}");
    }

    let cpu = Context::unchecked_cpu();
    let layers = Layer::<f64>::stack(&cpu, o, depth)?;
    let weights: Vec<_> = layers.iter().map(Layer::weights).collect();
    let encoder = Encoder::<f64>::new(&cpu, o)?;
    let there = cpu.upload_dense(&Dense::new([o.items], batch.lengths)?)?;
    let x = cpu.upload_dense(&Dense::new([tokens, o.width], wide(batch.packed.values()))?)?;
    let mut wanted = cpu.zeros(&[tokens, o.width])?;
    encoder.forward_packed(&x, &there, &weights, &mut wanted, &cpu.stream()?)?;
    Ok(largest_error(&wide(&found[0]), wanted.to_dense()?.values()))
}

pub fn options(items: usize, distance: usize, [width, hidden]: [usize; 2]) -> EncoderOptions {
    EncoderOptions {
        items,
        distance,
        width,
        heads: width / 64,
        hidden,
        epsilon: 1e-12,
        most: None,
        expected: None,
    }
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let error = checked(ctx, 3, &options(5, 24, [128, 256]), 60)?;
    println!("3 layers of 128: largest error {error:.1e}");
    assert!(error < 1e-2);
    let (depth, extents, cases) = match run.toy {
        true => (2, [128, 256], vec![[4, 40, 24]]),
        false => {
            let cases = [[32, 1191, 128], [32, 3951, 512], [32, 1280, 128]];
            (12, [768, 3072], cases.to_vec())
        }
    };
    let memory = Memory::before(ctx);
    let layers = match &run.arguments.file {
        Some(paths) => Layer::of_file(ctx, &mut Checkpoint::open(paths)?, extents)?,
        None => Layer::<f16>::stack(ctx, &options(1, 1, extents), depth)?,
    };
    let (depth, weights): (_, Vec<_>) = (layers.len(), layers.iter().map(Layer::weights).collect());
    for [items, tokens, longest] in cases {
        let o = &EncoderOptions { most: Some(tokens), ..options(items, longest, extents) };
        let batch = Batch::new(o, lengths(items, tokens, longest))?;
        let there = ctx.upload_dense(&Dense::new([items], batch.lengths.clone())?)?;
        let encoder = Encoder::<f16>::new(ctx, o)?;
        let x = ctx.upload_dense(&batch.packed)?;
        let mut out = ctx.zeros(&[tokens, o.width])?;
        let times =
            run.time(|stream| encoder.forward_packed(&x, &there, &weights, &mut out, stream))?;
        let held = memory.since(ctx);
        let padded = ctx.upload_dense(&batch.padded)?;
        let mut sent = ctx.zeros(batch.padded.shape())?;
        let around =
            run.time(|stream| encoder.forward(&padded, &there, &weights, &mut sent, stream))?;
        let mut twin = Padded::new(ctx, o, &batch.lengths, &layers[0])?;
        let rows = Dense::new([items * longest, o.width], batch.padded.into_values())?;
        let mut dense = ctx.upload_dense(&rows)?;
        let stream = ctx.stream()?;
        twin.forward(&layers, &mut dense, &stream)?;
        stream.synchronize()?;
        let wanted = wide(&taken(&dense, o.width, &batch.rows)?);
        let error = largest_error(&wide(out.to_dense()?.values()), &wanted);
        let other = run.time(|stream| twin.forward(&layers, &mut dense, stream))?;
        let case = format!(
            "encoder, {depth} layers of {}, {tokens} tokens of {}",
            o.width,
            items * longest
        );
        let lengths = batch.lengths.iter().map(|length| *length as u32).collect();
        run.lists.borrow_mut().push((case.clone(), vec![lengths]));
        for (case, times) in [(case.clone(), times), (case + ", padded in and out", around)] {
            let row = Measured {
                case,
                dtype: "f16",
                times,
                work: (tokens as f64, "tokens"),
                twin: Some(("padded".into(), other)),
                held,
                error: Some(error),
                note: encoder.variants().join(" "),
            };
            // Products of tokens, without padding.
            let (w, h) = (o.width, o.hidden);
            let products = [[w, 3 * w], [w, w], [w, h], [h, w]].map(|[i, o]| [tokens, i, o]);
            run.report_with(row, depth, &products);
        }
        assert!(error < 3e-2);
    }
    Ok(())
}
