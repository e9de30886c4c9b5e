//! Shared code of the tests: the GPU or a printed skip, problems with exact integer values and their product,
//! expressions with expected results, and a comparison that names the first fault.

pub mod bounds;
pub mod dense;
pub mod einsum;
mod expression;
pub mod replay;
pub mod rows;
pub mod runs;
pub mod skipping;
pub mod windows;

use std::fmt::Debug;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use einsparse::Context;
use einsparse::driver::trial;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format};
use einsparse::module::MODULES;
use einsparse::registry::Scalar;
pub use expression::{Bias, Expression};
use rayon::prelude::*;
pub use windows::{by_loops, whole, windows_agree};

/// Columns of the widest B of the suite.
pub const WIDEST: usize = 264;
/// Value between the rows of strided outputs, and in guard bands.
pub const GUARD: f64 = 77.0;

/// Asserts that an error matches a pattern, such as `Error::Shape { index, .. } if index == "k"`.
macro_rules! assert_error {
    ($error:expr, $($pattern:tt)+) => {{
        let error = &$error;
        assert!(matches!(error, $($pattern)+), "{error:?}");
    }};
}
pub(crate) use assert_error;

/// Defines tests `name::on_the_cpu` and `name::on_the_gpu`, each of a list of cases. Cases are functions or closures of a
/// `&Context`.
#[allow(unused_macros)]
macro_rules! on_both {
    ($($(#[$doc:meta])* $name:ident: cpu [$($cpu:expr),* $(,)?], gpu $gpu:tt;)*) => {$(
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[test]
            fn on_the_cpu() {
                $crate::support::on_cpu(&[$($cpu),*]);
            }

            #[test]
            fn on_the_gpu() {
                $crate::support::on_gpu(&$gpu);
            }
        }
    )*};
}
#[allow(unused_imports)]
pub(crate) use on_both;

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|v| v == "1")
}

/// While a stream is captured, no other thread may synchronize the context: capturing tests take the write lock, others
/// the read lock.
static CAPTURE: RwLock<()> = RwLock::new(());

pub struct Gpu {
    context: Context,
    _turn: Turn,
}

/// Lock that is held until the test ends.
#[allow(dead_code)]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Deref for Gpu {
    type Target = Context;
    fn deref(&self) -> &Context {
        &self.context
    }
}

/// The first GPU. Without one: a line on stderr and `None`, or a panic under EINSPARSE_REQUIRE_GPU=1.
pub fn gpu() -> Option<Gpu> {
    let _turn = Turn::Shared(CAPTURE.read().unwrap_or_else(PoisonError::into_inner));
    Some(Gpu { context: open()?, _turn })
}

/// Runs cases on the first GPU, one after another; none without a GPU.
pub fn on_gpu(cases: &[fn(&Context)]) {
    let Some(gpu) = gpu() else { return };
    cases.iter().for_each(|case| case(&gpu));
}

/// Runs cases on the CPU, also in element types without kernels.
pub fn on_cpu(cases: &[fn(&Context)]) {
    cases.iter().for_each(|case| case(&Context::unchecked_cpu()));
}

/// Whether this build contains a module that is built on demand. Prints a line if not.
pub fn is_built(module: &str) -> bool {
    let built = MODULES.iter().any(|built| built.name == module);
    if !built {
        skipped(
            "a module on demand is not in this build",
            format!("{module}; EINSPARSE_MODULES=all builds it"),
        );
    }
    built
}

/// Like [`gpu`], with exclusive use of the GPU. A test that captures a graph needs it: a wait of another thread for the
/// whole GPU ends the capture.
pub fn gpu_alone() -> Option<Gpu> {
    let _turn = Turn::Alone(CAPTURE.write().unwrap_or_else(PoisonError::into_inner));
    Some(Gpu { context: open()?, _turn })
}

/// EINSPARSE_TEST_GUARD=1: memory is poisoned, and the guard bands around it must stay unchanged.
impl Drop for Gpu {
    fn drop(&mut self) {
        if let Some(file) = std::env::var_os("EINSPARSE_TEST_ROWS") {
            let lines: String = trial::launched().iter().map(|n| format!("{n}\n")).collect();
            let file = std::fs::File::options().create(true).append(true).open(file);
            std::io::Write::write_all(&mut file.unwrap(), lines.as_bytes()).unwrap();
        }
        let faults = trial::faults();
        if !std::thread::panicking() {
            assert!(faults.is_empty(), "writes outside: {faults:?}");
        }
    }
}

