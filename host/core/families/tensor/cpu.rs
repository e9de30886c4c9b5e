//! CPU implementations of the family.

mod edge_geometry;
mod gathers;
mod message;

pub(crate) use edge_geometry::{backward as geometry_backward, forward as geometry_forward};
pub(crate) use gathers::{Matrix, gathers};
pub(crate) use message::Largest;
