//! Family `mttkrp`: every row of the table, exact on integers, over orders, formats, kept axes and modes; fibers; the
//! largest product.

use crate::support::assert_error;
use crate::support::dense::integers;
use crate::support::einsum::{Given, agrees, evaluate};
use crate::support::rows::{kernels_here, named};
use crate::support::runs::finish;
use crate::support::{Rng, on_both, on_gpu, small};
use einsparse::einsum::Einsum;
use einsparse::formats::{AnySparse, Coo, Dense, Format, bf16, f16};
use einsparse::kernels::families::{REDUCE_SUM, rows_step};
use einsparse::registry::{Dtype, Operation, Row};
use einsparse::{Context, Error, Scalar, ops};

/// Returns a tensor whose first axis has a heavily filled row, rows with few entries and empty rows.
fn tensor<T: Scalar>(shape: &[usize], entries: usize) -> Coo<T> {
    let mut rng = Rng(shape.iter().sum::<usize>() as u64 + entries as u64);
    let mut coords = vec![Vec::new(); shape.len()];
    for e in 0..entries {
        for (axis, (own, &extent)) in coords.iter_mut().zip(shape).enumerate() {
            let place = rng.word() as usize % extent;
            let first = match e % 3 {
                0 => 1,
                1 => place / 2 * 2,
                _ => place,
            };
            own.push(if axis == 0 { first.min(extent - 1) } else { place } as u32);
        }
    }
    let values = rng.integers(entries);
    let summed = Coo::from_entries(shape.to_vec(), coords, values).unwrap();
    summed.map_values(|v: T| T::from_f64(v.to_f64() % 3.0))
}

fn matrix<T: Scalar>(rows: usize, n: usize, seed: u64) -> Dense<T> {
    integers(&[rows, n], seed)
}

const AXES: [&str; 4] = ["i", "j", "k", "l"];

/// Returns `M[kept, r] = 2 * T[...] * F[axis, r] * ...` as text.
fn text(order: usize, kept: &[usize], of: &[usize]) -> String {
    let names: Vec<&str> = kept.iter().map(|&axis| AXES[axis]).chain(["r"]).collect();
    let mut text = format!("M[{}] = 2 * T[{}]", names.join(","), AXES[..order].join(","));
    for (f, &axis) in of.iter().enumerate() {
        text += &format!(" * F{f}[{},r]", AXES[axis]);
    }
    text
}

/// Runs one expression over one tensor, `=` and `+=`, into an output with gaps between its rows.
fn run<T: Scalar>(
    context: &Context,
    t: &AnySparse<T>,
    (kept, of, n): (&[usize], &[usize], usize),
    row: Option<&Row>,
) {
    let names = ["F0", "F1", "F2"];
    let mut given = vec![("T", Given::Sparse(t.clone()))];
    for (f, (name, &axis)) in names.into_iter().zip(of).enumerate() {
        given.push((name, Given::Dense(matrix(t.shape()[axis], n, 7 + f as u64))));
    }
    let text = text(t.shape().len(), kept, of);
    for text in [text.replace(" = ", " += "), text] {
        let leading = |n: usize| n.next_multiple_of(8) + 16;
        let options = named(row.map(|row| row.name));
        agrees::<T, T>(context, &text, &given, &options, (leading, &(t.format(), n)));
    }
}

/// Returns the rows of the table for this element type, reduction and number of factors.
fn rows(dtype: Dtype, factors: usize, reduce: u32) -> Vec<&'static Row> {
    let rows = kernels_here().filter(|row| {
        row.operation == Operation::Rows
            && row.dtype == dtype
            && row.step == rows_step(factors, reduce)
    });
    rows.collect()
}

/// Kept axes, axes of the factors, and order.
const FORMS: &[(&[usize], &[usize], usize)] = &[
    (&[0], &[1, 2], 3),
    (&[1], &[0, 2], 3),
    (&[2], &[1, 0], 3),
    (&[0, 1], &[2], 3),
    (&[2, 0], &[1], 3),
    (&[0], &[1], 3),
    (&[], &[0, 1, 2], 3),
    (&[1], &[0, 1], 2),
    (&[0], &[1, 2, 3], 4),
    (&[3], &[0, 1, 2], 4),
    (&[0, 2], &[1, 3], 4),
    (&[0, 1, 2], &[3], 4),
];

fn shape(order: usize) -> &'static [usize] {
    match order {
        2 => &[9, 14],
        3 => &[11, 6, 8],
        _ => &[7, 4, 5, 6],
    }
}

fn every_row<T: Scalar>(gpu: &Context) {
    for &(kept, of, order) in FORMS {
        let t: AnySparse<T> = tensor::<T>(shape(order), 150).into();
        for row in rows(T::DTYPE, of.len(), REDUCE_SUM) {
            let (vector, columns) = (row.vector as usize, row.columns as usize);
            for n in [vector, columns, columns + vector] {
                run(gpu, &t, (kept, of, n), Some(row));
            }
            if small() {
                break;
            }
        }
    }
}

#[test]
fn every_row_of_mttkrp_is_exact() {
    on_gpu(&[every_row::<f32>, every_row::<f64>, every_row::<f16>, every_row::<bf16>]);
}

