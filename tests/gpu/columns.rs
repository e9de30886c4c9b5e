//! Products of column slices of wider matrices. Kernels that load whole vectors must not multiply the NaN in the other
//! columns, or change the columns next to an output. Results have the bits of contiguous tensors. Random operators have
//! such operands too.

use std::slice::from_ref;
use std::sync::Arc;

use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::nn::WeightGradient;
use einsparse::ops::{ConvOptions, KernelMap, SparseConv3d};
use einsparse::{
    Context, Error, Operand, Options, Precision, Result, Scalar, SparseTensor, Stream, Tensor,
};

use crate::support::dense::{among_columns, integers, is_beside, nan, upload_values};
use crate::support::{GUARD, Rng, on_both, spread, stored};

/// Columns before and after the slice; kernels require 16-byte alignment.
const BESIDE: [[usize; 2]; 4] = [[8, 8], [16, 0], [0, 24], [24, 40]];

/// Compares a run over contiguous tensors with runs over columns of wider ones.
fn agree<T: Scalar, Out: Scalar>(
    ctx: &Context,
    what: &str,
    (inputs, out): (&[Dense<T>], &[usize]),
    run: impl Fn(&[Tensor<T>], &mut Tensor<Out>, &Stream) -> Result<()>,
) {
    let stream = ctx.stream().unwrap();
    let found = |[before, behind]: [usize; 2]| {
        let beside = T::from_f64(f64::NAN);
        let columns = |dense| among_columns(ctx, dense, [before, behind], beside);
        let inputs: Vec<Tensor<T>> = inputs.iter().map(columns).collect();
        let guard = Out::from_f64(GUARD);
        let mut to = among_columns(ctx, &nan::<Out>(out), [behind, before], guard);
        match run(&inputs, &mut to, &stream) {
            // No kernel of this GPU supports the operation, even on contiguous tensors.
            Err(Error::NoKernel { .. }) if ctx.is_cuda() && before + behind == 0 => return None,
            ran => ran.unwrap_or_else(|e| panic!("{what}, {before} before: {e}")),
        }
        stream.synchronize().unwrap();
        assert!(is_beside(&to, GUARD), "{what}, {before} before: a neighbour is written");
        Some(to.to_dense().unwrap())
    };
    let Some(wanted) = found([0, 0]) else { return };
    assert!(wanted.values().iter().all(|x| !x.to_f64().is_nan()), "{what}");
    for beside in BESIDE {
        assert!(found(beside).as_ref() == Some(&wanted), "{what}, {beside:?} beside");
    }
}

/// Product of a plan, with the sparse A if it is given.
fn planned<'a, T: Scalar>(
    ctx: &'a Context,
    text: &'a str,
    (names, a): (&'a [&'a str], Option<&'a SparseTensor<T>>),
    options: &'a Options,
) -> impl Fn(&[Tensor<T>], &mut Tensor<T>, &Stream) -> Result<()> + 'a {
    move |inputs, out, stream| {
        let inputs = names.iter().zip(inputs);
        let mut operands: Vec<(&str, Operand<'_, T>)> =
            inputs.map(|(n, t)| (*n, t.into())).collect();
        operands.extend(a.map(|a| ("A", a.into())));
        let mut all = operands.clone();
        all.push(("C", (&*out).into()));
        let plan = ctx.plan(text).operands(&all).options(options).build()?;
        plan.run(&operands, out, stream)
    }
}

fn matrix<T: Scalar>(pattern: &CsrPattern, format: &str) -> AnySparse<T> {
    let values = Rng(3).integers(pattern.columns().len());
    stored(Csr::new(pattern.clone(), values).unwrap(), format)
}

