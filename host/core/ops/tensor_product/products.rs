//! Product of items or of edges with its gradients: kernels whose coefficients are constants, or a plan for each
//! expression.

use super::{Channels, Couplings, Factors, Gradients};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::tensor::equivariant::{
    EquivariantLaunch, EquivariantShape, PathPlace, RawEquivariant,
};
use crate::operator::{Operator, Run};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

/// Expressions of the product, and of the gradients of X, Y and W. G is the gradient of the output.
pub(super) type Lines = [Option<&'static str>; 4];

/// Receivers and senders of edges.
pub(super) type Ends<'a> = [&'a [u32]; 2];

#[derive(Debug)]
pub(super) struct Products<T: Scalar> {
    /// Kernels whose coefficients are constants, if there are any for these degrees.
    constants: Option<Operator<EquivariantLaunch>>,
    /// `None` if the kernels with constants run on a GPU.
    plans: Option<Box<Planned<T>>>,
    /// Shapes of X, Y, W and Out.
    pub(super) shapes: [Vec<usize>; 4],
}

/// Plan for each expression.
#[derive(Debug)]
struct Planned<T: Scalar> {
    lines: Lines,
    coefficients: SparseTensor<T>,
    /// Plans of the product, and of the gradients of X, Y and W.
    plans: [Option<Plan<T>>; 4],
}

/// Tensor with its name in the expressions.
type Named<'a, T> = (&'static str, &'a Tensor<T>);

/// Tensors that the expressions write.
const WRITTEN: [&str; 4] = ["Out", "DX", "DY", "DW"];

impl<T: Scalar> Products<T> {
    pub(super) fn new(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        lines: Lines,
        shapes: [Vec<usize>; 4],
        edges: Option<Ends<'_>>,
        gradients: bool,
    ) -> Result<Self> {
        let constants = Operator::new(context, |device| match channels {
            Channels::Each(width) => {
                let shape = shape_of(couplings, width, &shapes);
                EquivariantLaunch::new(device, T::DTYPE, shape, edges)
            }
            _ => Ok(None),
        })?;
        let constants = constants.transpose();
        let plans = match constants.as_ref().and_then(Operator::on_gpu) {
            Some(_) => None,
            None => {
                let planned = Planned::new(context, couplings, lines, &shapes, edges, gradients)?;
                Some(Box::new(planned))
            }
        };
        Ok(Products { constants, plans, shapes })
    }

    pub(super) fn forward(
        &self,
        factors: Factors<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let Some(constants) = &self.constants else {
            return self.plans()?.run(0, &factors.named(), out, stream);
        };
        let run = constants.start(stream)?;
        let operands = self.operands(&run, factors, "Out", out)?;
        let raw = RawEquivariant { operands, gradients: [(0, 0); 3] };
        run.queue(
            |launch, queue| launch.forward(&raw, queue),
            || self.plans()?.run(0, &factors.named(), out, stream),
        )
    }

    pub(super) fn backward(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        gradients: Gradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let Some(constants) = &self.constants else {
            return self.plans()?.backward(factors, dout, gradients, stream);
        };
        let run = constants.start(stream)?;
        let operands = self.operands(&run, factors, "G", dout)?;
        let of = |at: usize, tensor: &Option<&mut Tensor<T>>| match tensor {
            Some(tensor) => run.rows(WRITTEN[at + 1], tensor.any(), &self.shapes[at]),
            None => Ok((0, 0)),
        };
        let Gradients { x, y, w } = &gradients;
        let raw = RawEquivariant { operands, gradients: [of(0, x)?, of(1, y)?, of(2, w)?] };
        run.queue(
            |launch, queue| launch.backward(&raw, queue),
            || self.plans()?.backward(factors, dout, gradients, stream),
        )
    }

    fn plans(&self) -> Result<&Planned<T>> {
        self.plans.as_deref().ok_or_else(|| missing("Out"))
    }

    /// Returns the names of the kernels of the product and of the planned gradients of X, Y and W.
    pub(super) fn variants(&self) -> [Option<&'static str>; 4] {
        match (&self.plans, &self.constants) {
            (Some(planned), _) => planned.plans.each_ref().map(|p| p.as_ref().map(Plan::variant)),
            (None, Some(constants)) => {
                let [forward, backward] = constants.variants(EquivariantLaunch::variants);
                [Some(forward), Some(backward), Some(backward), Some(backward)]
            }
            (None, None) => [None; 4],
        }
    }

    pub(super) fn workspace_bytes(&self) -> usize {
        let constants =
            self.constants.as_ref().map_or(0, |own| own.bytes(EquivariantLaunch::bytes));
        let plans = self.plans.iter().flat_map(|planned| planned.plans.iter().flatten());
        constants + plans.map(Plan::workspace_bytes).sum::<usize>()
    }

