//! Real spherical harmonics of the edges between atoms, and Bessel functions of their lengths; backward the gradient
//! with respect to the positions. All arithmetic is f64: its time is small compared with the memory traffic, and forces
//! are then exact derivatives of the energy.

use crate::device::lanes::{self, DOWN};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;
use core::f64::consts::PI;

buffers! {
    // `EdgeGeometry` (`host/core/ops/edge_geometry.rs`) checks the shapes of all tensors, the number of
    // shifts, and that both ends of every edge are below the number of atoms. `GeometryLaunch`
    // makes the lists from these ends.
    unsafe GeometryParams {
        positions: f64, ReadWrite;
        receivers: u32, ReadOnly;
        senders: u32, ReadOnly;
        shifts: u32, ReadOnly;
        harmonics<E: Elem>: E, ReadWrite;
        radial<E: Elem>: E, ReadWrite;
        gradient: f64, ReadWrite;
        starts[]: u32, ReadOnly;
        edges[]: u32, ReadOnly;
    }
}

/// Lower bound of a squared length.
const TINY: f64 = 1e-30;
/// Inverse lengths from here on belong to edges of length 0; below the inverse root of [`TINY`].
const LONGEST: f64 = 1e14;

const ROOT_3: f64 = 1.732_050_807_568_877_2;
const ROOT_5: f64 = 2.236_067_977_499_79;
const ROOT_7: f64 = 2.645_751_311_064_590_7;
const ROOT_15: f64 = 3.872_983_346_207_417;
const ROOT_105: f64 = 10.246_950_765_959_598;
/// Roots of 35 / 8 and of 21 / 8.
const ROOT_35_8: f64 = 2.091_650_066_335_189;
const ROOT_21_8: f64 = 1.620_185_174_601_965;

/// Series `1 - z / (a (a - 1)) (1 - z / (b (b - 1)) (...))`.
macro_rules! nested {
    ($z:ident,) => { 1.0 };
    ($z:ident, $n:literal $($rest:literal)*) => {
        1.0 - $z * const { 1.0 / ($n * ($n - 1.0)) } * (nested!($z, $($rest)*))
    };
}

/// An edge: direction, inverse length and length of its vector.
struct Edge {
    unit: [f64; 3],
    inverse: f64,
    length: f64,
}

impl Edge {
    #[inline(always)]
    fn load(p: &GeometryParams, edge: u32) -> Edge {
        let position = |atom: u32| p.positions().row(atom, p.row_bytes[0]);
        let to = position(p.receivers().at(edge).ld());
        let from = position(p.senders().at(edge).ld());
        let mut vector = [0.0; 3];
        unroll!(d < 3, {
            vector[d] = to.at(d as u64).ld() - from.at(d as u64).ld();
        });
        if p.shifts != 0 {
            unroll!(k < 3, {
                let cells = p.shifts().at(edge as u64 * 3 + k as u64).ld() as i32 as f64;
                unroll!(d < 3, {
                    vector[d] = matrix::fma_f64(cells, p.cell[3 * k + d], vector[d]);
                });
            });
        }
        let [x, y, z] = vector;
        let square = x * x + y * y + z * z;
        // The comparison keeps a NaN.
        let square = if square < TINY { TINY } else { square };
        let mut inverse = matrix::rsqrt_approx(square as f32) as f64;
        // Accurate bits after the Newton steps: 22, 43, all.
        unroll!(_step < 3, {
            inverse *= 1.5 - 0.5 * square * inverse * inverse;
        });
        Edge { unit: vector.map(|x| x * inverse), inverse, length: square * inverse }
    }
}

/// The radial functions of a length, evaluated one after the other with their derivatives.
struct Radial {
    /// Cosine of pi x; sines and cosines of the previous and of the next multiple of pi x.
    cosine: f64,
    sines: [f64; 2],
    cosines: [f64; 2],
    /// The envelope, and its derivative.
    envelope: f64,
    slope: f64,
    order: f64,
}

