//! Detection: micro-tiles of matrices and masks, columns of images, rows of lengths and choices.

use einsparse::dynamic::{ChannelDetector, DetectOptions, Detector, MicroIndex};
use einsparse::{Result, Scalar};

use super::results::same_values;
use super::trial::{Given, Outcome, Trial};

/// Micro-tile of a matrix. On a GPU, one that kernels support.
fn micro(t: &mut Trial<'_>) -> (usize, usize) {
    let there = [(128, 1), (64, 1), (32, 1), (16, 16), (1, 32), (1, 64)];
    match t.is_for_gpu() {
        true => t.one(&there),
        false => {
            let any = [(1, 1), (2, 3), (5, 1), (1, 7), (16, 16), (300, 300)];
            t.one(&[there, any].concat())
        }
    }
}

/// Computes the lists by loops. `counts`: whether the element at a row and a column makes its micro-tile nonempty.
fn lists(
    [rows, columns]: [usize; 2],
    (h, w): (usize, usize),
    counts: impl Fn(usize, usize) -> bool,
) -> Vec<Vec<u32>> {
    let [down, across] = [rows.div_ceil(h), columns.div_ceil(w)];
    let is_there = |i: usize, j: usize| {
        let own = i * h..((i + 1) * h).min(rows);
        own.into_iter()
            .any(|row| (j * w..((j + 1) * w).min(columns)).any(|column| counts(row, column)))
    };
    let (panels, positions) = if h > 1 { (down, across) } else { (across, down) };
    let list = |panel: usize| {
        let tile = |&p: &u32| match h > 1 {
            true => is_there(panel, p as usize),
            false => is_there(p as usize, panel),
        };
        (0..positions as u32).filter(tile).collect()
    };
    (0..panels).map(list).collect()
}

/// Index of a run, sometimes of a detector with other lists.
fn index_of<T: Scalar>(
    t: &mut Trial<'_>,
    own: &Detector<T>,
    [rows, columns]: [usize; 2],
) -> Result<MicroIndex> {
    let index = own.index()?;
    let shape = [rows + 200, columns + 200];
    let other = Detector::<f32>::new(t.context, shape, (32, 1), &DetectOptions::default())?;
    let other = other.index()?;
    let is_other = [other.panels(), other.stride()] != [index.panels(), index.stride()];
    match is_other && t.is_run_wrong("the index of another detector") {
        true => Ok(other),
        false => Ok(index),
    }
}

fn detected<T: Scalar>(
    t: &mut Trial<'_>,
    shape: [usize; 2],
    mut micro: (usize, usize),
    mut options: DetectOptions,
    value: impl FnMut(&mut Trial<'_>, usize) -> f64,
) -> Result<(Given<T>, Vec<Vec<u32>>), Outcome> {
    t.aim(1);
    if t.is_made_wrong("a micro-tile, threshold or mask that is none") {
        match t.below(3) {
            0 => micro = t.one(&[(0, 1), (1, 0)]),
            1 => options.threshold = t.one(&[-1.0, f64::NAN]),
            _ => options.bits = Some(shape[1] * 32 + 1),
        }
    }
    let made = Detector::<T>::new(t.context, shape, micro, &options);
    let detector = t.made(made)?;
    let mut value = value;
    let matrix = t.given::<T>("matrix", &shape, &mut value);
    let made = index_of(t, &detector, shape);
    let mut index = made.unwrap();
    t.queue(|stream| detector.run(&matrix.there, &mut index, stream))?;
    Ok((matrix, index.to_lists().unwrap()))
}

/// Micro-tiles of values. A tile with NaN is never empty.
pub fn tiles<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    let (shape, micro) = ([t.rows(), t.rows()], micro(t));
    let options = DetectOptions { threshold: t.one(&[0.0, 0.0, 1.0]), ..DetectOptions::default() };
    let (threshold, every) = (options.threshold, t.one(&[1, 20, 200]));
    let (matrix, found) = detected::<T>(t, shape, micro, options, |t, _| match t.below(every) {
        0 if t.once_in(9) => f64::NAN,
        0 => t.integer(),
        _ => -0.0,
    })?;
    let counts = |row: usize, column: usize| {
        let x = matrix.values[row * shape[1] + column];
        x.is_nan() || x.abs() > threshold
    };
    assert_eq!(found, lists(shape, micro, counts), "{shape:?} {micro:?}");
    Ok(())
}

