//! Sparse tensors of any order, and general indirect Einsums.

pub mod einsum;
pub mod equivariant;
pub mod join;
pub mod messages;
pub mod mttkrp;
pub mod tensor_product;

use crate::operations::{Entry, Own};

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
