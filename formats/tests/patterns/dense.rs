//! Dense tensors.

use einsparse_formats::{Dense, FormatError, bf16};

#[test]
fn rows_lie_one_behind_the_other() {
    let a = Dense::from_fn([2, 3, 4], |i| (100 * i[0] + 10 * i[1] + i[2]) as f32).unwrap();
    assert_eq!(a.strides(), [12, 4, 1]);
    assert_eq!(a.values()[12 + 4 + 2], 112.0);
    assert_eq!(a.get(&[1, 2, 3]), Some(123.0));
    assert_eq!(a.get(&[1, 3, 0]), None);
    assert_eq!(a.get(&[1, 2]), None);
    let doubled = a.map(|v| f64::from(v) * 2.0);
    assert_eq!(doubled.get(&[1, 2, 3]), Some(246.0));
    assert_eq!(doubled.shape(), a.shape());
}

#[test]
fn scalars_and_empty_tensors() {
    let scalar = Dense::new([], vec![7.0f64]).unwrap();
    assert_eq!((scalar.get(&[]), scalar.len()), (Some(7.0), 1));
    assert_eq!(Dense::from_fn([], |i| i.len() as f32).unwrap().values(), [0.0]);
    for shape in [vec![0, 3], vec![3, 0], vec![2, 0, 5], vec![0]] {
        let empty = Dense::from_fn(shape.clone(), |_| bf16::ONE).unwrap();
        assert!(empty.is_empty());
        assert_eq!(empty.shape(), shape);
        assert_eq!(empty.get(&vec![0; shape.len()]), None);
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let wrong = Dense::new([2, 3], vec![0.0f32; 5]).unwrap_err();
    assert_eq!(wrong, FormatError::Length { array: "values", found: 5, expected: 6 });
    assert_eq!(wrong.to_string(), "values has 5 elements, 6 wanted");
    let large = Dense::<f64>::zeros([usize::MAX, usize::MAX]).unwrap_err();
    let limit = isize::MAX as u128 / 8;
    let value = usize::MAX as u128 * usize::MAX as u128;
    assert_eq!(large, FormatError::Overflow { what: "elements", value, limit });
    let memory = Dense::<f32>::zeros([1 << 30, 1 << 30]).unwrap_err();
    assert!(matches!(memory, FormatError::Memory { .. }), "{memory}");
}
