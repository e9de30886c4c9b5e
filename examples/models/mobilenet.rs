//! MobileNetV1 (Howard et al., arXiv 1704.04861) with 90 % of its 1x1 weights pruned, as a whole, as Sputnik runs it
//! (arXiv 2006.10901, section 7.3.2). Maps are `[channels, images * pixels]`. A 1x1 convolution is a product with bias
//! and ReLU; other layers process planes. Batch norm is folded into weights and biases; ReLU replaces ReLU6.

use std::collections::BTreeSet;
use std::sync::Arc;

use einsparse::formats::{Csr, Dense, f16};
use einsparse::ops::Conv2d;
use einsparse::{Context, Options, Plan, Precision, Result, Scalar, Stream, Tensor, Weights};

use super::checkpoint::Checkpoint;
use super::common::{Measured, Memory, Run, largest_error};
use super::mobilenet_weights::{FULL, Layer, Sizes, images, layers, reference};
use super::pruned::Matrix;

struct Product<T: Scalar> {
    plan: Plan<T>,
    weights: Matrix<T>,
    bias: Tensor<T>,
    out: Tensor<T>,
}

impl<T: Scalar> Product<T> {
    /// Creates the product from map `input` to map `out`, which it stores.
    fn new(
        ctx: &Context,
        (weights, bias, relu): &(Csr<T>, Dense<T>, bool),
        (input, out): (&Tensor<T>, Tensor<T>),
        pruned: Option<Precision>,
    ) -> Result<Self> {
        // The classifier, the product without a ReLU, is dense in both networks, and stored as CSR. With one column per
        // image, unstructured nonzeros are read fastest.
        let weights = match pruned.is_none() && *relu {
            true => Matrix::Dense(ctx.upload_dense(&weights.to_dense()?)?),
            false => Matrix::Sparse(ctx.upload(weights)?),
        };
        let bias = ctx.upload_dense(bias)?;
        let text = match relu {
            true => "C[m,n] = relu(A[m,k] * B[k,n] + b[m])",
            false => "C[m,n] = A[m,k] * B[k,n] + b[m]",
        };
        let options = Options::default()
            .precision(pruned.unwrap_or(Precision::Tf32))
            .weights(Weights::Static);
        let operands = [("A", weights.operand()), ("B", input.into()), ("b", (&bias).into())];
        let plan = ctx.plan(text).operands(&operands).options(&options);
        Ok(Product { plan: plan.build()?, weights, bias, out })
    }
}

struct Planned<T: Scalar> {
    conv: Conv2d<T>,
    taps: Tensor<T>,
    bias: Option<Tensor<T>>,
    out: Tensor<T>,
    product: Option<Product<T>>,
}

impl<T: Scalar> Planned<T> {
    /// Map that the next layer reads.
    fn map(&self) -> &Tensor<T> {
        self.product.as_ref().map_or(&self.out, |product| &product.out)
    }

    fn forward(&mut self, input: &Tensor<T>, stream: &Stream) -> Result<()> {
        let bias = self.bias.as_ref();
        self.conv.forward(input, &self.taps, bias, &mut self.out, stream)?;
        let Some(product) = &mut self.product else {
            return Ok(());
        };
        let operands = [
            ("A", product.weights.operand()),
            ("B", (&self.out).into()),
            ("b", (&product.bias).into()),
        ];
        product.plan.run(&operands, &mut product.out, stream)
    }
}

/// Number of images, and precision of pruned products. `None` selects the baseline: dense, in TF32.
pub type Asked = (usize, Option<Precision>);

/// The network.
pub struct MobileNet<T: Scalar> {
    image: Tensor<T>,
    layers: Vec<Planned<T>>,
}

impl<T: Scalar> MobileNet<T> {
    pub fn new(ctx: &Context, layers: &[Layer<T>], (batch, pruned): Asked) -> Result<Self> {
        let largest = layers.iter().map(|layer| layer.elements(batch)).max();
        // One map is read while the other one is written.
        let map = || ctx.zeros::<T>(&[largest.unwrap_or(0)]).map(Arc::new);
        let (even, odd) = (map()?, map()?);
        let view = |map: &Arc<Tensor<T>>, shape: [usize; 2]| match map.address() {
            // SAFETY: the map is long enough, stays alive, and is used in the order of one stream, one layer at a time.
            Some(at) => unsafe { Tensor::from_raw(ctx, at, &shape, shape[1], Arc::clone(map)) },
            None => ctx.zeros(&shape),
        };
        let mut all = Vec::new();
        for layer in layers {
            let input = [layer.channels, batch, layer.edge, layer.edge];
            let conv = Conv2d::new(ctx, input, layer.window, &layer.options)?;
            let (channels, columns) = (layer.window[0], layer.columns(batch));
            let map = if layer.product.is_some() { &odd } else { &even };
            let out = view(map, [channels, columns])?;
            let product = layer.product.as_ref().map(|product| {
                let to = view(&even, [product.0.pattern().rows(), columns])?;
                Product::new(ctx, product, (&out, to), pruned)
            });
            let (product, bias) = (product.transpose()?, layer.bias.as_ref());
            all.push(Planned {
                conv,
                taps: ctx.upload_dense(&layer.taps)?,
                bias: bias.map(|bias| ctx.upload_dense(bias)).transpose()?,
                out,
                product,
            });
        }
        let image = ctx.upload_dense(&images(layers[0].edge, batch)?)?;
        Ok(MobileNet { image, layers: all })
    }