/// Micro-tiles of masks, with a byte or a bit for each element. The element type selects which.
pub fn masks<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    let (shape, micro) = ([t.rows(), t.rows()], micro(t));
    if T::NAME == "f16" || T::NAME == "f32" {
        let every = t.one(&[1, 20, 200]);
        let options = DetectOptions::default();
        let byte = |t: &mut Trial<'_>, _| match t.once_in(every) {
            true => t.one(&[1.0, -1.0, -128.0, 64.0]),
            false => 0.0,
        };
        let (matrix, found) = detected::<i8>(t, shape, micro, options, byte)?;
        let counts = |row: usize, column: usize| matrix.values[row * shape[1] + column] != 0.0;
        assert_eq!(found, lists(shape, micro, counts), "{shape:?} {micro:?}");
        return Ok(());
    }
    let words = [shape[0], shape[1].div_ceil(32)];
    let options = DetectOptions { bits: Some(shape[1]), ..DetectOptions::default() };
    let every = t.one(&[1, 3, 20]);
    // Bits past the last column are set, too.
    let word = |t: &mut Trial<'_>, _| match t.once_in(every) {
        true => f64::from(t.one(&[1, i32::MIN, 1 << 30, -1, 0x10010])),
        false => 0.0,
    };
    let (matrix, found) = detected::<i32>(t, words, micro, options, word)?;
    let counts = |row: usize, column: usize| {
        let word = matrix.values[row * words[1] + column / 32] as i64;
        word >> (column % 32) & 1 != 0
    };
    assert_eq!(found, lists(shape, micro, counts), "{shape:?} {micro:?}");
    Ok(())
}

/// Columns of images, concatenated.
pub fn channels<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(1);
    let shape = [t.one(&[1, 2, 3, 0]), t.rows(), t.columns()];
    let mut threshold = t.one(&[0.0, 1.0]);
    if t.is_made_wrong("a threshold that is none") {
        threshold = t.one(&[-1.0, f64::NAN]);
    }
    let made = ChannelDetector::<T>::new(t.context, shape, threshold);
    let mut detector = t.made(made)?;
    let [items, rows, columns] = shape;
    let every = t.one(&[1, 30, 300]);
    let a = t.given::<T>("A", &[items * rows, columns], |t, _| match t.once_in(every) {
        true => t.integer(),
        false => 0.0,
    });
    t.queue(|stream| detector.run(&a.there, stream))?;
    let found = detector.index().to_lists().unwrap();
    assert_eq!(found.len(), items);
    let (packed, stride) = (detector.packed().unwrap(), detector.index().stride());
    for (item, found) in found.iter().enumerate() {
        let own = &a.values[item * rows * columns..][..rows * columns];
        let counts = |c: usize| (0..rows).any(|r| own[r * columns + c].abs() > threshold);
        let wanted: Vec<u32> = (0..columns as u32).filter(|&c| counts(c as usize)).collect();
        assert_eq!(found, &wanted, "{shape:?}");
        for row in 0..rows {
            let from = &packed[(item * rows + row) * stride..][..wanted.len()];
            let wanted = wanted.iter().map(|&c| own[row * columns + c as usize]);
            same_values("packed", from, &wanted.collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// Rows by lengths, some below 0 or past the end, and choices that name no item. The element type selects which.
pub fn rows<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(1);
    let (count, bound) = (t.rows(), t.one(&[1, 3, 8, 33, 64]));
    let is_of_lengths = T::NAME == "f16" || T::NAME == "f32";
    let made = match is_of_lengths {
        true => Detector::lengths(t.context, count, bound),
        false => Detector::choices(t.context, count, bound),
    };
    let detector = t.made(made)?;
    let numbers = t.given::<i32>("numbers", &[count], |t, _| match t.once_in(4) {
        true => f64::from(t.one(&[-1, i32::MIN, i32::MAX, bound as i32, bound as i32 + 1])),
        false => t.below(bound) as f64,
    });
    let mut index = detector.index().unwrap();
    if t.is_run_wrong("the index of another detector") {
        let other = Detector::choices(t.context, count + 64, bound + 1).unwrap();
        index = other.index().unwrap();
    }
    t.queue(|stream| detector.run(&numbers.there, &mut index, stream))?;
    let mut found = index.to_lists().unwrap();
    found.iter_mut().for_each(|list| list.sort_unstable());
    let numbered = numbers.values.iter().enumerate();
    let wanted: Vec<Vec<u32>> = if is_of_lengths {
        let rows = numbered.flat_map(|(i, &length)| {
            let length = length.clamp(0.0, bound as f64) as usize;
            (i * bound..i * bound + length).map(|row| row as u32)
        });
        vec![rows.collect()]
    } else {
        let named = |expert: usize| {
            let own = numbered.clone().filter(|(_, x)| **x == expert as f64);
            own.map(|(i, _)| i as u32).collect()
        };
        (0..bound).map(named).collect()
    };
    assert_eq!(found, wanted, "{count} {bound} {is_of_lengths}");
    Ok(())
}
