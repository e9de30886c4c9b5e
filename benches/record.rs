//! The record: a CSV file with one row per engine. Each row is written immediately.

use crate::device::Result;
use crate::problems::{Dtype, Problem};
use crate::timing::Times;
use serde::{Serialize, Serializer};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of einsparse in the record.
pub const OURS: &str = "einsparse";
/// Prefix of the note of a wrong result.
const WRONG: &str = "WRONG";

/// Row of the record. The order of the fields is that of the columns of published records.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Date, UTC.
    pub date: String,
    /// Commit that the binary was built from.
    pub commit: String,
    /// Name of the GPU, or `none`.
    pub gpu: String,
    /// Driver version.
    pub driver: String,
    /// Operation.
    pub op: String,
    /// Workload.
    pub workload: String,
    /// Rows of A.
    pub m: usize,
    /// Columns of A.
    pub k: usize,
    /// Columns of B.
    pub n: usize,
    /// Nonzeros of A.
    pub nnz: usize,
    /// Element type.
    pub dtype: String,
    /// `einsparse` or the baseline.
    pub engine: String,
    /// `auto`, the variant, or the baseline's algorithm.
    pub variant: String,
    /// Milliseconds with a cold L2 cache.
    #[serde(serialize_with = "six_digits")]
    pub ms: f64,
    /// Milliseconds with a warm L2 cache.
    #[serde(serialize_with = "six_digits_if_any")]
    pub ms_warm: Option<f64>,
    /// 2 nnz N / ms.
    #[serde(serialize_with = "six_digits_if_any")]
    pub gflops: Option<f64>,
    /// Compulsory bytes / ms.
    #[serde(serialize_with = "six_digits_if_any")]
    pub gbps: Option<f64>,
    /// Larger of the min times (A) and (C), over ms.
    #[serde(serialize_with = "six_digits_if_any")]
    pub limit_fraction: Option<f64>,
    /// Milliseconds of the preparation.
    #[serde(serialize_with = "six_digits_if_any")]
    pub prepare_ms: Option<f64>,
    /// Bytes that the preparation allocates.
    pub prepared_bytes: Option<usize>,
    /// `strict` or `dense`.
    pub zeros: String,
    /// Algorithm, work that the time excludes, error against the reference.
    pub note: String,
    /// Work of the case, from which the rates are derived.
    #[serde(skip)]
    pub work: Work,
}

/// Work of a case. Engines share it; the recorder derives the rates from it and the engine's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    flops: Option<f64>,
    bytes: Option<f64>,
    floor_ms: Option<f64>,
}

/// Rounds to six significant digits: the GPU's clock has a resolution of half a microsecond, so further digits are
/// noise.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn six_digits<S: Serializer>(value: &f64, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_f64(rounded(*value))
}

fn six_digits_if_any<S: Serializer>(
    value: &Option<f64>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    value.map(rounded).serialize(to)
}

/// Destination of rows: a file, or only the screen.
pub struct Recorder {
    file: Option<RefCell<csv::Writer<File>>>,
    stamp: Row,
    rows: Cell<usize>,
    wrong: Cell<usize>,
}

impl Recorder {
    /// Creates the file `path` (overwriting it), if one is given.
    pub fn create(path: Option<&Path>, gpu: &str, driver: &str) -> Result<Self> {
        let open = |path: &Path| {
            let writer = csv::Writer::from_path(path);
            writer.map_err(|e| format!("{}: {e}", path.display()))
        };
        let stamp = Row {
            date: today(),
            commit: commit(),
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            ..Row::default()
        };
        Ok(Self {
            file: path.map(open).transpose()?.map(RefCell::new),
            stamp,
            rows: Cell::new(0),
            wrong: Cell::new(0),
        })
    }

    pub fn rows(&self) -> usize {
        self.rows.get()
    }

    /// Number of wrong results and failures of einsparse so far.
    pub fn wrong(&self) -> usize {
        self.wrong.get()
    }

    /// Counts a failure of einsparse.
    pub fn fail(&self) {
        self.wrong.set(self.wrong.get() + 1);
    }

