//! The models of `examples/models` on a GPU: compared with dense edges in f64, equal bits in two runs, and replays of a
//! captured graph.

#[path = "../../examples/models/all.rs"]
pub mod all;

use crate::support::replay::Replay;
use crate::support::{gpu, gpu_alone};
use all::atoms::Atoms;
use all::gcn::Gcn;
use all::graphs::{Kind, rmat};
use all::maps::{Maps, Rebuild};
use all::mobilenet_weights::Sizes;
use all::point_cloud::{self, CLASSES};
use all::scans::Scan;
use all::training::Training;
use all::transformer;
use all::transformer_weights::Shape;
use all::unet::Unet;
use all::{decode, dynamics, encoder, mobilenet, moe, opt_relu, sparse_training, training};
use einsparse::formats::{bf16, f16};
use einsparse::ops::AttentionMask;
use einsparse::{Context, Precision, Result, Stream};

const KINDS: [Kind; 2] = [Kind::Gcn, Kind::Sage];

#[test]
fn graph_layers_learn_and_repeat() {
    let Some(gpu) = gpu() else { return };
    for kind in KINDS {
        // Products of dense matrices use TF32.
        let error = training::error(&gpu, kind, [16, 16, 16, 8]).unwrap();
        assert!(error < 2e-2, "{kind:?}: {error}");
        let share = training::accuracy(&gpu, kind, true).unwrap();
        assert!(share > 0.8, "{kind:?}: {share}");
        let task = rmat(12, 64, 16).unwrap();
        assert!(training::repeats(&gpu, kind, &task, [64, 64, 64, 16], 10).unwrap());
    }
}

/// Runs this many steps, the first before the capture.
fn replay(context: &Context, steps: usize, mut step: impl FnMut(&Stream) -> Result<()>) {
    let stream = context.stream().unwrap();
    let mut graph = Replay::of(&stream, || step(&stream));
    for _ in 1..steps {
        // SAFETY: the training is alive, and no other code uses it.
        unsafe { graph.run() };
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
        replay(&gpu, STEPS, |stream| captured.step(stream));
        assert!(captured.run(&gpu, 0).unwrap() == wanted, "{kind:?}");
    }
}

#[test]
fn hidden_activations_are_skipped_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for tokens in [1, 8, 32] {
        let (error, share) = opt_relu::checked(&gpu, [512, 2048], tokens).unwrap();
        assert!(error < 2e-3 && (0.02..0.05).contains(&share), "{tokens}: {error}, {share}");
    }
}

/// Channels of the real network, and channels that leave tiles half empty.
const VOXEL_WIDTHS: [[usize; 4]; 2] = [[32, 64, 128, 256], [8, 24, 72, 136]];

#[test]
fn networks_over_voxels_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for widths in VOXEL_WIDTHS {
        let errors = [
            point_cloud::error::<f32>(&gpu, widths).unwrap() / 1e-5,
            point_cloud::error::<f16>(&gpu, widths).unwrap() / 1e-2,
            point_cloud::error::<bf16>(&gpu, widths).unwrap() / 8e-2,
            point_cloud::gradient_error::<f32>(&gpu, widths).unwrap() / 1e-3,
            point_cloud::gradient_error::<f16>(&gpu, widths).unwrap() / 0.15,
            point_cloud::gradient_error::<bf16>(&gpu, widths).unwrap() / 0.4,
        ];
        assert!(errors.iter().all(|e| *e < 1.0), "{widths:?}: {errors:?} of the bounds");
    }
    let losses = point_cloud::learns::<bf16>(&gpu, VOXEL_WIDTHS[0], 10).unwrap();
    assert!(losses[9] < losses[0], "{losses:?}");
}

/// Kernel maps of a cloud and of a smaller one without voxels after it, rebuilt in place and in a graph.
#[test]
fn kernel_maps_of_a_network_are_rebuilt() {
    let Some(gpu) = gpu_alone() else { return };
    let whole = Scan::toy(16, CLASSES);
    let mut less = Scan::toy(16, CLASSES);
    less.voxels.truncate(whole.voxels.len() - 300);
    let logits = |net: &Unet<f16>, scan: &Scan| {
        let all = net.logits().to_dense().unwrap();
        all.values()[..scan.voxels.len() * CLASSES].to_vec()
    };
    let stream = gpu.stream().unwrap();
    for scan in [&whole, &less] {
        let maps = Maps::new(&gpu, &scan.voxels).unwrap();
        let own = (scan, &maps);
        let mut net: Unet<f16> = point_cloud::network(&gpu, own, VOXEL_WIDTHS[0], false).unwrap();
        net.forward(&stream).unwrap();
        stream.synchronize().unwrap();
        let wanted = logits(&net, scan);

        // The maps of the whole cloud are rebuilt into those of this one.
        let maps = Maps::new(&gpu, &whole.voxels).unwrap();
        let own = (&whole, &maps);
        let mut net: Unet<f16> = point_cloud::network(&gpu, own, VOXEL_WIDTHS[0], false).unwrap();
        let mut voxels = scan.voxels.clone();
        voxels.resize(whole.voxels.len(), [i32::MIN, 0, 0, 0]);
        let mut rebuild = Rebuild::new(&gpu, &maps, &voxels).unwrap();
        let mut graph = Replay::of(&stream, || {
            rebuild.run(&maps, &stream)?;
            net.forward(&stream)
        });
        // SAFETY: network, maps and builders are alive, and no other code uses them.
        unsafe { graph.run() };
        stream.synchronize().unwrap();
        assert!(logits(&net, scan) == wanted, "{} voxels", scan.voxels.len());
    }
}

