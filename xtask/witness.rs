//! `cargo xtask witness COMMIT`: compares kernels with those of a commit. Spills, registers, instructions and time
//! decide whether a change of a body is accepted. Equal machine code is not required, because it depends on the order
//! of symbols.

use crate::cargo::{Result, git, target_dir};
use crate::setup::{self, kernels};
use einsparse_compile::resources::Resources;
use einsparse_compile::{Spec, reports};
use einsparse_kernels::packed::unpack;
use std::collections::BTreeMap;

/// Directory of the stored modules.
const KEPT: &str = "kernels-gpu/prebuilt/";
/// Max additional registers of a kernel.
const REGISTERS: u32 = 2;
/// Max relative increase of a kernel's instructions.
const INSTRUCTIONS: f64 = 0.02;
/// Bytes of a machine instruction.
const INSTRUCTION: usize = 16;

/// Compared properties of a kernel.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    registers: u32,
    /// Bytes of local memory: stack and spills.
    local: u32,
    /// Machine code; empty if none is stored.
    code: Vec<u8>,
}

impl Facts {
    fn add(&mut self, used: &Resources) {
        self.registers = used.registers;
        self.local = used.stack.max(used.spill_stores).max(used.spill_loads);
    }

    /// Number of instructions, without the padding at the end.
    fn instructions(&self) -> usize {
        let all: Vec<&[u8]> = self.code.chunks(INSTRUCTION).collect();
        let filling = all.last().map_or(0, |last| {
            let same = all.iter().rev().take_while(|one| one[..8] == last[..8]);
            same.count().saturating_sub(1)
        });
        all.len() - filling
    }

