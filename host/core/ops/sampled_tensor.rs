//! Products of matrices at the entries of a sparse tensor of order 1 to 3.

use std::borrow::Cow;
use std::marker::PhantomData;

use einsparse_formats::{AnyPattern, PAD};

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::families::tensor::fibres::coordinates;
use crate::families::tensor::offers::dots::{dots_row, mark_padding};
use crate::families::tensor::{DotsLaunch, RawDots};
use crate::offer::PlannedPattern;
use crate::operator::Operator;
use crate::parallel;
use crate::registry::Scalar;
use crate::tensor::{AnySparseTensor, AnyTensor, SparseTensor, Tensor};

/// `S[i,j,k] = P[i,j,k] * X[i,r] * Y[j,r] * Z[k,r]` at the entries of P, for tensors of order 1 to 3 in COO, GroupCOO,
/// CSR or CSC. It evaluates a low-rank model at the entries of a tensor (tensor completion; SDDMM for order 2). S and P
/// have the same pattern, which is planned once.
///
/// ```
/// use einsparse::{Context, ops::SampledTensor};
/// use einsparse::formats::{Coo, Dense};
/// let ctx = Context::cpu();
/// let coords = vec![vec![0, 1], vec![1, 0], vec![1, 1]];
/// let p = ctx.upload(Coo::from_entries(vec![2, 2, 2], coords, vec![1.0f32, 10.0])?)?;
/// let matrix = |values: [f32; 4]| ctx.upload_dense(&Dense::new([2, 2], values.to_vec())?);
/// let (x, y, z) = (matrix([1., 2., 3., 4.])?, matrix([5., 6., 7., 8.])?, matrix([0., 0., 1., 1.])?);
/// let sampled = SampledTensor::new(&ctx, &p, 2)?;
/// let mut s = ctx.upload(p.to_host()?)?;
/// let stream = ctx.stream()?;
/// sampled.forward(Some(&p), &[&x, &y, &z], &mut s, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(s.to_host()?.values(), &[7.0 + 16.0, 10.0 * (15.0 + 24.0)]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SampledTensor<T: Scalar> {
    element: PhantomData<T>,
    operator: Operator<DotsLaunch>,
    pattern: PlannedPattern,
    n: usize,
}

impl<T: Scalar> SampledTensor<T> {
    /// Plans the product for the pattern of a tensor, and matrices of `n` columns.
    ///
    /// # Errors
    /// [`Error::StorageFormat`] for a format without coordinates; [`Error::NoKernel`] for orders and element types
    /// without kernels.
    pub fn new(context: &Context, pattern: &SparseTensor<T>, n: usize) -> Result<Self> {
        let host = pattern.pattern();
        let mut axes = places(host)?;
        let operator = Operator::new(context, |device| {
            let best = dots_row(T::DTYPE, axes.len(), n, n);
            let row = best.ok_or_else(|| {
                let asked = format!("{} factors of {}", axes.len(), T::DTYPE.name());
                let reason = "has products at entries for one to three factors \
                                  in f32, f64, f16 and bf16";
                Error::no_kernel(asked, [Refusal::of("mttkrp", reason)])
            })?;
            mark_padding(&mut axes);
            let axes: Vec<&[u32]> = axes.iter().map(|axis| &**axis).collect();
            DotsLaunch::new(device, row, &axes, n)
        })?;
        Ok(SampledTensor {
            element: PhantomData,
            operator,
            pattern: PlannedPattern::new("P", host),
            n,
        })
    }

    /// Returns the name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(|launch| launch.row().name)
    }

    /// Returns the device memory in bytes, operands excluded.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(DotsLaunch::bytes)
    }

    /// Queues `S = P * X * Y * Z`, without P if `mask` is `None`. `factors` are the matrices `[extent, n]` of the axes,
    /// in order.
    ///
    /// # Errors
    /// Fails for tensors of other shapes, another pattern or another context than planned.
    pub fn forward(
        &self,
        mask: Option<&SparseTensor<T>>,
        factors: &[&Tensor<T>],
        out: &mut SparseTensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        for (name, tensor) in [("S", Some(&*out)), ("P", mask)] {
            if let Some(own) = tensor {
                self.pattern.expect(name, own.pattern())?;
            }
        }
        let shape = self.pattern.planned().shape();
        if factors.len() != shape.len() {
            let (found, order) = (factors.len(), shape.len());
            let wanted = format!("order {order} requires one for each axis");
            return Err(Error::shape("S", format!("{found} factors"), wanted));
        }
        let run = self.operator.start(stream)?;
        let mut raw = RawDots {
            mask: match mask {
                Some(mask) => run.values("P", mask)?,
                None => 0,
            },
            factors: [(0, 0); 3],
            out: run.values("S", out)?,
            alpha: 1.0,
            accumulate: false,
        };
        for (axis, factor) in factors.iter().enumerate() {
            run.check(&format!("factor {axis}"), factor.any(), &[shape[axis], self.n])?;
        }
        for (to, factor) in raw.factors.iter_mut().zip(factors) {
            *to = (factor.place(), factor.leading());
        }
        run.queue(
            |launch, queue| launch.run(&raw, queue),
            || {
                let factors: Vec<&AnyTensor> = factors.iter().map(|f| &f.any).collect();
                let mask = mask.map(|mask| &mask.any);
                run_cpu(self.pattern.planned(), self.n, mask, &factors, &mut out.any)
            },
        )
    }
}

fn run_cpu(
    pattern: AnyPattern<'_>,
    n: usize,
    mask: Option<&AnySparseTensor>,
    factors: &[&AnyTensor],
    out: &mut AnySparseTensor,
) -> Result<()> {
    let axes = places(pattern)?;
    let matrices = factors.iter().map(|f| Some((f.host()?.widen::<f64>(), f.leading())));
    let matrices: Vec<_> = matrices.collect::<Option<_>>().or_elsewhere("a factor")?;
    let mask = match mask {
        Some(mask) => Some(mask.host().or_elsewhere("P")?.widen::<f64>()),
        None => None,
    };
    let values = out.host_mut().or_elsewhere("S")?;
    const CHUNK: usize = 1024;
    let mut wide = values.view().widen::<f64>().into_owned();
    parallel::chunks(&mut wide, CHUNK, &|chunk, slots| {
        for (at, to) in slots.iter_mut().enumerate() {
            let slot = chunk * CHUNK + at;
            if axes.iter().any(|axis| axis[slot] == PAD) {
                continue;
            }
            let own = axes.iter().zip(&matrices);
            let rows: Vec<&[f64]> = own
                .map(|(axis, (data, leading))| &data[axis[slot] as usize * leading..][..n])
                .collect();
            let term = |r: usize| rows.iter().map(|row| row[r]).product::<f64>();
            // Starts from 0, as on a GPU: the sum of no terms is then 0, not -0.
            let sum = (0..n).map(term).fold(0.0, |sum, term| sum + term);
            *to = sum * mask.as_ref().map_or(1.0, |mask| mask[slot]);
        }
    });
    values.narrow((1, wide.len(), wide.len()), &wide);
    Ok(())
}

/// Returns the coordinates of every slot, one list per axis.
fn places(pattern: AnyPattern<'_>) -> Result<Vec<Cow<'_, [u32]>>> {
    coordinates(pattern).ok_or_else(|| Error::not_walked("P", pattern.format()))
}
