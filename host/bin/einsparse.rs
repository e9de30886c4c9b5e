//! Command `einsparse`; see `einsparse --help`.

mod command;

fn main() -> std::process::ExitCode {
    command::main()
}
