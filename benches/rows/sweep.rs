//! Choices of plans by prediction alone, over a grid of products, on an H200 and on a machine like an A100, without
//! wgmma. The record has one line per row and machine, with the first problem that selects the row.

use super::{Line, Rows};
use crate::device::Result;
use einsparse::cost::{Machine, Work};
use einsparse::formats::Format;
use einsparse::indirect::Orientation;
use einsparse::plan::Problem;
use einsparse::plan::{Samples, predict_samples};
use einsparse::registry::{Dtype, Operation, kernels};
use einsparse::{Options, Precision};
use rayon::prelude::*;
use std::collections::BTreeMap;

const EXTENTS: [usize; 5] = [64, 512, 2048, 8192, 131_072];
const COLUMNS: [usize; 13] = [1, 2, 8, 16, 32, 48, 64, 100, 128, 256, 512, 1024, 8192];
const DENSITIES: [f64; 6] = [1.0, 0.5, 0.2, 0.05, 0.01, 5e-4];
/// Ratio of the longest row to the mean row.
const SKEWS: [f64; 2] = [1.0, 50.0];
/// Alignment of rows, and items of a batch.
const OTHERS: [(usize, usize); 4] = [(1, 1), (2, 1), (4, 1), (16, 8)];

/// Selected rows: count, and prediction and name of the first problem.
type Chosen = BTreeMap<&'static str, (usize, f64, String)>;

