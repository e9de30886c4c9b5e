//! Launch of the module `wgmma`: records and schedule of the CTA tiles, tensor maps of the operands.

use einsparse_kernels::abi::{
    A_COLUMNS, B_COLUMNS, C_COLUMNS, FLAG_VECTORS, HALF, Operation, PANEL_BYTES, STRIP,
};
use einsparse_kernels::families::WgmmaParams;
use einsparse_kernels::table::Row;
use smallvec::SmallVec;

use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::gemm::strips::{Pieces, Records, Schedule, Source, Tiles};
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{
    Extents, Matrix, Product, RawSpmm, SpmmConfig, Turns, flags, footprint, out_flag, row_bytes,
    small, within,
};
use crate::registry::Dtype;

/// Layout of A's values in memory: the matrix of which pieces are parts.
#[derive(Clone, Copy, Debug)]
struct Values {
    rows: usize,
    columns: usize,
    leading: usize,
}

#[derive(Debug)]
pub(crate) struct Panels {
    /// End of the last run. Partial sums of cut tiles share one workspace, so the next run waits for it.
    turns: Turns,
    /// Type of C.
    out: Dtype,
    kernel: Kernel<WgmmaParams>,
    form: SpmmForm,
    extents: Extents,
    /// Number of matrices of the batch that one launch computes.
    folded: usize,
    values: Values,
    records: DeviceMemory,
    strips: DeviceMemory,
    heads: DeviceMemory,
    partial: DeviceMemory,
    zeros: DeviceMemory,
    strip_count: usize,
    rounds: usize,
    cut: u32,
    blocks: u32,
}

impl Panels {
    pub(crate) fn new(of: SpmmConfig<'_>, matrix: Matrix<'_>) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let Extents { m, k, n, .. } = extents;
        let pieces = Pieces::of(row);
        let folded = folded(&of.form, extents, pieces)?;
        let Some((source, values)) = lying(matrix, (m, k), (&of.form, pieces)) else {
            let expected = format!("a format that {} reads", row.name);
            return Err(Error::format(&of.form.sparse, expected, "slices of rows"));
        };
        within("rows of A's blocks", values.rows, i32::MAX as usize)?;
        let records = Records::new(&source, pieces, (m, k));
        small("words of the records", records.words.len())?;
        let (blocks, columns) = (device.machine().multiprocessors, row.columns as usize);
        let tiles = Tiles::new(columns, n, folded);
        let schedule = Schedule::new(&records.spans, tiles, blocks as usize);
        let partial = schedule.slots as usize * STRIP * columns * 4;
        Ok(Panels {
            out: of.out,
            kernel,
            form: of.form,
            extents,
            folded,
            values,
            records: device.upload(&records.words)?,
            strips: device.upload(bytemuck_strips(&schedule.strips))?,
            heads: device.upload(&schedule.heads(&records.words, pieces.record()))?,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            zeros: device.zeros(PANEL_BYTES)?,
            strip_count: schedule.count,
            rounds: schedule.strips.len() / schedule.blocks.max(1),
            cut: schedule.cut,
            blocks: schedule.blocks as u32,
            turns: Turns::with_counters(device, schedule.cut as usize * 8)?,
        })
    }

    fn params(&self, raw: &RawSpmm) -> Result<WgmmaParams> {
        let Extents { m, n, .. } = self.extents;
        let [_, c_item, gate_item] =
            raw.strides(self.form.order, self.extents, [self.row().dtype, self.out]);
        let b_rows = b_rows(&self.form, self.extents);
        let element = self.out.bytes();
        crate::launch::aligned(self.row(), "B", raw.b, raw.ldb)?;
        crate::launch::aligned(self.row(), "values of A", raw.values, self.values.leading)?;
        let [a_map, b_map] = self.maps(raw)?;
        Ok(WgmmaParams {
            a_map,
            b_map,
            records: self.records.address(),
            strips: self.strips.address(),
            heads: self.heads.address(),
            a: raw.values,
            zeros: self.zeros.address(),
            c: raw.c,
            bias: raw.bias,
            gate: raw.gate,
            gate_bytes: row_bytes("the gate", raw.ldg, element)?,
            b_item: small("rows of B", b_rows)?,
            c_item,
            gate_item,
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            alpha: raw.alpha,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            ldc_bytes: row_bytes("C", raw.ldc, element)?,
            flags: self.flags(raw)?,
            a_row: small("elements of a row of A's values", self.values.columns)?,
            rounds: small("rounds of strips", self.rounds)?,
        })
    }

    /// Flags of the epilogue, and of whether C and the operand `gate` can be accessed by whole vectors.
    fn flags(&self, raw: &RawSpmm) -> Result<u32> {
        let Extents { m, n, .. } = self.extents;
        let (mut flags, _) = flags(&self.form, self.extents, raw)?;
        let width = if self.row().order & C_COLUMNS == 0 { n } else { m };
        // Without a gate, its address and its row stride are 0.
        let whole =
            [raw.ldc, width, raw.ldg].iter().all(|x| x.is_multiple_of(16 / self.out.bytes()))
                && raw.c.is_multiple_of(16)
                && raw.gate.is_multiple_of(16);
        if whole {
            flags |= FLAG_VECTORS;
        }
        if self.row().operation == Operation::Narrow {
            flags |= out_flag(self.out);
        }
        Ok(flags)
    }

    /// Tensor maps of A's values and of all matrices B that one launch reads.
    fn maps(&self, raw: &RawSpmm) -> Result<[[u64; 16]; 2]> {
        let Extents { k, n, .. } = self.extents;
        let (pieces, order) = (Pieces::of(self.row()), self.row().order);
        // Extents of a piece, in memory order.
        let tile = if order & A_COLUMNS == 0 {
            [pieces.depth, pieces.rows]
        } else {
            [pieces.rows, pieces.depth]
        };
        let Values { rows, columns, leading } = self.values;
        let map = |address, extents, leading, tile, swizzled| {
            let matrix = Flat { address, extents, leading };
            Maps::of(self.row(), &self.zeros).matrix(&matrix, tile, swizzled)
        };
        let a_map = map(raw.values, [columns, rows], leading, tile, tile[0])?;
        let b_map = if order & B_COLUMNS == 0 {
            let tile = [HALF, pieces.depth];
            map(raw.b, [n, k * self.folded], raw.ldb, tile, HALF)?
        } else {
            let tile = [pieces.depth, self.row().columns as usize];
            map(raw.b, [k, n * self.folded], raw.ldb, tile, pieces.depth)?
        };
        Ok([a_map, b_map])
    }
}

