//! Embeds the device modules. Sources of modules, in this order: the directory EINSPARSE_PTX if it is set; the prebuilt
//! modules of the project; a new build of each module whose sources have changed. If a changed module cannot be
//! compiled, the build omits it and prints one warning.

use einsparse_compile::{
    Code, Error, Kernels, Module, Spec, inputs, present, source_dir, stamp, target_dir,
};
use einsparse_kernels::packed::{FRAME, compress_quickly, pack, pack_text};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

fn main() -> ExitCode {
    for name in [
        "DOCS_RS",
        "EINSPARSE_PTX",
        "EINSPARSE_MODULES",
        "EINSPARSE_REQUIRE_PTX",
        "EINSPARSE_PTXAS",
        "EINSPARSE_TOOLCHAIN",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // With DOCS_RS set, cust_raw does not link libcuda. The crate then defines the symbols that cust requires.
    println!("cargo::rustc-check-cfg=cfg(own_symbols)");
    if env::var_os("DOCS_RS").is_some() {
        println!("cargo::rustc-cfg=own_symbols");
    }
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("cargo::error={}", reason.replace('\n', "\ncargo::error="));
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let files = match env::var_os("EINSPARSE_PTX") {
        Some(folder) => files_in(Path::new(&folder))
            .map_err(|error| format!("EINSPARSE_PTX={}: {error}", Path::new(&folder).display()))?,
        None => {
            let modules = modules(&out)?;
            if let Some(module) = modules.first() {
                println!("cargo::rustc-env=EINSPARSE_DEVICE_COMPILER={}", module.compiler());
            }
            files(modules)
        }
    };
    write_table(&out, &files).map_err(|error| format!("{}: {error}", out.display()))
}

/// Files of one module.
struct Files {
    module: String,
    arch: String,
    ptx: Option<Code>,
    cubin: Option<Code>,
}

/// Returns all modules, or those that EINSPARSE_MODULES lists as `<module>.<arch>`, separated by commas.
fn modules(out: &Path) -> Result<Vec<Module>, String> {
    let text = |error: Error| error.to_string();
    let target =
        target_dir(out).ok_or_else(|| format!("no build folder above {}", out.display()))?;
    for file in inputs().map_err(text)? {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let mut specs = Spec::asked();
    let kernels = Kernels {
        sources: source_dir(),
        target_dir: &target,
        report_all: false,
        anew: false,
        backend: None,
        progress: &|_| (),
    };
    let stale = kernels.stale(&specs).map_err(text)?;
    let stale: Vec<String> = stale.into_iter().map(Spec::name).collect();
    if stale.is_empty() {
        return kernels.modules(&specs).map_err(text);
    }
    watch_toolchain(&target).map_err(text)?;
    let is_stale = |spec: &Spec| stale.contains(&spec.name());
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        // A debug build compiles only modules that this machine can run.
        specs.retain(|spec| !is_stale(spec) || present().contains(&&*spec.arch));
    }
    match kernels.modules(&specs) {
        Err(Error::MissingToolchain(missing)) if !required() => {
            println!(
                "cargo::warning=built without {} of the kernels' modules, whose sources changed: {missing}",
                stale.len()
            );
            specs.retain(|spec| !is_stale(spec));
            kernels.modules(&specs).map_err(text)
        }
        result => result.map_err(text),
    }
}

fn required() -> bool {
    env::var_os("EINSPARSE_REQUIRE_PTX").is_some_and(|value| value == "1")
}

/// Rebuilds when the toolchain changes: `cargo xtask setup` and `rustup component add rust-src` change these files.
fn watch_toolchain(target: &Path) -> Result<(), Error> {
    println!("cargo::rerun-if-changed={}", stamp(target)?.display());
    let rustc = env::var_os("RUSTC").map(PathBuf::from).unwrap_or_default();
    let components = rustc.ancestors().nth(2).map(|root| root.join("lib/rustlib/components"));
    if let Some(components) = components.filter(|path| path.is_file()) {
        println!("cargo::rerun-if-changed={}", components.display());
    }
    Ok(())
}

fn files(modules: Vec<Module>) -> Vec<Files> {
    let files = modules.into_iter().map(|module| Files {
        module: module.stem().to_string(),
        arch: module.arch().to_string(),
        ptx: module.ptx,
        cubin: module.cubin,
    });
    files.collect()
}

/// Returns the modules `<module>.<arch>.ptx` of a directory, each with its `.cubin` if that file exists.
fn files_in(folder: &Path) -> io::Result<Vec<Files>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut modules = Vec::new();
    for entry in fs::read_dir(folder)? {
        let ptx = std::path::absolute(entry?.path())?;
        let name = ptx.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((module, arch)) = name.strip_suffix(".ptx").and_then(|name| name.split_once('.'))
        else {
            continue;
        };
        let (module, arch) = (module.to_string(), arch.to_string());
        let cubin = Some(ptx.with_extension("cubin")).filter(|cubin| cubin.is_file());
        modules.push(Files {
            module,
            arch,
            ptx: Some(Code::Raw(ptx)),
            cubin: cubin.map(Code::Raw),
        });
    }
    modules.sort_by(|a, b| (&a.module, &b.arch).cmp(&(&b.module, &a.arch)));
    Ok(modules)
}

/// Writes `modules.rs`, the table that host/cuda/module.rs includes. Packed files are included from their own directory.
fn write_table(out: &Path, modules: &[Files]) -> io::Result<()> {
    let embed = |code: Option<&Code>, name: String| {
        let Some(code) = code else {
            return Ok("None".to_string());
        };
        let file = match code {
            Code::Packed(file) => file.clone(),
            Code::Raw(file) => {
                let packed = out.join(name + ".zst");
                let content = fs::read(file)?;
                let is_text = file.extension().is_some_and(|end| end == "ptx");
                let bytes = match is_text {
                    true => pack_text(&content, compress_quickly).map_err(|reason| {
                        io::Error::other(format!("{}: {reason}", file.display()))
                    })?,
                    false => pack(&content, FRAME, compress_quickly),
                };
                fs::write(&packed, bytes)?;
                packed
            }
        };
        Ok::<_, io::Error>(format!("Some(include_bytes!({file:?}).as_slice())"))
    };
    let mut table = String::from(
        "/// The modules embedded at build time.\npub static MODULES: &[EmbeddedModule] = &[\n",
    );
    for Files { module, arch, ptx, cubin } in modules {
        let ptx = embed(ptx.as_ref(), format!("{module}.{arch}.ptx"))?;
        let cubin = embed(cubin.as_ref(), format!("{module}.{arch}.cubin"))?;
        table += &format!(
            "    EmbeddedModule {{ name: {module:?}, arch: {arch:?}, packed_ptx: {ptx}, packed_cubin: {cubin} }},\n"
        );
    }
    table += "];\n";
    fs::write(out.join("modules.rs"), table)
}
