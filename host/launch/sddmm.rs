//! A kernel of the `sddmm` family: runs of entries of a pattern, and X and Y by their addresses.

use std::sync::{Arc, OnceLock};

use einsparse_kernels::abi::{FLAG_ACCUMULATE, FLAG_MASK_VALUES, Item, SddmmParams};
use einsparse_kernels::table::Row;

use super::gather::Words;
use super::{MAX_GRID_X, RawSampled, SampledExtents, aligned, config, refused, small, within};
use crate::cost::sample_limit;
use crate::device::Device;
use crate::driver::{DeviceMemory, Function, RawStream};
use crate::einsum::Mode;
use crate::error::Result;
use crate::worklist::{Runs, pieces};

#[derive(Debug)]
pub(crate) struct Sddmm {
    row: &'static Row,
    function: Function,
    extents: SampledExtents,
    mode: Mode,
    items: DeviceMemory,
    item_count: u32,
    runs: Arc<Runs>,
    pattern: Vec<u32>,
    /// Of another tensor whose pattern was compared with ours and is the same, the mask's as a rule.
    known: OnceLock<Arc<Runs>>,
}

impl Sddmm {
    pub(super) fn new(
        device: &Device,
        row: &'static Row,
        extents: SampledExtents,
        mode: Mode,
        (runs, columns): (&Arc<Runs>, &[u32]),
    ) -> Result<Self> {
        for (what, value) in [("rows", extents.m), ("columns", extents.n)] {
            small(what, value)?;
        }
        // The last step along k reaches past its end.
        within("terms", extents.k, i32::MAX as usize)?;
        let function = device
            .modules()
            .function(row.family, row.name, row.shared_bytes)?;
        let list = pieces(runs, sample_limit(row, runs.total, device.machine()));
        let item_count = within("work items", list.len(), MAX_GRID_X)?;
        Ok(Sddmm {
            row,
            function,
            extents,
            mode,
            items: device.upload(Item::words(&list))?,
            item_count,
            runs: Arc::clone(runs),
            pattern: columns.to_vec(),
            known: OnceLock::new(),
        })
    }

    pub(super) fn row(&self) -> &'static Row {
        self.row
    }

    /// Whether a pattern is the planned one.
    pub(super) fn fits(&self, runs: &Arc<Runs>, columns: &[u32]) -> bool {
        let known = [Some(&self.runs), self.known.get()];
        if known.iter().flatten().any(|known| Arc::ptr_eq(known, runs)) {
            return true;
        }
        let same = *self.runs == **runs && self.pattern == columns;
        if same {
            let _ = self.known.set(Arc::clone(runs));
        }
        same
    }

    pub(super) fn bytes(&self) -> usize {
        self.items.bytes()
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} items, grid {}, {} threads, {} bytes of workspace",
            self.item_count,
            self.item_count.div_ceil(self.row.items),
            self.row.threads,
            self.bytes()
        )
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern until the work is done.
    pub(super) unsafe fn run(&self, raw: &RawSampled, stream: RawStream<'_>) -> Result<()> {
        if self.item_count == 0 {
            return Ok(());
        }
        let params = self.params(raw)?;
        self.function.context().set_current()?;
        let config = config(self.row, [self.item_count.div_ceil(self.row.items), 1, 1]);
        // SAFETY: the params are those of the family; the addresses are the caller's promise, the list is owned by
        // self, whose memory the driver frees only after the work.
        unsafe { self.function.launch(&config, stream, &params) }
    }

    fn params(&self, raw: &RawSampled) -> Result<SddmmParams> {
        let (k, element) = (self.extents.k, self.row.dtype.bytes());
        for (name, address, leading) in [("X", raw.x, raw.ldx), ("Y", raw.y, raw.ldy)] {
            aligned(self.row, name, address, leading)?;
            if leading < k {
                let reason = format!("leading dimension {leading} is below its {k} columns");
                return Err(refused(name, reason));
            }
        }
        let accumulate = u32::from(self.mode == Mode::Accumulate) * FLAG_ACCUMULATE;
        let masked = u32::from(raw.mask != 0) * FLAG_MASK_VALUES;
        let stride = |what: &str, leading: usize| small(what, leading.saturating_mul(element));
        Ok(SddmmParams {
            items: self.items.address(),
            columns: raw.columns,
            x: raw.x,
            y: raw.y,
            values: raw.values,
            mask: raw.mask,
            alpha: raw.alpha,
            item_count: self.item_count,
            k: small("terms", k)?,
            ldx_bytes: stride("bytes of a row of X", raw.ldx)?,
            ldy_bytes: stride("bytes of a row of Y", raw.ldy)?,
            flags: accumulate | masked,
            reserved: 0,
        })
    }
}
