//! Seeded weights of MobileNetV1, and the network as plain loops in f64.

use einsparse::formats::{Csr, Dense, generate};
use einsparse::ops::Conv2dOptions;
use einsparse::{Result, Scalar};

/// Density of the 1x1 weights.
pub const DENSITY: f64 = 0.1;
/// Output channels and stride of the thirteen blocks.
const BLOCKS: [(usize, usize); 13] = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
];

/// Edge of the image, eighths of the channels, classes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub edge: usize,
    pub eighths: usize,
    pub classes: usize,
}

/// Sizes of the network of the paper.
pub const FULL: Sizes = Sizes { edge: 224, eighths: 8, classes: 1000 };

/// Operation on planes, and the product after it.
pub struct Layer<T> {
    /// Channels, edge, and the window `[outputs, 1 or channels, rows, columns]`.
    pub channels: usize,
    pub edge: usize,
    pub window: [usize; 4],
    pub options: Conv2dOptions,
    pub taps: Dense<T>,
    pub bias: Option<Dense<T>>,
    /// `None` after the first convolution.
    pub product: Option<(Csr<T>, Dense<T>, bool)>,
}

impl<T: Scalar> Layer<T> {
    /// Columns of its maps. Rows are whole vectors of 16 bytes, except the short rows of the classifier.
    pub fn columns(&self, batch: usize) -> usize {
        match self.bias {
            Some(_) => (batch * self.out_edge().pow(2)).next_multiple_of(16 / size_of::<T>()),
            None => batch,
        }
    }

    /// Elements of the larger of its maps, plus a vector.
    pub fn elements(&self, batch: usize) -> usize {
        let product = self.product.as_ref();
        let rows = product.map_or(0, |(weights, ..)| weights.pattern().rows());
        self.window[0].max(rows) * self.columns(batch) + 16
    }

    fn out_edge(&self) -> usize {
        (self.edge + 2 * self.options.padding[0] - self.window[2]) / self.options.stride + 1
    }
}

/// Seeded values. Products and windows preserve the variance of inputs after a ReLU.
fn values<T: Scalar>(len: usize, inputs: f64, seed: usize) -> Vec<T> {
    let scale = (2.0 / inputs).sqrt();
    let values = generate::random_values::<f64>(len, seed as u64);
    values.iter().map(|x| T::from_f64(x * scale)).collect()
}

/// Returns the first convolution, thirteen blocks, and a mean over each plane with the classifier.
pub fn layers<T: Scalar>(sizes: Sizes) -> Result<Vec<Layer<T>>> {
    let channels = |full: usize| full * sizes.eighths / 8;
    let padded = |stride: usize| Conv2dOptions { stride, padding: [1, 1], relu: true };
    let bias = |len: usize, seed: usize| Dense::new([len], values::<T>(len, 200.0, seed));
    let first = [channels(32), 3, 3, 3];
    let mut all = vec![Layer {
        channels: 3,
        edge: sizes.edge,
        window: first,
        options: padded(2),
        taps: Dense::new(first, values(first.iter().product(), 27.0, 1))?,
        bias: Some(bias(first[0], 2)?),
        product: None,
    }];
    let (mut inputs, mut edge) = (first[0], sizes.edge.div_ceil(2));
    for (at, (outputs, stride)) in BLOCKS.into_iter().enumerate() {
        let (seed, outputs, window) = (10 * (at + 1), channels(outputs), [inputs, 1, 3, 3]);
        let pattern = generate::uniform(outputs, inputs, DENSITY, seed as u64)?;
        let kept = values(pattern.columns().len(), DENSITY * inputs as f64, seed + 1);
        all.push(Layer {
            channels: inputs,
            edge,
            window,
            options: padded(stride),
            taps: Dense::new(window, values(9 * inputs, 9.0, seed + 2))?,
            bias: Some(bias(inputs, seed + 3)?),
            product: Some((Csr::new(pattern, kept)?, bias(outputs, seed + 4)?, true)),
        });
        (inputs, edge) = (outputs, edge.div_ceil(stride));
    }
    let window = [inputs, 1, edge, edge];
    let mean = T::from_f64(1.0 / (edge * edge) as f64);
    // The classifier is dense, and stored as CSR. With one column per image, unstructured nonzeros are read fastest.
    let pattern = generate::uniform(sizes.classes, inputs, 1.0, 0)?;
    let kept = values(sizes.classes * inputs, inputs as f64, 200);
    all.push(Layer {
        channels: inputs,
        edge,
        window,
        options: Conv2dOptions::default(),
        taps: Dense::new(window, vec![mean; inputs * edge * edge])?,
        bias: None,
        product: Some((Csr::new(pattern, kept)?, bias(sizes.classes, 201)?, false)),
    });
    Ok(all)
}

/// Seeded images, `[3, batch * edge * edge]`.
pub fn images<T: Scalar>(edge: usize, batch: usize) -> Result<Dense<T>> {
    let len = batch * edge * edge;
    Ok(Dense::new([3, len], values(3 * len, 2.0, 7))?)
}

/// Computes the logits, `[classes, batch]`.
pub fn reference<T: Scalar>(layers: &[Layer<T>], image: &Dense<T>, batch: usize) -> Vec<f64> {
    let mut map: Vec<f64> = image.values().iter().map(|x| x.to_f64()).collect();
    for layer in layers {
        map = planes(layer, &map, batch);
        let Some((weights, bias, relu)) = &layer.product else {
            continue;
        };
        let pattern = weights.pattern();
        let places = map.len() / pattern.cols();
        let mut out = Vec::new();
        for row in 0..pattern.rows() {
            let mut sums = vec![bias.values()[row].to_f64(); places];
            for entry in pattern.row(row) {
                let (column, weight) = (pattern.columns()[entry], weights.values()[entry]);
                let from = &map[column as usize * places..][..places];
                let all = sums.iter_mut().zip(from);
                all.for_each(|(sum, x)| *sum += weight.to_f64() * x);
            }
            out.extend(sums.iter().map(|sum| if *relu { sum.max(0.0) } else { *sum }));
        }
        map = out;
    }
    map
}

fn planes<T: Scalar>(layer: &Layer<T>, map: &[f64], batch: usize) -> Vec<f64> {
    let (edge, stride, pad) = (layer.edge, layer.options.stride, layer.options.padding[0]);
    let ([outputs, each, rows, columns], across) = (layer.window, layer.out_edge());
    let places = batch * across * across;
    let one = |at: usize| {
        let (output, image) = (at / places, at % places / (across * across));
        let (y, x) = (at / across % across * stride, at % across * stride);
        let bias = layer.bias.as_ref();
        let mut sum = bias.map_or(0.0, |bias| bias.values()[output].to_f64());
        for (tap, weight) in layer.taps.values()[output * each * rows * columns..]
            .iter()
            .take(each * rows * columns)
            .enumerate()
        {
            let (c, i, j) = (tap / (rows * columns), tap / columns % rows, tap % columns);
            let channel = if each == 1 { output } else { c };
            let inside = |at: usize| (pad..edge + pad).contains(&at);
            if inside(y + i) && inside(x + j) {
                let plane = (channel * batch + image) * edge;
                sum += weight.to_f64() * map[(plane + y + i - pad) * edge + x + j - pad];
            }
        }
        if layer.options.relu { sum.max(0.0) } else { sum }
    };
    (0..outputs * places).map(one).collect()
}
