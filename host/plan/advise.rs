//! Which format of a sparse matrix should cost least, by the kernels there are for it. Counted from the pattern, so
//! that nothing is converted to formats that lose.

use std::fmt;

use einsparse_formats::stats::{RowStats, block_slots, slots};
use einsparse_formats::vectors::sampled_steps;
use einsparse_formats::{CsrPattern, Format, SparseRef};
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
use crate::tensor::{Operand, SparseTensor};
use crate::worklist::fullest;

/// A format of the sparse matrix of a product, and what the product should cost with it: a line of what
/// [`PlanBuilder::advise`] gives. It prints as format, values for each entry, predicted microseconds, kernel and its
/// rule of zeros.
///
/// ```
/// use einsparse::formats::{Csr, generate};
/// let pattern = generate::uniform(256, 256, 0.02, 1)?;
/// let values = vec![1.0f32; pattern.columns().len()];
/// let a = Csr::new(pattern, values)?;
/// let ctx = einsparse::Context::cpu();
/// let b = ctx.zeros::<f32>(&[256, 64])?;
/// let advice = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).advise()?;
/// let dense = advice.iter().find(|one| one.format.is_none()).unwrap();
/// assert!(dense.values_per_entry > 40.0, "{dense}");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FormatAdvice {
    /// With the group size that was chosen; `None` for a dense matrix, with all zeros.
    pub format: Option<Format>,
    /// Stored values for each entry; 1 where nothing is padded.
    pub values_per_entry: f64,
    /// The cheapest kernel that may run it.
    #[doc(hidden)]
    pub candidate: Option<Candidate>,
}

impl FormatAdvice {
    /// Name of the cheapest kernel that may run it; `None` where there is none under the options.
    pub fn kernel(&self) -> Option<&'static str> {
        self.candidate.as_ref().map(|c| c.name)
    }

    /// Microseconds that this kernel is predicted to take.
    pub fn microseconds(&self) -> Option<f64> {
        self.candidate.as_ref().map(|c| c.cost.us)
    }

    fn us(&self) -> f64 {
        self.microseconds().unwrap_or(f64::INFINITY)
    }
}

impl fmt::Display for FormatAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format.map_or("dense".into(), |f| f.to_string());
        write!(
            f,
            "{format:22} {:7.2} values/entry  ",
            self.values_per_entry
        )?;
        match &self.candidate {
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
    let lens = pattern.offsets().windows(2);
    let rows: Vec<(u32, u32)> = lens.map(|w| (w[0], w[1] - w[0])).collect();
    let of_entries = Work {
        steps: (0, 0),
        items: 1,
        m: pattern.rows(),
        k: pattern.cols(),
        n,
        entries: entries.nnz as u64,
        index_slots: entries.nnz as u64,
        longest: entries.max as u64,
        fullest: fullest(&rows),
        block: (1, 1),
        accumulate: mode == Mode::Accumulate,
    };
    // A plan decides in the end, with the leading dimensions it is given.
    let cheapest = |problem: Problem| {
        let choice = problem.candidates(machine, options);
        choice.candidates.into_iter().next()
    };
    let steps = sampled_steps(&rows, pattern.columns());
    let mut all = Vec::new();
    // Formats of the same blocks stand side by side, and share what was counted.
    let mut counted: Option<((usize, usize), RowStats)> = None;
    for format in advised_formats() {
        let block = block_of(&format);
        if block != (1, 1) && counted.as_ref().is_none_or(|(own, _)| *own != block) {
            counted = Some((block, RowStats::of_block_rows(pattern, block)?));
        }
        let blocks = counted.as_ref().filter(|(own, _)| *own == block);
        let slots = match blocks {
            Some((_, blocks)) => block_slots(pattern, format, blocks)?,
            None => slots(pattern, format)?,
        };
        let area = (block.0 * block.1) as u64;
        let mut work = Work {
            index_slots: (slots.values / u128::from(of_a_word(slots.format, area))) as u64,
            block,
            ..of_entries
        };
        match blocks {
            None => work.steps = steps,
            Some((_, blocks)) => {
                work.entries = blocks.nnz as u64 * area;
                work.longest = blocks.max as u64;
            }
        }
        all.push(FormatAdvice {
            format: Some(slots.format),
            values_per_entry: slots.ratio(),
            candidate: cheapest(Problem::contiguous(Some(slots.format), work, dtype)),
        });
    }
    let area = pattern.rows() as f64 * pattern.cols() as f64;
    all.push(FormatAdvice {
        format: None,
        values_per_entry: area / (entries.nnz as f64).max(1.0),
        candidate: cheapest(Problem::contiguous(
            None,
            of_entries.all_stored(dtype),
            dtype,
        )),
    });
    all.sort_by(|a, b| a.us().total_cmp(&b.us()));
    Ok(all)
}

/// The sparse matrix, where it is.
enum Stored<'a, T: Scalar> {
    InContext(&'a SparseTensor<T>),
    OnHost(&'a SparseRef<'a, T>),
}

impl<T: Scalar> PlanBuilder<'_, T> {
    /// The formats that the sparse matrix of `C[m,n] (= | +=) A[m,k] * B[k,n]` may be stored in, cheapest first, by the
    /// cost of their cheapest kernel: those of the context's GPU, or of an H200 on a CPU context. Values in the memory
    /// of a GPU are read back. Weighed are dense, `csr`, `groupcoo`, `sell`, `bsr` and `blockgroupcoo`; one without a
    /// kernel for these types comes last. Forms in which a plan may hold A beside the operand are not weighed: its
    /// [`choice`](Plan::choice) says.
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
    /// assert!(advice[0].kernel().is_some() && advice[0].microseconds() <= advice[1].microseconds());
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parse`] and its kin for the text; [`Error::Operand`] where it is another expression, an operand is
    /// missing, or none is sparse.
    pub fn advise(&self) -> Result<Vec<FormatAdvice>> {
        let einsum = Einsum::parse(self.text)?;
        let sparse = self.operands.iter().find_map(|(name, operand)| {
            let stored = match operand {
                Operand::Sparse(a) => Stored::InContext(a),
                Operand::HostSparse(a) => Stored::OnHost(a),
                _ => return None,
            };
            Some((name, stored))
        });
        let Some((name, stored)) = sparse else {
            let first = einsum.factors.first();
            let name = first.map_or(&einsum.out.tensor, |factor| &factor.tensor);
            let reason = "is not sparse, nor is another operand: there is no format to advise on";
            return Err(Error::operand(name, reason));
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
        let csr = match stored {
            Stored::InContext(a) => a.to_host()?.to_csr()?,
            Stored::OnHost(a) => a.to_csr()?,
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
