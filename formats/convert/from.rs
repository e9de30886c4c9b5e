//! Conversions of any format as methods, and `TryFrom` implementations that call the free functions.

use std::borrow::Cow;

use super::*;
use crate::{
    AnySparse, AsSparse, Bitmap, BlockCoo, BlockGroupCoo, Bsr, Bytemap, Coo, Csc, Csr, Dense,
    Element, Ell, Format, GroupCoo, HybridGroupCoo, Nm, Pattern, SlicedEll, Sparse, SparseRef, nm,
};

impl<'a, T: Element> SparseRef<'a, T> {
    /// Returns the tensor in CSR. Zeros inside blocks are fill and do not become entries.
    ///
    /// # Errors
    /// Returns an error if the tensor is not a matrix, or allocation fails.
    pub fn to_csr(self) -> Result<Csr<T>> {
        match self {
            SparseRef::Csr(a) => Ok(a.clone()),
            SparseRef::Coo(a) => coo_to_csr(a),
            SparseRef::Csc(a) => csc_to_csr(a),
            SparseRef::Bsr(a) => bsr_to_csr(a),
            SparseRef::Ell(a) => ell_to_csr(a),
            SparseRef::GroupCoo(a) => {
                matrix(a.shape())?;
                coo_to_csr(&group_coo_to_coo(a)?)
            }
            SparseRef::HybridGroupCoo(a) => hybrid_group_coo_to_csr(a),
            SparseRef::BlockCoo(a) => block_coo_to_csr(a),
            SparseRef::BlockGroupCoo(a) => block_group_coo_to_csr(a),
            SparseRef::Nm(a) => nm_to_csr(a),
            SparseRef::Bitmap(a) => bitmap_to_csr(a),
            SparseRef::Bytemap(a) => bytemap_to_csr(a),
            SparseRef::SlicedEll(a) => sliced_ell_to_csr(a),
        }
    }

    /// Returns the tensor in COO. Zeros inside blocks are fill and do not become entries.
    ///
    /// # Errors
    /// Returns an error if allocation fails.
    pub fn to_coo(self) -> Result<Coo<T>> {
        match self {
            SparseRef::Coo(a) => Ok(a.clone()),
            SparseRef::GroupCoo(a) => group_coo_to_coo(a),
            SparseRef::Csr(a) => csr_to_coo(a),
            _ => csr_to_coo(&self.to_csr()?),
        }
    }

    /// Returns the dense tensor, including zeros.
    ///
    /// # Errors
    /// Returns [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be allocated.
    pub fn to_dense(self) -> Result<Dense<T>> {
        match self {
            SparseRef::Coo(a) => coo_to_dense(a),
            SparseRef::GroupCoo(a) => coo_to_dense(&group_coo_to_coo(a)?),
            SparseRef::Nm(a) => nm_to_dense(a),
            SparseRef::Csr(a) => csr_to_dense(a),
            _ => csr_to_dense(&self.to_csr()?),
        }
    }

    /// Returns the tensor in another format. `group: None` selects a group size with [`crate::stats::RowStats::group`].
    ///
    /// # Errors
    /// Returns an error if the format does not support the order of the tensor, a group has too many nonzeros for N:M,
    /// a block or group size is 0, the number of slots exceeds u32, or allocation fails.
    pub fn convert(self, format: Format) -> Result<AnySparse<T>> {
        if self.pattern().format() == format {
            return Ok(self.to_any());
        }
        cost::by_csr(self, format)?;
        Ok(match format {
            Format::Coo => self.to_coo()?.into(),
            Format::Csr => self.to_csr()?.into(),
            Format::GroupCoo { axis, group } => match self {
                SparseRef::Csr(a) if axis == 0 => csr_to_group_coo(a, group)?.into(),
                SparseRef::Coo(a) => coo_to_group_coo(a, axis, group)?.into(),
                _ => coo_to_group_coo(&self.to_coo()?, axis, group)?.into(),
            },
            Format::Csc => csr_to_csc(&*self.as_csr(format)?)?.into(),
            Format::Bsr { block } => csr_to_bsr(&*self.as_csr(format)?, block)?.into(),
            Format::Ell => csr_to_ell(&*self.as_csr(format)?)?.into(),
            Format::Bitmap => csr_to_bitmap(&*self.as_csr(format)?)?.into(),
            Format::Bytemap => csr_to_bytemap(&*self.as_csr(format)?)?.into(),
            Format::HybridGroupCoo => csr_to_hybrid_group_coo(&*self.as_csr(format)?)?.into(),
            Format::BlockCoo { block } => csr_to_block_coo(&*self.as_csr(format)?, block)?.into(),
            Format::BlockGroupCoo { block, group } => {
                csr_to_block_group_coo(&*self.as_csr(format)?, block, group)?.into()
            }
            Format::Nm { n, m } => {
                let csr = self.as_csr(format)?;
                nm::check_ratio(n, m)?;
                csr_to_nm(&csr)?.into()
            }
            Format::SlicedEll => csr_to_sliced_ell(&*self.as_csr(format)?)?.into(),
        })
    }

    /// CSR form of the tensor, for the conversion to `format`. A CSR tensor is borrowed.
    fn as_csr(self, format: Format) -> Result<Cow<'a, Csr<T>>> {
        if let SparseRef::Csr(a) = self {
            return Ok(Cow::Borrowed(a));
        }
        let csr = self.to_csr()?;
        cost::with_padding(self.held(), &csr, format)?;
        Ok(Cow::Owned(csr))
    }
}

