//! Products with the transpose of an unstructured matrix (`spmm_t`). Baselines are the plain product, and the product
//! with an explicit transpose. Also measures batches of products (`spmm_batched`).

use crate::bench::raw_spmm;
use crate::families::convert::entries::{patterns, row};
use crate::prelude::*;
use einsparse::Weights;
use einsparse::formats::{CsrPattern, convert, generate};
use einsparse::registry::find;

pub const OP: &str = "spmm_t";

const TURNED: &str = "C[m,n] = A[k,m] * B[k,n]";

/// Measures products with A, with its transpose, and with an explicit transpose; and batches.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let arguments = bench.arguments;
    let dtypes = arguments.dtypes(&[Dtype::F32, Dtype::F16]);
    for (name, pattern) in patterns(bench)?.into_iter().filter(|(name, _)| arguments.named(name)) {
        for n in arguments.ns(&[32, 128, 256]) {
            for dtype in &dtypes {
                match dtype {
                    Dtype::F16 => turned::<f16>(bench, name, &pattern, n)?,
                    _ => turned::<f32>(bench, name, &pattern, n)?,
                }
            }
        }
    }
    if !arguments.named("batched") {
        return Ok(());
    }
    let pattern = generate::uniform(2048, 2048, 0.05, SEED)?;
    for items in [1, 8, 64] {
        batch::<f32>(bench, &pattern, items)?;
        batch::<f16>(bench, &pattern, items)?;
    }
    Ok(())
}

/// Tiles of rows that read values in place; `*` is replaced by the width of B.
const IN_PLACE: [&str; 6] = ["n*", "n32_s4", "n128_l8", "n128_l8_s4", "n128_l16", "n256_l16"];

/// Stride of the checked rows of C.
const CHECKED: usize = 61;

/// A, or its transpose as a matrix of rows.
struct Matrix<T> {
    csr: Csr<T>,
    /// Rows of the transpose, the reference of a product with it.
    other: Csr<T>,
}

impl<T: Scalar> Matrix<T> {
    fn new(p: &CsrPattern) -> Result<Self> {
        let csr = Csr::new(p.clone(), values::<T>(p.columns().len(), 1, 1.0))?;
        Ok(Self { other: convert::transpose_csr(&csr)?, csr })
    }

    /// Measures one product and writes its row. Returns its kernel.
    fn product(
        &self,
        bench: &Bench<'_>,
        row: Row,
        (expression, options): (&str, Options),
        items: usize,
    ) -> Result<&'static str> {
        let context = &bench.context;
        let a = context.upload(&self.csr)?;
        // Rows of the result's left operand.
        let lines = if expression.contains("A[k,m]") { &self.other } else { &self.csr };
        let ([m, k], n) = ([0, 1].map(|axis| lines.shape()[axis]), row.n);
        let shape = |rows| match items {
            1 => vec![rows, n],
            _ => vec![items, rows, n],
        };
        let table: Vec<T> = values(k * n, 3, 1.0);
        let b = bench.upload(&Dense::new(shape(k), table.repeat(items))?)?;
        let operands = ab(&a, &b);
        let (plan, prepare_ms) = timed(|| {
            let plan =
                context.plan::<T>(expression).operands(&operands).options(&options).build()?;
            context.synchronize()?;
            Ok(plan)
        })?;
        let mut c = bench.poisoned::<T>(&shape(m))?;
        let sparse = [a.columns_address(), a.values_address()];
        let all = [sparse[0], sparse[1], b.address(), c.address()];
        let raw = raw_spmm(all.map(|address| address.unwrap_or(0)), n);
        let matrix = (4 + size_of::<T>()) * row.nnz + 4 * (self.csr.shape()[0] + 1);
        let share = plan.workspace_bytes() as f64 / matrix as f64;
        let row = row
            .flops(2.0 * lines.values().len() as f64 * (n * items) as f64)
            .strict()
            .ours(plan.variant())
            .prepared(prepare_ms, plan.workspace_bytes())
            .also(format!("prepared {share:.2} of A's bytes"));
        bench.checked(
            row,
            &mut c,
            // SAFETY: buffers have the required sizes; runs are serialized on one stream.
            |_| unsafe { plan.run_raw(&raw, bench.raw()) },
            |c| {
                let (c, p) = (c.to_dense()?, lines.pattern());
                let terms = |row: usize, sums: &mut [Sum]| {
                    for at in p.row(row) {
                        let x = lines.values()[at].to_f64();
                        add_line(sums, x, &table[p.columns()[at] as usize * n..]);
                    }
                };
                let most = if size_of::<T>() == 2 { 1e-3 } else { 1e-5 };
                let error =
                    |c: &[T]| rows_error(c, n, (0..m).step_by(CHECKED), terms, relative(most));
                Ok(c.values().chunks(m * n).map(error).fold(0.0, worse))
            },
        )?;
        Ok(plan.variant())
    }
}

fn turned<T: Scalar>(bench: &Bench<'_>, name: &str, p: &CsrPattern, n: usize) -> Result<()> {
    let matrix = Matrix::<T>::new(p)?;
    let as_matrix = Matrix { csr: matrix.other.clone(), other: matrix.csr.clone() };
    let of = |note: &str, p: &CsrPattern| Row { n, ..row::<T>(OP, name, p).note(note) };
    let by_default = |expression| (expression, Options::default());
    let taken = matrix.product(bench, of("A", p), by_default(SPMM), 1)?;
    let made = of("transpose as a matrix", as_matrix.csr.pattern());
    as_matrix.product(bench, made, by_default(SPMM), 1)?;
    matrix.product(bench, of("transpose", p), by_default(TURNED), 1)?;
    let keeps = Options::default().weights(Weights::Static);
    matrix.product(bench, of("transpose, values that stay", p), (TURNED, keeps), 1)?;
    if bench.arguments.auto {
        return Ok(());
    }
    for tile in IN_PLACE.map(|tile| tile.replace('*', &n.to_string())) {
        let by_name = format!("batched_permuted_{}_{tile}", T::DTYPE.name());
        if find(&by_name).is_some_and(|row| row.columns as usize <= n) {
            let row = of("transpose, values in place", p);
            matrix.product(bench, row, (TURNED, forced(Some(&by_name))), 1)?;
        }
    }
    // The kernel of the plain product, with the values reordered first.
    if taken.starts_with("spmm_csr") {
        let row = of("transpose, values ahead", p);
        matrix.product(bench, row, (TURNED, forced(Some(taken))), 1)?;
    }
    Ok(())
}

fn batch<T: Scalar>(bench: &Bench<'_>, p: &CsrPattern, items: usize) -> Result<()> {
    let matrix = Matrix::<T>::new(p)?;
    let expressions = match items {
        1 => [SPMM, TURNED],
        _ => ["C[z,m,n] = A[m,k] * B[z,k,n]", "C[z,m,n] = A[k,m] * B[z,k,n]"],
    };
    let name = format!("uniform-2048x2048-d0.05-x{items}");
    for expression in expressions {
        let row = row::<T>("spmm_batched", &name, p).note(format!("{items} of a batch"));
        matrix.product(bench, Row { n: 64, ..row }, (expression, Options::default()), items)?;
    }
    Ok(())
}
