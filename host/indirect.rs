//! An Einsum with the format written in: sparse tensors become index arrays, gathers and scatters.
//!
//! The notation is that of Insum (arXiv 2510.17505): `C[AM[p],n] += AV[p,q] * B[AK[p,q],n]`. Every format of one
//! sparse operand is a substitution of index expressions; nothing else in the library knows the formats' meaning.

mod convolution;
mod dots;
pub(crate) mod rewrite;
mod rows;
mod sampled;
mod spmm;
mod tensor_product;

use std::fmt;

use einsparse_formats::{Format, Role};

pub use convolution::ConvolutionForm;
pub use dots::DotsForm;
pub use rewrite::{rewrite, rewrite_dense};
pub use rows::RowsForm;
pub use sampled::{SampledFactor, SampledForm, rewrite_sampled};
pub use spmm::{BiasAxis, Orientation, SpmmForm};
pub use tensor_product::{TensorProductForm, TensorProductKind};

use crate::einsum::{Activation, Mode, Scalar, write_access, write_right};

/// What stands at one axis of an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Index {
    /// A loop index.
    Name(String),
    /// A slot of an index array. A slot that holds [`PAD`](einsparse_formats::PAD) drops the term.
    Access(Access),
    /// `outer * extent + inner`, printed as `outer,inner`; a value past the axis drops the term.
    Split {
        /// The block, a loop index or a slot of an index array.
        outer: Box<Index>,
        /// The place in the block, a loop index or a slot of an array of positions.
        inner: Box<Index>,
        /// The block's extent.
        extent: usize,
    },
}

impl Index {
    /// Calls `visit` on every loop index in this expression.
    pub fn for_each_name<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        match self {
            Index::Name(n) => visit(n),
            Index::Access(a) => a.for_each_name(visit),
            Index::Split { outer, inner, .. } => {
                outer.for_each_name(visit);
                inner.for_each_name(visit);
            }
        }
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Index::Name(n) => f.write_str(n),
            Index::Access(a) => a.fmt(f),
            Index::Split { outer, inner, .. } => write!(f, "{outer},{inner}"),
        }
    }
}

/// A tensor, or an index array, with one index for each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Name of the tensor or array.
    pub tensor: String,
    /// One for each axis.
    pub indices: Vec<Index>,
}

impl Access {
    /// Calls `visit` on every loop index in this access, in the order of the text.
    pub fn for_each_name<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        self.indices.iter().for_each(|i| i.for_each_name(visit));
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_access(f, &self.tensor, &self.indices)
    }
}

/// `offsets[over] <= index < offsets[over+1]`: a compressed axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The loop index that is bounded.
    pub index: String,
    /// Name of the offsets array.
    pub offsets: String,
    /// The loop index of the compressed axis.
    pub over: String,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { index, offsets, over } = self;
        write!(f, "{offsets}[{over}] <= {index} < {offsets}[{over}+1]")
    }
}

/// One index array of a sparse operand and the name it has in the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayName {
    /// The name: operand and upper-case index for coordinates (`AK`), operand and `P` for offsets (`AP`).
    pub name: String,
    /// Which array of the format it is.
    pub role: Role,
}

/// The sparse operand of an indirect Einsum, and how its format is written in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseOperand {
    /// Its name in the source expression.
    pub name: String,
    /// Its format.
    pub format: Format,
    /// Which of the factors holds its values.
    pub factor: usize,
    /// Name of its values array: operand and `V`.
    pub values: String,
    /// Its index arrays.
    pub arrays: Vec<ArrayName>,
    /// The place of an entry along each axis. A term for which one of them is
    /// [`PAD`](einsparse_formats::PAD) or past the axis is no entry and is dropped.
    pub coordinates: Vec<Index>,
}

/// A bias, by the output axes it runs along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bias {
    /// Name of the tensor.
    pub tensor: String,
    /// For each of its axes the axis of the output.
    pub axes: Vec<usize>,
}

/// An Einsum over dense tensors and index arrays only.
///
/// ```
/// use einsparse::einsum::Einsum;
/// use einsparse::formats::Format;
/// use einsparse::indirect::rewrite;
/// let e = Einsum::parse("C[m,n] = A[m,k] * B[k,n]")?;
/// let indirect = rewrite(&e, "A", &Format::GroupCoo { axis: 0, group: None })?;
/// assert_eq!(indirect.to_string(), "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct IndirectEinsum {
    /// The left side.
    pub out: Access,
    /// Whether the output is overwritten or added to. With a sparse operand the notation is `+=` either way: terms
    /// are scattered into an output that starts at zero for [`Mode::Assign`].
    pub mode: Mode,
    /// Factors without indices.
    pub scalars: Vec<Scalar>,
    /// Factors with indices; the sparse operand's is its values array.
    pub factors: Vec<Access>,
    /// Added to the sum of each element of the output, also where no term contributes.
    pub bias: Option<Bias>,
    /// Applied to the sums after the bias.
    pub activation: Activation,
    /// Tensor of the output's shape; results are zero where it is not positive.
    pub gate: Option<String>,
    /// Compressed axes.
    pub ranges: Vec<Range>,
    /// Pairs that must be equal for a term to count: the diagonal of a sparse operand.
    pub equalities: Vec<(Index, Index)>,
    /// The sparse operand, if there is one.
    pub sparse: Option<SparseOperand>,
    /// Numbers of the factors whose zeros fill blocks or groups of N:M and must not be multiplied.
    pub filled: Vec<usize>,
}

impl IndirectEinsum {
    /// The bias as an access with the indices of the output.
    pub fn bias_access(&self) -> Option<Access> {
        self.bias.as_ref().map(|b| Access {
            tensor: b.tensor.clone(),
            indices: b.axes.iter().map(|&axis| self.out.indices[axis].clone()).collect(),
        })
    }
}

impl IndirectEinsum {
    /// The gate as an access with the indices of the output.
    pub fn gate_access(&self) -> Option<Access> {
        self.gate
            .as_ref()
            .map(|gate| Access { tensor: gate.clone(), indices: self.out.indices.clone() })
    }
}

impl fmt::Display for IndirectEinsum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.sparse.is_some() { Mode::Accumulate } else { self.mode };
        write!(f, "{} {mode} ", self.out)?;
        write_right(
            f,
            &self.scalars,
            &self.factors,
            self.bias_access().as_ref(),
            self.activation,
            self.gate_access().as_ref(),
        )?;
        for range in &self.ranges {
            write!(f, ", {range}")?;
        }
        for (left, right) in &self.equalities {
            write!(f, ", {left} = {right}")?;
        }
        Ok(())
    }
}
