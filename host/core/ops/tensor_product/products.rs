//! Product of items or of edges with its gradients: kernels whose coefficients are constants, or a plan for each
//! expression.

use super::{Channels, Couplings, Factors, Gradients};
use crate::context::Context;
use crate::device::Stream;
use crate::einsum::Einsum;
use crate::error::{Error, Result};
use crate::families::tensor::equivariant::{
    EquivariantLaunch, EquivariantShape, PathPlace, RawEquivariant,
};
use crate::operator::{Operator, Run};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

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
    coefficients: SparseTensor<T>,
    /// Plans of the product, and of the gradients of X, Y and W.
    plans: [Option<Plan<T>>; 4],
}

/// Tensor with its name in the expressions.
type Named<'a, T> = (&'static str, &'a Tensor<T>);

/// Tensors that the expressions write.
const WRITTEN: [&str; 4] = ["Out", "dX", "dY", "dW"];
/// Gradient of the output.
const SEED: &str = "dOut";

impl<T: Scalar> Products<T> {
    pub(super) fn new(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        text: &str,
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
                let planned = Planned::new(context, couplings, text, &shapes, edges, gradients)?;
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
        let operands = self.operands(&run, factors, SEED, dout)?;
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
        text: &str,
        shapes: &[Vec<usize>; 4],
        edges: Option<Ends<'_>>,
        gradients: bool,
    ) -> Result<Self> {
        let mut planned = Planned {
            coefficients: context.upload(couplings.tensor::<T>()?)?,
            plans: [None, None, None, None],
        };
        let mut arrays = vec![("L", couplings.path_of_row()), ("K", couplings.component_of_row())];
        if let Some([r, s]) = edges {
            arrays.extend([("R", r.to_vec()), ("S", s.to_vec())]);
        }
        let einsum = Einsum::parse(text)?;
        planned.plans[0] = Some(planned.plan(context, (0, &einsum), shapes, &arrays)?);
        if gradients {
            for (at, name) in ["X", "Y", "W"].into_iter().enumerate() {
                if einsum.names().contains(&name) {
                    for term in einsum.gradient(name)?.terms {
                        let plan = planned.plan(context, (at + 1, &term), shapes, &arrays)?;
                        planned.plans[at + 1] = Some(plan);
                    }
                }
            }
        }
        Ok(planned)
    }

    /// Plans an expression that writes the tensor number `of`. Planning uses only the shapes of the tensors; index arrays
    /// are part of the plan.
    fn plan(
        &self,
        context: &Context,
        (of, einsum): (usize, &Einsum),
        shapes: &[Vec<usize>; 4],
        arrays: &[(&'static str, Vec<u32>)],
    ) -> Result<Plan<T>> {
        let read = einsum.names();
        let [x, y, w, out] = shapes.each_ref().map(|shape| Operand::Shape(shape));
        let written = [&out, &x, &y, &w][of].clone();
        let named = [("X", x), ("Y", y), ("W", w), (SEED, out), (WRITTEN[of], written)];
        let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("CG", (&self.coefficients).into())];
        operands.extend(named.into_iter().filter(|(name, _)| read.contains(name)));
        let extents: Vec<[usize; 1]> = arrays.iter().map(|(_, array)| [array.len()]).collect();
        for ((name, array), extent) in arrays.iter().zip(&extents) {
            if read.contains(name) {
                operands.push((name, (&extent[..], &array[..]).into()));
            }
        }
        context.plan(&einsum.text).operands(&operands).build()
    }

    fn backward(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        Gradients { x, y, w }: Gradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let mut named = factors.named();
        named.push((SEED, dout));
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
        let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("CG", (&self.coefficients).into())];
        let read = plan.einsum().names();
        let tensors = named.iter().filter(|(name, _)| read.contains(name));
        operands.extend(tensors.map(|&(name, tensor)| (name, tensor.into())));
        plan.run(&operands, out, stream)
    }
}

fn missing(name: &str) -> Error {
    Error::not_planned(name, "create the product with this factor and with gradients")
}
