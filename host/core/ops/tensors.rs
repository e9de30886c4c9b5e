//! Products of a sparse tensor of any order with matrices along its modes: MTTKRP and TTM (Kolda and Bader, Tensor
//! Decompositions and Applications, SIAM Review 51(3), 2009, sections 2.5 and 2.6).

use std::marker::PhantomData;

use einsparse_formats::CooPattern;
use einsparse_kernels::families::REDUCE_SUM;

use super::rows::{Gathered, RowsRun};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape};
use crate::families::tensor::fibres::RowsOf;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

/// Names of the axes of a tensor.
const AXES: [&str; 8] = ["i", "j", "k", "l", "m", "n", "p", "q"];

/// Computes MTTKRP, the matricized tensor times the Khatri-Rao product of matrices. For order 3 and `mode` 0, it is
/// `M[i,r] = T[i,j,k] * B[j,r] * C[k,r]`. It is the main step of CP decomposition. `factors` are the matrices
/// `[extent, r]` of the other axes, in their order.
///
/// ```
/// use einsparse::{Context, ops};
/// use einsparse::formats::{Coo, Dense};
/// let coords = vec![vec![0, 1, 1], vec![0, 0, 1], vec![1, 0, 1]];
/// let t = Coo::from_entries(vec![2, 2, 2], coords, vec![1.0f32, 2.0, 3.0])?;
/// let b = Dense::new([2, 1], vec![10.0, 20.0])?;
/// let c = Dense::new([2, 1], vec![3.0, 5.0])?;
/// let m = ops::mttkrp(&Context::cpu(), &t, 0, [&b, &c])?;
/// assert_eq!(m.to_dense()?.values(), &[50.0, 360.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// # Errors
/// [`Error::Operand`] for a mode that the tensor does not have, or another number of factors; any error of
/// [`ops::einsum`](super::einsum()).
pub fn mttkrp<'a, T: Scalar>(
    context: &Context,
    tensor: impl Into<Operand<'a, T>>,
    mode: usize,
    factors: impl IntoIterator<Item = impl Into<Operand<'a, T>>>,
) -> Result<Tensor<T>> {
    let tensor = tensor.into();
    let factors: Vec<Operand<'a, T>> = factors.into_iter().map(Into::into).collect();
    let names: Vec<String> = (0..factors.len()).map(|f| format!("F{f}")).collect();
    let text = mttkrp_text(tensor.shape().len(), mode, &names)?;
    let mut operands = vec![("T", tensor)];
    operands.extend(names.iter().map(String::as_str).zip(factors));
    super::einsum(context, &text, &operands)
}

/// Returns the expression that [`mttkrp`] runs for a tensor of this order, with output `M`. Use it to build plans.
///
/// ```
/// let text = einsparse::ops::mttkrp_text(3, 1, &["A", "C"])?;
/// assert_eq!(text, "M[j,r] = T[i,j,k] * A[i,r] * C[k,r]");
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// # Errors
/// [`Error::Operand`] for a mode that the tensor does not have, or another number of factors.
#[doc(hidden)]
pub fn mttkrp_text(order: usize, mode: usize, factors: &[impl AsRef<str>]) -> Result<String> {
    if !(2..=AXES.len() - 1).contains(&order) || mode >= order || factors.len() + 1 != order {
        return Err(Error::operand(
            "T",
            format!(
                "has order {order}; mode {mode} with {} factors wants orders 2 to 7, a mode below the order and a \
                 factor for every other axis",
                factors.len()
            ),
        ));
    }
    let axes = &AXES[..order];
    let mut text = format!("M[{},r] = T[{}]", axes[mode], axes.join(","));
    let others = axes.iter().enumerate().filter(|(axis, _)| *axis != mode);
    for ((_, axis), factor) in others.zip(factors) {
        text += &format!(" * {}[{axis},r]", factor.as_ref());
    }
    Ok(text)
}

