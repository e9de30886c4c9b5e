//! `--check`: compares every element of the result with f64. The bound on rounding errors is
//! `|err| <= u_out |c| + 4 u_acc sqrt(K) sum |a||b|`, where K is the number of terms.
//!
//! On the CPU, at most a few hundred additions depend on each other, and the error is at most theirs. GPU kernels split
//! long rows, but an accumulator of a Tensor Core may add all terms in sequence.

mod joined;

use std::fmt;

use einsparse::Scalar;
use einsparse::cpu::{self, Output};
use einsparse::einsum::{Einsum, Extents, Mode, Scalar as Factor};
use einsparse::formats::{Csr, CsrPattern, Dense, Format};
use einsparse::indirect::{rewrite, rewrite_dense};
use einsparse::registry::Dtype;

use super::Result;
use super::problem::{Data, Typed};

/// Result of the comparison.
pub struct Check {
    /// Number of elements compared.
    pub elements: usize,
    /// Max error.
    pub error: f64,
    /// Bound at the element with the max error.
    pub bound: f64,
    /// Max error relative to its bound.
    pub worst: f64,
    /// Number of elements past their bound.
    pub past: usize,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "max |err| {:.2e} (bound there {:.2e}), worst {:.3} of its bound, {} of {} elements past it",
            self.error, self.bound, self.worst, self.past, self.elements
        )
    }
}

/// Unit roundoffs of output and accumulator, smallest step of the output, largest value of the output.
fn units(dtype: Dtype) -> (f64, f64, f64, f64) {
    let two = |e: i32| f64::powi(2.0, e);
    match dtype {
        Dtype::F64 => (two(-53), two(-53), 0.0, f64::MAX),
        Dtype::F32 | Dtype::Tf32 => (two(-24), two(-24), two(-149), f64::from(f32::MAX)),
        Dtype::F16 => (two(-11), two(-24), two(-24), 65_504.0),
        Dtype::Bf16 => (two(-8), two(-24), two(-133), 3.389_531_389_251_535_5e38),
        Dtype::E4m3 => (two(-4), two(-24), two(-9), 448.0),
        Dtype::E5m2 => (two(-3), two(-24), two(-16), 57_344.0),
        Dtype::Int8 => (0.0, two(-53), 1.0, f64::from(i8::MAX)),
        Dtype::Int32 => (0.0, two(-53), 1.0, f64::from(i32::MAX)),
    }
}

/// Number of roundings of one term, and of the factor before the sum.
const PRODUCT: f64 = 8.0;

/// Conditions of the run.
pub struct Ran {
    /// Format to which sparse operands were converted.
    pub format: Option<Format>,
    /// Whether operands were rounded to TF32.
    pub tf32: bool,
    /// Whether the CPU executor ran.
    pub cpu: bool,
}

/// Compares a result with the expression evaluated in f64 by the general loop nest, on operands in CSR.
pub fn check<T: Scalar>(typed: &Typed<T>, result: &Dense<T>, ran: &Ran) -> Result<Check> {
    let wide = widen(typed, ran.format, |x| x)?;
    let exact = evaluate(&wide, result.shape())?;
    let sums = evaluate(&widen(typed, ran.format, f64::abs)?, result.shape())?;
    let (u_out, u_acc, step, largest) = units(T::DTYPE);
    let u_in = if ran.tf32 { f64::powi(2.0, -10) } else { 0.0 };
    let terms = terms(typed)?;
    let random = 4.0 * (terms as f64).sqrt();
    let steps = match ran.cpu {
        true => random.min(cpu::longest_chain(terms) as f64 + PRODUCT),
        false => random,
    };
    let rounding = u_acc * steps + u_in;
    let mut found = Check { elements: exact.len(), error: 0.0, bound: 0.0, worst: 0.0, past: 0 };
    for ((&c, &reference), &sum) in result.values().iter().zip(&exact).zip(&sums) {
        let c = c.to_f64();
        // Equal NaNs and infinities are correct, and so is the infinity to which a sum past the largest value rounds.
        let bound = u_out * reference.abs() + rounding * sum + step;
        let rounds_away =
            reference.abs() + bound >= largest && c == f64::INFINITY.copysign(reference);
        if c == reference || (c.is_nan() && reference.is_nan()) || rounds_away {
            continue;
        }
        let error = (c - reference).abs();
        let share = if error.is_nan() { f64::INFINITY } else { error / bound };
        found.past += usize::from(share > 1.0 || share.is_nan());
        found.worst = found.worst.max(share);
        if error > found.error || error.is_nan() {
            (found.error, found.bound) = (error, bound);
        }
    }
    Ok(found)
}

/// Extents of the indices.
pub fn extents<T: Scalar>(typed: &Typed<T>) -> Result<Extents> {
    let shapes = typed.operands.iter().map(|(name, data)| {
        let shape = match data {
            Data::Sparse(sparse) => sparse.shape().to_vec(),
            Data::Dense(dense) => dense.shape().to_vec(),
            Data::Index(shape, _) => shape.clone(),
            Data::Number(_) => Vec::new(),
        };
        (name.clone(), shape)
    });
    Ok(typed.einsum.check(&shapes.collect())?)
}

