//! Messages of equivariant networks and their gradients, against loops over edges and coefficients and against finite
//! differences. The CPU runs the same suite. The coefficients in the kernels are those of the formats crate.

use super::tensor_product::{compare, spread};
use crate::support::assert_error;
use crate::support::dense::wide;
use crate::support::runs::finish;
use crate::support::{GUARD, Rng, gpu, small};
use einsparse::formats::generate::clebsch_gordan;
use einsparse::ops::{
    Channels, Couplings, Edges, EquivariantMessage, Factors, Gradients, TensorProduct,
};
use einsparse::{Context, Error, Scalar, Tensor};
use einsparse_kernels::families::{DEGREES, couplings_of};

#[test]
fn constants_are_the_coefficients() {
    let degrees = || 0..DEGREES;
    for l1 in degrees() {
        for (l2, l3) in degrees().flat_map(|l2| degrees().map(move |l3| (l2, l3))) {
            if l3 < l1.abs_diff(l2) || l3 > l1 + l2 {
                continue;
            }
            let wanted = clebsch_gordan::<f64>(l1, l2, l3).unwrap();
            let coords = wanted.pattern().coords();
            let own = couplings_of([l1, l2, l3]);
            let mut found: Vec<_> = own.all[..own.count].iter().map(|c| (c.at, c.value)).collect();
            found.sort_by_key(|c| c.0);
            assert_eq!(found.len(), wanted.values().len(), "{l1} {l2} {l3}");
            for (at, (place, value)) in found.into_iter().enumerate() {
                assert_eq!(place, [0, 1, 2].map(|axis| coords[axis][at] as usize));
                assert!((value - wanted.values()[at]).abs() < 1e-15, "{l1} {l2} {l3}");
            }
        }
    }
}

/// Edges between vertices, some of which have no edge.
struct Graph {
    receivers: Vec<u32>,
    senders: Vec<u32>,
    nodes: [usize; 2],
}

impl Graph {
    fn new(rng: &mut Rng, nodes: [usize; 2], edges: usize, sorted: bool) -> Graph {
        // The last vertices receive and send nothing.
        let mut one = |count: usize| (rng.word() as usize % count.saturating_sub(1).max(1)) as u32;
        let mut all: Vec<[u32; 2]> = (0..edges).map(|_| [one(nodes[0]), one(nodes[1])]).collect();
        if sorted {
            all.sort_by_key(|edge| edge[0]);
        }
        Graph {
            receivers: all.iter().map(|edge| edge[0]).collect(),
            senders: all.iter().map(|edge| edge[1]).collect(),
            nodes,
        }
    }

    fn edges(&self) -> Edges<'_> {
        Edges { receivers: &self.receivers, senders: &self.senders, nodes: self.nodes }
    }
}

/// X, Y, W and G in f64, with the reference of their products by loops.
struct Case {
    couplings: Couplings,
    graph: Graph,
    width: usize,
    shapes: [Vec<usize>; 4],
    data: [Vec<f64>; 4],
}

impl Case {
    fn new<T: Scalar>(couplings: &Couplings, graph: Graph, width: usize) -> Case {
        let edges = graph.receivers.len();
        let shapes = [
            vec![graph.nodes[1], couplings.components(0), width],
            vec![edges, couplings.components(1)],
            vec![edges, couplings.paths().len(), width],
            vec![graph.nodes[0], couplings.rows(), width],
        ];
        let mut rng = Rng(edges as u64 + 3);
        let data = shapes.each_ref().map(|shape| {
            let count = shape.iter().product();
            rng.units::<T>(count).iter().map(|v| v.to_f64()).collect()
        });
        Case { couplings: couplings.clone(), graph, width, shapes, data }
    }

