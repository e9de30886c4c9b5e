//! Tasks that first make all kernels available: `setup`, `demo`, `test`.

use crate::cargo::{Result, cargo, part, target_dir};
use einsparse_compile::{Kernels, Module, Nvdisasm, Ptxas, Spec, Toolchain, source_dir};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Finds or installs the compiler for the kernels, ptxas, and the disassembler with which tests read machine code.
pub fn setup() -> Result<()> {
    let target = target_dir()?;
    let start = Instant::now();
    let toolchain = match Toolchain::find(&target) {
        Ok(toolchain) => toolchain,
        Err(missing) => {
            eprintln!(
                "downloading a compiler for the kernels into {}",
                target.join("toolchain").display()
            );
            Toolchain::install(&target).map_err(|error| format!("{missing}\n{error}"))?
        }
    };
    eprintln!(
        "kernels: {} ({:?}, {})",
        toolchain.name(),
        toolchain.origin,
        toolchain.rustc.display()
    );
    let ptxas = Ptxas::find(&target).map_or_else(|| Ptxas::install(&target), Ok);
    match &ptxas {
        Ok(ptxas) => eprintln!("ptxas:   {} ({})", ptxas.version, ptxas.path.display()),
        Err(error) => eprintln!(
            "ptxas:   none, the driver will compile the kernels when they are loaded: {error}"
        ),
    }
    match Nvdisasm::find(&target).map_or_else(|| Nvdisasm::install(&target), Ok) {
        Ok(found) => eprintln!("nvdisasm: {}", found.path.display()),
        Err(error) => eprintln!("nvdisasm: none, tests do not read machine code: {error}"),
    }
    eprintln!("== setup: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Settings with which this program finds and compiles kernels. Progress is printed to the terminal.
pub fn kernels(target: &Path) -> Kernels<'_> {
    Kernels {
        sources: source_dir(),
        target_dir: target,
        report_all: false,
        anew: false,
        backend: None,
        progress: &|line| eprintln!("{line}"),
    }
}

/// Returns the modules. If some are stale, finds or installs the compiler first and compiles them.
pub fn modules(kernels: &Kernels<'_>, specs: &[Spec]) -> Result<Vec<Module>> {
    if !kernels.stale(specs)?.is_empty() {
        setup()?;
    }
    Ok(kernels.modules(specs)?)
}

/// Compiles the modules that are stale. The next build by cargo finds them.
pub fn prepare(specs: &[Spec]) -> Result<()> {
    let target = target_dir()?;
    if !kernels(&target).stale(specs)?.is_empty() {
        setup()?;
        kernels(&target).modules(specs)?;
    }
    Ok(())
}

/// Runs the command's demo on `file`, or on the real matrix that the project ships.
pub fn demo(file: Option<PathBuf>) -> Result<()> {
    prepare(&Spec::asked())?;
    // The command runs in the root of the project, so a relative path is made absolute.
    let file = file.map(std::path::absolute).transpose()?;
    let run = ["run", "--release", "--package", "einsparse-cli"];
    let mut command = cargo(run);
    part("demo", command.args(["--", "demo"]).args(file))
}

/// Runs all tests: libraries and programs, then the examples in the documentation.
pub fn test(arguments: &[String]) -> Result<()> {
    let start = Instant::now();
    let mut specs = Spec::asked();
    let present = einsparse_compile::present();
    specs.retain(|spec| present.contains(&&*spec.arch));
    prepare(&specs)?;
    let run = |name: &str, options: &[&str], arguments: &[String]| {
        let mut command = cargo(["test", "--workspace", "--all-features"]);
        command.args(options).env("EINSPARSE_REQUIRE_PTX", "1");
        if !arguments.is_empty() {
            command.arg("--").args(arguments);
        }
        part(name, &mut command)
    };
    // Benches are left to `cargo bench`: they are as large as all tests together. `--tests` builds only libraries and
    // programs with tests. The Python module would be linked as a program, without an interpreter.
    let programs = ["--tests", "--examples"];
    run("build", &[&programs[..], &["--no-run"]].concat(), &[])?;
    run("tests", &programs, arguments)?;
    run("documentation tests", &["--doc"], arguments)?;
    eprintln!("== all tests: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
