//! Modules to compile: every module for every architecture, with its entries and their launch bounds.

use einsparse_kernels::table::{self, ARCHS, Arch, Row};
use std::env;
use std::path::Path;
use std::process::Command;

/// Returns the architectures whose code the GPU of this machine runs, the one with the most capabilities first. Without
/// a GPU, those of compute capability 9.0.
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
    /// Name of the entry.
    pub name: String,
    /// Types from which the table makes the kernel.
    pub source: String,
    /// Threads of a thread block (`.maxntid`).
    pub threads: u32,
    /// Min resident thread blocks per multiprocessor (`.minnctapersm`); 0 omits the directive.
    pub min_blocks: u32,
}

/// Kernels that are compiled together for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name of the module in the table, passed to the sources as `--cfg module="<module>"`.
    pub module: String,
    /// Family of the module, passed to the sources as `--cfg family="<family>"`.
    pub family: String,
    /// Architecture, passed as `-Ctarget-cpu`. The sources test its compute capability with `cfg(since = "9.0")` and
    /// the like.
    pub arch: String,
    /// Exact set of entries of the module.
    pub kernels: Vec<Kernel>,
    /// Whether rows of the module are missing. Their code is then excluded from the sources too.
    pub partial: bool,
}

impl Spec {
    /// Returns the modules of the kernel table for `arch`.
    ///
    /// The min number of resident thread blocks in the table is that of Hopper. Other architectures have 164 KiB of
    /// shared memory instead of 228, and ptxas spills there what fits on Hopper. They get one thread block less, except
    /// for rows that replace a Hopper row.
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

    /// Returns every module of all [`ARCHS`].
    pub fn every() -> Vec<Spec> {
        ARCHS.iter().flat_map(Spec::of_table).collect()
    }

    /// Returns the modules that plans use. The project stores these modules.
    pub fn all() -> Vec<Spec> {
        let mut specs = Spec::every();
        specs.retain(|spec| !table::ON_DEMAND.contains(&&*spec.module));
        specs
    }

    /// Returns the modules of a build. `EINSPARSE_MODULES` lists them as `<module>.<arch>`, separated by commas; `all`
    /// selects [`Spec::every`] module. The default is [`Spec::all`].
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

    /// File name: [`Spec::name`], and whether rows are missing.
    pub(crate) fn file_name(&self) -> String {
        let part = if self.partial { "some" } else { "all" };
        format!("{}.{part}", self.name())
    }

    /// Keeps only the rows whose name contains `part`. `None` if no row remains.
    pub fn only(mut self, part: &str) -> Option<Spec> {
        let before = self.kernels.len();
        self.kernels.retain(|kernel| kernel.name.contains(part));
        self.partial |= self.kernels.len() < before;
        (!self.kernels.is_empty()).then_some(self)
    }

    /// Whether a cubin is stored. A cubin of a base architecture runs on newer GPUs of the same major version. Cubins
    /// are therefore stored for the first and the last base architecture; GPUs between them use the PTX.
    pub fn has_cubin(&self) -> bool {
        Arch::named(&self.arch).is_some_and(|arch| arch.has_cubin)
    }
}

/// Whether a file is a kernel source: `lib.rs`, shared device code and the families. This crate, prebuilt modules, the
/// table and the list of families are not. Rows of the table are compared as [`Kernel`]. A new row thus makes only its
/// own module stale, and a new family makes none stale.
pub(crate) fn is_kernel_source(path: &Path) -> bool {
    const OTHERS: [&str; 7] =
        ["compile", "prebuilt", "table", "table.rs", "target", "tests", "benches"];
    let first = path.components().next().and_then(|part| part.as_os_str().to_str()).unwrap_or("");
    // `families/mod.rs` and `families/<family>/rows.rs`. Deeper directories may contain kernel bodies with these names.
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
