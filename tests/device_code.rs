//! The embedded modules against the table, without a GPU: entries, launch bounds, parameter sizes, no panics and no
//! local memory in the PTX; registers, stack and spills as ptxas reported them when the modules were built.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::skipped;
use einsparse::kernels::abi::{A_COLUMNS, B_COLUMNS, C_COLUMNS, CLUSTER, FP8_MMA, TMA, WGMMA};
use einsparse::kernels::table::{ARCHS, Arch};
use einsparse::module::{EmbeddedModule, MODULES};
use einsparse::registry::{MODULE_NAMES, Operation, Row, kernels};
use einsparse_compile::resources::{self, Report};
use einsparse_compile::{Kernels, Module, Spec, ptx, source_dir, target_dir};

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;

/// A row that a module must contain, and the residency that is required on `arch`.
type Wanted = (&'static Row, u32);

/// Rows that the device build requests of a module.
fn rows(module: &str, arch: &Arch) -> Vec<Wanted> {
    let of_module = kernels().iter().filter(|row| row.module == module);
    let wanted: Vec<_> = Spec::of_table(arch).into_iter().flat_map(|spec| spec.kernels).collect();
    let blocks = |row: &Row| wanted.iter().find(|k| k.name == row.name).map(|k| k.min_blocks);
    of_module.filter_map(|row| Some((row, blocks(row)?))).collect()
}

/// Returns the architecture of this name.
fn arch_of(name: &str) -> &'static Arch {
    Arch::named(name).expect("an architecture of the table")
}

/// The modules, or `None` after a message if the build contains none. EINSPARSE_REQUIRE_PTX=1 makes that an error.
fn modules() -> Option<&'static [EmbeddedModule]> {
    if !MODULES.is_empty() {
        return Some(MODULES);
    }
    let required = std::env::var_os("EINSPARSE_REQUIRE_PTX").is_some_and(|v| v == "1");
    assert!(!required, "EINSPARSE_REQUIRE_PTX=1, but this build holds no device code");
    skipped("no device code in this build", "run `cargo xtask setup`");
    None
}

/// Faults in the PTX text of a module.
fn faults(text: &str, module: &str, arch: &Arch) -> Vec<String> {
    let mut faults = Vec::new();
    let rows = rows(module, arch);
    let found: BTreeSet<&str> = ptx::entries(text).into_iter().collect();
    let wanted: BTreeSet<&str> = rows.iter().map(|(row, _)| row.name).collect();
    faults.extend(wanted.difference(&found).map(|name| format!("no entry for the row {name}")));
    faults.extend(found.difference(&wanted).map(|name| format!("no row for the entry {name}")));
    let target = text.lines().find_map(|line| line.strip_prefix(".target ")).unwrap_or("none");
    if !target.split(',').any(|t| t.trim() == arch.name) {
        faults.push(format!("the target is {target}"));
    }
    for word in ["panic", "trap;", "call.uni", "call (", ".local ", "__local_depot", "brk;"] {
        faults.extend(
            text.lines()
                .find(|line| line.contains(word))
                .map(|line| format!("`{word}` in: {}", line.trim())),
        );
    }
    faults.extend(
        rows.iter()
            .filter(|(row, _)| found.contains(row.name))
            .flat_map(|wanted| entry_faults(text, *wanted)),
    );
    faults
}

/// Faults in the parameter and launch bounds of one entry.
fn entry_faults(text: &str, (row, min_blocks): Wanted) -> Vec<String> {
    let Some(at) = text.find(&format!(".entry {}(", row.name)) else {
        return vec![format!("{}: not found", row.name)];
    };
    let head = text[at..].split('{').next().unwrap_or("");
    let wanted = [
        format!(".param .align 64 .b8 {}_param_0[{}]", row.name, row.params_bytes),
        format!(".maxntid {}, 1, 1\n", row.threads),
        format!(".minnctapersm {min_blocks}\n"),
    ];
    let missing = wanted.iter().filter(|line| !head.contains(line.as_str()));
    let mut faults: Vec<String> =
        missing.map(|line| format!("{}: no `{}` in {head:?}", row.name, line.trim())).collect();
    if head.matches(".param").count() != 1 {
        faults.push(format!("{}: not one parameter in {head:?}", row.name));
    }
    faults
}

