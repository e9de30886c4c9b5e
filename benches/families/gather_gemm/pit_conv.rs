//! 3 x 3 convolutions, channels last, of which channels of each image, or filters, are empty for one step: detection inside the time,
//! beside the same without empty ones, cuDNN on all of it, and cuBLAS on an image-to-column matrix that is there already (making it is not inside).

use crate::device::{Buffer, Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{stream, text};
use crate::peers::cublas::CuBlas;
use crate::peers::cudnn::CuDnn;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{
    ConvolutionAxis, ConvolutionOptions, ConvolutionShape, DynamicConvolution,
};
use einsparse::formats::{Dense, f16};
use einsparse::{Context, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};

pub const OP: &str = "pit_conv";

/// Images.
pub const IMAGES: usize = 32;
/// Extents of an image, channels and filters: the four widths of a residual network (He et al., arXiv 1512.03385, table 1), and one of
/// many channels on a large image.
pub const LAYERS: [(usize, usize); 5] = [(56, 64), (28, 128), (14, 256), (7, 512), (56, 256)];
/// Shares that are empty, in percent.
const EMPTY: [u32; 4] = [0, 50, 90, 95];
/// So many positions of C are checked.
const CHECKED: usize = 64;

/// Every layer, axis and share.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    for (size, width) in LAYERS {
        let shape = ConvolutionShape::new([IMAGES, size, size, width], [3, 3], width).same();
        for axis in [ConvolutionAxis::Channels, ConvolutionAxis::Filters] {
            for empty in EMPTY {
                let case = Case::new(&context, shape, axis, empty)?;
                case.ours(gpu, effort, recorder)?;
                case.cudnn(gpu, effort, recorder)?;
                case.cublas(gpu, effort, recorder)?;
            }
        }
    }
    Ok(())
}

struct Case<'c> {
    context: &'c Context,
    shape: ConvolutionShape,
    axis: ConvolutionAxis,
    empty: u32,
    a: Dense<f16>,
    b: Dense<f16>,
    there: [Tensor<f16>; 2],
    /// Share of the multiplications of all that remain.
    kept: f64,
}

/// Uniform values of which whole columns of every `rows` rows are zero, and how many are not.
fn sample(shape: [usize; 4], rows: usize, empty: u32, seed: u64) -> Result<(Dense<f16>, usize)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let width = shape[3];
    let mut values = Vec::with_capacity(shape.iter().product());
    let mut full = 0;
    for _ in 0..shape[..3].iter().product::<usize>() / rows {
        let there: Vec<bool> = (0..width)
            .map(|_| rng.random_range(0..100) >= empty)
            .collect();
        full += there.iter().filter(|&&there| there).count();
        for _ in 0..rows {
            values.extend(there.iter().map(|&there| {
                let x = rng.random_range(0.01..1.73f32) * if rng.random() { 1.0 } else { -1.0 };
                if there { f16::from_f32(x) } else { f16::ZERO }
            }));
        }
    }
    Ok((Dense::new(shape.to_vec(), values).map_err(text)?, full))
}

impl<'c> Case<'c> {
    fn new(
        context: &'c Context,
        shape: ConvolutionShape,
        axis: ConvolutionAxis,
        empty: u32,
    ) -> Result<Self> {
        let [h, w] = shape.size;
        let [i, j] = shape.window;
        let of_channels = axis == ConvolutionAxis::Channels;
        let share = |own: bool| if own { empty } else { 0 };
        let a_shape = [shape.images, h, w, shape.channels];
        let (a, a_full) = sample(a_shape, h * w, share(of_channels), SEED)?;
        let b_shape = [i, j, shape.channels, shape.filters];
        let (b, b_full) = sample(
            b_shape,
            i * j * shape.channels,
            share(!of_channels),
            SEED + 1,
        )?;
        let kept = match of_channels {
            true => a_full as f64 / (shape.images * shape.channels) as f64,
            false => b_full as f64 / shape.filters as f64,
        };
        let there = [&a, &b].map(|dense| context.upload_dense(dense).map_err(text));
        let [a_there, b_there] = there;
        Ok(Case {
            context,
            shape,
            axis,
            empty,
            there: [a_there?, b_there?],
            a,
            b,
            kept,
        })
    }

