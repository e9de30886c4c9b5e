//! Experts: routing with invalid expert numbers, products and gradients of routed rows, and whole layers with their
//! gradients.

use einsparse::Scalar;
use einsparse::dynamic::{Gate, GroupedGemm, GroupedOptions, Matrices, Routing};
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, E4m3, SCALE_BLOCK};
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};

use super::results::same;
use super::trial::{Given, Outcome, Trial};
use crate::families::gather_gemm::{
    ExpertOperands, expert_gradients, expert_options, experts_by_loops,
};

/// Numbers of tokens, of choices per token, and of experts.
fn extents(t: &mut Trial<'_>) -> [usize; 3] {
    [t.rows(), t.one(&[1, 1, 2, 3]), t.one(&[1, 2, 3, 8, 17])]
}

/// Choices, some of which name no expert; some are at the ends of the type.
fn choices(t: &mut Trial<'_>, [tokens, top, experts]: [usize; 3]) -> Given<i32> {
    let kind = t.below(4);
    let last = experts as i32;
    t.given("choices", &[tokens, top], |t, _| match kind {
        0 => f64::from(t.one(&[-1, last, i32::MAX, i32::MIN, last + 31])),
        1 => t.below(experts) as f64,
        2 if t.once_in(3) => f64::from(t.one(&[-1, last, i32::MAX, i32::MIN])),
        2 => t.below(experts) as f64,
        _ => (experts - 1) as f64,
    })
}

/// Returns the expert that a choice names.
fn named(choice: f64, experts: usize) -> Option<usize> {
    (choice >= 0.0 && choice < experts as f64).then_some(choice as usize)
}

/// Choices sorted by expert, those without an expert last, and the first position of each expert.
fn sorted(choices: &Given<i32>, experts: usize) -> (Vec<u32>, Vec<u32>) {
    let bin = |number: u32| named(choices.values[number as usize], experts).unwrap_or(experts);
    let mut order: Vec<u32> = (0..choices.values.len() as u32).collect();
    order.sort_by_key(|&number| bin(number));
    let below = |e: usize| order.iter().filter(|&&number| bin(number) < e).count() as u32;
    let offsets = (0..experts + 2).map(below).collect();
    (order, offsets)
}

/// A routing after a run, checked, and its choices.
fn routed(t: &mut Trial<'_>, of: [usize; 3]) -> Result<(Routing, Given<i32>), Outcome> {
    let [tokens, top, experts] = of;
    let wanted = match t.is_made_wrong("a routing without experts or choices") {
        true => t.one(&[[tokens, top, 0], [tokens, 0, experts]]),
        false => of,
    };
    let made = Routing::new(t.context, [wanted[0], wanted[1]], wanted[2]);
    let mut routing = t.made(made)?;
    // A GPU requires choices without gaps.
    let choices = choices(t, of);
    t.queue(|stream| routing.run(&choices.there, stream))?;
    let (order, offsets) = sorted(&choices, experts);
    assert_eq!(routing.order().unwrap(), order);
    assert_eq!(routing.offsets().unwrap(), offsets);
    Ok((routing, choices))
}

/// Creates a routing of other extents, if that is the fault of the run.
fn other_routing(t: &mut Trial<'_>, [tokens, top, experts]: [usize; 3]) -> Option<Routing> {
    let is_wrong = t.is_run_wrong("a routing of other extents");
    let extents = t.one(&[
        ([tokens + 1, top], experts),
        ([tokens, top + 1], experts),
        ([tokens, top], experts + 1),
    ]);
    let other = || Routing::new(t.context, extents.0, extents.1).unwrap();
    is_wrong.then(other)
}

/// Stack of matrices `[experts, k, n]`, or transposed. Matrices that no choice names are NaN.
fn stack<T: Scalar>(
    t: &mut Trial<'_>,
    (choices, experts): (&Given<i32>, usize),
    matrix: [usize; 2],
) -> Given<T> {
    let chosen = |e: usize| choices.values.iter().any(|&c| named(c, experts) == Some(e));
    let used: Vec<bool> = (0..experts).map(chosen).collect();
    let size = (matrix[0] * matrix[1]).max(1);
    t.given("matrices", &[experts, matrix[0], matrix[1]], |t, i| match used[i / size] {
        true => t.integer(),
        false => f64::NAN,
    })
}

