//! Equivariant tensor product of 10,000 pairs and its gradients. Bytes are those of operands and output once. The min
//! time is the larger of bytes over 4.28 TB/s and arithmetic over 46 TFLOP/s. The first and last 64 items are checked
//! against the CPU, and eight elements of each path of the gradient of shared weights. Notes state the times of
//! baselines on the same shapes, measured separately on a GPU of this kind.

use crate::prelude::*;
use crate::record::HBM;
use einsparse::Stream;
use einsparse::ops::{Channels, Couplings, Factors, Gradients, TensorProduct};

pub const OP: &str = "tensor_product";
/// Number of pairs.
const ITEMS: usize = 10_000;
/// Number of checked pairs at either end.
const CHECKED: usize = 64;
/// Operations of f32 per second.
const FMA: f64 = 46e12;
/// Max error relative to the max element.
const MOST: f64 = 1e-5;
/// Measured outputs: the product, a gradient, or the product with all gradients.
const WRITTEN: [&str; 5] = ["", "-dx", "-dy", "-dw", "-all"];
/// Index in [`WRITTEN`] of the product with all gradients.
const ALL: usize = 4;

/// Name, channels, max degree, and times of baselines in us, cold.
type Case = (&'static str, Channels, usize, &'static str);
const ONE: Channels = Channels::One;
const EACH: Channels = Channels::Each(32);
const CONNECTED: Channels = Channels::Connected(32, 32);
const EACH_CONNECTED: Channels = Channels::ConnectedEach(32, 32);
const CASES: [Case; 12] = [
    ("tp-full-l1", ONE, 1, "e3nn compiled 29.2, Insum 9.0"),
    ("tp-full-l2", ONE, 2, "e3nn compiled 59.3, Insum 10.5"),
    ("tp-full-l3", ONE, 3, "e3nn compiled 132, Insum 23.7"),
    ("tp-full-l4", ONE, 4, "e3nn compiled 263, Insum 55.5"),
    ("tp-uvu-l1", EACH, 1, "cuEquivariance 10.7, with gradients 21.6"),
    ("tp-uvu-l2", EACH, 2, "cuEquivariance 23.7, with gradients 65.5"),
    ("tp-uvu-l3", EACH, 3, "cuEquivariance 46.5, with gradients 148"),
    ("tp-fc-l1", CONNECTED, 1, "e3nn compiled 49.2, cuEquivariance 312"),
    ("tp-fc-l2", CONNECTED, 2, "e3nn compiled 226, cuEquivariance 1677"),
    ("tp-fc-l3", CONNECTED, 3, "e3nn compiled 743, cuEquivariance 9165"),
    ("tp-fc-l4", CONNECTED, 4, "e3nn compiled 2079"),
    ("tp-fc-each-l1", EACH_CONNECTED, 1, "no peer measured"),
];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    CASES.into_iter().try_for_each(|case| measured(&bench.anew()?, case))
}

/// X, Y, W and the output's gradient.
type Operands = [Dense<f32>; 4];

/// Shapes of the output and of X, Y and W. Without weights, W has one element.
fn shapes(product: &TensorProduct<f32>) -> [&[usize]; 4] {
    let w = product.w_shape();
    let w: &[usize] = if w.is_empty() { &[1] } else { w };
    [product.out_shape(), product.x_shape(), product.y_shape(), w]
}

/// Runs the product (0), a gradient, or all of them. The outputs are the product and the gradients of X, Y and W.
fn step(
    product: &TensorProduct<f32>,
    of: usize,
    [x, y, w, g]: &[Tensor<f32>; 4],
    [out, dx, dy, dw]: &mut [Tensor<f32>; 4],
    stream: &Stream,
) -> Result<()> {
    let w = (!product.w_shape().is_empty()).then_some(w);
    let factors = Factors { x, y, w };
    if of == 0 || of == ALL {
        product.forward(factors, out, stream)?;
    }
    let gradients = Gradients {
        x: (of == 1 || of == ALL).then_some(dx),
        y: (of == 2 || of == ALL).then_some(dy),
        w: (w.is_some() && (of == 3 || of == ALL)).then_some(dw),
    };
    match of {
        0 => Ok(()),
        _ => Ok(product.backward(factors, g, gradients, stream)?),
    }
}

fn measured(bench: &Bench<'_>, (name, channels, largest, peers): Case) -> Result<()> {
    let (context, couplings) = (&bench.context, Couplings::natural(largest)?);
    let (product, prepare_ms) = timed(|| {
        let planned = TensorProduct::with_gradients(context, &couplings, channels, ITEMS);
        Ok(planned.or_else(|reason| {
            println!("{name}: gradients: {reason}");
            TensorProduct::new(context, &couplings, channels, ITEMS)
        })?)
    })?;
    let [out, x, y, w] = shapes(&product);
    let mut seed = 6;
    let host = [x, y, w, out].map(|shape| {
        seed += 1;
        values::dense::<f32>(shape, seed, 1.0)
    });
    let tensors = bench.uploads(host.each_ref())?;
    for (of, suffix) in WRITTEN.iter().enumerate() {
        let variants = product.variants();
        let planned = of != ALL || variants[1].is_some();
        let Some(variant) = variants[of % ALL].filter(|_| planned) else {
            continue;
        };
        let (bytes, flops) = work(&couplings, channels, &product, of);
        let peers = match of {
            0 | ALL => peers,
            _ => "no peer measured",
        };
        let n = if channels == ONE { 1 } else { 32 };
        let nnz = couplings.tensor::<f32>()?.values().len();
        let (workload, paths) = (format!("{name}{suffix}"), couplings.paths().len());
        let row = Row::new(OP, workload, [ITEMS, paths, n], nnz, Dtype::F32)
            .ours(variant)
            .flops(flops)
            .bytes(bytes)
            .limit(1e3 * (bytes / HBM).max(flops / FMA))
            .prepared(prepare_ms, product.workspace_bytes())
            .note(peers);
        let [out, dx, dy, dw] = shapes(&product).map(|shape| bench.poisoned::<f32>(shape));
        let mut out = [out?, dx?, dy?, dw?];
        let run = |out: &mut _| step(&product, of, &tensors, out, &bench.stream);
        bench.checked(row, &mut out, run, |out| {
            let mut worst = 0f64;
            for own in if of == ALL { 0..4 } else { of..of + 1 } {
                if variants[own].is_some() && (own != 3 || !product.w_shape().is_empty()) {
                    let found = out[own].to_dense()?;
                    worst = worse(worst, checked(&couplings, channels, own, &host, &found)?);
                }
            }
            Ok(worst / MOST)
        })?;
    }
    Ok(())
}