/// Faults of a module in the report of ptxas.
fn resource_faults(report: &Report, module: &str, arch: &Arch) -> Vec<String> {
    const SPEED: [&str; 5] = ["C7508", "C7511", "C7513", "C7514", "C7519"];
    let costly = report.warnings.iter().filter(|w| SPEED.contains(&w.code.as_str()));
    let mut faults: Vec<String> = costly.map(|w| w.text.clone()).collect();
    for (row, min_blocks) in rows(module, arch) {
        let Some(used) = report.kernels.iter().find(|k| k.name == row.name) else {
            faults.push(format!("{}: no report", row.name));
            continue;
        };
        let budget = REGISTERS / (row.threads * min_blocks);
        if used.registers == 0 || used.registers > budget {
            faults.push(format!(
                "{}: {} registers, {budget} there for {} blocks",
                row.name, used.registers, min_blocks
            ));
        }
        let spilled = used.stack.max(used.spill_stores).max(used.spill_loads);
        // `nm_mma` has 168 registers a thread and may keep two words: `machine_code` checks where it reads them.
        if spilled > 0 && !(row.module == "nm" && row.stands_in && used.stack <= 8) {
            faults.push(format!("{}: local memory: {used:?}", row.name));
        }
        if used.smem + row.shared_bytes > arch.shared_bytes {
            faults.push(format!(
                "{}: {} bytes of shared memory",
                row.name,
                used.smem + row.shared_bytes
            ));
        }
    }
    faults
}

fn assert_none(faults: &[String], module: &str) {
    assert!(faults.is_empty(), "{module}:\n{}", faults.join("\n"));
}

/// Modules that match the sources, prebuilt or built on this machine, and the names of modules that do not match. A
/// developer's build leaves out those of other GPUs until `cargo xtask prebuild`.
fn made() -> (Vec<Module>, Vec<String>) {
    let program = std::env::current_exe().unwrap();
    let target = target_dir(&program).unwrap_or_else(std::env::temp_dir);
    let kernels = Kernels {
        sources: source_dir(),
        target_dir: &target,
        report_all: false,
        anew: false,
        backend: None,
        progress: &|_| (),
    };
    let mut specs = Spec::asked();
    let stale = kernels.stale(&specs).unwrap();
    let stale: Vec<String> = stale.into_iter().map(Spec::name).collect();
    specs.retain(|spec| !stale.contains(&spec.name()));
    (kernels.modules(&specs).unwrap(), stale)
}

#[test]
fn every_family_is_built_for_every_architecture() {
    let Some(modules) = modules() else { return };
    let found: BTreeSet<_> = modules.iter().map(|m| format!("{}.{}", m.name, m.arch)).collect();
    let (made, stale) = made();
    let wanted: BTreeSet<_> = made.iter().map(Module::name).collect();
    assert_eq!(found, wanted);
    let all: BTreeSet<_> = Spec::asked().iter().map(Spec::name).collect();
    assert_eq!(wanted.len() + stale.len(), all.len());
}

#[test]
fn the_text_of_every_module_agrees_with_the_table() {
    let mut found = BTreeSet::new();
    for module in modules().unwrap_or_default() {
        if let Some(text) = module.ptx() {
            let name = format!("{}.{}", module.name, module.arch);
            assert_none(&faults(&text.unwrap(), module.name, arch_of(module.arch)), &name);
            found.insert(module.name);
        }
    }
    let all: BTreeSet<_> = modules().unwrap_or_default().iter().map(|m| m.name).collect();
    assert_eq!(found, all, "a module without any text");
}

