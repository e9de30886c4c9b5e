//! Geometry of the bitmap and bytemap formats for launches: depth of a tile, start of its values, bytes of a stage.

use einsparse_kernels::abi::{TMA, WGMMA, WalkKind};
use einsparse_kernels::families::{
    BIT_ALIGN, BIT_BYTES, BIT_HEAD, BIT_TILE, BIT_WORDS, BYTE_COUNTS, BYTE_DEPTH, BYTE_TILE,
    BYTE_UNIT, copying_warps, eights,
};
use einsparse_kernels::table::Row;
use rayon::prelude::*;

/// Bytes after a stage's values, which lanes without a value read and ignore.
const SLACK: usize = 16;
/// Bytes of the counts of a stage's tiles if positions are bytes.
const COUNTS: usize = 4 * BYTE_COUNTS;

/// Bytes after the stages, where warps that share a CTA tile's stages add their sums: 32 rows of each warp.
pub(crate) fn sums(row: &Row) -> usize {
    match row.parts {
        1 => 0,
        _ => {
            let multiply = row.threads / 32 - copiers(row);
            multiply as usize * eights(row.columns as usize) * 8 * 32 * 4
        }
    }
}

/// Producer warps.
pub(crate) fn copiers(row: &Row) -> u32 {
    copying_warps(row.needs & TMA != 0, row.parts > 1)
}

/// How positions are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Bits,
    Bytes,
}

impl Layout {
    pub(crate) fn of(row: &Row) -> Layout {
        if row.walk == WalkKind::Bytemap { Layout::Bytes } else { Layout::Bits }
    }

    /// Columns of a tile.
    pub(crate) fn depth(self) -> usize {
        match self {
            Layout::Bits => BIT_TILE,
            Layout::Bytes => BYTE_DEPTH,
        }
    }

    /// Start of each tile's values, in the format's units, computed from the words.
    pub(crate) fn starts(self, words: &[u32], tiles: usize) -> Vec<u32> {
        let sum = |words: &[u32], each: fn(u32) -> u32| words.iter().map(|&w| each(w)).sum::<u32>();
        let counts: Vec<u32> = match self {
            Layout::Bits => words
                .par_chunks_exact(BIT_WORDS)
                .map(|tile| {
                    let bits = &tile[..BIT_TILE * BIT_TILE / 32];
                    sum(bits, u32::count_ones).div_ceil(BIT_ALIGN as u32)
                })
                .collect(),
            Layout::Bytes => words[..tiles * BYTE_COUNTS / 4]
                .par_chunks_exact(BYTE_COUNTS / 4)
                .map(|tile| {
                    let bytes = |word: u32| word.to_le_bytes().map(u32::from).iter().sum();
                    sum(tile, bytes).div_ceil(BYTE_UNIT as u32)
                })
                .collect(),
        };
        let mut starts = Vec::with_capacity(counts.len() + 1);
        let mut end = 0;
        starts.push(0);
        for count in counts {
            end += count;
            starts.push(end);
        }
        starts
    }

    /// Bytes of A in a stage of `groups` tiles whose values occupy `units` units.
    pub(crate) fn slot_bytes(self, groups: usize, units: usize) -> usize {
        let bytes = match self {
            Layout::Bits => groups * BIT_BYTES + units * BIT_ALIGN * 2,
            Layout::Bytes => COUNTS + units * BYTE_UNIT * 12,
        };
        (bytes + SLACK).next_multiple_of(128)
    }

    /// Bytes before the stages of a kernel.
    pub(crate) fn head(self, row: &Row) -> usize {
        // With asynchronous products, one tile is expanded while another is multiplied.
        let spread = if row.needs & WGMMA != 0 { 2 } else { 1 };
        match self {
            Layout::Bits => BIT_HEAD,
            Layout::Bytes => BIT_HEAD + row.items as usize * spread * BYTE_TILE,
        }
    }

    /// Bytes from the words to the positions, in units of 16.
    pub(crate) fn places(self, tiles: usize) -> usize {
        match self {
            Layout::Bits => 0,
            Layout::Bytes => tiles * BYTE_COUNTS / 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use einsparse_kernels::abi::CpAsync;
    use einsparse_kernels::families::{WarpOf, WarpTile, copying_into, stages_for};
    use einsparse_kernels::table::kernels;

    /// The host counts the same bytes as the device code.
    #[test]
    fn sums_are_those_of_the_tiles() {
        let sums = |name: &str| {
            let row = kernels().iter().find(|row| row.name == name).unwrap();
            super::sums(row)
        };
        assert_eq!(sums("bitmap_f16_256x1_warps6"), WarpTile::<1, 4, WarpOf<6>>::SUMS);
        assert_eq!(sums("bitmap_f16_256x8_halves3"), WarpTile::<8, 2, WarpOf<3>>::SUMS);
        assert_eq!(sums("bitmap_f16_256x16_halves3"), WarpTile::<16, 2, WarpOf<3>>::SUMS);
        assert_eq!(sums("bitmap_f16_256x16"), 0);
        assert_eq!(sums("bitmap_mma_f16_256x8_warps4"), WarpTile::<8, 4, WarpOf<4, CpAsync>>::SUMS);
    }

    #[test]
    fn copying_warps_divide_the_stages() {
        for most in [1, 2, 4] {
            for stages in 1..=24 {
                let fewer = stages_for(stages, most);
                let warps = copying_into(fewer, most);
                assert!(fewer.is_multiple_of(warps) && warps <= most, "{stages} {most}");
                assert!(2 * warps > most || fewer == stages, "{stages} {most}");
            }
        }
        assert_eq!([7, 4, 2].map(|stages| stages_for(stages, 4)), [6, 4, 2]);
    }
}
