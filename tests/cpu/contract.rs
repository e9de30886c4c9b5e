//! Guarantees that exact sums do not test: NaN and Inf, padding, rounding, threads.

use crate::support::assert_error;
use crate::support::stored;
use einsparse::cpu::{self, Operands, Output};
use einsparse::einsum::{Einsum, Mode};
use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, Dense, Element, f16, generate};
use einsparse::indirect::{rewrite, rewrite_dense};
use einsparse::{Context, Error, formats, ops};

use super::{MATRIX, Problem};

const SPMM: &str = "C[m,n] = A[m,k] * B[k,n]";

/// A NaN or Inf in a dense operand reaches only outputs that have a nonzero at its position.
#[test]
fn not_a_number_stays_where_it_belongs() {
    for text in [
        SPMM,
        "C[k,n] = A[m,k] * B[m,n]",
        "D[m,k] = A[m,k] * B[m,n] * E[k,n]",
        "y[m] = A[m,k] * x[k]",
    ] {
        for poison in [f32::NAN, f32::INFINITY] {
            for format in MATRIX {
                let extents: Vec<_> = [("m", 13), ("k", 11), ("n", 9)]
                    .into_iter()
                    .filter(|(n, _)| text.contains(n))
                    .collect();
                let mut p = Problem::<f32>::new(text, Mode::Assign, "A", &extents, 5);
                p.convert(format.parse().unwrap());
                for dense in p.dense.values_mut() {
                    let n = dense.values().len() / 9;
                    dense.values_mut()[2 * n..3 * n].fill(poison);
                }
                let wanted = p.reference();
                assert!(wanted.iter().any(|v| v.is_finite()), "the test shows nothing");
                for general in [false, true] {
                    for (found, wanted) in p.run(general).values().iter().zip(&wanted) {
                        let same = *found == *wanted as f32 || (found.is_nan() && wanted.is_nan());
                        assert!(same, "{text} {format} general={general}: {found} for {wanted}");
                    }
                }
            }
        }
    }
}

/// A matrix of full blocks. A slot without a value is then padding or past the edge; those slots become NaN.
fn full_blocks(rows: usize, cols: usize, format: &str) -> AnySparse<f32> {
    let mut coords = vec![Vec::new(); 2];
    for r in 0..rows {
        for c in 0..cols {
            if (r / 4 * 7 + c / 4 * 3) % 4 == 1 {
                coords[0].push(r as u32);
                coords[1].push(c as u32);
            }
        }
    }
    let values = generate::small_integers(coords[0].len(), 3);
    let coo = Coo::new(CooPattern::new(vec![rows, cols], coords).unwrap(), values).unwrap();
    let mut any = AnySparse::Coo(coo).convert(format.parse().unwrap()).unwrap();
    any.values_mut().iter_mut().filter(|v| **v == 0.0).for_each(|v| *v = f32::NAN);
    any
}

#[test]
fn padding_is_never_multiplied() {
    for format in
        ["ell", "groupcoo:4", "groupcoo:8@1", "bsr:4x4", "blockcoo:4x4", "blockgroupcoo:4x4:3"]
    {
        for text in [
            SPMM,
            "r[m] = A[m,k]",
            "r[k] = A[m,k]",
            "s = A[m,k]",
            "C[m,k] = A[m,k]",
            "d[i] = A[i,i]",
        ] {
            let extents: &[(&str, usize)] = match text {
                SPMM => &[("m", 18), ("k", 18), ("n", 5)],
                "d[i] = A[i,i]" => &[("i", 18)],
                _ => &[("m", 18), ("k", 18)],
            };
            let mut p = Problem::<f32>::new(text, Mode::Assign, "A", extents, 5);
            let tensor = full_blocks(18, 18, format);
            assert!(tensor.values().iter().any(|v| v.is_nan()), "{format} pads nothing");
            p.sparse = Some(("A".into(), tensor));
            p.assert_exact(&format!("{text} {format}"));
        }
    }
}

