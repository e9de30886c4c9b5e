//! `cargo bench --bench gpu`: einsparse and the baselines on the same problems, in one process and one run.
//!
//! `--op convert` and `--op read` need no GPU. `--list` prints the tables. Without a GPU, one line states that it is
//! missing; EINSPARSE_REQUIRE_GPU=1 makes that a failure.

mod bench;
mod calibrate;
mod case;
mod check;
mod device;
mod dtype;
mod families;
mod host_ops;
mod layers;
mod operations;
mod ours;
mod papers;
mod peers;
mod prelude;
mod problems;
mod record;
mod rows;
mod smtx;
mod sweep;
mod timing;
mod values;

use clap::Parser;
use device::{Gpu, Result};
use families::softmax;
use operations::{Machine, Operation, Outcome, all};
use problems::{Dtype, Workload};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use timing::Effort;

/// Measure einsparse and baselines. benches/NOTES.md describes the method, benches/record.rs the columns.
#[derive(Clone, Parser, Debug)]
#[command(name = "gpu")]
pub struct Arguments {
    /// Measure only these operations, listed by `--list`. Default: all
    #[arg(long, value_delimiter = ',')]
    op: Vec<String>,
    /// Measure only workloads whose name contains one of these texts
    #[arg(long, value_delimiter = ',')]
    filter: Vec<String>,
    /// Element types, instead of those of the table
    #[arg(long, value_delimiter = ',')]
    dtype: Vec<Dtype>,
    /// Columns of the dense operand, instead of those of the table
    #[arg(long = "n", value_delimiter = ',')]
    columns: Vec<usize>,
    /// Measure only these engines (einsparse, cusparse, cusparse-default, cusparselt, cublas, cublas-tf32). Conversions
    /// always include copies
    #[arg(long, value_delimiter = ',')]
    engine: Vec<String>,
    /// Write the rows to this CSV file
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write the record of this GPU to this directory: every operation, with the plan's choice only, one file for each
    /// part. Parts that exist from this commit are not run again
    #[arg(long, conflicts_with_all = [
        "out", "rows", "quick", "filter", "engine", "dtype", "columns", "variant", "part",
    ])]
    record: Option<PathBuf>,
    /// Use fewer workloads and runs, for a quick look, not for a record
    #[arg(long)]
    pub quick: bool,
    /// Measure only the plan's choice, without forced variants
    #[arg(long)]
    pub auto: bool,
    /// Measure only these rows of the table and the plan's choice, without calibration. For comparisons, not for a
    /// record
    #[arg(long, value_delimiter = ',')]
    pub variant: Vec<String>,
    /// Also write the kernels that each operation launches to this CSV file, in the format of `--rows`
    #[arg(long)]
    launched: Option<PathBuf>,
    /// List the selected workloads and exit
    #[arg(long)]
    list: bool,
    /// Time every row of the table on every case that it can run, in short runs. Writes another CSV format, which
    /// `report --rows` reads
    #[arg(long)]
    rows: bool,
    /// Measure only part i of n of the tables or of `--rows`, counted from 0
    #[arg(long, value_parser = part, default_value = "0/1")]
    pub part: Part,
    /// Start no new case of `--rows` and no new part of `--record` after this number of seconds
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Replace a module by machine code, NAME:FILE, without a rebuild. For comparisons, not for a record
    #[arg(long, conflicts_with = "record")]
    module: Option<String>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
    /// Only call cuInit and open the primary context, the baseline of first_result
    #[arg(long, hide = true)]
    bare_init: bool,
}

/// A part, and the number of parts.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Index of the part, from 0.
    own: usize,
    of: usize,
}

fn part(text: &str) -> Result<Part> {
    let numbers = text.split_once('/');
    let numbers = numbers.and_then(|(own, of)| Some((own.parse().ok()?, of.parse().ok()?)));
    match numbers {
        Some((own, of)) if own < of => Ok(Part { own, of }),
        _ => Err(format!("{text}: i/n with i from 0 to n - 1").into()),
    }
}

impl Arguments {
    fn wants_op(&self, op: &str) -> bool {
        self.op.is_empty() || self.op.iter().any(|wanted| wanted == op)
    }

    /// Whether this operation is selected. A filter of workload names does not apply to operations outside the tables.
    fn wants_operation(&self, op: &str, operation: &Operation) -> bool {
        let in_tables = matches!(operation, Operation::Table(_));
        self.wants_op(op) && (in_tables || self.filter.is_empty() || !self.op.is_empty())
    }

    /// Copy of the arguments with one operation.
    pub fn of(&self, op: &str) -> Self {
        Self { op: vec![op.to_owned()], ..self.clone() }
    }

