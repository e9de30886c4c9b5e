//! Product of rows on a GPU, each with the matrix that was chosen for it.

use einsparse_formats::SCALE_BLOCK;
use einsparse_kernels::abi::{B_COLUMNS, CLUSTER, Divisor, PLAIN, TMA};
use einsparse_kernels::families::{
    GROUPED_BLOCK, GROUPED_BOX, GROUPED_DEPTH, GROUPED_EARLY, GROUPED_FEW, GROUPED_GATE,
    GROUPED_GATHER, GROUPED_NARROW, GROUPED_ONCE, GROUPED_PAIRED, GROUPED_QUANTIZE, GROUPED_ROWS,
    GROUPED_SCATTER, GroupedParams, QUANTIZED_COLUMNS, SCALED_COLUMNS,
};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::discover::route::DeviceRoutes;
use crate::families::gather_gemm::cost::grouped::few_rows;
use crate::families::gather_gemm::grouped_choice::choose;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Heads, Maps};
use crate::launch::{aligned, row_bytes, small, within};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Extents and storage of a grouped product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupedExtents {
    pub tokens: usize,
    /// Choices per token.
    pub top: usize,
    pub experts: usize,
    pub k: usize,
    pub n: usize,
    /// Whether matrices are stored as `[n, k]`.
    pub turned: bool,
    /// Whether matrices have gates next to their columns.
    pub gated: bool,
    /// Whether matrices are e4m3 with scales.
    pub scaled: bool,
    /// Whether rows of A are e4m3 with scales.
    pub quantized: bool,
}

const _: () = assert!(SCALE_BLOCK == GROUPED_BLOCK);

impl GroupedExtents {
    pub(crate) fn slots(&self) -> usize {
        self.tokens.saturating_mul(self.top)
    }

    /// Returns the storage order of the matrices as in the table of kernels, or an error if no kernel supports it.
    pub(crate) fn order(&self) -> Result<u32> {
        if self.quantized && !self.scaled {
            let allowed = "false without `scaled`: rows are e4m3 only if matrices are e4m3";
            return Err(Error::range("quantize", true, allowed));
        }
        match (self.turned, self.scaled) {
            (false, false) => Ok(PLAIN),
            (true, false) => Ok(B_COLUMNS),
            (false, true) => {
                let allowed = "true with `scaled`: matrices of e4m3 with scales are [n, k]";
                Err(Error::range("transposed", false, allowed))
            }
            (true, true) if !self.k.is_multiple_of(16) => {
                Err(Error::range("k", self.k, "a multiple of 16 with `scaled`"))
            }
            (true, true) if self.gated && !self.n.is_multiple_of(SCALE_BLOCK) => {
                let allowed = format!("a multiple of {SCALE_BLOCK} with `scaled` and a gate");
                Err(Error::range("n", self.n, allowed))
            }
            (true, true) if self.quantized => Ok(QUANTIZED_COLUMNS),
            (true, true) => Ok(SCALED_COLUMNS),
        }
    }

    /// Returns the columns of a matrix.
    pub(crate) fn columns(&self) -> usize {
        self.n.saturating_mul(1 + usize::from(self.gated))
    }

    /// Returns whether most row blocks have so few rows that full boxes of A would mostly contain other rows.
    fn narrow(&self) -> bool {
        self.slots() <= self.experts.saturating_mul(2 * GROUPED_FEW)
    }

    fn few_rows(&self) -> bool {
        few_rows(self.slots(), self.experts)
    }
}

/// Source of the rows of A and destination of the rows of C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupedWay {
    /// Rows of A are indexed by token, otherwise by slot.
    pub gather: bool,
    /// Rows of C are indexed by choice, otherwise by slot.
    pub scatter: bool,
    /// Rows of C of choices without an expert are not written.
    pub keep: bool,
    /// `FLAG_*` of the activation.
    pub flags: u32,
    /// Matrices and routes were complete before the previous kernel started.
    pub early: bool,
}

