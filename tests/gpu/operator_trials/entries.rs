//! Sparse matrices: products, sampled products, and the softmax of their rows.

use einsparse::formats::{AnySparse, Coo, CooPattern, CsrPattern};
use einsparse::ops::{self, SoftmaxOptions, SparseSoftmax};
use einsparse::{Operand, Scalar};

use super::loops::{of_nan, product, sparse_of, turned};
use super::results::{near, no_gap_is_written, same, same_values};
use super::trial::{Outcome, Trial};

/// Formats of matrices, those in row order first.
const FORMATS: [&str; 13] = [
    "csr",
    "coo",
    "ell",
    "groupcoo",
    "groupcoo:3",
    "csc",
    "bsr:16x16",
    "bsr:2x3",
    "blockcoo:3x2",
    "blockgroupcoo:16x16:4",
    "bitmap",
    "bytemap",
    "sell",
];

/// A sparse matrix, and its elements.
fn matrix<T: Scalar>(
    t: &mut Trial<'_>,
    [m, k]: [usize; 2],
    formats: &[&str],
) -> Result<(AnySparse<T>, Vec<f64>), Outcome> {
    let share = t.one(&[0, 3, 16, 64]);
    let entries = t.entries(&[m, k], share);
    let format = t.one(formats);
    let a = sparse_of::<T>(&[m, k], &entries, format)?;
    let mut elements = vec![0.0; m * k];
    for (place, x) in &entries {
        elements[place[0] * k + place[1]] = *x;
    }
    Ok((a, elements))
}

/// One-shot SpMM, with the sparse matrix in the memory of the context or of the host.
pub fn spmm<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(2);
    let [m, k, n] = [t.rows(), t.rows(), t.columns()];
    let (a, elements) = matrix::<T>(t, [m, k], &FORMATS)?;
    let there = t.sparse("A", &a);
    let b = t.given_but::<T>("B", &[k, n], &[0], |t, _| t.integer());
    let stream = t.context.stream().unwrap();
    let is_on_host = t.is_sound() && t.once_in(4);
    let ran = match is_on_host {
        true => ops::spmm(t.context, &a, &b.there),
        false => ops::spmm(t.context, &there, &b.there),
    };
    let c = t.ended(&stream, ran, &[])?;
    let wanted = product(&elements, &b.values, [m, k, n]);
    same(&format!("C of {}", a.format()), &c, &wanted);
    Ok(())
}

