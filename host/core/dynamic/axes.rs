//! PIT axes of an Einsum: indices whose order does not change the result (PIT, arXiv 2301.10936, section 3.1).

use std::collections::BTreeMap;
use std::fmt;

use crate::einsum::{Access, Einsum, IndexExpr};

/// Use of an index in an expression.
///
/// ```
/// use einsparse::{dynamic::{AxisUse, pit_axes}, einsum::Einsum};
/// let axes = pit_axes(&Einsum::parse("C[m] = A[m,k] * X[k]")?);
/// assert_eq!([&axes[0].usage, &axes[1].usage], [&AxisUse::Spatial, &AxisUse::Reduction]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisUse {
    /// The index appears in the output. Reordering it reorders the output; a scatter at the end undoes this.
    Spatial,
    /// The index is summed. Sums commute, but rounding depends on the order.
    Reduction,
    /// The index appears inside an index expression, from which the position in an operand is computed: not a PIT axis.
    Arithmetic {
        /// The first sum or index array that contains it: `2*x+i`, `X[x,i]`.
        within: String,
    },
}

impl AxisUse {
    /// Whether the index may be permuted.
    pub fn is_pit(&self) -> bool {
        !matches!(self, AxisUse::Arithmetic { .. })
    }
}

impl fmt::Display for AxisUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AxisUse::Spatial => f.write_str("spatial"),
            AxisUse::Reduction => f.write_str("summed"),
            AxisUse::Arithmetic { within } => write!(f, "in index arithmetic of {within}"),
        }
    }
}

/// An axis of an operand.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandAxis {
    /// Name of the operand, or of the output.
    pub operand: String,
    /// Number of the axis, from 0 on.
    pub axis: usize,
    /// Index at this axis.
    pub index: String,
    /// Use of the index in the expression.
    pub usage: AxisUse,
}

impl fmt::Display for OperandAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.usage.is_pit() { "PIT axis" } else { "fixed" };
        write!(f, "{}.{}: {verdict}, {}", self.operand, self.index, self.usage)
    }
}

/// Every axis of every operand that has an index: factors in the order of the text, bias and gate, then the output.
/// Axes with a sum of indices or an index array are omitted. Source: PIT, section 3.1: all spatial axes and all axes of
/// commutative and associative reductions, except those used in index arithmetic.
///
/// ```
/// use einsparse::{dynamic::pit_axes, einsum::Einsum};
/// let e = Einsum::parse("C[m,n] = A[m,k] * B[k,n]")?;
/// assert!(pit_axes(&e).iter().all(|axis| axis.usage.is_pit()));
/// assert_eq!(pit_axes(&e)[1].to_string(), "A.k: PIT axis, summed");
/// let e = Einsum::parse("C[x] = A[x+i] * B[i]")?;
/// assert_eq!(pit_axes(&e)[0].to_string(), "B.i: fixed, in index arithmetic of x+i");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[doc(hidden)]
pub fn pit_axes(einsum: &Einsum) -> Vec<OperandAxis> {
    let uses = uses(einsum);
    let mut axes = Vec::new();
    for access in operands(einsum) {
        for (axis, index) in access.indices.iter().enumerate() {
            if let IndexExpr::Name(name) = index {
                axes.push(OperandAxis {
                    operand: access.tensor.clone(),
                    axis,
                    index: name.clone(),
                    usage: uses[name.as_str()].clone(),
                });
            }
        }
    }
    axes
}

/// Factors, bias, gate, output.
pub(super) fn operands(einsum: &Einsum) -> impl Iterator<Item = &Access> {
    let epilogue = &einsum.epilogue;
    let behind = epilogue.bias.iter().chain(&epilogue.gate);
    einsum.factors.iter().chain(behind).chain(std::iter::once(&einsum.out))
}

/// Use of each index.
pub(super) fn uses(einsum: &Einsum) -> BTreeMap<&str, AxisUse> {
    let mut uses = BTreeMap::new();
    let mut kept = Vec::new();
    einsum.out.for_each_name(&mut |name| kept.push(name));
    for access in operands(einsum) {
        access.for_each_name(&mut |name| {
            let usage = if kept.contains(&name) { AxisUse::Spatial } else { AxisUse::Reduction };
            uses.entry(name).or_insert(usage);
        });
    }
    for index in operands(einsum).flat_map(|access| &access.indices) {
        if matches!(index, IndexExpr::Name(_)) {
            continue;
        }
        index.for_each_name(&mut |name| {
            if uses.get(name).is_some_and(AxisUse::is_pit) {
                let within = index.to_string();
                uses.insert(name, AxisUse::Arithmetic { within });
            }
        });
    }
    uses
}
