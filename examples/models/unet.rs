//! U-Net over voxels (MinkUNet: Choy et al., arXiv 1904.08755) with four levels, each at half the resolution of the
//! level above. Layers write concatenated features into adjacent columns, so nothing is copied. All parameters are
//! stored in one vector, and so are their gradients, so an optimizer updates them in one step.

use einsparse::nn::{BiasGradient, CrossEntropy};
use einsparse::ops::{ConvOptions, SparseConv3d};
use einsparse::{Context, Result, Scalar, Stream, Tensor};

use super::maps::Maps;
use super::wiring::{Place, Walk, Wire, Wiring};

struct Layer<T: Scalar, G: Scalar> {
    conv: SparseConv3d<T>,
    of_bias: BiasGradient<T, G>,
}

/// State of training: gradients of buffers, gradients from the next level to be added to them, and the loss.
struct Slopes<T: Scalar> {
    buffers: Vec<Tensor<T>>,
    below: Vec<Tensor<T>>,
    /// Stream for gradients of weights, for which only the optimizer waits.
    beside: Stream,
    loss_of: CrossEntropy<T>,
}

/// Network in T; gradients of parameters are in G.
pub struct Unet<T: Scalar, G: Scalar = f32> {
    pub wiring: Wiring,
    layers: Vec<Layer<T, G>>,
    /// The input, the output of each layer, and the logits.
    pub values: Vec<Tensor<T>>,
    slopes: Option<Slopes<T>>,
    pub parameters: Tensor<T>,
    pub gradients: Tensor<G>,
    pub loss: Tensor<f32>,
}

impl<T: Scalar, G: Scalar> Unet<T, G> {
    pub fn new(ctx: &Context, maps: &Maps, wiring: Wiring, trains: bool) -> Result<Self> {
        let rows = |level: usize| maps.same[level].inputs();
        let buffers = || -> Result<Vec<Tensor<T>>> {
            let all = wiring.buffers.iter();
            all.map(|&(level, c)| ctx.zeros(&[rows(level), c])).collect()
        };
        let layer = |wire: &Wire| -> Result<Layer<T, G>> {
            let map = match wire.walk {
                Walk::Same => &maps.same[wire.level],
                Walk::Down => &maps.down[wire.level],
                Walk::Up => maps.down[wire.level].transposed()?,
                Walk::Each => &maps.each,
            };
            let options = ConvOptions { relu: wire.relu, ..ConvOptions::default() };
            Ok(Layer {
                conv: SparseConv3d::new(map, wire.channels(), &options)?,
                of_bias: BiasGradient::new(ctx, [map.outputs(), wire.channels()[1]])?,
            })
        };
        let of = |wire: &Wire| (wire.level, wire.channels()[0]);
        let down = wiring.wires.iter().filter(|wire| wire.walk == Walk::Down);
        let below = down.map(of).map(|(level, c)| ctx.zeros(&[rows(level), c]));
        let classes = wiring.buffers[wiring.buffers.len() - 1].1;
        let slopes = match trains {
            false => None,
            true => Some(Slopes {
                buffers: buffers()?,
                below: below.collect::<Result<_>>()?,
                beside: ctx.stream()?,
                loss_of: CrossEntropy::new(ctx, [rows(0), classes])?,
            }),
        };
        Ok(Unet {
            layers: wiring.wires.iter().map(layer).collect::<Result<_>>()?,
            values: buffers()?,
            slopes,
            parameters: ctx.upload_dense(&wiring.start()?)?,
            gradients: ctx.zeros(&[if trains { wiring.parameters } else { 0 }])?,
            loss: ctx.zeros(&[1])?,
            wiring,
        })
    }

    pub fn logits(&self) -> &Tensor<T> {
        &self.values[self.values.len() - 1]
    }

