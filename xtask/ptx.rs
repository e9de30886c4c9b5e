//! `cargo xtask ptx`: the modules and what ptxas says about each kernel.

use crate::cargo::{Result, target_dir};
use crate::setup::setup;
use einsparse_compile::{Nvdisasm, Spec, compile, resources};
use std::fs;
use std::time::Instant;

/// Compiles all modules, prints the resource table; `sass` also writes the machine code as text.
pub fn ptx(filter: Option<&str>, sass: bool) -> Result<()> {
    let (toolchain, ptxas) = setup()?;
    let target = target_dir()?;
    let start = Instant::now();
    let specs: Vec<Spec> = Spec::all()
        .into_iter()
        .map(|spec| Spec {
            cubin: true,
            ..spec
        })
        .collect();
    let modules = compile(&target, &toolchain, ptxas.as_ref(), &specs)?;
    eprintln!("== modules: {:.1} s", start.elapsed().as_secs_f64());
    let disassembler = match sass {
        true => Some(Nvdisasm::find(&target).ok_or("no nvdisasm")?),
        false => None,
    };
    for module in &modules {
        println!(
            "\n{} {}  {}",
            module.family,
            module.arch,
            module.ptx.display()
        );
        if let Some(path) = &module.report {
            print_table(
                &resources::parse(&fs::read_to_string(path)?),
                filter.unwrap_or(""),
            );
        }
        if let (Some(disassembler), Some(cubin)) = (&disassembler, &module.cubin) {
            let text = cubin.with_extension("sass");
            fs::write(&text, disassembler.disassemble(cubin)?)?;
            println!("machine code: {}", text.display());
        }
    }
    Ok(())
}

fn print_table(report: &resources::Report, filter: &str) {
    let shown = || {
        report
            .kernels
            .iter()
            .filter(|kernel| kernel.name.contains(filter))
    };
    let width = shown()
        .map(|kernel| kernel.name.len())
        .max()
        .unwrap_or(0)
        .max("kernel".len());
    println!(
        "{:width$}  registers  stack  spill stores  spill loads  static smem",
        "kernel"
    );
    for kernel in shown() {
        let resources::Resources {
            name,
            registers,
            stack,
            spill_stores,
            spill_loads,
            smem,
        } = kernel;
        println!(
            "{name:width$}  {registers:9}  {stack:5}  {spill_stores:12}  {spill_loads:11}  {smem:11}"
        );
    }
    for warning in &report.warnings {
        println!("{}", warning.text);
    }
}
