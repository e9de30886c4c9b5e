//! Attention at blocks of keys that each group of 64 queries lists, as attention of videos selects them (the max scores
//! of a row of pooled scores). Cases: 109,632 queries and keys with 64 of 1,713 blocks per row, and 16,384 with 64 of
//! 256. The second case is also measured with flags. The lists are stored in device memory, and the time includes the
//! construction of the work list.
//!
//! Columns as in `attention`. A sample of queries is checked in f64.

use super::{Shape, drawn, options, row, sampled_error};
use crate::peers::torch;
use crate::prelude::*;
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
/// Note of rows whose time includes the work list.
pub const INSIDE: &str = "work list made on the GPU inside the time";

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &(name, shape, flagged) in CASES {
        let bench = &bench.anew()?;
        let host = drawn::<bf16>(shape);
        let [q, k, v] = &bench.uploads(host.each_ref())?;
        let ([heads, extent, dim], side) = (shape, shape[1] / 64);
        let lists: Vec<Vec<i32>> = (0..heads * side).map(|row| best(row, side)).collect();
        let row = row::<bf16>(OP, name, shape, extent * TOP * 64, 2.0);
        let measured = |attention: &DynamicAttention<bf16>, mask: &MaskTensors<'_>, row: Row| {
            bench.checked(
                Row { prepared_bytes: Some(attention.workspace_bytes()), ..row }.note(INSIDE),
                &mut bench.poisoned(&shape)?,
                |out| attention.forward([q, k, v], mask, out, None, &bench.stream),
                |out| {
                    let keys = |head: usize, query: usize| {
                        let mut blocks = lists[head * side + query / 64].clone();
                        blocks.sort_unstable();
                        let keys = |&block: &i32| (0..64).map(move |i| block as u32 * 64 + i);
                        blocks.iter().flat_map(keys).collect()
                    };
                    sampled_error(&host, out, SAMPLE, keys)
                },
            )
        };
        let (context, extents, options) = (&bench.context, [extent; 2], options(shape, None));
        let blocks = bench.tensor(&[heads, side, TOP], lists.concat())?;
        let mask = MaskTensors { key_blocks: Some(&blocks), ..MaskTensors::default() };
        let make = || DynamicAttention::of_key_blocks(context, extents, heads, TOP, &options);
        let (attention, ms) = timed(|| Ok(make()?))?;
        let variant = format!("{} from numbers of blocks", attention.variant());
        measured(&attention, &mask, row.clone().ours(variant).prepared(ms, None))?;
        if flagged {
            let mut flags = vec![0i8; heads * side * side];
            for (list, flags) in lists.iter().zip(flags.chunks_mut(side)) {
                list.iter().for_each(|&block| flags[block as usize] = 1);
            }
            let blocks = bench.tensor(&[heads, side, side], flags)?;
            let mask = MaskTensors { blocks: Some(&blocks), ..MaskTensors::default() };
            let make = || DynamicAttention::new(context, extents, heads, &options);
            let (attention, ms) = timed(|| Ok(make()?))?;
            let variant = format!("{} from flags of blocks", attention.variant());
            measured(&attention, &mask, row.clone().ours(variant).prepared(ms, None))?;
        }
        // The block lists of FlexAttention are made before.
        let asked =
            format!(r#"{{"heads": {heads}, "extent": {extent}, "dim": {dim}, "top": {TOP}}}"#);
        let row = row.note("compiled; its lists of blocks are made outside of the time");
        for (name, times) in torch::measure("blocks", &asked) {
            bench.add(row.clone().by("torch", name).timed(&times))?;
        }
    }
    Ok(())
}

/// Blocks with the max scores of a row.
fn best(row: usize, side: usize) -> Vec<i32> {
    let scores = values::<f32>(side, 100 + row, 1.0);
    let mut all: Vec<i32> = (0..side as i32).collect();
    all.sort_unstable_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    all.truncate(TOP);
    all
}
