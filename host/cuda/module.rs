//! Device modules embedded at build time, one per architecture, loaded at first use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{Function, LoadedModule, PrimaryContext};
use crate::error::{Error, Result};
use einsparse_kernels::packed::{unpack, unpack_text};
use einsparse_kernels::table::{ARCHS, Arch, Row, archs_of};

/// Device code of one module of kernels for one architecture, packed ([`einsparse_kernels::packed`]).
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedModule {
    /// Name of the module in the table.
    pub name: &'static str,
    /// Name of the architecture ([`einsparse_kernels::table::ARCHS`]).
    pub arch: &'static str,
    /// PTX text; `None` if the module has the same kernels for a lower architecture, whose text serves both.
    pub packed_ptx: Option<&'static [u8]>,
    /// Machine code of exactly this architecture; `None` if no assembler was available at build time.
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
        unpacked.map_err(|reason| {
            Error::cuda(format!("unpack kernels `{}` for {}", self.name, self.arch), reason)
        })
    }
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Compiler of the embedded modules; `None` if they were built elsewhere, or if there are none.
pub const COMPILER: Option<&str> = option_env!("EINSPARSE_DEVICE_COMPILER");

/// Max bytes of dynamic shared memory that a kernel may use without opting in.
const SMEM_WITHOUT_ASKING: u32 = 48 << 10;

/// The highest architecture whose code a GPU of this compute capability runs.
pub fn arch_for(compute_capability: (u32, u32)) -> Result<&'static Arch> {
    archs_of(compute_capability).next().ok_or_else(|| {
        let (major, minor) = compute_capability;
        let names: Vec<&str> = ARCHS.iter().map(|arch| arch.name).collect();
        Error::Cuda { call: "choose device code".into(), code: None,
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
            code: None,
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

/// A loaded module: its functions, each with the max shared memory set for it.
struct Loaded {
    module: Arc<LoadedModule>,
    functions: BTreeMap<String, (Function, u32)>,
}

/// The device code of one context. Modules are loaded at first use; functions are looked up once.
pub struct Modules {
    context: Arc<PrimaryContext>,
    capability: (u32, u32),
    /// One lock per module and architecture, so that loading a module does not block launches of another.
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
    /// Selects the architecture without loading a module. `compute_capability` is that of the device, or a lower one in
    /// order to run older code.
    pub fn new(context: Arc<PrimaryContext>, compute_capability: (u32, u32)) -> Result<Self> {
        arch_for(compute_capability)?;
        let modules = MODULES.iter().map(|m| ((m.name, m.arch), Mutex::new(None))).collect();
        Ok(Self { context, capability: compute_capability, modules })
    }

    /// The kernels of a simulated GPU: the whole table, without code.
    pub fn absent(context: &Arc<PrimaryContext>, capability: (u32, u32)) -> Self {
        Modules { context: Arc::clone(context), capability, modules: BTreeMap::new() }
    }

    /// The compute capability whose kernels run here.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Whether this build has the kernel for an architecture that this GPU runs.
    pub fn holds(&self, row: &Row) -> bool {
        self.context.is_absent() || self.code(row).is_ok()
    }

    /// The module that contains this kernel.
    fn code(&self, row: &Row) -> Result<&'static EmbeddedModule> {
        let mut archs = archs_of(self.capability).filter(|arch| row.built_for(arch));
        let arch = archs.next().ok_or_else(|| {
            let (major, minor) = self.capability;
            let reason = format!("it has no code for compute capability {major}.{minor}");
            Error::cuda(format!("load kernel `{}`", row.name), reason)
        })?;
        embedded(MODULES, row.module, arch.name)
    }

    /// The context the modules load into.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    /// The kernel of a row, allowed to use `smem_bytes` of dynamic shared memory. Loads the module at its first use.
    /// Plans call this function when they are built, not when they run.
    pub fn function(&self, row: &Row, smem_bytes: u32) -> Result<Function> {
        if self.context.is_absent() {
            return Ok(Function::absent(&self.context));
        }
        self.context.set_current()?;
        // This call reports a missing module or kernel. After it, the slot exists.
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

/// Locks a slot. A panic in another thread leaves the slot loaded or empty; both are valid.
fn lock(slot: &Mutex<Option<Loaded>>) -> MutexGuard<'_, Option<Loaded>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Machine code by which tests replace that of modules.
#[cfg(feature = "testing")]
static REPLACED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Replaces the machine code of a module in all contexts that load it later.
///
/// # Safety
/// The code has the entries of the module's rows. These accept the rows' parameters and write only where the parameters
/// point.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub unsafe fn replace(module: &str, cubin: Vec<u8>) {
    let mut replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
    replaced.insert(module.to_owned(), cubin);
}

/// Machine code that tests run in place of the build's: that of [`replace`], else the file of the directory
/// EINSPARSE_CUBINS. The directory has machine code of this GPU: of the other backend, or of modules of other
/// architectures, which run on this GPU with EINSPARSE_ARCH.
#[cfg(feature = "testing")]
fn replaced(code: &EmbeddedModule) -> Option<Vec<u8>> {
    let replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cubin) = replaced.get(code.name) {
        return Some(cubin.clone());
    }
    let folder = std::path::PathBuf::from(std::env::var_os("EINSPARSE_CUBINS")?);
    std::fs::read(folder.join(format!("{}.{}.cubin", code.name, code.arch))).ok()
}

/// Whether a GPU of this compute capability runs machine code of an architecture: both must have the same major
/// version.
pub fn is_native(arch: &str, capability: (u32, u32)) -> bool {
    let runs = |arch: &Arch| arch.runs_on(capability) && arch.capability.0 == capability.0;
    Arch::named(arch).is_some_and(runs)
}

/// Whether kernels of this architecture may start before the previous kernel has ended, and then wait for it.
pub fn overlaps(arch: &str) -> bool {
    Arch::named(arch).is_some_and(|arch| arch.capability >= (9, 0))
}

/// Loads a module, preferably from machine code: this avoids the driver's compiler, which takes seconds for a large
/// module.
fn load(context: &Arc<PrimaryContext>, code: &EmbeddedModule) -> Result<Arc<LoadedModule>> {
    #[cfg(feature = "testing")]
    if let Some(cubin) = replaced(code) {
        return LoadedModule::from_cubin(context, &cubin, overlaps(code.arch));
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
        // A module without PTX text for this architecture has all its kernels in the text of a lower one.
        None => match below(code).and_then(EmbeddedModule::ptx) {
            Some(text) => text?,
            None => String::new(),
        },
    };
    LoadedModule::from_ptx(context, &text)
}

/// The module of equal name that has PTX text, for an architecture whose code also runs on GPUs of this one.
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
