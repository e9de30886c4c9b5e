//! Graphs with the edge weights of a layer, and learning tasks on them.

use einsparse::formats::{Csr, CsrPattern, Dense, Element, generate};
use einsparse::{Result, Scalar};

/// Aggregation of a vertex over its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sum of the features of neighbours and of the vertex, over the roots of both degrees (arXiv 1609.02907).
    Gcn,
    /// Mean over the neighbours (arXiv 1706.02216). The vertex's own features have separate weights.
    Sage,
}

/// Edges in both directions, and the features, classes and known labels of the vertices.
pub struct Task<T> {
    pub edges: CsrPattern,
    pub features: Dense<T>,
    pub classes: Vec<i32>,
    /// -1 if the label is unknown.
    pub labels: Vec<i32>,
}

/// Returns the edges in both directions, without duplicates.
fn both_ways(vertices: usize, edges: impl Iterator<Item = (u32, u32)>) -> Result<CsrPattern> {
    let mut all: Vec<(u32, u32)> = edges.flat_map(|(a, b)| [(a, b), (b, a)]).collect();
    all.sort_unstable();
    all.dedup();
    let mut offsets = vec![0; vertices + 1];
    all.iter().for_each(|(row, _)| offsets[*row as usize + 1] += 1);
    (0..vertices).for_each(|row| offsets[row + 1] += offsets[row]);
    let columns = all.into_iter().map(|(_, column)| column).collect();
    Ok(CsrPattern::new(vertices, vertices, offsets, columns)?)
}

fn edges_of(graph: &CsrPattern) -> impl Iterator<Item = (u32, u32)> + '_ {
    let row = |row: usize| graph.row(row).map(move |edge| (row as u32, edge));
    (0..graph.rows()).flat_map(row).map(|(row, edge)| (row, graph.columns()[edge]))
}

/// Returns the edge weights of a layer. Those of a GCN are symmetric, and include an edge from each vertex to itself.
pub fn weighted<T: Scalar>(graph: &CsrPattern, kind: Kind) -> Result<Csr<T>> {
    let vertices = graph.rows();
    let own = (0..vertices as u32).filter(|_| kind == Kind::Gcn).map(|v| (v, v));
    let pattern = both_ways(vertices, edges_of(graph).chain(own))?;
    let degree = |v: u32| pattern.row(v as usize).len() as f64;
    let weight = |(a, b): (u32, u32)| match kind {
        Kind::Gcn => 1.0 / (degree(a) * degree(b)).sqrt(),
        Kind::Sage => 1.0 / degree(a),
    };
    let values = edges_of(&pattern).map(|edge| T::from_f64(weight(edge))).collect();
    Ok(Csr::new(pattern, values)?)
}

/// R-MAT graph with about 15 edges in each direction per vertex. Classes are random, so nothing can be learned.
pub fn rmat<T: Scalar>(scale: u32, features: usize, classes: usize) -> Result<Task<T>> {
    let graph = generate::rmat(scale, 16, 1)?;
    let vertices = graph.rows();
    let edges = both_ways(vertices, edges_of(&graph))?;
    let drawn = generate::small_integers::<f32>(vertices, 2);
    let class = |x: &f32| (*x as i32).rem_euclid(classes as i32);
    let labels: Vec<i32> = drawn.iter().map(class).collect();
    Ok(Task {
        edges,
        features: Dense::new(
            [vertices, features],
            generate::random_values(vertices * features, 3),
        )?,
        classes: labels.clone(),
        labels,
    })
}

/// Planted partition: vertices of one community are connected more often than others, and features carry little
/// information. Every fifth vertex has a label.
pub fn planted(vertices: usize, features: usize, classes: usize) -> Result<Task<f32>> {
    let class = |v: usize| v % classes;
    let draws = generate::random_values::<f32>(vertices * vertices, 5);
    // A normal distribution has 10 % of its values above 1.3, and 1 % above 2.3.
    let meet = |a: usize, b: usize| {
        let least = if class(a) == class(b) { 1.3 } else { 2.3 };
        a < b && draws[a * vertices + b] > least
    };
    let pairs = (0..vertices).flat_map(|a| (0..vertices).map(move |b| (a, b)));
    let edges = pairs.filter(|&(a, b)| meet(a, b)).map(|(a, b)| (a as u32, b as u32));
    let noise =
        Dense::new([vertices, features], generate::random_values::<f32>(vertices * features, 6))?;
    let feature = |at: &[usize]| {
        let hint = f32::from(u8::from(at[1] % classes == class(at[0])));
        noise.get(at).unwrap_or(0.0) + 0.5 * hint
    };
    let known = |v: usize| match v / classes % 5 {
        0 => class(v) as i32,
        _ => -1,
    };
    Ok(Task {
        edges: both_ways(vertices, edges)?,
        features: Dense::from_fn([vertices, features], feature)?,
        labels: (0..vertices).map(known).collect(),
        classes: (0..vertices).map(|v| class(v) as i32).collect(),
    })
}

/// Weights of a layer with the variance of Glorot and Bengio, but normally distributed.
pub fn weights<T: Scalar>([inputs, outputs]: [usize; 2], seed: u64) -> Result<Dense<T>> {
    let size = (2.0 / (inputs + outputs) as f64).sqrt();
    let values = generate::random_values::<f64>(inputs * outputs, seed);
    let scaled = values.iter().map(|x| <T as Element>::from_f64(x * size)).collect();
    Ok(Dense::new([inputs, outputs], scaled)?)
}
