//! Lists of the entries of strips: neighbouring rows of a sparse matrix, a stage of columns at a time, in steps of a warp.
//! What a product lays into shared memory. A list has the stages that one warp lays: those of its part of k at which it
//! has a turn.

/// Entries of a step of a list. A last step with fewer repeats its last entry.
pub const STRIP_STEP: u32 = 32;
/// Columns of a stage.
pub const STRIP_COLUMNS: u32 = 64;
/// Bits of a place in a strip's stage.
const PLACE_BITS: u32 = 11;
/// Rows of a strip at the most.
pub const STRIP_ROWS: u32 = (1 << PLACE_BITS) / STRIP_COLUMNS;
/// Slots of a strip at the most.
pub const STRIP_SLOTS: u32 = 1 << (32 - PLACE_BITS);
/// Words of a list's head ahead of where its stages end: the number of the strip's first value, that of its slots, and the
/// list's steps.
pub const STRIP_HEAD: u32 = 3;

/// An entry in a list: how far its value lies behind the strip's first, and its place in shared memory, in elements of 2
/// bytes, where rows of 128 bytes are swizzled as `wgmma` reads them.
pub const fn strip_word(value: u32, row: u32, column: u32) -> u32 {
    (value << PLACE_BITS) | (row * STRIP_COLUMNS) | (column ^ (row % 8 * 8))
}

/// The place in a [`strip_word`].
pub const fn strip_place(word: u32) -> u32 {
    word % (1 << PLACE_BITS)
}

/// The value's number in a [`strip_word`].
pub const fn strip_value(word: u32) -> u32 {
    word >> PLACE_BITS
}

/// First stage of a part of k; of the one behind the last, the end of all.
pub const fn part_start(stages: u32, parts: u32, part: u32) -> u32 {
    stages / parts * part + stages % parts * part / parts
}

/// How the stages along k are dealt.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StripDeal {
    /// Stages along k.
    pub stages: u32,
    /// Parts of k.
    pub parts: u32,
    /// Warps that take turns at the stages of a part.
    pub turns: u32,
}

impl StripDeal {
    /// See [`part_start`].
    pub const fn start(self, part: u32) -> u32 {
        part_start(self.stages, self.parts, part)
    }

    /// Stages that a warp lays of so many of a part.
    pub const fn share(self, stages: u32, turn: u32) -> u32 {
        (stages + self.turns - 1 - turn) / self.turns
    }

    /// Number of a list.
    pub const fn list(self, strip: u32, part: u32, turn: u32) -> u32 {
        (strip * self.parts + part) * self.turns + turn
    }

    /// Words of a list's head.
    pub const fn head(self) -> u32 {
        STRIP_HEAD + self.share(self.stages.div_ceil(self.parts), 0)
    }
}
