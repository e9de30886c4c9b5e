//! Softmax of the entries of each row on the CPU, in f64 and rounded once. Each row is the work of one thread.

use std::ops::Range;

use crate::cpu::shared::Shared;
use crate::parallel;
use crate::values::{Slice, SliceMut};

/// Rows by first slot and entries, how many of these no mask hides, and what is done with them.
#[derive(Clone, Copy)]
pub(crate) struct SoftmaxRows<'a> {
    pub runs: &'a [(u32, u32)],
    pub live: Option<&'a [u32]>,
    pub scale: f64,
    pub log: bool,
}

impl SoftmaxRows<'_> {
    /// Calls `work(slots that count, slots that a mask hides)` for every row.
    fn each(&self, work: &(dyn Fn(Range<usize>, Range<usize>) + Sync)) {
        parallel::ranges(self.runs.len(), 64, &|rows| {
            for row in rows {
                let (start, len) = self.runs[row];
                let live = self.live.map_or(len, |live| live[row]);
                let (start, end) = (start as usize, (start + len) as usize);
                work(start..start + live as usize, start + live as usize..end);
            }
        });
    }
}

/// Largest, or NaN if one of them is.
fn max_or_nan(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, |max, x| {
        if max.is_nan() || x.is_nan() {
            f64::NAN
        } else {
            max.max(x)
        }
    })
}

/// Softmax of `input`, or of what `output` holds where there is none, into `output`.
pub(crate) fn softmax(rows: SoftmaxRows<'_>, input: Option<Slice<'_>>, output: SliceMut<'_>) {
    let input = input.map(|input| input.widen::<f64>());
    let mut wide = output.view().widen::<f64>().into_owned();
    let out = Shared::new(&mut wide);
    let score = |at: usize| {
        input
            .as_ref()
            .map_or_else(|| out.get(at), |input| input[at])
    };
    rows.each(&|live, hidden| {
        let scaled = |at: usize| score(at) * rows.scale;
        let max = max_or_nan(live.clone().map(scaled));
        let none = max == f64::NEG_INFINITY;
        let base = if none { 0.0 } else { max };
        let sum: f64 = live.clone().map(|at| (scaled(at) - base).exp()).sum();
        let masked = if rows.log { f64::NEG_INFINITY } else { 0.0 };
        for at in live {
            let difference = scaled(at) - base;
            let value = match (none, rows.log) {
                (true, _) => masked,
                (false, true) => difference - sum.ln(),
                (false, false) => difference.exp() / sum,
            };
            out.update(at, |_| value);
        }
        for at in hidden {
            out.update(at, |_| masked);
        }
    });
    output.narrow((1, wide.len(), wide.len()), &wide);
}

/// Gradient of the scores from what the softmax gave and `upstream`, or what `output` holds where there is none.
pub(crate) fn gradient(
    rows: SoftmaxRows<'_>,
    given: Slice<'_>,
    upstream: Option<Slice<'_>>,
    output: SliceMut<'_>,
) {
    let given = given.widen::<f64>();
    let upstream = upstream.map(|upstream| upstream.widen::<f64>());
    let mut wide = output.view().widen::<f64>().into_owned();
    let out = Shared::new(&mut wide);
    let from = |at: usize| upstream.as_ref().map_or_else(|| out.get(at), |g| g[at]);
    rows.each(&|live, hidden| {
        let weight = |at: usize| if rows.log { 1.0 } else { given[at] };
        let sum: f64 = live.clone().map(|at| weight(at) * from(at)).sum();
        for at in live {
            let y = given[at];
            let value = if rows.log {
                from(at) - y.exp() * sum
            } else {
                y * (from(at) - sum)
            };
            out.update(at, |_| value * rows.scale);
        }
        for at in hidden {
            out.update(at, |_| 0.0);
        }
    });
    output.narrow((1, wide.len(), wide.len()), &wide);
}
