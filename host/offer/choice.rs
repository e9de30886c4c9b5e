//! What a plan can choose from: candidates with predicted costs, and refusals with reasons.

use std::fmt;

use einsparse_formats::Format;
use einsparse_kernels::abi::Zeros;
use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::error::Refusal;

/// A kernel that can run this, and what it is predicted to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name in the table.
    pub name: &'static str,
    /// The prediction.
    pub cost: Cost,
    /// What it does with implicit zeros.
    pub zeros: Zeros,
    /// The form in which the plan holds the sparse factor for it; `None` if it reads the operand.
    pub prepacked: Option<PrepackedForm>,
}

impl Candidate {
    /// The kernel of a row, which reads what it is given as it is.
    pub(crate) fn of(row: &'static Row, cost: Cost) -> Self {
        Candidate { name: row.name, cost, zeros: row.zeros, prepacked: None }
    }
}

/// The kernels that a plan weighed, and those that cannot run it. It prints as a line for each candidate, cheapest
/// first and the one that is taken marked, then a line for each reason of refusals; `{:#}` names each refused kernel.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::generate;
/// let a = generate::uniform(256, 256, 0.1, 1)?;
/// let a = einsparse::formats::Csr::new(a.clone(), vec![1.0f32; a.columns().len()])?;
/// let ctx = Context::new();
/// let b = ctx.zeros::<f32>(&[256, 64])?;
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
    /// Cheapest first.
    #[doc(hidden)]
    pub candidates: Vec<Candidate>,
    /// Whether the first candidate is what the plan runs: so on a GPU. On the CPU candidates are predictions alone.
    #[doc(hidden)]
    pub taken: bool,
    /// Rows that cannot run this, and why.
    #[doc(hidden)]
    pub refused: Vec<Refusal>,
}

impl Choice {
    /// Cheapest first.
    pub(crate) fn sort(&mut self) {
        self.candidates.sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
    }
}

impl Choice {
    fn own(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|_| self.taken)
    }

    /// Name of the kernel that the plan runs; `None` on the CPU.
    pub fn kernel(&self) -> Option<&'static str> {
        self.own().map(|own| own.name)
    }

    /// Microseconds that a run of this kernel is predicted to take; `None` on the CPU.
    pub fn microseconds(&self) -> Option<f64> {
        self.own().map(|own| own.cost.us)
    }

    /// Name and predicted microseconds of each kernel that can run this, cheapest first; on the CPU those of an H200.
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = (&'static str, f64)> {
        self.candidates.iter().map(|c| (c.name, c.cost.us))
    }

    /// Why kernels were refused, each reason once with the names of those that have it, in the order of the table.
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

/// In which form a plan keeps A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepackedForm {
    /// With its zeros.
    Dense,
    /// In another format.
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
