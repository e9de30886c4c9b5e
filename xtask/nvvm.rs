//! NVIDIA's libNVVM as a second backend for the kernels: selection of the compiler, and comparison of NVVM's modules
//! with those that the project stores.

use crate::cargo::{Result, target_dir};
use crate::setup::{self, kernels};
use clap::ValueEnum;
use einsparse_compile::resources::{Report, Resources};
use einsparse_compile::{Backend, Code, Error, Kernels, Module, Nvvm, Spec};
use einsparse_kernels::table::ARCHS;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Compiler from the LLVM IR of the kernels to PTX.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compiler {
    /// NVPTX backend of rustc. The modules in git are compiled by it.
    Rustc,
    /// NVIDIA's libNVVM.
    Nvvm,
}

impl Compiler {
    /// Finds or downloads libNVVM. Returns `None` for the backend of rustc.
    pub fn open(self) -> Result<Option<Nvvm>> {
        if self == Compiler::Rustc {
            return Ok(None);
        }
        let target = target_dir()?;
        let nvvm =
            Nvvm::find(&target).or_else(|missing| match std::env::var_os("EINSPARSE_NVVM") {
                Some(_) => Err(missing),
                None => Nvvm::install(&target),
            })?;
        eprintln!("libNVVM: {} ({})", nvvm.version, nvvm.path.display());
        Ok(Some(nvvm))
    }
}

/// The library as the backend of [`Kernels`].
pub fn backend(nvvm: &Option<Nvvm>) -> Option<&dyn Backend> {
    nvvm.as_ref().map(|nvvm| nvvm as &dyn Backend)
}

/// Compiles all modules, or those named `module`, into the build directory. Prints how their ptxas reports differ from
/// those of rustc's modules. The modules in git stay unchanged.
pub fn prebuild(module: Option<&str>) -> Result<()> {
    let mut specs = Spec::all();
    specs.retain(|spec| module.is_none_or(|module| spec.module == module));
    if specs.is_empty() {
        return Err(format!("no module is called {}", module.unwrap_or_default()).into());
    }
    let start = Instant::now();
    let (kept, made) = (of_rustc(&specs)?, of_nvvm(&specs, Compiler::Nvvm.open()?, false)?);
    let mut all = Comparison::default();
    for (kept, made) in kept.iter().zip(&made) {
        let comparison = Comparison::of(kept.report(), made.report());
        println!("{}: {comparison}", made.name());
        for line in &comparison.remarks {
            println!("  {line}");
        }
        all.add(&comparison);
    }
    let (count, seconds) = (made.len(), start.elapsed().as_secs());
    println!("{count} modules by {}, {seconds} s: {all}", made[0].compiler());
    Ok(())
}

/// Recompiles the smallest module of the first architecture. Without a network, libNVVM cannot be installed and the
/// check is skipped.
pub fn verify() -> Result<()> {
    let nvvm = match Compiler::Nvvm.open() {
        Ok(nvvm) => nvvm,
        // Only a failure of pip skips the check. A library that was downloaded must work.
        Err(reason) if matches!(reason.downcast_ref(), Some(Error::Command { .. })) => {
            let reason = reason.to_string();
            println!("skipped: no libNVVM: {}", reason.lines().next().unwrap_or_default());
            return Ok(());
        }
        Err(reason) => return Err(reason),
    };
    let mut specs = Spec::of_table(&ARCHS[0]);
    let kept = of_rustc(&specs)?;
    let smallest = kept.iter().min_by_key(|module| module.work()).ok_or("no modules")?;
    specs.retain(|spec| spec.name() == smallest.name());
    for made in of_nvvm(&specs, nvvm, true)? {
        let comparison = Comparison::of(smallest.report(), made.report());
        println!("{} by {}: {comparison}", made.name(), made.compiler());
    }
    Ok(())
}

