//! SpMM of the CPU executor and sprs' CSR x dense, in one process, on the same matrices: `cargo bench --bench
//! cpu_spmm`. `RAYON_NUM_THREADS` sets the number of threads; sprs uses one thread for this product.

mod smtx;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use einsparse::cpu::{self, Operands, Output};
use einsparse::einsum::Einsum;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format, generate, io};
use einsparse::indirect::rewrite;
use sprs::CsMat;

const COLUMNS: usize = 128;

/// Names and patterns. Real matrices are included only if their directory exists.
fn problems() -> Vec<(String, CsrPattern)> {
    let mut list = Vec::new();
    if let Ok(pattern) = generate::uniform(4096, 4096, 0.05, 1) {
        list.push(("uniform-4096x4096-d0.05".to_owned(), pattern));
    }
    let data = smtx::data_folder();
    let found = smtx::files(&data.join("dlmc"));
    let read = found.iter().filter_map(|path| Some((path, io::read_smtx(path).ok()?)));
    if let Some((path, pattern)) = read.max_by_key(|(_, pattern)| pattern.columns().len()) {
        let name = path.strip_prefix(&data).unwrap_or(path);
        list.push((name.display().to_string(), pattern));
    }
    let graph = io::read_matrix_market::<f32>(data.join("graphs/ca-CondMat.mtx"));
    match graph.and_then(|g| g.matrix.to_csr()) {
        Ok(csr) => list.push(("ca-CondMat".to_owned(), CsrPattern::clone(csr.pattern()))),
        Err(error) => eprintln!("no real inputs: {error}"),
    }
    list
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn spmm(criterion: &mut Criterion) {
    for (name, pattern) in problems() {
        let (rows, cols, nnz) = (pattern.rows(), pattern.cols(), pattern.columns().len());
        let values = generate::random_values::<f32>(nnz, 2);
        let csr = Csr::new(pattern, values).expect("one value for each entry");
        let b = Dense::new([cols, COLUMNS], generate::random_values::<f32>(cols * COLUMNS, 3))
            .expect("B");
        let mut out = vec![0.0f32; rows * COLUMNS];
        let mut group = criterion.benchmark_group(&name);
        group.throughput(Throughput::Elements(2 * (nnz * COLUMNS) as u64)).sample_size(20);
        let theirs: CsMat<f32> = CsMat::new(
            (rows, cols),
            csr.pattern().offsets().iter().map(|&o| o as usize).collect(),
            csr.pattern().columns().iter().map(|&c| c as usize).collect(),
            csr.values().to_vec(),
        );
        group.bench_function("sprs csr_mulacc", |bench| {
            bench.iter(|| {
                out.fill(0.0);
                let shape = (rows, COLUMNS);
                let b = ndarray::ArrayView2::from_shape((cols, COLUMNS), b.values()).expect("B");
                let c = ndarray::ArrayViewMut2::from_shape(shape, out.as_mut_slice()).expect("C");
                sprs::prod::csr_mulacc_dense_rowmaj(theirs.view(), b, c);
            });
        });
        ours(&mut group, &AnySparse::Csr(csr), &b, &mut out);
        group.finish();
    }
}

const FORMATS: &[&str] = &["csr", "coo", "groupcoo", "csc", "bsr:4x4", "blockgroupcoo:16x16"];

fn ours(group: &mut Group<'_>, any: &AnySparse<f32>, b: &Dense<f32>, out: &mut [f32]) {
    let e: Einsum = "C[m,n] = A[m,k] * B[k,n]".parse().expect("an Einsum");
    let shape = [any.shape()[0], COLUMNS];
    for format in FORMATS {
        let format: Format = format.parse().expect("a format");
        let Ok(tensor) = any.convert(format) else {
            continue;
        };
        let e = rewrite(&e, "A", &tensor.format()).expect("SpMM");
        let mut operands = Operands::new();
        operands.sparse(&e, &tensor).expect("A").dense("B", b);
        group.bench_function(BenchmarkId::new("einsparse", format), |bench| {
            bench.iter(|| {
                let c = Output::new(&shape, out).expect("C");
                cpu::run(&e, &operands, c).expect("a run");
            });
        });
    }
}

criterion_group!(benches, spmm);
criterion_main!(benches);
