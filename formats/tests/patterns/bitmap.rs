//! Bitmap tiles: layout, invariants and their errors, conversions over several tiles and row blocks, size in bits.

use einsparse_formats::{BitmapPattern, Dense, FormatError, convert};

use super::invariants::{index, length};
use super::tiles;

/// Words of a tile.
const WORDS: usize = 136;

/// Lane 0 stores rows 0 and 8, columns 0, 1, 8 and 9 of a square; lane 5 stores rows 1 and 9, columns 2, 3, 10 and 11.
#[test]
fn a_lane_holds_a_fragment() {
    let places = [(0, 0), (0, 8), (1, 3), (8, 1), (9, 10), (17, 2)];
    let mut dense = Dense::<f32>::zeros([18, 20]).unwrap();
    for (i, (row, col)) in places.into_iter().enumerate() {
        dense.values_mut()[row * 20 + col] = i as f32 + 1.0;
    }
    dense.values_mut()[19] = 7.0;
    let bitmap = convert::dense_to_bitmap(&dense).unwrap();
    let words = bitmap.pattern().words();
    // Positions 0 (0, 0), 3 (8, 1), 4 (0, 8); then 1 (1, 3), 6 (9, 10); position 1 of lane 1 in the second square (0,
    // 19).
    let bits = |places: &[u32]| places.iter().map(|i| 1 << (8 * (i % 4) + i / 4)).sum::<u32>();
    assert_eq!((words[0], words[5], words[1]), (bits(&[0, 3, 4]), bits(&[1, 6]), bits(&[1]) << 2));
    // Row 17 is row 1 of the second slab of 16 rows.
    assert_eq!(words[32 + 5], 1);
    // The left half of the first square, lanes 0 and 5; its right half, lanes 0 and 5; then the second square, and the
    // second slab.
    assert_eq!(bitmap.values()[..8], [1.0, 4.0, 3.0, 2.0, 5.0, 7.0, 6.0, 0.0]);
    // Number of values before the right half of each square: three for (0, 0), six for (0, 1), whose values are all in
    // its left half, and seven for (1, 0).
    assert_eq!(words[128..132], [3 | 6 << 16, 6 | 6 << 16, 7 | 7 << 16, 7 | 7 << 16]);
    assert_eq!(bitmap.pattern().starts(), [0, 1]);
}

#[test]
fn what_is_wrong_is_named() {
    let bitmap = convert::csr_to_bitmap(&tiles::matrix(70, 40, 0.4)).unwrap();
    let p = bitmap.pattern();
    let new = |change: &dyn Fn(&mut Vec<u32>, &mut Vec<u32>)| {
        let (mut words, mut starts) = (p.words().to_vec(), p.starts().to_vec());
        change(&mut words, &mut starts);
        BitmapPattern::new(70, 40, words, starts).map(|_| ())
    };
    assert_eq!(new(&|_, _| ()), Ok(()));
    assert_eq!(new(&|w, _| w.truncate(5)), Err(length("words", 5, 2 * WORDS)));
    assert_eq!(new(&|_, s| s.push(9)), Err(length("starts", 4, 3)));
    assert_eq!(new(&|_, s| s[0] = 1), Err(index("starts", 0, 1, 1)));
    let behind = p.starts()[2];
    assert_eq!(new(&|_, s| s[2] += 1), Err(index("starts", 2, behind + 1, u64::from(behind) + 1)));
    // Column 63 is past the last: position 7 of lane 3 in the fourth square.
    let word = p.words()[3] | 1 << 31;
    assert_eq!(new(&|w, _| w[3] |= 1 << 31), Err(index("words", 3, word, 0)));
    // One bit more than the counts state.
    let free = p.words()[..128].iter().position(|w| w & 1 == 0).unwrap();
    assert!(matches!(
        new(&|w, _| w[free] |= 1),
        Err(FormatError::InvalidIndex { array: "words", position: 128.., .. })
    ));
    let error = BitmapPattern::new(1 << 31, 1 << 10, vec![], vec![]).unwrap_err();
    assert!(matches!(error, FormatError::Overflow { what: "words", .. }));
}
