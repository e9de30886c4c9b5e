//! Machine code of the embedded cubins: Tensor Core instructions of the right generation in every kernel that should
//! have them, and in no other kernel.

use std::collections::BTreeMap;

use crate::support::skipped;
use einsparse::module::MODULES;
use einsparse::registry::{Dtype, Row, kernels};
use einsparse_compile::{Nvdisasm, target_dir};
use einsparse_kernels::abi::{FP8_MMA, WGMMA};
use einsparse_kernels::families::QUANTIZED_COLUMNS;
use einsparse_kernels::table::Arch;

/// Accesses to local memory in basic blocks with Tensor Core instructions, counted in addition to the mnemonics.
const BESIDE_PRODUCTS: &str = "local memory beside products";

/// Instruction mnemonics of each function of a disassembly, with their counts.
fn instructions(text: &str) -> BTreeMap<&str, BTreeMap<&str, usize>> {
    let mut functions = BTreeMap::new();
    let mut current = None;
    // Products of the basic block, and its accesses to local memory.
    let (mut products, mut local) = (0, 0);
    for line in text.lines() {
        if line.starts_with('.') {
            (products, local) = (0, 0);
        }
        if let Some(name) = line.strip_prefix(".text.") {
            current = Some(name.trim_end_matches(':'));
            continue;
        }
        // `/*0040*/  @P0 HGMMA.64x256x16.F32 R24, ... ;`
        let Some((_, code)) = line.split_once("*/") else {
            continue;
        };
        let mut words = code.split_whitespace().filter(|word| !word.starts_with('@'));
        let (Some(function), Some(word)) = (current, words.next()) else {
            continue;
        };
        let mnemonic = match word.split('.').next().unwrap_or(word) {
            "HGMMA" if word.starts_with("HGMMA.SP.") => "HGMMA.SP",
            "IGMMA" if word.starts_with("IGMMA.SP.") => "IGMMA.SP",
            "HMMA" if word.starts_with("HMMA.SP.") => "HMMA.SP",
            "IMMA" if word.starts_with("IMMA.SP.") => "IMMA.SP",
            plain => plain,
        };
        let counts = functions.entry(function).or_insert_with(BTreeMap::new);
        *counts.entry(mnemonic).or_insert(0) += 1;
        let before = if products > 0 { local } else { 0 };
        products += usize::from(mnemonic.contains("MMA"));
        local += usize::from(["LDL", "STL"].contains(&mnemonic));
        if products > 0 {
            *counts.entry(BESIDE_PRODUCTS).or_insert(0) += local - before;
        }
    }
    functions
}

/// Rows of module `bitmap` whose warps multiply separately.
fn by_warps(name: &str) -> bool {
    ["_warps", "_halves"].iter().any(|part| name.contains(part))
}

/// Rows of `weight_gradient` that use Tensor Cores.
fn by_tensor_cores(row: &Row) -> bool {
    row.name.starts_with("weight_gradient") && row.dtype != Dtype::F32
}

