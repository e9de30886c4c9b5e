//! Models of `examples/models`. Baselines are dense versions of the models, cuBLAS on the dense products of some, and
//! PyTorch on the whole model. `prepared_bytes` is the device memory of a model.

#[path = "../../examples/models/all.rs"]
pub mod all;

use crate::case::Values;
use crate::peers::torch;
use crate::prelude::*;
use all::MODELS;
use all::common::{self, Lists, Measured, Products, Run};
use einsparse::Error;
use std::path::PathBuf;
use std::{env, fs, process};

pub const OP: &str = "models";

/// Models without a PyTorch baseline: sparse convolutions, products of equivariant features.
const OURS_ALONE: [&str; 2] = ["force_field", "point_cloud"];

/// Request to PyTorch: a case, its type, and files of the case's lists.
type Asked = (String, &'static str, Vec<PathBuf>);

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let mut asked: Vec<Asked> = Vec::new();
    for &(name, model) in MODELS.iter().filter(|(name, _)| bench.arguments.named(name)) {
        let bench = bench.anew()?;
        let timer = |work: &mut dyn FnMut(&einsparse::Stream) -> einsparse::Result<()>| {
            let times = bench.in_a_graph(|| Ok(work(&bench.stream)?));
            let times = times.map_err(|reason| Error::Cuda {
                call: name.into(),
                code: None,
                reason: reason.to_string(),
            })?;
            Ok(common::Times { warm: times.warm, cold: Some(times.cold) })
        };
        let run = Run { context: bench.context.clone(), timer: Some(&timer), ..Run::default() };
        model(&run)?;
        let rows = run.rows.take();
        for row in &rows {
            record(&bench, row)?;
        }
        for products in run.products.take() {
            cublas(&bench, &products)?;
        }
        if OURS_ALONE.contains(&name) {
            println!("engine torch left out: PyTorch has no peer of {name}");
        } else if bench.arguments.wants_engine("torch") {
            asked.extend(in_files(rows, run.lists.take())?);
        }
    }
    let done = in_torch(bench, &asked);
    let files = asked.iter().flat_map(|(.., files)| files);
    files.for_each(|file| drop(fs::remove_file(file)));
    done
}

/// Cases with their lists, written to files of 32-bit numbers. A list belongs to the cases whose name begins with its
/// name.
fn in_files(rows: Vec<Measured>, lists: Vec<Lists>) -> Result<Vec<Asked>> {
    let mut named = Vec::new();
    for (case, lists) in lists {
        let files: Vec<PathBuf> = (0..lists.len())
            .map(|at| {
                let name: String = case.chars().filter(char::is_ascii_alphanumeric).collect();
                env::temp_dir().join(format!("einsparse-{}-{name}-{at}.bin", process::id()))
            })
            .collect();
        for (file, list) in files.iter().zip(&lists) {
            let bytes: Vec<u8> = list.iter().flat_map(|x| x.to_ne_bytes()).collect();
            fs::write(file, bytes).map_err(|reason| format!("{}: {reason}", file.display()))?;
        }
        named.push((case, files));
    }
    let of = |row: Measured| {
        let own = named.iter().find(|(case, _)| row.case.starts_with(case));
        let files = own.map_or(Vec::new(), |(_, files)| files.clone());
        (row.case, row.dtype, files)
    };
    Ok(rows.into_iter().map(of).collect())
}

/// Measures PyTorch's fastest variant of each case. All cases run in one process, because the start of PyTorch's
/// compiler takes most of the time.
fn in_torch(bench: &Bench<'_>, asked: &[Asked]) -> Result<()> {
    if asked.is_empty() {
        return Ok(());
    }
    let cases = asked.iter().map(|case| {
        let (case, dtype, files) = case;
        // The baseline requests TF32 in f32.
        let dtype = dtype.trim_start_matches('t');
        format!("[{case:?}, {dtype:?}, {files:?}]")
    });
    let found = torch::models(&format!("[{}]", cases.collect::<Vec<_>>().join(", ")));
    for (at, (case, dtype, _)) in asked.iter().enumerate() {
        let own = found.iter().filter_map(|(name, times)| {
            let (numbers, variant) = name.split_once(':')?;
            let mut numbers = numbers.split(',');
            let own = numbers.any(|number| number == at.to_string());
            own.then(|| (variant.to_owned(), *times))
        });
        if let Some((variant, times)) = torch::fastest(own.collect()) {
            let row = Row::new(OP, case, [0; 3], 0, dtype).timed(&times).by("torch", variant);
            bench.add(row.note("a CUDA graph of the whole model, weights and data random"))?;
        }
    }
    Ok(())
}

/// Times the dense products of a case by cuBLAS, each with separate weights, without other operations.
fn cublas(bench: &Bench<'_>, (case, name, products): &Products) -> Result<()> {
    let dtype = match *name {
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        other => return Err(format!("{case}: products in {other}").into()),
    };
    let Some(peer) = bench.cublas(false) else {
        return Ok(());
    };
    let most = |of: fn(&[usize; 3]) -> usize| products.iter().map(of).max().unwrap_or(0);
    // Operands are random values, because products of zeros use less power.
    let longest = most(|[rows, inputs, outputs]| inputs * rows.max(outputs));
    let random = Values::new(dtype);
    let x = random.upload(longest, 0)?;
    let y = Buffer::new(2 * most(|[rows, _, outputs]| rows * outputs))?;
    let weights: Vec<Buffer> = (products.iter())
        .map(|[_, inputs, outputs]| random.upload(inputs * outputs, 77))
        .collect::<Result<_>>()?;
    let times = bench.in_a_graph(|| {
        products.iter().zip(&weights).try_for_each(|(extents, weights)| {
            peer.gemm(dtype, *extents, [x.ptr, weights.ptr, y.ptr], Order::Rows)
        })
    })?;
    let row = Row::new(OP, case, [0; 3], 0, name).timed(&times);
    let what = format!("{} dense products", products.len());
    bench.add(row.by("cublas", what).note("a CUDA graph, products alone"))
}

fn record(bench: &Bench<'_>, measured: &Measured) -> Result<()> {
    let row = |times: &common::Times| {
        let times =
            Times { cold: times.cold.unwrap_or(times.warm), warm: times.warm, host_inside: false };
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
    bench.add(row(&measured.times).ours("auto").prepared(None, held).note(note))?;
    match &measured.twin {
        Some((name, times)) => bench.add(row(times).by("twin", name.clone()).note("a CUDA graph")),
        None => Ok(()),
    }
}
