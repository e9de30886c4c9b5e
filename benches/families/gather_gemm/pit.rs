//! Products with an operand of which half, nine tenths or 95 % of the micro-tiles are empty (PIT, arXiv 2301.10936).
//! The time includes the detection, and the transposition of a row-major A for a sparse B. Baselines are dense: cuBLAS,
//! and in TF32 the dense kernel that a plan selects.
//!
//! `nnz` is the elements of the nonempty micro-tiles; rates of products count only these. `C = A^T B` with a sparse A
//! is the gradient of B in a product with a dynamic A; layers with masked weights also compute it.

use super::micro::{EMPTY, EXTENT, checked, dynamic, row, sample, skipping};
use crate::check::product_error;
use crate::prelude::*;
use einsparse::Determinism::{Relaxed, Strict};

/// Number of checked rows of a product.
const CHECKED: usize = 16;

/// Cases of an operation.
struct Kind {
    op: &'static str,
    /// Rows and columns of micro-tiles.
    micro: &'static [(usize, usize)],
    empty: &'static [u32],
    /// Storage orders of the operands.
    orders: &'static [Order],
    /// Whether B is the sparse operand.
    right: bool,
}

/// Measures a sparse A.
pub fn left(bench: &Bench<'_>) -> Result<()> {
    let kind = Kind {
        op: "pit_matmul",
        micro: &[(128, 1), (64, 1), (32, 1)],
        empty: &EMPTY,
        orders: &[Order::Rows],
        right: false,
    };
    halves(bench, &kind)
}

/// Measures a sparse A of f32, in TF32.
pub fn tf32(bench: &Bench<'_>) -> Result<()> {
    let kind = Kind {
        op: "pit_tf32",
        micro: &[(128, 1), (64, 1)],
        empty: &EMPTY,
        orders: &[Order::Rows],
        right: false,
    };
    of_type::<f32>(bench, &kind, Dtype::Tf32)
}

/// Measures the transpose of a sparse A.
pub fn turned(bench: &Bench<'_>) -> Result<()> {
    let kind = Kind {
        op: "pit_turned",
        micro: &[(1, 64)],
        empty: &EMPTY,
        orders: &[Order::Turned],
        right: false,
    };
    halves(bench, &kind)
}

/// Measures a sparse B, and both storage orders of A.
pub fn right(bench: &Bench<'_>) -> Result<()> {
    let kind = Kind {
        op: "pit_right",
        micro: &[(1, 64)],
        empty: &EMPTY[1..],
        orders: &[Order::Rows, Order::Turned],
        right: true,
    };
    halves(bench, &kind)
}

fn halves(bench: &Bench<'_>, kind: &Kind) -> Result<()> {
    of_type::<f16>(&bench.anew()?, kind, Dtype::F16)?;
    of_type::<bf16>(&bench.anew()?, kind, Dtype::Bf16)
}

/// Rounds to TF32, to nearest, ties away from zero, as the kernels do.
fn rounded<T: Scalar>(x: T) -> T {
    let bits = (x.to_f64() as f32).to_bits();
    T::from_f64(f64::from(f32::from_bits((bits + 0x1000) & !0x1fff)))
}

fn of_type<T: Scalar>(bench: &Bench<'_>, kind: &Kind, dtype: Dtype) -> Result<()> {
    // The reference uses rounded operands.
    let exact = |dense: Dense<T>| match dtype {
        Dtype::Tf32 => dense.into_values().into_iter().map(rounded).collect(),
        _ => dense.into_values(),
    };
    let full = values::dense::<T>(&[EXTENT; 2], 1, NORMAL);
    let full_there = bench.upload(&full)?;
    let full = exact(full);
    for (&(height, width), &empty) in
        kind.micro.iter().flat_map(|micro| kind.empty.iter().map(move |empty| (micro, empty)))
    {
        let (sparse, tiles) = sample::<T>((height, width), empty)?;
        let there = bench.upload(&sparse)?;
        let sparse = exact(sparse);
        for &order in kind.orders {
            let (text, stored) = match order {
                Order::Turned => ("C[m,n] = A[k,m] * B[k,n]", "-A[k,m]"),
                _ => (SPMM, "-A[m,k]"),
            };
            let (operands, whole, [a, b]) = match kind.right {
                true => (ab(&full_there, dynamic(&there)), [&full_there, &there], [&full, &sparse]),
                false => {
                    (ab(dynamic(&there), &full_there), [&there, &full_there], [&sparse, &full])
                }
            };
            let stored = if kind.right { stored } else { "" };
            let name = format!("micro{height}x{width}-e{}{stored}", f64::from(empty) / 100.0);
            let row = row(kind.op, name, tiles * height * width, dtype);
            let element = |i: usize, k: usize| match order {
                Order::Turned => a[k * EXTENT + i],
                _ => a[i * EXTENT + k],
            };
            let error = |c: &Tensor<T>| product_error(element, b, c, checked(CHECKED));
            let micro = format!("{height}x{width}");
            for determinism in [Strict, Relaxed] {
                let (note, fits) = match determinism {
                    Strict => ("detection inside", true),
                    _ => ("sums in any order; detection inside", kind.op == "pit_matmul"),
                };
                if fits {
                    let options = precise(dtype).determinism(determinism);
                    let options = skipping(bench, text, &operands, (&micro, options))?;
                    let row = row.clone().note(note);
                    bench.product::<T, T>(row, (text, &options), &operands, error)?;
                }
            }
            if dtype == Dtype::Tf32 {
                let (row, operands) = (row.clone().note("dense product"), ab(whole[0], whole[1]));
                bench.product::<T, T>(row, (text, &precise(dtype)), &operands, error)?;
            }
            let [a, b] = whole.map(at);
            let row = row.named("dense product");
            bench.whole(row, (dtype, [EXTENT; 3], order), [a?, b?])?;
        }
    }
    Ok(())
}