pub fn run(rows: &mut Rows<'_>) -> Result<()> {
    let a100 = Machine::scaled(108, 1_410_000, 2.0e12, 40 << 20);
    for (operation, machine) in [("sweep-h200", Machine::H200), ("sweep-a100", a100)] {
        rows.group(operation, operation, |rows| {
            let mut chosen = Chosen::new();
            products(&machine, &mut chosen);
            samples(&machine, &mut chosen);
            for (row, (count, us, case)) in chosen {
                rows.line(&Line {
                    row,
                    family: einsparse::registry::find(row).map_or("", |row| row.module),
                    chosen: 1,
                    predicted_us: Some(us),
                    outcome: &format!("chosen {count} times"),
                    ..Line::new(operation, &case)
                })?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn note(chosen: &mut Chosen, row: &'static str, us: f64, case: impl FnOnce() -> String) {
    chosen.entry(row).or_insert_with(|| (0, us, case())).0 += 1;
}

/// Formats, with the block sizes that kernels support.
fn formats() -> Vec<(Option<Format>, (usize, usize))> {
    let single = [
        Format::Csr,
        Format::GroupCoo { axis: 0, group: Some(8) },
        Format::HybridGroupCoo,
        Format::SlicedEll,
        Format::Bitmap,
        Format::Bytemap,
        Format::Nm { n: 2, m: 4 },
    ];
    let blocks =
        [(16, 16), (32, 32), (64, 64), (128, 128), (64, 32), (16, 32), (64, 1), (32, 1), (1, 64)];
    let single = single.map(|format| (Some(format), (1, 1)));
    let blocks = blocks.map(|block| (Some(Format::Bsr { block }), block));
    let mut all: Vec<_> = single.into_iter().chain(blocks).collect();
    all.push((None, (1, 1)));
    all
}

fn products(machine: &Machine, chosen: &mut Chosen) {
    let types = [
        (Dtype::F32, Precision::Full),
        (Dtype::F32, Precision::Tf32),
        (Dtype::F64, Precision::Full),
        (Dtype::F16, Precision::Full),
        (Dtype::Bf16, Precision::Full),
        (Dtype::Int8, Precision::Full),
        (Dtype::E4m3, Precision::Full),
        (Dtype::E5m2, Precision::Full),
    ];
    let formats = formats();
    let asked = types.iter().flat_map(|asked| formats.iter().map(move |format| (asked, format)));
    let asked: Vec<_> = asked.collect();
    let found = asked.par_iter().map(|&(asked, &(format, block))| {
        let mut chosen = Chosen::new();
        for m in EXTENTS {
            for k in EXTENTS {
                for n in COLUMNS {
                    for density in DENSITIES {
                        let shape = (format, block, [m, k, n], density);
                        product(machine, &mut chosen, *asked, shape);
                    }
                }
            }
        }
        chosen
    });
    for (row, (count, us, case)) in found.collect::<Vec<_>>().into_iter().flatten() {
        chosen.entry(row).or_insert((0, us, case)).0 += count;
    }
}

/// A format, its block, `[m, k, n]`, and the density.
type Shape = (Option<Format>, (usize, usize), [usize; 3], f64);

fn product(
    machine: &Machine,
    chosen: &mut Chosen,
    (dtype, precision): (Dtype, Precision),
    (format, block, [m, k, n], density): Shape,
) {
    let mean = density * k as f64;
    if mean * (m as f64) < 1.0 || mean * m as f64 > 2e9 || (format.is_none() && density < 1.0) {
        return;
    }
    let entries = match format {
        Some(Format::Nm { .. }) => (m * k / 2) as u64,
        _ => (mean * m as f64) as u64,
    };
    let slots = entries / (block.0 * block.1) as u64;
    let options = Options { precision, ..Options::default() };
    let narrow = [Dtype::Int8, Dtype::E4m3, Dtype::E5m2].contains(&dtype);
    let out = match dtype {
        Dtype::Int8 => Dtype::Int32,
        _ if narrow => Dtype::F16,
        own => own,
    };
    for skew in SKEWS {
        let in_row = (mean * skew).clamp(1.0, k as f64) / block.1 as f64;
        let work = Work {
            m,
            k,
            n,
            entries,
            index_slots: slots,
            longest: in_row.ceil() as u64,
            fullest: 0,
            // Assumes one nonzero per column of eight rows.
            steps: (slots.div_ceil(8).max(1), slots),
            block,
            items: 1,
            accumulate: false,
        };
        let work = if format.is_some() { work } else { work.all_stored(dtype) };
        let plain = Problem::contiguous(format, work, dtype);
        let plain = Problem { out, ..plain };
        let orders = [false, true].into_iter().flat_map(|transposed| {
            let others = [(false, false), (true, false), (true, true)];
            others.map(|(dense_columns, out_columns)| Orientation {
                transposed,
                dense_columns,
                out_columns,
            })
        });
        let aligned = orders.map(|order| (order, 16, 1));
        let others = OTHERS.map(|(alignment, items)| (Orientation::default(), alignment, items));
        for (order, alignment, items) in aligned.chain(others) {
            let problem = Problem {
                order,
                work: Work { items, ..plain.work },
                alignment: plain.alignment.min(alignment),
                b_alignment: plain.b_alignment.min(alignment),
                ..plain
            };
            let choice = problem.candidates(machine, &options);
            let Some(first) = choice.candidates.first() else {
                continue;
            };
            note(chosen, first.name, first.cost.us, || {
                let format = format.map_or("dense".into(), |f| f.to_string());
                let dtype = dtype.name();
                format!(
                    "{format} {dtype} {m}x{k}x{n} d{density} skew {skew} aligned {alignment} x{items} {order}"
                )
            });
        }
    }
}

/// Predicts SDDMM over unstructured patterns.
fn samples(machine: &Machine, chosen: &mut Chosen) {
    for dtype in [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
        for m in EXTENTS {
            for density in DENSITIES {
                for k in
                    [1, 8, 16, 32, 33, 48, 64, 96, 100, 128, 192, 256, 384, 512, 768, 1000, 2048]
                {
                    let entries = (m as f64 * m as f64 * density) as u64;
                    if entries == 0 || entries > 1 << 31 {
                        continue;
                    }
                    let work =
                        Samples { m, n: m, k, entries, index_slots: entries, chunks: 0, passes: 1 };
                    let rows = kernels().iter().filter(|row| {
                        [Operation::Sampled, Operation::SampledNarrow].contains(&row.operation)
                            && row.dtype == dtype
                            && row.module.starts_with("sddmm")
                            && row.runs_on((8, 0))
                            && k.is_multiple_of(row.vector as usize)
                    });
                    let us =
                        |row: &einsparse::registry::Row| predict_samples(row, &work, machine).us;
                    let best = rows.min_by(|a, b| us(a).total_cmp(&us(b)));
                    if let Some(row) = best {
                        note(chosen, row.name, us(row), || {
                            format!("sddmm {} {m} d{density} k{k}", dtype.name())
                        });
                    }
                }
            }
        }
    }
}
