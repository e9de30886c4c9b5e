//! Stages of the warp-specialized kernels: 64 rows of 128 bytes for each warpgroup; and the CTA tiles of C
//! ([`Strip`]).

/// Rows of a CTA tile: two warpgroups of 64.
pub const STRIP: usize = 128;
/// Rows of C of one consumer warpgroup: half of a [`STRIP`], and the m of every `wgmma`.
pub const HALF: usize = 64;
/// Bytes of one row of a stage, along k.
pub const PANEL_BYTES: usize = 128;
/// K-steps of a stage: 32 bytes along k, one `wgmma` each.
pub const STEPS: usize = 4;
/// Bytes of a shared-memory tile, 64 rows of 128 bytes: in one stage, A of one warpgroup, or 64 columns of B. Tiles
/// that `wgmma` reads have the 128-byte swizzle (`Swizzle<3, 4, 3>` of CuTe on byte offsets).
pub const SMEM_TILE: usize = HALF * PANEL_BYTES;

/// `row` of a [`Strip`] past the last one of a thread block.
pub const NO_STRIP: u32 = u32::MAX;

/// Work item of a persistent thread block: a CTA tile of C, or a part of it along k (split-K).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Strip {
    /// First row of C, or [`NO_STRIP`].
    pub row: u32,
    /// First column of C.
    pub column: u32,
    /// First record.
    pub record: u32,
    /// Number of stages; 0 writes a tile without entries.
    pub stages: u32,
    /// First slot of the partial sums of this CTA tile.
    pub first: u32,
    /// Index of this part along k; from bit 16 on the number of parts, which is 1 for a whole tile.
    pub parts: u32,
    /// Index of the pair of arrival counters of this CTA tile.
    pub counter: u32,
    /// Index of the batch item.
    pub item: u32,
}

impl Strip {
    /// Index of this part along k.
    pub const fn part(&self) -> u32 {
        self.parts & 0xffff
    }

    /// Number of parts along k of the whole tile.
    pub const fn count(&self) -> u32 {
        self.parts >> 16
    }
}

const _: () = assert!(size_of::<Strip>() == 32);

/// Tensor map of the copy engine.
pub type MapWords = [u64; 16];
