//! Properties of all formats: round trips between every pair, equal dense tensors, valid arrays.

use einsparse_formats::proptest as strategy;
use einsparse_formats::{
    AnySparse, BitmapPattern, BlockCooPattern, BlockGroupCooPattern, BsrPattern, BytemapPattern,
    Coo, CooPattern, CscPattern, Csr, CsrPattern, Dense, Element, EllPattern, Format, GroupClass,
    GroupCooPattern, HybridGroupCooPattern, NmPattern, PAD, Pattern, SlicedEllPattern, convert,
    f16, reference,
};
use proptest::prelude::*;

/// Every format of a matrix, with these parameters.
fn formats(block: (usize, usize), group: Option<usize>) -> [Format; 13] {
    [
        Format::Coo,
        Format::Csr,
        Format::Csc,
        Format::Ell,
        Format::Bitmap,
        Format::Bytemap,
        Format::SlicedEll,
        Format::Bsr { block },
        Format::GroupCoo { axis: 0, group },
        Format::GroupCoo { axis: 1, group },
        Format::HybridGroupCoo,
        Format::BlockCoo { block },
        Format::BlockGroupCoo { block, group },
    ]
}

/// Checks that the checked constructor accepts the result of an unchecked converter, and gives an equal pattern.
pub fn assert_valid<T: Element>(any: &AnySparse<T>) {
    /// Calls the constructor of the pattern with its extents, these fields, and copies of these arrays.
    macro_rules! again {
        ($a:ident: $pattern:ident $($field:ident)*; $($array:ident)*) => {{
            let p = $a.pattern();
            let new = $pattern::new(p.rows(), p.cols(), $(p.$field(),)* $(p.$array().to_vec()),*);
            assert_eq!(&new.unwrap(), &**p);
        }};
    }
    match any {
        AnySparse::Coo(a) => {
            let p = a.pattern();
            let new = CooPattern::new(p.shape().to_vec(), p.coords().to_vec());
            assert_eq!(&new.unwrap(), &**p);
        }
        AnySparse::GroupCoo(a) => {
            let p = a.pattern();
            let (index, others) = (p.group_index().to_vec(), p.others().to_vec());
            let shape = p.shape().to_vec();
            let new = GroupCooPattern::new(shape, p.axis(), p.group(), index, others);
            assert_eq!(&new.unwrap(), &**p);
        }
        AnySparse::Csr(a) => again!(a: CsrPattern; offsets columns),
        AnySparse::Csc(a) => again!(a: CscPattern; offsets rows_idx),
        AnySparse::Bsr(a) => again!(a: BsrPattern block; offsets columns),
        AnySparse::Ell(a) => again!(a: EllPattern width; columns),
        AnySparse::HybridGroupCoo(a) => {
            again!(a: HybridGroupCooPattern; classes group_index columns)
        }
        AnySparse::BlockCoo(a) => again!(a: BlockCooPattern block; block_rows block_cols),
        AnySparse::BlockGroupCoo(a) => {
            again!(a: BlockGroupCooPattern block group; block_rows block_cols)
        }
        AnySparse::Bitmap(a) => again!(a: BitmapPattern; words starts),
        AnySparse::Bytemap(a) => again!(a: BytemapPattern; words starts),
        AnySparse::SlicedEll(a) => again!(a: SlicedEllPattern; order offsets windows columns),
        AnySparse::Nm(a) => again!(a: NmPattern; meta),
    }
    assert_eq!(any.value_shape().iter().product::<usize>(), any.slots());
    let axes = any.coordinates().unwrap();
    for slot in 0..any.slots() {
        let padding = axes.iter().filter(|axis| axis[slot] == PAD).count();
        assert!(padding == 0 || padding == axes.len(), "{}: slot {slot}", any.format());
    }
    for array in any.arrays() {
        assert_eq!(array.shape.iter().product::<usize>(), array.data.len());
    }
}

/// Dense tensor from the nonzeros, without a converter.
fn plain_dense<T: Element>(any: &AnySparse<T>) -> Dense<T> {
    let entries = any.entries();
    let at = |index: &[usize]| entries.get(index).map_or(T::ZERO, |&v| T::from_f64(v));
    Dense::from_fn(any.shape(), at).unwrap()
}

