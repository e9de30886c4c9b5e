//! Clebsch-Gordan tensors: orthogonality, and equivariance under the generators of rotations, which are built
//! independently of them.

use einsparse_formats::generate::clebsch_gordan;

/// Returns the tensor as a dense function.
fn tensor(l: [usize; 3]) -> impl Fn(usize, usize, usize) -> f64 {
    let coo = clebsch_gordan::<f64>(l[0], l[1], l[2]).unwrap();
    let extent = l.map(|l| 2 * l + 1);
    let mut dense = vec![0.0; extent.iter().product()];
    let coords = coo.pattern().coords();
    for (at, value) in coo.values().iter().enumerate() {
        let [i, j, k] = [0, 1, 2].map(|axis| coords[axis][at] as usize);
        dense[(i * extent[1] + j) * extent[2] + k] = *value;
    }
    move |i, j, k| dense[(i * extent[1] + j) * extent[2] + k]
}

#[test]
fn columns_are_orthonormal() {
    for l1 in 0..=4 {
        for l2 in 0..=4 {
            for l3 in 0..=8_usize {
                let c = tensor([l1, l2, l3]);
                let allowed = l1.abs_diff(l2) <= l3 && l3 <= l1 + l2;
                for (k, other) in
                    (0..=2 * l3).flat_map(|k| (0..=2 * l3).map(move |other| (k, other)))
                {
                    let sum: f64 = (0..=2 * l1)
                        .flat_map(|i| (0..=2 * l2).map(move |j| (i, j)))
                        .map(|(i, j)| c(i, j, k) * c(i, j, other))
                        .sum();
                    let wanted = if allowed && k == other { 1.0 } else { 0.0 };
                    assert!((sum - wanted).abs() < 1e-11, "{l1} {l2} {l3}: {sum}");
                }
            }
        }
    }
    let c = tensor([10, 10, 10]);
    let sum: f64 =
        (0..21).flat_map(|i| (0..21).map(move |j| (i, j))).map(|(i, j)| c(i, j, 3).powi(2)).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    assert!(clebsch_gordan::<f32>(11, 0, 11).is_err());
}

/// Real antisymmetric generators of rotations about x, y and z on real harmonics of degree `l`, derived from their
/// action on the functions: d/dphi rotates the pair (m, -m), and ladder operators connect adjacent orders.
fn generators(l: usize) -> [Vec<Vec<f64>>; 3] {
    let n = 2 * l + 1;
    let order = |at: usize| at as i64 - l as i64;
    // Complex operators L_z, L_+ in the complex basis, transformed to the real basis by the rows of `change`.
    let change = |at: usize| -> Vec<[f64; 2]> {
        let (m, half) = (order(at), std::f64::consts::FRAC_1_SQRT_2);
        let sign = if m % 2 == 0 { half } else { -half };
        let mut row = vec![[0.0; 2]; n];
        let (here, there) = (at, 2 * l - at);
        match m {
            0 => row[here] = [1.0, 0.0],
            1.. => (row[here], row[there]) = ([sign, 0.0], [half, 0.0]),
            _ => (row[here], row[there]) = ([0.0, half], [0.0, -sign]),
        }
        row
    };
    let ladder = |m: i64| ((l as i64 * (l as i64 + 1) - m * (m + 1)) as f64).sqrt();
    // <m|L|m'> as complex numbers.
    let complex = |axis: usize, m: i64, from: i64| -> [f64; 2] {
        let up = if m == from + 1 { ladder(from) } else { 0.0 };
        let down = if m + 1 == from { ladder(m) } else { 0.0 };
        match axis {
            0 => [(up + down) / 2.0, 0.0],
            1 => [0.0, (down - up) / 2.0],
            _ => [if m == from { m as f64 } else { 0.0 }, 0.0],
        }
    };
    let times = |a: [f64; 2], b: [f64; 2]| [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]];
    [0, 1, 2].map(|axis| {
        let element = |row: usize, col: usize| {
            let (left, right) = (change(row), change(col));
            let mut sum = [0.0; 2];
            for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
                let bra = [left[a][0], -left[a][1]];
                let part = times(times(bra, complex(axis, order(a), order(b))), right[b]);
                sum = [sum[0] + part[0], sum[1] + part[1]];
            }
            assert!(sum[0].abs() < 1e-12, "L is imaginary on real functions");
            sum[1]
        };
        (0..n).map(|row| (0..n).map(|col| element(row, col)).collect()).collect()
    })
}

#[test]
fn coupling_commutes_with_rotations() {
    for l in
        [[1, 1, 0], [1, 1, 1], [1, 1, 2], [2, 1, 1], [2, 2, 3], [3, 2, 4], [2, 3, 2], [4, 4, 4]]
    {
        let c = tensor(l);
        let [left, right, out] = l.map(generators);
        let n = l.map(|l| 2 * l + 1);
        for axis in 0..3 {
            for (i, j, k) in (0..n[0])
                .flat_map(|i| (0..n[1]).flat_map(move |j| (0..n[2]).map(move |k| (i, j, k))))
            {
                let on_left: f64 = (0..n[0]).map(|at| left[axis][i][at] * c(at, j, k)).sum();
                let on_right: f64 = (0..n[1]).map(|at| right[axis][j][at] * c(i, at, k)).sum();
                let after: f64 = (0..n[2]).map(|at| c(i, j, at) * out[axis][at][k]).sum();
                assert!(
                    (on_left + on_right - after).abs() < 1e-11,
                    "{l:?} axis {axis} at {i} {j} {k}"
                );
            }
        }
    }
}

/// Paths with an even sum of degrees, which networks with spherical harmonics of natural parity use: the published
/// counts.
#[test]
fn nonzeros_are_those_of_the_literature() {
    for (largest, published) in [(1, 10), (2, 83), (3, 353), (4, 1158)] {
        let degrees = || 0..=largest;
        let all =
            degrees().flat_map(|a| degrees().flat_map(move |b| degrees().map(move |c| [a, b, c])));
        let even = all.filter(|l| l.iter().sum::<usize>() % 2 == 0);
        let count: usize =
            even.map(|[a, b, c]| clebsch_gordan::<f64>(a, b, c).unwrap().values().len()).sum();
        assert_eq!(count, published);
    }
}
