//! Conversions between formats: parallel free functions, and `TryFrom` implementations that call them. Matrices are
//! converted through CSR, tensors of other orders through COO. Conversions from CSR sort nothing.
use crate::error::*;

mod bitmap;
mod block;
mod bytemap;
mod choice;
mod compressed;
mod cost;
mod dense;
mod entries;
mod from;
mod from_dense;
mod group;
mod hybrid;
mod keep;
mod nm;
mod sliced;
mod tasks;
mod unblock;

pub use bitmap::{bitmap_to_csr, csr_to_bitmap, dense_to_bitmap};
pub use block::{csr_to_block_coo, csr_to_block_group_coo, csr_to_bsr};
pub use bytemap::{bytemap_to_csr, csr_to_bytemap};
pub use choice::BlockChoice;
pub use compressed::{
    coo_to_csr, csc_to_csr, csr_to_coo, csr_to_csc, csr_to_ell, ell_to_csr, transpose_csr,
};
pub use dense::{coo_to_dense, csr_to_dense, dense_to_coo, dense_to_csr};
pub use from_dense::{dense_to_block_coo, dense_to_block_group_coo, dense_to_bsr};
pub use group::{coo_to_group_coo, csr_to_group_coo, group_coo_to_coo};
pub use hybrid::{csr_to_hybrid_group_coo, hybrid_group_coo_to_csr};
pub use keep::{EntryChoice, dense_to_csr_by};
pub use nm::{csr_to_nm, dense_to_nm, nm_to_csr, nm_to_dense, prune_to_nm};
pub use sliced::{csr_to_sliced_ell, sliced_ell_to_csr};
pub use unblock::{block_coo_to_csr, block_group_coo_to_csr, bsr_to_csr};

pub(crate) use block::block_row_counts;
pub(crate) use compressed::{starts_of, transpose_pattern};
pub(crate) use entries::sort_entries;
pub(crate) use nm::check_groups;
pub(crate) use sliced::sliced_chunks;
pub(crate) use tasks::{prefix_sum, row_tasks};

/// Returns the extents of a matrix, or an error for a tensor of another order.
fn matrix(shape: &[usize]) -> Result<(usize, usize)> {
    match *shape {
        [rows, cols] => Ok((rows, cols)),
        _ => Err(crate::check::shape("order", shape.len(), "2")),
    }
}
