//! Attention at the entries of a mask against a reference in f64: queries and keys around the tiles, queries without keys,
//! masks by entries and by blocks, shared and of their own, hidden keys, queries cut along their keys, NaN and Inf. The CPU
//! runs the same suite.

use crate::support::{Rng, gpu, gpu_alone, small, spread};
use einsparse::driver::Graph;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::ops::{AttentionOptions, SparseAttention};
use einsparse::registry::{Operation, Scalar, kernels};
use einsparse::{Context, Error, SparseTensor, Tensor};

/// Names of the kernels for a type and this many elements of a query; the CPU has one.
fn variants<T: Scalar>(context: &Context, dim: usize) -> Vec<Option<&'static str>> {
    if context.device().is_none() {
        return vec![None];
    }
    let fits = |row: &&einsparse::kernels::table::Row| {
        row.operation == Operation::Attention
            && row.dtype == T::DTYPE
            && row.columns as usize == dim
    };
    let names: Vec<_> = kernels()
        .iter()
        .filter(fits)
        .map(|r| Some(r.name))
        .collect();
    assert!(!names.is_empty(), "no kernel for {} {dim}", T::NAME);
    names
}

fn csr<T: Scalar>(pattern: CsrPattern) -> AnySparse<T> {
    let values = vec![T::from_f64(f64::NAN); pattern.columns().len()];
    Csr::new(pattern, values).unwrap().into()
}

/// Keys of a query in a mask that are not hidden.
fn keys(pattern: &CsrPattern, row: usize, o: &AttentionOptions, head: usize) -> Vec<usize> {
    let length = o
        .lengths
        .as_ref()
        .map_or(usize::MAX, |l| l[head * l.len() / o.heads]);
    let of_row = &pattern.columns()[pattern.row(row)];
    let keys = of_row.iter().map(|&c| c as usize);
    keys.filter(|&key| {
        key < length
            && o.causal
                .is_none_or(|offset| key as i64 <= row as i64 + offset)
    })
    .collect()
}

/// Operands on the host.
struct Case<T> {
    patterns: Vec<CsrPattern>,
    options: AttentionOptions,
    q: Dense<T>,
    k: Dense<T>,
    v: Dense<T>,
}

/// Output of a query, the sum of magnitudes that its errors grow with, and the logarithm of its sum.
struct Wanted {
    out: Vec<f64>,
    size: Vec<f64>,
    log_sum: f64,
}

impl<T: Scalar> Case<T> {
    fn new(patterns: Vec<CsrPattern>, options: AttentionOptions, seed: u64) -> Self {
        let (m, n, d) = (patterns[0].rows(), patterns[0].cols(), options.dim);
        let mut rng = Rng(seed);
        let mut dense = |heads: usize, rows: usize| {
            // Scores beyond what one tile's largest would tell.
            let values: Vec<T> = (0..heads * rows * d)
                .map(|_| T::from_f64(2.0 * rng.unit()))
                .collect();
            Dense::new(vec![heads, rows, d], values).unwrap()
        };
        let key_heads = options.key_heads.unwrap_or(options.heads);
        Case {
            q: dense(options.heads, m),
            k: dense(key_heads, n),
            v: dense(key_heads, n),
            patterns,
            options,
        }
    }

    fn wanted(&self, head: usize, query: usize) -> Wanted {
        let o = &self.options;
        let group = o.heads / o.key_heads.unwrap_or(o.heads);
        let row = |dense: &Dense<T>, head: usize, row: usize| -> Vec<f64> {
            let at = (head * dense.shape()[1] + row) * o.dim;
            let row = &dense.values()[at..at + o.dim];
            row.iter().map(|x| x.to_f64()).collect()
        };
        let q = row(&self.q, head, query);
        let keys = keys(&self.patterns[head % self.patterns.len()], query, o, head);
        let scale = o.scale.unwrap_or(1.0 / (o.dim as f64).sqrt());
        let score = |&key: &usize| {
            let k = row(&self.k, head / group, key);
            scale * q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut out, mut size) = (vec![0.0; o.dim], vec![0.0; o.dim]);
        for (key, score) in keys.iter().zip(&scores) {
            let weight = (score - max).exp() / sum;
            let v = row(&self.v, head / group, *key);
            for ((out, size), v) in out.iter_mut().zip(&mut size).zip(v) {
                *out += weight * v;
                *size += weight * v.abs();
            }
        }
        let log_sum = if keys.is_empty() {
            f64::NEG_INFINITY
        } else {
            max + sum.ln()
        };
        Wanted { out, size, log_sum }
    }

