//! Products with a sparse matrix: SpMM and SDDMM. The gradient of each uses the other.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType};
use einsparse::formats::{Csr, CsrPattern, Dense};
use einsparse::{Context, Scalar, einsum};

use crate::{elements, for_dtype, wrapped};

const SPMM: &str = "C[m,n] = A[m,k] * B[k,n]";
const SPMM_TRANSPOSED: &str = "C[k,n] = A[m,k] * B[m,n]";
const SDDMM: &str = "S[m,k] = X[m,n] * Y[k,n]";

/// Products with a sparse matrix A `[m,k]` of a fixed pattern. The values are a tensor `[entries]`, in the order of the
/// pattern's columns, and may be trained. Cloning is cheap.
///
/// All operands have the same element type: f32, f64, f16 or bf16. Sums are those of einsparse. Gradients are
/// operations as well, so gradients of gradients exist.
#[derive(Clone, Debug)]
pub struct SparseProduct {
    pattern: Arc<CsrPattern>,
    #[cfg(feature = "cuda")]
    gpu: Arc<crate::gpu::Gpu>,
}

impl SparseProduct {
    /// Creates the products with a matrix of this pattern.
    pub fn new(pattern: impl Into<Arc<CsrPattern>>) -> Self {
        SparseProduct {
            pattern: pattern.into(),
            #[cfg(feature = "cuda")]
            gpu: Arc::default(),
        }
    }

    /// Pattern of A.
    pub fn pattern(&self) -> &CsrPattern {
        &self.pattern
    }

    /// Computes `C[m,n] = A[m,k] * B[k,n]` (SpMM), given A's `values` and `b` `[k,n]`.
    ///
    /// # Errors
    /// If shapes do not match, if element types differ, or if the device is not supported.
    pub fn spmm(&self, values: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.product(values, b, false)
    }

    /// Computes `C[k,n] = A[m,k] * B[m,n]`, the product with A's transpose, given `b` `[m,n]`. No transpose is stored.
    ///
    /// # Errors
    /// See [`spmm`](Self::spmm).
    pub fn spmm_transposed(&self, values: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.product(values, b, true)
    }

    /// Computes `S[m,k] = X[m,n] * Y[k,n]` at the nonzeros of A (SDDMM), given `x` `[m,n]` and `y` `[k,n]`. Returns the
    /// values `[entries]`.
    ///
    /// # Errors
    /// See [`spmm`](Self::spmm).
    pub fn sddmm(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let of = self.clone();
        x.contiguous()?.apply_op2(&y.contiguous()?, Sddmm { of })
    }

    fn product(&self, values: &Tensor, b: &Tensor, transposed: bool) -> Result<Tensor> {
        let of = self.clone();
        let op = Spmm { of, transposed };
        values.contiguous()?.apply_op2(&b.contiguous()?, op)
    }

    /// Validates that a dense operand has `rows` rows, and returns the number of its columns.
    fn columns(&self, name: &str, layout: &Layout, rows: usize) -> Result<usize> {
        match *layout.dims() {
            [found, n] if found == rows => Ok(n),
            ref other => Err(wrapped(format!(
                "`{name}` is {other:?}, and [{rows}, n] meets A {:?}",
                [self.pattern.rows(), self.pattern.cols()]
            ))),
        }
    }
}

/// Copies a dense operand to einsparse.
fn dense<T: Scalar + WithDType>(
    name: &str,
    storage: &CpuStorage,
    layout: &Layout,
) -> Result<Dense<T>> {
    let elements = elements::<T>(name, storage, layout)?;
    Dense::new(layout.dims().to_vec(), elements.to_vec()).map_err(wrapped)
}

/// Product of A, given its values, and a dense matrix.
#[derive(Debug)]
struct Spmm {
    of: SparseProduct,
    transposed: bool,
}

impl Spmm {
    fn text(&self) -> &'static str {
        match self.transposed {
            false => SPMM,
            true => SPMM_TRANSPOSED,
        }
    }

    /// Validates the operands, and returns the extents of the product.
    fn extents(&self, of_values: &Layout, of_b: &Layout) -> Result<[usize; 2]> {
        let pattern = &self.of.pattern;
        let entries = pattern.columns().len();
        if *of_values.dims() != [entries] {
            let found = of_values.dims();
            return Err(wrapped(format!("`values` is {found:?}, and A has {entries} entries")));
        }
        let (m, k) = (pattern.rows(), pattern.cols());
        let (rows, out) = if self.transposed { (m, k) } else { (k, m) };
        Ok([out, self.of.columns("b", of_b, rows)?])
    }

    fn typed<T: Scalar + WithDType>(
        &self,
        (values, of_values): (&CpuStorage, &Layout),
        (b, of_b): (&CpuStorage, &Layout),
    ) -> Result<CpuStorage> {
        let values = elements::<T>("values", values, of_values)?.to_vec();
        let a = Csr::new(self.of.pattern.clone(), values).map_err(wrapped)?;
        let b = dense::<T>("b", b, of_b)?;
        let c = einsum!(Context::unchecked_cpu(), self.text(), A = &a, B = &b);
        let c = c.and_then(|c| c.to_dense()).map_err(wrapped)?;
        Ok(T::to_cpu_storage_owned(c.into_values()))
    }
}

