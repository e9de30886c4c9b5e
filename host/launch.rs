//! One product on a GPU: work list uploaded, workspace allocated, parameters bound, kernel launched. Conversions to
//! blocks likewise. The launch itself is in [`kernel`](crate::kernel), and so is what a caller promises for it.

mod attention;
mod batched;
mod bitmap;
mod channels;
mod conv;
mod conv_grad;
mod conv_map;
mod convert;
mod dense;
mod detect;
mod einsum;
mod entries;
mod gather;
mod grouped;
mod grouped_grad;
mod join;
mod lists;
mod live_rows;
mod maps;
mod masks;
mod message;
mod mttkrp;
mod nm;
mod operands;
mod panel;
mod pit;
mod pit_conv;
mod pit_few;
mod pit_sampled;
mod planned;
mod prune;
mod route;
mod row_dots;
mod sample;
mod sampled;
mod scatter;
mod sddmm;
mod sddmm_staged;
mod sddmm_tiles;
mod slicing;
mod softmax;
mod staged;
pub(crate) mod tensor_product;
mod transpose;
mod turns;
mod vectors;

use std::sync::Arc;

use einsparse_kernels::abi::{
    FLAG_ACCUMULATE, FLAG_BIAS_COLUMNS, FLAG_BIAS_ROWS, FLAG_GATE, FLAG_GELU, FLAG_RELU,
};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::indirect::{BiasAxis, SpmmForm};
use crate::kernel::Queue;
use crate::registry::{Dtype, WalkKind, has_strips};
use crate::worklist::Runs;
use batched::Batched;
use bitmap::Bitmaps;
use dense::DenseProduct;
use gather::Gather;
use nm::TwoOfFour;
use panel::Panels;
use staged::Staged;
use vectors::VectorProduct;

pub(crate) use attention::AttentionLists;
pub(crate) use attention::{AttentionExtents, AttentionLaunch};
pub use attention::{RawAttention, RawHeads};
pub(crate) use channels::ChannelsLaunch;
pub(crate) use conv::{ConvFinish, ConvProduct, RawConv, conv_rows, turns};
pub(crate) use conv_grad::{RawWeights, WeightGradient};
pub(crate) use conv_map::{MapSteps, strided};
pub use convert::RawBlocks;
pub(crate) use convert::{Blocks, Request};
pub(crate) use detect::{DetectLaunch, DeviceLists, Looked, stride as list_stride};
pub(crate) use einsum::{EinsumLaunch, RawEinsum};
pub(crate) use entries::{Conversion, Entries, Sort, SortOut, Steps, Transpose, check, permute};
pub use entries::{Order, RawEntries};
pub(crate) use grouped::{GroupedExtents, GroupedLaunch, GroupedOperands, GroupedWay};
pub(crate) use grouped_grad::{GradExtents, GradLaunch};
pub(crate) use join::join;
pub(crate) use live_rows::{LiveProduct, PackLaunch, Rows};
pub(crate) use masks::{MaskLaunch, RawFlags};
pub(crate) use message::{MessageLaunch, RawMessage};
pub(crate) use mttkrp::{RawRows, RowsExtents, RowsLaunch};
pub(crate) use operands::Extents;
pub use operands::RawSpmm;
pub(crate) use panel::{MarkedLaunch, Matrix};
pub(crate) use pit::{PitLaunch, PitWork};
pub(crate) use pit_conv::PitConvLaunch;
pub(crate) use pit_few::{PitFewLaunch, few_row};
pub(crate) use pit_sampled::{PitSampledLaunch, PitSampledRun};
pub(crate) use planned::Planned;
pub(crate) use prune::{DenseMatrix, prune, pruner};
pub(crate) use route::{DeviceRoutes, RouteLaunch, SumLaunch, WeighLaunch};
pub(crate) use row_dots::{DotsLaunch, RawDots};
pub(crate) use sample::SampleLaunch;
pub use sampled::RawSampled;
pub(crate) use sampled::{Places, SampledExtents, SampledLaunch};
pub(crate) use scatter::Scatter;
pub(crate) use slicing::{SliceValues, fill_slices, survey_slices};
pub use softmax::RawSoftmax;
pub(crate) use softmax::SoftmaxLaunch;
pub(crate) use transpose::TransposeLaunch;
pub(crate) use turns::{Turns, in_turn, shared_turns};

