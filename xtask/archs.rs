//! Modules assembled for GPUs other than those they were compiled for. `cargo xtask archs` checks for spills on every
//! kind of GPU. Bundles contain machine code, so that a GPU runs the kernels of older ones without compiling them.

use crate::cargo::{Result, target_dir};
use crate::setup::{self, kernels};
use einsparse_compile::resources::{self, Report, Resources};
use einsparse_compile::{Module, Ptxas, Spec};
use einsparse_kernels::table::{self, ARCHS, Arch, GPUS, archs_of};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Module to assemble, and the GPU to assemble it for, named as in ptxas.
type Job<'a> = (&'a Module, String);

/// Max bytes of local memory of a thread: accesses of the code and, before [`CALLS_COPIES`], the stack. Two values that a
/// thread reloads once for each CTA tile cost less than one resident thread block fewer.
const MOST_SPILLED: u32 = 8;

/// [`MOST_SPILLED`] of `nm_mma`, whose threads have 168 registers and 128 accumulators: on compute capability 10.0 six
/// words do not fit. No such GPU has run these kernels yet.
const MOST_SPILLED_BY_NM: u32 = 24;

/// First compute capability for which ptxas calls its own routine for copies into the shared memory of a cluster. The
/// call uses a stack.
const CALLS_COPIES: (u32, u32) = (12, 0);

/// Assembles every module for every GPU that runs its text. Prints each kernel that uses local memory on such a GPU.
///
/// # Errors
/// A kernel that uses more than [`MOST_SPILLED`] bytes, or [`MOST_SPILLED_BY_NM`].
pub fn archs() -> Result<()> {
    let modules = modules(&Spec::all())?;
    let runs = |module: &Module, capability| {
        let mut archs = archs_of(capability).filter(|arch| !arch.exact);
        archs.any(|arch| arch.name == module.arch())
    };
    let mut jobs: Vec<Job<'_>> = Vec::new();
    let mut gpus = Vec::new();
    for gpu in GPUS {
        let (major, minor) = gpu.0;
        let of_gpu = modules.iter().filter(|module| runs(module, gpu.0));
        jobs.extend(of_gpu.map(|module| (module, format!("sm_{major}{minor}"))));
        gpus.resize(jobs.len(), *gpu);
    }
    let mut faults = 0;
    for (((module, name), gpu), (_, report)) in jobs.iter().zip(gpus).zip(assembled(&jobs)?) {
        let runs_here = |kernel: &Resources| {
            let row = table::kernels().iter().find(|row| row.name == kernel.name);
            row.is_none_or(|row| row.runs_on(gpu.0) && row.shared_bytes <= gpu.1)
        };
        for used in report.kernels.iter().filter(|kernel| runs_here(kernel)) {
            let stack = if gpu.0 < CALLS_COPIES { used.stack } else { 0 };
            // `nm_mma` accesses the same words in several places.
            let by_nm = module.stem() == "nm" && used.name.starts_with("nm_mma");
            let (most, accesses) = match by_nm {
                true => (MOST_SPILLED_BY_NM, 0),
                false => (MOST_SPILLED, used.spill_stores.max(used.spill_loads)),
            };
            let spilled = accesses.max(stack);
            if spilled > 0 {
                println!("{} for {name}: {used:?}", module.name());
            }
            faults += usize::from(spilled > most);
        }
    }
    println!("{} modules assembled for {} GPUs", jobs.len(), GPUS.len());
    match faults {
        0 => Ok(()),
        count => {
            let most = format!("{MOST_SPILLED} bytes ({MOST_SPILLED_BY_NM} for nm_mma)");
            Err(format!("{count} kernels use more than {most} of local memory").into())
        }
    }
}

/// Writes machine code for a GPU of the first architecture into `folder`, for the modules that were compiled for other
/// architectures: `<module>.<architecture>.cubin`.
pub fn assemble_for_test_gpu(specs: &[Spec], folder: &Path) -> Result<()> {
    let others: Vec<Spec> =
        specs.iter().filter(|spec| spec.arch != ARCHS[0].name).cloned().collect();
    let modules = modules(&others)?;
    let jobs: Vec<Job<'_>> = modules.iter().map(|module| (module, ARCHS[0].name.into())).collect();
    fs::create_dir_all(folder)?;
    for ((module, _), (cubin, _)) in jobs.iter().zip(assembled(&jobs)?) {
        fs::copy(cubin, folder.join(module.name() + ".cubin"))?;
    }
    Ok(())
}

/// Machine code of a module for a GPU of the first architecture.
pub fn assembled_for_test_gpu(module: &Module) -> Result<PathBuf> {
    let mut made = assembled(&[(module, ARCHS[0].name.into())])?;
    Ok(made.pop().ok_or("nothing was assembled")?.0)
}

fn modules(specs: &[Spec]) -> Result<Vec<Module>> {
    setup::modules(&kernels(&target_dir()?), specs)
}

/// Machine code and ptxas report of each job, in the order of the jobs. Results of earlier runs are read from the build
/// directory.
fn assembled(jobs: &[Job<'_>]) -> Result<Vec<(PathBuf, Report)>> {
    let target = target_dir()?;
    let ptxas = match Ptxas::find(&target) {
        Some(ptxas) => ptxas,
        None => {
            setup::setup()?;
            Ptxas::find(&target).ok_or("`cargo xtask setup` installed no ptxas")?
        }
    };
    let folder = target.join("device/assembled");
    fs::create_dir_all(&folder)?;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || -> std::result::Result<(), String> {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(place) else { return Ok(()) };
            let made = assemble(job, &ptxas, &folder).map_err(|error| error.to_string())?;
            done.lock().map_err(|error| error.to_string())?.push((place, made));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..workers).map(|_| threads.spawn(work)).collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Result::Ok(())
    })?;
    let mut made = done.into_inner()?;
    made.sort_by_key(|(place, _)| *place);
    Ok(made.into_iter().map(|(_, made)| made).collect())
}

fn assemble((module, gpu): &Job<'_>, ptxas: &Ptxas, folder: &Path) -> Result<(PathBuf, Report)> {
    let text = text_of(module)?;
    let mut hash = DefaultHasher::new();
    (&text, &ptxas.version).hash(&mut hash);
    let name = format!("{}.{:016x}.{gpu}", module.name(), hash.finish());
    let place = |end: &str| folder.join(format!("{name}.{end}"));
    let (cubin, said) = (place("cubin"), place("txt"));
    if !said.is_file() {
        let ptx = place("ptx");
        fs::write(&ptx, &text)?;
        let report = ptxas.assemble(&ptx, gpu, &cubin)?;
        fs::remove_file(&ptx)?;
        fs::write(&said, report)?;
        eprintln!("assembled {} for {gpu}", module.name());
    }
    Ok((cubin, resources::parse(&fs::read_to_string(&said)?)))
}

/// PTX of a module. If an older architecture has the same kernels, the project stores only the PTX of that
/// architecture.
fn text_of(module: &Module) -> Result<Vec<u8>> {
    if let Some(ptx) = &module.ptx {
        return Ok(ptx.content()?);
    }
    let below = ARCHS.iter().filter(|arch| arch.name != module.arch()).map(Arch::clone);
    for arch in below {
        let mut specs = Spec::of_table(&arch);
        specs.retain(|spec| spec.module == module.stem());
        if let Some(ptx) = modules(&specs)?.pop().and_then(|module| module.ptx) {
            return Ok(ptx.content()?);
        }
    }
    Err(format!("{} has no text", module.name()).into())
}