    /// Completes, prints and writes one row. A row whose note begins with WRONG has no times and no rates.
    pub fn add(&self, mut row: Row) -> Result<()> {
        if row.is_wrong() {
            (row.ms, row.ms_warm, row.work) = (f64::NAN, None, Work::default());
            if row.engine == OURS {
                self.fail();
            }
        }
        let rate = |work: f64| work / row.ms / 1e6;
        row.gflops = row.work.flops.map(rate);
        row.gbps = row.work.bytes.map(rate);
        row.limit_fraction = row.work.floor_ms.map(|ms| ms / row.ms);
        row.date.clone_from(&self.stamp.date);
        row.commit.clone_from(&self.stamp.commit);
        row.gpu.clone_from(&self.stamp.gpu);
        row.driver.clone_from(&self.stamp.driver);
        println!("{}", line(&row));
        self.rows.set(self.rows.get() + 1);
        if let Some(file) = &self.file {
            let mut file = file.borrow_mut();
            file.serialize(&row).map_err(|e| format!("record: {e}"))?;
            file.flush().map_err(|e| format!("record: {e}"))?;
        }
        Ok(())
    }
}

/// Whether a record's file was made at this program's commit and contains no wrong result.
pub fn is_of_this_commit(path: &Path) -> bool {
    let Ok(mut reader) = csv::Reader::from_path(path) else {
        return false;
    };
    let place = |header: &csv::StringRecord| header.iter().position(|name| name == "commit");
    let Ok(Some(column)) = reader.headers().map(place) else {
        return false;
    };
    let commit = commit();
    let rows: Vec<csv::StringRecord> = reader.records().filter_map(|row| row.ok()).collect();
    let own = rows.iter().all(|row| row.get(column) == Some(&commit));
    let wrong = |row: &csv::StringRecord| row.iter().any(|field| field.starts_with(WRONG));
    !rows.is_empty() && own && !commit.ends_with("-dirty") && !rows.iter().any(wrong)
}

fn line(row: &Row) -> String {
    let warm = row.ms_warm.map_or(String::new(), |ms| format!("{:10.2} us warm", ms * 1e3));
    let rate = match (row.gflops, row.gbps) {
        (Some(rate), _) => format!("{rate:9.0} GFLOP/s"),
        (None, Some(rate)) => format!("{rate:9.0} GB/s"),
        (None, None) => String::new(),
    };
    let limit =
        row.limit_fraction.map_or(String::new(), |share| format!("{:4.0} %", share * 100.0));
    format!(
        "{:10} {:40} n {:5} {:4} {:12} {:20} {:11.2} us {warm} {rate} {limit}  {}",
        row.op,
        row.workload,
        row.n,
        row.dtype,
        row.engine,
        row.variant,
        row.ms * 1e3,
        row.note
    )
}

/// Bytes per second of a large copy, read and written, and of L2, measured on one H200.
pub const HBM: f64 = 4.28e12;
pub const L2: f64 = 8.9e12;
/// Operations per second of a large dense product, measured on one H200.
const RATES: [(Dtype, f64); 5] = [
    (Dtype::F32, 51.3e12),
    (Dtype::F64, 60e12),
    (Dtype::Tf32, 400e12),
    (Dtype::F16, 766e12),
    (Dtype::Bf16, 801e12),
];

impl Row {
    /// Row of an operation on `[m, k, n]`, with `nnz` nonzeros in A.
    pub fn new(
        op: &str,
        workload: impl Into<String>,
        [m, k, n]: [usize; 3],
        nnz: usize,
        dtype: impl Display,
    ) -> Self {
        Self {
            op: op.into(),
            workload: workload.into(),
            m,
            k,
            n,
            nnz,
            dtype: dtype.to_string(),
            ..Self::default()
        }
    }

    /// Row of a product with `n` columns, with its work.
    pub fn product(problem: &Problem, n: usize, dtype: Dtype) -> Self {
        let (m, k, nnz) = problem.extents();
        Self::new(problem.op, &problem.workload, [m, k, n], nnz, dtype).rated(
            dtype,
            2.0 * nnz as f64 * n as f64,
            problem.bytes(n, dtype),
        )
    }