    /// Returns the product (3), or the gradient of X, Y or W: sums, and sums of magnitudes.
    fn reference(&self, of: usize) -> Vec<(f64, f64)> {
        let all = self.couplings.tensor::<f64>().unwrap();
        let (coords, paths) = (all.pattern().coords(), self.couplings.path_of_row());
        let mut sums = vec![(0.0, 0.0); self.data[of].len()];
        let rows = self.shapes.each_ref().map(|shape| shape[1]);
        for (edge, (&r, &s)) in self.graph.receivers.iter().zip(&self.graph.senders).enumerate() {
            for (at, &value) in all.values().iter().enumerate() {
                let [i, j, k] = [0, 1, 2].map(|axis| coords[axis][at] as usize);
                for u in 0..self.width {
                    let place =
                        |item: usize, rows: usize, row: usize| (item * rows + row) * self.width + u;
                    let at = [
                        place(s as usize, rows[0], i),
                        edge * rows[1] + j,
                        place(edge, rows[2], paths[k] as usize),
                        place(r as usize, rows[3], k),
                    ];
                    let others = (0..4).filter(|&f| f != of);
                    let term = others.fold(value, |term, f| term * self.data[f][at[f]]);
                    let sum = &mut sums[at[of]];
                    *sum = (sum.0 + term, sum.1 + term.abs());
                }
            }
        }
        sums
    }
}

/// Compares product and gradients with the loops: all gradients at once and each alone, with equal bits in a second
/// run. Rows of operands and of outputs have gaps.
fn check<T: Scalar>(ctx: &Context, case: &Case, [read, gap]: [usize; 2]) {
    let what = format!("{:?}, width {}, gaps {read} and {gap}", case.couplings.paths(), case.width);
    let layer =
        EquivariantMessage::<T>::new(ctx, &case.couplings, case.width, case.graph.edges()).unwrap();
    let all =
        [0, 1, 2, 3].map(|of| spread::<T>(ctx, &case.shapes[of], &case.data[of], (read, f64::NAN)));
    let [x, y, w, g] = &all;
    let factors = Factors { x, y, w: Some(w) };
    let poisoned = || {
        [0, 1, 2, 3].map(|of| {
            let poison = vec![f64::NAN; case.data[of].len()];
            spread::<T>(ctx, &case.shapes[of], &poison, (gap, GUARD))
        })
    };
    let stream = ctx.stream().unwrap();
    let run = |wanted: [bool; 3]| {
        let [mut dx, mut dy, mut dw, mut out] = poisoned();
        layer.forward(factors, &mut out, &stream).unwrap();
        let gradients = Gradients {
            x: wanted[0].then_some(&mut dx),
            y: wanted[1].then_some(&mut dy),
            w: wanted[2].then_some(&mut dw),
        };
        layer.backward(factors, g, gradients, &stream).unwrap();
        stream.synchronize().unwrap();
        [dx, dy, dw, out]
    };
    let found = run([true; 3]);
    let again = run([true; 3]);
    for of in 0..4 {
        let bits = |tensor: &Tensor<T>| -> Vec<u64> {
            let own = tensor.to_storage().unwrap();
            own.iter().map(|v| v.to_f64().to_bits()).collect()
        };
        assert_eq!(bits(&found[of]), bits(&again[of]), "{what}: {of} again");
        let width = *case.shapes[of].last().unwrap();
        let all = found[of].to_storage().unwrap();
        for row in all.chunks(width + gap) {
            let kept = row[width.min(row.len())..].iter().all(|v| v.to_f64() == GUARD);
            assert!(kept, "{what}: {of} wrote between rows");
        }
        compare::<T>(&wide(&found[of]), &case.reference(of), || format!("{what}, {of}"));
    }
    for of in 0..3 {
        let alone = run([0, 1, 2].map(|own| own == of));
        assert_eq!(wide(&alone[of]), wide(&found[of]), "{what}: {of} alone");
    }
}

