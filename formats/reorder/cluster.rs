//! Greedy clustering of rows by the Jaccard similarity of their signatures, among neighbors by min-hash.

use rayon::prelude::*;

use super::Options;
use crate::error::*;
use crate::{CsrPattern, Permutation, allocate, check};

/// Marker for no row or block column.
const NONE: u32 = u32::MAX;

/// Distinct block columns of each row, ascending.
struct Signatures {
    offsets: Vec<usize>,
    columns: Vec<u32>,
}

impl Signatures {
    fn new(csr: &CsrPattern, width: usize) -> Result<Self> {
        let rows = || (0..csr.rows()).into_par_iter().with_min_len(256);
        let of_row = |row: usize| {
            let mut last = NONE;
            let columns = csr.columns()[csr.row(row)].iter();
            columns.filter_map(move |&c| {
                let block = (c as usize / width) as u32;
                let new = block != last;
                last = block;
                new.then_some(block)
            })
        };
        let mut offsets = check::zeroed("offsets", csr.rows() + 1)?;
        let counts = <[usize]>::par_iter_mut(&mut offsets[1..]).enumerate();
        counts.for_each(|(row, count)| *count = of_row(row).count());
        let mut end = 0;
        for offset in &mut offsets {
            end += *offset;
            *offset = end;
        }
        Ok(Signatures { offsets, columns: rows().flat_map_iter(of_row).collect() })
    }

    fn of(&self, row: u32) -> &[u32] {
        &self.columns[self.offsets[row as usize]..self.offsets[row as usize + 1]]
    }

    /// Min-hashes of every row, `[rows, hashes]`. Those of an empty row are u32::MAX.
    fn min_hashes(&self, hashes: usize) -> Result<Vec<u32>> {
        let rows = self.offsets.len() - 1;
        let mut all = allocate::filled("hashes of rows", rows * hashes, NONE)?;
        let lines = all.par_chunks_mut(hashes).enumerate().with_min_len(256);
        lines.for_each(|(row, line)| {
            for &column in self.of(row as u32) {
                for (t, least) in line.iter_mut().enumerate() {
                    *least = (*least).min(mix(column, t as u64));
                }
            }
        });
        Ok(all)
    }
}

/// Finalizer of SplitMix64 (Steele, Lea, Flood, 2014) of a column in stream `t`.
fn mix(column: u32, t: u64) -> u32 {
    let mut z = (u64::from(column) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = z.wrapping_add((t + 1).wrapping_mul(0xD1B5_4A32_D192_ED03));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 32) as u32
}

/// Linked list, in one sorted order, of the rows that are not placed yet. Neighbors are found by following links;
/// placed rows are removed.
struct Sorted {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Sorted {
    /// Sorts the rows by their min-hashes, cyclically starting at hash `first`, then by row.
    fn new(rows: usize, hashes: &[u32], each: usize, first: usize) -> Result<Self> {
        let mut order: Vec<u32> = allocate::collected("order of rows", 0..rows as u32)?;
        let key = |row: u32| {
            let line = &hashes[row as usize * each..][..each];
            line[first..].iter().chain(&line[..first])
        };
        order.par_sort_unstable_by(|&a, &b| key(a).cmp(key(b)).then(a.cmp(&b)));
        let list = || allocate::filled("neighbours of rows", rows, NONE);
        let (mut before, mut after) = (list()?, list()?);
        for pair in order.windows(2) {
            after[pair[0] as usize] = pair[1];
            before[pair[1] as usize] = pair[0];
        }
        Ok(Sorted { before, after })
    }

    fn remove(&mut self, row: u32) {
        let (b, a) = (self.before[row as usize], self.after[row as usize]);
        if b != NONE {
            self.after[b as usize] = a;
        }
        if a != NONE {
            self.before[a as usize] = b;
        }
    }
}

/// State of the greedy clustering.
struct Walk<'a> {
    signatures: &'a Signatures,
    hashes: Vec<u32>,
    each: usize,
    sorted: Vec<Sorted>,
    placed: Vec<bool>,
    /// Last cluster for which a row was a candidate (`seen`), and last cluster that contains a block column (`union`).
    seen: Vec<u32>,
    union: Vec<u32>,
}

