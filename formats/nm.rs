//! N:M structured sparsity, 2:4 as of now: of every four neighbours in a row at most two are stored, with two bits
//! each for their places, as the sparse Tensor Core instructions read them (Mishra et al., arXiv 2104.08378).

use rayon::prelude::*;

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, PAD, Pattern, Role, Sparse, check};

/// Stored slots of a group.
pub(crate) const KEPT: usize = 2;
/// Columns of a group.
pub(crate) const GROUP: usize = 4;
/// Columns that one word of positions describes: 8 groups of 4 bits.
pub(crate) const WORD: usize = 32;
/// Positions 0 and 1 in each of the 8 groups: what padding holds.
pub(crate) const PADDING: u32 = 0x4444_4444;

/// Where the slots of an N:M matrix are: `C[m,n] += AV[m,g,q] * B[g,AK[m,g,q],n]`, column = 4 g + position.
///
/// A row is padded to `kp = ceil(cols / 32) * 32` columns, that is `kp / 4` groups of 4.
///
/// - Values: `[rows, kp / 4, 2]`, row-major. A slot without an entry holds zero, which is fill and no entry, as in
///   the block formats; so do the slots past the last column.
/// - Positions ("meta"): u32 words `[rows, kp / 32]`, row-major. Bits `4 i` and `4 i + 1` of a word are the position
///   (0 to 3) of the first slot of its group `i` (0 to 7), bits `4 i + 2` and `4 i + 3` that of the second. The first
///   is below the second; groups past the last column hold 0 and 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NmPattern {
    shape: [usize; 2],
    meta: Vec<u32>,
}

/// An N:M matrix.
pub type Nm<T> = Sparse<NmPattern, T>;

/// Words of positions in a row, if all slots fit u32.
pub(crate) fn words_per_row(rows: usize, cols: usize) -> Result<usize, FormatError> {
    check::matrix(rows, cols)?;
    let words = cols.div_ceil(WORD);
    check::product("slots", &[rows, words, WORD / GROUP * KEPT])?;
    Ok(words)
}

/// 2:4 is the one ratio that is stored.
pub(crate) fn check_ratio(n: usize, m: usize) -> Result<(), FormatError> {
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
    // 8 + second - first - 1 in every four bits: from 4 to 10, so nothing is borrowed, and bit 3 says first < second.
    ((second | 0x8888_8888) - first - 0x1111_1111) & 0x8888_8888 == 0x8888_8888
}

/// The positions of group `i` of a word.
fn unpack(word: u32, i: usize) -> [u32; KEPT] {
    [word >> (4 * i) & 3, word >> (4 * i + 2) & 3]
}

impl NmPattern {
    /// Checks and takes the words of positions, `[rows, ceil(cols / 32)]`.
    ///
    /// # Errors
    /// If the slots do not fit u32, there is another number of words, the positions of a group do not ascend, or a
    /// group past the last column holds others than 0 and 1. `positions[i]` in an error is that of value slot `i`.
    pub fn new(rows: usize, cols: usize, meta: Vec<u32>) -> Result<Self, FormatError> {
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
        let error = meta.par_iter().enumerate().with_min_len(1 << 14).find_map_first(bad);
        match error {
            Some(error) => Err(error),
            None => Ok(NmPattern { shape: [rows, cols], meta }),
        }
    }

    /// Takes the words unchecked.
    ///
    /// # Safety
    /// [`NmPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(rows: usize, cols: usize, meta: Vec<u32>) -> Self {
        NmPattern { shape: [rows, cols], meta }
    }

    /// Groups of a row that hold columns of the matrix, `ceil(cols / 4)`; the last one may be partial.
    pub fn groups(&self) -> usize {
        self.cols().div_ceil(GROUP)
    }

    /// Value slots of a row, padding included: `kp / 2`.
    pub fn row_slots(&self) -> usize {
        self.row_words() * WORD / GROUP * KEPT
    }

    /// Words of positions of a row: `kp / 32`.
    pub fn row_words(&self) -> usize {
        self.cols().div_ceil(WORD)
    }

    /// The places in group `group` of row `row` of its two slots, 0 to 3, ascending.
    ///
    /// # Panics
    /// If there is no such row, or no such group in the padded row.
    pub fn positions(&self, row: usize, group: usize) -> [u32; 2] {
        let per_word = WORD / GROUP;
        let words = &self.meta[row * self.row_words()..][..self.row_words()];
        unpack(words[group / per_word], group % per_word)
    }

    /// The place of every slot, one u32 for each, `[rows, ceil(cols / 4), 2]`: [`NmPattern::meta`] unpacked, without
    /// the groups past the last column.
    pub fn unpacked(&self) -> Vec<u32> {
        (0..self.rows())
            .into_par_iter()
            .flat_map_iter(|row| (0..self.groups()).flat_map(move |g| self.positions(row, g)))
            .collect()
    }

    /// The column of value slot `slot` (of [`NmPattern::row_slots`]) of a row; [`PAD`] past the last column.
    pub(crate) fn column(&self, row: usize, slot: usize) -> u32 {
        let (group, place) = (slot / KEPT, slot % KEPT);
        let column = group * GROUP + self.positions(row, group)[place] as usize;
        if column < self.cols() { column as u32 } else { PAD }
    }

    /// Whether value slot `slot` of all slots lies past the last column.
    pub fn is_outside(&self, slot: usize) -> bool {
        self.column(slot / self.row_slots(), slot % self.row_slots()) == PAD
    }
}

/// The number of the first value slot of group `i` of word `at`.
fn slot(at: usize, i: usize) -> usize {
    (at * (WORD / GROUP) + i) * KEPT
}

fn bad_group(positions: [u32; KEPT], inside: bool, slot: usize) -> Option<FormatError> {
    let [first, second] = positions;
    if first >= second {
        return Some(FormatError::Order {
            array: "positions",
            position: slot + 1,
            previous: first.into(),
            value: second.into(),
        });
    }
    let wrong = (0..KEPT).find(|&i| !inside && positions[i] != i as u32)?;
    Some(FormatError::InvalidIndex {
        array: "positions",
        position: slot + wrong,
        value: positions[wrong].into(),
        bound: wrong as u64 + 1,
    })
}

matrix! { NmPattern {
    /// The words of positions, `[rows, kp / 32]`.
    meta,
} }

impl Pattern for NmPattern {
    fn format(&self) -> Format {
        Format::Nm { n: KEPT, m: GROUP }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.rows() * self.groups() * KEPT
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.rows(), self.row_slots() / KEPT, KEPT]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        let (role, shape) = (Role::Positions { axis: 1 }, [self.rows(), self.row_words()]);
        vec![IndexArray::new(role, shape, &self.meta)]
    }
}
