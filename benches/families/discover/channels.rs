//! Channels of activations and filters of weights that hold something, found and packed while running (PIT, arXiv 2301.10936): both
//! kernels in one captured run.
//!
//! `m` are the rows of all items, `k` the columns, `nnz` the elements of the columns that are not empty; the rate counts A once.

use crate::device::{Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{stream, text};
use crate::layers::encoder::in_a_graph;
use crate::problems::SEED;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::Context;
use einsparse::dynamic::ChannelDetector;
use einsparse::formats::{Dense, f16};
use rand::{Rng, SeedableRng, rngs::StdRng};

pub const OP: &str = "channels";

/// Items, rows and columns: activations of a residual network of 50 layers, 32 images, and 3 x 3 weights.
const CASES: [(&str, [usize; 3]); 6] = [
    ("A-32x56x56x64", [32, 56 * 56, 64]),
    ("A-32x28x28x128", [32, 28 * 28, 128]),
    ("A-32x14x14x256", [32, 14 * 14, 256]),
    ("A-32x7x7x512", [32, 7 * 7, 512]),
    ("B-3x3x256x256", [1, 3 * 3 * 256, 256]),
    ("B-3x3x512x512", [1, 3 * 3 * 512, 512]),
];
/// Shares of the columns of an item that are empty, in percent.
const EMPTY: [u32; 4] = [0, 50, 90, 95];

/// Every case and share, f16.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    for (name, shape) in CASES {
        for empty in EMPTY {
            detected(gpu, effort, recorder, (name, shape), empty)?;
        }
    }
    Ok(())
}

/// The lists, and elements of which one in eight is zero in the columns that are listed: every column that is not empty has one.
fn sample([items, rows, columns]: [usize; 3], empty: u32) -> (Vec<Vec<u32>>, Vec<f16>) {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut values = vec![f16::ZERO; items * rows * columns];
    let lists: Vec<Vec<u32>> = (0..items)
        .map(|_| {
            let full = |_: &u32| rng.random_range(0..100) >= empty;
            (0..columns as u32).filter(full).collect()
        })
        .collect();
    for (item, list) in lists.iter().enumerate() {
        for row in 0..rows {
            for &column in list {
                let at = (item * rows + row) * columns + column as usize;
                if row == 0 || rng.random_range(0..8) > 0 {
                    values[at] = f16::from_f32(rng.random_range(0.01..1.73));
                }
            }
        }
    }
    (lists, values)
}

/// Whether lists and values are as they should be.
fn right(
    detector: &ChannelDetector<f16>,
    [_, rows, columns]: [usize; 3],
    lists: &[Vec<u32>],
    values: &[f16],
) -> Result<bool> {
    if detector.index().to_lists().map_err(text)? != lists {
        return Ok(false);
    }
    let packed = detector.packed().map_err(text)?;
    let lines = packed.chunks(detector.index().stride());
    Ok(lines.enumerate().all(|(row, line)| {
        let list = &lists[row / rows];
        let own = &values[row * columns..][..columns];
        let filled = list.len().next_multiple_of(64);
        list.iter().zip(line).all(|(&c, &x)| x == own[c as usize])
            && line[list.len()..filled].iter().all(|&x| x == f16::ZERO)
    }))
}

fn detected(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (name, shape): (&str, [usize; 3]),
    empty: u32,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let stream = stream(gpu);
    let [items, rows, columns] = shape;
    let (lists, values) = sample(shape, empty);
    let dense = Dense::new([items, rows, columns], values).map_err(text)?;
    let a = context.upload_dense(&dense).map_err(text)?;
    let mut detector = ChannelDetector::<f16>::new(&context, shape, 0.0).map_err(text)?;
    let times = in_a_graph(gpu, effort, &stream, &mut || {
        detector.run(&a, &stream).map_err(text)
    })?;
    let captured = right(&detector, shape, &lists, dense.values())?;
    // Nothing of the runs before is left to look right.
    let nothing = context.zeros::<f16>(&shape).map_err(text)?;
    detector.run(&nothing, &stream).map_err(text)?;
    let launched = measure(gpu, effort, &mut || detector.run(&a, &stream).map_err(text))?;
    let right = captured && right(&detector, shape, &lists, dense.values())?;
    let bytes = items * rows * columns * size_of::<f16>();
    recorder.add(Row {
        op: OP.into(),
        workload: format!("{name}-e{}", f64::from(empty) / 100.0),
        m: items * rows,
        k: columns,
        nnz: rows * lists.iter().map(Vec::len).sum::<usize>(),
        dtype: "f16".into(),
        engine: "einsparse".into(),
        variant: detector.variants()[1].into(),
        ms: if right { times.cold } else { f64::NAN },
        ms_warm: Some(times.warm),
        gbps: Some(bytes as f64 / times.cold / 1e6),
        note: format!(
            "{}{empty} % of (item, column) empty; a captured graph, as two launches {:.1} us cold, {:.1} warm",
            if right { "" } else { "WRONG: " },
            launched.cold * 1e3,
            launched.warm * 1e3,
        ),
        ..Row::default()
    })
}
