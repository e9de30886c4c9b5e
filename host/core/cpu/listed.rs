//! Form of an indirect Einsum for the general kernels. Loops that gathers tie together become one list of terms, sorted
//! by output index. The other loops stay strides. A listing contains the parameters of the kernels, with numbers of
//! tables in place of addresses.

mod loops;
mod run;
mod space;
mod terms;
mod ways;

use std::borrow::Cow;

use einsparse_kernels::abi::{FLAG_ACCUMULATE, FLAG_GATE, FLAG_GELU, FLAG_RELU};
use einsparse_kernels::families::{
    EINSUM_FACTORS, EINSUM_WHOLE, EinsumDim, EinsumParams, FLAG_BIAS, FLAG_FILLED,
};

use super::bind::{Owner, bind, owners};
use super::expr::Expr;
use super::operands::AnyOperands;
use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::indirect::IndirectEinsum;
use loops::{Loops, OutStrides, joined};
use space::Space;

pub use run::run_listed;
pub(crate) use ways::{Lanes, Way, filled, ways};

/// Sums with fewer terms, including steps of summed loops, are not split.
pub(crate) const LEAST_CUT: u64 = 128;
/// Target number of items of a split.
pub(crate) const AIM: u64 = 132 * 64;

/// Shape and strides of the output, and strides of its bias and gate.
pub(crate) struct Places {
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
    /// Strides of the bias along its own axes; empty without a bias.
    pub(crate) bias: Vec<usize>,
    /// Strides of the tensor `gate`; empty without it.
    pub(crate) gate: Vec<usize>,
}

/// Parameters of a launch, except addresses.
pub(crate) struct Listing<'a> {
    /// Tables are numbered from 1; the addresses of operands are 0.
    pub(crate) params: EinsumParams,
    /// Dimensions of output parts, free loops and summed loops, in this order.
    pub(crate) dims: Vec<EinsumDim>,
    pub(crate) tables: Vec<Cow<'a, [u32]>>,
    pub(crate) items: Vec<[u32; 4]>,
    /// Output indices of split sums with the range of their parts.
    pub(crate) cuts: Vec<[u32; 4]>,
    /// Number of parts of split sums.
    pub(crate) slots: u32,
    /// Number in the expression of each factor of the parameters.
    pub(crate) order: Vec<usize>,
}

/// Row of every nonzero for each compressed axis, which a listing borrows.
pub(crate) struct Offsets<'a>(Vec<Owner<'a>>);

impl<'a> Offsets<'a> {
    pub(crate) fn new(e: &'a IndirectEinsum, operands: &AnyOperands<'_>) -> Result<Self> {
        Ok(Offsets(owners(e, operands)?))
    }
}

