//! `cargo bench --bench gpu`: ours and the peers on the same problems, in one process and one run.
//!
//! Also the figures that need no GPU: `--op convert`, `--op read`. `--list` shows the tables. Without a GPU one
//! line says so; EINSPARSE_REQUIRE_GPU=1 makes that a failure.

mod attention;
mod attention_gradient;
mod attention_masks;
mod calibrate;
mod case;
mod channels;
mod check;
mod conv;
mod conversions;
mod decode;
mod dense;
mod determinism;
mod device;
mod dtype;
mod dynamic;
mod einsum;
mod encoder;
mod entries;
mod epilogue;
mod ffn;
mod ffn_layer;
mod host_ops;
mod int8;
mod join;
mod layer;
mod levels;
mod marked;
mod messages;
mod moe;
mod narrow;
mod nm_narrow;
mod ours;
mod papers;
mod peers {
    pub mod cublas;
    pub mod cublaslt;
    pub mod cudnn;
    pub mod cusparse;
    pub mod cusparselt;
    pub mod fused;
    pub mod sddmm;
    pub mod torch;
    pub mod whole;
}
mod pit_choice;
mod pit_conv;
mod pit_right;
mod pit_tf32;
mod pit_turned;
mod problems;
mod record;
mod rows;
mod sddmm;
mod softmax;
mod sweep;
mod tensor_product;
mod tensors;
mod timing;
mod training;
mod turned;

use clap::Parser;
use device::{Gpu, Result};
use problems::{Dtype, Workload};
use record::Recorder;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use sweep::Tally;
use timing::Effort;

