//! Debian's packages of rustc and its library sources, downloaded with apt and unpacked into a directory of the build.
//! This requires no root and changes neither the system's package lists nor its installation.

use crate::error::run;
use crate::{Error, cache, toolchain};
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the compiler and its sources. The other packages are found from their dependencies.
const WANTED: [&str; 2] = ["rustc-web", "rust-web-src"];

/// Max rounds of adding missing shared libraries. Each round can require new libraries.
const ROUNDS: usize = 5;

/// Unpacks the toolchain into `folder`. The directory appears only when it is complete.
pub(crate) fn install(folder: &Path) -> Result<(), Error> {
    let part = folder.with_extension("part");
    cache::remove_dir(&part)?;
    let apt = Apt::new(&part.join("apt"))?;
    let closure = apt.closure(&WANTED)?;
    let of_compiler =
        |name: &&String| name.starts_with("libstd-rust-web") || name.starts_with("libllvm");
    let mut packages: BTreeSet<String> = WANTED.iter().map(|name| name.to_string()).collect();
    packages.extend(closure.iter().filter(of_compiler).cloned());
    apt.unpack(&packages, &part)?;
    add_libraries(&apt, &closure, packages, &part)?;
    drop_unused(&part)?;
    toolchain::write_wrapper(&part)?;
    cache::remove_dir(folder)?;
    cache::rename(&part, folder)
}

/// Adds the packages of shared libraries that the system does not have.
fn add_libraries(
    apt: &Apt,
    closure: &[String],
    mut have: BTreeSet<String>,
    root: &Path,
) -> Result<(), Error> {
    for _ in 0..ROUNDS {
        let missing = missing_libraries(root)?;
        let wanted: BTreeSet<String> = closure
            .iter()
            .filter(|name| {
                !have.contains(*name) && missing.iter().any(|library| provides(name, library))
            })
            .cloned()
            .collect();
        if missing.is_empty() || wanted.is_empty() {
            break;
        }
        apt.unpack(&wanted, root)?;
        have.extend(wanted);
    }
    match missing_libraries(root)? {
        missing if missing.is_empty() => Ok(()),
        missing => Err(Error::Invalid {
            reason: format!("rustc lacks the libraries {}", missing.join(", ")),
        }),
    }
}

/// Whether a package is named after the library: `libz3-4` for libz3.so.4, `libicu72` for libicuuc.so.72.
fn provides(package: &str, library: &str) -> bool {
    let stem = library.split(".so").next().unwrap_or(library);
    let name = package
        .trim_end_matches("t64")
        .trim_end_matches(|c: char| c.is_ascii_digit() || c == '-' || c == '.');
    name.len() > "lib".len() && stem.starts_with(name)
}

/// Returns the shared libraries of the unpacked compiler that `ldd` does not find.
fn missing_libraries(root: &Path) -> Result<Vec<String>, Error> {
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
    let mut ldd = Command::new("ldd");
    ldd.env("LD_LIBRARY_PATH", &libraries).arg(root.join("usr/bin/rustc"));
    let output = run("asking for rustc's libraries", &mut ldd)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let missing = text.lines().filter(|line| line.contains("not found"));
    let names: BTreeSet<String> =
        missing.filter_map(|line| Some(line.split_whitespace().next()?.to_string())).collect();
    Ok(names.into_iter().collect())
}

/// Removes files that a build of `core` does not read: two thirds of all files.
fn drop_unused(root: &Path) -> Result<(), Error> {
    cache::remove_dir(&root.join("apt"))?;
    cache::remove_dir(&root.join("usr/share"))?;
    for release in cache::folders(&root.join("usr/src"))? {
        for unused in ["src", "compiler", "debian"] {
            cache::remove_dir(&release.join(unused))?;
        }
    }
    Ok(())
}

/// apt with lists, state and cache in a directory of the build.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(folder: &Path) -> Result<Apt, Error> {
        // apt accepts paths below its own working directories only as absolute paths.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
        cache::create_dir(&folder.join("state/lists/partial"))?;
        cache::create_dir(&folder.join("cache/archives/partial"))?;
        cache::create_dir(&folder.join("packages"))?;
        let apt = Apt { folder };
        run("reading Debian's package lists", apt.command("apt-get").args(["-q", "update"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        command.arg("-o").arg(option("Dir::State", &self.folder.join("state")));
        command.arg("-o").arg("Dir::State::status=/var/lib/dpkg/status");
        command.arg("-o").arg(option("Dir::Cache", &self.folder.join("cache")));
        command
    }

    /// Returns the packages and their transitive dependencies, without recommended or suggested packages.
    fn closure(&self, packages: &[&str]) -> Result<Vec<String>, Error> {
        let mut command = self.command("apt-cache");
        command.args(["depends", "--recurse"]);
        for kind in ["recommends", "suggests", "enhances", "conflicts", "breaks", "replaces"] {
            command.arg(format!("--no-{kind}"));
        }
        let output = run("resolving Debian's packages", command.args(packages))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names =
            text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric()));
        Ok(names.map(str::to_string).collect())
    }

    /// Downloads packages and unpacks them below `root`.
    fn unpack(&self, packages: &BTreeSet<String>, root: &Path) -> Result<(), Error> {
        let folder = self.folder.join("packages");
        let mut command = self.command("apt-get");
        run(
            "downloading Debian's packages",
            command.args(["-q", "download"]).args(packages).current_dir(&folder),
        )?;
        for package in
            cache::files(&folder, &|path| path.extension().is_some_and(|end| end == "deb"))?
        {
            let file = folder.join(&package);
            run(
                "unpacking a Debian package",
                Command::new("dpkg-deb").arg("-x").arg(&file).arg(root),
            )?;
            cache::remove_file(&file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::provides;

    #[test]
    fn packages_of_libraries() {
        for (package, library) in [
            ("libz3-4", "libz3.so.4"),
            ("libedit2", "libedit.so.2"),
            ("libxml2", "libxml2.so.2"),
            ("libicu72", "libicuuc.so.72"),
            ("libicu72", "libicudata.so.72"),
            ("libbsd0", "libbsd.so.0"),
            ("libmd0", "libmd.so.0"),
        ] {
            assert!(provides(package, library), "{package} for {library}");
        }
        assert!(!provides("libbsd0", "libedit.so.2"));
        assert!(!provides("libc6-dev", "libz3.so.4"));
    }
}
