//! The models of `examples/models`, each beside its dense twin. `prepared_bytes` is what a model holds of the device.

#[path = "../../examples/models/all.rs"]
mod all;

use crate::prelude::*;
use all::MODELS;
use all::common::{self, Measured, Run};
use einsparse::Error;

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
    }
    Ok(())
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
