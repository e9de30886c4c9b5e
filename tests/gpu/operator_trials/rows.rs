//! Tensors of any order with matrices: MTTKRP, TTM, sampled products; and the equivariant tensor product.

use std::collections::BTreeMap;

use einsparse::formats::AnySparse;
use einsparse::ops::{
    self, Channels, Couplings, Factors, Gradients, SampledTensor, TensorProduct, Ttm,
};
use einsparse::{Operand, Scalar, Tensor};

use super::loops::{Entries, of_nan, sparse_of};
use super::results::{near, no_gap_is_written, same, same_values};
use super::trial::{Given, Outcome, Trial};

/// A tensor with one of these orders.
fn tensor<T: Scalar>(
    t: &mut Trial<'_>,
    orders: &[usize],
) -> Result<(AnySparse<T>, Entries), Outcome> {
    let order = t.one(orders);
    let shape: Vec<usize> = (0..order).map(|_| t.one(&[1, 2, 3, 5, 8, 12, 0, 9])).collect();
    let share = t.one(&[0, 4, 16, 48]);
    let entries = t.entries(&shape, share);
    let format = match order {
        2 => t.one(&["coo", "csr", "csc", "groupcoo:3"]),
        _ => t.one(&["coo", "coo", "groupcoo:3", "groupcoo"]),
    };
    Ok((sparse_of::<T>(&shape, &entries, format)?, entries))
}

/// A matrix for each axis except one.
fn factors<T: Scalar>(
    t: &mut Trial<'_>,
    shape: &[usize],
    but: Option<usize>,
    n: usize,
    axes: &[usize],
) -> Vec<(usize, Given<T>)> {
    let own = (0..shape.len()).filter(|&axis| Some(axis) != but);
    own.map(|axis| {
        let name = format!("factor {axis}");
        let of = [shape[axis], n];
        (axis, t.given_but(&name, &of, axes, |t, _| t.integer()))
    })
    .collect()
}

/// One mode of a tensor times a matrix for each of the other modes.
pub fn mttkrp<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    let (tensor, entries) = tensor::<T>(t, &[2, 3, 3, 4])?;
    let shape = tensor.shape().to_vec();
    t.aim(shape.len());
    let (n, mut mode) = (t.columns(), t.below(shape.len()));
    let factors = factors::<T>(t, &shape, Some(mode), n, &[0]);
    let there = t.sparse("T", &tensor);
    let mut given: Vec<Operand<'_, T>> = factors.iter().map(|(_, f)| (&f.there).into()).collect();
    let own = mode;
    if t.is_run_wrong("a mode that is not there, or a factor that is not given") {
        match t.below(2) {
            0 => mode = t.one(&[shape.len(), usize::MAX]),
            _ => drop(given.pop()),
        }
    }
    let stream = t.context.stream().unwrap();
    let ran = ops::mttkrp(t.context, &there, mode, given);
    let found = t.ended(&stream, ran, &[])?;
    let mut wanted = vec![0.0; shape[own] * n];
    for (place, x) in &entries {
        for r in 0..n {
            let each = factors.iter().map(|(axis, f)| f.values[place[*axis] * n + r]);
            wanted[place[own] * n + r] += x * each.product::<f64>();
        }
    }
    let what = format!("mode {own} of {shape:?} {}", tensor.format());
    same(&what, &found, &wanted);
    Ok(())
}

/// One axis times a matrix: one row for every fibre with nonzeros.
pub fn ttm<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(3);
    let (tensor, entries) = tensor::<T>(t, &[2, 3, 3, 4])?;
    let shape = tensor.shape().to_vec();
    let (n, own) = (t.columns(), t.below(shape.len()));
    let mut axis = own;
    if t.is_made_wrong("an axis that is not there") {
        axis = t.one(&[shape.len(), usize::MAX]);
    }
    let planned = t.context.upload(tensor.map_values(|x| x)).unwrap();
    let made = Ttm::new(t.context, &planned, axis, n);
    let ttm = t.made(made)?;
    let mut given = t.sparse("T", &tensor);
    if !entries.is_empty() && t.is_run_wrong("a tensor of other entries") {
        let other = sparse_of::<T>(&shape, &entries[1..], "coo")?;
        given = t.context.upload(other).unwrap();
    }
    let b = t.integers::<T>("B", &[shape[own], n]);
    let mut fibres: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
    for (place, x) in &entries {
        let mut rest = place.clone();
        let line = &b.values[rest.remove(own) * n..][..n];
        let to = fibres.entry(rest).or_insert_with(|| vec![0.0; n]);
        to.iter_mut().zip(line).for_each(|(to, b)| *to += x * b);
    }
    assert_eq!(ttm.count(), fibres.len());
    let found = ttm.fibres().unwrap();
    for (at, place) in fibres.keys().enumerate() {
        let found = found.coords().iter().map(|axis| axis[at] as usize);
        assert!(found.eq(place.iter().copied()), "fibre {at}");
    }
    let mut y = t.written::<T>("Y", &[fibres.len(), n]);
    t.run(&mut y, |y, stream| ttm.forward(&given, &b.there, y, stream))?;
    let wanted: Vec<f64> = fibres.into_values().flatten().collect();
    let what = format!("axis {own} of {shape:?} by {}", ttm.variant());
    same(&what, &y, &wanted);
    Ok(())
}