    /// Reasons why this kernel is worse than `before`.
    fn worse_than(&self, before: &Facts) -> Option<String> {
        let mut reasons = Vec::new();
        if self.local > 0 && self.local > before.local {
            reasons.push(format!("{} bytes of local memory, before {}", self.local, before.local));
        }
        if self.registers > before.registers + REGISTERS {
            reasons.push(format!("{} registers, before {}", self.registers, before.registers));
        }
        let [now, then] = [self, before].map(Facts::instructions);
        if then > 0 && now as f64 > then as f64 * (1.0 + INSTRUCTIONS) {
            reasons.push(format!("{now} instructions, before {then}"));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Kernels by architecture and name. The module is not part of the key.
type Kernels = BTreeMap<(String, String), Facts>;

/// Compares every kernel with that of `commit`. Returns an error if a limit is exceeded.
pub fn witness(commit: &str) -> Result<()> {
    let (before, now) = (of_commit(commit)?, of_sources()?);
    let (mut faults, mut same, mut within, mut new) = (Vec::new(), 0, 0, 0);
    for ((arch, name), facts) in &now {
        let said = match before.get(&(arch.clone(), name.clone())) {
            Some(other) if other == facts => {
                same += 1;
                None
            }
            Some(other) => {
                within += 1;
                facts.worse_than(other)
            }
            None => {
                new += 1;
                facts.worse_than(&Facts { registers: u32::MAX - REGISTERS, ..Facts::default() })
            }
        };
        faults.extend(said.map(|said| format!("{name} for {arch}: {said}")));
    }
    let gone = before.keys().filter(|kernel| !now.contains_key(*kernel)).count();
    faults.iter().for_each(|line| println!("{line}"));
    println!(
        "{} kernels, compared with {commit}: {same} the same, {within} changed, {new} new, {gone} gone",
        now.len()
    );
    match faults.len() {
        0 => Ok(()),
        count => Err(format!("{count} limits exceeded").into()),
    }
}

/// Kernels of the current sources: stored, cached or compiled now.
fn of_sources() -> Result<Kernels> {
    let target = target_dir()?;
    // Modules that only benches use are left out, because they are not stored.
    let specs = Spec::all();
    let kernels = einsparse_compile::Kernels { report_all: true, ..kernels(&target) };
    let mut found = Kernels::new();
    for module in setup::modules(&kernels, &specs)? {
        let of = |name: &str| (module.arch().to_owned(), name.to_owned());
        for used in &module.report().kernels {
            found.entry(of(&used.name)).or_default().add(used);
        }
        if let Some(code) = &module.cubin {
            for (name, code) in of_cubin(&code.content()?)? {
                found.entry(of(&name)).or_default().code = code;
            }
        }
    }
    Ok(found)
}

fn of_commit(commit: &str) -> Result<Kernels> {
    let listed = git(&["ls-tree", "-r", "--name-only", commit, KEPT])?;
    let listed = String::from_utf8(listed)?;
    let content = |path: &str| git(&["show", &format!("{commit}:{path}")]);
    let mut found = Kernels::new();
    for path in listed.lines().filter(|path| path.ends_with("manifest.txt")) {
        let text = String::from_utf8(content(path)?)?;
        let modules = reports(&text).ok_or_else(|| format!("{commit}: {path} is no manifest"))?;
        for (arch, report) in modules {
            for used in &report.kernels {
                found.entry((arch.clone(), used.name.clone())).or_default().add(used);
            }
        }
    }
    for path in listed.lines().filter(|path| path.ends_with(".cubin.zst")) {
        // Directories are named after the architecture. Older commits have no underscore in the name.
        let folder = path.rsplit('/').nth(1).unwrap_or_default().replace("sm9", "sm_9");
        let arch = folder.rsplit('-').next().unwrap_or_default().to_owned();
        for (name, code) in of_cubin(&unpack(&content(path)?)?)? {
            found.entry((arch.clone(), name)).or_default().code = code;
        }
    }
    match found.is_empty() {
        true => Err(format!("{commit} has no modules in {KEPT}").into()),
        false => Ok(found),
    }
}

/// The sections `.text.<kernel>` of a file of machine code (ELF, 64 bits, little-endian).
fn of_cubin(file: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let sections = sections(file).ok_or("no whole file of machine code")?;
    let of_kernel = |(name, code): (String, &[u8])| {
        let name = name.strip_prefix(".text.")?.to_owned();
        Some((name, code.to_vec()))
    };
    Ok(sections.into_iter().filter_map(of_kernel).collect())
}

fn sections(file: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(file.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(wide)).ok()
    };
    if file.get(..4)? != b"\x7fELF" {
        return None;
    }
    let (table, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
    let header = |section: usize| table.checked_add(section.checked_mul(size)?);
    let content = |section: usize| {
        let at = header(section)?;
        let (start, bytes) = (number(at + 0x18, 8)?, number(at + 0x20, 8)?);
        file.get(start..start.checked_add(bytes)?)
    };
    let names = content(number(0x3e, 2)?)?;
    let name = |section: usize| {
        let text = names.get(number(header(section)?, 4)?..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        String::from_utf8(text[..end].to_vec()).ok()
    };
    // Sections without bytes in the file also have a size, so only code sections are read.
    let is_code = |section: &usize| name(*section).is_some_and(|name| name.starts_with(".text."));
    let own = (0..count).filter(is_code);
    own.map(|section| Some((name(section)?, content(section)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_a_merge() {
        let code = |instructions: usize| {
            // All instructions differ. The last three are padding.
            let bytes = (0..instructions).flat_map(|i| (i as u128 + 1).to_le_bytes());
            bytes.chain([0; 3 * INSTRUCTION]).collect()
        };
        let facts =
            |registers, local, instructions| Facts { registers, local, code: code(instructions) };
        let before = facts(100, 0, 1000);
        assert_eq!(before.instructions(), 1001);
        assert_eq!(facts(102, 0, 1020).worse_than(&before), None);
        assert_eq!(facts(90, 0, 500).worse_than(&before), None);
        let said = facts(103, 8, 1030).worse_than(&before).unwrap();
        for word in ["8 bytes", "103 registers", "1031 instructions"] {
            assert!(said.contains(word), "{said}");
        }
    }

    /// Checks that every kernel of a module's table is found in the stored module, and that a changed byte is detected.
    #[test]
    fn kernels_are_found_in_their_modules() {
        let target = target_dir().unwrap();
        let specs = Spec::of_table(&einsparse_kernels::table::ARCHS[0]);
        let specs: Vec<Spec> = specs.into_iter().filter(|spec| spec.module == "softmax").collect();
        let module = kernels(&target).modules(&specs).unwrap().remove(0);
        let mut file = module.cubin.as_ref().unwrap().content().unwrap();
        let codes = of_cubin(&file).unwrap();
        let names: Vec<&String> = codes.keys().collect();
        let mut wanted: Vec<&String> = module.report().kernels.iter().map(|k| &k.name).collect();
        wanted.sort();
        assert_eq!(names, wanted);
        let first = codes.values().next().unwrap();
        let place = file.windows(first.len()).position(|part| part == first).unwrap();
        file[place] ^= 1;
        assert_ne!(of_cubin(&file).unwrap(), codes);
        assert!(of_cubin(&file[..100]).is_err());
    }
}
