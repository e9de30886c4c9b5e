//! What there is to compile: every module for every architecture, with its entries and their launch bounds.

use einsparse_kernels::table;
use std::env;
use std::path::Path;
use std::process::Command;

/// Architectures the modules are built for. `sm_90a` is Hopper, `sm_80` everything from Ampere on.
pub const ARCHS: &[&str] = &["sm_90a", "sm_80"];

/// The architecture whose code the GPU of this machine takes; `sm_90a` where there is none.
pub fn present() -> &'static str {
    let mut smi = Command::new("nvidia-smi");
    smi.args(["--query-gpu=compute_cap", "--format=csv,noheader"]);
    let output = smi.output().map(|output| output.stdout).unwrap_or_default();
    let first = String::from_utf8_lossy(&output);
    match first.lines().next().map(str::trim) {
        None | Some("" | "9.0") => "sm_90a",
        Some(_) => "sm_80",
    }
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
    /// `-Ctarget-cpu`, given to the sources as `--cfg arch="<arch>"`.
    pub arch: String,
    /// The entries the module must have, no more and no less.
    pub kernels: Vec<Kernel>,
    /// Whether these are not all rows of the module: the others are left out of the sources, too.
    pub partial: bool,
}

impl Spec {
    /// The modules of the kernel table for `arch`.
    ///
    /// The table's residency is Hopper's. `sm_80` is asked for one thread block less: it has 164 KiB of shared memory
    /// instead of 228, and ptxas spills there what fits on `sm_90a`.
    pub fn of_table(arch: &str) -> Vec<Spec> {
        let fewer = u32::from(arch != "sm_90a");
        let rows = |module: &str| {
            let of_module = table::kernels()
                .iter()
                .filter(|row| row.module == module && (row.arch != "sm_90a" || arch == "sm_90a"));
            of_module
                .map(|row| Kernel {
                    name: row.name.to_string(),
                    source: row.source.to_string(),
                    threads: row.threads,
                    min_blocks: row.min_blocks.saturating_sub(fewer).max(1),
                })
                .collect()
        };
        let family = |module: &str| {
            let first = table::kernels().iter().find(|row| row.module == module);
            first.map_or("", |row| row.family).to_string()
        };
        let of_modules = table::MODULE_NAMES.iter().map(|&module| Spec {
            module: module.to_string(),
            family: family(module),
            arch: arch.to_string(),
            kernels: rows(module),
            partial: false,
        });
        of_modules.filter(|spec| !spec.kernels.is_empty()).collect()
    }

    /// Every module of all of [`ARCHS`].
    pub fn every() -> Vec<Spec> {
        ARCHS.iter().flat_map(|arch| Spec::of_table(arch)).collect()
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
        self.partial = self.kernels.len() < before;
        (!self.kernels.is_empty()).then_some(self)
    }

    /// A cubin fits one architecture only, so only `sm_90a` has them; other GPUs take the PTX.
    pub fn has_cubin(&self) -> bool {
        self.arch == "sm_90a"
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