fn suite<T: Scalar>(ctx: &Context, nodes: [usize; 2], edges: usize, widths: &[usize]) {
    let mut rng = Rng(11);
    let mut kinds: Vec<Couplings> = (1..4).map(|l| Couplings::natural(l).unwrap()).collect();
    kinds.push(Couplings::new(&[[1, 1, 1], [2, 2, 1], [2, 1, 2], [3, 3, 3], [1, 2, 3]]).unwrap());
    // Two parts of one degree, parts that no path reads, even and odd sums.
    kinds.push(Couplings::irreps("0e + 1o + 1e + 2e", "0e + 1o + 2e", "0e + 1o + 1e").unwrap());
    kinds.push(Couplings::new(&[[2, 2, 0]]).unwrap());
    for couplings in &kinds {
        for (at, &width) in widths.iter().enumerate() {
            let graph = Graph::new(&mut rng, nodes, edges, at % 2 == 0);
            check::<T>(
                ctx,
                &Case::new::<T>(couplings, graph, width),
                [[0, 0], [3, 3], [0, 0], [0, 3]][at % 4],
            );
        }
    }
}

#[test]
fn messages_and_gradients() {
    suite::<f64>(&Context::unchecked_cpu(), [3, 4], 7, &[2]);
    suite::<f32>(&Context::unchecked_cpu(), [3, 3], 5, &[3]);
    let Some(ctx) = gpu() else { return };
    let widths: &[usize] = match small() {
        true => &[45],
        false => &[32, 1, 64, 96, 45, 128, 160, 36, 4],
    };
    suite::<f32>(&ctx, [9, 11], 70, widths);
    // A row with more entries than a warp reads at once.
    suite::<f32>(&ctx, [1, 1], 71, &[64, 32, 96, 160]);
    // Rows of the output that exceed L2: a launch processes 32 channels or 64.
    for receivers in [32_000, 15_000] {
        let graph = Graph::new(&mut Rng(5), [receivers, 3], 40, true);
        let natural = Couplings::natural(1).unwrap();
        check::<f32>(&ctx, &Case::new::<f32>(&natural, graph, 68), [0, 0]);
    }
    // Without edges, messages and gradients are zero.
    suite::<f32>(&ctx, [3, 2], 0, &[40]);
    // Degrees without a specialized kernel use the general kernels.
    let graph = Graph::new(&mut Rng(2), [4, 4], 9, true);
    let large = Couplings::new(&[[4, 1, 3], [0, 4, 4]]).unwrap();
    check::<f32>(&ctx, &Case::new::<f32>(&large, graph, 8), [0, 0]);
}

/// Infinities reach their receivers, senders and edges, and no other channel.
#[test]
fn infinities_stay_where_they_belong() {
    let run = |ctx: &Context| {
        let couplings = Couplings::natural(2).unwrap();
        let graph = Graph { receivers: vec![0, 1, 1], senders: vec![0, 1, 2], nodes: [3, 3] };
        let mut case = Case::new::<f32>(&couplings, graph, 40);
        // Sender 1, channel 7; it sends edge 1 to receiver 1.
        let rows = couplings.components(0);
        case.data[0][rows * 40 + 7] = f64::INFINITY;
        let layer =
            EquivariantMessage::<f32>::new(ctx, &couplings, 40, case.graph.edges()).unwrap();
        let all =
            [0, 1, 2].map(|of| spread::<f32>(ctx, &case.shapes[of], &case.data[of], (0, 0.0)));
        let [x, y, w] = &all;
        let mut out = ctx.zeros::<f32>(layer.out_shape()).unwrap();
        finish(ctx, |stream| layer.forward(Factors { x, y, w: Some(w) }, &mut out, stream));
        for (at, value) in wide(&out).into_iter().enumerate() {
            let (receiver, channel) = (at / 40 / couplings.rows(), at % 40);
            let may = receiver == 1 && channel == 7;
            assert!(value.is_finite() || may, "receiver {receiver}, channel {channel}");
        }
    };
    run(&Context::unchecked_cpu());
    if let Some(ctx) = gpu() {
        run(&ctx);
    }
}

