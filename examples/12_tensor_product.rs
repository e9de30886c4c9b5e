//! Messages along the edges of a water molecule: `Out[b,k,u] = CG[i,j,k] * X[b,i,u] * Y[b,j] * W[b,L[k],u]`. Features X
//! are coupled with the edge's direction Y by Clebsch-Gordan coefficients CG. The program checks that the messages
//! rotate with the molecule.

use einsparse::formats::Dense;
use einsparse::ops::{Channels, Couplings, Factors, TensorProduct};
use einsparse::{Context, Result};
const CHANNELS: usize = 8;
/// Edges from the hydrogens to the oxygen and back, in Angstrom.
const EDGES: [[f64; 2]; 4] = [[0.76, 0.59], [-0.76, 0.59], [-0.76, -0.59], [0.76, -0.59]];

/// Rotates about z, then about x.
fn turned([x, y, z]: [f64; 3]) -> [f64; 3] {
    let ((s, c), (t, d)) = (0.7f64.sin_cos(), 1.9f64.sin_cos());
    let (x, y) = (c * x - s * y, s * x + c * y);
    [x, d * y - t * z, t * y + d * z]
}

/// Computes 8 rows for each edge: two scalars, then two vectors as (y, z, x), the order of real harmonics.
fn messages(ctx: &Context, edges: [[f64; 3]; 4]) -> Result<Dense<f64>> {
    let product = Couplings::natural(1)?;
    let layer = TensorProduct::<f64>::new(ctx, &product, Channels::Each(CHANNELS), 4)?;
    // Harmonics of degrees 0 and 1 of a direction.
    let part = |edge: usize, at: usize| match at {
        0 => 1.0,
        _ => edges[edge][at % 3] / edges[edge].iter().map(|v| v * v).sum::<f64>().sqrt(),
    };
    let shape = [4, 4, CHANNELS];
    let x = Dense::from_fn(shape, |i| (i[2] + 1) as f64 * part(i[0], i[1]))?;
    let y = Dense::from_fn([4, 4], |i| part(i[0], i[1]))?;
    let w = Dense::from_fn(shape, |i| 1.0 / (1 + i[1] + i[2]) as f64)?;
    let (x, y) = (ctx.upload_dense(&x)?, ctx.upload_dense(&y)?);
    let w = Some(&ctx.upload_dense(&w)?);
    let mut out = ctx.zeros(layer.out_shape())?;
    let stream = ctx.stream()?;
    layer.forward(Factors { x: &x, y: &y, w }, &mut out, &stream)?;
    stream.synchronize()?;
    out.to_dense()
}

fn main() -> Result<()> {
    let ctx = Context::new();
    let edges = EDGES.map(|[x, y]| [x, y, 0.0]);
    let before = messages(&ctx, edges)?;
    let after = messages(&ctx, edges.map(turned))?;
    let pairs = before.values().chunks(8 * CHANNELS).zip(after.values().chunks(8 * CHANNELS));
    for ((old, new), u) in pairs.flat_map(|pair| (0..CHANNELS).map(move |u| (pair, u))) {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} and {b}");
        (0..2).for_each(|row| near(old[row * CHANNELS + u], new[row * CHANNELS + u]));
        for first in [2, 5] {
            let vector = |out: &[f64]| [2, 0, 1].map(|axis| out[(first + axis) * CHANNELS + u]);
            let (wanted, found) = (turned(vector(old)), vector(new));
            (0..3).for_each(|axis| near(wanted[axis], found[axis]));
        }
    }
    println!("{ctx}: scalars stay, vectors turn with the molecule");
    Ok(())
}
