//! Products with the transpose of a matrix of single entries (`spmm_t`) beside the plain product and that with a transpose
//! made as a matrix; batches of products (`spmm_batched`).

use crate::Arguments;
use crate::device::{Gpu, Result};
use crate::families::convert::entries::{patterns, row, text, value, values};
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::driver::RawStream;
use einsparse::formats::{Csr, CsrPattern, Dense, convert, f16, generate};
use einsparse::registry::Scalar;
use einsparse::{Context, Options, RawSpmm};
use std::time::Instant;

pub const OP: &str = "spmm_t";

/// Products with A, with its transpose, and with a transpose that was made as a matrix of its own; and batches.
pub fn run(gpu: &Gpu, arguments: &Arguments, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let effort = arguments.effort();
    let mut bench = Bench {
        gpu,
        effort,
        auto: arguments.auto,
        recorder,
        context,
    };
    let ns = match arguments.columns.as_slice() {
        [] => &[32, 128, 256],
        asked => asked,
    };
    let wants = |dtype| arguments.dtype.is_empty() || arguments.dtype.contains(&dtype);
    let named = |name: &str| arguments.filter.iter().any(|part| name.contains(part));
    let all = patterns(effort)?.into_iter();
    for (name, pattern) in all.filter(|(name, _)| arguments.filter.is_empty() || named(name)) {
        for &n in ns {
            if wants(Dtype::F32) {
                bench.turned::<f32>(name, &pattern, n)?;
            }
            if wants(Dtype::F16) {
                bench.turned::<f16>(name, &pattern, n)?;
            }
        }
    }
    if !arguments.filter.is_empty() && !named("batched") {
        return Ok(());
    }
    let pattern = generate::uniform(2048, 2048, 0.05, SEED).map_err(text)?;
    for items in [1, 8, 64] {
        bench.batch::<f32>(&pattern, items)?;
        bench.batch::<f16>(&pattern, items)?;
    }
    Ok(())
}

/// Tiles of rows that read values in place; `*`: as wide as B.
const IN_PLACE: [&str; 6] = [
    "n*",
    "n32_s4",
    "n128_l8",
    "n128_l8_s4",
    "n128_l16",
    "n256_l16",
];

/// Every so many rows of C are checked.
const CHECKED: usize = 61;

/// Rows and columns of A or its transpose.
fn extents<T: Scalar>(a: &Csr<T>, transposed: bool) -> [usize; 2] {
    let (rows, columns) = (a.shape()[0], a.shape()[1]);
    if transposed {
        [columns, rows]
    } else {
        [rows, columns]
    }
}

/// The first element of some rows of C, A or its transpose times `b`, that is off by more than rounding of terms and output.
fn wrong<T: Scalar>(a: &Csr<T>, transposed: bool, b: &[T], c: &[T]) -> Option<String> {
    let (p, [m, k]) = (a.pattern(), extents(a, transposed));
    let n = b.len() / k.max(1);
    let relative = if size_of::<T>() == 2 { 1e-3 } else { 1e-5 };
    let mut sums = vec![(0f64, 0f64); m.div_ceil(CHECKED) * n];
    for row in 0..p.rows() {
        for at in p.row(row) {
            let column = p.columns()[at] as usize;
            let (to, from) = if transposed {
                (column, row)
            } else {
                (row, column)
            };
            if to % CHECKED != 0 {
                continue;
            }
            let own = &mut sums[to / CHECKED * n..][..n];
            for ((sum, size), x) in own.iter_mut().zip(&b[from * n..][..n]) {
                let product = a.values()[at].to_f64() * x.to_f64();
                *sum += product;
                *size += product.abs();
            }
        }
    }
    sums.iter().enumerate().find_map(|(i, (sum, size))| {
        let (row, column) = (i / n * CHECKED, i % n);
        let found = c[row * n + column].to_f64();
        // A NaN is as far off as can be.
        let near = (found - sum).abs() <= relative * size;
        (!near).then(|| format!("({row}, {column}) is {found}, not {sum}"))
    })
}

struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    /// Only what plans take.
    auto: bool,
    recorder: &'a mut Recorder,
    context: Context,
}

