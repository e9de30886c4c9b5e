//! Embeds the device modules: kernels-gpu compiled to PTX (and cubin), or the modules in the folder
//! EINSPARSE_PTX. Without a device toolchain the library is built for the CPU only, with one warning.

use einsparse_compile::{Error, Module, Ptxas, Spec, Toolchain, compile, stamp, target_dir};
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;
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
    match check_cust().and_then(|()| embed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("cargo::error={}", reason.replace('\n', "\ncargo::error="));
            ExitCode::FAILURE
        }
    }
}

/// cust_raw links libcuda, or fails without a CUDA installation, unless DOCS_RS is set for it.
fn check_cust() -> Result<(), String> {
    match env::var_os("DOCS_RS") {
        Some(_) => Ok(()),
        None => Err(
            "einsparse opens libcuda.so.1 at run time and must not be linked to it: add `DOCS_RS = \"1\"` \
             under `[env]` in the .cargo/config.toml of your project (README, \"Linking\")"
                .to_string(),
        ),
    }
}

fn embed() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let modules = match env::var_os("EINSPARSE_PTX") {
        Some(folder) => modules_in(Path::new(&folder))
            .map_err(|error| format!("EINSPARSE_PTX={}: {error}", Path::new(&folder).display()))?,
        None => compiled(&out)?,
    };
    write_table(&out, &modules).map_err(|error| format!("{}: {error}", out.display()))
}

/// Compiles the modules; none where the toolchain is missing and not required.
fn compiled(out: &Path) -> Result<Vec<Module>, String> {
    let target =
        target_dir(out).ok_or_else(|| format!("no build folder above {}", out.display()))?;
    let specs = Spec::all();
    let text = |error: Error| error.to_string();
    for spec in &specs {
        for source in spec.sources().map_err(text)? {
            println!(
                "cargo::rerun-if-changed={}",
                spec.source.join(source).display()
            );
        }
    }
    println!(
        "cargo::rerun-if-changed={}",
        stamp(&target).map_err(text)?.display()
    );
    match Toolchain::find(&target) {
        Ok(toolchain) => {
            if let Some(release) = toolchain.release() {
                println!("cargo::rustc-env=EINSPARSE_DEVICE_COMPILER=rustc {release}");
            }
            compile(&target, &toolchain, Ptxas::find(&target).as_ref(), &specs).map_err(text)
        }
        Err(missing) if env::var_os("EINSPARSE_REQUIRE_PTX").is_some_and(|value| value == "1") => {
            Err(missing.to_string())
        }
        Err(missing) => {
            println!("cargo::warning=built without GPU kernels: {missing}");
            watch_components();
            Ok(Vec::new())
        }
    }
}

/// `rustup component add rust-src` changes this file of the active toolchain.
fn watch_components() {
    let rustc = env::var_os("RUSTC").map(PathBuf::from).unwrap_or_default();
    let components = rustc
        .ancestors()
        .nth(2)
        .map(|root| root.join("lib/rustlib/components"));
    if let Some(components) = components.filter(|path| path.is_file()) {
        println!("cargo::rerun-if-changed={}", components.display());
    }
}

/// The modules `<family>.<arch>.ptx` of a folder, each with its `.cubin` where there is one.
fn modules_in(folder: &Path) -> io::Result<Vec<Module>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut modules = Vec::new();
    for entry in fs::read_dir(folder)? {
        let ptx = std::path::absolute(entry?.path())?;
        let name = ptx
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some((family, arch)) = name
            .strip_suffix(".ptx")
            .and_then(|name| name.split_once('.'))
        else {
            continue;
        };
        let (family, arch) = (family.to_string(), arch.to_string());
        let cubin = Some(ptx.with_extension("cubin")).filter(|cubin| cubin.is_file());
        modules.push(Module {
            family,
            arch,
            ptx,
            cubin,
            report: None,
        });
    }
    modules.sort_by(|a, b| (&a.family, &b.arch).cmp(&(&b.family, &a.arch)));
    Ok(modules)
}

/// Lays the modules beside `modules.rs`, the table that host/module.rs includes. PTX is text that few runs need, a
/// tenth as large deflated.
fn write_table(out: &Path, modules: &[Module]) -> io::Result<()> {
    let mut table = String::from(
        "/// The modules embedded at build time.\npub static MODULES: &[EmbeddedModule] = &[\n",
    );
    for Module {
        family,
        arch,
        ptx,
        cubin,
        ..
    } in modules
    {
        let packed = fs::File::create(out.join(format!("{family}.{arch}.ptx.z")))?;
        let mut packed = ZlibEncoder::new(packed, Compression::best());
        packed.write_all(&fs::read(ptx)?)?;
        packed.finish()?;
        let mut machine_code = "None".to_string();
        if let Some(cubin) = cubin {
            fs::copy(cubin, out.join(format!("{family}.{arch}.cubin")))?;
            machine_code = format!("Some(include_bytes!(\"{family}.{arch}.cubin\").as_slice())");
        }
        table += &format!(
            "    EmbeddedModule {{ family: {family:?}, arch: {arch:?}, packed_ptx: \
             include_bytes!(\"{family}.{arch}.ptx.z\"), cubin: {machine_code} }},\n"
        );
    }
    table += "];\n";
    fs::write(out.join("modules.rs"), table)
}
