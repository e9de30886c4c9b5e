//! Dynamic operands: products that skip their empty micro-tiles, on the left, transposed, and on the right. The CPU
//! multiplies all elements.

use einsparse::{Precision, Scalar};

use super::results::same;
use super::trial::{Given, Outcome, Trial};
use crate::support::skipping::{LEFT, RIGHT, Skipping, TRANSPOSED};

/// Number of elements of a row segment.
const WIDTH: usize = 64;

/// A matrix of `items` in which most micro-tiles of `h x w` are empty.
fn tiled<T: Scalar>(
    t: &mut Trial<'_>,
    name: &str,
    shape: &[usize],
    (h, w): (usize, usize),
) -> Given<T> {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let share = t.one(&[1, 4, 4, 16]);
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let across = columns.div_ceil(w);
    let live: Vec<bool> = (0..rows.div_ceil(h) * across).map(|_| t.below(16) < share).collect();
    t.given(name, shape, |t, i| {
        let (row, column) = (i / columns, i % columns);
        match live[row / h * across + column / w] && !t.once_in(3) {
            true => t.integer(),
            false => 0.0,
        }
    })
}

/// Rows, some of which are entirely NaN.
fn with_nan<T: Scalar>(t: &mut Trial<'_>, name: &str, shape: &[usize]) -> Given<T> {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let some = t.once_in(2);
    let is_nan: Vec<bool> = (0..rows).map(|_| some && t.once_in(8)).collect();
    t.given(name, shape, |t, i| match is_nan[i / columns] {
        true => f64::NAN,
        false => t.integer(),
    })
}

/// Whether an element makes its micro-tile nonempty.
fn counts(x: f64, threshold: f64) -> bool {
    x.is_nan() || x.abs() > threshold
}

/// Threshold of a product, or one that is refused.
fn threshold(t: &mut Trial<'_>) -> f64 {
    let threshold = t.one(&[0.0, 0.0, 1.0]);
    match t.is_made_wrong("an invalid threshold") {
        true => t.one(&[-1.0, f64::NAN, -f64::INFINITY]),
        false => threshold,
    }
}

/// Shape of a batch. A batch of one item has no batch axis.
fn of_items(items: usize, matrix: [usize; 2]) -> Vec<usize> {
    match items {
        1 => matrix.to_vec(),
        _ => vec![items, matrix[0], matrix[1]],
    }
}

/// Micro-tiles on the left. A NaN of B reaches exactly the rows that have a micro-tile at its position.
pub fn left<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(3);
    let items = t.one(&[1, 1, 1, 2, 3]);
    let height = t.one(&[128, 64, 32]);
    let m = match items {
        1 => t.rows(),
        _ => height * t.one(&[0, 1, 2]),
    };
    let [k, n] = [t.rows(), t.columns()];
    let precision = t.one(&[Precision::Full, Precision::Tf32]);
    // The kernel for few rows has micro-tiles of all rows.
    let few = items == 1 && m <= 64 && T::DTYPE.bytes() == 2 && t.once_in(2);
    let threshold = threshold(t);
    let skipping = Skipping { height, few, threshold, precision, ..LEFT };
    let height = if few { m.max(1) } else { height };
    let extents = [m, k, n];
    let made = skipping.try_batch::<T>(t.context, items, extents);
    let of = t.made(made)?;
    let a = tiled::<T>(t, "A", &of_items(items, [m, k]), (height, 1));
    let b = with_nan::<T>(t, "B", &of_items(items, [k, n]));
    let mut c = t.written::<T>("C", &of_items(items, [m, n]));
    t.run(&mut c, |c, stream| of.run([&a.there, &b.there], c, stream))?;
    let (mut wanted, all) = (vec![0.0; items * m * n], !t.context.is_cuda());
    for row in 0..items * m {
        let first = row / height * height;
        let panel = first..(first + height).min(items * m);
        for x in 0..k {
            let is_there = |row: usize| counts(a.values[row * k + x], threshold);
            if all || panel.clone().any(is_there) {
                let line = &b.values[(row / m * k + x) * n..][..n];
                let to = wanted[row * n..][..n].iter_mut().zip(line);
                to.for_each(|(to, b)| *to += a.values[row * k + x] * b);
            }
        }
    }
    let what = format!("C of {items} x {extents:?} {skipping:?}: {}", of.plan);
    same(&what, &c, &wanted);
    Ok(())
}

