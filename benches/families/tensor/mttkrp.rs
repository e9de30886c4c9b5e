//! Products of a sparse tensor with matrices, mode by mode (`mttkrp`, `ttm`), and products at its nonzeros
//! (`sampled_tensor`). The min time is the larger of two: factor rows gathered through L2, and bytes read from or
//! written to device memory once.

use crate::prelude::*;
use crate::record::{HBM, L2};
use einsparse::formats::{Coo, CooPattern};
use einsparse::kernels::families::{REDUCE_SUM, rows_step};
use einsparse::ops::{SampledTensor, Ttm, mttkrp_text};
use einsparse::registry::Operation;
use rayon::prelude::*;

/// Name, shape, nonzeros, columns.
type Case = (&'static str, &'static [usize], usize, usize);

const CASES: &[Case] = &[
    ("tensor-100k-10M", &[100_000, 100_000, 100_000], 10_000_000, 32),
    ("tensor4-10k-4M", &[10_000, 10_000, 10_000, 10_000], 4_000_000, 32),
    ("tensor-1k-1M", &[1000, 1000, 1000], 1_000_000, 32),
];

/// Measures every case and element type.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &case in CASES {
        let quick = bench.arguments.quick;
        if !bench.arguments.named(case.0) || (quick && case.2 > 4_000_000) {
            continue;
        }
        let pattern = pattern(case)?;
        let all = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
        for dtype in bench.arguments.dtypes(&all) {
            by_dtype!(dtype, T => Operands::<T>::new(bench, &pattern, case)?.all())?;
        }
    }
    Ok(())
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

/// Stride of the checked rows of the output.
const CHECKED: usize = 1009;

/// A tensor and a factor for each of its axes, in device memory.
struct Operands<'a, T> {
    bench: &'a Bench<'a>,
    case: Case,
    host: Host<T>,
    there: SparseTensor<T>,
    factors: Vec<Tensor<T>>,
}

/// The operands in host memory.
struct Host<T> {
    tensor: Coo<T>,
    factors: Vec<Dense<T>>,
}

impl<'a, T: Scalar> Operands<'a, T> {
    fn new(bench: &'a Bench<'a>, pattern: &CooPattern, case: Case) -> Result<Self> {
        let tensor = Coo::new(pattern.clone(), values(pattern.coords()[0].len(), 9, 1.0))?;
        let (_, shape, _, n) = case;
        let factor = |axis: usize| values::dense::<T>(&[shape[axis], n], axis, 1.0);
        let host = Host { tensor, factors: (0..shape.len()).map(factor).collect() };
        let factors = host.factors.iter().map(|f| bench.upload(f)).collect::<Result<_>>()?;
        Ok(Self { bench, case, there: bench.context.upload(&host.tensor)?, host, factors })
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
        let rows = self.bench.kernels().filter(|row| {
            row.operation == Operation::Rows
                && row.dtype == T::DTYPE
                && row.step == rows_step(factors, REDUCE_SUM)
                && (row.columns as usize) < 4 * self.case.3
        });
        let rows = rows.filter(|_| !(self.bench.arguments.auto || auto));
        [None].into_iter().chain(rows.map(|row| Some(row.name))).collect()
    }

    /// Row of an operation whose nonzeros each gather `rows` rows of factors, with bytes of device memory.
    fn row(
        &self,
        op: &str,
        (rows, bytes): (usize, usize),
        variant: Option<&str>,
        note: impl Into<String>,
    ) -> Row {
        let ((name, shape, _, n), element) = (self.case, size_of::<T>());
        let gathered = self.host.tensor.nnz() * rows * n * element;
        let floor = 1e3 * (gathered as f64 / L2).max(bytes as f64 / HBM);
        Row::new(op, name, [shape[0], shape[1], n], self.host.tensor.nnz(), T::DTYPE.name())
            .ours(variant.unwrap_or("auto"))
            .bytes(bytes as f64)
            .limit(floor)
            .strict()
            .note(note)
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
        let (entries, element) = (self.host.tensor.nnz(), size_of::<T>());
        let rows: usize = shape.iter().sum();
        let bytes = entries * (4 * others.len() + element) + rows * n * element;
        let row = self
            .row("mttkrp", (others.len(), bytes), variant, format!("mode {mode}"))
            .flops((others.len() + 1) as f64 * (entries * n) as f64);
        let plan = (expression.as_str(), &forced(variant));
        let coords = self.host.tensor.pattern().coords();
        bench.product::<T, T>(row, plan, &operands, |out| {
            self.host.error((&coords[mode], &others), out)
        })?;
        Ok(())
    }

