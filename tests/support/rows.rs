//! Rows of the table by themselves: which patterns and formats they take, options that force one, what a plan says of it.

use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Options, Plan, Precision};

/// Rows that take any pattern, once it is in their format. 2:4 wants its own patterns, bitmaps deeper and fuller ones, other
/// orders of axes their own expressions; a dense A has none.
pub fn takes_any(row: &Row) -> bool {
    let own = [
        WalkKind::Nm,
        WalkKind::Permuted,
        WalkKind::Bitmap,
        WalkKind::Bytemap,
        WalkKind::Direct,
    ];
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
        WalkKind::Csr | WalkKind::Permuted | WalkKind::Vector => [
            "csr",
            "coo",
            "ell",
            "groupcoo:1",
            "groupcoo:2",
            "groupcoo:4",
            "groupcoo:8",
        ]
        .map(String::from)
        .into(),
        WalkKind::GroupCoo => ["groupcoo:4", "groupcoo:8", "groupcoo:16"]
            .map(String::from)
            .into(),
        WalkKind::SlicedEll => vec!["sell".into()],
        WalkKind::Direct
        | WalkKind::Listed
        | WalkKind::Nm
        | WalkKind::Bitmap
        | WalkKind::Bytemap => Vec::new(),
        WalkKind::Block => {
            let grouped = [1, 2, 4].map(|g| format!("blockgroupcoo:{b}:{g}"));
            [format!("bsr:{b}"), format!("blockcoo:{b}")]
                .into_iter()
                .chain(grouped)
                .collect()
        }
    }
}

/// Options that leave the choice no choice.
pub fn force(row: &Row) -> Options {
    let precision = if row.dtype == Dtype::Tf32 {
        Precision::Tf32
    } else {
        Precision::Full
    };
    Options {
        precision,
        variant: Some(row.name.into()),
        ..Options::default()
    }
}

/// Rows that a plan cuts into pieces, as it says itself; `None` on the CPU.
pub fn rows_cut<T: Scalar>(plan: &Plan<T>) -> Option<u32> {
    plan.to_string()
        .split_once(" rows cut")?
        .0
        .rsplit(' ')
        .next()?
        .parse()
        .ok()
}
