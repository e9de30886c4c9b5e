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
    pub mod fused;
    pub mod sddmm;
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
use std::path::PathBuf;
use std::process::ExitCode;
use timing::Effort;

/// Problem tables x engines; method and columns as in benches/NOTES.md.
#[derive(Parser, Debug)]
#[command(name = "gpu")]
pub struct Arguments {
    /// Operations (spmm, spmm_t, spmm_bias_relu, block_spmm, nm_spmm, sddmm, softmax, attention, attention_gradient, conv,
    /// dense_to_blocks, csr_to_blocks, convert_entries, layer, levels, narrow, nm_narrow, int8, determinism, einsum, decode,
    /// dense, mttkrp, ttm, sampled_tensor, message, tensor_product, join, detect, pit_matmul, pit_choice, pit_tf32, pit_turned, pit_right, pit_conv, ffn, ffn_layer,
    /// fused_detect, moe, attention_masks, encoder, training,
    /// channels, load, first_result, convert, read); all by default
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
    /// Only these engines (einsparse, cusparse, cusparse-default, cublas, cublas-tf32); copies are always beside conversions
    #[arg(long, value_delimiter = ',')]
    engine: Vec<String>,
    /// Write the record here (CSV)
    #[arg(long)]
    out: Option<PathBuf>,
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
    /// Of `--rows` the i-th of n parts
    #[arg(long, value_parser = part, default_value = "0/1")]
    pub part: Part,
    /// Of `--rows` no new case after so many seconds
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

