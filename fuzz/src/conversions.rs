//! Conversions between any formats: the nonzeros must remain those of the original COO.

use std::collections::BTreeMap;

use einsparse::formats::{AnySparse, Coo, Format};

use super::input::Input;
use super::outcome::{Outcome, outcome, refused};

/// One format of each kind, with blocks and groups that divide few extents.
pub const FORMATS: [&str; 19] = [
    "coo",
    "csr",
    "csc",
    "ell",
    "bsr:2x3",
    "bsr:16x16",
    "groupcoo",
    "groupcoo:3",
    "groupcoo@1",
    "groupcoo:2@1",
    "groupcoo:hybrid",
    "blockcoo:3x2",
    "blockcoo:32x32",
    "blockgroupcoo:2x2",
    "blockgroupcoo:4x1:3",
    "nm:2:4",
    "bitmap",
    "bytemap",
    "sell",
];

/// Draws a tensor of this shape. Duplicate entries are summed, zeros are dropped.
pub fn coo(input: &mut Input<'_>, shape: &[usize], most: usize) -> Coo<f64> {
    let mut entries: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    let empty = shape.contains(&0);
    let count = if empty { 0 } else { input.below(most + 1) };
    for _ in 0..count {
        let place = shape.iter().map(|&extent| match extent {
            0..=256 => input.below(extent) as u32,
            _ => ((input.below(256) << 8 | input.below(256)) % extent) as u32,
        });
        let place = place.collect();
        let value = input.one(&[1.0, -2.0, 3.0, -1.0, 2.0]);
        entries.insert(place, value);
    }
    let axis = |at: usize| entries.keys().map(|place| place[at]).collect();
    let coords = (0..shape.len()).map(axis).collect();
    let values = entries.values().copied().collect();
    Coo::from_entries(shape.to_vec(), coords, values).expect("sorted entries inside the shape")
}

fn shape(input: &mut Input<'_>) -> Vec<usize> {
    const EXTENTS: [usize; 14] = [1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 130, 300, 1537, 0];
    let order = input.one(&[2, 2, 2, 2, 2, 2, 1, 3]);
    (0..order).map(|_| input.one(&EXTENTS)).collect()
}

/// Converts a tensor through several formats.
pub fn conversions(data: &[u8]) -> Outcome {
    let mut input = Input::new(data);
    let steps: Vec<usize> = (0..3).map(|_| input.below(FORMATS.len())).collect();
    let shape = shape(&mut input);
    let coo = coo(&mut input, &shape, 200);
    let entries = AnySparse::from(coo.clone()).entries();
    let mut now = AnySparse::from(coo);
    let mut seen = 0;
    for step in steps {
        let format: Format = FORMATS[step].parse().expect("a format");
        let next = match now.convert(format) {
            Ok(next) => next,
            Err(error) => {
                seen = outcome(&(seen, refused(&error)));
                continue;
            }
        };
        assert_eq!(next.shape(), shape);
        assert_eq!(next.slots(), next.value_shape().iter().product::<usize>());
        assert!(next.nnz() <= next.slots() && next.nnz() >= entries.len());
        let same = |what: &AnySparse<f64>| {
            let mut found = what.entries();
            // Positions in a block, or in an N:M group, without a nonzero.
            found.retain(|_, value| *value != 0.0);
            found == entries
        };
        assert!(same(&next), "{} -> {format}", now.format());
        let back = next.to_coo().map(AnySparse::from).expect("back to COO");
        assert!(same(&back), "{format} -> coo");
        assert_eq!(back.nnz(), entries.len(), "{format}: fill became entries");
        if entries.len() < 40 && shape.iter().product::<usize>() < 1 << 16 {
            let dense = next.to_dense().expect("a small matrix");
            let filled = dense.values().iter().filter(|value| **value != 0.0).count();
            assert_eq!(filled, entries.len(), "{format} -> dense");
        }
        seen = outcome(&(seen, step, next.slots().min(9)));
        now = next;
    }
    seen
}
