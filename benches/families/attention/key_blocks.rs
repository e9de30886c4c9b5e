//! Attention at blocks of keys that each group of 64 queries lists, as attention of videos selects them (the max scores
//! of a row of pooled scores). Cases: 109,632 queries and keys with 64 of 1,713 blocks per row, and 16,384 with 64 of
//! 256. The second case is also measured with flags. The lists are stored in device memory, and the time includes the
//! construction of the work list.
//!
//! Columns as in `attention`. A sample of queries is checked in f64.

use super::{Shape, drawn, options, uploaded, worst_error};
use crate::peers::torch;
use crate::prelude::*;
use einsparse::formats::generate;
use einsparse::ops::{DynamicAttention, MaskTensors};

pub const OP: &str = "attention_blocks";
/// Name; heads, extent, elements of a query; whether flags are measured too.
const CASES: &[(&str, Shape, bool)] = &[
    ("video-109632-h7-top64", [7, 109_632, 128], false),
    ("video-16384-h8-top64", [8, 16_384, 128], true),
];
/// Blocks that each group of 64 queries lists.
const TOP: usize = 64;
/// Number of checked queries of each head.
const SAMPLE: usize = 24;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &(name, shape, flagged) in CASES {
        let bench = bench.anew()?;
        let case = Case::new(&bench, name, shape)?;
        case.named(&bench)?;
        if flagged {
            case.flagged(&bench)?;
        }
        case.in_torch(&bench)?;
    }
    Ok(())
}

struct Case {
    name: &'static str,
    shape: Shape,
    host: [Dense<bf16>; 3],
    there: [Tensor<bf16>; 3],
    /// Blocks of each head and group of 64 queries.
    blocks: Vec<i32>,
}

impl Case {
    fn new(bench: &Bench<'_>, name: &'static str, shape: Shape) -> Result<Self> {
        let [heads, extent, _] = shape;
        let side = extent / 64;
        let mut blocks = Vec::new();
        for row in 0..heads * side {
            let scores = generate::random_values::<f32>(side, SEED + 100 + row as u64);
            let mut all: Vec<i32> = (0..side as i32).collect();
            all.sort_unstable_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
            blocks.extend(&all[..TOP]);
        }
        let host = drawn(shape)?;
        Ok(Case { name, shape, there: uploaded(bench, &host)?, host, blocks })
    }

    fn of_row(&self, head: usize, row: usize) -> &[i32] {
        &self.blocks[(head * self.shape[1] / 64 + row) * TOP..][..TOP]
    }

    fn row(&self, times: &Times) -> Row {
        let [heads, extent, dim] = self.shape;
        let nnz = extent * TOP * 64;
        Row::new(OP, self.name, [extent, extent, dim * heads], nnz, "bf16")
            .timed(times)
            .flops(4.0 * (nnz * dim * heads) as f64)
            .dense()
    }

    fn named(&self, bench: &Bench<'_>) -> Result<()> {
        let [heads, extent, _] = self.shape;
        let blocks = bench.tensor(&[heads, extent / 64, TOP], self.blocks.clone())?;
        let mask = MaskTensors { key_blocks: Some(&blocks), ..MaskTensors::default() };
        let options = options(self.shape, None);
        let (attention, prepare_ms) = timed(|| {
            Ok(DynamicAttention::of_key_blocks(&bench.context, [extent; 2], heads, TOP, &options)?)
        })?;
        self.measured(bench, &attention, &mask, ("from numbers of blocks", prepare_ms))
    }

    fn flagged(&self, bench: &Bench<'_>) -> Result<()> {
        let [heads, extent, _] = self.shape;
        let side = extent / 64;
        let mut flags = vec![0i8; heads * side * side];
        for (i, &block) in self.blocks.iter().enumerate() {
            flags[i / TOP * side + block as usize] = 1;
        }
        let blocks = bench.tensor(&[heads, side, side], flags)?;
        let mask = MaskTensors { blocks: Some(&blocks), ..MaskTensors::default() };
        let options = options(self.shape, None);
        let (attention, prepare_ms) = timed(|| {
            let (context, extents) = (&bench.context, [extent; 2]);
            Ok(DynamicAttention::new(context, extents, heads, &options)?)
        })?;
        self.measured(bench, &attention, &mask, ("from flags of blocks", prepare_ms))
    }

    fn measured(
        &self,
        bench: &Bench<'_>,
        attention: &DynamicAttention<bf16>,
        mask: &MaskTensors<'_>,
        (what, prepare_ms): (&str, f64),
    ) -> Result<()> {
        let [q, k, v] = &self.there;
        let mut out = bench.poisoned(&self.shape)?;
        let times =
            bench.measure(|| attention.forward([q, k, v], mask, &mut out, None, &bench.stream))?;
        let keys = |head: usize, query: usize| {
            let mut blocks = self.of_row(head, query / 64).to_vec();
            blocks.sort_unstable();
            let keys = |&block: &i32| (0..64).map(move |i| block as u32 * 64 + i);
            blocks.iter().flat_map(keys).collect()
        };
        let worst = worst_error(&self.host, &out, SAMPLE, keys)?;
        let note =
            format!("work list made on the GPU inside the time; err {worst:.2} of the bound");
        let row = self.row(&times).ours(format!("{} {what}", attention.variant()));
        let row = row.prepared(prepare_ms, attention.workspace_bytes());
        bench.add(row.judged(worst <= 1.0, note))
    }

    /// Times FlexAttention, whose block lists are made before.
    fn in_torch(&self, bench: &Bench<'_>) -> Result<()> {
        let [heads, extent, dim] = self.shape;
        let asked =
            format!(r#"{{"heads": {heads}, "extent": {extent}, "dim": {dim}, "top": {TOP}}}"#);
        torch::measure("blocks", &asked).into_iter().try_for_each(|(name, times)| {
            let row = self.row(&times).by("torch", name);
            bench.add(row.note("compiled; its lists of blocks are made outside of the time"))
        })
    }
}
