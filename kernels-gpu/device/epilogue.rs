//! Epilogue of CUDA-core kernels: scalar, bias, ReLU or GELU, `=` or `+=`, and one rounding at the store.

use super::elem::Elem;
use super::memory::{Global, ReadWrite};
use crate::abi::*;

/// The output C and the operations of the epilogue.
#[derive(Clone, Copy)]
pub struct Output {
    /// C, row-major. The body casts it to the type of its elements.
    pub c: Global<u8, ReadWrite>,
    /// Bias vector, if `flags` select one.
    pub bias: Global<u8, ReadWrite>,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Row stride of C, bytes.
    pub ldc_bytes: u32,
    pub n: u32,
    /// Bits `FLAG_*`.
    pub flags: u32,
    /// Gate, which has the shape of C, if `flags` select one.
    pub gate: Global<u8, ReadWrite>,
    /// Row stride of the gate, bytes.
    pub gate_bytes: u32,
}

impl Output {
    /// C with rows `ldc_bytes` apart and `n` columns, without scalar, bias and gate. The flags must not select them.
    #[inline(always)]
    pub fn plain(c: Global<u8, ReadWrite>, ldc_bytes: u32, n: u32, flags: u32) -> Output {
        // Absent operands have the address of C, because arithmetic on null could reach any address.
        Output { c, bias: c, alpha: 1.0, ldc_bytes, n, flags, gate: c, gate_bytes: 0 }
    }
}

/// Creates an [`Output`] from the fields of a params struct, without a gate.
macro_rules! output {
    ($p:ident) => {
        $crate::device::epilogue::Output {
            // SAFETY: the host has checked the length of a bias. Without a bias it is 0, and the flags select none.
            bias: unsafe { $crate::device::memory::Global::new($p.bias) },
            alpha: $p.alpha,
            ..$crate::device::epilogue::Output::plain(
                // SAFETY: the host has checked the shape and the strides of C.
                unsafe { $crate::device::memory::Global::new($p.c) },
                $p.ldc_bytes,
                $p.n,
                $p.flags,
            )
        }
    };
}

pub(crate) use output;

impl SpmmParams {
    #[inline(always)]
    pub(crate) fn output(&self) -> Output {
        output!(self)
    }
}

#[inline(always)]
pub fn row_bias<E: Elem>(o: Output, row: u32) -> E::Acc {
    E::get(&o.bias.cast::<E>().at(row).ld_raw::<1>(o.flags & FLAG_BIAS_ROWS != 0), 0)
}

/// Scalar factor of a row's sum. It is 0 for a row without nonzeros, because 0 times an infinite scalar would be NaN.
#[inline(always)]
pub fn scale<E: Elem>(o: Output, len: u32) -> E::Acc {
    if len == 0 { E::ZERO } else { E::scalar(o.alpha) }
}

/// Stores one element if `ok`; adds it to the old one if `add`.
#[inline(always)]
pub fn store_or_add<E: Elem>(to: Global<E, ReadWrite>, mut x: E::Acc, add: bool, ok: bool) {
    if add {
        x = E::add(x, E::get(&to.ld_raw::<1>(ok), 0));
    }
    if ok {
        to.st_rounded(&[x]);
    }
}

/// Applies the activation to a complete sum.
#[inline(always)]
pub fn activate<E: Elem>(flags: u32, x: E::Acc) -> E::Acc {
    if flags & FLAG_RELU != 0 {
        E::relu(x)
    } else if flags & FLAG_GELU != 0 {
        E::gelu(x)
    } else {
        x
    }
}

/// Applies the epilogue to `V` adjacent columns of one row and stores those below `n`. The caller guarantees
/// that one access of `V` elements at `column` is valid if `column < n`.
#[inline(always)]
pub fn finish<E: Elem, const V: usize>(
    o: Output,
    row: u32,
    column: u32,
    (alpha, row_bias): (E::Acc, E::Acc),
    acc: [E::Acc; V],
) {
    let inside = column < o.n;
    let c = o.c.row(row, o.ldc_bytes).cast::<E>().at(column);
    let bias = o.bias.cast::<E>().at(column);
    let bias = bias.ld_raw::<V>(inside && o.flags & FLAG_BIAS_COLUMNS != 0);
    let old = c.ld_raw::<V>(inside && o.flags & FLAG_ACCUMULATE != 0);
    let mut out = acc;
    unroll!(i < V, {
        let mut x = E::fma(alpha, acc[i], row_bias);
        x = E::add(x, E::get(&bias, i));
        x = activate::<E>(o.flags, x);
        if o.flags & FLAG_ACCUMULATE != 0 {
            x = E::add(x, E::get(&old, i));
        }
        out[i] = x;
    });
    if inside {
        c.st_rounded(&out);
    }
}
