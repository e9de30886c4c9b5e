//! Plans of the general Einsum kernels: expressions without a specialized kernel, and requests by name.

use std::sync::Arc;

use einsparse_formats::Format;
use einsparse_kernels::abi::{Dtype, Operation};
use einsparse_kernels::families::EINSUM_FACTORS;
use einsparse_kernels::table::{Row, kernels};

use crate::cost::Work;
use crate::cpu::AnyOperands;
use crate::cpu::listed::{Lanes, Listing, Offsets, Places, Way, ways};
use crate::device::Device;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Result};
use crate::families::tensor::cost::einsum::{Steps, predict};
use crate::families::tensor::{EinsumLaunch, RawEinsum};
use crate::indirect::{rewrite, rewrite_dense};
use crate::machine::Machine;
use crate::offer::{
    AnyOut, Candidate, Executable, Offer, Offers, PlannedPattern, Request, Run, Slot, of_launch,
    refuse,
};
use crate::tensor::{AnyOperand, columns_of, row_major, volume};
use crate::values::Slice;

const NAME: &str = "einsum";

/// Returns the offers of the family for an expression.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let refused = |reason: String| Err(refuse(NAME, reason));
    let e = request.indirect;
    let factors = e.factors.len();
    if factors == 0 || factors > EINSUM_FACTORS {
        return refused(format!("multiplies 1 to {EINSUM_FACTORS} factors, this has {factors}"));
    }
    if e.filled.len() > 1 {
        let names = e.filled.iter().map(|&f| format!("`{}`", e.factors[f].tensor));
        return refused(format!(
            "leaves stored zeros of one operand in blocks or 2:4 out, this has {}: store all but one in csr",
            names.collect::<Vec<_>>().join(" and ")
        ));
    }
    let mut rows = kernels().iter().filter(|r| r.operation == Operation::Einsum);
    if !request.types.alike() || rows.all(|r| r.dtype != request.types.operands) {
        let (own, out) = (request.types.operands.name(), request.types.out.name());
        return refused(format!(
            "computes f32, f64, f16 and bf16 into themselves, not {own} into {out}"
        ));
    }
    let places = places_of(request);
    let strides = |name: &str| strides_of(request.operands(), name);
    let vector = 16 / request.types.operands.bytes();
    let all = ways(e, (&places.shape, &places.strides), &strides, vector);
    let offers = all.into_iter().filter_map(|way| {
        let row = row_of(request.types.operands, factors, &way)?;
        let steps = steps_of(request, &way);
        let cost = predict(row, &steps, request.machine);
        Some(Ok(Offer::of(row, cost, move |device| General::new(request, device, row, &way))))
    });
    Ok(offers.collect())
}

/// Returns the kernels for `C[m,n] (=|+=) A[m,k] * B[k,n]` with contiguous matrices and `slots` slots of A in a format.
/// It finds the result of [`offers`] without operands.
pub(crate) fn product(
    format: Option<Format>,
    (slots, dtype): (f64, Dtype),
    work: &Work,
    machine: &Machine,
) -> Result<Vec<Candidate>> {
    let einsum = Einsum::parse("C[m,n] = A[m,k] * B[k,n]")?;
    let e = match &format {
        Some(format) => rewrite(&einsum, "A", format)?,
        None => rewrite_dense(&einsum)?,
    };
    let Work { m, n, k, .. } = *work;
    let strides = |name: &str| match (name, format) {
        ("A", None) => Some(vec![k, 1]),
        ("B", _) => Some(vec![n, 1]),
        _ => None,
    };
    let (bytes, out) = (dtype.bytes() as f64, [m, n]);
    let index_bytes = if format.is_some() { 4.0 } else { 0.0 };
    let found = ways(&e, (&out, &row_major(&out)), &strides, 16 / dtype.bytes());
    let candidates = found.iter().filter_map(|way| {
        let row = row_of(dtype, e.factors.len(), way)?;
        let steps = Steps {
            all: slots * n as f64,
            along: way.inner.map_or(1.0, |axis| out[axis] as f64),
            fixed: way.fixed,
            strided: way.strided,
            out: volume(&out) as f64,
            accumulate: work.accumulate,
            operands: slots * (bytes + index_bytes) + (k * n) as f64 * bytes,
        };
        let cost = predict(row, &steps, machine);
        machine.lacks(row).is_none().then(|| Candidate::of(row, cost))
    });
    Ok(candidates.collect())
}

