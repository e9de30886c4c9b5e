//! Products of rows with the matrices of chosen experts, by each kernel of the module `grouped`: matrices of the rows'
//! type, e4m3 with scales, and rows rounded to e4m3 too. Exact on integers.

use einsparse::dynamic::{Gate, GroupedGemm, GroupedOptions, Matrices, Routing};
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, E4m3, Element, bf16, f16};
use einsparse::registry::{Operation, Row};
use einsparse::{Context, Error, Scalar, Tensor};
use einsparse_kernels::abi::{B_COLUMNS, PLAIN};
use einsparse_kernels::families::{QUANTIZED_COLUMNS, SCALED_COLUMNS, STEP_GROUPED_GATED};

use crate::families::discover::routing::{Router, choices, integers, routed};
use crate::support::dense::{assert_equal, poisoned, strided, upload, upload_values, wide};
use crate::support::rows::{is_here, kernels_here};
use crate::support::runs::finish;
use crate::support::{Rng, assert_error, gpu};

/// Number of rows and of columns that share a scale.
const BLOCK: usize = 128;

/// Matrices as codes and scales.
pub struct Scaled {
    pub codes: Dense<E4m3>,
    pub scales: Dense<f32>,
}

impl Scaled {
    /// Returns integers times powers of two, mostly zero; or any codes with any scales.
    pub fn draw(shape: [usize; 3], exact: bool, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let [experts, rows, columns] = shape;
        let every = columns.div_ceil(8).max(1) as u64;
        let codes = (0..shape.iter().product()).map(|_| match exact {
            true if rng.word() % every == 0 => E4m3::from_f64(rng.integer()),
            true => E4m3::ZERO,
            // All codes except NaN.
            false => match E4m3::from_bits(rng.word() as u8) {
                code if code.is_nan() => E4m3::MAX,
                code => code,
            },
        });
        let codes = Dense::new(shape, codes.collect()).unwrap();
        let blocks = [experts, rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let scales = (0..blocks.iter().product()).map(|_| match exact {
            true => [0.5, 1.0, -1.0, 2.0][rng.word() as usize % 4],
            false => 1e-4 + 2e-3 * rng.unit().abs() as f32,
        });
        let scales = Dense::new(blocks, scales.collect()).unwrap();
        Scaled { codes, scales }
    }

    /// Returns the represented values.
    pub fn rounded<T: Scalar>(&self) -> Dense<T> {
        let &[_, rows, columns] = self.codes.shape() else {
            unreachable!("three axes");
        };
        let &[_, down, across] = self.scales.shape() else {
            unreachable!("three axes");
        };
        Dense::from_fn(self.codes.shape(), |at| {
            let code = self.codes.values()[(at[0] * rows + at[1]) * columns + at[2]];
            let block = (at[0] * down + at[1] / BLOCK) * across + at[2] / BLOCK;
            T::from_f64(f64::from(code.to_acc() * self.scales.values()[block]))
        })
        .unwrap()
    }

    pub fn upload<T>(&self, context: &Context) -> Uploaded<T> {
        let ([codes], [scales]) = (upload(context, [&self.codes]), upload(context, [&self.scales]));
        Uploaded::Scaled(codes, scales)
    }
}

/// Matrices in the memory of a context.
pub enum Uploaded<T> {
    Plain(Tensor<T>),
    Scaled(Tensor<E4m3>, Tensor<f32>),
}

/// Matrices of a layer.
pub enum Matrix<T> {
    Plain(Dense<T>),
    Scaled(Scaled),
}

impl<T: Scalar> Matrix<T> {
    pub fn upload(&self, context: &Context) -> Uploaded<T> {
        match self {
            Matrix::Plain(plain) => Uploaded::Plain(context.upload_dense(plain).unwrap()),
            Matrix::Scaled(scaled) => scaled.upload(context),
        }
    }
}

impl<T: Scalar> Uploaded<T> {
    pub fn write(&mut self, new: &Matrix<T>) {
        match (self, new) {
            (Uploaded::Plain(there), Matrix::Plain(plain)) => there.write(plain).unwrap(),
            (Uploaded::Scaled(codes, scales), Matrix::Scaled(new)) => {
                codes.write(&new.codes).unwrap();
                scales.write(&new.scales).unwrap();
            }
            _ => unreachable!("one kind"),
        }
    }

