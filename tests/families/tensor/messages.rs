//! Message passing (sum, mean, max) and products at the entries of tensors, exact on integers; paths of three factors.

mod largest;

use crate::support::assert_error;
use crate::support::dense::{integers, poisoned, upload, upload_values, wide};
use crate::support::runs::{finish, plan_and_run};
use crate::support::{Rng, gpu, on_both, spread};
use einsparse::formats::{AnySparse, Coo, Csr, CsrPattern, Dense, Format, FormatError, bf16, f16};
use einsparse::ops::{Aggregate, MessagePassing, SampledTensor};
use einsparse::{Context, Error, Operand, Options, Precision, Scalar};

/// Returns a graph with vertices of no edge, of one, and of many more than a work item holds.
fn graph<T: Scalar>() -> Csr<T> {
    let pattern = spread(&[0, 1, 4, 2, 300, 8, 0, 1, 64], 320);
    let degrees: Vec<usize> = (0..9).map(|row| pattern.row(row).len()).collect();
    let mut rng = Rng(5);
    let values = degrees.iter().flat_map(|&n| vec![n; n]);
    // Values are multiples of the degree, so that a mean is an integer.
    let values = values.map(|n| T::from_f64(if n > 8 { 0.0 } else { rng.integer() * n as f64 }));
    let values = values.collect();
    Csr::new(pattern, values).unwrap()
}

fn aggregated<T: Scalar>(graph: &Csr<T>, x: &Dense<T>, aggregate: Aggregate) -> Vec<f64> {
    let (p, n) = (graph.pattern(), x.shape()[1]);
    let mut out = vec![0.0; p.rows() * n];
    for (row, own) in out.chunks_mut(n).enumerate() {
        let degree = p.row(row).len() as f64;
        for (j, to) in own.iter_mut().enumerate() {
            let terms = p.row(row).map(|at| {
                graph.values()[at].to_f64() * x.values()[p.columns()[at] as usize * n + j].to_f64()
            });
            *to = match aggregate {
                Aggregate::Sum => terms.sum(),
                Aggregate::Mean => terms.sum::<f64>() / degree.max(1.0),
                Aggregate::Max if degree == 0.0 => 0.0,
                Aggregate::Max => terms.fold(f64::NEG_INFINITY, f64::max),
            };
        }
    }
    out
}

fn messages<T: Scalar>(context: &Context) {
    let csr = graph::<T>();
    let all: Vec<AnySparse<T>> =
        [Format::Csr, Format::Coo, Format::GroupCoo { axis: 0, group: Some(4) }]
            .map(|format| AnySparse::from(csr.clone()).convert(format).unwrap())
            .into();
    for n in [1, 32, 128] {
        let x = integers::<T>(&[320, n], n as u64);
        let on = context.upload_dense(&x).unwrap();
        for aggregate in [Aggregate::Sum, Aggregate::Mean, Aggregate::Max] {
            for graph in &all {
                let layer = MessagePassing::new(context, graph.clone(), n, aggregate).unwrap();
                let mut y = poisoned::<T>(context, &[9, n]);
                for _ in 0..2 {
                    finish(context, |stream| layer.forward(&on, &mut y, stream));
                    let wanted = aggregated(&csr, &x, aggregate).into_iter().map(T::from_f64);
                    let found = y.to_dense().unwrap();
                    let what =
                        format!("{aggregate:?} {} n {n} {}", graph.format(), layer.variant());
                    assert!(wanted.eq(found.values().iter().copied()), "{what}");
                }
            }
        }
    }
}

on_both! {
    messages_are_aggregated: cpu [messages::<f64>, messages::<f16>, messages::<bf16>],
        gpu [messages::<f32>, messages::<f64>, messages::<f16>, messages::<bf16>];
}

