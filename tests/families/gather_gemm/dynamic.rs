//! Products with a dynamic operand by the kernels that skip its empty micro-tiles, against a plain product. Every product
//! has every test of this file. Exact on integers, within rounding on other values.

mod few;
mod gradient;
mod plans;
mod tiles;

use einsparse::formats::{Dense, bf16, f16};
use einsparse::registry::Dtype;
use einsparse::{Context, Determinism, Error, Precision, Scalar};

use crate::support::bounds::Bound;
use crate::support::dense::{
    assert_equal, assert_exact, nan, poisoned, rounded, strided, transposed, upload, wide,
};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::skipping::{FEW, LEFT, RIGHT, Skipping, TRANSPOSED, dense_product, dynamic};
use crate::support::{Rng, assert_error, gpu, gpu_alone, on_cpu, on_gpu, small};

const ORDERS: [Determinism; 2] = [Determinism::Strict, Determinism::Relaxed];
const HEIGHTS: [usize; 3] = [128, 64, 32];

/// Products of one kernel module and one order of operands, and their extents `[m, k, n]`.
struct Suite {
    products: fn() -> Vec<Skipping>,
    extents: &'static [[usize; 3]],
    /// Number of items and extents. Products whose micro-tiles do not end where items end leave them out.
    batches: &'static [(usize, [usize; 3])],
    /// Extents of a captured product.
    replayed: [usize; 3],
    /// Extents of a product of any values.
    random: [usize; 3],
    /// Extents of the dynamic operand and the other one in tests with NaN and with a threshold.
    tall: usize,
    wide: usize,
}

fn heights(precision: Precision) -> Vec<Skipping> {
    let of = |height| ORDERS.map(|determinism| Skipping { height, determinism, precision, ..LEFT });
    HEIGHTS.into_iter().flat_map(of).collect()
}

const OF_A: Suite = Suite {
    products: || heights(Precision::Full),
    extents: &[
        [128, 64, 256],
        [1, 1, 8],
        [300, 200, 264],
        [64, 1000, 8],
        [513, 320, 520],
        [0, 64, 64],
        [64, 0, 64],
    ],
    batches: &[(3, [256, 200, 264]), (5, [64, 130, 72]), (2, [96, 64, 256]), (2, [128, 64, 256])],
    replayed: [256, 512, 256],
    random: [389, 777, 608],
    tall: 256,
    wide: 64,
};

const TRANSPOSED_A: Suite = Suite {
    products: || ORDERS.map(|determinism| Skipping { determinism, ..TRANSPOSED }).into(),
    extents: &[
        [64, 64, 256],
        [8, 1, 8],
        [200, 300, 264],
        [1000, 64, 8],
        [320, 513, 520],
        [64, 0, 64],
        [0, 64, 64],
    ],
    batches: &[],
    random: [520, 700, 264],
    ..OF_A
};

const OF_B: Suite = Suite {
    products: || {
        let of =
            |by_columns| ORDERS.map(|determinism| Skipping { by_columns, determinism, ..RIGHT });
        [false, true].into_iter().flat_map(of).collect()
    },
    extents: &[
        [256, 64, 64],
        [8, 1, 8],
        [264, 300, 200],
        [1, 64, 1000],
        [513, 517, 320],
        [130, 200, 72],
        [64, 0, 64],
        [0, 64, 64],
        [64, 64, 0],
    ],
    batches: &[
        (3, [256, 200, 264]),
        (5, [64, 130, 72]),
        (2, [96, 600, 64]),
        (7, [8, 8, 8]),
        // Rows of A that are read element by element.
        (3, [65, 131, 72]),
    ],
    random: [520, 700, 264],
    ..OF_A
};

/// One tile and many, one part and eight, sections that end inside a vector, a word and a stage.
const FEW_ROWS: Suite = Suite {
    products: || vec![FEW],
    extents: &[
        [1, 1, 8],
        [1, 64, 320],
        [1, 4097, 264],
        [2, 511, 328],
        [5, 513, 1000],
        [15, 2048, 256],
        [16, 2050, 40],
        [17, 700, 640],
        [31, 3100, 72],
        [32, 1030, 648],
        [33, 2048, 264],
        [48, 300, 2568],
        [64, 3072, 136],
        [64, 257, 5128],
        // Parts of more than one round, with more columns than a list holds.
        [3, 30_001, 16],
        [20, 20_003, 24],
        [40, 26_000, 8],
    ],
    batches: &[],
    replayed: [20, 2000, 328],
    random: [32, 8192, 1280],
    tall: 64,
    ..OF_A
};

