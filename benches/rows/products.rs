//! Products of one sparse or dense matrix with dense ones: the workloads of the tables, and further widths, storage
//! orders and formats.

use super::{Rows, values};
use crate::families::gemm::dense::SHAPES;
use crate::families::spmm::decode;
use crate::ours::convert;
use crate::prelude::*;
use crate::problems;
use einsparse::formats::{
    AnySparse, Bsr, BsrPattern, Coo, CooPattern, CsrPattern, E4m3, E5m2, Format, generate,
};
use std::sync::Arc;

const GROUPS: Format = Format::GroupCoo { axis: 0, group: None };
const TURNED: &str = "C[m,n] = A[k,m] * B[k,n]";
const BY_COLUMNS: &str = "C[m,n] = A[m,k] * B[n,k]";
/// Widths of the dense operand: vectors of every size, tiles and their edges.
const WIDTHS: &[usize] =
    &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 130, 192, 256, 320, 512, 768, 1023];
const ALL: [Dtype; 5] = Dtype::ALL;
const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

pub fn run(rows: &mut Rows<'_>) -> Result<()> {
    tables(rows)?;
    for (name, source) in patterns() {
        for dtype in ALL {
            by_dtype!(dtype, T => widths::<T>(rows, name, &source, dtype))?;
        }
    }
    for dtype in [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16] {
        by_dtype!(dtype, T => batched::<T>(rows, dtype))?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Tf32] {
        by_dtype!(dtype, T => blocks::<T>(rows, dtype))?;
        by_dtype!(dtype, T => dense::<T>(rows, dtype))?;
    }
    for dtype in HALVES {
        by_dtype!(dtype, T => bitmaps::<T>(rows, dtype))?;
        by_dtype!(dtype, T => two_of_four::<T, T>(rows, SPMM))?;
    }
    two_of_four::<i8, i32>(rows, BY_COLUMNS)?;
    two_of_four::<i8, f16>(rows, BY_COLUMNS)?;
    narrow::<E4m3, f16>(rows)?;
    narrow::<E5m2, f16>(rows)?;
    narrow::<i8, i32>(rows)?;
    integers(rows)
}

/// Patterns that are measured with every width.
fn patterns() -> Vec<(&'static str, Source)> {
    vec![
        ("uniform-8192x2048-d0.05", Source::Uniform(8192, 2048, 0.05)),
        ("uniform-16384-d0.001", Source::Uniform(16384, 16384, 0.001)),
        ("uniform-256-d0.1", Source::Uniform(256, 256, 0.1)),
        ("tall-131072x256-d0.05", Source::Uniform(131_072, 256, 0.05)),
        ("long-256x65536-d0.02", Source::Uniform(256, 65536, 0.02)),
        ("rmat14", Source::Rmat(14)),
    ]
}

pub fn entries_of<T: Scalar>(pattern: &Arc<CsrPattern>) -> Result<AnySparse<T>> {
    let values = values(pattern.columns().len(), 0);
    Ok(Csr::new(Arc::clone(pattern), values)?.into())
}

/// Matrix of a source in CSR, on the GPU.
fn uploaded<T: Scalar>(
    rows: &Rows<'_>,
    op: &'static str,
    name: &str,
    source: Source,
) -> Result<SparseTensor<T>> {
    let problem = Problem::of(op, name, source)?;
    Ok(rows.context.upload(entries_of::<T>(&problem.pattern)?)?)
}

/// A product: operation and name of its cases, options, and items of a batch.
type Asked<'a> = (&'a str, &'a str, &'a Options, usize);

