//! A plan of any element types.

use std::collections::BTreeMap;
use std::fmt;

use super::adaptive::Adaptive;
use super::arrays::none_given;
use super::bind;
use super::choose::{self, Choice};
use super::family::{Compiled, Types};
use super::gate::once_each;
use super::into;
use super::joined::{Asked, Joined, sparse_among, sparse_factors};
use super::kept::KeptForm;
use super::options::Options;
use super::window::Sums;
use crate::context::Context;
use crate::device::Stream;
use crate::einsum::{Einsum, Extents};
use crate::error::Result;
use crate::indirect::{IndirectEinsum, rewrite, rewrite_dense};
use crate::kernel::Queue;
use crate::launch::RawSpmm;
use crate::tensor::{AnyOperand, AnyTensor};

/// A [`Plan`](super::Plan) of any element types.
#[derive(Debug)]
pub(crate) struct AnyPlan {
    pub(super) types: Types,
    pub(super) context: Context,
    pub(super) einsum: Einsum,
    pub(super) indirect: IndirectEinsum,
    pub(super) out_shape: Vec<usize>,
    pub(super) shapes: BTreeMap<String, Vec<usize>>,
    pub(super) made: Box<dyn Compiled>,
    pub(super) choice: Choice,
}

impl AnyPlan {
    pub(crate) fn new(
        on: (&Context, Types),
        text: &str,
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Self> {
        Self::of(on, Einsum::parse(text)?, operands, options)
    }

    pub(super) fn of(
        (context, types): (&Context, Types),
        einsum: Einsum,
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Self> {
        once_each(operands)?;
        let shapes: BTreeMap<String, Vec<usize>> = operands
            .iter()
            .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
            .collect();
        let extents = einsum.check(&shapes)?;
        if let Some(sums) = Sums::of(&einsum, &extents, operands)? {
            let (whole, known) = ((einsum, shapes), (&extents, sums));
            return Self::windowed((context, types), whole, known, operands, options);
        }
        let adaptive = Adaptive::new((context, types), &einsum, operands, options)?;
        let adaptive = match adaptive {
            Ok(adaptive) => {
                return Self::adapting((context, types), einsum, shapes, &extents, adaptive);
            }
            Err(reason) => reason,
        };
        let known = bind::as_dense(operands);
        let (operands, dynamic) = match &known {
            Some((dense, dynamic)) => (&dense[..], &dynamic[..]),
            None => (operands, &[][..]),
        };
        if sparse_factors(&einsum, operands).len() > 1 {
            return Self::joined(
                (context, types),
                (einsum, shapes),
                &extents,
                (operands, options),
            );
        }
        let indirect = match sparse_among(&einsum, operands)? {
            Some((name, format)) => rewrite(&einsum, name, &format)?,
            None => rewrite_dense(&einsum)?,
        };
        let mut plan = Self::chosen(
            (context, types),
            (einsum, indirect, shapes),
            extents,
            (operands, dynamic),
            options,
        )?;
        plan.choice.refused.extend(adaptive);
        Ok(plan)
    }

    /// Several kernels, of which each run takes one.
    fn adapting(
        (context, types): (&Context, Types),
        einsum: Einsum,
        shapes: BTreeMap<String, Vec<usize>>,
        extents: &Extents,
        adaptive: Adaptive,
    ) -> Result<Self> {
        Ok(AnyPlan {
            types,
            context: context.clone(),
            indirect: adaptive.plan().indirect.clone(),
            choice: adaptive.plan().choice.clone(),
            einsum,
            out_shape: extents.out().to_vec(),
            shapes,
            made: Box::new(adaptive),
        })
    }

    /// Several sparse factors: a plan over position lists.
    fn joined(
        (context, types): (&Context, Types),
        (einsum, shapes): (Einsum, BTreeMap<String, Vec<usize>>),
        extents: &Extents,
        (operands, options): (&[(&str, AnyOperand<'_>)], &Options),
    ) -> Result<Self> {
        let asked = Asked {
            types,
            context,
            einsum: &einsum,
            operands,
            options,
        };
        let joined = Joined::dense(&asked, extents.out())?;
        Ok(AnyPlan {
            types,
            context: context.clone(),
            indirect: joined.plan().indirect.clone(),
            choice: joined.plan().choice.clone(),
            einsum,
            out_shape: extents.out().to_vec(),
            shapes,
            made: Box::new(joined),
        })
    }

    /// The best kernel for an expression whose formats are written in.
    pub(super) fn chosen(
        (context, types): (&Context, Types),
        (einsum, indirect, shapes): (Einsum, IndirectEinsum, BTreeMap<String, Vec<usize>>),
        extents: Extents,
        operands: bind::Given<'_, '_>,
        options: &Options,
    ) -> Result<Self> {
        let out_shape = extents.out().to_vec();
        let asked = (options, types);
        let choose::Picked { made, choice } =
            choose::choose(context, (&einsum, &indirect), operands, &extents, asked)?;
        Ok(AnyPlan {
            types,
            context: context.clone(),
            einsum,
            indirect,
            out_shape,
            shapes,
            made,
            choice,
        })
    }

    pub(crate) fn einsum(&self) -> &Einsum {
        &self.einsum
    }

    pub(crate) fn out_shape(&self) -> &[usize] {
        &self.out_shape
    }

    pub(crate) fn choice(&self) -> &Choice {
        &self.choice
    }

    pub(crate) fn variant(&self) -> &'static str {
        self.made.variant()
    }

    pub(crate) fn kept(&self) -> Option<KeptForm> {
        self.made.kept()
    }

    pub(crate) fn workspace_bytes(&self) -> usize {
        self.made.bytes()
    }

    pub(crate) fn run(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        none_given(operands)?;
        self.check_shapes(operands, out)?;
        if let Some((dense, _)) = bind::as_dense(operands) {
            return self.run(&dense, out, stream);
        }
        self.made.run(self, operands, out, stream)
    }

    pub(super) fn refresh(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        stream: &Stream,
    ) -> Result<()> {
        self.made.refresh(self, operands, stream)
    }

    /// [`Plan::run_raw`](super::Plan::run_raw) behind its promise.
    pub(crate) fn run_raw(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        self.context.expect_device()?;
        into::whole_factor(self.types.out, raw.alpha)?;
        self.made.run_raw(self, raw, queue)
    }
}

impl fmt::Display for AnyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.made, f)
    }
}
