//! The expression language, before a format is chosen.
//!
//! `OUT[i,j,...] (= | +=) F1[...] * F2[...] * ...`, with scalar factors, nested accesses (gathers and scatters) and one
//! optional epilogue (`relu(sum + bias)`, `gelu(...)`, `relu_grad(sum, gate)`). An index that appears only on the right
//! is summed.
//!
//! Each index of an access is a `name` or an `array[...]` with indices. At an axis of a dense tensor, it may also be a
//! sum `[factor *] name {+ [factor *] name}` of indices with positive integer factors. `C[n,x,y,f] =
//! A[n,2*x+i,2*y+j,m] * B[i,j,m,f]` is a convolution of stride 2; `x+2*i` has dilation 2. On the left, a sum adds to the
//! element that it names: `A[n,2*x+i,2*y+j,m] = C[n,x,y,f] * B[i,j,m,f]`. The extent of an index that appears only in
//! sums is the largest for which all elements are inside the tensor. Constants and minus signs are not supported in
//! sums: pad the operand instead.

mod check;
mod gradient;
mod parse;
mod sums;
mod windows;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use check::Extents;
pub use gradient::{Gradient, Ones, SumsGradient};
pub use sums::{SumArray, Term};
pub use windows::{Windows, windows};

use crate::error::{Error, Result};

/// Whether the output is overwritten or added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `=`: every element of the output is written, also those to which no term contributes.
    Assign,
    /// `+=`: the result is added to the output.
    Accumulate,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Assign => "=",
            Mode::Accumulate => "+=",
        })
    }
}

/// Factor without indices.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// A number written in the expression; always finite.
    Literal(f64),
    /// A name, bound to a number when the expression runs.
    Name(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Literal(v) => write!(f, "{v}"),
            Scalar::Name(n) => f.write_str(n),
        }
    }
}

/// Index at one axis of an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexExpr {
    /// An index name.
    Name(String),
    /// An access of an index array: a gather on the right, a scatter on the left.
    Access(Access),
    /// A sum of indices with factors, at an axis of a dense tensor: `2*x+i`. It has at least two terms, or one with a
    /// factor other than 1. Each index appears once.
    Sum(Vec<Term>),
}

impl IndexExpr {
    /// Calls `visit` on every index name in this expression, in the order of the text.
    pub fn for_each_name<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        match self {
            IndexExpr::Name(n) => visit(n),
            IndexExpr::Access(a) => a.for_each_name(visit),
            IndexExpr::Sum(terms) => terms.iter().for_each(|term| visit(&term.index)),
        }
    }
}

impl fmt::Display for IndexExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexExpr::Name(n) => f.write_str(n),
            IndexExpr::Access(a) => a.fmt(f),
            IndexExpr::Sum(terms) => sums::Written(terms).fmt(f),
        }
    }
}

/// A tensor with one index expression per axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Name of the tensor.
    pub tensor: String,
    /// One index per axis; empty for a tensor of rank 0.
    pub indices: Vec<IndexExpr>,
}

impl Access {
    /// Calls `visit` on every index name, in the order of the text, including nested accesses.
    pub fn for_each_name<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        for index in &self.indices {
            index.for_each_name(visit);
        }
    }

    /// Calls `visit` on this access and on every access nested in it.
    pub fn for_each_access<'a>(&'a self, visit: &mut impl FnMut(&'a Access)) {
        visit(self);
        for index in &self.indices {
            if let IndexExpr::Access(a) = index {
                a.for_each_access(visit);
            }
        }
    }

    fn rename(&self, names: &BTreeMap<&str, String>) -> Access {
        let indices = self.indices.iter().map(|index| match index {
            IndexExpr::Name(n) => IndexExpr::Name(names[n.as_str()].clone()),
            IndexExpr::Access(a) => IndexExpr::Access(a.rename(names)),
            IndexExpr::Sum(terms) => {
                let term =
                    |t: &Term| Term { factor: t.factor, index: names[t.index.as_str()].clone() };
                IndexExpr::Sum(terms.iter().map(term).collect())
            }
        });
        Access { tensor: self.tensor.clone(), indices: indices.collect() }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_access(f, &self.tensor, &self.indices)
    }
}

/// Writes an access: `tensor[index,...]`.
pub fn write_access(
    f: &mut fmt::Formatter<'_>,
    tensor: &str,
    indices: &[impl fmt::Display],
) -> fmt::Result {
    write!(f, "{tensor}[")?;
    for (i, index) in indices.iter().enumerate() {
        write!(f, "{}{index}", if i == 0 { "" } else { "," })?;
    }
    f.write_str("]")
}

/// Function applied to the final sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// No function.
    #[default]
    Identity,
    /// `relu`: negative results become 0; NaN stays NaN.
    Relu,
    /// `gelu`: x / 2 (1 + erf(x / sqrt 2)) (Hendrycks and Gimpel, arXiv 1606.08415). Max absolute error on GPUs:
    /// 1.5e-7. For 16-bit results, before rounding, the max error is 2e-6 absolute and 2e-5 relative down to x = -6.
    /// Infinities become +Inf and 0.
    Gelu,
}

