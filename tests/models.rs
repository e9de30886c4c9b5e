//! The models of `examples/models` at toy size: gradients compared with finite differences, results compared with dense
//! edges, and equal bits in two runs.

#[path = "../examples/models/all.rs"]
pub mod all;
mod checkpoint;
mod transformer;

use all::atoms::Atoms;
use all::block_masks::BLOCK;
use all::dynamics::Dynamics;
use all::force_field::ForceField;
use all::gcn::Gcn;
use all::graphs::{Kind, Task, rmat};
use all::maps::Maps;
use all::masked_net::Net;
use all::mobilenet_weights::Sizes;
use all::point_cloud::{self, CLASSES};
use all::scans::Scan;
use all::unet::Unet;
use all::{decode, dynamics, encoder, mobilenet, moe, opt_relu, padded, sparse_training, training};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Precision};

use crate::support::dense::wide;

const KINDS: [Kind; 2] = [Kind::Gcn, Kind::Sage];
const WIDTHS: [usize; 4] = [5, 4, 6, 3];

/// Loss of the current output of the model, in f64.
fn loss(model: &mut Gcn<f64>, task: &Task<f64>) -> f64 {
    let stream = Context::unchecked_cpu().stream().unwrap();
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
    let cpu = Context::unchecked_cpu();
    for kind in KINDS {
        let mut task = rmat::<f64>(4, WIDTHS[0], WIDTHS[3]).unwrap();
        // Some vertices have no label.
        task.labels.iter_mut().step_by(3).for_each(|label| *label = -1);
        let mut model = Gcn::<f64>::new(&cpu, kind, &task, WIDTHS, false).unwrap();
        let stream = cpu.stream().unwrap();
        model.forward(&stream).unwrap();
        model.backward(&stream).unwrap();
        let found: Vec<Dense<f64>> =
            (model.parameters()).map(|parameter| parameter.gradient.to_dense().unwrap()).collect();
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
                assert!(near, "{kind:?}, parameter {number}, {at}: {found}, not {slope}");
            }
        }
    }
}

#[test]
fn graph_layers_with_sparse_and_dense_edges_agree() {
    let cpu = Context::unchecked_cpu();
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
        let share = training::accuracy(&Context::unchecked_cpu(), kind, adam).unwrap();
        assert!(share > 0.8, "{kind:?}: {share}");
    }
}

#[test]
fn hidden_activations_are_skipped_without_a_trace() {
    for tokens in [1, 5, 32] {
        let (error, share) =
            opt_relu::checked(&Context::unchecked_cpu(), [64, 256], tokens).unwrap();
        assert!(error < 2e-3 && (0.02..0.05).contains(&share), "{tokens}: {error}, {share}");
    }
}

#[test]
fn a_network_over_voxels_is_that_over_a_dense_grid() {
    let cpu = Context::unchecked_cpu();
    let error = point_cloud::error::<f32>(&cpu, [8, 16, 24, 32]).unwrap();
    assert!(error < 1e-5, "{error}");
    let error = point_cloud::error::<f64>(&cpu, [3, 5, 4, 6]).unwrap();
    assert!(error < 1e-12, "{error}");
}

/// Cross-entropy of the voxels with a label, in f64.
fn segmentation_loss(net: &mut Unet<f64, f64>, labels: &[i32]) -> f64 {
    let stream = Context::unchecked_cpu().stream().unwrap();
    net.forward(&stream).unwrap();
    let logits = net.logits().to_dense().unwrap();
    let rows = logits.values().chunks(CLASSES).zip(labels);
    let losses = rows.filter(|(_, label)| **label >= 0);
    let of_row = |(row, label): (&[f64], &i32)| {
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*label as usize]
    };
    let losses: Vec<f64> = losses.map(of_row).collect();
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn gradients_of_a_network_over_voxels_are_those_of_differences() {
    const STEP: f64 = 1e-6;
    let cpu = Context::unchecked_cpu();
    let scan = Scan::toy(9, CLASSES);
    let maps = Maps::new(&cpu, &scan.voxels).unwrap();
    let mut net: Unet<f64, f64> =
        point_cloud::network(&cpu, (&scan, &maps), [4, 3, 5, 6], true).unwrap();
    // A bias of 0 would put sums without other terms at 0, where ReLU is not differentiable.
    let start = net.parameters.to_dense().unwrap();
    let mut values = start.values().to_vec();
    for wire in &net.wiring.wires {
        for (at, bias) in values[wire.bias..][..wire.channels()[1]].iter_mut().enumerate() {
            *bias = 0.03 * (1 + at % 3) as f64;
        }
    }
    let kept = Dense::new(start.shape(), values).unwrap();
    net.parameters.write(&kept).unwrap();
    let labels = point_cloud::upload_labels(&cpu, &scan).unwrap();
    let stream = cpu.stream().unwrap();
    net.forward(&stream).unwrap();
    net.backward(&labels, &stream).unwrap();
    let found = wide(&net.gradients);
    let mut moving = 0;
    for wire in net.wiring.wires.clone() {
        let size = wire.shape().iter().product::<usize>();
        for at in [wire.weights, wire.weights + size / 2, wire.weights + size - 1, wire.bias] {
            let mut moved = |by: f64| {
                let mut values = kept.values().to_vec();
                values[at] += by;
                let other = Dense::new(kept.shape(), values).unwrap();
                net.parameters.write(&other).unwrap();
                segmentation_loss(&mut net, &scan.labels)
            };
            let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let found = found[at];
            let near = (found - slope).abs() <= 1e-6 * (1.0 + slope.abs());
            assert!(near, "{wire:?}, {at}: {found}, not {slope}");
            moving += usize::from(slope.abs() > 1e-5);
        }
    }
    assert!(moving > net.wiring.wires.len(), "{moving} parameters matter");
}

