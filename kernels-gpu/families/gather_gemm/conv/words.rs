//! Copies of rows to shared memory as f32, for the modules `conv_simt` and `conv_pairs`, which gather with all threads.

use crate::device::prelude::*;

#[derive(Clone, Copy)]
pub struct Line {
    pub row: Global<u8, Fresh>,
    /// Elements; later ones read as zeros.
    pub width: u32,
    pub valid: bool,
}

/// Copies four neighbouring elements of a row, from `first` on, to 16 bytes of shared memory as f32: by `cp.async`
/// (`VECTORS`), or synchronously. `WHOLE`: a valid row has all four. A size known only at run time costs a dozen
/// instructions.
#[inline(always)]
pub fn bring<E: Elem<Acc = f32>, const VECTORS: bool, const WHOLE: bool>(
    to: Shared<u8>,
    line: Line,
    first: u32,
) {
    if VECTORS && WHOLE {
        let bytes = if line.valid { 16 } else { 0 };
        line.row.cast::<f32>().at(first).cp_async_16(to, bytes);
        return;
    }
    let width = if line.valid { line.width } else { 0 };
    if VECTORS {
        let bytes = (width.saturating_sub(first) * 4).min(16);
        let from = if bytes > 0 { first } else { 0 };
        line.row.cast::<f32>().at(from).cp_async_16(to, bytes);
        return;
    }
    let mut four = [0u32; 4];
    unroll!(i < 4, {
        let element = first + i as u32;
        let raw = line.row.cast::<E>().at(element).ld_raw::<1>(element < width);
        four[i] = E::get(&raw, 0).to_bits();
    });
    to.cast::<[u32; 4]>().st(four);
}

/// Loads four f32 from shared memory.
#[inline(always)]
pub fn four(from: Shared<f32>) -> [f32; 4] {
    from.cast::<[u32; 4]>().ld().map(f32::from_bits)
}
