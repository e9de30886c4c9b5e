//! CPU emulation of the general kernels with the same parameters and the same functions. It is their reference, and it
//! tests the listing without a GPU.

use einsparse_formats::Element;
use einsparse_kernels::abi::{FLAG_ACCUMULATE, FLAG_GATE, FLAG_GELU, FLAG_RELU};
use einsparse_kernels::families::{
    Arrays, EINSUM_FACTORS, EINSUM_WHOLE, EinsumParams, FLAG_BIAS, FLAG_FILLED, FLAG_JOIN, Line,
    stepped,
};

use super::super::bind::scalar;
use super::super::epilogue::activate;
use super::super::operands::{AnyOperands, AnyOutput, Operands, Output, volume};
use super::{Lanes, Listing, Offsets, Places, Way, ways};
use crate::einsum::Activation;
use crate::error::{Error, Result};
use crate::indirect::IndirectEinsum;
use crate::registry::{Dtype, Scalar};
use crate::values::{Sum, with_sums, with_type};

/// Index arrays in host memory.
struct Host;

impl Arrays for Host {
    fn slot(&self, address: u64, ok: bool) -> u32 {
        if !ok {
            return 0;
        }
        // SAFETY: addresses are inside the listing's tables.
        unsafe { *(address as *const u32) }
    }
    fn word(&self, address: u64) -> u64 {
        // SAFETY: addresses are inside the listing's loops.
        unsafe { *(address as *const u64) }
    }
}

/// Variant of [`run`](super::super::run) that executes the steps of the general GPU kernels. `way` is the index of the
/// way in which lanes iterate; the way with vectors is first, if it exists. Returns the number of ways.
///
/// # Errors
/// As for [`run`](super::super::run); [`Error::OutOfRange`](crate::Error::OutOfRange) if `way` is out of range, or if
/// the number of factors is 0 or more than five; [`Error::Overflow`](crate::Error::Overflow) if a number exceeds those
/// of the kernels.
pub fn run_listed<T: Scalar>(
    e: &IndirectEinsum,
    operands: &Operands<'_, T>,
    out: Output<'_, T>,
    way: usize,
) -> Result<usize> {
    with_sums!(T::DTYPE, A => listed::<A>(T::DTYPE, e, &operands.any, out.any(), way))
}

fn listed<A: Sum>(
    dtype: Dtype,
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: AnyOutput<'_>,
    way: usize,
) -> Result<usize> {
    if e.factors.is_empty() || e.factors.len() > EINSUM_FACTORS {
        return Err(Error::range("factors", e.factors.len(), format!("1 to {EINSUM_FACTORS}")));
    }
    let strides = |name: &str| Some(operands.tensor(name).ok()?.strides.clone());
    let vector = 16 / dtype.bytes();
    let all = ways(e, (&out.shape, &out.strides), &strides, vector);
    let Some(way) = all.get(way) else {
        return Err(Error::range("way", way, format!("below {}", all.len())));
    };
    let of = |name: Option<&String>| -> Result<Vec<usize>> {
        name.map_or(Ok(Vec::new()), |n| Ok(operands.tensor(n)?.strides.clone()))
    };
    let places = Places {
        bias: of(e.bias.as_ref().map(|b| &b.tensor))?,
        gate: of(e.gate.as_ref())?,
        shape: out.shape.clone(),
        strides: out.strides.clone(),
    };
    // Validates the shapes of bias and gate.
    super::super::epilogue::Epilogue::<A>::bind(e, operands, &out.shape)?;
    let offsets = Offsets::new(e, operands)?;
    let listing = Listing::new(e, (operands, dtype.bytes()), &offsets, &places, way)?;
    if volume(out.shape.iter().copied()) > 0 {
        launch::<A>(e, operands, out, &listing, way, vector)?;
    }
    Ok(all.len())
}

fn launch<A: Sum>(
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: AnyOutput<'_>,
    listing: &Listing<'_>,
    way: &Way,
    vector: usize,
) -> Result<()> {
    let mut p = listing.params;
    let mut dims = listing.dims.clone();
    let at = |table: &mut u64| {
        if *table > 0 {
            *table = listing.tables[*table as usize - 1].as_ptr() as u64;
        }
    };
    dims.iter_mut().flat_map(|d| &mut d.tables).for_each(at);
    for (slot, &factor) in listing.order.iter().enumerate() {
        at(&mut p.factors[slot].table);
        let tensor = operands.tensor(&e.factors[factor].tensor)?;
        p.factors[slot].address = tensor.values.bytes().as_ptr() as u64;
    }
    let of = |name: Option<&String>| -> Result<u64> {
        name.map_or(Ok(0), |n| Ok(operands.tensor(n)?.values.bytes().as_ptr() as u64))
    };
    p.bias = of(e.bias.as_ref().map(|b| &b.tensor))?;
    p.gate = of(e.gate.as_ref())?;
    let dtype = out.values.dtype();
    p.out = out.values.into_bytes().as_mut_ptr() as u64;
    p.dims = dims.as_ptr() as u64;
    let vector = if way.lanes == Lanes::Vectors { vector } else { 1 };
    let mut steps = Steps {
        dtype,
        alpha: A::from_f64(scalar(&e.scalars, operands)?),
        p,
        factors: listing.order.len(),
        vector,
        terms: way.lanes == Lanes::Terms,
        partial: vec![A::ZERO; listing.partials(way.lanes, vector) as usize],
    };
    steps.run(&listing.items);
    steps.p.flags |= FLAG_JOIN;
    steps.run(&listing.cuts);
    Ok(())
}

