//! `einsparse run`: computes C from files, and prints the chain and the time of each step.

use std::path::PathBuf;
use std::time::Duration;

use einsparse::formats::io::{Loaded, write_any};
use einsparse::formats::{AnySparse, Dense, Element};
use einsparse::{Context, Error, Options, Plan, Scalar};

use super::bind::{self, Bound, Selected};
use super::problem::{FormatChoice, Place, Problem, Typed, for_dtype};
use super::time::{self, Shown, timed};
use super::{Result, check};

/// Run an Einsum over operands from files or made up.
#[derive(clap::Args)]
pub struct Run {
    #[command(flatten)]
    problem: Problem,
    /// Compare every element with f64, and fail if one is past the bound of rounding
    #[arg(long)]
    check: bool,
    /// Write C here (.npy, .mtx; .npz and .smtx take its nonzeros)
    #[arg(long)]
    save: Option<PathBuf>,
    /// Warm runs for the median
    #[arg(long, default_value_t = 20)]
    repeat: usize,
}

/// A requested run, independent of the source of its operands.
pub struct Job<'a> {
    /// Expression.
    pub expression: &'a str,
    /// Format of the sparse operand.
    pub format: FormatChoice,
    /// Options of the plan.
    pub options: Options,
    /// Whether the CPU may run expressions without a kernel.
    pub may_fall_back: bool,
    /// Whether to compare the result with f64.
    pub check: bool,
    /// Number of warm runs.
    pub repeat: usize,
    /// Time for reading, which has already passed.
    pub read: Duration,
}

impl Run {
    /// Runs the sub-command.
    pub fn execute(&self) -> Result<()> {
        for_dtype!(self.problem.dtype, T => self.typed::<T>())
    }

    fn typed<T: Scalar>(&self) -> Result<()> {
        let problem = &self.problem;
        let options = problem.options()?;
        let (typed, read, context) = problem.load_for_device::<T>()?;
        let job = Job {
            expression: &problem.expression,
            format: problem.format,
            options,
            may_fall_back: problem.device == Place::Auto,
            check: self.check,
            repeat: self.repeat,
            read,
        };
        let result = job.run(&context, &typed)?;
        if let Some(path) = &self.save {
            write_any(path, &Loaded::Dense(result))?;
            say!("saved    {}", path.display());
        }
        Ok(())
    }
}

impl Job<'_> {
    /// Runs the job on the context, or on the CPU if no kernel supports the expression and the fallback is allowed.
    pub fn run<T: Scalar>(&self, context: &Context, typed: &Typed<T>) -> Result<Dense<T>> {
        match self.run_on(context, typed) {
            Err(error) if self.may_fall_back && context.is_cuda() && is_no_kernel(&*error) => {
                say!(
                    "no kernel supports this (`einsparse explain` lists the reasons): using the CPU"
                );
                self.run_on(&Context::unchecked_cpu(), typed)
            }
            result => result,
        }
    }

    fn run_on<T: Scalar>(&self, context: &Context, typed: &Typed<T>) -> Result<Dense<T>> {
        let selected = bind::select(typed, self.format, context, &self.options, false)?;
        let (stored, convert) = timed(|| bind::convert(typed.clone(), selected.format))?;
        let (bound, upload) = timed(|| Bound::new(context, &stored))?;
        let (plan, planning) = bind::plan(context, self.expression, &bound, &self.options)?;
        print_chain(&plan, &stored, &selected, context);
        let mut out = bound.output(context, &plan, &stored)?;
        let stream = context.stream()?;
        let operands = bound.run_operands();
        let first = time::once(&plan, &operands, &mut out, &stream)?;
        let result = out.to_dense()?;
        say!(
            "time     read {}, convert {}, upload {}, plan {}, first run {}",
            Shown(self.read),
            Shown(convert),
            Shown(upload),
            Shown(planning),
            Shown(first)
        );
        if self.repeat > 0 {
            let median = time::median(context, &plan, &operands, &mut out, self.repeat)?;
            say!("median   {} of {} runs{}", Shown(median), self.repeat, rate(typed, median));
        }
        say!("C        {:?}, {}", result.shape(), glance(&result));
        if self.check {
            // Uses the operands before conversion, so that the conversion is checked as well.
            let ran = check::Ran {
                format: bind::stored(&stored).map(|sparse| sparse.format()),
                tf32: self.options.precision == einsparse::Precision::Tf32,
                cpu: !context.is_cuda(),
            };
            let found = check::check(typed, &result, &ran)?;
            say!("check    {found}");
            if found.past > 0 {
                return Err(format!("check failed: {found}").into());
            }
        }
        Ok(result)
    }
}

