//! Products of rows with chosen matrices, by each kernel of the module `grouped`; exact on integers.

use crate::support::assert_error;
use crate::support::rows::{is_here, kernels_here};
use einsparse::dynamic::{Gate, GroupedGemm, GroupedOptions, Routing};
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::registry::Operation;
use einsparse::{Context, Error, Scalar};
use einsparse_kernels::abi::{B_COLUMNS, PLAIN};
use einsparse_kernels::families::STEP_GROUPED_GATED;

use crate::families::discover::routing::{Router, choices, integers, routed};
use crate::support::dense::{strided, upload_values};
use crate::support::runs::finish;
use crate::support::{Rng, gpu};

/// Runs one product in this context; returns all elements of C, gaps included.
fn product<T: Scalar>(
    context: &Context,
    choices: &Dense<i32>,
    experts: usize,
    options: GroupedOptions,
    weighted: bool,
    variant: Option<&str>,
) -> Vec<f64> {
    let routing = routed(context, choices, experts);
    let (slots, [tokens, top]) = (routing.slots(), routing.shape());
    let GroupedOptions { k, n, gather, .. } = options;
    let rows = if gather { tokens } else { slots };
    let a = integers::<T>(context, &[rows, k], k + 8, 5);
    let wide = if options.gate.is_some() { 2 * n } else { n };
    let matrix = if options.transposed { [wide, k] } else { [k, wide] };
    let shape = [experts, matrix[0], matrix[1]];
    let w = integers::<T>(context, &shape, matrix[1] + 16, 6);
    let weights = Rng(7).integers::<f32>(slots);
    let weights = Dense::new(vec![tokens, top], weights).unwrap();
    let weights = context.upload_dense(&weights).unwrap();
    let guard = vec![T::from_f64(77.0); slots * n];
    let guard = Dense::new(vec![slots, n], guard).unwrap();
    let mut c = strided(context, &guard, n + 8, T::from_f64(77.0));
    let matmul = GroupedGemm::<T>::with_variant(&routing, &options, variant).unwrap();
    let weights = weighted.then_some(&weights);
    finish(context, |stream| matmul.forward(&routing, &a, &w, weights, &mut c, stream));
    let stored = c.to_storage().unwrap();
    stored.into_iter().map(|x| x.to_f64()).collect()
}

fn multiplies<T: Scalar>(gpu: &Context, variant: &str, (transposed, is_gated): (bool, bool)) {
    let cpu = Context::unchecked_cpu();
    for (shape, experts, [k, n], router) in [
        ([300, 1], 3, [64, 256], Router::Even),
        ([200, 2], 5, [72, 264], Router::Uneven),
        ([130, 1], 2, [200, 136], Router::One),
        ([40, 3], 4, [8, 8], Router::Holes),
        ([20, 1], 3, [64, 520], Router::Nobody),
        ([1, 1], 1, [320, 64], Router::Even),
        ([2000, 2], 16, [136, 392], Router::Holes),
        ([64, 1], 2, [0, 64], Router::Even),
        ([0, 1], 2, [64, 64], Router::Even),
    ] {
        let choices = choices(shape, experts, router, 11);
        for way in 0..16u32 {
            let bit = |i: u32| way >> i & 1 != 0;
            let options = GroupedOptions {
                k,
                n,
                gather: bit(0),
                scatter: bit(1),
                activation: if bit(2) && !is_gated {
                    Activation::Relu
                } else {
                    Activation::Identity
                },
                transposed,
                gate: is_gated.then_some(Gate::Relu),
                scaled: false,
                quantize: false,
            };
            let run = |context, variant| {
                product::<T>(context, &choices, experts, options, bit(3), variant)
            };
            let (found, wanted) = (run(gpu, Some(variant)), run(&cpu, None));
            let fault = found.iter().zip(&wanted).position(|(a, b)| a != b);
            assert!(
                fault.is_none(),
                "{variant} {shape:?} {experts} {options:?} {router:?}: at {fault:?} of rows of {}",
                n + 8
            );
        }
    }
}