/// Measures A times matrices of several widths, by every expression.
fn times<T: Scalar, Out: Scalar>(
    rows: &mut Rows<'_>,
    (op, name, options, items): Asked<'_>,
    (a, shape): (Operand<'_, T>, &[usize]),
    expressions: &[&str],
    ns: &[usize],
) -> Result<()> {
    for &n in ns {
        for &expression in expressions {
            let axes = |name: &str| {
                let own = expression.split(&format!(" {name}[")).nth(1);
                own.and_then(|own| own.split(']').next()).unwrap_or("").split(',')
            };
            // Axes that A has too are as long as A's.
            let extent = |axis: &str| match axes("A").position(|own| own == axis) {
                Some(at) => shape[at],
                None if axis == "z" => items,
                None => n,
            };
            let b = rows.dense::<T>(&axes("B").map(extent).collect::<Vec<_>>())?;
            let case = match expressions {
                [_] => format!("{name} n{n}"),
                _ => format!("{name} n{n} {expression}"),
            };
            rows.product::<T, Out>((op, case), expression, (a.clone(), &b), options)?;
        }
    }
    Ok(())
}

/// Formats of unstructured matrices that kernels read.
fn formats(dtype: Dtype) -> Vec<Format> {
    let mut formats = vec![Format::Csr, GROUPS];
    if dtype == Dtype::F32 {
        formats.push(Format::SlicedEll);
    }
    formats
}

/// Blocks with values.
pub fn full<T: Scalar>(pattern: BsrPattern) -> Result<Bsr<T>> {
    let (bm, bk) = pattern.block();
    let slots = pattern.columns().len() * bm * bk;
    Ok(Bsr::new(pattern, values::<T>(slots, 0))?)
}

/// Measures the tables of `spmm` as in the sweep, without the largest graph.
fn tables(rows: &mut Rows<'_>) -> Result<()> {
    let all = problems::workloads(problems::data().as_deref());
    for workload in all.iter().filter(|w| w.op == "spmm" && w.name != "rmat20") {
        let large = workload.name.contains("1M");
        let (ns, dtypes): (&[usize], &[Dtype]) = match large {
            true => (&[32, 128], &[Dtype::F32]),
            false => (workload.ns, workload.dtypes),
        };
        for &dtype in dtypes {
            let name = format!("{} {dtype}", workload.name);
            rows.group("spmm", &name, |rows| {
                let problem = Problem::load(workload)?;
                let asked = (&formats(dtype)[..], ns);
                by_dtype!(dtype, T => entries::<T>(rows, &name, &problem.pattern, dtype, asked))
            })?;
        }
    }
    Ok(())
}

/// Measures an unstructured matrix in several formats, times matrices of several widths.
fn entries<T: Scalar>(
    rows: &mut Rows<'_>,
    name: &str,
    pattern: &Arc<CsrPattern>,
    dtype: Dtype,
    (formats, ns): (&[Format], &[usize]),
) -> Result<()> {
    let csr = entries_of::<T>(pattern)?;
    for &format in formats {
        let a = match convert(&csr, format) {
            Ok(a) => rows.context.upload(a)?,
            Err(reason) => {
                println!("{name} as {format}: {reason}");
                continue;
            }
        };
        for &n in ns {
            let b = rows.dense::<T>(&[pattern.cols(), n])?;
            let case = ("spmm", format!("{name} n{n} {format}"));
            rows.product::<T, T>(case, SPMM, (&a, &b), &precise(dtype))?;
        }
    }
    Ok(())
}

fn widths<T: Scalar>(rows: &mut Rows<'_>, name: &str, source: &Source, dtype: Dtype) -> Result<()> {
    let name = &format!("{name} {dtype}");
    rows.group("spmm", name, |rows| {
        let problem = Problem::of("spmm", name, source.clone())?;
        let pattern = &problem.pattern;
        let hybrid = (&[Format::HybridGroupCoo][..], &[32, 128][..]);
        entries::<T>(rows, name, pattern, dtype, (&formats(dtype), WIDTHS))?;
        entries::<T>(rows, name, pattern, dtype, hybrid)?;
        unaligned::<T>(rows, name, pattern, dtype)
    })?;
    rows.group("spmm_t", name, |rows| {
        let a = uploaded::<T>(rows, "spmm_t", name, source.clone())?;
        let ns = [4, 8, 16, 32, 33, 64, 128, 256, 512];
        let asked = ("spmm_t", &**name, &precise(dtype), 1);
        times::<T, T>(rows, asked, ((&a).into(), a.shape()), &[TURNED], &ns)
    })
}

/// Measures rows of B and C with odd row strides, and with those of half a vector.
fn unaligned<T: Scalar>(
    rows: &mut Rows<'_>,
    name: &str,
    pattern: &Arc<CsrPattern>,
    dtype: Dtype,
) -> Result<()> {
    let a = rows.context.upload(entries_of::<T>(pattern)?)?;
    for n in [32, 128, 256] {
        for gap in [1, 2, 4] {
            let b = rows.strided::<T>(&[pattern.cols(), n], n + gap)?;
            let c = rows.strided::<T>(&[pattern.rows(), n], n + gap)?;
            let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
            let case = format!("{name} n{n} gap {gap}");
            rows.plan::<T, T>(["spmm", &case], SPMM, &operands, &precise(dtype), &[])?;
        }
    }
    Ok(())
}

/// Measures one matrix for all items of a batch, its transpose, and one matrix for each item.
fn batched<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    const NS: [usize; 9] = [8, 16, 32, 33, 64, 100, 128, 256, 320];
    for (items, extent, density) in [(4, 2048, 0.05), (64, 512, 0.02), (64, 64, 0.2)] {
        let name = &format!("batch{items}-{extent}-d{density} {dtype}");
        rows.group("spmm_batched", name, |rows| {
            let pattern = Arc::new(generate::uniform(extent, extent, density, SEED)?);
            let csr = entries_of::<T>(&pattern)?;
            let each = rows.context.upload(stacked::<T>(&pattern, items)?)?;
            let one = rows.context.upload(csr)?;
            let asked = ("spmm_batched", &**name, &precise(dtype), items);
            let shared = ["C[z,m,n] = A[m,k] * B[z,k,n]", "C[z,m,n] = A[k,m] * B[z,k,n]"];
            times::<T, T>(rows, asked, ((&one).into(), one.shape()), &shared, &NS)?;
            let own = ["C[z,m,n] = A[z,m,k] * B[z,k,n]", "C[z,m,n] = A[z,k,m] * B[z,k,n]"];
            times::<T, T>(rows, asked, ((&each).into(), each.shape()), &own, &NS)
        })?;
    }
    Ok(())
}