/// Returns the kernel of a way.
fn row_of(dtype: Dtype, factors: usize, way: &Way) -> Option<&'static Row> {
    let (columns, fixed) = match way.lanes {
        Lanes::Vectors => (2, way.fixed as u32),
        Lanes::Elements => (1, 0),
        Lanes::Terms => (0, 0),
    };
    kernels().iter().find(|row| {
        row.operation == Operation::Einsum
            && (row.dtype, row.items) == (dtype, factors as u32)
            && (row.columns, row.parts) == (columns, fixed)
    })
}

fn strides_of(operands: &[(&str, AnyOperand<'_>)], name: &str) -> Option<Vec<usize>> {
    operands.iter().find(|(n, _)| *n == name)?.1.strides()
}

/// Returns shape and strides of the output and its epilogue operands. Without a given output, it is contiguous.
fn places_of(request: &Request<'_, '_>) -> Places {
    let e = request.indirect;
    let shape = request.extents.out().to_vec();
    let of = |name: &String| strides_of(request.operands(), name).unwrap_or_default();
    let given = strides_of(request.operands(), &e.out.tensor);
    Places {
        strides: given.unwrap_or_else(|| row_major(&shape)),
        bias: e.bias.as_ref().map(|b| of(&b.tensor)).unwrap_or_default(),
        gate: e.gate.as_ref().map(of).unwrap_or_default(),
        shape,
    }
}

fn steps_of(request: &Request<'_, '_>, way: &Way) -> Steps {
    let sparse = request.indirect.sparse.as_ref();
    let mut own = Vec::new();
    let mut slots = 1.0;
    for (name, operand) in request.operands() {
        if sparse.is_some_and(|s| s.name == *name) {
            slots = operand.pattern().map_or(1.0, |p| p.slots() as f64);
        }
    }
    if let Some(sparse) = sparse {
        let access = &request.einsum.factors[sparse.factor];
        access.for_each_name(&mut |n| own.push(n));
    }
    let others = request.extents.iter().filter(|(n, _)| !own.contains(n));
    let bytes = |(_, operand): &(&str, AnyOperand<'_>)| match operand {
        AnyOperand::Sparse(_) | AnyOperand::HostSparse(..) => {
            slots * (request.types.operands.bytes() + 4) as f64
        }
        AnyOperand::Index(_, data) => size_of_val(*data) as f64,
        other => volume(other.shape()) as f64 * request.types.operands.bytes() as f64,
    };
    let shape = request.extents.out();
    Steps {
        all: slots * others.map(|(_, extent)| extent as f64).product::<f64>(),
        along: way.inner.map_or(1.0, |axis| shape[axis] as f64),
        fixed: way.fixed,
        strided: way.strided,
        out: volume(shape) as f64,
        accumulate: request.indirect.mode == Mode::Accumulate,
        operands: request.operands().iter().map(bytes).sum(),
    }
}

/// Returns the operands in the form that a listing reads.
fn bound<'o>(request: &'o Request<'_, '_>) -> Result<AnyOperands<'o>> {
    let mut bound = AnyOperands::default();
    let none = Slice::none(request.types.operands);
    for (name, operand) in request.operands() {
        match operand {
            AnyOperand::Dense(d) => bound.dense(name, d.shape(), d.strides(), none),
            AnyOperand::Index(shape, data) => bound.index(name, shape, data)?,
            AnyOperand::Sparse(a) => bound.sparse(request.indirect, a.pattern(), none)?,
            AnyOperand::Scalar(x) => bound.scalar(name, *x),
            // Plans pass dynamic tensors and shapes on as dense tensors.
            AnyOperand::HostSparse(..)
            | AnyOperand::HostDense(..)
            | AnyOperand::Dynamic(..)
            | AnyOperand::Shape(_) => {
                return Err(Error::on_host(name));
            }
        }
    }
    Ok(bound)
}

