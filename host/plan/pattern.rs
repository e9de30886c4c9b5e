//! The sparse operand that a kernel was made for: whether a run brings the same pattern, and where its arrays lie.

use std::sync::{Arc, OnceLock};

use einsparse_formats::AnySparse;

use super::Operand;
use super::bind::{find, wrong};
use crate::error::{Error, Result};
use crate::registry::Scalar;
use crate::tensor::DeviceArrays;

/// The pattern of a sparse operand as planned.
#[derive(Debug)]
pub(crate) struct PlannedPattern<T> {
    name: String,
    planned: Arc<AnySparse<T>>,
    /// Another tensor whose pattern was compared and is the same.
    known: OnceLock<Arc<AnySparse<T>>>,
}

impl<T: Scalar> PlannedPattern<T> {
    pub(crate) fn new(name: &str, planned: &Arc<AnySparse<T>>) -> Self {
        PlannedPattern {
            name: name.to_owned(),
            planned: Arc::clone(planned),
            known: OnceLock::new(),
        }
    }

    /// What was planned with.
    pub(crate) fn planned(&self) -> &AnySparse<T> {
        &self.planned
    }

    /// Whether a tensor has entries in the same slots. Compares the arrays of a tensor that is not known yet.
    pub(crate) fn is(&self, other: &Arc<AnySparse<T>>) -> bool {
        let mut known = [Some(&self.planned), self.known.get()]
            .into_iter()
            .flatten();
        if known.any(|known| Arc::ptr_eq(known, other)) {
            return true;
        }
        let same = self.planned.format() == other.format()
            && self.planned.shape() == other.shape()
            && self.planned.arrays() == other.arrays();
        if same {
            let _ = self.known.set(Arc::clone(other));
        }
        same
    }

    /// The device arrays of the operand of this name.
    ///
    /// # Errors
    /// Where it is no uploaded sparse tensor, or has another pattern than planned.
    pub(crate) fn arrays<'o>(
        &self,
        operands: &'o [(&str, Operand<'_, T>)],
    ) -> Result<&'o DeviceArrays> {
        let tensor = match find(operands, &self.name)? {
            Operand::Sparse(tensor) => tensor,
            other => return Err(wrong(&self.name, "an uploaded sparse tensor", other)),
        };
        let arrays = tensor.device().filter(|_| self.is(tensor.shared_pattern()));
        arrays.ok_or_else(|| Error::Operand {
            name: self.name.clone(),
            reason: "has not the pattern, the format or the context that was planned".into(),
        })
    }
}
