//! An Einsum and its indirect form, and an indirect Einsum written by hand (on the CPU, which supports all of them).

use einsparse::einsum::Einsum;
use einsparse::formats::{Csr, CsrPattern, Dense, Format};
use einsparse::indirect::rewrite;
use einsparse::{Context, einsum};

fn main() -> einsparse::Result<()> {
    // A format is a substitution of the indices of an expression.
    let e = Einsum::parse("C[m,n] = A[m,k] * B[k,n]")?;
    let grouped = rewrite(&e, "A", &Format::GroupCoo { axis: 0, group: None })?;
    println!("{e}\n  -> {grouped}");
    assert_eq!(grouped.to_string(), "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]");

    // A plan stores each form: the Einsum, the indirect Einsum and the kernel.
    let ctx = Context::cpu();
    let pattern = CsrPattern::new(3, 3, vec![0, 2, 2, 3], vec![0, 2, 1])?;
    let a = Csr::new(pattern, vec![1.0f32, 2.0, 3.0])?;
    let b = Dense::from_fn(vec![3, 4], |i| (10 * i[0] + i[1]) as f32)?;
    let plan = ctx
        .plan("C[m,n] = A[m,k] * B[k,n]")
        .operands(&[("A", (&a).into()), ("B", (&b).into())])
        .build()?;
    println!("{}\n  -> {}\n  -> {plan}", plan.einsum(), plan.indirect());
    if let Some((kernel, microseconds)) = plan.choice().candidates().next() {
        println!("on an H200: {kernel} in {microseconds:.1} us");
    }

    // The product written by hand: gather rows of B, scale them, scatter them into rows of C.
    let (rows, columns) = ([0u32, 0, 2], [0u32, 2, 1]);
    let values = Dense::new(vec![3], vec![1.0f32, 2.0, 3.0])?;
    let start = Dense::<f32>::zeros(vec![3, 4])?; // `+=` adds to it; it also sets the number of rows of C
    let by_hand = einsum!(
        ctx,
        "C[R[p],n] += V[p] * B[K[p],n]",
        C = &start,
        R = (&[3usize][..], &rows[..]),
        K = (&[3usize][..], &columns[..]),
        V = &values,
        B = &b,
    )?;
    let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?;
    assert_eq!(by_hand.to_dense()?, c.to_dense()?);
    Ok(())
}
