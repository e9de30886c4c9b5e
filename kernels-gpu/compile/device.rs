//! Device build. For each module, one rustc compiles the kernel sources to PTX, launch bounds are added, and ptxas
//! assembles the PTX. `core` is built once for each architecture. One pool of jobs compiles all modules, the longest
//! first.

use crate::cache::{self, Hash};
use crate::error::run;
use crate::manifest::{self, Entry, Sources};
use crate::prebuilt::{Code, Module};
use crate::resources::{self, Report};
use crate::spec::is_kernel_source;
use crate::{Error, Ptxas, RECIPE, Spec, Toolchain, ptx};
use einsparse_kernels::table::{Arch, CAPABILITIES};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// PTX version, as rustc names it. It supports wgmma and setmaxnreg, and drivers from 525 on accept it.
const PTX_FEATURE: &str = "+ptx80";

/// PTX version, as PTX names it.
#[cfg(feature = "nvvm")]
pub(crate) const PTX_VERSION: &str = "8.0";

/// Memory in bytes that one rustc may use for a module, link-time optimisation included.
const MEMORY_PER_JOB: u64 = 2 << 30;

/// Compiler from LLVM IR to PTX, in place of rustc's own backend.
pub trait Backend: Sync {
    /// Name, release and build. Modules of another backend or release are not reused.
    fn name(&self) -> String;

    /// Compiles the LLVM IR that rustc emits to PTX, for an architecture such as `sm_90a`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the messages of the compiler.
    fn compile(&self, ir: &str, arch: &str) -> Result<String, Error>;
}

/// A build of some modules.
pub(crate) struct Build<'a> {
    /// Directory that contains `core`.
    pub(crate) folder: &'a Path,
    /// Directory of finished modules.
    pub(crate) modules: &'a Path,
    /// Compiler for rustc's LLVM IR. `None` selects rustc's own backend.
    pub(crate) backend: Option<&'a dyn Backend>,
    pub(crate) sources: &'a Sources,
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) ptxas: Option<&'a Ptxas>,
    /// Also assembles modules without a cubin, for the ptxas report.
    pub(crate) report_all: bool,
    /// Called after each module, as in "kernels 12 of 55, wgmma.sm_90a, 40 s".
    pub(crate) progress: &'a (dyn Fn(&str) + Sync),
}

