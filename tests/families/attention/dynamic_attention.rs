//! Attention with masks that are data, flags or blocks of keys that each 64 queries list: the GPU against the CPU, and
//! listed blocks against flags.

use crate::support::assert_error;
use crate::support::bounds;
use crate::support::dense::{poisoned, upload, wide};
use crate::support::replay::Replay;
use crate::support::{Rng, gpu, gpu_alone, on_both, on_gpu, small};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{
    AttentionMask, AttentionOptions, DynamicAttention, MaskTensors, SparseAttention,
};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Tensor};

pub fn plain(heads: usize, dim: usize) -> AttentionOptions {
    AttentionOptions { heads, dim, ..AttentionOptions::default() }
}

pub fn units<T: Scalar>(shape: [usize; 3], seed: u64) -> Dense<T> {
    let values = Rng(seed).units(shape.iter().product());
    Dense::new(shape.to_vec(), values).unwrap()
}

/// Flags of some masks in host memory; each kind is optional.
#[derive(Clone, Default)]
struct Flags {
    blocks: Option<Vec<i8>>,
    columns: Option<Vec<i8>>,
    rows: Option<Vec<i8>>,
    diagonals: Option<Vec<i8>>,
    lengths: Option<Vec<i32>>,
    /// Blocks of keys that each 64 queries list: `[masks, queries / 64, most]`.
    key_blocks: Option<Dense<i32>>,
}

/// Flags and lengths in a context.
struct There {
    flags: [Option<Tensor<i8>>; 4],
    key_blocks: Option<Tensor<i32>>,
    lengths: Option<Tensor<i32>>,
}

impl There {
    fn mask(&self) -> MaskTensors<'_> {
        let [blocks, columns, rows, diagonals] = self.flags.each_ref().map(Option::as_ref);
        MaskTensors {
            blocks,
            columns,
            rows,
            diagonals,
            lengths: self.lengths.as_ref(),
            key_blocks: self.key_blocks.as_ref(),
        }
    }
}

/// Numbers of queries, keys and masks.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    n: usize,
    masks: usize,
}

impl Shape {
    fn of(self, which: usize, count: usize) -> Vec<usize> {
        // With fewer flags than masks, one set of flags serves all masks.
        let one = |each: usize| count / each.max(1);
        match which {
            0 => {
                let [down, across] = [self.m.div_ceil(64), self.n.div_ceil(64)];
                vec![one(down * across), down, across]
            }
            1 => vec![one(self.n), self.n],
            2 => vec![one(self.m), self.m],
            _ => vec![one(self.m + self.n - 1), self.m + self.n - 1],
        }
    }

    fn upload(self, context: &Context, flags: &Flags) -> There {
        let all = [&flags.blocks, &flags.columns, &flags.rows, &flags.diagonals];
        let upload = |which: usize| {
            all[which].as_ref().map(|values| {
                let shape = self.of(which, values.len());
                let dense = Dense::new(shape, values.clone()).unwrap();
                context.upload_dense(&dense).unwrap()
            })
        };
        There {
            flags: [0, 1, 2, 3].map(upload),
            key_blocks: flags.key_blocks.as_ref().map(|b| context.upload_dense(b).unwrap()),
            lengths: flags.lengths.as_ref().map(|lengths| {
                let dense = Dense::new([self.masks], lengths.clone()).unwrap();
                context.upload_dense(&dense).unwrap()
            }),
        }
    }

    /// Returns random flags of the kinds whose bits are set; about one in `every` is set.
    fn random(self, kinds: usize, every: u64, seed: u64) -> Flags {
        let mut rng = Rng(seed);
        let mut some = |kind: usize, each: usize, one: bool| {
            let masks = if one { 1 } else { self.masks };
            let flag = |rng: &mut Rng| i8::from(rng.word().is_multiple_of(every)) * -3;
            let values: Vec<i8> = (0..masks * each).map(|_| flag(&mut rng)).collect();
            (kinds >> kind & 1 != 0).then_some(values)
        };
        let blocks = some(0, self.m.div_ceil(64) * self.n.div_ceil(64), false);
        let (columns, rows) = (some(1, self.n, false), some(2, self.m, true));
        let diagonals = some(3, self.m + self.n - 1, seed.is_multiple_of(2));
        let lengths = (0..self.masks).map(|i| (i * 77) as i32 % (self.n as i32 + 40) - 20);
        Flags {
            blocks,
            columns,
            rows,
            diagonals,
            lengths: (kinds >> 4 & 1 != 0).then(|| lengths.collect()),
            key_blocks: None,
        }
    }

