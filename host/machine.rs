//! What a GPU can do: ceilings that costs are predicted with, and measured times of tiles.

mod times;

pub use times::{HeightTimes, TileTimes};
pub(crate) use times::{megabytes, stages, waves};

/// Ceilings of a GPU that the predictions use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Device memory, bytes per second, read and written.
    pub hbm: f64,
    /// L2, bytes per second.
    pub l2: f64,
    /// L2 size in bytes.
    pub l2_bytes: u64,
    /// Warp instructions per second, all schedulers.
    pub issue: f64,
    /// `mma.sync` f16 flops per second.
    pub mma: f64,
    /// `wgmma` f16 flops per second; 0 where there is none.
    pub wgmma: f64,
}

impl Machine {
    /// One H200, as measured: HBM 4.28 TB/s, L2 9.0 TB/s; `mma.sync` reaches about 60 % of the
    /// rate of `wgmma` (770 TFLOP/s).
    pub const H200: Machine = Machine {
        multiprocessors: 132,
        hbm: 4.28e12,
        l2: 9.0e12,
        l2_bytes: 60 << 20,
        issue: 132.0 * 4.0 * 1.755e9,
        mma: 460e12,
        wgmma: 770e12,
    };

    /// Ceilings scaled from the H200's by what the driver says of a GPU.
    pub fn scaled(multiprocessors: u32, clock_khz: u32, hbm_peak: f64, l2_bytes: u64) -> Machine {
        let h = Machine::H200;
        // A driver that does not tell the clock says 0.
        let clock_khz = if clock_khz == 0 { 1_980_000 } else { clock_khz };
        let cores = f64::from(multiprocessors) / 132.0 * f64::from(clock_khz) / 1_980_000.0;
        Machine {
            multiprocessors,
            hbm: if hbm_peak > 0.0 {
                hbm_peak * 0.89
            } else {
                h.hbm
            },
            l2: h.l2 * cores,
            l2_bytes,
            issue: h.issue * cores,
            mma: h.mma * cores,
            wgmma: 0.0,
        }
    }
}

impl Machine {
    /// The same with Hopper's `wgmma`.
    pub fn with_wgmma(self) -> Machine {
        Machine {
            wgmma: self.mma * Machine::H200.wgmma / Machine::H200.mma,
            ..self
        }
    }
}
