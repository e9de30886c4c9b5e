//! Several sparse factors, and sparse outputs, against the naive reference: every format, with exact equality.

use crate::support::assert_error;
use std::collections::BTreeMap;

use einsparse::einsum::{Access, Einsum, Mode, Scalar};
use einsparse::formats::reference::{self, Factor};
use einsparse::formats::{AnySparse, Dense, Format};
use einsparse::{Context, Error, Operand};
use proptest::prelude::*;

use super::problem::{add_bias, integers, names, random_coo};
use crate::support::dense::wide;
use crate::support::runs::sampled_plan_of;

const ENTRIES: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo:1",
    "groupcoo:3",
    "groupcoo@1",
    "bitmap",
    "bytemap",
    "sell",
    "groupcoo:hybrid",
    "bsr:2x3",
    "blockcoo:2x2",
    "blockgroupcoo:3x2:2",
];
const TENSORS: &[&str] = &["coo", "groupcoo:2", "groupcoo@1"];

/// Number of formats without fill. The tests compare the nonzeros of an output, and blocks store results in their fill
/// too.
const WITHOUT_FILL: usize = 11;

/// Expressions. The sparse factors are A, B and E; the extent of an index depends on its letter.
const DENSE: &[&str] = &[
    "C[m,n] = A[m,k] * B[k,n]",
    "C[m,n] += 2 * A[m,k] * B[k,n]",
    "C[n,m] = A[m,k] * B[n,k]",
    "C[m,n] = A[m,n] * B[m,n]",
    "C[m,n] = A[m,n] * B[n,m]",
    "C[m] = A[m,k] * B[m,k]",
    "C[m] = A[m,k] * B[k,m]",
    "C[] = A[m,k] * B[m,k]",
    "C[m,j] = A[m,k] * B[k,n] * d[n,j]",
    "C[m,n] = A[m,k] * d[k] * B[k,n]",
    "C[m,n] = relu(-1 * A[m,k] * B[k,n] + b[n])",
    "C[m,n] += A[m,k] * B[k,n] + b[m]",
    "C[m,n] = A[m,m] * B[m,n]",
    "C[m,n] = A[m,k] * A[n,k]",
    "C[m,n] = A[m,k] * B[j,n]",
    "C[m,n] = A[m,k] * B[k,j] * E[j,n]",
    "C[m,n] = A[m,k] * B[j,n] * E[k,j]",
    "C[i,l] = A[i,j,k] * B[j,k,l]",
    "C[i,j,l] = A[i,j,k] * B[k,l]",
    "C[i] = A[i,j,k] * B[i,j,k] * d[k]",
];

/// Expressions with a sparse output S.
const SAMPLED: &[&str] = &[
    "S[m,n] = A[m,n] * x[m,k] * y[n,k]",
    "S[m,n] = x[m,k] * y[n,k]",
    "S[m,n] = x[m,k] * y[n,k] * z[m,k]",
    "S[m,n] = A[m,n] * d[m]",
    "S[m,n] += 3 * A[m,n] * d[m] * e[n]",
    "S[m,n] = relu(A[m,n] * d[n])",
    "S[n,m] = A[m,n] * d[m]",
    "S[m,n] = A[m,n] * B[m,n]",
    "S[m,n] = A[m,k] * B[k,n]",
    "S[m,n] = A[m,k] * B[k,n] * d[k]",
    "S[i,j,k] = A[i,j,k] * x[i,l] * y[j,l] * z[k,l]",
    "S[i,j,k] = x[i,l] * y[j,l] * z[k,l]",
];

struct Lists {
    e: Einsum,
    extents: BTreeMap<String, usize>,
    sparse: BTreeMap<String, AnySparse<f32>>,
    dense: BTreeMap<String, Dense<f32>>,
    alpha: f64,
}