#[test]
fn a_network_over_voxels_learns() {
    let losses = point_cloud::learns::<bf16>(&Context::unchecked_cpu(), [8, 8, 16, 16], 6).unwrap();
    assert!(losses[5] < losses[0], "{losses:?}");
}

/// Two runs, single layers and the padded batch give equal bits: `checked` asserts it.
#[test]
fn layers_of_an_encoder_are_those_in_f64() {
    for (items, tokens, longest) in [(1, 9, 9), (4, 30, 17)] {
        let options = encoder::options(items, longest, [64, 96]);
        let error = encoder::checked(&Context::unchecked_cpu(), 3, &options, tokens).unwrap();
        assert!(error < 3e-3, "{tokens} of {items}: {error}");
    }
}

#[test]
fn lengths_come_to_so_many_tokens() {
    for (tokens, longest) in [(1191, 128), (3951, 512), (1280, 128), (32, 1), (4096, 128)] {
        let lengths = padded::lengths(32, tokens, longest);
        let sum: i32 = lengths.iter().sum();
        let most = lengths.iter().max().copied();
        assert_eq!((sum, most), (tokens as i32, Some(longest as i32)));
        assert!(lengths.iter().all(|&length| length > 0));
    }
}

/// Half of the sum of squares.
fn half_squares(net: &mut Net<f64>) -> f64 {
    net.forward(&Context::unchecked_cpu().stream().unwrap()).unwrap();
    let off = net.residual.to_dense().unwrap();
    off.values().iter().map(|d| 0.5 * d * d).sum()
}

#[test]
fn gradients_of_masked_layers_are_those_of_differences() {
    const STEP: f64 = 1e-6;
    let (cpu, [width, tokens]) = (Context::unchecked_cpu(), [128, 8]);
    let mut net = sparse_training::network::<f64>(&cpu, [width, tokens], true).unwrap();
    let stream = cpu.stream().unwrap();
    net.forward(&stream).unwrap();
    net.backward(false, &stream).unwrap();
    let mask = net.mask().unwrap();
    let found = [&net.gradient, &net.dx].map(|found| found.to_dense().unwrap());
    let kept = [&net.weights, &net.x].map(|kept| kept.to_dense().unwrap());
    let mut moving = 0;
    for (of_x, every) in [(false, 523), (true, 31)] {
        let (found, kept) = (&found[usize::from(of_x)], &kept[usize::from(of_x)]);
        for at in (0..kept.values().len()).step_by(every) {
            let mut moved = |by: f64| {
                let mut other = kept.clone();
                other.values_mut()[at] += by;
                let to = if of_x { &mut net.x } else { &mut net.weights };
                to.write(&other).unwrap();
                let loss = half_squares(&mut net);
                let to = if of_x { &mut net.x } else { &mut net.weights };
                to.write(kept).unwrap();
                loss
            };
            let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let found = found.values()[at];
            let near = (found - slope).abs() <= 1e-5 * (1.0 + slope.abs());
            assert!(near, "X {of_x}, {at}: {found}, not {slope}");
            let block = at / width / BLOCK * (width / BLOCK) + at % width / BLOCK;
            assert!(of_x || mask[block] == 1.0 || found == 0.0, "{at} is masked: {found}");
            moving += usize::from(slope.abs() > 1e-3);
        }
    }
    assert!(moving > 40, "{moving} elements matter");
}

#[test]
fn masked_layers_are_those_with_zeros() {
    for grows in [false, true] {
        let errors =
            sparse_training::errors::<f32>(&Context::unchecked_cpu(), [320, 24], grows).unwrap();
        assert!(errors.iter().all(|e| *e < 1e-5), "{errors:?}");
    }
}

