//! Products of weights and slopes on Tensor Cores for masks that fill blocks. The values of a head are stored per
//! entry; a kernel scatters them to blocks that are otherwise zero.

use std::sync::Arc;

use einsparse_formats::convert::csr_to_bsr;
use einsparse_formats::{Bsr, Csr, CsrPattern, fill};

use super::{HeadOperands, Heads};
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::families::attention::AttentionExtents;
use crate::families::convert::Scatter;
use crate::kernel::Queue;
use crate::launch::RawSpmm;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor};

/// Rows and columns of a block.
const BLOCK: usize = 64;
/// Minimum number of entries of a mask for which blocks are assumed to be worth the launches of each head.
const LEAST: usize = 1 << 18;
/// Minimum ratio of entries to elements of blocks for which blocks are assumed to be faster; not measured.
const FILL: f64 = 0.125;

/// Blocks with the values of one head at a time.
#[derive(Debug)]
pub(super) struct Blocks<T: Scalar> {
    device: Arc<Device>,
    /// Values of the blocks; zero outside of the entries of the mask.
    values: SparseTensor<T>,
    places: Scatter,
    /// dQ from dS and K; dK and dV from dS, Q and P, dO.
    products: [Plan<T>; 2],
    /// Adds to dK and dV, if heads share keys.
    onto: Option<Plan<T>>,
}

impl<T: Scalar> Blocks<T> {
    /// Returns `None` if there are too few entries, if they are too scattered, or if Tensor Cores do not support their
    /// type.
    pub(super) fn new(
        context: &Context,
        pattern: &CsrPattern,
        extents: AttentionExtents,
    ) -> Result<Option<Self>> {
        match Self::made(context, pattern, extents) {
            Err(Error::NoKernel { .. } | Error::OutOfMemory { .. } | Error::Overflow { .. }) => {
                Ok(None)
            }
            made => made,
        }
    }

    fn made(
        context: &Context,
        pattern: &CsrPattern,
        extents: AttentionExtents,
    ) -> Result<Option<Self>> {
        let (slots, AttentionExtents { m, n, d, .. }) = (pattern.columns().len(), extents);
        if size_of::<T>() != 2 || slots < LEAST || i32::try_from(slots).is_err() {
            return Ok(None);
        }
        let fills = fill::block_fills(pattern, &[(BLOCK, BLOCK)])?;
        let fits = |found: &fill::BlockFill| {
            let places = found.blocks * (BLOCK * BLOCK) as u64;
            found.fill() >= FILL && places < u64::from(u32::MAX)
        };
        if !fills.first().is_some_and(fits) {
            return Ok(None);
        }
        let numbers = (1..=slots as i32).collect();
        let numbered = csr_to_bsr(&Csr::new(pattern.clone(), numbers)?, (BLOCK, BLOCK))?;
        let places = Scatter::places(numbered.values(), slots)?;
        let zeros = vec![T::ZERO; numbered.values().len()];
        let values = context.upload(Bsr::new(numbered.pattern().clone(), zeros)?)?;
        let plan = |text: &str, rows: usize| {
            let operands = [("S", (&values).into()), ("X", Operand::Shape(&[rows, d]))];
            context.plan(text).operands(&operands).build()
        };
        let products = [plan("Y[m,d] = S[m,n] * X[n,d]", n)?, plan("Y[n,d] = S[m,n] * X[m,d]", m)?];
        let onto = || plan("Y[n,d] += S[m,n] * X[m,d]", m);
        let shared = extents.heads != extents.key_heads;
        let onto = shared.then(onto).transpose()?;
        let device = Arc::clone(context.expect_device()?);
        Ok(Some(Blocks {
            places: Scatter::new(&device, T::DTYPE, &places)?,
            device,
            values,
            products,
            onto,
        }))
    }

    pub(super) fn products(&self) -> &[Plan<T>; 2] {
        &self.products
    }

    pub(super) fn bytes(&self) -> usize {
        let plans = self.products.iter().chain(&self.onto);
        let plans: usize = plans.map(Plan::workspace_bytes).sum();
        self.values.pattern().slots() * size_of::<T>() + self.places.bytes() + plans
    }

    /// Computes the gradient of a head of queries, and its contribution to the gradients of its keys and values, from
    /// its weights and slopes.
    pub(super) fn multiply(
        &self,
        head: usize,
        [weights, slopes]: [u64; 2],
        operands: &HeadOperands,
        queue: Queue<'_>,
    ) -> Result<()> {
        let missing = || Error::elsewhere("the mask");
        let columns = self.values.columns_address().ok_or_else(missing)?;
        let values = self.values.values_address().ok_or_else(missing)?;
        self.device.context().set_current()?;
        // The weights and slopes of a head have a value for each entry of the mask, and each scatter index is within
        // `values`.
        let run = |plan: &Plan<T>, (b, from): (Heads, usize), (c, to): (Heads, usize), alpha| {
            let raw = RawSpmm {
                columns,
                values,
                b: b.at(from),
                ldb: b.leading,
                c: c.at(to),
                ldc: c.leading,
                alpha,
                ..RawSpmm::default()
            };
            // SAFETY: shapes and addresses of the operands were validated; the other tensors are owned by self.
            unsafe { plan.run_raw(&raw, queue.stream()) }
        };
        let ([q, k, _], [dq, dk, dv]) = (operands.inputs, operands.outputs);
        let key_head = head / operands.ratio;
        let of_keys = match &self.onto {
            Some(onto) if !head.is_multiple_of(operands.ratio) => onto,
            _ => &self.products[1],
        };
        self.places.run(slopes, values, queue)?;
        run(&self.products[0], (k, key_head), (dq, head), operands.scale)?;
        run(of_keys, (q, head), (dk, key_head), operands.scale)?;
        self.places.run(weights, values, queue)?;
        run(of_keys, (operands.upstream, head), (dv, key_head), 1.0)
    }
}