/// A stack in e4m3 with scales, and its dequantized values.
fn scaled_stack(
    t: &mut Trial<'_>,
    choices: (&Given<i32>, usize),
    matrix: [usize; 2],
) -> (Given<E4m3>, Given<f32>, Vec<f64>) {
    let codes = stack::<E4m3>(t, choices, matrix);
    let [down, across] = matrix.map(|extent| extent.div_ceil(SCALE_BLOCK));
    let scales =
        t.given::<f32>("scales", &[choices.1, down, across], |t, _| t.one(&[0.5, 1.0, 2.0, -1.0]));
    let value = |(i, code): (usize, &f64)| {
        let (line, column) = (i / matrix[1], i % matrix[1]);
        let [expert, row] = [line / matrix[0], line % matrix[0]];
        let block = (expert * down + row / SCALE_BLOCK) * across + column / SCALE_BLOCK;
        code * scales.values[block]
    };
    let values = codes.values.iter().enumerate().map(value).collect();
    (codes, scales, values)
}

/// Rows of A, of tokens or of slots; NaN if no expert reads them.
fn rows_of<T: Scalar>(
    t: &mut Trial<'_>,
    choices: &Given<i32>,
    [_, top, experts]: [usize; 3],
    (by_token, columns): (bool, usize),
) -> Given<T> {
    let is_named = |&c: &f64| named(c, experts).is_some();
    let known = choices.values.iter().filter(|c| is_named(c)).count();
    let slots = choices.values.len();
    let is_read = |row: usize| match by_token {
        true => choices.values[row * top..][..top].iter().any(is_named),
        false => row < known,
    };
    let rows = if by_token { slots / top } else { slots };
    let read: Vec<bool> = (0..rows).map(is_read).collect();
    t.given("rows", &[rows, columns], |t, i| match read[i / columns] {
        true => t.integer(),
        false => f64::NAN,
    })
}

/// Product of rows with the matrices that a routing selects.
pub fn grouped<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(6);
    let of = extents(t);
    let (routing, choices) = routed(t, of)?;
    let [tokens, top, experts] = of;
    let options = GroupedOptions {
        k: t.columns(),
        n: t.columns(),
        gather: t.once_in(2),
        scatter: t.once_in(2),
        activation: t.one(&[Activation::Identity, Activation::Relu]),
        transposed: t.once_in(2),
        ..GroupedOptions::default()
    };
    let is_gated = t.once_in(3);
    let options = match is_gated {
        true => {
            GroupedOptions { gate: Some(Gate::Relu), activation: Activation::Identity, ..options }
        }
        false => options,
    };
    let options = match options.transposed && t.once_in(3) {
        true => GroupedOptions {
            k: options.k.next_multiple_of(16),
            n: match is_gated {
                true => options.n.next_multiple_of(SCALE_BLOCK),
                false => options.n,
            },
            scaled: true,
            quantize: t.once_in(2),
            ..options
        },
        false => options,
    };
    let GroupedOptions { k, n, .. } = options;
    let wide = if is_gated { 2 * n } else { n };
    let product = t.made(GroupedGemm::<T>::new(&routing, &options))?;
    let a = rows_of::<T>(t, &choices, of, (options.gather, k));
    let matrix = if options.transposed { [wide, k] } else { [k, wide] };
    let (plain, scaled, values);
    let w = if options.scaled {
        let (codes, scales, stand_for) = scaled_stack(t, (&choices, experts), matrix);
        (scaled, values) = ((codes, scales), stand_for);
        Matrices::Scaled(&scaled.0.there, &scaled.1.there)
    } else {
        plain = stack::<T>(t, (&choices, experts), matrix);
        values = plain.values;
        Matrices::Plain(&plain.there)
    };
    let weights = t.once_in(2).then(|| {
        t.given::<f32>("weights", &[tokens, top], |t, i| match named(choices.values[i], experts) {
            Some(_) => t.one(&[0.5, 1.0, 2.0, -1.0]),
            None => f64::NAN,
        })
    });
    let mut c = t.written::<T>("C", &[tokens * top, n]);
    let other = other_routing(t, of);
    let by = other.as_ref().unwrap_or(&routing);
    let weighted = weights.as_ref().map(|w| &w.there);
    t.run(&mut c, |c, stream| product.forward(by, &a.there, w, weighted, c, stream))?;
    // Rows without an expert are zero if results are scattered; otherwise they remain unchanged.
    let start = if options.scatter { 0.0 } else { f64::NAN };
    let mut wanted = vec![start; tokens * top * n];
    let order = sorted(&choices, experts).0;
    for (slot, &choice) in order.iter().enumerate() {
        let choice = choice as usize;
        let Some(expert) = named(choices.values[choice], experts) else {
            continue;
        };
        let row = if options.gather { choice / top } else { slot };
        let to = if options.scatter { choice } else { slot };
        let weight = weights.as_ref().map_or(1.0, |w| w.values[choice]);
        let sum = |j: usize| -> f64 {
            let at = |i: usize| match options.transposed {
                true => values[(expert * wide + j) * k + i],
                false => values[(expert * k + i) * wide + j],
            };
            (0..k).map(|i| a.values[row * k + i] * at(i)).sum()
        };
        for j in 0..n {
            let clamped = is_gated || options.activation == Activation::Relu;
            let own = if clamped { sum(j).max(0.0) } else { sum(j) };
            wanted[to * n + j] = weight * if is_gated { own * sum(n + j) } else { own };
        }
    }
    same(&format!("C by {options:?}"), &c, &wanted);
    Ok(())
}

