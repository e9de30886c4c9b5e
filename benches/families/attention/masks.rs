//! Attention of 16,384 queries with a window and global tokens (Longformer, arXiv 2004.05150), with vertical and slash
//! lines (MInference, arXiv 2407.02490), and over the whole causal triangle, which dense kernels compute. Masks are
//! given in closed form, and as flags. The time of flags includes the construction of the work list on the GPU.
//!
//! Columns as in `attention`. Recorded as operation `attention`. A sample of queries is checked in f64.

use super::{Shape, drawn, options, uploaded, worst_error};
use crate::prelude::*;
use einsparse::ops::{AttentionMask, DynamicAttention, MaskTensors, SparseAttention};

const EXTENT: usize = 16_384;
/// Heads, queries, elements of a query.
const SHAPE: Shape = [8, EXTENT, 128];
/// Tokens of the window, half of them on either side; the first tokens, which have global attention.
const WINDOW: usize = 512;
const GLOBALS: usize = 64;
/// Number of checked queries of each head.
const SAMPLE: usize = 24;
/// Name of the operation in the record, shared with `entries`.
const OP: &str = super::entries::OP;

/// A mask in closed form, as flags, and as single positions.
struct Case {
    name: &'static str,
    mask: AttentionMask,
    columns: Vec<usize>,
    rows: Vec<usize>,
    /// Diagonals: keys minus queries.
    diagonals: Vec<i64>,
    causal: bool,
}

/// 16 runs of 16 columns, which include the first keys; the distances 0 to 511, and 8 runs of 64 larger distances.
fn vertical_slash() -> (Vec<usize>, Vec<usize>) {
    let columns = (0..16).flat_map(|i| (0..16).map(move |j| i * 1008 + j));
    let far = (1..=8).flat_map(|i| (0..64).map(move |j| 512 + i * 1700 + j));
    (columns.collect(), (0..512).chain(far).collect())
}

fn cases() -> Vec<Case> {
    let half = WINDOW / 2;
    let (columns, distances) = vertical_slash();
    vec![
        Case {
            name: "causal-16384-h8",
            mask: AttentionMask::Causal,
            columns: Vec::new(),
            rows: (0..EXTENT).collect(),
            diagonals: Vec::new(),
            causal: true,
        },
        Case {
            name: "window-global-16384-h8",
            mask: AttentionMask::WindowGlobal {
                before: half,
                after: half,
                globals: (0..GLOBALS).collect(),
            },
            columns: (0..GLOBALS).collect(),
            rows: (0..GLOBALS).collect(),
            diagonals: (-(half as i64)..=half as i64).collect(),
            causal: false,
        },
        Case {
            name: "vertical-slash-16384-h8",
            diagonals: distances.iter().map(|&d| -(d as i64)).collect(),
            mask: AttentionMask::VerticalSlash { columns: columns.clone(), diagonals: distances },
            columns,
            rows: Vec::new(),
            causal: true,
        },
    ]
}

/// Flags of a case; `true` is attended.
struct Flags {
    columns: Vec<bool>,
    rows: Vec<bool>,
    diagonals: Vec<bool>,
}

impl Case {
    fn flags(&self) -> Flags {
        let mut flags = Flags {
            columns: vec![false; EXTENT],
            rows: vec![false; EXTENT],
            diagonals: vec![false; 2 * EXTENT - 1],
        };
        self.columns.iter().for_each(|&c| flags.columns[c] = true);
        self.rows.iter().for_each(|&r| flags.rows[r] = true);
        let number = |d: i64| (d + EXTENT as i64 - 1) as usize;
        self.diagonals.iter().for_each(|&d| flags.diagonals[number(d)] = true);
        flags
    }

    /// Keys of a query.
    fn keys(&self, flags: &Flags, query: usize) -> Vec<u32> {
        let end = if self.causal { query + 1 } else { EXTENT };
        let there = |&key: &u32| {
            let key = key as usize;
            flags.rows[query] || flags.columns[key] || flags.diagonals[key + EXTENT - 1 - query]
        };
        (0..end as u32).filter(there).collect()
    }
}

/// Queries, keys and values in host and in device memory.
struct Operands {
    host: [Dense<bf16>; 3],
    there: [Tensor<bf16>; 3],
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let host = drawn(SHAPE)?;
    let there = uploaded(bench, &host)?;
    let operands = Operands { host, there };
    for case in cases() {
        case.measured(bench, &operands)?;
    }
    Ok(())
}

impl Case {
    fn measured(&self, bench: &Bench<'_>, operands: &Operands) -> Result<()> {
        let flags = self.flags();
        let counts = (0..EXTENT).map(|query| self.keys(&flags, query).len());
        let nnz: usize = counts.sum();
        let [heads, _, dim] = SHAPE;
        let [q, k, v] = &operands.there;
        let mut out = bench.poisoned(&SHAPE)?;
        let row = |variant: String, times: &Times| {
            Row::new(OP, self.name, [EXTENT, EXTENT, dim * heads], nnz, "bf16")
                .ours(variant)
                .timed(times)
                .flops(4.0 * (nnz * dim * heads) as f64)
                .dense()
        };
        let error = |out: &Tensor<bf16>| {
            let keys = |_, query| self.keys(&flags, query);
            worst_error(&operands.host, out, SAMPLE, keys)
        };
        let (mask, options) = (std::slice::from_ref(&self.mask), options(SHAPE, None));
        let (attention, prepare_ms) = timed(|| {
            let (context, extents) = (&bench.context, [EXTENT; 2]);
            Ok(SparseAttention::<bf16>::structured(context, extents, mask, &options)?)
        })?;
        let times =
            bench.measure(|| attention.forward([q, k, v], &mut out, None, &bench.stream))?;
        let worst = error(&out)?;
        let note = format!("mask in closed form; err {worst:.2} of the bound");
        let of_mask = row(attention.variant().into(), &times);
        let of_mask = of_mask.prepared(prepare_ms, attention.workspace_bytes());
        bench.add(of_mask.judged(worst <= 1.0, note))?;
        out = bench.poisoned(&SHAPE)?;
        let (own, times) = self.flagged(bench, operands, &mut out)?;
        let worst = error(&out)?;
        let note =
            format!("work list made on the GPU inside the time; err {worst:.2} of the bound");
        let of_flags = row(format!("{} from flags", own.variant()), &times);
        let of_flags = of_flags.prepared(None, own.workspace_bytes());
        bench.add(of_flags.judged(worst <= 1.0, note))
    }

    /// Measures the mask given as flags.
    fn flagged(
        &self,
        bench: &Bench<'_>,
        operands: &Operands,
        out: &mut Tensor<bf16>,
    ) -> Result<(DynamicAttention<bf16>, Times)> {
        let flags = self.flags();
        let upload = |set: &[bool]| {
            let values = set.iter().map(|&flag| i8::from(flag)).collect();
            bench.tensor(&[1, set.len()], values)
        };
        let columns = upload(&flags.columns)?;
        let rows = upload(&flags.rows)?;
        let diagonals = upload(&flags.diagonals)?;
        let mask = MaskTensors {
            columns: Some(&columns),
            rows: Some(&rows),
            diagonals: Some(&diagonals),
            ..MaskTensors::default()
        };
        let options = options(SHAPE, self.causal.then_some(0));
        let attention = DynamicAttention::new(&bench.context, [EXTENT; 2], 1, &options)?;
        let [q, k, v] = &operands.there;
        let times =
            bench.measure(|| attention.forward([q, k, v], &mask, out, None, &bench.stream))?;
        Ok((attention, times))
    }
}