fn assert_all_pairs<T: Element>(a: &Csr<T>, block: (usize, usize), group: Option<usize>) {
    let start = AnySparse::from(a.clone());
    let dense = plain_dense(&start);
    for from in formats(block, group) {
        let there = start.convert(from).unwrap();
        assert_valid(&there);
        assert_eq!(plain_dense(&there), dense, "{from}");
        assert_eq!(there.to_dense().unwrap(), dense, "{from}");
        assert!(there.pattern() == start.convert(from).unwrap().pattern());
        assert!(from == Format::Csr || there.pattern() != start.pattern());
        for to in formats(block, group) {
            let on = there.convert(to).unwrap();
            assert_valid(&on);
            assert_eq!(on, start.convert(to).unwrap(), "{from} to {to}");
        }
        assert_eq!(there.convert(Format::Csr).unwrap(), start, "{from}");
    }
    assert_eq!(&convert::dense_to_csr(&dense).unwrap(), a);
}

fn group() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![Just(None), (1usize..9).prop_map(Some)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn matrices(a in strategy::csr::<f32>(24), block in strategy::block(9), group in group()) {
        assert_all_pairs(&a, block, group);
    }

    #[test]
    fn pruned_matrices(a in strategy::csr::<f32>(80), block in strategy::block(9)) {
        let dense = convert::csr_to_dense(&a).unwrap();
        let pruned = AnySparse::from(convert::prune_to_nm(&dense).unwrap());
        assert_valid(&pruned);
        let csr = pruned.to_csr().unwrap();
        let dense = plain_dense(&pruned);
        prop_assert_eq!(&pruned.to_dense().unwrap(), &dense);
        prop_assert_eq!(&plain_dense(&AnySparse::from(csr.clone())), &dense);
        prop_assert_eq!(&AnySparse::from(convert::dense_to_nm(&dense).unwrap()), &pruned);
        for from in formats(block, None) {
            let there = pruned.convert(from).unwrap();
            prop_assert_eq!(&there, &AnySparse::from(csr.clone()).convert(from).unwrap());
            prop_assert_eq!(&there.convert(Format::Nm { n: 2, m: 4 }).unwrap(), &pruned);
        }
    }

    #[test]
    fn matrices_of_halves(a in strategy::csr::<f16>(12), block in strategy::block(5)) {
        assert_all_pairs(&a, block, None);
    }

    #[test]
    fn tensors(
        a in (2usize..5).prop_flat_map(|order| strategy::coo::<f64>(order, 9)),
        group in group(),
    ) {
        let order = a.shape().len();
        let start = AnySparse::from(a);
        let dense = plain_dense(&start);
        for axis in 0..order {
            let grouped = start.convert(Format::GroupCoo { axis, group }).unwrap();
            assert_valid(&grouped);
            prop_assert_eq!(plain_dense(&grouped), dense.clone());
            prop_assert_eq!(grouped.to_dense().unwrap(), dense.clone());
            prop_assert_eq!(grouped.convert(Format::Coo).unwrap(), start.clone());
            for other in 0..order {
                let format = Format::GroupCoo { axis: other, group: Some(3) };
                prop_assert_eq!(grouped.convert(format).unwrap(), start.convert(format).unwrap());
            }
        }
        prop_assert_eq!(AnySparse::from(convert::dense_to_coo(&dense).unwrap()), start);
    }

    #[test]
    fn entries_in_any_order(a in strategy::coo::<f32>(3, 6), seed in any::<u64>()) {
        let mut order: Vec<usize> = (0..a.nnz()).collect();
        order.sort_by_key(|&p| (p as u64).wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let coords = a.pattern().coords().iter();
        let coords = coords.map(|axis| order.iter().map(|&p| axis[p]).collect()).collect();
        let values = order.iter().map(|&p| a.values()[p]).collect();
        prop_assert_eq!(Coo::from_entries(a.shape().to_vec(), coords, values).unwrap(), a);
    }

    #[test]
    fn the_references_agree(a in strategy::csr::<f64>(8), block in strategy::block(4)) {
        let b = Dense::from_fn([a.shape()[1], 3], |i| (i[0] * 3 + i[1]) as f64 - 5.0).unwrap();
        let extents = [a.shape()[0], a.shape()[1], 3];
        let a = AnySparse::from(a);
        let entries = a.entries();
        let factors = [
            (&[0, 1][..], reference::Factor::Sparse(&entries)),
            (&[1, 2][..], reference::Factor::Dense(&b)),
        ];
        let truth = reference::einsum(&extents, &[0, 2], &factors).unwrap();
        for format in formats(block, None) {
            prop_assert_eq!(&reference::spmm(&a.convert(format).unwrap(), &b).unwrap(), &truth);
        }
    }
}

#[test]
fn many_rows_in_many_tasks() {
    // Enough nonzeros for several tasks, rows from empty to full, and extents that no block divides.
    let (rows, cols) = (1031, 517);
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for r in 0..rows as u32 {
        let step = [1, 3, 0, 7, 50][r as usize % 5];
        if step > 0 {
            columns.extend((r % step..cols as u32).step_by(step as usize));
        }
        offsets.push(columns.len() as u32);
    }
    let values = (0..columns.len()).map(|i| (i % 9) as f32 + 1.0).collect();
    let a = Csr::new(CsrPattern::new(rows, cols, offsets, columns).unwrap(), values).unwrap();
    assert!(a.nnz() > 100_000);
    let start = AnySparse::from(a);
    for format in formats((16, 32), Some(4)).into_iter().chain(formats((7, 5), None)) {
        let there = start.convert(format).unwrap();
        assert_valid(&there);
        assert_eq!(there.convert(Format::Csr).unwrap(), start, "{format}");
        assert_eq!(there.to_dense().unwrap(), start.to_dense().unwrap(), "{format}");
    }
}

#[test]
fn hypersparse_tensors_do_not_pay_for_their_extents() {
    let n = u32::MAX as usize;
    let coords = vec![vec![0, 0, u32::MAX - 1], vec![5, 9, u32::MAX - 1]];
    let a = Coo::new(CooPattern::new(vec![n, n], coords).unwrap(), vec![1.0f32, 2.0, 3.0]).unwrap();
    for axis in 0..2 {
        let grouped = convert::coo_to_group_coo(&a, axis, None).unwrap();
        assert_eq!(convert::group_coo_to_coo(&grouped).unwrap(), a);
    }
}

proptest! {
    /// Rows in groups of their class: each class has rows, and all classes together cost no more than one group size
    /// for all rows.
    #[test]
    fn hybrid_groups_cost_no_more_than_groups(a in strategy::csr::<f32>(60)) {
        let groups = convert::csr_to_group_coo(&a, None).unwrap();
        let hybrid = convert::csr_to_hybrid_group_coo(&a).unwrap();
        let words = |index: usize, slots: usize| index + 2 * slots;
        let one = words(groups.pattern().groups(), groups.slots());
        let many = words(hybrid.pattern().group_index().len(), hybrid.slots());
        prop_assert!(many <= one, "{many} {one} {:?}", hybrid.pattern().classes());
        prop_assert!(hybrid.pattern().classes().iter().all(|c| c.groups > 0));
    }
}

#[test]
fn hybrid_groups_are_checked() {
    let class = |group, groups| GroupClass { group, groups };
    let new = |classes: &[GroupClass], index: &[u32], columns: &[u32]| {
        HybridGroupCooPattern::new(3, 4, classes.to_vec(), index.to_vec(), columns.to_vec())
    };
    let classes = [class(1, 1), class(2, 2)];
    let good = new(&classes, &[2, 0, 0], &[3, 0, 1, 2, PAD]).unwrap();
    assert_eq!(good.nnz(), 4);
    assert_eq!(good.spans(), Ok(vec![(1, 3), (0, 0), (0, 1)]));
    assert_eq!(good.group_starts(), [0, 1, 3, 5]);
    for (index, columns) in [
        ([0, 0, 0], [3, 0, 1, 2, PAD]),   // row 0 in two classes
        ([2, 1, 0], [3, 0, 1, 2, PAD]),   // rows descend
        ([2, 0, 3], [3, 0, 1, 2, PAD]),   // row 3 of 3
        ([2, 0, 0], [4, 0, 1, 2, PAD]),   // column 4 of 4
        ([2, 0, 0], [3, 1, 0, 2, PAD]),   // columns descend
        ([2, 0, 0], [3, 0, PAD, 2, PAD]), // padding before the end of a row
    ] {
        assert!(new(&classes, &index, &columns).is_err(), "{index:?} {columns:?}");
    }
    assert!(new(&[class(0, 3)], &[0, 1, 2], &[]).is_err());
    assert!(new(&classes, &[2, 0], &[3, 0, 1, 2, PAD]).is_err());
}