impl Activation {
    /// Name of the function in an expression.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Activation::Identity => None,
            Activation::Relu => Some("relu"),
            Activation::Gelu => Some("gelu"),
        }
    }
}

/// Operations on the sum of products before it is stored: `relu(sum + bias)`, `gelu(...)` or `relu_grad(sum, gate)`,
/// each part optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epilogue {
    /// Added to the sum; its indices are plain indices of the output.
    pub bias: Option<Access>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Gate of `relu_grad(sum, gate)`: the result is zero where the gate is not positive. Its indices are those of the
    /// output, so the output of a ReLU is the gate of its gradient.
    pub gate: Option<Access>,
}

/// A parsed expression.
///
/// ```
/// use einsparse_lang::einsum::Einsum;
/// let e: Einsum = "C[m,n] = relu(2 * A[m,k] * B[k,n] + bias[m])".parse()?;
/// assert_eq!(e.factors.len(), 2);
/// assert_eq!(e.epilogue.activation.name(), Some("relu"));
/// # Ok::<(), einsparse_lang::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Einsum {
    /// The left side.
    pub out: Access,
    /// `=` or `+=`.
    pub mode: Mode,
    /// Factors without indices.
    pub scalars: Vec<Scalar>,
    /// Factors with indices, in the order of the text.
    pub factors: Vec<Access>,
    /// Bias, activation and gate.
    pub epilogue: Epilogue,
    /// The text this was parsed from; not compared by `==`.
    pub text: String,
}

impl PartialEq for Einsum {
    fn eq(&self, other: &Self) -> bool {
        self.out == other.out
            && self.mode == other.mode
            && self.scalars == other.scalars
            && self.factors == other.factors
            && self.epilogue == other.epilogue
    }
}

impl FromStr for Einsum {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse::einsum(text)
    }
}

impl Einsum {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`Error::Parse`] with the offset, the expected text and the text found there.
    pub fn parse(text: &str) -> Result<Self> {
        parse::einsum(text)
    }

    /// The factors, the bias and the gate: every access on the right, except nested ones.
    pub fn right(&self) -> impl Iterator<Item = &Access> {
        let epilogue = self.epilogue.bias.iter().chain(&self.epilogue.gate);
        self.factors.iter().chain(epilogue)
    }

    /// Names of the tensors, index arrays and named scalars, each once. The output is the first.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let mut visit = |name| {
            if !names.contains(&name) {
                names.push(name);
            }
        };
        for access in std::iter::once(&self.out).chain(self.right()) {
            access.for_each_access(&mut |access| visit(&access.tensor));
        }
        for scalar in &self.scalars {
            if let Scalar::Name(name) = scalar {
                visit(name);
            }
        }
        names
    }

    /// Index names in the order of their first occurrence: output, factors, bias, gate.
    pub fn index_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let mut visit = |n| {
            if !names.contains(&n) {
                names.push(n);
            }
        };
        self.out.for_each_name(&mut visit);
        self.right().for_each(|a| a.for_each_name(&mut visit));
        names
    }

    /// The expression with its indices renamed to `i0`, `i1`, ... in the order of [`Einsum::index_names`].
    ///
    /// Two expressions that differ only in index names have equal canonical forms.
    pub fn canonical(&self) -> Einsum {
        let names = self.index_names();
        let map: BTreeMap<&str, String> =
            names.iter().enumerate().map(|(i, n)| (*n, format!("i{i}"))).collect();
        let mut e = Einsum {
            out: self.out.rename(&map),
            mode: self.mode,
            scalars: self.scalars.clone(),
            factors: self.factors.iter().map(|a| a.rename(&map)).collect(),
            epilogue: Epilogue {
                bias: self.epilogue.bias.as_ref().map(|a| a.rename(&map)),
                activation: self.epilogue.activation,
                gate: self.epilogue.gate.as_ref().map(|a| a.rename(&map)),
            },
            text: String::new(),
        };
        e.text = e.to_string();
        e
    }
}

impl fmt::Display for Einsum {
    /// Canonical text: scalars first, one space around operators. Parses back to an equal value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.out, self.mode)?;
        write_right(
            f,
            &self.scalars,
            &self.factors,
            self.epilogue.bias.as_ref(),
            self.epilogue.activation,
            self.epilogue.gate.as_ref(),
        )
    }
}

/// Name of the function that has a gate.
const RELU_GRAD: &str = "relu_grad";

/// Writes the right side of an expression: factors, bias, and the function around them.
pub fn write_right<A: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    scalars: &[Scalar],
    factors: &[A],
    bias: Option<&A>,
    activation: Activation,
    gate: Option<&A>,
) -> fmt::Result {
    let function = gate.map(|_| RELU_GRAD).or(activation.name());
    if let Some(name) = function {
        write!(f, "{name}(")?;
    }
    let mut times = "";
    for s in scalars {
        write!(f, "{times}{s}")?;
        times = " * ";
    }
    for a in factors {
        write!(f, "{times}{a}")?;
        times = " * ";
    }
    if let Some(bias) = bias {
        write!(f, " + {bias}")?;
    }
    if let Some(gate) = gate {
        write!(f, ", {gate}")?;
    }
    f.write_str(function.map_or("", |_| ")"))
}
