//! Single conversions with the arrays written out, names of formats, and refusals.

use einsparse_formats::{
    AnySparse, Coo, CooPattern, Csr, CsrPattern, Format, FormatError, PAD, Pattern, Role, convert,
    f16,
};

const X: u32 = PAD;

/// [ 1 2 3 0 4 ]
/// [ 0 0 0 0 0 ]
/// [ 0 0 5 6 0 ]
fn example() -> Csr<f32> {
    let pattern = CsrPattern::new(3, 5, vec![0, 4, 4, 6], vec![0, 1, 2, 4, 2, 3]).unwrap();
    Csr::new(pattern, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap()
}

#[test]
fn group_coo_pads_only_the_last_group_of_a_row() {
    let a = convert::csr_to_group_coo(&example(), Some(3)).unwrap();
    let p = a.pattern();
    assert_eq!(p.group_index(), [0, 0, 2]);
    assert_eq!(p.others(), [vec![0, 1, 2, 4, X, X, 2, 3, X]]);
    assert_eq!(a.values(), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 5.0, 6.0, 0.0]);
    assert_eq!((p.nnz(), p.slots(), p.value_shape()), (6, 9, vec![3, 3]));
    let arrays = a.arrays();
    assert_eq!(arrays[0].role, Role::Coordinate { axis: 0 });
    assert_eq!((&arrays[0].shape, &arrays[1].shape), (&vec![3], &vec![3, 3]));
}

#[test]
fn group_coo_on_the_columns() {
    let coo = convert::csr_to_coo(&example()).unwrap();
    let a = convert::coo_to_group_coo(&coo, 1, Some(2)).unwrap();
    assert_eq!(a.pattern().group_index(), [0, 1, 2, 3, 4]);
    assert_eq!(a.pattern().others(), [vec![0, X, 0, X, 0, 2, 2, X, 0, X]]);
    assert_eq!(a.values(), [1.0, 0.0, 2.0, 0.0, 3.0, 5.0, 6.0, 0.0, 4.0, 0.0]);
    assert_eq!(a.format().to_string(), "groupcoo:2@1");
}

#[test]
fn ragged_blocks_are_filled_with_zeros() {
    let a = convert::csr_to_bsr(&example(), (2, 2)).unwrap();
    assert_eq!(a.pattern().offsets(), [0, 3, 4]);
    assert_eq!(a.pattern().columns(), [0, 1, 2, 1]);
    let blocks = [1., 2., 0., 0., 3., 0., 0., 0., 4., 0., 0., 0., 5., 6., 0., 0.];
    assert_eq!(a.values(), blocks);
    let b = convert::csr_to_block_coo(&example(), (2, 2)).unwrap();
    assert_eq!((b.pattern().block_rows(), b.values()), (&[0, 0, 0, 1][..], &blocks[..]));
    let c = convert::csr_to_block_group_coo(&example(), (2, 2), Some(2)).unwrap();
    assert_eq!(c.pattern().block_rows(), [0, 0, 1]);
    assert_eq!(c.pattern().block_cols(), [0, 1, 2, X, 1, X]);
    assert_eq!(c.values()[..12], blocks[..12]);
    assert_eq!(c.values()[12..], [0., 0., 0., 0., 5., 6., 0., 0., 0., 0., 0., 0.]);
    assert_eq!(c.pattern().value_shape(), [3, 2, 2, 2]);
}

#[test]
fn ell_is_as_wide_as_the_longest_row() {
    let a = convert::csr_to_ell(&example()).unwrap();
    assert_eq!(a.pattern().columns(), [0, 1, 2, 4, X, X, X, X, 2, 3, X, X]);
    assert_eq!((a.pattern().width(), a.nnz(), a.slots()), (4, 6, 12));
}

