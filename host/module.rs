//! The device modules embedded at build time, each for its architecture, loaded at first use.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{Function, LoadedModule, PrimaryContext};
use crate::error::{Error, Result};
use einsparse_kernels::packed::{unpack, unpack_text};
use einsparse_kernels::table::{ARCHS, Arch, Row, archs_of};

/// Device code of one module of kernels for one architecture, packed ([`einsparse_kernels::packed`]).
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedModule {
    /// Its name in the table.
    pub name: &'static str,
    /// Name of its architecture ([`einsparse_kernels::table::ARCHS`]).
    pub arch: &'static str,
    /// PTX text; none where the module has the same kernels for an architecture below, whose text serves both.
    pub packed_ptx: Option<&'static [u8]>,
    /// Machine code of exactly this architecture, where an assembler was at hand.
    pub packed_cubin: Option<&'static [u8]>,
}

impl EmbeddedModule {
    /// The PTX text.
    pub fn ptx(&self) -> Option<Result<String>> {
        let bytes = self.named(unpack_text(self.packed_ptx?));
        Some(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The machine code.
    pub fn cubin(&self) -> Option<Result<Vec<u8>>> {
        Some(self.named(unpack(self.packed_cubin?)))
    }

    fn named(&self, unpacked: Result<Vec<u8>, String>) -> Result<Vec<u8>> {
        unpacked.map_err(|reason| Error::Cuda {
            call: format!("unpack kernels `{}` for {}", self.name, self.arch),
            reason,
        })
    }
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The compiler that made the embedded modules; `None` for modules made elsewhere, or none.
pub const COMPILER: Option<&str> = option_env!("EINSPARSE_DEVICE_COMPILER");

/// Dynamic shared memory that needs no opting in, bytes.
const SMEM_WITHOUT_ASKING: u32 = 48 << 10;

/// The architecture with most capabilities whose code a GPU of this compute capability runs.
pub fn arch_for(compute_capability: (u32, u32)) -> Result<&'static Arch> {
    archs_of(compute_capability).next().ok_or_else(|| {
        let (major, minor) = compute_capability;
        let names: Vec<&str> = ARCHS.iter().map(|arch| arch.name).collect();
        Error::Cuda {
            call: "choose device code".into(),
            reason: format!(
                "this GPU has compute capability {major}.{minor}; the kernels are for {}, which compute capability \
                 8.0 and newer run",
                names.join(", ")
            ),
        }
    })
}

/// The module of this name for this architecture.
fn embedded<'a>(
    table: &'a [EmbeddedModule],
    module: &str,
    arch: &str,
) -> Result<&'a EmbeddedModule> {
    let of_module = || table.iter().filter(|m| m.name == module);
    of_module().find(|m| m.arch == arch).ok_or_else(|| {
        let present: Vec<_> = of_module().map(|m| m.arch).collect();
        Error::Cuda {
            call: format!("load kernels `{module}` for {arch}"),
            reason: if table.is_empty() {
                "this build holds no device code: it was built without a device toolchain".into()
            } else if present.is_empty() {
                "this build holds no such module".into()
            } else {
                format!("this build holds it for {} only", present.join(", "))
            },
        }
    })
}

/// One module once it is loaded: its functions, each with the shared memory it may ask for.
struct Loaded {
    module: Arc<LoadedModule>,
    functions: BTreeMap<String, (Function, u32)>,
}

/// The device code of one context. Modules load at first use; functions are looked up once.
pub struct Modules {
    context: Arc<PrimaryContext>,
    capability: (u32, u32),
    /// A lock per module and architecture, so that loading one does not hold up launches of another.
    modules: BTreeMap<(&'static str, &'static str), Mutex<Option<Loaded>>>,
}

impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modules: Vec<_> = self.modules.keys().collect();
        f.debug_struct("Modules")
            .field("capability", &self.capability)
            .field("modules", &modules)
            .finish_non_exhaustive()
    }
}

