//! Times of tiles on a GPU, which are multiplied by the number of tiles of a pattern.

use std::collections::BTreeMap;

use super::Machine;

/// Constants of the `pit` kernels: micro-tiles of a step, micro-tiles of a stage, and columns of C of a tile.
const STEP: f64 = 16.0;
const STAGE: f64 = 64.0;
const COLUMNS: usize = einsparse_kernels::families::PIT_COLUMNS;

/// Times of the tiles of one height, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct HeightTimes {
    /// Detection and product of an empty matrix: launches, first loads.
    pub start: f64,
    /// One tile of C on every multiprocessor: its list and its output.
    tile: f64,
    /// One stage of 64 micro-tiles in each of these tiles.
    stage: f64,
}

/// Times of one GPU. A plan uses them to predict the time of a product from its share of nonzero micro-tiles (PIT,
/// arXiv 2301.10936, section 3.2: the cost of a tile is measured, the number of tiles is counted).
#[derive(Clone, Debug)]
pub struct TileTimes {
    /// Times by the rows of a micro-tile.
    pub heights: BTreeMap<usize, HeightTimes>,
    /// Detection, in microseconds per MB of the matrix.
    detect: f64,
}

impl TileTimes {
    /// Returns the times of 16-bit types on this GPU. They are fitted to products of 4096 x 4096 x 4096 on an H200
    /// (benches/NOTES.md, "pit: dynamic micro-tiles", f16). On a GPU without `wgmma` they are derived from these times
    /// and the rate of `mma.sync`, not measured.
    pub fn on(machine: &Machine) -> TileTimes {
        let of = |start, tile, stage| HeightTimes { start, tile, stage };
        let times = TileTimes {
            heights: BTreeMap::from([
                (128, of(8.0, 3.1, 0.83)),
                (64, of(8.0, 1.4, 0.58)),
                (32, of(8.0, 1.2, 0.54)),
            ]),
            detect: 0.3,
        };
        times.slowed(machine, 1.0)
    }

    /// Derives the times on a GPU without `wgmma`, whose products run at `of_f16` times the f16 rate. A stage takes the
    /// max of its gathers through L2 and its products.
    fn slowed(mut self, machine: &Machine, of_f16: f64) -> TileTimes {
        /// Share of the instruction's peak rate that the products of a stage reach.
        const REACHED: f64 = 0.85;
        if machine.wgmma > 0.0 {
            return self;
        }
        let each = |rate: f64, machine: &Machine| rate / f64::from(machine.multiprocessors.max(1));
        let own = each(machine.l2, machine).max(1.0);
        let gathers = each(Machine::H200.l2, &Machine::H200) / own;
        let rate = each(machine.mma * of_f16 * REACHED, machine).max(1.0);
        for (&height, times) in &mut self.heights {
            // Heights below 64 rows are computed as 64 rows.
            let flops = 2.0 * height.max(64) as f64 * COLUMNS as f64 * STAGE;
            times.tile *= gathers;
            times.stage = (times.stage * gathers).max(flops / rate * 1e6);
        }
        self.detect *= Machine::H200.hbm / machine.hbm.max(1.0);
        self
    }

    /// Returns the times for f32 as TF32. They are derived from the L2 traffic of a stage (benches/NOTES.md,
    /// "pit_right, pit_tf32 and pit_few"), not measured.
    pub fn tf32(machine: &Machine) -> TileTimes {
        let of = |start, tile, stage| HeightTimes { start, tile, stage };
        let times = TileTimes {
            heights: BTreeMap::from([
                (128, of(8.0, 4.8, 1.5)),
                (64, of(8.0, 2.6, 1.24)),
                (32, of(8.0, 1.8, 1.16)),
            ]),
            // f32 has twice the bytes of 16-bit elements.
            detect: 0.6,
        };
        times.slowed(machine, 0.5)
    }

    /// Predicts the microseconds of detection and product of `[m, k, n]` in 16-bit elements. `share` is the share of
    /// nonzero micro-tiles of `height` rows. Returns `None` if there are no times of this height.
    pub fn product_us(
        &self,
        height: usize,
        [m, k, n]: [usize; 3],
        share: f64,
        multiprocessors: u32,
    ) -> Option<f64> {
        let times = self.heights.get(&height)?;
        let waves = waves(height, [m, n], multiprocessors);
        let tile = times.tile + stages(k, share) * times.stage;
        Some(times.start + self.detect * megabytes([m, k]) + waves * tile)
    }
}

/// Number of tiles of C, of `height` rows, that a multiprocessor computes one after the other.
fn waves(height: usize, [m, n]: [usize; 2], multiprocessors: u32) -> f64 {
    let tiles = m.div_ceil(height) * n.div_ceil(COLUMNS);
    tiles.div_ceil(multiprocessors.max(1) as usize) as f64
}

/// Number of stages of a tile, if `share` of its `k` micro-tiles are nonzero.
fn stages(k: usize, share: f64) -> f64 {
    (k as f64 * share / STEP).ceil() * STEP / STAGE
}

/// Size of a matrix of 16-bit elements, in MB.
fn megabytes([rows, columns]: [usize; 2]) -> f64 {
    2e-6 * rows as f64 * columns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that half as many micro-tiles, or fewer columns, never take longer.
    #[test]
    fn more_work_takes_longer() {
        let times = TileTimes::on(&Machine::H200);
        for &height in times.heights.keys() {
            let us = |n, share| times.product_us(height, [4096, 4096, n], share, 132).unwrap();
            assert!(us(4096, 0.5) > us(4096, 0.25));
            assert!(us(4096, 0.25) > us(256, 0.25));
        }
        assert_eq!(times.product_us(48, [1, 1, 1], 1.0, 132), None);
    }

    /// A start, 0.3 us for each of 1.6384 MB, and one tile of 50 stages.
    #[test]
    fn a_wave_is_a_start_a_search_and_a_tile() {
        let times = TileTimes::on(&Machine::H200);
        let us = times.product_us(128, [128, 6400, 256], 0.5, 132).unwrap();
        assert!((us - (8.0 + 0.49152 + 3.1 + 50.0 * 0.83)).abs() < 1e-9, "{us}");
    }
}
