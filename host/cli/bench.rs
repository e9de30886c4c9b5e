//! `einsparse bench`: times every format and variant for one expression.

use einsparse::formats::Format;
use einsparse::formats::stats::slots;
use einsparse::plan::advised_formats;
use einsparse::{Context, Error, Options, Scalar};

use super::Result;
use super::bind::{self, Bound};
use super::problem::{FormatChoice, Problem, Typed, for_dtype};
use super::time::{self, Shown};

/// Median time of every format and variant. `cargo bench --bench gpu` is the full harness, with the peers.
#[derive(clap::Args)]
pub struct Bench {
    #[command(flatten)]
    problem: Problem,
    /// Runs for each median
    #[arg(long, default_value_t = 50)]
    repeat: usize,
}

/// Maximum number of stored values per nonzero. Formats above it are skipped.
const MOST_PADDING: f64 = 32.0;

impl Bench {
    /// Prints the table.
    pub fn execute(&self) -> Result<()> {
        for_dtype!(self.problem.dtype, T => self.typed::<T>())
    }

    fn typed<T: Scalar>(&self) -> Result<()> {
        let options = self.problem.options()?;
        let (typed, _) = self.problem.load::<T>()?;
        let context = self.problem.device.open()?;
        say!(
            "{} on {context}, {}, median of {} warm runs",
            typed.einsum,
            T::NAME,
            self.repeat.max(1)
        );
        say!(
            "{:26} {:22} {:>12} {:>12} {:>10}",
            "variant",
            "format",
            "predicted",
            "measured",
            "GFLOP/s"
        );
        let operations = super::run::operations(&typed);
        for format in self.formats(&typed)? {
            let stored = bind::convert(typed.clone(), format)?;
            if let Err(error) = self.format(&stored, operations, &context, &options) {
                let shown =
                    bind::stored(&stored).map(|s| s.format().to_string()).unwrap_or_default();
                let why = match error.downcast_ref::<Error>() {
                    Some(Error::NoKernel { .. }) => "no kernel under these options".to_string(),
                    _ => super::readable(&*error),
                };
                say!("{:26} {shown:22} {why}", "-");
            }
        }
        say!(
            "a look only: `cargo bench --bench gpu` measures whole tables against cuSPARSE and cuBLAS"
        );
        Ok(())
    }

    fn formats<T: Scalar>(&self, typed: &Typed<T>) -> Result<Vec<Option<Format>>> {
        match (self.problem.format, typed.sparse()) {
            (_, None) => Ok(vec![None]),
            (FormatChoice::Given(format), _) => Ok(vec![Some(format)]),
            (FormatChoice::Auto, Some((_, sparse))) if sparse.shape().len() != 2 => {
                Ok(vec![Some(sparse.format())])
            }
            (FormatChoice::Auto, Some((_, sparse))) => {
                let csr = sparse.to_csr()?;
                let mut all = Vec::new();
                for format in advised_formats() {
                    let slots = slots(csr.pattern(), format)?;
                    let repeated = all.contains(&Some(slots.format));
                    if slots.ratio() <= MOST_PADDING && !repeated {
                        all.push(Some(slots.format));
                    }
                }
                Ok(all)
            }
        }
    }

    /// Times each kernel of one format. `operations` counts those of the original operand, without padding zeros in
    /// blocks.
    fn format<T: Scalar>(
        &self,
        typed: &Typed<T>,
        operations: Option<f64>,
        context: &Context,
        options: &Options,
    ) -> Result<()> {
        let bound = Bound::new(context, typed)?;
        let expression = &self.problem.expression;
        let (plan, _) = bind::plan(context, expression, &bound, options)?;
        let names = plan.choice().candidates.iter().map(|c| (Some(c.name), Some(c.cost.us)));
        let variants: Vec<_> = if context.is_cuda() { names.collect() } else { vec![(None, None)] };
        for (name, predicted) in variants {
            let options = options.clone().variant(name);
            let (plan, _) = bind::plan(context, expression, &bound, &options)?;
            let mut out = bound.output(context, &plan, typed)?;
            let median =
                time::median(context, &plan, &bound.run_operands(), &mut out, self.repeat)?;
            let stored = bind::stored(typed);
            say!(
                "{:26} {:22} {:>12} {:>12} {:>10}",
                plan.variant(),
                stored.map(|s| s.format().to_string()).unwrap_or_default(),
                predicted.map_or("-".to_string(), |us| format!("{us:.1} us")),
                Shown(median).to_string(),
                operations
                    .map_or("-".to_string(), |f| format!("{:.1}", f / median.as_secs_f64() * 1e-9))
            );
        }
        Ok(())
    }
}
