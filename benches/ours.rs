//! einsparse: the plan's choice (`auto`) and every variant that can be forced, on the bench's B and C.
//!
//! `auto` gets the operand in CSR, or in BlockGroupCOO for blocks; `auto@<format>` is the plan's choice for another
//! format. No time includes the conversion of A. A prepacked form of A (`<name>@prepacked`) is included in `prepare_ms`
//! and `prepared_bytes`.

use crate::bench::{Bench, ab, precise, raw_spmm};
use crate::case::{Case, Engine, Prepared};
use crate::device::{Buffer, Result};
use crate::problems::{Dtype, Problem};
use einsparse::formats::{AnySparse, Csr, Dense, Format, Role, bf16, f16};
use einsparse::kernels::abi::{WalkKind, Zeros};
use einsparse::raw::RawStream;
use einsparse::registry::{Scalar, find};
use einsparse::{Error, Plan, SparseTensor, Weights};
use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

pub const SPMM: &str = "C[m,n] = A[m,k] * B[k,n]";

pub struct Einsparse<'b> {
    bench: &'b Bench<'b>,
    /// Tensors of the current workload and element type, by format. Patterns of millions of nonzeros are thus converted
    /// once for all variants.
    stored: RefCell<Vec<(String, Rc<dyn Any>)>>,
}

/// A in one format: the tensor for the plan, and the addresses for kernels.
struct Stored<T> {
    tensor: SparseTensor<T>,
    columns: u64,
    values: u64,
    _own: Vec<Buffer>,
}

/// Evaluates `$body` with the Rust type of an element type.
macro_rules! by_dtype {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            Dtype::F32 | Dtype::Tf32 => {
                type $element = f32;
                $body
            }
            Dtype::F64 => {
                type $element = f64;
                $body
            }
            Dtype::F16 => {
                type $element = f16;
                $body
            }
            Dtype::Bf16 => {
                type $element = bf16;
                $body
            }
        }
    };
}

pub(crate) use by_dtype;

/// Natural format of a case's operand.
fn natural(problem: &Problem) -> Format {
    if problem.two_of_four {
        return Format::Nm { n: 2, m: 4 };
    }
    problem.block.map_or(Format::Csr, blocks)
}

fn blocks(edge: usize) -> Format {
    Format::BlockGroupCoo { block: (edge, edge), group: None }
}

/// Roles of a matrix's column array: columns, or positions for N:M.
const COLUMNS: [Role; 2] = [Role::Coordinate { axis: 1 }, Role::Positions { axis: 1 }];

/// Suffix of a variant whose plan may store A's values in another form, which the preparation makes.
const PREPACKED: &str = "prepacked";

const GROUPS: Format = Format::GroupCoo { axis: 0, group: None };

impl<'b> Einsparse<'b> {
    pub fn new(bench: &'b Bench<'b>) -> Self {
        Self { bench, stored: RefCell::default() }
    }

    /// Returns A in `format`, from the cache or converted and uploaded.
    fn tensor<T: Scalar>(&self, case: &Case<'_>, format: Format) -> Result<Rc<Stored<T>>> {
        let base = format!("{} {} ", case.problem.workload, case.dtype());
        let key = format!("{base}{format}");
        let mut all = self.stored.borrow_mut();
        all.retain(|(key, _)| key.starts_with(&base));
        let known = all.iter().find(|(known, _)| *known == key);
        if let Some(known) = known.and_then(|(_, stored)| Rc::clone(stored).downcast().ok()) {
            return Ok(known);
        }
        let stored = Rc::new(self.store::<T>(case, format)?);
        all.push((key, Rc::clone(&stored) as Rc<dyn Any>));
        Ok(stored)
    }

