//! The equivariant tensor product and its gradients: against loops over the dense coefficients, finite differences, and
//! rotations whose matrices are built apart. The CPU runs the same suite.

mod rotations;
mod structure;

use crate::support::{Rng, gpu, small};
use einsparse::formats::generate::clebsch_gordan;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{Channels, Couplings, Factors, TensorProduct};
use einsparse::{Context, Scalar, Tensor};
use rotations::{Matrix, rotation, wigner};

const ONE: Channels = Channels::One;

/// Channels of X and of the output.
fn widths(channels: Channels) -> (usize, usize) {
    match channels {
        Channels::One => (1, 1),
        Channels::Each(u) => (u, u),
        Channels::Connected(u, w) => (u, w),
    }
}

/// X, Y, W and G as f64.
struct Case {
    couplings: Couplings,
    channels: Channels,
    items: usize,
    data: [Vec<f64>; 4],
}

impl Case {
    fn new<T: Scalar>(couplings: Couplings, channels: Channels, items: usize) -> Case {
        let rows = match channels {
            Channels::Connected(..) => couplings.components(2),
            _ => couplings.rows(),
        };
        let paths = couplings.paths().len();
        let (u, w) = widths(channels);
        let weights = match channels {
            Channels::One => 0,
            Channels::Each(u) => items * paths * u,
            Channels::Connected(u, w) => paths * u * w,
        };
        let lens = [
            items * couplings.components(0) * u,
            items * couplings.components(1),
            weights,
            items * rows * w,
        ];
        let mut rng = Rng(items as u64 + 7);
        let data = lens.map(|n| rng.units::<T>(n).iter().map(|v| v.to_f64()).collect());
        Case {
            couplings,
            channels,
            items,
            data,
        }
    }

    /// For every term: places in X, Y, W, Out (W's is none without weights), and the coefficient.
    fn terms(&self, visit: &mut impl FnMut([usize; 4], f64)) {
        let (u, w) = widths(self.channels);
        let [ni, nj, nc] = [0, 1, 2].map(|of| self.couplings.components(of));
        let (rows, paths) = (self.couplings.rows(), self.couplings.paths());
        let mut row = 0;
        for (path, &[l1, l2, l3]) in paths.iter().enumerate() {
            let c = clebsch_gordan::<f64>(l1, l2, l3).unwrap();
            let at = |axis: usize, e: usize| c.pattern().coords()[axis][e] as usize;
            for (e, &value) in c.values().iter().enumerate() {
                let (i, j) = (l1 * l1 + at(0, e), l2 * l2 + at(1, e));
                for b in 0..self.items {
                    for (p, q) in (0..u).flat_map(|p| (0..w).map(move |q| (p, q))) {
                        let x = (b * ni + i) * u + p;
                        let k = row + at(2, e);
                        let (weight, out) = match self.channels {
                            Channels::Connected(..) => {
                                let component = l3 * l3 + at(2, e);
                                ((path * u + p) * w + q, (b * nc + component) * w + q)
                            }
                            _ if p != q => continue,
                            _ => ((b * paths.len() + path) * u + p, (b * rows + k) * u + p),
                        };
                        visit([x, b * nj + j, weight, out], value);
                    }
                }
            }
            row += 2 * l3 + 1;
        }
    }

    /// The product (3), or the gradient of X, Y, W (0 to 2): sums, and sums of magnitudes.
    fn reference(&self, of: usize) -> Vec<(f64, f64)> {
        let mut sums = vec![(0.0, 0.0); self.data[of].len()];
        let weighted = !self.data[2].is_empty();
        self.terms(&mut |at, value| {
            let others = (0..4).filter(|&f| f != of && (f != 2 || weighted));
            let term = others.fold(value, |term, f| term * self.data[f][at[f]]);
            let sum = &mut sums[at[of]];
            *sum = (sum.0 + term, sum.1 + term.abs());
        });
        // The product leaves G out; a gradient what it is of.
        sums
    }
}

fn unit<T: Scalar>() -> f64 {
    match T::DTYPE.bytes() {
        8 => f64::EPSILON,
        4 => f64::from(f32::EPSILON),
        _ if T::DTYPE.name() == "f16" => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    }
}

fn tensor<T: Scalar>(ctx: &Context, shape: &[usize], data: &[f64]) -> Tensor<T> {
    let values = data.iter().map(|&v| T::from_f64(v)).collect();
    ctx.upload_dense(&Dense::new(shape, values).unwrap())
        .unwrap()
}

