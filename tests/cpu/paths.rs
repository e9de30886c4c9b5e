//! Plans of several factors, several of them sparse, against plain loops: pair by pair, by lists of positions, and all
//! at once.

use std::collections::BTreeMap;

use einsparse::formats::convert::prune_to_nm;
use einsparse::formats::reference::{self, Factor};
use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, CsrPattern, Dense, f16};
use einsparse::{Context, Error, Operand, Options, Scalar};
use rayon::prelude::*;

use super::problem::integers;
use crate::support::Rng;
use crate::support::runs::plan_and_run;

const MATRICES: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo:2",
    "groupcoo:hybrid",
    "bsr:2x2",
    "bsr:2x3",
    "blockcoo:3x2",
    "blockgroupcoo:2x2:2",
    "bitmap",
    "sell",
    "nm:2:4",
];
const NAMES: &[&str] = &["i", "j", "k", "l", "m", "n"];

/// Equal, or both NaN.
fn first_difference<T: Scalar>(found: &[T], wanted: &[f64]) -> Option<String> {
    let differs = |(f, w): &(&T, &f64)| f.to_f64() != **w && !(f.to_f64().is_nan() && w.is_nan());
    let mut all = found.iter().zip(wanted).enumerate();
    let (at, (f, w)) = all.find(|(_, pair)| differs(pair))?;
    Some(format!("element {at} is {f}, {w} wanted"))
}

/// An expression of up to eight factors.
struct Trial {
    seed: u64,
    text: String,
    extents: Vec<usize>,
    out: Vec<usize>,
    /// Name and numbers of the indices.
    factors: Vec<(String, Vec<usize>)>,
    sparse: BTreeMap<String, AnySparse<f64>>,
    dense: BTreeMap<String, Dense<f64>>,
    twice: bool,
}

struct Artist(Rng);

impl Artist {
    fn below(&mut self, n: usize) -> usize {
        (self.0.word() >> 20) as usize % n
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A sparse tensor, without stored zeros: those are fill in blocks.
    fn sparse(&mut self, shape: &[usize]) -> AnySparse<f64> {
        let density = [10, 40, 80][self.below(3)];
        let (mut coords, mut values) = (vec![Vec::new(); shape.len()], Vec::new());
        for point in 0..shape.iter().product() {
            if !self.chance(density) {
                continue;
            }
            let mut left: usize = point;
            for axis in (0..shape.len()).rev() {
                coords[axis].push((left % shape[axis]) as u32);
                left /= shape[axis];
            }
            values.push([-2.0, -1.0, 1.0, 2.0][self.below(4)]);
        }
        let coo = Coo::new(CooPattern::new(shape.to_vec(), coords).unwrap(), values).unwrap();
        let coo = AnySparse::from(coo);
        match (shape.len(), MATRICES[self.below(MATRICES.len())]) {
            (2, "nm:2:4") => prune_to_nm(&coo.to_dense().unwrap()).unwrap().into(),
            (2, format) => coo.convert(format.parse().unwrap()).unwrap(),
            _ => coo,
        }
    }

    fn dense(&mut self, shape: &[usize], nans: bool) -> Dense<f64> {
        let values = (0..shape.iter().product()).map(|_| match nans && self.chance(8) {
            true => f64::NAN,
            false => self.0.integer(),
        });
        let values = values.collect();
        Dense::new(shape.to_vec(), values).unwrap()
    }
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut a = Artist(Rng(seed.wrapping_mul(0x9e37_79b9).wrapping_add(3)));
        let extents: Vec<usize> = NAMES.iter().map(|_| [1, 3, 4, 4, 5][a.below(5)]).collect();
        let nans = a.chance(25);
        let count = 2 + a.below(7);
        let mut trial = Trial {
            seed,
            text: String::new(),
            extents,
            out: Vec::new(),
            factors: Vec::new(),
            sparse: BTreeMap::new(),
            dense: BTreeMap::new(),
            twice: false,
        };
        for number in 0..count {
            if number > 0 && a.chance(20) {
                trial.again(&mut a);
                continue;
            }
            let order = 1 + a.below(3);
            // Axes of a sparse tensor are different indices more often than not.
            let first = a.below(NAMES.len());
            let step = 1 + a.below(2);
            let own: Vec<usize> = (0..order)
                .map(|axis| (first + axis * step) % NAMES.len())
                .collect();
            let shape: Vec<usize> = own.iter().map(|&i| trial.extents[i]).collect();
            let name = format!("T{number}");
            if a.chance(45) {
                trial.sparse.insert(name.clone(), a.sparse(&shape));
            } else {
                trial.dense.insert(name.clone(), a.dense(&shape, nans));
            }
            trial.factors.push((name, own));
        }
        for index in 0..NAMES.len() {
            let used = trial.factors.iter().any(|(_, own)| own.contains(&index));
            if used && trial.out.len() < 3 && a.chance(35) {
                trial.out.push(index);
            }
        }
        let access = |name: &str, own: &[usize]| {
            let own: Vec<&str> = own.iter().map(|&i| NAMES[i]).collect();
            format!("{name}[{}]", own.join(","))
        };
        let factors = trial.factors.iter().map(|(name, own)| access(name, own));
        let factors: Vec<String> = factors.collect();
        trial.text = format!("Y{} = 2 * {}", &access("", &trial.out), factors.join(" * "));
        trial
    }

