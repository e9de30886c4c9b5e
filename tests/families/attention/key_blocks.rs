//! Attention at dynamic blocks of keys, listed per 64 queries: the GPU against the CPU, the CPU against flags.

use super::masks::{assert_near, plain, units};
use crate::support::assert_error;
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::{Rng, gpu_alone, on_gpu, small};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{AttentionOptions, DynamicAttention, MaskTensors};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Tensor};

/// Extents, number of masks, and the maximum number of blocks that 64 queries list.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    n: usize,
    masks: usize,
    most: usize,
}

impl Shape {
    /// Random blocks: some are listed twice, some are invalid, some rows list none. Adjacent rows share half of theirs.
    fn blocks(self, seed: u64) -> Dense<i32> {
        let mut rng = Rng(seed);
        let (down, across) = (self.m.div_ceil(64), self.n.div_ceil(64));
        let mut values = Vec::new();
        for row in 0..self.masks * down {
            let mut pair = Rng(seed + 1000 + row as u64 / 2);
            for i in 0..self.most {
                let word = if i % 2 == 0 { pair.word() } else { rng.word() };
                let block = match word % 16 {
                    0 => -1,
                    1 => across as i32,
                    2 => i32::MIN,
                    _ => (word / 16 % across.max(1) as u64) as i32,
                };
                values.push(if row % 7 == 3 { -1 } else { block });
            }
        }
        Dense::new([self.masks, down, self.most], values).unwrap()
    }

    fn lengths(self) -> Dense<i32> {
        let lengths = (0..self.masks).map(|i| (i * 177) as i32 % (self.n as i32 + 90) - 20);
        Dense::new([self.masks], lengths.collect()).unwrap()
    }

    /// Converts the listed blocks to flags.
    fn flags(self, blocks: &Dense<i32>) -> Dense<i8> {
        let (down, across) = (self.m.div_ceil(64), self.n.div_ceil(64));
        let mut flags = vec![0; self.masks * down * across];
        for (i, &block) in blocks.values().iter().enumerate() {
            if (0..across as i32).contains(&block) {
                flags[i / self.most * across + block as usize] = 1;
            }
        }
        Dense::new([self.masks, down, across], flags).unwrap()
    }
}

struct Case<T> {
    shape: Shape,
    options: AttentionOptions,
    operands: [Dense<T>; 3],
    blocks: Dense<i32>,
    lengths: Option<Dense<i32>>,
}

impl<T: Scalar> Case<T> {
    fn new(shape: Shape, options: AttentionOptions, seed: u64, limited: bool) -> Self {
        let (heads, d) = (options.heads, options.dim);
        let keys = [options.key_heads.unwrap_or(heads), shape.n, d];
        Case {
            operands: [units([heads, shape.m, d], 1), units(keys, 2), units(keys, 3)],
            blocks: shape.blocks(seed),
            lengths: limited.then(|| shape.lengths()),
            shape,
            options,
        }
    }

    fn run(&self, context: &Context, named: bool) -> Tensor<T> {
        let Shape { m, n, masks, most } = self.shape;
        let attention = if named {
            DynamicAttention::of_key_blocks(context, [m, n], masks, most, &self.options)
        } else {
            DynamicAttention::new(context, [m, n], masks, &self.options)
        };
        let attention = attention.unwrap();
        let [blocks] = upload(context, [&self.blocks]);
        let [flags] = upload(context, [&self.shape.flags(&self.blocks)]);
        let lengths = self.lengths.as_ref();
        let lengths = lengths.map(|lengths| context.upload_dense(lengths).unwrap());
        let mask = MaskTensors {
            key_blocks: named.then_some(&blocks),
            blocks: (!named).then_some(&flags),
            lengths: lengths.as_ref(),
            ..MaskTensors::default()
        };
        let [q, k, v] = upload(context, self.operands.each_ref());
        let mut out = poisoned(context, &[self.options.heads, m, self.options.dim]);
        let stream = context.stream().unwrap();
        // Runs twice: the second run must not depend on what the first one left.
        for _ in 0..2 {
            let run = attention.forward([&q, &k, &v], &mask, &mut out, None, &stream);
            run.unwrap();
        }
        stream.synchronize().unwrap();
        out
    }
}

