//! Products of a language model's decoding: large unstructured weights, few columns. Measures bitmap tiles and slices
//! of rows, and cuBLAS' dense product of the same matrix, in one run. `2of4`: two of every four weights are nonzero,
//! stored as 2:4 and as bitmap.

use crate::prelude::*;
use einsparse::formats::{AnySparse, Format, convert};
use rayon::prelude::*;

/// Rows and columns of the weights.
pub const EXTENTS: [[usize; 2]; 5] =
    [[4096, 4096], [11008, 4096], [4096, 11008], [28672, 8192], [8192, 28672]];
pub const DENSITIES: [f64; 4] = [0.5, 0.3, 0.1, 0.05];
/// Max density at which positions are also stored as bytes. Above it they take more than 1.1 bits per position.
pub const BYTES_UP_TO: f64 = 0.11;
const COLUMNS: [usize; 5] = [1, 8, 16, 32, 64];
/// Stride of the checked rows of C.
const CHECKED: usize = 997;

fn hash(i: usize) -> u64 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Uniform value in -1 .. 1.
fn unit(i: usize) -> f64 {
    (hash(i) >> 40) as f64 / (1 << 23) as f64 - 1.0
}

/// Measures all shapes and densities.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for [m, k] in EXTENTS {
        for kept in DENSITIES.map(Kept::Share).into_iter().chain([Kept::TwoOfFour]) {
            if !bench.arguments.named(&kept.name([m, k])) {
                continue;
            }
            for dtype in bench.arguments.dtypes(&[Dtype::F16, Dtype::Bf16]) {
                match dtype {
                    Dtype::F16 => weights::<f16>(&bench.anew()?, [m, k], kept, dtype)?,
                    Dtype::Bf16 => weights::<bf16>(&bench.anew()?, [m, k], kept, dtype)?,
                    other => println!("decode has no {other}"),
                }
            }
        }
    }
    Ok(())
}

/// Positions of the nonzero weights.
#[derive(Clone, Copy)]
enum Kept {
    /// This share of all weights.
    Share(f64),
    /// Any two of every four neighbours.
    TwoOfFour,
}

impl Kept {
    fn name(self, [m, k]: [usize; 2]) -> String {
        match self {
            Kept::Share(share) => format!("decode-{m}x{k}-d{share}"),
            Kept::TwoOfFour => format!("decode-{m}x{k}-2of4"),
        }
    }

    fn keeps(self, i: usize) -> bool {
        match self {
            Kept::Share(share) => hash(i) & 0xffff_ffff < (share * (1u64 << 32) as f64) as u64,
            Kept::TwoOfFour => {
                let pairs = [0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100];
                pairs[(hash(i / 4) & 0xffff) as usize % 6] >> (i % 4) & 1 != 0
            }
        }
    }
}

fn weights<T: Scalar>(
    bench: &Bench<'_>,
    [m, k]: [usize; 2],
    kept: Kept,
    dtype: Dtype,
) -> Result<()> {
    let element = |i: usize| match kept.keeps(i) {
        true => T::from_f64(unit(i)),
        false => T::ZERO,
    };
    let values: Vec<T> = (0..m * k).into_par_iter().map(element).collect();
    let dense = Dense::new(vec![m, k], values)?;
    let nnz = dense.values().par_iter().filter(|&&v| v != T::ZERO).count();
    let mut forms = vec![Stored::new(bench, nnz, || Ok(convert::dense_to_bitmap(&dense)?.into()))?];
    let csr = convert::dense_to_csr(&dense)?;
    forms.push(Stored::new(bench, nnz, || {
        Ok(AnySparse::from(csr.clone()).convert(Format::SlicedEll)?)
    })?);
    match kept {
        Kept::TwoOfFour => {
            forms.push(Stored::new(bench, nnz, || Ok(convert::dense_to_nm(&dense)?.into()))?)
        }
        Kept::Share(share) if share <= BYTES_UP_TO => {
            forms.push(Stored::new(bench, nnz, || Ok(convert::csr_to_bytemap(&csr)?.into()))?)
        }
        Kept::Share(_) => {}
    }
    let weights = Weights {
        bench,
        for_cublas: Buffer::from_slice(dense.values())?,
        dense,
        extents: [m, k],
        nnz,
        name: kept.name([m, k]),
        dtype,
    };
    for n in bench.arguments.ns(&COLUMNS) {
        for stored in &forms {
            weights.ours(stored, n)?;
        }
        weights.peer(n)?;
    }
    Ok(())
}

/// A matrix, with data that its cases share.
struct Weights<'a, T> {
    bench: &'a Bench<'a>,
    dense: Dense<T>,
    for_cublas: Buffer,
    extents: [usize; 2],
    nnz: usize,
    name: String,
    dtype: Dtype,
}

/// Weights in one format.
struct Stored<T> {
    on_gpu: SparseTensor<T>,
    note: String,
}