/// The gradients of `<V, dY>` by X, W and the output's gradient are the product and its gradients with V in place of Y.
#[test]
fn second_derivatives_are_products() {
    let ctx = Context::unchecked_cpu();
    let couplings = Couplings::natural(2).unwrap();
    let channels = Channels::Each(2);
    let product = TensorProduct::<f64>::with_gradients(&ctx, &couplings, channels, 2).unwrap();
    let shapes = [product.x_shape(), product.y_shape(), product.w_shape(), product.out_shape()];
    let mut rng = Rng(4);
    let mut values = |shape: &[usize]| rng.units::<f64>(shape.iter().product());
    let data = shapes.map(&mut values);
    let v = values(shapes[1]);
    let tensor = |shape: &[usize], values: &[f64]| spread::<f64>(&ctx, shape, values, (0, 0.0));
    let stream = ctx.stream().unwrap();
    // Returns <V, dY> of these X, W and G.
    let paired = |data: &[Vec<f64>; 4]| {
        let all = [0, 1, 2, 3].map(|of| tensor(shapes[of], &data[of]));
        let [x, y, w, g] = &all;
        let mut dy = ctx.zeros(shapes[1]).unwrap();
        let gradients = Gradients { x: None, y: Some(&mut dy), w: None };
        product.backward(Factors { x, y, w: Some(w) }, g, gradients, &stream).unwrap();
        stream.synchronize().unwrap();
        wide(&dy).iter().zip(&v).map(|(a, b)| a * b).sum::<f64>()
    };
    let all = [0, 1, 2, 3].map(|of| tensor(shapes[of], &data[of]));
    let [x, _, w, g] = &all;
    let at_v = tensor(shapes[1], &v);
    let factors = Factors { x, y: &at_v, w: Some(w) };
    let mut own = [0, 2, 3].map(|of| ctx.zeros::<f64>(shapes[of]).unwrap());
    let [dx, dw, dg] = &mut own;
    let gradients = Gradients { x: Some(dx), y: None, w: Some(dw) };
    product.backward(factors, g, gradients, &stream).unwrap();
    product.forward(factors, dg, &stream).unwrap();
    stream.synchronize().unwrap();
    for (of, derivative) in [0, 2, 3].into_iter().zip(&own) {
        let mut moved = data.clone();
        let step = rng.units::<f64>(moved[of].len());
        moved[of].iter_mut().zip(&step).for_each(|(v, s)| *v += 0.5 * s);
        let slope: f64 = wide(derivative).iter().zip(&step).map(|(d, s)| d * s).sum();
        let difference = paired(&moved) - paired(&data);
        assert!((difference - 0.5 * slope).abs() < 1e-9, "{of}: {difference} {slope}");
    }
}

#[test]
fn edges_of_vertices_that_are_not_there_are_refused() {
    let ctx = Context::unchecked_cpu();
    let couplings = Couplings::natural(1).unwrap();
    let refused = |receivers: &[u32], senders: &[u32]| {
        let edges = Edges { receivers, senders, nodes: [2, 3] };
        EquivariantMessage::<f32>::new(&ctx, &couplings, 4, edges).unwrap_err()
    };
    assert_error!(refused(&[0, 1], &[0]), Error::Shape { left, .. } if left == "1 senders");
    let receiver = refused(&[0, 2], &[0, 0]);
    assert_error!(receiver, Error::InvalidIndex { position: 1, value: 2, bound: 2, .. });
    let sender = refused(&[0, 1], &[3, 0]);
    assert_error!(sender, Error::InvalidIndex { position: 0, value: 3, bound: 3, .. });
    for (texts, part) in [
        (["0e", "1x", "1o"], "`1x` is not an irrep"),
        (["7e", "0e", "0e"], "`7e` is not an irrep"),
        (["0e", "", "0e"], "`` is not an irrep"),
        (["0e", "1o", "2e"], "0 paths"),
    ] {
        let error = Couplings::irreps(texts[0], texts[1], texts[2]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