    pub fn get(&self) -> Matrices<'_, T> {
        match self {
            Uploaded::Plain(plain) => plain.into(),
            Uploaded::Scaled(codes, scales) => (codes, scales).into(),
        }
    }
}

/// Runs one product in this context; returns all elements of C, gaps included. `w` are the matrices of scaled options;
/// others have integers.
fn product<T: Scalar>(
    context: &Context,
    (choices, w): (&Dense<i32>, &Scaled),
    options: GroupedOptions,
    weighted: bool,
    variant: Option<&str>,
) -> Vec<f64> {
    let &[experts, rows_of_w, columns_of_w] = w.codes.shape() else { unreachable!("three axes") };
    let routing = routed(context, choices, experts);
    let (slots, [tokens, top]) = (routing.slots(), routing.shape());
    let GroupedOptions { k, n, gather, scaled, .. } = options;
    let rows = if gather { tokens } else { slots };
    let gap = if scaled { 0 } else { 8 };
    let a = integers::<T>(context, &[rows, k], k + gap, 5);
    let w = match scaled {
        true => w.upload(context),
        false => {
            let shape = [experts, rows_of_w, columns_of_w];
            Uploaded::Plain(integers::<T>(context, &shape, columns_of_w + 16, 6))
        }
    };
    let weights = upload_values(context, &[tokens, top], Rng(7).integers::<f32>(slots));
    let weights = weighted.then_some(&weights);
    let guard = Dense::from_fn([slots, n], |_| T::from_f64(77.0)).unwrap();
    let mut c = strided(context, &guard, n + gap, T::from_f64(77.0));
    let product = GroupedGemm::<T>::with_variant(&routing, &options, variant).unwrap();
    finish(context, |stream| product.forward(&routing, &a, w.get(), weights, &mut c, stream));
    c.to_storage().unwrap().into_iter().map(|x| x.to_f64()).collect()
}

/// Shape of the matrices of these options.
fn shape(experts: usize, options: &GroupedOptions) -> [usize; 3] {
    let wide = if options.gate.is_some() { 2 * options.n } else { options.n };
    if options.transposed { [experts, wide, options.k] } else { [experts, options.k, wide] }
}

/// Options of the rows of the table with this order of W, gated or not. Integers are exact after quantization.
fn of_rows(order: u32, gated: bool, [k, n]: [usize; 2]) -> GroupedOptions {
    let scaled = [SCALED_COLUMNS, QUANTIZED_COLUMNS].contains(&order);
    let [k, n] = if scaled { [k.next_multiple_of(16), n] } else { [k, n] };
    GroupedOptions {
        k,
        n: if scaled && gated { n.next_multiple_of(BLOCK) } else { n },
        transposed: order != PLAIN,
        gate: gated.then_some(Gate::Relu),
        scaled,
        quantize: order == QUANTIZED_COLUMNS,
        ..GroupedOptions::default()
    }
}

/// Rows of the table for this type and order of W.
fn rows<T: Scalar>(order: u32) -> impl Iterator<Item = &'static Row> {
    kernels_here().filter(move |row| {
        row.operation == Operation::Grouped && row.dtype == T::DTYPE && row.order == order
    })
}

/// Runs every row of the table for this type and order of W. The CPU's sums take longest, so each has its own test.
fn rows_agree<T: Scalar>(order: u32) {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    assert!(rows::<T>(order).next().is_some());
    for gated in [false, true] {
        let own: Vec<_> =
            rows::<T>(order).filter(|r| gated == (r.step == STEP_GROUPED_GATED)).collect();
        for (tokens, experts, extents, router) in [
            ([300, 1], 3, [64, 256], Router::Even),
            ([200, 2], 5, [72, 264], Router::Uneven),
            ([130, 1], 2, [264, 136], Router::One),
            ([40, 3], 4, [8, 8], Router::Holes),
            ([20, 1], 3, [64, 520], Router::Nobody),
            ([1, 1], 1, [392, 64], Router::Even),
            ([3, 8], 24, [1032, 384], Router::Even),
            ([2000, 2], 16, [136, 392], Router::Holes),
            ([64, 1], 2, [0, 64], Router::Even),
            ([0, 1], 2, [64, 64], Router::Even),
        ] {
            let choices = choices(tokens, experts, router, 11);
            let plain = of_rows(order, gated, extents);
            let w = Scaled::draw(shape(experts, &plain), true, 6);
            // Scaled rows differ from plain ones in the products alone. Large products take the CPU longest.
            let large = tokens[0] * tokens[1] * extents[0] * extents[1] > 1 << 24;
            for way in if plain.scaled || large { 12..16u32 } else { 0..16 } {
                let bit = |i: u32| way >> i & 1 != 0;
                let relu = bit(2) && !gated;
                let options = GroupedOptions {
                    gather: bit(0),
                    scatter: bit(1),
                    activation: if relu { Activation::Relu } else { Activation::Identity },
                    ..plain
                };
                // The CPU multiplies exact integers by exact integers.
                let exact = GroupedOptions { quantize: false, ..options };
                let wanted = product::<T>(&cpu, (&choices, &w), exact, bit(3), None);
                for row in &own {
                    let found = product::<T>(&gpu, (&choices, &w), options, bit(3), Some(row.name));
                    let what = format!("{} {tokens:?} {experts} {options:?} {router:?}", row.name);
                    assert_equal(&what, &found, &wanted);
                }
            }
        }
    }
}

