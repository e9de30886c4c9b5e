//! Sparse tensors of any order, and general indirect Einsums.

mod einsum;
mod equivariant;
mod join;
mod messages;
mod mttkrp;
mod tensor_product;

use crate::prelude::*;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    ("mttkrp", Own(mttkrp::run)),
    ("ttm", Own(mttkrp::run)),
    ("sampled_tensor", Own(mttkrp::run)),
    (tensor_product::OP, Own(tensor_product::run)),
    (equivariant::OP, Own(equivariant::run)),
    (einsum::OP, Own(einsum::run)),
    (messages::OP, Own(messages::run)),
    (join::OP, Own(join::run)),
];
