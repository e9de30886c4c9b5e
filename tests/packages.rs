//! The packages as a user gets them: packed, and unpacked elsewhere. A dependent crate is built with the oldest
//! supported Rust and no other tools, linked with libcuda and without, next to another CUDA crate.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use crate::support::skipped;
use einsparse_compile::Spec;
use libloading::Library;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Maximum size of a published package, bytes.
const LARGEST: u64 = 9_000_000;

/// A directory below the outer target directory, so that a second run builds little.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

fn done(what: &str, command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(output.status.success(), "{what}:\n{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Creates a command without the environment of cargo and this test, and without tools that could build kernels: only
/// Rust's programs, the linker and its drivers are available.
fn clean(program: impl AsRef<Path>, tools: &Path) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env_clear().env("PATH", tools);
    for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME", "TMPDIR"] {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Creates a directory with links to the few programs that a Rust build requires.
fn tools(rust: &Path) -> PathBuf {
    let folder = folder("tools");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let path = env::var_os("PATH").unwrap_or_default();
    let found = |name: &str| env::split_paths(&path).map(|at| at.join(name)).find(|p| p.is_file());
    let of_system = ["cc", "gcc", "ld", "as"].map(|name| (name, found(name)));
    let of_rust = ["cargo", "rustc"].map(|name| (name, Some(rust.join(name))));
    for (name, program) in of_system.into_iter().chain(of_rust) {
        if let Some(program) = program {
            std::os::unix::fs::symlink(program, folder.join(name)).expect("a link");
        }
    }
    folder
}

/// Directory of the toolchain that `rust-version` names, or of `stable` if only that one is installed.
fn oldest_rust() -> Option<PathBuf> {
    let promised = env!("CARGO_PKG_RUST_VERSION");
    for name in [promised, "stable"] {
        let mut which = Command::new("rustup");
        which.args(["which", "--toolchain", name, "rustc"]);
        let output = which.output().ok().filter(|output| output.status.success());
        let rustc = output.map(|o| PathBuf::from(String::from_utf8_lossy(&o.stdout).trim()));
        if let Some(folder) = rustc.as_deref().and_then(Path::parent) {
            return Some(folder.to_path_buf());
        }
    }
    None
}

/// Packs and unpacks every published crate. Returns names and directories.
fn packages() -> Vec<(String, PathBuf)> {
    let target = folder("packages");
    let _ = fs::remove_dir_all(target.join("package"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(ROOT).env_remove("CARGO_TARGET_DIR");
    cargo.args(["package", "--workspace", "--exclude=xtask"]);
    // The Python package is published as a wheel.
    cargo.args(["--exclude=einsparse-python", "--no-verify"]);
    cargo.args(["--allow-dirty", "--offline", "--target-dir"]);
    done("cargo package", cargo.arg(&target));
    let unpacked = folder("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked).expect("a folder");
    let (mut packages, mut hash) = (Vec::new(), DefaultHasher::new());
    let files = fs::read_dir(target.join("package")).expect("packages");
    let files: BTreeSet<PathBuf> = files.flatten().map(|file| file.path()).collect();
    for path in files {
        if path.extension().is_none_or(|end| end != "crate") {
            continue;
        }
        let bytes = fs::read(&path).expect("a file");
        let (size, shown) = (bytes.len() as u64, path.display());
        assert!(size <= LARGEST, "{shown}: {size} bytes");
        bytes.hash(&mut hash);
        done("unpacking", Command::new("tar").arg("-xzf").arg(&path).current_dir(&unpacked));
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let name = stem.rsplit_once('-').expect("a version").0.to_owned();
        packages.push((name, unpacked.join(stem)));
    }
    // All files of a package have one old date, so cargo would not detect that they changed.
    let (known, hash) = (target.join("hash"), hash.finish().to_string());
    if fs::read_to_string(&known).ok().as_ref() != Some(&hash) {
        let _ = fs::remove_dir_all(folder("downstream"));
        fs::write(known, hash).expect("a file");
    }
    packages
}

/// Creates a copy of the crate outside of the workspace, with the unpacked packages as its dependencies.
fn downstream(packages: &[(String, PathBuf)]) -> PathBuf {
    let source = Path::new(ROOT).join("tests/downstream");
    // The copy is in the temporary directory: below the workspace, cargo would read the workspace's configuration.
    let hash = ROOT.bytes().fold(7u64, |h, b| h.wrapping_mul(0x100_0000_01b3) ^ u64::from(b));
    let copy = env::temp_dir().join(format!("einsparse-downstream-{hash:x}"));
    for file in ["Cargo.toml", "src/lib.rs", "src/main.rs"] {
        let mut text = fs::read_to_string(source.join(file)).expect(file);
        if file == "Cargo.toml" {
            text += "\n[patch.crates-io]\n";
            for (name, folder) in packages {
                text += &format!("{name} = {{ path = {folder:?} }}\n");
            }
        }
        let place = copy.join(file);
        fs::create_dir_all(place.parent().expect("a file in a folder")).expect("a folder");
        if fs::read_to_string(&place).ok().as_ref() != Some(&text) {
            fs::write(&place, text).expect("a file");
        }
    }
    // The versions of this project's lock file, so nothing is downloaded.
    let _ = fs::copy(Path::new(ROOT).join("Cargo.lock"), copy.join("Cargo.lock"));
    copy
}

/// The driver part of a CUDA installation: a stub library whose functions return "no device".
fn fake_cuda(rust: &Path) -> PathBuf {
    let folder = folder("cuda");
    let stubs = folder.join("lib64/stubs");
    fs::create_dir_all(&stubs).expect("a folder");
    fs::create_dir_all(folder.join("include")).expect("a folder");
    fs::write(folder.join("include/cuda.h"), "").expect("a file");
    let list =
        fs::read_to_string(Path::new(ROOT).join("host/cuda/driver/symbols.rs")).expect("a list");
    let called = list.lines().filter_map(|line| line.trim().split_once('('));
    let called = called.map(|(name, _)| name).filter(|name| {
        name.starts_with("cu") && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    });
    let mut names: BTreeSet<&str> = called.collect();
    names.extend(["cuGetErrorString", "cuGetErrorName", "cuDriverGetVersion"]);
    assert!(names.len() > 80, "{names:?}");
    let define = |name: &str| {
        format!("#[unsafe(no_mangle)] pub extern \"C\" fn {name}() -> u32 {{ 100 }}\n")
    };
    let source = folder.join("stub.rs");
    let text: String = names.into_iter().map(define).collect();
    fs::write(&source, format!("#![allow(non_snake_case)]\n{text}")).expect("a file");
    let mut rustc = Command::new(rust.join("rustc"));
    rustc.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "-Clink-arg=-Wl,-soname,libcuda.so.1",
        "-o",
    ]);
    done("the stub", rustc.arg(stubs.join("libcuda.so")).arg(source));
    fs::copy(stubs.join("libcuda.so"), stubs.join("libcuda.so.1")).expect("a copy");
    folder
}

/// Builds a crate from the packages of `cargo package`; all in one test, to build once.
#[test]
fn a_crate_builds_from_packages_with_the_oldest_rust() {
    let there = Path::new(ROOT).join("tests/downstream/Cargo.toml").is_file();
    let Some(rust) = oldest_rust().filter(|_| there) else {
        return skipped("no rustup or no sources", "the crate is built from packages");
    };
    let packages = packages();
    let names: BTreeSet<&str> = packages.iter().map(|(name, _)| name.as_str()).collect();
    let wanted = [
        "einsparse",
        "einsparse-cli",
        "einsparse-compile",
        "einsparse-core",
        "einsparse-cubin",
        "einsparse-cuda",
        "einsparse-formats",
        "einsparse-group",
        "einsparse-kernels",
        "einsparse-lang",
        "einsparse-nn",
        "einsparse-ptx",
    ];
    assert_eq!(names, wanted.into());

    let (copy, cuda, tools) = (downstream(&packages), fake_cuda(&rust), tools(&rust));
    let stubs = cuda.join("lib64/stubs");
    for way in ["loaded", "linked"] {
        let target = folder("downstream");
        let mut build = clean(rust.join("cargo"), &tools);
        // Directory in which both crates search for libcuda. With CUDA installed, neither variable is required.
        build.env("CUDA_PATH", &cuda).env("CUDA_LIBRARY_PATH", &cuda);
        // Debug information is not used, and is as large as all other output together.
        build.envs([("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
        build.args(["build", "--offline", "--features", way, "--target-dir"]);
        let said = build.arg(&target).current_dir(&copy).output().expect("cargo starts");
        assert!(said.status.success(), "{way}: {}", text(&said));
        assert!(!text(&said).contains("built without"), "{way}: {}", text(&said));

        let program = target.join("debug/downstream");
        let real = einsparse::driver::available().is_ok();
        let mut run = Command::new(&program);
        if !real {
            run.env("LD_LIBRARY_PATH", &stubs);
        }
        let said = done(way, &mut run);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0] == "driver: available", real, "{way}: {said}");
        assert_eq!(lines[1] == "another crate: 0", !real, "{way}: {said}");
        let modules = Spec::all().len();
        assert_eq!(lines[2], format!("17 friends, {modules} modules"), "{way}");
        if way == "loaded" && !real {
            // Only the other crate is linked to the driver's library, einsparse is not.
            exports_nothing_of_the_driver(&target.join("debug/libdownstream.so"), &stubs);
        }
    }
}

fn exports_nothing_of_the_driver(path: &Path, stubs: &Path) {
    // SAFETY: the stub's initializers are those of the Rust runtime. It is opened first, so the library links to it.
    let stub = unsafe { Library::new(stubs.join("libcuda.so.1")) }.expect("the stub opens");
    // SAFETY: the library belongs to this project; its initializers are those of the Rust runtime.
    let library = unsafe { Library::new(path) }.expect("the cdylib opens");
    for name in
        ["cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGetErrorString", "cuModuleLoadDataEx"]
    {
        // SAFETY: the symbols are only looked up, never called.
        let (ours, theirs) = unsafe {
            (
                library.get::<*const ()>(name.as_bytes()).map(|s| *s),
                stub.get::<*const ()>(name.as_bytes()).map(|s| *s),
            )
        };
        // A look-up also searches the libraries that this one is linked to.
        assert!(ours.is_err() || ours.ok() == theirs.ok(), "the cdylib exports {name}");
    }
}
