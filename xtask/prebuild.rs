//! `cargo xtask prebuild`: recompiles the modules that are stored in git, or compares them with a build of their
//! sources.

use crate::cargo::{Result, git, target_dir};
use crate::setup::{kernels, setup};
use einsparse_compile::{Code, Kernels, Module, Ptxas, Spec, Toolchain, keep};

/// Compiles the stale modules and writes them into kernels-gpu/prebuilt.
pub fn prebuild() -> Result<()> {
    let target = target_dir()?;
    let specs = Spec::all();
    let kernels = Kernels { report_all: true, ..kernels(&target) };
    let stale = kernels.stale(&specs)?.len();
    if stale > 0 {
        setup()?;
    }
    let modules = kernels.modules(&specs)?;
    keep(&modules, |content| {
        let level = *zstd::compression_level_range().end();
        zstd::bulk::compress(content, level).expect("a buffer in memory")
    })?;
    println!("{} modules, {stale} of them new", modules.len());
    Ok(())
}

/// Recompiles all modules and compares bytes. `tenth`: only a tenth of them, another tenth at each commit.
pub fn verify(tenth: bool) -> Result<()> {
    setup()?;
    let target = target_dir()?;
    let known = kernels(&target);
    if let Some(spec) = known.stale(&Spec::all())?.first() {
        return Err(format!("{} is stale: run `cargo xtask prebuild`", spec.name()).into());
    }
    let mut kept = known.modules(&Spec::all())?;
    let compiler = Toolchain::find(&target)?.name();
    let ptxas = Ptxas::find(&target).map(|ptxas| ptxas.version).unwrap_or_default();
    if let Some(other) = kept.iter().find(|m| (m.compiler(), m.ptxas()) != (&*compiler, &*ptxas)) {
        let made_by = format!(
            "{} was made by {} and ptxas {}, here are {compiler} and ptxas {ptxas}",
            other.name(),
            other.compiler(),
            other.ptxas()
        );
        if tenth {
            println!("skipped: {made_by}");
            return Ok(());
        }
        return Err(made_by.into());
    }
    if tenth {
        kept = part(kept, commits()? % 10);
    }
    let names: Vec<String> = kept.iter().map(Module::name).collect();
    let mut specs = Spec::all();
    specs.retain(|spec| names.contains(&spec.name()));
    let anew = Kernels { anew: true, report_all: true, ..known };
    let mut differ = Vec::new();
    for (kept, anew) in kept.iter().zip(anew.modules(&specs)?) {
        let content = |code: &Option<Code>| code.as_ref().map(Code::content).transpose();
        let same = |of: fn(&Module) -> &Option<Code>| {
            let (ours, theirs) = (content(of(kept))?, content(of(&anew))?);
            Ok::<_, einsparse_compile::Error>(ours.is_none() || ours == theirs)
        };
        let same = kept.name() == anew.name()
            && kept.report() == anew.report()
            && same(|module| &module.ptx)?
            && same(|module| &module.cubin)?;
        if !same {
            differ.push(kept.name());
        }
    }
    if !differ.is_empty() {
        return Err(format!("compiled anew, these differ: {}", differ.join(", ")).into());
    }
    println!("{} modules compiled anew, every byte the same", names.len());
    Ok(())
}

/// One of ten parts of about equal work.
fn part(mut modules: Vec<Module>, which: usize) -> Vec<Module> {
    modules.sort_by_key(|module| std::cmp::Reverse(module.work()));
    let mut parts: [(u64, Vec<Module>); 10] = Default::default();
    for module in modules {
        // Greedy partition: each module, the largest first, is added to the part with the least work.
        if let Some((work, part)) = parts.iter_mut().min_by_key(|(work, _)| *work) {
            *work += module.work();
            part.push(module);
        }
    }
    let mut part = std::mem::take(&mut parts[which].1);
    part.sort_by_key(Module::name);
    part
}

/// Number of commits; 0 if git cannot count them.
fn commits() -> Result<usize> {
    let count = git(&["rev-list", "--count", "HEAD"]).unwrap_or_default();
    Ok(String::from_utf8(count)?.trim().parse().unwrap_or(0))
}