/// Fault in the instructions of a kernel.
fn fault(row: &Row, found: &BTreeMap<&str, usize>) -> Option<String> {
    let count = |name: &str| found.get(name).copied().unwrap_or(0);
    // fp8 and 8-bit integers have separate mnemonics.
    let mnemonic = match row.dtype {
        Dtype::E4m3 | Dtype::E5m2 => "QGMMA",
        Dtype::Int8 => "IGMMA",
        _ if row.module == "grouped" && row.order == QUANTIZED_COLUMNS => "QGMMA",
        _ => "HGMMA",
    };
    let hopper = count(mnemonic);
    let ampere = count("HMMA") + count("IMMA") + count("QMMA");
    let sparse_ampere = count("HMMA.SP") + count("IMMA.SP");
    let sparse = count("HGMMA.SP") + count("IGMMA.SP");
    let wanted = row.module;
    // `nm_mma` may keep words in local memory, but not access them in the basic block of a product.
    let local = match wanted {
        "nm" if row.stands_in => count(BESIDE_PRODUCTS),
        _ => count("LDL") + count("STL"),
    };
    let right = match wanted {
        // A kernel that replaces another one uses `mma.sync`.
        "nm" | "nm_narrow" if row.stands_in => hopper + sparse + ampere == 0 && sparse_ampere > 0,
        _ if row.needs & FP8_MMA != 0 && row.stands_in => {
            hopper + sparse + sparse_ampere == 0 && count("QMMA") == ampere && ampere > 0
        }
        _ if row.stands_in && row.name.contains("_mma") => {
            hopper + sparse + sparse_ampere == 0 && ampere > 0
        }
        "nm" | "nm_narrow" => {
            hopper + ampere == 0 && sparse >= 2 && count(&format!("{mnemonic}.SP")) == sparse
        }
        "block" | "vectors" | "pit_few" | "decode" => hopper + sparse == 0 && ampere > 0,
        "conv_pairs" if row.dtype == Dtype::Tf32 => hopper + sparse == 0 && ampere > 0,
        "training" if by_tensor_cores(row) => hopper + sparse == 0 && ampere > 0,
        "bitmap" if by_warps(row.name) => hopper + sparse == 0 && ampere > 0,
        // Levels in order: loops, then Ampere's instruction, then Hopper's.
        "levels" if row.name < "level_2" => hopper + ampere + sparse == 0,
        "levels" if row.name < "level_3" => hopper + sparse == 0 && ampere > 0,
        // Named, so that a row of these modules cannot lose `wgmma` together with its need of it.
        "wgmma" | "dense" | "dense_live" | "dense_conv" | "dense_csr" | "sampled"
        | "sddmm_tiles" | "narrow" | "bitmap" | "attention" | "conv" | "conv_grad" | "pit"
        | "pit_tf32" | "pit_conv" | "pit_sampled" | "grouped" | "grouped_grad" => {
            hopper >= 4 && ampere + sparse == 0
        }
        _ if row.needs & WGMMA != 0 => hopper >= 4 && ampere + sparse == 0,
        _ => hopper + ampere + sparse == 0,
    };
    (!right || local > 0).then(|| {
        format!(
            "{} of module {wanted}: {hopper} {mnemonic}, {sparse} sparse, {ampere} HMMA, IMMA and QMMA, {sparse_ampere} of them sparse, {local} accesses to \
             local memory",
            row.name
        )
    })
}

#[test]
fn tensor_cores_where_they_are_meant() {
    let program = std::env::current_exe().unwrap();
    let target = target_dir(&program).unwrap_or_else(std::env::temp_dir);
    let Some(nvdisasm) = Nvdisasm::find(&target) else {
        return skipped("no nvdisasm", "`cargo xtask setup` installs it");
    };
    let path = std::env::temp_dir().join(format!("einsparse-code-{}.cubin", std::process::id()));
    for module in MODULES {
        let Some(cubin) = module.cubin() else {
            continue;
        };
        std::fs::write(&path, cubin.unwrap()).unwrap();
        let text = nvdisasm.disassemble(&path).unwrap();
        let functions = instructions(&text);
        let arch = Arch::named(module.arch).unwrap();
        let of_module = |row: &&Row| row.module == module.name && row.built_for(arch);
        let rows = kernels().iter().filter(of_module);
        let faults: Vec<String> = rows
            .filter_map(|row| match functions.get(row.name) {
                Some(found) => fault(row, found),
                None => Some(format!("{}: no machine code", row.name)),
            })
            .collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
    // The file does not exist if no module has machine code.
    let _ = std::fs::remove_file(&path);
}

#[test]
fn another_instruction_is_found_out() {
    let row = kernels().iter().find(|row| row.module == "wgmma").unwrap();
    let text = format!(
        "\t.section\n.text.{0}:\n        /*0010*/    HMMA.16816.F32 R4, R8, R10, R4 ;\n.L_x_1:\n        \
         /*0020*/    @P0 BRA `(.L_x_1) ;\n",
        row.name
    );
    let functions = instructions(&text);
    assert_eq!(functions[row.name]["BRA"], 1);
    let words = fault(row, &functions[row.name]).unwrap();
    assert!(words.contains("0 HGMMA, 0 sparse, 1 HMMA"), "{words}");
}

#[test]
fn local_memory_beside_products_is_found_out() {
    let text = "\
        .text.one:\n /*0010*/ LDL R0, [R1] ;\n.L_x_1:\n /*0020*/ STL [R1], R0 ;\n /*0030*/ HMMA.16816.F32 R4, R8, R10, R4 ;\n \
        /*0040*/ LDL R0, [R1] ;\n.L_x_2:\n /*0050*/ LDL R0, [R1] ;\n";
    let functions = instructions(text);
    assert_eq!(functions["one"][BESIDE_PRODUCTS], 2);
    assert_eq!(functions["one"]["LDL"], 3);
}
