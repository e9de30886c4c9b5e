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
use crate::error::{Error, Refusal, Result};
use crate::families::tensor::cost::einsum::{Steps, predict};
use crate::families::tensor::{EinsumLaunch, RawEinsum};
use crate::indirect::{rewrite, rewrite_dense};
use crate::machine::Machine;
use crate::offer::bind::device_tensor;
use crate::offer::{Answer, Candidate, Compiled, Offer, PlannedPattern, Question, Run, of_launch};
use crate::tensor::{AnyOperand, AnyTensor, columns_of, row_major, volume};
use crate::values::Slice;

const NAME: &str = "einsum";

/// Returns the offers of the family for an expression.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let refused = |reason: String| Answer::refused(NAME, reason);
    let e = question.indirect;
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
    if !question.types.alike() || rows.all(|r| r.dtype != question.types.operands) {
        let (own, out) = (question.types.operands.name(), question.types.out.name());
        return refused(format!(
            "computes f32, f64, f16 and bf16 into themselves, not {own} into {out}"
        ));
    }
    let places = places_of(question);
    let strides = |name: &str| strides_of(question.operands(), name);
    let vector = 16 / question.types.operands.bytes();
    let all = ways(e, (&places.shape, &places.strides), &strides, vector);
    let offers = all.into_iter().filter_map(|way| {
        let row = row_of(question.types.operands, factors, &way)?;
        let steps = steps_of(question, &way);
        let cost = predict(row, &steps, question.machine);
        Some(Offer::unless(row, cost, move |device| General::new(question, device, row, &way)))
    });
    Answer::of(offers.collect())
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
fn places_of(question: &Question<'_, '_>) -> Places {
    let e = question.indirect;
    let shape = question.extents.out().to_vec();
    let of = |name: &String| strides_of(question.operands(), name).unwrap_or_default();
    let given = strides_of(question.operands(), &e.out.tensor);
    Places {
        strides: given.unwrap_or_else(|| row_major(&shape)),
        bias: e.bias.as_ref().map(|b| of(&b.tensor)).unwrap_or_default(),
        gate: e.gate.as_ref().map(of).unwrap_or_default(),
        shape,
    }
}

fn steps_of(question: &Question<'_, '_>, way: &Way) -> Steps {
    let sparse = question.indirect.sparse.as_ref();
    let mut own = Vec::new();
    let mut slots = 1.0;
    for (name, operand) in question.operands() {
        if sparse.is_some_and(|s| s.name == *name) {
            slots = operand.pattern().map_or(1.0, |p| p.slots() as f64);
        }
    }
    if let Some(sparse) = sparse {
        let access = &question.einsum.factors[sparse.factor];
        access.for_each_name(&mut |n| own.push(n));
    }
    let others = question.extents.iter().filter(|(n, _)| !own.contains(n));
    let bytes = |(_, operand): &(&str, AnyOperand<'_>)| match operand {
        AnyOperand::Sparse(_) | AnyOperand::HostSparse(..) => {
            slots * (question.types.operands.bytes() + 4) as f64
        }
        AnyOperand::Index(_, data) => size_of_val(*data) as f64,
        other => volume(other.shape()) as f64 * question.types.operands.bytes() as f64,
    };
    let shape = question.extents.out();
    Steps {
        all: slots * others.map(|(_, extent)| extent as f64).product::<f64>(),
        along: way.inner.map_or(1.0, |axis| shape[axis] as f64),
        fixed: way.fixed,
        strided: way.strided,
        out: volume(shape) as f64,
        accumulate: question.indirect.mode == Mode::Accumulate,
        operands: question.operands().iter().map(bytes).sum(),
    }
}

