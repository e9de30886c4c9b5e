//! Plan with a dynamic element type.

use std::collections::BTreeMap;
use std::fmt;

use super::arrays::{check_arrays, none_given};
use super::choose;
use super::joined::{Asked, sparse_among, sparse_factors};
use super::window::Sums;
use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::einsum::{Einsum, Extents, Scalar};
use crate::error::{Error, Result};
use crate::indirect::{IndirectEinsum, rewrite, rewrite_dense};
use crate::kernel::Queue;
use crate::launch::{RawSddmm, RawSpmm};
use crate::offer::bind::{Given, as_dense};
use crate::offer::gate::once_each;
use crate::offer::{
    Choice, Compiled, Expression, Options, PrepackedForm, Run, Types, whole_factor,
};
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, ShadowOperands};

/// [`Plan`](super::Plan) with a dynamic element type.
#[derive(Debug)]
pub(crate) struct AnyPlan {
    pub(super) expression: Expression,
    pub(super) made: Box<dyn Compiled>,
    pub(super) choice: Choice,
    /// On a CPU context: a plan for an absent GPU, which refuses what a GPU refuses.
    pub(super) shadow: Shadow<AnyPlan>,
}

impl AnyPlan {
    pub(crate) fn new(
        on: (&Context, Types),
        text: &str,
        (operands, out): (&[(&str, AnyOperand<'_>)], Option<&AnySparseTensor>),
        options: &Options,
    ) -> Result<Self> {
        let (context, types) = on;
        let einsum = Einsum::parse(text)?;
        check_arrays(&einsum, operands)?;
        for (name, operand) in operands {
            if let AnyOperand::Dynamic(_, dynamic) = operand {
                dynamic.check(name)?;
            }
        }
        let own = match context.is_cuda() {
            true => None,
            false => ShadowOperands::of(operands)?,
        };
        let shadow = match own {
            Some(own) => Shadow::new(context, |context| {
                let out = out.map(AnySparseTensor::shadow).transpose()?;
                let given = (&own.operands()[..], out.as_ref());
                Self::made((context, types), einsum.clone(), given, options)
            })?,
            None => Shadow::none(),
        };
        let own = Self::made(on, einsum, (operands, out), options)?;
        Ok(AnyPlan { shadow, ..own })
    }

    fn made(
        on: (&Context, Types),
        einsum: Einsum,
        (operands, out): (&[(&str, AnyOperand<'_>)], Option<&AnySparseTensor>),
        options: &Options,
    ) -> Result<Self> {
        match out {
            None => {
                let name = einsum.out.tensor.as_str();
                if operands.iter().any(|(n, o)| *n == name && o.pattern().is_some()) {
                    let way = "is the output and sparse: `ctx.plan(text)..sparse_output(&s).build()` plans into it";
                    return Err(Error::operand(name, way));
                }
                Self::of(on, einsum, operands, options)
            }
            Some(out) => Self::into_sparse(on, einsum, (operands, out), options),
        }
    }

    pub(super) fn of(
        (context, types): (&Context, Types),
        einsum: Einsum,
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Self> {
        once_each(operands)?;
        let shapes: BTreeMap<String, Vec<usize>> =
            operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
        let extents = einsum.check(&shapes)?;
        let on = (context, types);
        if let Some(limited) = Self::limited(on, (&einsum, &shapes), &extents, operands, options)? {
            return Ok(limited);
        }
        if let Some(sums) = Sums::of(&einsum, &extents, operands)? {
            let (whole, known) = ((einsum, shapes), (&extents, sums));
            return Self::windowed((context, types), whole, known, operands, options);
        }
        let known = as_dense(operands);
        let (operands, dynamic) = match &known {
            Some((dense, dynamic)) => (&dense[..], &dynamic[..]),
            None => (operands, &[][..]),
        };
        if sparse_factors(&einsum, operands).len() > 1 {
            let asked = Asked { types, context, einsum: &einsum, operands, options };
            return Self::of_several_sparse(&asked, shapes, &extents);
        }
        let indirect = match sparse_among(&einsum, operands)? {
            Some((name, format)) => rewrite(&einsum, name, &format)?,
            None => rewrite_dense(&einsum)?,
        };
        let given = (operands, dynamic);
        Self::chosen((context, types), (einsum, indirect, shapes), extents, given, options)
    }

    /// Wraps an object that contains other plans. The choice and the rewritten expression are those of the plan that
    /// `held` returns.
    pub(super) fn holding<C: Compiled + 'static>(
        (context, types): (&Context, Types),
        (einsum, shapes): (Einsum, BTreeMap<String, Vec<usize>>),
        extents: &Extents,
        made: C,
        held: impl Fn(&C) -> &AnyPlan,
    ) -> Self {
        let held = held(&made);
        AnyPlan {
            choice: held.choice.clone(),
            expression: Expression {
                types,
                context: context.clone(),
                indirect: held.expression.indirect.clone(),
                einsum,
                out_shape: extents.out().to_vec(),
                shapes,
            },
            made: Box::new(made),
            shadow: Shadow::none(),
        }
    }

    /// Plans a rewritten expression with the cheapest kernel.
    pub(super) fn chosen(
        (context, types): (&Context, Types),
        (einsum, indirect, shapes): (Einsum, IndirectEinsum, BTreeMap<String, Vec<usize>>),
        extents: Extents,
        operands: Given<'_, '_>,
        options: &Options,
    ) -> Result<Self> {
        let out_shape = extents.out().to_vec();
        let asked = (options, types);
        let choose::Picked { made, choice } =
            choose::choose(context, (&einsum, &indirect), operands, &extents, asked)?;
        let expression =
            Expression { types, context: context.clone(), einsum, indirect, out_shape, shapes };
        Ok(AnyPlan { expression, made, choice, shadow: Shadow::none() })
    }

    pub(crate) fn einsum(&self) -> &Einsum {
        &self.expression.einsum
    }

    pub(crate) fn out_shape(&self) -> &[usize] {
        &self.expression.out_shape
    }

    pub(crate) fn variant(&self) -> &'static str {
        self.made.variant()
    }

    pub(crate) fn prepacked(&self) -> Option<PrepackedForm> {
        self.made.prepacked()
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
        self.in_shadow(operands, stream, |plan, given, stream| {
            plan.run(given, &mut out.shadow(), stream)
        })?;
        self.check(operands, out.shape())?;
        self.with_run(operands, stream, |run| self.made.run(run, out))
    }

    /// [`Self::run`] with a sparse output.
    pub(crate) fn run_sparse(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnySparseTensor,
        stream: &Stream,
    ) -> Result<()> {
        self.in_shadow(operands, stream, |plan, given, stream| {
            plan.run_sparse(given, &mut out.shadow()?, stream)
        })?;
        self.check(operands, out.shape())?;
        self.with_run(operands, stream, |run| self.made.run_sparse(run, out))
    }

    /// On a CPU context, checks the operands with the plan for the absent GPU.
    fn in_shadow(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        stream: &Stream,
        run: impl FnOnce(&AnyPlan, &[(&str, AnyOperand<'_>)], &Stream) -> Result<()>,
    ) -> Result<()> {
        self.shadow.look(stream, |plan, stream| {
            ShadowOperands::of(operands)?.map_or(Ok(()), |own| run(plan, &own.operands(), stream))
        })
    }

    fn check(&self, operands: &[(&str, AnyOperand<'_>)], out: &[usize]) -> Result<()> {
        none_given(operands)?;
        self.all_given(operands)?;
        self.expression.check_shapes(operands, out)
    }

    /// Checks that all operands of the expression are given. The rewritten expression has other names.
    fn all_given(&self, operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
        let e = &self.expression.einsum;
        let tensors = e.right().map(|access| access.tensor.as_str());
        let numbers = e.scalars.iter().filter_map(|scalar| match scalar {
            Scalar::Name(name) => Some(name.as_str()),
            Scalar::Literal(_) => None,
        });
        let given = |name: &str| operands.iter().any(|(own, _)| *own == name);
        match tensors.chain(numbers).find(|name| !given(name)) {
            Some(name) => Err(Error::missing_in(name, e)),
            None => Ok(()),
        }
    }

    /// Calls `run` with checked operands. Dynamic ones are passed as dense tensors.
    fn with_run(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        stream: &Stream,
        run: impl FnOnce(&Run<'_>) -> Result<()>,
    ) -> Result<()> {
        let dense = as_dense(operands);
        run(&Run {
            of: &self.expression,
            operands: dense.as_ref().map_or(operands, |(dense, _)| &dense[..]),
            stream,
        })
    }

    pub(super) fn update_values(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        stream: &Stream,
    ) -> Result<()> {
        self.in_shadow(operands, stream, |plan, given, stream| plan.update_values(given, stream))?;
        once_each(operands)?;
        self.made.update_values(&Run { of: &self.expression, operands, stream })
    }

    /// [`Plan::run_raw`](super::Plan::run_raw), after the caller has guaranteed that the addresses are valid.
    pub(crate) fn run_raw(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        self.expression.context.expect_device()?;
        whole_factor(self.expression.types.out, raw.alpha)?;
        self.made.run_raw(&self.expression, raw, queue)
    }

    /// [`Self::run_raw`] with a sparse output.
    pub(crate) fn run_raw_sparse(&self, raw: &RawSddmm, queue: Queue<'_>) -> Result<()> {
        self.expression.context.expect_device()?;
        whole_factor(self.expression.types.out, raw.alpha)?;
        self.made.run_raw_sparse(&self.expression, raw, queue)
    }
}

impl fmt::Display for AnyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.made, f)
    }
}
