//! Tables of problems, and the construction of their matrices.

use crate::device::Result;
pub use crate::dtype::Dtype;
use crate::families::{sddmm, softmax};
use crate::layers::gradients;
use crate::smtx::{data_folder, files};
use einsparse::formats::{Bsr, BsrPattern, CsrPattern, convert, generate, io};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Seed of every generated pattern, so that all records contain the same problems.
pub const SEED: u64 = 20;

/// Origin of a workload's pattern.
#[derive(Clone, Debug)]
pub enum Source {
    /// An `.smtx` file below `dlmc` in the data directory.
    Dlmc(PathBuf),
    /// A Matrix Market file below `graphs` in the data directory.
    Graph(PathBuf),
    /// Rows, columns, and the probability of each nonzero.
    Uniform(usize, usize, f64),
    /// R-MAT with 2^scale vertices, and 16 edges per vertex before duplicates are merged.
    Rmat(u32),
    /// Rows (= columns), and number of centred diagonals.
    Banded(usize, usize),
    /// Extent of a square matrix, block edge, and share of the stored blocks.
    Blocks(usize, usize, f64),
    /// [`Source::Blocks`] with an equal number of blocks in every row, or (true) ten times as many in one row.
    Counted(usize, usize, f64, bool),
    /// Extent of a square matrix, width of a causal band, and share of the positions before the band.
    Attention(usize, usize, f64),
    /// Extent of a square matrix with two random nonzeros in every four columns.
    TwoOfFour(usize),
}

/// One row of the tables: a pattern, and the operation on it.
#[derive(Clone, Debug)]
pub struct Workload {
    pub op: &'static str,
    pub name: String,
    pub source: Source,
    /// Columns of the dense operand.
    pub ns: &'static [usize],
    /// Default element types.
    pub dtypes: &'static [Dtype],
    /// Whether it is in the quick set.
    pub quick: bool,
}

impl Workload {
    pub fn new(
        op: &'static str,
        name: impl Into<String>,
        source: Source,
        (ns, dtypes): (&'static [usize], &'static [Dtype]),
        quick: bool,
    ) -> Self {
        Self { op, name: name.into(), source, ns, dtypes, quick }
    }
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
    ("uniform1M-16", Source::Uniform(1 << 20, 1 << 20, 16.0 / (1 << 20) as f64), false),
    ("banded1M-27", Source::Banded(1 << 20, 27), false),
];

const GRAPH_FILES: &[&str] = &["ca-CondMat", "luxembourg_osm"];
const BLOCK_EDGES: &[usize] = &[16, 32, 64, 128];
const BLOCK_DENSITIES: &[f64] = &[1.0, 0.5, 0.2, 0.1, 0.05];
/// Densities of the 8192 x 8192 matrices that are converted to blocks.
const CONVERT_DENSITIES: &[f64] = &[0.5, 0.1, 0.05];
const GRAPH_NS: &[usize] = &[32, 128, 256];
const DLMC_NS: &[usize] = &[64, 256, 1024];

/// Data directory, if it contains the matrices.
pub fn data() -> Option<PathBuf> {
    let folder = data_folder();
    folder.join("dlmc").is_dir().then_some(folder)
}

/// All workloads. Those from files require `data`.
pub fn workloads(data: Option<&Path>) -> Vec<Workload> {
    let mut all = Vec::new();
    if let Some(data) = data {
        dlmc(data, &mut all);
        for name in GRAPH_FILES {
            let path = data.join("graphs").join(format!("{name}.mtx"));
            if path.is_file() {
                let name = format!("graph/{name}");
                all.push(spmm(name, Source::Graph(path), (GRAPH_NS, GRAPH), true));
            }
        }
    }
    for &(rows, cols, density, ns, quick) in UNIFORM {
        let name = format!("uniform-{rows}x{cols}-d{density}");
        let source = Source::Uniform(rows, cols, density);
        all.push(spmm(name, source, (ns, SPMM), quick));
    }
    crate::papers::workloads(&mut all);
    for (name, source, quick) in GENERATED_GRAPHS {
        all.push(spmm(*name, source.clone(), (GRAPH_NS, GRAPH), *quick));
    }
    for &edge in BLOCK_EDGES {
        // No kernel supports TF32 blocks of 128.
        let dtypes = if edge > 64 { &BLOCK[..2] } else { BLOCK };
        for &density in BLOCK_DENSITIES {
            all.push(Workload::new(
                "block_spmm",
                format!("block{edge}-d{density}"),
                Source::Blocks(4096, edge, density),
                (&[512, 4096], dtypes),
                density == 0.1,
            ));
        }
    }
    for (extent, ns) in [(4096, &[512, 4096]), (8192, &[128, 8192])] {
        let name = format!("nm2:4-{extent}");
        let source = Source::TwoOfFour(extent);
        let own = (&ns[..], &BLOCK[..2]);
        all.push(Workload::new("nm_spmm", name, source, own, true));
    }
    for edge in [64, 128] {
        for (name, skewed) in [("even", false), ("skewed", true)] {
            let name = format!("block{edge}-d0.1-{name}");
            let source = Source::Counted(4096, edge, 0.1, skewed);
            let own: (&[usize], _) = (&[4096], &BLOCK[..1]);
            all.push(Workload::new("block_spmm", name, source, own, false));
        }
    }
    conversions(&mut all);
    sddmm::workloads(&mut all);
    gradients::workloads(&mut all);
    all
}