/// Extents around those of tiles, stages and vectors.
const IN_TF32: Suite = Suite {
    products: || heights(Precision::Tf32),
    extents: &[
        [128, 64, 256],
        [1, 1, 8],
        [33, 37, 12],
        [300, 203, 260],
        [64, 1000, 4],
        [513, 320, 520],
        [0, 64, 64],
        [64, 0, 64],
    ],
    batches: &[(3, [256, 90, 72])],
    random: [389, 777, 604],
    wide: 44,
    ..OF_A
};

/// Number of elements past a row up to a multiple of 8, plus 8.
fn room(columns: usize) -> usize {
    columns.next_multiple_of(8) + 8 - columns
}

/// Runs one product over several densities, one after the other, into a C of NaN with other values between its rows.
/// Rows of A begin at any address, unless they are stored as `[k, m]`; so do rows of C for a dynamic A of `[m, k]`.
fn exact<T: Scalar>(context: &Context, skipping: Skipping, extents: [usize; 3]) {
    let [m, _, n] = extents;
    let product = skipping.plan::<T>(context, extents);
    for (turn, per_mille) in [1000, 0, 1, 100, 500, 30].into_iter().enumerate() {
        let drawn = skipping.draw::<T>(extents, per_mille, (9 + per_mille, Rng::integer));
        let [a, b] = skipping.stored(drawn.each_ref());
        let columns = a.shape()[1];
        let gap = if skipping.by_columns { room(columns) } else { [0, room(columns), 3][turn % 3] };
        let a = strided(context, &a, columns + gap, T::from_f64(f64::NAN));
        let b = strided(context, &b, n + room(n), T::ONE);
        let aligned = skipping.right || skipping.by_columns || turn % 2 == 0;
        let leading = n + if aligned { room(n) } else { 3 };
        let between = T::from_f64(77.0);
        let mut c = strided(context, &nan::<T>(&[m, n]), leading, between);
        finish(context, |stream| product.run([&a, &b], &mut c, stream));
        let what = format!("{} {extents:?} {skipping:?} {per_mille}", T::NAME);
        assert_exact(&c, &skipping.exact(drawn.each_ref()), &what);
        let stored = c.to_storage().unwrap();
        let mut gaps = stored.chunks(leading).flat_map(|row| &row[n..]);
        assert!(gaps.all(|x| *x == between), "{what}: gaps");
    }
}

impl Suite {
    fn on_the_cpu<T: Scalar>(&self, cpu: &Context) {
        for skipping in (self.products)() {
            for extents in [[72, 50, 8], [8, 50, 72], [8, 0, 8]] {
                exact::<T>(cpu, skipping, extents);
            }
        }
    }

    fn on_the_gpu<T: Scalar>(&self, gpu: &Context) {
        for skipping in (self.products)() {
            for &extents in self.extents.iter().step_by(if small() { 3 } else { 1 }) {
                exact::<T>(gpu, skipping, extents);
            }
        }
    }

    /// Items are stored one after the other. One detection and one product serve all of them.
    fn in_batches<T: Scalar>(&self, context: &Context) {
        for skipping in (self.products)() {
            for &(items, extents @ [m, k, n]) in self.batches {
                let ends = match (skipping.right, skipping.by_columns) {
                    (false, _) => skipping.height,
                    (true, by_columns) => {
                        if by_columns {
                            8
                        } else {
                            1
                        }
                    }
                };
                if m % ends != 0 {
                    continue;
                }
                let product = skipping.batch::<T>(context, items, extents);
                let drawn: Vec<_> = (0..items)
                    .map(|z| {
                        let seed = (z as u64, Rng::integer as fn(&mut Rng) -> f64);
                        skipping.draw::<T>(extents, [300, 0, 1000, 50][z % 4], seed)
                    })
                    .collect();
                let stored = |of: usize, shape: [usize; 2]| {
                    let item =
                        |z: &[Dense<T>; 2]| skipping.stored(z.each_ref())[of].values().to_vec();
                    let values = drawn.iter().flat_map(item).collect();
                    let all = Dense::new([items, shape[0], shape[1]], values).unwrap();
                    context.upload_dense(&all).unwrap()
                };
                let a = stored(0, if skipping.by_columns { [k, m] } else { [m, k] });
                let b = stored(1, [k, n]);
                let wanted = drawn.iter().flat_map(|z| skipping.exact(z.each_ref()));
                let wanted: Vec<f64> = wanted.collect();
                let mut c = poisoned::<T>(context, &[items, m, n]);
                for run in 0..2 {
                    finish(context, |stream| product.run([&a, &b], &mut c, stream));
                    let what = format!("{items} of {extents:?} {skipping:?}, run {run}");
                    assert_exact(&c, &wanted, &what);
                }
            }
        }
    }

