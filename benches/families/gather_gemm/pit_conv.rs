//! 3 x 3 convolutions, channels last, with empty channels of each image, or empty filters, in each step. Measures the
//! kernels that a layer selects for an expected sparsity, and the kernels that skip empty channels if the layer selects
//! others. Times include the detection. The kernels of all channels are measured by name. Baselines are cuDNN on all
//! channels, and cuBLAS on an existing image-to-column matrix, whose construction is excluded.

use super::micro::EMPTY;
use crate::peers::cudnn::CuDnn;
use crate::prelude::*;
use einsparse::dynamic::{
    ConvolutionAxis, ConvolutionOptions, ConvolutionShape, DynamicConvolution, SparsityHint,
};

pub const OP: &str = "pit_conv";

/// Number of images.
pub const IMAGES: usize = 32;
/// Extent of an image, channels and filters: the four widths of a residual network (He et al., arXiv 1512.03385, table
/// 1), and one case with many channels on a large image.
pub const LAYERS: [(usize, usize); 5] = [(56, 64), (28, 128), (14, 256), (7, 512), (56, 256)];
/// Number of checked positions of C.
const CHECKED: usize = 64;

/// Measures every layer, axis and share.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (size, width) in LAYERS {
        let shape = ConvolutionShape::new([IMAGES, size, size, width], [3, 3], width).same();
        for axis in [ConvolutionAxis::Channels, ConvolutionAxis::Filters] {
            for empty in EMPTY {
                let case = Case::new(bench, shape, axis, empty)?;
                let share = 1.0 - f64::from(empty) / 100.0;
                let taken = case.ours(Some(SparsityHint::MicroTiles(share)))?;
                if !taken.starts_with("pit_conv") {
                    case.ours(None)?;
                }
                if empty == 0 && axis == ConvolutionAxis::Channels {
                    case.by_name(taken)?;
                }
                case.cudnn()?;
                case.cublas()?;
            }
        }
    }
    Ok(())
}

struct Case<'c> {
    bench: &'c Bench<'c>,
    shape: ConvolutionShape,
    axis: ConvolutionAxis,
    empty: u32,
    a: Dense<f16>,
    b: Dense<f16>,
    there: [Tensor<f16>; 2],
    /// Share of the multiplications that remain.
    kept: f64,
}

/// Uniform values in which whole columns of every `rows` rows are zero, and the number of nonzero columns.
fn sample(shape: [usize; 4], rows: usize, empty: u32, seed: u64) -> Result<(Dense<f16>, usize)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let width = shape[3];
    let mut values = Vec::with_capacity(shape.iter().product());
    let mut full = 0;
    for _ in 0..shape[..3].iter().product::<usize>() / rows {
        let there: Vec<bool> = (0..width).map(|_| rng.random_range(0..100) >= empty).collect();
        full += there.iter().filter(|&&there| there).count();
        for _ in 0..rows {
            values.extend(there.iter().map(|&there| {
                let x = rng.random_range(0.01..1.73f32) * if rng.random() { 1.0 } else { -1.0 };
                if there { f16::from_f32(x) } else { f16::ZERO }
            }));
        }
    }
    Ok((Dense::new(shape.to_vec(), values)?, full))
}

impl<'c> Case<'c> {
    fn new(
        bench: &'c Bench<'c>,
        shape: ConvolutionShape,
        axis: ConvolutionAxis,
        empty: u32,
    ) -> Result<Self> {
        let [h, w] = shape.size;
        let [i, j] = shape.window;
        let (images, channels, filters) = (shape.images, shape.channels, shape.filters);
        let of_channels = axis == ConvolutionAxis::Channels;
        let share = |own: bool| if own { empty } else { 0 };
        let (a, a_full) = sample([images, h, w, channels], h * w, share(of_channels), SEED)?;
        let (rows, own) = (i * j * channels, share(!of_channels));
        let (b, b_full) = sample([i, j, channels, filters], rows, own, SEED + 1)?;
        let kept = match of_channels {
            true => a_full as f64 / (images * channels) as f64,
            false => b_full as f64 / filters as f64,
        };
        Ok(Case {
            bench,
            shape,
            axis,
            empty,
            there: [bench.upload(&a)?, bench.upload(&b)?],
            a,
            b,
            kept,
        })
    }

