//! The equivariant tensor product and its gradients: against loops over the dense coefficients, finite differences, and
//! rotation matrices that are built independently. The CPU runs the same suite.

mod case;
mod rotations;
mod structure;

use crate::support::assert_error;
use crate::support::dense::{strided, wide};
use crate::support::{GUARD, Rng, gpu, small};
use case::{Case, widths};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{Channels, Couplings, Factors, Gradients, TensorProduct};
use einsparse::{Context, Error, Scalar, Tensor};
use rotations::{Matrix, rotation, wigner};

const ONE: Channels = Channels::One;

fn unit<T: Scalar>() -> f64 {
    match T::DTYPE.bytes() {
        8 => f64::EPSILON,
        4 => f64::from(f32::EPSILON),
        _ if T::DTYPE.name() == "f16" => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    }
}

fn tensor<T: Scalar>(ctx: &Context, shape: &[usize], data: &[f64]) -> Tensor<T> {
    spread(ctx, shape, data, (0, 0.0))
}

/// Uploads a tensor with elements of value `between` between its rows.
pub(super) fn spread<T: Scalar>(
    ctx: &Context,
    shape: &[usize],
    data: &[f64],
    (gap, between): (usize, f64),
) -> Tensor<T> {
    let values = data.iter().map(|&v| T::from_f64(v)).collect();
    let dense = Dense::new(shape, values).unwrap();
    let leading = shape.last().unwrap_or(&1) + gap;
    strided(ctx, &dense, leading, T::from_f64(between))
}

/// Uploads X, Y, W and G, with NaN between their rows. An absent W or G has one element.
fn upload<T: Scalar>(
    ctx: &Context,
    product: &TensorProduct<T>,
    case: &Case,
    gap: usize,
) -> [Tensor<T>; 4] {
    let tensor = |ctx, shape, data: &[f64]| spread(ctx, shape, data, (gap, f64::NAN));
    let weighted = !case.data[2].is_empty();
    let w: (&[usize], &[f64]) = match weighted {
        true => (product.w_shape(), &case.data[2]),
        false => (&[1], &[0.0]),
    };
    [
        tensor(ctx, product.x_shape(), &case.data[0]),
        tensor(ctx, product.y_shape(), &case.data[1]),
        tensor(ctx, w.0, w.1),
        tensor(ctx, product.out_shape(), &case.data[3]),
    ]
}

/// Requests one gradient only: of X (0), Y or W.
fn only<T>(of: usize, out: &mut Tensor<T>) -> Gradients<'_, T> {
    let mut all = Gradients { x: None, y: None, w: None };
    *[&mut all.x, &mut all.y, &mut all.w][of] = Some(out);
    all
}

/// Queues the product (3) or a gradient (0 to 2), into an output full of NaN.
fn queue<T: Scalar>(
    ctx: &Context,
    product: &TensorProduct<T>,
    tensors: &[Tensor<T>; 4],
    of: usize,
    gap: usize,
) -> Result<Tensor<T>, Error> {
    let [x, y, w, g] = tensors;
    let shape = tensors[of].shape();
    let poison = vec![f64::NAN; shape.iter().product()];
    let mut out = spread(ctx, shape, &poison, (gap, GUARD));
    let w = (!product.w_shape().is_empty()).then_some(w);
    let factors = Factors { x, y, w };
    let stream = ctx.stream()?;
    match of {
        3 => product.forward(factors, &mut out, &stream),
        _ => product.backward(factors, g, only(of, &mut out), &stream),
    }?;
    stream.synchronize()?;
    Ok(out)
}

