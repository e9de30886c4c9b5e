//! `cargo xtask <command>`: the tasks of the project. Two commands set up a fresh machine: `cargo xtask demo` and
//! `cargo xtask test`.

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

/// Tasks for work on einsparse.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find or install the compiler for the kernels and ptxas, in the build directory only.
    Setup {
        /// Backend to set up. `nvvm` also installs libNVVM.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
    },
    /// Multiply a real sparse matrix by a dense matrix, on the GPU if the machine has one.
    Demo {
        /// Matrix Market, smtx or npz file. Without it, the matrix that the project ships.
        file: Option<PathBuf>,
    },
    /// Run all tests of the workspace, and build the device modules first.
    Test {
        /// Arguments for the test programs.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compile kernels and list the registers, spills and shared memory of each.
    Ptx {
        /// Compile only kernels whose name contains this text.
        filter: Option<String>,
        /// Architecture, one of those in kernels-gpu/table/arch.rs.
        #[arg(long, default_value = einsparse_kernels::table::ARCHS[0].name)]
        arch: String,
        /// Also write the machine code as text next to each module.
        #[arg(long)]
        sass: bool,
        /// Backend that compiles to PTX.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
    },
    /// Run the tests of the Python package, built with the artifacts of `test`. pip downloads NumPy and SciPy.
    Python {
        /// Arguments for pytest.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compare the public items of the library with docs/api.txt.
    Api {
        /// Write docs/api.txt instead.
        #[arg(long)]
        bless: bool,
    },
    /// Recompile the modules in git whose sources have changed.
    Prebuild {
        /// Backend. `nvvm` compiles all modules into the build directory and compares their ptxas reports with those of
        /// the modules in git. The modules in git stay unchanged.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
        /// With `--compiler nvvm`, compile only this module, for every architecture.
        #[arg(long, conflicts_with = "verify")]
        module: Option<String>,
        /// Recompile everything and compare every byte, without writing. With `--compiler nvvm`, compile one small
        /// module.
        #[arg(long)]
        verify: bool,
        /// With `--verify`, check a tenth of the modules, another tenth at each commit.
        #[arg(long, requires = "verify")]
        tenth: bool,
    },
    /// Compare spills, registers, instructions and times of kernels with those of a commit.
    Witness {
        /// Commit to compare with.
        #[arg(default_value = "HEAD")]
        commit: String,
        /// Compare times too: records of the commit and of now, CSV files of `cargo bench --bench gpu -- --out`.
        #[arg(long, num_args = 2, value_names = ["BEFORE", "NOW"])]
        times: Option<Vec<PathBuf>>,
    },
    /// Assemble every kernel for every kind of GPU. Fails if a kernel uses more than 8 bytes of local memory.
    Archs,
    /// Run parsers, patterns, conversions and plans on random inputs. Failing inputs are stored in fuzz/artifacts.
    Fuzz {
        /// Duration in seconds, over all targets.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of the random inputs.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Targets to run, listed in fuzz/src/lib.rs. Default: all.
        targets: Vec<String>,
    },
    /// Run the tests of formats, expressions, CPU code and plans under AddressSanitizer, which checks casts and
    /// pointers.
    Asan {
        /// Arguments for the test programs.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Pack tests, benches and the command for a GPU machine without a toolchain.
    GpuBundle {
        /// Pack only the kernels, tests and benches of this module.
        // Alias: the record of build times uses the name `family`.
        #[arg(long, alias = "family")]
        module: Option<String>,
        /// With `--module`, the architecture, one of those in kernels-gpu/table/arch.rs.
        #[arg(long, default_value = einsparse_kernels::table::ARCHS[0].name, requires = "module")]
        arch: String,
        /// Add kernels with one planted fault each, for `run.sh faults`, which checks that the tests find them.
        /// Default: all faults. With a comma-separated list, faults whose names contain one of its texts.
        #[arg(long, conflicts_with = "module", num_args = 0..=1, default_missing_value = "")]
        faults: Option<String>,
        /// Add machine code of the kernels for other GPUs, for runs with EINSPARSE_ARCH. Otherwise the driver compiles
        /// them.
        #[arg(long, conflicts_with = "module")]
        archs: bool,
        /// Add the examples in the documentation as programs, for `run.sh doctests`.
        #[arg(long, conflicts_with = "module")]
        doctests: bool,
        /// Backend that compiles the kernels.
        #[arg(long, value_enum, default_value = "rustc")]
        compiler: Compiler,
    },
    /// Measure every operation on the GPU of this machine, in parts, into a directory of benches/record. A later run
    /// continues with the parts that are missing.
    Record {
        /// Start no new part after this number of seconds.
        #[arg(long)]
        seconds: Option<u64>,
        /// Directory below benches/record, named after the GPU.
        #[arg(long, default_value = "h200")]
        gpu: String,
    },
    /// Write a bench record as Markdown tables. For the record of a GPU, also write the charts and the table of the
    /// guide.
    Report {
        /// Records: CSV files of `cargo bench --bench gpu -- --out`, or the directory of a GPU.
        #[arg(required = true)]
        records: Vec<PathBuf>,
        /// List the rows that no case needs, from records of `cargo bench --bench gpu -- --rows --out`, all parts
        /// together.
        #[arg(long)]
        rows: bool,
        /// List the operations that take longer in the second of two records.
        #[arg(long, conflicts_with = "rows")]
        slower: bool,
    },
}

/// Kind of report.
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
        Task::GpuBundle { module, arch, faults, archs, doctests, compiler } => {
            let parts = bundle::Parts { faults, archs, doctests, compiler };
            bundle::bundle(module.as_deref(), &arch, &parts)
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

/// Runs the tests under AddressSanitizer. Stable Rust ships its runtime, but the flag that links it is unstable.
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
        // An allocation that is too large must return an error of the library. Without this option the sanitizer
        // aborts.
        command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
        cargo::part("asan", &mut command)?;
    }
    Ok(())
}

/// Records times. Rows name the commit, so all measured sources must be committed. Changes of the record itself are
/// allowed.
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
    // `all` adds the modules that only benches use. Without a GPU there is nothing to record.
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

/// Runs the task again with its feature. Plotters and compressors take long to compile, so only the tasks that use them
/// enable them.
#[cfg(not(all(feature = "prebuild", feature = "report")))]
fn again_with<S: AsRef<std::ffi::OsStr>>(
    task: &str,
    arguments: impl IntoIterator<Item = S>,
) -> cargo::Result<()> {
    let run = ["run", "--quiet", "--package", "xtask", "--features", task, "--", task];
    cargo::part(task, cargo::cargo(run).args(arguments))
}
