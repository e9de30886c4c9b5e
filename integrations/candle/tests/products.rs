//! Products with a sparse matrix, compared with candle's products of the densified matrix: results, and gradients of
//! candle's backward.

use candle_core::{DType, Device, Result, Tensor, Var};
use einsparse::formats::generate;
use einsparse_candle::SparseProduct;

const M: usize = 13;
const K: usize = 9;
const N: usize = 6;

/// Returns the operation, and the row and the column of each nonzero as candle tensors.
fn product() -> Result<(SparseProduct, Tensor, Tensor)> {
    let pattern = generate::uniform(M, K, 0.3, 1).expect("a pattern");
    let columns = pattern.columns().to_vec();
    let rows =
        (0..M as u32).flat_map(|row| std::iter::repeat_n(row, pattern.row(row as usize).len()));
    let rows: Vec<u32> = rows.collect();
    let device = &Device::Cpu;
    let (rows, columns) = (Tensor::new(rows, device)?, Tensor::new(columns, device)?);
    Ok((SparseProduct::new(pattern), rows, columns))
}

/// Random integers, so that sums are exact.
fn numbers(shape: &[usize], seed: u64, dtype: DType) -> Result<Var> {
    let values = generate::small_integers::<f32>(shape.iter().product(), seed);
    Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

/// Densifies the matrix with candle operations, which are differentiable.
fn dense(values: &Tensor, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
    let places = (rows.affine(K as f64, 0.0)? + columns)?;
    let zeros = Tensor::zeros(M * K, values.dtype(), values.device())?;
    zeros.index_add(&places, values, 0)?.reshape((M, K))
}

fn exact(ours: &Tensor, theirs: &Tensor) -> Result<()> {
    assert_eq!(ours.dims(), theirs.dims());
    let flat = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    assert_eq!(flat(ours)?, flat(theirs)?);
    Ok(())
}

/// Compares results, and gradients of a weighted sum of the results.
fn same(ours: &Tensor, theirs: &Tensor, of: [&Var; 2]) -> Result<()> {
    exact(ours, theirs)?;
    let weights = numbers(ours.dims(), 9, ours.dtype())?;
    let gradients = |out: &Tensor| (out * weights.as_tensor())?.sum_all()?.backward();
    let (ours, theirs) = (gradients(ours)?, gradients(theirs)?);
    for of in of {
        let found = ours.get(of).expect("a gradient of ours");
        exact(found, theirs.get(of).expect("a gradient of candle's"))?;
    }
    Ok(())
}

#[test]
fn spmm_is_candles_matmul() -> Result<()> {
    let (a, rows, columns) = product()?;
    for dtype in [DType::F32, DType::F64] {
        let values = numbers(&[rows.elem_count()], 2, dtype)?;
        let b = numbers(&[K, N], 3, dtype)?;
        let of_candle = dense(&values, &rows, &columns)?;
        same(&a.spmm(&values, &b)?, &of_candle.matmul(&b)?, [&values, &b])?;
        let b = numbers(&[M, N], 4, dtype)?;
        let ours = a.spmm_transposed(&values, &b)?;
        same(&ours, &of_candle.t()?.matmul(&b)?, [&values, &b])?;
    }
    Ok(())
}

#[test]
fn sddmm_is_candles_matmul_at_the_entries() -> Result<()> {
    let (a, rows, columns) = product()?;
    let places = (rows.affine(K as f64, 0.0)? + &columns)?;
    let (x, y) = (numbers(&[M, N], 5, DType::F32)?, numbers(&[K, N], 6, DType::F32)?);
    let all = x.matmul(&y.t()?)?.flatten_all()?;
    same(&a.sddmm(&x, &y)?, &all.index_select(&places, 0)?, [&x, &y])
}

#[test]
fn halves_are_rounded_once() -> Result<()> {
    let (a, rows, columns) = product()?;
    for dtype in [DType::F16, DType::BF16] {
        let values = numbers(&[rows.elem_count()], 2, dtype)?;
        let b = numbers(&[K, N], 3, dtype)?;
        let wide = |t: &Tensor| t.to_dtype(DType::F32);
        let exactly = dense(&wide(&values)?, &rows, &columns)?.matmul(&wide(&b)?)?;
        exact(&a.spmm(&values, &b)?, &exactly.to_dtype(dtype)?)?;
    }
    Ok(())
}

/// Second derivatives: the gradient of the sum of squares of the gradient of B.
#[test]
fn gradients_have_gradients() -> Result<()> {
    let (a, rows, columns) = product()?;
    let values = numbers(&[rows.elem_count()], 2, DType::F32)?;
    let b = numbers(&[K, N], 3, DType::F32)?;
    let squares = |c: Tensor| c.sqr()?.sum_all();
    let ours = squares(a.spmm_transposed(&values, &a.spmm(&values, &b)?)?)?.backward()?;
    let of_candle = dense(&values, &rows, &columns)?;
    let theirs = squares(of_candle.t()?.matmul(&of_candle.matmul(&b)?)?)?.backward()?;
    for of in [&values, &b] {
        let found = ours.get(of).expect("a gradient of ours");
        exact(found, theirs.get(of).expect("a gradient of candle's"))?;
    }
    Ok(())
}

#[test]
fn operands_that_do_not_lie_in_rows_are_taken() -> Result<()> {
    let (a, rows, columns) = product()?;
    let values = numbers(&[rows.elem_count()], 2, DType::F32)?;
    let b = numbers(&[N, K + 2], 3, DType::F32)?;
    let b = b.narrow(1, 1, K)?.t()?;
    exact(&a.spmm(&values, &b)?, &dense(&values, &rows, &columns)?.matmul(&b)?)
}

#[test]
fn wrong_operands_are_errors_with_numbers() -> Result<()> {
    let (a, rows, _) = product()?;
    let values = numbers(&[rows.elem_count()], 2, DType::F32)?;
    let error = |result: Result<Tensor>| result.expect_err("wrong operands").to_string();
    let b = numbers(&[K + 1, N], 3, DType::F32)?;
    let text = error(a.spmm(&values, &b));
    assert!(text.contains("[10, 6]") && text.contains("[13, 9]"), "{text}");
    let b = numbers(&[K, N], 3, DType::F32)?;
    let few = values.narrow(0, 1, 3)?;
    let text = error(a.spmm(&few, &b));
    assert!(text.contains('3') && text.contains("values"), "{text}");
    let text = error(a.spmm(&values, &b.to_dtype(DType::F64)?));
    assert!(text.contains("F64") || text.contains("dtype"), "{text}");
    let whole = values.to_dtype(DType::I64)?;
    assert!(error(a.spmm(&whole, &b)).contains("I64"));
    Ok(())
}
