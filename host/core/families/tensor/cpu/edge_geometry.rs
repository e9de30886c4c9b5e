//! CPU implementation of the geometry of edges, computed in f64 and rounded once.

use std::f64::consts::PI;

use crate::families::tensor::edge_geometry::Geometry;
use crate::registry::Scalar;

/// Matrix in host memory: all stored elements, and the row stride in elements.
pub(crate) type Stored<'a, T> = (&'a [T], usize);

/// Returns the direction and the length of the vector of an edge.
fn direction(of: &Geometry, (positions, leading): Stored<'_, f64>, edge: usize) -> ([f64; 3], f64) {
    let at = |atom: u32, d: usize| positions[atom as usize * leading + d];
    let (to, from) = (of.receivers[edge], of.senders[edge]);
    let vector = [0, 1, 2].map(|d| {
        let cells = of.shifts.get(edge).copied().unwrap_or_default();
        let shift = (0..3).map(|k| f64::from(cells[k]) * of.cell[k][d]);
        at(to, d) - at(from, d) + shift.sum::<f64>()
    });
    let square: f64 = vector.iter().map(|x| x * x).sum();
    // Replaces a length of 0, because the vector is divided by the length. NaN is kept.
    let length = if square < 1e-30 { 1e-15 } else { square.sqrt() };
    (vector.map(|x| x / length), length)
}

/// Returns values and gradients of the real harmonics in the direction; `|Y_l|^2 = 2 l + 1`.
fn harmonics(degree: usize, [x, y, z]: [f64; 3]) -> Vec<(f64, [f64; 3])> {
    let mut all = vec![(1.0, [0.0; 3])];
    if degree > 0 {
        let c = 3f64.sqrt();
        all.extend([(c * y, [0.0, c, 0.0]), (c * z, [0.0, 0.0, c]), (c * x, [c, 0.0, 0.0])]);
    }
    if degree > 1 {
        let (c, s) = (15f64.sqrt(), 5f64.sqrt());
        all.extend([
            (c * x * y, [c * y, c * x, 0.0]),
            (c * y * z, [0.0, c * z, c * y]),
            (s / 2.0 * (3.0 * z * z - 1.0), [0.0, 0.0, 3.0 * s * z]),
            (c * x * z, [c * z, 0.0, c * x]),
            (c / 2.0 * (x * x - y * y), [c * x, -c * y, 0.0]),
        ]);
    }
    if degree > 2 {
        let [a, b, c, d] = [35.0 / 8.0, 105.0, 21.0 / 8.0, 7.0].map(f64::sqrt);
        let planar = x * x - y * y;
        let axial = 5.0 * z * z - 1.0;
        all.extend([
            (a * y * (3.0 * x * x - y * y), [6.0 * a * x * y, 3.0 * a * planar, 0.0]),
            (b * x * y * z, [b * y * z, b * x * z, b * x * y]),
            (c * y * axial, [0.0, c * axial, 10.0 * c * y * z]),
            (d / 2.0 * z * (5.0 * z * z - 3.0), [0.0, 0.0, 1.5 * d * axial]),
            (c * x * axial, [c * axial, 0.0, 10.0 * c * x * z]),
            (b / 2.0 * z * planar, [b * x * z, -b * y * z, b / 2.0 * planar]),
            (a * x * (x * x - 3.0 * y * y), [3.0 * a * planar, -6.0 * a * x * y, 0.0]),
        ]);
    }
    all
}

/// Returns a radial function, counted from 0, and its derivative.
fn radial(of: &Geometry, length: f64, function: usize) -> [f64; 2] {
    let x = length / of.cutoff;
    if x >= 1.0 {
        return [0.0; 2];
    }
    let (p, wave) = (of.exponent as f64, PI * (function + 1) as f64 / of.cutoff);
    let bessel = (2.0 / of.cutoff).sqrt() * (wave * length).sin() / length;
    let rise = (2.0 / of.cutoff).sqrt() * wave * (wave * length).cos() / length - bessel / length;
    let envelope = 1.0 - (p + 1.0) * (p + 2.0) / 2.0 * x.powf(p) + p * (p + 2.0) * x.powf(p + 1.0)
        - p * (p + 1.0) / 2.0 * x.powf(p + 2.0);
    let slope = -p * (p + 1.0) * (p + 2.0) / 2.0 * x.powf(p - 1.0) * (1.0 - x).powi(2);
    [bessel * envelope, rise * envelope + bessel * slope / of.cutoff]
}

/// Computes harmonics and radial functions of all edges.
pub(crate) fn forward<T: Scalar>(
    of: &Geometry,
    positions: Stored<'_, f64>,
    [(y, ld_y), (basis, ld_basis)]: [(&mut [T], usize); 2],
) {
    for edge in 0..of.receivers.len() {
        let (unit, length) = direction(of, positions, edge);
        for (to, (value, _)) in y[edge * ld_y..].iter_mut().zip(harmonics(of.degree, unit)) {
            *to = T::from_f64(value);
        }
        let row = &mut basis[edge * ld_basis..][..of.functions];
        for (function, to) in row.iter_mut().enumerate() {
            *to = T::from_f64(radial(of, length, function)[0]);
        }
    }
}

/// Computes the gradient of the positions from those of the harmonics and radial functions.
pub(crate) fn backward<T: Scalar>(
    of: &Geometry,
    positions: Stored<'_, f64>,
    [(dy, ld_y), (dbasis, ld_basis)]: [Stored<'_, T>; 2],
    (gradient, leading): (&mut [f64], usize),
) {
    for atom in 0..of.atoms {
        gradient[atom * leading..][..3].fill(0.0);
    }
    for edge in 0..of.receivers.len() {
        let (unit, length) = direction(of, positions, edge);
        let mut across = [0.0; 3];
        for (d, (_, by)) in dy[edge * ld_y..].iter().zip(harmonics(of.degree, unit)) {
            (0..3).for_each(|i| across[i] += d.to_f64() * by[i]);
        }
        let inner: f64 = (0..3).map(|i| across[i] * unit[i]).sum();
        let row = dbasis[edge * ld_basis..][..of.functions].iter().enumerate();
        let along: f64 = row.map(|(f, d)| d.to_f64() * radial(of, length, f)[1]).sum();
        // The direction of an edge of length 0 is undefined, so its gradient is 0.
        let inverse = if length > 1e-14 { 1.0 / length } else { 0.0 };
        for i in 0..3 {
            let g = (across[i] - inner * unit[i]) * inverse + along * unit[i];
            gradient[of.receivers[edge] as usize * leading + i] += g;
            gradient[of.senders[edge] as usize * leading + i] -= g;
        }
    }
}
