//! What is measured: the problem tables as data, and how a row becomes a matrix.

pub use crate::dtype::Dtype;
use crate::families::softmax;
use einsparse_formats::{Bsr, BsrPattern, CsrPattern, FormatError, convert, generate, io};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Seed of every generated pattern, so that two records hold the same problems.
pub const SEED: u64 = 20;

/// Where a workload's pattern comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// An `.smtx` file under the data folder's `dlmc`.
    Dlmc(PathBuf),
    /// A Matrix Market file under the data folder's `graphs`.
    Graph(PathBuf),
    /// Every entry present with the same probability.
    Uniform(usize, usize, f64),
    /// R-MAT with 2^scale vertices and 16 edges a vertex before duplicates are merged.
    Rmat(u32),
    /// Rows (= columns) and diagonals, centred.
    Banded(usize, usize),
    /// Square of this extent, block edge, share of the blocks that is stored.
    Blocks(usize, usize, f64),
    /// The same with as many blocks in every row, or (true) ten times as many in one of them.
    Counted(usize, usize, f64, bool),
    /// Square of this extent: a causal band of this width, and this share of what is below it.
    Attention(usize, usize, f64),
    /// Square of this extent, two of every four columns at random places.
    TwoOfFour(usize),
}

/// One row of the tables: a pattern and what is done with it.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Operation, as in the record.
    pub op: &'static str,
    /// Name, as in the record.
    pub name: String,
    /// The pattern's origin.
    pub source: Source,
    /// Columns of the dense operand.
    pub ns: &'static [usize],
    /// Element types measured unless the command line says otherwise.
    pub dtypes: &'static [Dtype],
    /// Part of the quick set.
    pub quick: bool,
}

/// Operation: blocks from a dense matrix.
pub const DENSE_TO_BLOCKS: &str = "dense_to_blocks";
/// Operation: blocks from CSR.
pub const CSR_TO_BLOCKS: &str = "csr_to_blocks";

const SPMM: &[Dtype] = &[Dtype::F32, Dtype::F16];
const GRAPH: &[Dtype] = &[Dtype::F32, Dtype::F16];
const BLOCK: &[Dtype] = &[Dtype::F16, Dtype::Bf16, Dtype::Tf32];

/// (rows, columns, density, Ns, quick)
const UNIFORM: &[(usize, usize, f64, &[usize], bool)] = &[
    (8192, 2048, 0.3, &[128], false),
    (8192, 2048, 0.2, &[128], false),
    (8192, 2048, 0.1, &[128], true),
    (8192, 2048, 0.05, &[128], false),
    (4096, 4096, 0.3, &[256], false),
    (4096, 4096, 0.2, &[256], false),
    (4096, 4096, 0.1, &[256, 4096], true),
    (4096, 4096, 0.05, &[256, 4096], false),
    (4096, 4096, 0.02, &[256], false),
];

/// (name, source, quick)
const GENERATED_GRAPHS: &[(&str, Source, bool)] = &[
    ("rmat17", Source::Rmat(17), true),
    ("rmat20", Source::Rmat(20), false),
    (
        "uniform1M-16",
        Source::Uniform(1 << 20, 1 << 20, 16.0 / (1 << 20) as f64),
        false,
    ),
    ("banded1M-27", Source::Banded(1 << 20, 27), false),
];

const GRAPH_FILES: &[&str] = &["ca-CondMat", "luxembourg_osm"];
const BLOCK_EDGES: &[usize] = &[16, 32, 64, 128];
const BLOCK_DENSITIES: &[f64] = &[1.0, 0.5, 0.2, 0.1, 0.05];
/// Of 8192 x 8192 matrices that are brought into blocks.
const CONVERT_DENSITIES: &[f64] = &[0.5, 0.1, 0.05];
const GRAPH_NS: &[usize] = &[32, 128, 256];
const DLMC_NS: &[usize] = &[64, 256, 1024];

