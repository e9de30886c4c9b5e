//! The models of `examples/models`, each beside its dense twin, and cuBLAS on the dense products of some. `prepared_bytes` is what a model holds of the device.

#[path = "../../examples/models/all.rs"]
mod all;

use crate::prelude::*;
use all::MODELS;
use all::common::{self, Measured, Products, Run};
use einsparse::Error;
use einsparse::formats::generate;

pub const OP: &str = "models";

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &(name, model) in MODELS
        .iter()
        .filter(|(name, _)| bench.arguments.named(name))
    {
        let bench = bench.anew()?;
        let timer = |work: &mut dyn FnMut(&einsparse::Stream) -> einsparse::Result<()>| {
            let times = bench.in_a_graph(|| Ok(work(&bench.stream)?));
            let times = times.map_err(|reason| Error::Cuda {
                call: name.into(),
                reason: reason.to_string(),
            })?;
            Ok(common::Times {
                warm: times.warm,
                cold: Some(times.cold),
            })
        };
        let run = Run {
            context: bench.context.clone(),
            timer: Some(&timer),
            ..Run::default()
        };
        model(&run)?;
        for row in run.rows.take() {
            record(&bench, &row)?;
        }
        for products in run.products.take() {
            cublas(&bench, &products)?;
        }
    }
    Ok(())
}

/// The dense products of a case by cuBLAS, each with weights of its own, and nothing between them.
fn cublas(bench: &Bench<'_>, (case, name, products): &Products) -> Result<()> {
    let dtype = match *name {
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        other => return Err(format!("{case}: products in {other}").into()),
    };
    let Ok(peer) = CuBlas::open(bench.gpu, false) else {
        return Ok(());
    };
    let most = |of: fn(&[usize; 3]) -> usize| products.iter().map(of).max().unwrap_or(0);
    // Standard normal where it is read: zeros would save power.
    let longest = most(|[rows, inputs, outputs]| inputs * rows.max(outputs));
    let values: Vec<u16> = match dtype {
        Dtype::F16 => {
            let values = generate::random_values::<f16>(longest, 1);
            values.iter().map(|x| x.to_bits()).collect()
        }
        _ => {
            let values = generate::random_values::<bf16>(longest, 1);
            values.iter().map(|x| x.to_bits()).collect()
        }
    };
    let random = |len: usize| Buffer::from_slice(&values[..len]);
    let x = random(most(|[rows, inputs, _]| rows * inputs))?;
    let y = Buffer::new(2 * most(|[rows, _, outputs]| rows * outputs))?;
    let weights: Vec<Buffer> = (products.iter())
        .map(|[_, inputs, outputs]| random(inputs * outputs))
        .collect::<Result<_>>()?;
    let times = bench.in_a_graph(|| {
        let all = products.iter().zip(&weights);
        for (extents, weights) in all {
            peer.gemm(dtype, *extents, [x.ptr, weights.ptr, y.ptr])?;
        }
        Ok(())
    })?;
    let row = Row::new(OP, case, [0; 3], 0, name).timed(&times);
    let what = format!("{} dense products", products.len());
    bench.add(row.by("cublas", what).note("a CUDA graph, products alone"))
}

fn record(bench: &Bench<'_>, measured: &Measured) -> Result<()> {
    let row = |times: &common::Times| {
        let times = Times {
            cold: times.cold.unwrap_or(times.warm),
            warm: times.warm,
            host_inside: false,
        };
        Row::new(OP, &measured.case, [0; 3], 0, measured.dtype).timed(&times)
    };
    let (work, unit) = measured.work;
    let rate = work / measured.times.warm * 1e3;
    let error = measured.error.map(|e| format!("; largest error {e:.1e}"));
    let note = format!(
        "a CUDA graph; {rate:.3e} {unit} a second, warm{}; {}",
        error.unwrap_or_default(),
        measured.note
    );
    let held = measured.held.map(|bytes| bytes as usize);
    bench.add(
        row(&measured.times)
            .ours("auto")
            .prepared(None, held)
            .note(note),
    )?;
    match &measured.twin {
        Some((name, times)) => bench.add(row(times).by("twin", name.clone()).note("a CUDA graph")),
        None => Ok(()),
    }
}
