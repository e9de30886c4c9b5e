//! Product whose ReLU makes C sparse: the kernel that stores C records the nonempty micro-tiles.

use std::marker::PhantomData;

use super::super::detect::{DetectOptions, Detector, operand, operands};
use super::super::index::MicroIndex;
use super::{Product, ProductOperands};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape};
use crate::families::discover::{DetectLaunch, DeviceLists};
use crate::families::gemm::MarkedLaunch;
use crate::kernel::Queue;
use crate::launch::in_turn;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Product with a ReLU, and its nonempty micro-tiles, which are found while C is stored (PIT, arXiv 2301.10936, section
/// 3.3: detection in the producer). [`multiply`](Product::multiply) sets a bit for each nonempty micro-tile, and
/// [`detect`](Product::detect) makes lists of them.
#[derive(Debug)]
pub(crate) struct ReluProduct<T: Scalar> {
    context: Context,
    extents: [usize; 3],
    index: MicroIndex,
    way: Way<T>,
    element: PhantomData<T>,
}

/// Implementation on the CPU or a GPU.
#[derive(Debug)]
enum Way<T: Scalar> {
    Host(Box<Plan<T>>, Box<Detector<T>>),
    Device(Box<MarkedLaunch>, Box<DetectLaunch>),
}

impl<T: Scalar> ReluProduct<T> {
    /// Creates a product of these extents, `[m, k, n]`, for A and B without gaps between rows. The workspace is large
    /// enough for the values of a C without empty micro-tiles.
    ///
    /// # Errors
    /// As [`DynamicMatmul::new`](super::DynamicMatmul::new).
    pub(crate) fn new(context: &Context, extents: [usize; 3], height: usize) -> Result<Self> {
        let [m, k, n] = extents;
        if height < 2 {
            return Err(Error::operand(
                "C",
                format!("micro-tiles of {height} rows: they are columns of 2 rows or more"),
            ));
        }
        let way = match context.device() {
            None => Self::on_host(extents, height)?,
            Some(device) => {
                let product = MarkedLaunch::new(device, T::DTYPE, extents, k, height)?;
                let list = DetectLaunch::marked(device, T::DTYPE, [m, n], height)?;
                Way::Device(Box::new(product), Box::new(list))
            }
        };
        let detect = match &way {
            Way::Host(..) => None,
            Way::Device(_, list) => Some(&**list),
        };
        Ok(ReluProduct {
            index: MicroIndex::of(detect, context, [m.div_ceil(height), n])?,
            context: context.clone(),
            extents,
            way,
            element: PhantomData,
        })
    }

    fn on_host([m, k, n]: [usize; 3], height: usize) -> Result<Way<T>> {
        // Unchecked, because the kernels of this product support larger row strides than those of a plan.
        let context = &Context::unchecked_cpu();
        let (a, b) = (context.zeros::<T>(&[m, k])?, context.zeros::<T>(&[k, n])?);
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let line = "C[m,n] = relu(A[m,k] * B[k,n])";
        let plan = context.plan(line).operands(&operands).build()?;
        let options = DetectOptions::default();
        let detector = Detector::new(context, [m, n], (height, 1), &options)?;
        Ok(Way::Host(Box::new(plan), Box::new(detector)))
    }

    /// Name of the product's kernel; `cpu` on a CPU context.
    pub(crate) fn variant(&self) -> &'static str {
        match &self.way {
            Way::Host(..) => "cpu",
            Way::Device(product, _) => product.name(),
        }
    }

    /// [`multiply`](Product::multiply) without ordering: the caller orders runs.
    pub(crate) fn queue(
        &self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let [m, k, n] = self.extents;
        check_shape("A", &[m, k], a.shape())?;
        check_shape("B", &[k, n], b.shape())?;
        check_shape("C", &[m, n], c.shape())?;
        match &self.way {
            Way::Host(plan, _) => plan.run(&[("A", a.into()), ("B", b.into())], c, stream),
            Way::Device(product, _) => {
                let all = operands(&self.context, [a, b, c], stream)?;
                let marks = self.lists()?.status.address();
                // SAFETY: the operands have the planned shapes and type, and the bits belong to this product's lists.
                // The caller keeps the operands until the stream is done.
                let queue = unsafe { Queue::new(stream.raw()) };
                product.run(all, marks, queue)
            }
        }
    }

    /// [`detect`](Product::detect) on a GPU, without ordering: the caller orders runs.
    pub(crate) fn queue_list(&self, c: &Tensor<T>, stream: &Stream) -> Result<()> {
        let [m, _, n] = self.extents;
        check_shape("C", &[m, n], c.shape())?;
        match &self.way {
            Way::Host(..) => Err(Error::elsewhere("C")),
            Way::Device(_, list) => {
                let source = operand(&self.context, c, stream)?;
                // SAFETY: C has the planned shape and type, and the lists belong to this product. The caller keeps C
                // until the stream is done.
                let queue = unsafe { Queue::new(stream.raw()) };
                list.run(source, self.lists()?, queue)
            }
        }
    }

    /// Lists and values on the device.
    pub(crate) fn lists(&self) -> Result<&DeviceLists> {
        self.index.lists()
    }
}

impl<T: Scalar> Product<T> for ReluProduct<T> {
    fn variants(&self) -> Vec<&'static str> {
        match &self.way {
            Way::Host(..) => vec!["cpu"],
            Way::Device(product, list) => vec![product.name(), list.name()],
        }
    }

    fn index(&self) -> &MicroIndex {
        &self.index
    }

    fn run(&mut self, (a, b, c): ProductOperands<'_, T>, stream: &Stream) -> Result<()> {
        self.multiply((a, b, &mut *c), stream)?;
        self.detect(c, stream)
    }

    fn detect(&mut self, c: &Tensor<T>, stream: &Stream) -> Result<()> {
        match &self.way {
            Way::Host(_, detector) => detector.run(c, &mut self.index, stream),
            Way::Device(..) => in_turn(self.index.turns(), stream, || self.queue_list(c, stream)),
        }
    }

    /// A [`detect`](Product::detect) must follow each call. Otherwise the bits of two calls are combined, and empty
    /// micro-tiles are listed.
    fn multiply(&mut self, (a, b, c): ProductOperands<'_, T>, stream: &Stream) -> Result<()> {
        in_turn(self.index.turns(), stream, || self.queue(a, b, c, stream))
    }
}
