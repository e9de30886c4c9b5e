//! Errors of the device build.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Error of the device build.
#[non_exhaustive]
#[derive(Debug)]
pub enum Error {
    /// No compiler that can build `core` for nvptx64 was found.
    MissingToolchain(MissingToolchain),
    /// A program could not be started, or it failed.
    Command {
        /// Purpose of the program.
        what: String,
        /// The command line.
        command: String,
        /// Messages of the program, or the reason why it could not be started.
        messages: String,
    },
    /// The entries of a module and the rows of the kernel table differ.
    Table {
        /// Module and architecture, as in `spmm.sm_90a`.
        module: String,
        /// Rows without an entry.
        missing: Vec<String>,
        /// Entries without a row.
        unknown: Vec<String>,
    },
    /// A file could not be read or written.
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// This crate cannot use an input.
    Invalid {
        /// Reason.
        reason: String,
    },
}

/// Error: no compiler that can build the kernels was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingToolchain {
    /// Each searched location, with the reason why it was rejected.
    pub tried: Vec<String>,
}

impl fmt::Display for MissingToolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no Rust toolchain with library sources for the device kernels ({}); ",
            self.tried.join("; ")
        )?;
        write!(
            f,
            "run `rustup component add rust-src`, or `cargo xtask setup` in the einsparse project"
        )
    }
}

impl std::error::Error for MissingToolchain {}

impl From<MissingToolchain> for Error {
    fn from(missing: MissingToolchain) -> Self {
        Error::MissingToolchain(missing)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::MissingToolchain(missing) => missing.fmt(f),
            Error::Command { what, command, messages } => {
                write!(f, "{what} failed: {command}\n{messages}")
            }
            Error::Table { module, missing, unknown } => {
                write!(f, "kernel table and PTX of {module} disagree:")?;
                if !missing.is_empty() {
                    write!(f, " no entry for {}", missing.join(", "))?;
                }
                if !unknown.is_empty() {
                    write!(f, " no row for {}", unknown.join(", "))?;
                }
                Ok(())
            }
            Error::Io { path, reason } => write!(f, "{}: {reason}", path.display()),
            Error::Invalid { reason } => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

/// Runs `command` to its end. The error of a failed command contains its messages.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<Output, Error> {
    let output = std::process::Command::output(command);
    let messages = match output {
        Ok(output) if output.status.success() => return Ok(output),
        Ok(Output { status, stdout, stderr }) => {
            format!(
                "{status}\n{}{}",
                String::from_utf8_lossy(&stderr),
                String::from_utf8_lossy(&stdout)
            )
        }
        Err(error) => error.to_string(),
    };
    let command = format!("{command:?}").replace('"', "");
    Err(Error::Command { what: what.to_string(), command, messages })
}
