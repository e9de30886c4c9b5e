//! Products of a sparse tensor with matrices, mode by mode (`mttkrp`, `ttm`), and products at its nonzeros
//! (`sampled_tensor`). Rows contain two min times: that of factor rows gathered through L2 at 8.9 TB/s, and that of
//! bytes read from or written to device memory once.

mod sampled;

use crate::prelude::*;
use einsparse::formats::{Coo, CooPattern};
use einsparse::kernels::families::{REDUCE_SUM, rows_step};
use einsparse::ops::{Ttm, mttkrp_text};
use einsparse::registry::Operation;
use rayon::prelude::*;
use std::cell::RefCell;

/// Bytes per second of L2 and of device memory, measured on an H200.
const L2: f64 = 8.9e12;
const HBM: f64 = 4.27e12;

/// Name, shape, nonzeros, columns.
type Case = (&'static str, &'static [usize], usize, usize);

const CASES: &[Case] = &[
    ("tensor-100k-10M", &[100_000, 100_000, 100_000], 10_000_000, 32),
    ("tensor4-10k-4M", &[10_000, 10_000, 10_000, 10_000], 4_000_000, 32),
    ("tensor-1k-1M", &[1000, 1000, 1000], 1_000_000, 32),
];

/// Measures every case and element type.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let wrong = RefCell::default();
    for &case in CASES {
        let quick = bench.arguments.quick;
        if !bench.arguments.named(case.0) || (quick && case.2 > 4_000_000) {
            continue;
        }
        let pattern = pattern(case)?;
        let all = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
        for dtype in bench.arguments.dtypes(&all) {
            by_dtype!(dtype, T => Operands::<T>::new(bench, &pattern, case, &wrong)?.all())?;
        }
    }
    let wrong = wrong.into_inner();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ").into()),
    }
}

/// Random distinct nonzeros, in lexicographic order.
fn pattern((_, shape, entries, _): Case) -> Result<CooPattern> {
    let key = |chunk: usize| {
        let mut rng = StdRng::seed_from_u64(20 + chunk as u64);
        let place =
            move || shape.iter().map(|&n| rng.random_range(0..n as u32)).collect::<Vec<_>>();
        std::iter::repeat_with(place).take(entries / 16)
    };
    let mut places: Vec<Vec<u32>> = (0..16).into_par_iter().flat_map_iter(key).collect();
    places.par_sort_unstable();
    places.dedup();
    let axis = |axis: usize| places.par_iter().map(|place| place[axis]).collect();
    let coords = (0..shape.len()).map(axis).collect();
    Ok(CooPattern::new(shape.to_vec(), coords)?)
}

/// Small non-integers.
fn value<T: Scalar>(at: usize) -> T {
    T::from_f64(((at * 2_654_435_761) % 1021) as f64 / 510.0 - 1.0)
}

/// Stride of the checked rows of the output.
const CHECKED: usize = 1009;

/// A tensor and a factor for each of its axes, in host and in device memory.
struct Operands<'a, T> {
    bench: &'a Bench<'a>,
    case: Case,
    host: Coo<T>,
    there: SparseTensor<T>,
    hosts: Vec<Dense<T>>,
    factors: Vec<Tensor<T>>,
    wrong: &'a RefCell<Vec<String>>,
}

impl<'a, T: Scalar> Operands<'a, T> {
    fn new(
        bench: &'a Bench<'a>,
        pattern: &CooPattern,
        case: Case,
        wrong: &'a RefCell<Vec<String>>,
    ) -> Result<Self> {
        let values: Vec<T> = (0..pattern.coords()[0].len()).map(value).collect();
        let host = Coo::new(pattern.clone(), values)?;
        let (_, shape, _, n) = case;
        let factor = |axis: usize| {
            let values = (0..shape[axis] * n).map(|at| value::<T>(at + axis));
            Ok(Dense::new([shape[axis], n], values.collect())?)
        };
        let hosts: Vec<Dense<T>> = (0..shape.len()).map(factor).collect::<Result<_>>()?;
        let factors = hosts.iter().map(|f| bench.upload(f)).collect::<Result<_>>()?;
        Ok(Self { bench, case, there: bench.context.upload(&host)?, host, hosts, factors, wrong })
    }

