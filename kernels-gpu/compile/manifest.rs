//! Manifests of compiled modules: sources, compiler, and the ptxas report of each kernel. A module is up to date if the
//! hash of its sources equals the hash in its manifest.

use crate::cache::{self, Hash};
use crate::resources::{Report, Resources, Warning};
use crate::spec::{Spec, is_kernel_source};
use crate::{Error, RECIPE};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Kernel sources in their current state.
pub(crate) struct Sources {
    pub(crate) folder: PathBuf,
    /// Maps the path below the directory, with `/`, to the hash of the code.
    files: BTreeMap<String, String>,
}

impl Sources {
    pub(crate) fn read(folder: &Path) -> Result<Sources, Error> {
        let mut files = BTreeMap::new();
        for path in cache::files(folder, &is_kernel_source)? {
            let name = path.to_string_lossy().replace('\\', "/");
            let content = cache::read(&folder.join(&path))?;
            files.insert(name, Hash::new().add(code(&content)).hex());
        }
        Ok(Sources { folder: folder.to_path_buf(), files })
    }

    /// Returns the key of a module that `compiler` makes of the sources `named`. `None` if a source is missing.
    pub(crate) fn key(
        &self,
        spec: &Spec,
        named: &BTreeSet<String>,
        compiler: &str,
    ) -> Option<String> {
        let mut key = Hash::new().add(RECIPE).add(compiler).add(spec.name());
        for kernel in &spec.kernels {
            key = key.add(format!("{kernel:?}"));
        }
        for name in named {
            key = key.add(name).add(self.files.get(name)?);
        }
        Some(key.hex())
    }
}

/// Returns a source without its comment lines, which have no effect on the PTX.
fn code(source: &[u8]) -> Vec<u8> {
    let lines = source.split_inclusive(|&byte| byte == b'\n');
    let is_code = |line: &&[u8]| !line.trim_ascii_start().starts_with(b"//");
    lines.filter(is_code).flatten().copied().collect()
}

/// One module in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) module: String,
    pub(crate) arch: String,
    pub(crate) key: String,
    pub(crate) compiler: String,
    /// Release of the ptxas that made the report and the machine code; empty if the module was not assembled.
    pub(crate) ptxas: String,
    /// Bytes of the PTX, an estimate of the compile time.
    pub(crate) bytes: u64,
    pub(crate) sources: BTreeSet<String>,
    pub(crate) report: Report,
}

impl Entry {
    /// Prefix of the key that is used in file names.
    pub(crate) fn short_key(&self) -> &str {
        self.key.get(..16).unwrap_or(&self.key)
    }

    /// Whether the module was made of these sources and rows.
    pub(crate) fn fits(&self, spec: &Spec, sources: &Sources) -> bool {
        let key = sources.key(spec, &self.sources, &self.compiler);
        self.module == spec.module && self.arch == spec.arch && key.as_ref() == Some(&self.key)
    }
}

/// Returns the text of a manifest: the sources that all modules share, then the modules.
pub(crate) fn write(entries: &[Entry]) -> String {
    let Some(first) = entries.first() else {
        return String::new();
    };
    let in_all = |source: &&String| entries.iter().all(|e| e.sources.contains(*source));
    let common: BTreeSet<&String> = first.sources.iter().filter(in_all).collect();
    let mut text = String::new();
    let mut line = |words: &[&str]| {
        let _ = writeln!(text, "{}", words.join(" "));
    };
    for source in &common {
        line(&["source", source]);
    }
    let mut made_by = ("", "");
    for entry in entries {
        if made_by.0 != entry.compiler {
            line(&["compiler", &entry.compiler]);
        }
        if made_by.1 != entry.ptxas {
            line(&["ptxas", &entry.ptxas]);
        }
        made_by = (&entry.compiler, &entry.ptxas);
        let bytes = entry.bytes.to_string();
        line(&["module", &entry.module, &entry.arch, &entry.key, &bytes]);
        for source in entry.sources.iter().filter(|s| !common.contains(s)) {
            line(&["own", source]);
        }
        for k in &entry.report.kernels {
            let numbers = [k.registers, k.stack, k.spill_stores, k.spill_loads, k.smem];
            let numbers = numbers.map(|n| n.to_string()).join(" ");
            line(&["kernel", &k.name, &numbers]);
        }
        for warning in &entry.report.warnings {
            line(&["warning", &warning.code, &warning.text]);
        }
    }
    text
}