impl Lists {
    /// `formats`: formats of the sparse tensors, used cyclically. `same`: the output and A have one pattern if their
    /// shapes agree.
    fn new(text: &str, extents: &[usize], formats: &[usize], seed: u64, same: bool) -> Lists {
        let e = Einsum::parse(text).unwrap();
        let all = e.index_names();
        let mut extents: BTreeMap<String, usize> =
            all.iter().zip(extents).map(|(n, x)| (n.to_string(), *x)).collect();
        if text.contains("A[n,k]") {
            extents.insert("n".into(), extents["m"]);
        }
        let shape = |a: &Access| -> Vec<usize> { names(a).iter().map(|n| extents[*n]).collect() };
        let (mut sparse, mut dense) = (BTreeMap::new(), BTreeMap::new());
        let accesses = e.right().chain(e.out.tensor.starts_with('S').then_some(&e.out));
        for (i, access) in accesses.enumerate() {
            let name = access.tensor.clone();
            let (shape, own) = (shape(access), seed + i as u64);
            if name == "S" || "ABE".contains(&name) {
                let list = match (shape.len(), name.as_str()) {
                    (2, "S") => &ENTRIES[..WITHOUT_FILL],
                    (2, _) => ENTRIES,
                    _ => TENSORS,
                };
                let format: Format = list[formats[i % formats.len()] % list.len()].parse().unwrap();
                let coo = random_coo::<f32>(&shape, own);
                sparse.insert(name, AnySparse::Coo(coo).convert(format).unwrap());
            } else {
                dense.insert(name, integers(&shape, own));
            }
        }
        if let (Some(a), Some(s), true) = (sparse.get("A"), sparse.get("S"), same)
            && a.shape() == s.shape()
            && !a.pattern().holds_fill()
        {
            let own = a.map_values(|v| v - 1.0);
            sparse.insert("S".into(), own);
        }
        let alpha = e.scalars.iter().map(|s| match s {
            Scalar::Literal(v) => *v,
            Scalar::Name(n) => panic!("{n}"),
        });
        let alpha = alpha.product();
        Lists { e, extents, sparse, dense, alpha }
    }

    /// Sums of products at every position of the output.
    fn sums(&self) -> Dense<f64> {
        let index: Vec<&String> = self.extents.keys().collect();
        let number = |a: &Access| -> Vec<usize> {
            let of = |n: &&str| index.iter().position(|i| i == n).unwrap();
            names(a).iter().map(of).collect()
        };
        let wide: BTreeMap<_, _> =
            self.dense.iter().map(|(n, d)| (n.as_str(), d.map(f64::from))).collect();
        let entries: BTreeMap<_, _> =
            self.sparse.iter().map(|(n, a)| (n.as_str(), a.entries())).collect();
        let numbers: Vec<Vec<usize>> = self.e.factors.iter().map(number).collect();
        let factor = |a: &Access| -> Factor<'_> {
            match wide.get(a.tensor.as_str()) {
                Some(dense) => Factor::Dense(dense),
                None => Factor::Sparse(&entries[a.tensor.as_str()]),
            }
        };
        let factors: Vec<(&[usize], Factor<'_>)> =
            self.e.factors.iter().zip(&numbers).map(|(a, at)| (at.as_slice(), factor(a))).collect();
        let extents: Vec<usize> = self.extents.values().copied().collect();
        let out = number(&self.e.out);
        let mut sums = reference::einsum(&extents, &out, &factors).unwrap();
        let alpha = self.alpha;
        sums.values_mut().iter_mut().for_each(|sum| *sum *= alpha);
        if let Some(bias) = &self.e.epilogue.bias {
            let dense = &wide[bias.tensor.as_str()];
            add_bias(&mut sums, &out, (&number(bias), dense));
        }
        for sum in sums.values_mut() {
            if self.e.epilogue.activation.name() == Some("relu") && *sum < 0.0 {
                *sum = 0.0;
            }
        }
        sums
    }

    fn operands(&self) -> Vec<(&str, Operand<'_, f32>)> {
        let sparse = self.sparse.iter().filter(|(n, _)| *n != "S");
        let sparse = sparse.map(|(n, a)| (n.as_str(), a.into()));
        sparse.chain(self.dense.iter().map(|(n, d)| (n.as_str(), d.into()))).collect()
    }

    /// Compares with a dense output that contains ones before the run.
    fn assert_dense(&self) {
        let ctx = Context::unchecked_cpu();
        let operands = self.operands();
        let text = self.e.to_string();
        let plan = ctx.plan(&text).operands(&operands).build().unwrap();
        let ones = Dense::from_fn(plan.out_shape().to_vec(), |_| 1.0f32).unwrap();
        let mut out = ctx.upload_dense(&ones).unwrap();
        plan.run(&operands, &mut out, &ctx.stream().unwrap()).unwrap();
        let before = f64::from(self.e.mode == Mode::Accumulate);
        let wanted: Vec<f64> = self.sums().values().iter().map(|v| v + before).collect();
        assert_eq!(wide(&out), wanted, "{} as {}", self.e, plan.indirect());
    }

