//! Which format of a sparse matrix should cost least, by the kernels there are for it. Counted from the pattern, so that
//! nothing is converted to formats that lose.

use std::fmt;

use einsparse_formats::stats::{RowStats, slots};
use einsparse_formats::vectors::sampled_steps;
use einsparse_formats::{Csr, CsrPattern, Format};
use einsparse_kernels::abi::Dtype;

#[cfg(doc)]
use super::Plan;
use super::PlanBuilder;
use crate::cost::Work;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Result};
use crate::indirect::rewrite;
use crate::machine::Machine;
use crate::offer::{Candidate, Options, Problem};
use crate::registry::{Scalar, block_of};
use crate::tensor::Operand;

/// A format of the sparse matrix of a product, and what the product should cost with it.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatAdvice {
    /// With the group size that was chosen; `None` for a dense matrix, with all zeros.
    pub format: Option<Format>,
    /// Stored values for each entry; 1 where nothing is padded.
    pub values_per_entry: f64,
    /// The cheapest kernel that may run it; `None` where there is none under the options.
    pub kernel: Option<Candidate>,
}

impl FormatAdvice {
    fn us(&self) -> f64 {
        self.kernel.as_ref().map_or(f64::INFINITY, |c| c.cost.us)
    }
}

/// Format, values for each entry, predicted microseconds, kernel and its rule of zeros.
impl fmt::Display for FormatAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format.map_or("dense".into(), |f| f.to_string());
        write!(
            f,
            "{format:22} {:7.2} values/entry  ",
            self.values_per_entry
        )?;
        match &self.kernel {
            Some(c) => write!(f, "{:8.1} us  {}, zeros = {:?}", c.cost.us, c.name, c.zeros),
            None => write!(f, "       -     no kernel under these options"),
        }
    }
}

/// The formats that advice weighs.
#[doc(hidden)]
pub fn advised_formats() -> Vec<Format> {
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

/// Values of which one word says where they are: a block, or two columns of 16 bits.
fn of_a_word(format: Format, area: u64) -> u64 {
    match format {
        Format::SlicedEll => 2,
        _ => area,
    }
}

/// Advice on `C[m,n] = A[m,k] * B[k,n]` with `n` columns, cheapest first.
#[doc(hidden)]
pub fn advice(
    pattern: &CsrPattern,
    (n, mode): (usize, Mode),
    dtype: Dtype,
    options: &Options,
    machine: &Machine,
) -> Result<Vec<FormatAdvice>> {
    let entries = RowStats::of_rows(pattern);
    let of_entries = Work {
        steps: (0, 0),
        items: 1,
        m: pattern.rows(),
        k: pattern.cols(),
        n,
        entries: entries.nnz as u64,
        index_slots: entries.nnz as u64,
        longest: entries.max as u64,
        block: (1, 1),
        accumulate: mode == Mode::Accumulate,
    };
    // A plan decides in the end, with the leading dimensions it is given.
    let cheapest = |problem: Problem| {
        let choice = problem.candidates(machine, options);
        choice.candidates.into_iter().next()
    };
    let lens = pattern.offsets().windows(2);
    let rows: Vec<(u32, u32)> = lens.map(|w| (w[0], w[1] - w[0])).collect();
    let steps = sampled_steps(&rows, pattern.columns());
    let mut all = Vec::new();
    for format in advised_formats() {
        let slots = slots(pattern, format)?;
        let block = block_of(&slots.format);
        let area = (block.0 * block.1) as u64;
        let mut work = Work {
            index_slots: (slots.values / u128::from(of_a_word(slots.format, area))) as u64,
            block,
            ..of_entries
        };
        if block == (1, 1) {
            work.steps = steps;
        } else {
            let blocks = RowStats::of_block_rows(pattern, block)?;
            work.entries = blocks.nnz as u64 * area;
            work.longest = blocks.max as u64;
        }
        all.push(FormatAdvice {
            format: Some(slots.format),
            values_per_entry: slots.ratio(),
            kernel: cheapest(Problem::contiguous(Some(slots.format), work, dtype)),
        });
    }
    let area = pattern.rows() as f64 * pattern.cols() as f64;
    all.push(FormatAdvice {
        format: None,
        values_per_entry: area / (entries.nnz as f64).max(1.0),
        kernel: cheapest(Problem::contiguous(
            None,
            of_entries.all_stored(dtype),
            dtype,
        )),
    });
    all.sort_by(|a, b| a.us().total_cmp(&b.us()));
    Ok(all)
}

impl<T: Scalar> PlanBuilder<'_, T> {
    /// The formats that the sparse matrix of `C[m,n] (= | +=) A[m,k] * B[k,n]` may be stored in, cheapest first, by the
    /// cost of their cheapest kernel: those of the context's GPU, or of an H200 on a CPU context. Values in the memory
    /// of a GPU are read back. Forms that a plan of static weights may keep are not weighed: its [`choice`](Plan::choice)
    /// says.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Bsr, Format, Pattern, f16, generate};
    /// let pattern = generate::blocks(2048, 2048, (32, 32), 0.1, 1)?;
    /// let values = vec![f16::ONE; pattern.slots()];
    /// let a = Bsr::new(pattern, values)?.to_csr()?;
    /// let ctx = Context::cpu();
    /// let b = ctx.zeros::<f16>(&[2048, 512])?;
    /// let advice = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).advise()?;
    /// assert!(matches!(advice[0].format, Some(Format::Bsr { .. } | Format::BlockGroupCoo { .. })));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parse`] and its kin for the text; [`Error::Operand`] where it is another expression, an operand is
    /// missing, or none is sparse.
    pub fn advise(&self) -> Result<Vec<FormatAdvice>> {
        let einsum = Einsum::parse(self.text)?;
        let sparse = self.operands.iter().find_map(|(name, operand)| {
            matches!(operand, Operand::Sparse(_) | Operand::HostSparse(_))
                .then_some((name, operand))
        });
        let Some((name, operand)) = sparse else {
            return Err(Error::operand(
                "A",
                "is not sparse: there is no format to advise on",
            ));
        };
        let form = rewrite(&einsum, name, &Format::Csr)?.as_spmm();
        let form = form.filter(|form| form.order.is_plain() && !form.batched);
        let dense = form.and_then(|form| {
            let mut operands = self.operands.iter();
            operands.find(|(name, _)| **name == *form.dense)
        });
        let Some([k, n]) = dense.and_then(|(_, b)| <[usize; 2]>::try_from(b.shape()).ok()) else {
            let reason = "is advised on in C[m,n] = A[m,k] * B[k,n], with both operands given";
            return Err(Error::operand(name, reason));
        };
        let csr: Csr<T> = match operand {
            Operand::HostSparse(a) => a.to_csr()?,
            Operand::Sparse(a) => a.to_host()?.to_csr()?,
            _ => unreachable!("found as sparse"),
        };
        if csr.shape()[1] != k {
            let found = csr.shape()[1];
            let reason = format!("has {found} columns, and the dense operand {k} rows");
            return Err(Error::operand(name, reason));
        }
        let machine = self.context.machine();
        let of = (n, einsum.mode);
        advice(csr.pattern(), of, T::DTYPE, &self.options, &machine)
    }
}