/// Parses a text that [`write`] returned. `None` for any other text.
pub(crate) fn parse(text: &str) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut common = BTreeSet::new();
    let (mut compiler, mut ptxas) = (String::new(), String::new());
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split(' ');
        match word {
            "source" => {
                common.insert(rest.to_string());
            }
            "compiler" => compiler = rest.to_string(),
            "ptxas" => ptxas = rest.to_string(),
            "module" => entries.push(Entry {
                module: words.next()?.to_string(),
                arch: words.next()?.to_string(),
                key: words.next()?.to_string(),
                bytes: words.next()?.parse().ok()?,
                compiler: compiler.clone(),
                ptxas: ptxas.clone(),
                sources: common.clone(),
                report: Report::default(),
            }),
            "own" => {
                entries.last_mut()?.sources.insert(rest.to_string());
            }
            "kernel" => {
                let name = words.next()?.to_string();
                let mut number = || words.next()?.parse().ok();
                let kernel = Resources {
                    name,
                    registers: number()?,
                    stack: number()?,
                    spill_stores: number()?,
                    spill_loads: number()?,
                    smem: number()?,
                };
                entries.last_mut()?.report.kernels.push(kernel);
            }
            "warning" => {
                let (code, text) = rest.split_once(' ')?;
                let (code, text) = (code.to_string(), text.to_string());
                entries.last_mut()?.report.warnings.push(Warning { code, text });
            }
            _ => return None,
        }
    }
    Some(entries)
}

/// Parses a manifest. Returns the architecture and the ptxas report of each module; `None` if the text is not a
/// manifest.
pub fn reports(text: &str) -> Option<Vec<(String, Report)>> {
    Some(parse(text)?.into_iter().map(|entry| (entry.arch, entry.report)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;

    fn entry(module: &str, own: &str) -> Entry {
        let kernel = Resources {
            name: format!("{module}_a"),
            registers: 40,
            smem: 16,
            ..Resources::default()
        };
        let warning =
            Warning { code: "C7508".into(), text: "ptxas info : (C7508) two words".into() };
        Entry {
            module: module.into(),
            arch: "sm_80".into(),
            key: "0".into(),
            compiler: "rustc 1.96.0 (x y)".into(),
            ptxas: "13.5.37".into(),
            bytes: 7,
            sources: ["lib.rs", own].map(String::from).into(),
            report: Report { kernels: vec![kernel], warnings: vec![warning] },
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut entries = vec![entry("spmm", "device/spmm.rs"), entry("block", "b.rs")];
        entries[1].ptxas.clear();
        let text = write(&entries);
        assert_eq!(text.matches("lib.rs").count(), 1, "{text}");
        assert_eq!(parse(&text), Some(entries));
        assert_eq!(parse("module spmm"), None);
        assert_eq!(parse("<<<<<<<"), None);
    }

    #[test]
    fn a_module_fits_its_own_sources_only() {
        let folder = std::env::temp_dir().join(format!("einsparse-fits-{}", std::process::id()));
        cache::write(&folder.join("lib.rs"), b"a").unwrap();
        cache::write(&folder.join("device/spmm.rs"), b"b").unwrap();
        cache::write(&folder.join("device/other.rs"), b"c").unwrap();
        let kernel =
            Kernel { name: "spmm_a".into(), source: "Csr F32".into(), threads: 128, min_blocks: 1 };
        let mut spec = Spec {
            module: "spmm".into(),
            family: "spmm".into(),
            arch: "sm_80".into(),
            kernels: vec![kernel],
            partial: false,
        };
        let read = || Sources::read(&folder).unwrap();
        let mut entry = entry("spmm", "device/spmm.rs");
        entry.key =
            read().key(&spec, &entry.sources, &entry.compiler).expect("all sources are there");
        assert!(entry.fits(&spec, &read()));
        cache::write(&folder.join("device/other.rs"), b"changed").unwrap();
        assert!(entry.fits(&spec, &read()), "a source of another module");
        spec.kernels[0].min_blocks = 2;
        assert!(!entry.fits(&spec, &read()), "other launch bounds");
        spec.kernels[0].min_blocks = 1;
        cache::write(&folder.join("device/spmm.rs"), b"  // A reason.\nb").unwrap();
        assert!(entry.fits(&spec, &read()), "a comment");
        cache::write(&folder.join("device/spmm.rs"), b"changed").unwrap();
        assert!(!entry.fits(&spec, &read()), "a changed source");
        cache::remove_file(&folder.join("device/spmm.rs")).unwrap();
        assert!(!entry.fits(&spec, &read()), "a source that is gone");
        cache::remove_dir(&folder).unwrap();
    }
}
