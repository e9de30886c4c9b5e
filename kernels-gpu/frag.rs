//! Layouts of fragments, as const fns: the element of an `mma` atom in each lane and register of a warp. Also the
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

/// Row and 16-byte chunk whose address a lane passes to `ldmatrix.x4` for 16 rows x 32 bytes. The four matrices are
/// loaded into the registers of [`a_k16`] (halves) and of [`a_k8`] (words).
pub const fn ldmatrix_x4(lane: u32) -> Place {
    (lane % 16, lane / 16)
}

/// Row (k) and 16-byte chunk (m) whose address a lane passes to `ldmatrix.x4.trans` for 16 rows x 32 bytes of a
/// column-major A. The four matrices are loaded into the registers of [`a_k16`].
pub const fn ldmatrix_x4_columns(lane: u32) -> Place {
    (lane / 16 * 8 + lane % 8, lane / 8 % 2)
}

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile with rows of `row_bytes` (a multiple of 128). Chunks of
/// the same number in eight consecutive rows are in eight different bank groups.
pub const fn swizzle(row: u32, chunk: u32, row_bytes: u32) -> u32 {
    row * row_bytes + (chunk ^ (row & 7)) * 16
}

/// Offset at which byte `byte` of a tile is stored with the swizzle of the copy engine and `wgmma`. The tile has
/// contiguous rows of `row_bytes` (32, 64 or 128), the width of the swizzle, and begins at a multiple of 1024.
pub const fn swizzled(byte: u32, row_bytes: u32) -> u32 {
    byte ^ (byte >> 7 & (row_bytes / 16 - 1)) << 4
}

/// Column of B, of 32, that is row `row` of the transposed product (`dense` module, TF32). With this order, the lanes
/// of a fragment read 32 different banks of a piece of 32 columns, whose rows are swizzled.
pub const fn transposed_column(row: u32) -> u32 {
    let (warp, half, g) = (row / 16, row / 8 % 2, row % 8);
    g / 4 * 16 + warp * 8 + half * 4 + g % 4
}

/// Descriptor of a `wgmma` operand at shared address `at`. `row_bytes` (32, 64 or 128): length of the contiguous rows
/// and width of the swizzle. `between`: stride in bytes from one group of `row_bytes` along the contiguous axis to the
/// next; only operands contiguous along m or n have several groups.
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

/// Metadata of the sparse `wgmma` of depth 32 (f16, bf16). Returns the row of a warp's 16, and the half of the step (16
/// columns), that half `h` of a lane's register describes: 4 groups of 4 columns, 4 bits each, low bits first. The
/// lanes of [`metadata_selector`] 0 hold one step, those of selector 1 another step.
/// Source: PTX ISA, "Sparse matrix storage" of wgmma.mma_async.sp.
pub const fn metadata(lane: u32, h: u32) -> Place {
    (lane / 4 + 8 * h, lane % 2)
}

/// Sparsity selector of the instruction that reads a lane's metadata.
pub const fn metadata_selector(lane: u32) -> u32 {
    lane % 4 / 2
}

/// Metadata of a lane, from the position words of its two rows. A word covers 32 columns, as in the format nm:2:4.
pub const fn metadata_of(lane: u32, upper: u32, lower: u32) -> u32 {
    let shift = metadata(lane, 0).1 * 16;
    (upper >> shift) & 0xffff | (lower >> shift) << 16
}

/// Metadata of the sparse `wgmma` of depth 64 (8-bit elements). Returns the row of a warp's 16, and the half of the
/// step (32 columns), that a lane's register describes: one word of the format. All lanes hold metadata; the selector
/// is 0.
/// Source: PTX ISA, "Sparse matrix storage" of wgmma.mma_async.sp.
pub const fn metadata_narrow(lane: u32) -> Place {
    (lane / 4 + 8 * (lane % 2), lane % 4 / 2)
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;

    /// Asserts that `places` contains every element of the `rows` x `cols` atom exactly once.
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

    /// The lanes of each selector cover both halves of every row once; `metadata_of` takes the same halves from the
    /// words.
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

    /// The map is a bijection, and a load of a fragment reads each bank once.
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

    /// `ldmatrix` loads into lane l word l%4 of row l/4 of matrix r. Lanes 8r..8r+8 pass the addresses of its rows.
    #[test]
    fn ldmatrix_delivers_the_a_fragments() {
        for (lane, r, h) in lanes(4, 2) {
            let (row, chunk) = ldmatrix_x4(8 * r + lane / 4);
            assert_eq!(a_k16(lane, r, h), (row, chunk * 8 + lane % 4 * 2 + h));
            assert_eq!(a_k8(lane, r), (row, chunk * 4 + lane % 4));
        }
    }

    /// With `.trans`, lane l receives elements (2(l%4), l/4) and (2(l%4)+1, l/4) of matrix r: two n8 atoms of B from 16
    /// rows (k) and two chunks (n).
    #[test]
    fn transposed_ldmatrix_delivers_the_b_fragments() {
        for (lane, r, h) in lanes(4, 2) {
            let (k0, chunk) = ldmatrix_x4(8 * r);
            let (k, n) = b_k16(lane, r % 2, h);
            assert_eq!((k0 + lane % 4 * 2 + h, chunk * 8 + lane / 4), (k, n + 8 * (r / 2)));
        }
    }

    /// With `.trans`, lane l receives elements (2(l%4), l/4) and (2(l%4)+1, l/4) of matrix r, whose rows are along k.
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

    /// TF32 rows of B are padded by 32 bytes: the 32 words of one fragment load are in 32 banks.
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