    /// Validates X, Y, W and the output or its gradient, and returns their addresses and row strides.
    fn operands(
        &self,
        run: &Run<'_, EquivariantLaunch>,
        Factors { x, y, w }: Factors<'_, T>,
        name: &str,
        out: &Tensor<T>,
    ) -> Result<[(u64, usize); 4]> {
        let w = w.ok_or_else(|| missing("W"))?;
        let [of_x, of_y, of_w, of_out] = &self.shapes;
        Ok([
            run.rows("X", x.any(), of_x)?,
            run.rows("Y", y.any(), of_y)?,
            run.rows("W", w.any(), of_w)?,
            run.rows(name, out.any(), of_out)?,
        ])
    }
}

/// Returns the shape that the kernels receive.
fn shape_of(couplings: &Couplings, width: usize, shapes: &[Vec<usize>; 4]) -> EquivariantShape {
    let mut paths = Vec::new();
    for (w, (&degrees, [x, y, out])) in
        couplings.paths().iter().zip(couplings.first_rows()).enumerate()
    {
        let rows = [x, y, out, w];
        paths.push(PathPlace { degrees, rows });
    }
    EquivariantShape {
        paths,
        rows: [shapes[0][1], shapes[1][1], shapes[3][1], shapes[2][1]],
        width,
        items: [shapes[3][0], shapes[0][0], shapes[1][0]],
    }
}

impl<'a, T> Factors<'a, T> {
    fn named(&self) -> Vec<Named<'a, T>> {
        let mut all = vec![("X", self.x), ("Y", self.y)];
        all.extend(self.w.map(|w| ("W", w)));
        all
    }
}

impl<T: Scalar> Planned<T> {
    fn new(
        context: &Context,
        couplings: &Couplings,
        lines: Lines,
        shapes: &[Vec<usize>; 4],
        edges: Option<Ends<'_>>,
        gradients: bool,
    ) -> Result<Self> {
        let mut planned = Planned {
            lines,
            coefficients: context.upload(couplings.tensor::<T>()?)?,
            plans: [None, None, None, None],
        };
        let mut arrays = vec![("L", couplings.path_of_row()), ("K", couplings.component_of_row())];
        if let Some([r, s]) = edges {
            arrays.extend([("R", r.to_vec()), ("S", s.to_vec())]);
        }
        for of in 0..if gradients { 4 } else { 1 } {
            planned.plans[of] = planned.plan(context, of, shapes, &arrays)?;
        }
        Ok(planned)
    }

    /// Plans an expression, or returns `None` if there is no such expression. Planning uses only the shapes of the
    /// tensors; index arrays are part of the plan.
    fn plan(
        &self,
        context: &Context,
        of: usize,
        shapes: &[Vec<usize>; 4],
        arrays: &[(&'static str, Vec<u32>)],
    ) -> Result<Option<Plan<T>>> {
        let Some(line) = self.lines[of] else {
            return Ok(None);
        };
        let tensor = |of: usize| Tensor::of_shape(context, &shapes[of]);
        let [x, y, w, g] = [tensor(0)?, tensor(1)?, tensor(2)?, tensor(3)?];
        let mut named = vec![("X", &x), ("Y", &y), ("W", &w), ("G", &g)];
        let written = [&g, &x, &y, &w][of];
        named.push((WRITTEN[of], written));
        let mut operands = self.operands(of, &named);
        let extents: Vec<[usize; 1]> = arrays.iter().map(|(_, array)| [array.len()]).collect();
        for ((name, array), extent) in arrays.iter().zip(&extents) {
            if is_named(line, name) {
                operands.push((name, (&extent[..], &array[..]).into()));
            }
        }
        context.plan(line).operands(&operands).build().map(Some)
    }

    /// Returns the operands that an expression names, from these tensors and the coefficients.
    fn operands<'a>(
        &'a self,
        of: usize,
        named: &[Named<'a, T>],
    ) -> Vec<(&'static str, Operand<'a, T>)> {
        let line = self.lines[of].unwrap_or_default();
        let mut all: Vec<(&'static str, Operand<'a, T>)> =
            vec![("CG", (&self.coefficients).into())];
        let tensors = named.iter().filter(|(name, _)| is_named(line, name));
        all.extend(tensors.map(|&(name, tensor)| (name, tensor.into())));
        all
    }

    fn backward(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        Gradients { x, y, w }: Gradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let mut named = factors.named();
        named.push(("G", dout));
        for (of, own) in [(1, x), (2, y), (3, w)] {
            if let Some(own) = own {
                self.run(of, &named, own, stream)?;
            }
        }
        Ok(())
    }

    fn run(
        &self,
        of: usize,
        named: &[Named<'_, T>],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let plan = self.plans[of].as_ref();
        let plan = plan.ok_or_else(|| missing(WRITTEN[of]))?;
        plan.run(&self.operands(of, named), out, stream)
    }
}

/// Whether an expression names a tensor as a whole word, and not as the end of another name.
fn is_named(line: &str, name: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric()).any(|word| word == name)
}

fn missing(name: &str) -> Error {
    Error::not_planned(name, "create the product with this factor and with gradients")
}
