//! A case is a problem, N and an element type. It has operands in device memory, and engines that run it.

use crate::device::{Buffer, Gpu, Result};
use crate::problems::{Dtype, Problem};
use half::{bf16, f16};
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};

/// Length of the table of random values. It is prime, so that rows of B differ.
const PERIOD: usize = 1_048_583;
/// Offset of B in the table, far from A.
const B_START: usize = 500_009;

/// Seeded normal values, rounded to one element type. Operands cycle through the table. Gigabytes of B thus need no
/// generation, and the reference can look up every element.
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

    /// Value of nonzero `p` of A.
    pub fn a(&self, p: usize) -> f64 {
        self.exact[p % PERIOD]
    }

    /// The first `count` values of A as host elements.
    pub fn entries<T: bytemuck::Pod>(&self, count: usize) -> Vec<T> {
        let table: Vec<T> = bytemuck::pod_collect_to_vec(&self.bytes);
        table.iter().copied().cycle().take(count).collect()
    }

    /// Element `i` of B, row-major.
    pub fn b(&self, i: usize) -> f64 {
        self.exact[(i + B_START) % PERIOD]
    }

    /// Uploads `elements` values, which begin at index `start` of the table.
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

/// Cache of tables.
#[derive(Default)]
pub struct Tables(Vec<Values>);

impl Tables {
    /// Table of an element type.
    pub fn of(&mut self, dtype: Dtype) -> &Values {
        let known = self.0.iter().position(|table| table.dtype == dtype);
        let known = known.unwrap_or_else(|| {
            self.0.push(Values::new(dtype));
            self.0.len() - 1
        });
        &self.0[known]
    }
}

/// Appends `value` in `dtype` and returns the rounded value.
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

/// Rounds to TF32, which has 10 fraction bits. Ties are rounded away from zero, as in cvt.rna.
fn tf32(value: f32) -> f32 {
    f32::from_bits(value.to_bits().wrapping_add(1 << 12) & !((1 << 13) - 1))
}

/// Converts one element to f64.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (Dtype::F64, &[a, b, c, d, e, f, g, h]) => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (Dtype::F32 | Dtype::Tf32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
        (Dtype::F16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f64(),
        (Dtype::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f64(),
        _ => f64::NAN,
    }
}

/// A in CSR and COO, B and C in device memory. Every engine uses the same buffers, for every N up to the largest.
pub struct Operands {
    /// Row offsets, u32[m + 1].
    pub offsets: Buffer,
    /// Row of each nonzero, u32[nnz].
    pub rows: Buffer,
    /// Column of each nonzero, u32[nnz].
    pub columns: Buffer,
    /// Values of A, [nnz].
    pub values: Buffer,
    /// B, row-major [k, n].
    pub b: Buffer,
    /// C, row-major [m, n].
    pub c: Buffer,
}

impl Operands {
    /// Uploads the pattern and the values. B and C have capacity for N = `widest`.
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

/// Task of an engine: C[m,n] = A[m,k] * B[k,n].
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub gpu: &'a Gpu,
    pub problem: &'a Problem,
    /// Values of A and B.
    pub values: &'a Values,
    /// Operands in device memory.
    pub operands: &'a Operands,
    pub n: usize,
}

impl Case<'_> {
    /// Queues a conversion of A to the row-major matrix `dense`, `[m, k]`.
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

/// Closure that queues one operation on the GPU's stream.
pub type Run<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Operation that is ready to be timed.
pub struct Prepared<'a> {
    pub run: Run<'a>,
    /// Milliseconds of the preparation, which is done once.
    pub prepare_ms: f64,
    /// Bytes that the preparation allocates in addition to A.
    pub prepared_bytes: usize,
    /// `strict` or `dense`: whether implicit zeros are multiplied.
    pub zeros: &'static str,
    /// Further work that the time excludes.
    pub note: String,
}

pub trait Engine {
    /// Name in the record.
    fn name(&self) -> &'static str;
    /// Variants to time for a case. Empty if the engine does not support it.
    fn variants(&self, case: &Case<'_>) -> Vec<String>;
    /// Builds the data that the variant needs in addition to A.
    fn prepare<'a>(&'a self, case: &Case<'a>, variant: &str) -> Result<Prepared<'a>>;
    /// Whether only the best variant is recorded (baselines) or each one (einsparse).
    fn best_only(&self) -> bool {
        true
    }
    /// Max relative error (Frobenius norm) of a baseline's result. `None` for einsparse, which must satisfy the
    /// element-wise error bound.
    fn tolerance(&self, dtype: Dtype) -> Option<f64>;
}