impl Build<'_> {
    /// Compiles the modules and returns them in the order of `specs`. `work` estimates the time of each.
    pub(crate) fn compile(
        &self,
        specs: &[&Spec],
        work: impl Fn(&Spec) -> u64,
    ) -> Result<Vec<Module>, Error> {
        let start = Instant::now();
        let _lock = cache::lock(self.folder)?;
        let archs: BTreeSet<&str> = specs.iter().map(|spec| spec.arch.as_str()).collect();
        let archs: Vec<&str> = archs.into_iter().collect();
        let cores = pool(&archs, |arch| Ok((*arch, self.core(arch)?)))?;
        let cores: BTreeMap<&str, Core> = cores.into_iter().collect();
        let mut longest_first: Vec<(usize, &Spec)> = specs.iter().copied().enumerate().collect();
        longest_first.sort_by_key(|(_, spec)| std::cmp::Reverse(work(spec)));
        let done = AtomicUsize::new(0);
        let mut modules = pool(&longest_first, |(place, spec)| {
            let made = self.module(spec, &cores[spec.arch.as_str()])?;
            let (done, of) = (done.fetch_add(1, Ordering::Relaxed) + 1, specs.len());
            let seconds = start.elapsed().as_secs();
            (self.progress)(&format!("kernels {done} of {of}, {}, {seconds} s", spec.name()));
            Ok((*place, made))
        })?;
        modules.sort_by_key(|(place, _)| *place);
        Ok(modules.into_iter().map(|(_, module)| module).collect())
    }

    /// Flags for both the kernels and `core`.
    fn flags(&self, arch: &str) -> Vec<String> {
        vec![
            format!("-Ctarget-cpu={arch}"),
            format!("-Ctarget-feature={PTX_FEATURE}"),
            // Nothing is linked: the assembly text is the PTX.
            "-Clinker=true".to_owned(),
            // Jump threading copies the code between two tests of the same condition, barriers and shuffles included.
            // Lanes with different results would then execute different copies of a barrier.
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
        ]
    }

    /// `core` for the architecture, built by cargo for an empty package.
    fn core(&self, arch: &str) -> Result<Core, Error> {
        let way = Hash::new().add(RECIPE).add(&self.toolchain.version);
        let folder = self.folder.join(format!("core-{arch}-{}", &way.hex()[..8]));
        let libraries = folder.join("target/nvptx64-nvidia-cuda/release/deps");
        if let Some(core) = Core::found(&libraries) {
            return Ok(core);
        }
        const PACKAGE: &str = "[package]\nname = \"nothing\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [profile.release]\nopt-level = 3\nlto = \"fat\"\ncodegen-units = 1\npanic = \"abort\"\ndebug = false\n";
        cache::write(&folder.join("Cargo.toml"), PACKAGE.as_bytes())?;
        cache::write(&folder.join("src/lib.rs"), b"#![no_std]\n")?;
        let mut cargo = self.toolchain.cargo();
        cargo
            .current_dir(&folder)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(arch).join("\u{1f}"))
            .args(["build", "--release", "-Zbuild-std=core"])
            .args(["--target=nvptx64-nvidia-cuda", "--target-dir=target"]);
        run(&format!("compiling core for {arch}"), &mut cargo)?;
        Core::found(&libraries).ok_or_else(|| Error::Invalid {
            reason: format!("cargo left no libcore in {}", libraries.display()),
        })
    }

    fn module(&self, spec: &Spec, core: &Core) -> Result<Module, Error> {
        let scratch = self.folder.join(format!("{}-{}", spec.name(), std::process::id()));
        cache::create_dir(&scratch)?;
        let (text, needed) = self.rustc(spec, core, &scratch)?;
        let text = match self.backend {
            Some(backend) => backend.compile(&text, &spec.arch)?,
            None => text,
        };
        let text = ptx::with_version(ptx::with_launch_bounds(&text, spec)?);
        let mut entry = Entry {
            module: spec.module.clone(),
            arch: spec.arch.clone(),
            key: self.key(spec, &needed)?,
            compiler: self.compiler(),
            ptxas: String::new(),
            bytes: text.len() as u64,
            sources: needed,
            report: Report::default(),
        };
        let name = format!("{}.{}", spec.file_name(), entry.short_key());
        let place = |end: &str| self.modules.join(format!("{name}.{end}"));
        let (ptx, cubin) = (place("ptx"), place("cubin"));
        cache::write(&ptx, text.as_bytes())?;
        let wanted = spec.has_cubin() || self.report_all;
        let assembled = self.ptxas.filter(|_| wanted);
        if let Some(ptxas) = assembled {
            let part = scratch.join("cubin");
            let messages = ptxas.assemble(&ptx, &spec.arch, &part)?;
            entry.report = resources::parse(&messages);
            entry.ptxas = ptxas.version.clone();
            cache::rename(&part, &cubin)?;
        }
        cache::remove_dir(&scratch)?;
        // Each manifest is written at once, so that finished modules remain if others fail.
        let text = manifest::write(std::slice::from_ref(&entry));
        cache::write(&place("txt"), text.as_bytes())?;
        Ok(Module { entry, ptx: Some(Code::Raw(ptx)), cubin: assembled.map(|_| Code::Raw(cubin)) })
    }

    /// Name of rustc and of the backend, as in `rustc 1.96.0 (ac68faa20 2026-05-25) + NVVM 13.5.37 (CL-39125733),
    /// recipe 1`.
    fn compiler(&self) -> String {
        let rustc = self.toolchain.name();
        self.backend.map_or(rustc.clone(), |backend| format!("{rustc} + {}", backend.name()))
    }

    /// Returns rustc's PTX, or the LLVM IR for the backend, and the sources that rustc read.
    fn rustc(
        &self,
        spec: &Spec,
        core: &Core,
        scratch: &Path,
    ) -> Result<(String, BTreeSet<String>), Error> {
        let mut rustc = self.toolchain.rustc();
        // A relative path makes the output independent of the location of the sources.
        rustc.current_dir(&self.sources.folder).arg("lib.rs");
        let name = format!("device_{}", spec.module);
        rustc.args(["--crate-type=cdylib", "--edition=2024", "--crate-name", &name]);
        rustc.args(["-Copt-level=3", "-Cpanic=abort", "-Clto=fat"]);
        rustc.args(["-Ccodegen-units=1", "-Cstrip=debuginfo"]);
        rustc.args(["--target=nvptx64-nvidia-cuda", "-Zunstable-options"]);
        rustc.args(self.flags(&spec.arch));
        rustc.arg(format!("--cfg=family=\"{}\"", spec.family));
        rustc.arg(format!("--cfg=module=\"{}\"", spec.module));
        let arch = Arch::named(&spec.arch).ok_or_else(|| Error::Invalid {
            reason: format!("{}: no such architecture", spec.arch),
        })?;
        // The table states which features a body may use. `since` selects between equivalent instructions.
        for (major, minor) in CAPABILITIES.iter().filter(|least| **least <= arch.capability) {
            rustc.arg(format!("--cfg=since=\"{major}.{minor}\""));
        }
        if spec.partial {
            rustc.arg("--cfg=some_rows");
            rustc.args(spec.kernels.iter().map(|row| format!("--cfg={}", row.name)));
        }
        rustc.args(["-Aunexpected_cfgs", "--out-dir"]).arg(scratch);
        let (text, list) = (scratch.join("text"), scratch.join("sources"));
        let kind = if self.backend.is_some() { "llvm-ir" } else { "asm" };
        rustc.arg(format!("--emit=link,{kind}={},dep-info={}", text.display(), list.display()));
        core.pass(&mut rustc);
        run(&format!("compiling {}", spec.name()), &mut rustc)?;
        let text = cache::read_to_string(&text)?;
        Ok((text, sources_in(&cache::read_to_string(&list)?)))
    }

    /// Returns the key of a compiled module. An error if its sources changed during the compilation.
    fn key(&self, spec: &Spec, needed: &BTreeSet<String>) -> Result<String, Error> {
        let compiler = self.compiler();
        let key = |sources: &Sources| sources.key(spec, needed, &compiler);
        let after = Sources::read(&self.sources.folder)?;
        match (key(self.sources), key(&after)) {
            (Some(before), Some(after)) if before == after => Ok(after),
            _ => Err(Error::Invalid {
                reason: format!(
                    "sources of {} changed while they were compiled: build again",
                    spec.name()
                ),
            }),
        }
    }
}

