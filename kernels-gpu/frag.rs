//! Which lane and register of a warp holds which element of an `mma` atom, as const fns, and the
//! shared-memory swizzle. Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 / m16n8k8".

/// Row and column inside an atom.
pub type Place = (u32, u32);

/// Accumulator of every m16n8 atom: register `r` of 4 (f32) of a lane.
pub const fn accumulator(lane: u32, r: u32) -> Place {
    (lane / 4 + 8 * (r / 2), lane % 4 * 2 + r % 2)
}

/// A of m16n8k16 (f16, bf16): half `h` of register `r` of 4.
pub const fn a_k16(lane: u32, r: u32, h: u32) -> Place {
    (lane / 4 + 8 * (r % 2), lane % 4 * 2 + h + 8 * (r / 2))
}

/// B of m16n8k16 (f16, bf16), as (k, n): half `h` of register `r` of 2.
pub const fn b_k16(lane: u32, r: u32, h: u32) -> Place {
    (lane % 4 * 2 + h + 8 * r, lane / 4)
}

/// A of m16n8k8 (TF32): register `r` of 4.
pub const fn a_k8(lane: u32, r: u32) -> Place {
    (lane / 4 + 8 * (r % 2), lane % 4 + 4 * (r / 2))
}

/// B of m16n8k8 (TF32), as (k, n): register `r` of 2.
pub const fn b_k8(lane: u32, r: u32) -> Place {
    (lane % 4 + 4 * r, lane / 4)
}

/// Row and 16-byte chunk that a lane addresses for `ldmatrix.x4` over 16 rows x 32 bytes; the four
/// matrices land in the registers of [`a_k16`] (halves) and of [`a_k8`] (words).
pub const fn ldmatrix_x4(lane: u32) -> Place {
    (lane % 16, lane / 16)
}

