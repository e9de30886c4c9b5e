//! Sparse tensors where a context works.

use std::borrow::Cow;
use std::sync::Arc;

use einsparse_formats::{AnySparse, Format, NmPattern, PAD, Role};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::registry::{Scalar, block_of};
use crate::worklist::Runs;

/// A sparse tensor in the memory of a [`Context`](crate::Context), with a copy of the pattern on the host that plans read.
#[derive(Debug)]
pub struct SparseTensor<T> {
    /// In a CPU context the tensor; beside a GPU only the pattern counts.
    host: Arc<AnySparse<T>>,
    runs: Option<Arc<Runs>>,
    /// Of a batch of matrices in COO, as one matrix.
    batch: Option<Arc<Runs>>,
    device: Option<DeviceArrays>,
    /// Where each row's entries lie, on the device; formats of single entries.
    spans: Option<Arc<DeviceMemory>>,
}

/// Entries that kernels load at once: both arrays are readable that far past their end.
pub(crate) const VECTOR_ENTRIES: usize = 8;

/// What kernels read of a sparse matrix.
#[derive(Debug)]
pub(crate) struct DeviceArrays {
    pub(crate) columns: DeviceMemory,
    pub(crate) values: DeviceMemory,
    pub(crate) device: Arc<Device>,
}

/// The column (block column) of every slot, for N:M the words of positions; formats of columns have none.
pub(crate) fn columns_of<T: Scalar>(tensor: &AnySparse<T>) -> Option<&[u32]> {
    let of_axis_1 = [
        Role::Coordinate { axis: 1 },
        Role::Positions { axis: 1 },
        Role::Bits,
    ];
    let arrays = tensor.arrays();
    let found = arrays.iter().find(|a| of_axis_1.contains(&a.role));
    found.map(|a| a.data)
}

/// What tells patterns of the same rows apart: the column of every slot; of sliced ELLPACK the windows, with which local
/// columns come in every run.
pub(crate) fn told_by<T: Scalar>(tensor: &AnySparse<T>) -> Option<&[u32]> {
    match tensor {
        AnySparse::SlicedEll(a) => Some(a.pattern().windows()),
        other => columns_of(other),
    }
}

/// Whether a matrix is made of single entries that kernels walk row by row.
fn of_entries<T: Scalar>(tensor: &AnySparse<T>) -> bool {
    !matches!(tensor, AnySparse::Nm(_)) && block_of(&tensor.format()) == (1, 1)
}

/// The values with zeros in what edge blocks (groups) hold past the last row and column. Kernels multiply whole blocks,
/// and a NaN there, which is no entry, must not reach C.
fn values_inside<'v, T: Scalar>(tensor: &AnySparse<T>, values: &'v [T]) -> Cow<'v, [T]> {
    if let AnySparse::Nm(nm) = tensor {
        return groups_inside(nm.pattern(), values);
    }
    let (bm, bk) = block_of(&tensor.format());
    let &[rows, columns] = tensor.shape() else {
        return Cow::Borrowed(values);
    };
    let ragged = !rows.is_multiple_of(bm) || !columns.is_multiple_of(bk);
    let (Some(index), Some(runs), true) = (columns_of(tensor), Runs::of(tensor), ragged) else {
        return Cow::Borrowed(values);
    };
    let mut values = Cow::Borrowed(values);
    for (block_row, &(start, len)) in runs.rows.iter().enumerate() {
        let inside = (rows - block_row * bm).min(bm);
        let blocks = start as usize..(start + len) as usize;
        for (block, &column) in blocks.clone().zip(&index[blocks]) {
            let first = block * bm;
            clear(&mut values, (first + inside) * bk..(first + bm) * bk);
            let inside = (columns - column as usize * bk).min(bk);
            for row in first..first + bm {
                clear(&mut values, row * bk + inside..(row + 1) * bk);
            }
        }
    }
    values
}

/// Sets a range to zero, without a copy where it is already.
fn clear<T: Scalar>(values: &mut Cow<'_, [T]>, range: std::ops::Range<usize>) {
    if values[range.clone()].iter().any(|&v| v != T::ZERO) {
        values.to_mut()[range].fill(T::ZERO);
    }
}

fn groups_inside<'v, T: Scalar>(nm: &NmPattern, values: &'v [T]) -> Cow<'v, [T]> {
    let mut values = Cow::Borrowed(values);
    for row in 0..nm.rows() {
        // All groups before the last that holds columns lie inside.
        let first = row * nm.row_slots() + 2 * nm.groups().saturating_sub(1);
        for slot in first..(row + 1) * nm.row_slots() {
            if values[slot] != T::ZERO && nm.is_outside(slot) {
                values.to_mut()[slot] = T::ZERO;
            }
        }
    }
    values
}

impl<T: Scalar> SparseTensor<T> {
    pub(crate) fn new(device: Option<&Arc<Device>>, tensor: AnySparse<T>) -> Result<Self> {
        let runs = Runs::of(&tensor).map(Arc::new);
        let (batch, columns) = Runs::of_batch(&tensor).unzip();
        let device = match device {
            None => None,
            Some(device) => {
                let own = columns_of(&tensor).unwrap_or(&[PAD]);
                let columns = columns.as_deref().unwrap_or(own);
                let columns = device.upload_padded(columns, VECTOR_ENTRIES)?;
                let values = values_inside(&tensor, tensor.values());
                let values = device.upload_padded(&values, VECTOR_ENTRIES)?;
                Some(DeviceArrays {
                    columns,
                    values,
                    device: Arc::clone(device),
                })
            }
        };
        let spans = match (&device, &runs) {
            (Some(arrays), Some(runs)) if of_entries(&tensor) => {
                Some(Arc::new(arrays.device.upload(&runs.spans())?))
            }
            _ => None,
        };
        Ok(SparseTensor {
            host: Arc::new(tensor),
            runs,
            batch: batch.map(Arc::new),
            device,
            spans,
        })
    }