    /// Whether the engine `name` is selected.
    pub fn wants_engine(&self, name: &str) -> bool {
        self.engine.is_empty() || self.engine.iter().any(|wanted| wanted == name)
    }

    /// Whether a workload of this name is selected.
    pub fn named(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// Selected element types; the default is `all`.
    pub fn dtypes(&self, all: &[Dtype]) -> Vec<Dtype> {
        match self.dtype.as_slice() {
            [] => all.to_vec(),
            asked => asked.to_vec(),
        }
    }

    fn wants(&self, workload: &Workload) -> bool {
        let quick = workload.quick || !self.quick;
        self.wants_op(workload.op) && self.named(&workload.name) && quick
    }

    /// Selected column counts of B; the default is `all`.
    pub fn ns(&self, all: &[usize]) -> Vec<usize> {
        match self.columns.as_slice() {
            [] => all.to_vec(),
            asked => asked.to_vec(),
        }
    }

    /// Whether only the plan's choice is measured.
    pub fn is_auto(&self) -> bool {
        self.auto || self.quick && self.variant.is_empty()
    }

    /// Whether the kernel of this name is forced, in addition to the plan's choice.
    pub fn forces(&self, name: &str) -> bool {
        let named = self.variant.iter().any(|wanted| wanted == name);
        !self.is_auto() && (named || self.variant.is_empty())
    }

    /// Number of runs per time.
    pub fn effort(&self) -> Effort {
        match self.quick {
            true => Effort::QUICK,
            false => Effort::FULL,
        }
    }

    /// Whether nothing is selected: `cargo test --all-targets` starts the binary without arguments.
    fn nothing_asked(&self) -> bool {
        !(self.bench || self.quick || self.list || self.rows)
            && self.out.is_none()
            && self.record.is_none()
            && self.op.is_empty()
            && self.filter.is_empty()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome =
        if arguments.bare_init { device::open_primary().map(|_| true) } else { run(&arguments) };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected work. Returns whether all of it is complete and correct.
fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.nothing_asked() {
        println!(
            "bench: nothing asked for; run `cargo bench --bench gpu`, or name --op, --filter, --quick or --out"
        );
        return Ok(true);
    }
    if arguments.rows {
        return rows::run(&Gpu::open()?, arguments);
    }
    for op in &arguments.op {
        operations::known(op)?;
    }
    if let Some(named) = &arguments.module {
        let (module, file) = named.split_once(':').ok_or("--module: NAME:FILE")?;
        // SAFETY: the user states that the code takes the module's parameters and writes only to their addresses.
        unsafe { einsparse::module::replace(module, std::fs::read(file)?) };
    }
    if arguments.list {
        show(arguments);
        return Ok(true);
    }
    let machine = Machine { gpu: Gpu::open(), data: data() };
    if let Some(folder) = &arguments.record {
        return machine.record(arguments, folder);
    }
    let recorder = machine.recorder(arguments.out.as_deref())?;
    let mut launches = arguments.launched.as_deref().map(rows::Launches::create).transpose()?;
    let mut right = true;
    for (op, operation) in all() {
        if arguments.wants_operation(op, operation) {
            right &= machine.operation((op, operation), arguments, &recorder) == Outcome::Right;
            if let Some(launches) = &mut launches {
                launches.of(op)?;
            }
        }
    }
    Ok(right)
}

fn show(arguments: &Arguments) {
    let data = data();
    for (op, operation) in all() {
        if !arguments.wants_operation(op, operation) {
            continue;
        }
        if !matches!(operation, Operation::Table(_)) {
            println!("{op}");
            continue;
        }
        for workload in selected(&arguments.of(op), data.as_deref()) {
            let dtypes = arguments.dtypes(workload.dtypes);
            let dtypes: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
            let ns = arguments.ns(workload.ns);
            let (name, dtypes) = (&workload.name, dtypes.join(" "));
            println!("{op:15} {name:60} n {ns:?} {dtypes}");
        }
    }
}

/// Directory of real data. If it is missing, prints which workloads are left out.
fn data() -> Option<PathBuf> {
    let data = problems::data();
    if data.is_none() {
        let folder = smtx::data_folder();
        let folder = folder.display();
        println!("no data in {folder}: workloads dlmc/* and graph/* left out (set EINSPARSE_DATA)");
    }
    data
}

/// Workloads of the tables that the arguments select.
fn selected(arguments: &Arguments, data: Option<&Path>) -> Vec<Workload> {
    let products = problems::workloads(data);
    let softmaxes = softmax::workloads(&products);
    let wanted = products.into_iter().chain(softmaxes);
    let wanted = wanted.filter(|w| arguments.wants(w)).enumerate();
    let Part { own, of } = arguments.part;
    let own = wanted.filter(|(i, _)| i % of == own);
    own.map(|(_, workload)| workload).collect()
}