    /// Runs a kernel on masks in a format; twice, to the same bits.
    fn run(&self, context: &Context, format: &str, variant: Option<&str>) -> (Vec<T>, Vec<f32>) {
        let masks: Vec<SparseTensor<T>> = self.masks(context, format);
        let masks: Vec<&SparseTensor<T>> = masks.iter().collect();
        let o = &self.options;
        let attention = SparseAttention::with_variant(context, &masks, o, variant).unwrap();
        assert_eq!(attention.variant(), variant.unwrap_or("cpu"));
        let stream = context.stream().unwrap();
        let gap = T::from_f64(f64::NAN);
        let strided = |dense: &Dense<T>| -> Tensor<T> {
            context.upload_strided(dense, o.dim + 8, gap).unwrap()
        };
        let (q, k, v) = (strided(&self.q), strided(&self.k), strided(&self.v));
        let poison = Dense::from_fn(self.q.shape().to_vec(), |_| gap).unwrap();
        let logs = [o.heads, self.patterns[0].rows()];
        let run = || {
            let mut out = strided(&poison);
            let mut log_sum = context.zeros::<f32>(&logs).unwrap();
            let operands = [&q, &k, &v];
            attention
                .run(operands, &mut out, Some(&mut log_sum), &stream)
                .unwrap();
            stream.synchronize().unwrap();
            for row in out.to_storage().unwrap().chunks(o.dim + 8) {
                assert!(row[o.dim..].iter().all(|x| x.to_f64().is_nan()), "guards");
            }
            (
                out.to_dense().unwrap().values().to_vec(),
                log_sum.to_dense().unwrap().values().to_vec(),
            )
        };
        let (first, second) = (run(), run());
        assert_eq!(bits(&first.0), bits(&second.0));
        assert_eq!(bits(&first.1), bits(&second.1));
        first
    }

    fn masks(&self, context: &Context, format: &str) -> Vec<SparseTensor<T>> {
        let mask = |p: &CsrPattern| {
            let mask = csr::<T>(p.clone())
                .convert(format.parse().unwrap())
                .unwrap();
            context.upload(mask).unwrap()
        };
        self.patterns.iter().map(mask).collect()
    }

    /// Every kernel against the reference.
    fn check(&self, context: &Context, format: &str) {
        let o = &self.options;
        for variant in variants::<T>(context, o.dim) {
            let (out, log_sum) = self.run(context, format, variant);
            let rows = self.patterns[0].rows();
            for (row, (out, log)) in out.chunks(o.dim).zip(log_sum).enumerate() {
                let (head, query) = (row / rows, row % rows);
                let wanted = self.wanted(head, query);
                let what = (T::NAME, variant, format, o, rows, head, query);
                let near = (f64::from(log) - wanted.log_sum).abs() <= 1e-4;
                assert!(
                    near || f64::from(log) == wanted.log_sum,
                    "{what:?}: {log}, {}",
                    wanted.log_sum
                );
                for (i, x) in out.iter().enumerate() {
                    let (w, size) = (wanted.out[i], wanted.size[i]);
                    // Weights and output rounded, scores and sums in f32.
                    let bound = roundoff::<T>() * (w.abs() + 1.5 * size) + 2e-5;
                    assert!(
                        (x.to_f64() - w).abs() <= bound,
                        "{what:?} {i}: {x}, expected {w}"
                    );
                }
            }
        }
    }
}

fn bits<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn roundoff<T: Scalar>() -> f64 {
    match T::NAME {
        "f16" => 0.5f64.powi(11),
        "bf16" => 0.5f64.powi(8),
        _ => 0.5f64.powi(24),
    }
}

