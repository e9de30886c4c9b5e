//! Binding of operands to a context: converts the sparse operand to its format, uploads all operands and creates the
//! plan.

use std::time::Duration;

use einsparse::einsum::Mode;
use einsparse::formats::{AnySparse, Format};
use einsparse::indirect::rewrite;
use einsparse::plan::{Target, advice};
use einsparse::{Context, FormatAdvice, Operand, Options, Plan, Scalar, SparseTensor, Tensor};

use super::problem::{Data, FormatChoice, Typed};
use super::time::timed;
use super::{Result, load};

/// Selected format and the reason.
pub struct Selected {
    /// Format; `None` without a sparse operand.
    pub format: Option<Format>,
    /// Reason, in one line.
    pub why: String,
    /// Compared formats, cheapest first; empty without a comparison.
    pub offers: Vec<FormatAdvice>,
}

/// Selects the format of the sparse operand. `by_cost`: compares predicted costs even on the CPU, for an H200.
pub fn select<T: Scalar>(
    typed: &Typed<T>,
    choice: FormatChoice,
    context: &Context,
    options: &Options,
    by_cost: bool,
) -> Result<Selected> {
    let simply = |format, why: &str| Ok(Selected { format, why: why.into(), offers: Vec::new() });
    let Some((name, sparse)) = typed.sparse() else {
        return simply(None, "no operand is sparse");
    };
    if let FormatChoice::Given(format) = choice {
        return simply(Some(format), "as asked");
    }
    if sparse.shape().len() != 2 {
        return simply(Some(sparse.format()), "as it came: kernels exist for matrices");
    }
    // `rewrite` rejects an operand that occurs twice; planning reports all other errors.
    let form = rewrite(&typed.einsum, name, &Format::Csr);
    let form = form.ok().and_then(|indirect| indirect.as_spmm());
    let form = form.filter(|form| form.order.is_plain() && !form.batched);
    let width = form.as_ref().and_then(|form| match typed.get(&form.dense)? {
        Data::Dense(b) => b.shape().get(1).copied(),
        _ => None,
    });
    let Some(n) = width else {
        return simply(
            Some(Format::Csr),
            "not sparse x dense in row order: no kernel to choose for",
        );
    };
    if !context.is_cuda() && !by_cost {
        return simply(Some(Format::Csr), "rows in order suit the CPU");
    }
    let csr = sparse.to_csr().map_err(load::of_operand(name))?;
    let of = (n, typed.einsum.mode);
    // Formats are ranked for a GPU even without one: the CPU executor runs CSR.
    let machine = context.machine();
    let offers = advice(csr.pattern(), of, T::DTYPE, options, Target::Gpu(&machine))?;
    let whose = if context.is_cuda() { "" } else { " for an H200" };
    let best = offers.iter().find_map(|o| Some((o.format?, o.kernel()?, o.microseconds()?)));
    let format = best.map_or(Format::Csr, |(format, ..)| format);
    let why = match best {
        Some((_, kernel, us)) => format!("cheapest by prediction{whose}: {kernel}, {us:.1} us"),
        None => "no kernel under these options".to_string(),
    };
    Ok(Selected { format: Some(format), why, offers })
}

/// Converts the sparse operand to another format.
pub fn convert<T: Scalar>(mut typed: Typed<T>, format: Option<Format>) -> Result<Typed<T>> {
    for (name, data) in &mut typed.operands {
        if let (Data::Sparse(sparse), Some(format)) = (data, format)
            && sparse.format() != format
        {
            *sparse = sparse.convert(format).map_err(load::of_operand(name))?;
        }
    }
    Ok(typed)
}

/// Returns the sparse operand, if any.
pub fn stored<T: Scalar>(typed: &Typed<T>) -> Option<&AnySparse<T>> {
    typed.sparse().map(|(_, sparse)| sparse)
}

/// One operand in the context.
enum Uploaded<'a, T: Scalar> {
    Sparse(SparseTensor<T>),
    Dense(Tensor<T>),
    Index(&'a [usize], &'a [u32]),
    Number(f64),
}

/// Operands in a context.
pub struct Bound<'a, T: Scalar>(Vec<(&'a str, Uploaded<'a, T>)>);

impl<'a, T: Scalar> Bound<'a, T> {
    /// Uploads all operands.
    pub fn new(context: &Context, typed: &'a Typed<T>) -> Result<Self> {
        let upload = |(name, data): &'a (String, Data<T>)| {
            let uploaded = match data {
                Data::Sparse(sparse) => {
                    let uploaded = context.upload(sparse);
                    Uploaded::Sparse(uploaded.map_err(|error| -> Box<dyn std::error::Error> {
                        match error {
                            einsparse::Error::Format(error) => load::of_operand(name)(error).into(),
                            other => other.into(),
                        }
                    })?)
                }
                Data::Dense(dense) => Uploaded::Dense(context.upload_dense(dense)?),
                Data::Index(shape, data) => Uploaded::Index(shape, data),
                Data::Number(x) => Uploaded::Number(*x),
            };
            Ok((name.as_str(), uploaded))
        };
        Ok(Bound(typed.operands.iter().map(upload).collect::<Result<_>>()?))
    }

    /// Operands of a plan.
    pub fn operands(&self) -> Vec<(&str, Operand<'_, T>)> {
        self.0
            .iter()
            .map(|(name, uploaded)| {
                let operand = match uploaded {
                    Uploaded::Sparse(sparse) => Operand::Sparse(sparse),
                    Uploaded::Dense(dense) => Operand::Dense(dense),
                    Uploaded::Index(shape, data) => Operand::Index(shape, data),
                    Uploaded::Number(x) => Operand::Scalar(*x),
                };
                (*name, operand)
            })
            .collect()
    }

    /// Operands of a run. Index arrays are part of the plan.
    pub fn run_operands(&self) -> Vec<(&str, Operand<'_, T>)> {
        let mut all = self.operands();
        all.retain(|(_, operand)| !matches!(operand, Operand::Index(..)));
        all
    }

    /// Allocates an output for the plan. For `+=` it is initialized with the operand of its name.
    pub fn output(&self, context: &Context, plan: &Plan<T>, typed: &Typed<T>) -> Result<Tensor<T>> {
        let bytes = |data: &Data<T>| match data {
            Data::Sparse(sparse) => 16 * sparse.slots() as u64,
            Data::Dense(dense) => 8 * dense.len() as u64,
            Data::Index(_, slots) => 4 * slots.len() as u64,
            Data::Number(_) => 0,
        };
        let held = typed.operands.iter().map(|(_, data)| bytes(data)).sum();
        let name = &plan.einsum().out.tensor;
        load::check_elements(plan.out_shape(), held).map_err(load::of_operand(name))?;
        let mut out = context.zeros(plan.out_shape())?;
        if plan.einsum().mode == Mode::Accumulate {
            match typed.get(name) {
                Some(Data::Dense(start)) => out.write(start)?,
                _ => {
                    return Err(format!(
                        "`+=` adds to `{name}`: give it, for example {name}=zeros:{}",
                        plan.out_shape()
                            .iter()
                            .map(ToString::to_string)
                            .collect::<Vec<_>>()
                            .join("x")
                    )
                    .into());
                }
            }
        }
        Ok(out)
    }
}

/// Creates a plan. Also returns the time for planning.
pub fn plan<T: Scalar>(
    context: &Context,
    expression: &str,
    bound: &Bound<'_, T>,
    options: &Options,
) -> Result<(Plan<T>, Duration)> {
    timed(|| Ok(context.plan(expression).operands(&bound.operands()).options(options).build()?))
}