/// A tensor that contains one matrix `items` times.
fn stacked<T: Scalar>(pattern: &CsrPattern, items: usize) -> Result<Coo<T>> {
    let mut coords = vec![Vec::new(); 3];
    for item in 0..items as u32 {
        for row in 0..pattern.rows() {
            for &column in &pattern.columns()[pattern.row(row)] {
                let place = [item, row as u32, column];
                for (axis, at) in coords.iter_mut().zip(place) {
                    axis.push(at);
                }
            }
        }
    }
    let count = coords[0].len();
    let shape = vec![items, pattern.rows(), pattern.cols()];
    let pattern = CooPattern::new(shape, coords)?;
    Ok(Coo::new(pattern, values(count, 0))?)
}

/// Measures blocks of every size that kernels support directly or after splitting, in every storage order.
fn blocks<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    const NS: [usize; 8] = [16, 64, 100, 128, 256, 512, 1024, 4096];
    let squares = [16, 32, 64, 128].map(|edge| (edge, edge));
    let others = [(64, 32), (16, 32), (128, 64), (64, 1), (32, 1), (1, 64)];
    for block in squares.into_iter().chain(others) {
        for (extent, density) in [(4096, 0.5), (4096, 0.1), (4096, 0.02), (1024, 0.2), (512, 1.0)] {
            let name = &format!("block{}x{}-{extent}-d{density} {dtype}", block.0, block.1);
            rows.group("block_spmm", name, |rows| {
                let pattern = generate::blocks(extent, extent, block, density, SEED)?;
                let format = Format::BlockGroupCoo { block, group: None };
                let a = AnySparse::from(full::<T>(pattern)?).convert(format)?;
                let a = rows.context.upload(a)?;
                let expressions = [
                    SPMM,
                    TURNED,
                    BY_COLUMNS,
                    "C[m,n] = B[m,k] * A[k,n]",
                    "C[m,n] = B[m,k] * A[n,k]",
                    "C[z,m,n] = A[m,k] * B[z,k,n]",
                ];
                let asked = ("block_spmm", &**name, &precise(dtype), 4);
                times::<T, T>(rows, asked, ((&a).into(), a.shape()), &expressions, &NS)
            })?;
        }
    }
    Ok(())
}

/// Measures the extents of layers, in every storage order.
fn dense<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    const NS: [usize; 7] = [8, 16, 64, 200, 256, 1024, 4096];
    for &(m, k) in SHAPES {
        let name = &format!("dense-{m}x{k} {dtype}");
        rows.group("dense", name, |rows| {
            let a = rows.dense::<T>(&[m, k])?;
            let turned = rows.dense::<T>(&[k, m])?;
            let asked = ("dense", &**name, &precise(dtype), 1);
            times::<T, T>(rows, asked, ((&a).into(), a.shape()), &[SPMM, BY_COLUMNS], &NS)?;
            let expressions = [TURNED, "C[m,n] = A[k,m] * B[n,k]"];
            times::<T, T>(rows, asked, ((&turned).into(), turned.shape()), &expressions, &NS)
        })?;
    }
    Ok(())
}

