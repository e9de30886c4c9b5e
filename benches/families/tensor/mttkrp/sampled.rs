//! Products at the nonzeros of a sparse tensor.

use super::{CHECKED, Operands, near};
use crate::prelude::*;
use einsparse::ops::SampledTensor;

impl<T: Scalar> Operands<'_, T> {
    /// Measures products at the nonzeros. Each gathers one row per axis of the tensor.
    pub(super) fn sampled(&self) -> Result<()> {
        let (bench, (_, shape, _, n)) = (self.bench, self.case);
        let made = || SampledTensor::new(&bench.context, &self.there, n);
        let (op, prepared) = timed(|| Ok(made()?))?;
        let mut out = bench.context.upload(&self.host)?;
        let borrowed: Vec<&Tensor<T>> = self.factors.iter().collect();
        let there = Some(&self.there);
        let times = bench.measure(|| op.forward(there, &borrowed, &mut out, &bench.stream))?;
        let (entries, element) = (self.host.nnz(), size_of::<T>());
        let found = out.to_host()?;
        let coords = self.host.pattern().coords();
        let wrong = (0..entries).step_by(CHECKED).find_map(|e| {
            let term = |r: usize| {
                let row = |(axis, f): (usize, &Dense<T>)| {
                    f.values()[coords[axis][e] as usize * n + r].to_f64()
                };
                self.hosts.iter().enumerate().map(row).product::<f64>()
            };
            let own = self.host.values()[e].to_f64();
            let sum: Sum = (0..n).map(|r| own * term(r)).collect();
            let found = found.values()[e].to_f64();
            (!near::<T>(found, &sum)).then(|| format!("entry {e} is {found}, not {}", sum.value))
        });
        let gathered = entries * shape.len() * n * element;
        let rows: usize = shape.iter().sum();
        let bytes = entries * (4 * shape.len() + 2 * element) + rows * n * element;
        let row = self
            .row("sampled_tensor", String::new(), &times)
            .flops((shape.len() * entries * n) as f64)
            .prepared(prepared, op.workspace_bytes());
        self.add(row, (op.variant(), true), [gathered, bytes], wrong)
    }
}
