//! Columns of the items of a batch that hold something: `mark` reads all of it once and leaves a bit for each column,
//! `pack` makes lists of the bits and copies these columns, which L2 still has where the items fit into it. Between the
//! two no thread block waits for another.

mod mark;
mod pack;