    /// Lists `most` random blocks: some are listed twice, some are invalid, some rows list none. Adjacent rows share half
    /// of theirs.
    fn key_blocks(self, most: usize, seed: u64) -> Dense<i32> {
        let mut rng = Rng(seed);
        let (down, across) = (self.m.div_ceil(64), self.n.div_ceil(64));
        let mut values = Vec::new();
        for row in 0..self.masks * down {
            let mut pair = Rng(seed + 1000 + row as u64 / 2);
            for i in 0..most {
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
        Dense::new([self.masks, down, most], values).unwrap()
    }

    /// Converts listed blocks to flags.
    fn flags_of(self, blocks: &Dense<i32>) -> Vec<i8> {
        let (most, across) = (blocks.shape()[2], self.n.div_ceil(64));
        let mut flags = vec![0; self.masks * self.m.div_ceil(64) * across];
        for (i, &block) in blocks.values().iter().enumerate() {
            if (0..across as i32).contains(&block) {
                flags[i / most * across + block as usize] = 1;
            }
        }
        flags
    }
}

/// Weights and output are rounded to the element type; values are below 1.
pub fn assert_near<T: Scalar>(found: &Tensor<T>, wanted: &Tensor<T>, what: &str) {
    let roundoff = 0.5f64.powi(if T::NAME == "f16" { 11 } else { 8 });
    bounds::assert_near(&what, &wide(found), &wide(wanted), 3.0 * roundoff + 1e-5);
}

/// Options and operands for runs on the GPU and on the CPU.
struct Pair<T> {
    shape: Shape,
    options: AttentionOptions,
    host: [Dense<T>; 3],
}

impl<T: Scalar> Pair<T> {
    fn new(shape: Shape, options: AttentionOptions) -> Self {
        let (heads, d) = (options.heads, options.dim);
        let key_heads = options.key_heads.unwrap_or(heads);
        let keys = [key_heads, shape.n, d];
        Pair {
            host: [units([heads, shape.m, d], 1), units(keys, 2), units(keys, 3)],
            shape,
            options,
        }
    }

    fn run(&self, context: &Context, flags: &Flags) -> (Tensor<T>, Tensor<f32>) {
        let Shape { m, n, masks } = self.shape;
        let attention = match &flags.key_blocks {
            Some(b) => {
                let most = b.shape()[2];
                DynamicAttention::of_key_blocks(context, [m, n], masks, most, &self.options)
            }
            None => DynamicAttention::<T>::new(context, [m, n], masks, &self.options),
        };
        let attention = attention.unwrap();
        let there = self.shape.upload(context, flags);
        let [q, k, v] = upload(context, self.host.each_ref());
        let mut out = poisoned(context, &[self.options.heads, m, self.options.dim]);
        let mut logs = context.zeros(&[self.options.heads, m]).unwrap();
        let stream = context.stream().unwrap();
        // Runs twice: the second run must not depend on what the first one left.
        for _ in 0..2 {
            let operands = [&q, &k, &v];
            let mask = there.mask();
            let run = attention.forward(operands, &mask, &mut out, Some(&mut logs), &stream);
            run.unwrap();
        }
        stream.synchronize().unwrap();
        (out, logs)
    }

    fn check(&self, gpu: &Context, flags: &Flags, what: &str) {
        let (found, logs) = self.run(gpu, flags);
        let (wanted, wanted_logs) = self.run(&Context::unchecked_cpu(), flags);
        assert_near(&found, &wanted, what);
        bounds::assert_near(&what, &wide(&logs), &wide(&wanted_logs), 1e-3);
    }
}

fn shapes<T: Scalar>(gpu: &Context) {
    let all = [(1, 1, 1), (64, 65, 2), (129, 200, 3), (300, 129, 1), (257, 700, 2)];
    let all = if small() { &all[2..4] } else { &all[..] };
    for (i, &(m, n, masks)) in all.iter().enumerate() {
        for kinds in 0..32 {
            let options = AttentionOptions {
                causal: [None, Some(0), Some(70), Some(-70)][(kinds + i) % 4],
                key_heads: Some(masks),
                ..plain(2 * masks, if kinds % 2 == 0 { 64 } else { 128 })
            };
            let shape = Shape { m, n, masks };
            let every = [1, 3, 40][(kinds / 2 + i) % 3];
            let flags = shape.random(kinds, every, (kinds + 100 * i) as u64);
            let what = format!("{m} x {n}, kinds {kinds:05b}, one of {every}");
            Pair::<T>::new(shape, options).check(gpu, &flags, &what);
        }
    }
}

/// Every combination of kinds of flags: sparse, full, none, with lengths and without.
#[test]
fn masks_of_flags_on_the_gpu() {
    on_gpu(&[shapes::<f16>, shapes::<bf16>]);
}

/// Few queries see all keys, so many thread blocks share each tile of queries.
#[test]
fn masks_of_flags_cut_along_the_keys() {
    let Some(gpu) = gpu() else { return };
    let n = if small() { 2000 } else { 20_000 };
    for (m, heads) in [(128, 1), (640, 2), (3000, 3)] {
        let shape = Shape { m, n, masks: 1 };
        let mut flags = shape.random(2, 997, 5);
        let mut rows = vec![0; m];
        rows[3] = 1;
        rows[m - 1] = 1;
        flags.rows = Some(rows);
        let what = format!("{m} x {n}, {heads} heads");
        Pair::<bf16>::new(shape, plain(heads, 128)).check(&gpu, &flags, &what);
    }
}

/// A captured graph reads another mask at every launch.
#[test]
fn masks_of_flags_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let shape = Shape { m: 400, n: 500, masks: 2 };
    let options = plain(4, 64);
    let pair = Pair::<f16>::new(shape, options.clone());
    let attention = DynamicAttention::<f16>::new(&gpu, [400, 500], 2, &options).unwrap();
    let mut there = shape.upload(&gpu, &filled(shape, 0));
    let [q, k, v] = upload(&gpu, pair.host.each_ref());
    let mut out = poisoned(&gpu, &[4, 400, 64]);
    let stream = gpu.stream().unwrap();
    let run = || attention.forward([&q, &k, &v], &there.mask(), &mut out, None, &stream);
    let mut graph = Replay::of(&stream, run);
    let mut one = filled(shape, 0);
    one.columns.as_mut().unwrap()[77] = 1;
    let mut window = filled(shape, 0);
    for i in 380..=430 {
        window.diagonals.as_mut().unwrap()[i] = 1;
    }
    window.columns.as_mut().unwrap()[..64].fill(1);
    window.rows.as_mut().unwrap()[..64].fill(1);
    let random = shape.random(31, 5, 3);
    for flags in [filled(shape, 1), filled(shape, 0), one, window, random] {
        let there_now = [&flags.blocks, &flags.columns, &flags.rows, &flags.diagonals];
        for (which, (to, values)) in there.flags.iter_mut().zip(there_now).enumerate() {
            let to = to.as_mut().unwrap();
            let (shape, mut values) = (to.shape().to_vec(), values.clone().unwrap());
            // Flags that serve all masks are repeated for each mask.
            while values.len() < shape.iter().product() {
                values.extend_from_within(..);
            }
            assert!(values.len() == shape.iter().product::<usize>(), "{which}");
            to.write(&Dense::new(shape, values).unwrap()).unwrap();
        }
        let lengths = Dense::new([2], flags.lengths.clone().unwrap()).unwrap();
        there.lengths.as_mut().unwrap().write(&lengths).unwrap();
        out.write(&poisoned::<f16>(&Context::unchecked_cpu(), &[4, 400, 64]).to_dense().unwrap())
            .unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let (wanted, _) = pair.run(&Context::unchecked_cpu(), &flags);
        assert_near(&out, &wanted, "in a graph");
    }
}

/// Returns flags that all have one value.
fn filled(shape: Shape, value: i8) -> Flags {
    let Shape { m, n, masks } = shape;
    let all = |each: usize| Some(vec![value; masks * each]);
    Flags {
        blocks: all(m.div_ceil(64) * n.div_ceil(64)),
        columns: all(n),
        rows: all(m),
        diagonals: all(m + n - 1),
        lengths: Some(vec![n as i32; masks]),
        key_blocks: None,
    }
}

/// Lists of blocks over partial tiles, with one mask for all heads and several, with and without lengths.
fn lists<T: Scalar>() -> Vec<(String, Pair<T>, Flags)> {
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
            let shape = Shape { m, n, masks };
            let lengths = (0..masks).map(|i| (i * 177) as i32 % (n as i32 + 90) - 20);
            let flags = Flags {
                key_blocks: Some(shape.key_blocks(most, (10 * i + kind) as u64)),
                lengths: (kind >= 4).then(|| lengths.collect()),
                ..Flags::default()
            };
            let what = format!("{shape:?}, {most} blocks, kind {kind}");
            cases.push((what, Pair::new(shape, options), flags));
        }
    }
    cases
}