    /// A captured graph reads other micro-tiles at every replay.
    fn in_a_graph<T: Scalar>(&self, gpu: &Context) {
        let extents @ [m, _, n] = self.replayed;
        for skipping in (self.products)() {
            let draw =
                |per_mille, seed| skipping.draw::<T>(extents, per_mille, (seed, Rng::integer));
            let product = skipping.plan::<T>(gpu, extents);
            let drawn = draw(100, 1);
            let stored = skipping.stored(drawn.each_ref());
            let [mut a, mut b] = upload(gpu, stored.each_ref());
            let mut c = poisoned::<T>(gpu, &[m, n]);
            let stream = gpu.stream().unwrap();
            let mut graph = Replay::of(&stream, || product.run([&a, &b], &mut c, &stream));
            for (per_mille, seed) in [(100, 1), (0, 2), (1000, 3), (1, 4), (50, 5), (50, 6)] {
                let drawn = draw(per_mille, seed);
                let [new_a, new_b] = skipping.stored(drawn.each_ref());
                a.write(&new_a).unwrap();
                b.write(&new_b).unwrap();
                // SAFETY: all memory that the captured run uses is alive until the end of this function.
                unsafe { graph.run() };
                let what = format!("{} {skipping:?}, replay {seed}", T::NAME);
                assert_exact(&c, &skipping.exact(drawn.each_ref()), &what);
            }
        }
    }

    /// Runs one product of these operands into NaN. Returns the elements of C, or of its transpose for a dynamic B.
    fn once<T: Scalar>(context: &Context, skipping: Skipping, all: &[[Dense<T>; 2]]) -> Vec<f64> {
        let [[e, k], [_, f]] = all[0].each_ref().map(|x| [x.shape()[0], x.shape()[1]]);
        let [m, n] = if skipping.right { [f, e] } else { [e, f] };
        let product = skipping.plan::<T>(context, [m, k, n]);
        let mut c = poisoned::<T>(context, &[m, n]);
        for operands in all {
            let stored = skipping.stored(operands.each_ref());
            let [a, b] = upload(context, stored.each_ref());
            finish(context, |stream| product.run([&a, &b], &mut c, stream));
        }
        let c = c.to_dense().unwrap().map(T::to_f64);
        if skipping.right { transposed(&c) } else { c }.into_values()
    }

    /// A NaN in the other operand reaches the rows of C that have a micro-tile there, and no others, whatever was
    /// multiplied before. A NaN in the dynamic operand is detected.
    fn keeps_nan<T: Scalar>(&self, gpu: &Context) {
        let [e, k, f] = [self.tall, 128, self.wide.next_multiple_of(8)];
        let one = e - 56;
        for skipping in (self.products)() {
            let x = |i: &[usize]| match (i[0], i[1]) {
                (5, 7) => f64::NAN,
                (row, 9) if row == one => 1.0,
                _ => 0.0,
            };
            let y = |i: &[usize]| match i[0] {
                9 => f64::INFINITY,
                11 => f64::NAN,
                row => ((row + i[1]) % 5) as f64 - 2.0,
            };
            let of = |x: &(dyn Fn(&[usize]) -> f64 + Sync)| {
                Dense::from_fn([e, k], |i| T::from_f64(x(i)))
            };
            let y = Dense::from_fn([k, f], |i| T::from_f64(y(i))).unwrap();
            let all = [[of(&|_| f64::NAN).unwrap(), y.clone()], [of(&x).unwrap(), y]];
            let found = Self::once(gpu, skipping, &all);
            let tile = one / skipping.tile();
            let wanted = |row: usize| match row {
                5 => f64::NAN,
                _ if row == one => f64::INFINITY,
                // Zeros of the micro-tile times infinity give NaN.
                _ if row / skipping.tile() == tile => f64::NAN,
                _ => 0.0,
            };
            let wanted: Vec<f64> = (0..e * f).map(|i| wanted(i / f)).collect();
            assert_equal(&format!("{} {skipping:?}", T::NAME), &found, &wanted);
        }
    }

