//! Attention of 16,384 queries with a window and global tokens (Longformer, arXiv 2004.05150), with vertical and slash
//! lines (MInference, arXiv 2407.02490), and over the whole causal triangle, which dense kernels compute. Masks are
//! given in closed form, and as flags. The time of flags includes the construction of the work list on the GPU.
//!
//! Columns as in `attention`. Recorded as operation `attention`. A sample of queries is checked in f64.

use super::key_blocks::INSIDE;
use super::{Shape, drawn, entries, options, row, sampled_error};
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

/// A mask in closed form, and as columns, rows and diagonals (keys minus queries).
struct Case {
    name: &'static str,
    mask: AttentionMask,
    columns: Vec<usize>,
    rows: Vec<usize>,
    diagonals: Vec<i64>,
    causal: bool,
}

fn cases() -> [Case; 3] {
    let half = WINDOW / 2;
    // 16 runs of 16 columns, which include the first keys; the distances 0 to 511, and 8 runs of 64 larger distances.
    let columns = (0..16).flat_map(|i| (0..16).map(move |j| i * 1008 + j));
    let far = (1..=8).flat_map(|i| (0..64).map(move |j| 512 + i * 1700 + j));
    let (columns, distances): (Vec<usize>, Vec<usize>) =
        (columns.collect(), (0..512).chain(far).collect());
    [
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

/// Flags of columns, rows and diagonals; 1 is attended.
type Flags = [Vec<i8>; 3];

impl Case {
    fn flags(&self) -> Flags {
        let flags = |len: usize, set: &mut dyn Iterator<Item = usize>| {
            let mut flags = vec![0i8; len];
            set.for_each(|at| flags[at] = 1);
            flags
        };
        let mut diagonals = self.diagonals.iter().map(|&d| (d + EXTENT as i64 - 1) as usize);
        [
            flags(EXTENT, &mut self.columns.iter().copied()),
            flags(EXTENT, &mut self.rows.iter().copied()),
            flags(2 * EXTENT - 1, &mut diagonals),
        ]
    }

    /// Keys of a query.
    fn keys(&self, [columns, rows, diagonals]: &Flags, query: usize) -> Vec<u32> {
        let end = if self.causal { query + 1 } else { EXTENT };
        let there = |&key: &u32| {
            let key = key as usize;
            rows[query] + columns[key] + diagonals[key + EXTENT - 1 - query] > 0
        };
        (0..end as u32).filter(there).collect()
    }
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let (context, extents) = (&bench.context, [EXTENT; 2]);
    let host = drawn::<bf16>(SHAPE);
    let [q, k, v] = &bench.uploads(host.each_ref())?;
    for case in cases() {
        let flags = case.flags();
        let nnz: usize = (0..EXTENT).map(|query| case.keys(&flags, query).len()).sum();
        let row = row::<bf16>(entries::OP, case.name, SHAPE, nnz, 2.0);
        let error = |out: &Tensor<bf16>| {
            sampled_error(&host, out, SAMPLE, |_, query| case.keys(&flags, query))
        };
        let (mask, whole) = (std::slice::from_ref(&case.mask), options(SHAPE, None));
        let make = || SparseAttention::<bf16>::structured(context, extents, mask, &whole);
        let (attention, prepare_ms) = timed(|| Ok(make()?))?;
        bench.checked(
            row.clone()
                .ours(attention.variant())
                .prepared(prepare_ms, attention.workspace_bytes())
                .note("mask in closed form"),
            &mut bench.poisoned(&SHAPE)?,
            |out| attention.forward([q, k, v], out, None, &bench.stream),
            error,
        )?;
        let [columns, rows, diagonals] =
            flags.each_ref().map(|set| bench.tensor(&[1, set.len()], set.clone()));
        let (columns, rows, diagonals) = (columns?, rows?, diagonals?);
        let mask = MaskTensors {
            columns: Some(&columns),
            rows: Some(&rows),
            diagonals: Some(&diagonals),
            ..MaskTensors::default()
        };
        let options = options(SHAPE, case.causal.then_some(0));
        let attention = DynamicAttention::new(context, extents, 1, &options)?;
        bench.checked(
            row.ours(format!("{} from flags", attention.variant()))
                .prepared(None, attention.workspace_bytes())
                .note(INSIDE),
            &mut bench.poisoned(&SHAPE)?,
            |out| attention.forward([q, k, v], &mask, out, None, &bench.stream),
            error,
        )?;
    }
    Ok(())
}
