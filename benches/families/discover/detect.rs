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
            let workload = format!("detect-{EXTENT}-{}x{}", micro.0, micro.1);
            let nnz = full * micro.0 * micro.1;
            bench.checked(
                Row::new(OP, workload, [EXTENT, EXTENT, 0], nnz, T::DTYPE.name())
                    .ours(detector.variant())
                    .bytes((EXTENT * EXTENT * size_of::<T>()) as f64)
                    .note(format!("{empty} % empty, {said}")),
                &mut detector.index()?,
                |index| detector.run(&matrix, index, &bench.stream),
                |index| Ok(exact(index.counts()?.iter().sum::<u32>() as usize == full)),
            )?;
        }
    }
    Ok(())
}
