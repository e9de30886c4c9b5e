//! Every invariant of every constructor: the error names array, position, value and bound.

use einsparse_formats::{
    BlockCooPattern, BlockGroupCooPattern, BsrPattern, Coo, CooPattern, CscPattern, Csr,
    CsrPattern, EllPattern, FormatError, GroupCooPattern, PAD, Pattern,
};

const X: u32 = PAD;

pub(super) fn index(array: &'static str, position: usize, value: u32, bound: u64) -> FormatError {
    FormatError::InvalidIndex { array, position, value: value.into(), bound }
}

fn order(array: &'static str, position: usize, previous: u64, value: u64) -> FormatError {
    FormatError::Order { array, position, previous, value }
}

pub(super) fn length(array: &'static str, found: usize, expected: usize) -> FormatError {
    FormatError::Length { array, found, expected }
}

fn overflow(what: &'static str, value: u128) -> FormatError {
    FormatError::Overflow { what, value, limit: u32::MAX.into() }
}

/// Compares one call for each invalid input with its error.
macro_rules! refuses {
    ($($new:expr => $error:expr;)*) => { $(assert_eq!($new.unwrap_err(), $error);)* };
}

const LARGE: usize = 1 << 32;

#[test]
fn csr() {
    let new =
        |offsets: &[u32], columns: &[u32]| CsrPattern::new(2, 3, offsets.into(), columns.into());
    assert!(new(&[0, 2, 3], &[0, 2, 1]).is_ok());
    refuses! {
        new(&[0, 3], &[0, 1, 2]) => length("offsets", 2, 3);
        new(&[], &[]) => length("offsets", 0, 3);
        new(&[1, 2, 3], &[0, 2, 1]) => index("offsets", 0, 1, 1);
        new(&[0, 4, 3], &[0, 1, 2]) => order("offsets", 2, 4, 3);
        new(&[0, 2, 4], &[0, 2, 1]) => length("columns", 3, 4);
        new(&[0, 2, 3], &[0, 3, 1]) => index("columns", 1, 3, 3);
        new(&[0, 2, 3], &[2, 0, 1]) => order("columns", 1, 2, 0);
        new(&[0, 2, 3], &[1, 1, 1]) => order("columns", 1, 1, 1);
        new(&[0, 2, 3], &[0, 1, X]) => index("columns", 2, X, 3);
        CsrPattern::new(LARGE, 3, vec![], vec![]) => overflow("rows", 1 << 32);
        CsrPattern::new(2, LARGE, vec![0; 3], vec![]) => overflow("columns", 1 << 32);
    }
    let pattern = new(&[0, 2, 3], &[0, 2, 1]).unwrap();
    assert_eq!(Csr::new(pattern, vec![1.0f32]).unwrap_err(), length("values", 1, 3));
    let text = "columns[1] = 3 must be below 3";
    assert_eq!(new(&[0, 2, 3], &[0, 3, 1]).unwrap_err().to_string(), text);
}

#[test]
fn csc() {
    let new = |offsets: &[u32], rows: &[u32]| CscPattern::new(3, 2, offsets.into(), rows.into());
    assert!(new(&[0, 2, 3], &[0, 2, 1]).is_ok());
    refuses! {
        new(&[0, 3], &[0, 1, 2]) => length("offsets", 2, 3);
        new(&[0, 2, 2], &[0, 2, 1]) => length("rows_idx", 3, 2);
        new(&[0, 2, 3], &[0, 3, 1]) => index("rows_idx", 1, 3, 3);
        new(&[0, 2, 3], &[2, 0, 1]) => order("rows_idx", 1, 2, 0);
    }
}

#[test]
fn coo() {
    let new = |shape: &[usize], coords: &[&[u32]]| {
        CooPattern::new(shape.into(), coords.iter().map(|&axis| axis.into()).collect())
    };
    assert!(new(&[2, 3, 4], &[&[0, 0, 1], &[1, 2, 0], &[3, 0, 0]]).is_ok());
    assert!(matches!(new(&[], &[]).unwrap_err(), FormatError::Shape { what: "order", .. }));
    refuses! {
        new(&[2, 3], &[&[0]]) => length("coords", 1, 2);
        new(&[2, 3], &[&[0, 1], &[0]]) => length("coords[1]", 1, 2);
        new(&[2, 3], &[&[0, 1], &[0, 3]]) => index("coords[1]", 1, 3, 3);
        new(&[2, 3], &[&[1, 0], &[0, 0]]) => order("coords[0]", 1, 1, 0);
        new(&[2, 3], &[&[1, 1], &[2, 0]]) => order("coords[1]", 1, 2, 0);
        new(&[2, 3], &[&[1, 1], &[2, 2]]) => order("coords[1]", 1, 2, 2);
        new(&[LARGE, 3], &[&[0], &[0]]) => overflow("extent", 1 << 32);
    }
}

