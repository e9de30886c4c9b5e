//! Dense product with a ReLU by the module `marked`, which also writes a bit mask of the micro-tiles of the result that
//! contain nonzeros.

use std::sync::Arc;

use einsparse_kernels::abi::{FLAG_VECTORS, HALF, PLAIN, WalkKind};
use einsparse_kernels::families::{MarkedParams, mark_words};
use einsparse_kernels::table::{Row, rows_of};

use super::Panels;
use crate::device::Device;
use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::families::convert::DenseMatrix;
use crate::indirect::{Orientation, SpmmForm};
use crate::kernel::{Grid, Queue};
use crate::launch::{Asked, Extents, Matrix, RawSpmm, small};
use crate::registry::{Dtype, find, has_strips, none_of};

/// `C[m,n] = relu(A[m,k] * B[k,n])`, and a bit for each column of every `height` rows of C.
#[derive(Debug)]
pub(crate) struct MarkedLaunch {
    panels: Panels<MarkedParams>,
    height: u32,
}

/// Form of the product, from which the flags of the epilogue are made.
fn form() -> SpmmForm {
    SpmmForm {
        sparse: "A".into(),
        dense: "B".into(),
        output: "C".into(),
        order: Orientation::default(),
        batched: false,
        stacked: false,
        mode: Mode::Assign,
        bias: None,
        activation: Activation::Relu,
        gate: None,
        scalars: Vec::new(),
        format: None,
    }
}

impl MarkedLaunch {
    /// Prepares the product for `[m, k, n]`. `leading`: row stride of A in elements. `height`: rows of a micro-tile, a
    /// power of two >= 16.
    pub(crate) fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        [m, k, n]: [usize; 3],
        leading: usize,
        height: usize,
    ) -> Result<Self> {
        let own = rows_of::<MarkedParams>();
        let row = row_for(device, dtype);
        let fits = height.is_power_of_two() && height >= 16;
        let Some(row) = row.filter(|_| fits) else {
            let what = format!("C[m,n] += relu(A[m,k] * B[k,n]), marked {height} rows at a time");
            return Err(none_of(own, what, |row| {
                let lacks = device.machine().lacks(row).filter(|_| row.dtype == dtype && fits);
                let dtype = row.dtype.name();
                lacks.unwrap_or(format!("is for {dtype}, 16 rows or a larger power of two"))
            }));
        };
        let asked =
            Asked { device, row, form: form(), extents: Extents { m, k, n, items: 1 }, out: dtype };
        Ok(MarkedLaunch {
            panels: Panels::new(asked, Matrix::Dense { leading })?,
            height: height.trailing_zeros(),
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.panels.row().name
    }

    /// Queues the product. Sets bits of the mask at address `marks`, and clears none. A, B and C are `[m, k]`, `[k, n]`
    /// and `[m, n]` of the planned type. The mask must be large enough for the bits of all panels.
    pub(crate) fn run(
        &self,
        [a, b, c]: [DenseMatrix; 3],
        marks: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        let own = &self.panels;
        let Extents { m, n, .. } = own.extents;
        if m == 0 || n == 0 {
            return Ok(());
        }
        if a.leading != own.values.leading {
            let reason = format!(
                "has rows {} elements apart, planned for {}",
                a.leading, own.values.leading
            );
            return Err(Error::operand("A", reason));
        }
        let raw = RawSpmm {
            values: a.address,
            b: b.address,
            ldb: b.leading,
            c: c.address,
            ldc: c.leading,
            ..RawSpmm::default()
        };
        let product = own.params(&raw)?;
        if product.flags & FLAG_VECTORS == 0 {
            let reason = "is not stored by 16 bytes, which it is not a multiple of";
            return Err(Error::operand("C", reason));
        }
        let params = MarkedParams {
            product,
            marks,
            words: small("words of bits of a panel", mark_words(n))?,
            height: self.height,
        };
        let grid = Grid::of([own.blocks, 1, 1]);
        own.turns.queue(own.cut > 0, queue.stream(), || queue.launch(&own.kernel, grid, &params))
    }
}

/// First kernel that runs on this GPU.
fn row_for(device: &Device, dtype: Dtype) -> Option<&'static Row> {
    let mut of_type = rows_of::<MarkedParams>().filter(|row| row.dtype == dtype);
    of_type.find(|row| device.machine().lacks(row).is_none())
}

/// Whether a kernel that writes a mask takes as long as `variant`, the kernel of a plan for `relu(A * B)`. Without
/// `wgmma`, all kernels with large tiles of dense matrices take equally long.
pub(crate) fn can_mark(device: &Device, variant: &str) -> bool {
    let Some(plain) = find(variant) else {
        return false;
    };
    let marks = |row: &Row| row.columns == plain.columns || row.stands_in;
    let whole = has_strips(plain) && plain.order == PLAIN && plain.block == (HALF as u32, 64);
    let large = plain.stands_in && plain.walk == WalkKind::Direct && plain.columns >= 128;
    (whole || large) && row_for(device, plain.dtype).is_some_and(marks)
}
