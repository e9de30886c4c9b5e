//! The models of `examples/models` on a GPU: against dense edges in f64, the same bits twice, and as a captured graph.

#[path = "../../examples/models/all.rs"]
mod all;

use crate::support::replay::Replay;
use crate::support::{gpu, gpu_alone};
use all::gcn::Gcn;
use all::graphs::{Kind, rmat};
use all::mobilenet_weights::Sizes;
use all::training::Training;
use all::{mobilenet, opt_relu, training};
use einsparse::formats::f16;

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

/// All channels, so that products are as deep as they are; maps of widths that are whole vectors and that are not.
#[test]
fn pruned_convolutions_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (edge, batch) in [(64, 1), (64, 3), (97, 2)] {
        let sizes = Sizes {
            edge,
            eighths: 8,
            classes: 100,
        };
        let error = mobilenet::checked::<f32>(&gpu, sizes, batch, false).unwrap();
        assert!(error < 1e-4, "{sizes:?}, {batch} images: {error}");
        // In TF32.
        let error = mobilenet::checked::<f32>(&gpu, sizes, batch, true).unwrap();
        assert!(error < 5e-2, "{sizes:?}, {batch} images, dense: {error}");
        let error = mobilenet::checked::<f16>(&gpu, sizes, batch, false).unwrap();
        assert!(error < 5e-2, "{sizes:?}, {batch} images in f16: {error}");
    }
}
