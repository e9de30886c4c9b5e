//! 2:4: invariants of the words, layout of values and positions, pruning, and matrices that exact conversion refuses.

use einsparse_formats::{
    AnySparse, Csr, CsrPattern, Dense, Format, FormatError, Nm, NmPattern, Pattern, bf16, convert,
    f16,
};

const F: Format = Format::Nm { n: 2, m: 4 };

/// All groups at positions 0 and 1.
const PAD8: u32 = 0x4444_4444;

fn dense(rows: usize, cols: usize, values: &[f32]) -> Dense<f32> {
    Dense::new([rows, cols], values.to_vec()).unwrap()
}

fn order(position: usize, previous: u64, value: u64) -> FormatError {
    FormatError::Order { array: "positions", position, previous, value }
}

fn index(position: usize, value: u64, bound: u64) -> FormatError {
    FormatError::InvalidIndex { array: "positions", position, value, bound }
}

#[test]
fn invariants() {
    let new = |cols, meta: &[u32]| NmPattern::new(2, cols, meta.into());
    let good = new(40, &[PAD8, PAD8, 0xEEEE_EEEE, PAD8]).unwrap();
    assert_eq!((good.rows(), good.cols(), good.groups()), (2, 40, 10));
    assert_eq!((good.row_slots(), good.row_words()), (32, 2));
    assert_eq!((good.nnz(), good.slots()), (2 * 10 * 2, 64));
    assert_eq!(good.value_shape(), [2, 16, 2]);
    assert_eq!(good.format(), F);
    assert_eq!(
        (good.positions(0, 3), good.positions(1, 7), good.positions(1, 8)),
        ([0, 1], [2, 3], [0, 1])
    );
    assert_eq!(good.unpacked().len(), 40);
    assert_eq!(good.unpacked()[20..24], [2, 3, 2, 3]);
}

#[test]
fn broken_words_are_named() {
    let new = |cols, meta: &[u32]| NmPattern::new(2, cols, meta.into());
    let length = FormatError::Length { array: "meta", found: 3, expected: 4 };
    assert_eq!(new(40, &[PAD8; 3]).unwrap_err(), length);
    // Group 2 of the third word, which belongs to row 1: both positions are 1.
    let equal = PAD8 & !(15 << 8) | (0b0101 << 8);
    assert_eq!(new(40, &[PAD8, PAD8, equal, PAD8]).unwrap_err(), order(2 * 16 + 2 * 2 + 1, 1, 1));
    // Group 7: 3 before 0.
    let down = PAD8 & !(15 << 28) | (0b0011 << 28);
    assert_eq!(new(40, &[PAD8, PAD8, PAD8, down]).unwrap_err(), order(63, 3, 0));
    // Groups 10 and up of a row are past its 40 columns.
    let second = PAD8 & !(15 << 8) | (0b1000 << 8);
    assert_eq!(new(40, &[PAD8, second, PAD8, PAD8]).unwrap_err(), index(16 + 5, 2, 2));
    let first = PAD8 & !(15 << 12) | (0b1001 << 12);
    assert_eq!(new(40, &[PAD8, first, PAD8, PAD8]).unwrap_err(), index(16 + 6, 1, 1));
    assert!(new(64, &[PAD8, first, PAD8, second]).is_ok());
    let text = "positions[22] = 1 must be below 1";
    let shown = new(40, &[PAD8, first, PAD8, PAD8]).unwrap_err().to_string();
    assert_eq!(shown, text);
    assert!(matches!(
        NmPattern::new(1 << 28, 32, vec![]).unwrap_err(),
        FormatError::Overflow { what: "slots", .. }
    ));
    assert!(matches!(
        NmPattern::new(1, 1 << 32, vec![]).unwrap_err(),
        FormatError::Overflow { what: "columns", .. }
    ));
}

#[test]
fn every_pair_of_positions_is_told() {
    for group in 0..8 {
        for bits in 0..16u32 {
            let word = PAD8 & !(15 << (4 * group)) | bits << (4 * group);
            let ascends = bits & 3 < bits >> 2;
            let new = NmPattern::new(1, 32, vec![word]);
            assert_eq!(new.is_ok(), ascends, "group {group}: {bits:04b}");
        }
    }
}

#[test]
fn layout() {
    // 1 x 9: three groups of columns, the last with one.
    let a = dense(1, 9, &[0., 5., 0., 6., 0., 0., 7., 0., 8.]);
    let nm = convert::dense_to_nm(&a).unwrap();
    let mut values = [0.0; 16];
    values[..6].copy_from_slice(&[5., 6., 0., 7., 8., 0.]);
    assert_eq!(nm.values(), values);
    // (1, 3), (0, 2), (0, 1), then padding.
    assert_eq!(nm.pattern().meta(), [0x4444_448D]);
    assert_eq!(convert::nm_to_dense(&nm).unwrap(), a);
    let csr = convert::nm_to_csr(&nm).unwrap();
    assert_eq!(csr.pattern().columns(), [1, 3, 6, 8]);
    assert_eq!(csr.values(), [5., 6., 7., 8.]);
    // The one slot past the last column in a group with columns, and all slots of the other groups.
    let outside: Vec<usize> = (0..16).filter(|&s| nm.pattern().is_outside(s)).collect();
    assert_eq!(outside, (5..16).collect::<Vec<_>>());
}