/// Every workload; those from files only where `data` is there.
pub fn workloads(data: Option<&Path>) -> Vec<Workload> {
    let mut all = Vec::new();
    if let Some(data) = data {
        dlmc(data, &mut all);
        for name in GRAPH_FILES {
            let path = data.join("graphs").join(format!("{name}.mtx"));
            let source = Source::Graph(path.clone());
            if path.is_file() {
                all.push(spmm(format!("graph/{name}"), source, GRAPH_NS, GRAPH, true));
            }
        }
    }
    for &(rows, cols, density, ns, quick) in UNIFORM {
        let name = format!("uniform-{rows}x{cols}-d{density}");
        all.push(spmm(
            name,
            Source::Uniform(rows, cols, density),
            ns,
            SPMM,
            quick,
        ));
    }
    crate::papers::workloads(&mut all);
    for (name, source, quick) in GENERATED_GRAPHS {
        all.push(spmm(
            (*name).to_owned(),
            source.clone(),
            GRAPH_NS,
            GRAPH,
            *quick,
        ));
    }
    for &edge in BLOCK_EDGES {
        for &density in BLOCK_DENSITIES {
            let name = format!("block{edge}-d{density}");
            let source = Source::Blocks(4096, edge, density);
            let quick = density == 0.1;
            all.push(Workload {
                op: "block_spmm",
                name,
                source,
                ns: &[512, 4096],
                // No kernel takes TF32 blocks of 128.
                dtypes: if edge > 64 { &BLOCK[..2] } else { BLOCK },
                quick,
            });
        }
    }
    for (extent, ns) in [(4096, &[512, 4096]), (8192, &[128, 8192])] {
        all.push(Workload {
            op: "nm_spmm",
            name: format!("nm2:4-{extent}"),
            source: Source::TwoOfFour(extent),
            ns,
            dtypes: &BLOCK[..2],
            quick: true,
        });
    }
    for edge in [64, 128] {
        for (name, skewed) in [("even", false), ("skewed", true)] {
            all.push(Workload {
                op: "block_spmm",
                name: format!("block{edge}-d0.1-{name}"),
                source: Source::Counted(4096, edge, 0.1, skewed),
                ns: &[4096],
                dtypes: &BLOCK[..1],
                quick: false,
            });
        }
    }
    conversions(&mut all);
    crate::families::sddmm::workloads(&mut all);
    all
}

/// Full blocks, from dense and from CSR; there is no other operand.
fn conversions(all: &mut Vec<Workload>) {
    for op in [DENSE_TO_BLOCKS, CSR_TO_BLOCKS] {
        for &edge in BLOCK_EDGES {
            for &density in CONVERT_DENSITIES {
                all.push(Workload {
                    op,
                    name: format!("block{edge}-d{density}-8192"),
                    source: Source::Blocks(8192, edge, density),
                    ns: &[0],
                    dtypes: &[Dtype::F16, Dtype::Bf16, Dtype::F32],
                    quick: density == 0.1,
                });
            }
        }
    }
}

fn spmm(
    name: String,
    source: Source,
    ns: &'static [usize],
    dtypes: &'static [Dtype],
    quick: bool,
) -> Workload {
    Workload {
        op: "spmm",
        name,
        source,
        ns,
        dtypes,
        quick,
    }
}

/// The `.smtx` files below `data/dlmc`, sorted by path; every fifth is in the quick set.
fn dlmc(data: &Path, all: &mut Vec<Workload>) {
    let root = data.join("dlmc");
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "smtx") {
                files.push(path);
            }
        }
    }
    files.sort();
    for (i, path) in files.into_iter().enumerate() {
        let inside = path.strip_prefix(&root).unwrap_or(&path);
        let name = format!("dlmc/{}", inside.display());
        all.push(spmm(name, Source::Dlmc(path), DLMC_NS, SPMM, i % 5 == 0));
    }
}

fn pattern(source: &Source) -> Result<CsrPattern, FormatError> {
    match source {
        Source::Dlmc(path) => io::read_smtx(path),
        Source::Graph(path) => {
            let matrix = io::read_matrix_market::<f32>(path)?.matrix.to_csr()?;
            Ok(matrix.pattern().as_ref().clone())
        }
        &Source::Uniform(rows, cols, density) => generate::uniform(rows, cols, density, SEED),
        &Source::Rmat(scale) => generate::rmat(scale, 16, SEED),
        &Source::Banded(rows, diagonals) => generate::banded(rows, diagonals),
        &Source::Blocks(extent, edge, density) => full_blocks(extent, edge, density, SEED),
        &Source::Counted(extent, edge, density, skewed) => counted(extent, edge, density, skewed),
        &Source::Attention(extent, band, share) => softmax::attention(extent, band, share),
        &Source::TwoOfFour(extent) => two_of_four(extent),
    }
}

