//! Predictions for convolutions with dynamic channels and filters (benches/NOTES.md, "pit_conv: dynamic channels and
//! filters").

use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::families::gather_gemm::ConvolutionShape;
use crate::machine::Machine;

/// Two launches before the product, without their bytes, and the launch of the product, us.
const START_US: f64 = 8.5;

/// Cost of a tile of a multiprocessor in addition to its stages: the first stage, and C.
const TILE_US: f64 = 4.5;
/// Time of detection relative to the time of its bytes.
const DETECTED: f64 = 1.8;

/// Tiles of positions and filters of a shape.
pub(crate) struct ConvTiles {
    /// Bytes and floating-point operations of a stage of one tile, and its kernel.
    bytes: f64,
    flops: f64,
    row: &'static Row,
    tiles: f64,
    /// Number of tiles along the filters.
    across: f64,
    /// Share of A in the bytes of a stage.
    of_a: f64,
    /// Channels of a stage.
    deep: f64,
    shape: ConvolutionShape,
    /// Elements of A, B and C, and bytes of an element.
    elements: [f64; 3],
    element: f64,
}

impl ConvTiles {
    /// Creates the tiles of a kernel with boxes of `tile` positions.
    pub(crate) fn of(
        row: &'static Row,
        tile: [usize; 2],
        shape: &ConvolutionShape,
        out: [usize; 2],
    ) -> Self {
        let [positions, deep] = [row.block.0, row.block.1].map(f64::from);
        let columns = shape.filters.next_multiple_of(64).min(row.columns as usize) as f64;
        let boxes = (out[0].div_ceil(tile[0]) * out[1].div_ceil(tile[1])) as f64;
        let across = shape.filters.div_ceil(row.columns as usize) as f64;
        let element = row.dtype.bytes() as f64;
        let area = |pair: [usize; 2]| (pair[0] * pair[1]) as f64;
        let [images, channels, filters] =
            [shape.images, shape.channels, shape.filters].map(|extent| extent as f64);
        ConvTiles {
            bytes: deep * (positions + columns) * element,
            flops: 2.0 * positions * columns * deep,
            row,
            tiles: shape.images as f64 * boxes * across,
            across,
            of_a: positions / (positions + columns),
            deep,
            shape: *shape,
            elements: [
                images * area(shape.size) * channels,
                shape.taps() as f64 * channels * filters,
                images * area(out) * filters,
            ],
            element,
        }
    }

    pub(crate) fn count(&self) -> f64 {
        self.tiles
    }

    /// Returns the times of one stage of all tiles by L2 and by the Tensor Cores, us, in whole waves of the
    /// multiprocessors.
    fn stage(&self, machine: &Machine) -> [f64; 2] {
        let all = f64::from(machine.multiprocessors).max(1.0);
        let waves = (self.tiles / all).ceil() * all * 1e6;
        [waves * self.bytes / machine.l2, waves * self.flops / machine.products(self.row).max(1.0)]
    }

    /// Returns the time of one stage of all tiles, us.
    pub(crate) fn us(&self, machine: &Machine) -> f64 {
        let [gathered, computed] = self.stage(machine);
        gathered.max(computed)
    }

    /// Returns the share of the tiles that remains at this share of filters, and the share of the bytes of all stages.
    /// Filters come in chunks of 64, and half a chunk is added on average. A is loaded for few filters as for many.
    fn filled(&self, share: f64) -> (f64, f64) {
        let filters = self.shape.filters.max(1) as f64;
        let filled = (((share * filters + 32.0) / 64.0).ceil() * 64.0 / filters).min(1.0);
        let side_by_side = (self.across * share).ceil().max(1.0) / self.across.max(1.0);
        let of_b = (filled / side_by_side).min(1.0);
        let chunks = side_by_side * (self.of_a + (1.0 - self.of_a) * of_b);
        (side_by_side, chunks)
    }

    /// Predicts detection and product at this share of nonempty channels, or filters if `filters`.
    pub(crate) fn cost(&self, filters: bool, share: f64, machine: &Machine) -> Cost {
        let listed = if filters { 1.0 } else { share };
        let deep = (self.shape.channels as f64 * listed / self.deep).max(0.25);
        let (side_by_side, chunks) = if filters { self.filled(share) } else { (1.0, 1.0) };
        let stages = self.shape.taps() as f64 * deep * chunks;
        let [gather_us, compute_us] = self.stage(machine).map(|us| us * stages);
        let looked = if filters { self.elements[1] } else { self.elements[0] };
        let over = |elements: f64, rate: f64| elements * self.element / rate * 1e6;
        let hbm_us = over(self.elements.iter().sum::<f64>() + looked * share, machine.hbm);
        let detection_us =
            DETECTED * (over(looked, machine.hbm) + over(looked * (1.0 + share), machine.l2));
        let all = f64::from(machine.multiprocessors).max(1.0);
        let ends_us = TILE_US * (self.tiles * side_by_side / all).ceil();
        Cost {
            us: START_US
                + detection_us
                + ends_us
                + gather_us.max(compute_us).max(over(self.elements[2], machine.hbm)),
            hbm_us,
            gather_us,
            compute_us,
            latency_us: START_US + ends_us,
        }
    }
}