#[test]
fn infinite_scalar_meets_only_entries() {
    for format in ["csr", "csc", "groupcoo:4"] {
        let e = Einsum::parse("C[m,n] = a * A[m,k] * B[k,n]").unwrap();
        let coo =
            Coo::new(CooPattern::new(vec![2, 2], vec![vec![0], vec![1]]).unwrap(), vec![1.0f32])
                .unwrap();
        let tensor = AnySparse::Coo(coo).convert(format.parse().unwrap()).unwrap();
        let b = Dense::new([2, 1], vec![1.0f32, 2.0]).unwrap();
        let e = rewrite(&e, "A", &tensor.format()).unwrap();
        let mut operands = Operands::new();
        operands.sparse(&e, &tensor).unwrap().dense("B", &b).scalar("a", f64::INFINITY);
        for run in [cpu::run, cpu::run_nest] {
            let mut c = [f32::NAN; 2];
            run(&e, &operands, Output::new(&[2, 1], &mut c).unwrap()).unwrap();
            assert_eq!(c, [f32::INFINITY, 0.0]);
        }
    }
}

/// 4096 + 1 + 1 + ... in f16 requires an f32 accumulator: in f16 the sum would remain 4096.
#[test]
fn sums_are_wide_and_rounded_once() {
    let k = 65;
    for format in ["csr", "coo", "ell", "csc", "bsr:1x8", "groupcoo:8"] {
        let mut values = vec![f16::ONE; k];
        values[0] = f16::from_f32(4096.0);
        let coords = vec![vec![0; k], (0..k as u32).collect()];
        let coo = Coo::new(CooPattern::new(vec![1, k], coords).unwrap(), values).unwrap();
        let tensor = AnySparse::Coo(coo).convert(format.parse().unwrap()).unwrap();
        let b = Dense::from_fn([k, 3], |_| f16::ONE).unwrap();
        let e = rewrite(&Einsum::parse(SPMM).unwrap(), "A", &tensor.format()).unwrap();
        let mut operands = Operands::new();
        operands.sparse(&e, &tensor).unwrap().dense("B", &b);
        for run in [cpu::run, cpu::run_nest] {
            let mut c = [f16::NAN; 3];
            run(&e, &operands, Output::new(&[1, 3], &mut c).unwrap()).unwrap();
            assert_eq!(c, [f16::from_f32(4160.0); 3], "{format}");
        }
    }
}

fn bits<T: Element>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

#[test]
fn thread_count_does_not_show() {
    let pattern = generate::uniform(900, 700, 0.2, 1).unwrap();
    let values = generate::random_values::<f32>(pattern.columns().len(), 2);
    let csr = AnySparse::Csr(Csr::new(pattern, values).unwrap());
    let b = Dense::new([700, 65], generate::random_values::<f32>(700 * 65, 3)).unwrap();
    let x = Dense::new([900, 65], generate::random_values::<f32>(900 * 65, 4)).unwrap();
    let long = Dense::new([1 << 20], generate::random_values::<f32>(1 << 20, 5)).unwrap();
    let cases: &[(&str, &[usize])] = &[
        (SPMM, &[900, 65]),
        ("C[k,n] = A[m,k] * X[m,n]", &[700, 65]),
        ("D[m,k] = A[m,k] * X[m,n] * B[k,n]", &[900, 700]),
        ("s = A[m,k]", &[]),
        ("s = A[m,k] * X[m,n] * B[k,n]", &[]),
        ("s = L[i] * L[i]", &[]),
    ];
    for (text, shape) in cases {
        for format in ["csr", "csc", "groupcoo:8", "bsr:8x8", "groupcoo:16@1"] {
            let tensor = csr.convert(format.parse().unwrap()).unwrap();
            let e = Einsum::parse(text).unwrap();
            let e = match e.factors.iter().any(|f| f.tensor == "A") {
                true => rewrite(&e, "A", &tensor.format()).unwrap(),
                false => rewrite_dense(&e).unwrap(),
            };
            let mut operands = Operands::new();
            if e.sparse.is_some() {
                operands.sparse(&e, &tensor).unwrap();
            }
            operands.dense("B", &b).dense("X", &x).dense("L", &long);
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut out = vec![0.0f32; shape.iter().product()];
                let view = Output::new(shape, &mut out).unwrap();
                pool.install(|| cpu::run(&e, &operands, view)).unwrap();
                bits(&out)
            };
            let one = run(1);
            assert!([2, 3, 7].into_iter().all(|threads| run(threads) == one), "{text} {format}");
        }
    }
}

