//! Gradient of attention at the nonzeros of Sputnik's mask: scores, softmax, its gradient, and three products with the
//! mask's nonzeros. Rates count five products at the nonzeros. Every element is checked against the CPU.

use super::entries::{Entries, mask};
use super::{Shape, options, row};
use crate::prelude::*;
use einsparse::Stream;
use einsparse::ops::AttentionGradient;

pub const OP: &str = "attention_gradient";

/// Name; heads, extent, elements of a query.
const CASES: &[(&str, Shape)] = &[
    ("attention-4096-h8", [8, 4096, 64]),
    ("attention-12288-h1", [1, 12_288, 128]),
    ("attention-12288-h8", [8, 12_288, 128]),
];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &(name, shape) in CASES {
        measured::<bf16>(&bench.anew()?, name, shape, 0.5f64.powi(5))?;
        measured::<f16>(&bench.anew()?, name, shape, 0.5f64.powi(8))?;
        if shape[1] == 4096 {
            measured::<f32>(&bench.anew()?, name, shape, 1e-5)?;
        }
    }
    Ok(())
}

/// `bound`: max allowed difference, relative to the max element.
fn measured<T: Scalar>(bench: &Bench<'_>, name: &str, shape: Shape, bound: f64) -> Result<()> {
    let make = |context: &Context| -> Result<Step<T, 3>> {
        let (pattern, causal) = mask::<T>(shape[1], Entries::Band(0.05))?;
        let nnz = pattern.values().len();
        let mask = context.upload(pattern)?;
        let made = || AttentionGradient::<T>::new(context, &[&mask], &options(shape, causal));
        let (mut gradient, prepare_ms) = timed(|| Ok(made()?))?;
        let given = |seed| context.upload_dense(&values::dense::<T>(&shape, seed, NORMAL));
        let (q, k, v, from) = (given(1)?, given(2)?, given(3)?, given(4)?);
        let nan = Dense::from_fn(shape.to_vec(), |_| T::from_f64(f64::NAN))?;
        let out = || context.upload_dense(&nan);
        let row = row::<T>(OP, name, shape, nnz, 5.0)
            .ours(gradient.variants().join("+"))
            .prepared(prepare_ms, gradient.workspace_bytes());
        let run = move |out: &mut [Tensor<T>; 3], stream: &Stream| {
            Ok(gradient.backward([&q, &k, &v], &from, out.each_mut(), stream)?)
        };
        Ok((row, [out()?, out()?, out()?], Box::new(run)))
    };
    bench.against_cpu(make, [bound; 3])
}
