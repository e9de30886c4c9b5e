//! Trains a graph network on Zachary's karate club. Each layer has one weight per edge, and these are trained as well.
//! All gradients of Einsums are those of [`einsparse::Plan::gradients`]. The labels of two members are given: the
//! instructor and the president. The network predicts whom the other members followed when the club split.

use einsparse::formats::{Csr, CsrPattern, Dense, generate};
use einsparse::nn::{Adam, AdamOptions, CrossEntropy};
use einsparse::{Context, Result};

const HIDDEN: usize = 16;
const STEPS: usize = 60;
/// Members who followed the instructor, member 0. The others followed the president, member 33.
const INSTRUCTOR: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21];

/// The graph with an edge from each vertex to itself. The weights of the edges to a vertex add up to 1.
fn edges() -> Result<Csr<f32>> {
    let graph = generate::karate();
    let (mut offsets, mut columns, mut weights) = (vec![0], Vec::new(), Vec::new());
    for vertex in 0..graph.rows() {
        let mut row: Vec<u32> = graph.columns()[graph.row(vertex)].to_vec();
        row.push(vertex as u32);
        row.sort_unstable();
        weights.extend(vec![1.0 / row.len() as f32; row.len()]);
        columns.extend(row);
        offsets.push(columns.len() as u32);
    }
    Csr::new(CsrPattern::new(graph.rows(), graph.rows(), offsets, columns)?, weights)
        .map_err(Into::into)
}

fn main() -> Result<()> {
    let ctx = Context::new();
    let stream = ctx.stream()?;
    let edges = edges()?;
    let members = edges.shape()[0];
    let random = |shape: [usize; 2], seed: u64| {
        let values = generate::random_values::<f32>(shape[0] * shape[1], seed);
        ctx.upload_dense(&Dense::new(shape, values.iter().map(|x| 0.2 * x).collect())?)
    };
    // Parameters. Each member has a trained vector in U, in place of features.
    let (mut p, mut q) = (ctx.upload(edges.clone())?, ctx.upload(edges)?);
    let (mut u, mut w) = (random([members, HIDDEN], 1)?, random([HIDDEN, 2], 2)?);
    let mut b = ctx.zeros(&[HIDDEN])?;

    let first = ctx.plan("H[m,h] = relu(P[m,k] * U[k,h] + b[h])");
    let first = first.operand("P", &p).operand("U", &u).operand("b", &b).build()?;
    let mut h = ctx.zeros(first.out_shape())?;
    let middle = ctx.plan("Z[m,c] = H[m,h] * W[h,c]").operand("H", &h).operand("W", &w).build()?;
    let mut z = ctx.zeros(middle.out_shape())?;
    let last = ctx.plan("Y[m,c] = Q[m,k] * Z[k,c]").operand("Q", &q).operand("Z", &z).build()?;
    let mut y = ctx.zeros(last.out_shape())?;

    let mut of_last = last.gradients(&["Q", "Z"])?;
    let mut of_middle = middle.gradients(&["H", "W"])?;
    let mut of_first = first.gradients(&["P", "U", "b"])?;
    for gradients in [&of_last, &of_middle, &of_first] {
        println!("{gradients}");
    }

    let mut labels = vec![-1; members]; // no label
    (labels[0], labels[members - 1]) = (0, 1);
    let labels = ctx.upload_dense(&Dense::new([members], labels)?)?;
    let cross_entropy = CrossEntropy::new(&ctx, [members, 2])?;
    let (mut loss, mut dy) = (ctx.zeros(&[1])?, ctx.zeros(&[members, 2])?);
    let options = AdamOptions { rate: 0.005, ..AdamOptions::default() };
    let adam = |shape: &[usize]| Adam::new(&ctx, shape, &options);
    let slots = p.values()?.shape().to_vec();
    let (mut of_p, mut of_q) = (adam(&slots)?, adam(&slots)?);
    let (mut of_u, mut of_w, mut of_b) = (adam(u.shape())?, adam(w.shape())?, adam(b.shape())?);

    let mut losses = Vec::new();
    for step in 0..STEPS {
        first.run(
            &[("P", (&p).into()), ("U", (&u).into()), ("b", (&b).into())],
            &mut h,
            &stream,
        )?;
        middle.run(&[("H", (&h).into()), ("W", (&w).into())], &mut z, &stream)?;
        last.run(&[("Q", (&q).into()), ("Z", (&z).into())], &mut y, &stream)?;
        cross_entropy.forward_backward(&y, &labels, &mut loss, &mut dy, &stream)?;

        // The gradient of an operand is the gradient of the output of the plan before.
        of_last.run(&[("Q", (&q).into()), ("Z", (&z).into()), ("dY", (&dy).into())], &stream)?;
        let dz = of_last.dense("Z")?;
        of_middle.run(&[("H", (&h).into()), ("W", (&w).into()), ("dZ", dz.into())], &stream)?;
        let dh = of_middle.dense("H")?;
        // After a ReLU, a gradient also reads the output.
        of_first.run(
            &[("P", (&p).into()), ("U", (&u).into()), ("H", (&h).into()), ("dH", dh.into())],
            &stream,
        )?;

        of_u.step(&mut u, of_first.dense("U")?, &stream)?;
        of_b.step(&mut b, of_first.dense("b")?, &stream)?;
        of_w.step(&mut w, of_middle.dense("W")?, &stream)?;
        // The values of a sparse tensor are a vector for the optimizer.
        let (dp, dq) = (of_first.sparse("P")?.values()?, of_last.sparse("Q")?.values()?);
        of_p.step(&mut *p.values_mut()?, &dp, &stream)?;
        of_q.step(&mut *q.values_mut()?, &dq, &stream)?;
        stream.synchronize()?;
        losses.push(loss.to_dense()?.values()[0]);
        if step % 10 == 9 {
            println!("step {step}: loss {:.4}", losses[step]);
        }
    }

    let y = y.to_dense()?;
    let right = (0..members).filter(|member| {
        let instructor = y.values()[2 * member] > y.values()[2 * member + 1];
        instructor == INSTRUCTOR.contains(member)
    });
    let right = right.count();
    println!("{ctx}: loss {:.4}, {right} of {members} members are right", losses[STEPS - 1]);
    assert!(losses[STEPS - 1] < 0.1 * losses[0] && right >= 29);
    Ok(())
}
