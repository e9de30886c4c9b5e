//! Predicted times and memory of contractions.

use super::order::{Costs, Size};
use super::search::{Place, Search};
use super::step::LAUNCH_US;

/// Fractions of the peak rates that kernels reach: products of nonzeros and of dense matrices on CUDA cores, and bytes.
const ENTRY_SHARE: f64 = 0.15;
const DENSE_SHARE: f64 = 0.5;
const BYTE_SHARE: f64 = 0.8;
/// Operations of the CPU executor per microsecond.
const CPU_RATE: f64 = 4e3;
/// Operations per row of a position list: planning sorts the rows, and runs read them.
const ROW: f64 = 10.0;
/// Maximum share of one intermediate result in the memory of all of them.
pub(super) const SHARE: f64 = 0.25;

impl Costs for Search<'_> {
    fn volume(&self, mut names: u128) -> f64 {
        let mut volume = 1.0;
        while names != 0 {
            volume *= self.extents[names.trailing_zeros() as usize];
            names &= names - 1;
        }
        volume
    }

    fn pair(&self, a: &Size, b: &Size, kept: u128) -> f64 {
        let (stored, [a, b]) = self.operands(*a, *b);
        let before = match stored {
            None => 0.0,
            Some(sparse) if self.volume(sparse.names) > self.max_elements() => f64::INFINITY,
            Some(sparse) => {
                let [flops, bytes] = self.work(&[sparse], sparse.names);
                self.us(flops, bytes, true)
            }
        };
        let [flops, bytes] = self.work(&[a, b], kept);
        before + self.us(flops, bytes, a.entries.is_some())
    }

    fn max_elements(&self) -> f64 {
        SHARE * self.max_bytes / self.element()
    }
}

impl Search<'_> {
    pub(super) fn element(&self) -> f64 {
        self.asked.dtype.bytes() as f64
    }

    /// Orders two terms, a sparse one first: the rows of the result are its rows. On the CPU, one of two sparse terms,
    /// that with fewer elements, is first stored as a dense tensor, and also returned. If it does not fit in memory and
    /// lists are allowed, both terms stay sparse.
    pub(super) fn operands(&self, a: Size, b: Size) -> (Option<Size>, [Size; 2]) {
        let dense = |size: Size| Size { entries: None, ..size };
        match (a.entries, b.entries, self.asked.place) {
            (Some(_), Some(_), Place::Cpu) => {
                let swap = self.volume(a.names) < self.volume(b.names);
                let [first, second] = if swap { [b, a] } else { [a, b] };
                let joined = self.asked.lists && self.volume(second.names) > self.max_elements();
                match joined {
                    true => (None, [first, second]),
                    false => (Some(second), [first, dense(second)]),
                }
            }
            (None, Some(_), _) => (None, [b, a]),
            _ => (None, [a, b]),
        }
    }

    /// Returns the time of a step in microseconds.
    pub(super) fn us(&self, flops: f64, bytes: f64, sparse: bool) -> f64 {
        let Place::Gpu(machine) = self.asked.place else {
            return (flops + bytes / self.element()) / CPU_RATE;
        };
        let share = if sparse { ENTRY_SHARE } else { DENSE_SHARE };
        let width = if self.element() > 4.0 { 0.5 } else { 1.0 };
        let rate = machine.issue * 64.0 * width * share;
        LAUNCH_US + (flops / rate).max(bytes / (machine.hbm * BYTE_SHARE)) * 1e6
    }

    /// Returns the operations of a product that keeps these indices, and the bytes read and written.
    pub(super) fn work(&self, terms: &[Size], kept: u128) -> [f64; 2] {
        let bytes = |size: &Size| match size.entries {
            Some(entries) => entries * (self.element() + 4.0),
            None => self.volume(size.names) * self.element(),
        };
        let read: f64 = terms.iter().map(bytes).sum();
        let written = self.volume(kept) * self.element();
        [terms.len() as f64 * self.products(terms), read + written]
    }

    /// Returns the number of products of a sum over factors. For sparse factors that share an index, it assumes evenly
    /// distributed nonzeros.
    fn products(&self, terms: &[Size]) -> f64 {
        let (mut products, mut seen) = (1.0, 0);
        for size in terms {
            if let Some(entries) = size.entries {
                products *= entries / self.volume(size.names & seen);
                seen |= size.names;
            }
        }
        let all = terms.iter().fold(0, |all, size| all | size.names);
        products * self.volume(all & !seen)
    }

    /// Returns the time of one loop over all factors in microseconds.
    pub(super) fn whole_us(&self, sizes: &[Size], out: u128) -> f64 {
        let sparse = sizes.iter().copied().filter(|size| size.entries.is_some());
        let sparse: Vec<Size> = sparse.collect();
        let rows = match sparse.len() {
            0 | 1 => 0.0,
            _ => ROW * self.products(&sparse),
        };
        let [flops, bytes] = self.work(sizes, out);
        self.us(flops + rows, bytes, !sparse.is_empty())
    }
}