#[test]
fn the_first_of_many_errors_is_reported() {
    let n = 300_000;
    let ascending: Vec<u32> = (0..n as u32).collect();
    for at in [1, 4095, 4096, 4097, 65_536, 131_072, n - 2] {
        let mut axis = ascending.clone();
        axis[at] = 0;
        axis[n - 1] = 0;
        let error = CooPattern::new(vec![n], vec![axis.clone()]).unwrap_err();
        assert_eq!(error, order("coords[0]", at, at as u64 - 1, 0));
        if at > 1 {
            let error = CsrPattern::new(n - 1, 1, axis, vec![]).unwrap_err();
            assert_eq!(error, order("offsets", at, at as u64 - 1, 0));
        }
        let mut axis = ascending.clone();
        axis[at] = X;
        axis[n - 1] = X;
        let error = CooPattern::new(vec![n], vec![axis]).unwrap_err();
        assert_eq!(error, index("coords[0]", at, X, n as u64));
    }
}

#[test]
fn bsr() {
    let new = |block, offsets: &[u32], columns: &[u32]| {
        BsrPattern::new(5, 7, block, offsets.into(), columns.into())
    };
    let ragged = new((2, 3), &[0, 2, 2, 3], &[0, 2, 1]).unwrap();
    assert_eq!((ragged.grid(), ragged.slots(), ragged.nnz()), ((3, 3), 18, 18));
    assert!(matches!(new((0, 3), &[0], &[]).unwrap_err(), FormatError::Shape { .. }));
    assert!(matches!(new((2, 0), &[0], &[]).unwrap_err(), FormatError::Shape { .. }));
    refuses! {
        new((2, 3), &[0, 2, 2], &[0, 2]) => length("offsets", 3, 4);
        new((2, 3), &[0, 2, 2, 3], &[0, 3, 1]) => index("columns", 1, 3, 3);
        new((2, 3), &[0, 2, 2, 3], &[2, 2, 1]) => order("columns", 1, 2, 2);
        new((1 << 16, 1 << 16), &[0, 1], &[0]) => overflow("slots", 1 << 32);
    }
}

#[test]
fn ell() {
    let new = |width, columns: &[u32]| EllPattern::new(2, 3, width, columns.into());
    assert_eq!(new(2, &[0, 2, 1, X]).unwrap().nnz(), 3);
    assert_eq!(new(0, &[]).unwrap().nnz(), 0);
    refuses! {
        new(2, &[0, 2, 1]) => length("columns", 3, 4);
        new(2, &[0, 2, X, 1]) => index("columns", 2, X, 3);
        new(2, &[0, 3, 1, X]) => index("columns", 1, 3, 3);
        new(2, &[1, 0, 1, X]) => order("columns", 1, 1, 0);
        EllPattern::new(1 << 20, 3, 1 << 20, vec![]) => overflow("slots", 1 << 40);
    }
}

#[test]
fn group_coo() {
    let new = |rows: &[u32], columns: &[u32]| {
        GroupCooPattern::new(vec![3, 9], 0, 2, rows.into(), vec![columns.into()])
    };
    let good = new(&[0, 0, 2], &[1, 3, 8, X, 0, X]).unwrap();
    assert_eq!((good.nnz(), good.slots(), good.groups()), (4, 6, 3));
    refuses! {
        new(&[0, 3], &[1, 3, 0, X]) => index("group_index", 1, 3, 3);
        new(&[2, 0], &[1, 3, 0, X]) => order("group_index", 1, 2, 0);
        new(&[0, 0], &[1, 3, 8]) => length("coords[1]", 3, 4);
        new(&[0, 0], &[1, 3, 9, X]) => index("coords[1]", 2, 9, 9);
        new(&[0, 0], &[1, 3, 3, X]) => order("coords[1]", 2, 3, 3);
        new(&[0, 0], &[3, 1, 8, X]) => order("coords[1]", 1, 3, 1);
        // Padding before a nonzero, in a group that is not the last of its run, and a group of padding only.
        new(&[0, 1], &[X, 3, 0, X]) => index("coords[1]", 0, X, 9);
        new(&[0, 0], &[1, X, 8, X]) => index("coords[1]", 1, X, 9);
        new(&[0, 1], &[1, 2, X, X]) => index("coords[1]", 2, X, 9);
        GroupCooPattern::new(vec![3, 9], 0, LARGE, vec![], vec![vec![]]) => overflow("group", 1 << 32);
        GroupCooPattern::new(vec![3, 9], 0, 1 << 31, vec![0, 1], vec![vec![]]) => overflow("slots", 1 << 32);
        GroupCooPattern::new(vec![3, 9], 0, 2, vec![], vec![]) => length("others", 0, 1);
    }
    for (shape, axis, group) in [(vec![3], 0, 2), (vec![3, 9], 2, 2), (vec![3, 9], 0, 0)] {
        let others = vec![vec![]; shape.len() - 1];
        let error = GroupCooPattern::new(shape, axis, group, vec![], others).unwrap_err();
        assert!(matches!(error, FormatError::Shape { .. }), "{error}");
    }
}