#[test]
fn transposes() {
    let at = convert::transpose_csr(&example()).unwrap();
    assert_eq!(at.shape(), [5, 3]);
    assert_eq!(at.pattern().offsets(), [0, 1, 2, 4, 5, 6]);
    assert_eq!(at.values(), [1.0, 2.0, 3.0, 5.0, 6.0, 4.0]);
    let csc = convert::csr_to_csc(&example()).unwrap();
    assert_eq!((csc.pattern().rows_idx(), csc.values()), (at.pattern().columns(), at.values()));
}

#[test]
fn explicit_zeros_stay_outside_blocks() {
    let pattern = CsrPattern::new(2, 2, vec![0, 2, 2], vec![0, 1]).unwrap();
    let a = AnySparse::from(Csr::new(pattern, vec![0.0f32, f32::NAN]).unwrap());
    for format in ["coo", "csc", "ell", "groupcoo:4"] {
        assert_eq!(a.convert(format.parse().unwrap()).unwrap().to_csr().unwrap().nnz(), 2);
    }
    let blocks = a.convert("bsr:2x2".parse().unwrap()).unwrap();
    assert_eq!(blocks.to_csr().unwrap().pattern().columns(), [1]);
}

#[test]
fn too_many_slots_are_refused_before_they_are_made() {
    // One row of 70,000 nonzeros and 70,000 rows: ELL would take 4.9e9 slots.
    let n = 70_000u32;
    let mut offsets = vec![n; n as usize + 1];
    offsets[0] = 0;
    let pattern = CsrPattern::new(n as usize, n as usize, offsets, (0..n).collect()).unwrap();
    let a = AnySparse::from(Csr::new(pattern, vec![f16::ONE; n as usize]).unwrap());
    let slots = u128::from(n) * u128::from(n);
    let limit = u32::MAX.into();
    let refused = FormatError::Overflow { what: "slots", value: slots, limit };
    assert_eq!(a.convert(Format::Ell).unwrap_err(), refused);
    for format in ["bsr:65536x1024", "blockcoo:65536x1024", "blockgroupcoo:65536x1024:8"] {
        let error = a.convert(format.parse().unwrap()).unwrap_err();
        assert!(matches!(error, FormatError::Overflow { what: "slots", .. }), "{error}");
    }
}

#[test]
fn tensors_of_other_orders_stay_in_coo_and_group_coo() {
    let coords = vec![vec![0, 1], vec![2, 0], vec![1, 1]];
    let pattern = CooPattern::new(vec![2, 3, 2], coords).unwrap();
    let a = AnySparse::from(Coo::new(pattern, vec![1.0f64, 2.0]).unwrap());
    let matrices = "csr csc ell bsr:2x2 blockcoo:2x2 blockgroupcoo:2x2 nm:2:4 bitmap bytemap";
    for format in matrices.split(' ') {
        let error = a.convert(format.parse().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "order is 3, 2 wanted");
    }
    assert!(a.convert("groupcoo:2@3".parse().unwrap()).is_err());
    let grouped = a.convert("groupcoo:2@2".parse().unwrap()).unwrap();
    assert_eq!(grouped.slots(), 2);
    assert!(grouped.to_csr().is_err());
}

#[test]
fn names_of_formats() {
    let names = "coo csr csc ell bsr:32x16 groupcoo groupcoo:8 groupcoo:8@1 groupcoo@2 \
                 blockcoo:16x16 blockgroupcoo:32x32 blockgroupcoo:32x32:4 nm:2:4 bitmap bytemap";
    for name in names.split(' ') {
        assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
    }
    let wrong = "CSR bsr bsr:32 bsr:0x4 bsr:4x4:2 groupcoo:0 groupcoo:x csr@1 groupcoo:8@-1 \
                 blockgroupcoo blockgroupcoo:4x4:0 groupcoo:99999999999 coo:3 nm bitmap:8 bytemap:8 \
                 nm:2 nm:1:2 nm:2:4:1 nm:2:4@0";
    for name in wrong.split(' ').chain([""]) {
        let error = name.parse::<Format>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("format `{name}`: ")), "{error}");
    }
}
