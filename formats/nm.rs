//! N:M structured sparsity, currently 2:4: at most two of every four neighbors in a row are stored. Two bits per stored
//! value hold its position, in the layout of the sparse Tensor Core instructions (Mishra et al., arXiv 2104.08378).

use rayon::prelude::*;

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, PAD, Role, check};

/// Stored slots per group.
pub(crate) const KEPT: usize = 2;
/// Columns per group.
pub(crate) const GROUP: usize = 4;
/// Columns described by one word of positions: 8 groups of 4 bits.
pub(crate) const WORD: usize = 32;
/// Positions 0 and 1 in each of the 8 groups: the word of padding.
pub(crate) const PADDING: u32 = 0x4444_4444;

matrix! {
    /// Pattern of an N:M matrix: `C[m,n] += AV[m,g,q] * B[g,AK[m,g,q],n]`, column = 4 g + position.
    ///
    /// A row is padded to `kp = ceil(cols / 32) * 32` columns, which are `kp / 4` groups of 4.
    ///
    /// - Values: `[rows, kp / 4, 2]`, row-major. A slot without entry is zero. As in the block formats, such a zero is fill
    ///   and not an entry. Slots past the last column are also zero.
    /// - Positions ("meta"): u32 words `[rows, kp / 32]`, row-major. Bits `4 i` and `4 i + 1` of a word are the position (0
    ///   to 3) of the first slot of its group `i` (0 to 7). Bits `4 i + 2` and `4 i + 3` are the position of the second
    ///   slot. The first position is below the second. Groups past the last column contain 0 and 1.
    NmPattern,
    /// An N:M matrix.
    Nm() {
        /// Words of positions, `[rows, kp / 32]`.
        meta: u32,
    }
    p is Format::Nm { n: KEPT, m: GROUP };
    nnz p.rows() * p.groups() * KEPT;
    values [p.rows(), p.row_slots() / KEPT, KEPT];
    arrays [IndexArray::new(Role::Positions { axis: 1 }, [p.rows(), p.row_words()], &p.meta)]
}

/// Words of positions per row. Returns an error if the number of slots exceeds u32.
pub(crate) fn words_per_row(rows: usize, cols: usize) -> Result<usize> {
    check::matrix(rows, cols)?;
    let words = cols.div_ceil(WORD);
    check::product("slots", &[rows, words, WORD / GROUP * KEPT])?;
    Ok(words)
}

/// Returns an error for ratios other than 2:4.
pub(crate) fn check_ratio(n: usize, m: usize) -> Result<()> {
    if (n, m) == (KEPT, GROUP) {
        return Ok(());
    }
    Err(FormatError::Unsupported {
        what: format!("format nm:{n}:{m}"),
        reason: "2:4 is the one ratio that is stored".into(),
    })
}

/// Whether the first position is below the second in all 8 groups.
fn ascends(word: u32) -> bool {
    let (first, second) = (word & 0x3333_3333, word >> 2 & 0x3333_3333);
    // Every four bits compute 8 + second - first - 1, from 4 to 10. Nothing is borrowed, and bit 3 is set if first <
    // second.
    ((second | 0x8888_8888) - first - 0x1111_1111) & 0x8888_8888 == 0x8888_8888
}

/// Positions of group `i` of a word.
fn unpack(word: u32, i: usize) -> [u32; KEPT] {
    [word >> (4 * i) & 3, word >> (4 * i + 2) & 3]
}

impl NmPattern {
    /// Validates and stores the words of positions, `[rows, ceil(cols / 32)]`.
    ///
    /// # Errors
    /// Returns an error if the number of slots exceeds u32, the number of words is wrong, the positions of a group do
    /// not ascend, or a group past the last column does not contain 0 and 1. In an error, `positions[i]` is the
    /// position of value slot `i`.
    pub fn new(rows: usize, cols: usize, meta: Vec<u32>) -> Result<Self> {
        let words = words_per_row(rows, cols)?;
        check::length("meta", meta.len(), rows * words)?;
        let inside = cols.div_ceil(GROUP);
        // Only the last word of a row has groups past the last column.
        let tail = match inside % (WORD / GROUP) {
            0 => 0,
            groups => u32::MAX << (4 * groups),
        };
        let bad = |(at, &word): (usize, &u32)| {
            let padding = if at % words == words - 1 { tail } else { 0 };
            if ascends(word) && word & padding == PADDING & padding {
                return None;
            }
            let first = at % words * (WORD / GROUP);
            (0..WORD / GROUP)
                .find_map(|i| bad_group(unpack(word, i), first + i < inside, slot(at, i)))
        };
        check::first(meta.par_iter().enumerate().with_min_len(1 << 14).find_map_first(bad))?;
        Ok(NmPattern { shape: [rows, cols], meta })
    }

    /// Groups per row that contain columns of the matrix, `ceil(cols / 4)`. The last one may be partial.
    pub fn groups(&self) -> usize {
        self.cols().div_ceil(GROUP)
    }

    /// Value slots per row, including padding: `kp / 2`.
    pub fn row_slots(&self) -> usize {
        self.row_words() * WORD / GROUP * KEPT
    }

    /// Words of positions per row: `kp / 32`.
    pub fn row_words(&self) -> usize {
        self.cols().div_ceil(WORD)
    }

    /// Positions of the two slots of group `group` of row `row`, 0 to 3, ascending.
    ///
    /// # Panics
    /// Panics if `row` is out of range, or `group` is outside the padded row.
    pub fn positions(&self, row: usize, group: usize) -> [u32; 2] {
        let per_word = WORD / GROUP;
        let words = &self.meta[row * self.row_words()..][..self.row_words()];
        unpack(words[group / per_word], group % per_word)
    }

    /// Position of every slot, one u32 each, `[rows, ceil(cols / 4), 2]`: [`NmPattern::meta`] unpacked, without the
    /// groups past the last column.
    pub fn unpacked(&self) -> Vec<u32> {
        (0..self.rows())
            .into_par_iter()
            .flat_map_iter(|row| (0..self.groups()).flat_map(move |g| self.positions(row, g)))
            .collect()
    }

    /// Column of value slot `slot` (below [`NmPattern::row_slots`]) of a row, or [`PAD`] past the last column.
    pub(crate) fn column(&self, row: usize, slot: usize) -> u32 {
        let (group, place) = (slot / KEPT, slot % KEPT);
        let column = group * GROUP + self.positions(row, group)[place] as usize;
        if column < self.cols() { column as u32 } else { PAD }
    }

    /// Whether value slot `slot` of all slots is past the last column.
    pub fn is_outside(&self, slot: usize) -> bool {
        self.column(slot / self.row_slots(), slot % self.row_slots()) == PAD
    }
}

/// Index of the first value slot of group `i` of word `at`.
fn slot(at: usize, i: usize) -> usize {
    (at * (WORD / GROUP) + i) * KEPT
}

fn bad_group(positions: [u32; KEPT], inside: bool, slot: usize) -> Option<FormatError> {
    let [first, second] = positions;
    if first >= second {
        return Some(check::order("positions", slot + 1, first, second));
    }
    let wrong = (0..KEPT).find(|&i| !inside && positions[i] != i as u32)?;
    Some(check::invalid("positions", slot + wrong, positions[wrong], wrong + 1))
}
