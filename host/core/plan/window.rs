//! Expressions with affine indices, such as the convolution `C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]`. The plan owns
//! one index array per affine index, and runs a plan of the expression that reads these arrays. Every family and the
//! CPU executor thus process affine indices as gathers.

use std::fmt;

use super::Options;
use super::any::AnyPlan;
use super::joined::sparse_factors;
use crate::einsum::{Einsum, Extents, IndexExpr, SumArray, Windows, windows};
use crate::error::{Error, Result};
use crate::families::gather_gemm::offers::images::ImageKernels;
use crate::offer::{AnyOut, Executable, Run, Source, Weights};
use crate::tensor::AnyOperand;

/// Checks that only dense operands have affine indices.
pub(super) fn no_sparse_sums(e: &Einsum, operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
    for factor in sparse_factors(e, operands) {
        let access = &e.factors[factor];
        let sum = |index: &&IndexExpr| matches!(index, IndexExpr::Sum(_));
        if let Some(index) = access.indices.iter().find(sum) {
            return Err(Error::operand(
                &access.tensor,
                format!(
                    "is sparse, and cannot be read at `{index}` in `{access}`: sums of indices are for dense operands"
                ),
            ));
        }
    }
    Ok(())
}

/// Expression with index arrays instead of affine indices, and these arrays.
#[derive(Debug)]
pub(super) struct Sums {
    pub(super) einsum: Einsum,
    arrays: Vec<SumArray>,
    form: Option<Windows>,
}

impl Sums {
    /// Returns the index arrays of an expression; `None` without affine indices.
    pub(super) fn of(
        e: &Einsum,
        extents: &Extents,
        operands: &[(&str, AnyOperand<'_>)],
    ) -> Result<Option<Self>> {
        if !e.has_sums() {
            return Ok(None);
        }
        no_sparse_sums(e, operands)?;
        Ok(Some(Sums { einsum: e.with_arrays(), arrays: e.sum_arrays(extents)?, form: windows(e) }))
    }

    /// Returns the operands and the index arrays.
    pub(super) fn bound<'o>(
        &'o self,
        operands: &[(&'o str, AnyOperand<'o>)],
    ) -> Vec<(&'o str, AnyOperand<'o>)> {
        let array = |array: &'o SumArray| {
            let own = AnyOperand::Index(&array.shape, &array.slots);
            (array.name.as_str(), own)
        };
        let given = operands.iter().copied();
        given.chain(self.arrays.iter().map(array)).collect()
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Windows { strides: [s, t], dilations: [d, e], .. }) = self.form {
            write!(f, "a convolution of stride {s} x {t}, dilation {d} x {e}; ")?;
        }
        for (at, array) in self.arrays.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}{} {:?}", array.name, array.shape)?;
        }
        write!(f, " from index arrays")
    }
}

/// Plan over the index arrays of affine indices.
#[derive(Debug)]
pub(super) struct Windowed {
    sums: Sums,
    plan: Box<AnyPlan>,
    /// Convolution kernels that run instead of `plan` if they support the operands of a run.
    kernels: Option<ImageKernels>,
}

impl Executable for Windowed {
    fn variant(&self) -> &'static str {
        let own = self.kernels.as_ref().map(ImageKernels::variant);
        own.unwrap_or_else(|| self.plan.variant())
    }

    fn bytes(&self) -> usize {
        self.plan.workspace_bytes() + self.kernels.as_ref().map_or(0, ImageKernels::bytes)
    }

    fn steps(&self) -> Option<String> {
        self.plan.made.steps()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        match &self.kernels {
            Some(kernels) if kernels.run_if_it_fits(run, out)? => Ok(()),
            _ => self.plan.run_slots(run.operands, AnyOut::Dense(out), run.stream),
        }
    }
}

impl fmt::Display for Windowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kernels) = &self.kernels {
            write!(f, "{kernels}; else ")?;
        }
        write!(f, "{}, {}", self.plan, self.sums)
    }
}

impl AnyPlan {
    /// Plans an expression with affine indices. The plan checks and prints the expression as written.
    pub(super) fn windowed(source: &Source<'_, '_>, extents: &Extents, sums: Sums) -> Result<Self> {
        let kernels = ImageKernels::new(source, sums.form.as_ref(), extents.out())?;
        // `update_values` is not forwarded to the inner plan.
        let mut options = Options { weights: Weights::EachRun, ..source.options.clone() };
        if kernels.is_ok() {
            // `kernels` has the requested variant. The inner plan is for operands that it cannot read.
            options.variant = None;
        }
        // The index arrays follow the operands, so slots of the expression are slots of the inner plan.
        let operands = &sums.bound(source.operands)[..];
        let plan =
            AnyPlan::of(&Source { einsum: &sums.einsum, operands, options: &options, ..*source })?;
        let mut choice = plan.choice.clone();
        let kernels = match kernels {
            Ok(kernels) => {
                choice.candidates.splice(..0, kernels.candidates());
                Some(kernels)
            }
            Err(refusal) => {
                choice.refused.extend(refusal);
                None
            }
        };
        let windowed = Windowed { sums, plan: Box::new(plan), kernels };
        let own = Self::holding(source, extents, windowed, |own| &own.plan)?;
        Ok(AnyPlan { choice, ..own })
    }
}