    /// Elements up to the threshold make no micro-tile. A NaN always makes one.
    fn above_a_threshold<T: Scalar>(&self, gpu: &Context) {
        let [e, k, f] = [self.tall - 8, 90, self.wide];
        for skipping in (self.products)() {
            let skipping = Skipping { threshold: 0.25, ..skipping };
            let x = |i: &[usize]| match (i[0], i[1]) {
                (5, 1) => f64::NAN,
                (row, column) if row % 8 == 0 && column % 3 == 0 => -1.0,
                _ => 0.125,
            };
            let counts = |i: &[usize]| i[1] % 3 == 0 || i[1] == 1 && i[0] < skipping.tile();
            let y = dynamic::<T>([k, f], k, 1000, 5);
            let of = |x: &(dyn Fn(&[usize]) -> f64 + Sync)| {
                Dense::from_fn([e, k], |i| T::from_f64(x(i)))
            };
            let counted = of(&|i| if counts(i) { x(i) } else { 0.0 }).unwrap();
            let wanted = dense_product(&counted, &y);
            let found = Self::once(gpu, skipping, &[[of(&x).unwrap(), y]]);
            let wanted = rounded::<T>(&wanted);
            assert_equal(&format!("{} {skipping:?}", T::NAME), &found, &wanted);
        }
    }

    /// Any values: equal bits in every run, whatever ran before, within rounding of the exact sums.
    fn repeats<T: Scalar>(&self, gpu: &Context) {
        let extents @ [m, k, n] =
            if small() { self.random.map(|x| x / 4 / 8 * 8) } else { self.random };
        for skipping in (self.products)() {
            if skipping.determinism == Determinism::Relaxed {
                continue;
            }
            let product = skipping.plan::<T>(gpu, extents);
            for per_mille in [100, 500, 1000] {
                let drawn = skipping.draw::<T>(extents, per_mille, (per_mille, Rng::unit));
                let stored = skipping.stored(drawn.each_ref());
                let [a, b] = upload(gpu, stored.each_ref());
                let run = || {
                    let mut c = poisoned::<T>(gpu, &[m, n]);
                    finish(gpu, |stream| product.run([&a, &b], &mut c, stream));
                    wide(&c)
                };
                let first = run();
                let dtype = match skipping.precision {
                    Precision::Tf32 => Dtype::Tf32,
                    Precision::Full => T::DTYPE,
                };
                let bound = Bound::of(dtype);
                let sizes = drawn.each_ref().map(|x| x.map(|x| T::from_f64(x.to_f64().abs())));
                let (wanted, size) =
                    (skipping.exact(drawn.each_ref()), skipping.exact(sizes.each_ref()));
                for (i, found) in first.iter().enumerate() {
                    let error = (found - wanted[i]).abs();
                    let what = (T::NAME, skipping, per_mille, i);
                    assert!(
                        error <= bound.at(wanted[i], size[i], k),
                        "{what:?}: {found}, not {}",
                        wanted[i]
                    );
                }
                for _ in 0..if small() { 1 } else { 19 } {
                    assert!(run() == first, "{skipping:?} {per_mille}");
                }
            }
        }
    }
}

/// The tests of suites, for these element types.
macro_rules! suites {
    ($($name:ident: $suite:ident [$($t:ty),*];)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn on_the_cpu() {
                on_cpu(&[|cpu| $suite.on_the_cpu::<f32>(cpu), |cpu| $suite.on_the_cpu::<f16>(cpu)]);
            }

            #[test]
            fn on_the_gpu() {
                on_gpu(&[$(|gpu| $suite.on_the_gpu::<$t>(gpu)),*]);
            }

            #[test]
            fn in_batches() {
                on_gpu(&[$(|gpu| $suite.in_batches::<$t>(gpu)),*]);
            }

            #[test]
            fn in_a_graph() {
                let Some(gpu) = gpu_alone() else { return };
                $($suite.in_a_graph::<$t>(&gpu);)*
            }

            #[test]
            fn keeps_nan_where_it_is() {
                on_gpu(&[$(|gpu| $suite.keeps_nan::<$t>(gpu)),*]);
            }

            #[test]
            fn above_a_threshold() {
                on_gpu(&[$(|gpu| $suite.above_a_threshold::<$t>(gpu)),*]);
            }

            #[test]
            fn repeats() {
                on_gpu(&[$(|gpu| $suite.repeats::<$t>(gpu)),*]);
            }
        }
    )*};
}

