//! Operations timed on the host: a conversion, a read, and the command from its start to its first result.

use crate::bench::{self, Bench};
use crate::device::Result;
use crate::problems::full_blocks;
use crate::record::{Recorder, Row};
use crate::timing::median;
use einsparse::driver::LoadedModule;
use einsparse::formats::{Csr, CsrPattern, convert, generate, io};
use einsparse::module::MODULES;
use einsparse::{Operand, einsum};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const REPEATS: usize = 5;

/// Times CSR -> BlockGroupCOO of about 10 million nonzeros in 32 x 32 blocks, full and half filled.
pub fn convert(recorder: &Recorder) -> Result<()> {
    let (extent, edge, entries) = (16_384usize, 32usize, 10e6);
    for (fill, name) in [(1.0, "block32-full-10M"), (0.5, "block32-half-10M")] {
        let density = entries / fill / (extent * extent) as f64;
        let blocks = full_blocks(extent, edge, density, 3)?;
        let matrix = with_values(match fill < 1.0 {
            true => thinned(&blocks, fill)?,
            false => blocks,
        })?;
        let mut bytes = 0;
        let (ms, first) = timed(|| {
            let converted = convert::csr_to_block_group_coo(&matrix, (edge, edge), None)?;
            bytes = size_of_val(converted.values());
            Ok(())
        })?;
        let row = row("convert", name, &matrix, ms);
        let note = format!("{}, first time {first:.0} ms", row.note);
        recorder.add(row.prepared(None, bytes).note(note))?;
    }
    Ok(())
}

/// Times the read of a Matrix Market file with a million nonzeros, from a warm page cache.
pub fn read(recorder: &Recorder) -> Result<()> {
    let folder = Folder::new("read")?;
    let matrix = with_values(generate::uniform(100_000, 100_000, 1e-4, 5)?)?;
    let path = folder.0.join("million.mtx");
    io::write_matrix_market(&path, &matrix)?;
    let (ms, first) = timed(|| Ok(io::read_matrix_market::<f32>(&path).map(drop)?))?;
    let row = row("read", "matrix-market-1M", &matrix, ms);
    let bytes = fs::metadata(&path)?.len();
    let note = format!("{}, first time {first:.0} ms, {bytes} bytes", row.note);
    recorder.add(row.note(note))
}

/// Times calls on the host: a product of 512 x 512 with 256 columns, queued by a plan, and as a whole `einsum!`. The
/// GPU is idle before each series of calls.
pub fn call(bench: &Bench<'_>) -> Result<()> {
    const CALLS: u32 = 200;
    let matrix = with_values(generate::uniform(512, 512, 0.1, 7)?)?;
    let (context, stream) = (&bench.context, &bench.stream);
    let (a, b) = (context.upload(&matrix)?, context.zeros::<f32>(&[512, 256])?);
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = context.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands).build()?;
    let mut c = context.zeros(plan.out_shape())?;
    let each = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..=REPEATS {
            stream.synchronize()?;
            let start = Instant::now();
            (0..CALLS).try_for_each(|_| work())?;
            times.push(start.elapsed().as_secs_f64() * 1e3 / f64::from(CALLS));
        }
        times.remove(0);
        Ok(median(&mut times))
    };
    let queued = each(&mut || Ok(plan.run(&operands, &mut c, stream)?))?;
    let whole = each(&mut || {
        einsum!(context, "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?;
        Ok(())
    })?;
    for (workload, ms, note) in [
        ("plan-512", queued, "host time to queue a run"),
        ("einsum-512", whole, "host time of `einsum!` with its plan and its output"),
    ] {
        bench.add(Row { n: 256, ..row("call", workload, &matrix, ms).note(note) })?;
    }
    Ok(())
}

/// Times the command from process start to exit, with C computed on the GPU. The baseline is a process that only opens
/// the primary context. Both run with an empty driver cache, and with the cache that the previous run filled.
pub fn first_result(bench: &Bench<'_>) -> Result<()> {
    let Some(command) = command() else {
        println!("first_result left out: no einsparse binary beside this one (set EINSPARSE_BIN)");
        return Ok(());
    };
    let folder = Folder::new("first")?;
    let matrix = with_values(generate::uniform(2048, 2048, 0.01, 9)?)?;
    let path = folder.0.join("a.mtx");
    io::write_matrix_market(&path, &matrix)?;
    let this = std::env::current_exe()?;
    for (warm, name) in [(false, "2048-empty-cache"), (true, "2048-warm-cache")] {
        let mut cache = 0;
        let mut run = |binary: &Path, arguments: &[String]| -> Result<f64> {
            if !warm {
                cache += 1;
            }
            let cache = folder.0.join(format!("cache-{warm}-{cache}"));
            fs::create_dir_all(&cache)?;
            spawn(binary, arguments, &cache)
        };
        let ours = arguments(&path);
        let bare = ["--bare-init".to_owned()];
        let (mut ours_ms, mut bare_ms) = (Vec::new(), Vec::new());
        if warm {
            run(&command, &ours)?;
        }
        for _ in 0..REPEATS {
            bare_ms.push(run(&this, &bare)?);
            ours_ms.push(run(&command, &ours)?);
        }
        let (total, floor) = (median(&mut ours_ms), median(&mut bare_ms));
        let row = |ms: f64| Row { n: 64, ..row("first_result", name, &matrix, ms) };
        let bare = row(floor).by("cuda-init", "");
        bench.add(bare.note("process start to exit"))?;
        let note = format!(
            "{:.1} ms above bare cuInit + primary context; process start to exit",
            total - floor
        );
        bench.add(row(total).limit(floor).note(note))?;
    }
    Ok(())
}

