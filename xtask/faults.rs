//! Kernels with a fault each: what the suite finds, it tests. Each fault is a replacement in a source of the kernels.

mod table;

use crate::bundle::copy_folder;
use crate::cargo::{Result, target_dir};
use crate::setup::{kernels, setup};
use einsparse_compile::{Code, Kernels, Spec, source_dir};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::FAULTS;

/// A mistake in the kernels of a module.
struct Fault {
    name: &'static str,
    module: &'static str,
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
    let target = target_dir()?;
    // A module goes to one compiler: its builds are made in one folder.
    let modules: BTreeSet<&str> = FAULTS.iter().map(|fault| fault.module).collect();
    let modules: Vec<&str> = modules.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = |worker: usize| -> Result<()> {
        let sources = target.join(format!("faults-{worker}"));
        if sources.exists() {
            fs::remove_dir_all(&sources)?;
        }
        copy_folder(source_dir(), &sources)?;
        while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            for fault in FAULTS.iter().filter(|fault| fault.module == *module) {
                eprintln!("fault {}: {}", fault.name, fault.what);
                let code = compile(fault, &sources, &target)
                    .map_err(|error| format!("{}: {error}", fault.name))?;
                fs::write(to.join(format!("{}.cubin", fault.name)), code)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        let start = |worker| threads.spawn(move || work(worker).map_err(|e| e.to_string()));
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Result::Ok(())
    })?;
    let line = |fault: &Fault| format!("{} {} {}\n", fault.name, fault.module, fault.test);
    let lines: String = FAULTS.iter().map(line).collect();
    Ok(fs::write(to.join("list"), lines)?)
}

/// Machine code of the module with the fault.
fn compile(fault: &Fault, sources: &Path, target: &Path) -> Result<Vec<u8>> {
    let file = sources.join(fault.file);
    let whole = fs::read_to_string(&file)?;
    if whole.matches(fault.from).count() != 1 {
        return Err(format!("{}: not once in {}", fault.from, fault.file).into());
    }
    fs::write(&file, whole.replacen(fault.from, fault.to, 1))?;
    let mut specs = Spec::of_table(ARCH);
    specs.retain(|spec| spec.module == fault.module);
    let kernels = Kernels {
        sources,
        ..kernels(target)
    };
    let made = kernels.modules(&specs);
    fs::write(&file, whole)?;
    let made = made?;
    let code = made.first().and_then(|module| module.cubin.as_ref());
    Ok(code.map(Code::content).ok_or("no machine code")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_fault_that_is_there_once() {
        let mut without: BTreeSet<String> = Spec::all().into_iter().map(|s| s.module).collect();
        let mut names = BTreeSet::new();
        for fault in FAULTS {
            let text = fs::read_to_string(source_dir().join(fault.file)).unwrap();
            assert_eq!(text.matches(fault.from).count(), 1, "{}", fault.name);
            assert!(
                fault.from != fault.to && names.insert(fault.name),
                "{}",
                fault.name
            );
            without.remove(fault.module);
        }
        assert!(without.is_empty(), "without a fault: {without:?}");
        assert!(FAULTS.len() >= 40);
    }
}