suites! {
    a: OF_A [f16, bf16];
    a_transposed: TRANSPOSED_A [f16, bf16];
    b: OF_B [f16, bf16];
    few_rows: FEW_ROWS [f16, bf16];
    a_in_tf32: IN_TF32 [f32];
}

#[test]
fn batches_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    let cases = &[(3, [64, 20, 5]), (3, [8, 20, 72])];
    Suite { batches: cases, ..OF_A }.in_batches::<f32>(&cpu);
    Suite { batches: cases, ..OF_B }.in_batches::<f32>(&cpu);
}

/// Both operands are rounded to nearest with ten bits of mantissa. The copy engine decides ties of A.
#[test]
fn tf32_rounds_both_operands() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [40, 24, 36];
    let unit = 2f64.powi(-10);
    let on = |rows: usize, columns: usize, x: f64| {
        let of = |i: &[usize]| if i[0] % k == i[1] % k { x as f32 } else { 0.0 };
        Dense::from_fn([rows, columns], of).unwrap()
    };
    for skipping in heights(Precision::Tf32) {
        for (apart, rounded) in [(0.25, 0.0), (0.75, 1.0), (1.0, 1.0), (1.25, 1.0)] {
            let (value, rounded) = (1.0 + apart * unit, 1.0 + rounded * unit);
            for [of_a, of_b] in [[value, 1.0], [1.0, value]] {
                let found = Suite::once(&gpu, skipping, &[[on(m, k, of_a), on(k, n, of_b)]]);
                let meets = |at: usize| at / n % k == at % n % k;
                let wanted = (0..m * n).map(|at| if meets(at) { rounded } else { 0.0 });
                let wanted: Vec<f64> = wanted.collect();
                assert_equal(&format!("{skipping:?}: {of_a} * {of_b}"), &found, &wanted);
            }
        }
    }
}

#[test]
fn refusals() {
    let cpu = Context::unchecked_cpu();
    for of in [LEFT, RIGHT, TRANSPOSED] {
        for threshold in [-1.0, f64::NAN] {
            let wrong = Skipping { threshold, ..of };
            let error = wrong.try_plan::<f16>(&cpu, [8, 8, 8]).unwrap_err();
            assert_error!(error, Error::Operand { name, .. } if name == if of.right { "B" } else { "A" });
        }
    }
    let product = RIGHT.plan::<f32>(&cpu, [8, 4, 8]);
    let (a, b) = (cpu.zeros(&[4, 8]).unwrap(), cpu.zeros(&[4, 8]).unwrap());
    let mut c = cpu.zeros(&[8, 8]).unwrap();
    let error = product.run([&a, &b], &mut c, &cpu.stream().unwrap()).unwrap_err();
    assert_error!(error, Error::Shape { .. });
    // This context checks for an H200. No kernel takes a batch of `[k, m]`, or micro-tiles that end elsewhere than items.
    for (of, m) in [(TRANSPOSED, 8), (LEFT, 100), (LEFT, 192)] {
        let error = of.try_batch::<f16>(&Context::cpu(), 2, [m, 8, 8]).unwrap_err();
        assert_error!(error, Error::NoKernel { .. });
    }
    let Some(gpu) = gpu() else { return };
    for of in [LEFT, RIGHT, TRANSPOSED] {
        assert_error!(of.try_plan::<f32>(&gpu, [8, 8, 8]).unwrap_err(), Error::NoKernel { .. });
    }
    // Micro-tiles of 64 elements of a row are read by 16 bytes.
    for (of, extents) in [(RIGHT, [8, 8, 12]), (TRANSPOSED, [12, 8, 8])] {
        assert_error!(of.try_plan::<f16>(&gpu, extents).unwrap_err(), Error::NoKernel { .. });
    }
    // Rows of B of this run do not begin at multiples of 16 bytes.
    let product = RIGHT.plan::<f16>(&gpu, [8, 8, 8]);
    let (a, mut c) = (gpu.zeros(&[8, 8]).unwrap(), gpu.zeros(&[8, 8]).unwrap());
    let b = strided(&gpu, &dynamic::<f16>([8, 8], 8, 1000, 1), 12, f16::ZERO);
    let error = product.run([&a, &b], &mut c, &gpu.stream().unwrap()).unwrap_err();
    assert_error!(error, Error::Alignment { .. });
}
