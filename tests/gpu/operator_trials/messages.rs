//! Messages along the edges of graphs: sums, means and maxima, and their gradients.

use einsparse::Scalar;
use einsparse::ops::{Aggregate, MessagePassing};

use super::loops::{Entries, coo, sparse_of};
use super::results::same;
use super::trial::{Given, Outcome, Trial};

/// A graph as a list of edges, and the number of features of its sources and targets.
struct Graph {
    /// Target, source, weight.
    edges: Vec<(usize, usize, f64)>,
    targets: usize,
    features: usize,
    aggregate: Aggregate,
}

impl Graph {
    fn draw(
        t: &mut Trial<'_>,
        shape: [usize; 2],
        features: usize,
        aggregate: Aggregate,
    ) -> (Self, Entries) {
        let share = t.one(&[0, 1, 4, 16]);
        let mut entries = t.entries(&shape, share);
        let mut degrees = vec![0.0; shape[0]];
        entries.iter().for_each(|(place, _)| degrees[place[0]] += 1.0);
        // Weights are multiples of the degree, so those of a mean are integers.
        if aggregate == Aggregate::Mean {
            let each = entries.iter_mut();
            each.for_each(|(place, x)| *x *= degrees[place[0]]);
        }
        let edges = entries.iter().map(|(place, x)| (place[0], place[1], *x));
        let graph = Graph { edges: edges.collect(), targets: shape[0], features, aggregate };
        (graph, entries)
    }

    fn degree(&self, target: usize) -> f64 {
        self.edges.iter().filter(|edge| edge.0 == target).count() as f64
    }

    fn forward(&self, x: &[f64]) -> Vec<f64> {
        let n = self.features;
        let mut out = vec![0.0; self.targets * n];
        for target in 0..self.targets {
            let own = || self.edges.iter().filter(|edge| edge.0 == target);
            if own().next().is_none() {
                continue;
            }
            for j in 0..n {
                let terms = own().map(|&(_, source, weight)| weight * x[source * n + j]);
                out[target * n + j] = match self.aggregate {
                    Aggregate::Sum => terms.sum(),
                    Aggregate::Mean => terms.sum::<f64>() / self.degree(target),
                    Aggregate::Max => terms.fold(f64::NEG_INFINITY, |max, x| {
                        if max.is_nan() || x.is_nan() { f64::NAN } else { max.max(x) }
                    }),
                };
            }
        }
        out
    }

    /// Gradient of sum and mean.
    fn backward(&self, dy: &[f64], sources: usize) -> Vec<f64> {
        let n = self.features;
        let mut out = vec![0.0; sources * n];
        for &(target, source, weight) in &self.edges {
            let by = match self.aggregate {
                Aggregate::Mean => weight / self.degree(target),
                _ => weight,
            };
            for j in 0..n {
                out[source * n + j] += by * dy[target * n + j];
            }
        }
        out
    }

    /// Gradient of a maximum, by sources and by edges. The first of the largest messages receives it, also if they are
    /// NaN.
    fn backward_max(&self, [x, y, dy]: [&[f64]; 3], sources: usize) -> [Vec<f64>; 2] {
        let n = self.features;
        let (mut dx, mut da) = (vec![0.0; sources * n], vec![0.0; self.edges.len()]);
        for (target, j) in (0..self.targets).flat_map(|t| (0..n).map(move |j| (t, j))) {
            let wanted = y[target * n + j];
            let won = self.edges.iter().position(|&(own, source, weight)| {
                let message = weight * x[source * n + j];
                own == target && (message == wanted || message.is_nan() && wanted.is_nan())
            });
            if let Some(edge) = won {
                let (_, source, weight) = self.edges[edge];
                dx[source * n + j] += weight * dy[target * n + j];
                da[edge] += x[source * n + j] * dy[target * n + j];
            }
        }
        [dx, da]
    }
}

pub fn messages<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(6);
    let [targets, sources, features] = [t.rows(), t.rows(), t.columns()];
    let aggregate = t.one(&[Aggregate::Sum, Aggregate::Mean, Aggregate::Max]);
    let (graph, entries) = Graph::draw(t, [targets, sources], features, aggregate);
    let format = t.one(&["csr", "coo", "groupcoo:4"]);
    let sparse = match t.is_made_wrong("a graph that is no matrix") {
        true => coo::<T>(&[2, 3, 4], &[(vec![0, 1, 2], 1.0)]),
        false => sparse_of::<T>(&[targets, sources], &entries, format)?,
    };
    let slots = sparse.slots();
    let made = MessagePassing::new(t.context, sparse, features, aggregate);
    let layer = t.made(made)?;
    let has_nan = aggregate == Aggregate::Max && t.once_in(3);
    let x = t.given::<T>("X", &[sources, features], |t, _| match has_nan && t.once_in(20) {
        true => f64::NAN,
        false => t.integer(),
    });
    let mut y = t.written::<T>("Y", &[targets, features]);
    t.run(&mut y, |y, stream| layer.forward(&x.there, y, stream))?;
    let wanted = graph.forward(&x.values);
    let what = format!("{aggregate:?} of {format} by {}", layer.variant());
    same(&format!("Y, {what}"), &y, &wanted);
    let dy = t.integers::<T>("dY", &[targets, features]);
    let mut dx = t.written::<T>("dX", &[sources, features]);
    if aggregate == Aggregate::Max {
        // The order in which NaN messages contribute is not specified.
        if has_nan {
            return Ok(());
        }
        return largest(t, (&layer, &graph, &what), [&x, &dy], (&y, &mut dx), slots);
    }
    t.run(&mut dx, |dx, stream| layer.backward(&dy.there, dx, stream))?;
    let wanted = graph.backward(&dy.values, sources);
    same(&format!("dX, {what}"), &dx, &wanted);
    Ok(())
}

fn largest<T: Scalar>(
    t: &mut Trial<'_>,
    (layer, graph, what): (&MessagePassing<T>, &Graph, &str),
    [x, dy]: [&Given<T>; 2],
    (y, dx): (&einsparse::Tensor<T>, &mut einsparse::Tensor<T>),
    slots: usize,
) -> Result<(), Outcome> {
    let mut da = t.written::<T>("dA", &[slots]);
    let stream = t.stream();
    let ran = layer.backward_max([&x.there, y, &dy.there], dx, Some(&mut da), &stream);
    t.ended(&stream, ran, &[&*dx, &da])?;
    let largest = graph.forward(&x.values);
    let sources = dx.shape()[0];
    let given = [&x.values[..], &largest, &dy.values];
    let [of_x, of_a] = graph.backward_max(given, sources);
    same(&format!("dX, {what}"), dx, &of_x);
    // Otherwise the values contain slots without an edge.
    if slots == graph.edges.len() {
        same(&format!("dA, {what}"), &da, &of_a);
    }
    Ok(())
}
