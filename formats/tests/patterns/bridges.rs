//! Conversions from and to ndarray and sprs.

use einsparse_formats::{AnySparse, Csc, Csr, CsrPattern, Dense, Format, convert};
use ndarray::{Array2, ArrayD, array};
use sprs::{CsMat, CsMatI, TriMat};

#[test]
fn ndarray_there_and_back() {
    let a = Dense::from_fn([2, 3, 4], |i| (100 * i[0] + 10 * i[1] + i[2]) as f32).unwrap();
    let array = ArrayD::try_from(a.clone()).unwrap();
    assert_eq!(array[[1, 2, 3]], 123.0);
    assert_eq!(Dense::try_from(&array).unwrap(), a);
    let matrix: Array2<f64> = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let turned = Dense::try_from(&matrix.t()).unwrap();
    assert_eq!((turned.shape(), turned.values()), (&[3, 2][..], &[1., 4., 2., 5., 3., 6.][..]));
}

#[test]
fn sprs_there_and_back() {
    let mut triplets = TriMat::new((3, 4));
    for (r, c, v) in [(0, 3, 1.0f32), (2, 0, 2.0), (2, 2, 3.0)] {
        triplets.add_triplet(r, c, v);
    }
    let rows: CsMat<f32> = triplets.to_csr();
    let a = Csr::try_from(&rows).unwrap();
    assert_eq!((a.pattern().offsets(), a.pattern().columns()), (&[0, 1, 1, 3][..], &[3, 0, 2][..]));
    assert_eq!(CsMat::try_from(&a).unwrap(), rows);
    let columns: CsMat<f32> = triplets.to_csc();
    let any = AnySparse::try_from(&columns).unwrap();
    assert_eq!(any.format(), Format::Csc);
    assert_eq!(Csr::try_from(&columns).unwrap(), a);
    let csc: Csc<f32> = convert::csr_to_csc(&a).unwrap();
    assert_eq!(CsMat::try_from(&csc).unwrap(), columns);
    // A view of some rows has offsets that do not start at 0.
    let some = Csr::try_from(&rows.slice_outer(1..3)).unwrap();
    assert_eq!(some.pattern().offsets(), [0, 0, 2]);
}

#[test]
fn sprs_index_types_that_are_too_small() {
    let pattern = CsrPattern::new(1, 70_000, vec![0, 1], vec![69_999]).unwrap();
    let a = Csr::new(pattern, vec![1.0f64]).unwrap();
    assert!(CsMatI::<f64, i16>::try_from(&a).is_err());
    assert!(CsMatI::<f64, i32>::try_from(&a).is_ok());
}