    /// `[m, k, n]` of the equivalent product.
    fn extents(&self) -> [usize; 3] {
        let s = &self.shape;
        let positions = s.images * s.size[0] * s.size[1];
        [positions, s.window[0] * s.window[1] * s.channels, s.filters]
    }

    /// Checks and times a baseline.
    fn peer(&self, row: Row, run: impl Fn(u64) -> Result<()>) -> Result<()> {
        let [m, _, n] = self.extents();
        let mut c = Buffer::new(m * n * 2)?;
        self.bench.checked(
            row,
            &mut c,
            |c| run(c.ptr),
            |c| {
                let mut found = vec![f16::ZERO; m * n];
                c.read(0, bytemuck::cast_slice_mut(&mut found))?;
                Ok(self.error(&found))
            },
        )?;
        Ok(())
    }

    fn row(&self) -> Row {
        let [m, k, n] = self.extents();
        let axis = match self.axis {
            ConvolutionAxis::Channels => "channels",
            ConvolutionAxis::Filters => "filters",
        };
        let [size, width] = [self.shape.size[0], self.shape.channels];
        let share = f64::from(self.empty) / 100.0;
        let workload = format!("{size}x{size}x{width}-{axis}-e{share}");
        Row::new(OP, workload, [m, k, n], 0, Dtype::F16)
            .flops(2.0 * (m * k) as f64 * n as f64 * self.kept)
            .dense()
    }

