//! `cargo xtask witness COMMIT`: which kernels have other machine code than at a commit. A step that moves code about
//! shows none.

use crate::cargo::{Result, git, target_dir};
use crate::setup::{kernels, setup};
use einsparse_compile::Spec;
use einsparse_kernels::packed::unpack;
use einsparse_kernels::table::ARCHS;
use std::collections::BTreeMap;

/// Where the machine code of a commit lies.
const KEPT: &str = "kernels-gpu/prebuilt/cubin/sm_90a";

/// Machine code by kernel.
type Codes = BTreeMap<String, Vec<u8>>;

/// Compares every kernel for the first architecture with that of `commit`, by name, whatever module it lies in. An error where one
/// differs.
pub fn witness(commit: &str) -> Result<()> {
    let (before, now) = (of_commit(commit)?, of_sources()?);
    let mut told = Vec::new();
    for (name, code) in &now {
        match before.get(name) {
            None => told.push(format!("{name}: new, {} bytes", code.len())),
            Some(other) if other != code => {
                let (from, to) = (other.len(), code.len());
                told.push(format!("{name}: other code, {from} bytes and now {to}"));
            }
            Some(_) => {}
        }
    }
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    told.extend(gone.map(|name| format!("{name}: gone")));
    told.iter().for_each(|line| println!("{line}"));
    let same = now.iter().filter(|(name, code)| before.get(*name) == Some(code));
    println!("{} of {} kernels have the code of {commit}", same.count(), now.len());
    match told.len() {
        0 => Ok(()),
        count => Err(format!("{count} kernels are not as at {commit}").into()),
    }
}

/// What the sources make: kept, cached or compiled now.
fn of_sources() -> Result<Codes> {
    let target = target_dir()?;
    // Modules that only benches use are left out: they are not kept.
    let mut specs = Spec::all();
    specs.retain(|spec| spec.arch == ARCHS[0].name);
    let kernels = kernels(&target);
    if !kernels.stale(&specs)?.is_empty() {
        setup()?;
    }
    let mut codes = Codes::new();
    for module in kernels.modules(&specs)? {
        if let Some(code) = &module.cubin {
            codes.extend(of_cubin(&code.content()?)?);
        }
    }
    Ok(codes)
}

fn of_commit(commit: &str) -> Result<Codes> {
    let folder = format!("{KEPT}/");
    let listed = git(&["ls-tree", "--name-only", commit, &folder])?;
    let mut codes = Codes::new();
    for path in String::from_utf8(listed)?.lines().filter(|path| path.ends_with(".zst")) {
        let packed = git(&["show", &format!("{commit}:{path}")])?;
        codes.extend(of_cubin(&unpack(&packed)?)?);
    }
    match codes.is_empty() {
        true => Err(format!("{commit} has no modules in {KEPT}").into()),
        false => Ok(codes),
    }
}

/// The sections `.text.<kernel>` of a file of machine code (ELF, 64 bits, little-endian).
fn of_cubin(file: &[u8]) -> Result<Codes> {
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
    // Sections without bytes in the file have a size as well.
    let is_code = |section: &usize| name(*section).is_some_and(|name| name.starts_with(".text."));
    let own = (0..count).filter(is_code);
    own.map(|section| Some((name(section)?, content(section)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel of the table is found in the modules that are kept, and a changed byte shows.
    #[test]
    fn kernels_are_found_in_their_modules() {
        let target = target_dir().unwrap();
        let specs = Spec::of_table(&ARCHS[0]);
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