/// Tensor times matrix along one axis, planned for one pattern of T. For order 3 and `axis` 2, it is
/// `Y[i,j,r] = T[i,j,k] * B[k,r]`. Y has a row for each fibre of T along that axis that has entries. It is stored as
/// the coordinates of these fibres and a dense matrix `[fibres, r]` (semi-sparse, as in the tensor algebra literature).
/// For a dense Y, run the expression with `einsum!` or a plan.
///
/// ```
/// use einsparse::{Context, ops::Ttm};
/// use einsparse::formats::{Coo, Dense};
/// let ctx = Context::cpu();
/// let coords = vec![vec![0, 1, 1], vec![1, 0, 0], vec![1, 0, 1]];
/// let t = ctx.upload(Coo::from_entries(vec![2, 2, 2], coords, vec![1.0f32, 2.0, 3.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 1], vec![10.0, 20.0])?)?;
/// let ttm = Ttm::new(&ctx, &t, 2, 1)?;
/// assert_eq!(ttm.fibres()?.coords(), [vec![0, 1], vec![1, 0]]);
/// let mut y = ctx.zeros(&[2, 1])?;
/// let stream = ctx.stream()?;
/// ttm.forward(&t, &b, &mut y, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(y.to_dense()?.values(), &[20.0, 80.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Ttm<T: Scalar> {
    run: RowsRun,
    shape: Vec<usize>,
    matrix: [usize; 2],
    element: PhantomData<T>,
}

impl<T: Scalar> Ttm<T> {
    /// Plans the product for a tensor in COO, GroupCOO, CSR or CSC, and matrices of `n` columns.
    ///
    /// # Errors
    /// [`Error::StorageFormat`] for a format without coordinates; [`Error::OutOfRange`] for an axis that the tensor
    /// does not have; [`Error::NoKernel`] for element types without kernels.
    pub fn new(context: &Context, tensor: &SparseTensor<T>, axis: usize, n: usize) -> Result<Self> {
        Ttm::with_variant(context, tensor, axis, n, None)
    }

    /// [`Ttm::new`] restricted to the kernel of this name.
    ///
    /// # Errors
    /// See [`Ttm::new`]; [`Error::NoKernel`] if the kernel cannot run this product.
    pub fn with_variant(
        context: &Context,
        tensor: &SparseTensor<T>,
        axis: usize,
        n: usize,
        variant: Option<&str>,
    ) -> Result<Self> {
        let mut shape = tensor.shape().to_vec();
        if axis >= shape.len() {
            let allowed = format!("below {}, the order of T", shape.len());
            return Err(Error::range("axis", axis, allowed));
        }
        let kept: Vec<usize> = (0..shape.len()).filter(|&own| own != axis).collect();
        let asked = Gathered {
            kept: &kept,
            factors: &[axis],
            rows: RowsOf::Stored,
            reduce: REDUCE_SUM,
            dtype: tensor.dtype(),
            n,
        };
        let run = RowsRun::new(context, tensor, &asked, variant)?;
        let matrix = [shape.remove(axis), n];
        Ok(Ttm { run, shape, matrix, element: PhantomData })
    }

    /// Returns the number of rows of the result: the fibres of T along the axis that have entries.
    pub fn count(&self) -> usize {
        self.run.count()
    }

    /// Returns the coordinates of the fibres on T's other axes.
    ///
    /// # Errors
    /// Fails if the pattern cannot be created.
    pub fn fibres(&self) -> Result<CooPattern> {
        let mut coords = vec![vec![0u32; self.run.count()]; self.shape.len()];
        for (at, &key) in self.run.keys().iter().enumerate() {
            let mut left = key;
            for (own, &extent) in coords.iter_mut().zip(&self.shape).rev() {
                own[at] = (left % extent as u64) as u32;
                left /= extent as u64;
            }
        }
        Ok(CooPattern::new(self.shape.clone(), coords)?)
    }

    /// Returns the name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.run.variant()
    }

    /// Returns the device memory in bytes, operands excluded.
    pub fn workspace_bytes(&self) -> usize {
        self.run.bytes()
    }

    /// Queues `Y[f,r] = T[f,k] * B[k,r]` over all fibres f. Every row of Y is written.
    ///
    /// # Errors
    /// Fails for tensors of other shapes, another pattern or another context than planned.
    pub fn forward(
        &self,
        tensor: &SparseTensor<T>,
        b: &Tensor<T>,
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        check_shape("B", &self.matrix, b.shape())?;
        self.run.run(tensor, &[("B", b.any())], "Y", &mut y.any, stream)
    }
}