impl Radial {
    #[inline(always)]
    fn new(p: &GeometryParams, edge: &Edge) -> Radial {
        // Beyond the cutoff all functions are zero, and x is clamped: multiples of the angle stay bounded. A NaN counts
        // as outside, and the inverse length propagates it.
        let x = edge.length * p.inverse;
        let inside = x < 1.0;
        let x = if inside { x } else { 1.0 };
        // Polynomials in half the angle: accurate near 0, where the result is divided by the length.
        let half = 0.5 * PI * x;
        let square = half * half;
        let low = half * (nested!(square, 3.0 5.0 7.0 9.0 11.0 13.0 15.0 17.0 19.0 21.0));
        let high = nested!(square, 2.0 4.0 6.0 8.0 10.0 12.0 14.0 16.0 18.0 20.0);
        let (sine, cosine) = (2.0 * low * high, 1.0 - 2.0 * low * low);
        let (mut power, mut left) = (1.0, p.exponent);
        while left > 1 {
            power *= x;
            left -= 1;
        }
        let n = p.exponent as f64;
        let whole = power * x;
        let curve = 0.5 * (n + 1.0) * (n + 2.0) - x * n * (n + 2.0) + 0.5 * x * x * n * (n + 1.0);
        let envelope = 1.0 - whole * curve;
        let slope = -0.5 * n * (n + 1.0) * (n + 2.0) * power * (1.0 - x) * (1.0 - x);
        Radial {
            cosine,
            sines: [0.0, sine],
            cosines: [1.0, cosine],
            envelope: if inside { envelope } else { 0.0 },
            slope: if inside { slope * p.inverse } else { 0.0 },
            order: 1.0,
        }
    }

    /// Returns the next function and its derivative.
    #[inline(always)]
    fn next(&mut self, p: &GeometryParams, edge: &Edge) -> [f64; 2] {
        let [sine, cosine] = [self.sines[1], self.cosines[1]];
        let bessel = p.norm * sine * edge.inverse;
        let rise =
            p.norm * self.order * PI * p.inverse * cosine * edge.inverse - bessel * edge.inverse;
        // Chebyshev's recurrence: sin((n + 1) a) = 2 cos(a) sin(n a) - sin((n - 1) a); the same holds for cosines.
        let twice = 2.0 * self.cosine;
        self.sines = [sine, twice * sine - self.sines[0]];
        self.cosines = [cosine, twice * cosine - self.cosines[0]];
        self.order += 1.0;
        [bessel * self.envelope, rise * self.envelope + bessel * self.slope]
    }
}