/// `heads` of `dim`, factor and masks left out.
fn plain(heads: usize, dim: usize) -> AttentionOptions {
    AttentionOptions {
        heads,
        dim,
        ..AttentionOptions::default()
    }
}

/// Lengths of rows: none, one, some, all.
fn uneven(rows: usize, columns: usize) -> CsrPattern {
    let len = |row: usize| match row % 5 {
        0 => 0,
        1 => 1,
        2 => columns,
        _ => (row * 7919) % (columns + 1),
    };
    spread(&(0..rows).map(len).collect::<Vec<_>>(), columns)
}

fn sizes<T: Scalar>(context: &Context) {
    let all = [
        (1, 1),
        (63, 64),
        (64, 65),
        (65, 127),
        (128, 128),
        (129, 200),
        (300, 129),
        (200, 700),
    ];
    let all = if small() { &all[4..6] } else { &all[..] };
    for (i, &(m, n)) in all.iter().enumerate() {
        for dim in [64, 128] {
            let options = plain(1 + i % 3, dim);
            Case::<T>::new(vec![uneven(m, n)], options, i as u64).check(context, "csr");
        }
    }
}

/// Runs a suite on both types, on the GPU and on the CPU.
macro_rules! everywhere {
    ($suite:ident) => {
        if let Some(context) = gpu() {
            $suite::<f16>(&context);
            $suite::<bf16>(&context);
        }
        $suite::<f16>(&Context::cpu());
    };
}

#[test]
fn sizes_around_the_tiles() {
    everywhere!(sizes);
}

fn hidden<T: Scalar>(context: &Context) {
    let dense = spread(&[300; 300], 300);
    for (causal, lengths, scale) in [
        (Some(0), None, None),
        (Some(-3), None, Some(1.0)),
        (Some(70), Some(vec![250]), None),
        (None, Some(vec![300, 0, 64, 129]), Some(0.01)),
        (Some(0), Some(vec![77, 1000]), None),
    ] {
        let options = AttentionOptions {
            causal,
            lengths,
            scale,
            ..plain(4, 64)
        };
        Case::<T>::new(vec![dense.clone()], options.clone(), 7).check(context, "csr");
        Case::<T>::new(vec![uneven(300, 300)], options, 8).check(context, "csr");
    }
}

#[test]
fn keys_above_and_beyond_are_hidden() {
    everywhere!(hidden);
}

fn formats<T: Scalar>(context: &Context) {
    let pattern = uneven(150, 260);
    for format in ["csr", "coo", "ell", "groupcoo:4"] {
        Case::<T>::new(vec![pattern.clone()], plain(2, 128), 3).check(context, format);
    }
    for edge in [16, 32, 64, 128] {
        let (m, n) = (4 * edge - 5, 6 * edge - 7);
        let pattern = crate::support::fill_blocks(&spread(&[0, 3, 6, 1], 6), (edge, edge), m, n);
        for format in [
            format!("bsr:{edge}x{edge}"),
            format!("blockgroupcoo:{edge}x{edge}:2"),
        ] {
            Case::<T>::new(vec![pattern.clone()], plain(2, 128), 4).check(context, &format);
        }
    }
}

#[test]
fn masks_in_every_format() {
    everywhere!(formats);
}

fn heads<T: Scalar>(context: &Context) {
    let masks: Vec<_> = [1, 2, 3, 4]
        .iter()
        .map(|&i| spread(&[(i * 40) % 190; 190], 190))
        .collect();
    Case::<T>::new(masks.clone(), plain(4, 64), 5).check(context, "csr");
    let grouped = AttentionOptions {
        key_heads: Some(2),
        ..plain(4, 128)
    };
    Case::<T>::new(masks, grouped.clone(), 6).check(context, "csr");
    Case::<T>::new(vec![uneven(130, 140)], grouped, 6).check(context, "csr");
}

#[test]
fn masks_of_their_own_and_shared_keys() {
    everywhere!(heads);
}

