//! One case = problem x N x element type, its operands on the device, and what an engine has to offer for it.

use crate::device::{Buffer, Gpu, Result};
use crate::problems::{Dtype, Problem};
use half::{bf16, f16};
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};

/// Length of the table of random values; prime, so that rows of B do not repeat each other.
const PERIOD: usize = 1_048_583;
/// Where B starts in the table, away from A.
const B_START: usize = 500_009;

/// Seeded normal values, rounded to one element type. Operands cycle through the table, so that gigabytes of B
/// need no generation and the reference can look every element up.
pub struct Values {
    pub dtype: Dtype,
    exact: Vec<f64>,
    bytes: Vec<u8>,
}

impl Values {
    pub fn new(dtype: Dtype) -> Self {
        let mut rng = StdRng::seed_from_u64(7);
        let normal = |_| -> f64 { StandardNormal.sample(&mut rng) };
        let mut exact: Vec<f64> = (0..PERIOD).map(normal).collect();
        let mut bytes = Vec::with_capacity(PERIOD * dtype.size());
        for value in &mut exact {
            *value = encode(dtype, *value, &mut bytes);
        }
        Self { dtype, exact, bytes }
    }

    /// Value of entry `p` of A.
    pub fn a(&self, p: usize) -> f64 {
        self.exact[p % PERIOD]
    }

    /// The first `count` values of A, as the host holds them.
    pub fn entries<T: bytemuck::Pod>(&self, count: usize) -> Vec<T> {
        let table: Vec<T> = bytemuck::pod_collect_to_vec(&self.bytes);
        table.iter().copied().cycle().take(count).collect()
    }

    /// Element `i` of B, row-major.
    pub fn b(&self, i: usize) -> f64 {
        self.exact[(i + B_START) % PERIOD]
    }

    /// Writes `elements` values to the device, beginning at `start` in the table.
    pub fn upload(&self, elements: usize, start: usize) -> Result<Buffer> {
        let size = self.dtype.size();
        let buffer = Buffer::new(elements * size)?;
        let mut done = 0;
        while done < elements {
            let from = (start + done) % PERIOD;
            let count = (PERIOD - from).min(elements - done);
            buffer.write(done * size, &self.bytes[from * size..(from + count) * size])?;
            done += count;
        }
        Ok(buffer)
    }
}

/// The tables made by now.
#[derive(Default)]
pub struct Tables(Vec<Values>);

impl Tables {
    /// That of an element type.
    pub fn of(&mut self, dtype: Dtype) -> &Values {
        let known = self.0.iter().position(|table| table.dtype == dtype);
        let known = known.unwrap_or_else(|| {
            self.0.push(Values::new(dtype));
            self.0.len() - 1
        });
        &self.0[known]
    }
}

/// Appends `value` in `dtype` and returns what it was rounded to.
fn encode(dtype: Dtype, value: f64, bytes: &mut Vec<u8>) -> f64 {
    match dtype {
        Dtype::F64 => bytes.extend(value.to_ne_bytes()),
        Dtype::F32 => bytes.extend((value as f32).to_ne_bytes()),
        Dtype::Tf32 => bytes.extend(tf32(value as f32).to_ne_bytes()),
        Dtype::F16 => bytes.extend(f16::from_f64(value).to_ne_bytes()),
        Dtype::Bf16 => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
    }
    decode(dtype, &bytes[bytes.len() - dtype.size()..])
}

/// The nearest number with TF32's 10 fraction bits, ties away from zero as in cvt.rna.
fn tf32(value: f32) -> f32 {
    f32::from_bits(value.to_bits().wrapping_add(1 << 12) & !((1 << 13) - 1))
}

/// One element as f64.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (Dtype::F64, &[a, b, c, d, e, f, g, h]) => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (Dtype::F32 | Dtype::Tf32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
        (Dtype::F16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f64(),
        (Dtype::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f64(),
        _ => f64::NAN,
    }
}

/// A in CSR and COO, B and C, on the device; the same buffers for every engine and every N up to the largest.
pub struct Operands {
    /// Row offsets, u32[m + 1].
    pub offsets: Buffer,
    /// Row of each entry, u32[nnz].
    pub rows: Buffer,
    /// Column of each entry, u32[nnz].
    pub columns: Buffer,
    /// Values of A, [nnz].
    pub values: Buffer,
    /// B, row-major [k, n].
    pub b: Buffer,
    /// C, row-major [m, n].
    pub c: Buffer,
}

impl Operands {
    /// Uploads the pattern and the values, with room for N = `widest`.
    pub fn upload(problem: &Problem, values: &Values, widest: usize) -> Result<Self> {
        let (m, k, nnz) = problem.extents();
        let offsets = problem.pattern.offsets();
        let mut rows = Vec::with_capacity(nnz);
        for (row, ends) in offsets.windows(2).enumerate() {
            rows.extend(std::iter::repeat_n(row as u32, (ends[1] - ends[0]) as usize));
        }
        Ok(Self {
            offsets: Buffer::from_slice(offsets)?,
            rows: Buffer::from_slice(&rows)?,
            columns: Buffer::from_slice(problem.pattern.columns())?,
            values: values.upload(nnz, 0)?,
            b: values.upload(k * widest, B_START)?,
            c: Buffer::new(m * widest * values.dtype.size())?,
        })
    }
}

/// What an engine is asked to do: C[m,n] = A[m,k] * B[k,n].
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub gpu: &'a Gpu,
    pub problem: &'a Problem,
    /// The values of A and B.
    pub values: &'a Values,
    /// The device's copy of all of it.
    pub operands: &'a Operands,
    pub n: usize,
}

impl Case<'_> {
    /// Queues zeros and the entries of A into `dense`, row-major `[m, k]`.
    pub fn densify(&self, dense: &Buffer) -> Result<()> {
        let (_, k, nnz) = self.problem.extents();
        let from = self.operands;
        dense.fill(0, self.gpu.stream)?;
        let sparse = [from.rows.ptr, from.columns.ptr, from.values.ptr];
        self.gpu.scatter(self.dtype().size(), dense.ptr, sparse, nnz, k)
    }

    pub fn dtype(&self) -> Dtype {
        self.values.dtype
    }
}

/// Queues one operation on the GPU's stream.
pub type Run<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Something that can be timed.
pub struct Prepared<'a> {
    pub run: Run<'a>,
    /// Milliseconds spent beside A, once.
    pub prepare_ms: f64,
    /// Bytes built beside A.
    pub prepared_bytes: usize,
    /// `strict` or `dense`: whether implicit zeros are multiplied.
    pub zeros: &'static str,
    /// What else was left out of the time.
    pub note: String,
}

pub trait Engine {
    /// Name in the record.
    fn name(&self) -> &'static str;
    /// The variants worth timing for a case; none = not for this engine.
    fn variants(&self, case: &Case<'_>) -> Vec<String>;
    /// Builds what the variant needs beside A.
    fn prepare<'a>(&'a self, case: &Case<'a>, variant: &str) -> Result<Prepared<'a>>;
    /// Whether only the best variant goes into the record (peers) or each (ours).
    fn best_only(&self) -> bool {
        true
    }
    /// Largest relative error (Frobenius norm) for which a peer counts as right; none = ours, held to the
    /// element-wise bound of the contract.
    fn tolerance(&self, dtype: Dtype) -> Option<f64>;
}
