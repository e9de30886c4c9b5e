//! Workloads from Sputnik's evaluation (arXiv 2006.10901, sections 3 and 7): gates of recurrent networks, and
//! MobileNetV1's 1x1 convolutions at 90 % sparsity.

use crate::problems::{Dtype, Source, Workload, spmm};

/// Hidden sizes of the LSTM; its four gates are one matrix of 4h rows.
const HIDDEN: [usize; 2] = [2048, 8192];
const GATES: usize = 4;
const BATCHES: &[usize] = &[8, 256];
const DENSITIES: [f64; 2] = [0.1, 0.2];

/// MobileNetV1 at width 1 (arXiv 1704.04861, table 1): output channels, input channels, and as N the positions of the
/// feature map of one image.
pub const MOBILENET: [(usize, usize, &[usize]); 9] = [
    (64, 32, &[112 * 112]),
    (128, 64, &[56 * 56]),
    (128, 128, &[56 * 56]),
    (256, 128, &[28 * 28]),
    (256, 256, &[28 * 28]),
    (512, 256, &[14 * 14]),
    (512, 512, &[14 * 14]),
    (1024, 512, &[7 * 7]),
    (1024, 1024, &[7 * 7]),
];
/// Density of the weights.
pub const LAYER_DENSITY: f64 = 0.1;

const BOTH: &[Dtype] = &[Dtype::F32, Dtype::F16];

pub fn workloads(all: &mut Vec<Workload>) {
    for hidden in HIDDEN {
        for density in DENSITIES {
            let name = format!("lstm-{hidden}-d{density}");
            let source = Source::Uniform(GATES * hidden, hidden, density);
            let quick = hidden == 2048 && density == 0.1;
            all.push(spmm(name, source, (BATCHES, BOTH), quick));
        }
    }
    for (out, inputs, places) in MOBILENET {
        let name = format!("mobilenet-{out}x{inputs}");
        let source = Source::Uniform(out, inputs, LAYER_DENSITY);
        all.push(spmm(name, source, (places, BOTH), out == 512));
    }
}
