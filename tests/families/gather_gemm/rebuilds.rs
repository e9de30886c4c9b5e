//! Convolutions over a kernel map that is rebuilt: by calls of the host, by replays of a CUDA graph, on other streams.
//! Each result must equal that over a separate map.

use crate::support::assert_error;
use std::sync::Arc;

use einsparse::formats::Dense;
use einsparse::ops::{ConvGeometry, ConvOptions, KernelMap, KernelMapBuilder, SparseConv3d};
use einsparse::{Context, Error, Graph, Precision, Scalar, Stream, Tensor};

use super::conv::cloud;
use crate::support::dense::upload_values;
use crate::support::{gpu_alone, small};

const CHANNELS: [usize; 2] = [24, 40];

/// Clouds of equal size, and the operands of their convolutions.
struct Clouds<T> {
    context: Context,
    count: usize,
    clouds: Vec<Vec<[i32; 4]>>,
    x: Tensor<T>,
    dy: Tensor<T>,
    weights: Tensor<T>,
    options: ConvOptions,
}

impl<T: Scalar> Clouds<T> {
    fn new(context: &Context, count: usize, side: i32, precision: Precision) -> Self {
        let mut rng = crate::support::Rng(9);
        let [c, m] = CHANNELS;
        let mut operand = |shape: &[usize]| {
            let values = rng.integers(shape.iter().product());
            upload_values(context, shape, values)
        };
        Clouds {
            context: context.clone(),
            count,
            clouds: (0..4).map(|seed| cloud(count, side, seed)).collect(),
            x: operand(&[count, c]),
            dy: operand(&[count, m]),
            weights: operand(&[27, c, m]),
            options: ConvOptions { precision, ..ConvOptions::default() },
        }
    }

    fn conv(&self, cloud: usize) -> SparseConv3d<T> {
        let map = KernelMap::submanifold(&self.context, &self.clouds[cloud], [3; 3]).unwrap();
        SparseConv3d::new(&Arc::new(map), CHANNELS, &self.options).unwrap()
    }

    /// Returns a convolution with its map, which can be rebuilt.
    fn shared(&self) -> (SparseConv3d<T>, Arc<KernelMap>, KernelMapBuilder) {
        let map = KernelMap::submanifold(&self.context, &self.clouds[0], [3; 3]).unwrap();
        let map = Arc::new(map);
        let geometry = ConvGeometry::new([3; 3], [1; 3], [1; 3]).unwrap();
        let builder = KernelMapBuilder::new(&self.context, self.count, &geometry).unwrap();
        let conv = SparseConv3d::new(&map, CHANNELS, &self.options).unwrap();
        (conv, map, builder)
    }

    fn words(&self, cloud: usize) -> Dense<i32> {
        Dense::new([self.count, 4], self.clouds[cloud].concat()).unwrap()
    }

    fn gradient(&self, conv: &SparseConv3d<T>, stream: &Stream) -> Dense<f32> {
        let mut dw = self.context.zeros::<f32>(self.weights.shape()).unwrap();
        conv.backward_weight(&self.x, &self.dy, &mut dw, stream).unwrap();
        stream.synchronize().unwrap();
        dw.to_dense().unwrap()
    }

    /// Returns the expected gradient, over a map that is built from the cloud.
    fn wanted(&self, cloud: usize) -> Dense<f32> {
        self.gradient(&self.conv(cloud), &self.context.stream().unwrap())
    }
}

fn gradients_follow<T: Scalar>(gpu: &Context, precision: Precision) {
    let all = Clouds::<T>::new(gpu, 900, 12, precision);
    let (conv, map, builder) = all.shared();
    let stream = gpu.stream().unwrap();
    let mut voxels = gpu.upload_dense(&all.words(1)).unwrap();
    // The work is distributed for the pairs of the first cloud.
    assert!(all.gradient(&conv, &stream) == all.wanted(0));
    builder.rebuild(&map, &voxels, &stream).unwrap();
    assert!(all.gradient(&conv, &stream) == all.wanted(1), "rebuilt");
    // A graph that rebuilds the map from clouds that the host does not read.
    let mut rebuilds =
        Graph::capture(stream.raw(), |_| builder.rebuild(&map, &voxels, &stream)).unwrap();
    let mut dw = gpu.zeros::<f32>(all.weights.shape()).unwrap();
    let mut step = Graph::capture(stream.raw(), |_| {
        builder.rebuild(&map, &voxels, &stream)?;
        conv.backward_weight(&all.x, &all.dy, &mut dw, &stream)
    })
    .unwrap();
    for cloud in [2, 3, 0] {
        voxels.write(&all.words(cloud)).unwrap();
        // SAFETY: all memory that was captured is alive, and nothing else uses it.
        unsafe { rebuilds.launch(stream.raw()).unwrap() };
        assert!(all.gradient(&conv, &stream) == all.wanted(cloud), "replayed, {cloud}");
        // SAFETY: as for the launch above.
        unsafe { step.launch(stream.raw()).unwrap() };
        stream.synchronize().unwrap();
        assert!(dw.to_dense().unwrap() == all.wanted(cloud), "a step, {cloud}");
    }
}

