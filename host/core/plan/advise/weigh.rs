//! Costs of the formats of a matrix in a product, from their numbers of slots.

use einsparse_formats::stats::Slots;
use einsparse_formats::{Format, allocate};
use einsparse_kernels::abi::Dtype;

use super::{FormatAdvice, Target};
use crate::cost::Work;
use crate::error::Result;
use crate::families::tensor::offers::einsum as general;
use crate::machine::Machine;
use crate::offer::{Candidate, Options, Problem, ZerosRule};

/// Counts from which the cost of each format follows.
pub(super) struct Weighed<'w> {
    pub(super) nnz: u64,
    /// Bytes of the matrix in CSR.
    pub(super) held: u64,
    pub(super) dtype: Dtype,
    pub(super) options: &'w Options,
    pub(super) target: Target<'w>,
}

impl Weighed<'_> {
    pub(super) fn format(&self, slots: &Slots, work: Work) -> Result<FormatAdvice> {
        let bytes = slots.bytes(self.dtype.bytes());
        let what = "slots with padding";
        if let Err(error) = allocate::extent_bytes(what, slots.values, bytes, self.held) {
            return Ok(FormatAdvice {
                format: Some(slots.format),
                values_per_entry: slots.ratio(),
                candidate: None,
                cpu_steps: None,
                refused: Some(error.to_string()),
            });
        }
        self.of(Some(slots.format), (slots, self.nnz), work)
    }

    pub(super) fn dense(&self, work: Work) -> Result<FormatAdvice> {
        let values = work.m as u128 * work.k as u128;
        let slots =
            Slots { format: Format::Csr, index: 0, values, padding: values - u128::from(self.nnz) };
        self.of(None, (&slots, values as u64), work)
    }

    /// Returns the advice for these slots. The CPU multiplies `multiplied` of them.
    fn of(
        &self,
        format: Option<Format>,
        (slots, multiplied): (&Slots, u64),
        work: Work,
    ) -> Result<FormatAdvice> {
        let (mut candidate, mut steps) = (None, None);
        match self.target {
            Target::Cpu => steps = Some(cpu_steps(format, slots, multiplied, work.n)),
            Target::Gpu(machine) => candidate = self.cheapest(format, slots, work, machine)?,
        }
        Ok(FormatAdvice {
            format,
            values_per_entry: slots.ratio(),
            candidate,
            cpu_steps: steps,
            refused: None,
        })
    }

    /// Returns the cheapest kernel for a format. As in plans, product kernels take precedence over general ones.
    fn cheapest(
        &self,
        format: Option<Format>,
        slots: &Slots,
        work: Work,
        machine: &Machine,
    ) -> Result<Option<Candidate>> {
        // A plan may select another kernel, because it has the real row strides.
        let problem = Problem::contiguous(format, work, self.dtype);
        let choice = problem.candidates(machine, self.options);
        let best = choice.candidates.into_iter().next();
        // A dense matrix instead of the sparse one multiplies implicit zeros.
        let is_strict = format.is_none() && self.options.zeros == ZerosRule::Strict;
        if best.is_some() || is_strict {
            return Ok(best);
        }
        let of = (slots.values as f64, self.dtype);
        let mut all = general::product(format, of, &work, machine)?;
        let wanted = self.options.variant.as_deref();
        all.retain(|c| wanted.is_none_or(|name| name == c.name));
        let us = |c: &Candidate| c.cost.us;
        Ok(all.into_iter().min_by(|a, b| us(a).total_cmp(&us(b))))
    }
}

/// Returns the steps of the CPU executor: products, slots read, and slots that each run sorts by rows.
fn cpu_steps(format: Option<Format>, slots: &Slots, multiplied: u64, n: usize) -> f64 {
    const READ: f64 = 2.0;
    const REORDER: f64 = 16.0;
    let values = slots.values as f64;
    let reorder = match format {
        Some(Format::SlicedEll) => REORDER * values,
        _ => 0.0,
    };
    multiplied as f64 * n as f64 + READ * (values + slots.index as f64) + reorder
}
