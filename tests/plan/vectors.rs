//! Conditions under which plans select columns of eight rows.

use super::{TEXT, all_say, candidates, reasons};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, f16, generate};
use einsparse::registry::WalkKind;
use einsparse::{Choice, Context};

/// Plans select vectors of eight rows if adjacent rows share columns. They use single nonzeros if rows share no
/// columns, or if eight rows have too many nonzeros for the counters.
#[test]
fn shared_columns_decide_for_vectors() {
    let first = |pattern: CsrPattern, n: usize| {
        let values = vec![f16::ONE; pattern.columns().len()];
        let b = Dense::<f16>::zeros([pattern.cols(), n]).unwrap();
        let a = AnySparse::from(Csr::new(pattern, values).unwrap());
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let plan = Context::cpu().plan(TEXT).operands(&operands).build();
        plan.unwrap().choice().clone()
    };
    let walk = |choice: &Choice| candidates(choice)[0].walk;
    let band = first(generate::banded(1 << 17, 27).unwrap(), 128);
    assert_eq!(walk(&band), WalkKind::Vector, "{band}");
    let uniform = generate::uniform(4096, 4096, 0.02, 1).unwrap();
    let uniform = first(uniform, 256);
    assert_eq!(walk(&uniform), WalkKind::Filled, "{uniform}");
    let gathers = candidates(&uniform).into_iter();
    let gather = gathers.map(|c| c.walk).find(|w| *w != WalkKind::Filled);
    assert_eq!(gather, Some(WalkKind::Csr), "{uniform}");
    let long = generate::uniform_rows(16, 1 << 14, 1 << 13, 1).unwrap();
    assert!(first(long, 64).candidates.iter().any(|c| c.name.starts_with("vectors")));
    let longer = first(generate::uniform_rows(16, 1 << 14, (1 << 13) + 1, 1).unwrap(), 64);
    all_say(
        &reasons(&longer, |row| row.module == "vectors" && row.vector == 8),
        "counts 65,536 values in eight rows, which have more",
    );
}