/// Compiles modules by libNVVM into a directory for `EINSPARSE_PTX`. Returns the directory and the name of the
/// compiler.
pub fn folder(specs: &[Spec], nvvm: Option<Nvvm>) -> Result<(PathBuf, String)> {
    let folder = target_dir()?.join("device/nvvm");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let copy = |code: &Option<Code>, to: &Path| match code {
        Some(code) => fs::copy(code.path(), to).map(|_| ()),
        None => Ok(()),
    };
    let made = of_nvvm(specs, nvvm, false)?;
    for module in &made {
        let place = |end: &str| folder.join(format!("{}.{end}", module.name()));
        copy(&module.ptx, &place("ptx"))?;
        if ARCHS.iter().any(|arch| arch.has_cubin && arch.name == module.arch()) {
            copy(&module.cubin, &place("cubin"))?;
        }
    }
    Ok((folder, made.first().map_or("", Module::compiler).to_owned()))
}

/// Modules of rustc's backend, sorted by name.
fn of_rustc(specs: &[Spec]) -> Result<Vec<Module>> {
    let target = target_dir()?;
    setup::modules(&Kernels { report_all: true, ..kernels(&target) }, specs)
}

/// Modules of libNVVM, in the order of [`of_rustc`].
fn of_nvvm(specs: &[Spec], nvvm: Option<Nvvm>, anew: bool) -> Result<Vec<Module>> {
    let target = target_dir()?;
    let known = kernels(&target);
    let kernels = Kernels { report_all: true, anew, backend: backend(&nvvm), ..known };
    let modules = setup::modules(&kernels, specs)?;
    match modules.iter().find(|module| module.ptxas().is_empty()) {
        Some(module) => Err(format!(
            "{}: no ptxas has assembled it; run `cargo xtask setup`, or set EINSPARSE_PTXAS",
            module.name()
        )
        .into()),
        None => Ok(modules),
    }
}

/// Resources of NVVM's kernels compared with those of rustc's backend.
#[derive(Default)]
struct Comparison {
    /// Kernels with an equal number of registers, with fewer, and with more.
    equal: usize,
    fewer: usize,
    more: usize,
    /// Kernels that spill registers or have a larger stack.
    spills: usize,
    /// One line for each kernel counted in `spills`, and the ptxas advisories that rustc's modules do not have.
    remarks: Vec<String>,
}

impl Comparison {
    fn of(rustc: &Report, nvvm: &Report) -> Comparison {
        let mut comparison = Comparison::default();
        let codes: Vec<&String> = rustc.warnings.iter().map(|warning| &warning.code).collect();
        for warning in nvvm.warnings.iter().filter(|warning| !codes.contains(&&warning.code)) {
            comparison.remarks.push(warning.text.clone());
        }
        let spilled = |kernel: &Resources| kernel.spill_stores.max(kernel.spill_loads);
        for made in &nvvm.kernels {
            let Some(kept) = rustc.kernels.iter().find(|kept| kept.name == made.name) else {
                continue;
            };
            match made.registers.cmp(&kept.registers) {
                std::cmp::Ordering::Equal => comparison.equal += 1,
                std::cmp::Ordering::Less => comparison.fewer += 1,
                std::cmp::Ordering::Greater => comparison.more += 1,
            }
            if spilled(made) > 0 || made.stack > kept.stack {
                comparison.spills += 1;
                comparison.remarks.push(format!(
                    "{} spills {} bytes, stack {} (rustc {}, stack {})",
                    made.name,
                    spilled(made),
                    made.stack,
                    spilled(kept),
                    kept.stack
                ));
            }
        }
        comparison
    }

    fn add(&mut self, other: &Comparison) {
        self.equal += other.equal;
        self.fewer += other.fewer;
        self.more += other.more;
        self.spills += other.spills;
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Comparison { equal, fewer, more, spills, .. } = self;
        let kernels = equal + fewer + more;
        write!(f, "{kernels} kernels, registers equal {equal}, fewer {fewer}, more {more}")?;
        write!(f, ", {spills} with spills or a larger stack")
    }
}
