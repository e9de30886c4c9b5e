//! Random streams, and the values and patterns drawn from them.

use crate::error::*;
use crate::parallel;
use crate::{CsrPattern, Element, allocate, check};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Purpose of a stream. Generators with the same seed are independent because their purposes differ.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Normal = 1,
    Integers,
    Rmat,
    Uniform,
    UniformRows,
    Blocks,
    PrunedLengths,
    PrunedColumns,
}

/// A random stream.
pub(super) struct Stream(ChaCha8Rng);

impl Stream {
    pub(super) fn new(seed: u64, purpose: Purpose, piece: usize) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = purpose as u8;
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(piece as u64);
        Self(rng)
    }

    pub(super) fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform number in (0, 1].
    pub(super) fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform number below `bound`, with a bias of at most 2^-32 of `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u64::from(self.0.next_u32()) * bound as u64) >> 32) as usize
    }

    /// Two independent standard normal numbers, by Marsaglia's polar method.
    pub(super) fn normals(&mut self) -> [f64; 2] {
        loop {
            let [x, y] = [2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0];
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * libm::log(square) / square).sqrt();
                return [x * factor, y * factor];
            }
        }
    }

    /// Appends `count` distinct numbers below `bound` in ascending order. All such sets are equally likely.
    pub(super) fn distinct(&mut self, count: usize, bound: usize, out: &mut Vec<u32>) {
        let start = out.len();
        if count > bound / 4 {
            let mut wanted = count;
            for (at, left) in (1..=bound).rev().enumerate() {
                if self.below(left) < wanted {
                    out.push(at as u32);
                    wanted -= 1;
                }
            }
            return;
        }
        let mut set = Vec::with_capacity(count);
        while set.len() < count {
            let missing = count - set.len();
            set.extend((0..missing).map(|_| self.below(bound) as u32));
            set.sort_unstable();
            set.dedup();
        }
        out.extend_from_slice(&set);
        debug_assert_eq!(out.len() - start, count);
    }
}

const PIECE: usize = 1 << 14;

/// Returns `n` standard normal values, rounded to `T`.
pub fn random_values<T: Element>(n: usize, seed: u64) -> Vec<T> {
    let mut values = vec![T::ZERO; n];
    parallel::chunks(&mut values, PIECE, &|piece, values: &mut [T]| {
        let mut stream = Stream::new(seed, Purpose::Normal, piece);
        for pair in values.chunks_mut(2) {
            let normals = stream.normals();
            pair.iter_mut().zip(normals).for_each(|(value, normal)| *value = T::from_f64(normal));
        }
    });
    values
}

/// Returns `n` values from -2, -1, 1 and 2. Their products and sums are exact in every element type and in any order as
/// long as the sums stay small (256 for bf16, 2048 for f16). No value is zero, so a missing term changes the sum.
pub fn small_integers<T: Element>(n: usize, seed: u64) -> Vec<T> {
    const CHOICE: [f64; 4] = [-2.0, -1.0, 1.0, 2.0];
    let mut values = vec![T::ZERO; n];
    parallel::chunks(&mut values, PIECE, &|piece, values: &mut [T]| {
        let mut stream = Stream::new(seed, Purpose::Integers, piece);
        for part in values.chunks_mut(32) {
            let word = stream.word();
            part.iter_mut().enumerate().for_each(|(at, value)| {
                *value = T::from_f64(CHOICE[(word >> (2 * at)) as usize & 3]);
            });
        }
    });
    values
}

/// Rows that share a stream.
const ROWS: usize = 1 << 10;

/// Builds a pattern row by row: `row` appends the ascending columns of the given row.
pub(super) fn by_rows(
    rows: usize,
    cols: usize,
    expected: u64,
    (seed, purpose): (u64, Purpose),
    row: impl Fn(usize, &mut Stream, &mut Vec<u32>) + Sync,
) -> Result<CsrPattern> {
    check::matrix(rows, cols)?;
    // Twelve bytes per entry: COO in f32.
    allocate::extent("rows", rows as u128, 8, expected.saturating_mul(12))?;
    let pieces: Vec<(Vec<u32>, Vec<u32>)> = parallel::collect(rows.div_ceil(ROWS), 1, &|piece| {
        let mut stream = Stream::new(seed, purpose, piece);
        let (mut lengths, mut columns) = (Vec::with_capacity(ROWS), Vec::new());
        for index in piece * ROWS..rows.min((piece + 1) * ROWS) {
            let start = columns.len();
            row(index, &mut stream, &mut columns);
            lengths.push((columns.len() - start) as u32);
        }
        (lengths, columns)
    });
    let nnz: u128 = pieces.iter().map(|(_, columns)| columns.len() as u128).sum();
    let nnz = check::fits("entries", nnz)?;
    let mut offsets = check::reserved("offsets", rows + 1)?;
    let mut columns = check::reserved("columns", nnz)?;
    offsets.push(0);
    let mut end = 0;
    for (lengths, part) in pieces {
        offsets.extend(lengths.iter().map(|length| {
            end += length;
            end
        }));
        columns.extend_from_slice(&part);
    }
    CsrPattern::new(rows, cols, offsets, columns)
}