#[test]
fn every_entry_was_assembled_without_spills() {
    if modules().is_none() {
        return;
    }
    let (made, _) = made();
    let reported = made.iter().filter(|module| !module.ptxas().is_empty());
    let mut count = 0;
    for module in reported {
        assert_none(
            &resource_faults(module.report(), module.stem(), arch_of(module.arch())),
            &module.name(),
        );
        count += 1;
    }
    assert!(count > 0 || made.is_empty(), "no module has ptxas' report");
}

/// Features that the text of a kernel uses, as flags of the table.
fn uses(entry: &str) -> u32 {
    let needs: [(u32, &[&str]); 4] = [
        (WGMMA, &["wgmma.", "setmaxnreg."]),
        (TMA, &["cp.async.bulk.tensor", "cp.async.bulk.shared", "expect_tx"]),
        (CLUSTER, &["mapa.", "barrier.cluster", "%cluster_"]),
        (FP8_MMA, &["e4m3.e4m3", "e5m2.e5m2"]),
    ];
    let used = needs.iter().filter(|(_, words)| words.iter().any(|word| entry.contains(word)));
    let used = used.fold(0, |used, (need, _)| used | need);
    // A wgmma with fp8 operands also matches the fp8 type.
    if used & WGMMA != 0 { used & !FP8_MMA } else { used }
}

#[test]
fn no_kernel_uses_more_than_its_row_says() {
    let mut seen = 0;
    for module in modules().unwrap_or_default() {
        let (Some(text), arch) = (module.ptx(), arch_of(module.arch)) else { continue };
        let text = text.unwrap();
        for entry in text.split(".entry ").skip(1) {
            let row = kernels().iter().find(|row| entry.starts_with(&format!("{}(", row.name)));
            let row = row.expect("a row for each entry");
            let used = uses(entry);
            assert_eq!(used & !row.needs, 0, "{} for {}: {used:#b}", row.name, arch.name);
            seen |= used;
        }
    }
    // The searched words still occur in the texts.
    if modules().is_some_and(|modules| modules.iter().any(|m| m.name == "grouped")) {
        assert_eq!(seen, WGMMA | TMA | CLUSTER | FP8_MMA);
    }
}

