//! Clebsch-Gordan coefficients of degrees up to 3 in the real basis, as constants. A test compares them with
//! `einsparse_formats::generate::clebsch_gordan`. Kernels of module `equivariant` are straight code over these
//! coefficients.

/// A coefficient `C[i,j,k]`; components are counted from 0. Coefficients with equal i and k are adjacent.
#[derive(Clone, Copy, Debug)]
pub struct Coupling {
    /// Components of the operands and of the output.
    pub at: [usize; 3],
    /// Whether it is the first, and whether it is the last, of its i and k.
    pub ends: [bool; 2],
    /// The coefficient.
    pub value: f64,
}

/// Max coefficients of a path of degrees up to 3.
pub const MOST_COUPLINGS: usize = 64;

/// The coefficients of a path, ordered by i, k and j, and their number.
#[derive(Clone, Copy, Debug)]
pub struct PathCouplings {
    /// The coefficients; elements past [`Self::count`] are unused.
    pub all: [Coupling; MOST_COUPLINGS],
    /// Number of coefficients.
    pub count: usize,
}

/// Computes the coefficients of a path `(l1, l2, l3)`.
pub const fn couplings_of(degrees: [usize; 3]) -> PathCouplings {
    let nothing = Coupling { at: [0; 3], ends: [false; 2], value: 0.0 };
    let mut found = PathCouplings { all: [nothing; MOST_COUPLINGS], count: 0 };
    let [l1, l2, l3] = degrees;
    // If the sum of the degrees is odd, the coefficients are imaginary.
    let part = (l1 + l2 + l3) % 2;
    let mut pair = 0;
    while pair < (2 * l1 + 1) * (2 * l3 + 1) {
        let (i, k) = (pair / (2 * l3 + 1), pair % (2 * l3 + 1));
        let before = found.count;
        let mut j = 0;
        while j <= 2 * l2 {
            let value = real_coefficient(degrees, [i, j, k])[part];
            if value > 1e-9 || value < -1e-9 {
                found.all[found.count] =
                    Coupling { at: [i, j, k], ends: [found.count == before, false], value };
                found.count += 1;
            }
            j += 1;
        }
        if found.count > before {
            found.all[found.count - 1].ends[1] = true;
        }
        pair += 1;
    }
    found
}

type Complex = [f64; 2];

const fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// Real and imaginary part of a coefficient, transformed to the real basis along all three axes.
const fn real_coefficient(degrees: [usize; 3], places: [usize; 3]) -> Complex {
    let mut m = [0i64; 3];
    let mut axis = 0;
    while axis < 3 {
        m[axis] = places[axis] as i64 - degrees[axis] as i64;
        axis += 1;
    }
    let mut sum = [0.0; 2];
    let mut signs = 0;
    while signs < 8 {
        let one = real_harmonic(m[0], signs & 1 != 0);
        let two = real_harmonic(m[1], signs & 2 != 0);
        let three = real_harmonic(m[2], signs & 4 != 0);
        if one.0 + two.0 == three.0 {
            let orders = [one.0, two.0, three.0];
            let factor = times(times([one.1[0], -one.1[1]], [two.1[0], -two.1[1]]), three.1);
            let coefficient = racah(degrees, orders);
            sum[0] += coefficient * factor[0];
            sum[1] += coefficient * factor[1];
        }
        signs += 1;
    }
    sum
}

/// Returns order and factor of one of the two complex harmonics whose sum is the real harmonic of order `m`: the
/// harmonic of the same order, or that of the opposite order. Order 0 is one harmonic; its second factor is 0.
const fn real_harmonic(m: i64, opposite: bool) -> (i64, Complex) {
    let half = core::f64::consts::FRAC_1_SQRT_2;
    let sign = if m % 2 == 0 { half } else { -half };
    match (m, opposite) {
        (0, false) => (0, [1.0, 0.0]),
        (0, true) => (0, [0.0, 0.0]),
        (1.., false) => (m, [sign, 0.0]),
        (1.., true) => (-m, [half, 0.0]),
        (_, false) => (m, [0.0, half]),
        (_, true) => (-m, [0.0, -sign]),
    }
}

/// `<l1 m1 l2 m2 | l3 m3>` by the Racah formula (Edmonds, Angular Momentum in Quantum Mechanics, 3.6.11).
const fn racah(degrees: [usize; 3], [m1, m2, m3]: [i64; 3]) -> f64 {
    let [l1, l2, l3] = [degrees[0] as i64, degrees[1] as i64, degrees[2] as i64];
    if l3 < (l1 - l2).abs() || l3 > l1 + l2 || m1 + m2 != m3 {
        return 0.0;
    }
    let triangle = factorial(l1 + l2 - l3) * factorial(l1 - l2 + l3) * factorial(l2 - l1 + l3)
        / factorial(l1 + l2 + l3 + 1);
    let orders = factorial(l1 + m1)
        * factorial(l1 - m1)
        * factorial(l2 + m2)
        * factorial(l2 - m2)
        * factorial(l3 + m3)
        * factorial(l3 - m3);
    let mut sum = 0.0;
    let mut t = 0;
    while t <= l1 + l2 - l3 {
        let places =
            [t, l1 + l2 - l3 - t, l1 - m1 - t, l2 + m2 - t, l3 - l2 + m1 + t, l3 - l1 - m2 + t];
        let mut product = if t % 2 == 0 { 1.0 } else { -1.0 };
        let mut at = 0;
        while at < places.len() {
            product *= factorial(places[at]);
            at += 1;
        }
        // Terms with the factorial of a negative number are omitted.
        if product != 0.0 {
            sum += 1.0 / product;
        }
        t += 1;
    }
    root((2 * l3 + 1) as f64 * triangle * orders) * sum
}

/// Factorial of `n`; 0 for a negative `n`.
const fn factorial(n: i64) -> f64 {
    let mut product = if n < 0 { 0.0 } else { 1.0 };
    let mut factor = 2;
    while factor <= n {
        product *= factor as f64;
        factor += 1;
    }
    product
}

/// Square root by Newton's method, which ends once the steps no longer decrease.
const fn root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut found = if x > 1.0 { x } else { 1.0 };
    loop {
        let next = 0.5 * (found + x / found);
        if next >= found {
            return found;
        }
        found = next;
    }
}
