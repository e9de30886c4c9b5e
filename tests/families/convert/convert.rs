//! Block formats made on the GPU against those of a CPU context: equal patterns and equal bits.

mod again;

use super::{SHAPES, assert_same, bits, integers, uneven, with_gap, words};
use crate::support::runs::plan_and_run;
use crate::support::{Rng, gpu, gpu_alone, on_gpu, small};
use einsparse::formats::convert::BlockChoice;
use einsparse::formats::{CsrPattern, Dense, Format, bf16, f16};
use einsparse::raw::RawConversion;
use einsparse::registry::Scalar;
use einsparse::{Context, Converter, Graph, Options, Stream, Tensor};

const BLOCKS: [(usize, usize); 13] = [
    (16, 16),
    (32, 32),
    (64, 64),
    (128, 128),
    (16, 32),
    (64, 32),
    (32, 64),
    (24, 48),
    (32, 1),
    (1, 64),
    (3, 5),
    (100, 300),
    (16, 1024),
];

fn formats(block: (usize, usize)) -> [Format; 4] {
    let group = |group| Format::BlockGroupCoo { block, group };
    [Format::Bsr { block }, Format::BlockCoo { block }, group(None), group(Some(4))]
}

/// Values of many magnitudes, with zeros in the majority of 8 x 8 patches; a few are NaN, infinities and -0.
fn patches<T: Scalar>(m: usize, k: usize, seed: u64) -> Dense<T> {
    let mut rng = Rng(seed);
    let across = k.div_ceil(8);
    let zero: Vec<bool> =
        (0..m.div_ceil(8) * across).map(|_| !rng.word().is_multiple_of(3)).collect();
    let salt = rng.word();
    Dense::from_fn([m, k], |i| {
        let word = Rng(salt ^ ((i[0] as u64) << 32 | i[1] as u64)).word();
        let value = (word as i32) as f64 / (1u64 << (20 + word % 16)) as f64;
        T::from_f64(match word % 20_011 {
            7 => f64::NAN,
            8 => f64::NEG_INFINITY,
            _ if zero[i[0] / 8 * across + i[1] / 8] => [0.0, -0.0][word as usize % 2],
            _ => value,
        })
    })
    .unwrap()
}

fn choices(area: usize, seed: u64) -> [BlockChoice; 5] {
    let area = area as f64;
    [
        BlockChoice::NonZero,
        BlockChoice::Norm(0.0),
        BlockChoice::Norm(area.sqrt() * 300.0),
        BlockChoice::Top(1 + seed as usize % 40),
        BlockChoice::TopPerRow(1 + seed as usize % 3),
    ]
}

fn dense<T: Scalar>(gpu: &Context) {
    let cpu = Context::unchecked_cpu();
    let mut seed = 1;
    for (m, k) in SHAPES {
        let host = patches::<T>(m, k, 5);
        // Contiguous rows, aligned rows with a gap, and unaligned rows.
        let places =
            [0, 8 - k % 8, 1].map(|gap| (with_gap(gpu, &host, gap), with_gap(&cpu, &host, gap)));
        for block in BLOCKS {
            for choice in choices(block.0 * block.1, seed) {
                seed += 1;
                let (on_gpu, on_cpu) = &places[seed as usize % 3];
                let format = formats(block)[seed as usize % 4];
                let made = |ctx: &Context, from: &Tensor<T>| {
                    ctx.blocks_from_dense(from, format, choice).unwrap()
                };
                let what = (T::DTYPE, m, k, format, choice, on_gpu.leading());
                assert_same(&made(gpu, on_gpu), &made(&cpu, on_cpu), &what);
            }
            if small() {
                break;
            }
        }
    }
}

#[test]
fn dense_matrices_become_the_same_blocks() {
    on_gpu(&[dense::<f32>, dense::<f16>, dense::<bf16>, dense::<f64>]);
}

/// More candidates than one thread block reads, and many equal norms.
#[test]
fn ties_are_broken_by_position() {
    let Some(gpu) = gpu() else { return };
    let host = Dense::from_fn([1024, 2048], |i| ((i[0] / 16 + i[1] / 16) % 5) as f32).unwrap();
    let cpu = Context::unchecked_cpu();
    let on_gpu = gpu.upload_dense(&host).unwrap();
    let on_cpu = cpu.upload_dense(&host).unwrap();
    let format = Format::Bsr { block: (16, 16) };
    for count in [1, 2, 100, 1638, 1639, 5000, 6553, 6554, 8192, usize::MAX] {
        for choice in [BlockChoice::Top(count), BlockChoice::TopPerRow(count / 60)] {
            let found = gpu.blocks_from_dense(&on_gpu, format, choice).unwrap();
            let wanted = cpu.blocks_from_dense(&on_cpu, format, choice).unwrap();
            assert_same(&found, &wanted, &choice);
        }
    }
}

