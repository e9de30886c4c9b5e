//! Dense-to-sparse training: two layers keep the tenth of their 64 x 64 blocks with the largest norms, selected at each
//! step. A step computes gradients of the kept blocks. Some steps compute those of all weights, so that masked blocks
//! may return, as in RigL (arXiv 1911.11134). Masked weights are preserved, and change only in such steps. The model
//! learns the outputs of a dense model of the same size.

use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{Sgd, SgdOptions};
use einsparse::{Context, Result, Scalar, Stream, Tensor, einsum};

use super::block_masks::{BLOCK, kept};
use super::common::{Measured, Memory, Run, largest_error, wide};
use super::masked_net::Net;

/// Every `GROWS`-th step computes the gradients of all weights.
const GROWS: usize = 5;

/// Random matrix whose elements have this variance.
fn random<T: Scalar>(shape: [usize; 2], variance: f64, seed: u64) -> Result<Dense<T>> {
    let scale = variance.sqrt();
    let values = generate::random_values::<f32>(shape[0] * shape[1], seed);
    let values = values.iter().map(|x| T::from_f64(scale * f64::from(*x)));
    Ok(Dense::new(shape, values.collect())?)
}

/// Number of inputs of an output.
fn inputs(width: usize, masked: bool) -> f64 {
    (if masked { kept(width) * BLOCK } else { width }) as f64
}

/// Creates the network with weights, inputs and targets.
pub fn network<T: Scalar>(
    ctx: &Context,
    [width, tokens]: [usize; 2],
    masked: bool,
) -> Result<Net<T>> {
    let mut net = Net::<T>::new(ctx, [width, tokens], masked)?;
    let fan = 2.0 / width as f64;
    // Blocks have different scales; otherwise the first steps would change most masks.
    let blocks = generate::random_values::<f32>(2 * (width / BLOCK).pow(2), 4);
    let mut weights: Dense<T> = random([2 * width, width], 1.0 / inputs(width, masked), 1)?;
    for (at, weight) in weights.values_mut().iter_mut().enumerate() {
        let block = at / width / BLOCK * (width / BLOCK) + at % width / BLOCK;
        *weight = T::from_f64(weight.to_f64() * f64::from(blocks[block] / 16.0).exp());
    }
    net.weights.write(&weights)?;
    net.x.write(&random([width, tokens], 1.0, 2)?)?;
    let teacher = ctx.upload_dense(&random::<T>([2 * width, width], fan, 3)?)?;
    let (first, second) =
        (teacher.part(0, &[width; 2])?, teacher.part(width * width, &[width; 2])?);
    let hidden = einsum!(ctx, "H[o,t] = relu(W[o,i] * X[i,t])", W = &*first, X = &net.x)?;
    net.target = einsum!(ctx, "Y[o,t] = W[o,i] * H[i,t]", W = &*second, H = &hidden)?;
    Ok(net)
}

/// A network, its weights in f32, and the optimizer.
pub struct Training<T: Scalar> {
    pub net: Net<T>,
    master: Tensor<f32>,
    sgd: Sgd,
}

impl<T: Scalar> Training<T> {
    pub fn new(ctx: &Context, sizes: [usize; 2], masked: bool) -> Result<Self> {
        let net = network::<T>(ctx, sizes, masked)?;
        let start = net.weights.to_dense()?;
        let start = start.values().iter().map(|x| x.to_f64() as f32).collect();
        let master = ctx.upload_dense(&Dense::new(net.weights.shape(), start)?)?;
        let [width, tokens] = sizes;
        // The gradient is a sum over tokens, so the rate is divided by their number.
        let options = SgdOptions {
            rate: 3.0 / (inputs(width, masked) * tokens as f64),
            ..SgdOptions::default()
        };
        let sgd = Sgd::new(ctx, master.shape(), &options)?;
        Ok(Training { net, master, sgd })
    }

    /// Runs masks, forward, loss, backward, and the update of all weights.
    pub fn step(&mut self, grows: bool, stream: &Stream) -> Result<()> {
        self.net.forward(stream)?;
        self.net.backward(grows, stream)?;
        let Net { weights, gradient, .. } = &mut self.net;
        (self.sgd).step_with_copy(&mut self.master, gradient, weights, stream)
    }

    /// Loss of the last step.
    pub fn loss(&self) -> Result<f64> {
        Ok(wide(&self.net.losses)?.iter().sum())
    }

    /// Runs `steps` steps. Returns their losses, and the number of blocks whose mask changed.
    pub fn run(&mut self, ctx: &Context, steps: usize) -> Result<(Vec<f64>, usize)> {
        let stream = ctx.stream()?;
        let (mut losses, mut first) = (Vec::new(), Vec::new());
        for step in 0..steps {
            self.step(step % GROWS == GROWS - 1, &stream)?;
            stream.synchronize()?;
            losses.push(self.loss()?);
            if step == 0 {
                first = self.net.mask()?;
            }
        }
        let last = self.net.mask()?;
        let changed = first.iter().zip(&last).filter(|(a, b)| a != b).count();
        Ok((losses, changed))
    }
}

