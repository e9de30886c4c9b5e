//! An Einsum with the formats substituted: sparse tensors become index arrays, gathers and scatters.
//!
//! The notation is that of Insum (arXiv 2510.17505): `C[AM[p],n] += AV[p,q] * B[AK[p,q],n]`. Every format of one sparse
//! operand is a substitution of index expressions. No other module depends on the meaning of the formats.

mod convolution;
mod dots;
pub mod rewrite;
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

/// Index at one axis of an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Index {
    /// A loop index.
    Name(String),
    /// A slot of an index array. A slot that holds [`PAD`](einsparse_formats::PAD) drops the term.
    Access(Access),
    /// `outer * extent + inner`, printed as `outer,inner`. A value past the axis drops the term.
    Split {
        /// Block: a loop index or a slot of an index array.
        outer: Box<Index>,
        /// Index inside the block: a loop index or a slot of an array of positions.
        inner: Box<Index>,
        /// Extent of the block.
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

/// A tensor, or an index array, with one index per axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Name of the tensor or array.
    pub tensor: String,
    /// One index per axis.
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

/// An index array of a sparse operand, and its name in the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayName {
    /// Operand and upper-case index for coordinates (`AK`), operand and `P` for offsets (`AP`).
    pub name: String,
    /// Role of the array in the format.
    pub role: Role,
}

/// The sparse operand of an indirect Einsum, and the substitution of its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseOperand {
    /// Name in the source expression.
    pub name: String,
    /// Storage format.
    pub format: Format,
    /// Index of the factor that holds the values.
    pub factor: usize,
    /// Name of the values array: operand and `V`.
    pub values: String,
    /// Index arrays.
    pub arrays: Vec<ArrayName>,
    /// Coordinate of a nonzero along each axis. A term is dropped if one of its coordinates is
    /// [`PAD`](einsparse_formats::PAD) or past the axis.
    pub coordinates: Vec<Index>,
}

/// A bias, with the output axes along which it extends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bias {
    /// Name of the tensor.
    pub tensor: String,
    /// Axis of the output for each axis of the bias.
    pub axes: Vec<usize>,
}

/// An Einsum over dense tensors and index arrays only.
///
/// ```
/// use einsparse_lang::einsum::Einsum;
/// use einsparse_formats::Format;
/// use einsparse_lang::indirect::rewrite;
/// let e = Einsum::parse("C[m,n] = A[m,k] * B[k,n]")?;
/// let indirect = rewrite(&e, "A", &Format::GroupCoo { axis: 0, group: None })?;
/// assert_eq!(indirect.to_string(), "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]");
/// # Ok::<(), einsparse_lang::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct IndirectEinsum {
    /// The left side.
    pub out: Access,
    /// Whether the output is overwritten or added to. With a sparse operand the notation is always `+=`: for
    /// [`Mode::Assign`], terms are scattered into an output of zeros.
    pub mode: Mode,
    /// Factors without indices.
    pub scalars: Vec<Scalar>,
    /// Factors with indices. The factor of the sparse operand is its values array.
    pub factors: Vec<Access>,
    /// Bias, added to each element of the output, also where no term contributes.
    pub bias: Option<Bias>,
    /// Applied to the sums after the bias.
    pub activation: Activation,
    /// Tensor of the output's shape. Results are zero where it is not positive.
    pub gate: Option<String>,
    /// Compressed axes.
    pub ranges: Vec<Range>,
    /// Pairs that must be equal for a term to count: the diagonal of a sparse operand.
    pub equalities: Vec<(Index, Index)>,
    /// The sparse operand, if any.
    pub sparse: Option<SparseOperand>,
    /// Indices of the factors that must not be multiplied with the zeros that fill blocks or N:M groups.
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
