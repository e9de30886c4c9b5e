//! Products of a language model's decoding: large unstructured weights, few columns. Measures bitmap tiles and slices
//! of rows, and cuBLAS' dense product of the same matrix, in one run. `2of4`: two of every four weights are nonzero,
//! stored as 2:4 and as bitmap.

use crate::check::product_error;
use crate::prelude::*;
use crate::values::hash;
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

/// Measures all shapes and densities.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for extents in EXTENTS {
        for kept in DENSITIES.map(Kept::Share).into_iter().chain([Kept::TwoOfFour]) {
            if !bench.arguments.named(&kept.name(extents)) {
                continue;
            }
            for dtype in bench.arguments.dtypes(&[Dtype::F16, Dtype::Bf16]) {
                match dtype {
                    Dtype::F16 => weights::<f16>(&bench.anew()?, extents, kept, dtype)?,
                    Dtype::Bf16 => weights::<bf16>(&bench.anew()?, extents, kept, dtype)?,
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
    let element = |i: usize| if kept.keeps(i) { value(i) } else { T::ZERO };
    let weights: Vec<T> = (0..m * k).into_par_iter().map(element).collect();
    let dense = Dense::new(vec![m, k], weights)?;
    let nnz = dense.values().par_iter().filter(|&&v| v != T::ZERO).count();
    let csr = convert::dense_to_csr(&dense)?;
    let mut forms = vec![
        stored(bench, nnz, || Ok(convert::dense_to_bitmap(&dense)?.into()))?,
        stored(bench, nnz, || Ok(AnySparse::from(csr.clone()).convert(Format::SlicedEll)?))?,
    ];
    match kept {
        Kept::TwoOfFour => {
            forms.push(stored(bench, nnz, || Ok(convert::dense_to_nm(&dense)?.into()))?);
        }
        Kept::Share(share) if share <= BYTES_UP_TO => {
            forms.push(stored(bench, nnz, || Ok(convert::csr_to_bytemap(&csr)?.into()))?);
        }
        Kept::Share(_) => {}
    }
    let for_cublas = Buffer::from_slice(dense.values())?;
    for n in bench.arguments.ns(&COLUMNS) {
        // Min bytes: positions as bits, values, and the dense operands.
        let bytes = m * k / 8 + nnz * 2 + (m + k) * n * 2;
        let row = Row::new("spmm", kept.name([m, k]), [m, k, n], nnz, dtype)
            .flops(2.0 * nnz as f64 * n as f64)
            .bytes(bytes as f64)
            .dense();
        let host = values::dense::<T>(&[k, n], 1, 1.0);
        let b = bench.upload(&host)?;
        for (a, note) in &forms {
            let operands = ab(a, &b);
            let chosen = match bench.plan::<T, T>(SPMM, &operands, &Options::default()) {
                Ok((plan, _)) => plan,
                // B does not fit into shared memory.
                Err(error) if error.to_string().contains("no kernel") => continue,
                Err(error) => return Err(error),
            };
            for variant in bench.variants(chosen.choice()) {
                if variant == Some(chosen.variant()) {
                    continue;
                }
                let row = row.clone().ours(variant.unwrap_or("auto")).note(note);
                bench.product::<T, T>(row, (SPMM, &forced(variant)), &operands, |c| {
                    let rows = (0..m).step_by(CHECKED);
                    product_error(|i, j| dense.values()[i * k + j], host.values(), c, rows)
                })?;
            }
        }
        let both = [for_cublas.ptr, at(&b)?];
        bench.whole(row.named("dense"), (dtype, [m, k, n], Order::Rows), both)?;
    }
    Ok(())
}

/// Weights in one format on the GPU, and a note with their size.
fn stored<T: Scalar>(
    bench: &Bench<'_>,
    nnz: usize,
    convert: impl FnOnce() -> Result<AnySparse<T>>,
) -> Result<(SparseTensor<T>, String)> {
    let (a, convert_ms) = timed(convert)?;
    // Bytes of positions, and of padding values.
    let index: usize = a.arrays().iter().map(|array| array.data.len() * 4).sum();
    let bytes = index + (a.slots() - nnz) * size_of::<T>();
    let places: usize = a.shape().iter().product();
    let note = format!(
        "on {}, {:.4} bits a position beside the values, converted in {convert_ms:.0} ms",
        a.format(),
        bytes as f64 * 8.0 / places as f64
    );
    Ok((bench.context.upload(a)?, note))
}