/// Times unpacking and loading of every module of machine code: the delay before the first launch of a family.
pub fn load(bench: &Bench<'_>) -> Result<()> {
    let context = bench.context.device().ok_or("no GPU")?.context();
    for module in MODULES {
        let Some(code) = module.cubin() else { continue };
        let bytes = code?.len();
        let mut unpacked = 0.0;
        let (ms, first) = timed(|| {
            let (code, took) = bench::timed(|| Ok(module.cubin().expect("seen above")?))?;
            unpacked = took;
            Ok(LoadedModule::from_cubin(context, &code, true).map(drop)?)
        })?;
        let row = Row::new("load", module.name, [0; 3], 0, "").ours("cubin");
        let note = format!("{unpacked:.2} ms of it unpacking, first time {first:.2} ms");
        bench.add(Row { ms, ..row.prepared(None, bytes).note(note) })?;
    }
    Ok(())
}

/// Arguments of the command for one product on the GPU, run once.
fn arguments(a: &Path) -> Vec<String> {
    let a = format!("A={}", a.display());
    let product = ["run", "C[m,n] = A[m,k] * B[k,n]", &a, "B=random:2048x64"];
    let once = ["--device", "gpu", "--repeat", "0"];
    product.iter().chain(&once).map(|word| (*word).to_owned()).collect()
}

/// Milliseconds from start to exit of one process with its own driver cache.
fn spawn(binary: &Path, arguments: &[String], cache: &Path) -> Result<f64> {
    let start = Instant::now();
    let output = Command::new(binary)
        .args(arguments)
        .env("CUDA_CACHE_PATH", cache)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", binary.display()))?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    if output.status.success() {
        return Ok(ms);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.trim().lines().last().unwrap_or("no message");
    Err(format!("{} {arguments:?}: {last}", binary.display()).into())
}

/// Path of the command: EINSPARSE_BIN, the directory of this binary (a bundle), its parent (target/release), or the
/// path of cargo's build.
fn command() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let folder = this.parent();
    let beside = folder.map(|folder| folder.join("einsparse"));
    let above = folder.and_then(Path::parent);
    let above = above.map(|folder| folder.join("einsparse"));
    let built = option_env!("CARGO_BIN_EXE_einsparse").map(PathBuf::from);
    let named = std::env::var_os("EINSPARSE_BIN").map(PathBuf::from);
    [named, beside, above, built].into_iter().flatten().find(|path| path.is_file())
}

/// Median milliseconds of the repeats, and the first time separately, because its memory is new to the process.
fn timed(mut work: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..=REPEATS {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let first = times.remove(0);
    Ok((median(&mut times), first))
}

fn row(op: &str, workload: &str, matrix: &Csr<f32>, ms: f64) -> Row {
    let p = matrix.pattern();
    let row = Row::new(op, workload, [p.rows(), p.cols(), 0], p.columns().len(), "f32");
    let note = format!("{} threads", rayon::current_num_threads());
    Row { ms, ..row.ours("auto").note(note) }
}

/// Keeps each nonzero with probability `share`.
fn thinned(pattern: &CsrPattern, share: f64) -> Result<CsrPattern> {
    let mut rng = StdRng::seed_from_u64(4);
    let (mut offsets, mut columns) = (vec![0u32], Vec::new());
    for row in pattern.offsets().windows(2) {
        let entries = &pattern.columns()[row[0] as usize..row[1] as usize];
        columns.extend(entries.iter().copied().filter(|_| rng.random_bool(share)));
        offsets.push(columns.len() as u32);
    }
    Ok(CsrPattern::new(pattern.rows(), pattern.cols(), offsets, columns)?)
}

fn with_values(pattern: CsrPattern) -> Result<Csr<f32>> {
    let mut rng = StdRng::seed_from_u64(6);
    let values = (0..pattern.columns().len()).map(|_| rng.random_range(-1.0..1.0));
    let values = values.collect();
    Ok(Csr::new(pattern, values)?)
}

/// Temporary directory of this run, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let path =
            std::env::temp_dir().join(format!("einsparse-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