/// EINSPARSE_TEST_MODULE=NAME:FILE: machine code that replaces a module, with a fault that tests must detect.
fn plant() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if let Ok(named) = std::env::var("EINSPARSE_TEST_MODULE") {
            let (module, file) = named.split_once(':').unwrap();
            // SAFETY: the code is built from the module's sources, with a mistake only in its arithmetic.
            unsafe { einsparse::module::replace(module, std::fs::read(file).unwrap()) };
        }
    });
}

fn open() -> Option<Context> {
    plant();
    match Context::cuda(0) {
        Ok(context) => {
            if is_set("EINSPARSE_TEST_GUARD") {
                trial::guard();
            }
            if std::env::var_os("EINSPARSE_TEST_ROWS").is_some() {
                trial::list();
            }
            Some(context)
        }
        Err(reason) if is_set("EINSPARSE_REQUIRE_GPU") => {
            panic!("EINSPARSE_REQUIRE_GPU=1, but {reason}")
        }
        Err(reason) => {
            skipped("no GPU", reason);
            None
        }
    }
}

/// Prints to the terminal, bypassing the capture of the test harness, that a test did not run.
pub fn skipped(what: &str, reason: impl std::fmt::Display) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // A closed stderr may be ignored.
    let _ = writeln!(std::io::stderr(), "{test}: skipped: {what} ({reason})");
}

/// EINSPARSE_TEST_SMALL=1: fewer sizes, for compute-sanitizer.
pub fn small() -> bool {
    is_set("EINSPARSE_TEST_SMALL")
}

/// Directory of real matrices: EINSPARSE_DATA, otherwise `data/` in the project. `None` and one printed line if it is
/// missing.
pub fn data() -> Option<PathBuf> {
    let named = std::env::var_os("EINSPARSE_DATA").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("data"));
    if folder.is_dir() {
        return Some(folder);
    }
    skipped(
        "real matrices, generated ones instead",
        format_args!("no folder {}", folder.display()),
    );
    None
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// An integer from -2 to 2. Products and sums of 2^20 of them are exact in every accumulator.
    pub fn integer(&mut self) -> f64 {
        (self.word() >> 33) as f64 % 5.0 - 2.0
    }

    pub fn integers<T: Scalar>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_f64(self.integer())).collect()
    }

    pub fn units<T: Scalar>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_f64(self.unit())).collect()
    }
}

/// Parses names and their extents, as in `A 8x7, B 3, s`.
pub fn sized(text: &str) -> Vec<(&str, Vec<usize>)> {
    let parts = text.split(", ").map(|part| part.split_once(' ').unwrap_or((part, "")));
    let numbers = |all: &str| all.split_terminator('x').map(|n| n.parse().unwrap()).collect();
    parts.map(|(name, all)| (name, numbers(all))).collect()
}

/// A pattern with `lens[r]` columns in row r, spread evenly.
pub fn spread(lens: &[usize], cols: usize) -> CsrPattern {
    let mut offsets = vec![0];
    let mut columns = Vec::new();
    for &len in lens {
        assert!(len <= cols);
        columns.extend((0..len).map(|i| (i * cols / len) as u32));
        offsets.push(columns.len() as u32);
    }
    CsrPattern::new(lens.len(), cols, offsets, columns).unwrap()
}

/// A pattern whose nonzeros fill the `block` x `block` blocks of the pattern `blocks`, cut to the shape.
pub fn fill_blocks(
    blocks: &CsrPattern,
    (bm, bk): (usize, usize),
    rows: usize,
    cols: usize,
) -> CsrPattern {
    let mut offsets = vec![0];
    let mut columns = Vec::new();
    for row in 0..rows {
        for &b in &blocks.columns()[blocks.row(row / bm)] {
            let first = b as usize * bk;
            columns.extend((first..(first + bk).min(cols)).map(|c| c as u32));
        }
        offsets.push(columns.len() as u32);
    }
    CsrPattern::new(rows, cols, offsets, columns).unwrap()
}

/// Converts a tensor to a format.
pub fn stored<T: Scalar>(sparse: impl Into<AnySparse<T>>, format: &str) -> AnySparse<T> {
    let format: Format = format.parse().unwrap();
    let made = sparse.into().convert(format);
    made.unwrap_or_else(|e| panic!("{format}: {e}"))
}

/// A matrix A, a wide B, and their exact product. A narrower B consists of the first columns.
pub struct Problem<T> {
    pub a: Csr<T>,
    /// Number of columns of B and of the fields below.
    pub width: usize,
    /// k x width
    pub b: Vec<T>,
    /// m x width
    product: Vec<f64>,
    pub bias_rows: Dense<T>,
    bias_columns: Vec<T>,
    /// m x width: previous content of the output for `+=`.
    start: Vec<T>,
}