    /// Sets operations, bytes, and the min time of a case: (A) bytes once over HBM, (C) arithmetic.
    pub fn rated(self, dtype: Dtype, flops: f64, bytes: f64) -> Self {
        let rate = RATES.iter().find(|(known, _)| *known == dtype).map_or(f64::INFINITY, |r| r.1);
        self.flops(flops).bytes(bytes).limit(1e3 * (bytes / HBM).max(flops / rate))
    }

    pub fn by(self, engine: &str, variant: impl Into<String>) -> Self {
        Self { engine: engine.into(), variant: variant.into(), ..self }
    }

    /// Sets the variant.
    pub fn named(self, variant: impl Into<String>) -> Self {
        Self { variant: variant.into(), ..self }
    }

    /// Sets the engine to einsparse, and the variant.
    pub fn ours(self, variant: impl Into<String>) -> Self {
        self.by(OURS, variant)
    }

    /// Sets the cold and the warm time.
    pub fn timed(self, times: &Times) -> Self {
        Self { ms: times.cold, ms_warm: Some(times.warm), ..self }
    }

    /// Sets the number of operations.
    pub fn flops(mut self, flops: f64) -> Self {
        self.work.flops = Some(flops);
        self
    }

    /// Sets the number of bytes.
    pub fn bytes(mut self, bytes: f64) -> Self {
        self.work.bytes = Some(bytes);
        self
    }

    /// Sets the min time.
    pub fn limit(mut self, floor_ms: f64) -> Self {
        self.work.floor_ms = Some(floor_ms);
        self
    }

    /// Removes the min time.
    pub fn unlimited(mut self) -> Self {
        self.work.floor_ms = None;
        self
    }

    /// Sets milliseconds and bytes of the preparation.
    pub fn prepared(self, ms: impl Into<Option<f64>>, bytes: impl Into<Option<usize>>) -> Self {
        Self { prepare_ms: ms.into(), prepared_bytes: bytes.into(), ..self }
    }

    /// Marks that implicit zeros are multiplied.
    pub fn dense(self) -> Self {
        let zeros = "dense".into();
        Self { zeros, ..self }
    }

    /// Marks that implicit zeros are skipped.
    pub fn strict(self) -> Self {
        let zeros = "strict".into();
        Self { zeros, ..self }
    }

    pub fn note(self, note: impl Into<String>) -> Self {
        let note = note.into();
        Self { note, ..self }
    }

    /// Adds to the note.
    pub fn also(mut self, note: impl Display) -> Self {
        let between = if self.note.is_empty() { "" } else { "; " };
        self.note += &format!("{between}{note}");
        self
    }

    pub fn is_wrong(&self) -> bool {
        self.note.starts_with(WRONG)
    }

    /// Marks a wrong result.
    pub fn wrong(self) -> Self {
        let note = format!("{WRONG}: {}", self.note);
        Self { note, ..self }
    }

    /// Adds an error in multiples of its bound to the note. The result is wrong above 1.
    pub fn error(self, error: f64) -> Self {
        let row = self.also(format!("err {error:.2} of the bound"));
        match error <= 1.0 {
            true => row,
            false => row.wrong(),
        }
    }
}

/// Commit: EINSPARSE_COMMIT at run time or at build time, or else the output of git.
fn commit() -> String {
    let given = std::env::var("EINSPARSE_COMMIT").ok();
    let given = given.or_else(|| option_env!("EINSPARSE_COMMIT").map(str::to_owned));
    given.filter(|c| !c.is_empty()).unwrap_or_else(|| {
        let output = Command::new("git")
            .args(["describe", "--always", "--dirty", "--exclude=*"])
            .output()
            .ok();
        let text =
            output.filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
        text.map_or_else(|| "unknown".into(), |t| t.trim().to_owned())
    })
}

/// Current date in UTC as yyyy-mm-dd (days to civil date, proleptic Gregorian, eras of 400 years).
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let civil = era * 400 + year + u64::from(month <= 2);
    format!("{civil:04}-{month:02}-{:02}", day - (153 * march + 2) / 5 + 1)
}