    fn ttm(&self, axis: usize, variant: Option<&str>) -> Result<()> {
        let (bench, (_, shape, _, n)) = (self.bench, self.case);
        let made = || Ttm::with_variant(&bench.context, &self.there, axis, n, variant);
        let (ttm, prepared) = timed(|| Ok(made()?))?;
        let (entries, element) = (self.host.tensor.nnz(), size_of::<T>());
        let bytes = entries * (4 + element) + (ttm.count() + shape[axis]) * n * element;
        let note = format!("axis {axis}, {} fibres; {}", ttm.count(), ttm.variant());
        let row = self
            .row("ttm", (1, bytes), variant, note)
            .flops(2.0 * (entries * n) as f64)
            .prepared(prepared, ttm.workspace_bytes());
        let factor = &self.factors[axis];
        let run = |out: &mut Tensor<T>| ttm.forward(&self.there, factor, out, &bench.stream);
        bench.checked(row, &mut bench.poisoned::<T>(&[ttm.count(), n])?, run, |out| {
            if axis + 1 < shape.len() {
                return Ok(0.0);
            }
            // Nonzeros are sorted by fibre: a new fibre begins where their other coordinates change.
            let coords = self.host.tensor.pattern().coords();
            let mut fibre = vec![0u32; entries];
            for e in 1..entries {
                let new = (0..axis).any(|a| coords[a][e] != coords[a][e - 1]);
                fibre[e] = fibre[e - 1] + u32::from(new);
            }
            self.host.error((&fibre, &[axis]), out)
        })?;
        Ok(())
    }

    /// Measures products at the nonzeros. Each gathers one row per axis of the tensor.
    fn sampled(&self) -> Result<()> {
        let (bench, (_, shape, _, n)) = (self.bench, self.case);
        let made = || SampledTensor::new(&bench.context, &self.there, n);
        let (op, prepared) = timed(|| Ok(made()?))?;
        let borrowed: Vec<&Tensor<T>> = self.factors.iter().collect();
        let (entries, element) = (self.host.tensor.nnz(), size_of::<T>());
        let rows: usize = shape.iter().sum();
        let bytes = entries * (4 * shape.len() + 2 * element) + rows * n * element;
        let row = self
            .row("sampled_tensor", (shape.len(), bytes), None, op.variant())
            .flops((shape.len() * entries * n) as f64)
            .prepared(prepared, op.workspace_bytes());
        let run = |out: &mut SparseTensor<T>| {
            op.forward(Some(&self.there), &borrowed, out, &bench.stream)
        };
        bench.checked(row, &mut bench.context.upload(&self.host.tensor)?, run, |out| {
            let (found, all) = (out.to_host()?, (0..shape.len()).collect::<Vec<_>>());
            let host = &self.host;
            let terms = |e: usize, sums: &mut [Sum]| {
                sums[0] = (0..n).map(|r| host.term(e, &all, r)).collect();
            };
            let checked = (0..entries).step_by(CHECKED);
            Ok(rows_error(found.values(), 1, checked, terms, relative(most::<T>())))
        })?;
        Ok(())
    }
}

impl<T: Scalar> Host<T> {
    /// Nonzero `e` times column `j` of its row of each factor in `of`.
    fn term(&self, e: usize, of: &[usize], j: usize) -> f64 {
        let coords = self.tensor.pattern().coords();
        let factor = |&axis: &usize| {
            let factor = &self.factors[axis];
            factor.values()[coords[axis][e] as usize * factor.shape()[1] + j].to_f64()
        };
        self.tensor.values()[e].to_f64() * of.iter().map(factor).product::<f64>()
    }

    /// Max error of some rows of the output; `rows` contains the row of each nonzero.
    fn error(&self, (rows, of): (&[u32], &[usize]), out: &Tensor<T>) -> Result<f64> {
        let (n, out) = (self.factors[0].shape()[1], out.to_dense()?);
        let checked = out.values().len() / n;
        let mut own = vec![Vec::new(); checked.div_ceil(CHECKED)];
        for (e, &row) in rows.iter().enumerate() {
            if (row as usize).is_multiple_of(CHECKED) {
                own[row as usize / CHECKED].push(e);
            }
        }
        let terms = |row: usize, sums: &mut [Sum]| {
            for &e in &own[row / CHECKED] {
                sums.iter_mut().enumerate().for_each(|(j, sum)| sum.add(self.term(e, of, j)));
            }
        };
        let rows = (0..checked).step_by(CHECKED);
        Ok(rows_error(out.values(), n, rows, terms, relative(most::<T>())))
    }
}

/// Max error relative to the magnitudes of the terms: rounding of terms and output.
fn most<T>() -> f64 {
    if size_of::<T>() == 2 { 8e-3 } else { 1e-5 }
}
