//! Attention with masks in closed form: the CPU against a plain loop, and the GPU against the CPU.

use super::dynamic_attention::{assert_near, plain, units};
use crate::support::dense::{poisoned, upload};
use crate::support::runs::finish;
use crate::support::{on_both, on_gpu};
use einsparse::Context;
use einsparse::formats::{Csr, CsrPattern, Dense, bf16, f16};
use einsparse::ops::{AttentionGradient, AttentionMask, AttentionOptions, SparseAttention};
use einsparse::registry::Scalar;

/// Whether a mask lets query `q` see key `k`, by definition.
fn sees(mask: &AttentionMask, q: usize, k: usize) -> bool {
    match mask {
        AttentionMask::Causal => k <= q,
        AttentionMask::Window { before, after } => k + before >= q && k <= q + after,
        AttentionMask::WindowGlobal { before, after, globals } => {
            (k + before >= q && k <= q + after) || globals.contains(&q) || globals.contains(&k)
        }
        AttentionMask::VerticalSlash { columns, diagonals } => {
            k <= q && (columns.contains(&k) || diagonals.contains(&(q - k)))
        }
        AttentionMask::Blocks(blocks) => blocks.contains(&[q / 64, k / 64]),
    }
}

fn structured() -> Vec<AttentionMask> {
    vec![
        AttentionMask::Causal,
        AttentionMask::Window { before: 70, after: 5 },
        AttentionMask::WindowGlobal { before: 32, after: 32, globals: vec![0, 1, 2, 3, 77, 190] },
        AttentionMask::VerticalSlash {
            columns: vec![0, 1, 64, 130],
            diagonals: vec![0, 1, 2, 100],
        },
        AttentionMask::Blocks(vec![[0, 0], [0, 2], [1, 3], [3, 1]]),
        AttentionMask::Blocks(Vec::new()),
    ]
}

/// Compares each mask, entry by entry, with its definition. All keys that a query sees have equal weight.
#[test]
fn structured_masks_see_what_they_say() {
    let cpu = Context::unchecked_cpu();
    let (m, n) = (200, 220);
    // Each key has its own value, so the mean of the seen values identifies the keys, except for equal sums.
    let ones = Dense::from_fn(vec![1, m.max(n), 1], |_| 1.0f32).unwrap();
    let q = units::<f32>([1, m, 1], 9);
    let keys = Dense::new(vec![1, n, 1], ones.values()[..n].to_vec()).unwrap();
    let v = units::<f32>([1, n, 1], 8);
    let [q, k, values] = upload(&cpu, [&q, &keys, &v]);
    for mask in structured() {
        let options = plain(1, 1);
        let attention =
            SparseAttention::structured(&cpu, [m, n], std::slice::from_ref(&mask), &options);
        let mut out = cpu.zeros(&[1, m, 1]).unwrap();
        let stream = cpu.stream().unwrap();
        attention.unwrap().forward([&q, &k, &values], &mut out, None, &stream).unwrap();
        let out = out.to_dense().unwrap();
        for (row, found) in out.values().iter().enumerate() {
            // All keys are equal, so all keys that are seen have equal weight.
            let seen: Vec<f64> = (0..n)
                .filter(|&key| sees(&mask, row, key))
                .map(|key| f64::from(v.values()[key]))
                .collect();
            let wanted = seen.iter().sum::<f64>() / seen.len().max(1) as f64;
            assert!((f64::from(*found) - wanted).abs() < 1e-6, "{mask:?} {row}");
        }
    }
}

fn structured_on<T: Scalar>(gpu: &Context) {
    let cpu = Context::unchecked_cpu();
    for (m, n, dim) in [(256, 256, 64), (200, 220, 128), (700, 260, 64)] {
        let masks = structured();
        let options = AttentionOptions {
            key_heads: Some(masks.len() / 2),
            lengths: Some(vec![n - 9, n]),
            ..plain(masks.len(), dim)
        };
        let host = [
            units::<T>([masks.len(), m, dim], 1),
            units([masks.len() / 2, n, dim], 2),
            units([masks.len() / 2, n, dim], 3),
        ];
        let run = |context: &Context| {
            let [q, k, v] = upload(context, host.each_ref());
            let attention = SparseAttention::structured(context, [m, n], &masks, &options).unwrap();
            let mut out = poisoned(context, &[masks.len(), m, dim]);
            finish(context, |stream| attention.forward([&q, &k, &v], &mut out, None, stream));
            out
        };
        assert_near(&run(gpu), &run(&cpu), &format!("{m} x {n}"));
    }
}