/// Few queries and many keys: thread blocks share queries, and the last to arrive joins what they found.
fn cut<T: Scalar>(context: &Context) {
    let n = if small() { 2000 } else { 9000 };
    let mut lens = vec![n; 140];
    lens[3] = 0;
    lens[70] = 1;
    Case::<T>::new(vec![spread(&lens, n)], plain(1, 128), 9).check(context, "csr");
    Case::<T>::new(vec![spread(&lens, n)], plain(2, 64), 9).check(context, "csr");
}

#[test]
fn queries_cut_along_their_keys() {
    everywhere!(cut);
}

/// Scores that grow from tile to tile, and some that dwarf all others: the largest is always known.
fn growing<T: Scalar>(context: &Context) {
    let n = 600;
    let mut case = Case::<T>::new(vec![spread(&[n; 70], n)], plain(1, 64), 1);
    case.q = Dense::from_fn(vec![1, 70, 64], |_| T::ONE).unwrap();
    case.k = Dense::from_fn(vec![1, n, 64], |i| T::from_f64((i[1] / 4) as f64 / 16.0)).unwrap();
    case.check(context, "csr");
    case.k = Dense::from_fn(vec![1, n, 64], |i| T::from_f64(-((i[1] / 4) as f64))).unwrap();
    case.check(context, "csr");
}

#[test]
fn the_largest_score_may_be_anywhere() {
    everywhere!(growing);
}

/// A NaN or Inf in K or Q reaches its entries only; one in V at most the same 64 queries; queries without keys stay zero.
fn planted<T: Scalar>(context: &Context) {
    let (m, n, dim) = (256, 512, 64);
    // Row r sees keys 2 r and 2 r + 1; every eighth none.
    let lens: Vec<usize> = (0..m).map(|r| if r % 8 == 0 { 0 } else { 2 }).collect();
    let mut offsets = vec![0];
    let mut columns = Vec::new();
    for (row, &len) in lens.iter().enumerate() {
        columns.extend((0..len as u32).map(|i| 2 * row as u32 + i));
        offsets.push(columns.len() as u32);
    }
    let pattern = CsrPattern::new(m, n, offsets, columns).unwrap();
    for (bad, in_values) in [
        (f64::NAN, false),
        (f64::INFINITY, false),
        (f64::NAN, true),
        (f64::INFINITY, true),
    ] {
        let mut case = Case::<T>::new(vec![pattern.clone()], plain(1, dim), 2);
        // Key 131 belongs to query 65.
        let operand = if in_values { &mut case.v } else { &mut case.k };
        let clean = operand.clone();
        *operand = Dense::from_fn(vec![1, n, dim], |i| match i[1] {
            131 => T::from_f64(bad),
            _ => clean.values()[i[1] * dim + i[2]],
        })
        .unwrap();
        for variant in variants::<T>(context, dim) {
            let (out, _) = case.run(context, "csr", variant);
            for (row, out) in out.chunks(dim).enumerate() {
                let finite = out.iter().all(|x| x.to_f64().is_finite());
                let zero = out.iter().all(|x| x.to_f64() == 0.0);
                match row {
                    65 => assert!(!finite, "{bad} {in_values} {variant:?}: {out:?}"),
                    _ if row % 8 == 0 => assert!(zero, "{bad} {in_values} {row} {variant:?}"),
                    64..128 if in_values => {}
                    _ => assert!(
                        finite && !zero,
                        "{bad} {in_values} {row} {variant:?}: {out:?}"
                    ),
                }
            }
        }
    }
}

#[test]
fn planted_nan_and_inf() {
    everywhere!(planted);
}

