//! Constructors of all patterns: for every accepted pattern, the naive reader of its arrays and the conversions agree.

use einsparse_formats::*;

use super::conversions::{FORMATS, coo};
use super::input::Input;
use super::outcome::{Outcome, outcome, refused};

/// Arguments of a constructor other than arrays.
struct Sizes {
    shape: Vec<usize>,
    block: (usize, usize),
    group: usize,
    axis: usize,
    classes: Vec<GroupClass>,
}

/// Creates the pattern of this format from its arrays, in the order of `Pattern::arrays`.
fn build(kind: usize, sizes: &Sizes, arrays: Vec<Vec<u32>>) -> Result<SharedPattern, FormatError> {
    let Sizes { shape, block, group, axis, classes } = sizes;
    let (rows, cols) = match shape[..] {
        [rows, cols, ..] => (rows, cols),
        _ => (shape.first().copied().unwrap_or(0), 1),
    };
    let mut all = arrays.clone().into_iter();
    let mut next = || all.next().unwrap_or_default();
    Ok(match kind {
        0 => CooPattern::new(shape.clone(), arrays)?.into(),
        1 => CsrPattern::new(rows, cols, next(), next())?.into(),
        2 => CscPattern::new(rows, cols, next(), next())?.into(),
        3 => BsrPattern::new(rows, cols, *block, next(), next())?.into(),
        4 => EllPattern::new(rows, cols, *group, next())?.into(),
        5 => {
            let mut others = arrays;
            let index = match *axis < others.len() {
                true => others.remove(*axis),
                false => Vec::new(),
            };
            GroupCooPattern::new(shape.clone(), *axis, *group, index, others)?.into()
        }
        6 => HybridGroupCooPattern::new(rows, cols, classes.clone(), next(), next())?.into(),
        7 => BlockCooPattern::new(rows, cols, *block, next(), next())?.into(),
        8 => BlockGroupCooPattern::new(rows, cols, *block, *group, next(), next())?.into(),
        9 => NmPattern::new(rows, cols, next())?.into(),
        10 => BitmapPattern::new(rows, cols, next(), next())?.into(),
        11 => BytemapPattern::new(rows, cols, next(), next())?.into(),
        _ => SlicedEllPattern::new(rows, cols, next(), next(), next(), next())?.into(),
    })
}

const KINDS: usize = 13;

fn kind_of(format: Format) -> usize {
    match format {
        Format::Coo => 0,
        Format::Csr => 1,
        Format::Csc => 2,
        Format::Bsr { .. } => 3,
        Format::Ell => 4,
        Format::GroupCoo { .. } => 5,
        Format::HybridGroupCoo => 6,
        Format::BlockCoo { .. } => 7,
        Format::BlockGroupCoo { .. } => 8,
        Format::Nm { .. } => 9,
        Format::Bitmap => 10,
        Format::Bytemap => 11,
        Format::SlicedEll => 12,
    }
}

/// Checks the properties of every accepted pattern.
fn check(pattern: SharedPattern) -> Outcome {
    let view = pattern.view();
    let (format, shape) = (view.format(), view.shape().to_vec());
    let slots = view.value_shape().iter().fold(1u128, |n, &e| n.saturating_mul(e as u128));
    assert_eq!(view.slots() as u128, slots, "{format}");
    assert!(view.nnz() <= view.slots(), "{format}");
    for array in view.arrays() {
        assert_eq!(array.data.len(), array.shape.iter().product::<usize>(), "{format}");
    }
    let kind = outcome(&(kind_of(format), view.nnz().min(4)));
    // Empty rows take memory for offsets, and slots for values.
    if shape.iter().any(|extent| *extent > 1 << 12) || view.slots() > 1 << 16 {
        return kind;
    }
    let slots = view.slots();
    let sparse = pattern.with_values(vec![1.0; slots]).expect("one value for each slot");
    let entries = sparse.entries();
    let inside = |place: &Vec<usize>| place.iter().zip(&shape).all(|(at, extent)| at < extent);
    assert!(entries.keys().all(inside), "{format}: an entry outside");
    let back = match sparse.to_coo() {
        Ok(coo) => coo,
        Err(error) => return outcome(&(kind, refused(&error))),
    };
    let again = CooPattern::new(back.shape().to_vec(), back.pattern().coords().to_vec());
    assert_eq!(again.as_ref(), Ok(&**back.pattern()), "{format}: not a COO pattern");
    assert_eq!(AnySparse::from(back).entries(), entries, "{format}");
    kind
}

