//! Bitmap tiles: what is stored where, invariants and their errors, conversions over several tiles and panels, how many bits.

use einsparse_formats::{
    AnySparse, Bitmap, BitmapPattern, Csr, CsrPattern, Dense, Format, FormatError, Pattern,
    convert, f16, generate, stats,
};

/// Words of a tile.
const WORDS: usize = 136;

fn matrix(rows: usize, cols: usize, density: f64) -> Csr<f32> {
    let pattern = generate::uniform(rows, cols, density, 7).unwrap();
    let values = (1..=pattern.columns().len()).map(|v| v as f32).collect();
    Csr::new(pattern, values).unwrap()
}

fn invalid(array: &'static str, position: usize, value: u64, bound: u64) -> FormatError {
    FormatError::InvalidIndex {
        array,
        position,
        value,
        bound,
    }
}

#[test]
fn conversions_over_tiles_and_panels() {
    for (rows, cols, density) in [
        (0, 5, 1.0),
        (5, 0, 1.0),
        (1, 1, 1.0),
        (64, 64, 1.0),
        (65, 63, 0.5),
        (300, 200, 0.3),
        (700, 130, 0.05),
        (513, 257, 0.0),
    ] {
        let csr = matrix(rows, cols, density);
        let bitmap = convert::csr_to_bitmap(&csr).unwrap();
        let p = bitmap.pattern();
        let (words, starts) = (p.words().to_vec(), p.starts().to_vec());
        assert_eq!(
            &BitmapPattern::new(rows, cols, words, starts).unwrap(),
            &**p
        );
        assert_eq!(p.nnz(), csr.nnz());
        assert_eq!(convert::bitmap_to_csr(&bitmap).unwrap(), csr);
        let dense = AnySparse::from(csr.clone()).to_dense().unwrap();
        assert_eq!(convert::dense_to_bitmap(&dense).unwrap(), bitmap);
        let any = AnySparse::from(bitmap);
        assert_eq!(any.to_dense().unwrap(), dense);
        assert_eq!(any.entries(), AnySparse::from(csr.clone()).entries());
        let counted = stats::slots(csr.pattern(), Format::Bitmap).unwrap();
        let index: usize = any.arrays().iter().map(|array| array.data.len()).sum();
        assert_eq!(
            (counted.index, counted.values),
            (index as u128, any.slots() as u128)
        );
        assert_eq!(counted.values - counted.padding, csr.nnz() as u128);
    }
}

/// Lane 0 holds rows 0 and 8, columns 0, 1, 8 and 9 of a square; lane 5 rows 1 and 9, columns 2, 3, 10 and 11.
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
    // Places 0 (0, 0), 3 (8, 1), 4 (0, 8); then 1 (1, 3), 6 (9, 10); place 1 of lane 1 in the second square (0, 19).
    let bits = |places: &[u32]| {
        places
            .iter()
            .map(|i| 1 << (8 * (i % 4) + i / 4))
            .sum::<u32>()
    };
    assert_eq!(
        (words[0], words[5], words[1]),
        (bits(&[0, 3, 4]), bits(&[1, 6]), bits(&[1]) << 2)
    );
    // Row 17 is row 1 of the second slab.
    assert_eq!(words[32 + 5], 1);
    // The left half of the first square, lanes 0 and 5, its right half, lanes 0 and 5; then the second square, and the second slab.
    assert_eq!(
        bitmap.values()[..8],
        [1.0, 4.0, 3.0, 2.0, 5.0, 7.0, 6.0, 0.0]
    );
    // In front of the right half of square (0, 0) three values, of (0, 1) six, which all are in its left one, and of (1, 0) seven.
    assert_eq!(
        words[128..132],
        [3 | 6 << 16, 6 | 6 << 16, 7 | 7 << 16, 7 | 7 << 16]
    );
    assert_eq!(bitmap.pattern().starts(), [0, 1]);
}

#[test]
fn stored_zeros_are_entries() {
    let pattern = CsrPattern::new(1, 3, vec![0, 2], vec![0, 2]).unwrap();
    let csr = Csr::new(pattern, vec![0.0f32, 1.0]).unwrap();
    let bitmap = convert::csr_to_bitmap(&csr).unwrap();
    assert_eq!(bitmap.nnz(), 2);
    assert_eq!(convert::bitmap_to_csr(&bitmap).unwrap(), csr);
}

#[test]
fn what_is_wrong_is_named() {
    let bitmap = convert::csr_to_bitmap(&matrix(70, 40, 0.4)).unwrap();
    let p = bitmap.pattern();
    let new = |change: &dyn Fn(&mut Vec<u32>, &mut Vec<u32>)| {
        let (mut words, mut starts) = (p.words().to_vec(), p.starts().to_vec());
        change(&mut words, &mut starts);
        BitmapPattern::new(70, 40, words, starts).map(|_| ())
    };
    assert_eq!(new(&|_, _| ()), Ok(()));
    let length = |array, found, expected| FormatError::Length {
        array,
        found,
        expected,
    };
    assert_eq!(
        new(&|w, _| w.truncate(5)),
        Err(length("words", 5, 2 * WORDS))
    );
    assert_eq!(new(&|_, s| s.push(9)), Err(length("starts", 4, 3)));
    assert_eq!(new(&|_, s| s[0] = 1), Err(invalid("starts", 0, 1, 1)));
    let behind = u64::from(p.starts()[2]);
    assert_eq!(
        new(&|_, s| s[2] += 1),
        Err(invalid("starts", 2, behind + 1, behind + 1))
    );
    // Column 63 is past the last: place 7 of lane 3 in the fourth square.
    let word = u64::from(p.words()[3] | 1 << 31);
    assert_eq!(
        new(&|w, _| w[3] |= 1 << 31),
        Err(invalid("words", 3, word, 0))
    );
    // A bit more than was counted.
    let free = p.words()[..128].iter().position(|w| w & 1 == 0).unwrap();
    assert!(matches!(
        new(&|w, _| w[free] |= 1),
        Err(FormatError::InvalidIndex {
            array: "words",
            position: 128..,
            ..
        })
    ));
    let error = BitmapPattern::new(1 << 31, 1 << 10, vec![], vec![]).unwrap_err();
    assert!(matches!(error, FormatError::Overflow { what: "words", .. }));
}

/// Values and at most 1.1 bits for each place, padding counted.
#[test]
fn a_bitmap_is_small() {
    for density in [0.5, 0.3, 0.1, 0.05] {
        let csr = matrix(1024, 2048, density);
        let values = csr.values().iter().map(|&v| f16::from_f32(v)).collect();
        let csr = Csr::new(csr.pattern().clone(), values).unwrap();
        let bitmap: Bitmap<f16> = convert::csr_to_bitmap(&csr).unwrap();
        let index: usize = bitmap.arrays().iter().map(|a| a.data.len() * 4).sum();
        let bits = 8 * (index + 2 * (bitmap.slots() - csr.nnz()));
        let each = bits as f64 / (1024.0 * 2048.0);
        assert!(each <= 1.1, "{each} at {density}");
    }
}
