//! SpMM (sparse x dense) on the karate-club graph in one line: each member's new feature is the sum over its friends.

use einsparse::formats::{Csr, Dense, generate};
use einsparse::{Context, einsum};

fn main() -> einsparse::Result<()> {
    let graph = generate::karate(); // 34 members, 78 friendships, each stored in both directions
    let ones = vec![1.0f32; graph.columns().len()];
    let a = Csr::new(graph, ones)?;

    // Feature 0 is 1 for every member. Feature 1 is the member's index.
    let b = Dense::from_fn(vec![34, 2], |i| [1.0, i[0] as f32][i[1]])?;

    let ctx = Context::new(); // uses a GPU if one is available
    let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?.to_dense()?;

    println!("on {ctx}: member 0 has {} friends", c.values()[0]);
    for (member, ends) in a.pattern().offsets().windows(2).enumerate() {
        let friends = &a.pattern().columns()[ends[0] as usize..ends[1] as usize];
        assert_eq!(c.get(&[member, 0]), Some(friends.len() as f32));
        assert_eq!(c.get(&[member, 1]), Some(friends.iter().sum::<u32>() as f32));
    }
    assert_eq!(c.get(&[33, 0]), Some(17.0)); // the instructor's rival has the most friends
    Ok(())
}
