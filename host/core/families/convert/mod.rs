//! Conversions between formats. The kernels are in `kernels-gpu/families/convert`.

pub(crate) mod convert;
pub(crate) mod entries;
pub(crate) mod expand;
pub(crate) mod lists;
pub(crate) mod prune;
pub(crate) mod scatter;
pub(crate) mod slices;
pub(crate) mod slicing;

pub(crate) use convert::{Blocks, RawBlocks, Request};
pub use entries::Order;
pub(crate) use entries::{
    Conversion, Entries, RawEntries, Sort, SortOut, Steps, Transpose, check, permute,
};
pub(crate) use expand::{Expand, Placed, Strips, expand_us};
pub(crate) use prune::{prune, pruner};
pub(crate) use scatter::Scatter;
pub(crate) use slicing::{SliceValues, fill_slices, slices_us, survey_slices};
