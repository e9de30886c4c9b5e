//! Message passing on a graph: sum, mean and maximum over the co-authors of each author. The graph is read from
//! `EINSPARSE_DATA` if it has one; otherwise it is Zachary's karate club.

use std::path::Path;

use einsparse::Context;
use einsparse::formats::{Csr, Dense, generate, io};
use einsparse::ops::{Aggregate, MessagePassing};

fn graph() -> Result<Csr<f32>, Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::var_os("EINSPARSE_DATA") {
        let path = Path::new(&folder).join("graphs/ca-CondMat.mtx");
        if path.is_file() {
            return Ok(io::read_matrix_market(&path)?.matrix.to_csr()?);
        }
    }
    let pattern = generate::karate();
    let ones = vec![1.0; pattern.columns().len()];
    Ok(Csr::new(pattern, ones)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ctx = Context::new();
    let graph = graph()?;
    let (vertices, features) = (graph.shape()[0], 32);
    let x = Dense::new([vertices, features], generate::random_values(vertices * features, 14))?;
    let there = ctx.upload_dense(&x)?;
    let stream = ctx.stream()?;
    for aggregate in [Aggregate::Sum, Aggregate::Mean, Aggregate::Max] {
        let layer = MessagePassing::new(&ctx, graph.clone(), features, aggregate)?;
        let mut y = ctx.zeros(&[vertices, features])?;
        layer.forward(&there, &mut y, &stream)?;
        stream.synchronize()?;
        // Check: recompute each vertex from its edges.
        let mut largest = 0.0f32;
        for (at, found) in y.to_dense()?.values().iter().enumerate() {
            let (vertex, feature) = (at / features, at % features);
            let edges = graph.pattern().row(vertex);
            let degree = edges.len().max(1) as f32;
            let from = |edge: usize| graph.pattern().columns()[edge] as usize * features;
            let messages = edges.map(|e| graph.values()[e] * x.values()[from(e) + feature]);
            let wanted = match aggregate {
                Aggregate::Sum => messages.sum(),
                Aggregate::Mean => messages.sum::<f32>() / degree,
                Aggregate::Max => messages.reduce(f32::max).unwrap_or(0.0),
            };
            largest = largest.max((found - wanted).abs());
        }
        println!("{aggregate:?} by {}: largest error {largest:.1e}", layer.variant());
        assert!(largest < 1e-3);
    }
    Ok(())
}
