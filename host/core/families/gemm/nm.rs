//! Launch of the kernels for 2:4 matrices: order of the tiles, tensor maps of the operands.

use einsparse_kernels::abi::{B_COLUMNS, Dtype, FLAG_VECTORS, HALF, Operation};
use einsparse_kernels::families::{NM_HOLDERS, NM_PAIR, NM_STEPS, NM_WORD, NmParams};
use einsparse_kernels::frag;
use einsparse_kernels::table::Row;

use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{
    Extents, Product, RawSpmm, SpmmConfig, aligned, flags, footprint, out_flag, row_bytes, small,
    within,
};
use rayon::prelude::*;

/// Rows of tiles that are finished before the next ones begin: their A stays in L2 while B is read.
const RASTER: usize = 8;

/// Positions 0 and 1 of each group: valid metadata for groups of zeros.
const PADDING: u32 = 0x4444_4444;

/// Kernel that is prepared for one pattern.
#[derive(Debug)]
pub(crate) struct TwoOfFour {
    kernel: Kernel<NmParams>,
    form: SpmmForm,
    out: Dtype,
    extents: Extents,
    metadata: DeviceMemory,
    pairs: u32,
    tiles: DeviceMemory,
    tile_count: u32,
    blocks: u32,
}

/// First row and column of every tile, in execution order.
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

/// Arranges the metadata words `positions`, `[m, words]`, as the lanes of a warpgroup hold them for products. The order
/// is: each 64 rows, each pair of stages of `depth` columns, each thread, the words of both stages. Rows are padded to
/// a multiple of `rows`.
fn metadata(positions: &[u32], (m, words): (usize, usize), rows: usize, depth: usize) -> Vec<u32> {
    let of_stage = depth / NM_WORD;
    // Two lanes share a word if a step is one word deep.
    let registers = of_stage / NM_STEPS;
    let pairs = words.div_ceil(of_stage * NM_PAIR);
    let word = |row: usize, at: usize| match row < m && at < words {
        true => positions[row * words + at],
        false => PADDING,
    };
    let of_thread = NM_PAIR * registers;
    let of_pair = NM_HOLDERS * of_thread;
    let mut all = vec![0; m.next_multiple_of(rows) / HALF * pairs * of_pair];
    let chunks = all.par_chunks_mut(of_pair).enumerate();
    chunks.for_each(|(i, chunk)| {
        let (top, pair) = (i / pairs * HALF, i % pairs);
        for (at, out) in chunk.iter_mut().enumerate() {
            let (thread, stage) = (at / of_thread, pair * NM_PAIR + at % of_thread / registers);
            let lane = thread as u32 % 32;
            let row = |within: u32| top + thread / 32 * 16 + within as usize;
            *out = if registers == 1 {
                let step = stage * NM_STEPS + frag::metadata_selector(lane) as usize;
                let halves = [0, 1].map(|h| word(row(frag::metadata(lane, h).0), step));
                frag::metadata_of(lane, halves[0], halves[1])
            } else {
                let (own, column) = frag::metadata_narrow(lane);
                word(row(own), stage * of_stage + at % registers * 2 + column as usize)
            };
        }
    });
    all
}

