//! Arguments shared by `run`, `explain` and `bench`: the expression, its operands rounded to the element type, and
//! options.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use einsparse::einsum::Einsum;
use einsparse::formats::{AnySparse, Dense, Element, Format};
use einsparse::{Context, Options, Precision, Scalar, Weights, ZerosRule};

use super::load::{self, Value};
use super::time::timed;
use super::{Result, operand};

/// Element type of operands and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// IEEE half, sums in f32.
    F16,
    /// bfloat16, sums in f32.
    Bf16,
}

/// Evaluates `$body` with `$t` as the Rust type of `$dtype`.
macro_rules! for_dtype {
    (@ $t:ident = $own:ty, $body:expr) => {{
        type $t = $own;
        $body
    }};
    ($dtype:expr, $t:ident => $body:expr) => {{
        use $crate::problem::{Dtype as Given, for_dtype};
        match $dtype {
            Given::F32 => for_dtype!(@ $t = f32, $body),
            Given::F64 => for_dtype!(@ $t = f64, $body),
            Given::F16 => for_dtype!(@ $t = einsparse::formats::f16, $body),
            Given::Bf16 => for_dtype!(@ $t = einsparse::formats::bf16, $body),
        }
    }};
}
pub(super) use for_dtype;

/// Format of the sparse operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatChoice {
    /// Format with the cheapest kernel.
    Auto,
    /// Given format.
    Given(Format),
}

impl FromStr for FormatChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(FormatChoice::Auto),
            _ => text
                .parse()
                .map(FormatChoice::Given)
                .map_err(|e: einsparse::formats::FormatError| e.to_string()),
        }
    }
}

/// Device on which to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first GPU, or the CPU without a GPU.
    Auto,
    /// The CPU.
    Cpu,
    /// GPU with this number.
    Gpu(u32),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Place::Auto),
            "cpu" => Ok(Place::Cpu),
            "gpu" => Ok(Place::Gpu(0)),
            _ => text
                .parse()
                .map(Place::Gpu)
                .map_err(|_| "auto, gpu, cpu or the number of a GPU wanted".into()),
        }
    }
}

impl Place {
    /// Creates the context. `auto` prints a note if it selects the CPU.
    pub fn open(self) -> einsparse::Result<Context> {
        match self {
            Place::Cpu => Ok(Context::unchecked_cpu()),
            Place::Gpu(ordinal) => Context::cuda(ordinal),
            Place::Auto => Ok(Context::cuda(0).unwrap_or_else(|reason| {
                tracing::info!(%reason, "no GPU");
                say!("no GPU found: using the CPU (`einsparse doctor` lists what is missing)");
                Context::unchecked_cpu()
            })),
        }
    }
}

