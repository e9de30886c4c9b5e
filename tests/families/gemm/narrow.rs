//! Products of 8-bit operands into wider outputs. Every row of the table that computes them, and the CPU, are compared
//! with exact integers. A test bounds the error of long fp8 sums.

use crate::support::assert_error;
use crate::support::dense::upload_values;
use crate::support::einsum::{Given, agrees};
use crate::support::rows::kernels_here;
use crate::support::runs::finish;
use crate::support::{Rng, fill_blocks, gpu, spread, stored};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, E4m3, E5m2, Element, bf16, f16};
use einsparse::registry::{Dtype, Operation, Row, Scalar, WalkKind};
use einsparse::{Context, Error, Operand, Options, Plan, SparseTensor, Tensor};

/// Block-sparse A, and B as `[n, k]`.
pub(super) struct Case<In: Scalar> {
    a: AnySparse<In>,
    b: Dense<In>,
    pub(super) options: Options,
}

impl<In: Scalar> Case<In> {
    /// Creates integers of magnitude up to `most` at the entries of a pattern. Sums are exact while they stay below
    /// 2^53.
    pub(super) fn new(pattern: CsrPattern, format: &str, n: usize, most: i32) -> Self {
        let (m, k) = (pattern.rows(), pattern.cols());
        let mut rng = Rng((m * k + n) as u64);
        let span = 2 * most as u64 + 1;
        let mut whole = || In::from_f64(((rng.word() >> 33) % span) as f64 - f64::from(most));
        let values: Vec<In> = (0..pattern.columns().len()).map(|_| whole()).collect();
        let b: Vec<In> = (0..n * k).map(|_| whole()).collect();
        let a = stored(Csr::new(pattern, values).unwrap(), format);
        Case { a, b: Dense::new([n, k], b).unwrap(), options: Options::default() }
    }

    /// Uploads A and B; the row stride of B exceeds its rows.
    pub(super) fn upload(&self, context: &Context) -> (SparseTensor<In>, Tensor<In>) {
        let leading = self.b.shape()[1].next_multiple_of(16) + 16;
        let b = context.upload_strided(&self.b, leading, In::ONE).unwrap();
        (context.upload(&self.a).unwrap(), b)
    }

    /// Checks `C (= | +=) s * A * B` for one output type, with rows that allow vectors and rows that do not.
    pub(super) fn check<Out: Scalar>(&self, context: &Context, wanted: &str, scales: &[f64]) {
        let options = match has_rival(wanted) {
            true => self.options.clone().variant(wanted),
            false => self.options.clone(),
        };
        let ways = [("=", 0), ("+=", 0), ("+=", 1)];
        for (&scale, (equals, odd)) in scales.iter().flat_map(|s| ways.map(|way| (s, way))) {
            let text = format!("C[m,n] {equals} s * A[m,k] * B[n,k]");
            let given = [
                ("A", Given::Sparse(self.a.clone())),
                ("B", Given::Dense(self.b.clone())),
                ("s", Given::Number(scale)),
            ];
            let leading = |n: usize| n.next_multiple_of(8) + 8 - odd;
            let what = (wanted, self.a.format(), scale);
            let plan = agrees::<In, Out>(context, &text, &given, &options, (leading, &what));
            assert_eq!(plan.variant(), wanted, "{text}");
        }
    }

    pub(super) fn check_outputs(&self, context: &Context, wanted: &str) {
        self.check::<f16>(context, wanted, &[1.0, 0.5]);
        self.check::<bf16>(context, wanted, &[0.25]);
        self.check::<f32>(context, wanted, &[1.0, -2.0]);
    }
}

/// Whether another row of this GPU multiplies the same blocks of the same type: on compute capability 8.9, fp8 as fp8.
fn has_rival(name: &str) -> bool {
    let alike = |a: &Row, b: &Row| {
        (a.module, a.dtype, a.block, a.columns) == (b.module, b.dtype, b.block, b.columns)
    };
    let own = kernels_here().find(|row| row.name == name);
    own.is_some_and(|own| kernels_here().any(|row| row.name != name && alike(row, own)))
}