impl Product for Panels {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn leading(&self) -> Option<usize> {
        Some(self.values.leading)
    }

    fn bytes(&self) -> usize {
        let lists = self.records.bytes() + self.strips.bytes() + self.heads.bytes();
        lists + self.partial.bytes() + self.turns.counters().bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} strips, {} rows cut, {} persistent thread blocks, {}",
            self.strip_count,
            self.cut,
            self.blocks,
            footprint(self.row(), self.bytes())
        )
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let mut launches = SmallVec::<[_; 1]>::new();
        for first in (0..self.extents.items).step_by(self.folded.max(1)) {
            let strides = raw.strides(self.form.order, self.extents, [self.row().dtype, self.out]);
            launches.push(self.params(&raw.item(strides, first))?);
        }
        let grid = Grid::of([self.blocks, 1, 1]);
        self.turns.queue(self.cut > 0, queue.stream(), || {
            for params in &launches {
                queue.launch(&self.kernel, grid, params)?;
            }
            Ok(())
        })
    }
}

/// Rows of one matrix B in memory.
fn b_rows(form: &SpmmForm, extents: Extents) -> usize {
    if form.order.dense_columns { extents.n } else { extents.k }
}

/// Number of matrices of a batch that one launch computes.
fn folded(form: &SpmmForm, extents: Extents, pieces: Pieces) -> Result<usize> {
    let Extents { m, k, n, items } = extents;
    // The matrices B of a batch form one matrix, so a slice that reaches past one of them reads the next. Rows past the
    // last k would be multiplied by zeros of A, and NaN times zero is not zero.
    let together = pieces.depth > 1 && (form.order.dense_columns || k.is_multiple_of(pieces.depth));
    let folded = if together { items } else { 1 };
    for (what, value) in [
        ("rows of A", m),
        ("rows of B", k),
        ("columns of B", n),
        ("rows of all B", b_rows(form, extents).saturating_mul(folded)),
    ] {
        within(what, value, i32::MAX as usize - STRIP)?;
    }
    Ok(folded)
}

/// Layout of a dense A. It is stored by columns if `transposed`.
fn dense_values((m, k): (usize, usize), leading: usize, transposed: bool) -> Values {
    let (rows, columns) = if transposed { (k, m) } else { (m, k) };
    Values { rows, columns, leading }
}

/// Pieces of A and layout of its values; `None` for slices of rows.
fn lying<'a>(
    matrix: Matrix<'a>,
    extents: (usize, usize),
    (form, pieces): (&SpmmForm, Pieces),
) -> Option<(Source<'a>, Values)> {
    match matrix {
        Matrix::Sparse { runs, columns, block, stored, .. } => Some((
            Source::Blocks(runs, columns, block, form.order.transposed),
            stored_blocks(block, stored),
        )),
        Matrix::Sliced { .. } => None,
        Matrix::Dense { leading } => Some((
            Source::Dense(extents.0, extents.1),
            dense_values(extents, leading, pieces.transposed),
        )),
    }
}

/// Layout of the array of values: each row is a row of a block, or a whole block if blocks have one column.
fn stored_blocks((bm, bk): (usize, usize), stored: usize) -> Values {
    let (rows, columns) = if bk == 1 { (stored, bm) } else { (stored * bm, bk) };
    Values { rows, columns, leading: columns }
}

/// The list as rows of words, which the driver module copies.
fn bytemuck_strips(list: &[einsparse_kernels::abi::Strip]) -> &[[u32; 8]] {
    const { assert!(size_of::<einsparse_kernels::abi::Strip>() == 32) };
    // SAFETY: `Strip` is a `repr(C)` struct of eight u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}