/// Conversion methods of types that contain a tensor. They call those of [`SparseRef`].
macro_rules! conversions {
    () => {
        /// Returns the matrix in CSR, like [`SparseRef::to_csr`].
        ///
        /// # Errors
        /// Returns an error if the tensor is not a matrix, or allocation fails.
        pub fn to_csr(&self) -> Result<Csr<T>> {
            self.as_sparse().to_csr()
        }

        /// Returns the tensor in COO, like [`SparseRef::to_coo`].
        ///
        /// # Errors
        /// Returns an error if allocation fails.
        pub fn to_coo(&self) -> Result<Coo<T>> {
            self.as_sparse().to_coo()
        }

        /// Returns the dense tensor, including zeros.
        ///
        /// ```
        /// use einsparse_formats::{Csr, CsrPattern};
        ///
        /// // [ 0 1 ]
        /// // [ 2 3 ]
        /// let csr = Csr::new(CsrPattern::new(2, 2, vec![0, 1, 3], vec![1, 0, 1])?, vec![1.0f32, 2.0, 3.0])?;
        /// assert_eq!(csr.to_dense()?.values(), [0.0, 1.0, 2.0, 3.0]);
        /// # Ok::<(), einsparse_formats::FormatError>(())
        /// ```
        ///
        /// # Errors
        /// Returns [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be allocated.
        pub fn to_dense(&self) -> Result<Dense<T>> {
            self.as_sparse().to_dense()
        }

        /// Returns the tensor in another format, like [`SparseRef::convert`].
        ///
        /// ```
        /// use einsparse_formats::{Coo, CooPattern};
        ///
        /// let pattern = CooPattern::new(vec![4, 4], vec![vec![0, 1, 3], vec![0, 1, 2]])?;
        /// let coo = Coo::new(pattern, vec![1.0f32, 2.0, 3.0])?;
        /// let blocks = coo.convert("bsr:2x2".parse()?)?;
        /// assert_eq!((blocks.nnz(), blocks.to_dense()?), (8, coo.to_dense()?)); // two blocks of 2 x 2
        /// # Ok::<(), einsparse_formats::FormatError>(())
        /// ```
        pub fn convert(&self, format: Format) -> Result<AnySparse<T>> {
            self.as_sparse().convert(format)
        }
    };
}

impl<P: Pattern, T: Element> Sparse<P, T> {
    conversions!();
}

impl<T: Element> AnySparse<T> {
    conversions!();
}

impl<T: Element> Dense<T> {
    /// Returns the nonzeros in a sparse format. The parameters of the format have the meaning of
    /// [`SparseRef::convert`].
    ///
    /// ```
    /// use einsparse_formats::Dense;
    ///
    /// let dense = Dense::new([2, 2], vec![0.0f32, 1.0, 2.0, 0.0])?;
    /// let ell = dense.convert("ell".parse()?)?;
    /// assert_eq!((ell.nnz(), ell.to_dense()?), (2, dense));
    /// # Ok::<(), einsparse_formats::FormatError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`SparseRef::convert`]. Returns an error for a scalar, or if an extent or the number of
    /// nonzeros exceeds u32.
    pub fn convert(&self, format: Format) -> Result<AnySparse<T>> {
        Ok(match (self.shape(), format) {
            ([_, _], Format::Csr) => dense_to_csr(self)?.into(),
            (_, Format::Coo) => dense_to_coo(self)?.into(),
            ([_, _], _) => dense_to_csr(self)?.convert(format)?,
            _ => dense_to_coo(self)?.convert(format)?,
        })
    }
}

macro_rules! thin {
    ($($from:ident -> $to:ident = $convert:ident;)*) => {
        $(impl<T: Element> TryFrom<&$from<T>> for $to<T> {
            type Error = FormatError;
            fn try_from(from: &$from<T>) -> Result<Self> {
                $convert(from)
            }
        })*
    };
}

thin! {
    Coo -> Csr = coo_to_csr;
    Csc -> Csr = csc_to_csr;
    Bsr -> Csr = bsr_to_csr;
    Ell -> Csr = ell_to_csr;
    BlockCoo -> Csr = block_coo_to_csr;
    BlockGroupCoo -> Csr = block_group_coo_to_csr;
    Nm -> Csr = nm_to_csr;
    HybridGroupCoo -> Csr = hybrid_group_coo_to_csr;
    Csr -> HybridGroupCoo = csr_to_hybrid_group_coo;
    Bitmap -> Csr = bitmap_to_csr;
    Csr -> Bitmap = csr_to_bitmap;
    Bytemap -> Csr = bytemap_to_csr;
    Csr -> Bytemap = csr_to_bytemap;
    SlicedEll -> Csr = sliced_ell_to_csr;
    Csr -> SlicedEll = csr_to_sliced_ell;
    Csr -> Coo = csr_to_coo;
    GroupCoo -> Coo = group_coo_to_coo;
    Csr -> Csc = csr_to_csc;
    Csr -> Ell = csr_to_ell;
    Csr -> Nm = csr_to_nm;
    Csr -> Dense = csr_to_dense;
    Nm -> Dense = nm_to_dense;
    Coo -> Dense = coo_to_dense;
    Dense -> Csr = dense_to_csr;
    Dense -> Coo = dense_to_coo;
}