    fn store<T: Scalar>(&self, case: &Case<'_>, format: Format) -> Result<Stored<T>> {
        let (_, _, nnz) = case.problem.extents();
        let pattern = case.problem.pattern.clone();
        let csr = Csr::new(pattern, case.values.entries::<T>(nnz))?;
        let csr = AnySparse::from(csr);
        if format == Format::Csr {
            return Ok(Stored {
                tensor: self.bench.context.upload(csr)?,
                columns: case.operands.columns.ptr,
                values: case.operands.values.ptr,
                _own: Vec::new(),
            });
        }
        let tensor = self.bench.context.upload(convert(&csr, format)?)?;
        let host = tensor.to_host()?;
        let arrays = host.arrays();
        let columns = arrays.iter().find(|a| COLUMNS.contains(&a.role));
        let columns = columns.ok_or_else(|| format!("{format} has no column indices"))?;
        let columns = Buffer::from_slice(columns.data)?;
        let values = Buffer::from_slice(host.values())?;
        Ok(Stored { columns: columns.ptr, values: values.ptr, _own: vec![columns, values], tensor })
    }

    /// Returns a plan, and the planning time in milliseconds.
    fn plan<T: Scalar>(
        &self,
        case: &Case<'_>,
        a: &SparseTensor<T>,
        (variant, weights): (Option<&str>, Weights),
    ) -> Result<(Plan<T>, f64), Error> {
        let options = precise(case.dtype()).weights(weights).variant(variant);
        // Planning reads only the shape of B.
        let b = Dense::<T>::zeros(vec![case.problem.extents().1, case.n])?;
        let (operands, context) = (ab(a, &b), &self.bench.context);
        let start = Instant::now();
        let plan = context.plan(SPMM).operands(&operands).options(&options).build()?;
        context.synchronize()?;
        Ok((plan, start.elapsed().as_secs_f64() * 1e3))
    }

    /// Names of the rows of the table that support the case in one of its formats. `Err` states why no row does.
    fn candidates<T: Scalar>(&self, case: &Case<'_>) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let formats = match case.problem.block {
            Some(edge) => vec![blocks(edge)],
            None if case.problem.two_of_four => vec![natural(case.problem)],
            None => vec![Format::Csr, GROUPS],
        };
        for format in formats {
            let a = self.tensor::<T>(case, format)?;
            let plan = match self.plan(case, &a.tensor, (None, Weights::EachRun)) {
                Ok((plan, _)) => plan,
                Err(Error::NoKernel { .. }) => continue,
                Err(other) => return Err(other.into()),
            };
            let new = plan.choice().candidates.iter().map(|c| c.name.to_owned());
            names.extend(new.filter(|name| format == format_of(name, case.problem)));
        }
        if natural(case.problem) == Format::Csr {
            let a = self.tensor::<T>(case, Format::Csr)?;
            let (plan, _) = self.plan(case, &a.tensor, (None, Weights::Static))?;
            let prepacked = plan.choice().candidates.iter().filter(|c| c.prepacked.is_some());
            names.extend(prepacked.map(|c| format!("{}@{PREPACKED}", c.name)));
        }
        Ok(names)
    }

    fn prepared<'a, T: Scalar>(&self, case: &Case<'a>, variant: &str) -> Result<Prepared<'a>> {
        let (name, form) = variant.split_once('@').unwrap_or((variant, ""));
        let forced = (name != "auto").then_some(name);
        let format = match form {
            "bsr" => {
                let edge = case.problem.block.unwrap_or(1);
                Format::Bsr { block: (edge, edge) }
            }
            "groupcoo" => GROUPS,
            PREPACKED => natural(case.problem),
            _ => forced.map_or(natural(case.problem), |name| format_of(name, case.problem)),
        };
        let weights = match form {
            PREPACKED => Weights::Static,
            _ => Weights::EachRun,
        };
        let stored = self.tensor::<T>(case, format)?;
        let planned = || self.plan(case, &stored.tensor, (forced, weights));
        // The first plan may load modules, which is done once per process.
        let (_, prepare_ms) = planned()?;
        let (plan, again_ms) = planned()?;
        let (zeros, note) = said_of(&plan, stored.tensor.format(), again_ms);
        let (b, c) = (case.operands.b.ptr, case.operands.c.ptr);
        let raw = raw_spmm([stored.columns, stored.values, b, c], case.n);
        let stream = case.gpu.stream.cast();
        let prepared_bytes = plan.workspace_bytes();
        let run = move || {
            let _alive = &stored;
            // SAFETY: A, B and C have the planned shapes, type and pattern and outlive the closure, which owns A;
            // the stream belongs to the primary context that both sides share.
            Ok(unsafe { plan.run_raw(&raw, RawStream::from_raw(stream)) }?)
        };
        Ok(Prepared { run: Box::new(run), prepare_ms, prepared_bytes, zeros, note })
    }
}

