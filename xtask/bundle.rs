//! `cargo xtask gpu-bundle`: stripped test, bench and command binaries, data and a `run.sh`, for a machine that has a
//! GPU and its driver but no toolchain.

use crate::archs;
use crate::cargo::{Result, cargo, git, json_string, root, target_dir};
use crate::faults;
use crate::nvvm::{self, Compiler};
use crate::python;
use crate::setup::prepare;
use einsparse_compile::Spec;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories of data that the GPU tests and the benches read.
const DATA: [&str; 5] = ["dlmc", "graphs", "matrix-market", "malformed", "point-cloud"];

/// Max bytes of a bundle: some ways of transfer have a size limit.
const LARGEST: u64 = 60 << 20;

/// Archive that run.sh unpacks.
const PACKED: &str = "bundle.tar.xz";

const RUN: &str = include_str!("run.sh");

/// Parts of a bundle that are not always needed.
pub struct Parts {
    /// Adds modules with one planted fault each, those whose names contain one of the comma-separated texts.
    pub faults: Option<String>,
    /// Adds machine code of the modules for other GPUs.
    pub archs: bool,
    /// Adds the examples of the documentation.
    pub doctests: bool,
    /// Backend that compiles all modules.
    pub compiler: Compiler,
}

/// Crates whose documentation has examples that a GPU runs.
const DOCUMENTED: [&str; 5] =
    ["einsparse", "einsparse-core", "einsparse-cuda", "einsparse-group", "einsparse-nn"];

/// Builds `gpu-bundle/` in the root of the project: everything, or the tests and benches of one module on one
/// architecture.
pub fn bundle(module: Option<&str>, arch: &str, parts: &Parts) -> Result<()> {
    let Parts { faults, archs, doctests, compiler } = parts;
    let mut specs = Spec::every();
    if let Some(module) = module {
        specs.retain(|spec| spec.module == module && spec.arch == arch);
        if specs.is_empty() {
            return Err(format!("no module {module} for {arch}").into());
        }
    }
    let modules = match compiler.open()? {
        Some(nvvm) => Some(nvvm::folder(&specs, Some(nvvm))?),
        None => prepare(&specs).map(|()| None)?,
    };
    let folder = root().join("gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("tests"))?;
    if let Some(module) = module {
        fs::write(folder.join("module"), module)?;
    }
    for (name, built) in executables(&specs, modules)? {
        let copy = folder.join(name);
        fs::copy(&built, &copy)?;
        let stripped = Command::new("strip").arg(&copy).status();
        if !stripped.is_ok_and(|status| status.success()) {
            eprintln!("{}: not stripped", copy.display());
        }
    }
    fs::write(folder.join("run.sh"), RUN)?;
    executable(&folder.join("run.sh"))?;
    let head = ["describe", "--always", "--dirty", "--exclude=*"];
    if let Ok(commit) = git(&head) {
        fs::write(folder.join("commit"), commit)?;
    }
    copy_data(&folder.join("data"))?;
    if module.is_none() {
        python::bundle(&folder.join("python"))?;
    }
    if let Some(named) = faults {
        faults::plant(&folder.join("faults"), named)?;
    }
    if *doctests {
        build_doctests(&specs, &folder.join("doctests"))?;
    }
    if *archs {
        archs::assemble_for_test_gpu(&specs, &folder.join("cubins"))?;
    }
    pack(&folder)?;
    let bytes = size(&folder)?;
    println!("{}: {:.1} MB", folder.display(), bytes as f64 / 1e6);
    match bytes <= LARGEST {
        true => Ok(()),
        false => Err(format!("larger than {} MB", LARGEST >> 20).into()),
    }
}

/// Builds the examples in the documentation of each crate as one program, and runs them here, without a GPU.
fn build_doctests(specs: &[Spec], folder: &Path) -> Result<()> {
    let kept = target_dir()?.join("doctests");
    let _ = fs::remove_dir_all(&kept);
    fs::create_dir_all(&kept)?;
    fs::create_dir_all(folder)?;
    // rustdoc keeps the programs only as an unstable option. Set for cargo too, the variable would rebuild all crates.
    let rustdoc = kept.join("rustdoc.sh");
    let name = r#"name=$(printf '%s\n' "$@" | sed -n '/^--crate-name$/{n;p;}')"#;
    let options = format!("-Zunstable-options --persist-doctests {kept:?}/$name");
    let run = format!("RUSTC_BOOTSTRAP=1 exec rustdoc {options} \"$@\"");
    fs::write(&rustdoc, format!("#!/bin/sh\n{name}\nmkdir -p {kept:?}/$name\n{run}\n"))?;
    executable(&rustdoc)?;
    let modules: Vec<String> = specs.iter().map(Spec::name).collect();
    let mut build = cargo(["test", "--doc", "--release"]);
    build.args(DOCUMENTED.iter().flat_map(|package| ["--package", package]));
    build.env("RUSTDOC", &rustdoc).env("EINSPARSE_MODULES", modules.join(","));
    if !build.env("EINSPARSE_REQUIRE_PTX", "1").status()?.success() {
        return Err("building the examples of the documentation failed".into());
    }
    for package in DOCUMENTED {
        let programs = kept.join(package.replace('-', "_"));
        let mut found = 0;
        for entry in fs::read_dir(&programs)? {
            let program = entry?.path().join("rust_out");
            if program.is_file() {
                let copy = folder.join(format!("{package}-{found}"));
                fs::copy(&program, &copy)?;
                Command::new("strip").arg(&copy).status()?;
                found += 1;
            }
        }
        if found == 0 {
            return Err(format!("{package} has no examples").into());
        }
    }
    Ok(())
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Packs everything into one archive, except `run.sh` and the files that it reads before it unpacks. All programs
/// contain the same machine code. A dictionary that spans several programs stores that code once. Without xz the bundle
/// is only larger.
fn pack(folder: &Path) -> Result<()> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !["run.sh", "commit", "module"].iter().any(|kept| name == *kept) {
            parts.push(name);
        }
    }
    parts.sort();
    let mut tar = Command::new("tar");
    tar.args(["-I", "xz -T1 --lzma2=preset=2,dict=256MiB", "-cf", PACKED]);
    let packed = tar.args(&parts).current_dir(folder).status();
    if !packed.is_ok_and(|status| status.success()) {
        eprintln!("{}: not packed", folder.display());
        let _ = fs::remove_file(folder.join(PACKED));
        return Ok(());
    }
    for part in parts {
        let path = folder.join(part);
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Paths of the built test programs (`tests/<name>`), bench programs (`bench-<name>`) and the command, by their path in
/// the bundle. `modules`: a directory of modules and the name of their compiler, in place of the modules that the build
/// finds.
fn executables(
    specs: &[Spec],
    modules: Option<(PathBuf, String)>,
) -> Result<BTreeMap<String, PathBuf>> {
    // A single module is rebuilt often. The profile `quick` builds incrementally.
    let profile = if specs.len() > 1 { "release" } else { "quick" };
    let mut build = cargo(["build", "--profile", profile, "--package", "einsparse"]);
    // Each program contains all kernels, so examples, and tests and benches that need no GPU, are left out.
    build.args(["--test=device", "--bench=gpu"]);
    if specs.len() > 1 {
        build.args(["--package=einsparse-cli", "--bench=cpu_bytes", "--bin=einsparse"]);
        build.arg("--features=einsparse/cudarc");
    }
    build.arg("--message-format=json-render-diagnostics");
    if let Some((folder, compiler)) = modules {
        build.env("EINSPARSE_PTX", folder).env("EINSPARSE_DEVICE_COMPILER", compiler);
    }
    let modules: Vec<String> = specs.iter().map(Spec::name).collect();
    let output = build
        .env("EINSPARSE_REQUIRE_PTX", "1")
        .env("EINSPARSE_MODULES", modules.join(","))
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("building the bundle failed ({})", output.status).into());
    }
    let mut found = BTreeMap::new();
    for message in String::from_utf8(output.stdout)?.lines() {
        let Some(executable) = json_string(message, "executable") else {
            continue;
        };
        let Some((_, target)) = message.split_once("\"target\":{") else {
            continue;
        };
        let (target, profile) =
            target.split_once("\"profile\":{").ok_or("cargo names no profile")?;
        let target = target.split('}').next().unwrap_or(target);
        let name = json_string(target, "name").ok_or("cargo names no target")?;
        let place = match profile.contains("\"test\":true") {
            _ if target.contains("\"kind\":[\"bench\"]") => format!("bench-{name}"),
            true => format!("tests/{name}"),
            false => name,
        };
        found.insert(place, PathBuf::from(executable));
    }
    Ok(found)
}

