//! Plan with a dynamic element type.

use std::collections::BTreeMap;
use std::fmt;

use super::arrays::check_arrays;
use super::choose::choose;
use super::gradients::Planned;
use super::joined::{sparse_among, sparse_factors};
use super::window::Sums;
use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Result};
use crate::indirect::{IndirectEinsum, rewrite, rewrite_dense};
use crate::kernel::Queue;
use crate::launch::RawOperands;
use crate::offer::{
    AnyOut, Choice, Executable, Expression, Options, PrepackedForm, Request, Run, Source, Types,
    as_dense, once_each, whole_factor,
};
use crate::tensor::{
    AnyOperand, AnySparseTensor, AnyTensor, DynamicOptions, Named, ShadowOperands,
};

/// [`Plan`](super::Plan) with a dynamic element type.
#[derive(Debug)]
pub(crate) struct AnyPlan {
    pub(super) expression: Expression,
    pub(super) made: Box<dyn Executable>,
    pub(super) choice: Choice,
    /// On a CPU context: a plan for an absent GPU, which refuses what a GPU refuses.
    pub(super) shadow: Shadow<AnyPlan>,
    /// The operands, for gradients; `None` for a plan inside of another one.
    pub(super) planned: Option<Box<Planned>>,
}

impl AnyPlan {
    pub(crate) fn new(
        (context, types): (&Context, Types),
        text: &str,
        (operands, out): (&[(&str, AnyOperand<'_>)], Option<&AnySparseTensor>),
        options: &Options,
    ) -> Result<Self> {
        let einsum = &Einsum::parse(text)?;
        check_arrays(einsum, operands)?;
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
                let operands = &own.operands()[..];
                Self::made(&Source { types, context, einsum, operands, options }, out.as_ref())
            })?,
            None => Shadow::none(),
        };
        let own = Self::made(&Source { types, context, einsum, operands, options }, out)?;
        let planned = Some(Box::new(Planned::of(types, operands, out, options)?));
        Ok(AnyPlan { shadow, planned, ..own })
    }

    fn made(source: &Source<'_, '_>, out: Option<&AnySparseTensor>) -> Result<Self> {
        let shapes = source.operands.iter().filter_map(|(_, operand)| match operand {
            AnyOperand::Shape(shape) => Some(*shape),
            _ => None,
        });
        let device = source.context.device();
        let tensors = shapes.map(|shape| AnyTensor::of_shape(device, source.types.operands, shape));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let mut rest = tensors.iter();
        let mut operands: Named<'_, '_> = source.operands.into();
        for (_, operand) in &mut operands {
            if let AnyOperand::Shape(_) = operand {
                *operand = rest.next().map_or(*operand, AnyOperand::Dense);
            }
        }
        let source = &Source { operands: &operands, ..*source };
        let Some(out) = out else {
            let name = source.einsum.out.tensor.as_str();
            if operands.iter().any(|(n, o)| *n == name && o.pattern().is_some()) {
                let way = "is the output and sparse: `ctx.plan(text)..sparse_output(&s).build()` plans into it";
                return Err(Error::operand(name, way));
            }
            return Self::of(source);
        };
        Self::into_sparse(source, out)
    }

    /// Plans an expression with a dense output.
    pub(super) fn of(source: &Source<'_, '_>) -> Result<Self> {
        let einsum = source.einsum;
        once_each(source.operands)?;
        let shapes: BTreeMap<String, Vec<usize>> = source
            .operands
            .iter()
            .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
            .collect();
        let extents = einsum.check(&shapes)?;
        if let Some(limited) = Self::limited(source, &extents)? {
            return Ok(limited);
        }
        if let Some(sums) = Sums::of(einsum, &extents, source.operands)? {
            return Self::windowed(source, &extents, sums);
        }
        let known = as_dense(source.operands);
        let (operands, dynamic) = match &known {
            Some((dense, dynamic)) => (&dense[..], &dynamic[..]),
            None => (source.operands, &[][..]),
        };
        let source = &Source { operands, ..*source };
        if sparse_factors(einsum, operands).len() > 1 {
            return Self::of_several_sparse(source, &extents);
        }
        let indirect = match sparse_among(einsum, operands)? {
            Some((name, format)) => rewrite(einsum, name, &format)?,
            None => rewrite_dense(einsum)?,
        };
        Self::chosen(source, indirect, &extents, dynamic)
    }