    /// Compares with the sparse output S.
    fn assert_sampled(&self) {
        let ctx = Context::unchecked_cpu();
        let mut out = ctx.upload(self.sparse["S"].clone()).unwrap();
        let uploaded: Vec<_> = self.sparse.iter().filter(|(n, _)| *n != "S").collect();
        let uploaded: Vec<_> =
            uploaded.into_iter().map(|(n, a)| (n, ctx.upload(a).unwrap())).collect();
        let mut operands = self.operands();
        operands.retain(|(n, _)| !self.sparse.contains_key(*n));
        operands.extend(uploaded.iter().map(|(n, a)| (n.as_str(), a.into())));
        let plan = sampled_plan_of(&ctx, &self.e.to_string(), &operands, &out);
        plan.run(&operands, &mut out, &ctx.stream().unwrap()).unwrap();
        let (sums, before) = (self.sums(), self.sparse["S"].entries());
        let add = self.e.mode == Mode::Accumulate;
        let wanted: BTreeMap<Vec<usize>, f64> = before
            .into_iter()
            .map(|(at, old)| (at.clone(), sums.get(&at).unwrap() + if add { old } else { 0.0 }))
            .collect();
        let found = out.to_host().unwrap().entries();
        assert_eq!(found, wanted, "{} as {}", self.e, plan.indirect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1200))]

    #[test]
    fn factors_that_share_indices_meet(
        case in 0..DENSE.len(), extents in [0usize..10, 0..10, 0..10, 0..10],
        formats in [0usize..14, 0..14, 0..14], seed in 0u64..1000,
    ) {
        Lists::new(DENSE[case], &extents, &formats, seed, false).assert_dense();
    }

    #[test]
    fn sparse_outputs_of_any_form(
        case in 0..SAMPLED.len(), extents in [0usize..10, 0..10, 0..10, 0..10],
        formats in [0usize..14, 0..14, 0..14], seed in 0u64..1000, same in any::<bool>(),
    ) {
        // SDDMM kernels require that the mask has the output's pattern; other forms do not.
        let same = same || case == 0;
        let formats = match case {
            0 => formats.map(|f| f % WITHOUT_FILL),
            _ => formats,
        };
        Lists::new(SAMPLED[case], &extents, &formats, seed, same).assert_sampled();
    }
}

/// Printed form of position lists. The plan states their lengths.
#[test]
fn joined_lists_are_printed() {
    let of = |text: &str| {
        let lists = Lists::new(text, &[7, 6, 5, 4], &[1], 3, true);
        let ctx = Context::unchecked_cpu();
        let operands = lists.operands();
        match lists.sparse.get("S") {
            None => {
                let plan = ctx.plan(text).operands(&operands).build().unwrap();
                plan.indirect().to_string()
            }
            Some(s) => {
                let plan = sampled_plan_of(&ctx, text, &operands, &ctx.upload(s).unwrap());
                plan.indirect().to_string()
            }
        }
    };
    assert_eq!(of("C[m,n] = A[m,k] * B[k,n]"), "C[M[p],N[p]] = AV[P[p]] * BV[Q[p]]");
    assert_eq!(of("S[m,n] = A[m,n] * d[m]"), "SV[p] = AV[p] * d[SM[p]]");
    assert_eq!(
        of("S[i,j,k] = A[i,j,k] * x[i,l] * y[j,l] * z[k,l]"),
        "SV[p] = AV[p] * x[SI[p],l] * y[SJ[p],l] * z[SK[p],l]"
    );
    assert_eq!(of("S[m,n] = A[m,k] * B[k,n]"), "SV[P[p]] = AV[Q[p]] * BV[R[p]]");
}

#[test]
fn refusals_say_why() {
    let ctx = Context::unchecked_cpu();
    let coo = |shape: &[usize], format: &str| {
        let coo = AnySparse::Coo(random_coo::<f32>(shape, 5));
        coo.convert(format.parse().unwrap()).unwrap()
    };
    let (a, b) = (coo(&[6, 5], "csr"), coo(&[4, 3], "coo"));
    let small = coo(&[5, 4], "csr");
    let words = |text: &str, b: &AnySparse<f32>| {
        let operands = [("A", (&a).into()), ("B", b.into())];
        match ctx.plan(text).operands(&operands).build().unwrap_err() {
            Error::NoKernel { tried, .. } => tried[0].1.clone(),
            other => other.to_string(),
        }
    };
    // Without a shared index, every nonzero of A is paired with every nonzero of B.
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let apart = ctx.position_lists("C[m,n] = A[m,k] * B[j,n]", &operands);
    assert_eq!(apart.unwrap().rows, a.nnz() * b.nnz());
    let through = words("C[m,n] = A[m,k] * B[I[k],n]", &small);
    assert!(!through.is_empty());
    // The pattern differs from the planned one.
    let operands = [("A", (&a).into()), ("B", (&small).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let plan = ctx.plan(text).operands(&operands).build().unwrap();
    let other = AnySparse::Coo(random_coo::<f32>(&[5, 4], 6)).convert(Format::Csr).unwrap();
    let mut out = ctx.zeros(&[6, 4]).unwrap();
    let wrong = [("A", (&a).into()), ("B", (&other).into())];
    let stream = ctx.stream().unwrap();
    let error = plan.run(&wrong, &mut out, &stream).unwrap_err();
    assert_error!(error, Error::OtherPattern { name, .. } if name == "B");
    plan.run(&operands, &mut out, &stream).unwrap();
}