/// X, Y, W and G in a context; the last two of one element where there are none.
fn upload<T: Scalar>(ctx: &Context, product: &TensorProduct<T>, case: &Case) -> [Tensor<T>; 4] {
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

/// The product (3) or a gradient (0 to 2), into an output full of NaN.
fn run<T: Scalar>(
    ctx: &Context,
    product: &TensorProduct<T>,
    tensors: &[Tensor<T>; 4],
    of: usize,
) -> Vec<f64> {
    let [x, y, w, g] = tensors;
    let mut out = tensor(
        ctx,
        tensors[of].shape(),
        &vec![f64::NAN; tensors[of].shape().iter().product()],
    );
    let w = (!product.w_shape().is_empty()).then_some(w);
    let factors = Factors { x, y, w };
    let stream = ctx.stream().unwrap();
    match of {
        0 => product.gradient_x(factors, g, &mut out, &stream),
        1 => product.gradient_y(factors, g, &mut out, &stream),
        2 => product.gradient_w(factors, g, &mut out, &stream),
        _ => product.forward(factors, &mut out, &stream),
    }
    .unwrap();
    stream.synchronize().unwrap();
    let values = out.to_dense().unwrap();
    values.values().iter().map(|v| v.to_f64()).collect()
}

/// Product and gradients against the loops.
fn check<T: Scalar>(ctx: &Context, couplings: &Couplings, channels: Channels, items: usize) {
    let case = Case::new::<T>(couplings.clone(), channels, items);
    let gradients = TensorProduct::<T>::with_gradients(ctx, couplings, channels, items).unwrap();
    let tensors = upload(ctx, &gradients, &case);
    // Below 2^-14 f16 has steps of 2^-24.
    let least = match T::DTYPE.name() {
        "f16" => 2f64.powi(-24),
        _ => f64::MIN_POSITIVE,
    };
    for of in 0..4 {
        if case.data[of].is_empty() {
            continue;
        }
        let found = run(ctx, &gradients, &tensors, of);
        // Coefficients are rounded to the type, as is the result; sums are of f32 at the least.
        for (at, (found, (wanted, size))) in found.iter().zip(case.reference(of)).enumerate() {
            let bound = 2.0 * unit::<T>() * (size + wanted.abs()) + 1e-5 * size;
            let exact = T::DTYPE.bytes() == 8;
            let bound = if exact { 1e-12 * size } else { bound };
            assert!(
                (found - wanted).abs() <= bound + least,
                "{channels:?}, {items} items, {of}, element {at}: {found}, {wanted} wanted"
            );
        }
    }
}

/// Kinds of channels, with ragged widths.
const KINDS: [Channels; 7] = [
    ONE,
    Channels::Each(32),
    Channels::Each(1),
    Channels::Each(45),
    Channels::Connected(32, 32),
    Channels::Connected(5, 7),
    Channels::Connected(40, 36),
];

fn suite<T: Scalar>(ctx: &Context, items: &[usize]) {
    let odd = Couplings::new(&[[1, 1, 1], [2, 1, 2], [0, 2, 2], [2, 2, 0]]).unwrap();
    // Components that couple to nothing, and that nothing couples to.
    let holes = Couplings::new(&[[2, 2, 1]]).unwrap();
    for (couplings, channels) in [Couplings::natural(2).unwrap(), odd, holes]
        .iter()
        .flat_map(|c| KINDS.map(|kind| (c, kind)))
    {
        items
            .iter()
            .for_each(|&n| check::<T>(ctx, couplings, channels, n));
    }
}

#[test]
fn products_and_gradients() {
    suite::<f64>(&Context::cpu(), &[3]);
    suite::<f32>(&Context::cpu(), &[1]);
    let Some(ctx) = gpu() else { return };
    let items: &[usize] = if small() {
        &[33]
    } else {
        &[1, 31, 32, 33, 150]
    };
    suite::<f32>(&ctx, items);
    suite::<f64>(&ctx, &[33]);
    suite::<f16>(&ctx, &[33]);
    suite::<bf16>(&ctx, &[33]);
    let large = Couplings::natural(if small() { 3 } else { 6 }).unwrap();
    check::<f32>(&ctx, &large, ONE, 40);
    let large = Couplings::natural(if small() { 2 } else { 4 }).unwrap();
    check::<f32>(&ctx, &large, Channels::Each(32), 40);
    check::<f32>(&ctx, &large, Channels::Connected(32, 32), 40);
}

/// Degrees up to 6 on the CPU.
#[test]
fn all_degrees() {
    let couplings = Couplings::natural(6).unwrap();
    check::<f64>(&Context::cpu(), &couplings, ONE, 1);
}

/// `<G, F(X + h D)> - <G, F(X)>` is `h <dX, D>`, F being linear in each of its operands.
#[test]
fn gradients_are_finite_differences() {
    let ctx = Context::cpu();
    let couplings = Couplings::natural(3).unwrap();
    for channels in [ONE, Channels::Each(3), Channels::Connected(3, 2)] {
        let case = Case::new::<f64>(couplings.clone(), channels, 2);
        let product = TensorProduct::<f64>::with_gradients(&ctx, &couplings, channels, 2).unwrap();
        let before = upload(&ctx, &product, &case);
        let value = |t: &[Tensor<f64>; 4]| -> f64 {
            let out = run(&ctx, &product, t, 3);
            out.iter().zip(&case.data[3]).map(|(o, g)| o * g).sum()
        };
        for of in (0..3).filter(|&of| !case.data[of].is_empty()) {
            let gradient = run(&ctx, &product, &before, of);
            let step = Rng(5).units::<f64>(gradient.len());
            let mut moved = upload(&ctx, &product, &case);
            let there = case.data[of].iter().zip(&step).map(|(v, s)| v + 0.5 * s);
            let there: Vec<f64> = there.collect();
            moved[of] = tensor(&ctx, before[of].shape(), &there);
            let difference = value(&moved) - value(&before);
            let slope: f64 = gradient.iter().zip(&step).map(|(g, s)| g * s).sum();
            assert!((difference - 0.5 * slope).abs() < 1e-9, "{channels:?} {of}");
        }
    }
}

/// Turns the components of degree after degree: `data` is `[items, components, width]`, `degrees` what stands along the components.
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

/// Turning X and Y turns the output.
fn equivariant<T: Scalar>(ctx: &Context, couplings: &Couplings, channels: Channels, bound: f64) {
    let mut rng = Rng(3);
    let rotation = rotation(&mut rng);
    let matrices: Vec<Matrix> = (0..=6).map(|l| wigner(l, &rotation, &mut rng)).collect();
    let upto = |of: usize| -> Vec<usize> {
        let components = couplings.components(of);
        (0..).take_while(|l| l * l < components).collect()
    };
    let outputs: Vec<usize> = match channels {
        Channels::Connected(..) => upto(2),
        _ => couplings.paths().iter().map(|p| p[2]).collect(),
    };
    let (u, w) = widths(channels);
    let product = TensorProduct::<T>::new(ctx, couplings, channels, 2).unwrap();
    let mut case = Case::new::<T>(couplings.clone(), channels, 2);
    let before = run(ctx, &product, &upload(ctx, &product, &case), 3);
    case.data[0] = turn(&case.data[0], &upto(0), u, &matrices);
    case.data[1] = turn(&case.data[1], &upto(1), 1, &matrices);
    let after = run(ctx, &product, &upload(ctx, &product, &case), 3);
    for (at, (a, b)) in after
        .iter()
        .zip(turn(&before, &outputs, w, &matrices))
        .enumerate()
    {
        assert!((a - b).abs() < bound, "{channels:?} {at}: {a} {b}");
    }
    // A rotation that does nothing would prove nothing.
    assert!(before.iter().zip(&after).any(|(a, b)| (a - b).abs() > 0.01));
}

#[test]
fn products_turn_with_their_operands() {
    let cpu = Context::cpu();
    for channels in [ONE, Channels::Each(2), Channels::Connected(2, 3)] {
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
    let ctx = Context::cpu();
    let product = TensorProduct::<f32>::new(&ctx, &Couplings::natural(1).unwrap(), ONE, 2).unwrap();
    let (x, mut out) = (ctx.zeros(&[2, 4]).unwrap(), ctx.zeros(&[2, 7]).unwrap());
    let stream = ctx.stream().unwrap();
    let factors = Factors {
        x: &x,
        y: &x,
        w: None,
    };
    let error = product
        .forward(factors, &mut out, &stream)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("[2, 8]") && error.contains("[2, 7]"),
        "{error}"
    );
    let error = product.gradient_w(factors, &out, &mut ctx.zeros(&[1]).unwrap(), &stream);
    assert!(error.unwrap_err().to_string().contains("DW"));
}