/// The expression, its operands, and how to compute.
#[derive(clap::Args, Debug)]
#[command(after_help = operand::GRAMMAR)]
pub struct Problem {
    /// For example "C[m,n] = A[m,k] * B[k,n]"; `+=`, factors, relu(...) and + bias[m] work too
    pub expression: String,
    /// NAME=SOURCE, see below
    pub operands: Vec<String>,
    /// Format of the sparse operand
    #[arg(long, default_value = "auto")]
    pub format: FormatChoice,
    /// Element type
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    pub dtype: Dtype,
    /// Round f32 to TF32 for the Tensor Cores
    #[arg(long)]
    pub tf32: bool,
    /// Never multiply implicit zeros (a NaN in B then reaches only rows that own an entry there)
    #[arg(long)]
    pub strict_zeros: bool,
    /// The plan may keep the sparse operand's values in another form (weights that many runs share)
    #[arg(long)]
    pub static_weights: bool,
    /// This kernel and no other (`einsparse kernels` lists them)
    #[arg(long)]
    pub variant: Option<String>,
    /// auto, gpu, cpu, or the number of a GPU
    #[arg(long, default_value = "auto")]
    pub device: Place,
    /// Seed of made-up operands
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Problem {
    /// Options of the plan.
    pub fn options(&self) -> Result<Options> {
        if let Some(name) =
            self.variant.as_ref().filter(|name| einsparse::registry::find(name).is_none())
        {
            return Err(
                format!("no kernel is named `{name}`; `einsparse kernels` lists them").into()
            );
        }
        if self.tf32 && self.dtype != Dtype::F32 {
            return Err("--tf32 rounds f32 operands; leave out --dtype".into());
        }
        Ok(Options::default()
            .precision(if self.tf32 { Precision::Tf32 } else { Precision::Full })
            .zeros(if self.strict_zeros { ZerosRule::Strict } else { ZerosRule::Dense })
            .weights(if self.static_weights { Weights::Static } else { Weights::EachRun })
            .variant(self.variant.as_deref()))
    }

    /// Parses the expression, reads and validates the operands. Also returns the time for reading.
    pub fn load<T: Scalar>(&self) -> Result<(Typed<T>, Duration)> {
        let einsum = Einsum::parse(&self.expression)?;
        let (values, read) = timed(|| load::operands(&einsum, &self.operands, self.seed))?;
        Ok((Typed::new(einsum, values)?, read))
    }

    /// [`load`](Self::load) while the device is opened, which takes longer than reading most files.
    pub fn load_for_device<T: Scalar>(&self) -> Result<(Typed<T>, Duration, Context)> {
        let (loaded, context) = std::thread::scope(|scope| {
            let opening = scope.spawn(|| self.device.open());
            let loaded = self.load();
            (loaded, opening.join())
        });
        let (typed, read) = loaded?;
        let context = context.map_err(|_| "opening the device panicked")?;
        Ok((typed, read, context?))
    }
}

/// One operand in the element type of the run.
#[derive(Clone, Debug)]
pub enum Data<T> {
    /// A sparse tensor.
    Sparse(AnySparse<T>),
    /// A dense tensor.
    Dense(Dense<T>),
    /// An index array of a hand-written indirect Einsum.
    Index(Vec<usize>, Vec<u32>),
    /// A number.
    Number(f64),
}

/// An expression with its operands in host memory.
#[derive(Clone, Debug)]
pub struct Typed<T> {
    /// Parsed expression.
    pub einsum: Einsum,
    /// Operands by name.
    pub operands: Vec<(String, Data<T>)>,
}

impl<T: Scalar> Typed<T> {
    /// Rounds the operands to `T`. A dense operand that is used inside another access is an index array.
    pub fn new(einsum: Einsum, values: Vec<(String, Value)>) -> Result<Self> {
        let mut arrays = BTreeSet::new();
        for access in einsum.right().chain([&einsum.out]) {
            access.for_each_access(&mut |inner| {
                if !std::ptr::eq(inner, access) {
                    arrays.insert(inner.tensor.clone());
                }
            });
        }
        let round = |(name, value): (String, Value)| {
            let data = match value {
                Value::Dense(dense) if arrays.contains(&name) => index(&name, &dense)?,
                Value::Sparse(sparse) => {
                    let narrow = sparse.map_values(T::from_f64);
                    warn_overflow::<T>(&name, sparse.values(), narrow.values());
                    Data::Sparse(narrow)
                }
                Value::Dense(dense) => {
                    let narrow = dense.map(T::from_f64);
                    warn_overflow::<T>(&name, dense.values(), narrow.values());
                    Data::Dense(narrow)
                }
                Value::Number(x) => Data::Number(x),
            };
            Ok((name, data))
        };
        let operands = values.into_iter().map(round).collect::<Result<_>>()?;
        Ok(Typed { einsum, operands })
    }

    /// Returns the sparse operand, if any.
    pub fn sparse(&self) -> Option<(&str, &AnySparse<T>)> {
        self.operands.iter().find_map(|(name, data)| match data {
            Data::Sparse(sparse) => Some((name.as_str(), sparse)),
            _ => None,
        })
    }

    /// Returns the operand of this name.
    pub fn get(&self, name: &str) -> Option<&Data<T>> {
        self.operands.iter().find(|(n, _)| n == name).map(|(_, data)| data)
    }
}

fn index<T>(name: &str, dense: &Dense<f64>) -> Result<Data<T>> {
    let whole = |(at, &x): (usize, &f64)| {
        let index = x as u32;
        match f64::from(index) == x {
            true => Ok(index),
            false => Err(format!("operand `{name}` is an index array, but value {at} is {x}")),
        }
    };
    let data = dense.values().iter().enumerate().map(whole).collect::<Result<_, _>>()?;
    Ok(Data::Index(dense.shape().to_vec(), data))
}

/// Prints a warning if finite values become infinite.
pub fn warn_overflow<T: Element>(name: &str, wide: &[f64], narrow: &[T]) {
    let lost =
        wide.iter().zip(narrow).filter(|(w, n)| w.is_finite() && !n.to_f64().is_finite()).count();
    if lost > 0 {
        let largest = wide.iter().filter(|w| w.is_finite()).fold(0.0f64, |m, w| m.max(w.abs()));
        eprintln!(
            "warning: {lost} values of `{name}` are past the range of {} and became infinite (largest {largest:e})",
            T::NAME
        );
    }
}