#[test]
fn a_captured_run_repeats_itself() {
    let Some(context) = gpu_alone() else { return };
    let case = Case::<bf16>::new(vec![uneven(300, 3000)], plain(2, 128), 1);
    let masks = case.masks(&context, "csr");
    let attention = SparseAttention::new(&context, &[&masks[0]], &case.options).unwrap();
    let upload = |dense: &Dense<bf16>| context.upload_dense(dense).unwrap();
    let (q, k, v) = (upload(&case.q), upload(&case.k), upload(&case.v));
    let stream = context.stream().unwrap();
    let mut out = context.zeros::<bf16>(&[2, 300, 128]).unwrap();
    attention
        .run([&q, &k, &v], &mut out, None, &stream)
        .unwrap();
    stream.synchronize().unwrap();
    let wanted = out.to_dense().unwrap();
    out.write(&Dense::from_fn(vec![2, 300, 128], |_| bf16::NAN).unwrap())
        .unwrap();
    let graph = Graph::capture(stream.raw(), |_| {
        attention.run([&q, &k, &v], &mut out, None, &stream)
    });
    let mut graph = graph.unwrap().instantiate().unwrap();
    for _ in 0..3 {
        // SAFETY: everything that the captured run names is alive until the end of this test.
        unsafe { graph.launch(stream.raw()).unwrap() };
    }
    stream.synchronize().unwrap();
    assert_eq!(
        bits(out.to_dense().unwrap().values()),
        bits(wanted.values())
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Context::cpu();
    let mask = cpu.upload(csr::<f32>(spread(&[1, 2], 3))).unwrap();
    let other = cpu.upload(csr::<f32>(spread(&[1, 2], 4))).unwrap();
    let refused = |masks: &[&SparseTensor<f32>], options: AttentionOptions| {
        let error = SparseAttention::new(&cpu, masks, &options).unwrap_err();
        error.to_string()
    };
    let with = |change: fn(&mut AttentionOptions)| {
        let mut options = plain(4, 8);
        change(&mut options);
        options
    };
    for (masks, options, wanted) in [
        (
            &[&mask][..],
            with(|o| o.scale = Some(0.0)),
            "is 0, not above 0",
        ),
        (&[&mask], with(|o| o.scale = Some(f64::NAN)), "is NaN"),
        (
            &[&mask],
            with(|o| o.key_heads = Some(3)),
            "are 3, which do not divide 4 heads",
        ),
        (&[&mask], with(|o| o.key_heads = Some(0)), "are 0"),
        (
            &[&mask],
            with(|o| o.lengths = Some(vec![1; 3])),
            "are 3, which does not divide 4",
        ),
        (&[&mask, &mask], with(|_| {}), "are 2; one for all 4 heads"),
        (&[], with(|_| {}), "are 0"),
        (
            &[&mask, &mask, &mask, &other],
            with(|_| {}),
            "another [2, 4]",
        ),
    ] {
        let found = refused(masks, options);
        assert!(found.contains(wanted), "{found}");
    }
    let attention = SparseAttention::new(&cpu, &[&mask], &plain(1, 8)).unwrap();
    let (q, k) = (
        cpu.zeros::<f32>(&[1, 2, 8]).unwrap(),
        cpu.zeros::<f32>(&[1, 3, 8]).unwrap(),
    );
    let mut out = cpu.zeros::<f32>(&[1, 2, 8]).unwrap();
    let stream = cpu.stream().unwrap();
    let error = attention
        .run([&q, &q, &k], &mut out, None, &stream)
        .unwrap_err();
    let wanted = matches!(&error, Error::Shape { index, .. } if index == "k");
    assert!(wanted, "{error}");
    attention
        .run([&q, &k, &k], &mut out, None, &stream)
        .unwrap();
    // Nothing to do is done.
    let none = SparseAttention::new(&cpu, &[&mask], &plain(0, 8)).unwrap();
    let empty = |rows| cpu.zeros::<f32>(&[0, rows, 8]).unwrap();
    none.run(
        [&empty(2), &empty(3), &empty(3)],
        &mut empty(2),
        None,
        &stream,
    )
    .unwrap();
}

#[test]
fn other_types_and_widths_have_no_kernel() {
    let Some(context) = gpu() else { return };
    let mask = context.upload(csr::<f32>(spread(&[1, 2], 3))).unwrap();
    let error = SparseAttention::new(&context, &[&mask], &plain(1, 64)).unwrap_err();
    assert!(error.to_string().contains("is for f16, not f32"), "{error}");
    let mask = context.upload(csr::<f16>(spread(&[1, 2], 3))).unwrap();
    let error = SparseAttention::new(&context, &[&mask], &plain(1, 96)).unwrap_err();
    assert!(
        error.to_string().contains("is for queries of 64, not 96"),
        "{error}"
    );
}
