//! `einsparse explain`: prints how an Einsum becomes a kernel, and the reasons against other kernels.

use std::path::PathBuf;

use einsparse::cost::Machine;
use einsparse::dynamic::{dense_tiles, matmul_extents, micro_tiles, pit_axes};
use einsparse::einsum::Einsum;
use einsparse::formats::Format;
use einsparse::indirect::rewrite;
use einsparse::registry::Dtype;
use einsparse::{Context, Error, Plan, Scalar};

use super::Result;
use super::bind::{self, Bound, Selected};
use super::chain::{Bar, Bars, Chain};
use super::picture;
use super::problem::{Place, Problem, for_dtype};
use super::run::{describe, print_chain};

/// Print how an Einsum becomes a kernel. Without operands: its form in every format.
#[derive(clap::Args)]
pub struct Explain {
    #[command(flatten)]
    problem: Problem,
    /// List each refused kernel, not only the reasons
    #[arg(long)]
    all: bool,
    /// Explain the gradient by this operand instead
    #[arg(long, value_name = "NAME")]
    gradient: Option<String>,
    /// Draw the steps, and the candidates with their predicted costs, here (.svg or .png)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Explain {
    /// Prints the explanation.
    pub fn execute(&self) -> Result<()> {
        if self.problem.operands.is_empty() {
            if self.svg.is_some() {
                return Err("--svg draws a plan: give operands (NAME=SOURCE)".into());
            }
            let Some(operand) = &self.gradient else {
                return every_format(&Einsum::parse(&self.problem.expression)?);
            };
            let gradient = Einsum::parse(&self.problem.expression)?.gradient(operand)?;
            return gradient.steps().try_for_each(|e| every_format(&e));
        }
        for_dtype!(self.problem.dtype, T => self.typed::<T>())
    }

    fn typed<T: Scalar>(&self) -> Result<()> {
        let options = self.problem.options()?;
        let (typed, _) = self.problem.load::<T>()?;
        let context = match self.problem.device {
            // `explain` is about the GPU's choice, so a fallback to the CPU is not reported.
            Place::Auto => Context::cuda(0).unwrap_or_else(|_| Context::unchecked_cpu()),
            place => place.open()?,
        };
        let selected = bind::select(&typed, self.problem.format, &context, &options, true)?;
        let typed = bind::convert(typed, selected.format)?;
        let bound = Bound::new(&context, &typed)?;
        match bind::plan(&context, &self.problem.expression, &bound, &options) {
            Ok((plan, _)) => {
                if let Some(operand) = &self.gradient {
                    let gradients = plan.gradients(&[operand])?;
                    gradients.plans().for_each(|plan| self.print_gradient(plan, &context));
                    return Ok(());
                }
                print_chain(&plan, &typed, &selected, &context);
                print_axes(plan.einsum());
                print_offers(&selected, context.is_cuda());
                let operands = bound.operands();
                if let Some(path) = context.contraction_path(&self.problem.expression, &operands)? {
                    say!("Path     {path}");
                }
                self.print_choice(&plan, &context);
                self.draw(&plan, &selected, &context)
            }
            Err(error) => match error.downcast_ref::<Error>() {
                Some(Error::NoKernel { indirect, tried }) => {
                    say!("Einsum   {}", typed.einsum);
                    typed
                        .operands
                        .iter()
                        .for_each(|(name, data)| say!("   {name:5} {}", describe(data)));
                    say!("Indirect {indirect}");
                    let other = match context.is_cuda() {
                        true => "; --device cpu may run it",
                        false => "",
                    };
                    say!("Plan     none on {context}{other}");
                    tried.iter().for_each(|(name, reason)| say!("   {name:24} refused: {reason}"));
                    match &self.svg {
                        Some(path) => Err(format!("{}: no plan to draw", path.display()).into()),
                        None => Ok(()),
                    }
                }
                _ => Err(error),
            },
        }
    }

    /// Draws the steps and the candidates if `--svg` is given.
    fn draw<T: Scalar>(
        &self,
        plan: &Plan<T>,
        selected: &Selected,
        context: &Context,
    ) -> Result<()> {
        let Some(path) = &self.svg else {
            return Ok(());
        };
        let mut chain = Chain::default();
        chain.step("Einsum", &plan.einsum().to_string());
        if let Some(format) = selected.format {
            chain.step("Format", &format!("{format}: {}", selected.why));
        }
        chain.step("Indirect", &plan.indirect().to_string());
        chain.step("Plan", &plan.to_string());
        let whose = match context.is_cuda() {
            true => context.to_string(),
            false => "an H200: there is no GPU here".into(),
        };
        let offers = selected.offers.iter().filter_map(|offer| {
            let (kernel, us) = (offer.kernel()?, offer.microseconds()?);
            Some(Bar {
                name: offer.format.map_or("dense".into(), |f| f.to_string()),
                us,
                note: format!(", {kernel}"),
            })
        });
        chain.bars(Bars {
            title: format!("Formats by their cheapest kernel, predicted for {whose}"),
            bars: offers.collect(),
            taken: best_format(selected),
        });
        let candidates = plan.choice().candidates.iter().map(|c| Bar {
            name: c.name.to_owned(),
            us: c.cost.us,
            note: match c.prepacked {
                Some(form) => format!(", zeros = {:?}, A prepacked as {form}", c.zeros),
                None => format!(", zeros = {:?}", c.zeros),
            },
        });
        chain.bars(Bars {
            title: format!("Kernels, predicted for {whose}"),
            bars: candidates.collect(),
            taken: context.is_cuda().then_some(0),
        });
        picture::save(&chain, path)?;
        say!("picture  {}", path.display());
        Ok(())
    }