/// Returns the kernel sources in a dependency list in make's format: `output: file file`.
fn sources_in(list: &str) -> BTreeSet<String> {
    let rules = list.lines().filter_map(|line| line.split_once(": "));
    rules
        .flat_map(|(_, files)| files.split_whitespace())
        .map(|file| file.trim_start_matches("./").replace('\\', "/"))
        .filter(|file| is_kernel_source(Path::new(file)))
        .collect()
}

/// `core` and its dependencies, for one architecture.
struct Core {
    folder: PathBuf,
    core: PathBuf,
    compiler_builtins: PathBuf,
}

impl Core {
    fn found(folder: &Path) -> Option<Core> {
        let files: Vec<PathBuf> =
            fs::read_dir(folder).ok()?.flatten().map(|file| file.path()).collect();
        let library = |start: &str| {
            let is = |path: &&PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(start) && name.ends_with(".rlib"))
            };
            files.iter().find(is).cloned()
        };
        Some(Core {
            folder: folder.to_path_buf(),
            core: library("libcore-")?,
            compiler_builtins: library("libcompiler_builtins-")?,
        })
    }

    fn pass(&self, rustc: &mut Command) {
        rustc.arg("-L").arg(format!("dependency={}", self.folder.display()));
        for (name, path) in [("compiler_builtins", &self.compiler_builtins), ("core", &self.core)] {
            let library = format!("noprelude,nounused:{name}={}", path.display());
            rustc.arg("--extern").arg(library);
        }
    }
}

/// Runs `work` on every item, started in order, on [`jobs`] threads. After a failure no new item is started.
fn pool<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new(Vec::new());
    let run = || {
        while !failed.load(Ordering::Relaxed) {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let result = work(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.lock().unwrap_or_else(|e| e.into_inner()).push(result);
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs().min(items.len()) {
            scope.spawn(run);
        }
    });
    done.into_inner().unwrap_or_else(|e| e.into_inner()).into_iter().collect()
}

/// Number of compilers that run at the same time, limited by cores and available memory.
fn jobs() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse().ok()
    });
    let fit = available.map_or(cores as u64, |kib: u64| (kib << 10) / MEMORY_PER_JOB);
    cores.min(usize::try_from(fit).unwrap_or(cores)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_list() {
        let list = "/x/ptx: lib.rs table/row.rs device/mod.rs \\\n\nlib.rs:\ndevice/mod.rs:\n";
        let list = list.replace(" \\\n", "\n");
        let wanted = ["device/mod.rs", "lib.rs"].map(String::from);
        assert_eq!(sources_in(&list), wanted.into());
    }

    #[test]
    fn a_pool_does_all_and_stops_at_a_failure() {
        let mut squares = pool(&[1, 2, 3, 4], |n| Ok(n * n)).unwrap();
        squares.sort_unstable();
        assert_eq!(squares, [1, 4, 9, 16]);
        let begun = AtomicUsize::new(0);
        let items: Vec<usize> = (0..10_000).collect();
        let result = pool(&items, |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(Error::Invalid { reason: "no".into() })
        });
        assert!(result.is_err() && begun.into_inner() <= jobs());
    }
}
