//! The device modules embedded at build time, each for its architecture, loaded at first use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{Function, LoadedModule, PrimaryContext};
use crate::error::{Error, Result};
use einsparse_kernels::packed::unpack;

/// Device code of one module of kernels for one architecture, packed ([`einsparse_kernels::packed`]).
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedModule {
    /// Its name in the table.
    pub name: &'static str,
    /// `sm_90a` or `sm_80`.
    pub arch: &'static str,
    /// PTX text; none for `sm_90a` where the module has the same kernels for `sm_80`, whose text serves both.
    pub packed_ptx: Option<&'static [u8]>,
    /// Machine code of exactly this architecture, where an assembler was at hand.
    pub packed_cubin: Option<&'static [u8]>,
}

impl EmbeddedModule {
    /// The PTX text.
    pub fn ptx(&self) -> Option<Result<String>> {
        let bytes = self.unpacked(self.packed_ptx?);
        Some(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The machine code.
    pub fn cubin(&self) -> Option<Result<Vec<u8>>> {
        Some(self.unpacked(self.packed_cubin?))
    }

    fn unpacked(&self, packed: &[u8]) -> Result<Vec<u8>> {
        unpack(packed).map_err(|reason| Error::Cuda {
            call: format!("unpack kernels `{}` for {}", self.name, self.arch),
            reason,
        })
    }
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The compiler that made the embedded modules; `None` for modules made elsewhere, or none.
pub const COMPILER: Option<&str> = option_env!("EINSPARSE_DEVICE_COMPILER");

/// The architecture whose PTX every GPU takes that the kernels are for.
const EVERY_GPU: &str = "sm_80";

/// Dynamic shared memory that needs no opting in, bytes.
const SMEM_WITHOUT_ASKING: u32 = 48 << 10;

/// The architecture whose code a GPU of this compute capability runs. `sm_90a` is for 9.0 alone; the PTX
/// of `sm_80` serves everything from 8.0 on.
pub fn arch_for(compute_capability: (u32, u32)) -> Result<&'static str> {
    match compute_capability {
        (9, 0) => Ok("sm_90a"),
        (8.., _) => Ok("sm_80"),
        (major, minor) => Err(Error::Cuda {
            call: "choose device code".into(),
            reason: format!(
                "this GPU has compute capability {major}.{minor}; the kernels are for sm_90a (9.0) and sm_80 (8.0 and \
                 newer)"
            ),
        }),
    }
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
    arch: &'static str,
    /// A lock per module, so that loading one does not hold up launches of another.
    modules: BTreeMap<&'static str, Mutex<Option<Loaded>>>,
}

impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modules: Vec<_> = self.modules.keys().collect();
        f.debug_struct("Modules")
            .field("arch", &self.arch)
            .field("modules", &modules)
            .finish_non_exhaustive()
    }
}

impl Modules {
    /// Chooses the architecture; loads nothing yet. `compute_capability` is the device's, or a lower one to
    /// run older code on purpose.
    pub fn new(context: Arc<PrimaryContext>, compute_capability: (u32, u32)) -> Result<Self> {
        let arch = arch_for(compute_capability)?;
        let modules = MODULES.iter().map(|m| (m.name, Mutex::new(None))).collect();
        Ok(Self { context, arch, modules })
    }

    /// The kernels of a GPU that is not there: all of the table, without code.
    pub(crate) fn absent(context: &Arc<PrimaryContext>) -> Self {
        Modules { context: Arc::clone(context), arch: "sm_90a", modules: BTreeMap::new() }
    }

    /// The architecture whose code runs here.
    pub fn arch(&self) -> &'static str {
        self.arch
    }

    /// Whether this build holds the module for the architecture that runs here.
    pub fn holds(&self, module: &str) -> bool {
        self.context.is_absent() || embedded(MODULES, module, self.arch).is_ok()
    }

    /// The context the modules load into.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    /// The kernel `entry` of `module`, allowed to use `smem_bytes` of dynamic shared memory. Loads the module
    /// at its first use; plans call this when they are built, not when they run.
    pub fn function(&self, module: &str, entry: &str, smem_bytes: u32) -> Result<Function> {
        if self.context.is_absent() {
            return Ok(Function::absent(&self.context));
        }
        self.context.set_current()?;
        // Errors that name what is missing come first; then the slot exists.
        let code = embedded(MODULES, module, self.arch)?;
        let mut slot = lock(&self.modules[code.name]);
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

/// Machine code first: it spares the driver's compiler, which takes seconds for a large module.
fn load(context: &Arc<PrimaryContext>, code: &EmbeddedModule) -> Result<Arc<LoadedModule>> {
    let replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cubin) = replaced.get(code.name) {
        return LoadedModule::from_cubin(context, cubin);
    }
    drop(replaced);
    if let Some(cubin) = code.cubin() {
        match LoadedModule::from_cubin(context, &cubin?) {
            Ok(module) => return Ok(module),
            Err(error) => {
                tracing::warn!(module = code.name, arch = code.arch, %error, "cubin refused, compiling the PTX");
            }
        }
    }
    let text = match code.ptx() {
        Some(text) => text?,
        // A module without text of its own for this architecture has all its kernels in the one for every GPU.
        None => match embedded(MODULES, code.name, EVERY_GPU)?.ptx() {
            Some(text) => text?,
            None => String::new(),
        },
    };
    LoadedModule::from_ptx(context, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn module(module: &'static str, arch: &'static str) -> EmbeddedModule {
        EmbeddedModule { name: module, arch, packed_ptx: None, packed_cubin: None }
    }

    #[test]
    fn the_architecture_follows_the_compute_capability() {
        assert_eq!(arch_for((9, 0)).unwrap(), "sm_90a");
        for newer in [(8, 0), (8, 9), (10, 0), (12, 1)] {
            assert_eq!(arch_for(newer).unwrap(), "sm_80");
        }
        let error = arch_for((7, 5)).unwrap_err().to_string();
        assert!(["7.5", "sm_90a", "sm_80"].iter().all(|s| error.contains(s)), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let table = [module("spmm", "sm_80"), module("spmm", "sm_90a"), module("block", "sm_90a")];
        assert_eq!(embedded(&table, "spmm", "sm_80").unwrap().arch, "sm_80");
        let words = |table, module, arch| embedded(table, module, arch).unwrap_err().to_string();
        assert!(words(&table, "block", "sm_80").contains("for sm_90a only"));
        assert!(words(&table, "sddmm", "sm_80").contains("no such module"));
        assert!(words(&[], "spmm", "sm_80").contains("no device code"));
    }

    #[test]
    fn the_table_names_each_module_once() {
        for (i, m) in MODULES.iter().enumerate() {
            assert!(arch_for((9, 0)).is_ok_and(|a| a == m.arch) || m.arch == "sm_80", "{}", m.arch);
            let text = m.ptx().or_else(|| embedded(MODULES, m.name, EVERY_GPU).ok()?.ptx());
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
