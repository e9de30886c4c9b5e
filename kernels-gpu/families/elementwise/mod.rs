//! Elementwise steps of a decoder between its products: normalisation, rotary positions, gates, 8-bit rows, tokens.

pub mod abi;

/// Implements kernels whose body is generic over the vector length: 16 bytes if all rows are whole vectors, otherwise
/// one element.
#[allow(unused_macros)]
macro_rules! by_vectors {
    ($($params:ident $tile:ident: $body:ident $(, $which:literal)?;)+) => {$(
        impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, $params> for $tile {
            #[inline(always)]
            unsafe fn run(p: &$params, _: Maps) {
                grid::launch_dependents();
                grid::wait_dependency();
                match (p.flags & ELEMENTWISE_VECTORS != 0, E::BYTES) {
                    (true, 4) => $body::<E, 4 $(, $which)?>(p),
                    (true, _) => $body::<E, 8 $(, $which)?>(p),
                    (false, _) => $body::<E, 1 $(, $which)?>(p),
                }
            }
        }
    )+};
}

#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod activation;
#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod element;
#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod gated;
#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod norm_gradient;
#[cfg(any(module = "quantize", feature = "cuda_std"))]
mod quantize;
#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod rms_norm;
#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod rotary;
#[cfg(any(module = "elementwise", feature = "cuda_std"))]
mod tokens;