/// A square matrix of full blocks, every entry of which is present.
pub fn full_blocks(
    extent: usize,
    edge: usize,
    density: f64,
    seed: u64,
) -> Result<CsrPattern, FormatError> {
    entries_of(generate::blocks(
        extent,
        extent,
        (edge, edge),
        density,
        seed,
    )?)
}

/// Full blocks with a given number in each row, at places that a hash picks.
fn counted(
    extent: usize,
    edge: usize,
    density: f64,
    skewed: bool,
) -> Result<CsrPattern, FormatError> {
    let side = extent / edge;
    let total = (density * (side * side) as f64).round() as usize;
    let most = if skewed {
        (10 * total / side).min(side)
    } else {
        0
    };
    let mut offsets = vec![0u32];
    let mut columns = Vec::new();
    for row in 0..side {
        let others = side - usize::from(skewed);
        let before = row - usize::from(skewed && row > side / 2);
        let share = |i: usize| (total - most) * i / others;
        let count = if skewed && row == side / 2 {
            most
        } else {
            share(before + 1) - share(before)
        };
        let mut order: Vec<u32> = (0..side as u32).collect();
        let hash =
            |c: u32| (row as u64 * 4099 + u64::from(c) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        order.sort_by_key(|&c| hash(c) >> 20);
        order.truncate(count);
        order.sort_unstable();
        columns.extend(order);
        offsets.push(columns.len() as u32);
    }
    entries_of(BsrPattern::new(
        extent,
        extent,
        (edge, edge),
        offsets,
        columns,
    )?)
}

/// The entries of full blocks.
fn entries_of(blocks: BsrPattern) -> Result<CsrPattern, FormatError> {
    let edge = blocks.block().0;
    let ones = vec![1f32; blocks.columns().len() * edge * edge];
    let entries = convert::bsr_to_csr(&Bsr::new(blocks, ones)?)?;
    Ok(entries.pattern().as_ref().clone())
}

/// Two entries in every four columns, each pair of places with the same probability.
fn two_of_four(extent: usize) -> Result<CsrPattern, FormatError> {
    const PAIRS: [[u32; 2]; 6] = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
    let mut rng = StdRng::seed_from_u64(SEED);
    let row = extent / 4 * 2;
    let offsets = (0..=extent).map(|r| (r * row) as u32).collect();
    let mut columns = Vec::with_capacity(extent * row);
    for _ in 0..extent {
        for group in 0..extent as u32 / 4 {
            let pair = PAIRS[rng.random_range(0..PAIRS.len())];
            columns.extend(pair.map(|place| group * 4 + place));
        }
    }
    CsrPattern::new(extent, extent, offsets, columns)
}

/// A workload's pattern, ready for every N and element type.
pub struct Problem {
    /// Operation, as in the record.
    pub op: &'static str,
    /// Name, as in the record.
    pub workload: String,
    /// The entries of A, block problems too (every entry of a stored block).
    pub pattern: Arc<CsrPattern>,
    /// Block edge of a block problem.
    pub block: Option<usize>,
    /// Two of every four columns.
    pub two_of_four: bool,
}

impl Problem {
    /// Reads or generates the pattern.
    pub fn load(workload: &Workload) -> Result<Self, String> {
        let pattern = pattern(&workload.source).map_err(|e| format!("{}: {e}", workload.name))?;
        let block = match workload.source {
            Source::Blocks(_, edge, _) | Source::Counted(_, edge, ..) => Some(edge),
            _ => None,
        };
        Ok(Self {
            op: workload.op,
            workload: workload.name.clone(),
            pattern: Arc::new(pattern),
            block,
            two_of_four: matches!(workload.source, Source::TwoOfFour(_)),
        })
    }

    /// (rows, columns, entries) of A.
    pub fn extents(&self) -> (usize, usize, usize) {
        (
            self.pattern.rows(),
            self.pattern.cols(),
            self.pattern.columns().len(),
        )
    }

    /// Compulsory bytes: A in its natural format, B and C once.
    pub fn bytes(&self, n: usize, dtype: Dtype) -> f64 {
        let (m, k, nnz) = self.extents();
        let indices = match self.block {
            Some(edge) => nnz / (edge * edge) + m / edge + 1,
            None if self.two_of_four => nnz / 16,
            None => nnz + m + 1,
        };
        (nnz * dtype.size() + 4 * indices) as f64 + ((k + m) * n * dtype.size()) as f64
    }
}
