//! `cargo bench --bench gpu`: ours and the peers on the same problems, in one process and one run.
//!
//! Also the figures that need no GPU: `--op convert`, `--op read`. `--list` shows the tables. Without a GPU one
//! line says so; EINSPARSE_REQUIRE_GPU=1 makes that a failure.

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

use clap::Parser;
use device::{Gpu, Result};
use families::softmax;
use operations::{Machine, Operation, Outcome, all};
use problems::{Dtype, Workload};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use timing::Effort;

/// Problem tables x engines; method as in benches/NOTES.md, columns as in benches/record.rs.
#[derive(Clone, Parser, Debug)]
#[command(name = "gpu")]
pub struct Arguments {
    /// Operations by name, which `--list` shows; all by default
    #[arg(long, value_delimiter = ',')]
    op: Vec<String>,
    /// Only workloads whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    filter: Vec<String>,
    /// Element types instead of the table's
    #[arg(long, value_delimiter = ',')]
    dtype: Vec<Dtype>,
    /// Columns of the dense operand instead of the table's
    #[arg(long = "n", value_delimiter = ',')]
    columns: Vec<usize>,
    /// Only these engines (einsparse, cusparse, cusparse-default, cusparselt, cublas, cublas-tf32); copies are always
    /// beside conversions
    #[arg(long, value_delimiter = ',')]
    engine: Vec<String>,
    /// Write the rows here (CSV)
    #[arg(long)]
    out: Option<PathBuf>,
    /// The record of this GPU: every operation, of ours what the plan takes, each part a file of this folder. A part
    /// that is there from this commit is not run again
    #[arg(long, conflicts_with_all = [
        "out", "rows", "quick", "filter", "engine", "dtype", "columns", "variant", "part",
    ])]
    record: Option<PathBuf>,
    /// Fewer workloads and runs: a look, not a record
    #[arg(long)]
    pub quick: bool,
    /// Of ours only what the plan takes, no forced variants
    #[arg(long)]
    pub auto: bool,
    /// Of ours only these rows of the table beside what the plan takes, and no calibration: a comparison, not a record
    #[arg(long, value_delimiter = ',')]
    pub variant: Vec<String>,
    /// Show the selected workloads and stop
    #[arg(long)]
    list: bool,
    /// Every row of the table on every case that it can run, in short runs; another CSV, which `report --rows` reads
    #[arg(long)]
    rows: bool,
    /// The i-th of n parts of the tables, or of `--rows`
    #[arg(long, value_parser = part, default_value = "0/1")]
    pub part: Part,
    /// Of `--rows` no new case, of `--record` no new part after so many seconds
    #[arg(long)]
    pub seconds: Option<u64>,
    /// NAME:FILE, machine code in place of a module's own: a comparison without building the rest anew, not a record
    #[arg(long, conflicts_with = "record")]
    module: Option<String>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
    /// cuInit and the primary context, nothing else: the floor of first_result
    #[arg(long, hide = true)]
    bare_init: bool,
}

/// Which of how many parts.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// From 0.
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

    /// Whether this operation is to be measured. Those outside the tables have no workload names to filter by.
    fn wants_operation(&self, op: &str, operation: &Operation) -> bool {
        let in_tables = matches!(operation, Operation::Table(_));
        self.wants_op(op) && (in_tables || self.filter.is_empty() || !self.op.is_empty())
    }

    /// The same for one operation alone.
    pub fn of(&self, op: &str) -> Self {
        Self { op: vec![op.to_owned()], ..self.clone() }
    }

    /// Whether `name` is among the engines asked for.
    pub fn wants_engine(&self, name: &str) -> bool {
        self.engine.is_empty() || self.engine.iter().any(|wanted| wanted == name)
    }

    /// Whether a workload of this name was asked for.
    pub fn named(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// The element types asked for, else these.
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

    /// Columns of B asked for, else these.
    pub fn ns(&self, all: &[usize]) -> Vec<usize> {
        match self.columns.as_slice() {
            [] => all.to_vec(),
            asked => asked.to_vec(),
        }
    }

    /// How much each figure costs.
    pub fn effort(&self) -> Effort {
        match self.quick {
            true => Effort::QUICK,
            false => Effort::FULL,
        }
    }

    /// `cargo test --all-targets` starts the binary bare: nothing was asked for then.
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

/// True when everything asked for was done and right.
fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.nothing_asked() {
        println!(
            "bench: nothing asked for; run `cargo bench --bench gpu`, or name --op, --filter, --quick or --out"
        );
        return Ok(true);
    }
    if arguments.rows {
        let gpu = Gpu::open().inspect_err(|reason| println!("no GPU, predictions only: {reason}"));
        return rows::run(gpu.as_ref().ok(), arguments);
    }
    for op in &arguments.op {
        operations::known(op)?;
    }
    if let Some(named) = &arguments.module {
        let (module, file) = named.split_once(':').ok_or("--module: NAME:FILE")?;
        // SAFETY: who names it says that it takes the module's parameters and writes where they say.
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
    let mut right = true;
    for (op, operation) in all() {
        if arguments.wants_operation(op, operation) {
            right &= machine.operation((op, operation), arguments, &recorder) == Outcome::Right;
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

/// The folder of real data, or a line that says what is left out.
fn data() -> Option<PathBuf> {
    let data = problems::data();
    if data.is_none() {
        let folder = smtx::data_folder();
        let folder = folder.display();
        println!("no data in {folder}: workloads dlmc/* and graph/* left out (set EINSPARSE_DATA)");
    }
    data
}

/// The tables, cut down to what was asked for.
fn selected(arguments: &Arguments, data: Option<&Path>) -> Vec<Workload> {
    let products = problems::workloads(data);
    let softmaxes = softmax::workloads(&products);
    let wanted = products.into_iter().chain(softmaxes);
    let wanted = wanted.filter(|w| arguments.wants(w)).enumerate();
    let Part { own, of } = arguments.part;
    let own = wanted.filter(|(i, _)| i % of == own);
    own.map(|(_, workload)| workload).collect()
}