/// Operands of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupedOperands<'a> {
    /// Names of A, W and C in errors.
    pub names: [&'static str; 3],
    pub routes: &'a DeviceRoutes,
    pub a: DenseMatrix,
    /// Address of the scales of A's rows, or 0.
    pub a_scales: u64,
    /// Rows of all matrices, concatenated.
    pub w: DenseMatrix,
    /// Address of the scales of W, or 0.
    pub scales: u64,
    /// Address of the weights of the choices, or 0.
    pub weights: u64,
    /// Rows by slot. C is zero if the element is not positive.
    pub gate: Option<DenseMatrix>,
    pub c: DenseMatrix,
    /// Address of the scales of C's rows; 0 if C is not quantized.
    pub c_scales: u64,
}

/// Kernel chosen for these extents.
#[derive(Debug)]
pub(crate) struct GroupedLaunch {
    kernel: Kernel<GroupedParams>,
    extents: GroupedExtents,
    grid: u32,
    empty: DeviceMemory,
}

impl GroupedLaunch {
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        extents: GroupedExtents,
        variant: Option<&str>,
    ) -> Result<Self> {
        let row = choose(dtype, &extents, variant, device.machine())?;
        let kernel = Kernel::load(device, row)?;
        let GroupedExtents { k, n, experts, .. } = extents;
        let vector = row.vector as usize;
        within("columns of W", extents.columns(), i32::MAX as usize - 256)?;
        for (what, value) in [("rows of W", k), ("columns of C", n)] {
            if !value.is_multiple_of(vector) {
                let allowed = format!("a multiple of {vector}, which {} copies at once", row.name);
                return Err(Error::range(what, value, allowed));
            }
            within(what, value, i32::MAX as usize - 256)?;
        }
        let slots = within("choices", extents.slots(), i32::MAX as usize / 2)? as usize;
        let panels = slots / GROUPED_ROWS + experts.min(slots);
        let tiles = panels.saturating_mul(n.div_ceil(row.columns as usize));
        let tiles = within("tiles", tiles, i32::MAX as usize / 2)?;
        Ok(GroupedLaunch {
            kernel,
            extents,
            // Rows without an expert are set to zero even if nothing is multiplied.
            grid: tiles.min(device.machine().multiprocessors),
            empty: device.zeros(16)?,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues the product of these [`params`](Self::params). The routes have the planned number of choices, and were
    /// computed earlier on the stream. With [`GroupedWay::early`], routes and W were complete before the previous
    /// kernel started.
    pub(crate) fn run(&self, params: &GroupedParams, queue: Queue<'_>) -> Result<()> {
        // The kernel waits for the previous launch before it accesses the results of that launch.
        let grid = match self.paired() {
            true => Grid::of([(self.grid & !1).max(2), 1, 1]).in_clusters(2),
            false => Grid::of([self.grid, 1, 1]),
        };
        let grid = grid.early();
        queue.launch(&self.kernel, grid, params)
    }

    /// Returns whether two thread blocks share each fetch of W. This is faster with many rows per matrix, where tiles
    /// wait for L2.
    fn paired(&self) -> bool {
        let row = self.kernel.row();
        let across = self.extents.n.div_ceil(row.columns as usize);
        row.needs & CLUSTER != 0 && !self.extents.few_rows() && across.is_multiple_of(2)
    }

    /// Returns the number of elements along k that the kernel counts as one element of two bytes.
    fn codes(&self) -> usize {
        if self.extents.quantized { 2 } else { 1 }
    }

    /// Returns the extent along k as the kernel counts it.
    fn deep(&self) -> usize {
        self.extents.k / self.codes()
    }

    /// Returns the tensor map of W. Its boxes end at the end of an expert's matrix.
    fn w_map(&self, w: DenseMatrix) -> Result<[u64; 16]> {
        let GroupedExtents { experts, turned, .. } = self.extents;
        let (k, n) = (self.deep(), self.extents.columns());
        let leading = w.leading / self.codes();
        let (wide, deep) = if turned { (k, n) } else { (n, k) };
        let heads = Heads {
            address: w.address,
            extents: [wide, deep, experts],
            strides: [leading, leading * deep],
        };
        let down = if turned {
            (self.kernel.row().columns as usize).min(GROUPED_BOX)
        } else {
            GROUPED_DEPTH
        };
        let dtype = match self.kernel.row().order {
            SCALED_COLUMNS => Dtype::E4m3,
            _ => self.kernel.row().dtype,
        };
        Maps::of(self.kernel.row(), &self.empty).with_dtype(dtype).heads(&heads, [64, down])
    }

    /// Returns the params of a run; an error if the kernel cannot read the operands.
    pub(crate) fn params(
        &self,
        way: GroupedWay,
        operands: &GroupedOperands<'_>,
    ) -> Result<GroupedParams> {
        let GroupedExtents { top, experts, n, .. } = self.extents;
        let k = self.deep();
        let GroupedOperands {
            names,
            routes,
            mut a,
            a_scales,
            w,
            scales,
            weights,
            gate,
            c,
            c_scales,
        } = *operands;
        a.leading /= self.codes();
        // Without a gate, this matrix is not read.
        let gating = gate.is_some();
        let gate = gate.unwrap_or(c);
        let [of_a, of_w, of_c] = names;
        for (name, matrix) in [(of_a, a), (of_w, w), ("gate", gate), (of_c, c)] {
            aligned(self.kernel.row(), name, matrix.address, matrix.leading)?;
        }
        if self.extents.scaled && !w.leading.is_multiple_of(16) {
            return Err(Error::alignment(of_w, "row stride", w.leading as u64, 16));
        }
        let dtype = self.kernel.row().dtype;
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, dtype.bytes());
        let rows =
            Flat { address: a.address, extents: [k, self.extents.slots()], leading: a.leading };
        let flags = [
            (way.gather, GROUPED_GATHER),
            (way.scatter, GROUPED_SCATTER),
            (way.early && !way.gather, GROUPED_EARLY),
            (self.extents.few_rows(), GROUPED_ONCE),
            (self.paired(), GROUPED_PAIRED),
            (self.extents.narrow(), GROUPED_NARROW),
            (gating, GROUPED_GATE),
            (c_scales != 0, GROUPED_QUANTIZE),
        ];
        let down = if self.extents.narrow() { GROUPED_FEW } else { GROUPED_ROWS };
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag);
        Ok(GroupedParams {
            a_map: match self.kernel.row().needs & TMA {
                // All rows are gathered.
                0 => [0; 16],
                _ => Maps::of(self.kernel.row(), &self.empty).matrix(&rows, [64, down], 64)?,
            },
            w_map: self.w_map(w)?,
            a: a.address,
            c: c.address,
            order: routes.order.address(),
            offsets: routes.offsets.address(),
            panels: routes.panels.address(),
            weights,
            gate: gate.address,
            top: Divisor::new(small("choices of a token", top)?),
            across: Divisor::new(n.div_ceil(self.kernel.row().columns as usize) as u32),
            n: small("columns of W", n)?,
            k: small("rows of W", k)?,
            lda_bytes: bytes("A", a.leading)?,
            ldc_bytes: match c_scales {
                0 => bytes("C", c.leading)?,
                _ => row_bytes("C", c.leading, 1)?,
            },
            gate_bytes: bytes("the gate", gate.leading)?,
            experts: small("matrices", experts)?,
            // Rows of slots below this number without an expert are set to zero.
            slots: match way.keep {
                true => 0,
                false => small("choices", self.extents.slots())?,
            },
            flags: flags.fold(way.flags, |all, flag| all | flag),
            scales,
            a_scales,
            c_scales,
        })
    }
}
