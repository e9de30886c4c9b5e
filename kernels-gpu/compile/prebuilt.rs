//! Modules that were compiled before: those that the project stores, packed, in crates of their own, and those that
//! this machine compiled. Modules whose sources are unchanged are reused; only the others are compiled.

use crate::cache;
use crate::device::{Backend, Build};
use crate::manifest::{self, Entry, Sources};
use crate::resources::Report;
use crate::spec::is_kernel_source;
use crate::{Error, Ptxas, Spec, Toolchain};
use einsparse_kernels::packed::{FRAME, pack, pack_text, unpack, unpack_text};
use einsparse_kernels::table::{ARCHS, Arch};
use std::fs;
use std::path::{Path, PathBuf};

/// Manifest in each directory of stored modules.
const MANIFEST: &str = "manifest.txt";

/// Directories of stored modules, with one subdirectory for each architecture.
const FOLDERS: [&str; 2] = [einsparse_cubin::FOLDER, einsparse_ptx::FOLDER];

/// Suffixes of stored files: PTX, machine code.
const TEXT: &str = ".ptx.zst";
const MACHINE_CODE: &str = ".cubin.zst";

/// Number of builds of one module that remain on this machine.
const KEPT: usize = 4;

/// A finished module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub(crate) entry: Entry,
    /// PTX with launch bounds. `None` if the project stores the PTX of an older architecture with the same kernels.
    pub ptx: Option<Code>,
    /// Machine code, if it was requested and ptxas was found.
    pub cubin: Option<Code>,
}

impl Module {
    /// Name of the module in the table.
    pub fn stem(&self) -> &str {
        &self.entry.module
    }

    /// Architecture that the module was compiled for.
    pub fn arch(&self) -> &str {
        &self.entry.arch
    }

    /// `<module>.<arch>`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.stem(), self.arch())
    }

    /// Report of ptxas; without kernels if the module was not assembled.
    pub fn report(&self) -> &Report {
        &self.entry.report
    }

    /// Bytes of the PTX, an estimate of the compile time.
    pub fn work(&self) -> u64 {
        self.entry.bytes
    }

    /// The compiler, as in `rustc 1.96.0 (ac68faa20 2026-05-25)`.
    pub fn compiler(&self) -> &str {
        &self.entry.compiler
    }

    /// Release of the ptxas that made the machine code and the report, as in `13.5.37`; empty if the module was not
    /// assembled.
    pub fn ptxas(&self) -> &str {
        &self.entry.ptxas
    }

    fn kept(entry: &Entry) -> Module {
        let file = |folder, end| {
            let name = entry.module.clone() + end;
            let path = Path::new(folder).join(&entry.arch).join(name);
            path.is_file().then_some(Code::Packed(path))
        };
        let [cubins, texts] = FOLDERS;
        Module { ptx: file(texts, TEXT), cubin: file(cubins, MACHINE_CODE), entry: entry.clone() }
    }
}

/// Path of the manifest of an architecture's modules.
fn manifest_of(arch: &Arch) -> PathBuf {
    Path::new(einsparse_ptx::FOLDER).join(arch.name).join(MANIFEST)
}

/// File of PTX or machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// Stored by the project, packed ([`einsparse_kernels::packed`]).
    Packed(PathBuf),
    /// Compiled on this machine, not packed.
    Raw(PathBuf),
}

impl Code {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        match self {
            Code::Packed(path) | Code::Raw(path) => path,
        }
    }

    /// Reads the file and unpacks its content.
    pub fn content(&self) -> Result<Vec<u8>, Error> {
        let bytes = cache::read(self.path())?;
        match self {
            Code::Raw(_) => Ok(bytes),
            Code::Packed(path) => {
                let is_text = path.to_string_lossy().ends_with(TEXT);
                let unpacked = if is_text { unpack_text(&bytes) } else { unpack(&bytes) };
                unpacked.map_err(|reason| Error::Invalid {
                    reason: format!("{}: {reason}", path.display()),
                })
            }
        }
    }
}

/// Settings with which modules are found and compiled.
pub struct Kernels<'a> {
    /// Directory of the sources.
    pub sources: &'a Path,
    /// Build directory. It contains the modules that this machine compiled and the installed toolchain.
    pub target_dir: &'a Path,
    /// Also reports registers and spills for architectures without a cubin.
    pub report_all: bool,
    /// Recompiles all modules and ignores those that were compiled before.
    pub anew: bool,
    /// Compiler from rustc's LLVM IR to PTX. `None` selects rustc's own backend. The project stores only modules of
    /// rustc's backend.
    pub backend: Option<&'a dyn Backend>,
    /// Called with the progress of the compilation.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

