//! The modules that the project keeps, packed, in crates of their own, and those that this machine made. What fits the
//! sources is taken from there; only the rest is compiled.

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

/// File in each folder of kept modules that says what they were made of.
const MANIFEST: &str = "manifest.txt";

/// Folders of kept modules, in which each architecture has one.
const FOLDERS: [&str; 2] = [einsparse_cubin::FOLDER, einsparse_ptx::FOLDER];

/// Ends of the names of kept files: text, machine code.
const TEXT: &str = ".ptx.zst";
const MACHINE_CODE: &str = ".cubin.zst";

/// Builds of one module that stay on this machine.
const KEPT: usize = 4;

/// A finished module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub(crate) entry: Entry,
    /// Its text, launch bounds included. The project keeps none where that of an architecture below has the same kernels.
    pub ptx: Option<Code>,
    /// Machine code, where it was asked for and ptxas was at hand.
    pub cubin: Option<Code>,
}

impl Module {
    /// Its name in the table.
    pub fn stem(&self) -> &str {
        &self.entry.module
    }

    /// Architecture it was compiled for.
    pub fn arch(&self) -> &str {
        &self.entry.arch
    }

    /// `<module>.<arch>`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.stem(), self.arch())
    }

    /// What ptxas reported; no kernels where there was none.
    pub fn report(&self) -> &Report {
        &self.entry.report
    }

    /// Bytes of its PTX: a measure of the time it takes to compile.
    pub fn work(&self) -> u64 {
        self.entry.bytes
    }

    /// The compiler, as in `rustc 1.96.0 (ac68faa20 2026-05-25)`.
    pub fn compiler(&self) -> &str {
        &self.entry.compiler
    }

    /// The ptxas that made machine code and report, as in `13.5.37`; empty where there was none.
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

/// What was written down beside the modules of an architecture.
fn manifest_of(arch: &Arch) -> PathBuf {
    Path::new(einsparse_ptx::FOLDER).join(arch.name).join(MANIFEST)
}

/// A file of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// Kept by the project, packed ([`einsparse_kernels::packed`]).
    Packed(PathBuf),
    /// Made on this machine, as it is.
    Raw(PathBuf),
}

impl Code {
    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Code::Packed(path) | Code::Raw(path) => path,
        }
    }

    /// Its content, unpacked.
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

/// How modules are found and made.
pub struct Kernels<'a> {
    /// Folder of the sources.
    pub sources: &'a Path,
    /// Build folder: modules made here are kept in it, and the toolchain is looked for there.
    pub target_dir: &'a Path,
    /// Report registers and spills also for architectures that have no cubin.
    pub report_all: bool,
    /// Do not take what the project keeps.
    pub anew: bool,
    /// Compiles rustc's LLVM IR to PTX; rustc's own backend does if there is none. The project keeps modules of rustc's
    /// backend only.
    pub backend: Option<&'a dyn Backend>,
    /// Told what is being compiled.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

impl Kernels<'_> {
    /// Which of the modules the sources no longer fit.
    pub fn stale<'s>(&self, specs: &'s [Spec]) -> Result<Vec<&'s Spec>, Error> {
        let sources = Sources::read(self.sources)?;
        let kept = self.kept();
        let stale = |spec: &&Spec| self.find(spec, &sources, &kept).is_none();
        Ok(specs.iter().filter(stale).collect())
    }

    /// The modules, those that do not fit compiled anew. A toolchain is looked for only then.
    ///
    /// # Errors
    /// [`Error::MissingToolchain`] where one is wanted, [`Error::Command`] with the compiler's or ptxas' messages,
    /// [`Error::Table`] when entries and rows differ.
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
            // By the size of the last build: what is not known yet is likely new, and small.
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

    /// What the project keeps, as its manifests say.
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

    /// Where modules made here are, below [`Kernels::folder`]. Names of modules of two backends may be equal.
    fn modules_folder(&self) -> &'static str {
        if self.backend.is_some() { "backend-modules" } else { "modules" }
    }

    /// Manifests of what this machine made of a module, the newest first.
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

    /// Drops old builds of a module.
    fn drop_old(&self, spec: &Spec) {
        for old in self.made_here(spec).into_iter().skip(KEPT) {
            for end in ["txt", "ptx", "cubin"] {
                // Another build may be removing it as well; what stays is only disk space.
                let _ = fs::remove_file(old.with_extension(end));
            }
        }
    }
}

/// The folders of all architectures that exist.
fn folders() -> impl Iterator<Item = PathBuf> {
    let of = |folder: &'static str| ARCHS.iter().map(move |arch| Path::new(folder).join(arch.name));
    FOLDERS.into_iter().flat_map(of).filter(|folder| folder.is_dir())
}

/// Where the project keeps the sources of its kernels.
pub fn source_dir() -> &'static Path {
    Path::new(einsparse_kernels::SOURCE_DIR)
}

/// Every file that decides which modules there are: kernel sources and what the project keeps.
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

/// Writes the modules into the crates that keep them, packed by `compress`; files of modules that are kept already
/// stay.
///
/// # Errors
/// Modules that ptxas did not see, files that cannot be written.
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

/// Whether the text of an architecture below has the same kernels.
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

    /// The modules in git are those of the sources in git.
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
                // A file that was packed another way would unpack to another text.
                assert_eq!(text.len() as u64, module.work(), "{}", module.name());
            }
            assert!(module.ptx.is_some() || module.cubin.is_some(), "{}", module.name());
            if let Some(cubin) = &module.cubin {
                assert!(cubin.content().unwrap().starts_with(b"\x7fELF"), "{}", module.name());
            }
        }
    }
}
