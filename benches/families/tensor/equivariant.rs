//! Messages of an equivariant network between 3,000 atoms with 160,000 edges sorted by receiver, alone and with all
//! gradients. Bytes are those of weights, harmonics, features and outputs once. The first and last receivers, senders
//! and edges are checked against loops in f64. Notes state the baseline's times of the same shapes, measured separately
//! on a GPU of this kind.

use crate::prelude::*;
use crate::record::HBM;
use einsparse::ops::{Couplings, Edges, EquivariantMessage, Factors, Gradients};

pub const OP: &str = "equivariant_message";
const ATOMS: usize = 3_000;
const EDGES: usize = 160_000;

/// Name, channels, max degree, and times of the baseline in us, cold, alone and with all gradients.
const CASES: [(&str, usize, usize, [&str; 2]); 3] = [
    ("message-l1", 128, 1, ["258", "519"]),
    ("message-l2", 128, 2, ["1000", "1930"]),
    ("message-l3", 64, 3, ["1070", "2700"]),
];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(9);
    let mut edges: Vec<[u32; 2]> = (0..EDGES)
        .map(|_| [rng.random_range(0..ATOMS as u32), rng.random_range(0..ATOMS as u32)])
        .collect();
    edges.sort_unstable();
    for (name, channels, largest, peers) in CASES {
        if bench.arguments.named(name) {
            measured(&bench.anew()?, &edges, (name, channels, largest, peers))?;
        }
    }
    Ok(())
}

fn measured(
    bench: &Bench<'_>,
    edges: &[[u32; 2]],
    (name, channels, largest, peers): (&str, usize, usize, [&str; 2]),
) -> Result<()> {
    let couplings = Couplings::natural(largest)?;
    let [receivers, senders] =
        [0, 1].map(|end| -> Vec<u32> { edges.iter().map(|e| e[end]).collect() });
    let graph = Edges { receivers: &receivers, senders: &senders, nodes: [ATOMS; 2] };
    let (layer, prepared) =
        timed(|| Ok(EquivariantMessage::<f32>::new(&bench.context, &couplings, channels, graph)?))?;
    let shapes = [
        vec![ATOMS, couplings.components(0), channels],
        vec![EDGES, couplings.components(1)],
        vec![EDGES, couplings.paths().len(), channels],
        layer.out_shape().to_vec(),
    ];
    let host: [Dense<f32>; 4] = [0, 1, 2, 3].map(|of| values::dense(&shapes[of], 7 + of, 1.0));
    let [x, y, w, g] = bench.uploads(host.each_ref())?;
    let [dx, dy, dw, out] = shapes.each_ref().map(|shape| bench.poisoned::<f32>(shape));
    let (mut dx, mut dy, mut dw, mut out) = (dx?, dy?, dw?, out?);
    let factors = Factors { x: &x, y: &y, w: Some(&w) };
    let mut results = Vec::new();
    for all in [false, true] {
        let times = bench.measure(|| {
            layer.forward(factors, &mut out, &bench.stream)?;
            if all {
                let gradients = Gradients { x: Some(&mut dx), y: Some(&mut dy), w: Some(&mut dw) };
                layer.backward(factors, &g, gradients, &bench.stream)?;
            }
            Ok::<(), einsparse::Error>(())
        })?;
        results.push(times);
    }
    let found = [dx.to_dense()?, dy.to_dense()?, dw.to_dense()?, out.to_dense()?];
    let worst = (0..4).map(|of| checked(&couplings, edges, &host, of, &found[of]));
    let worst = worst.collect::<Result<Vec<f64>>>()?.into_iter().fold(0f64, worse);
    let size = |of: usize| 4.0 * shapes[of].iter().product::<usize>() as f64;
    let entries = couplings.tensor::<f32>()?.values().len();
    for (all, times) in results.iter().enumerate() {
        let bytes = match all {
            0 => size(0) + size(1) + size(2) + size(3),
            _ => 3.0 * (size(0) + size(1) + size(2)) + 2.0 * size(3),
        };
        let workload = format!("{name}{}", ["", "-all"][all]);
        let row = Row::new(OP, workload, [ATOMS, EDGES, channels], entries, Dtype::F32)
            .ours(layer.variants()[0].unwrap_or(""))
            .timed(times)
            .bytes(bytes)
            .limit(1e3 * bytes / HBM)
            .prepared(prepared, layer.workspace_bytes())
            .note(["forward", "with gradients of X, Y and W"][all])
            .also(format!("cuEquivariance {}", peers[all]));
        bench.add(row.error(worst / 1e-5))?;
    }
    Ok(())
}

/// Max error of the first and last items of the product (3) or a gradient, relative to the max element.
fn checked(
    couplings: &Couplings,
    edges: &[[u32; 2]],
    [x, y, w, g]: &[Dense<f32>; 4],
    of: usize,
    found: &Dense<f32>,
) -> Result<f64> {
    let all = couplings.tensor::<f64>()?;
    let (coords, paths) = (all.pattern().coords(), couplings.path_of_row());
    let given = [x, y, w, g];
    let width = x.shape()[2];
    let rows = given.map(|dense| dense.shape()[1]);
    let each = found.values().len() / found.shape()[0];
    let (mut worst, mut largest) = (0f64, 0f64);
    for item in [0, found.shape()[0] - 1] {
        let mut wanted = vec![0f64; each];
        for (edge, &[receiver, sender]) in edges.iter().enumerate() {
            let items = [sender as usize, edge, edge, receiver as usize];
            if items[of] != item {
                continue;
            }
            for (at, &value) in all.values().iter().enumerate() {
                let [i, j, k] = [0, 1, 2].map(|axis| coords[axis][at] as usize);
                for u in 0..width {
                    let inside = [i * width + u, j, paths[k] as usize * width + u, k * width + u];
                    let others = (0..4).filter(|&other| other != of).map(|other| {
                        let size = rows[other] * if other == 1 { 1 } else { width };
                        f64::from(given[other].values()[items[other] * size + inside[other]])
                    });
                    wanted[inside[of]] += value * others.product::<f64>();
                }
            }
        }
        for (found, wanted) in found.values()[item * each..].iter().zip(&wanted) {
            worst = worse(worst, (f64::from(*found) - wanted).abs());
            largest = largest.max(wanted.abs());
        }
    }
    Ok(worst / largest)
}
