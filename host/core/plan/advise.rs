//! Advice on the storage format of a sparse matrix, from the predicted costs of its kernels. The counts come from the
//! pattern, so no matrix is converted.

mod weigh;

use std::fmt;

use einsparse_formats::stats::{RowStats, block_slots, slots};
use einsparse_formats::vectors::sampled_steps;
use einsparse_formats::{CsrPattern, Format, Pattern, SparseRef, allocate};
use einsparse_kernels::abi::Dtype;

#[cfg(doc)]
use super::Plan;
use super::PlanBuilder;
use crate::cost::Work;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Result};
use crate::indirect::rewrite;
use crate::machine::Machine;
use crate::offer::{Candidate, Options};
use crate::registry::{Scalar, block_of};
use crate::tensor::{Operand, SparseTensor};
use crate::worklist::fullest;
use weigh::Weighed;

/// Storage format of the sparse matrix of a product, with the predicted cost of the product; one item of
/// [`PlanBuilder::advise`]. It prints as format, stored values per nonzero, predicted microseconds, kernel and its
/// treatment of zeros.
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
    /// The format, with the selected group size; `None` for a dense matrix.
    pub format: Option<Format>,
    /// Stored values per nonzero; 1 without padding.
    pub values_per_entry: f64,
    /// The cheapest eligible kernel.
    #[doc(hidden)]
    pub candidate: Option<Candidate>,
    /// Cost of a run on the CPU, in steps of its executor; `None` in advice for a GPU.
    #[doc(hidden)]
    pub cpu_steps: Option<f64>,
    /// Reason why the matrix cannot be stored in this format.
    #[doc(hidden)]
    pub refused: Option<String>,
}

impl FormatAdvice {
    /// Returns the name of the cheapest eligible kernel, or `"cpu"` on a CPU context; `None` if the format is
    /// [refused](Self::refusal).
    pub fn kernel(&self) -> Option<&'static str> {
        let cpu = self.cpu_steps.map(|_| CPU);
        self.candidate.as_ref().map(|c| c.name).or(cpu)
    }

    /// Returns the predicted time of this kernel in microseconds; `None` on a CPU context.
    pub fn microseconds(&self) -> Option<f64> {
        self.candidate.as_ref().map(|c| c.cost.us)
    }

    /// Returns the reason why no kernel runs this format: no eligible kernel under the options, or a conversion above
    /// the memory limit of [`allocate::limits`](einsparse_formats::allocate::limits).
    pub fn refusal(&self) -> Option<&str> {
        let none = self.kernel().is_none().then_some("no kernel under these options");
        self.refused.as_deref().or(none)
    }

    fn cost(&self) -> f64 {
        let own = self.microseconds().or(self.cpu_steps);
        own.unwrap_or(f64::INFINITY)
    }
}

/// Variant name of plans that run on the CPU.
const CPU: &str = "cpu";

/// Device of the advice.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Target<'m> {
    /// A GPU, described by its properties.
    Gpu(&'m Machine),
    /// The CPU executor.
    Cpu,
}

impl fmt::Display for FormatAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format.map_or("dense".into(), |f| f.to_string());
        write!(f, "{format:22} {:7.2} values/entry  ", self.values_per_entry)?;
        match &self.candidate {
            Some(c) => write!(f, "{:8.1} us  {}, zeros = {:?}", c.cost.us, c.name, c.zeros),
            None => write!(f, "       -     {}", self.refusal().unwrap_or(CPU)),
        }
    }
}

/// Returns the sparse formats that advice compares.
#[doc(hidden)]
pub fn advised_formats() -> Vec<Format> {
    let grouped = |group| Format::GroupCoo { axis: 0, group };
    let mut all =
        vec![Format::Csr, grouped(None), grouped(Some(4)), grouped(Some(8)), Format::SlicedEll];
    for side in [16, 32, 64] {
        let block = (side, side);
        all.extend([Format::Bsr { block }, Format::BlockGroupCoo { block, group: None }]);
    }
    all
}

/// Returns the number of values per index word: a block, or two columns of 16 bits.
fn of_a_word(format: Format, area: u64) -> u64 {
    match format {
        Format::SlicedEll => 2,
        _ => area,
    }
}

/// Returns the product over unstructured nonzeros.
fn work_of(
    pattern: &CsrPattern,
    entries: &RowStats,
    rows: &[(u32, u32)],
    (n, mode): (usize, Mode),
) -> Work {
    Work {
        steps: (0, 0),
        items: 1,
        m: pattern.rows(),
        k: pattern.cols(),
        n,
        entries: entries.nnz as u64,
        index_slots: entries.nnz as u64,
        longest: entries.max as u64,
        fullest: fullest(rows),
        block: (1, 1),
        accumulate: mode == Mode::Accumulate,
    }
}

