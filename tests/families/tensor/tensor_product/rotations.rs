//! Rotation matrices of real spherical harmonics, from the functions themselves and independent of the coefficients.

use crate::support::Rng;

/// A row-major square matrix.
pub type Matrix = Vec<Vec<f64>>;

fn factorial(n: usize) -> f64 {
    (2..=n).map(|k| k as f64).product()
}

/// P_l^m(x), without the Condon-Shortley phase (Abramowitz and Stegun 8.5.3, 8.6).
fn legendre(l: usize, m: usize, x: f64) -> f64 {
    let root = (1.0 - x * x).max(0.0).sqrt();
    let mut last = (1..=m).map(|k| (2 * k - 1) as f64 * root).product::<f64>();
    let mut before = 0.0;
    for degree in m + 1..=l {
        let next = ((2 * degree - 1) as f64 * x * last - (degree + m - 1) as f64 * before)
            / (degree - m) as f64;
        (before, last) = (last, next);
    }
    last
}

/// Returns the real harmonics of degree `l` at a direction, from m = -l to l, up to a common factor.
fn harmonics(l: usize, [x, y, z]: [f64; 3]) -> Vec<f64> {
    let around = y.atan2(x);
    let one = |at: usize| {
        let m = at.abs_diff(l);
        let size = (factorial(l - m) / factorial(l + m)).sqrt() * legendre(l, m, z);
        let angle = m as f64 * around;
        match at.cmp(&l) {
            std::cmp::Ordering::Less => size * 2f64.sqrt() * angle.sin(),
            std::cmp::Ordering::Equal => size,
            std::cmp::Ordering::Greater => size * 2f64.sqrt() * angle.cos(),
        }
    };
    (0..=2 * l).map(one).collect()
}

/// Returns a random rotation, from a random quaternion.
pub fn rotation(rng: &mut Rng) -> Matrix {
    let q: [f64; 4] = std::array::from_fn(|_| rng.unit());
    let n = q.iter().map(|v| v * v).sum::<f64>().sqrt();
    let [w, x, y, z] = q.map(|v| v / n);
    vec![
        vec![1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
        vec![2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)],
        vec![2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)],
    ]
}

fn turned(rotation: &Matrix, r: [f64; 3]) -> [f64; 3] {
    [0, 1, 2].map(|i| (0..3).map(|j| rotation[i][j] * r[j]).sum())
}

/// Returns D with `harmonics(R r) = D harmonics(r)`, solved from at least as many directions as there are harmonics.
pub fn wigner(l: usize, rotation: &Matrix, rng: &mut Rng) -> Matrix {
    let n = 2 * l + 1;
    // Each row is a direction. Columns are its harmonics, then those of the rotated direction.
    let mut rows: Vec<Vec<f64>> = (0..4 * n)
        .map(|_| {
            let r: [f64; 3] = std::array::from_fn(|_| rng.unit());
            let length = r.iter().map(|v| v * v).sum::<f64>().sqrt();
            let r = r.map(|v| v / length);
            let mut row = harmonics(l, r);
            row.extend(harmonics(l, turned(rotation, r)));
            row
        })
        .collect();
    // Gauss-Jordan elimination with the largest pivot of all directions.
    for column in 0..n {
        let size = |row: &Vec<f64>| row[column].abs();
        let pivot = (column..rows.len()).max_by(|&a, &b| size(&rows[a]).total_cmp(&size(&rows[b])));
        rows.swap(column, pivot.unwrap());
        let scale = rows[column][column];
        rows[column].iter_mut().for_each(|v| *v /= scale);
        let own = rows[column].clone();
        for (at, row) in rows.iter_mut().enumerate() {
            let factor = if at == column { 0.0 } else { row[column] };
            row.iter_mut().zip(&own).for_each(|(v, o)| *v -= factor * o);
        }
    }
    // The other directions must agree: rotated harmonics are combinations of the harmonics.
    assert!(rows[n..].iter().flatten().all(|v| v.abs() < 1e-8));
    (0..n).map(|i| (0..n).map(|j| rows[j][n + i]).collect()).collect()
}