    fn all(&self) -> Result<()> {
        let (wants, order) = (|op| self.bench.arguments.wants_op(op), self.case.1.len());
        if wants("mttkrp") {
            for mode in 0..order {
                for variant in self.variants(order - 1, mode > 0) {
                    self.mttkrp(mode, variant)?;
                }
            }
        }
        if wants("sampled_tensor") && order == 3 {
            self.sampled()?;
        }
        if wants("ttm") {
            for axis in [order - 1, 0] {
                for variant in self.variants(1, axis == 0) {
                    self.ttm(axis, variant)?;
                }
            }
        }
        Ok(())
    }

    /// The plan's choice, and the rows that it could select.
    fn variants(&self, factors: usize, auto: bool) -> Vec<Option<&'static str>> {
        let mut all = vec![None];
        if self.bench.arguments.auto || auto {
            return all;
        }
        let rows = self.bench.kernels().filter(|row| {
            row.operation == Operation::Rows
                && row.dtype == T::DTYPE
                && row.step == rows_step(factors, REDUCE_SUM)
                && (row.columns as usize) < 4 * self.case.3
        });
        all.extend(rows.map(|row| Some(row.name)));
        all
    }

    fn row(&self, op: &str, note: String, times: &Times) -> Row {
        let (name, shape, _, n) = self.case;
        let extents = [shape[0], shape[1], n];
        let row = Row::new(op, name, extents, self.host.nnz(), T::DTYPE.name());
        row.timed(times).note(note)
    }

    fn mttkrp(&self, mode: usize, variant: Option<&str>) -> Result<()> {
        let (bench, (_, shape, _, n)) = (self.bench, self.case);
        let order = shape.len();
        let others: Vec<usize> = (0..order).filter(|&axis| axis != mode).collect();
        let names: Vec<String> = others.iter().map(|axis| format!("F{axis}")).collect();
        let expression = mttkrp_text(order, mode, &names)?;
        let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("T", (&self.there).into())];
        let own = others.iter().map(|&axis| Operand::from(&self.factors[axis]));
        operands.extend(names.iter().map(String::as_str).zip(own));
        let (plan, prepared) = bench.plan::<T, T>(&expression, &operands, &forced(variant))?;
        let mut out = bench.zeros::<T>(plan.out_shape())?;
        let times = bench.measure(|| plan.run(&operands, &mut out, &bench.stream))?;
        let (entries, element) = (self.host.nnz(), size_of::<T>());
        let gathered = entries * others.len() * n * element;
        let rows: usize = others.iter().map(|&axis| shape[axis]).sum::<usize>() + shape[mode];
        let bytes = entries * (4 * others.len() + element) + rows * n * element;
        let coords = self.host.pattern().coords();
        let wrong = self.wrong_rows((&coords[mode], &others), &out)?;
        let row = self
            .row("mttkrp", format!("mode {mode}"), &times)
            .flops((others.len() + 1) as f64 * (entries * n) as f64)
            .prepared(prepared, plan.workspace_bytes());
        self.add(row, (plan.variant(), variant.is_none()), [gathered, bytes], wrong)
    }

    fn ttm(&self, axis: usize, variant: Option<&str>) -> Result<()> {
        let (bench, (_, shape, _, n)) = (self.bench, self.case);
        let made = || Ttm::with_variant(&bench.context, &self.there, axis, n, variant);
        let (ttm, prepared) = timed(|| Ok(made()?))?;
        let mut out = bench.zeros::<T>(&[ttm.count(), n])?;
        let factor = &self.factors[axis];
        let times = bench.measure(|| ttm.forward(&self.there, factor, &mut out, &bench.stream))?;
        let (entries, element) = (self.host.nnz(), size_of::<T>());
        let gathered = entries * n * element;
        let bytes = entries * (4 + element) + (ttm.count() + shape[axis]) * n * element;
        let mut wrong = None;
        if axis + 1 == shape.len() {
            // Nonzeros are sorted by fibre: a new fibre begins where their other coordinates change.
            let coords = self.host.pattern().coords();
            let mut fibre = vec![0u32; entries];
            for e in 1..entries {
                let new = (0..axis).any(|a| coords[a][e] != coords[a][e - 1]);
                fibre[e] = fibre[e - 1] + u32::from(new);
            }
            wrong = self.wrong_rows((&fibre, &[axis]), &out)?;
        }
        let note = format!("axis {axis}, {} fibres", ttm.count());
        let row = self
            .row("ttm", note, &times)
            .flops(2.0 * (entries * n) as f64)
            .prepared(prepared, ttm.workspace_bytes());
        self.add(row, (ttm.variant(), variant.is_none()), [gathered, bytes], wrong)
    }

    /// First element of some rows whose error exceeds rounding of terms and output.
    fn wrong_rows(
        &self,
        (rows, of): (&[u32], &[usize]),
        out: &Tensor<T>,
    ) -> Result<Option<String>> {
        let n = self.case.3;
        let out = out.to_dense()?;
        let checked = out.values().len() / n;
        let mut sums = vec![Sum::default(); checked.div_ceil(CHECKED) * n];
        let coords = self.host.pattern().coords();
        for (e, &row) in rows.iter().enumerate() {
            if !(row as usize).is_multiple_of(CHECKED) {
                continue;
            }
            let own = &mut sums[row as usize / CHECKED * n..][..n];
            for (j, sum) in own.iter_mut().enumerate() {
                let mut product = self.host.values()[e].to_f64();
                for &axis in of {
                    let place = coords[axis][e] as usize * n + j;
                    product *= self.hosts[axis].values()[place].to_f64();
                }
                sum.add(product);
            }
        }
        Ok(sums.iter().enumerate().find_map(|(i, sum)| {
            let row = i / n * CHECKED;
            let found = out.values()[row * n + i % n].to_f64();
            let near = near::<T>(found, sum);
            (!near).then(|| format!("row {row} is {found}, not {}", sum.value))
        }))
    }

    /// Prints and writes the row. `floors` are gathered bytes and bytes of device memory.
    fn add(
        &self,
        row: Row,
        (variant, auto): (&str, bool),
        [gathered, bytes]: [usize; 2],
        wrong: Option<String>,
    ) -> Result<()> {
        let floors = [gathered as f64 / L2 * 1e3, bytes as f64 / HBM * 1e3];
        let floor = floors[0].max(floors[1]);
        let said = wrong.as_ref().map(|wrong| format!(" WRONG: {wrong}"));
        println!(
            "{} {} {} {}: {variant}{} {:.3} ms cold, {:.3} warm; floors {:.3} L2, {:.3} HBM: {:.1} %; prepared {:.0} \
             ms{}",
            row.op,
            row.workload,
            row.dtype,
            row.note,
            if auto { " (auto)" } else { "" },
            row.ms,
            row.ms_warm.unwrap_or(0.0),
            floors[0],
            floors[1],
            floor / row.ms * 100.0,
            row.prepare_ms.unwrap_or(0.0),
            said.unwrap_or_default()
        );
        if let Some(wrong) = &wrong {
            let place = &row.workload;
            let wrong = format!("{variant} on {place}: {wrong}");
            self.wrong.borrow_mut().push(wrong);
            return Ok(());
        }
        let note = format!("{}; {variant}", row.note);
        let row = row.bytes(bytes as f64).limit(floor).strict().note(note);
        (self.bench).add(row.ours(if auto { "auto" } else { variant }))
    }
}

/// Whether rounding of terms and output explains the difference. The result is false for NaN.
fn near<T>(found: f64, sum: &Sum) -> bool {
    let relative = if size_of::<T>() == 2 { 8e-3 } else { 1e-5 };
    (found - sum.value).abs() <= relative * sum.size
}
