//! Single rows of the table: the patterns and formats that they support, options that force one, and the facts that a
//! plan prints about it.

use super::bounds::alike_and_within;
use super::dense::upload;
use super::runs::plan_and_run;
use super::{Expression, GUARD, Problem, Rng, assert_matrix, product, stored};
use einsparse::cost::Machine;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense};
use einsparse::registry::{Dtype, Operation, Row, Scalar, WalkKind, kernels, products};
use einsparse::{Context, Operand, Options, Plan, Precision, Tensor, Weights};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Properties of the GPU of these tests; without a GPU, those that CPU contexts check operands for.
static MACHINE: LazyLock<Machine> =
    LazyLock::new(|| Context::cuda(0).unwrap_or_else(|_| Context::cpu()).machine());

/// Rows that the GPU of these tests supports.
pub fn kernels_here() -> impl Iterator<Item = &'static Row> + Clone {
    kernels().iter().filter(|row| MACHINE.lacks(row).is_none())
}

/// Supported rows that compute products.
pub fn products_here() -> impl Iterator<Item = &'static Row> + Clone {
    kernels_here().filter(|row| row.operation == Operation::Product)
}

/// Name of a row, or of the row that it replaces.
pub fn as_on_hopper(name: &str) -> String {
    match name.strip_prefix("panel_mma") {
        Some(rest) => format!("wgmma{rest}"),
        None => name.replacen("_mma", "", 1).replacen("_99k", "", 1),
    }
}

/// Whether the GPU of these tests supports this row.
pub fn is_here(name: &str) -> bool {
    kernels_here().any(|row| row.name == name)
}

/// Returns this row, or on GPUs without `wgmma` the row that replaces it.
pub fn here(name: &str) -> &'static str {
    here_on(&MACHINE, name)
}

/// Returns this row, or the row that replaces it on a machine without `wgmma`.
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

/// Whether a row supports any pattern, once it is in the row's format. 2:4 and bitmaps require special patterns, other
/// orders of axes other expressions, and a dense A is stored without a pattern.
pub fn takes_any(row: &Row) -> bool {
    let own =
        [WalkKind::Nm, WalkKind::Permuted, WalkKind::Bitmap, WalkKind::Bytemap, WalkKind::Direct];
    row.is_plain() && !own.contains(&row.walk) && in_family(row)
}

/// EINSPARSE_TEST_ONLY: only rows of this module, for bundles that contain no other one.
fn in_family(row: &Row) -> bool {
    std::env::var("EINSPARSE_TEST_ONLY").map_or(true, |family| family == row.module)
}

/// Formats that a row runs with.
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

/// Element types of products that store C in the type of A: name in the table, type of the stored values, and the tests
/// of all rows on a GPU and on the CPU. Passes them to `$m!`, after its arguments.
macro_rules! product_types {
    ($m:ident $($argument:tt)*) => {
        $m! {
            $($argument)*
            F32: f32, f32_on_the_gpu, f32_on_the_cpu;
            F64: f64, f64_on_the_gpu, f64_on_the_cpu;
            F16: einsparse::formats::f16, f16_on_the_gpu, f16_on_the_cpu;
            Bf16: einsparse::formats::bf16, bf16_on_the_gpu, bf16_on_the_cpu;
            Tf32: f32, tf32_on_the_gpu, tf32_on_the_cpu;
        }
    };
}

/// Calls `$check::<T>(arguments)` with the type of the stored values of this element type.
macro_rules! by_type {
    ($dtype:expr, $check:ident $arguments:tt) => {
        $crate::support::rows::product_types! { by_type @ $dtype, $check $arguments; }
    };
    (@ $given:expr, $check:ident $arguments:tt; $($dtype:ident: $element:ty, $gpu:ident, $cpu:ident;)*) => {
        match $given {
            $(einsparse::registry::Dtype::$dtype => $check::<$element> $arguments,)*
            other => panic!("no product is tested with {}", other.name()),
        }
    };
}

pub(crate) use {by_type, product_types};

/// Element types of the rows that compute products.
pub fn product_dtypes() -> BTreeSet<Dtype> {
    products().map(|row| row.dtype).collect()
}

/// Options that allow only this row.
pub fn force(row: &Row) -> Options {
    let precision = if row.dtype == Dtype::Tf32 { Precision::Tf32 } else { Precision::Full };
    Options::default().precision(precision).variant(row.name)
}

/// Options that name a kernel, or leave the selection open.
pub fn named<'a>(variant: impl Into<Option<&'a str>>) -> Options {
    Options::default().variant(variant)
}

/// Number of rows that a plan splits, from its printed form; `None` on the CPU.
pub fn rows_cut<T: Scalar>(plan: &Plan<T>) -> Option<u32> {
    plan.to_string().split_once(" rows cut")?.0.rsplit(' ').next()?.parse().ok()
}

/// Runs one expression of a problem by this row only, and checks for equality. Operands are used as stored; C has row
/// stride `leading`, in elements.
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
    // Kernels with static weights may read them before the preceding work has ended.
    let weights = match leading.is_multiple_of(16) {
        true => Weights::EachRun,
        false => Weights::Static,
    };
    let options = force(row).weights(weights);
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

/// Runs `C = A * B` by this row only.
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

/// Multiplies random values on a pattern by `n` columns, with each row in its format. Results are within rounding of
/// the exact sum, with equal bits in every run.
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