macro_rules! rows_agree {
    ($($name:ident: $t:ty, $order:ident;)*) => {
        $(#[test]
        fn $name() {
            rows_agree::<$t>($order);
        })*
    };
}

rows_agree! {
    products_of_f16: f16, PLAIN;
    products_of_bf16: bf16, PLAIN;
    transposed_products_of_f16: f16, B_COLUMNS;
    transposed_products_of_bf16: bf16, B_COLUMNS;
    scaled_products_of_f16: f16, SCALED_COLUMNS;
    scaled_products_of_bf16: bf16, SCALED_COLUMNS;
    quantized_products_of_f16: f16, QUANTIZED_COLUMNS;
    quantized_products_of_bf16: bf16, QUANTIZED_COLUMNS;
}

/// Enough rows that thread blocks run in pairs and reuse their stages. Panels of an expert form several groups, also of
/// odd size, and there are more tiles than pairs of thread blocks.
#[test]
fn products_of_many_rows() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    // 3,181 rows form groups of 9, 9 and 7 panels; 319 rows form a group of 3.
    let choices = Dense::from_fn(vec![3500, 1], |i| i32::from(i[0] % 11 == 0)).unwrap();
    let own = kernels_here().filter(|row| {
        let gates = 1 + u32::from(row.step == STEP_GROUPED_GATED);
        let lies = row.order == PLAIN || row.order == B_COLUMNS;
        let wide = lies && row.columns * gates >= if row.stands_in { 128 } else { 256 };
        row.operation == Operation::Grouped && row.dtype == bf16::DTYPE && wide
    });
    let mut tried = 0;
    for row in own {
        let is_gated = row.step == STEP_GROUPED_GATED;
        let options = GroupedOptions {
            gather: is_gated,
            scatter: !is_gated,
            ..of_rows(row.order, is_gated, [264, 8 * row.columns as usize])
        };
        let w = Scaled::draw(shape(2, &options), true, 6);
        let run = |context, variant| {
            product::<bf16>(context, (&choices, &w), options, !is_gated, variant)
        };
        assert_equal(row.name, &run(&gpu, Some(row.name)), &run(&cpu, None));
        tried += 1;
    }
    assert!(tried >= 4 && (tried == 4 || !is_here("grouped_bf16_256_t")), "{tried}");
}

/// Compares the CPU's product with explicit sums.
#[test]
fn products_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    let (experts, [k, n]) = (3, [5, 4]);
    let choices = choices([9, 2], experts, Router::Holes, 4);
    let options = GroupedOptions {
        k,
        n,
        gather: true,
        scatter: true,
        activation: Activation::Relu,
        ..GroupedOptions::default()
    };
    let w = Scaled::draw([experts, k, n], true, 6);
    let found = product::<f32>(&cpu, (&choices, &w), options, true, None);
    let a = integers::<f32>(&cpu, &[9, k], k, 5).to_dense().unwrap();
    let w = integers::<f32>(&cpu, &[experts, k, n], n, 6).to_dense().unwrap();
    let weights = Rng(7).integers::<f32>(18);
    for (number, &expert) in choices.values().iter().enumerate() {
        for j in 0..n {
            let term = |i: usize| {
                a.values()[number / 2 * k + i] * w.values()[(expert as usize * k + i) * n + j]
            };
            let wanted = match usize::try_from(expert) {
                Ok(e) if e < experts => weights[number] * (0..k).map(term).sum::<f32>().max(0.0),
                _ => 0.0,
            };
            assert_eq!(found[number * (n + 8) + j], f64::from(wanted), "{number} {j}");
        }
    }
}

