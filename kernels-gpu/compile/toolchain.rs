//! A rustc that can build `core` for nvptx64. It requires the library sources of the same compiler: the active
//! toolchain with `rust-src`, the toolchain of [`Toolchain::install`], or a system rustc with sources.
//! `RUSTC_BOOTSTRAP=1` enables `-Zbuild-std`.

use crate::{Error, MissingToolchain, cache, debian, note_installed};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First release whose NVPTX backend compiles the kernels.
const OLDEST: (u32, u32) = (1, 96);

/// Location where a toolchain was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The toolchain that builds the host crate; it has the component `rust-src`.
    Active,
    /// The directory that `EINSPARSE_TOOLCHAIN` names.
    Named,
    /// Debian's packages, unpacked in the build directory.
    Installed,
    /// /usr/bin/rustc with library sources.
    System,
}

/// Compiler for the kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// Path of the compiler, or of the script that starts it.
    pub rustc: PathBuf,
    /// Output of `rustc -vV`.
    pub version: String,
    /// Location where it was found.
    pub origin: Origin,
}

impl Toolchain {
    /// Searches `EINSPARSE_TOOLCHAIN` (the directory `toolchain/rust` of another build directory), the active
    /// toolchain, `target_dir` and /usr/bin, in this order.
    pub fn find(target_dir: &Path) -> Result<Toolchain, MissingToolchain> {
        let active = env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let named =
            env::var_os("EINSPARSE_TOOLCHAIN").map(|folder| Path::new(&folder).join("rustc"));
        let mut places: Vec<_> = named.map(|rustc| (rustc, Origin::Named)).into_iter().collect();
        places.push((active, Origin::Active));
        places.push((installed(target_dir).join("rustc"), Origin::Installed));
        places.push((PathBuf::from("/usr/bin/rustc"), Origin::System));
        let mut tried = Vec::new();
        for (rustc, origin) in places {
            match Toolchain::at(&rustc, origin) {
                Ok(toolchain) => return Ok(toolchain),
                Err(reason) => tried.push(format!("{}: {reason}", rustc.display())),
            }
        }
        Err(MissingToolchain { tried })
    }

    /// Downloads Debian's packages of rustc and its sources and unpacks them into `target_dir`. Nothing is installed on
    /// the system, and no privileges are required.
    pub fn install(target_dir: &Path) -> Result<Toolchain, Error> {
        let folder = installed(target_dir);
        debian::install(&folder)?;
        let toolchain =
            Toolchain::at(&folder.join("rustc"), Origin::Installed).map_err(|reason| {
                Error::Invalid { reason: format!("{}: {reason}", folder.display()) }
            })?;
        note_installed(target_dir, &format!("rustc {}", toolchain.release().unwrap_or("?")))?;
        Ok(toolchain)
    }

    fn at(rustc: &Path, origin: Origin) -> Result<Toolchain, String> {
        let says = |flags: &[&str]| match Command::new(rustc).args(flags).output() {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
            }
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err("not there".to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let toolchain = Toolchain { rustc: rustc.to_path_buf(), version: says(&["-vV"])?, origin };
        let release = toolchain.release().ok_or("does not say its release")?;
        let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
        if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
            return Err(format!("release {release} is older than {}.{}", OLDEST.0, OLDEST.1));
        }
        let sysroot = PathBuf::from(says(&["--print", "sysroot"])?);
        match sysroot.join("lib/rustlib/src/rust/library/core").is_dir() {
            true => Ok(toolchain),
            false => Err(format!("release {release} without library sources (rust-src)")),
        }
    }

    /// The release, as in `1.96.0`.
    pub fn release(&self) -> Option<&str> {
        self.version.lines().find_map(|line| line.strip_prefix("release: "))
    }

    /// Release and commit, as in `rustc 1.96.0 (ac68faa20 2026-05-25)`.
    pub fn name(&self) -> String {
        self.version.lines().next().unwrap_or_default().to_string()
    }

    /// Returns a command of the compiler that may use unstable features, as targets beyond the first tier require.
    pub(crate) fn rustc(&self) -> Command {
        let mut command = Command::new(&self.rustc);
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Returns a command of a cargo that runs this compiler and inherits no settings from an outer cargo.
    pub(crate) fn cargo(&self) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(inherited_from_cargo) {
                command.env_remove(name);
            }
        }
        // An empty variable also overrides a wrapper that a configuration file names; an absent one does not.
        command.env("RUSTC_WRAPPER", "").env("RUSTC_WORKSPACE_WRAPPER", "");
        command.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        command
    }
}

/// Whether the outer cargo set the variable, or the variable would change the build of the kernels.
fn inherited_from_cargo(name: &str) -> bool {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "RUSTUP_"];
    const DROPPED: [&str; 10] = [
        "CARGO",
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
        "DEP_",
        "MAKEFLAGS",
        "MFLAGS",
        "NUM_JOBS",
        "OUT_DIR",
        "OPT_LEVEL",
    ];
    const EXACT: [&str; 4] = ["TARGET", "HOST", "PROFILE", "DEBUG"];
    let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
    !starts(&KEPT) && (starts(&DROPPED) || EXACT.contains(&name))
}

fn installed(target_dir: &Path) -> PathBuf {
    target_dir.join("toolchain").join("rust")
}

pub(crate) fn write_wrapper(folder: &Path) -> Result<(), Error> {
    let libraries = format!("usr/lib/{}-linux-gnu", env::consts::ARCH);
    let script = format!(
        "#!/bin/sh\nfolder=${{0%/*}}\nLD_LIBRARY_PATH=\"$folder/{libraries}\" exec \"$folder/usr/bin/rustc\" \"$@\"\n"
    );
    let path = folder.join("rustc");
    cache::write(&path, script.as_bytes())?;
    cache::executable(&path)
}
