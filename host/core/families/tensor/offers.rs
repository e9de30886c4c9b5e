//! Offers of the family: kernels that can run an expression.

pub(crate) mod dots;
pub(crate) mod einsum;
pub(crate) mod rows;
pub(crate) mod tensor_product;

use crate::error::Result;
use crate::offer::{Request, Run, Slot, alignment_of, given_alignment, leading};

/// Max number of elements, up to 16, that divides n, the addresses and the row strides of these matrices.
fn alignment<'n>(
    request: &Request<'_, '_>,
    names: impl Iterator<Item = &'n String>,
    n: usize,
) -> usize {
    let given = given_alignment(request.options, request.operands());
    let mut all = vec![n, given];
    all.extend(names.map(|name| leading(request.operands(), name, n)));
    alignment_of(&all)
}

/// Address and row stride of the gathered matrices, up to three.
fn matrices(run: &Run<'_>, factors: &[Slot]) -> Result<[(u64, usize); 3]> {
    let mut all = [(0, 0); 3];
    for (own, &slot) in all.iter_mut().zip(factors) {
        *own = run.tensor(slot)?;
    }
    Ok(all)
}

/// Slots of the gathered matrices.
fn slots<P>(request: &Request<'_, '_>, factors: &[(String, P)]) -> Result<Vec<Slot>> {
    factors.iter().map(|(name, _)| request.slot(name)).collect()
}
