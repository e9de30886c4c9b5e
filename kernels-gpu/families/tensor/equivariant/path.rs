//! One path as straight code.

use super::Part;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// The coefficients of a path `(l1, l2, l3)`.
pub struct Path<const A: usize, const B: usize, const C: usize>;

impl<const A: usize, const B: usize, const C: usize> Path<A, B, C> {
    pub const COUPLINGS: PathCouplings = couplings_of([A, B, C]);
}

/// Expands a block for each coefficient of a path, a constant in the block.
macro_rules! each_coupling {
    ($path:ty, $c:ident, $body:block) => {
        each_coupling!(@ $path, $c, $body,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63)
    };
    (@ $path:ty, $c:ident, $body:block, $($n:literal)*) => {$(
        if const { $n < <$path>::COUPLINGS.count } {
            let $c = const { <$path>::COUPLINGS.all[$n] };
            $body
        }
    )*};
}

/// Expands a block for each of a kernel's paths, in their order. `(A, B, C)` are constants in the block, and so is the
/// number of the path.
macro_rules! each_path {
    ($paths:expr, $a:ident $b:ident $c:ident $number:ident, $body:block) => {
        each_path!(@ $paths, $a $b $c $number, $body,
            0 0 0, 1 1 0, 2 2 0, 3 3 0,
            0 1 1, 1 0 1, 1 1 1, 1 2 1, 2 1 1, 2 2 1, 2 3 1, 3 2 1, 3 3 1,
            0 2 2, 1 1 2, 1 2 2, 1 3 2, 2 0 2, 2 1 2, 2 2 2, 2 3 2, 3 1 2, 3 2 2, 3 3 2,
            0 3 3, 1 2 3, 1 3 3, 2 1 3, 2 2 3, 2 3 3, 3 0 3, 3 1 3, 3 2 3, 3 3 3)
    };
    (@ $paths:expr, $a:ident $b:ident $c:ident $number:ident, $body:block, $($l1:literal $l2:literal $l3:literal),*) => {$(
        // The values that the last copy assigns are not read.
        #[allow(unused_assignments)]
        {
            const $a: usize = $l1;
            const $b: usize = $l2;
            const $c: usize = $l3;
            if const { $paths.number([$a, $b, $c]) < $paths.count } {
                let $number = const { $paths.number([$a, $b, $c]) };
                $body
            }
        }
    )*};
}

pub(super) use each_path;

/// Components of the largest degree.
pub type Component<E> = [<E as Elem>::Acc; 7];

/// `C[i,j,k] x[i] y[j]` for every k.
#[inline(always)]
pub fn product<E: Elem, const A: usize, const B: usize, const C: usize>(
    x: &Part<E>,
    y: &Part<E>,
) -> Component<E> {
    let mut sums = [E::ZERO; 7];
    let mut t = E::ZERO;
    each_coupling!(Path<A, B, C>, c, {
        let [i, j, k] = c.at;
        t = times::<E>(c.value, y[B * B + j], t, c.ends[0]);
        if c.ends[1] {
            sums[k] = E::fma(t, x[A * A + i], sums[k]);
        }
    });
    sums
}

/// Returns `C[i,j,k] y[j] g[k]` for every i and channel. Adds `C[i,j,k] w x[i] g[k]`, summed over the channels, to
/// `dy`; `wx` is `w x[i]`.
#[inline(always)]
pub fn gradients<E: Elem, const A: usize, const B: usize, const C: usize, const CHANNELS: usize>(
    wx: &[Component<E>; CHANNELS],
    y: &Part<E>,
    g: &[Component<E>; CHANNELS],
    dy: &mut Part<E>,
) -> [Component<E>; CHANNELS] {
    let mut of_x = [[E::ZERO; 7]; CHANNELS];
    let mut t = E::ZERO;
    let mut s = E::ZERO;
    each_coupling!(Path<A, B, C>, c, {
        let [i, j, k] = c.at;
        if c.ends[0] {
            s = E::mul(wx[0][i], g[0][k]);
            if CHANNELS == 2 {
                s = E::fma(wx[CHANNELS - 1][i], g[CHANNELS - 1][k], s);
            }
        }
        t = times::<E>(c.value, y[B * B + j], t, c.ends[0]);
        dy[B * B + j] = E::fma(E::scalar(c.value), s, dy[B * B + j]);
        if c.ends[1] {
            unroll!(n < CHANNELS, {
                of_x[n][i] = E::fma(t, g[n][k], of_x[n][i]);
            });
        }
    });
    of_x
}

/// Multiplies a coefficient by a component; adds it to `sum` unless it is the first.
#[inline(always)]
fn times<E: Elem>(value: f64, y: E::Acc, sum: E::Acc, is_first: bool) -> E::Acc {
    if is_first { E::mul(E::scalar(value), y) } else { E::fma(E::scalar(value), y, sum) }
}