/// On the CPU, with the checks for a GPU and without.
#[test]
fn gradients_of_weights_follow_rebuilds_on_the_cpu() {
    for cpu in [Context::cpu(), Context::unchecked_cpu()] {
        let all = Clouds::<f32>::new(&cpu, 200, 7, Precision::Full);
        let (conv, map, builder) = all.shared();
        let stream = cpu.stream().unwrap();
        assert!(all.gradient(&conv, &stream) == all.wanted(0));
        for cloud in [1, 0] {
            let voxels = cpu.upload_dense(&all.words(cloud)).unwrap();
            builder.rebuild(&map, &voxels, &stream).unwrap();
            assert!(all.gradient(&conv, &stream) == all.wanted(cloud), "{cloud}");
        }
    }
}

#[test]
fn gradients_of_weights_follow_rebuilds() {
    use einsparse::formats::{bf16, f16};
    let Some(gpu) = gpu_alone() else { return };
    gradients_follow::<f16>(&gpu, Precision::Full);
    gradients_follow::<bf16>(&gpu, Precision::Full);
    gradients_follow::<f32>(&gpu, Precision::Full);
    gradients_follow::<f32>(&gpu, Precision::Tf32);
}

/// A graph rebuilds the map before any eager rebuild. The gradient must then distribute its work for every possible
/// pair.
#[test]
fn a_map_that_only_a_graph_rebuilds_is_known_for_one() {
    let Some(gpu) = gpu_alone() else { return };
    let all = Clouds::<f32>::new(&gpu, 300, 9, Precision::Full);
    let (conv, map, builder) = all.shared();
    let stream = gpu.stream().unwrap();
    let mut voxels = gpu.upload_dense(&all.words(0)).unwrap();
    assert!(all.gradient(&conv, &stream) == all.wanted(0));
    let mut graph =
        Graph::capture(stream.raw(), |_| builder.rebuild(&map, &voxels, &stream)).unwrap();
    voxels.write(&all.words(1)).unwrap();
    // SAFETY: all memory that was captured is alive, and nothing else uses it.
    unsafe { graph.launch(stream.raw()).unwrap() };
    assert!(all.gradient(&conv, &stream) == all.wanted(1));
    // A graph cannot update a transposed map that did not exist when it was captured.
    let error = map.transposed().unwrap_err();
    assert_error!(error, Error::Capture { name, .. } if name == "map");
}

#[test]
fn a_gradient_in_a_graph_holds_its_map() {
    let Some(gpu) = gpu_alone() else { return };
    let all = Clouds::<f32>::new(&gpu, 300, 9, Precision::Full);
    let (conv, map, builder) = all.shared();
    let stream = gpu.stream().unwrap();
    let voxels = gpu.upload_dense(&all.words(1)).unwrap();
    let mut dw = gpu.zeros::<f32>(all.weights.shape()).unwrap();
    // The first call cannot be captured.
    let refused =
        Graph::capture(stream.raw(), |_| conv.backward_weight(&all.x, &all.dy, &mut dw, &stream));
    assert_error!(refused.unwrap_err(), Error::Capture { name, .. } if name == "map");
    let wanted = all.gradient(&conv, &stream);
    let mut graph =
        Graph::capture(stream.raw(), |_| conv.backward_weight(&all.x, &all.dy, &mut dw, &stream))
            .unwrap();
    let error = builder.rebuild(&map, &voxels, &stream).unwrap_err();
    assert_error!(error, Error::Capture { name, .. } if name == "map");
    // SAFETY: all memory that was captured is alive, and nothing else uses it.
    unsafe { graph.launch(stream.raw()).unwrap() };
    stream.synchronize().unwrap();
    assert!(dw.to_dense().unwrap() == wanted);
}

/// Runs that are queued on one stream read the map before its rebuild, although another stream rebuilds it meanwhile.
#[test]
fn a_rebuild_waits_for_runs_on_other_streams() {
    let Some(gpu) = gpu_alone() else { return };
    let (count, runs) = if small() { (300, 4) } else { (40_000, 100) };
    let all = Clouds::<f32>::new(&gpu, count, 60, Precision::Full);
    let (conv, map, builder) = all.shared();
    let streams = [(); 3].map(|()| gpu.stream().unwrap());
    let clouds: Vec<_> = (0..4).map(|c| gpu.upload_dense(&all.words(c)).unwrap()).collect();
    let shape = [count, CHANNELS[1]];
    let forward = |conv: &SparseConv3d<f32>, out: &mut Tensor<f32>, stream: &Stream| {
        conv.forward(&all.x, &all.weights, None, out, stream).unwrap();
    };
    let wanted: Vec<Dense<f32>> = (0..4)
        .map(|cloud| {
            let mut out = gpu.zeros(&shape).unwrap();
            forward(&all.conv(cloud), &mut out, &streams[0]);
            streams[0].synchronize().unwrap();
            out.to_dense().unwrap()
        })
        .collect();
    // The first rebuild synchronizes with the GPU.
    let mut outs = [(); 4].map(|()| gpu.zeros::<f32>(&shape).unwrap());
    for (cloud, out) in outs.iter_mut().enumerate() {
        builder.rebuild(&map, &clouds[cloud], &streams[2]).unwrap();
        for _ in 0..runs {
            forward(&conv, out, &streams[cloud % 2]);
        }
    }
    streams.iter().for_each(|s| s.synchronize().unwrap());
    for (cloud, out) in outs.iter().enumerate() {
        assert!(out.to_dense().unwrap() == wanted[cloud], "cloud {cloud}");
    }
}
