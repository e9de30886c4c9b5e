//! Sums over ranks.

use std::ops::Range;
use std::sync::Mutex;

use super::mesh::lock;
use super::{Group, Partition};
use crate::device::Stream;
use crate::error::{Result, elements};
use crate::nn::BiasGradient;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Sums a tensor over all ranks, in the order of ranks. The result has the same bits in every run and on every rank.
/// Use it for gradients of ranks that process different data. Each rank sums one part and sends it to the others. Only
/// f32 on a GPU.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::group::{Group, GroupSum};
/// let groups = Group::local(&[Context::cpu(), Context::cpu()])?;
/// let sums = std::thread::scope(|s| {
///     let rank = |group: Group| move || -> einsparse::Result<Vec<f32>> {
///         let ctx = group.context();
///         let mut gradient = ctx.upload_dense(&Dense::new([3], vec![1.0, 2.0, 10.0 * group.rank() as f32])?)?;
///         GroupSum::new(&group, &[3])?.run(&mut gradient, &ctx.stream()?)?;
///         Ok(gradient.to_dense()?.into_values())
///     };
///     let ranks: Vec<_> = groups.into_iter().map(|group| s.spawn(rank(group))).collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<einsparse::Result<Vec<_>>>()
/// })?;
/// assert_eq!(sums, [[2.0, 4.0, 10.0], [2.0, 4.0, 10.0]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct GroupSum<T> {
    group: Group,
    shape: Vec<usize>,
    pieces: Partition,
    sum: BiasGradient<T, T>,
    /// Input and output of this rank's part: the part of every rank, and their sum.
    buffers: Mutex<(Tensor<T>, Tensor<T>)>,
}

impl<T: Scalar> GroupSum<T> {
    /// Creates a sum for tensors of this shape without gaps. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Rank`](einsparse_core::Error::Rank) if another rank has a different shape;
    /// [`Error::Operand`](einsparse_core::Error::Operand) for a type other than f32 on a GPU.
    pub fn new(group: &Group, shape: &[usize]) -> Result<Self> {
        let words = shape.iter().map(|&extent| extent as u64).collect();
        group.same("the shape of a sum", Ok(words))?;
        let (context, size) = (group.context(), group.size());
        let pieces = Partition::even(elements("a sum", shape)?, size);
        let own = pieces.range(group.rank()).len();
        let made = || {
            Ok(GroupSum {
                group: group.clone(),
                shape: shape.to_vec(),
                sum: BiasGradient::new(context, [size, own])?,
                buffers: Mutex::new((context.zeros(&[size, own])?, context.zeros(&[own])?)),
                pieces,
            })
        };
        group.all_ok(made())
    }

    /// Queues the sum, in place. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) for a different shape; [`Error::Operand`](einsparse_core::Error::Operand) for a
    /// tensor with gaps or in another context; [`Error::Rank`](einsparse_core::Error::Rank) if another rank fails.
    pub fn run(&self, tensor: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        tensor.check("the tensor", self.group.context(), &self.shape)?;
        let size = self.group.size();
        if size == 1 {
            return Ok(());
        }
        let own = self.pieces.range(self.group.rank());
        let mut buffers = lock(&self.buffers);
        let (parts, sum) = &mut *buffers;
        let pieces: Vec<Range<usize>> = (0..size).map(|rank| self.pieces.range(rank)).collect();
        let rows = |rank: usize| rank * own.len()..(rank + 1) * own.len();
        let rows: Vec<_> = (0..size).map(rows).collect();
        self.group.exchange((tensor, &pieces), (&mut *parts, &rows), stream)?;
        if !own.is_empty() {
            self.sum.backward_bias(parts, sum, stream)?;
        }
        let whole = vec![0..own.len(); size];
        self.group.exchange((sum, &whole), (tensor, &pieces), stream)
    }
}