impl<'a> Listing<'a> {
    /// Lists the terms for elements of `bytes` bytes. The values of the operands are not read.
    ///
    /// # Errors
    /// Errors of binding; [`Error::Overflow`] if terms, output indices or steps exceed the numbers of the kernels.
    pub(crate) fn new(
        e: &'a IndirectEinsum,
        (operands, bytes): (&'a AnyOperands<'a>, usize),
        offsets: &'a Offsets<'a>,
        places: &Places,
        way: &Way,
    ) -> Result<Self> {
        let bound = bind(e, operands, &offsets.0, &places.shape, &places.strides)?;
        let strides = places.by_axis(e);
        let space = Space::new(&bound);
        let inner = way.inner.map(|axis| match bound.out[axis].expr {
            Expr::Var(v) => v,
            _ => unreachable!("the index stands as itself"),
        });
        let mut loops = Loops { tables: Vec::new(), order: way.order.clone(), bytes };
        let mut terms = terms::list(&bound, &space)?;
        let parts: Vec<EinsumDim> =
            terms::parts(&space).into_iter().map(|atom| loops.part(atom, &strides)).collect();
        let mut starts = terms.starts;
        let mut params = EinsumParams::default();
        for (slot, &factor) in way.order.iter().enumerate() {
            let walk = &mut terms.walks[factor];
            params.factors[slot].stride = walk.stride.wrapping_mul(bytes) as u64;
            let table = walk.table.take();
            params.factors[slot].table = table.map_or(0, |table| loops.table(table));
        }
        let mut left: Vec<usize> = (0..bound.extents.len()).collect();
        left.retain(|v| !space.list.contains(v) && Some(*v) != inner);
        let (free, summed): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&v| space.of_out[v]);
        let mut dims_of = |vars: Vec<usize>| -> Result<Vec<EinsumDim>> {
            let of = |v| loops.of_var(&bound, &space, &strides, v);
            vars.into_iter().map(of).collect()
        };
        let free = joined(dims_of(free)?, |d| d.out);
        let mut summed = joined(dims_of(summed)?, |d| d.strides.iter().sum());
        if space.list.is_empty() && !summed.is_empty() {
            starts = as_list(summed.remove(0), &mut params)?;
        }
        let inner = inner.map(|v| loops.of_var(&bound, &space, &strides, v));
        let inner = inner.transpose()?;
        let mut listing = Listing::with_tables(params, loops);
        listing.set_flags(e);
        let lanes = (way.lanes, starts.as_slice());
        listing.set_loops([parts, free, summed], inner, lanes, bytes)?;
        listing.set_items(&starts);
        listing.check()?;
        Ok(listing)
    }

    fn with_tables(params: EinsumParams, loops: Loops<'a>) -> Self {
        Listing {
            params,
            dims: Vec::new(),
            tables: loops.tables,
            items: Vec::new(),
            cuts: Vec::new(),
            slots: 0,
            order: loops.order,
        }
    }

    /// Sets the flags of mode and epilogue.
    fn set_flags(&mut self, e: &IndirectEinsum) {
        let mut flags = 0;
        let mut set = |flag, on| flags |= if on { flag } else { 0 };
        set(FLAG_ACCUMULATE, e.mode == Mode::Accumulate);
        set(FLAG_RELU, e.activation == Activation::Relu);
        set(FLAG_GELU, e.activation == Activation::Gelu);
        set(FLAG_BIAS, e.bias.is_some());
        set(FLAG_GATE, e.gate.is_some());
        set(FLAG_FILLED, filled(e).is_some());
        self.params.flags = flags;
    }

    fn set_loops(
        &mut self,
        [parts, free, summed]: [Vec<EinsumDim>; 3],
        inner: Option<EinsumDim>,
        (lanes, starts): (Lanes, &[u32]),
        bytes: usize,
    ) -> Result<()> {
        let p = &mut self.params;
        let steps = |dims: &[EinsumDim]| dims.iter().map(|d| d.extent as u128).product::<u128>();
        let vector = if lanes == Lanes::Vectors { 16 / bytes } else { 1 };
        let long = match summed.last() {
            Some(line) => line.extent,
            None => {
                let lists = starts.windows(2).filter(|w| w[1] > w[0]).count() as u64;
                u64::from(starts[starts.len() - 1]) / lists.max(1)
            }
        };
        let run = match (lanes, &inner) {
            (Lanes::Terms, _) => long.div_ceil(2),
            (_, Some(inner)) => inner.extent.div_ceil(vector as u64),
            (_, None) => 1,
        };
        p.lane_bits = run.clamp(1, 32).next_power_of_two().trailing_zeros();
        let inner = inner.unwrap_or(EinsumDim { extent: 1, ..EinsumDim::default() });
        p.columns = small("steps of an index", inner.extent.into())?;
        p.chunks = p.columns.div_ceil(vector as u32 * (1 << p.lane_bits)).max(1);
        (p.out_inner, p.bias_inner, p.gate_inner) = (inner.out, inner.bias, inner.gate);
        for f in 0..EINSUM_FACTORS {
            p.factors[f].inner = inner.strides[f];
        }
        p.per_item = small("units of a place", steps(&free) * u128::from(p.chunks))?;
        p.parts = parts.len() as u32;
        p.free = free.len() as u32;
        p.summed = summed.len() as u32;
        p.line = small("terms of a line", summed.last().map_or(1, |d| d.extent).into())?;
        let before = &summed[..summed.len().saturating_sub(1)];
        p.lines = small("lines of a term", steps(before))?;
        self.dims = [parts, free, summed].concat();
        Ok(())
    }

    /// Creates items in the order of output indices, splits long sums, and orders items from long to short.
    fn set_items(&mut self, starts: &[u32]) {
        let p = &self.params;
        let each = u64::from(p.lines) * u64::from(p.line);
        let terms = u64::from(starts[starts.len() - 1]);
        let fair = terms.saturating_mul(u64::from(p.per_item)) / AIM;
        let limit = fair.max(LEAST_CUT / each.max(1)).clamp(1, 1 << 30) as u32;
        let plain = FLAG_ACCUMULATE | FLAG_FILLED;
        // Accumulating an empty sum without an epilogue does not change the output.
        let skip = p.flags & FLAG_ACCUMULATE != 0 && p.flags & !plain == 0;
        let mut classes: Vec<Vec<[u32; 4]>> = vec![Vec::new(); 33];
        for (place, w) in starts.windows(2).enumerate() {
            let (place, start, len) = (place as u32, w[0], w[1] - w[0]);
            if len == 0 && skip {
                continue;
            }
            if len <= limit {
                let class = 32 - len.leading_zeros() as usize;
                classes[class].push([place, start, len, EINSUM_WHOLE]);
                continue;
            }
            let pieces = len.div_ceil(limit);
            let size = len.div_ceil(pieces);
            let class = &mut classes[32 - size.leading_zeros() as usize];
            let first = self.slots;
            let mut at = 0;
            while at < len {
                class.push([place, start + at, size.min(len - at), self.slots]);
                self.slots += 1;
                at += size;
            }
            self.cuts.push([place, first, self.slots - first, EINSUM_WHOLE]);
        }
        self.items = classes.into_iter().rev().flatten().collect();
        self.params.count = self.items.len() as u32;
    }

    /// Checks the numbers that kernels store in 32 bits.
    fn check(&self) -> Result<()> {
        let p = &self.params;
        let threads = (u128::from(p.count.max(1)) * u128::from(p.per_item)) << p.lane_bits;
        // A launch has blocks of 256 threads, and units are u32.
        within("threads of a launch", threads, 1 << 39)?;
        within(
            "units of work",
            u128::from(p.count.max(1)) * u128::from(p.per_item),
            u64::from(u32::MAX) - 256,
        )?;
        let line = self.dims.last().filter(|_| p.summed > 0);
        let strides = p.factors.iter().map(|f| f.stride);
        for stride in strides.chain(line.iter().flat_map(|d| d.strides)) {
            within("bytes of a step", stride.into(), u64::from(u32::MAX))?;
        }
        Ok(())
    }

    /// Number of accumulators for the parts of split sums.
    pub(crate) fn partials(&self, lanes: Lanes, vector: usize) -> u64 {
        let p = &self.params;
        let width = if lanes == Lanes::Terms { 1 } else { vector as u64 * (1 << p.lane_bits) };
        u64::from(self.slots) * u64::from(p.per_item) * width
    }
}

