//! Expressions with sums of indices, as convolutions have them: `C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]`. A plan over
//! them owns an index array for each sum and runs a plan of the expression that reads these, so that every family and
//! the CPU executor take such expressions as they take gathers.

mod skipping;

use std::collections::BTreeMap;
use std::fmt;

use super::Options;
use super::any::AnyPlan;
use super::joined::sparse_factors;
use crate::context::Context;
use crate::einsum::{Access, Einsum, Extents, IndexExpr, SumArray, Term};
use crate::error::{Error, Result};
use crate::offer::{Compiled, Run, Types};
use crate::tensor::{AnyOperand, AnyTensor};
use skipping::Skipping;

/// A convolution over two axes, by its structure: `C[n,x,y,f] = A[n,s*x+d*i,t*y+e*j,m] * B[i,j,m,f]`, whatever the
/// names and the order of factors and terms, with any mode, scalar factors and epilogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    /// Numbers of A and B among the factors.
    pub(super) factors: [usize; 2],
    /// s and t.
    pub(super) strides: [usize; 2],
    /// d and e.
    pub(super) dilations: [usize; 2],
}

/// The convolution that an expression is as it was written, `None` where it is none. Here a plan tells it from other
/// sums of indices.
pub(super) fn windows(e: &Einsum) -> Option<Windows> {
    let [n, x, y, f] = plain(&e.out)?[..] else {
        return None;
    };
    let [first, second] = e.factors.as_slice() else {
        return None;
    };
    let of = |a: &Access, b: &Access| {
        let [i, j, m, own] = plain(b)?[..] else {
            return None;
        };
        let [
            IndexExpr::Name(batch),
            IndexExpr::Sum(down),
            IndexExpr::Sum(across),
            IndexExpr::Name(channel),
        ] = a.indices.as_slice()
        else {
            return None;
        };
        let all = [n, x, y, f, i, j, m];
        let different = (1..all.len()).all(|at| !all[..at].contains(&all[at]));
        let fits = different && (batch, channel, own) == (n, m, f);
        let ([s, d], [t, e]) = (step(down, [x, i])?, step(across, [y, j])?);
        fits.then_some(([s, t], [d, e]))
    };
    let found = |(factors, (strides, dilations))| Windows {
        factors,
        strides,
        dilations,
    };
    let one = of(first, second).map(|steps| ([0, 1], steps));
    one.or_else(|| Some(([1, 0], of(second, first)?)))
        .map(found)
}

/// The names of an access with plain indices.
fn plain(access: &Access) -> Option<Vec<&String>> {
    let name = |index: &'_ IndexExpr| matches!(index, IndexExpr::Name(_));
    access.indices.iter().all(name).then(|| {
        let names = access.indices.iter().filter_map(|index| match index {
            IndexExpr::Name(name) => Some(name),
            _ => None,
        });
        names.collect()
    })
}

/// The factors of the place and of the element of a window in a sum of these two.
fn step(terms: &[Term], [place, element]: [&String; 2]) -> Option<[usize; 2]> {
    match terms {
        [a, b] if (&a.index, &b.index) == (place, element) => Some([a.factor, b.factor]),
        [a, b] if (&a.index, &b.index) == (element, place) => Some([b.factor, a.factor]),
        _ => None,
    }
}

/// Sums of indices stand at axes of dense operands.
pub(super) fn no_sparse_sums(e: &Einsum, operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
    for factor in sparse_factors(e, operands) {
        let access = &e.factors[factor];
        let sum = |index: &&IndexExpr| matches!(index, IndexExpr::Sum(_));
        if let Some(index) = access.indices.iter().find(sum) {
            return Err(Error::Operand {
                name: access.tensor.clone(),
                reason: format!(
                    "is sparse, and cannot be read at `{index}` in `{access}`: sums of indices are for dense operands"
                ),
            });
        }
    }
    Ok(())
}

/// An expression with its sums read from index arrays, and these.
#[derive(Debug)]
pub(super) struct Sums {
    pub(super) einsum: Einsum,
    arrays: Vec<SumArray>,
    form: Option<Windows>,
}