/// Returns advice on `C[m,n] = A[m,k] * B[k,n]` with `n` columns, cheapest first.
#[doc(hidden)]
pub fn advice(
    pattern: &CsrPattern,
    (n, mode): (usize, Mode),
    dtype: Dtype,
    options: &Options,
    target: Target<'_>,
) -> Result<Vec<FormatAdvice>> {
    let entries = RowStats::of_rows(pattern);
    let lens = pattern.offsets().windows(2);
    let rows: Vec<(u32, u32)> = lens.map(|w| (w[0], w[1] - w[0])).collect();
    let of_entries = work_of(pattern, &entries, &rows, (n, mode));
    let held = allocate::bytes_of(&pattern.arrays()) + (entries.nnz * dtype.bytes()) as u64;
    let weighed = Weighed { nnz: entries.nnz as u64, held, dtype, options, target };
    let steps = sampled_steps(&rows, pattern.columns());
    let mut all = Vec::new();
    // Formats with equal blocks are adjacent in the list, and share these counts.
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
        if all.iter().any(|own: &FormatAdvice| own.format == Some(slots.format)) {
            continue;
        }
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
        all.push(weighed.format(&slots, work)?);
    }
    all.push(weighed.dense(of_entries.all_stored(dtype))?);
    all.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
    Ok(all)
}

/// The sparse matrix, in a context or in host memory.
enum Stored<'a, T: Scalar> {
    InContext(&'a SparseTensor<T>),
    OnHost(&'a SparseRef<'a, T>),
}

impl<T: Scalar> PlanBuilder<'_, T> {
    /// Compares the storage formats of the sparse matrix of `C[m,n] (= | +=) A[m,k] * B[k,n]`: dense, `csr`,
    /// `groupcoo`, `sell`, `bsr` and `blockgroupcoo`. The result is sorted, cheapest first: on a GPU by the predicted
    /// time of the cheapest kernel, on a CPU context by the steps of its executor. Formats without an eligible kernel
    /// come last, with a [`FormatAdvice::refusal`]. Values in device memory are copied to the host. A plan may also
    /// prepack A in other forms, which its [`choice`](Plan::choice) lists.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, Format, generate};
    /// let pattern = generate::uniform(512, 512, 0.02, 1)?;
    /// let values = vec![1.0f32; pattern.columns().len()];
    /// let a = Csr::new(pattern, values)?;
    /// let ctx = Context::cpu();
    /// let b = ctx.zeros::<f32>(&[512, 1])?;
    /// let advice = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).advise()?;
    /// assert_eq!(advice[0].format, Some(Format::Csr));
    /// assert_eq!(advice[0].kernel(), Some("cpu"));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Parse`] and other errors of the expression.
    /// - [`Error::Operand`] for another expression, for a missing operand, or if no operand is sparse.
    pub fn advise(&self) -> Result<Vec<FormatAdvice>> {
        let machine = self.context.machine();
        self.advise_on(match self.context.is_cuda() {
            true => Target::Gpu(&machine),
            false => Target::Cpu,
        })
    }

    /// Returns the advice of [`advise`](Self::advise) for a GPU with these properties, which need not be present.
    ///
    /// ```
    /// use einsparse::{Context, cost::Machine};
    /// use einsparse::formats::{Bsr, Format, Pattern, f16, generate};
    /// let pattern = generate::blocks(2048, 2048, (32, 32), 0.1, 1)?;
    /// let values = vec![f16::ONE; pattern.slots()];
    /// let a = Bsr::new(pattern, values)?.to_csr()?;
    /// let ctx = Context::cpu();
    /// let b = ctx.zeros::<f16>(&[2048, 512])?;
    /// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b);
    /// let advice = plan.advise_for(&Machine::H200)?;
    /// assert!(matches!(advice[0].format, Some(Format::Bsr { .. } | Format::BlockGroupCoo { .. })));
    /// assert!(advice[0].kernel().is_some() && advice[0].microseconds() <= advice[1].microseconds());
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`advise`](Self::advise).
    pub fn advise_for(&self, machine: &Machine) -> Result<Vec<FormatAdvice>> {
        self.advise_on(Target::Gpu(machine))
    }

    fn advise_on(&self, target: Target<'_>) -> Result<Vec<FormatAdvice>> {
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
            let found = format!("{} columns", csr.shape()[1]);
            return Err(Error::shape(*name, found, format!("{k} rows of the dense operand")));
        }
        let of = (n, einsum.mode);
        advice(csr.pattern(), of, T::DTYPE, &self.options, target)
    }
}