/// NaN and infinity of another expert, past a row of A, or past the last row of a matrix do not spread.
#[test]
fn products_keep_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    let (tokens, [k, n]) = (100, [72, 64]);
    let choices = Dense::from_fn(vec![tokens, 1], |i| i[0] as i32 % 2).unwrap();
    for gather in [true, false] {
        let routing = routed(&gpu, &choices, 2);
        let options = GroupedOptions { k, n, gather, scatter: true, ..GroupedOptions::default() };
        // Row 0 of tokens, and of slots, belongs to expert 0.
        let mut a = vec![f16::ONE; tokens * k];
        a[3] = f16::NAN;
        let mut w = vec![f16::ONE; 2 * k * n];
        w[k * n..].fill(f16::INFINITY);
        let a = Dense::new(vec![tokens, k], a).unwrap();
        let a = gpu.upload_strided(&a, k + 8, f16::NAN).unwrap();
        let w = upload_values(&gpu, &[2, k, n], w);
        let mut c = gpu.zeros::<f16>(&[tokens, n]).unwrap();
        let matmul = GroupedGemm::<f16>::new(&routing, &options).unwrap();
        finish(&gpu, |stream| matmul.forward(&routing, &a, &w, None, &mut c, stream));
        let c = c.to_dense().unwrap();
        for (token, row) in c.values().chunks(n).enumerate() {
            let right = |x: &f16| match token {
                0 => x.is_nan(),
                t if t % 2 == 0 => x.to_f64() == k as f64,
                _ => *x == f16::INFINITY,
            };
            assert!(row.iter().all(right), "row {token}, gather {gather}");
        }
    }
}

/// A NaN code makes its column NaN in the rows of its matrix, and no other element.
#[test]
fn nan_codes_stay_in_their_columns() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    let experts = 2;
    let choices = choices([90, 1], experts, Router::Even, 11);
    for row in [SCALED_COLUMNS, QUANTIZED_COLUMNS].into_iter().flat_map(rows::<f16>) {
        let options = GroupedOptions {
            gather: true,
            scatter: true,
            ..of_rows(row.order, row.step == STEP_GROUPED_GATED, [144, 128])
        };
        let shape @ [_, wide, k] = shape(experts, &options);
        let mut w = Scaled::draw(shape, true, 6);
        // Every byte of a word, and the last word of a column.
        for (i, column) in [0, 5, 9, 38, 71, 127].into_iter().enumerate() {
            let deep = if i == 5 { k - 1 } else { 29 * i };
            w.codes.values_mut()[(wide - options.n + column) * k + deep] = E4m3::from_f64(f64::NAN);
        }
        let exact = GroupedOptions { quantize: false, ..options };
        let wanted = product::<f16>(&cpu, (&choices, &w), exact, true, None);
        let found = product::<f16>(&gpu, (&choices, &w), options, true, Some(row.name));
        let count = wanted.iter().filter(|x| x.is_nan()).count();
        assert!(count > 0 && count < wanted.len() / 8, "{}: {count}", row.name);
        assert_equal(row.name, &found, &wanted);
    }
}

/// Returns options of a product of e4m3 with e4m3.
pub fn both_sides(k: usize, n: usize) -> GroupedOptions {
    GroupedOptions {
        k,
        n,
        transposed: true,
        scaled: true,
        quantize: true,
        ..GroupedOptions::default()
    }
}

/// Multiplies rows by identity matrices, and so returns what the rows are rounded to.
fn rounded<T: Scalar>(context: &Context, a: &Dense<T>) -> Vec<f64> {
    let &[rows, k] = a.shape() else {
        unreachable!("two axes");
    };
    let mut routing = Routing::new(context, [rows, 1], 1).unwrap();
    let options = GroupedOptions { gather: true, ..both_sides(k, k) };
    let product = GroupedGemm::<T>::new(&routing, &options).unwrap();
    let one = |at: &[usize]| E4m3::from_f64(f64::from(u8::from(at[1] == at[2])));
    let codes = Dense::from_fn(vec![1, k, k], one).unwrap();
    let blocks = k.div_ceil(128);
    let scales = Dense::from_fn(vec![1, blocks, blocks], |_| 1.0f32).unwrap();
    let [a] = upload(context, [a]);
    let ([codes], [scales]) = (upload(context, [&codes]), upload(context, [&scales]));
    let choices = context.zeros::<i32>(&[rows, 1]).unwrap();
    let mut c = poisoned::<T>(context, &[rows, k]);
    finish(context, |stream| routing.run(&choices, stream));
    finish(context, |stream| {
        product.forward(&routing, &a, (&codes, &scales), None, &mut c, stream)
    });
    wide(&c)
}

