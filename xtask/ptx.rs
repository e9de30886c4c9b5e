//! `cargo xtask ptx`: compiles modules and prints the ptxas report of each kernel.

use crate::cargo::{Result, target_dir};
use crate::nvvm::{Compiler, backend};
use crate::setup::{kernels, setup};
use einsparse_compile::{Code, Kernels, Nvdisasm, Spec, resources};
use einsparse_kernels::table::{ARCHS, Arch};
use std::fs;
use std::path::PathBuf;

/// Compiles only the rows whose name contains `filter`, and prints the table of resources. `sass` also writes the
/// machine code as text.
pub fn ptx(filter: Option<&str>, arch: &str, sass: bool, compiler: Compiler) -> Result<()> {
    let arch = of_name(arch)?;
    let specs: Vec<Spec> = Spec::of_table(arch)
        .into_iter()
        .filter_map(|spec| spec.only(filter.unwrap_or("")))
        .collect();
    if specs.is_empty() {
        return Err(format!(
            "no kernel of {} has {:?} in its name",
            arch.name,
            filter.unwrap_or("")
        )
        .into());
    }
    let target = target_dir()?;
    let nvvm = compiler.open()?;
    let known = kernels(&target);
    let kernels = Kernels { report_all: true, backend: backend(&nvvm), ..known };
    if !kernels.stale(&specs)?.is_empty() {
        setup()?;
    }
    let disassembler = match sass {
        true => Some(Nvdisasm::find(&target).ok_or("no nvdisasm: `cargo xtask setup`")?),
        false => None,
    };
    for module in kernels.modules(&specs)? {
        let text = module.ptx.as_ref().map(|ptx| ptx.path().display().to_string());
        println!("\n{}  {}", module.name(), text.unwrap_or_default());
        print_table(module.report());
        if let (Some(disassembler), Some(code)) = (&disassembler, &module.cubin) {
            let cubin: PathBuf = match code {
                Code::Raw(path) => path.clone(),
                Code::Packed(_) => {
                    let path = target.join("device").join(module.name() + ".cubin");
                    fs::create_dir_all(target.join("device"))?;
                    fs::write(&path, code.content()?)?;
                    path
                }
            };
            let text = cubin.with_extension("sass");
            fs::write(&text, disassembler.disassemble(&cubin)?)?;
            println!("machine code: {}", text.display());
        }
    }
    Ok(())
}

/// The architecture of this name. The error lists all names.
pub fn of_name(name: &str) -> Result<&'static Arch> {
    let names = || ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ");
    Ok(Arch::named(name).ok_or_else(|| format!("{name}: the architectures are {}", names()))?)
}

fn print_table(report: &resources::Report) {
    let names = report.kernels.iter().map(|kernel| kernel.name.len());
    let width = names.max().unwrap_or(0).max("kernel".len());
    println!("{:width$}  registers  stack  spill stores  spill loads  static smem", "kernel");
    for kernel in &report.kernels {
        let resources::Resources { name, registers, stack, spill_stores, spill_loads, smem } =
            kernel;
        println!(
            "{name:width$}  {registers:9}  {stack:5}  {spill_stores:12}  {spill_loads:11}  {smem:11}"
        );
    }
    for warning in &report.warnings {
        println!("{}", warning.text);
    }
}