impl TwoOfFour {
    pub(crate) fn new(of: SpmmConfig<'_>, positions: &[u32]) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let Extents { m, k, n, .. } = extents;
        let edge = row.block.0.max(row.columns) as usize;
        for (what, value) in [("rows of A", m), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - edge)?;
        }
        let list = tiles(m, n, (row.block.0 as usize, row.columns as usize));
        let tile_count = small("tiles of C", list.len())?;
        let words = k.div_ceil(NM_WORD);
        let (rows, depth) = (row.block.0 as usize, row.block.1 as usize);
        let metadata = metadata(positions, (m, words), rows, depth);
        Ok(TwoOfFour {
            kernel,
            form: of.form,
            out: of.out,
            extents,
            metadata: device.upload(&metadata)?,
            pairs: small("stages of a tile", k.div_ceil(depth * NM_PAIR))?,
            tiles: device.upload(&list)?,
            tile_count,
            blocks: tile_count.min(device.machine().multiprocessors),
        })
    }

    fn params(&self, raw: &RawSpmm) -> Result<NmParams> {
        let Extents { m, k, n, .. } = self.extents;
        let element = self.out.bytes();
        let (mut flags, _) = flags(&self.form, self.extents, raw)?;
        let words = k.div_ceil(NM_WORD);
        aligned(self.row(), "B", raw.b, raw.ldb)?;
        aligned(self.row(), "values of A", raw.values, words * NM_WORD / 2)?;
        // Without a gate, its address and its row stride are 0.
        let whole = [raw.ldc, n, raw.ldg].iter().all(|x| x.is_multiple_of(16 / element));
        if whole && raw.c.is_multiple_of(16) && raw.gate.is_multiple_of(16) {
            flags |= FLAG_VECTORS;
        }
        if self.row().operation == Operation::Narrow {
            flags |= out_flag(self.out);
        }
        let (rows, depth) = (self.row().block.0 as usize, self.row().block.1 as usize);
        let a_tile = [depth / 2, rows];
        let stored = words * NM_WORD / 2;
        let map = |address, extents, leading, tile: [usize; 2]| {
            let matrix = Flat { address, extents, leading };
            Maps::of(self.row(), &self.tiles).matrix(&matrix, tile, tile[0])
        };
        let b_map = if self.row().order & B_COLUMNS == 0 {
            map(raw.b, [n, k], raw.ldb, [HALF, depth])?
        } else {
            map(raw.b, [k, n], raw.ldb, [depth, self.row().columns as usize])?
        };
        Ok(NmParams {
            a_map: map(raw.values, [stored, m], stored, a_tile)?,
            b_map,
            meta: self.metadata.address(),
            tiles: self.tiles.address(),
            c: raw.c,
            bias: raw.bias,
            gate: raw.gate,
            alpha: raw.alpha,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            ldc_bytes: row_bytes("C", raw.ldc, element)?,
            flags,
            pairs: self.pairs,
            tile_count: self.tile_count,
            zero: 0,
            gate_bytes: row_bytes("the gate", raw.ldg, element)?,
        })
    }
}

impl Product for TwoOfFour {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        self.tiles.bytes() + self.metadata.bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} tiles of {} x {}, 0 rows cut, {} persistent thread blocks, {}",
            self.tile_count,
            self.row().block.0,
            self.row().columns,
            self.blocks,
            footprint(self.row(), self.bytes())
        )
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let strides = raw.strides(self.form.order, self.extents, [self.row().dtype, self.out]);
        let mut launches = Vec::with_capacity(self.extents.items);
        for item in 0..self.extents.items {
            launches.push(self.params(&raw.item(strides, item))?);
        }
        let grid = Grid::of([self.blocks, 1, 1]);
        for params in &launches {
            queue.launch(&self.kernel, grid, params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Each 16 columns of every row occur once, in the lane from which `wgmma` reads them.
    #[test]
    fn lanes_hold_every_position_once() {
        let (m, words) = (70, 5);
        let positions: Vec<u32> = (0..m as u32 * 5).map(|i| i << 16 | (i + 1000)).collect();
        let all = metadata(&positions, (m, words), 128, 64);
        let of_pair = NM_HOLDERS * NM_PAIR;
        assert_eq!(all.len(), 2 * 2 * of_pair);
        let halves = |list: &[u32]| {
            let halves = list.iter().flat_map(|w| [w & 0xffff, w >> 16]);
            let mut halves: Vec<u32> = halves.filter(|&h| h != 0x4444).collect();
            halves.sort_unstable();
            halves
        };
        assert_eq!(halves(&all), halves(&positions));
        // Row 65 is row 1 of the second 64: lane 4, second pair. Word 4 is step 0.
        assert_eq!(all[3 * of_pair + 4 * 2] & 0xffff, positions[65 * 5 + 4] & 0xffff);
    }

    /// With 8-bit elements, the word of each row and 32 columns occurs once, and whole.
    #[test]
    fn lanes_hold_every_word_once() {
        let (m, words) = (70, 9);
        let positions: Vec<u32> = (0..m as u32 * 9).collect();
        let all = metadata(&positions, (m, words), 128, 128);
        let of_pair = NM_HOLDERS * NM_PAIR * 2;
        assert_eq!(all.len(), 2 * 2 * of_pair);
        let mut there: Vec<u32> = all.iter().copied().filter(|&w| w != PADDING).collect();
        there.sort_unstable();
        assert_eq!(there, positions);
        // Row 65 is row 1 of the second 64: lane 4. Word 7 is the upper half of the second step of the second stage,
        // two lanes further.
        assert_eq!(all[2 * of_pair + 6 * 4 + 3], 65 * 9 + 7);
    }

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