/// Products of matrices, sampled at the nonzeros of a third one.
pub fn sddmm<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(4);
    let [m, k, n] = [t.rows(), t.columns(), t.rows()];
    let (p, elements) = matrix::<T>(t, [m, n], &FORMATS[..10])?;
    let is_masked = t.once_in(2);
    let text = match is_masked {
        true => "S[m,n] = P[m,n] * X[m,k] * Y[n,k]",
        false => "S[m,n] = X[m,k] * Y[n,k]",
    };
    let mut out = t.sparse("S", &of_nan(&p));
    let mask = is_masked.then(|| t.sparse("P", &p));
    let x = t.integers::<T>("X", &[m, k]);
    let y = t.integers::<T>("Y", &[n, k]);
    let planned = [[m, k], [n, k]].map(|shape| t.context.zeros::<T>(&shape).unwrap());
    let own = [t.context.upload(of_nan(&p)), t.context.upload(of_nan(&p))].map(Result::unwrap);
    let mut operands: Vec<(&str, Operand<'_, T>)> =
        vec![("X", (&planned[0]).into()), ("Y", (&planned[1]).into())];
    if is_masked {
        operands.push(("P", (&own[1]).into()));
    }
    if t.is_made_wrong("a factor is not given") {
        operands.remove(t.below(2));
    }
    let plan = t.context.plan(text).operands(&operands).sparse_output(&own[0]).build();
    let plan = t.made(plan)?;
    let mut operands: Vec<(&str, Operand<'_, T>)> =
        vec![("X", (&x.there).into()), ("Y", (&y.there).into())];
    operands.extend(mask.as_ref().map(|mask| ("P", mask.into())));
    if t.is_run_wrong("a factor is not given, or the output has other entries") {
        match t.below(2) {
            0 => drop(operands.remove(t.below(2))),
            _ => {
                let other = sparse_of::<T>(&[m + 1, n], &[], "csr")?;
                out = t.context.upload(other).unwrap();
            }
        }
    }
    t.run(&mut out, |out, stream| plan.run(&operands, out, stream))?;
    let dots = product(&x.values, &turned(&y.values, [n, k]), [m, k, n]);
    let stored = p.map_values(|_| T::ONE).to_dense().unwrap();
    let factor = |i: usize| match is_masked {
        true => elements[i],
        false => stored.values()[i].to_f64(),
    };
    let wanted: Vec<f64> = dots.iter().enumerate().map(|(i, x)| x * factor(i)).collect();
    let found = out.to_host().unwrap().to_dense().unwrap();
    let what = format!("{text} of {} by {}", p.format(), plan.variant());
    same_values(&what, found.values(), &wanted);
    Ok(())
}

/// Reference of a softmax: masked positions of a row, and the result.
struct Rows {
    /// Positions of the nonzeros of each row, as offsets in the dense matrix.
    entries: Vec<Vec<usize>>,
    columns: usize,
    options: SoftmaxOptions,
}

impl Rows {
    fn is_hidden(&self, row: usize, place: usize) -> bool {
        let column = place % self.columns;
        let causal = self.options.causal;
        let lengths = self.options.lengths.as_ref();
        let length = lengths.map(|all| all[row / (self.entries.len() / all.len())]);
        causal.is_some_and(|offset| column as i64 > (row as i64).saturating_add(offset))
            || length.is_some_and(|length| column >= length)
    }

    /// Unmasked positions of each row.
    fn live(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        let rows = self.entries.iter().enumerate();
        rows.map(|(row, own)| {
            let own = own.iter().copied();
            own.filter(|&at| !self.is_hidden(row, at)).collect()
        })
    }

    fn softmax(&self, scores: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; scores.len()];
        let log = self.options.log;
        for (own, live) in self.entries.iter().zip(self.live()) {
            let hidden = if log { f64::NEG_INFINITY } else { 0.0 };
            own.iter().for_each(|&at| out[at] = hidden);
            let sum: f64 = live.iter().map(|&at| (scores[at] * self.options.scale).exp()).sum();
            for at in live {
                let score = scores[at] * self.options.scale;
                out[at] = if log { score - sum.ln() } else { score.exp() / sum };
            }
        }
        out
    }

    fn gradient(&self, given: &[f64], upstream: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; given.len()];
        for live in self.live() {
            let log = self.options.log;
            let weight = |at: usize| if log { 1.0 } else { given[at] };
            let sum: f64 = live.iter().map(|&at| weight(at) * upstream[at]).sum();
            for at in live {
                let own = match log {
                    true => upstream[at] - given[at].exp() * sum,
                    false => given[at] * (upstream[at] - sum),
                };
                out[at] = own * self.options.scale;
            }
        }
        out
    }
}

fn softmax_options(t: &mut Trial<'_>, rows: usize, columns: usize) -> SoftmaxOptions {
    let parts = match rows {
        0 => 1,
        _ => t.one(&[1, rows]),
    };
    let lengths = (0..parts).map(|_| t.one(&[0, columns / 2, columns, columns + 5]));
    let lengths: Vec<usize> = lengths.collect();
    let mut options = SoftmaxOptions {
        scale: t.one(&[1.0, 0.5]),
        log: t.once_in(2),
        causal: t.one(&[None, None, Some(0), Some(-3), Some(i64::MIN), Some(i64::MAX)]),
        lengths: t.once_in(2).then_some(lengths),
        heads: 1,
    };
    if rows > 0 && t.is_made_wrong("lengths that do not divide the rows") {
        options.lengths = Some(t.one(&[&[][..], &[1; 1000][..]]).to_vec());
    }
    options
}

/// Values of a matrix whose nonzeros are at the positions of these elements.
fn with<T: Scalar>(pattern: &AnySparse<f64>, elements: &[f64]) -> AnySparse<T> {
    // Values of the pattern are numbers of elements.
    pattern.map_values(|at| T::from_f64(elements.get(at as usize).copied().unwrap_or(0.0)))
}

