//! A crate outside the workspace builds, links and starts without CUDA; its cdylib exports nothing of the driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use crate::support::skipped;
use libloading::Library;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The crate's files, copied to a place where this project's own .cargo/config.toml does not reach.
fn copy() -> PathBuf {
    let source = Path::new(ROOT).join("tests/downstream");
    // The same place for the same checkout, so that a second run builds nothing.
    let name = format!(
        "einsparse-downstream-{:x}",
        ROOT.bytes().fold(7u64, |h, b| {
            h.wrapping_mul(0x100_0000_01b3) ^ u64::from(b)
        })
    );
    let target = env::temp_dir().join(name);
    for file in [
        "Cargo.toml",
        ".cargo/config.toml",
        "src/lib.rs",
        "src/main.rs",
    ] {
        let text = fs::read_to_string(source.join(file)).expect(file);
        // The one change: the dependency's path no longer is relative.
        let text = text.replace("path = \"../..\"", &format!("path = {ROOT:?}"));
        let place = target.join(file);
        fs::create_dir_all(place.parent().expect("a file in a folder"))
            .expect("a folder in the temporary folder");
        if fs::read_to_string(&place).ok().as_ref() != Some(&text) {
            fs::write(&place, text).expect("a file in the temporary folder");
        }
    }
    // The versions of this project's lock file: nothing to resolve, nothing new to download.
    if !target.join("Cargo.lock").is_file() {
        let _ = fs::copy(
            Path::new(ROOT).join("Cargo.lock"),
            target.join("Cargo.lock"),
        );
    }
    target
}

/// Below the outer target folder, so that the device modules come from its cache.
fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("downstream")
}

/// Without the variables that cargo and this project's configuration set for a test.
fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let ours = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_BIN_");
        let build = [
            "DOCS_RS",
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "RUSTC_WORKSPACE_WRAPPER",
            "CARGO_MANIFEST_DIR",
        ];
        if ours || build.contains(&&*name) {
            command.env_remove(&*name);
        }
    }
    command
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Cargo and the sources, or `None` (said aloud) where only the test binary was carried.
fn cargo() -> Option<PathBuf> {
    let cargo = PathBuf::from(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let there = Path::new(ROOT)
        .join("tests/downstream/Cargo.toml")
        .is_file();
    if !there || Command::new(&cargo).arg("--version").output().is_err() {
        skipped("no cargo or no sources", "the crate is built from them");
        return None;
    }
    Some(cargo)
}

#[test]
fn a_crate_outside_the_workspace_builds_and_runs() {
    let Some(cargo) = cargo() else { return };
    let mut build = clean(cargo);
    // What `cargo xtask setup` put into this build folder, where the active toolchain has no library sources.
    let ours = env::current_exe().ok();
    let ours = ours.and_then(|program| einsparse_compile::target_dir(&program));
    let installed = ours.map(|folder| folder.join("toolchain/rust"));
    let installed = installed.filter(|folder| folder.join("rustc").is_file());
    if let (None, Some(folder)) = (env::var_os("EINSPARSE_TOOLCHAIN"), installed) {
        build.env("EINSPARSE_TOOLCHAIN", folder);
    }
    let output = build
        .current_dir(copy())
        .args(["build", "--target-dir"])
        .arg(target_dir())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", text(&output));

    let folder = target_dir().join("debug");
    let output = clean(folder.join("downstream"))
        .output()
        .expect("the crate starts");
    assert!(output.status.success(), "{}", text(&output));
    let line = text(&output);
    match einsparse::driver::available() {
        Ok(()) => assert_eq!(line, "driver: available\n"),
        Err(error) => assert_eq!(line, format!("driver: {error}\n")),
    }
    exports_nothing_of_the_driver(&folder.join(format!(
        "{}downstream{}",
        env::consts::DLL_PREFIX,
        env::consts::DLL_SUFFIX
    )));
}

fn exports_nothing_of_the_driver(path: &Path) {
    // SAFETY: our own library; its initialisers are the Rust runtime's.
    let library = unsafe { Library::new(path) }.expect("the cdylib opens");
    // SAFETY: the function has this type, see tests/downstream/src/lib.rs.
    let available = unsafe { library.get::<extern "C" fn() -> i32>(b"downstream_available\0") };
    let available = available.expect("the library exports its own function");
    assert_eq!(available() == 1, einsparse::driver::available().is_ok());
    for name in [
        "cuInit",
        "cuMemAlloc_v2",
        "cuLaunchKernel",
        "cuGetErrorString",
        "cuModuleLoadDataEx",
    ] {
        // SAFETY: only looked up, never called.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        // The library is linked against no libcuda, so a hit could only be its own.
        assert!(found.is_err(), "the cdylib exports {name}");
    }
}

/// Without the variable the build stops at our build script, which says what to write where.
#[test]
fn without_docs_rs_the_build_says_what_to_do() {
    let Some(script) = build_script() else {
        return skipped("no build script", "only the test program was carried here");
    };
    let out = target_dir().join("without-docs-rs");
    fs::create_dir_all(&out).expect("a folder below the target folder");
    let output = clean(script)
        .current_dir(ROOT)
        .env("OUT_DIR", &out)
        .output()
        .expect("the build script starts");
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("DOCS_RS") && said.contains("[env]") && said.contains(".cargo/config.toml"),
        "{said}"
    );
    assert_eq!(said.matches("cargo::error=").count(), 1, "{said}");
}

/// The newest build script of this package. Cargo lays it out as `build/einsparse-<hash>/build-script-build`, since 1.101
/// as `build/einsparse/<hash>/out/build_script_build`.
fn build_script() -> Option<PathBuf> {
    let builds = Path::new(env!("OUT_DIR")).parent()?.parent()?;
    let scripts = fs::read_dir(builds).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let (hash, script) = match builds.ends_with("einsparse") {
            true => (&*name, "out/build_script_build"),
            false => (name.strip_prefix("einsparse-")?, "build-script-build"),
        };
        let script = entry.path().join(script);
        let time = script.metadata().ok()?.modified().ok()?;
        let ours = hash.chars().all(|c| c.is_ascii_hexdigit());
        ours.then_some((time, script))
    });
    scripts.max().map(|(_, script)| script)
}