    pub fn forward(&mut self, stream: &Stream) -> Result<()> {
        for at in 0..self.layers.len() {
            let (ahead, rest) = self.layers.split_at_mut(at);
            let input = ahead.last().map_or(&self.image, Planned::map);
            rest[0].forward(input, stream)?;
        }
        Ok(())
    }

    /// Returns the logits, `[classes, batch]`.
    pub fn logits(&self) -> Result<Vec<f64>> {
        let logits = self.layers.last().map_or(&self.image, Planned::map).to_dense()?;
        Ok(logits.values().iter().map(|x| x.to_f64()).collect())
    }

    /// Returns the kernels without duplicates.
    pub fn variants(&self) -> String {
        let of = |layer: &Planned<T>| {
            let plan = layer.product.as_ref().map(|product| product.plan.variant());
            [Some(layer.conv.variant()), plan]
        };
        let all: BTreeSet<_> = self.layers.iter().flat_map(of).flatten().collect();
        all.into_iter().collect::<Vec<_>>().join(" ")
    }
}

/// Largest error against the network in f64. Asserts that two runs give the same bits.
pub fn checked<T: Scalar>(ctx: &Context, sizes: Sizes, asked: Asked) -> Result<f64> {
    error(ctx, &layers::<T>(sizes)?, asked)
}

/// Error as in [`checked`], for these layers.
pub fn error<T: Scalar>(ctx: &Context, layers: &[Layer<T>], asked: Asked) -> Result<f64> {
    let wanted = reference(layers, &images(layers[0].edge, asked.0)?, asked.0);
    let mut model = MobileNet::new(ctx, layers, asked)?;
    let stream = ctx.stream()?;
    let mut run = || {
        model.forward(&stream)?;
        stream.synchronize()?;
        model.logits()
    };
    let found = run()?;
    assert!(found == run()?, "two runs differ");
    Ok(largest_error(&found, &wanted))
}

fn measured<T: Scalar>(run: &Run<'_>, sizes: Sizes, asked: (usize, Precision)) -> Result<()> {
    let (batch, precision) = asked;
    let ctx = &run.context;
    let mut layers = layers::<T>(sizes)?;
    if let Some(paths) = &run.arguments.file {
        Checkpoint::open(paths)?.mobilenet(&mut layers)?;
    }
    let memory = Memory::before(ctx);
    let mut model = MobileNet::new(ctx, &layers, (batch, Some(precision)))?;
    let times = run.time(|stream| model.forward(stream))?;
    let held = memory.since(ctx);
    let mut twin = MobileNet::new(ctx, &layers, (batch, None))?;
    let other = run.time(|stream| twin.forward(stream))?;
    let error = largest_error(&model.logits()?, &twin.logits()?);
    let Sizes { edge, eighths, .. } = sizes;
    run.report(Measured {
        case: format!("mobilenet_v1 {eighths}/8, {edge} x {edge}, batch {batch}"),
        dtype: match precision {
            Precision::Full => T::NAME,
            Precision::Tf32 => "tf32",
        },
        times,
        work: (batch as f64, "images"),
        twin: Some(("dense 1x1 weights".into(), other)),
        held,
        error: Some(error),
        note: format!(
            "{} launches; {}; twin: {}",
            2 * layers.len() - 1,
            model.variants(),
            twin.variants()
        ),
    });
    // The baseline multiplies in TF32, and 16-bit maps are rounded in every layer.
    assert!(error < 5e-2, "{error}");
    Ok(())
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let toy = Sizes { edge: 64, eighths: 2, classes: 10 };
    let full = Some(Precision::Full);
    let single = checked::<f32>(ctx, toy, (2, full))?;
    let half = checked::<f16>(ctx, toy, (2, full))?;
    println!("2/8 of the channels, 64 x 64: largest error {single:.1e} in f32, {half:.1e} in f16");
    assert!(single < 1e-4 && half < 5e-2);
    let (sizes, batches) = match run.toy {
        true => (toy, vec![1]),
        false => (FULL, vec![1, 16]),
    };
    for batch in run.arguments.batch.clone().unwrap_or(batches) {
        measured::<f32>(run, sizes, (batch, Precision::Full))?;
        measured::<f32>(run, sizes, (batch, Precision::Tf32))?;
        measured::<f16>(run, sizes, (batch, Precision::Full))?;
    }
    Ok(())
}