/// Bytes of the operands and the output, and operations: two for each row of the couplings and each item, times the
/// elements of the weight matrix if channels are connected.
fn work(
    couplings: &Couplings,
    channels: Channels,
    product: &TensorProduct<f32>,
    of: usize,
) -> (f64, f64) {
    let size = |shape: &[usize]| match shape.is_empty() {
        true => 0.0,
        false => shape.iter().product::<usize>() as f64,
    };
    let (x, y) = (size(product.x_shape()), size(product.y_shape()));
    let (w, out) = (size(product.w_shape()), size(product.out_shape()));
    // A gradient writes one of the product's operands, and reads the output's gradient in place of the output.
    let (elements, times) = match of {
        ALL => (3.0 * (x + y + w) + 2.0 * out, if w > 0.0 { 4.0 } else { 3.0 }),
        _ => (x + y + w + out, 1.0),
    };
    let rows = couplings.rows() as f64;
    let flops = match channels {
        Channels::Connected(u, w) | Channels::ConnectedEach(u, w) => {
            2.0 * rows * (ITEMS * u * w) as f64
        }
        _ => 2.0 * rows * ITEMS as f64,
    };
    (4.0 * elements, times * flops)
}

/// Max error of the first and last items, relative to the max element.
fn checked(
    couplings: &Couplings,
    channels: Channels,
    of: usize,
    host: &Operands,
    found: &Dense<f32>,
) -> Result<f64> {
    let shared = matches!(channels, Channels::Connected(..));
    if shared && of == 3 {
        return sampled(couplings, host, found);
    }
    let cpu = Context::cpu();
    let stream = cpu.stream()?;
    let items = CHECKED;
    let small = TensorProduct::<f32>::with_gradients(&cpu, couplings, channels, items)?;
    let mut worst = 0f64;
    for last in [false, true] {
        let part = |dense: &Dense<f32>, at: usize| -> Result<Tensor<f32>> {
            let fixed = at == 2 && (shared || channels == ONE);
            Ok(match fixed {
                true => cpu.upload_dense(dense)?,
                false => cpu.upload_dense(&slice(dense, items, last)?)?,
            })
        };
        let [x, y, w, g] = host;
        let tensors = [part(x, 0)?, part(y, 1)?, part(w, 2)?, part(g, 3)?];
        let [out, dx, dy, dw] = shapes(&small).map(|shape| cpu.zeros::<f32>(shape));
        let mut out = [out?, dx?, dy?, dw?];
        step(&small, of, &tensors, &mut out, &stream)?;
        let wanted = out[of].to_dense()?;
        let own = slice(found, items, last)?;
        let largest = wanted.values().iter().fold(0f32, |m, v| m.max(v.abs()));
        for (found, wanted) in own.values().iter().zip(wanted.values()) {
            worst = worse(worst, f64::from((found - wanted).abs() / largest));
        }
    }
    Ok(worst)
}

/// Max error of the gradient of shared weights, which sums over all items. Eight elements of each path are compared
/// with sums in f64.
fn sampled(couplings: &Couplings, host: &Operands, found: &Dense<f32>) -> Result<f64> {
    let entries = couplings.tensor::<f64>()?;
    let (paths, places) = (couplings.path_of_row(), couplings.component_of_row());
    let [x, y, _, g] = host;
    let [ni, nj, nc] = [x, y, g].map(|operand| operand.shape()[1]);
    let (mut worst, mut largest) = (0f64, 0f64);
    for (path, element) in (0..couplings.paths().len()).flat_map(|p| (0..8).map(move |e| (p, e))) {
        let (u, w) = (element * 4, 31 - element * 3);
        let mut sum = 0.0;
        for (at, value) in entries.values().iter().enumerate() {
            let [i, j, row] = [0, 1, 2].map(|axis| entries.pattern().coords()[axis][at] as usize);
            if paths[row] as usize != path {
                continue;
            }
            for item in 0..ITEMS {
                let left = x.values()[(item * ni + i) * 32 + u] * y.values()[item * nj + j];
                let right = g.values()[(item * nc + places[row] as usize) * 32 + w];
                sum += value * f64::from(left) * f64::from(right);
            }
        }
        let found = f64::from(found.values()[(path * 32 + u) * 32 + w]);
        largest = largest.max(sum.abs());
        worst = worse(worst, (found - sum).abs());
    }
    Ok(worst / largest)
}

/// First or last items of a tensor.
fn slice(dense: &Dense<f32>, items: usize, last: bool) -> Result<Dense<f32>> {
    let mut shape = dense.shape().to_vec();
    let each = dense.values().len() / shape[0];
    let first = if last { shape[0] - items } else { 0 };
    shape[0] = items;
    let part = &dense.values()[first * each..(first + items) * each];
    Ok(Dense::new(shape, part.to_vec())?)
}