/// Row (k) and 16-byte chunk (m) that a lane addresses for `ldmatrix.x4.trans` over 16 rows x 32 bytes of a column by
/// column A; the four matrices land in the registers of [`a_k16`].
pub const fn ldmatrix_x4_columns(lane: u32) -> Place {
    (lane / 16 * 8 + lane % 8, lane / 8 % 2)
}

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile with rows of `row_bytes` (a multiple
/// of 128): chunks of eight consecutive rows fall into eight different bank groups.
pub const fn swizzle(row: u32, chunk: u32, row_bytes: u32) -> u32 {
    row * row_bytes + (chunk ^ (row & 7)) * 16
}

/// Byte of a tile whose rows of `row_bytes` (32, 64 or 128) lie one after another, swizzled over as many bytes, as the
/// copy engine and `wgmma` have them. The tile begins at a multiple of 1024.
pub const fn swizzled(byte: u32, row_bytes: u32) -> u32 {
    byte ^ (byte >> 7 & (row_bytes / 16 - 1)) << 4
}

/// Which of 32 columns of B is row `row` of 32 of a product transposed (`dense` module, TF32). The lanes of a fragment
/// then read 32 different banks of a piece of 32 columns that lies swizzled over its rows.
pub const fn transposed_column(row: u32) -> u32 {
    let (warp, half, g) = (row / 16, row / 8 % 2, row % 8);
    g / 4 * 16 + warp * 8 + half * 4 + g % 4
}

/// Descriptor of a `wgmma` operand at shared address `at`. `row_bytes` (32, 64 or 128) is the length of the rows that
/// lie one after another, swizzled over as many bytes; `between` the bytes from one group of `row_bytes` along
/// the contiguous axis to the next, which only operands contiguous along m or n have.
/// Source: PTX ISA, "Matrix Descriptor Format"; strides as in CUTLASS' `mma_sm90_desc.hpp`.
pub const fn descriptor(at: u32, row_bytes: u32, between: u32) -> u64 {
    let swizzle: u64 = match row_bytes {
        128 => 1,
        64 => 2,
        _ => 3,
    };
    let eight_rows = (8 * row_bytes / 16) as u64;
    (at as u64 & 0x3_ffff) >> 4 | (between as u64 / 16) << 16 | eight_rows << 32 | swizzle << 62
}

/// Metadata of the sparse `wgmma` of depth 32 (f16, bf16): row of a warp's 16, and which 16 columns of the step, half
/// `h` of a lane's register describes: 4 groups of 4 columns, 4 bits each, low first. The lanes of
/// [`metadata_selector`] 0 hold a whole step, those of 1 another.
/// Source: PTX ISA, "Sparse matrix storage" of wgmma.mma_async.sp.
pub const fn metadata(lane: u32, h: u32) -> Place {
    (lane / 4 + 8 * h, lane % 2)
}

/// Sparsity selector with which a lane's metadata is read.
pub const fn metadata_selector(lane: u32) -> u32 {
    lane % 4 / 2
}

/// A lane's metadata from the words of positions of its rows, 32 columns each, as the format nm:2:4 stores them.
pub const fn metadata_of(lane: u32, upper: u32, lower: u32) -> u32 {
    let shift = metadata(lane, 0).1 * 16;
    (upper >> shift) & 0xffff | (lower >> shift) << 16
}

/// Metadata of the sparse `wgmma` of depth 64 (8-bit elements): row of a warp's 16, and which 32 columns of the step, a
/// lane's register describes: one word of the format. All lanes hold some; the selector is 0.
/// Source: PTX ISA, "Sparse matrix storage" of wgmma.mma_async.sp.
pub const fn metadata_narrow(lane: u32) -> Place {
    (lane / 4 + 8 * (lane % 2), lane % 4 / 2)
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;

    /// Every element of the `rows` x `cols` atom is held exactly once.
    fn bijective(rows: u32, cols: u32, places: impl Iterator<Item = Place>) {
        let mut seen = BTreeSet::new();
        for (r, c) in places {
            assert!(r < rows && c < cols, "({r}, {c}) lies outside {rows} x {cols}");
            assert!(seen.insert((r, c)), "({r}, {c}) is held twice");
        }
        assert_eq!(seen.len() as u32, rows * cols);
    }

    fn lanes(regs: u32, halves: u32) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..32).flat_map(move |l| (0..regs).flat_map(move |r| (0..halves).map(move |h| (l, r, h))))
    }

    #[test]
    fn fragment_maps_are_bijections() {
        bijective(16, 8, lanes(4, 1).map(|(l, r, _)| accumulator(l, r)));
        bijective(16, 16, lanes(4, 2).map(|(l, r, h)| a_k16(l, r, h)));
        bijective(16, 8, lanes(2, 2).map(|(l, r, h)| b_k16(l, r, h)));
        bijective(16, 8, lanes(4, 1).map(|(l, r, _)| a_k8(l, r)));
        bijective(8, 8, lanes(2, 1).map(|(l, r, _)| b_k8(l, r)));
        bijective(16, 2, (0..32).map(ldmatrix_x4));
    }

    /// Both selectors see every 16 columns of every row once; the halves are those of the rows' words.
    #[test]
    fn metadata_covers_a_step_for_either_selector() {
        let of = |s| (0..32).filter(move |&l| metadata_selector(l) == s);
        for selector in [0, 1] {
            let lanes = of(selector).flat_map(|l| [0, 1].map(|h| metadata(l, h)));
            bijective(16, 2, lanes);
        }
        for lane in 0..32 {
            let word = metadata_of(lane, 0x2222_1111, 0x4444_3333);
            let wanted = [0x3333_1111, 0x4444_2222];
            assert_eq!(word, wanted[metadata(lane, 0).1 as usize]);
        }
    }

    /// Every column once, and a load of a fragment from every bank once.
    #[test]
    fn transposed_columns_meet_in_no_bank() {
        let all: BTreeSet<u32> = (0..32).map(transposed_column).collect();
        assert_eq!(all, (0..32).collect());
        for (warp, r) in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)] {
            let bank = |lane| {
                let (g, k) = a_k8(lane, r);
                let column = transposed_column(warp * 16 + g);
                (swizzle(k, column / 4, 128) / 4 + column % 4) % 32
            };
            assert_eq!((0..32).map(bank).collect::<BTreeSet<_>>().len(), 32);
        }
    }

    #[test]
    fn metadata_of_8_bits_covers_a_step() {
        bijective(16, 2, (0..32).map(metadata_narrow));
    }

    /// `ldmatrix` hands lane l the word l%4 of row l/4 of matrix r, whose rows lanes 8r..8r+8 address.
    #[test]
    fn ldmatrix_delivers_the_a_fragments() {
        for (lane, r, h) in lanes(4, 2) {
            let (row, chunk) = ldmatrix_x4(8 * r + lane / 4);
            assert_eq!(a_k16(lane, r, h), (row, chunk * 8 + lane % 4 * 2 + h));
            assert_eq!(a_k8(lane, r), (row, chunk * 4 + lane % 4));
        }
    }

    /// With `.trans`, lane l gets elements (2(l%4), l/4) and (2(l%4)+1, l/4) of matrix r: two n8
    /// atoms of B from 16 rows (k) and two chunks (n).
    #[test]
    fn transposed_ldmatrix_delivers_the_b_fragments() {
        for (lane, r, h) in lanes(4, 2) {
            let (k0, chunk) = ldmatrix_x4(8 * r);
            let (k, n) = b_k16(lane, r % 2, h);
            assert_eq!((k0 + lane % 4 * 2 + h, chunk * 8 + lane / 4), (k, n + 8 * (r / 2)));
        }
    }

    /// With `.trans`, lane l gets elements (2(l%4), l/4) and (2(l%4)+1, l/4) of matrix r, rows along k.
    #[test]
    fn transposed_ldmatrix_delivers_the_a_fragments() {
        for (lane, r, h) in lanes(4, 2) {
            let (k0, chunk) = ldmatrix_x4_columns(8 * r);
            let (m, k) = a_k16(lane, r, h);
            assert_eq!((chunk * 8 + lane / 4, k0 + lane % 4 * 2 + h), (m, k));
        }
    }

    #[test]
    fn swizzle_is_a_bijection_without_bank_conflicts() {
        for row_bytes in [128, 256] {
            let offsets: BTreeSet<u32> = (0..64)
                .flat_map(|r| (0..row_bytes / 16).map(move |c| swizzle(r, c, row_bytes)))
                .collect();
            assert_eq!(offsets.len() as u32, 64 * row_bytes / 16);
            assert!(offsets.iter().all(|o| *o < 64 * row_bytes));
            for chunk in 0..row_bytes / 16 {
                let banks: BTreeSet<u32> =
                    (0..8).map(|r| swizzle(r, chunk, row_bytes) / 16 % 8).collect();
                assert_eq!(banks.len(), 8);
            }
        }
    }

    /// TF32 rows of B are padded by 32 bytes: the 32 words that one fragment load touches lie in 32 banks.
    #[test]
    fn padded_rows_have_no_bank_conflicts() {
        let row =
            crate::families::MmaTile::<64, 2, 8, true>::b_row_bytes(crate::abi::Dtype::Tf32) as u32;
        for r in 0..2 {
            let banks: BTreeSet<u32> =
                (0..32).map(|l| b_k8(l, r)).map(|(k, n)| (k * row / 4 + n) % 32).collect();
            assert_eq!(banks.len(), 32);
        }
    }
}