    /// `[m, k, n]` of the product that it is.
    fn extents(&self) -> [usize; 3] {
        let s = &self.shape;
        let positions = s.images * s.size[0] * s.size[1];
        [positions, s.window[0] * s.window[1] * s.channels, s.filters]
    }

    /// A C of NaN: what is not written is seen.
    fn poisoned(&self) -> Result<Tensor<f16>> {
        let [m, _, n] = self.extents();
        let [h, w] = self.shape.size;
        let values = vec![f16::NAN; m * n];
        let dense = Dense::new(vec![self.shape.images, h, w, n], values).map_err(text)?;
        self.context.upload_dense(&dense).map_err(text)
    }

    /// A row of a peer; no time for wrong results.
    fn peer(&self, times: Times, c: &Buffer, note: &str) -> Result<Row> {
        let [m, _, n] = self.extents();
        let mut found = vec![f16::ZERO; m * n];
        c.read(0, bytemuck::cast_slice_mut(&mut found))?;
        let error = self.worst_error(&found);
        let wrong = if error <= 1.0 { "" } else { "WRONG: " };
        Ok(Row {
            ms: if error <= 1.0 { times.cold } else { f64::NAN },
            note: format!("{wrong}{note}err {error:.2} of the bound"),
            ..self.row(times)
        })
    }

