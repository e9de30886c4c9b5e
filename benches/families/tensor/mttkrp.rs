//! Products of a sparse tensor with matrices, mode by mode: `mttkrp`, `ttm`, and products at its entries, `sampled_tensor`. Beside
//! each the two floors: rows of the factors gathered through L2 at 8.9 TB/s, and bytes that pass device memory once.

mod sampled;

use crate::Arguments;
use crate::device::{Gpu, Result};
use crate::families::convert::entries::text;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Times, measure};
use einsparse::formats::{Coo, CooPattern, Dense, bf16, f16};
use einsparse::kernels::families::{REDUCE_SUM, rows_step};
use einsparse::ops::{Ttm, mttkrp_text};
use einsparse::registry::{Operation, kernels};
use einsparse::{Context, Operand, Options, Scalar, SparseTensor, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rayon::prelude::*;
use std::time::Instant;

/// Bytes a second out of L2 and of device memory, as measured on an H200.
const L2: f64 = 8.9e12;
const HBM: f64 = 4.27e12;

/// Name, shape, entries, columns.
type Case = (&'static str, &'static [usize], usize, usize);

const CASES: &[Case] = &[
    (
        "tensor-100k-10M",
        &[100_000, 100_000, 100_000],
        10_000_000,
        32,
    ),
    (
        "tensor4-10k-4M",
        &[10_000, 10_000, 10_000, 10_000],
        4_000_000,
        32,
    ),
    ("tensor-1k-1M", &[1000, 1000, 1000], 1_000_000, 32),
];

/// Measures every case and element type.
pub fn run(gpu: &Gpu, arguments: &Arguments, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let mut wrong = Vec::new();
    for &case in CASES {
        if !arguments.named(case.0) || (arguments.is_quick() && case.2 > 4_000_000) {
            continue;
        }
        let pattern = pattern(case)?;
        let mut bench = Bench {
            gpu,
            arguments,
            recorder,
            context: context.clone(),
            pattern,
            case,
            wrong: &mut wrong,
        };
        for dtype in arguments.asked(&[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16]) {
            match dtype {
                Dtype::F64 => bench.all::<f64>()?,
                Dtype::F16 => bench.all::<f16>()?,
                Dtype::Bf16 => bench.all::<bf16>()?,
                _ => bench.all::<f32>()?,
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ")),
    }
}

/// Entries at random places, each once, in lexicographic order.
fn pattern((_, shape, entries, _): Case) -> Result<CooPattern> {
    let key = |chunk: usize| {
        let mut rng = StdRng::seed_from_u64(20 + chunk as u64);
        let place = move || {
            shape
                .iter()
                .map(|&n| rng.random_range(0..n as u32))
                .collect::<Vec<_>>()
        };
        std::iter::repeat_with(place).take(entries / 16)
    };
    let mut places: Vec<Vec<u32>> = (0..16).into_par_iter().flat_map_iter(key).collect();
    places.par_sort_unstable();
    places.dedup();
    let axis = |axis: usize| places.par_iter().map(|place| place[axis]).collect();
    let coords = (0..shape.len()).map(axis).collect();
    CooPattern::new(shape.to_vec(), coords).map_err(text)
}

/// Small numbers that are no integers.
fn value<T: Scalar>(at: usize) -> T {
    T::from_f64(((at * 2_654_435_761) % 1021) as f64 / 510.0 - 1.0)
}

struct Bench<'a> {
    gpu: &'a Gpu,
    arguments: &'a Arguments,
    recorder: &'a mut Recorder,
    context: Context,
    pattern: CooPattern,
    case: Case,
    wrong: &'a mut Vec<String>,
}

/// Every so many rows of the output are checked.
const CHECKED: usize = 1009;

impl Bench<'_> {
    fn all<T: Scalar>(&mut self) -> Result<()> {
        let values: Vec<T> = (0..self.pattern.coords()[0].len()).map(value).collect();
        let host = Coo::new(self.pattern.clone(), values).map_err(text)?;
        let there = self.context.upload(host.clone()).map_err(text)?;
        let (_, shape, _, n) = self.case;
        let factor = |axis: usize| {
            let values = (0..shape[axis] * n)
                .map(|at| value::<T>(at + axis))
                .collect();
            Dense::new([shape[axis], n], values).map_err(text)
        };
        let hosts: Vec<Dense<T>> = (0..shape.len()).map(factor).collect::<Result<_>>()?;
        let uploaded = |f: &Dense<T>| self.context.upload_dense(f).map_err(text);
        let factors: Vec<Tensor<T>> = hosts.iter().map(uploaded).collect::<Result<_>>()?;
        if self.arguments.wants_op("mttkrp") {
            for mode in 0..shape.len() {
                for variant in self.variants::<T>(shape.len() - 1, mode > 0) {
                    self.mttkrp(&host, &there, &hosts, &factors, (mode, variant))?;
                }
            }
        }
        if self.arguments.wants_op("sampled_tensor") && shape.len() == 3 {
            self.sampled(&host, &there, &hosts, &factors)?;
        }
        if self.arguments.wants_op("ttm") {
            for axis in [shape.len() - 1, 0] {
                for variant in self.variants::<T>(1, axis == 0) {
                    self.ttm(&host, &there, &hosts, &factors, (axis, variant))?;
                }
            }
        }
        Ok(())
    }

    /// What is taken, and the rows that could be.
    fn variants<T: Scalar>(&self, factors: usize, auto: bool) -> Vec<Option<&'static str>> {
        let mut all = vec![None];
        if self.arguments.auto || auto {
            return all;
        }
        let rows = kernels().iter().filter(|row| {
            row.operation == Operation::Rows
                && row.dtype == T::DTYPE
                && row.step == rows_step(factors, REDUCE_SUM)
                && (row.columns as usize) < 4 * self.case.3
        });
        all.extend(rows.map(|row| Some(row.name)));
        all
    }

    fn row<T: Scalar>(&self, op: &str, note: String) -> Row {
        Row {
            op: op.into(),
            workload: self.case.0.into(),
            m: self.case.1[0],
            k: self.case.1[1],
            n: self.case.3,
            nnz: self.pattern.coords()[0].len(),
            dtype: T::DTYPE.name().into(),
            note,
            ..Row::default()
        }
    }

    fn mttkrp<T: Scalar>(
        &mut self,
        host: &Coo<T>,
        there: &SparseTensor<T>,
        hosts: &[Dense<T>],
        factors: &[Tensor<T>],
        (mode, variant): (usize, Option<&str>),
    ) -> Result<()> {
        let order = host.shape().len();
        let others: Vec<usize> = (0..order).filter(|&axis| axis != mode).collect();
        let names: Vec<String> = others.iter().map(|axis| format!("F{axis}")).collect();
        let expression = mttkrp_text(order, mode, &names).map_err(text)?;
        let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("T", there.into())];
        let own = others.iter().map(|&axis| Operand::from(&factors[axis]));
        operands.extend(names.iter().map(String::as_str).zip(own));
        let options = Options {
            variant: variant.map(str::to_owned),
            ..Options::default()
        };
        let start = Instant::now();
        let plan = self
            .context
            .plan(&expression, &operands, &options)
            .map_err(text)?;
        let prepared = start.elapsed().as_secs_f64() * 1e3;
        let mut out = self.context.zeros::<T>(plan.out_shape()).map_err(text)?;
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        let stream = unsafe { Stream::from_raw(self.gpu.stream.cast()) };
        let times = measure(self.gpu, self.arguments.effort(), &mut || {
            plan.run(&operands, &mut out, &stream).map_err(text)
        })?;
        let (_, shape, _, n) = self.case;
        let entries = host.nnz();
        let element = size_of::<T>();
        let gathered = entries * others.len() * n * element;
        let rows: usize = others.iter().map(|&axis| shape[axis]).sum::<usize>() + shape[mode];
        let bytes = entries * (4 * others.len() + element) + rows * n * element;
        let axes: Vec<&[u32]> = host.pattern().coords().iter().map(Vec::as_slice).collect();
        let wrong = self.wrong_rows(host, hosts, (axes[mode], &others), &out)?;
        let row = Row {
            prepare_ms: Some(prepared),
            prepared_bytes: Some(plan.workspace_bytes()),
            gflops: Some((others.len() + 1) as f64 * (entries * n) as f64 / times.cold / 1e6),
            ..self.row::<T>("mttkrp", format!("mode {mode}"))
        };
        self.add(
            row,
            (plan.variant(), variant.is_none()),
            &times,
            [gathered, bytes],
            wrong,
        )
    }

    fn ttm<T: Scalar>(
        &mut self,
        host: &Coo<T>,
        there: &SparseTensor<T>,
        hosts: &[Dense<T>],
        factors: &[Tensor<T>],
        (axis, variant): (usize, Option<&str>),
    ) -> Result<()> {
        let (_, shape, _, n) = self.case;
        let start = Instant::now();
        let ttm = Ttm::with_variant(&self.context, there, axis, n, variant).map_err(text)?;
        let prepared = start.elapsed().as_secs_f64() * 1e3;
        let mut out = self.context.zeros::<T>(&[ttm.count(), n]).map_err(text)?;
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        let stream = unsafe { Stream::from_raw(self.gpu.stream.cast()) };
        let times = measure(self.gpu, self.arguments.effort(), &mut || {
            ttm.run(there, &factors[axis], &mut out, &stream)
                .map_err(text)
        })?;
        let (entries, element) = (host.nnz(), size_of::<T>());
        let gathered = entries * n * element;
        let bytes = entries * (4 + element) + (ttm.count() + shape[axis]) * n * element;
        let wrong = if axis + 1 == shape.len() {
            // Entries come in the order of the fibres: where their other coordinates change, the next begins.
            let coords = host.pattern().coords();
            let mut fibre = vec![0u32; entries];
            for e in 1..entries {
                let new = (0..axis).any(|a| coords[a][e] != coords[a][e - 1]);
                fibre[e] = fibre[e - 1] + u32::from(new);
            }
            self.wrong_rows(host, hosts, (&fibre, &[axis]), &out)?
        } else {
            None
        };
        let row = Row {
            prepare_ms: Some(prepared),
            prepared_bytes: Some(ttm.workspace_bytes()),
            gflops: Some(2.0 * (entries * n) as f64 / times.cold / 1e6),
            ..self.row::<T>("ttm", format!("axis {axis}, {} fibres", ttm.count()))
        };
        self.add(
            row,
            (ttm.variant(), variant.is_none()),
            &times,
            [gathered, bytes],
            wrong,
        )
    }

    /// The first element of some rows that is off by more than rounding of terms and output.
    fn wrong_rows<T: Scalar>(
        &self,
        host: &Coo<T>,
        hosts: &[Dense<T>],
        (rows, of): (&[u32], &[usize]),
        out: &Tensor<T>,
    ) -> Result<Option<String>> {
        let n = self.case.3;
        let out = out.to_dense().map_err(text)?;
        let checked = out.values().len() / n;
        let mut sums = vec![(0f64, 0f64); checked.div_ceil(CHECKED) * n];
        let coords = host.pattern().coords();
        for (e, &row) in rows
            .iter()
            .enumerate()
            .filter(|(_, row)| (**row as usize).is_multiple_of(CHECKED))
        {
            let own = &mut sums[row as usize / CHECKED * n..][..n];
            for (j, (sum, size)) in own.iter_mut().enumerate() {
                let mut product = host.values()[e].to_f64();
                for &axis in of {
                    product *= hosts[axis].values()[coords[axis][e] as usize * n + j].to_f64();
                }
                *sum += product;
                *size += product.abs();
            }
        }
        let relative = if size_of::<T>() == 2 { 8e-3 } else { 1e-5 };
        Ok(sums.iter().enumerate().find_map(|(i, (sum, size))| {
            let found = out.values()[i / n * CHECKED * n + i % n].to_f64();
            // A NaN is as far off as can be.
            let near = (found - sum).abs() <= relative * size;
            (!near).then(|| format!("row {} is {found}, not {sum}", i / n * CHECKED))
        }))
    }

    /// Prints and writes the row; `floors` are gathered bytes and bytes of device memory.
    fn add(
        &mut self,
        row: Row,
        (variant, auto): (&str, bool),
        times: &Times,
        [gathered, bytes]: [usize; 2],
        wrong: Option<String>,
    ) -> Result<()> {
        let floors = [gathered as f64 / L2 * 1e3, bytes as f64 / HBM * 1e3];
        let share = floors[0].max(floors[1]) / times.cold;
        println!(
            "{} {} {} {}: {variant}{} {:.3} ms cold, {:.3} warm; floors {:.3} L2, {:.3} HBM: {:.1} %; prepared {:.0} ms{}",
            row.op,
            row.workload,
            row.dtype,
            row.note,
            if auto { " (auto)" } else { "" },
            times.cold,
            times.warm,
            floors[0],
            floors[1],
            share * 100.0,
            row.prepare_ms.unwrap_or(0.0),
            wrong
                .as_ref()
                .map_or(String::new(), |w| format!(" WRONG: {w}"))
        );
        if let Some(wrong) = &wrong {
            self.wrong
                .push(format!("{variant} on {}: {wrong}", row.workload));
            return Ok(());
        }
        self.recorder.add(Row {
            engine: "einsparse".into(),
            variant: if auto { "auto".into() } else { variant.into() },
            ms: times.cold,
            ms_warm: Some(times.warm),
            gbps: Some(bytes as f64 / times.cold / 1e6),
            limit_fraction: Some(share),
            zeros: "strict".into(),
            note: format!("{}; {variant}", row.note),
            ..row
        })
    }
}
