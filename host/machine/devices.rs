//! What is known of the rates of GPUs: measured, or as their makers state them.

use super::Machine;

/// Where the rates of a [`Machine`] come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rates {
    /// Measured on this kind of GPU.
    Measured,
    /// Taken from the datasheet of this kind of GPU; nothing was measured on it.
    Datasheet,
    /// Scaled from an H200 by multiprocessors, clock and memory; nothing is known of this kind of GPU.
    Scaled,
}

/// Rates as a datasheet states them: f16 products of Tensor Cores that are added in f32, without sparsity, and device
/// memory.
struct Sheet {
    /// Part of the name that the driver tells. The first match counts.
    name: &'static str,
    /// TFLOP/s.
    f16: f64,
    /// GB/s.
    memory: f64,
}

/// One line for each kind of GPU. Sources: NVIDIA's datasheets of A100, A10, L40S, H100 and B200, and its white papers
/// on Ada and on Blackwell for GeForce.
const SHEETS: &[Sheet] = &[
    Sheet { name: "A100", f16: 312.0, memory: 2039.0 },
    Sheet { name: "A10", f16: 125.0, memory: 600.0 },
    Sheet { name: "L40S", f16: 362.0, memory: 864.0 },
    Sheet { name: "RTX 4090", f16: 165.2, memory: 1008.0 },
    Sheet { name: "RTX 5090", f16: 209.5, memory: 1792.0 },
    Sheet { name: "H100", f16: 989.4, memory: 3350.0 },
    Sheet { name: "B200", f16: 2250.0, memory: 8000.0 },
];

/// What a program reaches of a datasheet's rate of memory: that of an H200 is 4.8 TB/s, and 4.28 were measured.
pub(super) const MEMORY_SHARE: f64 = 0.89;
/// What a program reaches of a datasheet's rate of products, as far as `mma.sync` is the instruction meant.
const PRODUCT_SHARE: f64 = 0.85;

impl Machine {
    /// The rates of a GPU of this name in place of scaled ones, where they are known. That of its memory stays what the
    /// driver told, unless it told none.
    pub(crate) fn named(self, name: &str, memory_told: bool) -> Machine {
        if name.contains("H200") {
            return Machine { rates: Rates::Measured, ..self };
        }
        let Some(sheet) = SHEETS.iter().find(|sheet| name.contains(sheet.name)) else {
            return self;
        };
        // The rate of compute capability 9.0 and 10.0 is that of instructions which these kernels use on 9.0 alone, and
        // theirs is scaled.
        let own = self.capability.0 == 8 || self.capability.0 == 12;
        Machine {
            hbm: if memory_told { self.hbm } else { sheet.memory * 1e9 * MEMORY_SHARE },
            mma: if own { sheet.f16 * 1e12 * PRODUCT_SHARE } else { self.mma },
            rates: Rates::Datasheet,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_gpus_have_rates_of_their_own() {
        let scaled = Machine::scaled(108, 1_410_000, 2.0e12, 40 << 20);
        assert_eq!(scaled.rates, Rates::Scaled);
        let a100 = scaled.named("NVIDIA A100-SXM4-80GB", false);
        assert_eq!(a100.rates, Rates::Datasheet);
        let told = scaled.named("NVIDIA A100-PCIE-40GB", true);
        assert_eq!((told.hbm, told.mma), (scaled.hbm, a100.mma));
        assert!((a100.mma / 1e12 - 265.2).abs() < 0.1 && (a100.hbm / 1e12 - 1.81).abs() < 0.01);
        // A name that begins with that of another.
        let a10 = scaled.named("NVIDIA A10", false);
        assert!((a10.hbm / 1e9 - 534.0).abs() < 1.0);
        assert_eq!(scaled.named("another GPU", false), scaled);
        assert_eq!(Machine::H200.named("NVIDIA H200", true).rates, Rates::Measured);
    }
}
