//! The sparse operand that a kernel was made for: whether a run brings the same pattern, and where its arrays lie.

use std::sync::OnceLock;

use einsparse_formats::{AnyPattern, SharedPattern};

use super::bind::{find, wrong};
use crate::error::{Error, Result};
use crate::tensor::{AnyOperand, DeviceArrays};

/// The pattern of a sparse operand as planned.
#[derive(Debug)]
pub(crate) struct PlannedPattern {
    name: String,
    planned: SharedPattern,
    /// Another one that was compared and is the same.
    known: OnceLock<SharedPattern>,
}

impl PlannedPattern {
    pub(crate) fn new(name: &str, planned: AnyPattern<'_>) -> Self {
        PlannedPattern { name: name.to_owned(), planned: planned.shared(), known: OnceLock::new() }
    }

    /// The operand's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What was planned with.
    pub(crate) fn planned(&self) -> AnyPattern<'_> {
        self.planned.view()
    }

    /// Whether entries are in the same slots. Compares the arrays of a pattern that is not known yet.
    pub(crate) fn is(&self, other: AnyPattern<'_>) -> bool {
        let known = self.known.get();
        if known.is_some_and(|known| known.view().is(other)) {
            return true;
        }
        let same = self.planned() == other;
        if same && !self.planned().is(other) {
            let _ = self.known.set(other.shared());
        }
        same
    }

    /// The device arrays of the operand of this name.
    ///
    /// # Errors
    /// Where it is no uploaded sparse tensor, or has another pattern than planned.
    pub(crate) fn arrays<'o>(
        &self,
        operands: &'o [(&str, AnyOperand<'_>)],
    ) -> Result<&'o DeviceArrays> {
        let tensor = match find(operands, &self.name)? {
            AnyOperand::Sparse(tensor) => tensor,
            other => return Err(wrong(&self.name, "an uploaded sparse tensor", other)),
        };
        let arrays = tensor.device().filter(|_| self.is(tensor.pattern()));
        arrays.ok_or_else(|| Error::other_pattern(&self.name))
    }

    /// # Errors
    /// Where it is another pattern than planned.
    pub(crate) fn expect(&self, name: &str, pattern: AnyPattern<'_>) -> Result<()> {
        match self.is(pattern) {
            true => Ok(()),
            false => Err(Error::other_pattern(name)),
        }
    }
}
