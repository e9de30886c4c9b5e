//! Fragments of `mma.sync`, loaded from operands in shared memory that descriptors name.

use crate::device::shared::Shared;
use crate::frag;

/// Decoded descriptor. All fields but the address are constants after inlining.
#[derive(Clone, Copy)]
pub(in crate::device) struct Operand {
    at: Shared<u8>,
    row_bytes: u32,
    between: u32,
}

impl Operand {
    #[inline(always)]
    fn of(descriptor: u64) -> Self {
        Operand {
            // SAFETY: a descriptor is made from an address of shared memory.
            at: unsafe { Shared::new((descriptor as u32 & 0x3fff) << 4) },
            row_bytes: match descriptor >> 62 {
                1 => 128,
                2 => 64,
                _ => 32,
            },
            between: ((descriptor >> 16) as u32 & 0x3fff) * 16,
        }
    }

    /// Shared address of a byte. The swizzle depends on the address alone.
    #[inline(always)]
    fn swizzled(self, byte: u32) -> Shared<u8> {
        self.at.bytes(byte).swizzled(self.row_bytes)
    }

    /// Byte offset of 16-bit element `across` of row `deep`, for rows along k.
    #[inline(always)]
    fn across(self, deep: u32, across: u32) -> u32 {
        let bytes = across * 2;
        deep * self.row_bytes + bytes / self.row_bytes * self.between + bytes % self.row_bytes
    }
}

/// A of one k-step, loaded as fragments of 16 rows. `TA` 1: contiguous along m.
#[derive(Clone, Copy)]
pub(in crate::device) struct Rows<const TA: i32> {
    operand: Operand,
    /// Where this lane reads the first fragment.
    pub(in crate::device) first: Shared<u8>,
}

impl<const TA: i32> Rows<TA> {
    /// Rows from `row` on, a multiple of 16.
    #[inline(always)]
    pub(in crate::device) fn from(descriptor: u64, row: u32, lane: u32) -> Self {
        let operand = Operand::of(descriptor);
        let byte = if TA == 0 {
            let (down, chunk) = frag::ldmatrix_x4(lane);
            (row + down) * operand.row_bytes + chunk * 16
        } else {
            let (deep, chunk) = frag::ldmatrix_x4_columns(lane);
            operand.across(deep, row) + chunk * 16
        };
        Rows { operand, first: operand.swizzled(byte) }
    }

    /// Loads the fragment of rows `16 m` to `16 m + 15`, counted from the first row.
    #[inline(always)]
    pub(super) fn fragment(self, m: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TA == 0 {
            return self.first.bytes(m * 16 * row_bytes).ldmatrix();
        }
        // This offset does not change the address bits that select the swizzle.
        let bytes = m * 32;
        let from = self.first.flipped(bytes % row_bytes).bytes(bytes / row_bytes * between);
        from.ldmatrix_trans()
    }
}

/// B of one k-step, loaded as fragments of 16 columns. `TB` 1: contiguous along n.
#[derive(Clone, Copy)]
pub(in crate::device) struct Columns<const TB: i32> {
    operand: Operand,
    /// First column.
    column: u32,
    /// Where this lane reads the first fragment.
    pub(in crate::device) first: Shared<u8>,
}

impl<const TB: i32> Columns<TB> {
    /// Columns from `column` on, a multiple of 16.
    #[inline(always)]
    pub(in crate::device) fn from(descriptor: u64, column: u32, lane: u32) -> Self {
        let operand = Operand::of(descriptor);
        let byte = if TB == 0 {
            let (down, chunk) = frag::ldmatrix_x4_columns(lane);
            (column + down) * operand.row_bytes + chunk * 16
        } else {
            let (deep, chunk) = frag::ldmatrix_x4(lane);
            operand.across(deep, column) + chunk * 16
        };
        Columns { operand, column, first: operand.swizzled(byte) }
    }

    /// Loads the fragments of two times 8 columns from column `16 n` on, counted from the first, at depth `step` x 32
    /// bytes.
    #[inline(always)]
    pub(in crate::device) fn fragments(self, n: u32, step: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TB == 0 {
            return self.first.flipped(step * 32).bytes(n * 16 * row_bytes).ldmatrix();
        }
        let bytes = n * 32;
        let from = self.first.flipped(bytes % row_bytes).bytes(bytes / row_bytes * between);
        from.bytes(step * 16 * row_bytes).ldmatrix_trans()
    }

    /// Columns from `column` on, for [`Self::fragment_of_two_steps`]. `column` is a multiple of the number of columns that
    /// are read from there on, so that their offsets do not change its bits.
    #[inline(always)]
    pub(super) fn of_two_steps(descriptor: u64, column: u32, lane: u32) -> Self {
        let operand = Operand::of(descriptor);
        let byte = if TB == 0 {
            (column + lane % 8) * operand.row_bytes + lane / 8 * 16
        } else {
            operand.across(lane, column)
        };
        Columns { operand, column, first: operand.swizzled(byte) }
    }

    /// Loads the fragment of columns `8 n` to `8 n + 7`, counted from the first column, over a depth of 64 bytes. The four
    /// registers are adjacent, as `mma.sp` reads them.
    #[inline(always)]
    pub(super) fn fragment_of_two_steps(self, n: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TB == 0 {
            return self.first.bytes(n * 8 * row_bytes).ldmatrix();
        }
        let bytes = n * 16;
        let from = self.first.flipped(bytes % row_bytes).bytes(bytes / row_bytes * between);
        from.ldmatrix_trans()
    }

    /// [`Self::fragments`] of columns that may be outside of the 128-byte row of the first column.
    #[inline(always)]
    pub(super) fn fragments_beyond(self, n: u32) -> [u32; 4] {
        let Operand { row_bytes, between, .. } = self.operand;
        if TB == 0 {
            return self.fragments(n, 0);
        }
        let (before, bytes) = (self.column * 2, self.column * 2 + n * 32);
        let from = self.first.flipped((before ^ bytes) % row_bytes);
        let groups = bytes / row_bytes - before / row_bytes;
        from.bytes(groups * between).ldmatrix_trans()
    }
}
