//! B and C of more than 2^32 bytes: offsets are 64 bits wide in every walk.

use crate::support::rows::{force, products_here, takes_any};
use crate::support::runs::plan_of;
use crate::support::{Gpu, Rng, gpu, skipped, small};
use einsparse::driver::mem_get_info;
use einsparse::driver::{copy_dtoh_async, copy_htod_async, memset_d8_async};
use einsparse::formats::{AnySparse, Bsr, BsrPattern, Csr, CsrPattern, f16};
use einsparse::registry::{Dtype, Row, Scalar};
use einsparse::{Context, Operand, Tensor};

const N: usize = 256;
/// Rows of A, B and C: B and C have more than 2^31 elements each, 4.6 GB of f16.
const ROWS: usize = 9_000_064;

/// Nonzeros (blocks) at the four corners of a square matrix, with values in the order of their rows.
fn corners<T: Scalar>(block: usize, values: &[T]) -> AnySparse<T> {
    let (last, grid) = ((ROWS / block - 1) as u32, ROWS / block);
    let mut offsets = vec![2; grid + 1];
    (offsets[0], offsets[grid]) = (0, 4);
    let columns = vec![0, last, 0, last];
    if block == 1 {
        let pattern = CsrPattern::new(ROWS, ROWS, offsets, columns).unwrap();
        return Csr::new(pattern, values.to_vec()).unwrap().into();
    }
    let pattern = BsrPattern::new(ROWS, ROWS, (block, block), offsets, columns).unwrap();
    Bsr::new(pattern, values.to_vec()).unwrap().into()
}

/// Device address of a row of N elements.
fn at<T: Scalar>(tensor: &Tensor<T>, row: usize) -> u64 {
    tensor.address().unwrap() + (row * N * size_of::<T>()) as u64
}

/// An expression, and its batch size if it has a batch.
type Asked = (&'static str, Option<usize>);

const PLAIN: Asked = ("C[m,n] = A[m,k] * B[k,n]", None);
const TURNED: Asked = ("C[m,n] = A[k,m] * B[k,n]", None);
const BATCH: Asked = ("C[z,m,n] = A[m,k] * B[z,k,n]", Some(2));
const TURNED_BATCH: Asked = ("C[z,m,n] = A[k,m] * B[z,k,n]", Some(2));

fn far_apart<T: Scalar>(context: &Context, row: &'static Row, (text, items): Asked) {
    let block = row.block.0 as usize;
    let mut rng = Rng(2);
    let values = rng.integers::<T>(4 * block * block);
    let a = context.upload(corners(block, &values)).unwrap();
    let count = items.unwrap_or(1);
    let shape: Vec<usize> = items.into_iter().chain([ROWS, N]).collect();
    let b = context.zeros::<T>(&shape).unwrap();
    let mut c = context.zeros::<T>(&shape).unwrap();
    let stream = context.stream().unwrap();
    // First and last rows of every B.
    let edges: Vec<[Vec<T>; 2]> =
        (0..count).map(|_| [rng.integers(block * N), rng.integers(block * N)]).collect();
    for (z, edges) in edges.iter().enumerate() {
        for (edge, first) in edges.iter().zip([0, ROWS - block]) {
            // SAFETY: the rows are inside B, and the values live past the wait below.
            unsafe { copy_htod_async(at(&b, z * ROWS + first), edge, stream.raw()) }.unwrap();
        }
    }
    let bytes = count * ROWS * N * size_of::<T>();
    // SAFETY: the range is C; 0x7f7f is NaN in f16.
    unsafe { memset_d8_async(at(&c, 0), 0x7f, bytes, stream.raw()) }.unwrap();
    stream.synchronize().unwrap();
    let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = plan_of(context, text, &operands, &force(row));
    plan.run(&operands, &mut c, &stream).unwrap();
    let turned = text.contains("A[k,m]");
    let sides = [(Some(0), 0), (None, ROWS / 2), (Some(1), ROWS - block)];
    for (z, (side, first)) in (0..count).flat_map(|z| sides.map(|side| (z, side))) {
        let mut found = vec![T::ONE; block * N];
        // SAFETY: the rows are inside C, and `found` is read after the wait.
        unsafe { copy_dtoh_async(&mut found, at(&c, z * ROWS + first), stream.raw()) }.unwrap();
        stream.synchronize().unwrap();
        for (i, x) in found.iter().enumerate() {
            let (r, j) = (i / N, i % N);
            let term = |side: usize, e: usize, k: usize| {
                let place = if turned { 2 * e + side } else { 2 * side + e };
                let value = values[(place * block + r) * block + k];
                value.to_f64() * edges[z][e][k * N + j].to_f64()
            };
            let sum = |side| {
                (0..2)
                    .flat_map(|e| (0..block).map(move |k| (e, k)))
                    .map(|(e, k)| term(side, e, k))
                    .sum()
            };
            let expected: f64 = side.map_or(0.0, sum);
            let place = first + r;
            assert_eq!(x.to_f64(), expected, "{}, {text}: C[{z},{place},{j}]", row.name);
        }
    }
}

/// Whether this many bytes of device memory are free. If not, prints a message with the free bytes.
pub fn room(bytes: u64) -> bool {
    let free = mem_get_info().unwrap().free;
    if free < bytes {
        skipped("large operands", format_args!("{free} bytes of device memory are free"));
    }
    free >= bytes
}

/// The first GPU, current on this thread; `None` for small runs.
pub fn gpu_for_large() -> Option<Gpu> {
    let gpu = gpu()?;
    if small() {
        skipped("large operands", "EINSPARSE_TEST_SMALL=1");
        return None;
    }
    gpu.device().unwrap().context().set_current().unwrap();
    Some(gpu)
}

#[test]
fn offsets_past_four_gigabytes() {
    let Some(gpu) = gpu_for_large() else {
        return;
    };
    // `staged` and `dense` read all of B for every few hundred rows, too slow for such shapes. `wide` tests them.
    for family in ["spmm", "block", "vectors", "wgmma"] {
        if !room(12 << 30) {
            return;
        }
        let wide = |row: &&Row| {
            let of_family = row.module == family && takes_any(row);
            of_family && row.dtype == Dtype::F16 && row.vector > 1
        };
        let Some(row) = products_here().find(wide) else {
            continue;
        };
        far_apart::<f16>(&gpu, row, PLAIN);
        if family == "spmm" {
            // A transpose, whose values the plan reorders before the product.
            far_apart::<f16>(&gpu, row, TURNED);
        }
    }
}

#[test]
fn batches_and_transposes_past_four_gigabytes() {
    let Some(gpu) = gpu_for_large() else {
        return;
    };
    let cases = [
        ("batched_csr_f16_n128", BATCH),
        ("batched_permuted_f16_n256_l16", TURNED),
        ("batched_permuted_f16_n128_l8", TURNED_BATCH),
    ];
    for (name, asked) in cases {
        if !room(22 << 30) {
            return;
        }
        far_apart::<f16>(&gpu, einsparse::registry::find(name).unwrap(), asked);
    }
}