    /// A tensor that is there already, at indices of its extents.
    fn again(&mut self, a: &mut Artist) {
        let (name, own) = self.factors[a.below(self.factors.len())].clone();
        let mut other = Vec::new();
        for i in own {
            let same = (0..NAMES.len()).filter(|&j| self.extents[j] == self.extents[i]);
            let same: Vec<usize> = same.collect();
            other.push(same[a.below(same.len())]);
        }
        self.twice |= self.sparse.contains_key(&name);
        self.factors.push((name, other));
    }

    fn wanted(&self) -> Vec<f64> {
        let entries: BTreeMap<_, _> = self.sparse.iter().map(|(n, a)| (n, a.entries())).collect();
        let factor = |(name, own): &'_ (String, Vec<usize>)| -> (Vec<usize>, Factor<'_>) {
            let factor = match self.dense.get(name) {
                Some(dense) => Factor::Dense(dense),
                None => Factor::Sparse(&entries[name]),
            };
            (own.clone(), factor)
        };
        let factors: Vec<_> = self.factors.iter().map(factor).collect();
        let factors: Vec<_> = factors.into_iter().collect();
        let borrowed: Vec<(&[usize], Factor<'_>)> = factors
            .iter()
            .map(|(own, f)| (own.as_slice(), *f))
            .collect();
        // The reference walks over all indices, also those that no factor has.
        let used = |i: usize| self.factors.iter().any(|(_, own)| own.contains(&i));
        let extents = self.extents.iter().enumerate();
        let extents: Vec<usize> = extents.map(|(i, &n)| if used(i) { n } else { 1 }).collect();
        let sums = reference::einsum(&extents, &self.out, &borrowed).unwrap();
        sums.values().iter().map(|sum| 2.0 * sum).collect()
    }

