//! Row statistics, slots of each format, selection of the group size.

use einsparse_formats::proptest as strategy;
use einsparse_formats::stats::{self, RowStats};
use einsparse_formats::{AnySparse, CooPattern, CsrPattern, Format, Pattern, convert};
use proptest::prelude::*;

#[test]
fn statistics_of_rows() {
    let s = RowStats::from_counts([4, 0, 2, 0, 4]);
    assert_eq!((s.rows, s.nnz, s.non_empty, s.min, s.max, s.mean), (5, 10, 3, 0, 4, 2.0));
    assert!((s.std - 3.2f64.sqrt()).abs() < 1e-12);
    assert_eq!(s.histogram, [(0, 2), (2, 1), (4, 2)]);
    assert_eq!((s.groups(2), s.groups(3), s.group_cost(3)), (5, 5, 35));
    let none = RowStats::from_counts([]);
    assert_eq!((none.rows, none.max, none.mean, none.std, none.group()), (0, 0, 0.0, 0.0, 1));
}

#[test]
fn equal_rows_want_whole_groups() {
    // The optimum g* = 4 does not consider divisibility.
    assert_eq!(RowStats::from_counts([16; 100]).group(), 16);
    assert_eq!(RowStats::from_counts([32; 100]).group(), 32);
    assert_eq!(RowStats::from_counts([1; 100]).group(), 1);
    assert_eq!(RowStats::from_counts([0; 100]).group(), 1);
    assert_eq!(RowStats::from_counts([3; 100]).group(), 3);
    // 36 has no more padding than 12, 18 or 9, and fewer groups.
    assert_eq!(RowStats::from_counts([36; 100]).group(), 36);
}

#[test]
fn axes_of_tensors() {
    let coords = vec![vec![0, 0, 2], vec![1, 2, 1], vec![0, 0, 0]];
    let pattern = CooPattern::new(vec![4, 3, 2], coords).unwrap();
    let of = |axis| RowStats::of_axis(&pattern, axis).unwrap().histogram;
    assert_eq!(of(0), [(0, 2), (1, 1), (2, 1)]);
    assert_eq!(of(1), [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(of(2), [(0, 1), (3, 1)]);
    assert!(RowStats::of_axis(&pattern, 3).is_none());
}

proptest! {
    #[test]
    fn the_choice_is_no_worse_than_its_candidates(counts in prop::collection::vec(0usize..200, 1..60)) {
        let s = RowStats::from_counts(counts);
        prop_assume!(s.non_empty > 0);
        let ideal = ((s.nnz as f64 / s.non_empty as f64).sqrt().round() as usize).max(1);
        let chosen = s.group_cost(s.group());
        for candidate in [ideal, (ideal.next_power_of_two() / 2).max(1), (ideal + 1).next_power_of_two()] {
            // A multiple of four may cost one percent more.
            prop_assert!(chosen * 100 <= s.group_cost(candidate) * 101, "{} {candidate}", s.group());
        }
    }

    #[test]
    fn slots_are_what_conversion_takes(a in strategy::csr::<f32>(20), m in 1usize..6, k in 1usize..6) {
        let block = (m, k);
        let formats = [
            Format::Coo, Format::Csr, Format::Csc, Format::Ell, Format::Bsr { block },
            Format::GroupCoo { axis: 0, group: None }, Format::GroupCoo { axis: 1, group: None },
            Format::GroupCoo { axis: 0, group: Some(3) }, Format::BlockCoo { block },
            Format::HybridGroupCoo,
            Format::BlockGroupCoo { block, group: None },
            Format::BlockGroupCoo { block, group: Some(2) },
        ];
        let any = AnySparse::from(a.clone());
        for format in formats {
            let counted = stats::slots(a.pattern(), format).unwrap();
            let made = any.convert(format).unwrap();
            let index: usize = made.arrays().iter().map(|array| array.data.len()).sum();
            prop_assert_eq!(counted.format, made.format());
            prop_assert_eq!((counted.index, counted.values), (index as u128, made.slots() as u128));
            prop_assert_eq!(counted.values - counted.padding, a.nnz() as u128);
        }
    }

    #[test]
    fn slots_of_groups_are_what_conversion_takes(a in strategy::csr::<f32>(40)) {
        let format = Format::Nm { n: 2, m: 4 };
        let counted = stats::slots(a.pattern(), format);
        match AnySparse::from(a.clone()).convert(format) {
            Err(error) => prop_assert_eq!(counted.unwrap_err(), error),
            Ok(made) => {
                let counted = counted.unwrap();
                prop_assert_eq!(counted.index, made.arrays()[0].data.len() as u128);
                prop_assert_eq!(counted.values, made.slots() as u128);
                prop_assert_eq!(counted.values - counted.padding, a.nnz() as u128);
            }
        }
    }
}

#[test]
fn slots_refuse_what_conversion_refuses() {
    let pattern = CsrPattern::new(2, 2, vec![0, 1, 1], vec![0]).unwrap();
    for format in ["groupcoo:2@2", "groupcoo:2@1"] {
        let counted = stats::slots(&pattern, format.parse().unwrap());
        assert_eq!(counted.is_ok(), format.ends_with("@1"));
    }
    let zero = Format::Bsr { block: (0, 2) };
    assert!(stats::slots(&pattern, zero).is_err());
    let zero = Format::GroupCoo { axis: 0, group: Some(0) };
    assert!(stats::slots(&pattern, zero).is_err());
    let cost = stats::slots(&pattern, "bsr:2x2".parse().unwrap()).unwrap();
    assert_eq!((cost.bytes(2), cost.ratio()), (12 + 8, 4.0));
    let coo = convert::csr_to_coo(&einsparse_formats::Csr::new(pattern, vec![1.0f32]).unwrap());
    assert_eq!(coo.unwrap().pattern().nnz(), 1);
}