impl Places {
    /// Strides by axis of the output.
    fn by_axis(&self, e: &IndirectEinsum) -> OutStrides {
        let mut bias = vec![0; self.shape.len()];
        for (own, stride) in e.bias.iter().flat_map(|b| &b.axes).zip(&self.bias) {
            bias[*own] += stride;
        }
        let none = vec![0; self.shape.len()];
        OutStrides {
            out: self.strides.clone(),
            bias,
            gate: if self.gate.is_empty() { none } else { self.gate.clone() },
        }
    }
}

/// Converts a summed loop into the list of one output index. Returns the offsets of its terms.
fn as_list(summed: EinsumDim, params: &mut EinsumParams) -> Result<Vec<u32>> {
    for f in 0..EINSUM_FACTORS {
        params.factors[f].stride = summed.strides[f];
        params.factors[f].table = summed.tables[f];
    }
    Ok(vec![0, small("terms of a list", summed.extent.into())?])
}

fn within(what: &str, value: u128, limit: u64) -> Result<()> {
    if value <= u128::from(limit) {
        return Ok(());
    }
    Err(Error::Overflow { what: what.into(), value, limit: limit.into() })
}

fn small(what: &str, value: u128) -> Result<u32> {
    within(what, value, u64::from(u32::MAX))?;
    Ok(value as u32)
}