    /// Prints one expression of a gradient.
    fn print_gradient<T: Scalar>(&self, plan: &Plan<T>, context: &Context) {
        say!("Einsum   {}", plan.einsum());
        say!("Indirect {}", plan.indirect());
        say!("Plan     {plan}");
        self.print_choice(plan, context);
    }

    fn print_choice<T: Scalar>(&self, plan: &Plan<T>, context: &Context) {
        let choice = plan.choice();
        if choice.candidates.is_empty() && choice.refused.is_empty() {
            say!("Kernels  none are for this form; the CPU executor runs it");
            return;
        }
        let whose =
            if context.is_cuda() { "of this GPU" } else { "of an H200, there is no GPU here" };
        let m = if context.is_cuda() { context.machine() } else { Machine::H200 };
        say!(
            "Kernels  predicted with the figures {whose}: HBM {:.2} TB/s, L2 {:.1} TB/s, {} multiprocessors",
            m.hbm * 1e-12,
            m.l2 * 1e-12,
            m.multiprocessors
        );
        if choice.candidates.is_empty() {
            say!("   no kernel takes this");
        }
        let text = match self.all {
            true => format!("{choice:#}"),
            false => choice.to_string(),
        };
        say!("{}", text.trim_end());
    }
}

/// Index of the selected format. `--format auto` keeps the operand sparse, so a cheaper dense product precedes the
/// selection.
fn best_format(selected: &Selected) -> Option<usize> {
    let mut offers = selected.offers.iter();
    offers.position(|o| o.format.is_some() && o.kernel().is_some())
}

/// Prints the formats that were compared.
pub fn print_offers(selected: &Selected, is_cuda: bool) {
    if !selected.offers.is_empty() {
        let whose = if is_cuda { "this GPU" } else { "an H200" };
        say!("Formats  by the cost of their cheapest kernel, predicted for {whose}");
    }
    let best = best_format(selected);
    for (i, offer) in selected.offers.iter().enumerate() {
        let mark = if Some(i) == best { "->" } else { "  " };
        say!("{mark} {offer}");
    }
}

/// Prints the indirect form for each factor as the sparse one, in every format that supports it.
fn every_format(einsum: &Einsum) -> Result<()> {
    say!("Einsum   {einsum}");
    let block = (32, 32);
    let formats = [
        Format::Coo,
        Format::Csr,
        Format::Csc,
        Format::Ell,
        Format::GroupCoo { axis: 0, group: None },
        Format::HybridGroupCoo,
        Format::Bsr { block },
        Format::BlockCoo { block },
        Format::BlockGroupCoo { block, group: None },
        Format::Nm { n: 2, m: 4 },
        Format::Bitmap,
        Format::Bytemap,
        Format::SlicedEll,
    ];
    let mut names: Vec<&str> = einsum.factors.iter().map(|factor| factor.tensor.as_str()).collect();
    names.dedup();
    for name in names {
        say!("Indirect with {name} sparse:");
        for format in formats {
            match rewrite(einsum, name, &format) {
                Ok(indirect) => say!("   {:20} {indirect}", format.to_string()),
                Err(error) => {
                    say!("   {:20} {}", format.to_string(), error.to_string().replace('\n', " "))
                }
            }
        }
    }
    print_axes(einsum);
    say!("Give operands (NAME=SOURCE, see --help) for a plan");
    Ok(())
}

/// Prints the indices along which dynamic sparsity can be gathered, and the micro-tiles of the largest f16 tile.
fn print_axes(einsum: &Einsum) {
    let axes = pit_axes(einsum);
    let listed = |operand: &str| {
        let own = axes.iter().filter(|axis| axis.operand == operand);
        let said: Vec<String> = own
            .map(|axis| match axis.usage.is_pit() {
                true => format!("{} {}", axis.index, axis.usage),
                false => format!("({} {})", axis.index, axis.usage),
            })
            .collect();
        said.join(", ")
    };
    let mut seen: Vec<&str> = Vec::new();
    for axis in &axes {
        if !seen.contains(&axis.operand.as_str()) {
            seen.push(&axis.operand);
        }
    }
    let said: Vec<String> = seen.iter().map(|name| format!("{name}: {}", listed(name))).collect();
    say!("PIT      {}", said.join("; "));
    let tiles = dense_tiles(Dtype::F16);
    let Some(tile) = tiles.iter().max_by_key(|t| t.m * t.n * t.k) else {
        return;
    };
    if let Some(extents) = matmul_extents(einsum, tile) {
        let micro = micro_tiles(einsum, &extents, Dtype::F16.bytes());
        let micro: Vec<String> = micro.iter().map(ToString::to_string).collect();
        say!("   micro-tiles of {tile} in f16: {}", micro.join(", "));
    }
}
