//! What to compile: per architecture the families, per family the entries with their launch bounds.

use crate::{Error, cache};
use einsparse_kernels::table;
use std::env;
use std::path::{Path, PathBuf};

/// Architectures the modules are built for. `sm_90a` is Hopper, `sm_80` everything from Ampere on.
pub const ARCHS: &[&str] = &["sm_90a", "sm_80"];

/// One entry of a module and the launch bounds written into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Entry name.
    pub name: String,
    /// Threads of a thread block (`.maxntid`).
    pub threads: u32,
    /// Thread blocks a multiprocessor must hold (`.minnctapersm`); 0 leaves it out.
    pub min_blocks: u32,
}

/// One family: a module of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilySpec {
    /// Name, given to the sources as `--cfg family="<name>"`.
    pub name: String,
    /// The entries its module must have, no more and no less.
    pub kernels: Vec<Kernel>,
}

/// One architecture's modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Folder with the `lib.rs` of the kernels.
    pub source: PathBuf,
    /// `-Ctarget-cpu`, given to the sources as `--cfg arch="<arch>"`.
    pub arch: String,
    /// The families.
    pub families: Vec<FamilySpec>,
    /// Also assemble a cubin for each module, where ptxas is at hand.
    pub cubin: bool,
}

impl Spec {
    /// The rows of the kernel table for `arch`. A cubin fits one architecture only, so only `sm_90a`
    /// asks for one; other GPUs take the PTX.
    ///
    /// The table's residency is Hopper's. `sm_80` is asked for one thread block less: it has 164 KiB of shared memory
    /// instead of 228, and ptxas spills there what fits on `sm_90a`.
    pub fn of_table(arch: &str) -> Spec {
        let fewer = u32::from(arch != "sm_90a");
        let rows = |family: &str| {
            let of_family = table::kernels()
                .iter()
                .filter(|row| row.family == family && (row.arch != "sm_90a" || arch == "sm_90a"));
            of_family
                .map(|row| Kernel {
                    name: row.name.to_string(),
                    threads: row.threads,
                    min_blocks: row.min_blocks.saturating_sub(fewer).max(1),
                })
                .collect()
        };
        let families = table::FAMILIES.iter().map(|&name| FamilySpec {
            name: name.to_string(),
            kernels: rows(name),
        });
        Spec {
            source: PathBuf::from(einsparse_kernels::SOURCE_DIR),
            arch: arch.to_string(),
            families: families
                .filter(|family| !family.kernels.is_empty())
                .collect(),
            cubin: arch == "sm_90a",
        }
    }

    /// The kernel sources, relative to `source` and sorted.
    pub fn sources(&self) -> Result<Vec<PathBuf>, Error> {
        cache::files(&self.source, &is_kernel_source)
    }

    /// [`Spec::of_table`] for each of [`ARCHS`]: the modules `<family>.<arch>` that `EINSPARSE_MODULES` lists, parted by commas, or
    /// `all`; where it is not set, those that plans take.
    pub fn all() -> Vec<Spec> {
        let named = env::var("EINSPARSE_MODULES").ok();
        let wanted = |family: &str, arch: &str| match named.as_deref() {
            None => !table::ON_DEMAND.contains(&family),
            Some("all") => true,
            Some(names) => {
                let module = format!("{family}.{arch}");
                names.split(',').any(|name| name.trim() == module)
            }
        };
        let specs = ARCHS.iter().map(|arch| {
            let mut spec = Spec::of_table(arch);
            spec.families.retain(|family| wanted(&family.name, arch));
            spec
        });
        specs.filter(|spec| !spec.families.is_empty()).collect()
    }
}

/// `lib.rs`, the header files and `device/`: not this crate, not tests of the host side.
fn is_kernel_source(path: &Path) -> bool {
    const OTHERS: [&str; 5] = ["compile", "target", "tests", "benches", "examples"];
    let first = path
        .components()
        .next()
        .and_then(|part| part.as_os_str().to_str())
        .unwrap_or("");
    let folder_or_rust = path.extension().is_none_or(|end| end == "rs");
    !OTHERS.contains(&first)
        && !first.starts_with('.')
        && folder_or_rust
        && path != Path::new("build.rs")
}
