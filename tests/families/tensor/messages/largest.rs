//! The gradient of max aggregation: exact on integers with ties, and against differences of the forward run.

use super::graph;
use crate::support::dense::{integers, poisoned, upload, wide};
use crate::support::{Rng, gpu, on_both};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format, bf16, f16};
use einsparse::ops::{Aggregate, MessagePassing};
use einsparse::{Context, Scalar};

const TARGETS: usize = 9;
const SOURCES: usize = 320;

/// Returns Y, dX and the gradient of the weights in a context.
fn run<T: Scalar>(
    context: &Context,
    graph: &AnySparse<T>,
    [x, dy]: [&Dense<T>; 2],
) -> [Vec<f64>; 3] {
    let n = x.shape()[1];
    let &[targets, sources] = graph.shape() else { panic!("a matrix") };
    let layer = MessagePassing::new(context, graph.clone(), n, Aggregate::Max).unwrap();
    let stream = context.stream().unwrap();
    let nan = |shape: &[usize]| poisoned::<T>(context, shape);
    let [mut y, mut dx, mut da] =
        [nan(&[targets, n]), nan(&[sources, n]), nan(&[graph.values().len()])];
    let [x, dy] = upload(context, [x, dy]);
    layer.forward(&x, &mut y, &stream).unwrap();
    for da in [None, Some(&mut da)] {
        layer.backward_max([&x, &y, &dy], &mut dx, da, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    [&y, &dx, &da].map(wide)
}

/// Returns the gradients term by term. Among equal messages the first in the order of slots wins.
fn wanted<T: Scalar>(graph: &AnySparse<T>, [x, dy]: [&Dense<T>; 2]) -> [Vec<f64>; 2] {
    let n = x.shape()[1];
    let (targets, sources) = (graph.shape()[0] as u32, graph.shape()[1]);
    let places = graph.coordinates().unwrap();
    let (mut dx, mut da) = (vec![0.0; sources * n], vec![0.0; graph.values().len()]);
    let of = |d: &Dense<T>, row: u32, f: usize| d.values()[row as usize * n + f].to_f64();
    for target in 0..targets {
        for f in 0..n {
            let own = (0..da.len()).filter(|&slot| places[0][slot] == target);
            let own = own.filter(|&slot| places[1][slot] != u32::MAX);
            let message = |slot: usize| graph.values()[slot].to_f64() * of(x, places[1][slot], f);
            let mut best: Option<usize> = None;
            for slot in own {
                if best.is_none_or(|best| message(slot) > message(best)) {
                    best = Some(slot);
                }
            }
            let Some(slot) = best else { continue };
            let source = places[1][slot];
            dx[source as usize * n + f] += graph.values()[slot].to_f64() * of(dy, target, f);
            da[slot] += of(x, source, f) * of(dy, target, f);
        }
    }
    [dx, da]
}

/// A source with hundreds of targets, which several thread blocks sum. Each target has a second source.
fn hub<T: Scalar>() -> Csr<T> {
    const EACH: usize = 700;
    let columns = (0..EACH).flat_map(|target| [3, 4 + (target % 30) as u32]);
    let offsets = (0..=EACH as u32).map(|row| 2 * row).collect();
    let pattern = CsrPattern::new(EACH, 40, offsets, columns.collect()).unwrap();
    Csr::new(pattern, Rng(23).integers(2 * EACH)).unwrap()
}

fn exact<T: Scalar>(context: &Context) {
    exact_on::<T>(context, graph());
    exact_on::<T>(context, hub());
}

fn exact_on<T: Scalar>(context: &Context, csr: Csr<T>) {
    let (targets, sources) = (csr.pattern().rows(), csr.pattern().cols());
    let formats =
        [Format::Csr, Format::Coo, Format::Csc, Format::GroupCoo { axis: 0, group: Some(4) }];
    for n in [1, 7, 32, 100] {
        let x = integers::<T>(&[sources, n], n as u64);
        let dy = integers::<T>(&[targets, n], 7);
        for format in formats {
            let graph = AnySparse::from(csr.clone()).convert(format).unwrap();
            let [_, dx, da] = run(context, &graph, [&x, &dy]);
            let [wanted_dx, wanted_da] = wanted(&graph, [&x, &dy]);
            assert_eq!(dx, wanted_dx, "dX, {format}, {n} features, {}", T::DTYPE.name());
            assert_eq!(da, wanted_da, "dA, {format}, {n} features, {}", T::DTYPE.name());
        }
    }
}

on_both! {
    the_first_of_the_largest_messages_gets_the_gradient: cpu [exact::<f64>, exact::<f32>],
        gpu [exact::<f32>, exact::<f64>, exact::<f16>, exact::<bf16>];
}

/// `sum dY * Y` changes by the gradient times the change of X and A. All messages differ, so a small step changes no
/// winner.
fn differences(context: &Context) {
    const N: usize = 5;
    const STEP: f64 = 1e-6;
    let mut rng = Rng(11);
    let mut random = |count: usize| -> Vec<f64> {
        let unit = |word: u64| (word >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (0..count).map(|_| unit(rng.word())).collect()
    };
    let pattern = graph::<f64>().pattern().clone();
    let weights = random(pattern.columns().len());
    let x = random(SOURCES * N);
    let dy = Dense::new([TARGETS, N], random(TARGETS * N)).unwrap();
    let at = |x: &[f64], weights: &[f64]| -> [Vec<f64>; 3] {
        let graph: AnySparse<f64> = Csr::new(pattern.clone(), weights.to_vec()).unwrap().into();
        let x = Dense::new([SOURCES, N], x.to_vec()).unwrap();
        run(context, &graph, [&x, &dy])
    };
    let loss = |x: &[f64], weights: &[f64]| -> f64 {
        let [y, ..] = at(x, weights);
        y.iter().zip(dy.values()).map(|(y, d)| y * d).sum()
    };
    let [_, dx, da] = at(&x, &weights);
    assert!(dx.iter().any(|d| *d != 0.0) && da.iter().any(|d| *d != 0.0));
    let check = |what: &str, place: usize, gradient: f64, loss: &dyn Fn(f64) -> f64| {
        let found = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
        let near = (found - gradient).abs() < 1e-7;
        assert!(near, "{what}[{place}]: {found} by differences, {gradient}");
    };
    for place in (0..x.len()).filter(|p| dx[*p] != 0.0 || p % 97 == 0).step_by(9) {
        check("dX", place, dx[place], &|step| {
            let mut moved = x.clone();
            moved[place] += step;
            loss(&moved, &weights)
        });
    }
    for place in (0..weights.len()).filter(|p| da[*p] != 0.0 || p % 97 == 0).step_by(5) {
        check("dA", place, da[place], &|step| {
            let mut moved = weights.clone();
            moved[place] += step;
            loss(&x, &moved)
        });
    }
}

on_both! {
    the_gradient_of_the_largest_is_that_of_differences: cpu [differences], gpu [differences];
}

/// NaN and infinity win the maximum; vertices without edges pass no gradient on.
#[test]
fn special_values_win_once() {
    let check = |context: &Context| {
        let csr = graph::<f32>();
        let p = csr.pattern().clone();
        let row = p.row(4);
        let mut x = vec![1.0f32; SOURCES];
        for at in [row.start + 3, row.start + 5] {
            x[p.columns()[at] as usize] = f32::NAN;
        }
        let ones: AnySparse<f32> =
            Csr::new(p.clone(), vec![1.0; p.columns().len()]).unwrap().into();
        let x = Dense::new([SOURCES, 1], x).unwrap();
        let dy = Dense::new([TARGETS, 1], vec![1.0f32; TARGETS]).unwrap();
        let [y, dx, _] = run(context, &ones, [&x, &dy]);
        assert!(y[4].is_nan());
        // There is one winner for each vertex with edges.
        assert_eq!(dx.iter().sum::<f64>(), 7.0);
        assert!(dx[p.columns()[row.start + 3] as usize] >= 1.0);
    };
    check(&Context::unchecked_cpu());
    let Some(gpu) = gpu() else { return };
    check(&gpu);
}