fn products<T: Scalar>(ctx: &Context, precision: Precision) {
    let options = Options::default().precision(precision);
    let [m, k] = [130, 136];
    let lens: Vec<usize> = (0..m).map(|row| row * 7 % 40).collect();
    let pattern = spread(&lens, k);
    // Numbers of columns with full and with partial tiles.
    for n in [8, 40, 64, 136] {
        let what = |of: &str| format!("{of}, {n} columns of {} {precision:?}", T::NAME);
        let b = integers::<T>(&[k, n], 5);
        for format in
            ["csr", "coo", "ell", "sell", "groupcoo:4", "bsr:16x16", "bsr:32x32", "bsr:64x64"]
        {
            let a = ctx.upload(matrix::<T>(&pattern, format)).unwrap();
            let text = "C[m,n] = A[m,k] * B[k,n]";
            let run = planned(ctx, text, (&["B"], Some(&a)), &options);
            agree(ctx, &what(format), (from_ref(&b), &[m, n]), run);
        }
        for (text, shape) in
            [("C[m,n] = A[m,k] * B[k,n]", [m, k]), ("C[m,n] = A[k,m] * B[k,n]", [k, m])]
        {
            let run = planned(ctx, text, (&["A", "B"], None), &options);
            let inputs = [integers::<T>(&shape, 7), b.clone()];
            agree(ctx, &what(text), (&inputs, &[m, n]), run);
        }
        let a = ctx.upload(matrix::<T>(&pattern, "csr")).unwrap();
        agree::<T, T>(
            ctx,
            &what("products at entries"),
            (&[integers(&[m, n], 1), integers(&[k, n], 2)], &[1, pattern.columns().len()]),
            |inputs, out, stream| {
                let operands: [(&str, Operand<'_, T>); 2] =
                    [("X", (&inputs[0]).into()), ("Y", (&inputs[1]).into())];
                let plan = ctx.plan("S[m,k] = X[m,n] * Y[k,n]").operands(&operands);
                let plan = plan.options(&options).sparse_output(&a).build()?;
                let mut s = ctx.upload(matrix::<T>(&pattern, "csr"))?;
                plan.run(&operands, &mut s, stream)?;
                stream.synchronize()?;
                let values = s.to_host()?.to_csr()?.values().to_vec();
                out.write(&Dense::new([1, values.len()], values)?)
            },
        );
    }
}

/// The three products of a sparse convolution over voxels.
fn convolutions<T: Scalar>(ctx: &Context, precision: Precision) {
    let voxels: Vec<[i32; 4]> = (0..200).map(|i| [0, i % 7, i / 7 % 7, i / 49]).collect();
    let map = Arc::new(KernelMap::submanifold(ctx, &voxels, [3; 3]).unwrap());
    let options = ConvOptions { precision, ..ConvOptions::default() };
    for [c, m] in [[16, 16], [24, 40], [72, 64]] {
        let conv = SparseConv3d::<T>::new(&map, [c, m], &options).unwrap();
        let what = |of: &str| format!("{of} of a convolution of {c} to {m} in {}", T::NAME);
        let (x, dy) = (integers::<T>(&[200, c], 1), integers::<T>(&[200, m], 2));
        let w = Rng(3).integers(27 * c * m);
        let w = upload_values(ctx, &[27, c, m], w);
        agree::<T, T>(ctx, &what("output"), (from_ref(&x), &[200, m]), |i, out, stream| {
            conv.forward(&i[0], &w, None, out, stream)
        });
        agree::<T, T>(ctx, &what("dx"), (from_ref(&dy), &[200, c]), |i, out, stream| {
            conv.backward_input(&w, &i[0], out, stream)
        });
        agree::<T, f32>(ctx, &what("dw"), (&[x, dy], &[27, c, m]), |i, out, stream| {
            conv.backward_weight(&i[0], &i[1], out, stream)
        });
    }
}

/// Dense gradient of weights over many rows.
fn weights<T: Scalar>(ctx: &Context) {
    for [rows, c, m] in [[300, 40, 72], [64, 8, 16]] {
        let gradient = WeightGradient::<T, f32>::new(ctx, [rows, c, m]).unwrap();
        let what = format!("dw of {rows} rows, {c} to {m} in {}", T::NAME);
        let inputs = [integers::<T>(&[rows, c], 1), integers::<T>(&[rows, m], 2)];
        agree::<T, f32>(ctx, &what, (&inputs, &[c, m]), |i, out, stream| {
            gradient.backward_weight(&i[0], &i[1], out, None, stream)
        });
    }
}

fn all(ctx: &Context) {
    products::<f16>(ctx, Precision::Full);
    products::<bf16>(ctx, Precision::Full);
    products::<f32>(ctx, Precision::Full);
    products::<f32>(ctx, Precision::Tf32);
    convolutions::<f16>(ctx, Precision::Full);
    convolutions::<f32>(ctx, Precision::Full);
    convolutions::<f32>(ctx, Precision::Tf32);
    weights::<bf16>(ctx);
    weights::<f32>(ctx);
}

on_both! {
    neighbours_of_columns_are_no_part_of_a_product: cpu [|_| all(&Context::cpu())], gpu [all];
}

#[test]
fn a_neighbour_that_is_written_is_seen() {
    let dense = Dense::new([2, 3], vec![1.0f64; 6]).unwrap();
    for written in [0, 1, 5, 6, 11] {
        let mut columns = among_columns(&Context::cpu(), &dense, [2, 1], GUARD);
        assert!(is_beside(&columns, GUARD));
        let all = columns.to_storage().unwrap();
        assert_eq!(all[..6], [GUARD, GUARD, 1.0, 1.0, 1.0, GUARD]);
        let mut whole = Context::cpu().upload_dense(&Dense::new([2, 6], all).unwrap()).unwrap();
        whole.part_mut(written, &[1]).unwrap().write(&Dense::new([1], vec![3.0]).unwrap()).unwrap();
        std::mem::swap(&mut *whole.columns_mut(2..5).unwrap(), &mut columns);
        assert!(!is_beside(&columns, GUARD), "{written}");
    }
}
