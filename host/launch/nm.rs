//! A kernel of the `nm` family: the order of its tiles, tensor maps of the operands.

use std::sync::Arc;

use einsparse_kernels::abi::{FLAG_VECTORS, HALF, NM_DEPTH, NmParams};
use einsparse_kernels::table::Row;

use super::{Extents, RawSpmm, aligned, flags, refused, small, within};
use crate::device::Device;
use crate::driver::{
    DeviceMemory, Function, LaunchConfig, RawStream, Swizzle, TensorMap, TensorMapLayout,
    TensorMapType,
};
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::registry::Dtype;
use crate::worklist::Runs;

/// Columns of A that one word of positions describes.
const WORD: usize = 32;
/// Rows of tiles that are finished before the next ones begin: their A stays in L2 while B passes.
const RASTER: usize = 8;

/// A kernel chosen for a shape; it fits every matrix of that shape.
#[derive(Debug)]
pub(crate) struct TwoOfFour {
    row: &'static Row,
    function: Function,
    form: SpmmForm,
    extents: Extents,
    runs: Arc<Runs>,
    tiles: DeviceMemory,
    tile_count: u32,
    blocks: u32,
}

/// First row and column of every tile, in the order of work.
fn tiles(m: usize, n: usize, (rows, columns): (usize, usize)) -> Vec<[u32; 2]> {
    let (down, across) = (m.div_ceil(rows), n.div_ceil(columns));
    let mut list = Vec::with_capacity(down * across);
    for group in (0..down).step_by(RASTER) {
        for x in 0..across {
            let of_group = group..down.min(group + RASTER);
            list.extend(of_group.map(|y| [(y * rows) as u32, (x * columns) as u32]));
        }
    }
    list
}

impl TwoOfFour {
    pub(super) fn new(
        device: &Device,
        row: &'static Row,
        form: SpmmForm,
        extents: Extents,
        runs: &Arc<Runs>,
    ) -> Result<Self> {
        let function = device
            .modules()
            .function(row.family, row.name, row.shared_bytes)?;
        let Extents { m, k, n } = extents;
        let edge = row.block.0.max(row.columns) as usize;
        for (what, value) in [("rows of A", m), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - edge)?;
        }
        let list = tiles(m, n, (row.block.0 as usize, row.columns as usize));
        let tile_count = small("tiles of C", list.len())?;
        Ok(TwoOfFour {
            row,
            function,
            form,
            extents,
            runs: Arc::clone(runs),
            tiles: device.upload(&list)?,
            tile_count,
            blocks: tile_count.min(device.machine().multiprocessors),
        })
    }

    pub(super) fn row(&self) -> &'static Row {
        self.row
    }

    /// Positions and values are operands of a run: the shape alone was planned with.
    pub(super) fn fits(&self, runs: &Arc<Runs>) -> bool {
        Arc::ptr_eq(&self.runs, runs) || *self.runs == **runs
    }

    pub(super) fn bytes(&self) -> usize {
        self.tiles.bytes()
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} tiles of {} x {}, 0 rows cut, {} persistent thread blocks, {} threads, {} bytes of shared memory, {} bytes of workspace",
            self.tile_count,
            self.row.block.0,
            self.row.columns,
            self.blocks,
            self.row.threads,
            self.row.shared_bytes,
            self.bytes()
        )
    }

    /// # Safety
    /// As [`super::Launch::run`].
    pub(super) unsafe fn run(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        let params = self.params(raw)?;
        self.function.context().set_current()?;
        let config = LaunchConfig {
            grid: [self.blocks, 1, 1],
            block: [self.row.threads, 1, 1],
            smem_bytes: self.row.shared_bytes,
            cluster: None,
            overlap_previous: false,
        };
        // SAFETY: the params are those of the family; the addresses are the caller's promise, the rest is
        // owned by self, whose memory the driver frees only after the work.
        unsafe { self.function.launch(&config, stream, &params) }
    }

    fn params(&self, raw: &RawSpmm) -> Result<NmParams> {
        let Extents { m, k, n } = self.extents;
        let element = self.row.dtype.bytes();
        let (mut flags, _) = flags(&self.form, self.extents, raw)?;
        let words = k.div_ceil(WORD);
        aligned(self.row, "B", raw.b, raw.ldb)?;
        aligned(self.row, "values of A", raw.values, words * WORD / 2)?;
        if !raw.columns.is_multiple_of(4) {
            let reason = format!("address {:#x} is not a multiple of 4 bytes", raw.columns);
            return Err(refused("positions of A", reason));
        }
        let whole = [raw.ldc, n]
            .iter()
            .all(|x| (x * element).is_multiple_of(16));
        if whole && raw.c.is_multiple_of(16) {
            flags |= FLAG_VECTORS;
        }
        let a_tile = [NM_DEPTH / 2, self.row.block.0 as usize];
        let stored = words * WORD / 2;
        Ok(NmParams {
            a_map: self.map(raw.values, [stored, m], stored, a_tile, Swizzle::B64)?,
            b_map: self.map(raw.b, [n, k], raw.ldb, [HALF, NM_DEPTH], Swizzle::B128)?,
            meta: raw.columns,
            tiles: self.tiles.address(),
            c: raw.c,
            bias: raw.bias,
            alpha: raw.alpha,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            ldc_bytes: small("bytes of a row of C", raw.ldc.saturating_mul(element))?,
            flags,
            words: small("words of a row's positions", words)?,
            stages: small("stages of a tile", k.div_ceil(NM_DEPTH))?,
            tile_count: self.tile_count,
            reserved: 0,
        })
    }

    /// Map of a row-major matrix of `[columns, rows]`, cut into tiles whose rows are swizzled whole.
    fn map(
        &self,
        address: u64,
        [columns, rows]: [usize; 2],
        leading: usize,
        tile: [usize; 2],
        swizzle: Swizzle,
    ) -> Result<[u64; 16]> {
        let element = match self.row.dtype {
            Dtype::Bf16 => TensorMapType::Bf16,
            _ => TensorMapType::F16,
        };
        // A matrix without elements is never read, but the driver wants an address and extents.
        let there = columns > 0 && rows > 0 && address != 0;
        let stride = (leading.max(columns) * self.row.dtype.bytes()).next_multiple_of(16);
        let layout = TensorMapLayout {
            element,
            extents: &[columns.max(1) as u64, rows.max(1) as u64],
            strides: &[stride.max(16) as u64],
            tile: &[tile[0] as u32, tile[1] as u32],
            swizzle,
        };
        let address = if there { address } else { self.tiles.address() };
        Ok(*TensorMap::encode_tiled(address, &layout)?.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_tile_comes_once() {
        let list = tiles(2600, 400, (256, 192));
        let all: BTreeSet<[u32; 2]> = list.iter().copied().collect();
        assert_eq!((list.len(), all.len()), (11 * 3, 11 * 3));
        assert_eq!(list[..2], [[0, 0], [256, 0]]);
        assert_eq!(list[8], [0, 192]);
        assert!(tiles(0, 400, (256, 192)).is_empty());
    }
}