/// Problem tables x engines; method and columns as in benches/NOTES.md.
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
    /// Only these engines (einsparse, cusparse, cusparse-default, cusparselt, cublas, cublas-tf32); copies are always beside
    /// conversions
    #[arg(long, value_delimiter = ',')]
    engine: Vec<String>,
    /// Write the rows here (CSV)
    #[arg(long)]
    out: Option<PathBuf>,
    /// The record of this GPU: every operation, of ours what the plan takes, each part a file of this folder. A part that is
    /// there from this commit is not run again
    #[arg(long, conflicts_with_all = ["out", "rows", "quick", "filter", "engine", "dtype", "columns", "variant", "part"])]
    record: Option<PathBuf>,
    /// Fewer workloads and runs: a look, not a record
    #[arg(long)]
    quick: bool,
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
        _ => Err(format!("{text}: i/n with i from 0 to n - 1")),
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

    /// Whether `name` is among the engines asked for.
    pub fn wants_engine(&self, name: &str) -> bool {
        self.engine.is_empty() || self.engine.iter().any(|wanted| wanted == name)
    }

    /// Whether a workload of this name was asked for.
    pub fn named(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// The element types asked for, else these.
    pub fn asked(&self, all: &[Dtype]) -> Vec<Dtype> {
        match self.dtype.as_slice() {
            [] => all.to_vec(),
            asked => asked.to_vec(),
        }
    }

    fn wants(&self, workload: &Workload) -> bool {
        let named = self.filter.is_empty()
            || self
                .filter
                .iter()
                .any(|part| workload.name.contains(part.as_str()));
        self.wants_op(workload.op) && named && (workload.quick || !self.quick)
    }

    /// Element types to measure.
    pub fn dtypes(&self, workload: &Workload) -> Vec<Dtype> {
        if self.dtype.is_empty() {
            workload.dtypes.to_vec()
        } else {
            self.dtype.clone()
        }
    }

    /// Columns of B to measure.
    pub fn ns(&self, workload: &Workload) -> Vec<usize> {
        if self.columns.is_empty() {
            workload.ns.to_vec()
        } else {
            self.columns.clone()
        }
    }

    /// How much each figure costs.
    pub fn effort(&self) -> Effort {
        if self.quick {
            Effort::QUICK
        } else {
            Effort::FULL
        }
    }

    /// Whether a look is enough.
    pub fn is_quick(&self) -> bool {
        self.quick
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
    let outcome = if arguments.bare_init {
        device::open_primary().map(|_| true)
    } else {
        run(&arguments)
    };
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
    arguments.op.iter().try_for_each(|op| known(op))?;
    if arguments.list {
        show(arguments);
        return Ok(true);
    }
    let bench = Bench {
        gpu: Gpu::open(),
        data: data(),
    };
    if let Some(folder) = &arguments.record {
        return bench.record(arguments, folder);
    }
    let mut recorder = bench.recorder(arguments.out.as_deref())?;
    let mut right = true;
    for (op, operation) in OPERATIONS {
        if arguments.wants_operation(op, operation) {
            right &= bench.operation((op, operation), arguments, &mut recorder) == Outcome::Right;
        }
    }
    Ok(right)
}

/// How an operation is measured.
enum Operation {
    /// Without a GPU.
    Host(fn(&mut Recorder) -> Result<()>),
    /// Its own cases.
    Own(fn(&Gpu, Effort, &mut Recorder) -> Result<()>),
    /// Its own cases, as the command line wants them.
    Asked(fn(&Gpu, &Arguments, &mut Recorder) -> Result<()>),
    /// Workloads of the tables.
    Table(fn(&Gpu, &Arguments, &[Workload], &mut Recorder) -> Result<Tally>),
}

use Operation::{Asked, Host, Own, Table};

/// Everything that can be measured, in the order of the record.
const OPERATIONS: &[(&str, Operation)] = &[
    (calibrate::OP, Own(calibrate::run)),
    ("spmm", Table(sweep::run)),
    ("block_spmm", Table(sweep::run)),
    ("nm_spmm", Table(sweep::run)),
    ("decode", Asked(decode::run)),
    (turned::OP, Asked(turned::run)),
    (epilogue::OP, Own(epilogue::run)),
    (sddmm::OP, Table(sddmm::run)),
    (softmax::OP, Table(softmax::run)),
    (dense::OP, Asked(dense::run)),
    ("narrow", Own(narrow::run)),
    ("nm_narrow", Own(nm_narrow::run)),
    ("int8", Own(int8::run)),
    ("layer", Own(layer::run)),
    ("attention", Own(attention::run)),
    ("attention_gradient", Own(attention_gradient::run)),
    ("attention_masks", Own(attention_masks::run)),
    ("encoder", Own(encoder::run)),
    ("conv", Own(conv::run)),
    ("mttkrp", Asked(tensors::run)),
    ("ttm", Asked(tensors::run)),
    ("sampled_tensor", Asked(tensors::run)),
    (tensor_product::OP, Own(tensor_product::run)),
    (einsum::OP, Own(einsum::run)),
    (messages::OP, Asked(messages::run)),
    (join::OP, Own(join::run)),
    ("detect", Own(dynamic::detect)),
    (marked::OP, Own(marked::run)),
    (channels::OP, Own(channels::run)),
    ("pit_matmul", Own(dynamic::matmul)),
    (pit_tf32::OP, Own(pit_tf32::run)),
    ("pit_turned", Own(pit_turned::run)),
    (pit_right::OP, Own(pit_right::run)),
    (pit_conv::OP, Own(pit_conv::run)),
    ("pit_choice", Own(pit_choice::run)),
    (ffn::OP, Own(ffn::run)),
    (ffn_layer::OP, Own(ffn_layer::run)),
    (moe::OP, Own(moe::run)),
    (training::OP, Own(training::run)),
    (problems::DENSE_TO_BLOCKS, Table(conversions::run)),
    (problems::CSR_TO_BLOCKS, Table(conversions::run)),
    ("convert_entries", Own(entries::conversions)),
    (determinism::OP, Own(determinism::run)),
    ("levels", Own(levels::run)),
    ("load", Own(host_ops::load)),
    ("first_result", Own(host_ops::first_result)),
    ("convert", Host(host_ops::convert)),
    ("read", Host(host_ops::read)),
];

/// Operations whose record is taken in so many parts.
const PARTS: &[(&str, usize)] = &[("spmm", 4), ("sddmm", 2)];

/// Refuses an operation that there is not.
fn known(op: &str) -> Result<()> {
    match OPERATIONS.iter().any(|(known, _)| *known == op) {
        true => Ok(()),
        false => Err(format!("no operation `{op}`; --list shows them")),
    }
}

/// What became of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All of it was measured, or it has no case here.
    Right,
    /// Measured, and some result of ours is wrong or missing: its row says so.
    Wrong,
    /// Not measured to its end.
    Stopped,
}

/// What every operation needs.
struct Bench {
    gpu: Result<Gpu>,
    /// The folder of real data.
    data: Option<PathBuf>,
}

impl Bench {
    fn recorder(&self, path: Option<&Path>) -> Result<Recorder> {
        let gpu = self.gpu.as_ref();
        let (name, driver) = gpu.map_or(("none", ""), |g| (g.name.as_str(), g.driver.as_str()));
        Recorder::create(path, name, driver)
    }

