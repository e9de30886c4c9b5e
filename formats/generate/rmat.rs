//! R-MAT graphs (Chakrabarti, Zhan, Faloutsos, SDM 2004) with the probabilities of Graph500.

use super::random::{Purpose, Stream};
use crate::error::*;
use crate::{CsrPattern, allocate, check};
use rayon::prelude::*;

/// Edges that share a stream.
const PIECE: usize = 1 << 16;
/// Probabilities .57, .19, .19, .05 of 2^16, as the ends of their intervals.
const ENDS: [u32; 3] = [37_356, 37_356 + 12_452, 37_356 + 2 * 12_452];

/// Returns a directed graph of `2^scale` vertices and `edge_factor * 2^scale` drawn edges. Duplicate edges are merged.
/// Vertices are not renumbered, so rows with many entries come first.
///
/// ```
/// let graph = einsparse_formats::generate::rmat(10, 8, 1)?;
/// assert_eq!(graph.rows(), 1024);
/// assert!(graph.columns().len() <= 8 * 1024);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns [`FormatError::Overflow`] for a scale over 31 or more than 2^32 - 1 drawn edges.
pub fn rmat(scale: u32, edge_factor: usize, seed: u64) -> Result<CsrPattern> {
    check::at_most("scale", scale.into(), 31)?;
    let rows = 1_usize << scale;
    let drawn = check::fits("drawn edges", rows as u128 * edge_factor as u128)?;
    allocate::extent("rows", rows as u128, 4, 12 * drawn as u64)?;
    let mut edges: Vec<u64> = check::zeroed("edges", drawn)?;
    <[u64]>::par_chunks_mut(&mut edges, PIECE).enumerate().for_each(|(piece, edges)| {
        let mut stream = Stream::new(seed, Purpose::Rmat, piece);
        edges.iter_mut().for_each(|edge| *edge = draw(&mut stream, scale));
    });
    edges.par_sort_unstable();
    edges.dedup();
    let offsets = (0..rows + 1)
        .into_par_iter()
        .with_min_len(1 << 12)
        .map(|row| edges.partition_point(|edge| (edge >> 32) < row as u64) as u32)
        .collect();
    let columns = edges.par_iter().map(|edge| *edge as u32).collect();
    CsrPattern::new(rows, rows, offsets, columns)
}

/// Draws one edge, `row << 32 | column`. Each level draws a quadrant, one bit of each, from 16 random bits.
fn draw(stream: &mut Stream, scale: u32) -> u64 {
    let (mut row, mut col) = (0_u64, 0_u64);
    let mut word = 0;
    for level in 0..scale {
        if level % 4 == 0 {
            word = stream.word();
        }
        let bits = word as u32 & 0xffff;
        word >>= 16;
        let past = ENDS.map(|end| u64::from(bits >= end));
        row = row << 1 | past[1];
        // Quadrants 1 and 3 are the right half.
        col = col << 1 | (past[0] ^ past[1] ^ past[2]);
    }
    row << 32 | col
}
