//! Choice of the kernel that multiplies rows with the matrices chosen for them.

use einsparse_kernels::abi::FP8_MMA;
use einsparse_kernels::families::STEP_GROUPED_GATED;
use einsparse_kernels::table::{Row, kernels};

use super::cost::grouped::columns;
use super::grouped::GroupedExtents;
use crate::error::Result;
use crate::machine::Machine;
use crate::registry::{Dtype, Operation, none_of};

/// Returns the kernel of min cost for these extents, element type and order of W, or the kernel of this name. A
/// replacement kernel is chosen only on GPUs without the other kernel, or by name; of two replacements, the one that
/// multiplies fp8 without conversion.
pub(super) fn choose(
    dtype: Dtype,
    extents: &GroupedExtents,
    variant: Option<&str>,
    machine: &Machine,
) -> Result<&'static Row> {
    let own = kernels().iter().filter(|row| row.operation == Operation::Grouped);
    let order = extents.order()?;
    let fits = |row: &&Row| {
        let named = variant.is_none_or(|name| name == row.name);
        let lies = row.order == order && (row.step == STEP_GROUPED_GATED) == extents.gated;
        named && row.dtype == dtype && lies
    };
    let dearer = |a: &&Row, b: &&Row| {
        let work = [extents.slots(), extents.experts, extents.n];
        let [of_a, of_b] = [a, b].map(|row| columns(row, work, machine));
        let [kind_of_a, kind_of_b] = [a, b].map(|row| (row.stands_in, row.needs & FP8_MMA == 0));
        kind_of_a.cmp(&kind_of_b).then(of_a.total_cmp(&of_b))
    };
    let runs = |row: &&Row| machine.lacks(row).is_none();
    own.clone().filter(fits).filter(runs).min_by(dearer).ok_or_else(|| {
        none_of(own, "C[s,n] += A[AM[s],k] * W[WE[s],k,n]", |row| {
            let here = if row.dtype == dtype { machine.lacks(row) } else { None };
            here.unwrap_or_else(|| format!("is for {}", row.dtype.name()))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that wide tiles are chosen, which read less through L2, and narrow ones if wide tiles would leave half a
    /// wave idle.
    #[test]
    fn tiles_are_as_narrow_as_waves_ask_for() {
        let name_of = |extents: GroupedExtents| {
            let row = choose(Dtype::Bf16, &extents, None, &Machine::H200);
            row.unwrap().name
        };
        let name = |top: usize, k: usize, n: usize| {
            name_of(GroupedExtents {
                tokens: 4096,
                top,
                experts: 64,
                k,
                n,
                turned: false,
                gated: false,
                scaled: false,
                quantized: false,
            })
        };
        assert_eq!(name(1, 768, 3072), "grouped_bf16_256");
        assert_eq!(name(1, 3072, 768), "grouped_bf16_128");
        assert_eq!(name(8, 4096, 1536), "grouped_bf16_256");
        assert_eq!(name(8, 1536, 4096), "grouped_bf16_256");
        let one = |[model, experts, hidden, top]: [usize; 4], [scaled, quantized]: [bool; 2]| {
            [(model, hidden, true), (hidden, model, false)].map(|(k, n, gated)| {
                name_of(GroupedExtents {
                    tokens: 1,
                    top,
                    experts,
                    k,
                    n,
                    turned: true,
                    gated,
                    scaled,
                    quantized,
                })
            })
        };
        let qwen = ["grouped_bf16_gated_64_t", "grouped_bf16_64_t"];
        assert_eq!(one([2048, 128, 768, 8], [false; 2]), qwen);
        let mixtral = ["grouped_bf16_gated_128_t", "grouped_bf16_64_t"];
        assert_eq!(one([4096, 8, 14336, 2], [false; 2]), mixtral);
        let scaled = ["grouped_bf16_e4m3_gated_64", "grouped_bf16_e4m3_128"];
        assert_eq!(one([4096, 8, 14336, 2], [true, false]), scaled);
        let quantized = ["grouped_bf16_quantized_gated_64", "grouped_bf16_quantized_128"];
        assert_eq!(one([2048, 128, 768, 8], [true, true]), quantized);
    }

    /// Tests GPUs without `wgmma`: tiles of 64 rows with few rows per matrix, and shared memory within the limit.
    #[test]
    fn stand_ins_are_chosen_without_wgmma() {
        let large = Machine::scaled(108, 1_410_000, 2.0e12, 40 << 20);
        let name = |machine: &Machine, tokens: usize, gated: bool, codes: [bool; 2]| {
            let extents = GroupedExtents {
                tokens,
                top: 8,
                experts: 64,
                k: 4096,
                n: 1536,
                turned: true,
                gated,
                scaled: codes[0],
                quantized: codes[1],
            };
            choose(Dtype::F16, &extents, None, machine).unwrap().name
        };
        for machine in [large, large.with_shared_bytes(99 << 10)] {
            let name = |tokens, gated, codes| name(&machine, tokens, gated, codes);
            let few = name(16, false, [false; 2]);
            assert!(few.starts_with("grouped_mma_f16_few_"), "{few}");
            assert_eq!(name(16, true, [false; 2]), "grouped_mma_f16_few_gated_64_t");
            assert_eq!(name(16, true, [true, false]), "grouped_mma_f16_e4m3_gated_64");
            assert_eq!(name(16, false, [true; 2]), "grouped_mma_f16_quantized_128");
            let many = name(4096, false, [false; 2]);
            assert!(many.starts_with("grouped_mma_f16_") && !many.contains("few"), "{many}");
        }
    }
}