impl CustomOp2 for Spmm {
    fn name(&self) -> &'static str {
        "einsparse-spmm"
    }

    fn cpu_fwd(
        &self,
        values: &CpuStorage,
        of_values: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let extents = self.extents(of_values, of_b)?;
        let c = for_dtype!(values.dtype(), T => self.typed::<T>((values, of_values), (b, of_b)))?;
        Ok((c, Shape::from_dims(&extents)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        values: &candle_core::CudaStorage,
        of_values: &Layout,
        b: &candle_core::CudaStorage,
        of_b: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let extents = self.extents(of_values, of_b)?;
        let (SparseProduct { pattern, gpu }, of) = (&self.of, (self.text(), extents));
        let operands = ((values, of_values), (b, of_b));
        let c = for_dtype!(values.dtype(), T => gpu.spmm::<T>(pattern, of, operands))?;
        Ok((c, Shape::from_dims(&extents)))
    }

    fn bwd(
        &self,
        values: &Tensor,
        b: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_values = match self.transposed {
            false => self.of.sddmm(gradient, b)?,
            true => self.of.sddmm(b, gradient)?,
        };
        let of_b = self.of.product(values, gradient, !self.transposed)?;
        Ok((Some(of_values), Some(of_b)))
    }
}

/// Dot products of rows at the nonzeros of the pattern.
#[derive(Debug)]
struct Sddmm {
    of: SparseProduct,
}

impl Sddmm {
    /// Validates the operands, and returns the number of nonzeros.
    fn entries(&self, of_x: &Layout, of_y: &Layout) -> Result<usize> {
        let pattern = &self.of.pattern;
        let in_x = self.of.columns("x", of_x, pattern.rows())?;
        let in_y = self.of.columns("y", of_y, pattern.cols())?;
        match in_x == in_y {
            true => Ok(pattern.columns().len()),
            false => Err(wrapped(format!("`x` has {in_x} columns and `y` {in_y}"))),
        }
    }

    fn typed<T: Scalar + WithDType>(
        &self,
        (x, of_x): (&CpuStorage, &Layout),
        (y, of_y): (&CpuStorage, &Layout),
    ) -> Result<CpuStorage> {
        let (x, y) = (dense::<T>("x", x, of_x)?, dense::<T>("y", y, of_y)?);
        let values = self.values(&x, &y).map_err(wrapped)?;
        Ok(T::to_cpu_storage_owned(values))
    }

    fn values<T: Scalar>(&self, x: &Dense<T>, y: &Dense<T>) -> einsparse::Result<Vec<T>> {
        let context = Context::unchecked_cpu();
        let zeros = vec![T::ZERO; self.of.pattern.columns().len()];
        let mut s = context.upload(Csr::new(self.of.pattern.clone(), zeros)?)?;
        let operands = [("X", x.into()), ("Y", y.into())];
        let plan = context.plan(SDDMM);
        let plan = plan.operands(&operands).sparse_output(&s).build()?;
        plan.run(&operands, &mut s, &context.stream()?)?;
        Ok(s.to_host()?.into_parts().1)
    }
}

impl CustomOp2 for Sddmm {
    fn name(&self) -> &'static str {
        "einsparse-sddmm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        y: &CpuStorage,
        of_y: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let entries = self.entries(of_x, of_y)?;
        let values = for_dtype!(x.dtype(), T => self.typed::<T>((x, of_x), (y, of_y)))?;
        Ok((values, entries.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        of_x: &Layout,
        y: &candle_core::CudaStorage,
        of_y: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let entries = self.entries(of_x, of_y)?;
        let (SparseProduct { pattern, gpu }, operands) = (&self.of, ((x, of_x), (y, of_y)));
        let values = for_dtype!(x.dtype(), T => gpu.sddmm::<T>(pattern, SDDMM, operands))?;
        Ok((values, entries.into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_x = self.of.product(gradient, y, false)?;
        let of_y = self.of.product(gradient, x, true)?;
        Ok((Some(of_x), Some(of_y)))
    }
}
