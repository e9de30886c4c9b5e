//! Lists of the entries that warps store into the stages of a product (module `dense_csr`). A *strip* is a row group:
//! adjacent rows of the sparse matrix. A list has the entries of one strip, by stages of columns, in steps of 32. The
//! stages of a part of k are distributed over the warps of a strip; each warp has a list of its stages.

/// Entries of a step of a list. If the last step of a stage has fewer, it repeats its last entry.
pub const STRIP_STEP: u32 = 32;
/// Columns of a stage.
pub const STRIP_COLUMNS: u32 = 64;
/// Bits of an element offset in the stage of a strip.
const PLACE_BITS: u32 = 11;
/// Max rows of a strip.
pub const STRIP_ROWS: u32 = (1 << PLACE_BITS) / STRIP_COLUMNS;
/// Max slots of a strip.
pub const STRIP_SLOTS: u32 = 1 << (32 - PLACE_BITS);
/// Words at the start of a list's head: index of the strip's first value, number of its slots, number of steps of the
/// list. The ends of the list's stages, in steps, follow.
pub const STRIP_HEAD: u32 = 3;

/// Entry of a list: the index of its value relative to the strip's first value, and its offset in the strip's stage, in
/// elements of 2 bytes. The stage has rows of 128 bytes with the swizzle of `wgmma`.
pub const fn strip_word(value: u32, row: u32, column: u32) -> u32 {
    (value << PLACE_BITS) | (row * STRIP_COLUMNS) | (column ^ (row % 8 * 8))
}

/// Offset in the stage from a [`strip_word`].
pub const fn strip_place(word: u32) -> u32 {
    word % (1 << PLACE_BITS)
}

/// Relative index of the value from a [`strip_word`].
pub const fn strip_value(word: u32) -> u32 {
    word >> PLACE_BITS
}

/// First stage of part `part` of k; for `part == parts`, the end of the last part.
pub const fn part_start(stages: u32, parts: u32, part: u32) -> u32 {
    stages / parts * part + stages % parts * part / parts
}

/// Distribution of the stages along k over parts and warps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StripDeal {
    /// Stages along k.
    pub stages: u32,
    /// Parts of k.
    pub parts: u32,
    /// Warps that take turns at the stages of a part: warp `turn` has the stages `turn + i * turns`.
    pub turns: u32,
}

impl StripDeal {
    /// First stage of a part, by [`part_start`].
    pub const fn start(self, part: u32) -> u32 {
        part_start(self.stages, self.parts, part)
    }

    /// Number of stages of warp `turn` in a part of `stages` stages.
    pub const fn share(self, stages: u32, turn: u32) -> u32 {
        (stages + self.turns - 1 - turn) / self.turns
    }

    /// Index of a list.
    pub const fn list(self, strip: u32, part: u32, turn: u32) -> u32 {
        (strip * self.parts + part) * self.turns + turn
    }

    /// Words of the head of a list: those of the longest part.
    pub const fn head(self) -> u32 {
        STRIP_HEAD + self.share(self.stages.div_ceil(self.parts), 0)
    }
}