#[inline(always)]
fn row_of<E: Elem>(
    matrix: Global<E, ReadWrite>,
    row: u32,
    row_bytes: u32,
) -> impl Fn(u32) -> Global<E, ReadWrite> {
    move |column| matrix.row(row, row_bytes).bytes(column * E::BYTES)
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, GeometryParams> for GeometryForward {
    #[inline(always)]
    unsafe fn run(p: &GeometryParams, _: Maps) {
        let own = gpu::block_x() * GEOMETRY_THREADS + gpu::thread();
        if own >= p.count {
            return;
        }
        let edge = Edge::load(p, own);
        let at = row_of::<E>(p.harmonics(), own, p.row_bytes[1]);
        let put = |column: u32, value: f64| at(column).st_rounded(&[E::scalar(value)]);
        let [x, y, z] = edge.unit;
        put(0, 1.0);
        if p.degree > 0 {
            put(1, ROOT_3 * y);
            put(2, ROOT_3 * z);
            put(3, ROOT_3 * x);
        }
        if p.degree > 1 {
            put(4, ROOT_15 * x * y);
            put(5, ROOT_15 * y * z);
            put(6, 0.5 * ROOT_5 * (3.0 * z * z - 1.0));
            put(7, ROOT_15 * x * z);
            put(8, 0.5 * ROOT_15 * (x * x - y * y));
        }
        if p.degree > 2 {
            put(9, ROOT_35_8 * y * (3.0 * x * x - y * y));
            put(10, ROOT_105 * x * y * z);
            put(11, ROOT_21_8 * y * (5.0 * z * z - 1.0));
            put(12, 0.5 * ROOT_7 * z * (5.0 * z * z - 3.0));
            put(13, ROOT_21_8 * x * (5.0 * z * z - 1.0));
            put(14, 0.5 * ROOT_105 * z * (x * x - y * y));
            put(15, ROOT_35_8 * x * (x * x - 3.0 * y * y));
        }
        let at = row_of::<E>(p.radial(), own, p.row_bytes[2]);
        let mut radial = Radial::new(p, &edge);
        let mut function = 0;
        while function < p.functions {
            let [value, _] = radial.next(p, &edge);
            at(function).st_rounded(&[E::scalar(value)]);
            function += 1;
        }
    }
}

/// Loads a number of any element type as f64.
#[inline(always)]
fn wide<E: Elem>(at: Global<E, ReadWrite>) -> f64 {
    let words = E::words(E::get(&at.ld_raw::<1>(true), 0));
    match E::ACC_BYTES {
        8 => F64::from_words(words),
        _ => f32::from_bits(words[0]) as f64,
    }
}

/// Gradient with respect to the vector of an edge.
#[inline(always)]
fn gradient<E: Elem>(p: &GeometryParams, own: u32) -> [f64; 3] {
    let edge = Edge::load(p, own);
    let at = row_of::<E>(p.harmonics(), own, p.row_bytes[1]);
    let [x, y, z] = edge.unit;
    // Gradient of the polynomials; its component along the direction is removed below.
    let mut g = [0.0; 3];
    let mut add = |column: u32, factor: f64, by: [f64; 3]| {
        let d = factor * wide::<E>(at(column));
        unroll!(i < 3, { g[i] = matrix::fma_f64(d, by[i], g[i]) });
    };
    if p.degree > 0 {
        add(1, ROOT_3, [0.0, 1.0, 0.0]);
        add(2, ROOT_3, [0.0, 0.0, 1.0]);
        add(3, ROOT_3, [1.0, 0.0, 0.0]);
    }
    if p.degree > 1 {
        add(4, ROOT_15, [y, x, 0.0]);
        add(5, ROOT_15, [0.0, z, y]);
        add(6, 3.0 * ROOT_5, [0.0, 0.0, z]);
        add(7, ROOT_15, [z, 0.0, x]);
        add(8, ROOT_15, [x, -y, 0.0]);
    }
    if p.degree > 2 {
        add(9, 3.0 * ROOT_35_8, [2.0 * x * y, x * x - y * y, 0.0]);
        add(10, ROOT_105, [y * z, x * z, x * y]);
        add(11, ROOT_21_8, [0.0, 5.0 * z * z - 1.0, 10.0 * y * z]);
        add(12, 1.5 * ROOT_7, [0.0, 0.0, 5.0 * z * z - 1.0]);
        add(13, ROOT_21_8, [5.0 * z * z - 1.0, 0.0, 10.0 * x * z]);
        add(14, 0.5 * ROOT_105, [2.0 * x * z, -2.0 * y * z, x * x - y * y]);
        add(15, 3.0 * ROOT_35_8, [x * x - y * y, -2.0 * x * y, 0.0]);
    }
    let at = row_of::<E>(p.radial(), own, p.row_bytes[2]);
    let mut radial = Radial::new(p, &edge);
    let (mut along, mut function) = (0.0, 0);
    while function < p.functions {
        let [_, slope] = radial.next(p, &edge);
        along = matrix::fma_f64(wide::<E>(at(function)), slope, along);
        function += 1;
    }
    let inner = g[0] * x + g[1] * y + g[2] * z;
    // An edge of length 0 has an undefined direction: the gradient across it is zero.
    let across = if edge.inverse < LONGEST { edge.inverse } else { 0.0 };
    let mut sum = [0.0; 3];
    unroll!(i < 3, {
        sum[i] = across * (g[i] - inner * edge.unit[i]) + along * edge.unit[i];
    });
    sum
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, GeometryParams> for GeometryBackward {
    #[inline(always)]
    unsafe fn run(p: &GeometryParams, _: Maps) {
        let atom = gpu::block_x() * (GEOMETRY_THREADS / 32) + gpu::thread() / 32;
        if atom >= p.count {
            return;
        }
        let lane = gpu::thread() % 32;
        let mut sums = [0.0; 3];
        // Edges that end at the atom, then edges that start there, with opposite sign. Lanes follow the order of the
        // lists, so that sums are the same in every run.
        let mut side = 0;
        while side < 2 {
            let (starts, edges, sign) = match side {
                0 => (p.starts(0), p.edges(0), 1.0),
                _ => (p.starts(1), p.edges(1), -1.0),
            };
            let start = |atom: u32| starts.at(atom).ld();
            let end = start(atom + 1);
            let mut at = start(atom) + lane;
            while at < end {
                let edge = edges.at(at).ld();
                let g = gradient::<E>(p, edge);
                unroll!(i < 3, { sums[i] = matrix::fma_f64(sign, g[i], sums[i]) });
                at += 32;
            }
            side += 1;
        }
        unroll!(i < 3, {
            let sum = lanes::sum_of::<F64>(sums[i], DOWN, 1..32);
            if lane == 0 {
                let row = p.gradient().row(atom, p.row_bytes[3]);
                row.at(i as u64).st(sum);
            }
        });
    }
}
