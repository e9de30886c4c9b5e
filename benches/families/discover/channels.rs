//! Dynamic detection and packing of nonempty channels of activations and filters of weights (PIT, arXiv 2301.10936):
//! both kernels in one captured run.
//!
//! `m` is the rows of all items, `k` the columns, `nnz` the elements of the nonempty columns; the rate counts A once.

use crate::families::gather_gemm::micro::EMPTY;
use crate::prelude::*;
use einsparse::dynamic::ChannelDetector;

pub const OP: &str = "channels";

/// Items, rows and columns: activations of a residual network of 50 layers with 32 images, and 3 x 3 weights.
const CASES: [(&str, [usize; 3]); 6] = [
    ("A-32x56x56x64", [32, 56 * 56, 64]),
    ("A-32x28x28x128", [32, 28 * 28, 128]),
    ("A-32x14x14x256", [32, 14 * 14, 256]),
    ("A-32x7x7x512", [32, 7 * 7, 512]),
    ("B-3x3x256x256", [1, 3 * 3 * 256, 256]),
    ("B-3x3x512x512", [1, 3 * 3 * 512, 512]),
];

/// Measures every case and every share of empty columns of an item, in f16.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (name, shape) in CASES {
        for empty in EMPTY {
            detected(&bench.anew()?, (name, shape), empty)?;
        }
    }
    Ok(())
}

/// Lists of nonempty columns, and elements. One in eight elements of a listed column is zero, so every nonempty column
/// has a nonzero.
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

fn right(
    detector: &ChannelDetector<f16>,
    [_, rows, columns]: [usize; 3],
    lists: &[Vec<u32>],
    values: &[f16],
) -> Result<bool> {
    if detector.index().to_lists()? != lists {
        return Ok(false);
    }
    let packed = detector.packed()?;
    let lines = packed.chunks(detector.index().stride());
    Ok(lines.enumerate().all(|(row, line)| {
        let list = &lists[row / rows];
        let own = &values[row * columns..][..columns];
        let filled = list.len().next_multiple_of(64);
        list.iter().zip(line).all(|(&c, &x)| x == own[c as usize])
            && line[list.len()..filled].iter().all(|&x| x == f16::ZERO)
    }))
}

fn detected(bench: &Bench<'_>, (name, shape): (&str, [usize; 3]), empty: u32) -> Result<()> {
    let stream = &bench.stream;
    let [items, rows, columns] = shape;
    let (lists, values) = sample(shape, empty);
    let a = bench.tensor(&shape, values.clone())?;
    let mut detector = ChannelDetector::<f16>::new(&bench.context, shape, 0.0)?;
    let times = bench.in_a_graph(|| Ok(detector.run(&a, stream)?))?;
    let captured = right(&detector, shape, &lists, &values)?;
    // An empty matrix overwrites the results of earlier runs, so that the next check cannot pass by accident.
    let nothing = bench.zeros::<f16>(&shape)?;
    detector.run(&nothing, stream)?;
    let launched = bench.measure(|| detector.run(&a, stream))?;
    let right = captured && right(&detector, shape, &lists, &values)?;
    let workload = format!("{name}-e{}", f64::from(empty) / 100.0);
    let nnz = rows * lists.iter().map(Vec::len).sum::<usize>();
    let row = Row::new(OP, workload, [items * rows, columns, 0], nnz, Dtype::F16)
        .ours(detector.variants()[1])
        .timed(&times)
        .bytes((items * rows * columns * size_of::<f16>()) as f64)
        .note(format!(
            "{empty} % of (item, column) empty; a captured graph, as two launches {:.1} us cold, {:.1} warm",
            launched.cold * 1e3,
            launched.warm * 1e3,
        ));
    bench.add(row.error(exact(right)))
}