/// Runs every row of the table for this type and order of W. The CPU's sums take longest, so each has its own test.
fn rows_agree<T: Scalar>(transposed: bool) {
    let Some(gpu) = gpu() else { return };
    let order = if transposed { B_COLUMNS } else { PLAIN };
    let own = kernels_here().filter(|row| {
        let right = row.dtype == T::DTYPE && row.order == order;
        row.operation == Operation::Grouped && right
    });
    for row in own {
        let is_gated = row.step == STEP_GROUPED_GATED;
        multiplies::<T>(&gpu, row.name, (transposed, is_gated));
    }
}

#[test]
fn grouped_products_of_f16_are_those_of_the_cpu() {
    rows_agree::<f16>(false);
}

#[test]
fn grouped_products_of_bf16_are_those_of_the_cpu() {
    rows_agree::<bf16>(false);
}

#[test]
fn turned_grouped_products_of_f16_are_those_of_the_cpu() {
    rows_agree::<f16>(true);
}

#[test]
fn turned_grouped_products_of_bf16_are_those_of_the_cpu() {
    rows_agree::<bf16>(true);
}

/// Enough rows that thread blocks run in pairs and reuse their stages. Panels of an expert form several groups, also of
/// odd size, and there are more tiles than pairs of thread blocks.
#[test]
fn grouped_products_of_many_rows_are_those_of_the_cpu() {
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
            k: 264,
            n: 8 * row.columns as usize,
            gather: is_gated,
            scatter: !is_gated,
            transposed: row.order == B_COLUMNS,
            gate: is_gated.then_some(Gate::Relu),
            ..GroupedOptions::default()
        };
        let run =
            |context, variant| product::<bf16>(context, &choices, 2, options, !is_gated, variant);
        let (found, wanted) = (run(&gpu, Some(row.name)), run(&cpu, None));
        let fault = found.iter().zip(&wanted).position(|(a, b)| a != b);
        assert!(fault.is_none(), "{}: at {fault:?}", row.name);
        tried += 1;
    }
    assert!(tried >= 4 && (tried == 4 || !is_here("grouped_bf16_256_t")), "{tried}");
}

/// Compares the CPU's product with explicit sums.
#[test]
fn grouped_product_on_the_cpu() {
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
    let found = product::<f32>(&cpu, &choices, experts, options, true, None);
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
fn grouped_product_keeps_nan_where_it_is() {
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

#[test]
fn grouped_products_refuse_what_they_cannot() {
    let cpu = Context::unchecked_cpu();
    let error = Routing::new(&cpu, [4, 0], 3).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "top_k");
    let error = Routing::new(&cpu, [4, 1], 0).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "experts");
    let mut routing = Routing::new(&cpu, [4, 1], 3).unwrap();
    let wrong = cpu.zeros::<i32>(&[4, 2]).unwrap();
    let error = routing.run(&wrong, &cpu.stream().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let Some(gpu) = gpu() else { return };
    let error = Routing::new(&gpu, [4, 1], 1025).unwrap_err();
    assert!(matches!(error, Error::Overflow { .. }), "{error}");
    let routing = Routing::new(&gpu, [4, 1], 3).unwrap();
    let options = |k, n| GroupedOptions { k, n, ..GroupedOptions::default() };
    let error = GroupedGemm::<f32>::new(&routing, &options(8, 8)).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    let error = GroupedGemm::<f16>::new(&routing, &options(12, 8)).unwrap_err();
    assert_error!(
        error,
        Error::OutOfRange { name, value, .. } if name == "rows of W" && value == "12"
    );
}

/// Errors of gradients use the gradients' operand names. A gradient requires a product that was created for it.
#[test]
fn gradients_of_grouped_products_refuse_what_they_cannot() {
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
    let wrong = |name: &str, result: einsparse::Result<()>| match result.unwrap_err() {
        Error::Shape { index, .. } => assert_eq!(index, name),
        error => panic!("{error}"),
    };
    let (odd, mut out) = (zeros(&[5, 5]), zeros(&[5, 5]));
    let run = product.backward_input(&routing, &odd, &w, &mut da, &stream);
    wrong("dC", run);
    let run = product.backward_input(&routing, &dc, &w, &mut out, &stream);
    wrong("dA", run);
    let run = product.backward_weight(&routing, &odd, &dc, &mut dw, &stream);
    wrong("A", run);
    let run = product.backward_weight(&routing, &a, &odd, &mut dw, &stream);
    wrong("dC", run);
    let run = product.backward_weight(&routing, &a, &dc, &mut out, &stream);
    wrong("dW", run);
}