/// Treatment of implicit zeros by the selected kernel, and the note of its row.
fn said_of<T: Scalar>(plan: &Plan<T>, format: Format, again_ms: f64) -> (&'static str, String) {
    let mut note = format!("{} on {format}", plan.variant());
    if let Some(form) = plan.prepacked() {
        note += &format!(" as {form}");
    }
    let taken = plan.choice().candidates.first();
    if let Some(taken) = taken {
        note += &format!(", predicted {:.1} us", taken.cost.us);
    }
    note += &format!(", prepared again in {again_ms:.3} ms");
    match taken.map(|c| c.zeros) {
        Some(Zeros::Dense) => ("dense", note),
        _ => ("strict", note),
    }
}

/// Converts CSR to another format. The group size is a multiple of 4, as the kernels require.
pub fn convert<T: Scalar>(csr: &AnySparse<T>, format: Format) -> Result<AnySparse<T>> {
    let converted = csr.convert(format)?;
    match converted.format() {
        Format::GroupCoo { axis, group: Some(g) } if g % 4 != 0 => {
            let group = Some(g.next_multiple_of(4));
            Ok(csr.convert(Format::GroupCoo { axis, group })?)
        }
        _ => Ok(converted),
    }
}

/// Format with which a forced row of the table is measured.
fn format_of(variant: &str, problem: &Problem) -> Format {
    match find(variant).map(|row| row.walk) {
        Some(WalkKind::GroupCoo) => GROUPS,
        _ => natural(problem),
    }
}

impl Engine for Einsparse<'_> {
    fn name(&self) -> &'static str {
        "einsparse"
    }

    fn variants(&self, case: &Case<'_>) -> Vec<String> {
        let mut all = vec!["auto".to_owned()];
        let natural = case.problem.block.is_none() && !case.problem.two_of_four;
        if natural {
            all.push(format!("auto@{PREPACKED}"));
        }
        if self.bench.arguments.is_auto() {
            return all;
        }
        let other = match case.problem.block {
            Some(_) => "bsr",
            None => "groupcoo",
        };
        match by_dtype!(case.dtype(), T => self.candidates::<T>(case)) {
            Ok(names) if names.is_empty() => {
                let (workload, dtype) = (&case.problem.workload, case.dtype());
                println!("einsparse has no kernel for {workload} {dtype}");
                return Vec::new();
            }
            Ok(names) => {
                if !case.problem.two_of_four {
                    all.push(format!("auto@{other}"));
                }
                all.extend(names);
            }
            Err(reason) => println!("einsparse on {}: {reason}", case.problem.workload),
        }
        let asked = |name: &str| {
            let row = name.split('@').next().unwrap_or(name);
            self.bench.arguments.forces(row) || self.bench.arguments.forces(name)
        };
        all.retain(|name| name == "auto" || asked(name));
        all
    }

    fn prepare<'a>(&'a self, case: &Case<'a>, variant: &str) -> Result<Prepared<'a>> {
        by_dtype!(case.dtype(), T => self.prepared::<T>(case, variant))
    }

    fn best_only(&self) -> bool {
        false
    }

    fn tolerance(&self, _dtype: Dtype) -> Option<f64> {
        None
    }
}
