//! Sparse tensor formats in host memory: patterns, conversions, statistics, file readers and generators.
//!
//! ```
//! use einsparse_formats::{AnySparse, Csr, CsrPattern, Format};
//!
//! // [ 1 0 2 ]
//! // [ 0 0 0 ]
//! // [ 0 3 0 ]
//! let pattern = CsrPattern::new(3, 3, vec![0, 2, 2, 3], vec![0, 2, 1])?;
//! let a = AnySparse::from(Csr::new(pattern, vec![1.0f32, 2.0, 3.0])?);
//! let grouped = a.convert("groupcoo:2".parse()?)?;
//! assert_eq!(grouped.slots(), 4); // one slot of the second group is padding
//! assert_eq!(grouped.convert(Format::Csr)?, a);
//! # Ok::<(), einsparse_formats::FormatError>(())
//! ```

pub mod allocate;
mod any;
mod bitmap;
mod block_coo;
mod block_group_coo;
mod bsr;
mod bytemap;
mod check;
pub mod convert;
mod coo;
mod csc;
mod csr;
mod dense;
mod element;
mod ell;
mod error;
pub mod fill;
mod format;
mod fp8;
#[cfg(feature = "ndarray")]
mod from_ndarray;
#[cfg(feature = "sprs")]
mod from_sprs;
pub mod generate;
mod group_coo;
mod hybrid_group_coo;
pub mod io;
mod nm;
#[doc(hidden)]
pub mod parallel;
mod pattern;
mod permutation;
mod places;
#[cfg(feature = "proptest")]
pub mod proptest;
pub mod reference;
pub mod reorder;
mod scale_blocks;
mod sliced_ell;
pub mod stats;
pub mod vectors;

pub use any::{AnyPattern, AnySparse, AsSparse, SharedPattern, SparseRef};
pub use bitmap::{Bitmap, BitmapPattern};
pub use block_coo::{BlockCoo, BlockCooPattern};
pub use block_group_coo::{BlockGroupCoo, BlockGroupCooPattern};
pub use bsr::{Bsr, BsrPattern};
pub use bytemap::{Bytemap, BytemapPattern};
pub use coo::{Coo, CooPattern};
pub use csc::{Csc, CscPattern};
pub use csr::{Csr, CsrPattern};
pub use dense::Dense;
pub use element::{Accumulator, Element};
pub use ell::{Ell, EllPattern};
pub use error::{FormatError, Result};
pub use format::Format;
pub use fp8::{E4m3, E5m2};
pub use group_coo::{GroupCoo, GroupCooPattern};
pub use half::{bf16, f16};
pub use hybrid_group_coo::{GroupClass, HybridGroupCoo, HybridGroupCooPattern};
pub use nm::{Nm, NmPattern};
pub use pattern::{IndexArray, PAD, Pattern, Role, Sparse};
pub use permutation::Permutation;
pub use places::Entries;
pub use scale_blocks::{SCALE_BLOCK, scale_blocks, unscale_blocks};
pub use sliced_ell::{SlicedEll, SlicedEllPattern};