fn planned<In: Scalar, Out: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, In>)],
) -> einsparse::Result<Plan<In, Out>> {
    context.plan(text).operands(operands).output().build()
}

fn run<In: Scalar, Out: Scalar>(
    context: &Context,
    plan: &Plan<In, Out>,
    operands: &[(&str, Operand<'_, In>)],
    c: &mut Tensor<Out>,
) {
    finish(context, |stream| plan.run(operands, c, stream));
}

/// Returns blocks in rows of uneven length, some empty, with partial blocks at both ends.
fn ragged(edge: usize, extent: usize) -> CsrPattern {
    let lens: Vec<usize> = (0..extent.div_ceil(edge)).map(|r| r * 5 % 4).collect();
    let blocks = (extent + 100).div_ceil(edge).max(4);
    let (rows, columns) = (lens.len() * edge - 3, blocks * edge - 5);
    fill_blocks(&spread(&lens, blocks), (edge, edge), rows, columns)
}

/// Returns long rows: few output tiles, which are split along k.
fn long(edge: usize) -> CsrPattern {
    let blocks = 12_288 / edge;
    let lens = [blocks, 3, blocks / 2];
    fill_blocks(&spread(&lens, blocks), (edge, edge), 3 * edge, blocks * edge)
}

fn cases<In: Scalar>(context: &Context, wanted: &str, edges: &[usize], most: i32) {
    for &edge in edges {
        for (n, format) in [(16, "bsr"), (264, "blockgroupcoo"), (131, "blockcoo")] {
            let case =
                Case::<In>::new(ragged(edge, 300), &format!("{format}:{edge}x{edge}"), n, most);
            case.check_outputs(context, wanted);
            if In::DTYPE == Dtype::Int8 {
                case.check::<i32>(context, wanted, &[1.0, 1.0, -3.0]);
            }
        }
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    kernels_here().filter(|row| row.operation == Operation::Narrow && row.walk == WalkKind::Block)
}

#[test]
fn every_narrow_row_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        let edges: &[usize] = match row.block {
            (64, 128) => &[128, 256],
            (64, _) => &[64],
            (piece, _) => &[piece as usize],
        };
        match row.dtype {
            // Integers that the type and the Tensor Core's sums of 128 products represent exactly.
            Dtype::E4m3 => cases::<E4m3>(&gpu, row.name, edges, 4),
            Dtype::E5m2 => cases::<E5m2>(&gpu, row.name, edges, 4),
            Dtype::Int8 => cases::<i8>(&gpu, row.name, edges, 127),
            other => panic!("{}: no case for {}", row.name, other.name()),
        }
    }
}

#[test]
fn the_cpu_multiplies_8_bit_operands() {
    let cpu = Context::unchecked_cpu();
    cases::<E4m3>(&cpu, "cpu", &[32], 4);
    cases::<E5m2>(&cpu, "cpu", &[64], 4);
    cases::<i8>(&cpu, "cpu", &[32], 127);
}

#[test]
fn cut_rows_of_8_bit_operands_add_up_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        let edge = if row.block == (64, 128) { 128 } else { row.block.0 as usize };
        let format = format!("bsr:{edge}x{edge}");
        match row.dtype {
            Dtype::E4m3 => {
                Case::<E4m3>::new(long(edge), &format, 72, 4).check::<f32>(&gpu, row.name, &[1.0])
            }
            Dtype::E5m2 => {
                Case::<E5m2>::new(long(edge), &format, 72, 4).check::<f32>(&gpu, row.name, &[1.0])
            }
            _ => Case::<i8>::new(long(edge), &format, 72, 127).check::<i32>(
                &gpu,
                row.name,
                &[1.0, 1.0],
            ),
        }
    }
}

