//! Rows of the table by themselves: which patterns and formats they take, options that force one, what a plan says of
//! it.

use super::bounds::alike_and_within;
use super::dense::upload;
use super::runs::plan_and_run;
use super::{Expression, GUARD, Problem, Rng, assert_matrix, product, stored};
use einsparse::cost::Machine;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense};
use einsparse::registry::{Dtype, Operation, Row, Scalar, WalkKind, kernels};
use einsparse::{Context, Operand, Options, Plan, Precision, Tensor, Weights};
use std::sync::LazyLock;

/// What the GPU of these tests can do; where there is none, what CPU contexts check operands for.
static MACHINE: LazyLock<Machine> =
    LazyLock::new(|| Context::cuda(0).unwrap_or_else(|_| Context::cpu()).machine());

/// The rows that the GPU of these tests runs.
pub fn kernels_here() -> impl Iterator<Item = &'static Row> + Clone {
    kernels().iter().filter(|row| MACHINE.lacks(row).is_none())
}

/// Those of them that compute products.
pub fn products_here() -> impl Iterator<Item = &'static Row> + Clone {
    kernels_here().filter(|row| row.operation == Operation::Product)
}

/// The module of a row, or of the row that it stands in for on GPUs without `wgmma` or with less shared memory.
pub fn module_of(row: &Row) -> &'static str {
    let other = ["_mma", "_99k"].into_iter().find_map(|end| row.module.strip_suffix(end));
    match other.filter(|_| row.stands_in) {
        Some("panel") => "wgmma",
        Some(other) => other,
        None => row.module,
    }
}

/// The name of a row, or of the one that it stands in for.
pub fn as_on_hopper(name: &str) -> String {
    match name.strip_prefix("panel_mma") {
        Some(rest) => format!("wgmma{rest}"),
        None => name.replacen("_mma", "", 1).replacen("_99k", "", 1),
    }
}

/// Whether the GPU of these tests runs this row.
pub fn is_here(name: &str) -> bool {
    kernels_here().any(|row| row.name == name)
}

/// This row, or on GPUs without `wgmma` the one that stands in for it.
pub fn here(name: &str) -> &'static str {
    here_on(&MACHINE, name)
}

/// This row, or the one that stands in for it on a machine without `wgmma`.
pub fn here_on(machine: &Machine, name: &str) -> &'static str {
    let row = kernels().iter().find(|row| row.name == name);
    let row = row.unwrap_or_else(|| panic!("no row is called {name}"));
    if machine.lacks(row).is_none() {
        return row.name;
    }
    let alike = |other: &&Row| {
        other.params == row.params
            && (other.operation, other.step) == (row.operation, row.step)
            && (other.dtype, other.walk, other.order) == (row.dtype, row.walk, row.order)
    };
    let apart = |other: &&Row| {
        if as_on_hopper(other.name) == name {
            return ([0; 2], 0, 0);
        }
        let blocks = [(other.block.0, row.block.0), (other.block.1, row.block.1)];
        let blocks = blocks.map(|(a, b)| a.abs_diff(b));
        (blocks, other.columns.abs_diff(row.columns), other.items.abs_diff(row.items))
    };
    let here = kernels().iter().filter(|row| machine.lacks(row).is_none());
    let nearest = here.filter(alike).min_by_key(apart);
    nearest.unwrap_or_else(|| panic!("nothing stands in for {name}")).name
}

/// Rows that take any pattern, once it is in their format. 2:4 wants its own patterns, bitmaps deeper and fuller ones,
/// other orders of axes their own expressions; a dense A has none.
pub fn takes_any(row: &Row) -> bool {
    let own =
        [WalkKind::Nm, WalkKind::Permuted, WalkKind::Bitmap, WalkKind::Bytemap, WalkKind::Direct];
    row.is_plain() && !own.contains(&row.walk) && in_family(row)
}

/// EINSPARSE_TEST_ONLY: only its rows, for bundles that hold no other module.
fn in_family(row: &Row) -> bool {
    std::env::var("EINSPARSE_TEST_ONLY").map_or(true, |family| family == row.module)
}