impl<T: Scalar> Stored<T> {
    fn new(
        bench: &Bench<'_>,
        nnz: usize,
        convert: impl FnOnce() -> Result<AnySparse<T>>,
    ) -> Result<Self> {
        let (a, convert_ms) = timed(convert)?;
        // Bytes of positions, and of padding values.
        let index: usize = a.arrays().iter().map(|array| array.data.len() * 4).sum();
        let bytes = index + (a.slots() - nnz) * size_of::<T>();
        let places: usize = a.shape().iter().product();
        let note = format!(
            "{}, {:.4} bits a position beside the values, converted in {convert_ms:.0} ms",
            a.format(),
            bytes as f64 * 8.0 / places as f64
        );
        let on_gpu = bench.context.upload(a)?;
        Ok(Stored { on_gpu, note })
    }
}

impl<T: Scalar> Weights<'_, T> {
    fn b(&self, n: usize) -> Result<Dense<T>> {
        let values = (0..self.extents[1] * n).into_par_iter();
        let values = values.map(|i| T::from_f64(unit(i + 7777)));
        Ok(Dense::new(vec![self.extents[1], n], values.collect())?)
    }

    fn row(&self, n: usize, times: &Times) -> Row {
        let [m, k] = self.extents;
        // Min bytes: positions as bits, values, and the dense operands.
        let a = m * k / 8 + self.nnz * 2;
        Row::new("spmm", &self.name, [m, k, n], self.nnz, self.dtype)
            .timed(times)
            .flops(2.0 * self.nnz as f64 * n as f64)
            .bytes((a + (m + k) * n * 2) as f64)
            .dense()
    }

    /// Measures the plan's choice, and every other kernel that it could select.
    fn ours(&self, stored: &Stored<T>, n: usize) -> Result<()> {
        let bench = self.bench;
        let host = self.b(n)?;
        let b = bench.upload(&host)?;
        let operands: [(&str, Operand<'_, T>); 2] =
            [("A", (&stored.on_gpu).into()), ("B", (&b).into())];
        let mut c = bench.zeros(&[self.extents[0], n])?;
        let planned = |name| bench.plan::<T, T>(SPMM, &operands, &forced(name));
        let chosen = match planned(None) {
            Ok((plan, _)) => plan,
            // B does not fit into shared memory.
            Err(error) if error.to_string().contains("no kernel") => return Ok(()),
            Err(error) => return Err(error),
        };
        let candidates = chosen.choice().candidates.iter();
        let wanted = if bench.arguments.auto { 1 } else { usize::MAX };
        for (i, name) in candidates.map(|c| c.name).take(wanted).enumerate() {
            let (plan, prepare_ms) = planned(Some(name))?;
            let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
            self.check(&host, &c)?;
            let variant = if i == 0 { "auto" } else { name };
            let row = self.row(n, &times).ours(variant);
            let row = row.prepared(prepare_ms, plan.workspace_bytes());
            bench.add(row.note(format!("{name} on {}", stored.note)))?;
        }
        Ok(())
    }

    fn peer(&self, n: usize) -> Result<()> {
        let Some(library) = or_said(CuBlas::open(self.bench.gpu, false), "cublas") else {
            return Ok(());
        };
        let [m, k] = self.extents;
        let b = Buffer::from_slice(self.b(n)?.values())?;
        let c = Buffer::new(m * n * 2)?;
        let pointers = [self.for_cublas.ptr, b.ptr, c.ptr];
        let times = (self.bench).measure(|| library.gemm(self.dtype, [m, k, n], pointers))?;
        self.bench.add(self.row(n, &times).by("cublas", "dense"))
    }

    /// Compares some rows of C with sums in f64.
    fn check(&self, b: &Dense<T>, c: &Tensor<T>) -> Result<()> {
        let c = c.to_dense()?;
        let ([m, k], n) = (self.extents, b.shape()[1]);
        let (out, _) = self.dtype.roundoff();
        let rows: Vec<usize> = (0..m).step_by(CHECKED).collect();
        let dense = self.dense.values();
        rows.par_iter().try_for_each(|&row| {
            let line = &dense[row * k..][..k];
            for column in 0..n {
                let terms = line.iter().zip(b.values()[column..].iter().step_by(n));
                let terms = terms.map(|(x, y)| x.to_f64() * y.to_f64());
                let Sum { value: sum, size } = terms.collect();
                let found = c.values()[row * n + column].to_f64();
                let bound = out * f64::abs(sum) + size * (k as f64).sqrt() * 2f64.powi(-22) + 1e-6;
                if (found - sum).abs() > bound || !found.is_finite() {
                    let place = format!("row {row}, column {column}");
                    return Err(format!("WRONG: {found} in {place}, not {sum}").into());
                }
            }
            Ok(())
        })
    }
}