/// Compares the gradient with differences of the forward run, which is linear; and a NaN in the maximum.
fn gradients(context: &Context) {
    let csr = graph::<f32>();
    let stream = context.stream().unwrap();
    for aggregate in [Aggregate::Sum, Aggregate::Mean] {
        let layer = MessagePassing::new(context, csr.clone(), 4, aggregate).unwrap();
        let dy = integers::<f32>(&[9, 4], 3);
        let x = integers::<f32>(&[320, 4], 4);
        let [mut y, mut dx] = [context.zeros(&[9, 4]).unwrap(), context.zeros(&[320, 4]).unwrap()];
        layer.forward(&context.upload_dense(&x).unwrap(), &mut y, &stream).unwrap();
        layer.backward(&context.upload_dense(&dy).unwrap(), &mut dx, &stream).unwrap();
        stream.synchronize().unwrap();
        // <dY, Y(X)> = <dX, X> for a linear map.
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let [y, dx] = [y, dx].map(|t| t.to_dense().unwrap());
        assert_eq!(dot(dy.values(), y.values()), dot(dx.values(), x.values()), "{aggregate:?}");
        assert!(dx.values().iter().any(|&v| v != 0.0));
    }
    let layer = MessagePassing::new(context, csr.clone(), 4, Aggregate::Max).unwrap();
    let mut x = vec![1.0f32; 1280];
    x[4 * csr.pattern().columns()[csr.pattern().row(4).start] as usize] = f32::NAN;
    let x = upload_values(context, &[320, 4], x);
    let mut y = context.zeros(&[9, 4]).unwrap();
    layer.forward(&x, &mut y, &stream).unwrap();
    stream.synchronize().unwrap();
    let y = y.to_dense().unwrap();
    assert!(y.values()[16].is_nan() && y.values()[17] == 0.0, "{:?}", y.values());
    let mut dx = context.zeros(&[320, 4]).unwrap();
    let error = layer.backward(&context.zeros(&[9, 4]).unwrap(), &mut dx, &stream).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
}

on_both! {
    messages_have_gradients: cpu [gradients], gpu [gradients];
}

#[test]
fn new_weights_of_a_mean_are_divided_too() {
    let cpu = Context::unchecked_cpu();
    let csr = graph::<f64>();
    let mut layer = MessagePassing::new(&cpu, csr.clone(), 2, Aggregate::Mean).unwrap();
    let doubled: Vec<f64> = csr.values().iter().map(|v| 2.0 * v).collect();
    layer.set_weights(&doubled).unwrap();
    let x = integers::<f64>(&[320, 2], 9);
    let mut y = cpu.zeros(&[9, 2]).unwrap();
    let stream = cpu.stream().unwrap();
    layer.forward(&cpu.upload_dense(&x).unwrap(), &mut y, &stream).unwrap();
    let wanted: Vec<f64> = aggregated(&csr, &x, Aggregate::Mean).iter().map(|y| 2.0 * y).collect();
    assert_eq!(y.to_dense().unwrap().values(), wanted);
    assert!(layer.set_weights(&doubled[1..]).is_err());
}

/// Weights are not rounded before the sum: f16 and bf16 cannot represent 1 / 1,000,000.
fn long_means<T: Scalar>(context: &Context) {
    const EDGES: usize = 1_000_000;
    let pattern = CsrPattern::new(2, EDGES, vec![0, 0, EDGES as u32], (0..EDGES as u32).collect());
    let all = |x: f64, count| std::iter::repeat_n(T::from_f64(x), count).collect::<Vec<T>>();
    let graph = Csr::new(pattern.unwrap(), all(1.0, EDGES)).unwrap();
    let mut layer = MessagePassing::new(context, graph, 1, Aggregate::Mean).unwrap();
    let x = upload_values(context, &[EDGES, 1], all(1.0, EDGES));
    let mut y = poisoned::<T>(context, &[2, 1]);
    for weight in [1.0, 3.0] {
        layer.set_weights(&all(weight, EDGES)).unwrap();
        finish(context, |stream| layer.forward(&x, &mut y, stream));
        assert_eq!(wide(&y), [0.0, weight], "{}", layer.variant());
        let dy = upload_values(context, &[2, 1], [7.0, 40000.0].map(T::from_f64).to_vec());
        let mut dx = poisoned::<T>(context, &[EDGES, 1]);
        finish(context, |stream| layer.backward(&dy, &mut dx, stream));
        let each = T::from_f64(T::from_f64(40000.0).to_f64() * weight / EDGES as f64);
        assert!(wide(&dx).iter().all(|&dx| dx == each.to_f64()));
    }
    let error = layer.set_weights(&all(0.0, EDGES + 1)).unwrap_err();
    assert_error!(error, Error::Format(FormatError::Length { found: 1_000_001, .. }));
    let mut small = context.zeros::<T>(&[1, 1]).unwrap();
    let error = layer.forward(&x, &mut small, &context.stream().unwrap());
    assert_eq!(error.unwrap_err().name(), Some("Y"));
}