impl<T: Scalar> Problem<T> {
    /// Integers on a pattern. Those of B depend only on the width, so that problems can share it.
    pub fn integers(pattern: CsrPattern, seed: u64, width: usize) -> Self {
        let mut rng = Rng(seed);
        let values = rng.integers(pattern.columns().len());
        let b = Rng(width as u64).integers(pattern.cols() * width);
        let a = Csr::new(pattern, values).unwrap();
        let m = a.shape()[0];
        let product = product(&a, &b, width, |x| x);
        let bias_rows = Dense::new([m], rng.integers(m)).unwrap();
        let (bias_columns, start) = (rng.integers(width), rng.integers(m * width));
        Problem { a, width, b, product, bias_rows, bias_columns, start }
    }

    pub fn m(&self) -> usize {
        self.a.shape()[0]
    }

    /// Number of nonzeros of the longest row.
    pub fn longest(&self) -> usize {
        let offsets = self.a.pattern().offsets().windows(2);
        offsets.map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }

    pub fn k(&self) -> usize {
        self.a.shape()[1]
    }

    pub fn sparse(&self, format: &str) -> AnySparse<T> {
        stored(self.a.clone(), format)
    }

    /// The first `n` columns of B.
    pub fn b(&self, n: usize) -> Dense<T> {
        Dense::from_fn([self.k(), n], |i| self.b[i[0] * self.width + i[1]]).unwrap()
    }

    pub fn bias_columns(&self, n: usize) -> Dense<T> {
        Dense::new([n], self.bias_columns[..n].to_vec()).unwrap()
    }

    /// Output before a run: NaN for `=`, integers for `+=`.
    pub fn start(&self, x: &Expression, n: usize) -> Dense<T> {
        let nan = T::from_f64(f64::NAN);
        Dense::from_fn([self.m(), n], |i| {
            if x.accumulate { self.start[i[0] * self.width + i[1]] } else { nan }
        })
        .unwrap()
    }

    /// The product at (row, column), rounded once.
    pub fn exact(&self, row: usize, column: usize) -> T {
        T::from_f64(self.product[row * self.width + column])
    }

    /// Expected output at (row, column): exact, rounded once.
    pub fn expected(&self, x: &Expression, row: usize, column: usize) -> T {
        let at = row * self.width + column;
        let mut value = x.alpha() * self.product[at];
        value += match x.bias {
            Bias::None => 0.0,
            Bias::Rows => self.bias_rows.values()[row].to_f64(),
            Bias::Columns => self.bias_columns[column].to_f64(),
        };
        if x.relu && value < 0.0 {
            value = 0.0;
        }
        if x.accumulate {
            value += self.start[at].to_f64();
        }
        T::from_f64(value)
    }
}

/// Product in f64, row by row. `map` is applied to every term.
pub fn product<T: Scalar>(
    a: &Csr<T>,
    b: &[T],
    n: usize,
    map: impl Fn(f64) -> f64 + Sync,
) -> Vec<f64> {
    let pattern = a.pattern();
    let mut out = vec![0.0; pattern.rows() * n];
    if n == 0 {
        return out;
    }
    let wide: Vec<f64> = b.iter().map(|x| x.to_f64()).collect();
    out.par_chunks_mut(n).enumerate().for_each(|(row, out)| {
        for p in pattern.row(row) {
            let (value, k) = (a.values()[p].to_f64(), pattern.columns()[p] as usize);
            for (o, b) in out.iter_mut().zip(&wide[k * n..][..n]) {
                *o += map(value * b);
            }
        }
    });
    out
}

/// Checks every element for equality, and the guards between the rows. The message contains position and values.
pub fn assert_matrix<T: Scalar>(
    what: &dyn Debug,
    found: &[T],
    (rows, columns, leading): (usize, usize, usize),
    expected: impl Fn(usize, usize) -> T,
) {
    assert_eq!(found.len(), rows * leading, "{what:?}: length");
    let wrong = |i: &usize| {
        let (r, c) = (i / leading, i % leading);
        found[*i] != if c < columns { expected(r, c) } else { T::from_f64(GUARD) }
    };
    let Some(first) = (0..found.len()).find(wrong) else {
        return;
    };
    let count = (0..found.len()).filter(wrong).count();
    let (r, c) = (first / leading, first % leading);
    if c >= columns {
        panic!(
            "{what:?}: {count} of {} wrong, the gap behind row {r} was written: {}",
            found.len(),
            found[first]
        );
    }
    panic!(
        "{what:?}: {count} of {} wrong, first C[{r},{c}] = {}, expected {}",
        found.len(),
        found[first],
        expected(r, c)
    );
}