/// Numbers of all magnitudes, blocks of zeros, rows that end within a block, rows with NaN and infinity.
fn rows_are_rounded_as_on_the_cpu<T: Scalar>() {
    let Some(gpu) = gpu() else { return };
    for [rows, k] in [[1, 16], [3, 64], [70, 80], [200, 272], [5, 1040], [130, 128]] {
        let mut rng = Rng(31);
        let mut value = |at: &[usize]| {
            let [row, column] = [at[0], at[1]];
            let size = 2f64.powi((row % 25) as i32 - 14);
            match (row % 7, column / 64 % 3) {
                (3, 1) => 0.0,
                (5, _) => size * 2f64.powi(-((column % 16) as i32)),
                _ => size * rng.unit(),
            }
        };
        let values = (0..rows * k).map(|i| T::from_f64(value(&[i / k, i % k])));
        let mut a = Dense::new([rows, k], values.collect()).unwrap();
        if rows > 100 {
            a.values_mut()[17 * k + 3] = T::from_f64(f64::NAN);
            a.values_mut()[18 * k + 9] = T::from_f64(f64::INFINITY);
            // This value is rounded to one that f16 cannot represent.
            a.values_mut()[19 * k] = T::from_f64(65504.0);
            // Scales have a maximum and a minimum.
            a.values_mut()[20 * k] = T::from_f64(2.9e38);
            let small = 21 * k..22 * k;
            a.values_mut()[small].fill(T::from_f64(1e-40));
        }
        let what = format!("{} {rows} rows of {k}", T::NAME);
        assert_equal(&what, &rounded(&gpu, &a), &rounded(&Context::unchecked_cpu(), &a));
    }
}

#[test]
fn rows_of_f16_are_quantized_as_on_the_cpu() {
    rows_are_rounded_as_on_the_cpu::<f16>();
}

#[test]
fn rows_of_bf16_are_quantized_as_on_the_cpu() {
    rows_are_rounded_as_on_the_cpu::<bf16>();
}

/// One product with two routings, each on its own stream. The runs share the memory of quantized rows.
#[test]
fn a_quantized_product_in_two_streams() {
    let Some(gpu) = gpu() else { return };
    let [tokens, k, n, experts] = [4000, 1024, 256, 2];
    let options = GroupedOptions { gather: true, ..both_sides(k, n) };
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let chosen = choices([tokens, 1], experts, Router::Even, 3);
    let routings = [0, 1].map(|_| routed(&gpu, &chosen, experts));
    let product = GroupedGemm::<bf16>::new(&routings[0], &options).unwrap();
    let codes = Dense::from_fn(vec![experts, n, k], |_| E4m3::from_f64(1.0)).unwrap();
    let scales = Dense::from_fn(vec![experts, n / 128, k / 128], |_| 1.0f32).unwrap();
    let ([codes], [scales]) = (upload(&gpu, [&codes]), upload(&gpu, [&scales]));
    let rows = [1.0, -2.0].map(|x| Dense::from_fn(vec![tokens, k], |_| bf16::from_f64(x)).unwrap());
    let rows = upload(&gpu, [&rows[0], &rows[1]]);
    let mut outs = [0, 1].map(|_| poisoned::<bf16>(&gpu, &[tokens, n]));
    for _ in 0..20 {
        for (i, out) in outs.iter_mut().enumerate() {
            let w = (&codes, &scales);
            product.forward(&routings[i], &rows[i], w, None, out, &streams[i]).unwrap();
        }
    }
    for (stream, (out, sum)) in streams.iter().zip(outs.iter().zip([1024.0, -2048.0])) {
        stream.synchronize().unwrap();
        let out = out.to_dense().unwrap();
        assert!(out.values().iter().all(|x| x.to_f64() == sum));
    }
}

