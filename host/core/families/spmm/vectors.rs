//! Launch of the module `vectors`: finds and uploads the column vectors of A (eight rows each),
//! and orders windows by length.

use einsparse_formats::vectors::{VectorPattern, VectorStep};
use einsparse_kernels::abi::{Dtype, FLAG_VECTORS, Operation};
use einsparse_kernels::families::{RowWindow, VectorsParams, record_bytes};
use einsparse_kernels::table::Row;

use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{
    Extents, MAX_GRID_X, MAX_GRID_Y, Product, RawSpmm, SpmmConfig, aligned, flags, footprint,
    out_flag, row_bytes, small, within,
};
use crate::worklist::Runs;
use rayon::prelude::*;

/// Rows of B that indices of 2 bytes can address.
const NARROW: usize = 1 << 16;

/// Kernel and work list that are prepared for one pattern.
#[derive(Debug)]
pub(crate) struct VectorProduct {
    kernel: Kernel<VectorsParams>,
    form: SpmmForm,
    out: Dtype,
    extents: Extents,
    entries: u64,
    windows: DeviceMemory,
    records: DeviceMemory,
    window_count: u32,
    vectors: u64,
    wide: bool,
    grid: [u32; 3],
}

/// Windows as the device reads them: by descending length class, from top to bottom within a class, so that neighbours
/// share rows of B.
fn windows(pattern: &VectorPattern) -> Vec<[u32; 4]> {
    let mut order: Vec<u32> = (0..pattern.windows().len() as u32).collect();
    let class = |&at: &u32| {
        let steps = pattern.windows()[at as usize].vectors.div_ceil(16);
        std::cmp::Reverse(u32::BITS - steps.leading_zeros())
    };
    order.par_sort_by_key(class);
    let words = |&at: &u32| {
        let window = pattern.windows()[at as usize];
        let RowWindow { window, first, vectors, base } = RowWindow {
            window: at,
            first: window.first,
            vectors: window.vectors | u32::from(window.filled) << 24,
            base: window.base,
        };
        [window, first, vectors, base]
    };
    order.par_iter().map(words).collect()
}

/// Steps as records of [`record_bytes`], in words.
fn records(steps: &[VectorStep], wide: bool) -> Vec<u32> {
    let each = record_bytes(wide) as usize / 4;
    let mut words = vec![0; steps.len() * each];
    let of_steps = words.par_chunks_mut(each).zip(steps);
    of_steps.for_each(|(record, step)| {
        let (columns, rows) = record.split_at_mut(each - step.rows.len());
        rows.copy_from_slice(&step.rows);
        if wide {
            columns.copy_from_slice(&step.columns);
        } else {
            let (pairs, _) = step.columns.as_chunks::<2>();
            for (word, pair) in columns.iter_mut().zip(pairs) {
                *word = pair[0] | pair[1] << 16;
            }
        }
    });
    words
}

impl VectorProduct {
    pub(crate) fn new(of: SpmmConfig<'_>, (runs, columns): (&Runs, &[u32])) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let Extents { m, k, n, .. } = extents;
        within("rows of A", m, MAX_GRID_X)?;
        small("rows of B", k)?;
        let tiles = n.div_ceil(row.columns as usize);
        within("column tiles", tiles, MAX_GRID_Y)?;
        let pattern = VectorPattern::from_rows(k, &runs.rows, columns)?;
        let wide = k > NARROW;
        let list = windows(&pattern);
        let window_count = within("windows of eight rows", list.len(), MAX_GRID_X)?;
        Ok(VectorProduct {
            kernel,
            form: of.form,
            out: of.out,
            extents,
            entries: runs.total,
            windows: device.upload(&list)?,
            records: device.upload(&records(pattern.steps(), wide))?,
            window_count,
            vectors: pattern.vectors(),
            wide,
            grid: [window_count.div_ceil(row.items), tiles as u32, 1],
        })
    }

    fn params(&self, raw: &RawSpmm) -> Result<VectorsParams> {
        let Extents { m, n, .. } = self.extents;
        let (element, out_element) = (self.row().dtype.bytes(), self.out.bytes());
        let (mut flags, column_bias) = flags(&self.form, self.extents, raw)?;
        aligned(self.row(), "values of A", raw.values, 0)?;
        aligned(self.row(), "B", raw.b, raw.ldb)?;
        if self.row().operation == Operation::Narrow {
            flags |= out_flag(self.out);
            let pairs = n.is_multiple_of(2) && raw.ldc.is_multiple_of(2);
            if pairs && raw.c.is_multiple_of(2 * out_element as u64) {
                flags |= FLAG_VECTORS;
            }
        } else {
            aligned(self.row(), "C", raw.c, raw.ldc)?;
            aligned(self.row(), "bias", column_bias, 0)?;
        }
        Ok(VectorsParams {
            windows: self.windows.address(),
            records: self.records.address(),
            values: raw.values,
            b: raw.b,
            c: raw.c,
            bias: raw.bias,
            alpha: raw.alpha,
            window_count: self.window_count,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            ldb_bytes: row_bytes("B", raw.ldb, element)?,
            ldc_bytes: row_bytes("C", raw.ldc, out_element)?,
            flags,
            wide: u32::from(self.wide),
            reserved: 0,
        })
    }
}

impl Product for VectorProduct {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        self.windows.bytes() + self.records.bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} windows, {} vectors of {} entries, 0 rows cut, grid {} x {}, {}",
            self.window_count,
            self.vectors,
            self.entries,
            self.grid[0],
            self.grid[1],
            footprint(self.row(), self.bytes())
        )
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let params = self.params(raw)?;
        let grid = Grid::of(self.grid);
        queue.launch(&self.kernel, grid, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_columns_and_rows() {
        let pattern = VectorPattern::from_rows(70_000, &[(0, 2), (2, 1)], &[3, 9, 9]).unwrap();
        let narrow = records(pattern.steps(), false);
        assert_eq!((narrow.len(), narrow[0], narrow[7]), (16, 9 << 16 | 3, 9 << 16 | 9));
        assert_eq!(narrow[8..10], [0b11, 2 << 16 | 0b10]);
        let wide = records(pattern.steps(), true);
        assert_eq!((wide.len(), &wide[..3], &wide[16..18]), (24, &[3, 9, 9][..], &narrow[8..10]));
    }

    #[test]
    fn long_windows_come_first() {
        let rows: Vec<(u32, u32)> =
            (0..24).map(|r| (r * 40, if r < 16 { 1 } else { 40 })).collect();
        let columns: Vec<u32> = (0..24 * 40).map(|c| c % 40).collect();
        let pattern = VectorPattern::from_rows(40, &rows, &columns).unwrap();
        let order: Vec<u32> = windows(&pattern).iter().map(|w| w[0]).collect();
        assert_eq!(order, [2, 0, 1]);
        assert_eq!(windows(&pattern)[0], [2, 2, 40 | 0xff << 24, 640]);
    }
}