/// Returns the result of [`queue`]; requires that nothing was written between its rows.
fn run<T: Scalar>(
    ctx: &Context,
    product: &TensorProduct<T>,
    tensors: &[Tensor<T>; 4],
    of: usize,
    gap: usize,
) -> Vec<f64> {
    let shape = tensors[of].shape();
    let out = queue(ctx, product, tensors, of, gap).unwrap();
    let width = *shape.last().unwrap_or(&1);
    let all = out.to_storage().unwrap();
    let kept = |row: &[T]| row[width.min(row.len())..].iter().all(|&x| x == T::from_f64(GUARD));
    let mut rows = all.chunks(width + gap);
    assert!(rows.all(kept), "{of} of {shape:?}: wrote between rows");
    wide(&out)
}

/// Compares product and gradients with the loops.
fn check<T: Scalar>(ctx: &Context, couplings: &Couplings, channels: Channels, items: usize) {
    let case = Case::new::<T>(couplings.clone(), channels, items);
    let gradients = TensorProduct::<T>::with_gradients(ctx, couplings, channels, items).unwrap();
    for of in (0..4).filter(|&of| !case.data[of].is_empty()) {
        let wanted = case.reference(of);
        let plan = gradients.variants()[(of + 1) % 4].unwrap_or("");
        let own = plan == "cpu"
            || ["tensor_product_", "equivariant_"].iter().any(|own| plan.starts_with(own));
        for gap in [0, 4, 7] {
            let tensors = upload(ctx, &gradients, &case, gap);
            // If a product exceeds shared memory, its kernel accepts only the planned strides, and the error names the
            // others.
            if !own && gap > 0 {
                let refused = queue(ctx, &gradients, &tensors, of, gap).unwrap_err();
                assert_error!(refused, Error::RowStride { .. } | Error::Operand { .. });
                continue;
            }
            let found = run(ctx, &gradients, &tensors, of, gap);
            let what = || format!("{channels:?}, {items} items, gradient {of}, gap {gap}, {plan}");
            compare::<T>(&found, &wanted, what);
        }
    }
}

/// Fails at the first element that differs from the expected value by more than rounding. `wanted` has the values and
/// the sums of magnitudes.
pub(super) fn compare<T: Scalar>(found: &[f64], wanted: &[(f64, f64)], what: impl Fn() -> String) {
    // Below 2^-14, f16 has steps of 2^-24.
    let least = match T::DTYPE.name() {
        "f16" => 2f64.powi(-24),
        _ => f64::MIN_POSITIVE,
    };
    // Coefficients and result are rounded to the type; sums are at least in f32.
    for (at, (found, (wanted, size))) in found.iter().zip(wanted).enumerate() {
        let bound = 2.0 * unit::<T>() * (size + wanted.abs()) + 1e-5 * size;
        let exact = T::DTYPE.bytes() == 8;
        let bound = if exact { 1e-12 * size } else { bound };
        assert!(
            (found - wanted).abs() <= bound + least,
            "{}, element {at}: {found}, {wanted} wanted",
            what()
        );
    }
}

/// Kinds of channels, with ragged widths.
const KINDS: [Channels; 10] = [
    ONE,
    Channels::Each(32),
    Channels::Each(1),
    Channels::Each(45),
    Channels::Connected(32, 32),
    Channels::Connected(5, 7),
    Channels::Connected(40, 36),
    Channels::ConnectedEach(32, 32),
    Channels::ConnectedEach(5, 7),
    Channels::ConnectedEach(40, 36),
];

fn suite<T: Scalar>(ctx: &Context, items: &[usize]) {
    let odd = Couplings::new(&[[1, 1, 1], [2, 1, 2], [0, 2, 2], [2, 2, 0]]).unwrap();
    // Components that couple to nothing, and to which nothing couples.
    let holes = Couplings::new(&[[2, 2, 1]]).unwrap();
    for (couplings, channels) in [Couplings::natural(2).unwrap(), odd, holes]
        .iter()
        .flat_map(|c| KINDS.map(|kind| (c, kind)))
    {
        items.iter().for_each(|&n| check::<T>(ctx, couplings, channels, n));
    }
}