/// Softmax of rows and its gradient.
pub fn softmax<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(4);
    let [m, n] = [t.rows(), t.rows()];
    let share = t.one(&[0, 3, 16, 64]);
    let mut entries = t.entries(&[m, n], share);
    for (place, x) in &mut entries {
        *x = (place[0] * n + place[1]) as f64;
    }
    let format = t.one(&FORMATS[..5]);
    let pattern = sparse_of::<f64>(&[m, n], &entries, format)?;
    let options = softmax_options(t, m, n);
    let own = |row: usize| {
        let own = entries.iter().filter(|(place, _)| place[0] == row);
        own.map(|(_, x)| *x as usize).collect()
    };
    let rows = Rows { entries: (0..m).map(own).collect(), columns: n, options: options.clone() };
    let mut scores: Vec<f64> = (0..m * n).map(|_| t.integer()).collect();
    let planned = t.context.upload(with::<T>(&pattern, &scores)).unwrap();
    let made = SparseSoftmax::new(t.context, &planned, &options);
    let softmax = t.made(made)?;
    let wanted = rows.softmax(&scores);
    // Values at masked positions are ignored.
    for (row, own) in rows.entries.iter().enumerate() {
        let hidden = own.iter().filter(|&&at| rows.is_hidden(row, at));
        hidden.for_each(|&at| scores[at] = f64::NAN);
    }
    let given = t.sparse("scores", &with::<T>(&pattern, &scores));
    let mut out = t.sparse("output", &of_nan(&with::<T>(&pattern, &scores)));
    if t.is_run_wrong("scores of another shape") {
        let other = sparse_of::<T>(&[m + 1, n], &[], format)?;
        out = t.context.upload(of_nan(&other)).unwrap();
    }
    t.run(&mut out, |out, stream| softmax.forward(&given, out, stream))?;
    let p = out.to_host().unwrap().to_dense().unwrap();
    let what = format!("{format} {:?}", rows.options);
    near(&what, p.values(), &wanted, 0.0);
    let p: Vec<f64> = p.values().iter().map(|x| x.to_f64()).collect();
    let upstream: Vec<f64> = (0..m * n).map(|_| t.integer()).collect();
    let mut from = t.sparse("upstream", &with::<T>(&pattern, &upstream));
    t.queue(|stream| softmax.backward_in_place(&out, &mut from, stream))?;
    let found = from.to_host().unwrap().to_dense().unwrap();
    near(&what, found.values(), &rows.gradient(&p, &upstream), 0.0);
    Ok(())
}

/// Many heads of one pattern.
pub fn softmax_of_heads<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(2);
    let [m, n, heads] = [t.rows(), t.rows(), t.one(&[1, 2, 5])];
    let share = t.one(&[0, 3, 16, 64]);
    let entries = t.entries(&[m, n], share);
    let pattern = sparse_of::<T>(&[m, n], &entries, "csr")?;
    let planned = t.context.upload(pattern).unwrap();
    let options = SoftmaxOptions { heads, ..SoftmaxOptions::default() };
    let softmax = t.made(SparseSoftmax::new(t.context, &planned, &options.clone()))?;
    // Heads have equal strides in the output and in the input.
    t.whole = true;
    let slots = entries.len();
    let scores = t.integers::<T>("scores", &[heads, slots]);
    let mut out = t.written::<T>("output", &[heads, slots]);
    t.run(&mut out, |out, stream| softmax.forward_heads(&scores.there, out, stream))?;
    let in_row = |row: usize| {
        let own = entries.iter().enumerate();
        let own = own.filter(|(_, (place, _))| place[0] == row);
        own.map(|(at, _)| at).collect()
    };
    let rows = Rows { entries: (0..m).map(in_row).collect(), columns: n, options };
    let all = scores.values.chunks(slots.max(1));
    let wanted: Vec<f64> = all.flat_map(|own| rows.softmax(own)).collect();
    near("heads", out.to_dense().unwrap().values(), &wanted, 0.0);
    no_gap_is_written("heads", &out);
    Ok(())
}

/// Patterns with indices that are out of range.
pub fn patterns<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    let (count, extent) = (1 + t.below(8), 8);
    let mut columns: Vec<u32> = (0..count as u32).collect();
    let is_wrong = t.once_in(2);
    if is_wrong {
        columns[count - 1] = t.one(&[8, 9, 1 << 31, u32::MAX - 1]);
    }
    let rows = vec![0; count];
    let made = [
        CooPattern::new(vec![1, extent], vec![rows.clone(), columns.clone()]).is_ok(),
        CsrPattern::new(1, extent, vec![0, count as u32], columns.clone()).is_ok(),
        Coo::from_entries(vec![1, extent], vec![rows, columns], vec![T::ONE; count]).is_ok(),
    ];
    assert_eq!(made, [!is_wrong; 3]);
    match is_wrong {
        true => Err(Outcome::Refused),
        false => Ok(()),
    }
}
