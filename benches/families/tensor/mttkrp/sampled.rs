//! Products at the entries of a sparse tensor.

use super::{Bench, CHECKED};
use crate::device::Result;
use crate::families::convert::entries::text;
use crate::record::Row;
use crate::timing::measure;
use einsparse::formats::{Coo, Dense};
use einsparse::ops::SampledTensor;
use einsparse::{Scalar, SparseTensor, Stream, Tensor};
use std::time::Instant;

impl Bench<'_> {
    /// Products at the entries: as many rows are gathered as the tensor has axes.
    pub(super) fn sampled<T: Scalar>(
        &mut self,
        host: &Coo<T>,
        there: &SparseTensor<T>,
        hosts: &[Dense<T>],
        factors: &[Tensor<T>],
    ) -> Result<()> {
        let (_, shape, _, n) = self.case;
        let start = Instant::now();
        let op = SampledTensor::new(&self.context, there, n).map_err(text)?;
        let prepared = start.elapsed().as_secs_f64() * 1e3;
        let mut out = self.context.upload(host.clone()).map_err(text)?;
        let borrowed: Vec<&Tensor<T>> = factors.iter().collect();
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        let stream = unsafe { Stream::from_raw(self.gpu.stream.cast()) };
        let times = measure(self.gpu, self.arguments.effort(), &mut || {
            op.run(Some(there), &borrowed, &mut out, &stream)
                .map_err(text)
        })?;
        let (entries, element) = (host.nnz(), size_of::<T>());
        let found = out.to_host().map_err(text)?;
        let coords = host.pattern().coords();
        let relative = if element == 2 { 8e-3 } else { 1e-5 };
        let wrong = (0..entries).step_by(CHECKED).find_map(|e| {
            let term = |r: usize| {
                let row = |(axis, f): (usize, &Dense<T>)| {
                    f.values()[coords[axis][e] as usize * n + r].to_f64()
                };
                hosts.iter().enumerate().map(row).product::<f64>()
            };
            let own = host.values()[e].to_f64();
            let sum = own * (0..n).map(term).sum::<f64>();
            let size = own.abs() * (0..n).map(|r| term(r).abs()).sum::<f64>();
            let found = found.values()[e].to_f64();
            let near = (found - sum).abs() <= relative * size;
            (!near).then(|| format!("entry {e} is {found}, not {sum}"))
        });
        let gathered = entries * shape.len() * n * element;
        let rows: usize = shape.iter().sum();
        let bytes = entries * (4 * shape.len() + 2 * element) + rows * n * element;
        let row = Row {
            prepare_ms: Some(prepared),
            prepared_bytes: Some(op.workspace_bytes()),
            gflops: Some((shape.len() * entries * n) as f64 / times.cold / 1e6),
            ..self.row::<T>("sampled_tensor", String::new())
        };
        self.add(row, (op.variant(), true), &times, [gathered, bytes], wrong)
    }
}