/// Queries, keys and values with heads adjacent in each row, as a projection writes them, give the same result as
/// operands stored head by head.
fn in_rows<T: Scalar>(context: &Context) {
    let (heads, m, dim) = (4, 200, 64);
    let mask = AttentionMask::Window { before: 30, after: 0 };
    let attention =
        SparseAttention::structured(context, [m, m], &[mask], &plain(heads, dim)).unwrap();
    let rows = units::<T>([1, m, 3 * heads * dim], 4);
    let rows = Dense::new([m, 3 * heads * dim], rows.into_values()).unwrap();
    let part = |part: usize| {
        let at = |i: &[usize]| i[1] * 3 * heads * dim + (part * heads + i[0]) * dim + i[2];
        let own = Dense::from_fn(vec![heads, m, dim], |i| rows.values()[at(i)]);
        context.upload_dense(&own.unwrap()).unwrap()
    };
    let [q, k, v] = [0, 1, 2].map(part);
    let mut wanted = poisoned::<T>(context, &[heads, m, dim]);
    finish(context, |stream| attention.forward([&q, &k, &v], &mut wanted, None, stream));
    let there = context.upload_dense(&rows).unwrap();
    let columns = |part: usize| {
        let width = heads * dim;
        there.columns(part * width..(part + 1) * width).unwrap()
    };
    let (q, k, v) = (columns(0), columns(1), columns(2));
    let mut found = context.zeros::<T>(&[m, heads * dim]).unwrap();
    finish(context, |stream| attention.forward([&q, &k, &v], &mut found, None, stream));
    let (found, wanted) = (found.to_dense().unwrap(), wanted.to_dense().unwrap());
    for (at, found) in found.values().iter().enumerate() {
        let (row, column) = (at / (heads * dim), at % (heads * dim));
        let wanted = wanted.values()[(column / dim * m + row) * dim + column % dim];
        assert_eq!(found.to_f64(), wanted.to_f64(), "{row}, {column}");
    }
    let narrow = there.columns(0..dim).unwrap();
    let stream = context.stream().unwrap();
    let mut out = context.zeros::<T>(&[m, heads * dim]).unwrap();
    let refused = attention.forward([&narrow, &k, &v], &mut out, None, &stream);
    assert!(refused.is_err());
}

on_both! {
    heads_side_by_side_in_rows: cpu [in_rows::<f16>, in_rows::<bf16>],
        gpu [in_rows::<f16>, in_rows::<bf16>];
}

#[test]
fn structured_masks_on_the_gpu() {
    on_gpu(&[structured_on::<f16>, structured_on::<bf16>]);
}

/// Lists the keys that a mask in closed form sees.
fn listed(mask: &AttentionMask, [m, n]: [usize; 2]) -> Csr<f32> {
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for query in 0..m {
        columns.extend((0..n).filter(|&k| sees(mask, query, k)).map(|k| k as u32));
        offsets.push(columns.len() as u32);
    }
    let values = vec![1.0; columns.len()];
    Csr::new(CsrPattern::new(m, n, offsets, columns).unwrap(), values).unwrap()
}

fn gradients_on(context: &Context) {
    let (m, n, dim) = (200, 220, 8);
    let masks = structured();
    let heads = masks.len();
    let options = AttentionOptions {
        key_heads: Some(heads / 2),
        lengths: Some(vec![n - 9, n]),
        ..plain(heads, dim)
    };
    let host: [Dense<f32>; 4] = [
        units([heads, m, dim], 1),
        units([heads / 2, n, dim], 2),
        units([heads / 2, n, dim], 3),
        units([heads, m, dim], 4),
    ];
    let run = |mut gradient: AttentionGradient<f32>| {
        let [q, k, v, dy] = upload(context, host.each_ref());
        let mut results = [&q, &k, &v].map(|like| context.zeros(like.shape()).unwrap());
        let [dq, dk, dv] = &mut results;
        finish(context, |stream| gradient.backward([&q, &k, &v], &dy, [dq, dk, dv], stream));
        results.map(|t| t.to_dense().unwrap())
    };
    let entries = masks.iter().map(|mask| listed(mask, [m, n]));
    let entries: Vec<_> = entries.map(|mask| context.upload(mask).unwrap()).collect();
    let entries: Vec<_> = entries.iter().collect();
    let wanted = run(AttentionGradient::new(context, &entries, &options).unwrap());
    let found = run(AttentionGradient::structured(context, [m, n], &masks, &options).unwrap());
    assert_eq!(found, wanted);
    let filled = |d: &Dense<f32>| d.values().iter().any(|x| *x != 0.0);
    assert!(wanted.iter().all(filled));
}

on_both! {
    /// Gradients have the same bits as those of a mask that lists the same entries.
    gradients_of_structured_masks: cpu [gradients_on], gpu [gradients_on];
}