impl Kernels<'_> {
    /// Returns the specs whose modules are missing or have changed sources.
    pub fn stale<'s>(&self, specs: &'s [Spec]) -> Result<Vec<&'s Spec>, Error> {
        let sources = Sources::read(self.sources)?;
        let kept = self.kept();
        let stale = |spec: &&Spec| self.find(spec, &sources, &kept).is_none();
        Ok(specs.iter().filter(stale).collect())
    }

    /// Returns the modules and compiles those that are stale. A toolchain is searched only if a module is stale.
    ///
    /// # Errors
    /// [`Error::MissingToolchain`] if a toolchain is required and missing, [`Error::Command`] with the compiler's or
    /// ptxas' messages, [`Error::Table`] if entries and rows differ.
    pub fn modules(&self, specs: &[Spec]) -> Result<Vec<Module>, Error> {
        let sources = Sources::read(self.sources)?;
        let kept = self.kept();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for spec in specs {
            match self.find(spec, &sources, &kept) {
                Some(module) => found.push(module),
                None => missing.push(spec),
            }
        }
        if !missing.is_empty() {
            let toolchain = Toolchain::find(self.target_dir)?;
            let ptxas = Ptxas::find(self.target_dir);
            let folder = self.folder()?;
            let build = Build {
                folder: &folder,
                modules: &folder.join(self.modules_folder()),
                backend: self.backend,
                sources: &sources,
                toolchain: &toolchain,
                ptxas: ptxas.as_ref(),
                report_all: self.report_all,
                progress: self.progress,
            };
            // Ordered by the size of the last build. Unknown modules are likely new and small.
            let work = |spec: &Spec| {
                let known = kept.iter().find(|e| e.module == spec.module && e.arch == spec.arch);
                known.map_or(0, |entry| entry.bytes)
            };
            found.extend(build.compile(&missing, work)?);
            missing.into_iter().for_each(|spec| self.drop_old(spec));
        }
        found.sort_by_key(Module::name);
        Ok(found)
    }

    fn find(&self, spec: &Spec, sources: &Sources, kept: &[Entry]) -> Option<Module> {
        if self.anew {
            return None;
        }
        let kept = kept.iter().filter(|_| self.backend.is_none());
        if let Some(entry) = kept.into_iter().find(|entry| entry.fits(spec, sources)) {
            return Some(Module::kept(entry));
        }
        let backend = self.backend.map(|backend| format!(" + {}", backend.name()));
        let own = |entry: &Entry| backend.iter().all(|name| entry.compiler.ends_with(name));
        self.made_here(spec).into_iter().find_map(|path| {
            let entry = manifest::parse(&fs::read_to_string(&path).ok()?)?.pop()?;
            let file = |end| Some(path.with_extension(end)).filter(|file| file.is_file());
            let whole = entry.fits(spec, sources)
                && own(&entry)
                && (!self.report_all || !entry.ptxas.is_empty());
            Some(Module {
                ptx: Some(Code::Raw(file("ptx").filter(|_| whole)?)),
                cubin: file("cubin").map(Code::Raw),
                entry,
            })
        })
    }

    /// Stored modules of the project, read from its manifests.
    fn kept(&self) -> Vec<Entry> {
        let texts = ARCHS.iter().map(|arch| fs::read_to_string(manifest_of(arch)));
        let entries = texts.flatten().filter_map(|text| manifest::parse(&text));
        entries.flatten().collect()
    }

    fn folder(&self) -> Result<PathBuf, Error> {
        std::path::absolute(self.target_dir.join("device")).map_err(|error| Error::Io {
            path: self.target_dir.to_path_buf(),
            reason: error.to_string(),
        })
    }

    /// Directory of the modules that this machine compiled, below [`Kernels::folder`]. The backends have different
    /// directories, because their modules may have equal names.
    fn modules_folder(&self) -> &'static str {
        if self.backend.is_some() { "backend-modules" } else { "modules" }
    }

    /// Manifests of a module's builds on this machine, the newest first.
    fn made_here(&self, spec: &Spec) -> Vec<PathBuf> {
        let start = format!("{}.", spec.file_name());
        let entries = fs::read_dir(self.target_dir.join("device").join(self.modules_folder()));
        let of_module = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&start) && name.ends_with(".txt"))
        };
        let paths = entries.into_iter().flatten().flatten().map(|e| e.path());
        let mut dated: Vec<_> = paths
            .filter(of_module)
            .map(|path| (fs::metadata(&path).and_then(|m| m.modified()).ok(), path))
            .collect();
        dated.sort();
        dated.into_iter().rev().map(|(_, path)| path).collect()
    }

    /// Deletes old builds of a module.
    fn drop_old(&self, spec: &Spec) {
        for old in self.made_here(spec).into_iter().skip(KEPT) {
            for end in ["txt", "ptx", "cubin"] {
                // Another build may delete the file at the same time. A remaining file only uses disk space.
                let _ = fs::remove_file(old.with_extension(end));
            }
        }
    }
}

/// Existing directories of stored modules, for all architectures.
fn folders() -> impl Iterator<Item = PathBuf> {
    let of = |folder: &'static str| ARCHS.iter().map(move |arch| Path::new(folder).join(arch.name));
    FOLDERS.into_iter().flat_map(of).filter(|folder| folder.is_dir())
}

