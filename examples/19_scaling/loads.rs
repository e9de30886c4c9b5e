//! Rows that ranks multiply and send, counted in the pattern.

use einsparse::formats::{CsrPattern, FormatError, Permutation, generate};
use einsparse::group::Partition;

/// Rows of B exchanged with ranks of the same host, and over the network.
pub type Rows = [f64; 2];

#[derive(Clone, Default)]
pub struct Load {
    /// Rows of B and C that the product reads and writes, and those of C alone.
    pub product: f64,
    pub c: f64,
    /// Received: all of B, or the rows that columns name. Sent: the rows that columns of other ranks name.
    pub all: Rows,
    pub named: Rows,
    pub sent: Rows,
}

/// Returns the loads of all ranks if `c` ranks share rows of A, B and C.
pub fn loads(a: &CsrPattern, ranks: usize, c: usize, n: f64, host: usize) -> Vec<Load> {
    let blocks = Partition::balanced(a, n as usize, ranks / c);
    let mut owner = vec![0_u32; a.rows()];
    (0..ranks / c).for_each(|block| owner[blocks.range(block)].fill(block as u32));
    let mut loads = vec![Load::default(); ranks];
    let mut seen = vec![u32::MAX; a.rows()];
    for block in 0..ranks / c {
        // Replica b mod c multiplies by block b of B, which it receives from replica b mod c of block b.
        let way = |b: usize| {
            let (to, from) = (block * c + b % c, b * c + b % c);
            (to, from, usize::from(to / host != from / host))
        };
        let rows = blocks.range(block).len() as f64;
        for other in 0..ranks / c {
            let (to, _, far) = way(other);
            let taken = blocks.range(other).len() as f64;
            loads[to].all[far] += if other == block { 0.0 } else { taken };
            loads[to].c = rows;
        }
        for &column in blocks.range(block).flat_map(|row| &a.columns()[a.row(row)]) {
            let other = owner[column as usize] as usize;
            let (to, from, far) = way(other);
            // A nonzero counts as its value and its column.
            loads[to].product += 1.0 + 2.0 / n;
            if other != block && seen[column as usize] != block as u32 {
                seen[column as usize] = block as u32;
                loads[to].named[far] += 1.0;
                loads[from].sent[far] += 1.0;
            }
        }
        loads[block * c..][..c].iter_mut().for_each(|rank| rank.product += rows);
    }
    loads
}

/// The graph with its nodes in random order.
pub fn shuffled(a: &CsrPattern) -> Result<CsrPattern, FormatError> {
    let keys: Vec<f32> = generate::random_values(a.rows(), 7);
    let mut order: Vec<u32> = (0..a.rows() as u32).collect();
    order.sort_by(|&i, &j| keys[i as usize].total_cmp(&keys[j as usize]));
    let order = Permutation::new(order)?;
    order.pattern_columns(&order.pattern_rows(a)?)
}