/// Product with the transpose: the micro-tiles are segments of A's rows.
pub fn on_the_turn<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(3);
    let [m, k, n] = [t.columns(), t.rows(), t.columns()];
    let threshold = threshold(t);
    let made = Skipping { threshold, ..TRANSPOSED }.try_plan::<T>(t.context, [m, k, n]);
    let of = t.made(made)?;
    let a = tiled::<T>(t, "A", &[k, m], (1, WIDTH));
    let b = with_nan::<T>(t, "B", &[k, n]);
    let mut c = t.written::<T>("C", &[m, n]);
    t.run(&mut c, |c, stream| of.run([&a.there, &b.there], c, stream))?;
    let (mut wanted, all) = (vec![0.0; m * n], !t.context.is_cuda());
    for row in 0..m {
        let first = row / WIDTH * WIDTH;
        for x in 0..k {
            let piece = &a.values[x * m..][first..(first + WIDTH).min(m)];
            if all || piece.iter().any(|&a| counts(a, threshold)) {
                let line = &b.values[x * n..][..n];
                let to = wanted[row * n..][..n].iter_mut().zip(line);
                to.for_each(|(to, b)| *to += a.values[x * m + row] * b);
            }
        }
    }
    let what = format!("C of {:?}: {}", [m, k, n], of.plan);
    same(&what, &c, &wanted);
    Ok(())
}

/// Micro-tiles on the right. A NaN in a column of A reaches exactly the 64 columns of C that have a micro-tile at its
/// position.
pub fn right<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(3);
    let items = t.one(&[1, 1, 1, 2, 3]);
    let [m, k, n] = [t.columns(), t.rows(), t.columns()];
    let by_columns = t.once_in(2);
    let threshold = threshold(t);
    let skipping = Skipping { by_columns, threshold, ..RIGHT };
    let made = skipping.try_batch::<T>(t.context, items, [m, k, n]);
    let of = t.made(made)?;
    let of_a = if by_columns { [k, m] } else { [m, k] };
    let is_nan: Vec<bool> = (0..items * k).map(|_| t.once_in(16)).collect();
    let in_column = |i: usize| match by_columns {
        true => i / m,
        false => i / (m * k) * k + i % k,
    };
    let a = t.given::<T>("A", &of_items(items, of_a), |t, i| match is_nan[in_column(i)] {
        true => f64::NAN,
        false => t.integer(),
    });
    let b = tiled::<T>(t, "B", &of_items(items, [k, n]), (1, WIDTH));
    let mut c = t.written::<T>("C", &of_items(items, [m, n]));
    t.run(&mut c, |c, stream| of.run([&a.there, &b.there], c, stream))?;
    let (mut wanted, all) = (vec![0.0; items * m * n], !t.context.is_cuda());
    for row in 0..items * m {
        let (item, i) = (row / m, row % m);
        for x in item * k..(item + 1) * k {
            let factor = match by_columns {
                true => a.values[x * m + i],
                false => a.values[row * k + x - item * k],
            };
            let pieces = b.values[x * n..][..n].chunks(WIDTH);
            let to = wanted[row * n..][..n].chunks_mut(WIDTH);
            for (to, piece) in to.zip(pieces) {
                if all || piece.iter().any(|&b| counts(b, threshold)) {
                    let each = to.iter_mut().zip(piece);
                    each.for_each(|(to, b)| *to += factor * b);
                }
            }
        }
    }
    let what = format!("C of {items} x {:?} {skipping:?}: {}", [m, k, n], of.plan);
    same(&what, &c, &wanted);
    Ok(())
}
