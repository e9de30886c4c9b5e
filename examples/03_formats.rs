//! One matrix in every format: the results are equal, the amount of padding differs.

use einsparse::formats::stats::slots;
use einsparse::formats::{AnySparse, Csr, Dense, Format, generate, reference};
use einsparse::{Context, einsum};

fn main() -> einsparse::Result<()> {
    // Row lengths are as uneven as in pruned weights. Sums of small integers are exact, so results must be equal.
    let pattern = generate::pruned(160, 96, 0.15, 8.0, 0.1, 1)?;
    let values = generate::small_integers::<f32>(pattern.columns().len(), 2);
    let csr = Csr::new(pattern, values)?;
    let a = AnySparse::from(csr.clone());
    let b = Dense::new(vec![96, 32], generate::small_integers::<f32>(96 * 32, 3))?;
    let exact = reference::spmm(&a, &b)?;

    let ctx = Context::cpu(); // supports every format
    println!("{:22} {:>12} {:>13}", "format", "index slots", "values/entry");
    let names = "coo csr csc ell groupcoo groupcoo:4 groupcoo:8@1 bsr:16x16 blockcoo:16x16 blockgroupcoo:32x32";
    for name in names.split(' ') {
        let format: Format = name.parse()?;
        let stored = a.convert(format)?;
        let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = &stored, B = &b)?.to_dense()?;
        assert_eq!(c.map(f64::from), exact, "{format}");

        // `slots` counts without converting. It chooses the group sizes that a format leaves open by that count.
        let taken = slots(csr.pattern(), format)?;
        assert_eq!((taken.format, taken.values), (stored.format(), stored.slots() as u128));
        println!("{:22} {:>12} {:>13.2}", taken.format.to_string(), taken.index, taken.ratio());
    }

    // The conversion back to CSR is lossless.
    let round = a.convert("blockgroupcoo:16x16:2".parse()?)?.convert(Format::Csr)?;
    assert_eq!(round, a);
    Ok(())
}