    /// Operations outside the tables have no workload names to filter by.
    fn wants_apart(&self, op: &str) -> bool {
        self.wants_op(op) && (self.filter.is_empty() || !self.op.is_empty())
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
    let workloads = selected(arguments);
    if arguments.list {
        show(arguments, &workloads);
        return Ok(true);
    }
    let gpu = Gpu::open();
    let (name, driver) = gpu
        .as_ref()
        .map_or(("none", ""), |g| (g.name.as_str(), g.driver.as_str()));
    let mut recorder = Recorder::create(arguments.out.as_deref(), name, driver)?;
    let mut complete = true;
    for (op, measure) in [
        ("convert", host_ops::convert as HostOp),
        ("read", host_ops::read),
    ] {
        complete &= !arguments.wants_apart(op) || done(op, measure(&mut recorder));
    }
    let first = arguments.wants_apart("first_result");
    let apart = [
        ("attention", attention::run as GpuOp),
        (determinism::OP, determinism::run),
        (einsum::OP, einsum::run),
        (epilogue::OP, epilogue::run),
        (join::OP, join::run),
        ("int8", int8::run),
        ("attention_gradient", attention_gradient::run),
        ("attention_masks", attention_masks::run),
        ("encoder", encoder::run),
        ("conv", conv::run),
        ("layer", layer::run),
        ("detect", dynamic::detect),
        (channels::OP, channels::run),
        ("pit_matmul", dynamic::matmul),
        ("pit_choice", pit_choice::run),
        (pit_tf32::OP, pit_tf32::run),
        ("pit_turned", pit_turned::run),
        (pit_right::OP, pit_right::run),
        (pit_conv::OP, pit_conv::run),
        (ffn::OP, ffn::run),
        (moe::OP, moe::run),
        (ffn_layer::OP, ffn_layer::run),
        (training::OP, training::run),
        (marked::OP, marked::run),
        ("convert_entries", entries::conversions),
        ("levels", levels::run),
        ("narrow", narrow::run),
        ("nm_narrow", nm_narrow::run),
        (tensor_product::OP, tensor_product::run),
        ("load", host_ops::load),
    ];
    let mut apart = apart.to_vec();
    apart.retain(|(op, _)| arguments.wants_apart(op));
    let decode = arguments.wants_apart("decode");
    let dense = arguments.wants_apart(dense::OP);
    let turned = arguments.wants_apart(turned::OP);
    let messages = arguments.wants_apart(messages::OP);
    let tensors = tensors::OPS.iter().any(|op| arguments.wants_apart(op));
    if workloads.is_empty()
        && !first
        && apart.is_empty()
        && !decode
        && !dense
        && !turned
        && !tensors
        && !messages
    {
        return Ok(complete);
    }
    let gpu = match &gpu {
        Ok(gpu) => gpu,
        Err(reason) => {
            println!("no GPU, operations on it skipped: {reason}");
            let required = std::env::var("EINSPARSE_REQUIRE_GPU").is_ok_and(|v| v == "1");
            return Ok(complete && !required);
        }
    };
    println!("{} with driver {}", gpu.name, gpu.driver);
    if first {
        complete &= done("first_result", host_ops::first_result(&mut recorder));
    }
    if decode {
        let chosen = decode::Selection {
            filter: &arguments.filter,
            columns: &arguments.columns,
            dtypes: &arguments.dtype,
            auto: arguments.auto,
        };
        let outcome = decode::run(gpu, arguments.effort(), &chosen, &mut recorder);
        complete &= done("decode", outcome);
    }
    if dense {
        complete &= done(dense::OP, dense::run(gpu, arguments, &mut recorder));
    }
    if turned {
        complete &= done(turned::OP, turned::run(gpu, arguments, &mut recorder));
    }
    if messages {
        let outcome = messages::run(gpu, arguments, &mut recorder);
        complete &= done(messages::OP, outcome);
    }
    if tensors {
        complete &= done("tensors", tensors::run(gpu, arguments, &mut recorder));
    }
    for (op, measure) in apart {
        complete &= done(op, measure(gpu, arguments.effort(), &mut recorder));
    }
    if workloads.is_empty() {
        return Ok(complete);
    }
    let (conversions, products): (Vec<_>, Vec<_>) = workloads
        .into_iter()
        .partition(|w| conversions::OPS.contains(&w.op));
    let (sampled, products): (Vec<_>, Vec<_>) =
        products.into_iter().partition(|w| w.op == sddmm::OP);
    let (softmaxes, products): (Vec<_>, Vec<_>) =
        products.into_iter().partition(|w| w.op == softmax::OP);
    let mut tally = sweep::Tally::default();
    if !products.is_empty() {
        tally = sweep::run(gpu, arguments, &products, &mut recorder)?;
    }
    if !sampled.is_empty() {
        tally += sddmm::run(gpu, arguments, &sampled, &mut recorder)?;
    }
    tally += conversions::run(gpu, arguments, &conversions, &mut recorder)?;
    tally += softmax::run(gpu, arguments, &softmaxes, &mut recorder)?;
    println!("{} cases, {} faults of ours", tally.cases, tally.faults);
    Ok(complete && tally.faults == 0)
}

fn show(arguments: &Arguments, workloads: &[Workload]) {
    for workload in workloads {
        let dtypes: Vec<String> = arguments
            .dtypes(workload)
            .iter()
            .map(Dtype::to_string)
            .collect();
        let ns = arguments.ns(workload);
        println!(
            "{:10} {:60} n {ns:?} {}",
            workload.op,
            workload.name,
            dtypes.join(" ")
        );
    }
}

type HostOp = fn(&mut Recorder) -> Result<()>;
type GpuOp = fn(&Gpu, Effort, &mut Recorder) -> Result<()>;

/// Says why an operation has no row; the others go on.
fn done(op: &str, outcome: Result<()>) -> bool {
    if let Err(reason) = &outcome {
        println!("{op} failed: {reason}");
    }
    outcome.is_ok()
}

/// The tables, cut down to what was asked for. Real data comes from EINSPARSE_DATA, else `data/`.
fn selected(arguments: &Arguments) -> Vec<Workload> {
    let folder =
        std::env::var_os("EINSPARSE_DATA").map_or_else(|| PathBuf::from("data"), PathBuf::from);
    let data = folder.join("dlmc").is_dir().then_some(folder.as_path());
    if data.is_none() {
        println!(
            "no data in {}: workloads dlmc/* and graph/* skipped (set EINSPARSE_DATA)",
            folder.display()
        );
    }
    let products = problems::workloads(data);
    let softmaxes = softmax::workloads(&products);
    products
        .into_iter()
        .chain(softmaxes)
        .filter(|w| arguments.wants(w))
        .collect()
}
