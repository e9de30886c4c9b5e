//! Elements of 1, 8, 16 or 32 bits: loads of 16 bytes, and marks of the elements above a threshold.

use crate::device::memory::{Global, ReadWrite};

/// Loads 16 bytes from element `first` of a row on; zeros past element `count`, and if there is no such row. Elements of
/// 1 bit may be nonzero up to the end of the last word. If the row is `aligned` and its first element is inside, all 16
/// bytes are loaded.
#[inline(always)]
pub fn vector(
    row: Global<u8, ReadWrite>,
    (first, count, valid): (u32, u32, bool),
    bits: u32,
    aligned: bool,
) -> [u32; 4] {
    let at = row.bytes((first as u64 * bits as u64) / 8);
    if aligned {
        return at.cast::<[u32; 4]>().ld_once_if(valid && first < count);
    }
    let mut words = [0; 4];
    unroll!(w < 4, {
        let at = at.bytes(w as u64 * 4);
        let inside = |i: usize| valid && first + w as u32 * (32 / bits) + (i as u32) < count;
        match bits {
            8 => unroll!(i < 4, {
                words[w] |= at.at(i as u64).ld_if(inside(i)) << (8 * i);
            }),
            16 => unroll!(i < 2, {
                words[w] |= at.cast::<u16>().at(i as u64).ld_if(inside(i)) << (16 * i);
            }),
            _ => words[w] = at.cast::<u32>().ld_if(inside(0)),
        }
    });
    words
}

/// Returns the top bit of each element in a word, set if the magnitude of the element is above the threshold. The sum
/// of a magnitude and `above` sets the bit. For threshold zero any bit but the sign sets it: for NaN, but not for
/// either zero.
#[inline(always)]
pub fn mark(word: u32, bits: u32, above: u32) -> u32 {
    match bits {
        1 => word,
        8 => (((word & 0x7f7f_7f7f) + 0x7f7f_7f7f) | word) & 0x8080_8080,
        16 => ((word & 0x7fff_7fff) + above) & 0x8000_8000,
        _ => ((word & 0x7fff_ffff) + above) & 0x8000_0000,
    }
}

/// Compacts the top bits of a word to one bit per element, the first element lowest.
#[inline(always)]
pub fn gathered(marks: u32, bits: u32) -> u32 {
    match bits {
        1 => marks,
        8 => ((marks >> 7).wrapping_mul(0x0020_4081) >> 21) & 0xf,
        16 => marks >> 15 & 1 | marks >> 30 & 2,
        _ => marks >> 31,
    }
}
