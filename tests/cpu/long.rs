//! Long sums: their error is that of a few hundred additions, independent of the number of terms.

use einsparse::cpu::{self, Operands, Output};
use einsparse::einsum::Einsum;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format};
use einsparse::indirect::{IndirectEinsum, rewrite, rewrite_dense};

/// A power of two above which f32 represents only even numbers, followed by ones. If they are added in order, each one
/// is lost.
const LARGE: f32 = 16_777_216.0;
const ONES: usize = 1 << 17;

fn values() -> Vec<f32> {
    let mut values = vec![1.0; ONES + 1];
    values[0] = LARGE;
    values
}

fn near(what: &str, found: &[f32]) {
    let exact = f64::from(LARGE) + ONES as f64;
    let bound = cpu::longest_chain(ONES as u128 + 1) as f64 * 2f64.powi(-24) * exact;
    assert!(bound < 1000.0);
    for &found in found {
        let error = (f64::from(found) - exact).abs();
        assert!(error <= bound, "{what}: {found} for {exact}");
    }
}

fn results(e: &IndirectEinsum, operands: &Operands<'_, f32>, shape: &[usize]) -> [Vec<f32>; 2] {
    [false, true].map(|general| {
        let mut c = vec![0.0; shape.iter().product()];
        let run = if general { cpu::run_nest } else { cpu::run };
        run(e, operands, Output::new(shape, &mut c).unwrap()).unwrap();
        c
    })
}

#[test]
fn long_rows_keep_their_terms() {
    let columns = (0..=ONES as u32).collect();
    let pattern = CsrPattern::new(1, ONES + 1, vec![0, ONES as u32 + 1], columns).unwrap();
    let csr: AnySparse<f32> = Csr::new(pattern, values()).unwrap().into();
    let b = Dense::new([ONES + 1, 3], vec![1.0_f32; 3 * (ONES + 1)]).unwrap();
    for format in ["csr", "coo", "ell", "groupcoo:4", "bsr:1x16", "bsr:1x5000", "csc", "sell"] {
        let format: Format = format.parse().unwrap();
        let a = csr.convert(format).unwrap();
        for (text, shape) in [
            ("C[m,n] = A[m,k] * B[k,n]", &[1, 3][..]),
            ("C[n,m] = A[m,k] * B[k,n]", &[3, 1]),
            ("s[] = A[m,k]", &[]),
        ] {
            let e = rewrite(&Einsum::parse(text).unwrap(), "A", &format).unwrap();
            let mut operands = Operands::new();
            operands.sparse(&e, &a).unwrap().dense("B", &b);
            for found in results(&e, &operands, shape) {
                near(&format!("{text} {format}"), &found);
            }
        }
    }
}

#[test]
fn long_dense_sums_keep_their_terms() {
    let x = Dense::new([ONES + 1], values()).unwrap();
    let y = Dense::new([ONES + 1], vec![1.0_f32; ONES + 1]).unwrap();
    let z = Dense::new([ONES + 1, 2], vec![1.0_f32; 2 * (ONES + 1)]).unwrap();
    for (text, shape) in [
        ("s[] = x[k] * y[k]", &[][..]),
        ("s[] = x[k]", &[]),
        ("c[n] = x[k] * z[k,n]", &[2]),
        ("c[n] = relu(x[k] * z[k,n])", &[2]),
    ] {
        let e = rewrite_dense(&Einsum::parse(text).unwrap()).unwrap();
        let mut operands = Operands::new();
        operands.dense("x", &x).dense("y", &y).dense("z", &z);
        for found in results(&e, &operands, shape) {
            near(text, &found);
        }
    }
}
