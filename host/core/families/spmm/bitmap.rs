//! Launch of the module `bitmap`. Every thread block gets the same number of stages; CTA tiles are
//! cut along k for that.

mod layout;
mod schedule;

use einsparse_kernels::abi::{FLAG_A_KEPT, FLAG_VECTORS, MapWords};
use einsparse_kernels::families::{BIT_STAGES, BIT_TILE, BitmapParams, eights, stages_for};
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use layout::Layout;
use schedule::{Band, Schedule, as_words, bands};

use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{
    Extents, Product, RawSpmm, SpmmConfig, Turns, aligned, flags, row_bytes, small, within,
};
use crate::offer::refuse;
use crate::worklist::Runs;

/// Kernel that is prepared for one pattern.
#[derive(Debug)]
pub(crate) struct Bitmaps {
    /// End of the last run. Partial sums of cut tiles share one workspace, so the next run waits for it.
    turns: Turns,
    kernel: Kernel<BitmapParams>,
    form: SpmmForm,
    extents: Extents,
    starts: DeviceMemory,
    first: DeviceMemory,
    pieces: DeviceMemory,
    partial: DeviceMemory,
    schedule: Schedule,
    rounds: u32,
    stages: u32,
    slot_bytes: u32,
    places: u32,
    keeps_a: bool,
    /// A word that `a_changed` overwrites; its value is not used.
    between: DeviceMemory,
}

impl Bitmaps {
    pub(crate) fn new(of: SpmmConfig<'_>, (runs, words): (&Runs, &[u32])) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let Extents { m, k, n, .. } = extents;
        for (what, value) in [("rows of A", m), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - 256)?;
        }
        let (groups, columns) = (row.items as usize, row.columns as usize);
        let layout = Layout::of(row);
        let across = k.div_ceil(layout.depth());
        let tiles = m.div_ceil(BIT_TILE) * across;
        let starts = layout.starts(words, tiles);
        let bands = bands(m, across, groups);
        let entries = entries(&bands, &runs.rows, m);
        let most = (device.machine().multiprocessors * row.min_blocks) as usize;
        let strips = (columns, n.div_ceil(columns));
        let schedule = Schedule::new(&bands, &entries, across, strips, most);
        let slot_bytes = layout.slot_bytes(groups, longest(&bands, across, &starts));
        let b_bytes = layout.depth() * columns * 2;
        let room = row.shared_bytes as usize - layout.head(row) - layout::sums(row);
        let stages = room / (slot_bytes + b_bytes);
        if stages == 0 {
            let reason = format!(
                "a stage of A takes {slot_bytes} bytes, which do not fit into shared memory"
            );
            return Err(refuse(row.name, reason));
        }
        let rounds = schedule.rounds();
        let partial = schedule.slots as usize * groups * BIT_TILE * eights(columns) * 8 * 4;
        Ok(Bitmaps {
            turns: Turns::with_counters(device, schedule.cut as usize * groups * 16)?,
            kernel,
            form: of.form,
            extents,
            first: device.upload(&schedule.first_starts(&starts, groups))?,
            starts: device.upload(&starts)?,
            pieces: device.upload(as_words(&rounds))?,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            rounds: (rounds.len() / schedule.blocks().max(1) as usize) as u32,
            schedule,
            stages: stages_for(stages.min(BIT_STAGES) as u32, layout::copiers(row)),
            slot_bytes: slot_bytes as u32,
            places: small("bytes of the counts of A", layout.places(tiles))?,
            keeps_a: false,
            between: DeviceMemory::alloc(device.context(), 4)?,
        })
    }

    /// Tensor map of B's tiles. A single column is mapped as a row of a matrix, since it is contiguous.
    fn b_map(&self, raw: &RawSpmm) -> Result<MapWords> {
        let Extents { k, n, .. } = self.extents;
        let columns = self.row().columns as usize;
        let (extents, tile, leading) = if columns == 1 {
            crate::launch::in_vectors("B", raw.b)?;
            if raw.ldb != 1 {
                return Err(Error::stride("B", raw.ldb, "1 as planned"));
            }
            ([k, 1], [BIT_TILE, 1], k)
        } else {
            aligned(self.row(), "B", raw.b, raw.ldb)?;
            ([n, k], [columns, BIT_TILE], raw.ldb)
        };
        if self.row().vector == 1 {
            return Ok([0; 16]);
        }
        let matrix = Flat { address: raw.b, extents, leading };
        let swizzled = if columns <= 8 { 0 } else { columns };
        Maps::of(self.row(), &self.starts).matrix(&matrix, tile, swizzled)
    }

    fn params(&self, raw: &RawSpmm) -> Result<BitmapParams> {
        let Extents { m, k, n, .. } = self.extents;
        let (mut flags, column_bias) = flags(&self.form, self.extents, raw)?;
        let bytes = self.row().dtype.bytes();
        for (name, address) in [("values of A", raw.values), ("columns of A", raw.columns)] {
            crate::launch::in_vectors(name, address)?;
        }
        // C is stored by pairs of elements.
        let even = [raw.ldc, n].iter().all(|x| x.is_multiple_of(2));
        if even && raw.c.is_multiple_of(4) && column_bias.is_multiple_of(4) {
            flags |= FLAG_VECTORS;
        }
        if self.keeps_a {
            flags |= FLAG_A_KEPT;
        }
        Ok(BitmapParams {
            b_map: self.b_map(raw)?,
            words: raw.columns,
            values: raw.values,
            starts: self.starts.address(),
            first: self.first.address(),
            pieces: self.pieces.address(),
            b: raw.b,
            c: raw.c,
            bias: raw.bias,
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            alpha: raw.alpha,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            k: small("rows of B", k)?,
            ldb_bytes: row_bytes("B", raw.ldb, bytes)?,
            ldc_bytes: row_bytes("C", raw.ldc, bytes)?,
            flags,
            stages: self.stages,
            slot_bytes: self.slot_bytes,
            rounds: self.rounds,
            places: self.places,
        })
    }
}