#[test]
fn products_and_gradients() {
    suite::<f64>(&Context::unchecked_cpu(), &[3]);
    suite::<f32>(&Context::unchecked_cpu(), &[1]);
    let Some(ctx) = gpu() else { return };
    let items: &[usize] = if small() { &[33] } else { &[1, 31, 32, 33, 150] };
    suite::<f32>(&ctx, items);
    suite::<f64>(&ctx, &[33]);
    suite::<f16>(&ctx, &[33]);
    suite::<bf16>(&ctx, &[33]);
    let large = Couplings::natural(if small() { 3 } else { 6 }).unwrap();
    check::<f32>(&ctx, &large, ONE, 40);
    let large = Couplings::natural(if small() { 2 } else { 4 }).unwrap();
    check::<f32>(&ctx, &large, Channels::Each(32), 40);
    check::<f32>(&ctx, &large, Channels::Connected(32, 32), 40);
    check::<f32>(&ctx, &large, Channels::ConnectedEach(32, 32), 9);
}

/// Degrees up to 6 on the CPU.
#[test]
fn all_degrees() {
    let couplings = Couplings::natural(6).unwrap();
    check::<f64>(&Context::unchecked_cpu(), &couplings, ONE, 1);
}

/// F is linear in each operand, so `<G, F(X + h D)> - <G, F(X)>` is `h <dX, D>`.
#[test]
fn gradients_are_finite_differences() {
    let ctx = Context::unchecked_cpu();
    let couplings = Couplings::natural(3).unwrap();
    let connected = [Channels::Connected(3, 2), Channels::ConnectedEach(2, 3)];
    for channels in [ONE, Channels::Each(3)].into_iter().chain(connected) {
        let case = Case::new::<f64>(couplings.clone(), channels, 2);
        let product = TensorProduct::<f64>::with_gradients(&ctx, &couplings, channels, 2).unwrap();
        let before = upload(&ctx, &product, &case, 0);
        let value = |t: &[Tensor<f64>; 4]| -> f64 {
            let out = run(&ctx, &product, t, 3, 0);
            out.iter().zip(&case.data[3]).map(|(o, g)| o * g).sum()
        };
        for of in (0..3).filter(|&of| !case.data[of].is_empty()) {
            let gradient = run(&ctx, &product, &before, of, 0);
            let step = Rng(5).units::<f64>(gradient.len());
            let mut moved = upload(&ctx, &product, &case, 0);
            let there = case.data[of].iter().zip(&step).map(|(v, s)| v + 0.5 * s);
            let there: Vec<f64> = there.collect();
            moved[of] = tensor(&ctx, before[of].shape(), &there);
            let difference = value(&moved) - value(&before);
            let slope: f64 = gradient.iter().zip(&step).map(|(g, s)| g * s).sum();
            assert!((difference - 0.5 * slope).abs() < 1e-9, "{channels:?} {of}");
        }
    }
}

/// Rotates the components of one degree after the other. `data` is `[items, components, width]`, and `degrees` lists
/// the degrees along the components.
fn turn(data: &[f64], degrees: &[usize], width: usize, matrices: &[Matrix]) -> Vec<f64> {
    let components: usize = degrees.iter().map(|l| 2 * l + 1).sum();
    let mut out = vec![0.0; data.len()];
    for item in 0..data.len() / (components * width) {
        let mut start = item * components * width;
        for &l in degrees {
            for (i, row) in matrices[l].iter().enumerate() {
                for (j, d) in row.iter().enumerate() {
                    for u in 0..width {
                        out[start + i * width + u] += d * data[start + j * width + u];
                    }
                }
            }
            start += (2 * l + 1) * width;
        }
    }
    out
}

