//! `einsum`: the general family. SpMM through it beside what plans take, the indirect Einsum of GroupCOO written by hand,
//! contractions that nothing else is made for, and what an expression costs that was never seen before.

use std::time::Instant;

use crate::device::{Gpu, Result};
use crate::problems::{Dtype, Problem, SEED, Source, Workload};
use crate::record::{Limits, Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::formats::{AnySparse, Csr, Dense, Format, generate};
use einsparse::{Context, Operand, Options, Plan, Stream, Tensor};
use std::fmt::Display;

/// Name of the operation.
pub const OP: &str = "einsum";

/// Rows of the general family begin with this.
const FAMILY: &str = "einsum_";

fn text(error: impl Display) -> String {
    error.to_string()
}

/// One expression on its operands.
struct Case<'a> {
    problem: &'a Problem,
    n: usize,
    name: &'a str,
    expression: &'a str,
    operands: Vec<(&'a str, Operand<'a, f32>)>,
}

/// Where rows come from.
struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    context: Context,
    stream: Stream,
    recorder: &'a mut Recorder,
}

/// Measures everything.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let mut bench = Bench {
        gpu,
        effort,
        context: Context::cuda(0).map_err(text)?,
        stream,
        recorder,
    };
    let mut sources = vec![
        ("rmat17", Source::Rmat(17)),
        (
            "uniform131072-16",
            Source::Uniform(1 << 17, 1 << 17, 16.0 / 131_072.0),
        ),
    ];
    if effort.cold == Effort::FULL.cold {
        let density = 16.0 / f64::from(1 << 20);
        sources.push(("uniform1M-16", Source::Uniform(1 << 20, 1 << 20, density)));
    }
    for (name, source) in sources {
        let problem = Problem::load(&Workload {
            op: OP,
            name: name.into(),
            source,
            ns: &[],
            dtypes: &[],
            quick: true,
        })?;
        for n in [32, 128] {
            bench.products(&problem, n)?;
        }
    }
    bench.contractions()
}

