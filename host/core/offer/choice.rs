//! Candidates of a plan with predicted costs, and refusals with reasons.

use std::fmt;

use einsparse_formats::Format;
use einsparse_kernels::abi::Zeros;
use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::error::Refusal;

/// Kernel that can run the expression, with its predicted cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name in the table of kernels.
    pub name: &'static str,
    /// Predicted cost.
    pub cost: Cost,
    /// Treatment of implicit zeros.
    pub zeros: Zeros,
    /// Form in which the plan stores the sparse factor for this kernel; `None` if the kernel reads the operand.
    pub prepacked: Option<PrepackedForm>,
}

impl Candidate {
    /// Candidate of a row that reads the operand in its stored form.
    pub(crate) fn of(row: &'static Row, cost: Cost) -> Self {
        Candidate { name: row.name, cost, zeros: row.zeros, prepacked: None }
    }
}

/// Candidate kernels of a plan, and the kernels that cannot run it. It prints one line per candidate, cheapest first,
/// with the selected one marked. One line per reason of refusals follows; `{:#}` prints every refused kernel.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::generate;
/// let a = generate::uniform(256, 256, 0.1, 1)?;
/// let a = einsparse::formats::Csr::new(a.clone(), vec![1.0f32; a.columns().len()])?;
/// let ctx = Context::new();
/// let (a, b) = (ctx.upload(&a)?, ctx.zeros::<f32>(&[256, 64])?);
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).build()?;
/// let choice = plan.choice();
/// // On a GPU the cheapest is taken; a plan of the CPU has predictions alone.
/// assert_eq!(choice.kernel().is_some(), ctx.is_cuda());
/// let (cheapest, microseconds) = choice.candidates().next().unwrap();
/// assert!(cheapest.starts_with("spmm_") && microseconds > 0.0, "{choice}");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Candidates, cheapest first.
    #[doc(hidden)]
    pub candidates: Vec<Candidate>,
    /// Whether the plan runs the first candidate. This is the case on a GPU; on a CPU, candidates are only predictions.
    #[doc(hidden)]
    pub taken: bool,
    /// Rows that cannot run the expression, with reasons.
    #[doc(hidden)]
    pub refused: Vec<Refusal>,
}

impl Choice {
    /// Sorts the candidates, cheapest first.
    pub(crate) fn sort(&mut self) {
        self.candidates.sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
    }
}

impl Choice {
    fn own(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|_| self.taken)
    }

    /// Returns the name of the kernel that the plan runs; `None` on a CPU.
    pub fn kernel(&self) -> Option<&'static str> {
        self.own().map(|own| own.name)
    }

    /// Returns the predicted time of a run of this kernel in microseconds; `None` on a CPU.
    pub fn microseconds(&self) -> Option<f64> {
        self.own().map(|own| own.cost.us)
    }

    /// Iterates over name and predicted microseconds of each candidate, cheapest first. On a CPU, the predictions are
    /// for an H200.
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = (&'static str, f64)> {
        self.candidates.iter().map(|c| (c.name, c.cost.us))
    }

    /// Returns each reason of refusals once, with the names of the refused kernels, in the order of the table.
    pub fn reasons(&self) -> Vec<(&str, Vec<&str>)> {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for Refusal { name, reason } in &self.refused {
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, names)) => names.push(name),
                None => reasons.push((reason, vec![name])),
            }
        }
        reasons
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.candidates.iter().enumerate() {
            let mark = if i == 0 && self.taken { "->" } else { "  " };
            write!(f, "{mark} {:26} {}, zeros = {:?}", c.name, c.cost, c.zeros)?;
            match c.prepacked {
                Some(form) => writeln!(f, ", A as {form}")?,
                None => writeln!(f)?,
            }
        }
        for (reason, names) in self.reasons() {
            let named = match names.as_slice() {
                [first, .., last] if names.len() > 3 && !f.alternate() => {
                    format!("{first} .. {last} ({})", names.len())
                }
                _ => names.join(", "),
            };
            writeln!(f, "   refused: {reason}: {named}")?;
        }
        Ok(())
    }
}

/// Form in which a plan stores a prepacked A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepackedForm {
    /// Dense, including zeros.
    Dense,
    /// Sparse, in another format.
    Sparse(Format),
}

impl fmt::Display for PrepackedForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrepackedForm::Dense => f.write_str("dense"),
            PrepackedForm::Sparse(format) => format.fmt(f),
        }
    }
}