fn lists_on<T: Scalar>(gpu: &Context) {
    lists::<T>().iter().for_each(|(what, pair, flags)| pair.check(gpu, flags, what));
}

/// Listed blocks give the same result as flags of these blocks.
fn lists_are_flags(cpu: &Context) {
    for (what, pair, listed) in lists::<f32>() {
        let blocks = pair.shape.flags_of(listed.key_blocks.as_ref().unwrap());
        let flags = Flags { blocks: Some(blocks), key_blocks: None, ..listed.clone() };
        let [listed, flagged] = [listed, flags].map(|flags| wide(&pair.run(cpu, &flags).0));
        assert_eq!(listed, flagged, "{what}");
    }
}

on_both! {
    blocks_that_queries_list: cpu [lists_are_flags], gpu [lists_on::<f16>, lists_on::<bf16>];
}

/// A captured graph reads other blocks at every launch, and returns equal bits for equal blocks.
#[test]
fn blocks_that_queries_list_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let shape = Shape { m: 700, n: 900, masks: 3 };
    let pair = Pair::<bf16>::new(shape, plain(3, 128));
    let attention =
        DynamicAttention::of_key_blocks(&gpu, [shape.m, shape.n], 3, 5, &pair.options).unwrap();
    let [q, k, v] = upload(&gpu, pair.host.each_ref());
    let mut blocks = gpu.upload_dense(&shape.key_blocks(5, 1)).unwrap();
    let mut out = poisoned(&gpu, &[3, shape.m, 128]);
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || {
        let mask = MaskTensors { key_blocks: Some(&blocks), ..MaskTensors::default() };
        attention.forward([&q, &k, &v], &mask, &mut out, None, &stream)
    });
    let mut first = None;
    for seed in [2, 3, 2] {
        let listed = shape.key_blocks(5, seed);
        blocks.write(&listed).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let flags = Flags { key_blocks: Some(listed), ..Flags::default() };
        assert_near(&out, &pair.run(&Context::unchecked_cpu(), &flags).0, "in a graph");
        if seed == 2 {
            let bits = out.to_dense().unwrap().values().to_vec();
            assert!(first.is_none_or(|earlier: Vec<bf16>| earlier == bits));
            first = Some(bits);
        }
    }
}

