//! Rates of GPU models, measured or from datasheets.

use super::Machine;

/// Source of the rates of a [`Machine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateSource {
    /// Measured on this GPU model.
    Measured,
    /// From the datasheet of this GPU model; not measured.
    Datasheet,
    /// Scaled from an H200 by multiprocessors, clock and memory; no data of this GPU model is available.
    Scaled,
}

/// Rates of a datasheet: f16 flops of Tensor Cores with f32 accumulation, without sparsity, and device memory.
struct Datasheet {
    /// Words of the name that the driver reports.
    name: &'static str,
    multiprocessors: u32,
    /// TFLOP/s.
    f16: f64,
    /// GB/s.
    memory: f64,
}

/// One line for each GPU model. Sources: NVIDIA's datasheets of A100, A10, L40S, H100 and B200, and its white papers on
/// Ada and on Blackwell for GeForce.
const DATASHEETS: &[Datasheet] = &[
    Datasheet { name: "A100", multiprocessors: 108, f16: 312.0, memory: 2039.0 },
    Datasheet { name: "A10", multiprocessors: 72, f16: 125.0, memory: 600.0 },
    Datasheet { name: "L40S", multiprocessors: 142, f16: 362.0, memory: 864.0 },
    Datasheet { name: "RTX 4090", multiprocessors: 128, f16: 165.2, memory: 1008.0 },
    Datasheet { name: "RTX 5090", multiprocessors: 170, f16: 209.5, memory: 1792.0 },
    Datasheet { name: "H100", multiprocessors: 132, f16: 989.4, memory: 3350.0 },
    Datasheet { name: "B200", multiprocessors: 148, f16: 2250.0, memory: 8000.0 },
];

/// Share of a datasheet's memory rate that a program reaches. An H200 has 4.8 TB/s, and 4.28 TB/s were measured.
pub(super) const MEMORY_SHARE: f64 = 0.89;
/// Assumed share of a datasheet's f16 rate that a program reaches with `mma.sync`. No such GPU was measured.
const PRODUCT_SHARE: f64 = 0.85;

/// Whether a name contains these whole words in sequence. An A10G must not match A10, nor an RTX A1000 match A100.
fn has_words(name: &str, words: &str) -> bool {
    let split = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let (name, words) = (split(name), split(words));
    name.windows(words.len()).any(|part| part == words)
}

impl Machine {
    /// Replaces scaled rates by the known rates of the GPU with this name. `has_memory_rate`: the driver reported the
    /// memory rate, which is then kept. The rates of a MIG slice, or of a variant with fewer multiprocessors, are
    /// scaled down.
    pub fn named(self, name: &str, has_memory_rate: bool) -> Machine {
        let h200 = Machine::H200.multiprocessors;
        if has_words(name, "H200") && self.multiprocessors == h200 {
            return Machine { rates: RateSource::Measured, ..self };
        }
        let Some(sheet) = DATASHEETS.iter().find(|sheet| has_words(name, sheet.name)) else {
            return self;
        };
        // For compute capability 9.0 and 10.0, the datasheet's rate is that of instructions that these kernels use only
        // on 9.0. The rate of `mma.sync` stays scaled.
        let has_product_rate = self.capability.0 == 8 || self.capability.0 == 12;
        if !has_product_rate && has_memory_rate {
            return self;
        }
        let share = f64::from(self.multiprocessors) / f64::from(sheet.multiprocessors);
        let hbm = sheet.memory * 1e9 * MEMORY_SHARE * share;
        let mma = sheet.f16 * 1e12 * PRODUCT_SHARE * share;
        Machine {
            hbm: if has_memory_rate { self.hbm } else { hbm },
            mma: if has_product_rate { mma } else { self.mma },
            rates: RateSource::Datasheet,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ampere(multiprocessors: u32) -> Machine {
        Machine::scaled(multiprocessors, 1_410_000, 2.0e12, 40 << 20)
    }

    #[test]
    fn known_gpus_have_rates_of_their_own() {
        let scaled = ampere(108);
        assert_eq!(scaled.rates, RateSource::Scaled);
        let a100 = scaled.named("NVIDIA A100-SXM4-80GB", false);
        assert_eq!(a100.rates, RateSource::Datasheet);
        let told = scaled.named("NVIDIA A100-PCIE-40GB", true);
        assert_eq!((told.hbm, told.mma), (scaled.hbm, a100.mma));
        assert!((a100.mma / 1e12 - 265.2).abs() < 0.1 && (a100.hbm / 1e12 - 1.81).abs() < 0.01);
        let a10 = ampere(72).named("NVIDIA A10", false);
        assert!((a10.hbm / 1e9 - 534.0).abs() < 1.0);
        for name in ["NVIDIA L40S", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"] {
            assert_eq!(scaled.named(name, true).rates, RateSource::Datasheet, "{name}");
        }
        assert_eq!(Machine::H200.named("NVIDIA H200", true).rates, RateSource::Measured);
    }

    #[test]
    fn other_gpus_do_not_have_them() {
        let scaled = ampere(108);
        for name in ["another GPU", "NVIDIA RTX A1000", "NVIDIA A10G", "NVIDIA GH200 480GB"] {
            assert_eq!(scaled.named(name, false), scaled, "{name}");
        }
        // A MIG slice has the rate of its share of the multiprocessors.
        let whole = scaled.named("NVIDIA A100-SXM4-80GB", false);
        let slice = ampere(14).named("NVIDIA A100-SXM4-80GB MIG 1g.10gb", false);
        assert!((slice.mma / whole.mma - 14.0 / 108.0).abs() < 1e-6);
        assert_ne!(ampere(16).named("NVIDIA H200 MIG 1g.18gb", true).rates, RateSource::Measured);
        // The driver reports the memory rate, so nothing comes from the datasheet.
        let h100 = Machine { capability: (9, 0), ..ampere(132) };
        assert_eq!(h100.named("NVIDIA H100 80GB HBM3", true).rates, RateSource::Scaled);
    }
}
