//! `cargo xtask <command>`: how people work here. Two commands set everything up on a fresh machine:
//! `cargo xtask demo` and `cargo xtask test`.

mod bundle;
mod cargo;
mod ptx;
#[cfg(feature = "report")]
mod report;
mod setup;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Work on einsparse.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find or install the compiler for the kernels and ptxas; nothing leaves the build folder.
    Setup,
    /// Sparse times dense on a real matrix, on the GPU if there is one.
    Demo {
        /// Matrix Market, smtx or npz file; the shipped matrix without it.
        file: Option<PathBuf>,
    },
    /// All tests of the workspace, device modules included.
    Test {
        /// Handed on to the test programs.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compile the kernels and list registers, spills and shared memory of each.
    Ptx {
        /// Only kernels whose name contains this.
        filter: Option<String>,
        /// Also write the machine code as text beside each module.
        #[arg(long)]
        sass: bool,
    },
    /// Pack tests, benches and the command for a GPU machine without a toolchain.
    GpuBundle,
    /// A bench record as a markdown table and a plot, written beside it.
    Report {
        /// The record, CSV as `cargo bench --bench gpu -- --out` writes it.
        #[arg(required = true)]
        records: Vec<PathBuf>,
        /// Records of `cargo bench --bench gpu -- --rows --out`, all parts together: which rows nobody wants.
        #[arg(long)]
        rows: bool,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Task::Setup => setup::setup().map(|_| ()),
        Task::Demo { file } => setup::demo(file),
        Task::Test { arguments } => setup::test(&arguments),
        Task::Ptx { filter, sass } => ptx::ptx(filter.as_deref(), sass),
        Task::GpuBundle => bundle::bundle(),
        Task::Report { records, rows } => report_on(&records, rows),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "report")]
fn report_on(records: &[PathBuf], rows: bool) -> cargo::Result<()> {
    if rows {
        print!("{}", report::rows::report(records)?);
        return Ok(());
    }
    for record in records {
        print!("{}", report::report(record)?);
    }
    Ok(())
}

/// Plots take long to compile, so that only this task pays for them.
#[cfg(not(feature = "report"))]
fn report_on(records: &[PathBuf], rows: bool) -> cargo::Result<()> {
    let records = records.iter().map(std::path::absolute);
    let records = records.collect::<Result<Vec<_>, _>>()?;
    let arguments = [
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "report",
        "--",
        "report",
    ];
    cargo::part(
        "report",
        cargo::cargo(arguments)
            .args(rows.then_some("--rows"))
            .args(records),
    )
}
