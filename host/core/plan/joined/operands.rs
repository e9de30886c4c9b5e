//! Sparse operands of an expression: their positions among the factors, and their values as flat tensors.

use einsparse_formats::{AnyPattern, Format};

use crate::einsum::{Access, Einsum, IndexExpr};
use crate::error::{Error, Result};
use crate::offer::wrong;
use crate::tensor::{AnyOperand, AnyTensor};

/// Returns the positions of the sparse factors.
pub(in crate::plan) fn sparse_factors(
    einsum: &Einsum,
    operands: &[(&str, AnyOperand<'_>)],
) -> Vec<usize> {
    let sparse = |name: &str| {
        let mut found = operands.iter().filter(|(n, _)| *n == name);
        found.any(|(_, o)| o.pattern().is_some())
    };
    let factors = einsum.factors.iter().enumerate();
    factors.filter(|(_, access)| sparse(&access.tensor)).map(|(f, _)| f).collect()
}

/// Checks that sparse operands are only used as factors.
pub(in crate::plan) fn only_factors(
    einsum: &Einsum,
    operands: &[(&str, AnyOperand<'_>)],
) -> Result<()> {
    let mut elsewhere = Vec::new();
    let mut nested = |a: &Access| elsewhere.push(a.tensor.clone());
    let epilogue = einsum.epilogue.bias.iter().chain(&einsum.epilogue.gate);
    epilogue.for_each(|a| a.for_each_access(&mut nested));
    for access in einsum.factors.iter().chain([&einsum.out]) {
        for index in &access.indices {
            if let IndexExpr::Access(a) = index {
                a.for_each_access(&mut nested);
            }
        }
    }
    for (name, operand) in operands {
        let used = einsum.factors.iter().any(|f| f.tensor == *name);
        if operand.pattern().is_some() && (!used || elsewhere.iter().any(|n| n == name)) {
            return Err(Error::operand(
                name,
                format!("is sparse, but is not a factor in `{einsum}`"),
            ));
        }
    }
    Ok(())
}

/// Returns name and format of the sparse operand, if there is one.
pub(in crate::plan) fn sparse_among<'o>(
    einsum: &Einsum,
    operands: &'o [(&str, AnyOperand<'_>)],
) -> Result<Option<(&'o str, Format)>> {
    let mut found = None;
    for (name, operand) in operands {
        let Some(format) = operand.pattern().map(AnyPattern::format) else {
            continue;
        };
        if let Some((first, _)) = found.replace((*name, format)) {
            return Err(Error::operand(
                name,
                format!("is sparse, and so is `{first}`: one sparse operand in `{einsum}`"),
            ));
        }
    }
    Ok(found)
}

/// Returns the values of a sparse operand as a tensor of one axis: in place on a GPU, a copy on a CPU.
pub(super) fn flat_values(name: &str, operand: &AnyOperand<'_>) -> Result<AnyTensor> {
    match operand {
        AnyOperand::Sparse(s) => AnyTensor::of_values(s),
        AnyOperand::HostSparse(p, values) => AnyTensor::of(None, &[p.slots()], *values),
        other => Err(wrong(name, "a sparse tensor", other)),
    }
}