on_both! {
    a_mean_is_rounded_once: cpu [long_means::<f16>, long_means::<bf16>],
        gpu [long_means::<f16>, long_means::<bf16>];
}

fn sampled<T: Scalar>(context: &Context) {
    for shape in [&[40usize][..], &[9, 12], &[7, 5, 6]] {
        let mut rng = Rng(shape.len() as u64);
        let count = shape.iter().product::<usize>() / 2;
        let coord = |&n: &usize| (0..count).map(|_| (rng.word() % n as u64) as u32).collect();
        let coords: Vec<Vec<u32>> = shape.iter().map(coord).collect();
        let ones = vec![T::from_f64(1.0); count];
        let coo: AnySparse<T> = Coo::from_entries(shape.to_vec(), coords, ones).unwrap().into();
        let mut all = vec![coo.clone()];
        for axis in (0..shape.len()).filter(|_| shape.len() > 1) {
            all.push(coo.convert(Format::GroupCoo { axis, group: Some(3) }).unwrap());
        }
        for t in &all {
            for n in [1, 8, 32, 129] {
                let factors: Vec<Dense<T>> =
                    shape.iter().map(|&m| integers(&[m, n], (m + n) as u64)).collect();
                let mut wanted = t.clone();
                let entries = t.entries();
                let on: Vec<_> = factors.iter().map(|f| context.upload_dense(f).unwrap()).collect();
                let p = context.upload(t).unwrap();
                let mut s = context.upload(t).unwrap();
                let op = SampledTensor::new(context, &p, n).unwrap();
                let borrowed: Vec<_> = on.iter().collect();
                finish(context, |stream| op.forward(Some(&p), &borrowed, &mut s, stream));
                wanted.values_mut().copy_from_slice(s.to_host().unwrap().values());
                for (index, found) in wanted.entries() {
                    let term = |r: usize| {
                        let own = index.iter().zip(&factors);
                        own.map(|(&i, f)| f.values()[i * n + r].to_f64()).product::<f64>()
                    };
                    let value = entries[&index] * (0..n).map(term).sum::<f64>();
                    let rounded = T::from_f64(value).to_f64();
                    assert_eq!(
                        found,
                        rounded,
                        "{shape:?} {} {n} {index:?} {}",
                        t.format(),
                        op.variant()
                    );
                }
            }
        }
    }
}

on_both! {
    products_at_entries_of_tensors_are_exact: cpu [sampled::<f64>],
        gpu [sampled::<f32>, sampled::<f64>, sampled::<f16>, sampled::<bf16>];
}

/// A sparse and two dense factors, contracted in pairs. On a GPU this uses TF32, which represents the values exactly.
#[test]
fn three_factors_go_pair_by_pair() {
    let text = "Y[m,n] = A[m,k] * B[k,l] * C[l,n]";
    let (k, l, n) = (320, 64, 128);
    let csr = graph::<f32>();
    let dense = |m: usize, n: usize| integers::<f32>(&[m, n], m as u64);
    let (b, c) = (dense(k, l), dense(l, n));
    let run = |context: &Context| {
        let a = context.upload(&csr).unwrap();
        let [b, c] = upload(context, [&b, &c]);
        let operands: [(&str, Operand<'_, f32>); 3] =
            [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
        let options = Options::default().precision(Precision::Tf32);
        let (plan, y) = plan_and_run(context, text, &operands, &options);
        (plan.variant(), plan.to_string(), y.to_dense().unwrap())
    };
    let (variant, _, wanted) = run(&Context::unchecked_cpu());
    assert_eq!(variant, "cpu");
    let Some(gpu) = gpu() else { return };
    let (variant, words, found) = run(&gpu);
    assert_eq!(found, wanted, "{words}");
    assert!(variant != "path" || words.contains("P0["), "{words}");
}
