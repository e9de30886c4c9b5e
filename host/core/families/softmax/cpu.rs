//! CPU implementation of softmax over the nonzeros of each row, in f64 and rounded once. One thread computes a row.

use crate::parallel;
use crate::values::{Slice, SliceMut};

/// Rows that a thread processes as a unit.
const ROWS: usize = 64;

/// Rows (first slot and number of entries), the number of unmasked entries of each row, and the operation.
#[derive(Clone, Copy)]
pub(crate) struct SoftmaxRows<'a> {
    pub runs: &'a [(u32, u32)],
    pub live: Option<&'a [u32]>,
    pub scale: f64,
    pub log: bool,
}

impl SoftmaxRows<'_> {
    /// Calls `work(first slot, unmasked slots, values)` with the values of every row that has entries. Unmasked slots
    /// are the first ones of a row.
    fn each(&self, mut values: &mut [f64], work: &(dyn Fn(usize, usize, &mut [f64]) + Sync)) {
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        order.retain(|&row| self.runs[row].1 > 0);
        let first_slot = |row: usize| self.runs[row].0 as usize;
        if !order.is_sorted_by_key(|&row| first_slot(row)) {
            order.sort_by_key(|&row| first_slot(row));
        }
        // Each thread gets only the values of its rows: slots of different rows are disjoint.
        let (mut parts, mut start) = (Vec::new(), 0);
        let mut groups = order.chunks(ROWS).peekable();
        while let Some(rows) = groups.next() {
            let end = match groups.peek() {
                Some(next) => first_slot(next[0]),
                None => start + values.len(),
            };
            let (own, rest) = values.split_at_mut(end - start);
            parts.push((rows, start, own));
            (values, start) = (rest, end);
        }
        parallel::each_of(parts, &|_, (rows, start, own)| {
            for &row in rows {
                let (first, len) = (first_slot(row), self.runs[row].1 as usize);
                let live = self.live.map_or(len, |live| live[row] as usize);
                work(first, live, &mut own[first - start..][..len]);
            }
        });
    }
}

/// Max of the values, or NaN if one of them is NaN.
fn max_or_nan(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(
        f64::NEG_INFINITY,
        |max, x| {
            if max.is_nan() || x.is_nan() { f64::NAN } else { max.max(x) }
        },
    )
}

/// Writes the softmax of `input` to `output`. Without an input, replaces the contents of `output`.
pub(crate) fn softmax(rows: SoftmaxRows<'_>, input: Option<Slice<'_>>, output: SliceMut<'_>) {
    let input = input.map(|input| input.widen::<f64>());
    let mut wide = output.view().widen::<f64>().into_owned();
    rows.each(&mut wide, &|start, live, own| {
        let (own, hidden) = own.split_at_mut(live);
        if let Some(input) = &input {
            own.copy_from_slice(&input[start..][..live]);
        }
        own.iter_mut().for_each(|score| *score *= rows.scale);
        let max = max_or_nan(own.iter().copied());
        let none = max == f64::NEG_INFINITY;
        let base = if none { 0.0 } else { max };
        let sum: f64 = own.iter().map(|score| (score - base).exp()).sum();
        let masked = if rows.log { f64::NEG_INFINITY } else { 0.0 };
        for value in own {
            let difference = *value - base;
            *value = match (none, rows.log) {
                (true, _) => masked,
                (false, true) => difference - sum.ln(),
                (false, false) => difference.exp() / sum,
            };
        }
        hidden.fill(masked);
    });
    output.narrow((1, wide.len(), wide.len()), &wide);
}

/// Writes the gradient of the scores to `output`. `given`: result of the softmax. `upstream`: its gradient; if `None`,
/// `output` contains it.
pub(crate) fn gradient(
    rows: SoftmaxRows<'_>,
    given: Slice<'_>,
    upstream: Option<Slice<'_>>,
    output: SliceMut<'_>,
) {
    let given = given.widen::<f64>();
    let upstream = upstream.map(|upstream| upstream.widen::<f64>());
    let mut wide = output.view().widen::<f64>().into_owned();
    rows.each(&mut wide, &|start, live, own| {
        let (own, hidden) = own.split_at_mut(live);
        if let Some(upstream) = &upstream {
            own.copy_from_slice(&upstream[start..][..live]);
        }
        let given = &given[start..][..live];
        let weight = |y: f64| if rows.log { 1.0 } else { y };
        let products = own.iter().zip(given).map(|(g, &y)| weight(y) * g);
        let sum: f64 = products.sum();
        for (value, &y) in own.iter_mut().zip(given) {
            let slope = match rows.log {
                true => *value - y.exp() * sum,
                false => y * (*value - sum),
            };
            *value = slope * rows.scale;
        }
        hidden.fill(0.0);
    });
    output.narrow((1, wide.len(), wide.len()), &wide);
}