/// A rotation of X and Y rotates the output.
fn equivariant<T: Scalar>(ctx: &Context, couplings: &Couplings, channels: Channels, bound: f64) {
    let mut rng = Rng(3);
    let rotation = rotation(&mut rng);
    let matrices: Vec<Matrix> = (0..=6).map(|l| wigner(l, &rotation, &mut rng)).collect();
    let upto = |of: usize| -> Vec<usize> {
        let components = couplings.components(of);
        (0..).take_while(|l| l * l < components).collect()
    };
    let outputs: Vec<usize> = match channels {
        Channels::Connected(..) | Channels::ConnectedEach(..) => upto(2),
        _ => couplings.paths().iter().map(|p| p[2]).collect(),
    };
    let (u, w) = widths(channels);
    let product = TensorProduct::<T>::new(ctx, couplings, channels, 2).unwrap();
    let mut case = Case::new::<T>(couplings.clone(), channels, 2);
    let before = run(ctx, &product, &upload(ctx, &product, &case, 0), 3, 0);
    case.data[0] = turn(&case.data[0], &upto(0), u, &matrices);
    case.data[1] = turn(&case.data[1], &upto(1), 1, &matrices);
    let after = run(ctx, &product, &upload(ctx, &product, &case, 0), 3, 0);
    for (at, (a, b)) in after.iter().zip(turn(&before, &outputs, w, &matrices)).enumerate() {
        assert!((a - b).abs() < bound, "{channels:?} {at}: {a} {b}");
    }
    // The rotation must change something, or the test proves nothing.
    assert!(before.iter().zip(&after).any(|(a, b)| (a - b).abs() > 0.01));
}

#[test]
fn products_turn_with_their_operands() {
    let cpu = Context::unchecked_cpu();
    let connected = [Channels::Connected(2, 3), Channels::ConnectedEach(2, 3)];
    for channels in [ONE, Channels::Each(2)].into_iter().chain(connected) {
        equivariant::<f64>(&cpu, &Couplings::natural(4).unwrap(), channels, 1e-9);
    }
    equivariant::<f64>(&cpu, &Couplings::natural(6).unwrap(), ONE, 1e-8);
    // Odd sums of degrees: cross products.
    let odd = Couplings::new(&[[1, 1, 1], [2, 1, 2], [3, 2, 4], [2, 2, 1]]).unwrap();
    equivariant::<f64>(&cpu, &odd, Channels::Each(2), 1e-9);
    let Some(ctx) = gpu() else { return };
    for channels in [ONE, Channels::Each(32), Channels::Connected(32, 32)] {
        equivariant::<f32>(&ctx, &Couplings::natural(3).unwrap(), channels, 2e-3);
    }
}

#[test]
fn entries_are_as_many_as_published() {
    for (largest, entries) in [(1, 10), (2, 83), (3, 353), (4, 1158)] {
        let couplings = Couplings::natural(largest).unwrap();
        assert_eq!(couplings.tensor::<f64>().unwrap().values().len(), entries);
    }
}

#[test]
fn what_couples_to_nothing_is_refused() {
    for (paths, part) in [
        (&[][..], "0 paths"),
        (&[[1, 1, 3]], "couples 1 and 1 to 3"),
        (&[[7, 7, 0]], "up to 6"),
        (&[[1, 1, 0], [1, 1, 0]], "2 paths, 1 of them"),
    ] {
        let error = Couplings::new(paths).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(Couplings::natural(7).is_err());
    let ctx = Context::unchecked_cpu();
    let product = TensorProduct::<f32>::new(&ctx, &Couplings::natural(1).unwrap(), ONE, 2).unwrap();
    let (x, mut out) = (ctx.zeros(&[2, 4]).unwrap(), ctx.zeros(&[2, 7]).unwrap());
    let stream = ctx.stream().unwrap();
    let factors = Factors { x: &x, y: &x, w: None };
    let error = product.forward(factors, &mut out, &stream).unwrap_err();
    assert_error!(
        error,
        Error::Shape { left, right, .. } if left.contains("[2, 8]") && right.contains("[2, 7]")
    );
    let mut dw = ctx.zeros(&[1]).unwrap();
    let error = product.backward(factors, &out, only(2, &mut dw), &stream);
    assert_error!(error.unwrap_err(), Error::NotPlanned { name, .. } if name == "dW");
}