/// Products at the nonzeros of a tensor.
pub fn sampled<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    let (tensor, entries) = tensor::<T>(t, &[2, 3, 3])?;
    let shape = tensor.shape().to_vec();
    t.aim(shape.len() + 2);
    let n = t.columns();
    let planned = t.context.upload(tensor.map_values(|x| x)).unwrap();
    let made = SampledTensor::new(t.context, &planned, n);
    let sampled = t.made(made)?;
    let factors = factors::<T>(t, &shape, None, n, &[0, 1]);
    let mut given: Vec<_> = factors.iter().map(|(_, f)| &f.there).collect();
    let mut out = t.sparse("S", &of_nan(&tensor));
    let is_masked = t.once_in(2);
    let mask = is_masked.then(|| t.sparse("P", &tensor));
    if t.is_run_wrong("a factor is not given, or the output has other entries") {
        match t.below(2) {
            0 => drop(given.pop()),
            _ => {
                let more: Vec<usize> = shape.iter().map(|extent| extent + 1).collect();
                let other = sparse_of::<T>(&more, &[(shape.clone(), 1.0)], "coo")?;
                out = t.context.upload(of_nan(&other)).unwrap();
            }
        }
    }
    t.run(&mut out, |out, stream| sampled.forward(mask.as_ref(), &given, out, stream))?;
    let dot = |place: &[usize]| -> f64 {
        let term = |r: usize| {
            let each = factors.iter().map(|(axis, f)| f.values[place[*axis] * n + r]);
            each.product::<f64>()
        };
        (0..n).map(term).sum()
    };
    let wanted = entries.iter().map(|(place, x)| match is_masked {
        true => (place.clone(), x * dot(place)),
        false => (place.clone(), dot(place)),
    });
    let wanted: Entries = wanted.collect();
    let wanted = sparse_of::<T>(&shape, &wanted, "coo")?;
    let found = out.to_host().unwrap().convert(wanted.format()).unwrap();
    let wanted: Vec<f64> = wanted.values().iter().map(|x| x.to_f64()).collect();
    same_values(sampled.variant(), found.values(), &wanted);
    Ok(())
}

/// Coefficients as a list for loops: i, j, row, path, component of the output, and the value.
struct Terms(Vec<([usize; 5], f64)>);

impl Terms {
    fn of<T: Scalar>(couplings: &Couplings) -> Self {
        let all = couplings.tensor::<T>().unwrap();
        let (coords, values) = (all.pattern().coords(), all.values());
        let (paths, components) = (couplings.path_of_row(), couplings.component_of_row());
        let term = |at: usize| {
            let [i, j, row] = [0, 1, 2].map(|axis| coords[axis][at] as usize);
            let own = [i, j, row, paths[row] as usize, components[row] as usize];
            (own, values[at].to_f64())
        };
        Terms((0..values.len()).map(term).collect())
    }
}

/// Operands of a product, as values for loops and as tensors of the context.
struct Product<T> {
    channels: Channels,
    items: usize,
    shapes: [Vec<usize>; 4],
    all: [Given<T>; 3],
}

impl<T: Scalar> Product<T> {
    /// Calls a function for every term, with the positions in X, Y, W and Out and the coefficient.
    fn each(&self, terms: &Terms, mut call: impl FnMut([usize; 4], f64)) {
        let [x, y, w, out] = [0, 1, 2, 3].map(|of| self.shapes[of].get(1).copied().unwrap_or(1));
        let (u, v, each_w) = match self.channels {
            Channels::One => (1, 1, false),
            Channels::Each(u) => (u, 1, true),
            Channels::Connected(u, v) => (u, v, false),
            Channels::ConnectedEach(u, v) => (u, v, true),
        };
        let is_connected =
            matches!(self.channels, Channels::Connected(..) | Channels::ConnectedEach(..));
        for b in 0..self.items {
            for &([i, j, row, path, component], c) in &terms.0 {
                let to = if is_connected { component } else { row };
                let path = if each_w { b * w + path } else { path };
                for (p, q) in (0..u).flat_map(|p| (0..v).map(move |q| (p, q))) {
                    let place = match is_connected {
                        true => (b * out + to) * v + q,
                        false => (b * out + to) * u + p,
                    };
                    let own = [(b * x + i) * u + p, b * y + j, (path * u + p) * v + q, place];
                    call(own, c);
                }
            }
        }
    }
}