#[test]
fn refusals() {
    let cpu = Context::unchecked_cpu();
    let error = Routing::new(&cpu, [4, 0], 3).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "top_k");
    let error = Routing::new(&cpu, [4, 1], 0).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "experts");
    let mut routing = Routing::new(&cpu, [4, 1], 3).unwrap();
    let wrong = cpu.zeros::<i32>(&[4, 2]).unwrap();
    let error = routing.run(&wrong, &cpu.stream().unwrap()).unwrap_err();
    assert_error!(error, Error::Shape { .. });
    let Some(gpu) = gpu() else { return };
    let error = Routing::new(&gpu, [4, 1], 1025).unwrap_err();
    assert_error!(error, Error::Overflow { .. });
    let routing = Routing::new(&gpu, [4, 1], 3).unwrap();
    let options = |k, n| GroupedOptions { k, n, ..GroupedOptions::default() };
    let error = GroupedGemm::<f32>::new(&routing, &options(8, 8)).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
    let error = GroupedGemm::<f16>::new(&routing, &options(12, 8)).unwrap_err();
    assert_error!(
        error,
        Error::OutOfRange { name, value, .. } if name == "rows of W" && value == "12"
    );
}

/// Errors of gradients use the gradients' operand names. A gradient requires a product that was created for it.
#[test]
fn refusals_of_gradients() {
    let cpu = Context::unchecked_cpu();
    let stream = cpu.stream().unwrap();
    let routing = Routing::new(&cpu, [4, 2], 3).unwrap();
    let options =
        GroupedOptions { k: 8, n: 16, gather: true, transposed: true, ..GroupedOptions::default() };
    let zeros = |shape: &[usize]| cpu.zeros::<f16>(shape).unwrap();
    let (a, dc, w) = (zeros(&[4, 8]), zeros(&[8, 16]), zeros(&[3, 16, 8]));
    let (mut da, mut dw) = (zeros(&[8, 8]), zeros(&[3, 16, 8]));
    let plain = GroupedGemm::<f16>::new(&routing, &options).unwrap();
    for error in [
        plain.backward_input(&routing, &dc, &w, &mut da, &stream),
        plain.backward_weight(&routing, &a, &dc, &mut dw, &stream),
    ] {
        assert_error!(error.unwrap_err(), Error::NotPlanned { name, .. } if name == "product");
    }
    let product = GroupedGemm::<f16>::for_training(&routing, &options).unwrap();
    let of_input = product.backward_input(&routing, &dc, &w, &mut da, &stream);
    assert!(of_input.is_ok());
    let of_weight = product.backward_weight(&routing, &a, &dc, &mut dw, &stream);
    assert!(of_weight.is_ok());
    let (odd, mut out) = (zeros(&[5, 5]), zeros(&[5, 5]));
    let (p, r, s) = (&product, &routing, &stream);
    for (name, result) in [
        ("dC", p.backward_input(r, &odd, &w, &mut da, s)),
        ("dA", p.backward_input(r, &dc, &w, &mut out, s)),
        ("A", p.backward_weight(r, &odd, &dc, &mut dw, s)),
        ("dC", p.backward_weight(r, &a, &odd, &mut dw, s)),
        ("dW", p.backward_weight(r, &a, &dc, &mut out, s)),
    ] {
        assert_error!(result.unwrap_err(), Error::Shape { index, .. } if index == name);
    }
}

/// Rows in another context are refused, not copied.
#[test]
fn rows_of_another_context_are_refused() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    let stream = cpu.stream().unwrap();
    let routing = routed(&cpu, &Dense::zeros([2, 1]).unwrap(), 1);
    let options = GroupedOptions { gather: true, ..both_sides(16, 16) };
    let product = GroupedGemm::<bf16>::new(&routing, &options).unwrap();
    let a = gpu.zeros::<bf16>(&[2, 16]).unwrap();
    let codes = cpu.zeros::<E4m3>(&[1, 16, 16]).unwrap();
    let scales = cpu.zeros::<f32>(&[1, 1, 1]).unwrap();
    let mut c = cpu.zeros::<bf16>(&[2, 16]).unwrap();
    let error =
        product.forward(&routing, &a, (&codes, &scales), None, &mut c, &stream).unwrap_err();
    assert_error!(error, Error::OtherContext { name, .. } if name == "A");
}
