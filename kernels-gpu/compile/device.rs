//! The device build: kernel sources -> one cargo workspace per architecture, with a package per family
//! over the same sources -> PTX with launch bounds -> cubin. `core` is built once per architecture.

use crate::cache::{self, Hash};
use crate::error::run;
use crate::{Error, FamilySpec, Ptxas, Spec, Toolchain, ptx};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// The PTX version, as rustc names it: enough for wgmma and setmaxnreg, and open to drivers from 525 on.
const PTX_FEATURE: &str = "+ptx80";

/// Memory that one rustc may take for a family, link-time optimisation included.
const MEMORY_PER_JOB: u64 = 2 << 30;

/// Changes whenever the way of building changes, so that no module of an older way is taken.
const RECIPE: &str = "3";

/// A finished module. The files lie in the store of the build folder; copy what has to last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Family it holds.
    pub family: String,
    /// Architecture it was compiled for.
    pub arch: String,
    /// Its text, launch bounds included.
    pub ptx: PathBuf,
    /// Machine code, if asked for and ptxas was at hand.
    pub cubin: Option<PathBuf>,
    /// What ptxas reported, beside the cubin.
    pub report: Option<PathBuf>,
}

/// Compiles every family of every spec, architectures side by side, and assembles where a spec asks
/// for it. What is in the store already is taken from there.
///
/// # Errors
/// [`Error::Command`] with the compiler's or ptxas' messages, [`Error::Table`] when entries and rows differ.
pub fn compile(
    target_dir: &Path,
    toolchain: &Toolchain,
    ptxas: Option<&Ptxas>,
    specs: &[Spec],
) -> Result<Vec<Module>, Error> {
    let folder = std::path::absolute(target_dir.join("device")).map_err(|error| Error::Io {
        path: target_dir.to_path_buf(),
        reason: error.to_string(),
    })?;
    let jobs = jobs().div_ceil(specs.len().max(1));
    let build = |spec| Build::new(&folder, toolchain, spec)?.modules(toolchain, ptxas, jobs);
    let done: Vec<Result<Vec<Module>, Error>> = thread::scope(|scope| {
        let running: Vec<_> = specs
            .iter()
            .map(|spec| scope.spawn(move || build(spec)))
            .collect();
        running
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    let modules: Result<Vec<_>, Error> = done.into_iter().collect();
    cache::prune(&folder.join("cache"));
    Ok(modules?.concat())
}

/// Compilers to run at the same time: as many as there are cores and memory for.
fn jobs() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    let fit = available.map_or(cores as u64, |kib: u64| (kib << 10) / MEMORY_PER_JOB);
    cores.min(usize::try_from(fit).unwrap_or(cores)).max(1)
}

/// One architecture's build.
struct Build<'a> {
    spec: &'a Spec,
    /// Kernel sources: relative path and content.
    sources: Vec<(PathBuf, Vec<u8>)>,
    /// Flags for the kernels and for `core` alike.
    flags: Vec<String>,
    /// Workspace of this architecture and compiler.
    folder: PathBuf,
    /// Where finished modules of exactly these sources, flags and compiler are.
    store: PathBuf,
}

impl<'a> Build<'a> {
    fn new(folder: &Path, toolchain: &Toolchain, spec: &'a Spec) -> Result<Self, Error> {
        let mut sources = Vec::new();
        for path in spec.sources()? {
            let content = cache::read(&spec.source.join(&path))?;
            sources.push((path, content));
        }
        let way = Hash::new().add(RECIPE).add(&toolchain.version);
        let folder_of_arch = folder.join(format!("{}-{}", spec.arch, &way.hex()[..8]));
        let flags = vec![
            format!("-Ctarget-cpu={}", spec.arch),
            format!("-Ctarget-feature={PTX_FEATURE}"),
            format!("-Clinker={}", folder_of_arch.join("linker").display()),
            format!("--cfg=arch=\"{}\"", spec.arch),
            // It copies what stands between two questions for the same condition, barriers and shuffles too: lanes that
            // answer differently would meet at different ones.
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
        ];
        let mut key = way.add(&spec.arch).add(PTX_FEATURE);
        for (path, content) in &sources {
            key = key.add(path.as_os_str().as_encoded_bytes()).add(content);
        }
        for kernel in spec.families.iter().flat_map(|family| &family.kernels) {
            key = key.add(format!("{kernel:?}"));
        }
        let store = folder.join("cache").join(key.hex());
        Ok(Build {
            spec,
            sources,
            flags,
            folder: folder_of_arch,
            store,
        })
    }

    fn modules(
        &self,
        toolchain: &Toolchain,
        ptxas: Option<&Ptxas>,
        jobs: usize,
    ) -> Result<Vec<Module>, Error> {
        if !self.missing().is_empty() {
            let _lock = cache::lock(&self.folder)?;
            // Another build may have finished them while we waited.
            let missing = self.missing();
            if !missing.is_empty() {
                self.write_workspace()?;
                self.run_cargo(toolchain, &missing, jobs)?;
            }
        }
        let assembler = ptxas.filter(|_| self.spec.cubin);
        let assemble = |family| self.module(family, assembler);
        thread::scope(|scope| {
            let running: Vec<_> = self
                .spec
                .families
                .iter()
                .map(|family| scope.spawn(move || assemble(family)))
                .collect();
            running
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        })
    }