/// Expression prepared for the general kernels.
#[derive(Debug)]
struct General {
    launch: EinsumLaunch,
    /// Dense factors in the order of the listing; `None` for the values of the sparse operand.
    factors: Vec<Option<Dense>>,
    /// Strides of the output.
    out: Vec<usize>,
    bias: Option<Dense>,
    gate: Option<Dense>,
    pattern: Option<(Slot, PlannedPattern)>,
}

/// Slot and strides of a dense operand.
type Dense = (Slot, Vec<usize>);

impl General {
    fn new(
        request: &Request<'_, '_>,
        device: &Arc<Device>,
        row: &'static Row,
        way: &Way,
    ) -> Result<Self> {
        let e = request.indirect;
        let places = places_of(request);
        let mut pattern = None;
        let mut columns = None;
        for (name, operand) in request.operands() {
            if let AnyOperand::Sparse(a) = operand {
                pattern = Some((request.slot(name)?, PlannedPattern::new(name, a.pattern())));
                // The runs of a batch belong to one matrix that contains all of them.
                columns = a.runs().and_then(|_| columns_of(a.pattern()));
            }
        }
        let bound = bound(request)?;
        let offsets = Offsets::new(e, &bound)?;
        let listing =
            Listing::new(e, (&bound, request.types.operands.bytes()), &offsets, &places, way);
        let listing = match listing {
            // The listing exceeds the range of the kernels' numbers.
            Err(error @ Error::Overflow { .. }) => {
                return Err(refuse(row.name, error.to_string()));
            }
            listing => listing?,
        };
        let empty = places.shape.contains(&0);
        let launch = EinsumLaunch::new(device, row, &listing, (way.lanes, empty), columns)?;
        let sparse = e.sparse.as_ref().map(|s| s.factor);
        let factor = |&f: &usize| {
            let name = &e.factors[f].tensor;
            let strides = strides_of(request.operands(), name).unwrap_or_default();
            let dense = sparse != Some(f);
            dense.then(|| Ok((request.slot(name)?, strides))).transpose()
        };
        let slot = |(name, strides): (&String, _)| Ok::<_, Error>((request.slot(name)?, strides));
        Ok(General {
            launch,
            factors: way.order.iter().map(factor).collect::<Result<_>>()?,
            out: places.strides,
            bias: e.bias.as_ref().map(|b| slot((&b.tensor, places.bias))).transpose()?,
            gate: e.gate.as_ref().map(|g| slot((g, places.gate))).transpose()?,
            pattern,
        })
    }

    /// Returns the addresses of values and columns of the sparse operand.
    fn sparse(&self, run: &Run<'_>) -> Result<(u64, u64)> {
        let Some((slot, pattern)) = &self.pattern else {
            return Ok((0, 0));
        };
        let arrays = pattern.arrays(run.operand(*slot)?)?;
        Ok((arrays.values.address(), arrays.columns.address()))
    }

    /// Returns the address of a dense operand after comparing its strides with the planned ones.
    fn dense(run: &Run<'_>, (slot, strides): &Dense) -> Result<u64> {
        let found = run.operand(*slot)?.strides().unwrap_or_default();
        same_strides(run.name(*slot), strides, &found)?;
        Ok(run.tensor(*slot)?.0)
    }
}

fn same_strides(name: &str, planned: &[usize], found: &[usize]) -> Result<()> {
    if planned == found {
        return Ok(());
    }
    Err(Error::operand(
        name,
        format!(
            "has strides {found:?}, planned with {planned:?}; an output with gaps is given when planning"
        ),
    ))
}

impl Executable for General {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let (values, columns) = self.sparse(run)?;
        let dense = |own: &Option<Dense>| own.as_ref().map(|own| Self::dense(run, own)).transpose();
        let factors = self.factors.iter().map(|own| Ok(dense(own)?.unwrap_or(values)));
        let factors = factors.collect::<Result<_>>()?;
        same_strides(run.of.output(), &self.out, &out.strides())?;
        let raw = RawEinsum {
            factors,
            columns,
            out: run.output(out)?.0,
            bias: dense(&self.bias)?.unwrap_or(0),
            gate: dense(&self.gate)?.unwrap_or(0),
            alpha: run.factor()?,
        };
        self.launch.run(&raw, queue)
    }
}

of_launch!(General);
