//! The models of `examples/models` on a GPU: against dense edges in f64, the same bits twice, and as a captured graph.

#[path = "../../examples/models/all.rs"]
mod all;

use crate::support::replay::Replay;
use crate::support::{gpu, gpu_alone};
use all::atoms::Atoms;
use all::gcn::Gcn;
use all::graphs::{Kind, rmat};
use all::training::Training;
use all::{decode, dynamics, moe, opt_relu, training};

const KINDS: [Kind; 2] = [Kind::Gcn, Kind::Sage];

#[test]
fn graph_layers_learn_and_repeat() {
    let Some(gpu) = gpu() else { return };
    for kind in KINDS {
        // Products of dense matrices are TF32.
        let error = training::error(&gpu, kind, [16, 16, 16, 8]).unwrap();
        assert!(error < 2e-2, "{kind:?}: {error}");
        let share = training::accuracy(&gpu, kind, true).unwrap();
        assert!(share > 0.8, "{kind:?}: {share}");
        let task = rmat(12, 64, 16).unwrap();
        assert!(training::repeats(&gpu, kind, &task, [64, 64, 64, 16], 10).unwrap());
    }
}

#[test]
fn a_captured_step_is_a_step() {
    const STEPS: usize = 6;
    let Some(gpu) = gpu_alone() else { return };
    for kind in KINDS {
        let task = rmat(10, 32, 8).unwrap();
        let made = || {
            let model = Gcn::new(&gpu, kind, &task, [32, 32, 32, 8], false).unwrap();
            Training::new(&gpu, model, true).unwrap()
        };
        let wanted = made().run(&gpu, STEPS).unwrap();
        let mut captured = made();
        let stream = gpu.stream().unwrap();
        // The first step is run in front of the capture.
        let mut graph = Replay::of(&stream, || captured.step(&stream));
        for _ in 1..STEPS {
            // SAFETY: the training is alive, and nothing else uses it.
            unsafe { graph.run() };
        }
        assert!(captured.run(&gpu, 0).unwrap() == wanted, "{kind:?}");
    }
}

#[test]
fn hidden_activations_are_skipped_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for tokens in [1, 8, 32] {
        let (error, share) = opt_relu::checked(&gpu, [512, 2048], tokens).unwrap();
        assert!(
            error < 2e-3 && (0.02..0.05).contains(&share),
            "{tokens}: {error}, {share}"
        );
    }
}

#[test]
fn a_pruned_decoder_says_what_a_dense_one_does_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for batch in [1, 8] {
        let error = decode::checked(&gpu, batch, 3).unwrap();
        assert!(error < 0.03, "{batch} sequences: {error}");
    }
}

#[test]
fn a_block_of_experts_is_that_in_f64_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (past, tokens) in [(None, 40), (Some(5), 8), (Some(0), 1)] {
        let error = moe::checked(&gpu, past, tokens).unwrap();
        assert!(error < 0.03, "{past:?}, {tokens} tokens: {error}");
    }
}

#[test]
fn a_force_field_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (grid, channels) in [([3, 3, 2], 8), ([4, 3, 3], 32), ([4, 4, 4], 128)] {
        let atoms = Atoms::liquid(grid, 4.2).unwrap();
        let error = dynamics::error(&gpu, &atoms, channels, 4.0).unwrap();
        assert!(error < 2e-5, "{channels} channels: {error}");
        let turned = dynamics::equivariance::<f32>(&gpu, &atoms, channels, 4.0).unwrap();
        assert!(turned < 2e-5, "{channels} channels, turned: {turned}");
    }
}

#[test]
fn energy_stays_and_motion_repeats_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let atoms = Atoms::liquid([6, 5, 5], 4.2).unwrap();
    let moved = || dynamics::trajectory::<f32>(&gpu, &atoms, (32, 4.0), 200).unwrap();
    let ([drift, _], positions) = moved();
    assert!(drift < 2e-5, "{drift}");
    assert!(moved().1 == positions, "two runs differ");
}
