//! What there is to compile: every module for every architecture, with its entries and their launch bounds.

use einsparse_kernels::table::{self, ARCHS, Arch, Row};
use std::env;
use std::path::Path;
use std::process::Command;

/// The architectures whose code the GPU of this machine takes, the one with most capabilities first; those of compute
/// capability 9.0 where there is none.
pub fn present() -> Vec<&'static str> {
    let mut smi = Command::new("nvidia-smi");
    smi.args(["--query-gpu=compute_cap", "--format=csv,noheader"]);
    let output = smi.output().map(|output| output.stdout).unwrap_or_default();
    let first = String::from_utf8_lossy(&output);
    let number = |line: &str| {
        let (major, minor) = line.trim().split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let capability = first.lines().next().and_then(number).unwrap_or((9, 0));
    table::archs_of(capability).map(|arch| arch.name).collect()
}

/// One entry of a module and the launch bounds written into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Entry name.
    pub name: String,
    /// What the table makes it of.
    pub source: String,
    /// Threads of a thread block (`.maxntid`).
    pub threads: u32,
    /// Thread blocks a multiprocessor must hold (`.minnctapersm`); 0 leaves it out.
    pub min_blocks: u32,
}

/// Kernels that are compiled together, for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name in the table, given to the sources as `--cfg module="<module>"`.
    pub module: String,
    /// Its family, given to the sources as `--cfg family="<family>"`.
    pub family: String,
    /// `-Ctarget-cpu`, whose compute capability the sources see as `cfg(since = "9.0")` and the like.
    pub arch: String,
    /// The entries the module must have, no more and no less.
    pub kernels: Vec<Kernel>,
    /// Whether these are not all rows of the module: the others are left out of the sources, too.
    pub partial: bool,
}

impl Spec {
    /// The modules of the kernel table for `arch`.
    ///
    /// The table's residency is Hopper's. Others are asked for one thread block less, as far as a row does not stand in
    /// for Hopper's: they have 164 KiB of shared memory instead of 228, and ptxas spills there what fits on Hopper.
    pub fn of_table(arch: &Arch) -> Vec<Spec> {
        let fewer = u32::from(!arch.exact);
        let rows = |module: &str| {
            let own = |row: &&Row| row.module == module && row.built_for(arch);
            let of_module = table::kernels().iter().filter(own);
            of_module
                .map(|row| Kernel {
                    name: row.name.to_string(),
                    source: row.source.to_string(),
                    threads: row.threads,
                    min_blocks: match row.stands_in {
                        true => row.min_blocks,
                        false => row.min_blocks.saturating_sub(fewer).max(1),
                    },
                })
                .collect()
        };
        let family = |module: &str| {
            let first = table::kernels().iter().find(|row| row.module == module);
            first.map_or("", |row| row.family).to_string()
        };
        let all = |module: &str| table::kernels().iter().filter(|row| row.module == module).count();
        let of_modules = table::MODULE_NAMES.iter().map(|&module| {
            let kernels: Vec<Kernel> = rows(module);
            Spec {
                module: module.to_string(),
                family: family(module),
                arch: arch.name.to_string(),
                partial: kernels.len() < all(module),
                kernels,
            }
        });
        of_modules.filter(|spec| !spec.kernels.is_empty()).collect()
    }

    /// Every module of all of [`ARCHS`].
    pub fn every() -> Vec<Spec> {
        ARCHS.iter().flat_map(Spec::of_table).collect()
    }

    /// The modules that plans take, and that the project keeps.
    pub fn all() -> Vec<Spec> {
        let mut specs = Spec::every();
        specs.retain(|spec| !table::ON_DEMAND.contains(&&*spec.module));
        specs
    }

    /// The modules of a build: [`Spec::all`], or those that `EINSPARSE_MODULES` lists as `<module>.<arch>` with commas
    /// between, or `all` for [`Spec::every`] one.
    pub fn asked() -> Vec<Spec> {
        let names = env::var("EINSPARSE_MODULES");
        let names = match names.as_deref() {
            Err(_) => return Spec::all(),
            Ok("all") => return Spec::every(),
            Ok(names) => names,
        };
        let mut specs = Spec::every();
        specs.retain(|spec| names.split(',').any(|name| name.trim() == spec.name()));
        specs
    }

    /// `<module>.<arch>`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.module, self.arch)
    }

    /// As [`Spec::name`], apart from the whole module where rows are left out.
    pub(crate) fn file_name(&self) -> String {
        let part = if self.partial { "some" } else { "all" };
        format!("{}.{part}", self.name())
    }

    /// Only the rows whose name contains `part`; `None` where there is none.
    pub fn only(mut self, part: &str) -> Option<Spec> {
        let before = self.kernels.len();
        self.kernels.retain(|kernel| kernel.name.contains(part));
        self.partial |= self.kernels.len() < before;
        (!self.kernels.is_empty()).then_some(self)
    }

    /// A cubin of a base architecture runs on newer GPUs of the same major version, so it is made of the first and the
    /// last; GPUs between take the PTX.
    pub fn has_cubin(&self) -> bool {
        Arch::named(&self.arch).is_some_and(|arch| arch.has_cubin)
    }
}

/// `lib.rs`, the vocabulary and the families: not this crate, not what it made, and not the table, whose rows stand in
/// [`Kernel`], with the list of families: a new row makes its own module stale and no other, a new family none.
pub(crate) fn is_kernel_source(path: &Path) -> bool {
    const OTHERS: [&str; 7] =
        ["compile", "prebuilt", "table", "table.rs", "target", "tests", "benches"];
    let first = path.components().next().and_then(|part| part.as_os_str().to_str()).unwrap_or("");
    // `families/mod.rs` and `families/<family>/rows.rs`; a body may have that name further down.
    let listed = match path.components().count() {
        2 => path.ends_with("mod.rs"),
        3 => path.ends_with("rows.rs"),
        _ => false,
    };
    let rows = first == "families" && listed;
    let folder_or_rust = path.extension().is_none_or(|end| end == "rs");
    !OTHERS.contains(&first) && !rows && !first.starts_with('.') && folder_or_rust
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_sources_and_the_table_is_not() {
        let source = |path: &str| is_kernel_source(Path::new(path));
        for path in [
            "lib.rs",
            "abi.rs",
            "device/ptx/mod.rs",
            "families/spmm/mod.rs",
            "families/discover/detect/rows.rs",
        ] {
            assert!(source(path), "{path}");
        }
        for path in [
            "table.rs",
            "table/row.rs",
            "families/mod.rs",
            "families/spmm/rows.rs",
            "compile/spec.rs",
            "README.md",
        ] {
            assert!(!source(path), "{path}");
        }
    }
}