    fn stored(&self, family: &FamilySpec, end: &str) -> PathBuf {
        self.store
            .join(format!("{}.{}.{end}", family.name, self.spec.arch))
    }

    fn missing(&self) -> Vec<&FamilySpec> {
        self.spec
            .families
            .iter()
            .filter(|family| !self.stored(family, "ptx").is_file())
            .collect()
    }

    /// The sources, one package per family over them, and a linker that only leaves an empty file:
    /// the assembly text that rustc emits is the PTX, there is nothing to link.
    fn write_workspace(&self) -> Result<(), Error> {
        let copies = self.folder.join("src");
        for (path, content) in &self.sources {
            cache::write_if_changed(&copies.join(path), content)?;
        }
        for stale in cache::files(&copies, &|_| true)? {
            if !self.sources.iter().any(|(path, _)| *path == stale) {
                cache::remove_file(&copies.join(stale))?;
            }
        }
        let mut members = Vec::new();
        let mut profiles = String::new();
        for FamilySpec { name, .. } in &self.spec.families {
            let package = format!(
                "[package]\nname = \"device-{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = '{}'\n\
                 crate-type = [\"cdylib\"]\n\n[lints.rust]\nunexpected_cfgs = \"allow\"\n",
                copies.join("lib.rs").display()
            );
            cache::write_if_changed(
                &self.folder.join(name).join("Cargo.toml"),
                package.as_bytes(),
            )?;
            profiles += &format!(
                "\n[profile.release.package.device-{name}]\nrustflags = ['--cfg=family=\"{name}\"', '--emit=asm={}']\n",
                self.assembly(name).display()
            );
            members.push(format!("\"{name}\""));
        }
        let workspace = format!(
            "cargo-features = [\"profile-rustflags\"]\n\n[workspace]\nmembers = [{}]\nresolver = \"3\"\n\n[profile.release]\n\
             opt-level = 3\nlto = \"fat\"\ncodegen-units = 1\npanic = \"abort\"\ndebug = false\n{profiles}",
            members.join(", ")
        );
        cache::write_if_changed(&self.folder.join("Cargo.toml"), workspace.as_bytes())?;
        const LINKER: &str = "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  if [ \"$1\" = -o ]; then : > \"$2\"; fi\n  shift\ndone\n";
        let linker = self.folder.join("linker");
        cache::write_if_changed(&linker, LINKER.as_bytes())?;
        cache::executable(&linker)?;
        cache::create_dir(&self.folder.join("asm"))
    }

    fn assembly(&self, family: &str) -> PathBuf {
        self.folder.join("asm").join(format!("{family}.s"))
    }

    fn run_cargo(
        &self,
        toolchain: &Toolchain,
        missing: &[&FamilySpec],
        jobs: usize,
    ) -> Result<(), Error> {
        let mut cargo = toolchain.cargo();
        cargo
            .current_dir(&self.folder)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags.join("\u{1f}"));
        cargo.args([
            "build",
            "--release",
            "-Zbuild-std=core",
            "--target=nvptx64-nvidia-cuda",
            "--target-dir=target",
        ]);
        cargo.arg(format!("--jobs={jobs}"));
        for family in missing {
            cargo.arg(format!("--package=device-{}", family.name));
        }
        let copies = self.folder.join("src").display().to_string();
        let source = self.spec.source.display().to_string();
        run(
            &format!("compiling the kernels for {}", self.spec.arch),
            &mut cargo,
        )
        .map_err(|error| match error {
            Error::Command {
                what,
                command,
                messages,
            } => Error::Command {
                what,
                command,
                messages: messages.replace(&copies, &source),
            },
            other => other,
        })?;
        for family in missing {
            let text = cache::read_to_string(&self.assembly(&family.name))?;
            let bounded = ptx::with_launch_bounds(&text, family, &self.spec.arch)?;
            let bounded = ptx::with_version(bounded);
            cache::write(&self.stored(family, "ptx"), bounded.as_bytes())?;
        }
        Ok(())
    }

    fn module(&self, family: &FamilySpec, ptxas: Option<&Ptxas>) -> Result<Module, Error> {
        let ptx = self.stored(family, "ptx");
        let mut module = Module {
            family: family.name.clone(),
            arch: self.spec.arch.clone(),
            ptx,
            cubin: None,
            report: None,
        };
        if let Some(ptxas) = ptxas {
            let cubin = self.stored(family, &format!("ptxas-{}.cubin", ptxas.version));
            let report = self.stored(family, &format!("ptxas-{}.txt", ptxas.version));
            if !(cubin.is_file() && report.is_file()) {
                let part = self.stored(family, &format!("{}.part", std::process::id()));
                let messages = ptxas.assemble(&module.ptx, &self.spec.arch, &part)?;
                cache::rename(&part, &cubin)?;
                cache::write(&report, messages.as_bytes())?;
            }
            (module.cubin, module.report) = (Some(cubin), Some(report));
        }
        Ok(module)
    }
}