impl Product for Bitmaps {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn keeps_a(&mut self) -> bool {
        self.keeps_a = true;
        true
    }

    fn a_changed(&self, _: u64, queue: Queue<'_>) -> Result<()> {
        // A kernel starts early only if it directly follows another kernel. This memset separates them.
        self.kernel.set_current()?;
        queue.fill(self.between.address(), 0, self.between.bytes())
    }

    fn bytes(&self) -> usize {
        let lists = self.starts.bytes() + self.first.bytes() + self.pieces.bytes();
        lists + self.partial.bytes() + self.turns.counters().bytes() + self.between.bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} strips of {} x {}, {} cut into {} pieces, {} persistent thread blocks, {} threads, {} stages of {} \
             bytes of A, \
             {} bytes of workspace",
            self.schedule.strips,
            self.row().block.0,
            self.row().columns,
            self.schedule.cut,
            self.schedule.slots,
            self.schedule.blocks(),
            self.row().threads,
            self.stages,
            self.slot_bytes,
            self.bytes()
        )
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let params = self.params(raw)?;
        let grid = Grid::of([self.schedule.blocks(), 1, 1]).early();
        self.turns.queue(self.schedule.cut > 0, queue.stream(), || {
            queue.launch(&self.kernel, grid, &params)
        })
    }
}

/// Nonzeros in the rows of each band.
fn entries(bands: &[Band], runs: &[(u32, u32)], m: usize) -> Vec<u64> {
    let of_band = |band: &Band| {
        let rows = band.row..m.min(band.row + band.height * BIT_TILE);
        runs[rows].iter().map(|&(_, len)| u64::from(len)).sum()
    };
    bands.iter().map(of_band).collect()
}

/// Max units of values of a stage.
fn longest(bands: &[Band], across: usize, starts: &[u32]) -> usize {
    let of_band = |band: &Band| {
        let stage = |place: usize| {
            let tile = band.tile + place * band.step;
            starts[tile + band.height] - starts[tile]
        };
        (0..across).map(stage).max().unwrap_or(0)
    };
    bands.par_iter().map(of_band).max().unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    /// Plans compute the same starts as the formats.
    #[test]
    fn tiles_start_where_the_formats_say() {
        use super::layout::Layout;
        use einsparse_formats::{Csr, convert, generate};
        for density in [0.0, 0.1, 0.6, 1.0] {
            let pattern = generate::uniform(300, 700, density, 3).unwrap();
            let values = vec![1.0f32; pattern.columns().len()];
            let csr = Csr::new(pattern, values).unwrap();
            let bits = convert::csr_to_bitmap(&csr).unwrap();
            let bits = bits.pattern();
            assert_eq!(Layout::Bits.starts(bits.words(), 55), bits.starts());
            let bytes = convert::csr_to_bytemap(&csr).unwrap();
            let bytes = bytes.pattern();
            assert_eq!(Layout::Bytes.starts(bytes.words(), 30), bytes.starts());
        }
    }

    /// The format stores bits in the order of the fragments that lanes hold.
    #[test]
    fn bits_stand_where_fragments_want_them() {
        use einsparse_formats::{Csr, CsrPattern, convert};
        for lane in 0..32 {
            for place in 0..8 {
                let (row, col) = einsparse_kernels::frag::a_k16(lane, place / 2, place % 2);
                let offsets = (0..=64).map(|r| u32::from(r > 16 + row)).collect();
                let pattern = CsrPattern::new(64, 64, offsets, vec![32 + col]).unwrap();
                let a = convert::csr_to_bitmap(&Csr::new(pattern, vec![1.0f32]).unwrap()).unwrap();
                let word = a.pattern().words()[32 + lane as usize];
                assert_eq!(word, 1 << (8 * (place % 4) + 2 * 2 + place / 4));
            }
        }
    }
}
