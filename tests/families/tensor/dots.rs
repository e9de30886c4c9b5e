//! Plans of products at entries of any number of matrices, exact on integers: through sparse outputs, and through index
//! arrays of the user.

use crate::support::assert_error;
use crate::support::dense::{integers, upload};
use crate::support::runs::{finish, sampled_plan_of};
use crate::support::{Rng, gpu, on_gpu};
use einsparse::formats::{AnySparse, Coo, Dense, Format, PAD, bf16, f16};
use einsparse::{Context, Error, Operand, Scalar};

/// Returns entries at random indices of these extents, with integers as values.
fn entries<T: Scalar>(shape: &[usize], count: usize) -> AnySparse<T> {
    let mut rng = Rng(shape.len() as u64);
    let coord = |&n: &usize| (0..count).map(|_| (rng.word() % n as u64) as u32).collect();
    let coords: Vec<Vec<u32>> = shape.iter().map(coord).collect();
    let values = Rng(3).integers::<T>(count);
    let ones = values.iter().map(|v| if *v == T::ZERO { T::from_f64(1.0) } else { *v });
    Coo::from_entries(shape.to_vec(), coords, ones.collect()).unwrap().into()
}

/// Returns the kernel and the values of S.
fn sampled<T: Scalar>(
    context: &Context,
    text: &str,
    p: &AnySparse<T>,
    dense: &[(&str, Dense<T>)],
) -> (String, Vec<T>) {
    let p = context.upload(p).unwrap();
    let start = p.to_host().unwrap().map_values(|_| T::from_f64(1.0));
    let mut s = context.upload(start).unwrap();
    let on: Vec<_> =
        dense.iter().map(|(name, d)| (*name, context.upload_dense(d).unwrap())).collect();
    let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("P", (&p).into())];
    operands.extend(on.iter().map(|(name, d)| (*name, d.into())));
    let plan = sampled_plan_of(context, text, &operands, &s);
    finish(context, |stream| plan.run(&operands, &mut s, stream));
    (plan.variant().to_owned(), s.to_host().unwrap().values().to_vec())
}

fn products<T: Scalar>(gpu: &Context) {
    let matrix = |m: usize, n: usize| integers(&[m, n], (m + n) as u64);
    let (flat, deep) = (entries::<T>(&[40, 30], 300), entries::<T>(&[9, 12, 7], 200));
    let csr = flat.convert(Format::Csr).unwrap();
    for n in [1, 8, 33, 64, 128] {
        let of_matrix = [("X", matrix(40, n)), ("Y", matrix(30, n)), ("Z", matrix(30, n))];
        let of_tensor = [("X", matrix(9, n)), ("Y", matrix(12, n)), ("Z", matrix(7, n))];
        for (text, p, dense) in [
            ("S[m,n] = P[m,n] * X[m,k] * Y[n,k] * Z[n,k]", &csr, &of_matrix),
            ("S[m,n] += P[m,n] * X[m,k] * Y[n,k] * Z[n,k]", &flat, &of_matrix),
            ("S[i,j,l] = 2 * P[i,j,l] * X[i,r] * Y[j,r] * Z[l,r]", &deep, &of_tensor),
        ] {
            let (variant, found) = sampled(gpu, text, p, dense);
            let (_, wanted) = sampled(&Context::unchecked_cpu(), text, p, dense);
            assert!(variant.starts_with("mttkrp"), "{text}: {variant}");
            assert!(found == wanted, "{text}, n {n}, {}: {variant}", T::DTYPE.name());
        }
    }
}

#[test]
fn sampled_products_of_three_matrices_have_kernels() {
    on_gpu(&[products::<f32>, products::<f64>, products::<f16>, products::<bf16>]);
}

/// Entries of two matrices that index arrays name, with rows of every width that has its own kernel.
fn by_hand<T: Scalar>(gpu: &Context) {
    for n in [8, 64, 128] {
        let (i, j) = ([0u32, 2, 1, 1, 3, 3, 0], [4u32, 0, 3, 2, 2, 1, 1]);
        let x = integers::<T>(&[4, n], 1);
        let y = integers::<T>(&[5, n], 2);
        let run = |context: &Context| {
            let [x, y] = upload(context, [&x, &y]);
            let operands: Vec<(&str, Operand<'_, T>)> = vec![
                ("X", (&x).into()),
                ("Y", (&y).into()),
                ("I", Operand::Index(&[7], &i)),
                ("J", Operand::Index(&[7], &j)),
            ];
            let text = "S[p] += X[I[p],r] * Y[J[p],r]";
            let plan = context.plan(text).operands(&operands).build().unwrap();
            let start = Dense::new([7], vec![T::from_f64(1.0); 7]).unwrap();
            let mut out = context.upload_dense(&start).unwrap();
            finish(context, |stream| plan.run(&operands[..2], &mut out, stream));
            (plan.variant().to_owned(), out.to_dense().unwrap())
        };
        let (variant, found) = run(gpu);
        assert_eq!(found, run(&Context::unchecked_cpu()).1, "{variant}, {n}");
    }
}

#[test]
fn products_of_two_rows_at_entries_by_hand() {
    on_gpu(&[by_hand::<f32>, by_hand::<f64>, by_hand::<f16>, by_hand::<bf16>]);
}

/// Index arrays of the user are validated: their entries, and indices out of range.
#[test]
fn arrays_by_hand_are_checked() {
    let Some(gpu) = gpu() else { return };
    let (i, mut j) = ([0u32, 2, 1, 1, 3], [4u32, 0, 3, 2, 2]);
    let x = integers::<f32>(&[4, 8], 1);
    let y = integers::<f32>(&[5, 8], 2);
    let run = |context: &Context, text: &str, j: &[u32]| {
        let [x, y] = upload(context, [&x, &y]);
        let operands: Vec<(&str, Operand<'_, f32>)> = vec![
            ("X", (&x).into()),
            ("Y", (&y).into()),
            ("I", Operand::Index(&[5], &i)),
            ("J", Operand::Index(&[5], j)),
        ];
        let plan = context.plan(text).operands(&operands).build()?;
        let start = Dense::new([5], vec![1.0f32; 5]).unwrap();
        let mut out = context.upload_dense(&start).unwrap();
        let stream = context.stream().unwrap();
        plan.run(&operands[..2], &mut out, &stream)?;
        stream.synchronize().unwrap();
        Ok::<_, Error>((plan.variant().to_owned(), out.to_dense().unwrap()))
    };
    for text in ["S[p] += X[I[p],r] * Y[J[p],r]", "S[p] = X[I[p],r] * Y[J[p],r]"] {
        let (variant, found) = run(&gpu, text, &j).unwrap();
        assert!(variant.starts_with("mttkrp"), "{text}: {variant}");
        let cpu = Context::unchecked_cpu();
        assert_eq!(found, run(&cpu, text, &j).unwrap().1, "{text}");
    }
    j[1] = PAD;
    let error = run(&gpu, "S[p] += X[I[p],r] * Y[J[p],r]", &j).unwrap_err();
    assert_error!(error, Error::InvalidIndex { position: 1, value: 4294967295, .. });
    j[1] = 5;
    let error = run(&gpu, "S[p] += X[I[p],r] * Y[J[p],r]", &j).unwrap_err();
    assert_error!(error, Error::InvalidIndex { position: 1, value: 5, bound: 5, .. });
}