#[test]
fn a_captured_step_over_voxels_is_a_step() {
    const STEPS: usize = 4;
    let Some(gpu) = gpu_alone() else { return };
    let scan = Scan::toy(16, CLASSES);
    let maps = Maps::new(&gpu, &scan.voxels).unwrap();
    let made =
        || point_cloud::Training::<bf16>::new(&gpu, (&scan, &maps), VOXEL_WIDTHS[0]).unwrap();
    let losses = made().losses(&gpu, STEPS + 1).unwrap();
    let mut captured = made();
    replay(&gpu, STEPS, |stream| captured.step(stream));
    assert_eq!(captured.losses(&gpu, 1).unwrap()[0].to_bits(), losses[STEPS].to_bits());
}

#[test]
fn layers_of_an_encoder_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (items, tokens, longest) in [(6, 200, 90), (32, 1191, 128), (3, 400, 300)] {
        let options = encoder::options(items, longest, [256, 1024]);
        let error = encoder::checked(&gpu, 3, &options, tokens).unwrap();
        assert!(error < 5e-3, "{tokens} of {items}: {error}");
    }
}

#[test]
fn masked_layers_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (sizes, grows) in [([640, 128], false), ([640, 128], true), ([1280, 200], false)] {
        let errors = sparse_training::errors::<f16>(&gpu, sizes, grows).unwrap();
        assert!(errors.iter().all(|e| *e < 5e-3), "{sizes:?}: {errors:?}");
        let errors = sparse_training::errors::<bf16>(&gpu, sizes, grows).unwrap();
        assert!(errors.iter().all(|e| *e < 4e-2), "{sizes:?}: {errors:?}");
    }
}

/// A graph of one step runs the next step at each replay, with other masks, bit for bit.
#[test]
fn masks_change_between_replays() {
    const STEPS: usize = 20;
    let Some(gpu) = gpu_alone() else { return };
    let made = || sparse_training::Training::<f16>::new(&gpu, [640, 128], true).unwrap();
    let stream = gpu.stream().unwrap();
    let mut steps = made();
    let mut masks = Vec::new();
    for _ in 0..STEPS {
        steps.step(false, &stream).unwrap();
        stream.synchronize().unwrap();
        masks.push(steps.net.mask().unwrap());
    }
    assert!(masks[0] != masks[STEPS - 1], "no mask changes");
    let mut captured = made();
    replay(&gpu, STEPS, |stream| captured.step(false, stream));
    assert!(captured.net.mask().unwrap() == masks[STEPS - 1]);
    assert!(captured.loss().unwrap() == steps.loss().unwrap());
    let (losses, _) = made().run(&gpu, STEPS).unwrap();
    assert!(losses[STEPS - 1] < 0.9 * losses[0], "{losses:?}");
}

const TRANSFORMER: Shape =
    Shape { layers: 2, tokens: 640, width: 256, heads: 2, hidden: 768, classes: 40 };

#[test]
fn a_transformer_under_a_mask_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let blocks = AttentionMask::Blocks(transformer::blocks(640, 1, 2));
    let causal = AttentionMask::Causal;
    for (heads, mask) in [(2, &blocks), (4, &blocks), (2, &causal)] {
        let shape = Shape { heads, ..TRANSFORMER };
        let errors = transformer::errors(&gpu, shape, mask).unwrap();
        // Gradients have a larger error, because a ReLU of rounded sums selects their terms.
        assert!(errors[0] < 0.03 && errors.iter().all(|e| *e < 0.2), "{heads} heads: {errors:?}");
    }
}

#[test]
fn a_captured_step_of_a_transformer_is_a_step() {
    const STEPS: usize = 6;
    let Some(gpu) = gpu_alone() else { return };
    let mask = AttentionMask::Blocks(transformer::blocks(640, 1, 2));
    let made = || transformer::Training::new(&gpu, TRANSFORMER, &mask).unwrap();
    let losses = made().losses(&gpu, STEPS + 1).unwrap();
    assert!(losses[STEPS] < losses[0], "{losses:?}");
    let mut captured = made();
    replay(&gpu, STEPS, |stream| captured.step(stream));
    let last = captured.losses(&gpu, 1).unwrap()[0];
    assert_eq!(last.to_bits(), losses[STEPS].to_bits());
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

/// All channels, so that products have their full depth. Feature maps have widths that are whole vectors and widths
/// that are not.
#[test]
fn pruned_convolutions_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (edge, batch) in [(64, 1), (64, 3), (97, 2)] {
        let sizes = Sizes { edge, eighths: 8, classes: 100 };
        let full = Some(Precision::Full);
        let error = mobilenet::checked::<f32>(&gpu, sizes, (batch, full)).unwrap();
        assert!(error < 1e-4, "{sizes:?}, {batch} images: {error}");
        // Pruned and dense weights.
        for pruned in [Some(Precision::Tf32), None] {
            let error = mobilenet::checked::<f32>(&gpu, sizes, (batch, pruned)).unwrap();
            assert!(error < 5e-2, "{sizes:?}, {batch} images, {pruned:?}: {error}");
        }
        let error = mobilenet::checked::<f16>(&gpu, sizes, (batch, full)).unwrap();
        assert!(error < 5e-2, "{sizes:?}, {batch} images in f16: {error}");
    }
}