impl Sums {
    /// `None` for an expression without any.
    pub(super) fn of(
        e: &Einsum,
        extents: &Extents,
        operands: &[(&str, AnyOperand<'_>)],
    ) -> Result<Option<Self>> {
        if !e.has_sums() {
            return Ok(None);
        }
        no_sparse_sums(e, operands)?;
        Ok(Some(Sums {
            einsum: e.with_arrays(),
            arrays: e.sum_arrays(extents)?,
            form: windows(e),
        }))
    }

    /// The operands with the arrays beside them.
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
        if let Some(Windows {
            strides: [s, t],
            dilations: [d, e],
            ..
        }) = self.form
        {
            write!(f, "a convolution of stride {s} x {t}, dilation {d} x {e}; ")?;
        }
        for (at, array) in self.arrays.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}{} {:?}", array.name, array.shape)?;
        }
        write!(f, " from index arrays")
    }
}

/// A plan over index arrays for sums.
#[derive(Debug)]
pub(super) struct Windowed {
    sums: Sums,
    plan: Box<AnyPlan>,
    /// What runs in its place, where the operands of a run allow it.
    skipping: Option<Skipping>,
}

impl Compiled for Windowed {
    fn variant(&self) -> &'static str {
        let skipping = self.skipping.as_ref().map(Skipping::variant);
        skipping.unwrap_or_else(|| self.plan.variant())
    }

    fn bytes(&self) -> usize {
        self.plan.workspace_bytes() + self.skipping.as_ref().map_or(0, Skipping::bytes)
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        if let Some(skipping) = &self.skipping {
            let queue = run.queue(out)?;
            if skipping.fits(run.operands, Some(&*out))? {
                return skipping.run(run.operands, out, queue);
            }
        }
        self.plan.run(run.operands, out, run.stream)
    }
}

impl fmt::Display for Windowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(skipping) = &self.skipping {
            write!(f, "{} of what is not empty; else ", skipping.variant())?;
        }
        write!(f, "{}, {}", self.plan, self.sums)
    }
}

impl AnyPlan {
    /// A plan of an expression with sums. What it prints and checks is the expression as written.
    pub(super) fn windowed(
        (context, types): (&Context, Types),
        (einsum, shapes): (Einsum, BTreeMap<String, Vec<usize>>),
        (extents, sums): (&Extents, Sums),
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Self> {
        let written = (&einsum, sums.form.as_ref(), extents.out());
        let skipping = Skipping::new((context, types), written, operands, options)?;
        let mut options = options.clone();
        if skipping.is_ok() {
            // The one that was asked for is there; the other is for operands that it cannot read.
            options.variant = None;
        }
        let plan = AnyPlan::of(
            (context, types),
            sums.einsum.clone(),
            &sums.bound(operands),
            &options,
        )?;
        let mut choice = plan.choice.clone();
        let skipping = match skipping {
            Ok(skipping) => {
                let candidate = skipping.candidate(context);
                choice.candidates.splice(..0, candidate);
                Some(skipping)
            }
            Err(refusal) => {
                choice.refused.extend(refusal);
                None
            }
        };
        let windowed = Windowed {
            sums,
            plan: Box::new(plan),
            skipping,
        };
        let of = (einsum, shapes);
        Ok(AnyPlan {
            choice,
            ..Self::holding((context, types), of, extents, windowed, |own| &own.plan)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<Windows> {
        windows(&Einsum::parse(text).unwrap())
    }

    #[test]
    fn convolutions_are_told_by_structure() {
        let windows = |factors, strides, dilations| {
            Some(Windows {
                factors,
                strides,
                dilations,
            })
        };
        assert_eq!(
            found("C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]"),
            windows([0, 1], [1, 1], [1, 1])
        );
        assert_eq!(
            found("Y[b,p,q,o] += relu(2 * W[r,s,c,o] * X[b,5*r+2*p,3*q+s,c] + bias[o])"),
            windows([1, 0], [2, 3], [5, 1])
        );
    }

    #[test]
    fn other_sums_are_not() {
        for text in [
            "C[x] = A[x+i] * B[i]",
            "C[n,f,x,y] = A[n,m,x+i,y+j] * B[f,m,i,j]",
            "C[n,x,y,f] = A[n,x+j,y+i,m] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i,y+j,f] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i,y+i,m] * B[i,i,m,f]",
            "C[n,x,y,f] = A[n,x+i,2*y,m] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i+j,y+j,m] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f] * D[f]",
            "C[n,x,y,f] = A[n,X[x,i],Y[y,j],m] * B[i,j,m,f]",
            "C[m,n] = A[m,k] * B[k,n]",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