#[test]
fn masks_change_as_a_network_learns() {
    let cpu = Context::unchecked_cpu();
    let train = || {
        let mut training = sparse_training::Training::<f16>::new(&cpu, [320, 32], true).unwrap();
        training.run(&cpu, 20).unwrap()
    };
    let (losses, changed) = train();
    assert!(losses[19] < 0.7 * losses[0] && changed > 0, "{losses:?}, {changed}");
    assert!(train() == (losses, changed), "two trainings differ");
}

#[test]
fn a_pruned_decoder_says_what_a_dense_one_does() {
    for batch in [1, 8] {
        let error = decode::checked(&Context::unchecked_cpu(), batch, 3).unwrap();
        assert!(error < 0.02, "{batch} sequences: {error}");
    }
}

#[test]
fn a_block_of_experts_is_that_in_f64() {
    for (past, tokens) in [(None, 40), (Some(5), 8), (Some(0), 1)] {
        let error = moe::checked(&Context::unchecked_cpu(), past, tokens).unwrap();
        assert!(error < 0.02, "{past:?}, {tokens} tokens: {error}");
    }
}

#[test]
fn forces_are_slopes_of_the_energy() {
    let cpu = Context::unchecked_cpu();
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
    // The total force is zero.
    for d in 0..3 {
        assert!(gradient.iter().skip(d).step_by(3).sum::<f64>().abs() < 1e-11);
    }
}

#[test]
fn a_force_field_does_not_know_from_where_atoms_are_seen() {
    let cpu = Context::unchecked_cpu();
    let atoms = Atoms::liquid([3, 2, 2], 3.6).unwrap();
    let wide = dynamics::equivariance::<f64>(&cpu, &atoms, 8, 3.5).unwrap();
    let narrow = dynamics::equivariance::<f32>(&cpu, &atoms, 8, 3.5).unwrap();
    assert!(wide < 1e-12 && narrow < 5e-6, "{wide}, {narrow}");
    let error = dynamics::error(&cpu, &atoms, 8, 3.5).unwrap();
    assert!(error < 5e-6, "{error}");
}

#[test]
fn energy_stays_and_motion_repeats() {
    let cpu = Context::unchecked_cpu();
    let atoms = Atoms::liquid([3, 2, 2], 3.6).unwrap();
    let moved = || dynamics::trajectory::<f32>(&cpu, &atoms, (8, 3.5), 10).unwrap();
    let ([drift, _], positions) = moved();
    assert!(drift < 1e-5, "{drift}");
    assert!(moved().1 == positions, "two runs differ");
}

/// A new edge list without movement changes nothing. After a movement, the energy is continuous, and equals that of
/// atoms listed at the new positions.
#[test]
fn edges_are_listed_anew() {
    let (cpu, radius, cutoff) = (Context::unchecked_cpu(), 3.9, 3.5);
    let atoms = Atoms::liquid([3, 3, 2], radius).unwrap();
    let field = |atoms: &Atoms| ForceField::<f64>::new(&cpu, atoms, 4, cutoff, Precision::Full);
    let mut dynamics = Dynamics::new(&cpu, &atoms, field(&atoms).unwrap(), 0.5).unwrap();
    let start = dynamics.energies().unwrap();
    let mut listed = atoms.clone();
    dynamics.relist(&cpu, (&mut listed, radius), field).unwrap();
    assert_eq!(listed.receivers, atoms.receivers);
    assert_eq!(dynamics.energies().unwrap(), start);

    let stream = cpu.stream().unwrap();
    (0..60).for_each(|_| dynamics.step(&stream).unwrap());
    let before = dynamics.energies().unwrap();
    dynamics.relist(&cpu, (&mut listed, radius), field).unwrap();
    let after = dynamics.energies().unwrap();
    assert_ne!(listed.senders, atoms.senders, "nobody came or went");
    assert_eq!(before[1], after[1]);
    assert!((before[0] - after[0]).abs() < 1e-9, "{before:?}, {after:?}");
    let drift = (after[0] + after[1] - start[0] - start[1]).abs();
    assert!(drift < 1e-3 * start[1], "{drift} of {start:?}");
}

/// Two images, with planes that are whole vectors and planes that are not.
#[test]
fn pruned_convolutions_are_those_of_plain_loops() {
    let cpu = Context::unchecked_cpu();
    for edge in [32, 41] {
        let sizes = Sizes { edge, eighths: 1, classes: 10 };
        let full = Some(Precision::Full);
        for pruned in [full, None] {
            let error = mobilenet::checked::<f32>(&cpu, sizes, (2, pruned)).unwrap();
            assert!(error < 1e-5, "{sizes:?}, {pruned:?}: {error}");
        }
        let error = mobilenet::checked::<f16>(&cpu, sizes, (2, full)).unwrap();
        assert!(error < 2e-2, "{sizes:?}: {error}");
    }
}
