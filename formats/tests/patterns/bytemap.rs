//! Byte maps: layout, invariants and their errors, conversions over several tiles and row blocks, size in bits.

use einsparse_formats::{BytemapPattern, Csr, CsrPattern, FormatError, PAD, convert};

use super::invariants::{index, length};
use super::tiles;

/// One bank by hand: bank 0 contains columns 0 and 1 of row 0, columns 8 and 9 of row 1, and in the other half columns
/// 64 and 65.
#[test]
fn banks_hold_chunks_of_four() {
    let offsets = vec![0, 4, 6];
    let columns = vec![0, 1, 2, 64, 8, 9];
    let pattern = CsrPattern::new(2, 66, offsets, columns).unwrap();
    let values = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let csr = Csr::new(pattern, values).unwrap();
    let bytemap = convert::csr_to_bytemap(&csr).unwrap();
    let p = bytemap.pattern();
    // Five nonzeros in bank 0, one in bank 1; chunk 0 of both, then chunk 1 of bank 0, then padding to four chunks.
    assert_eq!(p.words()[..8], [0x0102, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(p.words()[8..], [0x0280_0100, 0, 0x0303_0303, 0]);
    assert_eq!(p.starts(), [0, 1]);
    assert_eq!(
        bytemap.values()[..12],
        [1.0, 2.0, 4.0, 5.0, 3.0, 0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0]
    );
    let [rows, columns] = p.coordinates();
    assert_eq!(rows[..6], [0, 0, 0, 1, 0, PAD]);
    assert_eq!(columns[..6], [0, 1, 64, 8, 2, PAD]);
    assert_eq!((rows[8], columns[8], rows[9]), (1, 9, PAD));
    assert_eq!(p.row_counts(), Ok(vec![4, 2]));
}

#[test]
fn what_is_wrong_is_named() {
    let bytemap = convert::csr_to_bytemap(&tiles::matrix(70, 40, 0.4)).unwrap();
    let p = bytemap.pattern();
    let new = |change: &dyn Fn(&mut Vec<u32>, &mut Vec<u32>)| {
        let (mut words, mut starts) = (p.words().to_vec(), p.starts().to_vec());
        change(&mut words, &mut starts);
        BytemapPattern::new(70, 40, words, starts).map(|_| ())
    };
    assert_eq!(new(&|_, _| ()), Ok(()));
    let all = p.words().len();
    assert_eq!(new(&|w, _| w.truncate(5)), Err(length("words", 5, all)));
    assert_eq!(new(&|_, s| s.push(9)), Err(length("starts", 4, 3)));
    assert_eq!(new(&|_, s| s[0] = 1), Err(index("starts", 0, 1, 1)));
    let (middle, end) = (p.starts()[1], p.starts()[2]);
    assert_eq!(new(&|_, s| s[1] += 1), Err(index("starts", 1, middle + 1, u64::from(middle) + 1)));
    assert_eq!(
        new(&|w, s| {
            s[2] += 1;
            w.extend([0; 4]);
        }),
        Err(index("starts", 2, end + 1, u64::from(end) + 1))
    );
    // The very first chunk belongs to bank 0. Its first position is repeated in the middle of the list, or moved past
    // the last column (line 64 is row 0, column 64).
    let first = p.words()[16];
    let twice = first & !0xff00 | (first & 0xff) << 8;
    let refused = |found: Result<(), FormatError>, position: usize, word: u32| {
        let text = found.unwrap_err().to_string();
        let wanted = format!("words[{position}] = {word:#010x},");
        assert!(text.contains(&wanted), "{text}");
    };
    refused(new(&|w, _| w[16] = twice), 16, twice);
    let outside = first & !0xff | 128;
    refused(new(&|w, _| w[16] = outside), 16, outside);
    // The first position occurs in another chunk of its bank: the second chunk of bank 0 follows the first chunks of
    // all banks.
    let banks = p.words()[..8].iter().flat_map(|w| w.to_le_bytes());
    let second = 16 + banks.filter(|&count| count > 0).count();
    let again = p.words()[second] & !0xff | first & 0xff;
    refused(new(&|w, _| w[second] = again), second, again);
    let error = BytemapPattern::new(1 << 31, 1 << 20, vec![], vec![]).unwrap_err();
    assert!(matches!(error, FormatError::Overflow { what: "words", .. }));
}
