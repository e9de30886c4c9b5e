//! Operands to which the names of an expression are bound: tensors in a context or in host memory, index arrays,
//! numbers.

use einsparse_formats::{AnyPattern, AnySparse, AsSparse, Dense, Pattern, Sparse, SparseRef};

use smallvec::SmallVec;

use super::dynamic::{Dynamic, DynamicOptions};
use super::{AnySparseTensor, AnyTensor, SparseTensor, Tensor};
use crate::registry::Scalar;
use crate::values::Slice;

/// Operand to which a name of an expression is bound. `From` creates it from tensors in host memory (which are copied
/// to the context), tensors in the context, and numbers.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::{Context, Operand};
/// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
/// let (ctx, b) = (Context::cpu(), Dense::new([3, 1], vec![1.0f32, 10.0, 100.0])?);
/// // From tensors of the context, tensors of the host, and numbers.
/// let operands: [(&str, Operand<'_, f32>); 3] = [("s", 2.0.into()), ("A", (&a).into()), ("B", (&b).into())];
/// let plan = ctx.plan("C[m,n] = s * A[m,k] * B[k,n]").operands(&operands).build()?;
/// assert_eq!(plan.out_shape(), [2, 1]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Operand<'a, T: Scalar> {
    /// A sparse tensor in the context.
    Sparse(&'a SparseTensor<T>),
    /// A dense tensor in the context.
    Dense(&'a Tensor<T>),
    /// A sparse tensor in host memory.
    HostSparse(SparseRef<'a, T>),
    /// A dense tensor in host memory.
    HostDense(&'a Dense<T>),
    /// An index array of a hand-written indirect Einsum: extents and indices. Indices are checked against the axis they
    /// index; `u32::MAX` is past every axis. The array is part of the plan, which stores what it needs of it, and is
    /// not passed to a run. Other indices require another plan.
    Index(&'a [usize], &'a [u32]),
    /// A dense tensor in the context, most of whose micro-tiles are empty. The empty ones differ from run to run
    /// ([`Dynamic`](crate::dynamic::Dynamic)).
    Dynamic(Dynamic<'a, T>),
    /// Shape of a dense tensor without gaps. A plan needs only the shape of a dense operand, so planning allocates no
    /// tensor. Addresses are assumed to be aligned ([`Options::alignment`](crate::Options::alignment) states otherwise).
    /// A run requires the tensor.
    ///
    /// ```
    /// use einsparse::{Context, Operand};
    /// let ctx = Context::new();
    /// let plan = ctx.plan::<f32>("C[m,n] = A[m,k] * B[k,n]");
    /// let plan = plan.operand("A", Operand::Shape(&[64, 32])).operand("B", Operand::Shape(&[32, 16])).build()?;
    /// assert_eq!(plan.out_shape(), [64, 16]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    Shape(&'a [usize]),
    /// A number.
    Scalar(f64),
}

impl<T: Scalar> Operand<'_, T> {
    /// Extents; empty for a number.
    pub fn shape(&self) -> &[usize] {
        self.any().shape()
    }

    /// Description for messages.
    pub fn describe(&self) -> String {
        self.any().describe()
    }
}

/// An [`Operand`] whose element type is a run-time value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyOperand<'a> {
    Sparse(&'a AnySparseTensor),
    Dense(&'a AnyTensor),
    HostSparse(AnyPattern<'a>, Slice<'a>),
    HostDense(&'a [usize], Slice<'a>),
    Index(&'a [usize], &'a [u32]),
    Dynamic(&'a AnyTensor, DynamicOptions),
    Shape(&'a [usize]),
    Scalar(f64),
}

/// Operands by name. Up to six are held without an allocation, so that a run of a plan makes none.
pub(crate) type Named<'o, 'a> = SmallVec<[(&'o str, AnyOperand<'a>); 6]>;

/// Converts operands to [`AnyOperand`].
pub(crate) fn erase<'o, T: Scalar>(operands: &'o [(&str, Operand<'_, T>)]) -> Named<'o, 'o> {
    operands.iter().map(|(name, o)| (*name, o.any())).collect()
}

impl<T: Scalar> Operand<'_, T> {
    pub(crate) fn any(&self) -> AnyOperand<'_> {
        match self {
            Operand::Sparse(s) => AnyOperand::Sparse(&s.any),
            Operand::Dense(d) => AnyOperand::Dense(&d.any),
            Operand::HostSparse(s) => AnyOperand::HostSparse(s.pattern(), Slice::of(s.values())),
            Operand::HostDense(d) => AnyOperand::HostDense(d.shape(), Slice::of(d.values())),
            Operand::Index(shape, data) => AnyOperand::Index(shape, data),
            Operand::Dynamic(d) => AnyOperand::Dynamic(&d.tensor.any, d.options),
            Operand::Shape(shape) => AnyOperand::Shape(shape),
            Operand::Scalar(x) => AnyOperand::Scalar(*x),
        }
    }
}

impl<'a> AnyOperand<'a> {
    /// Returns the operand with a dynamic tensor replaced by its dense tensor.
    pub(crate) fn dense(self) -> Self {
        match self {
            AnyOperand::Dynamic(tensor, _) => AnyOperand::Dense(tensor),
            other => other,
        }
    }

    /// Whether the operand is a sparse tensor in host memory. On a CPU context all sparse tensors are.
    pub(crate) fn lies_on_host(&self) -> bool {
        match self {
            AnyOperand::Sparse(a) => a.device().is_none(),
            AnyOperand::HostSparse(..) => true,
            _ => false,
        }
    }

    /// Extents; empty for a number.
    pub(crate) fn shape(&self) -> &'a [usize] {
        match self {
            AnyOperand::Sparse(s) => s.shape(),
            AnyOperand::HostSparse(pattern, _) => pattern.shape(),
            AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => d.shape(),
            AnyOperand::HostDense(shape, _)
            | AnyOperand::Index(shape, _)
            | AnyOperand::Shape(shape) => shape,
            AnyOperand::Scalar(_) => &[],
        }
    }

    /// Description for messages.
    pub(crate) fn describe(&self) -> String {
        let shape = self.shape();
        match self {
            AnyOperand::Scalar(x) => format!("number {x}"),
            AnyOperand::Index(..) => format!("index array of shape {shape:?}"),
            AnyOperand::Dynamic(..) => format!("dynamic tensor of shape {shape:?}"),
            AnyOperand::Shape(_) => format!("shape {shape:?} without a tensor"),
            AnyOperand::Dense(_) | AnyOperand::HostDense(..) => {
                format!("dense tensor of shape {shape:?}")
            }
            AnyOperand::Sparse(s) => format!("{} tensor of shape {shape:?}", s.format()),
            AnyOperand::HostSparse(p, _) => format!("{} tensor of shape {shape:?}", p.format()),
        }
    }

    /// The pattern of a sparse operand.
    pub(crate) fn pattern(&self) -> Option<AnyPattern<'a>> {
        match self {
            AnyOperand::Sparse(s) => Some(s.pattern()),
            AnyOperand::HostSparse(pattern, _) => Some(*pattern),
            _ => None,
        }
    }

    /// Strides of a dense operand.
    pub(crate) fn strides(&self) -> Option<Vec<usize>> {
        match self {
            AnyOperand::Dense(d) => Some(d.strides()),
            AnyOperand::HostDense(shape, _) => Some(row_major(shape)),
            _ => None,
        }
    }
}

/// Number of elements of a shape; `usize::MAX` if it overflows.
pub(crate) fn volume(shape: &[usize]) -> usize {
    match shape.contains(&0) {
        true => 0,
        false => shape.iter().fold(1, |n, &extent| n.saturating_mul(extent)),
    }
}

/// Strides of a tensor without gaps.
pub(crate) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

impl<'a, T: Scalar> From<&'a SparseTensor<T>> for Operand<'a, T> {
    fn from(s: &'a SparseTensor<T>) -> Self {
        Operand::Sparse(s)
    }
}

impl<'a, T: Scalar> From<&'a Tensor<T>> for Operand<'a, T> {
    fn from(d: &'a Tensor<T>) -> Self {
        Operand::Dense(d)
    }
}

impl<'a, T: Scalar> From<Dynamic<'a, T>> for Operand<'a, T> {
    fn from(d: Dynamic<'a, T>) -> Self {
        Operand::Dynamic(d)
    }
}