    fn run<T: Scalar>(&self, options: &Options) {
        let ctx = Context::cpu();
        let sparse: Vec<(&String, AnySparse<T>)> = self
            .sparse
            .iter()
            .map(|(n, a)| (n, a.map_values(T::from_f64)))
            .collect();
        let dense: Vec<(&String, Dense<T>)> = self
            .dense
            .iter()
            .map(|(n, d)| (n, d.map(T::from_f64)))
            .collect();
        let mut operands: Vec<(&str, Operand<'_, T>)> = Vec::new();
        operands.extend(sparse.iter().map(|(n, a)| (n.as_str(), a.into())));
        operands.extend(dense.iter().map(|(n, d)| (n.as_str(), d.into())));
        let (plan, out) = plan_and_run(&ctx, &self.text, &operands, options);
        let out = out.to_dense().unwrap();
        if let Some(difference) = first_difference(out.values(), &self.wanted()) {
            let formats = self
                .sparse
                .iter()
                .map(|(n, a)| format!("{n} {}", a.format()));
            let formats: Vec<String> = formats.collect();
            panic!(
                "seed {}: {} {:?} {formats:?}\n  {plan}\n  {difference}",
                self.seed, self.text, self.extents
            );
        }
    }
}

#[test]
fn expressions_of_up_to_eight_factors_agree_with_plain_loops() {
    (0..3000u64).into_par_iter().for_each(|seed| {
        let trial = Trial::new(seed);
        let options = Options::default();
        match seed % 3 {
            0 => trial.run::<f32>(&options),
            _ => trial.run::<f64>(&options),
        }
    });
}

#[test]
fn the_expressions_are_of_every_kind() {
    let trials: Vec<Trial> = (0..3000).map(Trial::new).collect();
    let count = |what: &str, is: &dyn Fn(&Trial) -> bool| {
        let found = trials.iter().filter(|t| is(t)).count();
        assert!(found >= 60, "{what}: {found}");
    };
    for n in 2..=8 {
        count(&format!("{n} factors"), &|t| t.factors.len() == n);
    }
    count("three sparse ones", &|t| t.sparse.len() >= 3);
    count("a sparse one twice", &|t| t.twice);
    for format in ["bsr", "blockcoo", "blockgroupcoo", "nm"] {
        let own = |t: &Trial| {
            let format_of = |a: &AnySparse<f64>| a.format().to_string().starts_with(format);
            t.sparse.len() > 1 && t.sparse.values().any(format_of)
        };
        count(&format!("{format} beside another"), &own);
    }
    count("NaN beside sparse ones", &|t| {
        let nan = |d: &Dense<f64>| d.values().iter().any(|v| v.is_nan());
        !t.sparse.is_empty() && t.dense.values().any(nan)
    });
    let ctx = Context::cpu();
    let pairwise = trials.iter().take(300).filter(|t| {
        let sparse = t.sparse.iter().map(|(n, a)| (n.as_str(), Operand::from(a)));
        let dense = t.dense.iter().map(|(n, d)| (n.as_str(), Operand::from(d)));
        let operands: Vec<_> = sparse.chain(dense).collect();
        ctx.contraction_path(&t.text, &operands).unwrap().is_some()
    });
    let pairwise = pairwise.count();
    assert!(
        (60..290).contains(&pairwise),
        "{pairwise} of 300 pair by pair"
    );
}

fn csr(shape: [usize; 2], places: &[[u32; 2]]) -> AnySparse<f32> {
    let axis = |axis: usize| places.iter().map(|p| p[axis]).collect();
    let pattern = CooPattern::new(shape.to_vec(), vec![axis(0), axis(1)]).unwrap();
    let values = vec![1.0; places.len()];
    AnySparse::from(Coo::new(pattern, values).unwrap())
        .convert("csr".parse().unwrap())
        .unwrap()
}

/// Rows without entries stay zero, whatever later factors hold there.
#[test]
fn elements_without_a_term_are_left_out() {
    let ctx = Context::cpu();
    // Row 1 of A is empty, and B is NaN where A has no entry.
    let a = csr([3, 40], &[[0, 3], [0, 5], [0, 7], [2, 3], [2, 5], [2, 9]]);
    let b = Dense::from_fn([40, 30], |i| {
        if [3, 5, 7, 9].contains(&i[0]) {
            1.0
        } else {
            f32::NAN
        }
    });
    let (b, c) = (b.unwrap(), integers::<f32>(&[30, 100], 1));
    let text = "Y[m,n] = A[m,k] * B[k,l] * C[l,n] * D[m]";
    let d = Dense::new([3], vec![1.0, f32::INFINITY, 1.0]).unwrap();
    let operands = [
        ("A", (&a).into()),
        ("B", (&b).into()),
        ("C", (&c).into()),
        ("D", (&d).into()),
    ];
    let path = ctx.contraction_path(text, &operands).unwrap().unwrap();
    assert!(path.contains("A[m,k] * B[k,l]"), "{path}");
    let (_, y) = plan_and_run(&ctx, text, &operands, &Options::default());
    let y = y.to_dense().unwrap();
    assert_eq!(y.values()[100..200], [0.0; 100], "{path}");
    assert!(y.values().iter().all(|v| v.is_finite()));
}

#[test]
fn intermediate_results_are_not_rounded_to_the_element_type() {
    let ctx = Context::cpu();
    let fill =
        |shape: [usize; 2], value: f64| Dense::from_fn(shape, |_| f16::from_f64(value)).unwrap();
    // The first product is 204,800, more than f16 has.
    let (a, b, c) = (
        fill([1, 512], 20.0),
        fill([512, 1], 20.0),
        fill([1, 1], 0.125),
    );
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
    let text = "Y[i,l] = A[i,j] * B[j,k] * C[k,l]";
    let options = Options {
        variant: Some("path".into()),
        ..Options::default()
    };
    let (plan, y) = plan_and_run(&ctx, text, &operands, &options);
    assert!(plan.to_string().contains("P0["), "{plan}");
    assert_eq!(y.to_dense().unwrap().values()[0].to_f32(), 25_600.0);
}

/// Fifty thousand entries on each side of one shared index make 2.5e9 pairs.
#[test]
fn more_pairs_than_a_list_may_have_run_pair_by_pair() {
    let ctx = Context::cpu();
    const N: u32 = 50_000;
    let a = csr([N as usize, 1], &(0..N).map(|i| [i, 0]).collect::<Vec<_>>());
    let b = csr([1, N as usize], &(0..N).map(|i| [0, i]).collect::<Vec<_>>());
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let (plan, y) = plan_and_run(
        &ctx,
        "y[] = A[m,k] * B[k,n]",
        &operands,
        &Options::default(),
    );
    assert!(plan.to_string().contains("pair by pair"), "{plan}");
    assert_eq!(y.to_dense().unwrap().values(), [2.5e9]);
    // No index is shared.
    let (_, y) = plan_and_run(
        &ctx,
        "y[] = A[m,k] * B[j,n]",
        &operands,
        &Options::default(),
    );
    assert_eq!(y.to_dense().unwrap().values(), [2.5e9]);
}

/// Lists of all three are too long, and neither A nor B fits in memory as a dense tensor: lists of A and B remain.
#[test]
fn two_large_sparse_factors_are_joined_within_a_path() {
    let ctx = Context::cpu();
    const N: u32 = 100_000;
    let a: Vec<[u32; 2]> = (0..N).map(|i| [i % 50, i * 40]).collect();
    let b: Vec<[u32; 2]> = (0..N).map(|i| [i * 40, i / 50 % 50]).collect();
    let mut e: Vec<[u32; 2]> = (0..N).map(|i| [i % 50, i / 50]).collect();
    let a = csr([50, 40 * N as usize], &in_order(a));
    let b = csr([40 * N as usize, 50], &b)
        .convert("coo".parse().unwrap())
        .unwrap();
    e.sort_unstable();
    let e = csr([50, N as usize], &e);
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("E", (&e).into())];
    let text = "Y[m,n] = A[m,k] * B[k,n] * E[n,p]";
    let (plan, y) = plan_and_run(&ctx, text, &operands, &Options::default());
    assert!(plan.to_string().contains("= A[m,k] * B[k,n]"), "{plan}");
    // 40 entries meet at each of 2,500 places, and E has 2,000 in each row.
    assert_eq!(y.to_dense().unwrap().values(), [80_000.0; 2500]);
}

