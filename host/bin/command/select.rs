//! `--format auto`: the format whose cheapest kernel is predicted to cost least. Counted from the row statistics,
//! so that nothing is converted to formats that lose.

use std::fmt;

use einsparse::cost::{Cost, Machine, Work, predict};
use einsparse::formats::stats::{RowStats, Slots, slots};
use einsparse::formats::{CsrPattern, Format};
use einsparse::registry::{Dtype, Row, WalkKind, Zeros, block_of, kernels, refuses};
use einsparse::{Options, Precision, Scalar, ZerosRule};

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
    for format in formats() {
        let slots = slots(pattern, format)?;
        let block = block_of(&slots.format);
        let stats = match block {
            (1, 1) => RowStats::of_rows(pattern),
            _ => RowStats::of_block_rows(pattern, block)?,
        };
        let area = (block.0 * block.1) as u64;
        let work = Work {
            m: pattern.rows(),
            k: pattern.cols(),
            n,
            entries: stats.nnz as u64 * area,
            index_slots: (slots.values / u128::from(area)) as u64,
            longest: stats.max as u64,
            block,
            accumulate,
        };
        let able = kernels()
            .iter()
            .filter(|row| allows::<T>(row, &slots.format, n, options));
        let priced = able.map(|row| (row.name, predict(row, &work, machine), row.zeros));
        let kernel = priced.min_by(|a, b| a.1.us.total_cmp(&b.1.us));
        offers.push(Offer { slots, kernel });
    }
    let price = |offer: &Offer| offer.kernel.map_or(f64::INFINITY, |(_, cost, _)| cost.us);
    offers.sort_by(|a, b| price(a).total_cmp(&price(b)));
    Ok(offers)
}

/// Could the plan take this kernel for operands that are not strided? The plan itself decides in the end.
fn allows<T: Scalar>(row: &Row, format: &Format, n: usize, options: &Options) -> bool {
    let tf32 =
        T::DTYPE == Dtype::F32 && options.precision == Precision::Tf32 && row.dtype == Dtype::Tf32;
    let (bm, bk) = block_of(format);
    let side = row.block as usize;
    (row.dtype == T::DTYPE || tf32)
        && options.variant.as_ref().is_none_or(|v| v == row.name)
        && refuses(row.walk, format).is_none()
        && (row.walk != WalkKind::Block || (bm, bk) == (side, side))
        && (options.zeros == ZerosRule::Dense || row.zeros == Zeros::Strict)
        && n.is_multiple_of(row.vector as usize)
}
