//! One plan, run many times: with new values, a given output and an explicit stream, and without allocations.

use einsparse::Context;
use einsparse::formats::{Csr, Dense, generate};

fn main() -> einsparse::Result<()> {
    let ctx = Context::new();
    let stream = ctx.stream()?;
    let pattern = generate::uniform(200, 100, 0.1, 1)?;
    let entries = pattern.columns().len();

    let mut a = ctx.upload(Csr::new(pattern, vec![1.0f32; entries])?)?;
    let b = ctx.upload_dense(&Dense::new(vec![100, 64], generate::small_integers(100 * 64, 2))?)?;
    let expression = "C[m,n] = relu(scale * A[m,k] * B[k,n])";

    let plan = {
        let operands = [("A", (&a).into()), ("B", (&b).into()), ("scale", 1.0.into())];
        ctx.plan(expression).operands(&operands).build()?
    };
    println!("{plan}");
    let mut c = ctx.zeros(plan.out_shape())?;

    let mut results = Vec::new();
    for step in 1..=3 {
        // The pattern does not change, so the plan stays valid. Doubled values must double the result.
        a.set_values(&vec![f32::from(step as u8); entries])?;
        let operands = [("A", (&a).into()), ("B", (&b).into()), ("scale", 0.5.into())];
        plan.run(&operands, &mut c, &stream)?;
        stream.synchronize()?;
        results.push(c.to_dense()?);
    }
    let [one, two, three] = &results[..] else { unreachable!("three runs") };
    for ((one, two), three) in one.values().iter().zip(two.values()).zip(three.values()) {
        assert_eq!((2.0 * one, 3.0 * one), (*two, *three));
        assert!(*one >= 0.0);
    }
    assert!(one.values().iter().any(|c| *c > 0.0));
    Ok(())
}