/// Default plans over all formats, and over empty tensors.
fn formats<T: Scalar>(context: &Context) {
    for &(kept, of, order) in FORMS {
        let coo: AnySparse<T> = tensor::<T>(shape(order), 120).into();
        let mut all: Vec<AnySparse<T>> = (0..order)
            .flat_map(|axis| [1, 3, 8].map(|g| Format::GroupCoo { axis, group: Some(g) }))
            .map(|format| coo.convert(format).unwrap())
            .collect();
        if order == 2 {
            all.extend([Format::Csr, Format::Csc].map(|f| coo.convert(f).unwrap()));
        }
        let none = vec![Vec::new(); order];
        all.push(Coo::<T>::from_entries(shape(order).to_vec(), none, Vec::new()).unwrap().into());
        all.push(coo);
        for t in &all {
            for n in [1, 5, 32] {
                run(context, t, (kept, of, n), None);
            }
        }
    }
}

on_both! {
    plans_gather_rows_for_any_format: cpu [formats::<f64>], gpu [formats::<f32>, formats::<f16>];
}

/// A NaN or Inf in a factor reaches only rows that have an entry there, and a stored zero is multiplied.
fn planted(context: &Context) {
    let coords = vec![vec![0, 0, 2], vec![0, 1, 2], vec![1, 2, 3]];
    let t = Coo::from_entries(vec![4, 3, 5], coords, vec![1.0f32, 0.0, 2.0]).unwrap();
    for (place, reached) in [(0, None), (1, Some(0)), (2, Some(0)), (3, Some(2)), (4, None)] {
        let b = Dense::new([3, 32], vec![1.0; 96]).unwrap();
        for planted in [f32::NAN, f32::INFINITY] {
            let c = Dense::from_fn([5, 32], |i| if i[0] == place { planted } else { 1.0 }).unwrap();
            let m = ops::mttkrp(context, &t, 0, [&b, &c]).unwrap().to_dense().unwrap();
            for (row, values) in m.values().chunks(32).enumerate() {
                let finite = values.iter().all(|x| x.is_finite());
                assert_eq!(finite, reached != Some(row), "place {place} row {row} {planted}");
            }
        }
    }
}

on_both! {
    implicit_zeros_of_tensors_are_never_multiplied: cpu [planted], gpu [planted];
}

fn fibres<T: Scalar>(context: &Context) {
    for (order, axis) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 1), (4, 3)] {
        let coo = tensor::<T>(shape(order), 130);
        let t: AnySparse<T> = coo.clone().into();
        for n in [1, 32, 40] {
            let b = matrix::<T>(shape(order)[axis], n, 3);
            let kept: Vec<usize> = (0..order).filter(|&own| own != axis).collect();
            let given = [("T", t.to_dense().unwrap()), ("F0", b.clone())];
            let given = given.map(|(name, dense)| (name.to_owned(), dense.map(T::to_f64)));
            let text = Einsum::parse(&text(order, &kept, &[axis])).unwrap();
            let wanted = evaluate(&text, &given.into(), &Default::default(), None);
            let there = context.upload(&t).unwrap();
            let ttm = ops::Ttm::new(context, &there, axis, n).unwrap();
            let b = context.upload_dense(&b).unwrap();
            let mut y = context.zeros(&[ttm.count(), n]).unwrap();
            finish(context, |stream| ttm.forward(&there, &b, &mut y, stream));
            let (y, places) = (y.to_dense().unwrap(), ttm.fibres().unwrap());
            let mut filled = vec![false; wanted.len() / n];
            for (at, row) in y.values().chunks(n).enumerate() {
                let index = kept.iter().zip(places.coords());
                let place = index.fold(0, |p, (&a, c)| p * shape(order)[a] + c[at] as usize);
                let own = wanted[place * n..][..n].iter().map(|x| T::from_f64(x / 2.0));
                assert!(own.eq(row.iter().copied()), "{order} {axis} {n} {}", ttm.variant());
                filled[place] = true;
            }
            let rest = wanted.chunks(n).zip(filled).filter(|(_, filled)| !filled);
            assert!(rest.flat_map(|(row, _)| row).all(|&x| x == 0.0), "a fibre is missing");
        }
    }
}

on_both! {
    fibres_get_a_row_each: cpu [fibres::<f64>],
        gpu [fibres::<f32>, fibres::<f64>, fibres::<bf16>];
}

#[test]
fn wrong_modes_and_formats_are_refused() {
    let cpu = Context::unchecked_cpu();
    let t = tensor::<f32>(&[4, 5, 6], 20);
    let b = matrix::<f32>(5, 3, 1);
    for mode in [0, 3] {
        let error = ops::mttkrp(&cpu, &t, mode, [&b]).unwrap_err();
        assert_error!(error, Error::Operand { name, .. } if name == "T");
    }
    let there = cpu.upload(t).unwrap();
    let error = ops::Ttm::new(&cpu, &there, 3, 2).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, value, .. } if name == "axis" && value == "3");
    let ttm = ops::Ttm::new(&cpu, &there, 2, 2).unwrap();
    let (b, mut y) = (cpu.zeros(&[6, 3]).unwrap(), cpu.zeros(&[ttm.count(), 2]).unwrap());
    let stream = cpu.stream().unwrap();
    let error = ttm.forward(&there, &b, &mut y, &stream).unwrap_err();
    assert_error!(
        error,
        Error::Shape { left, right, .. } if left.contains("[6, 2]") && right.contains("[6, 3]")
    );
}
