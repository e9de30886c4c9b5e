//! Nonempty columns of the items of a batch. `mark` reads all items once and stores a bit per column. `pack` makes
//! lists of the bits and copies the columns, which L2 still has if the items fit in it. Within a kernel, thread blocks
//! do not wait for each other.

mod mark;
mod pack;
