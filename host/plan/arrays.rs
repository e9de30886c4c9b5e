//! Index arrays written by hand, as a plan was made with them.

use super::bind::find;
use crate::error::{Error, Result};
use crate::tensor::AnyOperand;

/// Slots of an array that a run compares with those planned.
const SAMPLES: usize = 64;

/// The index arrays among the operands: lengths, and some slots of each.
#[derive(Debug)]
pub(super) struct PlannedArrays(Vec<Sampled>);

#[derive(Debug)]
struct Sampled {
    name: String,
    len: usize,
    slots: Vec<u32>,
}

fn sample(data: &[u32]) -> Vec<u32> {
    let step = data.len().div_ceil(SAMPLES).max(1);
    data.iter().step_by(step).copied().collect()
}

impl PlannedArrays {
    pub(super) fn of(operands: &[(&str, AnyOperand<'_>)]) -> Self {
        let arrays = operands.iter().filter_map(|(name, operand)| match operand {
            AnyOperand::Index(_, data) => Some(Sampled {
                name: name.to_string(),
                len: data.len(),
                slots: sample(data),
            }),
            _ => None,
        });
        PlannedArrays(arrays.collect())
    }

    /// The arrays are those of the plan, as far as a few slots tell.
    pub(super) fn check(&self, operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
        for planned in &self.0 {
            let same = match find(operands, &planned.name)? {
                AnyOperand::Index(_, data) => {
                    data.len() == planned.len && sample(data) == planned.slots
                }
                _ => false,
            };
            if !same {
                return Err(Error::Operand {
                    name: planned.name.clone(),
                    reason: "is not the index array that was planned".into(),
                });
            }
        }
        Ok(())
    }
}
