//! Conversions between formats on the GPU. The baseline is a device-to-device copy of as many bytes as a conversion
//! must read and write once.

mod blocks;
pub mod entries;

use crate::calibrate::copied;
use crate::prelude::*;
use crate::problems;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (problems::DENSE_TO_BLOCKS, Table(blocks::run)),
    (problems::CSR_TO_BLOCKS, Table(blocks::run)),
    (entries::OP, Own(entries::run)),
];

/// Row of a conversion that reads and writes `bytes` bytes, and the time of the copy, its min time.
fn limited(bench: &Bench<'_>, row: Row, bytes: usize) -> Result<(Row, Times)> {
    let copied = copied(bench, bytes / 2)?;
    let row = row.bytes(bytes as f64).limit(copied.cold);
    Ok((row.also(format!("{bytes} bytes read and written")), copied))
}