/// Number of terms of one sum: the product of the summed extents, at most the nonzeros of the sparse operand.
fn terms<T: Scalar>(typed: &Typed<T>) -> Result<u128> {
    let extents = extents(typed)?;
    let mut free = Vec::new();
    typed.einsum.out.indices.iter().for_each(|index| {
        if let einsparse::einsum::IndexExpr::Name(name) = index {
            free.push(name.as_str());
        }
    });
    let summed = typed.einsum.index_names().into_iter().filter(|name| !free.contains(name));
    let product = summed.filter_map(|name| extents.get(name)).map(|n| n as u128).product::<u128>();
    Ok(match typed.sparse() {
        Some((_, sparse)) => product.min(sparse.nnz() as u128),
        None => product,
    })
}

/// Removes stored zeros from a matrix.
fn nonzeros(csr: &Csr<f64>) -> Result<Csr<f64>> {
    let (pattern, values) = (csr.pattern(), csr.values());
    let is_kept = |&at: &usize| values[at] != 0.0;
    let mut offsets = vec![0];
    for ends in pattern.offsets().windows(2) {
        let row = ends[0] as usize..ends[1] as usize;
        let before = offsets[offsets.len() - 1];
        offsets.push(before + row.filter(is_kept).count() as u32);
    }
    let kept: Vec<usize> = (0..values.len()).filter(is_kept).collect();
    let columns = kept.iter().map(|&at| pattern.columns()[at]).collect();
    let pattern = CsrPattern::new(pattern.rows(), pattern.cols(), offsets, columns)?;
    let values = kept.iter().map(|&at| values[at]).collect();
    Ok(Csr::new(pattern, values)?)
}

/// Converts the problem to f64 and applies `map` to every number, also in the text. Stored zeros are kept if the format
/// of the run stores them as nonzeros.
fn widen<T: Scalar>(
    typed: &Typed<T>,
    format: Option<Format>,
    map: fn(f64) -> f64,
) -> Result<Typed<f64>> {
    let only_nonzeros = format.is_some_and(|format| format.holds_fill());
    let wide = |(name, data): &(String, Data<T>)| {
        let data = match data {
            Data::Sparse(sparse) => {
                let sparse = sparse.map_values(|x| map(x.to_f64()));
                Data::Sparse(match sparse.shape().len() {
                    2 if only_nonzeros => nonzeros(&sparse.to_csr()?)?.into(),
                    2 => sparse.to_csr()?.into(),
                    _ => sparse,
                })
            }
            Data::Dense(dense) => Data::Dense(dense.map(|x| map(x.to_f64()))),
            Data::Index(shape, data) => Data::Index(shape.clone(), data.clone()),
            Data::Number(x) => Data::Number(map(*x)),
        };
        Ok((name.clone(), data))
    };
    let literal = |factor: &Factor| match factor {
        Factor::Literal(x) => Factor::Literal(map(*x)),
        name => name.clone(),
    };
    let scalars = typed.einsum.scalars.iter().map(literal).collect();
    let einsum = Einsum { scalars, ..typed.einsum.clone() };
    Ok(Typed { einsum, operands: typed.operands.iter().map(wide).collect::<Result<_>>()? })
}

/// Keeps the first of several sparse factors sparse and converts the others to dense tensors.
fn one_sparse(typed: &Typed<f64>) -> Result<Typed<f64>> {
    let mut one = typed.clone();
    let is_sparse = |(_, data): &&mut (String, Data<f64>)| matches!(data, Data::Sparse(_));
    for (_, data) in one.operands.iter_mut().filter(is_sparse).skip(1) {
        if let Data::Sparse(sparse) = data {
            *data = Data::Dense(sparse.to_dense()?);
        }
    }
    Ok(one)
}

fn evaluate(typed: &Typed<f64>, shape: &[usize]) -> Result<Vec<f64>> {
    let out = &typed.einsum.out.tensor;
    let mut values = match (typed.einsum.mode, typed.get(out)) {
        (Mode::Accumulate, Some(Data::Dense(start))) => start.values().to_vec(),
        _ => Dense::<f64>::zeros(shape)?.into_values(),
    };
    if joined::is_joined(typed) {
        return joined::evaluate(typed, &extents(typed)?, shape, values);
    }
    let typed = &one_sparse(typed)?;
    let format = typed.sparse().map(|(name, sparse)| (name, sparse.format()));
    let indirect = match format {
        Some((name, format)) => rewrite(&typed.einsum, name, &format as &Format)?,
        None => rewrite_dense(&typed.einsum)?,
    };
    let arrays = typed.einsum.sum_arrays(&extents(typed)?)?;
    let mut operands = cpu::Operands::new();
    for array in &arrays {
        operands.index(&array.name, &array.shape, &array.slots)?;
    }
    for (name, data) in &typed.operands {
        match data {
            Data::Sparse(sparse) => operands.sparse(&indirect, sparse)?,
            Data::Dense(_) if name == out => &mut operands,
            Data::Dense(dense) => operands.dense(name, dense),
            Data::Index(shape, data) => operands.index(name, shape, data)?,
            Data::Number(x) => operands.scalar(name, *x),
        };
    }
    cpu::run_nest(&indirect, &operands, Output::new(shape, &mut values)?)?;
    Ok(values)
}