    fn row(&self, times: Times) -> Row {
        let [m, k, n] = self.extents();
        let axis = match self.axis {
            ConvolutionAxis::Channels => "channels",
            ConvolutionAxis::Filters => "filters",
        };
        let flops = 2.0 * (m * k) as f64 * n as f64 * self.kept;
        let [size, width] = [self.shape.size[0], self.shape.channels];
        Row {
            op: OP.into(),
            workload: format!(
                "{size}x{size}x{width}-{axis}-e{}",
                f64::from(self.empty) / 100.0
            ),
            m,
            k,
            n,
            dtype: "f16".into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(flops / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    fn ours(&self, gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
        let options = ConvolutionOptions {
            axis: self.axis,
            ..ConvolutionOptions::default()
        };
        let convolution = DynamicConvolution::<f16>::new(self.context, self.shape, options);
        let mut convolution = convolution.map_err(text)?;
        let mut c = self.poisoned()?;
        let stream = stream(gpu);
        let [a, b] = &self.there;
        let sparse = match self.axis {
            ConvolutionAxis::Channels => a,
            ConvolutionAxis::Filters => b,
        };
        let times = measure(gpu, effort, &mut || {
            convolution.run(a, b, &mut c, &stream).map_err(text)
        })?;
        let error = self.worst_error(c.to_dense().map_err(text)?.values());
        let detection = measure(gpu, effort, &mut || {
            convolution.detect(sparse, &stream).map_err(text)
        })?;
        let alone = measure(gpu, effort, &mut || {
            convolution.multiply(a, b, &mut c, &stream).map_err(text)
        })?;
        let wrong = if error <= 1.0 { "" } else { "WRONG: " };
        let us = [detection, alone].map(|times| times.cold * 1e3);
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: convolution.variants()[2].into(),
            ms: if error <= 1.0 { times.cold } else { f64::NAN },
            note: format!(
                "{wrong}detection inside; alone {:.1} us, product {:.1}; err {error:.2} of the bound",
                us[0], us[1]
            ),
            ..self.row(times)
        })
    }

    /// The position of A that row `row` of the product meets at a tap; none in the padding.
    fn place(&self, row: usize, tap: usize) -> Option<usize> {
        let [h, w] = self.shape.size;
        let [x, y] = [row / w % h + tap / 3, row % w + tap % 3];
        let inside = (1..=h).contains(&x) && (1..=w).contains(&y);
        inside.then(|| (row / (h * w) * h + x - 1) * w + y - 1)
    }

    /// The largest error of some positions of C, over its bound: one rounding, and those of the sum.
    fn worst_error(&self, c: &[f16]) -> f64 {
        let [m, k, n] = self.extents();
        let s = &self.shape;
        let mut worst = 0.0f64;
        for row in (0..CHECKED).map(|i| (i * (m / CHECKED) + i * 7) % m) {
            let mut sums = vec![(0.0f64, 0.0f64); n];
            for step in 0..k {
                let (tap, channel) = (step / s.channels, step % s.channels);
                let Some(place) = self.place(row, tap) else {
                    continue;
                };
                let factor = self.a.values()[place * s.channels + channel].to_f64();
                let line = &self.b.values()[step * n..][..n];
                for (sum, w) in sums.iter_mut().zip(line) {
                    let term = factor * w.to_f64();
                    *sum = (sum.0 + term, sum.1 + term.abs());
                }
            }
            let line = &c[row * n..][..n];
            for (found, (sum, size)) in line.iter().zip(sums) {
                let bound = sum.abs() * 2f64.powi(-11) + size * k as f64 * 2f64.powi(-24) + 1e-6;
                let share = (found.to_f64() - sum).abs() / bound;
                worst = if share.is_nan() {
                    f64::INFINITY
                } else {
                    worst.max(share)
                };
            }
        }
        worst
    }

    /// All of it by cuDNN, with the weights as it wants them.
    fn cudnn(&self, gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
        let s = &self.shape;
        let (images, taps) = (
            [s.images, s.size[0], s.size[1], s.channels],
            s.window[0] * s.window[1],
        );
        let weights = [s.filters, s.window[0], s.window[1], s.channels];
        let library = match CuDnn::open(gpu, images, weights, s.padding) {
            Ok(library) => library,
            Err(reason) => {
                eprintln!("cuDNN: {reason}");
                return Ok(());
            }
        };
        let inner = taps * s.channels;
        let turned: Vec<f16> = (0..s.filters * inner)
            .map(|i| self.b.values()[i % inner * s.filters + i / inner])
            .collect();
        let b = Buffer::from_slice(&turned)?;
        let Some(a) = self.there[0].address() else {
            return Err("the operands are not on the GPU".into());
        };
        let [m, _, n] = self.extents();
        let c = Buffer::new(m * n * 2)?;
        let times = measure(gpu, effort, &mut || library.run([a, b.ptr, c.ptr]))?;
        let note = format!("cuDNN {}; ", library.version());
        recorder.add(Row {
            engine: "cudnn".into(),
            variant: library.algorithm(),
            ..self.peer(times, &c, &note)?
        })
    }

    /// The product of an image-to-column matrix with B.
    fn cublas(&self, gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
        let Ok(cublas) = CuBlas::open(gpu, false) else {
            return Ok(());
        };
        let [m, k, n] = self.extents();
        let Some(b) = self.there[1].address() else {
            return Err("the operands are not on the GPU".into());
        };
        let columns = self.image_to_column()?;
        let there = self.context.upload_dense(&columns).map_err(text)?;
        let Some(a) = there.address() else {
            return Err("the operands are not on the GPU".into());
        };
        let c = Buffer::new(m * n * 2)?;
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(Dtype::F16, [m, k, n], [a, b, c.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "image to column, there already".into(),
            ..self.peer(times, &c, "")?
        })
    }

    fn image_to_column(&self) -> Result<Dense<f16>> {
        let [m, k, _] = self.extents();
        let s = &self.shape;
        let mut values = vec![f16::ZERO; m * k];
        for (row, line) in values.chunks_mut(k).enumerate() {
            for (tap, to) in line.chunks_mut(s.channels).enumerate() {
                if let Some(place) = self.place(row, tap) {
                    to.copy_from_slice(&self.a.values()[place * s.channels..][..s.channels]);
                }
            }
        }
        Dense::new([m, k], values).map_err(text)
    }
}