impl Modules {
    /// Chooses the architecture; loads nothing yet. `compute_capability` is the device's, or a lower one to
    /// run older code on purpose.
    pub fn new(context: Arc<PrimaryContext>, compute_capability: (u32, u32)) -> Result<Self> {
        arch_for(compute_capability)?;
        let modules = MODULES.iter().map(|m| ((m.name, m.arch), Mutex::new(None))).collect();
        Ok(Self { context, capability: compute_capability, modules })
    }

    /// The kernels of a GPU that is not there: all of the table, without code.
    pub(crate) fn absent(context: &Arc<PrimaryContext>, capability: (u32, u32)) -> Self {
        Modules { context: Arc::clone(context), capability, modules: BTreeMap::new() }
    }

    /// The compute capability whose kernels run here.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Whether this build holds the kernel for an architecture that runs here.
    pub fn holds(&self, row: &Row) -> bool {
        self.context.is_absent() || self.code(row).is_ok()
    }

    /// The module with this kernel.
    fn code(&self, row: &Row) -> Result<&'static EmbeddedModule> {
        let mut archs = archs_of(self.capability).filter(|arch| row.built_for(arch));
        let arch = archs.next().ok_or_else(|| {
            let (major, minor) = self.capability;
            Error::Cuda {
                call: format!("load kernel `{}`", row.name),
                reason: format!("it has no code for compute capability {major}.{minor}"),
            }
        })?;
        embedded(MODULES, row.module, arch.name)
    }

    /// The context the modules load into.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    /// The kernel of a row, allowed to use `smem_bytes` of dynamic shared memory. Loads the module at its first use;
    /// plans call this when they are built, not when they run.
    pub fn function(&self, row: &Row, smem_bytes: u32) -> Result<Function> {
        if self.context.is_absent() {
            return Ok(Function::absent(&self.context));
        }
        self.context.set_current()?;
        // Errors that name what is missing come first; then the slot exists.
        let (code, entry) = (self.code(row)?, row.name);
        let mut slot = lock(&self.modules[&(code.name, code.arch)]);
        let loaded = match &mut *slot {
            Some(loaded) => loaded,
            empty => empty
                .insert(Loaded { module: load(&self.context, code)?, functions: BTreeMap::new() }),
        };
        if let Some((function, allowed)) = loaded.functions.get(entry)
            && smem_bytes <= *allowed
        {
            return Ok(function.clone());
        }
        let function = loaded.module.function(entry)?;
        if smem_bytes > SMEM_WITHOUT_ASKING {
            function.set_max_dynamic_smem(smem_bytes)?;
        }
        let allowed = smem_bytes.max(SMEM_WITHOUT_ASKING);
        let known = (function.clone(), allowed);
        loaded.functions.insert(entry.to_owned(), known);
        Ok(function)
    }
}

/// A panic elsewhere leaves the slot loaded or empty, both fine.
fn lock(slot: &Mutex<Option<Loaded>>) -> MutexGuard<'_, Option<Loaded>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Machine code that tests put in place of modules' own.
static REPLACED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// From now on contexts load this machine code for a module.
///
/// # Safety
/// The code has the entries of the module's rows, which take their parameters and write where those say.
#[doc(hidden)]
pub unsafe fn replace(module: &str, cubin: Vec<u8>) {
    let mut replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
    replaced.insert(module.to_owned(), cubin);
}

/// Whether a GPU of this compute capability runs machine code of an architecture: GPUs of one major version do.
pub fn is_native(arch: &str, capability: (u32, u32)) -> bool {
    let runs = |arch: &Arch| arch.runs_on(capability) && arch.capability.0 == capability.0;
    Arch::named(arch).is_some_and(runs)
}

/// Whether kernels of this architecture may start before the one ahead of them has ended, and wait for it.
pub(crate) fn overlaps(arch: &str) -> bool {
    Arch::named(arch).is_some_and(|arch| arch.capability >= (9, 0))
}

