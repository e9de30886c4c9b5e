//! Properties of a GPU: peak rates for the cost model, and times of tiles.

mod devices;
mod times;

use einsparse_kernels::abi::{CLUSTER, FP8_MMA, TMA, WGMMA};
use einsparse_kernels::table::{ARCHS, Arch, Row, archs_of};

pub use devices::RateSource;
pub use times::TileTimes;

/// Peak rates and limits of a GPU, which the cost model uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Rate of device memory, bytes per second, reads and writes.
    pub hbm: f64,
    /// Rate of L2, bytes per second.
    pub l2: f64,
    /// L2 size in bytes.
    pub l2_bytes: u64,
    /// Warp instructions per second, over all schedulers.
    pub issue: f64,
    /// `mma.sync` f16 flops per second.
    pub mma: f64,
    /// `wgmma` f16 flops per second; 0 if the GPU has no `wgmma`.
    pub wgmma: f64,
    /// Max dynamic shared memory of a thread block, bytes.
    pub shared_bytes: u32,
    /// Compute capability. Kernels for this capability run.
    pub capability: (u32, u32),
    /// Source of these rates.
    pub rates: RateSource,
}

impl Machine {
    /// Measured rates of one H200: HBM 4.28 TB/s, L2 9.0 TB/s. `mma.sync` reaches about 60 % of the rate of `wgmma`
    /// (770 TFLOP/s).
    pub const H200: Machine = Machine {
        multiprocessors: 132,
        hbm: 4.28e12,
        l2: 9.0e12,
        l2_bytes: 60 << 20,
        issue: 132.0 * 4.0 * 1.755e9,
        mma: 460e12,
        wgmma: 770e12,
        shared_bytes: 227 << 10,
        capability: (9, 0),
        rates: RateSource::Measured,
    };

    /// Scales the rates of the H200 by the properties that the driver reports for a GPU.
    pub fn scaled(multiprocessors: u32, clock_khz: u32, hbm_peak: f64, l2_bytes: u64) -> Machine {
        let h = Machine::H200;
        // A driver that does not report the clock returns 0.
        let clock_khz = if clock_khz == 0 { 1_980_000 } else { clock_khz };
        let cores = f64::from(multiprocessors) / 132.0 * f64::from(clock_khz) / 1_980_000.0;
        Machine {
            multiprocessors,
            hbm: if hbm_peak > 0.0 { hbm_peak * devices::MEMORY_SHARE } else { h.hbm },
            l2: h.l2 * cores,
            l2_bytes,
            issue: h.issue * cores,
            mma: h.mma * cores,
            wgmma: 0.0,
            // Limit of compute capability 8.0.
            shared_bytes: 163 << 10,
            capability: (8, 0),
            rates: RateSource::Scaled,
        }
    }
}

impl Machine {
    /// Returns this machine with another limit of shared memory per thread block.
    pub fn with_shared_bytes(self, shared_bytes: u32) -> Machine {
        Machine { shared_bytes, ..self }
    }

    /// Returns the requirement of a kernel that this GPU does not meet, or `None`.
    pub fn lacks(&self, row: &Row) -> Option<String> {
        if !row.runs_on(self.capability) {
            return Some(self.why_not(row));
        }
        self.lacks_shared(row.shared_bytes)
    }

    /// Returns the reason why this kernel was not compiled for this GPU.
    fn why_not(&self, row: &Row) -> String {
        if row.stands_in && self.wgmma > 0.0 {
            return "replaces a kernel with `wgmma` on GPUs without `wgmma`; this GPU has `wgmma`"
                .into();
        }
        let has = archs_of(self.capability).fold(0, |has, arch| has | arch.has);
        let what = [
            (WGMMA, "wgmma, which compute capability 9.0 has"),
            (TMA, "the tensor copy engine, which compute capability 9.0 and newer have"),
            (CLUSTER, "clusters, which compute capability 9.0 and newer have"),
            (FP8_MMA, "fp8 in Tensor Cores, which compute capability 8.9 and newer have"),
        ];
        let needed = what.into_iter().find(|(need, _)| row.needs & need & !has != 0);
        let (major, minor) = self.capability;
        // EINSPARSE_ARCH sets a capability without the code that runs only on GPUs of exactly that capability.
        let is_plain =
            |arch: &Arch| arch.exact && arch.capability == (major, minor.wrapping_sub(1));
        let own = match ARCHS.iter().find(|arch| is_plain(arch)) {
            Some(Arch { capability: (major, minor), .. }) => {
                format!("{major}.{minor} without `wgmma`")
            }
            None => format!("{major}.{minor}"),
        };
        match needed {
            Some((_, needed)) => format!("needs {needed}; this GPU runs kernels of {own}"),
            None => self.lacks_shared(row.shared_bytes).unwrap_or_else(|| {
                format!("has no code for this GPU, which runs kernels of compute capability {own}")
            }),
        }
    }

    /// Returns the f16 flops per second of the matrix instruction of this kernel.
    pub fn products(&self, row: &Row) -> f64 {
        if row.needs & WGMMA != 0 { self.wgmma } else { self.mma }
    }

    /// Returns this machine with the kernels of another compute capability.
    pub fn with_capability(self, capability: (u32, u32)) -> Machine {
        let hopper = archs_of(capability).any(|arch| arch.has & WGMMA != 0);
        let wgmma = self.mma * Machine::H200.wgmma / Machine::H200.mma;
        Machine { capability, wgmma: if hopper { wgmma } else { 0.0 }, ..self }
    }

    /// Returns the reason why a thread block cannot have `bytes` bytes of dynamic shared memory, or `None`.
    pub fn lacks_shared(&self, bytes: u32) -> Option<String> {
        let limit = self.shared_bytes;
        (bytes > limit).then(|| {
            format!(
                "needs {bytes} bytes of shared memory for a thread block, of which this GPU has {limit}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use einsparse_kernels::table::kernels;

    use super::*;

    #[test]
    fn kernels_that_need_more_shared_memory_than_a_gpu_has_are_refused() {
        let large = Machine::scaled(108, 1_410_000, 2.0e12, 40 << 20);
        let small = large.with_shared_bytes(99 << 10);
        let mut refused = 0;
        for row in kernels().iter().filter(|row| row.runs_on((8, 0))) {
            assert_eq!(large.lacks(row), None, "{}", row.name);
            let reason = small.lacks(row);
            assert_eq!(reason.is_some(), row.shared_bytes > 99 << 10, "{}", row.name);
            if let Some(reason) = reason {
                let needs = format!("needs {} bytes", row.shared_bytes);
                assert!(reason.contains(&needs) && reason.ends_with("has 101376"), "{reason}");
                refused += 1;
            }
        }
        assert!(refused > 0);
        let hopper = |row: &&Row| row.runs_on(Machine::H200.capability);
        assert!(kernels().iter().filter(hopper).all(|row| Machine::H200.lacks(row).is_none()));
    }
}