#[test]
fn what_lies_past_the_last_column_is_no_entry() {
    let pattern = NmPattern::new(1, 5, vec![PAD8]).unwrap();
    let values = (1..=16).map(|v| v as f32).collect();
    let nm = AnySparse::from(Nm::new(pattern, values).unwrap());
    assert_eq!(nm.to_dense().unwrap().values(), [1., 2., 0., 0., 3.]);
    assert_eq!(nm.to_csr().unwrap().nnz(), 3);
    assert_eq!(nm.entries().len(), 3);
}

#[test]
fn pruning_keeps_the_two_largest_magnitudes() {
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    for (group, kept) in [
        ([1., -3., 2., 0.5], vec![1, 2]),
        ([4., 3., 2., 1.], vec![0, 1]),
        ([1., 2., 3., -4.], vec![2, 3]),
        // Between equal values, the lower column is kept.
        ([1., -1., 1., 1.], vec![0, 1]),
        ([1., 2., -1., 1.], vec![0, 1]),
        ([0., 1., 2., 2.], vec![2, 3]),
        ([0., 0., 0., 7.], vec![3]),
        ([0., 0., 0., 0.], vec![]),
        // NaN is the largest value, with either sign; two NaN take both positions.
        ([inf, -inf, nan, 9.], vec![0, 2]),
        ([inf, 1., 0., -nan], vec![0, 3]),
        ([nan, nan, inf, nan], vec![0, 1]),
    ] {
        let a = dense(1, 4, &group);
        let nm = convert::prune_to_nm(&a).unwrap();
        let csr = convert::nm_to_csr(&nm).unwrap();
        assert_eq!(csr.pattern().columns(), kept, "{group:?}");
        for (&column, value) in kept.iter().zip(csr.values()) {
            assert_eq!(value.to_bits(), group[column as usize].to_bits());
        }
        // The checked constructor accepts these words.
        NmPattern::new(1, 4, nm.pattern().meta().to_vec()).unwrap();
    }
    // A partial group loses no value.
    let a = dense(2, 6, &[3., 2., 1., 4., 5., 6., 0., 1., 1., 1., 0., 2.]);
    let pruned = convert::nm_to_dense(&convert::prune_to_nm(&a).unwrap()).unwrap();
    let wanted = [3., 0., 0., 4., 5., 6., 0., 1., 1., 0., 0., 2.];
    assert_eq!(pruned.values(), wanted);
    let halves = convert::prune_to_nm(&a.map(f16::from_f32)).unwrap();
    assert_eq!(halves.values()[..2], [f16::from_f32(3.), f16::from_f32(4.)]);
    let brain = convert::prune_to_nm(&a.map(bf16::from_f32)).unwrap();
    assert_eq!(brain.pattern(), halves.pattern());
}

#[test]
fn exact_conversion_names_the_group_that_is_too_full() {
    let mut values = vec![0.0; 3 * 10];
    // Row 1, columns 4 to 7: three nonzeros; row 2, columns 0 to 3: four. The first is reported.
    values[14..17].fill(1.0);
    values[20..24].fill(1.0);
    let a = dense(3, 10, &values);
    let error = convert::dense_to_nm(&a).unwrap_err();
    let full = FormatError::Group { row: 1, group: 1, columns: (4, 7), found: 3, kept: 2 };
    assert_eq!(error, full);
    let text = "row 1, group 1 (columns 4 to 7) holds 3 non-zeros, 2 are kept";
    assert_eq!(error.to_string(), text);
    let csr = AnySparse::from(convert::dense_to_csr(&a).unwrap());
    assert_eq!(csr.convert(F).unwrap_err(), full);
    // Stored zeros need no slot; NaN needs one.
    let pattern = CsrPattern::new(1, 4, vec![0, 4], vec![0, 1, 2, 3]).unwrap();
    let of =
        |values: [f64; 4]| convert::csr_to_nm(&Csr::new(pattern.clone(), values.into()).unwrap());
    let nm = of([0.0, 1.0, -0.0, f64::NAN]).unwrap();
    assert_eq!(nm.pattern().positions(0, 0), [1, 3]);
    assert!(of([f64::NAN, 1.0, 0.0, 2.0]).is_err());
    let other = csr.convert(Format::Nm { n: 1, m: 2 }).unwrap_err();
    assert_eq!(other.to_string(), "format nm:1:2: 2:4 is the one ratio that is stored");
}

#[test]
fn empty_and_thin_matrices() {
    for (rows, cols) in [(0, 0), (0, 7), (5, 0), (1, 1), (3, 2), (4, 33)] {
        let a = Dense::<f32>::from_fn([rows, cols], |i| (i[1] % 2) as f32).unwrap();
        let nm = convert::dense_to_nm(&a).unwrap();
        let p = nm.pattern();
        assert_eq!(&NmPattern::new(rows, cols, p.meta().to_vec()).unwrap(), &**p);
        assert_eq!(nm.slots(), rows * cols.div_ceil(32) * 16);
        assert_eq!(convert::nm_to_dense(&nm).unwrap(), a);
        assert_eq!(convert::prune_to_nm(&a).unwrap(), nm);
    }
}
