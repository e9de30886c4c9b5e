//! Tiles of convolutions of what was listed while running (benches/NOTES.md, "Sparsity found while running").

use einsparse_kernels::table::Row;

use super::Machine;
use crate::dynamic::ConvolutionShape;

/// Tiles of positions and filters that a shape takes.
pub(crate) struct ConvTiles {
    /// Bytes that a stage of one brings, and its multiplications.
    bytes: f64,
    flops: f64,
    tiles: f64,
}

impl ConvTiles {
    /// Of a kernel with boxes of `tile` positions.
    pub(crate) fn of(
        row: &Row,
        tile: [usize; 2],
        shape: &ConvolutionShape,
        out: [usize; 2],
    ) -> Self {
        let [positions, deep, columns] = [row.block.0, row.block.1, row.columns].map(f64::from);
        let boxes = out[0].div_ceil(tile[0]) * out[1].div_ceil(tile[1]);
        let across = shape.filters.div_ceil(row.columns as usize);
        // Positions of A that lie apart are read with what lies between them, as far as that shares their lines: none of it does.
        let bytes = deep * (positions + columns) * row.dtype.bytes() as f64;
        ConvTiles {
            bytes,
            flops: 2.0 * positions.max(64.0) * columns * deep,
            tiles: (shape.images * boxes * across) as f64,
        }
    }

    /// Time of a stage of all of them, us: waves, each as long as a multiprocessor's share of L2 or its Tensor Cores take.
    pub(crate) fn us(&self, machine: &Machine) -> f64 {
        let all = f64::from(machine.multiprocessors).max(1.0);
        let stage = (self.bytes / machine.l2).max(self.flops / machine.wgmma.max(1.0)) * all * 1e6;
        (self.tiles / all).ceil() * stage
    }
}