/// A kernel chosen for one pattern, with what it needs beside the operands.
#[derive(Debug)]
pub(crate) enum Launch {
    /// Families `spmm` and `block`.
    Gather(Box<Gather>),
    /// Family `batched`, and family `spmm` with the transpose.
    Batched(Box<Batched>),
    /// Families `wgmma` and `narrow`.
    Panels(Box<Panels>),
    /// Family `bitmap`.
    Bitmaps(Box<Bitmaps>),
    /// Families `nm` and `nm_narrow`.
    TwoOfFour(Box<TwoOfFour>),
    /// Families `vectors` and `vectors_narrow`.
    Vectors(Box<VectorProduct>),
    /// Family `staged`.
    Staged(Box<Staged>),
    /// Family `dense`.
    Dense(Box<DenseProduct>),
}

/// The same of every kind.
macro_rules! each {
    ($self:ident, $launch:ident => $body:expr) => {
        match $self {
            Launch::Gather($launch) => $body,
            Launch::Batched($launch) => $body,
            Launch::Panels($launch) => $body,
            Launch::TwoOfFour($launch) => $body,
            Launch::Bitmaps($launch) => $body,
            Launch::Vectors($launch) => $body,
            Launch::Staged($launch) => $body,
            Launch::Dense($launch) => $body,
        }
    };
}

impl Launch {
    /// A sparse A given by its runs, and by what its blocks look like where the kernel wants that; C of type `out`.
    pub(crate) fn new(
        device: &Arc<Device>,
        row: &'static Row,
        form: SpmmForm,
        extents: Extents,
        matrix: Matrix<'_>,
        out: Dtype,
    ) -> Result<Self> {
        Ok(match (row.module, matrix) {
            (_, matrix) if has_strips(row) => Launch::Panels(Box::new(Panels::new(
                device, row, form, extents, matrix, out,
            )?)),
            (_, Matrix::Sparse { runs, columns, .. }) if row.walk == WalkKind::Nm => {
                let a = (runs, columns);
                let product = TwoOfFour::new(device, row, form, extents, a, out)?;
                Launch::TwoOfFour(Box::new(product))
            }
            (family, matrix) if is_turned(family, &form) => {
                Launch::Batched(Box::new(Batched::new(device, row, form, extents, matrix)?))
            }
            (_, Matrix::Sparse { runs, columns, .. })
                if [WalkKind::Bitmap, WalkKind::Bytemap].contains(&row.walk) =>
            {
                let product = Bitmaps::new(device, row, form, extents, (runs, columns))?;
                Launch::Bitmaps(Box::new(product))
            }
            (_, Matrix::Sparse { runs, columns, .. }) if row.walk == WalkKind::Vector => {
                let a = (runs, columns);
                let product = VectorProduct::new(device, row, form, extents, a, out)?;
                Launch::Vectors(Box::new(product))
            }
            (_, Matrix::Sparse { runs, spans, .. }) => {
                let product = Gather::new(device, row, form, extents, (runs, spans))?;
                Launch::Gather(Box::new(product))
            }
            (_, Matrix::Sliced { runs, pattern }) => {
                let product = Staged::new(device, row, form, extents, (runs, pattern))?;
                Launch::Staged(Box::new(product))
            }
            (_, Matrix::Dense { leading }) if row.walk == WalkKind::Direct => {
                let product = DenseProduct::new(device, row, form, extents, leading)?;
                Launch::Dense(Box::new(product))
            }
            (family, Matrix::Dense { .. }) => {
                let reason = format!("is dense, which kernels of family {family} do not read");
                return Err(refused(&form.sparse, reason));
            }
        })
    }

    /// The row of the table.
    pub(crate) fn row(&self) -> &'static Row {
        each!(self, launch => launch.row())
    }

    /// Is this the pattern that the work list was made for?
    pub(crate) fn fits(&self, runs: &Arc<Runs>, columns: Option<&[u32]>) -> bool {
        match self {
            Launch::Gather(launch) => launch.fits(runs),
            Launch::Batched(launch) => launch.fits(runs, columns),
            Launch::Panels(launch) => launch.fits(runs, columns),
            Launch::TwoOfFour(launch) => launch.fits(runs, columns),
            Launch::Bitmaps(launch) => launch.fits(runs, columns),
            Launch::Vectors(launch) => launch.fits(runs, columns),
            Launch::Staged(launch) => launch.fits(runs, columns),
            // It has no pattern.
            Launch::Dense(_) => false,
        }
    }

    /// A dense A must be laid out as planned.
    pub(crate) fn check_leading(&self, name: &str, leading: usize) -> Result<()> {
        let planned = match self {
            Launch::Panels(launch) => launch.leading(),
            Launch::Dense(launch) => launch.leading(),
            _ => return Ok(()),
        };
        if planned == leading {
            return Ok(());
        }
        Err(refused(
            name,
            format!("rows are {leading} elements apart, planned with {planned}"),
        ))
    }

    /// Device bytes beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        each!(self, launch => launch.bytes())
    }

    /// What `explain` says of the geometry.
    pub(crate) fn describe(&self) -> String {
        each!(self, launch => launch.describe())
    }

    /// Queues the kernel.
    pub(crate) fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        each!(self, launch => launch.run(raw, queue))
    }
}

