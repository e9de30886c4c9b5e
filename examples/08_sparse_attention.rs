//! Attention at the entries of a mask, forward (one kernel) and backward. The mask is a causal band plus a few distant
//! keys for each query. The output is checked against three steps on the host, the gradients against the CPU.

use einsparse::formats::{Csr, CsrPattern, Dense, bf16, generate};
use einsparse::ops::{AttentionGradient, AttentionOptions, SparseAttention};
use einsparse::{Context, Result, Scalar};

/// Mask of the last `band` keys of each query, and of every `stride`-th key before them.
fn mask(extent: usize, band: usize, stride: usize) -> Result<CsrPattern> {
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for row in 0..extent {
        let start = (row + 1).saturating_sub(band);
        let far = (0..start).filter(|key| (key + row) % stride == 0);
        columns.extend(far.chain(start..=row).map(|key| key as u32));
        offsets.push(columns.len() as u32);
    }
    Ok(CsrPattern::new(extent, extent, offsets, columns)?)
}

fn main() -> Result<()> {
    let ctx = Context::new();
    println!("{ctx}");
    let [extent, dim] = if ctx.is_cuda() { [2048, 128] } else { [256, 64] };
    compare::<bf16>(&ctx, extent, dim)
}

fn compare<T: Scalar>(ctx: &Context, extent: usize, dim: usize) -> Result<()> {
    let heads = 4;
    let pattern = mask(extent, 64, 20)?;
    let entries = pattern.columns().len();
    let values = vec![T::ONE; entries];
    let on_device = ctx.upload(Csr::new(pattern.clone(), values)?)?;
    let shape = vec![heads, extent, dim];
    let random = |seed| -> Result<Dense<T>> {
        let values = generate::random_values::<T>(heads * extent * dim, seed);
        Ok(Dense::new(shape.clone(), values)?)
    };
    let (q, k, v) = (random(1)?, random(2)?, random(3)?);

    let options = AttentionOptions { heads, dim, ..AttentionOptions::default() };
    let attention = SparseAttention::new(ctx, &[&on_device], &options)?;
    let mut out = ctx.zeros::<T>(&shape)?;
    let mut log_sum = ctx.zeros::<f32>(&[heads, extent])?;
    let operands = [ctx.upload_dense(&q)?, ctx.upload_dense(&k)?, ctx.upload_dense(&v)?];
    let [dq, dk, dv] = &operands;
    let stream = ctx.stream()?;
    attention.forward([dq, dk, dv], &mut out, Some(&mut log_sum), &stream)?;
    stream.synchronize()?;

    let worst = check(&pattern, [&q, &k, &v], &out.to_dense()?);
    println!(
        "{heads} heads, {extent} queries, {entries} of {} scores, by {}: {} bytes beside the operands, largest error \
         {worst:.1e}",
        extent * extent,
        attention.variant(),
        attention.workspace_bytes(),
    );
    assert!(worst < 0.03, "off by {worst}");

    let upstream = random(4)?;
    let host = [&q, &k, &v, &upstream];
    let (found, bytes) = gradients(ctx, &pattern, &options, host)?;
    let (wanted, _) = gradients(&Context::cpu(), &pattern, &options, host)?;
    println!("gradients: {bytes} bytes beside the operands");
    for ((found, wanted), name) in found.iter().zip(&wanted).zip(["dQ", "dK", "dV"]) {
        let (mut worst, mut largest) = (0f64, 0f64);
        for (found, wanted) in found.values().iter().zip(wanted.values()) {
            worst = worst.max((found.to_f64() - wanted.to_f64()).abs());
            largest = largest.max(wanted.to_f64().abs());
        }
        println!("{name} differs by {:.1e} of its largest value", worst / largest);
        assert!(worst <= 0.03 * largest, "{name} is off by {worst} of {largest}");
    }
    Ok(())
}

/// Gradients of queries, keys and values, given the operands and the output's gradient, and the bytes they required.
fn gradients<T: Scalar>(
    ctx: &Context,
    pattern: &CsrPattern,
    options: &AttentionOptions,
    host: [&Dense<T>; 4],
) -> Result<([Dense<T>; 3], usize)> {
    let values = vec![T::ONE; pattern.columns().len()];
    let mask = ctx.upload(Csr::new(pattern.clone(), values)?)?;
    let mut gradient = AttentionGradient::new(ctx, &[&mask], options)?;
    let upload = |dense: &Dense<T>| ctx.upload_dense(dense);
    let (q, k, v, upstream) =
        (upload(host[0])?, upload(host[1])?, upload(host[2])?, upload(host[3])?);
    let (mut dq, mut dk) = (ctx.zeros(q.shape())?, ctx.zeros(k.shape())?);
    let mut dv = ctx.zeros(v.shape())?;
    let stream = ctx.stream()?;
    gradient.backward([&q, &k, &v], &upstream, [&mut dq, &mut dk, &mut dv], &stream)?;
    stream.synchronize()?;
    let found = [dq.to_dense()?, dk.to_dense()?, dv.to_dense()?];
    Ok((found, gradient.workspace_bytes()))
}

/// Largest difference from scores, softmax and weighted sum computed one after the other, for every 37th query.
fn check<T: Scalar>(pattern: &CsrPattern, [q, k, v]: [&Dense<T>; 3], out: &Dense<T>) -> f64 {
    let &[heads, extent, dim] = out.shape() else {
        return f64::INFINITY;
    };
    let mut worst = 0f64;
    for (head, query) in (0..heads).flat_map(|h| (h..extent).step_by(37).map(move |q| (h, q))) {
        let row = |dense: &Dense<T>, row: usize| -> Vec<f64> {
            let at = (head * extent + row) * dim;
            dense.values()[at..at + dim].iter().map(|x| x.to_f64()).collect()
        };
        let keys = &pattern.columns()[pattern.row(query)];
        let own = row(q, query);
        let score = |&key: &u32| {
            let dot: f64 = own.iter().zip(row(k, key as usize)).map(|(q, k)| q * k).sum();
            dot / (dim as f64).sqrt()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut wanted = vec![0.0; dim];
        for (weight, &key) in weights.iter().zip(keys) {
            for (wanted, v) in wanted.iter_mut().zip(row(v, key as usize)) {
                *wanted += weight / sum * v;
            }
        }
        for (wanted, found) in wanted.iter().zip(row(out, query)) {
            worst = worst.max((wanted - found).abs());
        }
    }
    worst
}