impl Bench<'_> {
    /// SpMM: over CSR what the plan takes and the general kernels, over GroupCOO written by hand.
    fn products(&mut self, problem: &Problem, n: usize) -> Result<()> {
        let (m, k, nnz) = problem.extents();
        let values = generate::small_integers::<f32>(nnz, SEED);
        let csr = Csr::new(problem.pattern.clone(), values).map_err(text)?;
        let b = Dense::new(vec![k, n], generate::small_integers::<f32>(k * n, SEED + 1));
        let b = self.context.upload_dense(&b.map_err(text)?).map_err(text)?;
        let group = Format::GroupCoo {
            axis: 0,
            group: None,
        };
        let grouped = AnySparse::from(csr.clone()).convert(group).map_err(text)?;
        let a = self.context.upload(csr).map_err(text)?;
        let case = Case {
            problem,
            n,
            name: "csr",
            expression: "C[m,n] = A[m,k] * B[k,n]",
            operands: vec![("A", (&a).into()), ("B", (&b).into())],
        };
        let mut c = self.context.zeros(&[m, n]).map_err(text)?;
        let plan = self
            .context
            .plan(case.expression, &case.operands, &Options::default());
        let plan = plan.map_err(text)?;
        let wanted = self.measured(&case, &plan, &mut c, None)?;
        let general = plan.choice().candidates.iter().map(|c| c.name);
        let general: Vec<&str> = general.filter(|n| n.starts_with(FAMILY)).collect();
        for name in general {
            let options = Options {
                variant: Some(name.into()),
                ..Options::default()
            };
            let plan = self.context.plan(case.expression, &case.operands, &options);
            let plan = plan.map_err(text)?;
            let mut c = self.context.zeros(&[m, n]).map_err(text)?;
            self.measured(&case, &plan, &mut c, Some(&wanted))?;
        }
        self.by_hand(problem, (n, &b), &grouped, &wanted)
    }

    /// `C[AM[p],n] += AV[p,q] * B[AK[p,q],n]`, its arrays given one by one.
    fn by_hand(
        &mut self,
        problem: &Problem,
        (n, b): (usize, &Tensor<f32>),
        grouped: &AnySparse<f32>,
        wanted: &[f32],
    ) -> Result<()> {
        let (m, _, _) = problem.extents();
        let arrays = grouped.arrays();
        let (am, ak) = (&arrays[0], &arrays[1]);
        let av = Dense::new(grouped.value_shape(), grouped.values().to_vec()).map_err(text)?;
        let av = self.context.upload_dense(&av).map_err(text)?;
        let mut c = self.context.zeros(&[m, n]).map_err(text)?;
        let like = self.context.zeros(&[m, n]).map_err(text)?;
        let case = Case {
            problem,
            n,
            name: "by hand",
            expression: "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]",
            operands: vec![
                ("AM", Operand::Index(&am.shape, am.data)),
                ("AV", (&av).into()),
                ("AK", Operand::Index(&ak.shape, ak.data)),
                ("B", b.into()),
                ("C", (&like).into()),
            ],
        };
        let start = Instant::now();
        let plan = self
            .context
            .plan(case.expression, &case.operands, &Options::default());
        let plan = plan.map_err(text)?;
        let planned = start.elapsed().as_secs_f64() * 1e3;
        println!(
            "  first call of {}: planned in {planned:.2} ms",
            case.expression
        );
        self.measured(&case, &plan, &mut c, Some(wanted)).map(drop)
    }

    /// Runs once and checks, then measures; returns the output of the first run.
    fn measured(
        &mut self,
        case: &Case<'_>,
        plan: &Plan<f32>,
        c: &mut Tensor<f32>,
        wanted: Option<&[f32]>,
    ) -> Result<Vec<f32>> {
        let operands: Vec<_> = case
            .operands
            .iter()
            .filter(|(name, o)| *name != "C" && !matches!(o, Operand::Index(..)))
            .cloned()
            .collect();
        let start = Instant::now();
        plan.run(&operands, c, &self.stream).map_err(text)?;
        self.stream.synchronize().map_err(text)?;
        let first = start.elapsed().as_secs_f64() * 1e3;
        let found = c.to_dense().map_err(text)?.into_values();
        if wanted.is_some_and(|wanted| wanted != found) {
            return Err(format!("WRONG: {} in {}", plan.variant(), case.name));
        }
        let stream = &self.stream;
        let times = measure(self.gpu, self.effort, &mut || {
            plan.run(&operands, c, stream).map_err(text)
        })?;
        let limits = Limits::published();
        let row = Row::product(
            case.problem,
            case.n,
            Dtype::F32,
            times.cold,
            times.warm,
            &limits,
        );
        self.recorder.add(Row {
            engine: "einsparse".into(),
            variant: plan.variant().into(),
            zeros: "strict".into(),
            prepared_bytes: Some(plan.workspace_bytes()),
            note: format!("{}, first run {first:.3} ms", case.name),
            ..row
        })?;
        Ok(found)
    }

    /// Expressions that no other family has a kernel for, each planned and run for the first time.
    fn contractions(&mut self) -> Result<()> {
        let dense = |shape: &[usize], seed: u64| -> Result<Tensor<f32>> {
            let values = generate::small_integers::<f32>(shape.iter().product(), seed);
            let dense = Dense::new(shape.to_vec(), values).map_err(text)?;
            self.context.upload_dense(&dense).map_err(text)
        };
        let entries = 1_000_000;
        let mut coords = Vec::new();
        for i in 0..entries as u64 {
            let mix = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            coords.push([
                (i / 20) as u32,
                (mix >> 40) as u32 % 50_000,
                (mix >> 20) as u32 % 50_000,
            ]);
        }
        let of = |axis: usize| coords.iter().map(|c| c[axis]).collect::<Vec<u32>>();
        let (ti, tj, tk) = (of(0), of(1), of(2));
        let shape = [entries];
        let (v, x) = (dense(&[entries], 1)?, dense(&[50_000, 32], 2)?);
        let (y, out) = (dense(&[50_000, 32], 3)?, dense(&[50_000, 32], 4)?);
        let (p, q) = (dense(&[256, 64, 64], 5)?, dense(&[64, 64, 256], 6)?);
        let sparse = [
            ("V", (&v).into()),
            ("TI", Operand::Index(&shape, &ti)),
            ("TJ", Operand::Index(&shape, &tj)),
            ("TK", Operand::Index(&shape, &tk)),
            ("X", (&x).into()),
            ("Y", (&y).into()),
        ];
        let mut scattered = sparse.to_vec();
        scattered.push(("C", (&out).into()));
        let unsorted = scattered.clone();
        let mut sampled = sparse.to_vec();
        sampled.retain(|(name, _)| *name != "TI");
        let plain = vec![("P", (&p).into()), ("Q", (&q).into())];
        let cases = [
            (
                "mttkrp",
                "C[TI[p],r] += V[p] * X[TJ[p],r] * Y[TK[p],r]",
                scattered,
            ),
            ("sampled", "S[p] = V[p] * X[TJ[p],r] * Y[TK[p],r]", sampled),
            ("dense", "D[i,j] = P[i,k,l] * Q[l,k,j]", plain),
        ];
        for (name, expression, operands) in cases {
            self.fresh(name, expression, &operands)?;
        }
        // Places that are not sorted: terms are brought in order when planned.
        let expression = "C[TJ[p],r] += V[p] * X[TI[p],r] * Y[TK[p],r]";
        self.fresh("mttkrp-unsorted", expression, &unsorted)?;
        Ok(())
    }

    fn fresh(
        &mut self,
        name: &str,
        expression: &str,
        operands: &[(&str, Operand<'_, f32>)],
    ) -> Result<()> {
        let start = Instant::now();
        let plan = self.context.plan(expression, operands, &Options::default());
        let plan = plan.map_err(text)?;
        let planned = start.elapsed().as_secs_f64() * 1e3;
        let given: Vec<_> = operands
            .iter()
            .filter(|(n, o)| *n != "C" && !matches!(o, Operand::Index(..)))
            .cloned()
            .collect();
        let mut out = self.context.zeros(plan.out_shape()).map_err(text)?;
        let start = Instant::now();
        plan.run(&given, &mut out, &self.stream).map_err(text)?;
        self.stream.synchronize().map_err(text)?;
        let first = start.elapsed().as_secs_f64() * 1e3;
        let stream = &self.stream;
        let times = measure(self.gpu, self.effort, &mut || {
            plan.run(&given, &mut out, stream).map_err(text)
        })?;
        self.recorder.add(Row {
            op: OP.into(),
            workload: name.into(),
            dtype: "f32".into(),
            engine: "einsparse".into(),
            variant: plan.variant().into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            prepare_ms: Some(planned),
            prepared_bytes: Some(plan.workspace_bytes()),
            zeros: "strict".into(),
            note: format!("{expression}, first run {first:.3} ms"),
            ..Row::default()
        })
    }
}
