//! Offers of the family: kernels that can run an expression.

pub(crate) mod dots;
pub(crate) mod einsum;
pub(crate) mod rows;
pub(crate) mod tensor_product;

use crate::error::Result;
use crate::offer::{Question, Run, alignment_of, given_alignment, leading};

/// Max number of elements, up to 16, that divides n, the addresses and the row strides of these matrices.
fn alignment<'n>(
    question: &Question<'_, '_>,
    names: impl Iterator<Item = &'n String>,
    n: usize,
) -> usize {
    let given = given_alignment(question.options, question.operands());
    let mut all = vec![n, given];
    all.extend(names.map(|name| leading(question.operands(), name, n)));
    alignment_of(&all)
}

/// Address and row stride of the gathered matrices, up to three.
fn matrices<P>(run: &Run<'_>, factors: &[(String, P)]) -> Result<[(u64, usize); 3]> {
    let mut all = [(0, 0); 3];
    for (own, (name, _)) in all.iter_mut().zip(factors) {
        *own = run.tensor(name)?;
    }
    Ok(all)
}