/// Formats a row is run with.
pub fn formats(row: &Row) -> Vec<String> {
    let b = format!("{}x{}", row.block.0, row.block.1);
    match row.walk {
        WalkKind::Csr | WalkKind::Permuted | WalkKind::Vector | WalkKind::Filled => {
            ["csr", "coo", "ell", "groupcoo:1", "groupcoo:2", "groupcoo:4", "groupcoo:8"]
                .map(String::from)
                .into()
        }
        WalkKind::GroupCoo => ["groupcoo:4", "groupcoo:8", "groupcoo:16"].map(String::from).into(),
        WalkKind::SlicedEll => vec!["sell".into()],
        WalkKind::Direct
        | WalkKind::Listed
        | WalkKind::Nm
        | WalkKind::Bitmap
        | WalkKind::Bytemap => Vec::new(),
        WalkKind::Block => {
            let grouped = [1, 2, 4].map(|g| format!("blockgroupcoo:{b}:{g}"));
            [format!("bsr:{b}"), format!("blockcoo:{b}")].into_iter().chain(grouped).collect()
        }
    }
}

/// Options that leave the choice no choice.
pub fn force(row: &Row) -> Options {
    let precision = if row.dtype == Dtype::Tf32 { Precision::Tf32 } else { Precision::Full };
    Options { precision, variant: Some(row.name.into()), ..Options::default() }
}

/// Options that name a kernel, or leave the choice.
pub fn named<'a>(variant: impl Into<Option<&'a str>>) -> Options {
    Options { variant: variant.into().map(str::to_owned), ..Options::default() }
}

/// Rows that a plan cuts into pieces, as it says itself; `None` on the CPU.
pub fn rows_cut<T: Scalar>(plan: &Plan<T>) -> Option<u32> {
    plan.to_string().split_once(" rows cut")?.0.rsplit(' ').next()?.parse().ok()
}

/// One expression of a problem by this row alone, exact: over operands as they lie, into rows of C that start `leading`
/// elements apart.
pub fn exact_by_row<T: Scalar>(
    context: &Context,
    row: &Row,
    (problem, x): (&Problem<T>, &Expression),
    (a, b): (Operand<'_, T>, &Tensor<T>),
    leading: usize,
) {
    let n = b.shape()[1];
    let what = (row.name, problem.m(), problem.k(), n, x.text(), leading);
    let biases = upload(context, [&problem.bias_rows, &problem.bias_columns(n)]);
    let mut operands = vec![("A", a), ("B", b.into())];
    x.operands(&mut operands, biases.each_ref());
    let (start, guard) = (problem.start(x, n), T::from_f64(GUARD));
    let mut c = context.upload_strided(&start, leading, guard).unwrap();
    let mut planned = operands.clone();
    planned.push(("C", (&c).into()));
    // Some read what stays as it is ahead of what is queued before.
    let weights = match leading.is_multiple_of(16) {
        true => Weights::EachRun,
        false => Weights::Static,
    };
    let options = Options { weights, ..force(row) };
    let plan = context
        .plan(&x.text())
        .operands(&planned)
        .options(&options)
        .build()
        .unwrap_or_else(|e| panic!("{what:?}: {e}"));
    if context.is_cuda() {
        assert_eq!(plan.variant(), row.name, "{what:?}");
    }
    let stream = context.stream().unwrap();
    plan.run(&operands, &mut c, &stream)
        .and_then(|()| stream.synchronize())
        .unwrap_or_else(|e| panic!("{what:?}: {e}"));
    let found = c.to_storage().unwrap();
    assert_matrix(&what, &found, (problem.m(), n, leading), |r, j| problem.expected(x, r, j));
}

/// `C = A * B` by this row alone.
pub fn product_by_row<T: Scalar>(
    context: &Context,
    row: &Row,
    a: &AnySparse<T>,
    b: &Dense<T>,
) -> Vec<T> {
    let a = context.upload(a).unwrap();
    let [b] = upload(context, [b]);
    let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let (_, c) = plan_and_run(context, text, &operands, &force(row));
    c.to_storage().unwrap()
}

/// Random values at the places of a pattern times `n` columns, by each of these rows over its format: within rounding
/// of the exact sum, and the same bits in every run.
pub fn rows_repeat<T: Scalar>(
    context: &Context,
    rows: &[(&Row, &str)],
    (pattern, mut rng): (CsrPattern, Rng),
    n: usize,
) {
    let (entries, k) = (pattern.columns().len(), pattern.cols());
    let a = Csr::new(pattern, rng.units::<T>(entries)).unwrap();
    let b = Dense::new([k, n], rng.units::<T>(k * n)).unwrap();
    let exact = product(&a, b.values(), n, |x| x);
    let size = product(&a, b.values(), n, f64::abs);
    let csr = AnySparse::from(a);
    for (row, format) in rows {
        let a = stored(csr.clone(), format);
        alike_and_within(row.name, [&exact, &size], || product_by_row(context, row, &a, &b));
    }
}
