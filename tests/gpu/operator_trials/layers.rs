//! Layers that are planned once: linear layers with block-sparse or unstructured weights and their gradients, and two
//! products with a ReLU between them.

use einsparse::dynamic::SparsityHint;
use einsparse::formats::AnySparse;
use einsparse::nn::{FeedForward, FeedForwardOptions, Linear, LinearOptions};
use einsparse::{Scalar, SparseTensor};

use super::loops::{coo, product, sparse_of, turned};
use super::results::{same, same_values};
use super::trial::{Outcome, Trial};

/// Elements of a sparse matrix, row by row.
fn elements<T: Scalar>(matrix: &AnySparse<T>) -> Vec<f64> {
    let dense = matrix.to_dense().unwrap();
    dense.values().iter().map(|x| x.to_f64()).collect()
}

/// Checks the gradient of the weights: its values at stored positions, and zero elsewhere.
fn check_gradient<T: Scalar>(weight: &AnySparse<T>, found: &SparseTensor<T>, mut wanted: Vec<f64>) {
    let stored = elements(&weight.map_values(|_| T::ONE));
    for (wanted, stored) in wanted.iter_mut().zip(stored) {
        *wanted *= stored;
    }
    let found = found.to_host().unwrap().to_dense().unwrap();
    same_values("gradient of weights", found.values(), &wanted);
}

/// Weights in blocks, in one of the block formats.
fn blocks<T: Scalar>(t: &mut Trial<'_>) -> Result<AnySparse<T>, Outcome> {
    let edge = match t.is_for_gpu() {
        true => t.one(&[16, 32, 64]),
        false => t.one(&[2, 3, 8, 16]),
    };
    let [down, across] = [t.one(&[0, 1, 2, 3]), t.one(&[1, 2, 4])];
    let cut = if t.once_in(5) { 1 } else { 0 };
    let shape = [down * edge, across * edge - cut];
    let there = t.entries(&[down, across], 40);
    let mut entries = Vec::new();
    for (block, _) in there {
        for at in 0..edge * edge {
            let place = vec![block[0] * edge + at / edge, block[1] * edge + at % edge];
            if place[1] < shape[1] {
                entries.push((place, t.integer()));
            }
        }
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let format = match t.below(4) {
        0 => format!("bsr:{edge}x{edge}"),
        1 => format!("blockcoo:{edge}x{edge}"),
        2 => format!("blockgroupcoo:{edge}x{edge}"),
        _ => format!("blockgroupcoo:{edge}x{edge}:2"),
    };
    sparse_of(&shape, &entries, &format)
}

/// Linear layer with block-sparse weights.
pub fn of_blocks<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(4);
    let tokens = t.rows();
    let weight = blocks::<T>(t)?;
    let options =
        LinearOptions { relu: t.once_in(2), relu_input: t.once_in(2), ..LinearOptions::default() };
    let given = match t.is_made_wrong("weights that are no matrix") {
        true => coo(&[2, 3, 4], &[(vec![0, 1, 2], 1.0)]),
        false => weight.map_values(|x| x),
    };
    let made = Linear::new(t.context, given, tokens, &options);
    let mut layer = t.made(made)?;
    let &[o, i] = weight.shape() else {
        unreachable!("weights are a matrix");
    };
    let w = elements(&weight);
    let x = t.integers::<T>("X", &[tokens, i]);
    let mut y = t.written::<T>("Y", &[tokens, o]);
    t.run(&mut y, |y, stream| layer.forward(&x.there, y, stream))?;
    let mut wanted = product(&x.values, &turned(&w, [o, i]), [tokens, i, o]);
    if options.relu {
        wanted.iter_mut().for_each(|x| *x = x.max(0.0));
    }
    same(&format!("Y of {:?}", layer.variants()), &y, &wanted);
    let dy = t.integers::<T>("dY", &[tokens, o]);
    let mut dx = t.written::<T>("dX", &[tokens, i]);
    t.run(&mut dx, |dx, stream| layer.backward_input(&x.there, &dy.there, dx, stream))?;
    t.queue(|stream| layer.backward_weight(&x.there, &dy.there, stream))?;
    let mut wanted = product(&dy.values, &w, [tokens, o, i]);
    if options.relu_input {
        let gated = wanted.iter_mut().zip(&x.values).filter(|(_, x)| **x <= 0.0);
        gated.for_each(|(to, _)| *to = 0.0);
    }
    same(&format!("dX of {:?}", layer.variants()), &dx, &wanted);
    let wanted = product(&turned(&dy.values, [tokens, o]), &x.values, [o, tokens, i]);
    check_gradient(&weight, layer.gradient(), wanted);
    Ok(())
}