/// Returns the operands in the form that a listing reads.
fn bound<'o>(question: &'o Question<'_, '_>) -> Result<AnyOperands<'o>> {
    let mut bound = AnyOperands::default();
    let none = Slice::none(question.types.operands);
    for (name, operand) in question.operands() {
        match operand {
            AnyOperand::Dense(d) => bound.dense(name, d.shape(), d.strides(), none),
            AnyOperand::Index(shape, data) => bound.index(name, shape, data)?,
            AnyOperand::Sparse(a) => bound.sparse(question.indirect, a.pattern(), none)?,
            AnyOperand::Scalar(x) => bound.scalar(name, *x),
            // Plans pass dynamic tensors on as dense tensors.
            AnyOperand::HostSparse(..) | AnyOperand::HostDense(..) | AnyOperand::Dynamic(..) => {
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
    /// Names and strides of the dense factors in the order of the listing; `None` for the values of the sparse operand.
    factors: Vec<(Option<String>, Vec<usize>)>,
    out: (String, Vec<usize>),
    bias: Option<(String, Vec<usize>)>,
    gate: Option<(String, Vec<usize>)>,
    pattern: Option<PlannedPattern>,
}

impl General {
    fn new(
        question: &Question<'_, '_>,
        device: &Arc<Device>,
        row: &'static Row,
        way: &Way,
    ) -> Result<std::result::Result<Self, Refusal>> {
        let e = question.indirect;
        let places = places_of(question);
        let mut pattern = None;
        let mut columns = None;
        for (name, operand) in question.operands() {
            if let AnyOperand::Sparse(a) = operand {
                pattern = Some(PlannedPattern::new(name, a.pattern()));
                // The runs of a batch belong to one matrix that contains all of them.
                columns = a.runs().and_then(|_| columns_of(a.pattern()));
            }
        }
        let bound = bound(question)?;
        let offsets = Offsets::new(e, &bound)?;
        let listing =
            Listing::new(e, (&bound, question.types.operands.bytes()), &offsets, &places, way);
        let listing = match listing {
            // The listing exceeds the range of the kernels' numbers.
            Err(error @ Error::Overflow { .. }) => {
                return Ok(Err(Refusal::of(row.name, error.to_string())));
            }
            listing => listing?,
        };
        let empty = places.shape.contains(&0);
        let launch = EinsumLaunch::new(device, row, &listing, (way.lanes, empty), columns)?;
        let sparse = e.sparse.as_ref().map(|s| s.factor);
        let factor = |&f: &usize| {
            let name = &e.factors[f].tensor;
            let strides = strides_of(question.operands(), name).unwrap_or_default();
            ((sparse != Some(f)).then(|| name.clone()), strides)
        };
        Ok(Ok(General {
            launch,
            factors: way.order.iter().map(factor).collect(),
            out: (e.out.tensor.clone(), places.strides),
            bias: e.bias.as_ref().map(|b| (b.tensor.clone(), places.bias)),
            gate: e.gate.as_ref().map(|g| (g.clone(), places.gate)),
            pattern,
        }))
    }

    /// Returns the addresses of values and columns of the sparse operand.
    fn sparse(&self, operands: &[(&str, AnyOperand<'_>)]) -> Result<(u64, u64)> {
        let Some(pattern) = &self.pattern else {
            return Ok((0, 0));
        };
        let arrays = pattern.arrays(operands)?;
        Ok((arrays.values.address(), arrays.columns.address()))
    }

    /// Returns the address of a dense operand after comparing its strides with the planned ones.
    fn dense(operands: &[(&str, AnyOperand<'_>)], name: &str, strides: &[usize]) -> Result<u64> {
        let found = strides_of(operands, name).unwrap_or_default();
        same_strides(name, strides, &found)?;
        Ok(device_tensor(operands, name)?.0)
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

impl Compiled for General {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let (values, columns) = self.sparse(run.operands)?;
        let factor = |(name, strides): &(Option<String>, Vec<usize>)| match name {
            Some(name) => Self::dense(run.operands, name, strides),
            None => Ok(values),
        };
        let factors = self.factors.iter().map(factor).collect::<Result<_>>()?;
        same_strides(&self.out.0, &self.out.1, &out.strides())?;
        let bias = self.bias.as_ref();
        let bias = bias.map(|(name, strides)| Self::dense(run.operands, name, strides));
        let gate = self.gate.as_ref();
        let gate = gate.map(|(name, strides)| Self::dense(run.operands, name, strides));
        let raw = RawEinsum {
            factors,
            columns,
            out: run.output(out)?.0,
            bias: bias.transpose()?.unwrap_or(0),
            gate: gate.transpose()?.unwrap_or(0),
            alpha: run.factor()?,
        };
        self.launch.run(&raw, queue)
    }
}

of_launch!(General);