    /// Measures one operation. What stops it is printed; the others go on.
    fn operation(
        &self,
        (op, operation): (&str, &Operation),
        arguments: &Arguments,
        recorder: &mut Recorder,
    ) -> Outcome {
        let own = Arguments {
            op: vec![op.to_owned()],
            ..arguments.clone()
        };
        let outcome = match (operation, &self.gpu) {
            (Host(measure), _) => measure(recorder).map(|()| Tally::default()),
            (_, Err(reason)) => {
                println!("{op} skipped, no GPU: {reason}");
                let required = std::env::var("EINSPARSE_REQUIRE_GPU").is_ok_and(|v| v == "1");
                return if required {
                    Outcome::Stopped
                } else {
                    Outcome::Right
                };
            }
            (Own(measure), Ok(gpu)) => {
                measure(gpu, own.effort(), recorder).map(|()| Tally::default())
            }
            (Asked(measure), Ok(gpu)) => measure(gpu, &own, recorder).map(|()| Tally::default()),
            (Table(measure), Ok(gpu)) => {
                let workloads = selected(&own, self.data.as_deref());
                measure(gpu, &own, &workloads, recorder)
            }
        };
        match outcome {
            Err(reason) => {
                println!("{op} failed: {reason}");
                Outcome::Stopped
            }
            Ok(tally) if tally.faults > 0 => {
                println!(
                    "{op}: {} faults of ours in {} cases",
                    tally.faults, tally.cases
                );
                Outcome::Wrong
            }
            Ok(_) => Outcome::Right,
        }
    }

    /// Every operation into a file of its own, one for each part; what stands there from this commit stays.
    fn record(&self, arguments: &Arguments, folder: &Path) -> Result<bool> {
        let start = Instant::now();
        let text = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(folder).map_err(text)?;
        let (mut right, mut left) = (true, 0);
        for (op, operation) in OPERATIONS {
            let of = PARTS
                .iter()
                .find(|(name, _)| name == op)
                .map_or(1, |(_, of)| *of);
            for own in 0..of {
                let name = match of {
                    1 => format!("{op}.csv"),
                    _ => format!("{op}-{}-of-{of}.csv", own + 1),
                };
                let path = folder.join(&name);
                if !arguments.wants_op(op) || record::is_of_this_commit(&path) {
                    continue;
                }
                let late = |most| start.elapsed().as_secs() >= most;
                if arguments.seconds.is_some_and(late) {
                    left += 1;
                    continue;
                }
                let from = Instant::now();
                let unfinished = folder.join(format!("{name}.unfinished"));
                let of_part = Arguments {
                    auto: true,
                    part: Part { own, of },
                    ..arguments.clone()
                };
                let mut recorder = self.recorder(Some(&unfinished))?;
                let outcome = self.operation((op, operation), &of_part, &mut recorder);
                right &= outcome == Outcome::Right;
                left += usize::from(outcome == Outcome::Stopped);
                if outcome != Outcome::Stopped && recorder.rows() > 0 {
                    std::fs::rename(&unfinished, &path).map_err(text)?;
                } else {
                    std::fs::remove_file(&unfinished).map_err(text)?;
                }
                println!("== {name}: {:.0} s", from.elapsed().as_secs_f64());
            }
        }
        println!(
            "record: {left} parts left, {:.0} s",
            start.elapsed().as_secs_f64()
        );
        Ok(right && left == 0)
    }
}

fn show(arguments: &Arguments) {
    let data = data();
    for (op, operation) in OPERATIONS {
        if !arguments.wants_operation(op, operation) {
            continue;
        }
        if !matches!(operation, Table(_)) {
            println!("{op}");
            continue;
        }
        let own = Arguments {
            op: vec![(*op).to_owned()],
            ..arguments.clone()
        };
        for workload in selected(&own, data.as_deref()) {
            let dtypes: Vec<String> = arguments
                .dtypes(&workload)
                .iter()
                .map(Dtype::to_string)
                .collect();
            let ns = arguments.ns(&workload);
            let (name, dtypes) = (&workload.name, dtypes.join(" "));
            println!("{op:15} {name:60} n {ns:?} {dtypes}");
        }
    }
}

/// Real data: EINSPARSE_DATA, else `data/`.
fn data() -> Option<PathBuf> {
    let folder =
        std::env::var_os("EINSPARSE_DATA").map_or_else(|| PathBuf::from("data"), PathBuf::from);
    let there = folder.join("dlmc").is_dir();
    if !there {
        let folder = folder.display();
        println!("no data in {folder}: workloads dlmc/* and graph/* left out (set EINSPARSE_DATA)");
    }
    there.then_some(folder)
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
