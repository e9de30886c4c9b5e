//! The product of docs/levels.md.

mod levels;