/// Patterns from random arrays.
pub fn patterns(data: &[u8]) -> Outcome {
    let mut input = Input::new(data);
    let kind = input.below(KINDS);
    let order = input.one(&[2, 2, 2, 2, 2, 1, 3, 0]);
    let sizes = Sizes {
        shape: (0..order).map(|_| input.number()).collect(),
        block: (input.number(), input.number()),
        group: input.number(),
        axis: input.below(4),
        classes: (0..input.below(4))
            .map(|_| GroupClass { group: input.number(), groups: input.number() })
            .collect(),
    };
    let count = input.one(&[2, 2, 2, 1, 3, 4]);
    let arrays = (0..count).map(|_| input.array(64)).collect();
    match build(kind, &sizes, arrays) {
        Ok(pattern) => check(pattern),
        Err(error) => outcome(&(kind, refused(&error))),
    }
}

/// Arrays of a valid pattern with a few changed slots.
pub fn mutated_patterns(data: &[u8]) -> Outcome {
    let mut input = Input::new(data);
    let format: Format = input.one(&FORMATS).parse().expect("a format");
    let mut changes = Vec::new();
    for _ in 0..input.below(4) {
        changes.push((input.below(8), input.byte(), input.byte(), input.number(), input.byte()));
    }
    const EXTENTS: [usize; 10] = [1, 2, 3, 4, 5, 8, 17, 33, 70, 0];
    let shape = [input.one(&EXTENTS), input.one(&EXTENTS)];
    let sparse = AnySparse::from(coo(&mut input, &shape, 60));
    let Ok(sparse) = sparse.convert(format) else {
        return 0;
    };
    let view = sparse.pattern();
    let mut sizes =
        Sizes { shape: shape.to_vec(), block: (1, 1), group: 1, axis: 0, classes: Vec::new() };
    match view.format() {
        Format::Bsr { block } | Format::BlockCoo { block } => sizes.block = block,
        Format::BlockGroupCoo { block, group } => {
            (sizes.block, sizes.group) = (block, group.expect("patterns have one"));
        }
        Format::GroupCoo { axis, group } => {
            (sizes.axis, sizes.group) = (axis, group.expect("patterns have one"));
        }
        Format::Ell => sizes.group = view.value_shape()[1],
        _ => {}
    }
    if let AnyPattern::HybridGroupCoo(pattern) = view {
        sizes.classes = pattern.classes().to_vec();
    }
    let kind = kind_of(view.format());
    let mut arrays: Vec<Vec<u32>> = view.arrays().iter().map(|a| a.data.to_vec()).collect();
    let sound = build(kind, &sizes, arrays.clone()).expect("the arrays of a pattern");
    assert!(sound.view() == view, "{format}");
    check(sound);
    for (what, high, low, value, bit) in changes {
        let at = usize::from(high) << 8 | usize::from(low);
        let which = at % arrays.len();
        let array = &mut arrays[which];
        match (what, array.len()) {
            (0, _) => sizes.shape[at % 2] = value,
            (1, _) => array.push(value as u32),
            (_, 0) => {}
            (2, _) => drop(array.pop()),
            (3, n) => array[at % n] = value as u32,
            (4, n) => array[at % n] ^= 1 << (bit % 32),
            (5, n) => array.swap(at % n, usize::from(bit) % n),
            (6, n) => array[at % n] = array[at % n].wrapping_add(1),
            (_, n) => array[at % n] = PAD,
        }
    }
    match build(kind, &sizes, arrays) {
        Ok(pattern) => check(pattern),
        Err(error) => outcome(&(kind, refused(&error))),
    }
}