/// Truncates `x` to 14 significant bits.
fn fourteen_bits(x: f64) -> f64 {
    let unit = f64::powi(2.0, (x.abs().max(1e-30)).log2().floor() as i32 - 13);
    (x / unit).trunc() * unit
}

/// Sums of 16384 products of random positive numbers. An accumulator of 14 bits loses a percent; promoted sums do not.
#[test]
fn long_fp8_sums_keep_their_bits_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let (edge, k, n) = (128, 16_384, 64);
    let blocks = fill_blocks(&spread(&[k / edge], k / edge), (edge, edge), edge, k);
    let mut rng = Rng(5);
    let mut random = |count: usize| -> Vec<E4m3> {
        (0..count).map(|_| E4m3::from_f64(rng.unit().abs())).collect()
    };
    let (values, b) = (random(edge * k), random(n * k));
    let exact = |r: usize, j: usize, step: &dyn Fn(f64) -> f64| {
        let (x, y) = (&values[r * k..][..k], &b[j * k..][..k]);
        let steps = x.chunks(32).zip(y.chunks(32));
        steps.fold(0.0, |sum, (x, y)| {
            let products = x.iter().zip(y).map(|(x, y)| x.to_f64() * y.to_f64());
            step(sum + products.sum::<f64>())
        })
    };
    let csr = AnySparse::from(Csr::new(blocks, values.clone()).unwrap());
    let a = gpu.upload(csr.convert("bsr:128x128".parse().unwrap()).unwrap()).unwrap();
    let dense = upload_values(&gpu, &[n, k], b.clone());
    let operands = [("A", (&a).into()), ("B", (&dense).into())];
    let plan = planned::<E4m3, f32>(&gpu, "C[m,n] = A[m,k] * B[n,k]", &operands).unwrap();
    let mut c = gpu.zeros::<f32>(plan.out_shape()).unwrap();
    run(&gpu, &plan, &operands, &mut c);
    let found = c.to_dense().unwrap();
    let (mut worst, mut narrow) = (0f64, f64::MAX);
    for r in (0..edge).step_by(5) {
        for j in (0..n).step_by(3) {
            let sum = exact(r, j, &|x| x);
            let own = f64::from(found.get(&[r, j]).unwrap());
            worst = worst.max((own - sum).abs() / sum);
            narrow = narrow.min((exact(r, j, &fourteen_bits) - sum).abs() / sum);
        }
    }
    println!("largest error {worst:.2e}, least of 14 bits {narrow:.2e}");
    // Each stage loses only bits of its own sum, whatever the number of stages.
    assert!(
        worst < f64::powi(2.0, -10) && worst < narrow / 4.0,
        "error {worst:.2e}, 14 bits give {narrow:.2e}"
    );
}

#[test]
fn an_int32_output_takes_whole_factors() {
    let cpu = Context::unchecked_cpu();
    let case = Case::<i8>::new(ragged(32, 40), "bsr:32x32", 16, 4);
    let (a, b) = case.upload(&cpu);
    let operands = [("A", (&a).into()), ("B", (&b).into()), ("s", 0.5.into())];
    let plan = planned::<i8, i32>(&cpu, "C[m,n] = s * A[m,k] * B[n,k]", &operands).unwrap();
    let mut c = cpu.zeros::<i32>(plan.out_shape()).unwrap();
    let stream = cpu.stream().unwrap();
    let half = plan.run(&operands, &mut c, &stream).unwrap_err();
    assert_error!(half, Error::OutOfRange { value, .. } if value == "0.5");
    let mut other = cpu.zeros::<i32>(&[3, 3]).unwrap();
    let shape = plan.run(&operands, &mut other, &stream).unwrap_err();
    assert_error!(shape, Error::Shape { .. });
}