#[test]
fn wrong_sparse_operands_are_refused() {
    let e = Einsum::parse(SPMM).unwrap();
    let csr = AnySparse::Csr(Csr::new(generate::karate(), vec![1.0f32; 156]).unwrap());
    let coo = rewrite(&e, "A", &formats::Format::Coo).unwrap();
    let mut operands = Operands::new();
    let refused = operands.sparse(&coo, &csr).unwrap_err();
    assert_error!(refused, Error::StorageFormat { found, .. } if found == "csr");
    let good = rewrite(&e, "A", &formats::Format::Csr).unwrap();
    let b = Dense::zeros([34, 3]).unwrap();
    let mut out = [0.0f32; 102];
    operands.dense("B", &b);
    let missing = cpu::run(&good, &operands, Output::new(&[34, 3], &mut out).unwrap()).unwrap_err();
    assert_error!(missing, Error::MissingOperand { name, .. } if name == "AP");
    operands.sparse(&good, &csr).unwrap();
    cpu::run(&good, &operands, Output::new(&[34, 3], &mut out).unwrap()).unwrap();
    let short = Dense::zeros([33, 3]).unwrap();
    operands.dense("B", &short);
    let shape = cpu::run(&good, &operands, Output::new(&[34, 3], &mut out).unwrap()).unwrap_err();
    assert_error!(shape, Error::Shape { .. } | Error::InvalidIndex { .. });
}

/// Normally distributed values in every row format: the executor in f32 agrees with the reference in f64 up to
/// rounding.
#[test]
fn random_values_agree_with_the_reference() {
    let pattern = generate::uniform(90, 120, 0.2, 4).unwrap();
    let values = generate::random_values::<f32>(pattern.columns().len(), 5);
    let a = Csr::new(pattern, values).unwrap();
    let n = 33;
    let b = Dense::new([120, n], generate::random_values(120 * n, 6)).unwrap();
    let wanted = formats::reference::spmm(&a.clone().into(), &b).unwrap();
    for format in ["csr", "csc", "ell", "groupcoo:4", "blockgroupcoo:16x16:2"] {
        let a = stored(a.clone(), format);
        let c = einsparse::ops::spmm(&einsparse::Context::cpu(), &a, &b).unwrap();
        for (x, y) in c.to_dense().unwrap().values().iter().zip(wanted.values()) {
            // Bound for about 24 terms of magnitude 1: 4 u sqrt(24) times the sum of magnitudes.
            approx::assert_relative_eq!(f64::from(*x), *y, max_relative = 1e-5, epsilon = 3e-5);
        }
    }
}

/// Environment variable that makes this program a child process of the test below.
const CHILD: &str = "EINSPARSE_TEST_OF_ARCH";

/// On a CPU context, EINSPARSE_ARCH selects the GPU whose checks apply. An unknown value is an error when an operator
/// is created; a context without checks ignores the variable.
#[test]
fn einsparse_arch_is_checked_on_the_cpu() {
    if std::env::var_os(CHILD).is_some() {
        let pruned = |context: &Context| {
            let dense = context.zeros::<f16>(&[16, 64]).unwrap();
            ops::prune_to_nm(context, &dense).map_or_else(|e| e.to_string(), |_| "pruned".into())
        };
        println!("checked: {}", pruned(&Context::cpu()));
        println!("unchecked: {}", pruned(&Context::unchecked_cpu()));
        return;
    }
    let cases = [
        ("x", "EINSPARSE_ARCH is `x`: expected `sm_80`, `sm_86` and the like"),
        ("sm_86", "pruned"),
        ("sm_120", "pruned"),
    ];
    for (arch, wanted) in cases {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cpu::contract::einsparse_arch_is_checked_on_the_cpu", "--nocapture"])
            .env(CHILD, "1")
            .env("EINSPARSE_ARCH", arch)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let of = |start: &str| said.lines().find_map(|line| line.strip_prefix(start));
        assert!(of("checked: ").is_some_and(|said| said.contains(wanted)), "{arch}: {said}");
        assert_eq!(of("unchecked: "), Some("pruned"), "{arch}: {said}");
    }
}
