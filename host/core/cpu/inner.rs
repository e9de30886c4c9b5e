//! Innermost loop: contiguous runs over the operands, which the compiler vectorizes.

use einsparse_formats::Accumulator;

use super::cascade::{RUN, in_runs};

/// Elements of a factor along the innermost loop.
#[derive(Clone, Copy)]
pub(super) struct Run<'a, A> {
    pub values: &'a [A],
    pub stride: usize,
}

impl<'a, A: Accumulator> Run<'a, A> {
    fn unit(&self, len: usize) -> Option<&'a [A]> {
        if self.stride == 1 { self.values.get(..len) } else { None }
    }
}

/// Computes `tile[i] += s * product of runs[i]`.
pub(super) fn add_products<A: Accumulator>(tile: &mut [A], s: A, runs: &[Run<'_, A>]) {
    let len = tile.len();
    match runs {
        [x] => {
            if let Some(x) = x.unit(len) {
                for (t, x) in tile.iter_mut().zip(x) {
                    *t += s * *x;
                }
                return;
            }
        }
        [x, y] => {
            if let (Some(x), Some(y)) = (x.unit(len), y.unit(len)) {
                for ((t, x), y) in tile.iter_mut().zip(x).zip(y) {
                    *t += s * *x * *y;
                }
                return;
            }
        }
        _ => {}
    }
    for (i, t) in tile.iter_mut().enumerate() {
        *t += product(s, runs, i);
    }
}

#[inline]
fn product<A: Accumulator>(s: A, runs: &[Run<'_, A>], i: usize) -> A {
    runs.iter().fold(s, |product, run| product * run.values[i * run.stride])
}

/// Number of partial sums of a dot product. It affects rounding, so it is the same on every machine.
const LANES: usize = 16;

/// Sum over `len` terms of `s * product of runs[i]`, in an order that depends on `len` alone.
pub(super) fn dot<A: Accumulator>(len: usize, s: A, runs: &[Run<'_, A>]) -> A {
    if len <= LANES * RUN {
        return short_dot(len, s, runs);
    }
    let [[sum]] = in_runs(0..len, LANES * RUN, |part| {
        let from = runs
            .iter()
            .map(|run| Run { values: &run.values[part.start * run.stride..], stride: run.stride });
        let own: Vec<Run<'_, A>> = from.collect();
        [[short_dot(part.len(), s, &own)]]
    });
    sum
}

fn short_dot<A: Accumulator>(len: usize, s: A, runs: &[Run<'_, A>]) -> A {
    let mut lanes = [A::ZERO; LANES];
    let whole = len - len % LANES;
    match runs {
        [x, y] if x.stride == 1 && y.stride == 1 => {
            let pairs = x.values[..whole]
                .as_chunks::<LANES>()
                .0
                .iter()
                .zip(y.values.as_chunks::<LANES>().0);
            for (x, y) in pairs {
                for (lane, sum) in lanes.iter_mut().enumerate() {
                    *sum += s * x[lane] * y[lane];
                }
            }
        }
        [x] if x.stride == 1 => {
            for x in x.values[..whole].as_chunks::<LANES>().0 {
                for (lane, sum) in lanes.iter_mut().enumerate() {
                    *sum += s * x[lane];
                }
            }
        }
        _ => {
            for i in 0..whole {
                lanes[i % LANES] += product(s, runs, i);
            }
        }
    }
    for i in whole..len {
        lanes[i % LANES] += product(s, runs, i);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            let upper = lanes[lane + width];
            lanes[lane] += upper;
        }
    }
    lanes[0]
}