/// Returns the reason for which the kernels of 8-bit operands refuse an expression.
fn refused<In: Scalar, Out: Scalar>(text: &str, format: &str) -> String {
    let cpu = Context::unchecked_cpu();
    let case = Case::<In>::new(ragged(32, 40), format, 16, 4);
    let (a, b) = case.upload(&cpu);
    let m = case.a.shape()[0];
    let bias = Dense::new([m], vec![In::ONE; m]).unwrap();
    let mut operands: Vec<(&str, Operand<'_, In>)> = vec![("A", (&a).into()), ("B", (&b).into())];
    if text.contains("bias") {
        operands.push(("bias", (&bias).into()));
    }
    let plan = planned::<In, Out>(&cpu, text, &operands).unwrap();
    assert!(plan.choice().candidates.is_empty(), "{}", plan.choice());
    plan.choice().to_string()
}

#[test]
fn kernels_of_8_bit_operands_say_what_they_refuse() {
    let text = "C[m,n] = A[m,k] * B[n,k]";
    for (reason, found) in [
        ("no e4m3 output of e4m3", refused::<E4m3, E4m3>(text, "bsr:32x32")),
        ("no int32 output of e5m2", refused::<E5m2, i32>(text, "bsr:32x32")),
        ("no f32 output of f16", refused::<f16, f32>(text, "bsr:32x32")),
        ("bias", refused::<i8, f32>("C[m,n] = A[m,k] * B[n,k] + bias[m]", "bsr:32x32")),
        ("activation", refused::<i8, i32>("C[m,n] = relu(A[m,k] * B[n,k])", "bsr:32x32")),
        ("32 x 32 pieces", refused::<i8, i32>(text, "bsr:16x16")),
        ("csr", refused::<E4m3, f32>(text, "csr")),
    ] {
        assert!(found.contains(reason), "{reason}: {found}");
    }
}

/// Rows of A whose sum may overflow i32.
#[test]
fn long_rows_of_int8_are_refused_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let (edge, k) = (64, 1 << 17);
    let blocks = fill_blocks(&spread(&[k / edge], k / edge), (edge, edge), edge, k);
    let ones = vec![1i8; blocks.columns().len()];
    let csr = AnySparse::from(Csr::new(blocks, ones).unwrap());
    let a = gpu.upload(csr.convert("bsr:64x64".parse().unwrap()).unwrap()).unwrap();
    let b = Dense::<i8>::zeros(vec![16, k]).unwrap();
    let b = gpu.upload_dense(&b).unwrap();
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let error = planned::<i8, i32>(&gpu, "C[m,n] = A[m,k] * B[n,k]", &operands).unwrap_err();
    assert_error!(error, Error::Overflow { .. });
}

/// Both operands are dense.
fn dense<In: Scalar, Out: Scalar>(gpu: &Context, (m, k, n): (usize, usize, usize)) {
    let filled = |rows: usize, step: usize| {
        let whole = move |i: &[usize]| ((i[0] * step + i[1] * 3) % 9) as f64 - 4.0;
        Dense::from_fn(vec![rows, k], move |i| In::from_f64(whole(i))).unwrap()
    };
    let leading = k.next_multiple_of(16);
    let given = [("A", filled(m, 5)), ("B", filled(n, 7))];
    let given = given.map(|(name, dense)| (name, Given::Apart(dense, leading)));
    let text = "C[m,n] = A[m,k] * B[n,k]";
    let options = Options::default();
    let plan = agrees::<In, Out>(gpu, text, &given, &options, (|n| n, &(m, k, n)));
    assert!(plan.variant().contains("64x128"), "{plan}");
}

#[test]
fn dense_8_bit_operands_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for extents in [(128, 256, 256), (1, 16, 1), (131, 200, 263)] {
        dense::<E4m3, f16>(&gpu, extents);
        dense::<E5m2, f32>(&gpu, extents);
        dense::<i8, i32>(&gpu, extents);
    }
}