/// Patterns with rows of all lengths, full blocks, one long row, and empty rows.
fn patterns() -> Vec<CsrPattern> {
    let mut all = uneven();
    let columns = (0..5000).collect();
    let offsets = (0..200).map(|r| if r < 100 { 0 } else { 5000 }).collect();
    all.push(CsrPattern::new(199, 5003, offsets, columns).unwrap());
    for extent in [512, 500] {
        let full = |r: usize| ((0..extent).step_by(32)).filter(move |c| (r / 32 + c / 32) % 3 == 0);
        let line = |r| full(r).flat_map(|c| c as u32..(c + 32).min(extent) as u32);
        let rows: Vec<Vec<u32>> = (0..extent).map(|r| line(r).collect()).collect();
        let mut offsets = vec![0];
        offsets.extend(rows.iter().scan(0, |end, row| {
            *end += row.len() as u32;
            Some(*end)
        }));
        all.push(CsrPattern::new(extent, extent, offsets, rows.concat()).unwrap());
    }
    all
}

fn csr<T: Scalar>(gpu: &Context) {
    for pattern in patterns() {
        let (m, k) = (pattern.rows(), pattern.cols());
        let count = pattern.columns().len();
        if small() && count > 5000 {
            continue;
        }
        let host = integers::<T>(pattern);
        let on_gpu = gpu.upload(&host).unwrap();
        let on_cpu = Context::unchecked_cpu().upload(host).unwrap();
        for (i, block) in BLOCKS.into_iter().enumerate() {
            for format in [formats(block)[i % 4], formats(block)[3]] {
                // If a format does not fit on one side, it must not fit on the other.
                match (on_gpu.to_blocks(format), on_cpu.to_blocks(format)) {
                    (Ok(found), Ok(wanted)) => {
                        assert_same(&found, &wanted, &(T::DTYPE, m, k, count, format))
                    }
                    (found, wanted) => {
                        assert_eq!(found.is_ok(), wanted.is_ok(), "{m} x {k} {format}")
                    }
                }
            }
        }
    }
}

#[test]
fn csr_becomes_the_same_blocks() {
    on_gpu(&[csr::<f32>, csr::<f16>, csr::<f64>]);
}

/// A tensor made on the GPU is an operand like an uploaded one, accepts new values, and can be downloaded.
#[test]
fn made_blocks_are_operands() {
    let Some(gpu) = gpu() else { return };
    let a = Dense::from_fn([200, 160], |i| {
        f16::from_f64(if (i[0] / 32 + i[1] / 32) % 2 == 0 { (i[0] % 3) as f64 - 1.0 } else { 0.0 })
    })
    .unwrap();
    let b = Dense::from_fn([160, 64], |i| f16::from_f64((i[0] * 7 + i[1]) as f64 % 5.0)).unwrap();
    let format = Format::BlockGroupCoo { block: (32, 32), group: None };
    let run = |ctx: &Context| {
        let dense = ctx.upload_dense(&a).unwrap();
        let mut blocks = ctx.blocks_from_dense(&dense, format, BlockChoice::NonZero).unwrap();
        let b = ctx.upload_dense(&b).unwrap();
        let mut outs = Vec::new();
        for _ in 0..2 {
            let operands = [("A", (&blocks).into()), ("B", (&b).into())];
            let text = "C[m,n] = A[m,k] * B[k,n]";
            let (_, c) = plan_and_run(ctx, text, &operands, &Options::default());
            outs.push(c.to_dense().unwrap());
            let twice = |v: &f16| f16::from_f64(2.0 * f64::from(*v));
            let host = blocks.to_host().unwrap();
            let values: Vec<f16> = host.values().iter().map(twice).collect();
            blocks.set_values(&values).unwrap();
            assert_eq!(blocks.to_host().unwrap().values(), values);
        }
        outs
    };
    assert_eq!(run(&gpu), run(&Context::unchecked_cpu()));
}