struct Steps<A> {
    dtype: Dtype,
    p: EinsumParams,
    alpha: A,
    factors: usize,
    vector: usize,
    terms: bool,
    partial: Vec<A>,
}

impl<A: Sum> Steps<A> {
    fn run(&mut self, items: &[[u32; 4]]) {
        let lanes = 1u32 << self.p.lane_bits;
        let run = if self.terms { 1 } else { lanes * self.vector as u32 };
        for item in items {
            for rest in 0..self.p.per_item {
                for own in 0..run {
                    self.element(*item, rest, own, run);
                }
            }
        }
    }

    /// Reads the value at an address.
    ///
    /// # Safety
    /// A value of the operands' type must be stored at the address.
    unsafe fn read(&self, at: u64) -> A {
        // SAFETY: guaranteed by the caller.
        let value = with_type!(self.dtype, T => unsafe { Element::to_f64(*(at as *const T)) });
        A::from_f64(value)
    }

    /// Computes one element of the output, or its part of a split sum.
    fn element(&mut self, item: [u32; 4], rest: u32, own: u32, run: u32) {
        let p = self.p;
        let [place, start, len, slot] = item;
        let mut spot = p.spot::<EINSUM_FACTORS>(&Host, place, rest);
        let column = spot.chunk * run + own;
        if !self.terms && column >= p.columns {
            return;
        }
        for f in 0..self.factors {
            spot.base[f] += u64::from(column) * p.factors[f].inner;
        }
        let column = u64::from(column);
        let kept = |slot: u32| {
            let unit = slot as usize * p.per_item as usize + rest as usize;
            unit * run as usize + own as usize
        };
        let mut sum = A::ZERO;
        let mut seen = false;
        if p.flags & FLAG_JOIN != 0 {
            (start..start + len).for_each(|slot| sum += self.partial[kept(slot)]);
        } else {
            self.add_up(spot.base, (start, len), (&mut sum, &mut seen));
            if seen {
                sum = self.alpha * sum;
            }
        }
        if slot != EINSUM_WHOLE {
            self.partial[kept(slot)] = sum;
            return;
        }
        let out = spot.out + column * p.out_inner;
        let bias = spot.bias + column * p.bias_inner;
        let gate = spot.gate + column * p.gate_inner;
        let sum = self.finished(sum, (out, bias, gate)).to_f64();
        // SAFETY: the address is inside the output, whose shape was validated.
        with_type!(self.dtype, T => unsafe { *(out as *mut T) = <T as Element>::from_f64(sum) });
    }

    fn add_up(
        &self,
        base: [u64; EINSUM_FACTORS],
        (start, len): (u32, u32),
        into: (&mut A, &mut bool),
    ) {
        let p = &self.p;
        let listed = p.summed == 0;
        let (terms, lines) = if listed { (1, 1) } else { (len, p.lines) };
        for term in 0..terms {
            for number in 0..lines {
                let line = if listed {
                    p.listed(base, start, len)
                } else {
                    self.line_of(base, start + term, number)
                };
                if line.ok {
                    (0..line.len).for_each(|at| self.add(&line, at, (into.0, into.1)));
                }
            }
        }
    }

    fn line_of(&self, base: [u64; EINSUM_FACTORS], term: u32, number: u32) -> Line<EINSUM_FACTORS> {
        self.p.line_of(&Host, base, term, number)
    }

    /// Adds one term.
    fn add(&self, line: &Line<EINSUM_FACTORS>, at: u32, (sum, seen): (&mut A, &mut bool)) {
        let mut product = None;
        for f in 0..self.factors {
            let walk = (line.tables[f], line.strides[f]);
            let (bytes, there) = stepped(&Host, walk, line.first + at, true);
            if !there {
                return;
            }
            // SAFETY: the address is inside the factor, as bound and validated.
            let value = unsafe { self.read(line.base[f] + bytes) };
            if f == 0 && self.p.flags & FLAG_FILLED != 0 && value == A::ZERO {
                return;
            }
            product = Some(product.map_or(value, |p: A| p * value));
        }
        *sum += product.unwrap_or(A::ZERO);
        *seen = true;
    }

    /// Applies bias, activation, gate and `+=`.
    fn finished(&self, sum: A, (out, bias, gate): (u64, u64, u64)) -> A {
        let flag = |flag| self.p.flags & flag != 0;
        // SAFETY: addresses are inside the epilogue's operands and the output.
        let read = |at: u64| unsafe { self.read(at) };
        let mut x = sum;
        if flag(FLAG_BIAS) {
            x += read(bias);
        }
        x = match (flag(FLAG_RELU), flag(FLAG_GELU)) {
            (true, _) => activate(Activation::Relu, x),
            (_, true) => activate(Activation::Gelu, x),
            _ => x,
        };
        if flag(FLAG_GATE) && (read(gate) <= A::ZERO || read(gate).to_f64().is_nan()) {
            x = A::ZERO;
        }
        if flag(FLAG_ACCUMULATE) { read(out) + x } else { x }
    }
}
