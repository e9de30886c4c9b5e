//! Sparse operand for which a kernel was prepared: comparison of its pattern with that of a run, and its device arrays.

use std::sync::OnceLock;

use einsparse_formats::{AnyPattern, SharedPattern};

use super::wrong;
use crate::error::{Elsewhere, Error, Result};
use crate::tensor::{AnyOperand, DeviceArrays};

/// Pattern of a sparse operand as planned.
#[derive(Debug)]
pub(crate) struct PlannedPattern {
    name: String,
    planned: SharedPattern,
    /// Another pattern object that was compared and is equal.
    known: OnceLock<SharedPattern>,
}

impl PlannedPattern {
    pub(crate) fn new(name: &str, planned: AnyPattern<'_>) -> Self {
        PlannedPattern { name: name.to_owned(), planned: planned.shared(), known: OnceLock::new() }
    }

    /// Returns the name of the operand.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the planned pattern.
    pub(crate) fn planned(&self) -> AnyPattern<'_> {
        self.planned.view()
    }

    /// Whether both patterns have their nonzeros in the same slots. It compares arrays, unless the pattern object is
    /// the planned one or an earlier equal one.
    pub(crate) fn is(&self, other: AnyPattern<'_>) -> bool {
        let known = self.known.get();
        if self.planned().is(other) || known.is_some_and(|known| known.view().is(other)) {
            return true;
        }
        let same = self.planned() == other;
        if same {
            let _ = self.known.set(other.shared());
        }
        same
    }

    /// Returns the device arrays of an operand.
    ///
    /// # Errors
    /// The operand is not an uploaded sparse tensor, or its pattern differs from the planned one.
    pub(crate) fn arrays<'o>(&self, operand: &AnyOperand<'o>) -> Result<&'o DeviceArrays> {
        let tensor = match operand {
            AnyOperand::Sparse(tensor) => *tensor,
            other => return Err(wrong(&self.name, "an uploaded sparse tensor", other)),
        };
        self.expect(&self.name, tensor.pattern())?;
        tensor.device().or_elsewhere(&self.name)
    }

    /// Checks that `pattern` is the planned one.
    ///
    /// # Errors
    /// The pattern differs from the planned one.
    pub(crate) fn expect(&self, name: &str, pattern: AnyPattern<'_>) -> Result<()> {
        match self.is(pattern) {
            true => Ok(()),
            false => Err(Error::pattern(name, self.planned(), pattern)),
        }
    }
}