/// Shapes with partial tiles, one mask for all heads and several, with and without lengths.
fn cases<T: Scalar>() -> Vec<(String, Case<T>)> {
    let all =
        [(1, 1, 1, 1), (64, 65, 2, 3), (129, 200, 3, 2), (300, 1129, 1, 9), (513, 2700, 2, 24)];
    let all = if small() { &all[2..4] } else { &all[..] };
    let mut cases = Vec::new();
    for (i, &(m, n, masks, most)) in all.iter().enumerate() {
        for kind in 0..8 {
            let options = AttentionOptions {
                causal: [None, Some(0), Some(70), Some(-70)][(kind + i) % 4],
                key_heads: Some(masks),
                ..plain(2 * masks, if kind % 2 == 0 { 64 } else { 128 })
            };
            let shape = Shape { m, n, masks, most };
            let what = format!("{shape:?}, kind {kind}");
            let seed = (10 * i + kind) as u64;
            cases.push((what, Case::new(shape, options, seed, kind >= 4)));
        }
    }
    cases
}

fn on<T: Scalar>(gpu: &Context) {
    for (what, case) in cases::<T>() {
        let (found, wanted) = (case.run(gpu, true), case.run(&Context::unchecked_cpu(), true));
        assert_near(&found, &wanted, &what);
    }
}

#[test]
fn blocks_that_queries_name_on_the_gpu() {
    on_gpu(&[on::<f16>, on::<bf16>]);
}

/// Listed blocks give the same result as flags of these blocks.
#[test]
fn blocks_that_queries_name_are_those_of_flags_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    for (what, case) in cases::<f32>() {
        let [named, flagged] = [true, false].map(|named| case.run(&cpu, named));
        assert_eq!(
            named.to_dense().unwrap().values(),
            flagged.to_dense().unwrap().values(),
            "{what}"
        );
    }
}

/// A captured graph reads other blocks at every launch, and returns equal bits for equal blocks.
#[test]
fn blocks_that_queries_name_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let shape = Shape { m: 700, n: 900, masks: 3, most: 5 };
    let mut case = Case::<bf16>::new(shape, plain(3, 128), 1, false);
    let options = &case.options;
    let attention =
        DynamicAttention::of_key_blocks(&gpu, [shape.m, shape.n], 3, 5, options).unwrap();
    let operands = case.operands.each_ref();
    let [q, k, v] = upload(&gpu, operands);
    let mut blocks = gpu.upload_dense(&case.blocks).unwrap();
    let mut out = poisoned(&gpu, &[3, shape.m, 128]);
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || {
        let mask = MaskTensors { key_blocks: Some(&blocks), ..MaskTensors::default() };
        attention.forward([&q, &k, &v], &mask, &mut out, None, &stream)
    });
    let mut first = None;
    for seed in [2, 3, 2] {
        case.blocks = shape.blocks(seed);
        blocks.write(&case.blocks).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        assert_near(&out, &case.run(&Context::unchecked_cpu(), true), "in a graph");
        if seed == 2 {
            let bits = out.to_dense().unwrap().values().to_vec();
            assert!(first.is_none_or(|earlier: Vec<bf16>| earlier == bits));
            first = Some(bits);
        }
    }
}

#[test]
fn blocks_that_queries_name_and_flags_exclude_each_other() {
    let cpu = Context::unchecked_cpu();
    let [q, k, v] = [1, 2, 3].map(|i| cpu.upload_dense(&units([1, 8, 2], i)).unwrap());
    let [columns, rows] = [0, 1].map(|_| cpu.zeros::<i8>(&[1, 8]).unwrap());
    let [right, wrong] = [2, 3].map(|most| cpu.zeros::<i32>(&[1, 1, most]).unwrap());
    let stream = cpu.stream().unwrap();
    let mut out = cpu.zeros::<f32>(&[1, 8, 2]).unwrap();
    let mut refused = |attention: &DynamicAttention<f32>, mask: MaskTensors<'_>| {
        let run = attention.forward([&q, &k, &v], &mask, &mut out, None, &stream);
        run.unwrap_err()
    };
    let named = DynamicAttention::of_key_blocks(&cpu, [8, 8], 1, 2, &plain(1, 2)).unwrap();
    let flagged = DynamicAttention::new(&cpu, [8, 8], 1, &plain(1, 2)).unwrap();
    let of = |key_blocks| MaskTensors { key_blocks, ..MaskTensors::default() };
    let both = MaskTensors { columns: Some(&columns), rows: Some(&rows), ..of(Some(&right)) };
    assert_error!(refused(&named, both), Error::Operand { name, .. } if name == "columns");
    assert_error!(
        refused(&named, of(None)),
        Error::MissingOperand { name, .. } if name == "key_blocks"
    );
    let error = refused(&flagged, of(Some(&right)));
    assert_error!(error, Error::NotPlanned { name, .. } if name == "key_blocks");
    assert_error!(refused(&named, of(Some(&wrong))), Error::Shape { .. });
}
