//! Two dense matrices: the plan uses the block kernels, with every block present.

use crate::support::bounds::assert_gelu;
use crate::support::einsum::{Given, agrees, apart};
use crate::support::on_both;
use crate::support::runs::plan_and_run;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Operand, Options};

fn check<T: Scalar>(context: &Context, [m, k, n]: [usize; 3], (a_text, b_text): (&str, &str)) {
    let (a, b) = (Given::<T>::integers(&[m, k], 0), Given::integers(&[k, n], 5));
    let a = if a_text == "A[k,m]" { a.transposed() } else { a };
    let b = if b_text == "B[n,k]" { b.transposed() } else { b };
    let given = [("A", a), ("B", b), ("bias", Given::integers(&[n], 0))];
    let text = format!("C[m,n] = relu({a_text} * {b_text} + bias[n])");
    agrees::<T, T>(context, &text, &given, &Options::default(), (apart::<T>, &[m, k, n]));
}

/// `gelu(A * B)` with a diagonal A applies the function to every value of B. Errors are within the rounding of the
/// output.
fn gelu<T: Scalar>(context: &Context, roundoff: f64) {
    let n = 64;
    let a = Dense::from_fn(vec![n, n], |i| T::from_f64(f64::from(u8::from(i[0] == i[1])))).unwrap();
    let b = Dense::from_fn(vec![n, n], |i| T::from_f64((i[0] * n + i[1]) as f64 / 256.0 - 8.0))
        .unwrap();
    let through = through_gelu(context, &a, &b);
    assert_gelu(b.values(), &through, roundoff);
}

fn through_gelu<T: Scalar>(context: &Context, a: &Dense<T>, b: &Dense<T>) -> Vec<T> {
    let left = context.upload_dense(a).unwrap();
    through_gelu_of(context, (&left).into(), b)
}

fn through_gelu_of<T: Scalar>(context: &Context, a: Operand<'_, T>, b: &Dense<T>) -> Vec<T> {
    let right = context.upload_dense(b).unwrap();
    let operands: [(&str, Operand<'_, T>); 2] = [("A", a), ("B", (&right).into())];
    let (_, c) =
        plan_and_run(context, "C[m,n] = gelu(A[m,k] * B[k,n])", &operands, &Options::default());
    c.to_dense().unwrap().values().to_vec()
}

/// Infinities and NaN: only the first product of each sum is not 0 x 0.
fn gelu_of_limits<T: Scalar>(context: &Context) {
    let n = 64;
    let limits = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 2.0];
    let first = |there: bool, x: f64| T::from_f64(if there { x } else { 0.0 });
    let a = Dense::from_fn(vec![n, 8], |i| first(i[1] == 0, 1.0)).unwrap();
    let b = Dense::from_fn(vec![8, n], |i| first(i[0] == 0, limits[i[1] % 4])).unwrap();
    let pattern = CsrPattern::new(n, 8, (0..=n as u32).collect(), vec![0; n]).unwrap();
    let sparse = AnySparse::from(Csr::new(pattern, vec![T::from_f64(1.0); n]).unwrap());
    let sparse = context.upload(sparse).unwrap();
    let mut all = through_gelu_of(context, (&sparse).into(), &b);
    // On GPUs two dense matrices must have 16-bit elements.
    if context.device().is_none() || size_of::<T>() == 2 {
        all.extend(through_gelu(context, &a, &b));
    }
    for (i, found) in all.iter().enumerate() {
        let (x, found) = (limits[i % 4], found.to_f64());
        let right = match i % 4 {
            0 => found == f64::INFINITY,
            1 => found == 0.0,
            2 => found.is_nan(),
            _ => (found - 1.954_499_736).abs() < 1e-2,
        };
        assert!(right, "{} {i}: gelu({x}) = {found}", T::NAME);
    }
}

on_both! {
    gelu: cpu [|cpu| {
        gelu_of_limits::<f16>(cpu);
        gelu_of_limits::<f32>(cpu);
        gelu_of_limits::<f64>(cpu);
        gelu::<f32>(cpu, 2f64.powi(-23));
        gelu::<f64>(cpu, 2f64.powi(-52));
    }], gpu [|gpu| {
        gelu_of_limits::<f16>(gpu);
        gelu_of_limits::<bf16>(gpu);
        gelu_of_limits::<f32>(gpu);
        gelu_of_limits::<f64>(gpu);
        gelu::<f16>(gpu, 2f64.powi(-11));
        gelu::<bf16>(gpu, 2f64.powi(-8));
    }];
}

const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [64, 64, 8],
    [127, 65, 257],
    [128, 128, 256],
    [200, 0, 40],
    [300, 1000, 72],
    [129, 63, 128],
    [513, 640, 384],
];

/// Storage orders in which the kernels read A and B.
const ORDERS: [(&str, &str); 3] =
    [("A[m,k]", "B[k,n]"), ("A[m,k]", "B[n,k]"), ("A[k,m]", "B[k,n]")];

on_both! {
    dense_products: cpu [|cpu| {
        for shape in SHAPES {
            for texts in ORDERS.into_iter().chain([("A[k,m]", "B[n,k]")]) {
                check::<f32>(cpu, shape, texts);
            }
        }
    }], gpu [|gpu| {
        for shape in SHAPES {
            for texts in ORDERS {
                check::<f16>(gpu, shape, texts);
                check::<bf16>(gpu, shape, texts);
            }
        }
    }];
}
