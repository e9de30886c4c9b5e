//! Kernels with a fault each: what the suite finds, it tests. Each fault is a replacement in a source of the kernels.

mod table;

use crate::cargo::{Result, target_dir};
use crate::setup::{kernels, setup};
use einsparse_compile::{Code, Kernels, Spec, source_dir};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::FAULTS;

/// A mistake in the kernels of a family.
struct Fault {
    name: &'static str,
    family: &'static str,
    /// Below kernels-gpu.
    file: &'static str,
    /// Once in the file.
    from: &'static str,
    to: &'static str,
    /// Tests that are to find it: part of their names.
    test: &'static str,
    /// What goes wrong.
    what: &'static str,
}

const ARCH: &str = "sm_90a";
/// Compilers that run at once.
const WORKERS: usize = 2;

/// Writes a module for each fault, and the list that run.sh reads.
pub fn plant(to: &Path) -> Result<()> {
    setup()?;
    fs::create_dir_all(to)?;
    let next = AtomicUsize::new(0);
    let one = |worker: usize| -> std::result::Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let target = target_dir().map_err(|e| text(&e))?;
        let sources = target.join(format!("faults-{worker}"));
        copy(source_dir(), &sources).map_err(|e| text(&e))?;
        while let Some(fault) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
            eprintln!("fault {}: {}", fault.name, fault.what);
            let made = make(fault, &sources, &target, to);
            made.map_err(|e| format!("{}: {e}", fault.name))?;
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|w| threads.spawn(move || one(w)))
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .map(|end| end.map_err(|_| "a compiler's thread panicked".to_owned())?)
            .collect::<std::result::Result<Vec<()>, String>>()
    })?;
    let line = |fault: &Fault| format!("{} {} {}\n", fault.name, fault.family, fault.test);
    Ok(fs::write(
        to.join("list"),
        FAULTS.iter().map(line).collect::<String>(),
    )?)
}

fn make(fault: &Fault, sources: &Path, target: &Path, to: &Path) -> Result<()> {
    let kept = target.join("faults");
    fs::create_dir_all(&kept)?;
    let mut key = DefaultHasher::new();
    (fault.from, fault.to, fault.family).hash(&mut key);
    digest(sources, &mut key)?;
    let kept = kept.join(format!("{}-{:016x}", fault.name, key.finish()));
    let named = to.join(format!("{}.cubin", fault.name));
    if !kept.is_file() {
        fs::write(&kept, compile(fault, sources, target)?)?;
    }
    fs::copy(&kept, named)?;
    Ok(())
}

/// Adds the content of a folder's files.
fn digest(folder: &Path, key: &mut DefaultHasher) -> Result<()> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            digest(&path, key)?;
        } else {
            fs::read(&path)?.hash(key);
        }
    }
    Ok(())
}

/// Machine code of the family with the fault.
fn compile(fault: &Fault, sources: &Path, target: &Path) -> Result<Vec<u8>> {
    let file = sources.join(fault.file);
    let whole = fs::read_to_string(&file)?;
    if whole.matches(fault.from).count() != 1 {
        return Err(format!("{}: not once in {}", fault.from, fault.file).into());
    }
    fs::write(&file, whole.replacen(fault.from, fault.to, 1))?;
    let mut specs = Spec::of_table(ARCH);
    specs.retain(|spec| spec.family == fault.family);
    let kernels = Kernels {
        sources,
        anew: true,
        ..kernels(target)
    };
    let made = kernels.modules(&specs);
    fs::write(&file, whole)?;
    let made = made?;
    let code = made.first().and_then(|module| module.cubin.as_ref());
    Ok(code.map(Code::content).ok_or("no machine code")??)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().ok_or("no name")?;
        match path.is_dir() {
            true if name == "prebuilt" || name == "compile" || name == "target" => {}
            true => copy(&path, &to.join(name))?,
            false => {
                fs::copy(&path, to.join(name))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_family_has_a_fault_that_is_there_once() {
        let mut without: BTreeSet<String> = Spec::all().into_iter().map(|s| s.family).collect();
        let mut names = BTreeSet::new();
        for fault in FAULTS {
            let text = fs::read_to_string(source_dir().join(fault.file)).unwrap();
            assert_eq!(text.matches(fault.from).count(), 1, "{}", fault.name);
            assert!(
                fault.from != fault.to && names.insert(fault.name),
                "{}",
                fault.name
            );
            without.remove(fault.family);
        }
        assert!(without.is_empty(), "without a fault: {without:?}");
        assert!(FAULTS.len() >= 40);
    }
}
