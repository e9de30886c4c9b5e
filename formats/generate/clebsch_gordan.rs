//! Clebsch-Gordan coefficients in the basis of real spherical harmonics: the sparse tensors that couple features of an
//! equivariant network (Geiger, Smidt: e3nn, arXiv 2207.09453).

use crate::error::*;
use crate::{Coo, CooPattern, Element, check};

/// Maximum degree. For higher degrees the alternating sums of the Racah formula lose digits.
const LIMIT: u128 = 10;

/// Returns the tensor `C[i,j,k]` of shape `[2 l1 + 1, 2 l2 + 1, 2 l3 + 1]` in the real basis. Components are ordered
/// from m = -l to l. `z[k] = C[i,j,k] x[i] y[j]` is the part of degree `l3` of the product of `x` of degree `l1` and
/// `y` of degree `l2`.
///
/// The tensor is normalized: `C[i,j,k] C[i,j,k'] = 1` for `k = k'` and 0 otherwise. If `l1 + l2 + l3` is odd, the
/// coefficients in this basis are imaginary. The tensor then contains their imaginary parts, which are also
/// equivariant. The tensor has no entries unless `|l1 - l2| <= l3 <= l1 + l2`.
///
/// ```
/// // Two vectors couple to a scalar by their dot product, over the root of 3.
/// let dot = einsparse_formats::generate::clebsch_gordan::<f64>(1, 1, 0)?;
/// assert_eq!(dot.shape(), [3, 3, 1]);
/// assert!(dot.values().iter().all(|value| (value.abs() - 3_f64.sqrt().recip()).abs() < 1e-12));
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns [`FormatError::Overflow`] for a degree over 10.
pub fn clebsch_gordan<T: Element>(l1: usize, l2: usize, l3: usize) -> Result<Coo<T>> {
    check::at_most("degree", l1.max(l2).max(l3) as u128, LIMIT)?;
    let (mut coords, mut values) = (vec![Vec::new(); 3], Vec::new());
    let imaginary = (l1 + l2 + l3) % 2;
    for i in 0..=2 * l1 {
        for j in 0..=2 * l2 {
            for k in 0..=2 * l3 {
                let value = real_coefficient([l1, l2, l3], [i, j, k])[imaginary];
                if value.abs() > 1e-9 {
                    coords.iter_mut().zip([i, j, k]).for_each(|(axis, at)| axis.push(at as u32));
                    values.push(T::from_f64(value));
                }
            }
        }
    }
    Coo::new(CooPattern::new(vec![2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1], coords)?, values)
}

/// Real and imaginary part of the coefficient, converted to the real basis on all three axes.
fn real_coefficient(degree: [usize; 3], place: [usize; 3]) -> [f64; 2] {
    let m: [i64; 3] = std::array::from_fn(|axis| place[axis] as i64 - degree[axis] as i64);
    let mut sum = [0.0; 2];
    for (m1, a) in real_harmonic(m[0]) {
        for (m2, b) in real_harmonic(m[1]) {
            for (m3, c) in real_harmonic(m[2]) {
                if m1 + m2 == m3 {
                    let coefficient = racah(degree.map(|l| l as i64), [m1, m2, m3]);
                    let product = times(times([a[0], -a[1]], [b[0], -b[1]]), c);
                    sum = [sum[0] + coefficient * product[0], sum[1] + coefficient * product[1]];
                }
            }
        }
    }
    sum
}

fn times(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// Real harmonic of order `m` as a sum of complex harmonics: their orders and complex factors.
fn real_harmonic(m: i64) -> Vec<(i64, [f64; 2])> {
    let half = std::f64::consts::FRAC_1_SQRT_2;
    let sign = if m % 2 == 0 { half } else { -half };
    match m {
        0 => vec![(0, [1.0, 0.0])],
        1.. => vec![(-m, [half, 0.0]), (m, [sign, 0.0])],
        _ => vec![(m, [0.0, half]), (-m, [0.0, -sign])],
    }
}

/// `<l1 m1 l2 m2 | l3 m3>` by the Racah formula (Edmonds, Angular Momentum in Quantum Mechanics, 3.6.11).
fn racah([l1, l2, l3]: [i64; 3], [m1, m2, m3]: [i64; 3]) -> f64 {
    let outside = m1.abs() > l1 || m2.abs() > l2 || m3.abs() > l3 || m1 + m2 != m3;
    if outside || l3 < (l1 - l2).abs() || l3 > l1 + l2 {
        return 0.0;
    }
    let f = factorial;
    let triangle = f(l1 + l2 - l3) * f(l1 - l2 + l3) * f(l2 - l1 + l3) / f(l1 + l2 + l3 + 1);
    let orders = f(l1 + m1) * f(l1 - m1) * f(l2 + m2) * f(l2 - m2) * f(l3 + m3) * f(l3 - m3);
    let first = 0.max(l2 - l3 - m1).max(l1 - l3 + m2);
    let last = (l1 + l2 - l3).min(l1 - m1).min(l2 + m2);
    let sum: f64 = (first..=last)
        .map(|t| {
            let low = f(t) * f(l1 + l2 - l3 - t) * f(l1 - m1 - t);
            let high = f(l2 + m2 - t) * f(l3 - l2 + m1 + t) * f(l3 - l1 - m2 + t);
            if t % 2 == 0 { 1.0 / (low * high) } else { -1.0 / (low * high) }
        })
        .sum();
    ((2 * l3 + 1) as f64 * triangle * orders).sqrt() * sum
}

fn factorial(n: i64) -> f64 {
    (2..=n).map(|factor| factor as f64).product()
}
