//! Products with the transpose of an unstructured matrix (`spmm_t`). Baselines are the plain product, and the product
//! with an explicit transpose. Also measures batches of products (`spmm_batched`).

use crate::bench::raw_spmm;
use crate::families::convert::entries::{patterns, row, value, values};
use crate::prelude::*;
use einsparse::Weights;
use einsparse::formats::{CsrPattern, convert, generate};
use einsparse::registry::find;

pub const OP: &str = "spmm_t";

const TURNED: &str = "C[m,n] = A[k,m] * B[k,n]";

/// Measures products with A, with its transpose, and with an explicit transpose; and batches.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let arguments = bench.arguments;
    let wants = |dtype| arguments.dtype.is_empty() || arguments.dtype.contains(&dtype);
    let all = patterns(bench)?.into_iter();
    for (name, pattern) in all.filter(|(name, _)| arguments.named(name)) {
        for n in arguments.ns(&[32, 128, 256]) {
            if wants(Dtype::F32) {
                turned::<f32>(bench, name, &pattern, n)?;
            }
            if wants(Dtype::F16) {
                turned::<f16>(bench, name, &pattern, n)?;
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

/// Rows and columns of A or its transpose.
fn extents<T: Scalar>(a: &Csr<T>, transposed: bool) -> [usize; 2] {
    let (rows, columns) = (a.shape()[0], a.shape()[1]);
    match transposed {
        true => [columns, rows],
        false => [rows, columns],
    }
}

/// First element of some rows of C whose error exceeds rounding of terms and output. C is A or its transpose times `b`.
fn wrong<T: Scalar>(a: &Csr<T>, transposed: bool, b: &[T], c: &[T]) -> Option<String> {
    let (p, [m, k]) = (a.pattern(), extents(a, transposed));
    let n = b.len() / k.max(1);
    let relative = if size_of::<T>() == 2 { 1e-3 } else { 1e-5 };
    let mut sums = vec![Sum::default(); m.div_ceil(CHECKED) * n];
    for row in 0..p.rows() {
        for at in p.row(row) {
            let column = p.columns()[at] as usize;
            let (to, from) = match transposed {
                true => (column, row),
                false => (row, column),
            };
            if to % CHECKED != 0 {
                continue;
            }
            let own = &mut sums[to / CHECKED * n..][..n];
            for (sum, x) in own.iter_mut().zip(&b[from * n..][..n]) {
                sum.add(a.values()[at].to_f64() * x.to_f64());
            }
        }
    }
    sums.iter().enumerate().find_map(|(i, sum)| {
        let (row, column) = (i / n * CHECKED, i % n);
        let found = c[row * n + column].to_f64();
        // A comparison with NaN is false, so NaN counts as an error.
        let near = (found - sum.value).abs() <= relative * sum.size;
        (!near).then(|| format!("({row}, {column}) is {found}, not {}", sum.value))
    })
}

/// Measures one product and writes its row. Returns an error if the result is wrong.
fn product<T: Scalar>(
    bench: &Bench<'_>,
    row: Row,
    (expression, options): (&str, Options),
    csr: &Csr<T>,
    items: usize,
) -> Result<(Times, &'static str)> {
    let context = &bench.context;
    let a = context.upload(csr)?;
    let transposed = expression.contains("A[k,m]");
    let ([m, k], n) = (extents(csr, transposed), row.n);
    let shape = |rows| match items {
        1 => vec![rows, n],
        _ => vec![items, rows, n],
    };
    let table: Vec<T> = (0..k * n).map(|i| value(i + 3)).collect();
    let b = bench.upload(&Dense::new(shape(k), table.repeat(items))?)?;
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let (plan, prepare_ms) = timed(|| {
        let plan = context.plan::<T>(expression).operands(&operands).options(&options).build()?;
        context.synchronize()?;
        Ok(plan)
    })?;
    let bytes = plan.workspace_bytes();
    let c = bench.zeros::<T>(&shape(m))?;
    let sparse = [a.columns_address(), a.values_address()];
    let all = [sparse[0], sparse[1], b.address(), c.address()];
    let raw = raw_spmm(all.map(|address| address.unwrap_or(0)), n);
    // SAFETY: buffers have the required sizes; runs are serialized on one stream.
    let times = bench.measure(|| unsafe { plan.run_raw(&raw, bench.raw()) })?;
    let matrix = (4 + size_of::<T>()) * row.nnz + 4 * (csr.shape()[0] + 1);
    let share = bytes as f64 / matrix as f64;
    let found = c.to_dense()?;
    let mut each = found.values().chunks(m * n);
    let wrong = each.find_map(|c| wrong(csr, transposed, &table, c));
    let note = match &wrong {
        Some(wrong) => format!("WRONG: {wrong}"),
        None => format!("{}; prepared {share:.2} of A's bytes", row.note),
    };
    let (name, flops) = (row.workload.clone(), 2.0 * row.nnz as f64 * (n * items) as f64);
    let row = row.ours(plan.variant()).timed(&times).flops(flops).strict();
    bench.add(row.prepared(prepare_ms, bytes).note(note))?;
    match wrong {
        None => Ok((times, plan.variant())),
        Some(wrong) => Err(format!("{} on {name}: {wrong}", plan.variant()).into()),
    }
}

fn turned<T: Scalar>(bench: &Bench<'_>, name: &str, p: &CsrPattern, n: usize) -> Result<()> {
    let csr = Csr::new(p.clone(), values::<T>(p.columns().len()))?;
    let other = convert::transpose_csr(&csr)?;
    let of = |note: &str, p: &CsrPattern| Row { n, ..row::<T>(OP, name, p).note(note) };
    let by_default = |expression| (expression, Options::default());
    let (as_is, taken) = product(bench, of("A", p), by_default(SPMM), &csr, 1)?;
    let as_matrix = of("transpose as a matrix", other.pattern());
    let (made, _) = product(bench, as_matrix, by_default(SPMM), &other, 1)?;
    let (auto, by) = product(bench, of("transpose", p), by_default(TURNED), &csr, 1)?;
    let keeps = Options { weights: Weights::Static, ..Options::default() };
    let row = of("transpose, values that stay", p);
    let (kept, _) = product(bench, row, (TURNED, keeps), &csr, 1)?;
    if bench.arguments.auto {
        return Ok(());
    }
    let mut in_place = Vec::new();
    for tile in IN_PLACE.map(|tile| tile.replace('*', &n.to_string())) {
        let by_name = format!("batched_permuted_{}_{tile}", T::DTYPE.name());
        if find(&by_name).is_some_and(|row| row.columns as usize <= n) {
            let row = of("transpose, values in place", p);
            let (times, _) = product(bench, row, (TURNED, forced(Some(&by_name))), &csr, 1)?;
            in_place.push(format!("{tile} {:.3}", times.cold / as_is.cold));
        }
    }
    // Time of the kernel of the plain product, with the values reordered first.
    let mut ahead = f64::NAN;
    if taken.starts_with("spmm_csr") {
        let row = of("transpose, values ahead", p);
        let (times, _) = product(bench, row, (TURNED, forced(Some(taken))), &csr, 1)?;
        ahead = times.cold;
    }
    println!(
        "{name} {} n {n}: A {:.1} us {taken}; transposed / plain cold {:.3} warm {:.3} {by}; values that stay \
         cold {:.3}; over the made transpose cold {:.3}; ahead cold {:.3}; in place cold {}",
        T::DTYPE.name(),
        as_is.cold * 1e3,
        auto.cold / as_is.cold,
        auto.warm / as_is.warm,
        kept.cold / as_is.cold,
        auto.cold / made.cold,
        ahead / as_is.cold,
        in_place.join(", ")
    );
    Ok(())
}

fn batch<T: Scalar>(bench: &Bench<'_>, p: &CsrPattern, items: usize) -> Result<()> {
    let csr = Csr::new(p.clone(), values::<T>(p.columns().len()))?;
    let expressions = match items {
        1 => [SPMM, TURNED],
        _ => ["C[z,m,n] = A[m,k] * B[z,k,n]", "C[z,m,n] = A[k,m] * B[z,k,n]"],
    };
    let name = format!("uniform-2048x2048-d0.05-x{items}");
    for expression in expressions {
        let row = row::<T>("spmm_batched", &name, p).note(format!("{items} of a batch"));
        let how = (expression, Options::default());
        product(bench, Row { n: 64, ..row }, how, &csr, items)?;
    }
    Ok(())
}