/// Conversions of full blocks, from dense and from CSR. They have one operand.
fn conversions(all: &mut Vec<Workload>) {
    const DTYPES: &[Dtype] = &[Dtype::F16, Dtype::Bf16, Dtype::F32];
    for op in [DENSE_TO_BLOCKS, CSR_TO_BLOCKS] {
        for &edge in BLOCK_EDGES {
            for &density in CONVERT_DENSITIES {
                let name = format!("block{edge}-d{density}-8192");
                let source = Source::Blocks(8192, edge, density);
                let quick = density == 0.1;
                all.push(Workload::new(op, name, source, (&[0], DTYPES), quick));
            }
        }
    }
}

pub fn spmm(
    name: impl Into<String>,
    source: Source,
    own: (&'static [usize], &'static [Dtype]),
    quick: bool,
) -> Workload {
    Workload::new("spmm", name, source, own, quick)
}

/// The `.smtx` files below `data/dlmc`. Every fifth is in the quick set.
fn dlmc(data: &Path, all: &mut Vec<Workload>) {
    let root = data.join("dlmc");
    for (i, path) in files(&root).into_iter().enumerate() {
        let inside = path.strip_prefix(&root).unwrap_or(&path);
        let name = format!("dlmc/{}", inside.display());
        all.push(spmm(name, Source::Dlmc(path), (DLMC_NS, SPMM), i % 5 == 0));
    }
}

fn pattern(source: &Source) -> Result<CsrPattern> {
    match source {
        Source::Dlmc(path) => Ok(io::read_smtx(path)?),
        Source::Graph(path) => {
            let matrix = io::read_matrix_market::<f32>(path)?.matrix.to_csr()?;
            Ok(matrix.pattern().as_ref().clone())
        }
        &Source::Uniform(rows, cols, density) => Ok(generate::uniform(rows, cols, density, SEED)?),
        &Source::Rmat(scale) => Ok(generate::rmat(scale, 16, SEED)?),
        &Source::Banded(rows, diagonals) => Ok(generate::banded(rows, diagonals)?),
        &Source::Blocks(extent, edge, density) => full_blocks(extent, edge, density, SEED),
        &Source::Counted(extent, edge, density, skewed) => counted(extent, edge, density, skewed),
        &Source::Attention(extent, band, share) => softmax::attention(extent, band, share),
        &Source::TwoOfFour(extent) => two_of_four(extent),
    }
}

/// A square matrix of full blocks, without implicit zeros.
pub fn full_blocks(extent: usize, edge: usize, density: f64, seed: u64) -> Result<CsrPattern> {
    let blocks = generate::blocks(extent, extent, (edge, edge), density, seed)?;
    entries_of(blocks)
}

/// Full blocks with a given number in each row, at columns from a hash.
fn counted(extent: usize, edge: usize, density: f64, skewed: bool) -> Result<CsrPattern> {
    let side = extent / edge;
    let total = (density * (side * side) as f64).round() as usize;
    let most = if skewed { (10 * total / side).min(side) } else { 0 };
    let mut offsets = vec![0u32];
    let mut columns = Vec::new();
    for row in 0..side {
        let others = side - usize::from(skewed);
        let before = row - usize::from(skewed && row > side / 2);
        let share = |i: usize| (total - most) * i / others;
        let count =
            if skewed && row == side / 2 { most } else { share(before + 1) - share(before) };
        let mut order: Vec<u32> = (0..side as u32).collect();
        let hash =
            |c: u32| (row as u64 * 4099 + u64::from(c) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        order.sort_by_key(|&c| hash(c) >> 20);
        order.truncate(count);
        order.sort_unstable();
        columns.extend(order);
        offsets.push(columns.len() as u32);
    }
    let block = (edge, edge);
    entries_of(BsrPattern::new(extent, extent, block, offsets, columns)?)
}

/// Nonzeros of full blocks.
fn entries_of(blocks: BsrPattern) -> Result<CsrPattern> {
    let edge = blocks.block().0;
    let ones = vec![1f32; blocks.columns().len() * edge * edge];
    let entries = convert::bsr_to_csr(&Bsr::new(blocks, ones)?)?;
    Ok(entries.pattern().as_ref().clone())
}

/// Two nonzeros in every four columns. All pairs of positions have the same probability.
fn two_of_four(extent: usize) -> Result<CsrPattern> {
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
    Ok(CsrPattern::new(extent, extent, offsets, columns)?)
}

/// Pattern of a workload, for every N and element type.
pub struct Problem {
    pub op: &'static str,
    pub workload: String,
    /// Nonzeros of A. For blocks, every element of a stored block.
    pub pattern: Arc<CsrPattern>,
    /// Block edge, for a matrix of blocks.
    pub block: Option<usize>,
    /// Whether two of every four columns are nonzero.
    pub two_of_four: bool,
}

impl Problem {
    pub fn load(workload: &Workload) -> Result<Self> {
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

    /// Problem of a case outside of the tables.
    pub fn of(op: &'static str, name: impl Into<String>, source: Source) -> Result<Self> {
        Self::load(&Workload::new(op, name, source, (&[], &[]), true))
    }

    /// (rows, columns, nonzeros) of A.
    pub fn extents(&self) -> (usize, usize, usize) {
        let p = &self.pattern;
        (p.rows(), p.cols(), p.columns().len())
    }

    /// Min bytes: A in its natural format, B and C once.
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
