//! Stages of the asynchronous kernels: rows of 128 bytes, 64 of them for each warpgroup, and the strips of C that they
//! add up to.

/// Rows of C of a strip: two warpgroups of 64.
pub const STRIP: usize = 128;
/// Rows of C that one warpgroup computes, the m of every `wgmma`.
pub const HALF: usize = 64;
/// Bytes along k of one row of a stage.
pub const PANEL_BYTES: usize = 128;
/// Steps of 32 bytes along k that a stage is multiplied in, one `wgmma` each.
pub const STEPS: usize = 4;
/// Bytes of A, and of 64 columns of B, that one half and stage hold.
pub const SMEM_TILE: usize = HALF * PANEL_BYTES;

/// Row of a strip that is none: its thread block has no more.
pub const NO_STRIP: u32 = u32::MAX;

/// One strip of C against one column tile, or a piece of it along k.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Strip {
    /// First row of C, or [`NO_STRIP`].
    pub row: u32,
    /// First column of C.
    pub column: u32,
    /// First record.
    pub record: u32,
    /// Stages; 0 writes a strip without entries.
    pub stages: u32,
    /// First slot of partial sums of this strip and column tile.
    pub first: u32,
    /// Which piece along k this is, and from bit 16 on how many there are; 1 for a whole strip.
    pub parts: u32,
    /// Index of the pair of arrival counters of this strip and column tile.
    pub counter: u32,
    /// Which of the batch.
    pub item: u32,
}

impl Strip {
    /// Which piece along k this is.
    pub const fn part(&self) -> u32 {
        self.parts & 0xffff
    }

    /// Pieces along k of the whole strip.
    pub const fn count(&self) -> u32 {
        self.parts >> 16
    }
}

const _: () = assert!(size_of::<Strip>() == 32);

/// A tensor map as the copy engine reads it.
pub type MapWords = [u64; 16];
