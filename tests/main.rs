//! The one integration binary; its modules are named after those of the library.

mod downstream;
mod language;