fn is_no_kernel(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::NoKernel { .. }))
}

/// Prints the chain Einsum -> IndirectEinsum -> Plan.
pub fn print_chain<T: Scalar>(
    plan: &Plan<T>,
    typed: &Typed<T>,
    selected: &Selected,
    context: &Context,
) {
    say!("Einsum   {}", plan.einsum());
    for (name, data) in &typed.operands {
        say!("   {name:5} {}", describe(data));
    }
    if let Some(format) = bind::stored(typed).map(|sparse| sparse.format()) {
        say!("   format {format}: {}", selected.why);
    }
    if let Some(sparse) = bind::stored(typed) {
        super::grouping::print(sparse);
    }
    say!("Indirect {}", plan.indirect());
    say!("Plan     {plan}");
    if context.is_cuda() {
        say!("   on {context}");
    }
}

/// Number of nonzeros of a tensor. For formats that pad with zeros, counts values that are not 0.
pub fn entries<T: Element>(sparse: &AnySparse<T>) -> usize {
    match sparse.format().holds_fill() {
        true => sparse.values().iter().filter(|x| **x != T::ZERO).count(),
        false => sparse.nnz(),
    }
}

/// Description of an operand.
pub fn describe<T: Scalar>(data: &super::problem::Data<T>) -> String {
    use super::problem::Data;
    match data {
        Data::Sparse(sparse) => {
            format!(
                "{} {} {:?}, {} entries, {} slots",
                T::NAME,
                sparse.format(),
                sparse.shape(),
                entries(sparse),
                sparse.slots()
            )
        }
        Data::Dense(dense) => format!("{} dense {:?}", T::NAME, dense.shape()),
        Data::Index(shape, _) => format!("index array {shape:?}"),
        Data::Number(x) => format!("{x}"),
    }
}

/// Number of operations for one sparse and one dense factor: two per nonzero and element of the other indices. `None`
/// for other expressions.
pub fn operations<T: Scalar>(typed: &Typed<T>) -> Option<f64> {
    use super::problem::Data;
    let (name, sparse) = typed.sparse()?;
    let [one, two] = &typed.einsum.factors[..] else {
        return None;
    };
    let (own, other) = if one.tensor == name { (one, two) } else { (two, one) };
    let Some(Data::Dense(_)) = typed.get(&other.tensor) else {
        return None;
    };
    let extents = check::extents(typed).ok()?;
    let mut bound = Vec::new();
    own.for_each_name(&mut |index| bound.push(index));
    let free = extents.iter().filter(|(index, _)| !bound.contains(index));
    let free: f64 = free.map(|(_, extent)| extent as f64).product();
    Some(2.0 * entries(sparse) as f64 * free)
}

/// Useful operations per second, without padding zeros of blocks; empty for other expressions.
fn rate<T: Scalar>(typed: &Typed<T>, median: Duration) -> String {
    match operations(typed) {
        Some(count) if !median.is_zero() => {
            format!(", {:.1} GFLOP/s", count / median.as_secs_f64() * 1e-9)
        }
        _ => String::new(),
    }
}

/// First elements and norm of the result.
fn glance<T: Scalar>(result: &Dense<T>) -> String {
    let first: Vec<String> =
        result.values().iter().take(4).map(|x| format!("{:.4}", x.to_f64())).collect();
    let dots = if result.values().len() > 4 { ", ..." } else { "" };
    let square: f64 = result.values().iter().map(|x| x.to_f64() * x.to_f64()).sum();
    format!("norm {:.6e}, [{}{dots}]", square.sqrt(), first.join(", "))
}