#[test]
fn masks_that_are_refused() {
    let cpu = Context::unchecked_cpu();
    let globals = AttentionMask::WindowGlobal { before: 1, after: 1, globals: vec![8] };
    let error = SparseAttention::<f16>::structured(&cpu, [8, 8], &[globals], &plain(1, 64));
    assert_error!(error.unwrap_err(), Error::InvalidIndex { value: 8, bound: 8, .. });
    let blocks = AttentionMask::Blocks(vec![[0, 1]]);
    let error = SparseAttention::<f16>::structured(&cpu, [8, 8], &[blocks], &plain(1, 64));
    assert_error!(
        error.unwrap_err(),
        Error::InvalidIndex { array, value: 1, .. } if array == "columns of blocks"
    );
    let error = DynamicAttention::<f16>::new(&cpu, [8, 8], 2, &plain(3, 64)).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, value, .. } if name == "masks" && value == "2");
    let options = AttentionOptions { lengths: Some(vec![1]), ..plain(1, 64) };
    assert!(DynamicAttention::<f16>::new(&cpu, [8, 8], 1, &options).is_err());
    let attention = DynamicAttention::<f32>::new(&cpu, [8, 8], 1, &plain(1, 2)).unwrap();
    let [q, k, v] = [1, 2, 3].map(|i| cpu.upload_dense(&units([1, 8, 2], i)).unwrap());
    let columns = cpu.zeros::<i8>(&[1, 7]).unwrap();
    let mask = MaskTensors { columns: Some(&columns), ..MaskTensors::default() };
    let mut out = cpu.zeros(&[1, 8, 2]).unwrap();
    let stream = cpu.stream().unwrap();
    let error = attention.forward([&q, &k, &v], &mask, &mut out, None, &stream).unwrap_err();
    assert_error!(error, Error::Shape { .. });
}

#[test]
fn listed_blocks_and_flags_exclude_each_other() {
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