/// Linear layer with unstructured weights.
pub fn of_entries<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(4);
    let [o, i, tokens] = [t.rows(), t.rows(), t.columns()];
    let share = t.one(&[0, 4, 16]);
    let entries = t.entries(&[o, i], share);
    let format = t.one(&["csr", "coo", "ell", "groupcoo:4"]);
    let weight = sparse_of::<T>(&[o, i], &entries, format)?;
    let mut rows = o;
    let biased = t.once_in(2);
    if biased && t.is_made_wrong("a bias of another length") {
        rows += 1;
    }
    let (values, bias) = {
        let values: Vec<f64> = (0..rows).map(|_| t.integer()).collect();
        let own = values.iter().map(|&x| T::from_f64(x)).collect();
        let dense = einsparse::formats::Dense::new([rows], own).unwrap();
        (values, t.context.upload_dense(&dense).unwrap())
    };
    let options =
        LinearOptions { tokens_in_columns: true, relu: t.once_in(2), ..LinearOptions::default() };
    let given = weight.map_values(|x| x);
    let made = match biased {
        true => Linear::with_bias(t.context, given, tokens, bias, &options),
        false => Linear::new(t.context, given, tokens, &options),
    };
    let mut layer = t.made(made)?;
    let w = elements(&weight);
    let x = t.integers::<T>("X", &[i, tokens]);
    let mut y = t.written::<T>("Y", &[o, tokens]);
    t.run(&mut y, |y, stream| layer.forward(&x.there, y, stream))?;
    let mut wanted = product(&w, &x.values, [o, i, tokens]);
    if biased {
        let with_bias = wanted.iter_mut().enumerate();
        with_bias.for_each(|(at, x)| *x += values[at / tokens]);
    }
    if options.relu {
        wanted.iter_mut().for_each(|x| *x = x.max(0.0));
    }
    same(&format!("Y of {format} {:?}", layer.variants()), &y, &wanted);
    let dy = t.integers::<T>("dY", &[o, tokens]);
    let mut dx = t.written::<T>("dX", &[i, tokens]);
    t.run(&mut dx, |dx, stream| layer.backward_input(&x.there, &dy.there, dx, stream))?;
    t.queue(|stream| layer.backward_weight(&x.there, &dy.there, stream))?;
    let wanted = product(&turned(&w, [o, i]), &dy.values, [i, o, tokens]);
    same(&format!("dX of {format} {:?}", layer.variants()), &dx, &wanted);
    let wanted = product(&dy.values, &turned(&x.values, [i, tokens]), [o, tokens, i]);
    check_gradient(&weight, layer.gradient(), wanted);
    Ok(())
}

/// Feed-forward layer with ReLU. Hidden activations are rounded to the element type.
pub fn feed_forward<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(4);
    let [tokens, i, h, o] = [t.rows(), t.columns(), t.columns(), t.columns()];
    let options = FeedForwardOptions {
        expected: t.one(&[
            SparsityHint::MicroTiles(0.02),
            SparsityHint::MicroTiles(1.0),
            SparsityHint::Elements(f64::NAN),
        ]),
        ..FeedForwardOptions::default()
    };
    let made = FeedForward::<T>::new(t.context, [tokens, i, h, o], &options);
    let mut layer = t.made(made)?;
    let x = t.integers::<T>("X", &[tokens, i]);
    // Most columns are never above zero.
    let is_used: Vec<bool> = (0..h).map(|_| t.once_in(4)).collect();
    let u = t.given::<T>("U", &[i, h], |t, at| match is_used[at % h] {
        true => t.integer(),
        false => 0.0,
    });
    let w = t.integers::<T>("W", &[h, o]);
    let mut y = t.written::<T>("Y", &[tokens, o]);
    t.run(&mut y, |y, stream| layer.forward([&x.there, &u.there, &w.there], y, stream))?;
    let hidden = product(&x.values, &u.values, [tokens, i, h]);
    let hidden: Vec<f64> = hidden.into_iter().map(|x| T::from_f64(x.max(0.0)).to_f64()).collect();
    same("hidden", layer.hidden(), &hidden);
    let wanted = product(&hidden, &w.values, [tokens, h, o]);
    same(&format!("Y of {:?}", layer.variants()), &y, &wanted);
    Ok(())
}
