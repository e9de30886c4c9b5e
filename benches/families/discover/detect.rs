//! Dynamic detection of micro-tiles in a dense matrix (PIT, arXiv 2301.10936).
//!
//! `nnz` is the elements of the nonempty micro-tiles; the rate counts the matrix once.

use crate::families::gather_gemm::micro::{EXTENT, sample};
use crate::prelude::*;
use einsparse::Determinism;
use einsparse::dynamic::{DetectOptions, Detector};

pub const OP: &str = "detect";

/// Measures every shape of micro-tiles in f16 and f32.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for micro in [(32, 1), (1, 32), (16, 16), (64, 1), (128, 1), (1, 64)] {
        detected::<f16>(&bench.anew()?, micro)?;
        detected::<f32>(&bench.anew()?, micro)?;
    }
    Ok(())
}

fn detected<T: Scalar>(bench: &Bench<'_>, micro: (usize, usize)) -> Result<()> {
    for empty in [90, 0] {
        let (dense, full) = sample::<T>(micro, empty)?;
        let matrix = bench.upload(&dense)?;
        for (determinism, said) in
            [(Determinism::Strict, "lists in order"), (Determinism::Relaxed, "lists in any order")]
        {
            let options = DetectOptions { determinism, ..DetectOptions::default() };
            let detector = Detector::<T>::new(&bench.context, [EXTENT; 2], micro, &options)?;
            let mut index = detector.index()?;
            let times = bench.measure(|| detector.run(&matrix, &mut index, &bench.stream))?;
            let found: u32 = index.counts()?.iter().sum();
            let workload = format!("detect-{EXTENT}-{}x{}", micro.0, micro.1);
            let nnz = full * micro.0 * micro.1;
            let row = Row::new(OP, workload, [EXTENT, EXTENT, 0], nnz, T::DTYPE.name())
                .ours(detector.variant())
                .timed(&times)
                .bytes((EXTENT * EXTENT * size_of::<T>()) as f64);
            let note = format!("{empty} % empty, {said}");
            bench.add(row.judged(found as usize == full, note))?;
        }
    }
    Ok(())
}
