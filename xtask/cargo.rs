//! The cargo that runs this program, and the directories of the project.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Root of the project.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// Command of the cargo that runs this program, started in the root of the project.
pub fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Output of git, started in the root of the project.
pub fn git(arguments: &[&str]) -> Result<Vec<u8>> {
    let mut git = Command::new("git");
    let output = git.args(arguments).current_dir(root()).output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

/// Output of `cargo metadata`, one line of JSON.
fn metadata() -> Result<String> {
    let output = cargo(["metadata", "--format-version=1", "--no-deps", "--offline"]).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Directory of the built documentation.
pub fn doc_dir() -> Result<PathBuf> {
    let folder = json_string(&metadata()?, "target_directory");
    let folder = folder.ok_or("`cargo metadata` names no target folder")?;
    Ok(Path::new(&folder).join("doc"))
}

/// Build directory in which build scripts run. It contains the toolchain and the modules.
pub fn target_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    let folder = json_string(&metadata, "build_directory")
        .or_else(|| json_string(&metadata, "target_directory"));
    let folder = PathBuf::from(folder.ok_or("`cargo metadata` names no build folder")?);
    Ok(einsparse_compile::target_dir(&folder).unwrap_or(folder))
}

/// Target triple of this machine, as in `x86_64-unknown-linux-gnu`.
pub fn host() -> Result<String> {
    let output = cargo(["-vV"]).output()?;
    let told = String::from_utf8(output.stdout)?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("`cargo -vV` names no host")?.to_owned())
}

/// The last string member `name` in one line of JSON.
pub fn json_string(json: &str, name: &str) -> Option<String> {
    let rest = json.rsplit_once(&format!("\"{name}\":\""))?.1;
    let mut text = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            character => text.push(character),
        }
    }
}

/// Runs one part of a task and prints its duration.
pub fn part(name: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    let status = command.status().map_err(|error| format!("{name}: {error}"))?;
    eprintln!("== {name}: {:.1} s", start.elapsed().as_secs_f64());
    match status.success() {
        true => Ok(()),
        false => Err(format!("{name} failed ({status})").into()),
    }
}
