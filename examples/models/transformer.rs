//! Sputnik's Transformer (arXiv 2006.10901, section 7): three layers over 12,288 tokens, those of a 64 x 64 image. A
//! token attends to a window of tokens before it, to the first tokens, and to random blocks. Inference and training.

use einsparse::formats::{Dense, bf16, generate};
use einsparse::nn::{Adam, AdamOptions};
use einsparse::ops::AttentionMask;
use einsparse::{Context, Result, Scalar, Stream, Tensor};

use super::common::{Measured, Memory, Run, largest_error, wide};
use super::transformer_net::Transformer;
use super::transformer_weights::{Parameters, Role, Shape};

/// Queries and keys of a block of the mask.
pub const BLOCK: usize = 64;

/// Blocks that tokens attend to: a window of `window` blocks before their own, the first, and `others` seeded ones.
pub fn blocks(tokens: usize, window: usize, others: usize) -> Vec<[usize; 2]> {
    let rows = tokens.div_ceil(BLOCK);
    let draws = generate::random_values::<f32>(rows * others, 5);
    let mut all = Vec::new();
    for row in 0..rows {
        let first = row.saturating_sub(window);
        all.extend((first..=row).chain([0]).map(|column| [row, column]));
        if first > 0 {
            let draws = &draws[row * others..][..others];
            // Draws are standard normal and select any of the blocks in between.
            let far = draws.iter().map(|x| (x.abs() * 1e4) as usize % first);
            all.extend(far.map(|column| [row, column]));
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Input tokens, and the class of each.
pub fn data<T: Scalar>(shape: &Shape) -> Result<(Dense<T>, Dense<i32>)> {
    let x = generate::random_values::<f32>(shape.tokens * shape.width, 3);
    let x = x.iter().map(|x| T::from_f64(bf16::from_f32(*x).to_f64()));
    let labels = generate::random_values::<f32>(shape.tokens, 4);
    let label = |x: &f32| (x.abs() * 1e4) as i32 % shape.classes as i32;
    Ok((
        Dense::new([shape.tokens, shape.width], x.collect())?,
        Dense::new([shape.tokens], labels.iter().map(label).collect())?,
    ))
}

/// Creates the network with its data.
pub fn network<T: Scalar, G: Scalar>(
    ctx: &Context,
    shape: Shape,
    mask: &AttentionMask,
    trains: bool,
) -> Result<Transformer<T, G>> {
    let mut net = Transformer::new(ctx, shape, mask, trains)?;
    let (x, labels) = data(&shape)?;
    net.tokens[0].write(&x)?;
    net.labels.write(&labels)?;
    Ok(net)
}

/// Network, f32 copies of its parameters, and their optimizers.
pub struct Training {
    pub net: Transformer<bf16>,
    master: Parameters<f32, f32>,
    matrices: Adam,
    vectors: Adam,
}

impl Training {
    pub fn new(ctx: &Context, shape: Shape, mask: &AttentionMask) -> Result<Self> {
        let master = Parameters::<f32, f32>::seeded(ctx, shape)?;
        let adam = |of: &Tensor<f32>| Adam::new(ctx, of.shape(), &AdamOptions::default());
        Ok(Training {
            net: network(ctx, shape, mask, true)?,
            matrices: adam(&master.matrices)?,
            vectors: adam(&master.vectors)?,
            master,
        })
    }

    /// Runs forward, loss, backward, and the update of all parameters.
    pub fn step(&mut self, stream: &Stream) -> Result<()> {
        self.net.forward(stream)?;
        self.net.backward(stream)?;
        let (to, by) = (&mut self.net.parameters, &self.net.gradients);
        let master = &mut self.master;
        self.matrices.step_with_copy(
            &mut master.matrices,
            &by.matrices,
            &mut to.matrices,
            stream,
        )?;
        self.vectors.step_with_copy(&mut master.vectors, &by.vectors, &mut to.vectors, stream)
    }

    /// Runs `steps` steps and returns their losses.
    pub fn losses(&mut self, ctx: &Context, steps: usize) -> Result<Vec<f32>> {
        let stream = ctx.stream()?;
        let mut losses = Vec::new();
        for _ in 0..steps {
            self.step(&stream)?;
            stream.synchronize()?;
            losses.push(self.net.loss.to_dense()?.values()[0]);
        }
        Ok(losses)
    }
}

/// Results of a run: the last tokens, and the gradients of matrices, of vectors and of the input.
fn said<T: Scalar, G: Scalar>(ctx: &Context, net: &mut Transformer<T, G>) -> Result<[Vec<f64>; 4]> {
    let stream = ctx.stream()?;
    net.forward(&stream)?;
    net.backward(&stream)?;
    stream.synchronize()?;
    let input = net.input_gradient().map_or(Ok(Vec::new()), wide)?;
    Ok([
        wide(&net.tokens[net.tokens.len() - 1])?,
        wide(&net.gradients.matrices)?,
        wide(&net.gradients.vectors)?,
        input,
    ])
}

/// Largest errors of the last tokens and of all gradients against the network in f64 on the CPU, with the same
/// parameters. Asserts that two runs give the same bits, and that layers which store nothing do too.
pub fn errors(ctx: &Context, shape: Shape, mask: &AttentionMask) -> Result<[f64; 4]> {
    let mut net = network::<bf16, f32>(ctx, shape, mask, true)?;
    let found = said(ctx, &mut net)?;
    assert!(found == said(ctx, &mut net)?, "two runs differ");
    let mut other = network::<bf16, f32>(ctx, shape, mask, false)?;
    let stream = ctx.stream()?;
    other.layers(&stream)?;
    stream.synchronize()?;
    let last = 1 + (shape.layers - 1) % 2;
    assert!(wide(&other.tokens[last])? == found[0], "layers that keep nothing");

    let cpu = Context::unchecked_cpu();
    let mut exact = network::<f64, f64>(&cpu, shape, mask, true)?;
    let (from, to) = (&net.parameters, &mut exact.parameters);
    let same = |from: &Tensor<bf16>, to: &mut Tensor<f64>| -> Result<()> {
        to.write(&Dense::new(from.shape(), wide(from)?)?)
    };
    same(&from.matrices, &mut to.matrices)?;
    same(&from.vectors, &mut to.vectors)?;
    let wanted = said(&cpu, &mut exact)?;
    let mut errors = [0.0; 4];
    for (error, (found, wanted)) in errors.iter_mut().zip(found.iter().zip(&wanted)) {
        *error = largest_error(found, wanted);
    }
    Ok(errors)
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let small = Shape { layers: 2, tokens: 256, width: 128, heads: 2, hidden: 256, classes: 16 };
    let errors = errors(ctx, small, &AttentionMask::Blocks(blocks(256, 1, 1)))?;
    let words = errors.map(|e| format!("{e:.1e}")).join(" ");
    println!("2 layers of 128: errors of tokens and gradients {words}");
    // Rounded sums can be on the other side of a ReLU, which decides gradients.
    assert!(errors[0] < 0.03 && errors.iter().all(|e| *e < 0.2));
    let (shape, window, others) = match run.toy {
        true => {
            let shape = Shape { layers: 1, tokens: 192, ..small };
            (shape, 0, 1)
        }
        false => {
            // Eight heads, as in the dense baseline.
            let shape = Shape {
                layers: 3,
                tokens: 12_288,
                width: 1024,
                heads: 8,
                hidden: 4096,
                classes: 256,
            };
            (shape, 8, 1)
        }
    };
    let seen = blocks(shape.tokens, window, others);
    let rows = shape.tokens as f64 / BLOCK as f64;
    let below = seen.iter().filter(|[row, column]| row != column).count();
    let share = (2 * below) as f64 / rows / rows + 1.0 / rows;
    let [mask, whole] = [AttentionMask::Blocks(seen), AttentionMask::Causal];
    let row = |what: &str, times, twin, held, note| Measured {
        case: format!(
            "transformer {what}, {} layers of {}, {} tokens, {share:.3} of the causal mask",
            shape.layers, shape.width, shape.tokens
        ),
        dtype: "bf16",
        times,
        work: (shape.tokens as f64, "tokens"),
        twin: Some(("dense causal attention".into(), twin)),
        held,
        error: Some(errors[0]),
        note,
    };
    let inference = |mask: &AttentionMask| -> Result<_> {
        let memory = Memory::before(ctx);
        let mut net = network::<bf16, f32>(ctx, shape, mask, false)?;
        let times = run.time(|stream| net.layers(stream))?;
        Ok((times, memory.since(ctx), net.variants()))
    };
    let ((times, held, kernels), twin) = (inference(&mask)?, inference(&whole)?);
    let products = [Role::Qkv, Role::Out, Role::Up, Role::Down].map(|role| {
        let [inputs, outputs] = shape.matrix(role);
        [shape.tokens, inputs, outputs]
    });
    let inferred = row("inference", times, twin.0, held, kernels);
    run.report_with(inferred, shape.layers, &products);
    let training = |mask: &AttentionMask| -> Result<_> {
        let memory = Memory::before(ctx);
        let mut training = Training::new(ctx, shape, mask)?;
        let losses = training.losses(ctx, 5)?;
        assert!(losses[4] < losses[0], "{losses:?}");
        let times = run.time(|stream| training.step(stream))?;
        Ok((times, memory.since(ctx), training.net.variants()))
    };
    let ((times, held, kernels), twin) = (training(&mask)?, training(&whole)?);
    let note = match (held, twin.1) {
        (Some(own), Some(other)) => {
            let share = own as f64 / other as f64;
            format!("memory {share:.3} of the twin's; {kernels}")
        }
        _ => kernels,
    };
    run.report(row("training step", times, twin.0, held, note));
    Ok(())
}