/// Largest errors of outputs minus target, and of all gradients, against dense products in f64 with the same masks. The
/// zeros of the hidden activations are those of the network.
pub fn errors<T: Scalar>(ctx: &Context, sizes: [usize; 2], grows: bool) -> Result<[f64; 3]> {
    let cpu = Context::unchecked_cpu();
    let mut net = network::<T>(ctx, sizes, true)?;
    let stream = ctx.stream()?;
    net.forward(&stream)?;
    net.backward(grows, &stream)?;
    stream.synchronize()?;
    let own = net.masks.as_ref().map(|masks| masks.keep_the_greatest(&net.weights));
    assert!(own.transpose()? == Some(true), "not the greatest blocks");
    let [width, tokens] = sizes;
    let up = |tensor: &Tensor<T>| cpu.upload_dense(&Dense::new(tensor.shape(), wide(tensor)?)?);
    let mask = net.mask()?;
    let keeps = |at: usize| mask[at / width / BLOCK * (width / BLOCK) + at % width / BLOCK];
    let masked: Vec<f64> =
        wide(&net.weights)?.iter().enumerate().map(|(at, w)| w * keeps(at)).collect();
    let [first, second] = [&masked[..width * width], &masked[width * width..]]
        .map(|w| Dense::new([width; 2], w.to_vec()));
    let (first, second) = (cpu.upload_dense(&first?)?, cpu.upload_dense(&second?)?);
    let (x, hidden, target) = (up(&net.x)?, up(&net.hidden)?, up(&net.target)?);
    let own = einsum!(cpu, "H[o,t] = relu(W[o,i] * X[i,t])", W = &first, X = &x)?;
    let y = wide(&einsum!(cpu, "Y[o,t] = W[o,i] * H[i,t]", W = &second, H = &own)?)?;
    let off: Vec<f64> = y.iter().zip(wide(&target)?).map(|(y, t)| y - t).collect();
    let d = cpu.upload_dense(&Dense::new([width, tokens], off.clone())?)?;
    let dh = einsum!(
        cpu,
        "E[i,t] = relu_grad(W[o,i] * D[o,t], H[i,t])",
        W = &second,
        D = &d,
        H = &hidden
    )?;
    let dx = wide(&einsum!(cpu, "E[i,t] = W[o,i] * D[o,t]", W = &first, D = &dh)?)?;
    let mut dw = wide(&einsum!(cpu, "G[o,i] = D[o,t] * X[i,t]", D = &dh, X = &x)?)?;
    dw.extend(wide(&einsum!(cpu, "G[o,i] = D[o,t] * X[i,t]", D = &d, X = &own)?)?);
    if !grows {
        dw.iter_mut().enumerate().for_each(|(at, g)| *g *= keeps(at));
    }
    Ok([
        largest_error(&wide(&net.residual)?, &off),
        largest_error(&wide(&net.gradient)?, &dw),
        largest_error(&wide(&net.dx)?, &dx),
    ])
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let [width, tokens] = if run.toy { [320, 64] } else { [640, 128] };
    let mut error = 0.0f64;
    for grows in [false, true] {
        let [y, w, x] = errors::<f16>(ctx, [width, tokens], grows)?;
        println!("{width} -> {width} -> {width}: errors of Y {y:.1e}, dW {w:.1e}, dX {x:.1e}");
        error = error.max(y).max(w).max(x);
    }
    assert!(error < 1e-2);
    let (losses, changed) = Training::<f16>::new(ctx, [width, tokens], true)?.run(ctx, 20)?;
    let (start, end) = (losses[0], losses[19]);
    println!("20 steps: loss {start:.1} to {end:.1}, masks of {changed} blocks change");
    assert!(end < 0.9 * start && changed > 0);

    let width = if run.toy { 192 } else { 4096 };
    let batches = run.arguments.batch.clone();
    for tokens in batches.unwrap_or(vec![if run.toy { 64 } else { 4096 }]) {
        let memory = Memory::before(ctx);
        let mut training = Training::<f16>::new(ctx, [width, tokens], true)?;
        let held = memory.since(ctx);
        let start = training.run(ctx, 1)?.0[0];
        let times = run.time(|stream| training.step(false, stream))?;
        let loss = training.loss()?;
        assert!(loss < start, "{start} became {loss}");
        let whole = run.time(|stream| training.step(true, stream))?;
        drop(training);
        let mut twin = Training::<f16>::new(ctx, [width, tokens], false)?;
        let other = run.time(|stream| twin.step(false, stream))?;
        let (blocks, whole) = (width / BLOCK, whole.cold.unwrap_or(whole.warm));
        run.report(Measured {
            case: format!(
                "sparse_training step {width} -> {width} -> {width}, {tokens} tokens, {} of {blocks} blocks",
                kept(width)
            ),
            dtype: "f16",
            times,
            work: (tokens as f64, "tokens"),
            twin: Some(("dense".into(), other)),
            held,
            error: Some(error),
            note: format!("{whole:.4} ms with gradients of all weights"),
        });
    }
    Ok(())
}
