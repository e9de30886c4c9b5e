//! The models of `examples/models` at toy size: gradients against differences, against dense edges, the same bits twice.

#[path = "../examples/models/all.rs"]
mod all;

use all::gcn::Gcn;
use all::graphs::{Kind, Task, rmat};
use all::mobilenet_weights::Sizes;
use all::{mobilenet, opt_relu, training};
use einsparse::Context;
use einsparse::formats::{Dense, f16};

const KINDS: [Kind; 2] = [Kind::Gcn, Kind::Sage];
const WIDTHS: [usize; 4] = [5, 4, 6, 3];

/// The loss of what the model says now, in f64.
fn loss(model: &mut Gcn<f64>, task: &Task<f64>) -> f64 {
    let stream = Context::cpu().stream().unwrap();
    model.forward(&stream).unwrap();
    let logits = model.logits().to_dense().unwrap();
    let rows = logits.values().chunks(WIDTHS[3]).zip(&task.labels);
    let live = rows.filter(|(_, label)| **label >= 0);
    let losses: Vec<f64> = live
        .map(|(row, label)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*label as usize])
        .collect();
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn gradients_of_graph_layers_are_those_of_differences() {
    const STEP: f64 = 1e-6;
    let cpu = Context::cpu();
    for kind in KINDS {
        let mut task = rmat::<f64>(4, WIDTHS[0], WIDTHS[3]).unwrap();
        // Some vertices have no label.
        task.labels
            .iter_mut()
            .step_by(3)
            .for_each(|label| *label = -1);
        let mut model = Gcn::<f64>::new(&cpu, kind, &task, WIDTHS, false).unwrap();
        let stream = cpu.stream().unwrap();
        model.forward(&stream).unwrap();
        model.backward(&stream).unwrap();
        let found: Vec<Dense<f64>> = (model.parameters())
            .map(|parameter| parameter.gradient.to_dense().unwrap())
            .collect();
        for (number, gradient) in found.iter().enumerate() {
            for (at, found) in gradient.values().iter().enumerate() {
                let mut moved = |by: f64| {
                    let parameter = model.parameters().nth(number).unwrap();
                    let kept = parameter.value.to_dense().unwrap();
                    let mut values = kept.values().to_vec();
                    values[at] += by;
                    let other = Dense::new(kept.shape(), values).unwrap();
                    parameter.value.write(&other).unwrap();
                    let loss = loss(&mut model, &task);
                    let parameter = model.parameters().nth(number).unwrap();
                    parameter.value.write(&kept).unwrap();
                    loss
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let near = (found - slope).abs() <= 1e-6 * (1.0 + slope.abs());
                assert!(
                    near,
                    "{kind:?}, parameter {number}, {at}: {found}, not {slope}"
                );
            }
        }
    }
}

#[test]
fn graph_layers_with_sparse_and_dense_edges_agree() {
    let cpu = Context::cpu();
    for kind in KINDS {
        let error = training::error(&cpu, kind, [16, 16, 16, 8]).unwrap();
        assert!(error < 1e-5, "{kind:?}: {error}");
        let task = rmat::<f32>(7, 16, 8).unwrap();
        assert!(training::repeats(&cpu, kind, &task, [16, 16, 24, 8], 5).unwrap());
    }
}

#[test]
fn communities_are_found() {
    for (kind, adam) in [(Kind::Gcn, true), (Kind::Gcn, false), (Kind::Sage, true)] {
        let share = training::accuracy(&Context::cpu(), kind, adam).unwrap();
        assert!(share > 0.8, "{kind:?}: {share}");
    }
}

#[test]
fn hidden_activations_are_skipped_without_a_trace() {
    for tokens in [1, 5, 32] {
        let (error, share) = opt_relu::checked(&Context::cpu(), [64, 256], tokens).unwrap();
        assert!(
            error < 2e-3 && (0.02..0.05).contains(&share),
            "{tokens}: {error}, {share}"
        );
    }
}

/// Two images, of planes that are whole vectors and that are not.
#[test]
fn pruned_convolutions_are_those_of_plain_loops() {
    let cpu = Context::cpu();
    for edge in [32, 41] {
        let sizes = Sizes {
            edge,
            eighths: 1,
            classes: 10,
        };
        for dense in [false, true] {
            let error = mobilenet::checked::<f32>(&cpu, sizes, 2, dense).unwrap();
            assert!(error < 1e-5, "{sizes:?}, dense {dense}: {error}");
        }
        let error = mobilenet::checked::<f16>(&cpu, sizes, 2, false).unwrap();
        assert!(error < 2e-2, "{sizes:?}: {error}");
    }
}