    /// Times the kernels that a layer selects for this expected sparsity. Returns the name of its product kernel.
    fn ours(&self, expected: Option<SparsityHint>) -> Result<&'static str> {
        let (bench, stream) = (self.bench, &self.bench.stream);
        let options = ConvolutionOptions {
            axis: self.axis,
            expected,
            ..ConvolutionOptions::default().same(self.shape.window)
        };
        let [a, b] = [self.a.shape(), self.b.shape()].map(<[usize; 4]>::try_from);
        let mut convolution = DynamicConvolution::<f16>::new(&bench.context, a?, b?, &options)?;
        let ([_, _, n], [h, w]) = (self.extents(), self.shape.size);
        let mut c = bench.poisoned(&[self.shape.images, h, w, n])?;
        let [a, b] = &self.there;
        let sparse = match self.axis {
            ConvolutionAxis::Channels => a,
            ConvolutionAxis::Filters => b,
        };
        let variant = convolution.variants()[2];
        bench.once(|| convolution.forward(a, b, &mut c, stream))?;
        let error = self.error(c.to_dense()?.values());
        let times = bench.measure(|| convolution.forward(a, b, &mut c, stream))?;
        let mut row = self.row().ours(variant).timed(&times);
        if variant.starts_with("pit_conv") {
            let detection = bench.measure(|| convolution.detect(sparse, stream))?;
            let alone = bench.measure(|| convolution.multiply(a, b, &mut c, stream))?;
            row = row.note(format!(
                "detection inside; alone {:.1} us, product {:.1}",
                detection.cold * 1e3,
                alone.cold * 1e3
            ));
        }
        bench.add(row.error(error))?;
        Ok(variant)
    }

    /// Times the kernels of all channels that were not selected. The images are stored with their padding, because
    /// expressions do not support padding.
    fn by_name(&self, taken: &str) -> Result<()> {
        let (bench, s) = (self.bench, &self.shape);
        let ([h, w], [x, y]) = (s.size, s.padding);
        let shape = vec![s.images, h + 2 * x, w + 2 * y, s.channels];
        let (values, channels) = (self.a.values(), s.channels);
        let around = Dense::from_fn(shape, |i| {
            let inside = (x..h + x).contains(&i[1]) && (y..w + y).contains(&i[2]);
            let place = |i: &[usize]| ((i[0] * h + i[1] - x) * w + i[2] - y) * channels + i[3];
            if inside { values[place(i)] } else { f16::ZERO }
        })?;
        let a = bench.upload(&around)?;
        let operands = ab(&a, &self.there[1]);
        let own = bench.kernels().filter(|row| row.module.starts_with("dense_conv"));
        for row in own.filter(|row| row.dtype.name() == "f16" && row.name != taken) {
            let text = ("C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]", &forced(Some(row.name)));
            let row = self.row().note("by name");
            let check = |c: &Tensor<f16>| Ok(self.error(c.to_dense()?.values()));
            bench.product::<f16, f16>(row, text, &operands, check)?;
        }
        Ok(())
    }

    /// Max error of some positions of C over its bound.
    fn error(&self, c: &[f16]) -> f64 {
        let ([m, k, n], s) = (self.extents(), &self.shape);
        let (a, b, channels) = (self.a.values(), self.b.values(), s.channels);
        let rows = (0..CHECKED).map(|i| (i * (m / CHECKED) + i * 7) % m);
        let terms = |row: usize, sums: &mut [Sum]| {
            for step in 0..k {
                if let Some(place) = place(s, row, step / channels) {
                    let factor = a[place * channels + step % channels].to_f64();
                    add_line(sums, factor, &b[step * n..]);
                }
            }
        };
        // Algorithms of baselines sum in other orders, so the bound is that of any order.
        rows_error(c, n, rows, terms, rounding::<f16>(k * k / 16))
    }

    /// Times cuDNN on all channels, with weights in its layout.
    fn cudnn(&self) -> Result<()> {
        let s = &self.shape;
        let images = [s.images, s.size[0], s.size[1], s.channels];
        let weights = [s.filters, s.window[0], s.window[1], s.channels];
        let opened = CuDnn::open(self.bench.gpu, images, weights, s.padding);
        let Some(library) = or_said(opened, "engine cudnn") else {
            return Ok(());
        };
        let [_, inner, _] = self.extents();
        let turned: Vec<f16> = (0..s.filters * inner)
            .map(|i| self.b.values()[i % inner * s.filters + i / inner])
            .collect();
        let (a, b) = (at(&self.there[0])?, Buffer::from_slice(&turned)?);
        let row = self.row().by("cudnn", library.algorithm());
        let row = row.note(format!("cuDNN {}", library.version()));
        self.peer(row, |c| library.run([a, b.ptr, c]))
    }

    /// Times the product of an image-to-column matrix and B.
    fn cublas(&self) -> Result<()> {
        let Some(cublas) = self.bench.cublas(false) else {
            return Ok(());
        };
        let columns = self.bench.upload(&self.image_to_column()?)?;
        let (a, b) = (at(&columns)?, at(&self.there[1])?);
        let row = self.row().by("cublas", "image to column, there already");
        self.peer(row, |c| cublas.gemm(Dtype::F16, self.extents(), [a, b, c], Order::Rows))
    }

    fn image_to_column(&self) -> Result<Dense<f16>> {
        let [m, k, _] = self.extents();
        let s = &self.shape;
        let mut values = vec![f16::ZERO; m * k];
        for (row, line) in values.chunks_mut(k).enumerate() {
            for (tap, to) in line.chunks_mut(s.channels).enumerate() {
                if let Some(place) = place(s, row, tap) {
                    to.copy_from_slice(&self.a.values()[place * s.channels..][..s.channels]);
                }
            }
        }
        Ok(Dense::new([m, k], values)?)
    }
}

/// Position of A for row `row` of the product and a tap; `None` in the padding.
fn place(s: &ConvolutionShape, row: usize, tap: usize) -> Option<usize> {
    let [h, w] = s.size;
    let [x, y] = [row / w % h + tap / 3, row % w + tap % 3];
    let inside = (1..=h).contains(&x) && (1..=w).contains(&y);
    inside.then(|| (row / (h * w) * h + x - 1) * w + y - 1)
}