/// Machine code first: it spares the driver's compiler, which takes seconds for a large module. The folder
/// EINSPARSE_CUBINS has code of this GPU for modules of others, which run here with EINSPARSE_ARCH.
fn load(context: &Arc<PrimaryContext>, code: &EmbeddedModule) -> Result<Arc<LoadedModule>> {
    let replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cubin) = replaced.get(code.name) {
        return LoadedModule::from_cubin(context, cubin, overlaps(code.arch));
    }
    drop(replaced);
    let is_test = std::env::var_os("EINSPARSE_ARCH").is_some();
    if let Some(folder) = std::env::var_os("EINSPARSE_CUBINS").filter(|_| is_test) {
        let file = Path::new(&folder).join(format!("{}.{}.cubin", code.name, code.arch));
        if let Ok(cubin) = std::fs::read(file) {
            return LoadedModule::from_cubin(context, &cubin, overlaps(code.arch));
        }
    }
    let native = is_native(code.arch, context.facts().compute_capability);
    if let Some(cubin) = code.cubin().filter(|_| native) {
        match LoadedModule::from_cubin(context, &cubin?, overlaps(code.arch)) {
            Ok(module) => return Ok(module),
            Err(error) => {
                tracing::warn!(module = code.name, arch = code.arch, %error, "cubin refused, compiling the PTX");
            }
        }
    }
    let text = match code.ptx() {
        Some(text) => text?,
        // A module without text of its own for this architecture has all its kernels in one of an architecture below.
        None => match below(code).and_then(EmbeddedModule::ptx) {
            Some(text) => text?,
            None => String::new(),
        },
    };
    LoadedModule::from_ptx(context, &text)
}

/// The same module with text, for an architecture whose code the GPUs of its own run too.
fn below(code: &EmbeddedModule) -> Option<&'static EmbeddedModule> {
    let capability = Arch::named(code.arch)?.capability;
    let runs = |m: &&EmbeddedModule| {
        m.name == code.name && archs_of(capability).any(|arch| arch.name == m.arch)
    };
    MODULES.iter().filter(runs).find(|m| m.packed_ptx.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn module(module: &'static str, arch: &'static str) -> EmbeddedModule {
        EmbeddedModule { name: module, arch, packed_ptx: None, packed_cubin: None }
    }

    #[test]
    fn the_architecture_follows_the_compute_capability() {
        for (capability, place) in
            [((9, 0), 0), ((10, 0), 1), ((12, 1), 1), ((8, 9), 2), ((8, 6), 3), ((8, 0), 3)]
        {
            assert_eq!(arch_for(capability).unwrap(), &ARCHS[place]);
        }
        let error = arch_for((7, 5)).unwrap_err().to_string();
        assert!(error.contains("7.5") && error.contains(ARCHS[0].name), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let [most, least] = [0, ARCHS.len() - 1].map(|place| ARCHS[place].name);
        let table = [module("spmm", least), module("spmm", most), module("block", most)];
        assert_eq!(embedded(&table, "spmm", least).unwrap().arch, least);
        let words = |table, module, arch| embedded(table, module, arch).unwrap_err().to_string();
        assert!(words(&table, "block", least).contains(&format!("for {most} only")));
        assert!(words(&table, "sddmm", least).contains("no such module"));
        assert!(words(&[], "spmm", least).contains("no device code"));
    }

    #[test]
    fn the_table_names_each_module_once() {
        for (i, m) in MODULES.iter().enumerate() {
            assert!(Arch::named(m.arch).is_some(), "{}", m.arch);
            let text = m.ptx().or_else(|| below(m)?.ptx());
            assert!(text.unwrap().unwrap().contains(".version"), "{}.{}", m.name, m.arch);
            assert!(!MODULES[..i].iter().any(|o| (o.name, o.arch) == (m.name, m.arch)));
        }
    }

    #[test]
    fn modules_cross_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Modules>();
        shared::<Function>();
    }
}