/// Copies the directories of [`DATA`] that exist.
fn copy_data(to: &Path) -> Result<()> {
    let from = env::var_os("EINSPARSE_DATA").map_or_else(|| root().join("data"), PathBuf::from);
    for name in DATA {
        match from.join(name) {
            folder if folder.is_dir() => copy_folder(&folder, &to.join(name))?,
            folder => eprintln!("{}: not there, the bundle goes without it", folder.display()),
        }
    }
    Ok(())
}

/// Copies the content of a directory.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy_folder(&path, &copy)?,
            false => fs::copy(&path, &copy).map(|_| ())?,
        }
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.path().is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run.sh unpacks all packed files, and programs stay executable.
    #[test]
    fn run_unpacks_what_was_packed() {
        let there = |name: &str| {
            let found = Command::new(name).arg("--version").output();
            found.is_ok_and(|output| output.status.success())
        };
        if !there("xz") || !there("tar") {
            println!("skipped: no xz or no tar, and bundles are not packed then");
            return;
        }
        let folder = env::temp_dir().join(format!("einsparse-bundle-{}", std::process::id()));
        fs::create_dir_all(folder.join("tests")).unwrap();
        fs::create_dir_all(folder.join("data")).unwrap();
        fs::write(folder.join("run.sh"), RUN).unwrap();
        fs::write(folder.join("commit"), "c").unwrap();
        let program = folder.join("tests/device");
        fs::copy("/bin/sh", &program).unwrap();
        fs::write(folder.join("data/m.mtx"), "1 1 1").unwrap();
        pack(&folder).unwrap();
        let names = || {
            let entries = fs::read_dir(&folder).unwrap();
            let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["bundle.tar.xz", "commit", "run.sh"]);
        let mut run = Command::new("sh");
        // With an unknown part, run.sh unpacks, lists the parts and stops.
        let output = run.arg(folder.join("run.sh")).arg("help").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(names(), ["commit", "data", "run.sh", "tests"]);
        assert!(fs::read(&program).unwrap() == fs::read("/bin/sh").unwrap());
        let said = Command::new(&program).args(["-c", "echo here"]).output();
        assert_eq!(said.unwrap().stdout, b"here\n");
        fs::remove_dir_all(&folder).unwrap();
    }
}
