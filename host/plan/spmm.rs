//! The product of a matrix with a dense one, by a kernel that reads A as it is.

use std::fmt;
use std::sync::Arc;

use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::table::Row;

use super::any::AnyPlan;
use super::bind::{device_tensor, elsewhere, find, wrong};
use super::family::{Compiled, write_kernel};
use super::into::sums_fit;
use super::problem::{Problem, stored_block};
use crate::cost::Work;
use crate::device::{Device, Stream};
use crate::error::{Error, Refusal, Result};
use crate::families::gemm::dense::DenseProduct;
use crate::families::gemm::nm::TwoOfFour;
use crate::families::gemm::panel::Panels;
use crate::families::spmm::batched::Batched;
use crate::families::spmm::bitmap::Bitmaps;
use crate::families::spmm::gather::Gather;
use crate::families::spmm::staged::Staged;
use crate::families::spmm::vectors::VectorProduct;
use crate::indirect::SpmmForm;
use crate::kernel::Queue;
use crate::launch::{Extents, Matrix, Product, RawSpmm, refused};
use crate::registry::{Dtype, has_strips};
use crate::tensor::{AnyOperand, AnyTensor, columns_of, told_by};

/// The kernel of a row over a sparse A given by its runs, and by what its blocks look like where the kernel wants that; C of
/// type `out`.
fn product(
    device: &Arc<Device>,
    row: &'static Row,
    form: SpmmForm,
    extents: Extents,
    matrix: Matrix<'_>,
    out: Dtype,
) -> Result<std::result::Result<Box<dyn Product>, Refusal>> {
    let product: Box<dyn Product> = match matrix {
        _ if has_strips(row) => Box::new(Panels::new(device, row, form, extents, matrix, out)?),
        Matrix::Sparse { runs, columns, .. } if row.walk == WalkKind::Nm => Box::new(
            TwoOfFour::new(device, row, form, extents, (runs, columns), out)?,
        ),
        _ if is_turned(row, &form) => Box::new(Batched::new(device, row, form, extents, matrix)?),
        Matrix::Sparse {
            runs,
            spans,
            columns,
            ..
        } => match row.walk {
            WalkKind::Bitmap | WalkKind::Bytemap => {
                match Bitmaps::new(device, row, form, extents, (runs, columns))? {
                    Ok(product) => Box::new(product),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            WalkKind::Vector => Box::new(VectorProduct::new(
                device,
                row,
                form,
                extents,
                (runs, columns),
                out,
            )?),
            _ => Box::new(Gather::new(device, row, form, extents, (runs, spans))?),
        },
        Matrix::Sliced { runs, pattern } => {
            Box::new(Staged::new(device, row, form, extents, (runs, pattern))?)
        }
        Matrix::Dense { leading } if row.walk == WalkKind::Direct => {
            Box::new(DenseProduct::new(device, row, form, extents, leading)?)
        }
        Matrix::Dense { .. } => {
            let reason = format!(
                "is dense, which kernels of module {} do not read",
                row.module
            );
            return Err(refused(&form.sparse, reason));
        }
    };
    Ok(Ok(product))
}

/// Whether a product is a batch of entries, or one with their transpose.
fn is_turned(row: &Row, form: &SpmmForm) -> bool {
    row.module == "batched" || row.module == "spmm" && form.order.transposed
}

#[derive(Debug)]
pub(super) struct Spmm {
    launch: Box<dyn Product>,
    form: SpmmForm,
}

impl Spmm {
    /// The kernel of a row over A as it is.
    pub(super) fn new(
        device: &Arc<Device>,
        row: &'static Row,
        (problem, form): (&Problem, &SpmmForm),
        operands: &[(&str, AnyOperand<'_>)],
    ) -> Result<std::result::Result<Self, Refusal>> {
        let no_rows = |format: Format| Error::Operand {
            name: form.sparse.clone(),
            reason: format!("is {format}, which has no rows to walk"),
        };
        let matrix = match find(operands, &form.sparse)? {
            AnyOperand::Sparse(a) if row.walk == WalkKind::SlicedEll => {
                match (a.runs(), a.pattern()) {
                    (Some(runs), AnyPattern::SlicedEll(pattern)) => {
                        Matrix::Sliced { runs, pattern }
                    }
                    _ => return Err(no_rows(a.format())),
                }
            }
            AnyOperand::Sparse(a) => Matrix::Sparse {
                runs: a.product_runs().ok_or_else(|| no_rows(a.format()))?,
                spans: a.spans(),
                columns: columns_of(a.pattern()).unwrap_or(&[]),
                block: stored_block(problem),
                stored: problem.work.index_slots as usize,
                address: a.columns_address().unwrap_or(0),
            },
            AnyOperand::Dense(a) => Matrix::Dense {
                leading: a.leading(),
            },
            _ => {
                return Err(Error::Operand {
                    name: form.sparse.clone(),
                    reason: "upload it to the context before planning".into(),
                });
            }
        };
        let Work { m, k, n, items, .. } = problem.work;
        sums_fit(
            row.dtype,
            problem.work.longest * problem.work.block.1 as u64,
        )?;
        let extents = Extents { m, k, n, items };
        let made = product(device, row, form.clone(), extents, matrix, problem.out)?;
        Ok(made.map(|launch| Spmm {
            launch,
            form: form.clone(),
        }))
    }

    /// Addresses of a run, whose A must have the planned pattern.
    fn bind(
        &self,
        plan: &AnyPlan,
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnyTensor,
    ) -> Result<RawSpmm> {
        let (launch, form) = (&self.launch, &self.form);
        let (columns, values) = match find(operands, &form.sparse)? {
            AnyOperand::Sparse(a) => {
                let same = Some(a.format()) == form.format
                    && a.product_runs()
                        .is_some_and(|r| launch.fits(r, told_by(a.pattern())));
                let (true, Some(arrays)) = (same, a.device()) else {
                    return Err(Error::Operand {
                        name: form.sparse.clone(),
                        reason: "has not the pattern, the format or the context that was planned"
                            .into(),
                    });
                };
                (arrays.columns.address(), arrays.values.address())
            }
            AnyOperand::Dense(a) if form.format.is_none() => {
                launch.check_leading(&form.sparse, a.leading())?;
                (0, a.address().ok_or_else(|| elsewhere(&form.sparse))?)
            }
            other => return Err(wrong(&form.sparse, "an uploaded sparse tensor", other)),
        };
        let (b, ldb) = device_tensor(operands, &form.dense)?;
        let bias = match &form.bias {
            Some((name, _)) => device_tensor(operands, name)?.0,
            None => 0,
        };
        let (gate, ldg) = match &form.gate {
            Some(name) => device_tensor(operands, name)?,
            None => (0, 0),
        };
        let c = out
            .address()
            .ok_or_else(|| elsewhere(&plan.einsum.out.tensor))?;
        Ok(RawSpmm {
            columns,
            values,
            b,
            ldb,
            c,
            ldc: out.leading(),
            bias,
            gate,
            ldg,
            value_stride: 0,
            alpha: plan.factor(operands)?,
        })
    }
}

impl Compiled for Spmm {
    fn variant(&self) -> &'static str {
        self.launch.row().name
    }

    fn bytes(&self) -> usize {
        self.launch.bytes()
    }

    fn run(
        &self,
        plan: &AnyPlan,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let queue = plan.check_places(operands, out, stream)?;
        let raw = self.bind(plan, operands, out)?;
        self.launch.run(&raw, queue)
    }

    fn run_raw(&self, _: &AnyPlan, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        self.launch.run(raw, queue)
    }
}

impl fmt::Display for Spmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_kernel(f, self.launch.row(), self.launch.describe())
    }
}
