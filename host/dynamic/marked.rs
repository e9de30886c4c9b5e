//! A product whose ReLU makes the sparsity: the kernel that stores the values says which micro-tiles hold some.

use std::marker::PhantomData;
use std::sync::Arc;

use super::detect::{DetectOptions, Detector, check_shape, elsewhere, operand};
use super::index::{Lists, MicroIndex};
use super::matmul::{lists, turns};
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::error::{Error, Result};
use crate::families::discover::{DetectLaunch, DeviceLists, list_stride};
use crate::families::gemm::MarkedLaunch;
use crate::kernel::Queue;
use crate::launch::in_turn;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// `C[m,n] = relu(A[m,k] * B[k,n])`, and the micro-tiles of `height x 1` of C that hold something, found while C is
/// stored (PIT, arXiv 2301.10936, section 3.3: detection in the producer). [`run`](Self::run) leaves a bit for each
/// micro-tile, [`list`](Self::list) makes lists of them, with the values that a product of C wants, and reads no other
/// element of C. For f16 and bf16 on Hopper, n a multiple of 8, heights of 128, 64 and 32; the CPU takes every element
/// type and height. Nothing is allocated or waited for in runs: both may be captured in a CUDA graph.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::ReluMatmul;
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// let a = ctx.upload_dense(&Dense::new([1, 2], vec![1.0f32, 2.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 3], vec![1.0, -9.0, 0.0, 0.0, 4.0, 3.0])?)?;
/// let mut product = ReluMatmul::new(&ctx, [1, 2, 3], 128)?;
/// let (mut c, stream) = (ctx.zeros(&[1, 3])?, ctx.stream()?);
/// product.run(&a, &b, &mut c, &stream)?;
/// product.list(&c, &stream)?;
/// assert_eq!(c.to_dense()?.values(), [1.0, 0.0, 6.0]);
/// assert_eq!(product.index().to_lists()?, [vec![0, 2]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct ReluMatmul<T: Scalar> {
    context: Context,
    extents: [usize; 3],
    index: MicroIndex,
    way: Way<T>,
    element: PhantomData<T>,
}

/// How it is done.
#[derive(Debug)]
enum Way<T: Scalar> {
    Host(Box<Plan<T>>, Box<Detector<T>>),
    Device(Box<MarkedLaunch>, Box<DetectLaunch>),
}

impl<T: Scalar> ReluMatmul<T> {
    /// A product of these extents, `[m, k, n]`, of an A and a B without gaps between their rows, with room for the
    /// values of a C that is full.
    ///
    /// # Errors
    /// [`Error::Operand`] for a height below 2; on a GPU [`Error::NoKernel`] for element types and heights without kernel;
    /// [`Error::Overflow`], [`Error::OutOfMemory`].
    pub fn new(context: &Context, extents: [usize; 3], height: usize) -> Result<Self> {
        let [m, k, n] = extents;
        if height < 2 {
            return Err(Error::Operand {
                name: "C".into(),
                reason: format!("micro-tiles of {height} rows: they are columns of 2 rows or more"),
            });
        }
        let panels = m.div_ceil(height);
        let (way, storage) = match context.device() {
            None => Self::on_host(context, extents, height)?,
            Some(device) => {
                let product = MarkedLaunch::new(device, T::DTYPE, extents, k, height)?;
                let list = DetectLaunch::marked(device, T::DTYPE, [m, n], height)?;
                let lists = Lists::Device(list.lists(device)?, Arc::clone(device));
                (Way::Device(Box::new(product), Box::new(list)), lists)
            }
        };
        Ok(ReluMatmul {
            context: context.clone(),
            extents,
            index: MicroIndex {
                panels,
                stride: list_stride(n),
                storage,
            },
            way,
            element: PhantomData,
        })
    }

    fn on_host(context: &Context, [m, k, n]: [usize; 3], height: usize) -> Result<(Way<T>, Lists)> {
        let (a, b) = (context.zeros::<T>(&[m, k])?, context.zeros::<T>(&[k, n])?);
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let line = "C[m,n] = relu(A[m,k] * B[k,n])";
        let plan = context.plan(line).operands(&operands).build()?;
        let options = DetectOptions::default();
        let detector = Detector::new(context, [m, n], (height, 1), options)?;
        let lists = Lists::Host(vec![Vec::new(); m.div_ceil(height)]);
        Ok((Way::Host(Box::new(plan), Box::new(detector)), lists))
    }

    /// The kernels of product and lists, `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        match &self.way {
            Way::Host(..) => ["cpu"; 2],
            Way::Device(product, list) => [product.name(), list.name()],
        }
    }

    /// What the last [`list`](Self::list) found.
    pub fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// Queues the product. Runs must follow one another, each by its [`list`](Self::list): bits of a run without one
    /// are added to those of the next, and empty micro-tiles listed.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; [`Error::Operand`] if one lies in another context, or not
    /// at multiples of 16 bytes.
    pub fn run(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        in_turn(turns(&self.index), stream, || self.queue(a, b, c, stream))
    }

    /// [`run`](Self::run) in the turn of whoever calls.
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
                let all = [
                    operand(&self.context, a, stream)?,
                    operand(&self.context, b, stream)?,
                    operand(&self.context, c, stream)?,
                ];
                let marks = self.lists()?.status.address();
                // SAFETY: operands of the planned shapes and type, bits of this product's lists; operands are the
                // caller's to keep until the stream is done.
                let queue = unsafe { Queue::new(stream.raw()) };
                product.run(all, marks, queue)
            }
        }
    }

    /// Queues the making of the lists of the C that [`run`](Self::run) has stored.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn list(&mut self, c: &Tensor<T>, stream: &Stream) -> Result<()> {
        match &self.way {
            Way::Host(_, detector) => detector.run(c, &mut self.index, stream),
            Way::Device(..) => in_turn(turns(&self.index), stream, || self.queue_list(c, stream)),
        }
    }

    /// [`list`](Self::list) on a GPU, in the turn of whoever calls.
    pub(crate) fn queue_list(&self, c: &Tensor<T>, stream: &Stream) -> Result<()> {
        let [m, _, n] = self.extents;
        check_shape("C", &[m, n], c.shape())?;
        match &self.way {
            Way::Host(..) => Err(elsewhere("C")),
            Way::Device(_, list) => {
                let source = operand(&self.context, c, stream)?;
                // SAFETY: C has the planned shape and type, the lists are this product's; C is the caller's to keep
                // until the stream is done.
                let queue = unsafe { Queue::new(stream.raw()) };
                list.run(source, self.lists()?, queue)
            }
        }
    }

    /// Lists and values on the device.
    pub(crate) fn lists(&self) -> Result<&DeviceLists> {
        lists(&self.index)
    }
}

/// Whether a plan's kernel for `relu(A * B)` is the one that can mark: what it computes with takes the same time then.
pub(crate) fn can_mark(device: &Arc<Device>, variant: &str) -> bool {
    device.machine().wgmma > 0.0
        && variant.starts_with("wgmma_")
        && variant.ends_with("_64x64_n256")
}