/// A product, and its random inputs.
struct Drawn<'d, T> {
    of: [usize; 3],
    choices: &'d Given<i32>,
    by: &'d Routing,
    product: GroupedGemm<T>,
    options: GroupedOptions,
}

/// Either gradient of such a product.
pub fn grouped_gradient<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(4);
    let of = extents(t);
    let (routing, choices) = routed(t, of)?;
    let options = GroupedOptions {
        k: t.columns(),
        n: t.columns(),
        gather: t.once_in(2),
        scatter: t.once_in(2),
        transposed: t.once_in(2),
        ..GroupedOptions::default()
    };
    let product = t.made(GroupedGemm::<T>::for_training(&routing, &options))?;
    let of_input = t.once_in(2);
    let other = other_routing(t, of);
    let drawn =
        Drawn { of, choices: &choices, by: other.as_ref().unwrap_or(&routing), product, options };
    match of_input {
        true => gradient_of_input(t, &drawn),
        false => gradient_of_weight(t, &drawn),
    }
}

fn gradient_of_input<T: Scalar>(t: &mut Trial<'_>, d: &Drawn<'_, T>) -> Result<(), Outcome> {
    let (GroupedOptions { k, n, .. }, [tokens, top, experts]) = (d.options, d.of);
    let dc = rows_of::<T>(t, d.choices, d.of, (d.options.scatter, n));
    let matrix = if d.options.transposed { [n, k] } else { [k, n] };
    let w = stack::<T>(t, (d.choices, experts), matrix);
    let mut da = t.written::<T>("dA", &[tokens * top, k]);
    t.run(&mut da, |da, stream| d.product.backward_input(d.by, &dc.there, &w.there, da, stream))?;
    let start = if d.options.gather { 0.0 } else { f64::NAN };
    let mut wanted = vec![start; tokens * top * k];
    for (slot, &choice) in sorted(d.choices, experts).0.iter().enumerate() {
        let choice = choice as usize;
        let Some(expert) = named(d.choices.values[choice], experts) else {
            continue;
        };
        let row = if d.options.scatter { choice / top } else { slot };
        let to = if d.options.gather { choice } else { slot };
        for i in 0..k {
            let at = |j: usize| match d.options.transposed {
                true => w.values[(expert * n + j) * k + i],
                false => w.values[(expert * k + i) * n + j],
            };
            wanted[to * k + i] = (0..n).map(|j| dc.values[row * n + j] * at(j)).sum();
        }
    }
    same(&format!("dA by {:?}", d.options), &da, &wanted);
    Ok(())
}

fn gradient_of_weight<T: Scalar>(t: &mut Trial<'_>, d: &Drawn<'_, T>) -> Result<(), Outcome> {
    let (GroupedOptions { k, n, .. }, [_, top, experts]) = (d.options, d.of);
    let a = rows_of::<T>(t, d.choices, d.of, (d.options.gather, k));
    let dc = rows_of::<T>(t, d.choices, d.of, (d.options.scatter, n));
    let matrix = if d.options.transposed { [n, k] } else { [k, n] };
    let mut dw = t.written::<T>("dW", &[experts, matrix[0], matrix[1]]);
    t.run(&mut dw, |dw, stream| d.product.backward_weight(d.by, &a.there, &dc.there, dw, stream))?;
    let mut wanted = vec![0.0; experts * k * n];
    for (slot, &choice) in sorted(d.choices, experts).0.iter().enumerate() {
        let choice = choice as usize;
        let Some(expert) = named(d.choices.values[choice], experts) else {
            continue;
        };
        let row = |tokens: bool| if tokens { choice / top } else { slot };
        let x = &a.values[row(d.options.gather) * k..][..k];
        let y = &dc.values[row(d.options.scatter) * n..][..n];
        for (i, x) in x.iter().enumerate() {
            for (j, y) in y.iter().enumerate() {
                let at = match d.options.transposed {
                    true => (expert * n + j) * k + i,
                    false => (expert * k + i) * n + j,
                };
                wanted[at] += x * y;
            }
        }
    }
    same(&format!("dW by {:?}", d.options), &dw, &wanted);
    Ok(())
}