/// Measures bitmaps and byte positions, with the extents of `decode` and small ones.
fn bitmaps<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    const NS: &[usize] = &[1, 3, 8, 16, 24, 32, 48, 64, 100];
    let small = [[512, 512], [1024, 4096]];
    for [m, k] in decode::EXTENTS.into_iter().chain(small) {
        // Larger matrices take too long on the host.
        if m * k >= 50_000_000 {
            continue;
        }
        for density in decode::DENSITIES {
            let name = &format!("decode-{m}x{k}-d{density} {dtype}");
            rows.group("spmm_bits", name, |rows| {
                let pattern = generate::uniform(m, k, density, SEED)?;
                let mut formats = vec![Format::Bitmap];
                if density <= decode::BYTES_UP_TO {
                    formats.push(Format::Bytemap);
                }
                entries::<T>(rows, name, &Arc::new(pattern), dtype, (&formats, NS))
            })?;
        }
    }
    Ok(())
}

/// Measures 2:4 matrices, with B by rows, or by columns for 8 bits.
fn two_of_four<T: Scalar, Out: Scalar>(rows: &mut Rows<'_>, expression: &str) -> Result<()> {
    for extent in [512, 1024, 4096, 8192] {
        let name = &format!("nm2:4-{extent} {} into {}", T::DTYPE.name(), Out::DTYPE.name());
        rows.group("nm_spmm", name, |rows| {
            let problem = Problem::of("nm_spmm", name, Source::TwoOfFour(extent))?;
            let a = entries_of::<T>(&problem.pattern)?;
            let a = rows.context.upload(a.convert(Format::Nm { n: 2, m: 4 })?)?;
            let ns = [16, 64, 128, 192, 256, 512, 1024, 4096];
            let asked = ("nm_spmm", &**name, &Options::default(), 1);
            times::<T, Out>(rows, asked, ((&a).into(), a.shape()), &[expression], &ns)
        })?;
    }
    Ok(())
}

/// Measures blocks of 8-bit types.
fn narrow<T: Scalar, Out: Scalar>(rows: &mut Rows<'_>) -> Result<()> {
    let cases = [(128, 1.0), (64, 0.5), (32, 0.5)]
        .map(|(edge, most)| [(edge, 4096, most), (edge, 4096, 0.1), (edge, 1024, 0.2)]);
    for (edge, extent, density) in cases.concat() {
        let name = &format!("block{edge}-{extent}-d{density} {}", T::DTYPE.name());
        rows.group("narrow", name, |rows| {
            let pattern = generate::blocks(extent, extent, (edge, edge), density, SEED)?;
            let a = rows.context.upload(full::<T>(pattern)?)?;
            let ns = [16, 64, 128, 256, 512, 4096];
            let asked = ("narrow", &**name, &Options::default(), 1);
            times::<T, Out>(rows, asked, ((&a).into(), a.shape()), &[BY_COLUMNS], &ns)
        })?;
    }
    Ok(())
}

/// Measures unstructured 8-bit integers.
fn integers(rows: &mut Rows<'_>) -> Result<()> {
    let uniform = |m, k, density| Source::Uniform(m, k, density);
    for (name, source) in [
        ("uniform-4096-d0.3", uniform(4096, 4096, 0.3)),
        ("uniform-4096-d0.05", uniform(4096, 4096, 0.05)),
        ("uniform-2048x512-d0.1", uniform(2048, 512, 0.1)),
        ("uniform-256-d0.1", uniform(256, 256, 0.1)),
        ("long-256x65536-d0.02", uniform(256, 65536, 0.02)),
        ("rmat14", Source::Rmat(14)),
    ] {
        rows.group("int8", name, |rows| {
            let a = uploaded::<i8>(rows, "int8", name, source)?;
            let ns = [16, 33, 64, 100, 128, 200, 256, 1024];
            let name = format!("{name} int8");
            let asked = ("int8", &*name, &Options::default(), 1);
            times::<i8, i32>(rows, asked, ((&a).into(), a.shape()), &[SPMM], &ns)
        })?;
    }
    Ok(())
}