#[test]
fn group_coo_of_order_three() {
    let new = |first: &[u32], last: &[u32]| {
        let others = vec![first.into(), last.into()];
        GroupCooPattern::new(vec![4, 5, 6], 1, 3, vec![0, 4], others)
    };
    assert_eq!(new(&[0, 0, 3, 1, X, X], &[1, 4, 0, 5, X, X]).unwrap().nnz(), 4);
    refuses! {
        new(&[0, 0, 3, 1, X, X], &[4, 1, 0, 5, X, X]) => order("coords[2]", 1, 4, 1);
        new(&[0, 3, 0, 1, X, X], &[1, 4, 0, 5, X, X]) => order("coords[0]", 2, 3, 0);
        // Padding on one axis only.
        new(&[0, 0, 3, 1, X, X], &[1, 4, 0, 5, 2, X]) => index("coords[0]", 4, X, 4);
        new(&[0, 0, 3, 1, 2, X], &[1, 4, 0, 5, X, X]) => index("coords[2]", 4, X, 6);
    }
}

#[test]
fn block_coo() {
    let new = |block, rows: &[u32], cols: &[u32]| {
        BlockCooPattern::new(5, 7, block, rows.into(), cols.into())
    };
    assert_eq!(new((2, 3), &[0, 0, 2], &[0, 2, 1]).unwrap().slots(), 18);
    refuses! {
        new((2, 3), &[0, 3], &[0, 1]) => index("block_rows", 1, 3, 3);
        new((2, 3), &[0, 2], &[0, 3]) => index("block_cols", 1, 3, 3);
        new((2, 3), &[0, 2], &[0]) => length("block_cols", 1, 2);
        new((2, 3), &[2, 0], &[0, 0]) => order("block_rows", 1, 2, 0);
        new((2, 3), &[1, 1], &[0, 0]) => order("block_cols", 1, 0, 0);
        new((1 << 16, 1 << 16), &[0], &[0]) => overflow("slots", 1 << 32);
    }
    assert!(matches!(new((0, 0), &[], &[]).unwrap_err(), FormatError::Shape { .. }));
}

#[test]
fn block_group_coo() {
    let new = |block, group, rows: &[u32], cols: &[u32]| {
        BlockGroupCooPattern::new(5, 7, block, group, rows.into(), cols.into())
    };
    let good = new((2, 3), 2, &[0, 0, 2], &[0, 1, 2, X, 1, X]).unwrap();
    assert_eq!((good.blocks(), good.nnz(), good.slots()), (4, 24, 36));
    refuses! {
        new((2, 3), 2, &[0, 3], &[0, 1, 2, X]) => index("block_rows", 1, 3, 3);
        new((2, 3), 2, &[1, 0], &[0, 1, 2, X]) => order("block_rows", 1, 1, 0);
        new((2, 3), 2, &[0, 1], &[0, 3, 2, X]) => index("block_cols", 1, 3, 3);
        new((2, 3), 2, &[0, 0], &[0, 1, 1, X]) => order("block_cols", 2, 1, 1);
        new((2, 3), 2, &[0, 0], &[0, X, 1, X]) => index("block_cols", 1, X, 3);
        new((2, 3), 2, &[0, 1], &[X, X, 1, X]) => index("block_cols", 0, X, 3);
        new((2, 3), 2, &[0, 1], &[0, 1, 2]) => length("block_cols", 3, 4);
        new((1 << 11, 1 << 11), 1 << 10, &[0], &[]) => overflow("slots", 1 << 32);
    }
    assert!(matches!(new((2, 3), 0, &[], &[]).unwrap_err(), FormatError::Shape { .. }));
}

#[test]
fn unsorted_entries_are_sorted_and_summed() {
    let coords = vec![vec![2, 0, 2, 0, 2], vec![1, 3, 0, 3, 1]];
    let a = Coo::from_entries(vec![3, 4], coords, vec![1.0f32, 2.0, 4.0, 8.0, 16.0]).unwrap();
    assert_eq!(a.pattern().coords(), [vec![0, 2, 2], vec![3, 0, 1]]);
    assert_eq!(a.values(), [10.0, 4.0, 17.0]);
    // Extents whose product exceeds u64 take another code path.
    let wide = vec![u32::MAX as usize; 3];
    let coords = vec![vec![9, 9, 0], vec![5, 5, 1], vec![7, 6, 2]];
    let a = Coo::from_entries(wide, coords, vec![1.0f64, 2.0, 3.0]).unwrap();
    assert_eq!(a.values(), [3.0, 2.0, 1.0]);
    let outside = Coo::from_entries(vec![3, 4], vec![vec![3], vec![0]], vec![1.0f32]);
    assert_eq!(outside.unwrap_err(), index("coords[0]", 0, 3, 3));
}