    /// A tensor made on the GPU; the values of `pattern` are none.
    pub(crate) fn made(pattern: AnySparse<T>, arrays: DeviceArrays) -> Self {
        SparseTensor {
            runs: Runs::of(&pattern).map(Arc::new),
            batch: None,
            host: Arc::new(pattern),
            device: Some(arrays),
            spans: None,
        }
    }

    /// The tensor in a CPU context.
    pub(crate) fn host(&self) -> Option<&AnySparse<T>> {
        self.device.is_none().then_some(&*self.host)
    }

    /// The pattern, with values that mean nothing.
    pub(crate) fn pattern(&self) -> &AnySparse<T> {
        &self.host
    }

    /// The same, shared.
    pub(crate) fn shared(&self) -> &Arc<AnySparse<T>> {
        &self.host
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        self.host.shape()
    }

    /// A copy on the host with the values as they are now. Waits for all work on the GPU.
    pub fn to_host(&self) -> Result<AnySparse<T>> {
        let mut host = AnySparse::clone(&self.host);
        if let Some(arrays) = &self.device {
            arrays.device.read(&arrays.values, host.values_mut())?;
        }
        Ok(host)
    }

    /// The values in a CPU context.
    pub(crate) fn host_values_mut(&mut self) -> &mut [T] {
        Arc::make_mut(&mut self.host).values_mut()
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.host.format()
    }

    /// New values for the same pattern: one for each slot, in the order of the values of
    /// [`SparseTensor::to_host`]. Waits for all work on the GPU.
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        if values.len() != self.host.slots() {
            return Err(Error::Shape {
                index: "values".into(),
                left: format!("{} values", values.len()),
                right: format!("{} slots", self.host.slots()),
            });
        }
        match &self.device {
            Some(arrays) => {
                let values = values_inside(&self.host, values);
                arrays.device.write(&arrays.values, &values)
            }
            None => {
                self.host_values_mut().copy_from_slice(values);
                Ok(())
            }
        }
    }

    /// Device address of the column (block column) of every slot, as [`RawSpmm`](crate::RawSpmm) takes it; `None` in a
    /// CPU context and for formats that are not in row order.
    pub fn columns_address(&self) -> Option<u64> {
        self.product_runs()?;
        self.device.as_ref().map(|d| d.columns.address())
    }

    /// Device address of the values; `None` in a CPU context.
    pub fn values_address(&self) -> Option<u64> {
        self.device.as_ref().map(|d| d.values.address())
    }

    pub(crate) fn runs(&self) -> Option<&Arc<Runs>> {
        self.runs.as_ref()
    }

    /// Runs and columns of a matrix whose entries or blocks lie one by one in row order; `None` for places in another code.
    pub(crate) fn row_order(&self) -> Option<(&Arc<Runs>, &[u32])> {
        let coded = matches!(
            self.format(),
            Format::Nm { .. } | Format::Bitmap | Format::Bytemap | Format::SlicedEll
        );
        let runs = self.runs.as_ref().filter(|_| !coded)?;
        Some((runs, columns_of(&self.host)?))
    }

    /// The runs that products walk: of a matrix, or of a batch of matrices as one.
    pub(crate) fn product_runs(&self) -> Option<&Arc<Runs>> {
        self.runs.as_ref().or(self.batch.as_ref())
    }

    pub(crate) fn spans(&self) -> Option<&Arc<DeviceMemory>> {
        self.spans.as_ref()
    }

    pub(crate) fn device(&self) -> Option<&DeviceArrays> {
        self.device.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_formats::{Bsr, BsrPattern, Nm};

    #[test]
    fn edge_blocks_reach_the_device_without_what_lies_past_the_columns() {
        // 2 x 5 in blocks of 2 x 2: of the block in columns 4 and 5 the second column is outside.
        let pattern = BsrPattern::new(2, 5, (2, 2), vec![0, 2], vec![0, 2]).unwrap();
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, f32::NAN, 7.0, f32::INFINITY];
        let a = AnySparse::from(Bsr::new(pattern, values.to_vec()).unwrap());
        let wanted = [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 7.0, 0.0];
        assert_eq!(values_inside(&a, &values)[..], wanted);
        assert!(matches!(values_inside(&a, &wanted), Cow::Borrowed(_)));
    }

    #[test]
    fn edge_groups_reach_the_device_without_what_lies_past_the_columns() {
        // 1 x 5: positions 0 and 1 of the second group are columns 4 and 5, and column 5 is outside.
        let pattern = NmPattern::new(1, 5, vec![0x4444_4444]).unwrap();
        let values: Vec<f32> = (1..=16).map(|v| v as f32).collect();
        let a = AnySparse::from(Nm::new(pattern, values.clone()).unwrap());
        let mut wanted = [0.0; 16];
        wanted[..3].copy_from_slice(&[1.0, 2.0, 3.0]);
        assert_eq!(values_inside(&a, &values)[..], wanted);
        assert!(matches!(values_inside(&a, &wanted), Cow::Borrowed(_)));
        assert_eq!(columns_of(&a), Some(&[0x4444_4444][..]));
    }
}