impl Bench<'_> {
    fn product<T: Scalar>(
        &mut self,
        mut row: Row,
        (expression, variant): (&str, Option<&str>),
        csr: &Csr<T>,
        items: usize,
    ) -> Result<(Times, &'static str)> {
        let context = self.context.clone();
        let a = context.upload(csr.clone()).map_err(text)?;
        let transposed = expression.contains("A[k,m]");
        let ([m, k], n) = (extents(csr, transposed), row.n);
        let shape = |rows| {
            if items > 1 {
                vec![items, rows, n]
            } else {
                vec![rows, n]
            }
        };
        let table: Vec<T> = (0..k * n).map(|i| value(i + 3)).collect();
        let b = Dense::new(shape(k), table.repeat(items)).map_err(text)?;
        let b = context.upload_dense(&b).map_err(text)?;
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let options = Options {
            variant: variant.map(str::to_owned),
            ..Options::default()
        };
        let start = Instant::now();
        let plan = context
            .plan(expression, &operands, &options)
            .map_err(text)?;
        context.synchronize().map_err(text)?;
        row.prepare_ms = Some(start.elapsed().as_secs_f64() * 1e3);
        row.prepared_bytes = Some(plan.workspace_bytes());
        let c = context.zeros::<T>(&shape(m)).map_err(text)?;
        let raw = RawSpmm {
            columns: a.columns_address().unwrap_or(0),
            values: a.values_address().unwrap_or(0),
            b: b.address().unwrap_or(0),
            ldb: n,
            c: c.address().unwrap_or(0),
            ldc: n,
            ..RawSpmm::default()
        };
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        let stream = unsafe { RawStream::from_raw(self.gpu.stream.cast()) };
        let times = measure(self.gpu, self.effort, &mut || {
            // SAFETY: sizes as promised; runs follow each other on one stream.
            unsafe { plan.run_raw(&raw, stream) }.map_err(text)
        })?;
        row.gflops = Some(2.0 * row.nnz as f64 * (n * items) as f64 / times.cold / 1e6);
        let matrix = (4 + size_of::<T>()) * row.nnz + 4 * (csr.shape()[0] + 1);
        let share = plan.workspace_bytes() as f64 / matrix as f64;
        row.note = format!("{}; prepared {share:.2} of A's bytes", row.note);
        let found = c.to_dense().map_err(text)?;
        let wrong = found
            .values()
            .chunks(m * n)
            .find_map(|c| wrong(csr, transposed, &table, c));
        self.add(row, plan.variant(), &times, wrong)?;
        Ok((times, plan.variant()))
    }

    /// Writes the row, and fails where the result is wrong.
    fn add(&mut self, row: Row, variant: &str, times: &Times, wrong: Option<String>) -> Result<()> {
        let name = row.workload.clone();
        let note = wrong.as_ref().map(|wrong| format!("WRONG: {wrong}"));
        self.recorder.add(Row {
            engine: "einsparse".into(),
            variant: variant.into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            zeros: "strict".into(),
            note: note.unwrap_or_else(|| row.note.clone()),
            ..row
        })?;
        wrong.map_or(Ok(()), |wrong| Err(format!("{variant} on {name}: {wrong}")))
    }

    fn turned<T: Scalar>(&mut self, name: &str, p: &CsrPattern, n: usize) -> Result<()> {
        let csr = Csr::new(p.clone(), values::<T>(p.columns().len())).map_err(text)?;
        let other = convert::transpose_csr(&csr).map_err(text)?;
        let of = |note: String, p: &CsrPattern| Row {
            n,
            note,
            ..row::<T>("spmm_t", name, "", p)
        };
        let plain = ("C[m,n] = A[m,k] * B[k,n]", None);
        let turned = "C[m,n] = A[k,m] * B[k,n]";
        let (as_is, taken) = self.product(of("A".into(), p), plain, &csr, 1)?;
        let note = "transpose as a matrix".into();
        let (made, _) = self.product(of(note, other.pattern()), plain, &other, 1)?;
        let (auto, by) = self.product(of("transpose".into(), p), (turned, None), &csr, 1)?;
        if self.auto {
            return Ok(());
        }
        let mut in_place = Vec::new();
        for tile in IN_PLACE.map(|tile| tile.replace('*', &n.to_string())) {
            let forced = format!("batched_permuted_{}_{tile}", T::DTYPE.name());
            let row = einsparse::registry::find(&forced);
            if row.is_some_and(|row| row.columns as usize <= n) {
                let note = "transpose, values in place".into();
                let variant = (turned, Some(forced.as_str()));
                let (times, _) = self.product(of(note, p), variant, &csr, 1)?;
                in_place.push(format!("{tile} {:.3}", times.cold / as_is.cold));
            }
        }
        // What A as it is takes, behind values in order.
        let mut ahead = f64::NAN;
        if taken.starts_with("spmm_csr") {
            let note = "transpose, values ahead".into();
            let variant = (turned, Some(taken));
            ahead = self.product(of(note, p), variant, &csr, 1)?.0.cold;
        }
        println!(
            "{name} {} n {n}: A {:.1} us {taken}; transposed / plain cold {:.3} warm {:.3} {by}; over the made transpose cold {:.3}; ahead cold {:.3}; in place cold {}",
            T::DTYPE.name(),
            as_is.cold * 1e3,
            auto.cold / as_is.cold,
            auto.warm / as_is.warm,
            auto.cold / made.cold,
            ahead / as_is.cold,
            in_place.join(", ")
        );
        Ok(())
    }

    fn batch<T: Scalar>(&mut self, p: &CsrPattern, items: usize) -> Result<()> {
        let csr = Csr::new(p.clone(), values::<T>(p.columns().len())).map_err(text)?;
        let expressions = match items {
            1 => ["C[m,n] = A[m,k] * B[k,n]", "C[m,n] = A[k,m] * B[k,n]"],
            _ => [
                "C[z,m,n] = A[m,k] * B[z,k,n]",
                "C[z,m,n] = A[k,m] * B[z,k,n]",
            ],
        };
        for expression in expressions {
            let row = Row {
                n: 64,
                note: format!("{items} of a batch"),
                ..row::<T>(
                    "spmm_batched",
                    &format!("uniform-2048x2048-d0.05-x{items}"),
                    "",
                    p,
                )
            };
            self.product(row, (expression, None), &csr, items)?;
        }
        Ok(())
    }
}