/// Compute capabilities 8.6, 8.9 and 12.0 have 99 KiB of shared memory for a thread block.
#[test]
fn no_operation_is_missing_where_shared_memory_is_small() {
    let order = |row: &Row| row.order & (A_COLUMNS | B_COLUMNS | C_COLUMNS);
    let key = |row: &Row| {
        let own = (row.operation == Operation::Own).then_some(row.params);
        // The key also contains whether the kernel accepts rows at any address.
        (row.operation, own, row.step, row.dtype, order(row), row.vector == 1)
    };
    let fits = |row: &&Row| row.runs_on((8, 6)) && row.shared_bytes <= 99 << 10;
    let served: BTreeSet<_> = kernels().iter().filter(fits).map(key).collect();
    let wanted = kernels().iter().filter(|row| row.operation != Operation::Teaching);
    let missing: Vec<_> =
        wanted.filter(|row| !served.contains(&key(row))).map(|row| row.name).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Launches find a step by operation and number, independent of the module.
#[test]
fn a_step_of_an_operation_is_of_one_family() {
    let mut families = BTreeMap::new();
    let looked_up = |row: &&Row| matches!(row.operation, Operation::Detection | Operation::Live);
    for row in kernels().iter().filter(looked_up) {
        let key = (row.operation, row.step);
        let family = families.entry(key).or_insert(row.family);
        assert_eq!(*family, row.family, "{} has step {}", row.name, row.step);
    }
    assert!(families.len() > 8, "{families:?}");
}

#[test]
fn names_are_unique_and_geometry_fits() {
    let names: BTreeSet<_> = kernels().iter().map(|row| row.name).collect();
    assert_eq!(names.len(), kernels().len());
    for row in kernels() {
        assert!(MODULE_NAMES.contains(&row.module), "{row:?}");
        assert!(row.threads.is_multiple_of(32) && (32..=1024).contains(&row.threads), "{row:?}");
        assert!(row.shared_bytes <= ARCHS[0].shared_bytes, "{row:?}");
        // Shared memory must not reduce the residency of the launch bounds. The system reserves 1 KiB per block.
        assert!(row.min_blocks * (row.shared_bytes + 1024) <= 228 << 10, "{row:?}");
        assert!(
            row.items > 0
                && row.vector > 0
                && (row.module == "einsum"
                    || row.columns > 0
                        && (row.columns == 1 || row.columns.is_multiple_of(row.vector))),
            "{row:?}"
        );
        let bytes = row.vector as usize * row.dtype.bytes();
        assert!(bytes.is_power_of_two() && bytes <= 16, "{row:?}");
    }
}

/// Text as the device build writes it for the rows of a module.
fn sound(module: &str, arch: &Arch) -> String {
    let entry = |(row, min_blocks): &Wanted| {
        let (name, bytes) = (row.name, row.params_bytes);
        format!(
            ".visible .entry {name}(\n\t.param .align 64 .b8 {name}_param_0[{bytes}]\n)\n.maxntid {}, 1, 1\n\
             .minnctapersm {}\n{{\n\tret;\n}}\n",
            row.threads, min_blocks
        )
    };
    let entries: String = rows(module, arch).iter().map(entry).collect();
    format!(".version 8.0\n.target {}\n.address_size 64\n{entries}", arch.name)
}

/// The checks above find the faults that they check for.
#[test]
fn a_broken_text_is_found_out() {
    let (module, arch) = (MODULE_NAMES[0], &ARCHS[0]);
    let text = sound(module, arch);
    assert_eq!(faults(&text, module, arch), [""; 0]);
    let name = rows(module, arch)[0].0.name;
    let params = format!("[{}]", rows(module, arch)[0].0.params_bytes);
    let breaks = [
        (
            format!(".entry {name}("),
            ".entry another(".to_owned(),
            vec![format!("no entry for the row {name}"), "no row for the entry another".into()],
        ),
        (params, "[104]".into(), vec![format!("{name}: no `.param")]),
        (".maxntid 128".into(), ".maxntid 256".into(), vec![format!("{name}: no `.maxntid 128")]),
        (".minnctapersm".into(), ".maxnreg".into(), vec![format!("{name}: no `.minnctapersm")]),
        (arch.name.into(), "sm_75".into(), vec!["the target is sm_75".into()]),
        (
            "\tret;".into(),
            "\tcall.uni _ZN4core9panicking5panic, ();\n\tret;".into(),
            vec!["`panic` in".into(), "`call.uni` in".into()],
        ),
        (
            "\tret;".into(),
            "\t.local .align 8 .b8 __local_depot0[16];\n\tret;".into(),
            vec!["`.local ` in".into()],
        ),
        ("\tret;".into(), "\ttrap;".into(), vec!["`trap;` in".into()]),
    ];
    for (from, to, wanted) in breaks {
        let broken = text.replacen(&from, &to, 1);
        assert_ne!(broken, text, "{from}");
        let found = faults(&broken, module, arch);
        for words in wanted {
            assert!(
                found.iter().any(|fault| fault.starts_with(&words)),
                "{words:?} not among {found:?}"
            );
        }
    }
}

#[test]
fn a_spill_and_too_many_registers_are_found_out() {
    let (module, arch) = (MODULE_NAMES[0], &ARCHS[0]);
    let used = |(row, _): &Wanted| resources::Resources {
        name: row.name.into(),
        registers: 64,
        ..Default::default()
    };
    let mut report =
        Report { kernels: rows(module, arch).iter().map(used).collect(), warnings: Vec::new() };
    assert_eq!(resource_faults(&report, module, arch), [""; 0]);
    report.kernels[0].spill_loads = 4;
    report.kernels[1].registers = 255;
    report.kernels[2].smem = 228 << 10;
    report.kernels[3].stack = 8;
    report.kernels.truncate(report.kernels.len() - 1);
    let text = "ptxas info : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized";
    report.warnings.push(resources::Warning { code: "C7514".into(), text: text.into() });
    let found = resource_faults(&report, module, arch);
    assert_eq!(found.len(), 6, "{found:?}");
}
