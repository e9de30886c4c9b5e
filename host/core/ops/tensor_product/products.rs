//! Product of items or of edges with its gradients: kernels whose coefficients are constants, or a plan for each
//! expression.

use super::{Channels, Couplings, Factors, Gradients};
use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::families::tensor::equivariant::{
    EquivariantLaunch, EquivariantShape, PathPlace, RawEquivariant,
};
use crate::kernel::Queue;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

/// Expressions of the product, and of the gradients of X, Y and W. G is the gradient of the output.
pub(super) type Lines = [Option<&'static str>; 4];

/// Receivers and senders of edges.
pub(super) type Ends<'a> = [&'a [u32]; 2];

#[derive(Debug)]
pub(super) struct Products<T: Scalar> {
    exec: Exec<T>,
    shadow: Shadow<Products<T>>,
    context: Context,
    /// Shapes of X, Y, W and Out.
    pub(super) shapes: [Vec<usize>; 4],
}

#[derive(Debug)]
enum Exec<T: Scalar> {
    Constants(Box<EquivariantLaunch>),
    Plans(Box<Planned<T>>),
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
        (channels, lines): (Channels, Lines),
        shapes: [Vec<usize>; 4],
        edges: Option<Ends<'_>>,
        gradients: bool,
    ) -> Result<Self> {
        let shadow = Shadow::new(context, |context| {
            let how = (channels, lines);
            Self::new(context, couplings, how, shapes.clone(), edges, gradients)
        })?;
        let launch = match (context.device(), channels) {
            (Some(device), Channels::Each(width)) => {
                let shape = shape_of(couplings, width, &shapes);
                EquivariantLaunch::new(device, T::DTYPE, shape, edges)?
            }
            _ => None,
        };
        let exec = match launch {
            Some(launch) => Exec::Constants(Box::new(launch)),
            None => {
                let planned = Planned::new(context, couplings, lines, &shapes, edges, gradients)?;
                Exec::Plans(Box::new(planned))
            }
        };
        Ok(Products { exec, shadow, context: context.clone(), shapes })
    }

    pub(super) fn forward(
        &self,
        factors: Factors<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.look(stream, |own, stream| {
            let [x, y] = [factors.x, factors.y].map(|factor| factor.shadow());
            let w = factors.w.map(|w| w.shadow());
            let (x, y, w) = (&x, &y, w.as_ref());
            own.forward(Factors { x, y, w }, &mut out.shadow(), stream)
        })?;
        match &self.exec {
            Exec::Plans(planned) => planned.run(0, &factors.named(), out, stream),
            Exec::Constants(launch) => {
                let [x, y, w] = self.given(factors)?;
                let raw = RawEquivariant {
                    operands: [x, y, w, self.place("Out", 3, out)?],
                    gradients: [(0, 0); 3],
                };
                launch.forward(&raw, self.queue(launch, stream)?)
            }
        }
    }

    pub(super) fn backward(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        gradients: Gradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.look(stream, |own, stream| {
            let [x, y] = [factors.x, factors.y].map(|factor| factor.shadow());
            let w = factors.w.map(|w| w.shadow());
            let (x, y, w) = (&x, &y, w.as_ref());
            let of = |tensor: &Option<&mut Tensor<T>>| tensor.as_ref().map(|own| own.shadow());
            let mut to = [&gradients.x, &gradients.y, &gradients.w].map(of);
            let [dx, dy, dw] = to.each_mut().map(Option::as_mut);
            let gradients = Gradients { x: dx, y: dy, w: dw };
            own.backward(Factors { x, y, w }, &dout.shadow(), gradients, stream)
        })?;
        let Gradients { x, y, w } = gradients;
        match &self.exec {
            Exec::Plans(planned) => {
                let mut named = factors.named();
                named.push(("G", dout));
                for (of, own) in [(1, x), (2, y), (3, w)] {
                    if let Some(own) = own {
                        planned.run(of, &named, own, stream)?;
                    }
                }
                Ok(())
            }
            Exec::Constants(launch) => {
                let [of_x, of_y, of_w] = self.given(factors)?;
                let of = |at: usize, tensor: &Option<&mut Tensor<T>>| match tensor {
                    Some(tensor) => self.place(WRITTEN[at + 1], at, tensor),
                    None => Ok((0, 0)),
                };
                let raw = RawEquivariant {
                    operands: [of_x, of_y, of_w, self.place("G", 3, dout)?],
                    gradients: [of(0, &x)?, of(1, &y)?, of(2, &w)?],
                };
                launch.backward(&raw, self.queue(launch, stream)?)
            }
        }
    }

    /// Returns the names of the kernels of the product and of the planned gradients of X, Y and W.
    pub(super) fn variants(&self) -> [Option<&'static str>; 4] {
        match &self.exec {
            Exec::Plans(planned) => planned.plans.each_ref().map(|p| p.as_ref().map(Plan::variant)),
            Exec::Constants(launch) => {
                let [forward, backward] = launch.variants();
                [Some(forward), Some(backward), Some(backward), Some(backward)]
            }
        }
    }

    pub(super) fn workspace_bytes(&self) -> usize {
        match &self.exec {
            Exec::Plans(planned) => {
                let plans = planned.plans.iter().flatten();
                plans.map(Plan::workspace_bytes).sum()
            }
            Exec::Constants(launch) => launch.bytes(),
        }
    }

    /// Returns the addresses and row strides of X, Y and W.
    fn given(&self, factors: Factors<'_, T>) -> Result<[(u64, usize); 3]> {
        let w = factors.w.ok_or_else(|| missing("W"))?;
        Ok([self.place("X", 0, factors.x)?, self.place("Y", 1, factors.y)?, self.place("W", 2, w)?])
    }

    /// Returns the address and the row stride of a tensor of a planned shape on the plan's GPU.
    fn place(&self, name: &str, of: usize, tensor: &Tensor<T>) -> Result<(u64, usize)> {
        tensor.check(name, &self.context, &self.shapes[of])?;
        let address = tensor.address().or_elsewhere(name)?;
        Ok((address, tensor.leading()))
    }

    fn queue<'s>(&self, launch: &EquivariantLaunch, stream: &'s Stream) -> Result<Queue<'s>> {
        if !stream.belongs_to(launch.device()) {
            return Err(Error::elsewhere("stream"));
        }
        // SAFETY: shapes and contexts were validated, and node indices when the product was planned. The tensors are
        // borrowed for the call, and device memory is freed only after the work queued on the context.
        Ok(unsafe { Queue::new(stream.raw()) })
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