impl<'a, T: Scalar> From<&'a Dense<T>> for Operand<'a, T> {
    fn from(d: &'a Dense<T>) -> Self {
        Operand::HostDense(d)
    }
}

impl<'a, T: Scalar> From<(&'a [usize], &'a [u32])> for Operand<'a, T> {
    fn from((shape, data): (&'a [usize], &'a [u32])) -> Self {
        Operand::Index(shape, data)
    }
}

impl<T: Scalar> From<f64> for Operand<'_, T> {
    fn from(x: f64) -> Self {
        Operand::Scalar(x)
    }
}

impl<T: Scalar> From<f32> for Operand<'_, T> {
    fn from(x: f32) -> Self {
        Operand::Scalar(x.into())
    }
}

/// Permits integer literals as numbers, such as `s = 2`.
impl<T: Scalar> From<i32> for Operand<'_, T> {
    fn from(x: i32) -> Self {
        Operand::Scalar(x.into())
    }
}

/// Types that [`Operand::from`] accepts, for [`einsum!`](crate::einsum!). It is a separate trait because of its error
/// message.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operand of an Einsum over `{T}`",
    label = "not a reference to a tensor, nor a number",
    note = "operands are references to tensors of one element type (`Dense`, `Tensor`, `SparseTensor`, a matrix of any \
            format), `Dynamic::new(&tensor)`, numbers (f64, f32, i32), or index arrays: `(&[usize], &[u32])`"
)]
pub trait IntoOperand<'a, T: Scalar> {
    fn into_operand(self) -> Operand<'a, T>;
}

#[diagnostic::do_not_recommend]
impl<'a, T: Scalar, X: Into<Operand<'a, T>>> IntoOperand<'a, T> for X {
    fn into_operand(self) -> Operand<'a, T> {
        self.into()
    }
}

impl<'a, T: Scalar> From<SparseRef<'a, T>> for Operand<'a, T> {
    fn from(s: SparseRef<'a, T>) -> Self {
        Operand::HostSparse(s)
    }
}

impl<'a, T: Scalar> From<&'a AnySparse<T>> for Operand<'a, T> {
    fn from(s: &'a AnySparse<T>) -> Self {
        Operand::HostSparse(s.as_sparse())
    }
}

/// Sparse tensors of every format.
impl<'a, P: Pattern, T: Scalar> From<&'a Sparse<P, T>> for Operand<'a, T> {
    fn from(s: &'a Sparse<P, T>) -> Self {
        Operand::HostSparse(s.as_sparse())
    }
}