/// A layer and its gradients.
pub fn layer<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(11);
    let of = extents(t);
    let [tokens, top, experts] = of;
    let mut o = expert_options([tokens, top], experts, [t.columns(), t.columns()]);
    o.transposed = t.once_in(2);
    let is_trained = t.once_in(2) && o.model > 0 && o.hidden > 0;
    if !is_trained && t.once_in(2) {
        (o.activation, o.gate) = (Activation::Identity, Some(Gate::Relu));
    }
    let made = made_layer::<T>(t, o, is_trained);
    let mut layer = t.made(made)?;
    let choices = choices(t, of);
    let x = rows_of::<T>(t, &choices, of, (true, o.model));
    let weights = t.given::<f32>("weights", &[tokens, top], |t, _| t.one(&[0.5, 1.0, 2.0, -1.0]));
    let [[_, rows, columns], down] = o.shapes();
    let up = stack::<T>(t, (&choices, experts), [rows, columns]);
    let down = stack::<T>(t, (&choices, experts), [down[1], down[2]]);
    let mut out = t.written::<T>("out", &[tokens, o.model]);
    let inputs = MoeInputs {
        x: &x.there,
        choices: &choices.there,
        weights: &weights.there,
        up: (&up.there).into(),
        down: (&down.there).into(),
    };
    t.run(&mut out, |out, stream| layer.forward(&inputs, out, stream))?;
    let operands = ExpertOperands {
        x: dense::<T>(&[tokens, o.model], &x.values),
        weights: dense(&[tokens, top], &weights.values),
        up: dense(&o.shapes()[0], &up.values),
        down: dense(&o.shapes()[1], &down.values),
    };
    let chosen: Dense<i32> = dense(&[tokens, top], &choices.values);
    let wanted = experts_by_loops(&o, &operands, &chosen);
    same(&format!("out of {o:?}"), &out, &wanted);
    if !is_trained {
        return Ok(());
    }
    layer_gradients(t, (&mut layer, &o), &inputs, (&operands, &chosen))
}

/// Gradients of a layer after a run.
fn layer_gradients<T: Scalar>(
    t: &mut Trial<'_>,
    (layer, o): (&mut Moe<T>, &MoeOptions),
    inputs: &MoeInputs<'_, T>,
    (operands, chosen): (&ExpertOperands<T>, &Dense<i32>),
) -> Result<(), Outcome> {
    let dout = t.integers::<T>("dout", &[o.tokens, o.model]);
    let mut dx = t.written::<T>("dx", &[o.tokens, o.model]);
    let mut dweights = t.written::<f32>("dweights", &[o.tokens, o.top_k]);
    let mut dup = t.written::<T>("dup", &o.shapes()[0]);
    let mut ddown = t.written::<T>("ddown", &o.shapes()[1]);
    let gradients =
        MoeGradients { x: &mut dx, weights: &mut dweights, up: &mut dup, down: &mut ddown };
    t.queue(|stream| layer.backward(inputs, &dout.there, gradients, stream))?;
    let dout = dense::<T>(&[o.tokens, o.model], &dout.values);
    let [x, weights, up, down] = expert_gradients(o, operands, chosen, &dout);
    same("gradient of x", &dx, &x);
    same("gradient of weights", &dweights, &weights);
    same("gradient of up", &dup, &up);
    same("gradient of down", &ddown, &down);
    Ok(())
}

/// Creates the layer, or one with invalid options.
fn made_layer<T: Scalar>(
    t: &mut Trial<'_>,
    mut o: MoeOptions,
    is_trained: bool,
) -> einsparse::Result<Moe<T>> {
    if t.is_made_wrong("experts of whom there are none, or without a gradient") {
        match t.below(3) {
            0 => o.experts = 0,
            1 => o.top_k = 0,
            _ if is_trained => o.activation = Activation::Gelu,
            _ => o.tokens = 1 << 31,
        }
    }
    match is_trained {
        true => Moe::for_training(t.context, &o),
        false => Moe::new(t.context, &o),
    }
}

fn dense<T: Scalar>(shape: &[usize], values: &[f64]) -> Dense<T> {
    let values = values.iter().map(|&x| T::from_f64(x)).collect();
    Dense::new(shape.to_vec(), values).unwrap()
}