fn in_order(mut places: Vec<[u32; 2]>) -> Vec<[u32; 2]> {
    places.sort_unstable();
    places
}

/// Neither way: the error has the reasons of both.
#[test]
fn what_runs_in_no_way_is_refused_with_numbers() {
    let ctx = Context::cpu();
    const N: u32 = 100_000;
    let wide = [N as usize; 2];
    let a = csr(wide, &(0..N).map(|i| [i, 0]).collect::<Vec<_>>());
    let b = csr(wide, &(0..N).map(|i| [0, i]).collect::<Vec<_>>());
    let d = csr(wide, &(0..N).map(|i| [i, i]).collect::<Vec<_>>());
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("D", (&d).into())];
    let text = "y[] = A[m,k] * B[k,n] * D[m,n]";
    let error = ctx.plan(text).operands(&operands).build().unwrap_err();
    let Error::NoKernel { tried, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(tried[0].0, "join");
    assert!(tried[0].1.contains("10000000000"), "{error}");
    assert_eq!(tried[1].0, "path");
    assert!(tried[1].1.contains("10000000000 elements"), "{error}");
    assert!(tried[1].1.contains("= 100000"), "{error}");
}

#[test]
fn stored_zeros_of_blocks_are_left_out_of_lists() {
    let ctx = Context::cpu();
    // Blocks of 2 x 2 with one entry each: three of four values are fill.
    let a = csr([4, 4], &[[0, 0], [3, 3]])
        .convert("bsr:2x2".parse().unwrap())
        .unwrap();
    let pattern = CsrPattern::new(4, 4, vec![0, 1, 2, 2, 3], vec![0, 1, 3]).unwrap();
    let b = Csr::new(pattern, vec![1.0f32, f32::NAN, 5.0]).unwrap();
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let (plan, y) = plan_and_run(&ctx, text, &operands, &Options::default());
    assert_eq!(
        plan.indirect().to_string(),
        "C[M[p],N[p]] = AV[P[p]] * BV[Q[p]]"
    );
    let y = y.to_dense().unwrap();
    assert_eq!((y.values()[0], y.values()[15]), (1.0, 5.0));
    assert_eq!(y.values().iter().filter(|v| **v == 0.0).count(), 14);
}
