//! The command: one file per sub-command, and shared modules for operands, formats, checks and times. Every error is
//! printed as one readable line, with exit code 1.

/// Prints a line. A closed reader (`| head`) is not an error.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod bench;
mod bind;
mod chain;
mod check;
mod convert;
mod demo;
mod doctor;
mod explain;
mod grouping;
mod inspect;
mod kernels;
mod load;
mod model;
mod operand;
mod picture;
mod problem;
mod run;
mod spy;
mod storage;
mod time;

use std::error::Error;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

/// Result with an error of any stage; [`readable`] formats the error.
type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Einsums over sparse tensors on NVIDIA GPUs, or on the CPU where there is none.
#[derive(Parser)]
#[command(name = "einsparse", version, max_term_width = 100)]
struct Arguments {
    /// Tell more: -v what is loaded and chosen, -vv every step
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Memory that a file, and arrays over its rows and columns, may take, as 500MB or 8GiB; without it 64 MB and 16
    /// times its size
    #[arg(long, global = true, value_name = "BYTES", value_parser = load::bytes)]
    memory: Option<u64>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an Einsum over operands from files or made up
    Run(run::Run),
    /// Print how an Einsum becomes a kernel: the chain, candidates with predicted cost, refusals
    Explain(explain::Explain),
    /// Convert a matrix file to another kind of file, or another format
    Convert(convert::Convert),
    /// Sizes, row histogram, padding in each format, fill of blocks; a spy plot, the arrays of a format
    Inspect(inspect::Inspect),
    /// What works here and what to do about the rest: driver, GPU, kernels, compiler
    Doctor,
    /// The main job on two shipped matrices, or on a file, with a check against the reference
    Demo(demo::Demo),
    /// Time every variant and format for an Einsum (a look; `cargo bench` is the full harness)
    Bench(bench::Bench),
    /// The table of kernels
    Kernels(kernels::Kernels),
}

/// Parses the command line and runs the sub-command. Prints errors as one line and returns exit code 1.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("{}; see `einsparse --help`", first_paragraph(&error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    let level = match arguments.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
    if let Some(bytes) = arguments.memory {
        load::set_memory(bytes);
    }
    let result = match &arguments.command {
        Command::Run(run) => run.execute(),
        Command::Explain(explain) => explain.execute(),
        Command::Convert(convert) => convert.execute(),
        Command::Inspect(inspect) => inspect.execute(),
        Command::Doctor => doctor::execute(),
        Command::Demo(demo) => demo.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::Kernels(kernels) => kernels.execute(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", readable(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Formats an error as one line. A parse error keeps the expression and the caret that marks the position.
fn readable(error: &(dyn Error + 'static)) -> String {
    use einsparse::Error as E;
    match error.downcast_ref::<E>() {
        Some(E::Parse { .. }) => format!("the expression does not parse\n{error}"),
        Some(E::NoKernel { indirect, tried }) => {
            let why = match &tried[..] {
                // The text after the semicolon is advice for users of the library; here `--device cpu` replaces it.
                [(_, reason)] => reason.split(';').next().unwrap_or_default().to_string(),
                many => format!("{} refused; `einsparse explain` lists the reasons", many.len()),
            };
            format!("no kernel for {indirect}: {why}; `--device cpu` supports more expressions")
        }
        _ => error.to_string().replace('\n', "; "),
    }
}

/// Joins the lines of a clap message up to the first empty line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}