/// The product and its gradients. Coefficients of paths through degree 0 are 1 or -1, so sums are exact.
pub fn tensor_product<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(5);
    let simple = [[0, 0, 0], [1, 0, 1], [0, 1, 1], [2, 0, 2]];
    let mut paths: Vec<[usize; 3]> = Vec::new();
    paths.extend(simple.iter().filter(|_| t.once_in(2)));
    if paths.is_empty() || t.once_in(3) {
        paths.push([1, 1, t.below(3)]);
    }
    if t.is_made_wrong("paths that couple nothing, or twice") {
        match t.below(3) {
            0 => paths.clear(),
            1 => paths.push(paths[0]),
            _ => paths.push(t.one(&[[1, 1, 3], [7, 0, 7], [0, 0, 1]])),
        }
    }
    let couplings = t.made(Couplings::new(&paths))?;
    let widths = [1, 2, 4, 8, 16, 3];
    let channels = match t.below(4) {
        0 => Channels::One,
        1 => Channels::Each(t.one(&widths)),
        2 => Channels::Connected(t.one(&widths), t.one(&widths)),
        _ => Channels::ConnectedEach(t.one(&widths), t.one(&widths)),
    };
    let items = t.one(&[0, 1, 2, 7, 31, 32, 33]);
    let has_gradients = t.once_in(2);
    let made = match has_gradients {
        true => TensorProduct::<T>::with_gradients(t.context, &couplings, channels, items),
        false => TensorProduct::<T>::new(t.context, &couplings, channels, items),
    };
    let product = t.made(made)?;
    let shapes = [product.x_shape(), product.y_shape(), product.w_shape(), product.out_shape()]
        .map(<[usize]>::to_vec);
    // Support for gaps between rows depends on the kernel.
    t.whole = true;
    let x = t.integers::<T>("X", &shapes[0]);
    let y = t.integers::<T>("Y", &shapes[1]);
    let w = match channels {
        Channels::One => Given { values: Vec::new(), there: t.context.zeros(&[0]).unwrap() },
        _ => t.integers::<T>("W", &shapes[2]),
    };
    let terms = Terms::of::<T>(&couplings);
    let own = Product { channels, items, shapes, all: [x, y, w] };
    run(t, &product, &own, &terms, has_gradients)
}

/// Adds a term to a sum, and its magnitude to the sum of magnitudes.
fn add((sums, sizes): &mut (Vec<f64>, Vec<f64>), to: usize, term: f64) {
    sums[to] += term;
    sizes[to] += term.abs();
}

fn run<T: Scalar>(
    t: &mut Trial<'_>,
    product: &TensorProduct<T>,
    own: &Product<T>,
    terms: &Terms,
    has_gradients: bool,
) -> Result<(), Outcome> {
    let [x, y, w] = &own.all;
    let has_weights = own.channels != Channels::One;
    let is_missing = has_weights && t.is_run_wrong("weights that are not given");
    let factors =
        Factors { x: &x.there, y: &y.there, w: (has_weights && !is_missing).then_some(&w.there) };
    let mut out = t.written::<T>("Out", &own.shapes[3]);
    t.run(&mut out, |out, stream| product.forward(factors, out, stream))?;
    let weight = |at: usize| if has_weights { w.values[at] } else { 1.0 };
    let is_whole = terms.0.iter().all(|(_, c)| c.fract() == 0.0);
    let check = |what: &str, found: &Tensor<T>, (wanted, sizes): (Vec<f64>, Vec<f64>)| {
        let size = sizes.into_iter().fold(0.0, f64::max);
        no_gap_is_written(what, found);
        match is_whole {
            true => same(what, found, &wanted),
            false => near(what, found.to_dense().unwrap().values(), &wanted, size),
        }
    };
    let zeros = |of: usize| {
        let count = own.shapes[of].iter().product();
        (vec![0.0; count], vec![0.0; count])
    };
    let mut wanted = zeros(3);
    own.each(terms, |[i, j, p, to], c| {
        add(&mut wanted, to, c * x.values[i] * y.values[j] * weight(p));
    });
    check("Out", &out, wanted);
    let g = t.integers::<T>("G", &own.shapes[3]);
    if !has_gradients {
        return Ok(());
    }
    for of in 0..if has_weights { 3 } else { 2 } {
        let mut to = t.written::<T>("a gradient", &own.shapes[of]);
        t.run(&mut to, |to, stream| {
            let mut gradients = Gradients { x: None, y: None, w: None };
            match of {
                0 => gradients.x = Some(to),
                1 => gradients.y = Some(to),
                _ => gradients.w = Some(to),
            }
            product.backward(factors, &g.there, gradients, stream)
        })?;
        let mut wanted = zeros(of);
        own.each(terms, |[i, j, p, out], c| {
            let each = [x.values[i], y.values[j], weight(p)];
            let others = (0..3).filter(|&other| other != of);
            let others: f64 = others.map(|other| each[other]).product();
            add(&mut wanted, [i, j, p][of], c * g.values[out] * others);
        });
        check(["DX", "DY", "DW"][of], &to, wanted);
    }
    Ok(())
}
