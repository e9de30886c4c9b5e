//! The models of `examples/models` at toy size: gradients against differences, against dense edges, the same bits twice.

#[path = "../examples/models/all.rs"]
mod all;

use all::atoms::Atoms;
use all::gcn::Gcn;
use all::graphs::{Kind, Task, rmat};
use all::{decode, dynamics, moe, opt_relu, training};
use einsparse::Context;
use einsparse::formats::Dense;

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

#[test]
fn a_pruned_decoder_says_what_a_dense_one_does() {
    for batch in [1, 8] {
        let error = decode::checked(&Context::cpu(), batch, 3).unwrap();
        assert!(error < 0.02, "{batch} sequences: {error}");
    }
}

#[test]
fn a_block_of_experts_is_that_in_f64() {
    for (past, tokens) in [(None, 40), (Some(5), 8), (Some(0), 1)] {
        let error = moe::checked(&Context::cpu(), past, tokens).unwrap();
        assert!(error < 0.02, "{past:?}, {tokens} tokens: {error}");
    }
}

#[test]
fn forces_are_slopes_of_the_energy() {
    let cpu = Context::cpu();
    let atoms = Atoms::liquid([3, 2, 2], 3.6).unwrap();
    let evaluate = |atoms: &Atoms| dynamics::evaluate::<f64>(&cpu, atoms, 8, 3.5).unwrap();
    let (_, gradient) = evaluate(&atoms);
    let energy = |atom: usize, d: usize, by: f64| {
        let mut moved = atoms.clone();
        moved.positions[atom][d] += by;
        evaluate(&moved).0.iter().sum::<f64>()
    };
    for (atom, d) in [(0, 0), (3, 1), (5, 2), (11, 0)] {
        let slope = (energy(atom, d, 1e-5) - energy(atom, d, -1e-5)) / 2e-5;
        let found = gradient[3 * atom + d];
        assert!(
            (found - slope).abs() < 1e-7 * (1.0 + slope.abs()),
            "{atom}, {d}: {found}, not {slope}"
        );
    }
    // Nothing pulls them all.
    for d in 0..3 {
        assert!(gradient.iter().skip(d).step_by(3).sum::<f64>().abs() < 1e-11);
    }
}

#[test]
fn a_force_field_does_not_know_from_where_atoms_are_seen() {
    let cpu = Context::cpu();
    let atoms = Atoms::liquid([3, 2, 2], 3.6).unwrap();
    let wide = dynamics::equivariance::<f64>(&cpu, &atoms, 8, 3.5).unwrap();
    let narrow = dynamics::equivariance::<f32>(&cpu, &atoms, 8, 3.5).unwrap();
    assert!(wide < 1e-12 && narrow < 5e-6, "{wide}, {narrow}");
    let error = dynamics::error(&cpu, &atoms, 8, 3.5).unwrap();
    assert!(error < 5e-6, "{error}");
}

#[test]
fn energy_stays_and_motion_repeats() {
    let cpu = Context::cpu();
    let atoms = Atoms::liquid([3, 2, 2], 3.6).unwrap();
    let moved = || dynamics::trajectory::<f32>(&cpu, &atoms, (8, 3.5), 10).unwrap();
    let ([drift, _], positions) = moved();
    assert!(drift < 1e-5, "{drift}");
    assert!(moved().1 == positions, "two runs differ");
}