    /// Wraps an executable that contains other plans. The choice and the rewritten expression are those of the plan that
    /// `held` returns.
    pub(super) fn holding<C: Executable + 'static>(
        source: &Source<'_, '_>,
        extents: &Extents,
        made: C,
        held: impl Fn(&C) -> &AnyPlan,
    ) -> Result<Self> {
        let held = held(&made);
        let (choice, indirect) = (held.choice.clone(), held.expression.indirect.clone());
        Self::with(source, (indirect, extents.out()), Box::new(made), choice)
    }

    /// Returns the plan of an executable.
    pub(super) fn with(
        source: &Source<'_, '_>,
        (indirect, out_shape): (IndirectEinsum, &[usize]),
        made: Box<dyn Executable>,
        choice: Choice,
    ) -> Result<Self> {
        let expression = Expression::new(source, indirect, out_shape)?;
        Ok(AnyPlan { expression, made, choice, shadow: Shadow::none(), planned: None })
    }

    /// Plans a rewritten expression with the cheapest kernel.
    pub(super) fn chosen(
        source: &Source<'_, '_>,
        indirect: IndirectEinsum,
        extents: &Extents,
        dynamic: &[(&str, DynamicOptions)],
    ) -> Result<Self> {
        let machine = source.context.machine();
        let mut request = Request::new(source, &indirect, (extents, None), &machine)?;
        request.dynamic = dynamic;
        let chosen = choose(&request)?;
        let (made, choice) =
            chosen.map_err(|refused| Error::no_kernel(indirect.to_string(), refused))?;
        Self::with(source, (indirect, extents.out()), made, choice)
    }

    pub(crate) fn einsum(&self) -> &Einsum {
        &self.expression.einsum
    }

    pub(crate) fn out_shape(&self) -> &[usize] {
        &self.expression.out_shape
    }

    /// Whether the expression reads an operand of this name in its runs.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.expression.reads(name)
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

    /// Puts the operands into their slots, and runs.
    pub(crate) fn run<'o>(
        &self,
        operands: impl Iterator<Item = (&'o str, AnyOperand<'o>)> + Clone,
        mut out: AnyOut<'_>,
        stream: &Stream,
    ) -> Result<()> {
        self.in_shadow(operands.clone(), stream, |plan, given, stream| match &mut out {
            AnyOut::Dense(out) => {
                plan.run(given.iter().copied(), AnyOut::Dense(&mut out.shadow()), stream)
            }
            AnyOut::Sparse(out) => {
                plan.run(given.iter().copied(), AnyOut::Sparse(&mut out.shadow()?), stream)
            }
        })?;
        let slots = self.expression.slots(operands, out.shape())?;
        self.run_slots(&slots, out, stream)
    }

    /// Runs with the operands in their slots. Their shapes have been checked.
    pub(super) fn run_slots(
        &self,
        operands: &[Option<AnyOperand<'_>>],
        out: AnyOut<'_>,
        stream: &Stream,
    ) -> Result<()> {
        self.made.run(&Run { of: &self.expression, operands, stream }, out)
    }

    /// On a CPU context, checks the operands with the plan for the absent GPU.
    fn in_shadow<'o>(
        &self,
        operands: impl Iterator<Item = (&'o str, AnyOperand<'o>)>,
        stream: &Stream,
        run: impl FnOnce(&AnyPlan, &[(&str, AnyOperand<'_>)], &Stream) -> Result<()>,
    ) -> Result<()> {
        self.shadow.look(stream, |plan, stream| {
            let operands: Named<'_, '_> = operands.collect();
            ShadowOperands::of(&operands)?.map_or(Ok(()), |own| run(plan, &own.operands(), stream))
        })
    }

    pub(super) fn update_values<'o>(
        &self,
        operands: impl Iterator<Item = (&'o str, AnyOperand<'o>)> + Clone,
        stream: &Stream,
    ) -> Result<()> {
        self.in_shadow(operands.clone(), stream, |plan, given, stream| {
            let slots = plan.expression.some_slots(given.iter().copied())?;
            plan.update_slots(&slots, stream)
        })?;
        let slots = self.expression.some_slots(operands)?;
        self.update_slots(&slots, stream)
    }

    /// Updates values with the operands in their slots.
    pub(super) fn update_slots(
        &self,
        operands: &[Option<AnyOperand<'_>>],
        stream: &Stream,
    ) -> Result<()> {
        self.made.update_values(&Run { of: &self.expression, operands, stream })
    }

    /// [`Plan::run_raw`](super::Plan::run_raw), after the caller has guaranteed that the addresses are valid.
    pub(crate) fn run_raw(&self, raw: RawOperands<'_>, queue: Queue<'_>) -> Result<()> {
        self.expression.context.expect_device()?;
        whole_factor(self.expression.types.out, raw.alpha())?;
        self.made.run_raw(&self.expression, raw, queue)
    }
}

impl fmt::Display for AnyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.made, f)
    }
}
