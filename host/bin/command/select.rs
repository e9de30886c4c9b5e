//! `--format auto`: the format whose cheapest kernel is predicted to cost least. Counted from the row statistics,
//! so that nothing is converted to formats that lose.

use std::fmt;

use einsparse::cost::{Cost, Machine, Work};
use einsparse::formats::stats::{RowStats, Slots, slots};
use einsparse::formats::vectors::sampled_steps;
use einsparse::formats::{CsrPattern, Format};
use einsparse::plan::Problem;
use einsparse::registry::{Zeros, block_of};
use einsparse::{Options, Scalar};

use super::Result;

/// A format, what it takes, and its cheapest kernel.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Slots and padding, with the group size chosen.
    pub slots: Slots,
    /// The cheapest kernel that may run it; `None` if there is none under the options.
    pub kernel: Option<(&'static str, Cost, Zeros)>,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:22} {:7.2} values/entry  ",
            self.slots.format.to_string(),
            self.slots.ratio()
        )?;
        match &self.kernel {
            Some((name, cost, zeros)) => write!(f, "{:8.1} us  {name}, zeros = {zeros:?}", cost.us),
            None => write!(f, "       -     no kernel under these options"),
        }
    }
}

/// The formats that kernels walk.
pub fn formats() -> Vec<Format> {
    let grouped = |group| Format::GroupCoo { axis: 0, group };
    let mut all = vec![
        Format::Csr,
        grouped(None),
        grouped(Some(4)),
        grouped(Some(8)),
        Format::SlicedEll,
    ];
    for side in [16, 32, 64] {
        let block = (side, side);
        all.extend([
            Format::Bsr { block },
            Format::BlockGroupCoo { block, group: None },
        ]);
    }
    all
}

/// Offers for `C[m,n] = A[m,k] * B[k,n]` with `n` columns, cheapest first.
pub fn offers<T: Scalar>(
    pattern: &CsrPattern,
    n: usize,
    accumulate: bool,
    options: &Options,
    machine: &Machine,
) -> Result<Vec<Offer>> {
    let mut offers = Vec::new();
    let lens = pattern.offsets().windows(2);
    let rows: Vec<(u32, u32)> = lens.map(|w| (w[0], w[1] - w[0])).collect();
    for format in formats() {
        let slots = slots(pattern, format)?;
        let block = block_of(&slots.format);
        let stats = match block {
            (1, 1) => RowStats::of_rows(pattern),
            _ => RowStats::of_block_rows(pattern, block)?,
        };
        let area = (block.0 * block.1) as u64;
        let steps = match block {
            (1, 1) => sampled_steps(&rows, pattern.columns()),
            _ => (0, 0),
        };
        let work = Work {
            steps,
            items: 1,
            m: pattern.rows(),
            k: pattern.cols(),
            n,
            entries: stats.nnz as u64 * area,
            index_slots: (slots.values / u128::from(area)) as u64,
            longest: stats.max as u64,
            block,
            accumulate,
        };
        // The plan itself decides in the end, with the leading dimensions it is given.
        let choice = Problem::contiguous(slots.format, work, T::DTYPE).candidates(machine, options);
        let kernel = choice.candidates.first().map(|c| (c.name, c.cost, c.zeros));
        offers.push(Offer { slots, kernel });
    }
    let price = |offer: &Offer| offer.kernel.map_or(f64::INFINITY, |(_, cost, _)| cost.us);
    offers.sort_by(|a, b| price(a).total_cmp(&price(b)));
    Ok(offers)
}
