//! Tiles and parameters of the family.

mod channels;
mod detect;
mod live_rows;
mod route;
mod router;
mod transpose;

pub use channels::*;
pub use detect::*;
pub use live_rows::*;
pub use route::*;
pub use router::*;
pub use transpose::*;
