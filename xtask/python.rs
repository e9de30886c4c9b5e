//! The Python package: `cargo xtask python` tests it, and bundles contain the wheel that maturin built.

use crate::cargo::{Result, cargo, part, root, target_dir};
use crate::setup::prepare;
use einsparse_compile::Spec;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODULE: &str = "_einsparse.abi3.so";

/// Builds the package with the library that `cargo xtask test` has built. Runs its tests with NumPy and SciPy, which
/// pip installs in the build directory.
pub fn test(arguments: &[String]) -> Result<()> {
    let mut specs = Spec::asked();
    let present = einsparse_compile::present();
    specs.retain(|spec| present.contains(&&*spec.arch));
    prepare(&specs)?;
    // Uses the features and the environment of `cargo xtask test`. These include the features that only dependencies of
    // tests enable. Building the package alone would rebuild the library with other features.
    let mut build = cargo(["build", "--workspace", "--all-features", "--lib"]);
    build.args(["--test", "clebsch_gordan"]);
    build.env("EINSPARSE_REQUIRE_PTX", "1");
    part("python module", &mut build)?;

    let target = target_dir()?;
    let folder = target.join("python");
    let package = folder.join("einsparse");
    fs::create_dir_all(&package)?;
    fs::copy(root().join("python/einsparse/__init__.py"), package.join("__init__.py"))?;
    fs::copy(target.join("debug/lib_einsparse.so"), package.join(MODULE))?;
    if !folder.join("scipy").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]);
        part("pip", pip.arg(&folder).args(["numpy", "scipy", "pytest"]))?;
    }
    let mut pytest = Command::new("python3");
    pytest.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "python/tests"]);
    pytest.args(arguments).current_dir(root());
    pytest.env("PYTHONPATH", &folder).env("PYTHONDONTWRITEBYTECODE", "1");
    part("pytest", &mut pytest)?;
    let mut example = Command::new("python3");
    example.arg("python/examples/spmm.py").current_dir(root());
    part("example", example.env("PYTHONPATH", &folder))
}

/// Unpacks the newest wheel of `target/wheels`, and the tests, into a directory. Without a wheel it prints a note.
pub fn bundle(folder: &Path) -> Result<()> {
    let mut wheels: Vec<PathBuf> = fs::read_dir(target_dir()?.join("wheels"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    wheels.retain(|path| path.extension().is_some_and(|end| end == "whl"));
    wheels.sort_by_key(|path| fs::metadata(path).and_then(|of| of.modified()).ok());
    let Some(wheel) = wheels.last() else {
        eprintln!("no wheel in target/wheels, the bundle goes without the package of Python");
        return Ok(());
    };
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(wheel).arg(folder);
    part("wheel", &mut unzip)?;
    for part in ["tests", "examples"] {
        crate::bundle::copy_folder(&root().join("python").join(part), &folder.join(part))?;
    }
    Ok(())
}