impl Walk<'_> {
    fn place(&mut self, row: u32) {
        self.placed[row as usize] = true;
        self.sorted.iter_mut().for_each(|list| list.remove(row));
    }

    /// Rows near `seed` that share a min-hash with it, at most `reach` in each direction of each list. The most similar
    /// row is first.
    fn candidates(&mut self, seed: u32, cluster: u32, reach: usize) -> Vec<u32> {
        let mut found = Vec::new();
        for (t, list) in self.sorted.iter().enumerate() {
            let hash = |row: u32| self.hashes[row as usize * self.each + t];
            for next in [&list.before, &list.after] {
                let mut at = next[seed as usize];
                for _ in 0..reach {
                    if at == NONE || hash(at) != hash(seed) {
                        break;
                    }
                    if self.seen[at as usize] != cluster {
                        self.seen[at as usize] = cluster;
                        found.push(at);
                    }
                    at = next[at as usize];
                }
            }
        }
        let own = self.signatures.of(seed);
        let mut ranked: Vec<(f64, u32)> = found
            .into_iter()
            .map(|row| {
                let other = self.signatures.of(row);
                (similarity(other, own.len(), |c| own.binary_search(&c).is_ok()), row)
            })
            .collect();
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().map(|(_, row)| row).collect()
    }

    /// Rows of the cluster that `seed` starts, at most `height`.
    fn grow(&mut self, seed: u32, cluster: u32, height: usize, least: f64) -> Vec<u32> {
        let mut rows = vec![seed];
        let mut size = 0;
        self.join(seed, cluster, &mut size);
        for row in self.candidates(seed, cluster, height) {
            if rows.len() == height {
                break;
            }
            let inside = |c: u32| self.union[c as usize] == cluster;
            if similarity(self.signatures.of(row), size, inside) >= least {
                rows.push(row);
                self.join(row, cluster, &mut size);
            }
        }
        rows.iter().for_each(|&row| self.place(row));
        rows
    }

    fn join(&mut self, row: u32, cluster: u32, size: &mut usize) {
        for &column in self.signatures.of(row) {
            let mark = &mut self.union[column as usize];
            *size += usize::from(*mark != cluster);
            *mark = cluster;
        }
    }
}

/// Jaccard similarity of `columns` with a set of `size` elements.
fn similarity(columns: &[u32], size: usize, inside: impl Fn(u32) -> bool) -> f64 {
    let common = columns.iter().filter(|&&c| inside(c)).count();
    common as f64 / (columns.len() + size - common).max(1) as f64
}

/// Orders of the rows in clusters of up to `height`. Full clusters come first, then the others, then empty rows. The
/// two orders sort the other clusters by discovery and by the min-hashes of their seed.
pub(super) fn orders(
    csr: &CsrPattern,
    height: usize,
    width: usize,
    options: &Options,
) -> Result<Vec<Permutation>> {
    check::block((height, width))?;
    options.check()?;
    let rows = csr.rows();
    let signatures = Signatures::new(csr, width)?;
    let hashes = signatures.min_hashes(options.hashes)?;
    let each = options.hashes;
    let list = |t: usize| Sorted::new(rows, &hashes, each, t);
    let sorted = (0..each).into_par_iter().map(list).collect::<Result<_, _>>()?;
    let mut walk = Walk {
        signatures: &signatures,
        hashes,
        each,
        sorted,
        placed: allocate::filled("rows", rows, false)?,
        seen: allocate::filled("rows", rows, NONE)?,
        union: check::zeroed("block columns", csr.cols().div_ceil(width))?,
    };
    let (mut whole, mut partial) = (Vec::new(), Vec::new());
    let empty = |&row: &u32| signatures.of(row).is_empty();
    let empty: Vec<u32> = (0..rows as u32).filter(empty).collect();
    empty.iter().for_each(|&row| walk.place(row));
    let mut clusters = 0;
    for row in 0..rows as u32 {
        if !walk.placed[row as usize] {
            // Clusters are numbered from 1, because 0 marks block columns in no cluster.
            clusters += 1;
            let cluster = walk.grow(row, clusters, height, options.similarity);
            match cluster.len() == height {
                true => whole.extend(cluster),
                false => partial.push(cluster),
            }
        }
    }
    let order = |partial: &[Vec<u32>]| {
        let rows = whole.iter().chain(partial.iter().flatten()).chain(&empty);
        Permutation::of_places(rows.copied().collect())
    };
    let found = order(&partial);
    let line = |c: &Vec<u32>| c.first().map(|&r| &walk.hashes[r as usize * each..][..each]);
    partial.sort_by(|a, b| line(a).cmp(&line(b)));
    Ok(vec![found, order(&partial)])
}