    /// Returns the kernels without duplicates.
    pub fn variants(&self) -> Vec<&'static str> {
        let mut all: Vec<_> = self.layers.iter().map(|l| l.conv.variant()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    pub fn forward(&mut self, stream: &Stream) -> Result<()> {
        (0..self.layers.len()).try_for_each(|at| self.forward_layer(at, stream))
    }

    /// Runs one convolution.
    pub fn forward_layer(&mut self, at: usize, stream: &Stream) -> Result<()> {
        let (wire, conv) = (&self.wiring.wires[at], &self.layers[at].conv);
        let (x, y) = two(&mut self.values, [&wire.from, &wire.to]);
        let x = x.columns(wire.from.columns.clone())?;
        let mut y = y.columns_mut(wire.to.columns.clone())?;
        let w = self.parameters.part(wire.weights, &wire.shape())?;
        let b = self.parameters.part(wire.bias, &[wire.channels()[1]])?;
        conv.forward(&x, &w, Some(&b), &mut y, stream)
    }

    /// Computes the loss and the gradients of all parameters, after a forward run. A label outside of the classes means
    /// that the voxel is unlabeled.
    pub fn backward(&mut self, labels: &Tensor<i32>, stream: &Stream) -> Result<()> {
        let Some(slopes) = &mut self.slopes else {
            return Ok(());
        };
        let last = self.values.len() - 1;
        let gradient = &mut slopes.buffers[last];
        let logits = &self.values[last];
        slopes.loss_of.forward_backward(logits, labels, &mut self.loss, gradient, stream)?;
        (0..self.layers.len()).rev().try_for_each(|at| self.backward_layer(at, stream))?;
        let slopes = self.slopes.as_ref();
        slopes.map_or(Ok(()), |slopes| stream.wait_for(&slopes.beside))
    }

    fn backward_layer(&mut self, at: usize, stream: &Stream) -> Result<()> {
        let (wire, layer) = (&self.wiring.wires[at], &self.layers[at]);
        let Some(slopes) = &mut self.slopes else {
            return Ok(());
        };
        let (from, to) = (&wire.from, &wire.to);
        let (dx, dy) = two(&mut slopes.buffers, [from, to]);
        let mut dy = dy.columns_mut(to.columns.clone())?;
        {
            let mut db = self.gradients.part_mut(wire.bias, &[wire.channels()[1]])?;
            if wire.relu {
                let y = self.values[to.buffer].columns(to.columns.clone())?;
                let more = wire.is_skip.then(|| &slopes.below[wire.level]);
                layer.of_bias.backward_bias_relu(&y, more, &mut dy, &mut db, stream)?;
            } else {
                layer.of_bias.backward_bias(&dy, &mut db, stream)?;
            }
        }
        let x = self.values[from.buffer].columns(from.columns.clone())?;
        let mut dw = self.gradients.part_mut(wire.weights, &wire.shape())?;
        slopes.beside.wait_for(stream)?;
        let beside = &slopes.beside;
        layer.conv.backward_weight(&x, &dy, &mut dw, beside)?;
        let w = self.parameters.part(wire.weights, &wire.shape())?;
        match (from.buffer, wire.walk) {
            // The gradient of the input is not required.
            (0, _) => Ok(()),
            // The other reader of the same columns has already written its gradient.
            (_, Walk::Down) => {
                let dx = &mut slopes.below[wire.level];
                layer.conv.backward_input(&w, &dy, dx, stream)
            }
            _ => {
                let mut dx = dx.columns_mut(from.columns.clone())?;
                layer.conv.backward_input(&w, &dy, &mut dx, stream)
            }
        }
    }
}

/// Returns the buffer that a layer reads, and the one that it writes.
fn two<'a, T>(
    all: &'a mut [Tensor<T>],
    [from, to]: [&Place; 2],
) -> (&'a mut Tensor<T>, &'a mut Tensor<T>) {
    // A layer writes a buffer after those that it reads, except on the way up.
    let [from, to] = [from.buffer, to.buffer];
    if from < to {
        let (ahead, behind) = all.split_at_mut(to);
        (&mut ahead[from], &mut behind[0])
    } else {
        let (ahead, behind) = all.split_at_mut(from);
        (&mut behind[0], &mut ahead[to])
    }
}