/// Directory of the kernel sources.
pub fn source_dir() -> &'static Path {
    Path::new(einsparse_kernels::SOURCE_DIR)
}

/// Every file that determines the modules: kernel sources, stored modules and manifests.
pub fn inputs() -> Result<Vec<PathBuf>, Error> {
    let folder = source_dir();
    let sources = cache::files(folder, &is_kernel_source)?;
    let mut files: Vec<PathBuf> = sources.into_iter().map(|file| folder.join(file)).collect();
    for folder in folders() {
        let kept = |path: &Path| path.extension().is_some_and(|end| end == "zst" || end == "txt");
        let kept = cache::files(&folder, &kept)?;
        files.extend(kept.into_iter().map(|file| folder.join(file)));
    }
    Ok(files)
}

/// Writes the modules into the crates that store them, packed by `compress`. Files of modules that are already packed
/// remain.
///
/// # Errors
/// [`Error::Invalid`] for a module without a ptxas report or for PTX that cannot be packed, [`Error::Io`] for a file
/// that cannot be read or written.
pub fn keep(modules: &[Module], compress: impl Fn(&[u8]) -> Vec<u8>) -> Result<(), Error> {
    let mut files = Vec::new();
    let mut write = |folder: &str, module: &Module, end: &str, code: &Code| {
        let path = Path::new(folder).join(module.arch()).join(module.stem().to_owned() + end);
        files.push(path.clone());
        match code {
            Code::Packed(_) => Ok(()),
            Code::Raw(_) if end == TEXT => {
                let packed = pack_text(&code.content()?, &compress).map_err(|reason| {
                    Error::Invalid { reason: format!("{}: {reason}", path.display()) }
                })?;
                cache::write(&path, &packed)
            }
            Code::Raw(_) => cache::write(&path, &pack(&code.content()?, FRAME, &compress)),
        }
    };
    for module in modules {
        if module.ptxas().is_empty() {
            return Err(Error::Invalid {
                reason: format!("{}: kept without ptxas' report", module.name()),
            });
        }
        if let Some(ptx) = module.ptx.as_ref().filter(|_| !has_twin(module, modules)) {
            write(einsparse_ptx::FOLDER, module, TEXT, ptx)?;
        }
        let has_cubin = Arch::named(module.arch()).is_some_and(|arch| arch.has_cubin);
        if let Some(cubin) = module.cubin.as_ref().filter(|_| has_cubin) {
            write(einsparse_cubin::FOLDER, module, MACHINE_CODE, cubin)?;
        }
    }
    for arch in ARCHS {
        let of_arch = modules.iter().filter(|module| module.arch() == arch.name);
        let entries: Vec<Entry> = of_arch.map(|module| module.entry.clone()).collect();
        cache::write(&manifest_of(arch), manifest::write(&entries).as_bytes())?;
    }
    for folder in folders() {
        let packed = |path: &Path| path.extension().is_some_and(|end| end == "zst");
        let folder = folder.as_path();
        for stale in cache::files(folder, &packed)? {
            let stale = folder.join(stale);
            if !files.contains(&stale) {
                cache::remove_file(&stale)?;
            }
        }
    }
    Ok(())
}

/// Whether the PTX of an older architecture has the same kernels.
fn has_twin(module: &Module, modules: &[Module]) -> bool {
    let names = |module: &Module| {
        let kernels = module.report().kernels.iter();
        kernels.map(|kernel| kernel.name.clone()).collect::<Vec<_>>()
    };
    let own = Arch::named(module.arch()).map_or((0, 0), |arch| arch.capability);
    let twin = |other: &Module| {
        let below = Arch::named(other.arch()).is_some_and(|arch| arch.capability < own);
        below && other.stem() == module.stem() && names(other) == names(module)
    };
    modules.iter().any(twin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the modules in git were made of the sources in git.
    #[test]
    fn no_kept_module_is_stale() {
        let kernels = Kernels {
            sources: source_dir(),
            target_dir: Path::new("/nowhere"),
            report_all: true,
            anew: false,
            backend: None,
            progress: &|_| (),
        };
        let specs = Spec::all();
        let stale: Vec<String> =
            kernels.stale(&specs).unwrap().into_iter().map(Spec::name).collect();
        assert!(
            stale.is_empty(),
            "run `cargo xtask prebuild`: the sources changed under {}",
            stale.join(", ")
        );
        for module in kernels.modules(&specs).unwrap() {
            if let Some(ptx) = &module.ptx {
                let text = String::from_utf8(ptx.content().unwrap()).unwrap();
                assert!(text.contains(".version"), "{}", module.name());
                // A file that was packed differently would unpack to a different text.
                assert_eq!(text.len() as u64, module.work(), "{}", module.name());
            }
            assert!(module.ptx.is_some() || module.cubin.is_some(), "{}", module.name());
            if let Some(cubin) = &module.cubin {
                assert!(cubin.content().unwrap().starts_with(b"\x7fELF"), "{}", module.name());
            }
        }
    }
}
