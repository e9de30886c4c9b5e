//! `cargo xtask <command>`: how people work here. Two commands set everything up on a fresh machine:
//! `cargo xtask demo` and `cargo xtask test`.

mod api;
mod archs;
mod bundle;
mod cargo;
mod faults;
mod nvvm;
#[cfg(feature = "prebuild")]
mod prebuild;
mod ptx;
mod python;
#[cfg(feature = "report")]
mod report;
mod setup;
mod witness;

use clap::{Parser, Subcommand};
use nvvm::Compiler;
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
    Setup {
        /// With `nvvm`, also libNVVM.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
    },
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
    /// Compile kernels and list registers, spills and shared memory of each.
    Ptx {
        /// Only kernels whose name contains this.
        filter: Option<String>,
        /// The architecture: one of kernels-gpu/table/arch.rs.
        #[arg(long, default_value = einsparse_kernels::table::ARCHS[0].name)]
        arch: String,
        /// Also write the machine code as text beside each module.
        #[arg(long)]
        sass: bool,
        /// The backend that makes the PTX.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
    },
    /// The tests of the Python package, which is built with what `test` has built; pip fetches NumPy and SciPy.
    Python {
        /// Handed on to pytest.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// What the library makes public, against docs/api.txt.
    Api {
        /// Write it.
        #[arg(long)]
        bless: bool,
    },
    /// Make the modules that are kept in git anew, where their sources changed.
    Prebuild {
        /// With `nvvm`: compile all modules into the build folder, and compare ptxas' reports with those of the modules in
        /// git, which stay as they are.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
        /// With `--compiler nvvm`: only this module, for every architecture.
        #[arg(long, conflicts_with = "verify")]
        module: Option<String>,
        /// Change nothing: compile all anew and compare every byte. With `--compiler nvvm`: compile one small module.
        #[arg(long)]
        verify: bool,
        /// With --verify: a tenth of them, another with each commit.
        #[arg(long, requires = "verify")]
        tenth: bool,
    },
    /// Whether kernels spill, or take more registers, instructions or time than at a commit.
    Witness {
        /// The commit.
        #[arg(default_value = "HEAD")]
        commit: String,
        /// Records of the commit and of now, CSV as `cargo bench --bench gpu -- --out` writes them, to compare times too.
        #[arg(long, num_args = 2, value_names = ["BEFORE", "NOW"])]
        times: Option<Vec<PathBuf>>,
    },
    /// Assemble every kernel for every kind of GPU: none may use local memory.
    Archs,
    /// Readers, language, patterns, conversions and plans on random inputs; what fails is kept in fuzz/artifacts.
    Fuzz {
        /// For all targets together.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Other inputs for another number.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Only these; fuzz/src/lib.rs lists them.
        targets: Vec<String>,
    },
    /// Tests of formats, language, CPU and plans with AddressSanitizer: for what is cast and held by pointers.
    Asan {
        /// Handed on to the test programs.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Pack tests, benches and the command for a GPU machine without a toolchain.
    GpuBundle {
        /// Only this module's kernels, with the tests and benches of it.
        // The record of building calls it so.
        #[arg(long, alias = "family")]
        module: Option<String>,
        /// With --module: the architecture, one of kernels-gpu/table/arch.rs.
        #[arg(long, default_value = einsparse_kernels::table::ARCHS[0].name, requires = "module")]
        arch: String,
        /// With kernels that have a fault each, for `run.sh faults`: does the suite find them? All, or those whose
        /// names contain one of these, between commas.
        #[arg(long, conflicts_with = "module", num_args = 0..=1, default_missing_value = "")]
        faults: Option<String>,
        /// With machine code of the kernels for other GPUs, for runs with EINSPARSE_ARCH: the driver would compile them.
        #[arg(long, conflicts_with = "module")]
        archs: bool,
        /// The backend that makes the kernels.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
    },
    /// Measure every operation on this machine's GPU, part by part, into a folder of benches/record; goes on where it
    /// ended.
    Record {
        /// No new part after so many seconds.
        #[arg(long)]
        seconds: Option<u64>,
        /// The folder below benches/record, which is the GPU's name.
        #[arg(long, default_value = "h200")]
        gpu: String,
    },
    /// A bench record as markdown tables; of a GPU's also the pictures and the guide's table.
    Report {
        /// The record, CSV as `cargo bench --bench gpu -- --out` writes it.
        #[arg(required = true)]
        records: Vec<PathBuf>,
        /// Records of `cargo bench --bench gpu -- --rows --out`, all parts together: which rows nobody wants.
        #[arg(long)]
        rows: bool,
        /// Of two records, an earlier one and one of now: which operations take longer.
        #[arg(long, conflicts_with = "rows")]
        slower: bool,
    },
}

/// What a report is about.
#[derive(Clone, Copy)]
enum Question {
    Measured,
    Rows,
    Slower,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Task::Setup { compiler } => compiler.open().and_then(|_| setup::setup()),
        Task::Demo { file } => setup::demo(file),
        Task::Test { arguments } => setup::test(&arguments),
        Task::Ptx { filter, arch, sass, compiler } => {
            ptx::ptx(filter.as_deref(), &arch, sass, compiler)
        }
        Task::Python { arguments } => python::test(&arguments),
        Task::Api { bless } => api::api(bless),
        Task::Prebuild { compiler: Compiler::Nvvm, verify: true, .. } => nvvm::verify(),
        Task::Prebuild { compiler: Compiler::Nvvm, module, .. } => {
            nvvm::prebuild(module.as_deref())
        }
        Task::Prebuild { module: Some(_), .. } => {
            Err("`--module` requires `--compiler nvvm`".into())
        }
        Task::Prebuild { verify, tenth, .. } => prebuild(verify, tenth),
        Task::Witness { commit, times } => {
            let kernels = witness::witness(&commit);
            let times = times.map_or(Ok(()), |files| report_on(&files, Question::Slower));
            match (kernels, times) {
                (Err(kernels), Err(times)) => Err(format!("{kernels}\n{times}").into()),
                (kernels, times) => kernels.and(times),
            }
        }
        Task::Archs => archs::archs(),
        Task::Fuzz { seconds, seed, targets } => fuzz(seconds, seed, &targets),
        Task::Asan { arguments } => asan(&arguments),
        Task::GpuBundle { faults, archs, compiler: Compiler::Nvvm, .. }
            if archs || faults.is_some() =>
        {
            Err("`--faults` and `--archs` are made by rustc's backend: leave out `--compiler nvvm`"
                .into())
        }
        Task::GpuBundle { module, arch, faults, archs, compiler } => {
            bundle::bundle(module.as_deref(), &arch, faults.as_deref(), archs, compiler)
        }
        Task::Record { seconds, gpu } => record(seconds, &gpu),
        Task::Report { records, rows: true, .. } => report_on(&records, Question::Rows),
        Task::Report { records, slower: true, .. } => report_on(&records, Question::Slower),
        Task::Report { records, .. } => report_on(&records, Question::Measured),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz(seconds: u64, seed: u64, targets: &[String]) -> cargo::Result<()> {
    let mut command = cargo::cargo(["run", "--manifest-path", "fuzz/Cargo.toml"]);
    command.args(["--target-dir", "target/fuzz", "--", "--seconds"]);
    command.arg(seconds.to_string()).arg("--seed");
    command.arg(seed.to_string()).args(targets);
    cargo::part("fuzz", &mut command)
}

/// The runtime comes with stable Rust, the flag that links it does not.
fn asan(arguments: &[String]) -> cargo::Result<()> {
    let host = cargo::host()?;
    for of in [
        &["--package", "einsparse-formats", "--all-targets"][..],
        &["--package", "einsparse", "--lib", "--test=main", "--test=device"],
    ] {
        let mut command = cargo::cargo(["test", "--target-dir", "target/asan", "--target", &host]);
        command.args(of).arg("--").args(arguments);
        command.env("RUSTC_BOOTSTRAP", "1");
        command.env("RUSTFLAGS", "-Zsanitizer=address -Copt-level=1");
        // Too large an allocation is an error of ours, not a report.
        command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
        cargo::part("asan", &mut command)?;
    }
    Ok(())
}

/// Rows name the commit, so what is measured has to be in one; the record itself may be on its way.
fn record(seconds: Option<u64>, gpu: &str) -> cargo::Result<()> {
    let git = |arguments: &[&str]| -> cargo::Result<String> {
        Ok(String::from_utf8(cargo::git(arguments)?)?.trim().to_owned())
    };
    let sources = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!benches/record"];
    let changed = git(&sources)?;
    if !changed.is_empty() {
        let told = "a record names the commit that it was taken at, and these changes are in none";
        return Err(format!("{told}:\n{changed}").into());
    }
    let folder = cargo::root().join("benches/record").join(gpu);
    let mut bench = cargo::cargo(["bench", "--bench", "gpu", "--", "--record"]);
    bench.arg(folder);
    if let Some(seconds) = seconds {
        bench.arg("--seconds").arg(seconds.to_string());
    }
    // Modules that only benches use as well, and nothing to record without a GPU.
    bench.env("EINSPARSE_MODULES", "all").env("EINSPARSE_REQUIRE_GPU", "1");
    cargo::part("record", &mut bench)
}

#[cfg(feature = "prebuild")]
fn prebuild(verify: bool, tenth: bool) -> cargo::Result<()> {
    match verify {
        true => prebuild::verify(tenth),
        false => prebuild::prebuild(),
    }
}

#[cfg(not(feature = "prebuild"))]
fn prebuild(verify: bool, tenth: bool) -> cargo::Result<()> {
    let flags = [(verify, "--verify"), (tenth, "--tenth")];
    let flags = flags.into_iter().filter_map(|(on, flag)| on.then_some(flag));
    again_with("prebuild", flags)
}

#[cfg(feature = "report")]
fn report_on(records: &[PathBuf], question: Question) -> cargo::Result<()> {
    match (question, records) {
        (Question::Rows, records) => print!("{}", report::rows::report(records)?),
        (Question::Slower, [before, now]) => print!("{}", report::times::compare(before, now)?),
        (Question::Slower, _) => return Err("expected two records".into()),
        (Question::Measured, records) => {
            for record in records {
                print!("{}", report::report(record)?);
            }
        }
    }
    Ok(())
}

#[cfg(not(feature = "report"))]
fn report_on(records: &[PathBuf], question: Question) -> cargo::Result<()> {
    let records = records.iter().map(std::path::absolute);
    let mut arguments = records.collect::<Result<Vec<_>, _>>()?;
    match question {
        Question::Measured => {}
        Question::Rows => arguments.insert(0, "--rows".into()),
        Question::Slower => arguments.insert(0, "--slower".into()),
    }
    again_with("report", arguments)
}

/// Plots and packers take long to compile, so that only the tasks that want them pay for them.
#[cfg(not(all(feature = "prebuild", feature = "report")))]
fn again_with<S: AsRef<std::ffi::OsStr>>(
    task: &str,
    arguments: impl IntoIterator<Item = S>,
) -> cargo::Result<()> {
    let run = ["run", "--quiet", "--package", "xtask", "--features", task, "--", task];
    cargo::part(task, cargo::cargo(run).args(arguments))
}
