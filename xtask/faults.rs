//! Kernels with one planted fault each. The tests must find every fault. Each fault is a replacement in a source of the
//! kernels. The faults of a family are in `kernels-gpu/families/<family>/faults.txt`. A fault has one line `key: value`
//! for each field. A text of several lines repeats its key. An empty line separates faults.

use crate::archs;
use crate::bundle::copy_folder;
use crate::cargo::{Result, target_dir};
use crate::setup::{kernels, setup};
use einsparse_compile::{Code, Kernels, Spec, source_dir};
use einsparse_kernels::table::{ARCHS, Arch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A planted mistake in the kernels of a module.
struct Fault {
    name: String,
    module: String,
    /// Architecture whose kernels have the fault and run in the tests. Default: the first one. Faults of rows that
    /// replace others name it.
    arch: &'static Arch,
    /// Path below kernels-gpu.
    file: String,
    /// Text to replace. It occurs once in the file.
    from: String,
    to: String,
    /// Part of the names of the tests that must find the fault.
    test: String,
    /// Description of the wrong behaviour.
    what: String,
}

impl Fault {
    /// Parses the lines of one fault.
    fn of(block: &str) -> Result<Fault> {
        let mut fields: BTreeMap<&str, String> = BTreeMap::new();
        for line in block.lines() {
            let (key, value) = line.split_once(':').ok_or(line)?;
            let value = value.strip_prefix(' ').unwrap_or(value);
            fields
                .entry(key)
                .and_modify(|text| *text += &format!("\n{value}"))
                .or_insert_with(|| value.to_owned());
        }
        let arch = match fields.remove("arch") {
            None => &ARCHS[0],
            Some(name) => Arch::named(&name).ok_or_else(|| format!("no architecture {name}"))?,
        };
        let mut take = |key: &str| {
            let missing = || format!("no `{key}` in a fault:\n{block}");
            fields.remove(key).ok_or_else(missing)
        };
        let fault = Fault {
            arch,
            name: take("name")?,
            module: take("module")?,
            file: take("file")?,
            from: take("from")?,
            to: take("to")?,
            test: take("test")?,
            what: take("what")?,
        };
        match fields.keys().next() {
            None => Ok(fault),
            Some(key) => Err(format!("{}: no field is called `{key}`", fault.name).into()),
        }
    }
}

/// Faults of all families, sorted by family.
fn faults() -> Result<Vec<Fault>> {
    let mut files = Vec::new();
    for family in fs::read_dir(source_dir().join("families"))? {
        let file = family?.path().join("faults.txt");
        if file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        for block in text.split("\n\n") {
            let fault = Fault::of(block).map_err(|e| format!("{}: {e}", file.display()))?;
            faults.push(fault);
        }
    }
    Ok(faults)
}

/// Number of compilers that run at the same time.
const WORKERS: usize = 2;

/// Writes a module for each fault whose name contains one of the comma-separated texts in `named`, and the list that
/// run.sh reads.
pub fn plant(to: &Path, named: &str) -> Result<()> {
    setup()?;
    fs::create_dir_all(to)?;
    let target = target_dir()?;
    let mut faults = faults()?;
    faults.retain(|fault| named.split(',').any(|part| fault.name.contains(part)));
    if faults.is_empty() {
        return Err(format!("no fault is called {named}").into());
    }
    // One worker compiles all builds of a module, because they share a directory.
    let modules: BTreeSet<&str> = faults.iter().map(|fault| &*fault.module).collect();
    let modules: Vec<&str> = modules.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = |worker: usize| -> Result<()> {
        let sources = target.join(format!("faults-{worker}"));
        if sources.exists() {
            fs::remove_dir_all(&sources)?;
        }
        copy_folder(source_dir(), &sources)?;
        while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            for fault in faults.iter().filter(|fault| fault.module == *module) {
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
    let line = |fault: &Fault| {
        let arch = if *fault.arch == ARCHS[0] { "-" } else { fault.arch.name };
        format!("{} {} {} {arch}\n", fault.name, fault.module, fault.test)
    };
    let lines: String = faults.iter().map(line).collect();
    Ok(fs::write(to.join("list"), lines)?)
}

/// Machine code of the module with the fault, for GPUs of the first architecture.
fn compile(fault: &Fault, sources: &Path, target: &Path) -> Result<Vec<u8>> {
    let file = sources.join(&fault.file);
    let whole = fs::read_to_string(&file)?;
    if whole.matches(&*fault.from).count() != 1 {
        return Err(format!("{}: not once in {}", fault.from, fault.file).into());
    }
    fs::write(&file, whole.replacen(&*fault.from, &fault.to, 1))?;
    let mut specs = Spec::of_table(fault.arch);
    specs.retain(|spec| spec.module == fault.module);
    let kernels = Kernels { sources, ..kernels(target) };
    let made = kernels.modules(&specs);
    fs::write(&file, whole)?;
    let made = made?;
    let module = made.first().ok_or("no module")?;
    if *fault.arch != ARCHS[0] {
        return Ok(fs::read(archs::assembled_for_test_gpu(module)?)?);
    }
    let code = module.cubin.as_ref();
    Ok(code.map(Code::content).ok_or("no machine code")??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_kernels::table::{ON_DEMAND, kernels};

    #[test]
    fn every_module_has_a_fault_that_is_there_once() {
        // A module and its rows that replace others each have a fault.
        let stored = kernels().iter().filter(|row| !ON_DEMAND.contains(&row.module));
        let mut without: BTreeSet<(&str, bool)> =
            stored.map(|row| (row.module, row.stands_in)).collect();
        let mut names = BTreeSet::new();
        let faults = faults().unwrap();
        for fault in &faults {
            let text = fs::read_to_string(source_dir().join(&fault.file)).unwrap();
            assert_eq!(text.matches(&*fault.from).count(), 1, "{}", fault.name);
            assert!(fault.from != fault.to && names.insert(&fault.name), "{}", fault.name);
            without.remove(&(&fault.module, *fault.arch != ARCHS[0]));
        }
        assert!(without.is_empty(), "without a fault: {without:?}");
        assert!(faults.len() >= 40);
    }

    #[test]
    fn fields_are_read_as_written() {
        let text = "name: a\nmodule: m\nfile: f\nfrom:   x: y;\nfrom:\nto:\ntest: t\nwhat: w";
        let fault = Fault::of(text).unwrap();
        assert_eq!([&*fault.from, &*fault.to], ["  x: y;\n", ""]);
        for wrong in [
            text.replace("to:", "too:"),
            text.to_owned() + "\nmore: 1",
            text.replace("what: w", "what"),
        ] {
            assert!(Fault::of(&wrong).is_err(), "{wrong}");
        }
    }
}