/// Whether a product is a batch of entries, or one with their transpose.
fn is_turned(family: &str, form: &SpmmForm) -> bool {
    family == "batched" || family == "spmm" && form.order.transposed
}

/// Largest grid in y.
pub(crate) const MAX_GRID_Y: usize = 65_535;

/// Largest grid in x, and the largest number of rows: tiles reach past the last one.
const MAX_GRID_X: usize = i32::MAX as usize;

/// A count as u32, or the error that names it.
fn small(what: &str, value: usize) -> Result<u32> {
    within(what, value, u32::MAX as usize)
}

/// A count of at most `limit` as u32, or the error that names it.
fn within(what: &str, value: usize, limit: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(small) if value <= limit => Ok(small),
        _ => Err(Error::Overflow {
            what: what.into(),
            value: value as u128,
            limit: limit as u128,
        }),
    }
}

/// Mode and epilogue as flags, and the address of a bias of columns (0 without), after a look at bias and leading
/// dimensions.
fn flags(form: &SpmmForm, extents: Extents, raw: &RawSpmm) -> Result<(u32, u64)> {
    let mut flags = 0;
    if form.mode == Mode::Accumulate {
        flags |= FLAG_ACCUMULATE;
    }
    flags |= match form.activation {
        Activation::Identity => 0,
        Activation::Relu => FLAG_RELU,
        Activation::Gelu => FLAG_GELU,
    };
    let Extents { m, k, n, .. } = extents;
    let order = form.order;
    let mut column_bias = 0;
    if let Some((name, axis)) = &form.bias {
        // Rows and columns of the output as given; the kernels' rows are those of the sparse matrix.
        let extent = if (*axis == BiasAxis::Rows) != order.out_columns {
            flags |= FLAG_BIAS_ROWS;
            m
        } else {
            flags |= FLAG_BIAS_COLUMNS;
            column_bias = raw.bias;
            n
        };
        if raw.bias == 0 && extent > 0 {
            return Err(refused(
                name,
                "the plan adds it, and its address is 0".into(),
            ));
        }
    }
    if let Some(name) = &form.gate {
        flags |= FLAG_GATE;
        if raw.gate == 0 && m * n > 0 {
            return Err(refused(
                name,
                "the plan reads it, and its address is 0".into(),
            ));
        }
    }
    let b_width = if order.dense_columns { k } else { n };
    let c_width = if order.out_columns { m } else { n };
    let gate_leading = if form.gate.is_some() {
        raw.ldg
    } else {
        c_width
    };
    for (name, leading, width) in [
        ("B", raw.ldb, b_width),
        ("C", raw.ldc, c_width),
        ("gate", gate_leading, c_width),
    ] {
        if leading < width {
            let reason = format!("leading dimension {leading} is below its {width} columns");
            return Err(refused(name, reason));
        }
    }
    Ok((flags, column_bias))
}

fn aligned(row: &Row, name: &str, address: u64, leading: usize) -> Result<()> {
    let bytes = u64::from(row.vector) * row.dtype.bytes() as u64;
    if address.is_multiple_of(bytes) && leading.is_multiple_of(row.vector as usize) {
        return Ok(());
    }
    let reason = format!(
        "address {address:#x} and leading dimension {leading} must be multiples of {bytes} bytes and {} elements \
         for {}; plan with `Options::alignment` = 1 for operands that are not",
        row.vector, row.name
    );
    Err(refused(name, reason))
}

/// Refuses an address that loads of 16 bytes cannot begin at.
fn in_vectors(name: &str, address: u64) -> Result<()> {
    if address.is_multiple_of(16) {
        return Ok(());
    }
    let reason = format!("address {address:#x} is not a multiple of 16 bytes");
    Err(refused(name, reason))
}

fn refused(name: &str, reason: String) -> Error {
    Error::Operand {
        name: name.into(),
        reason,
    }
}
