//! Attention at the nonzeros of a mask: Sputnik's mask (a causal band and a share of the positions before it), the band
//! alone, blocks, and the whole causal triangle, which dense kernels compute.
//!
//! Rates count both products at the nonzeros. A sample of queries is checked in f64.

use super::{Shape, drawn, options, row, sampled_error};
use crate::families::softmax;
use crate::prelude::*;
use einsparse::formats::{AnySparse, Bsr, BsrPattern, generate};
use einsparse::ops::SparseAttention;
use einsparse::registry::{self, Operation};

pub const OP: &str = "attention";
/// Number of checked queries of each head.
const SAMPLE: usize = 48;
const BAND: usize = 256;
/// Density of the positions before the band (Sputnik, arXiv 2006.10901, section 7.4).
const SHARE: f64 = 0.05;

/// Positions of the nonzeros.
#[derive(Clone, Copy)]
pub enum Entries {
    /// A causal band, and this share of the positions before it.
    Band(f64),
    /// Blocks of 64 with this density.
    Blocks(f64),
    /// All positions up to the diagonal.
    Causal,
}

/// Name; heads, extent, elements of a query; nonzeros.
const CASES: &[(&str, Shape, Entries)] = &[
    ("attention-12288-h1", [1, 12_288, 128], Entries::Band(SHARE)),
    ("attention-12288-h8", [8, 12_288, 128], Entries::Band(SHARE)),
    ("band-12288-h1", [1, 12_288, 128], Entries::Band(0.0)),
    ("band-12288-h8", [8, 12_288, 128], Entries::Band(0.0)),
    ("attention-4096-h8", [8, 4096, 64], Entries::Band(SHARE)),
    ("causal-12288-h1", [1, 12_288, 128], Entries::Causal),
    ("causal-12288-h8", [8, 12_288, 128], Entries::Causal),
    ("block64-d0.1-12288-h8", [8, 12_288, 128], Entries::Blocks(0.1)),
];

/// Measures every case with every kernel that supports it.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &(name, shape, entries) in CASES {
        measured::<bf16>(&bench.anew()?, name, shape, entries)?;
        if matches!(entries, Entries::Band(share) if share > 0.0) {
            measured::<f16>(&bench.anew()?, name, shape, entries)?;
        }
    }
    Ok(())
}

/// Returns the mask, and the offset of the diagonal above which positions are masked.
pub fn mask<T: Scalar>(extent: usize, entries: Entries) -> Result<(AnySparse<T>, Option<i64>)> {
    let blocks = |pattern: BsrPattern| {
        let values = vec![T::ONE; pattern.columns().len() * 64 * 64];
        Bsr::new(pattern, values).map(AnySparse::from)
    };
    match entries {
        Entries::Band(share) => {
            let pattern = softmax::attention(extent, BAND, share)?;
            let values = vec![T::ONE; pattern.columns().len()];
            Ok((Csr::new(pattern, values)?.into(), None))
        }
        Entries::Blocks(density) => {
            let pattern = generate::blocks(extent, extent, (64, 64), density, SEED);
            Ok((blocks(pattern?)?, None))
        }
        Entries::Causal => {
            let side = extent / 64;
            let offsets = (0..=side).map(|row| (row * (row + 1) / 2) as u32).collect();
            let columns = (0..side).flat_map(|row| 0..=row as u32).collect();
            let pattern = BsrPattern::new(extent, extent, (64, 64), offsets, columns);
            Ok((blocks(pattern?)?, Some(0)))
        }
    }
}

fn measured<T: Scalar>(
    bench: &Bench<'_>,
    name: &str,
    shape: Shape,
    entries: Entries,
) -> Result<()> {
    let [heads, extent, dim] = shape;
    let (pattern, causal) = mask::<T>(extent, entries)?;
    let keys = keys_of(&pattern, causal)?;
    let nnz: usize = keys.iter().map(Vec::len).sum();
    let mask = bench.context.upload(pattern)?;
    let host = drawn::<T>(shape);
    let [q, k, v] = &bench.uploads(host.each_ref())?;
    let options = options(shape, causal);
    let fits = |row: &&registry::Row| {
        row.operation == Operation::Attention
            && row.dtype == T::DTYPE
            && row.columns as usize == dim
    };
    for own in bench.kernels().filter(fits) {
        let mut log_sum = bench.zeros::<f32>(&[heads, extent])?;
        let made =
            || SparseAttention::with_variant(&bench.context, &[&mask], &options, Some(own.name));
        let (attention, prepare_ms) = timed(|| Ok(made()?))?;
        bench.checked(
            row::<T>(OP, name, shape, nnz, 2.0)
                .ours(own.name)
                .prepared(prepare_ms, attention.workspace_bytes()),
            &mut bench.poisoned::<T>(&shape)?,
            |out| attention.forward([q, k, v], out, Some(&mut log_sum), &bench.stream),
            |out| sampled_error(&host, out, SAMPLE, |_, query| keys[query].clone()),
        )?;
    }
    Ok(())
}

/// Keys of every query.
fn keys_of<T: Scalar>(pattern: &AnySparse<T>, causal: Option<i64>) -> Result<Vec<Vec<u32>>> {
    let (edge, offsets, columns) = match pattern {
        AnySparse::Csr(csr) => (1, csr.pattern().offsets(), csr.pattern().columns()),
        AnySparse::Bsr(bsr) => (64, bsr.pattern().offsets(), bsr.pattern().columns()),
        other => return Err(format!("no keys of {}", other.format()).into()),
    };
    let keys = |row: usize| {
        let ends = &offsets[row / edge..];
        let limit = causal.map_or(u32::MAX, |offset| (row as i64 + offset + 1) as u32);
        let own = columns[ends[0] as usize..ends[1] as usize].iter();
        let own = own.flat_map(|column| (0..edge as u32).map(move |i| column * edge as u32 + i));
        own.filter(|&key| key < limit).collect()
    };
    Ok((0..pattern.shape()[0]).map(keys).collect())
}
