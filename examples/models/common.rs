//! What the models share: arguments, times, memory, errors.

use std::time::Instant;

use einsparse::{Context, Graph, Result, Stream};

/// What a user asks for.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub name: Option<String>,
    pub batch: Option<Vec<usize>>,
    pub scale: Option<u32>,
    pub steps: Option<usize>,
}

impl Arguments {
    pub fn parse(words: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let (mut all, mut words) = (Arguments::default(), words);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            let number = |text: &str| text.parse().map_err(|e| format!("{word}: {text}: {e}"));
            match word.as_str() {
                "--batch" => {
                    let sizes = value()?
                        .split(',')
                        .map(number)
                        .collect::<std::result::Result<_, _>>();
                    all.batch = Some(sizes?);
                }
                "--scale" => all.scale = Some(number(&value()?)? as u32),
                "--steps" => all.steps = Some(number(&value()?)?),
                name if !name.starts_with('-') => all.name = Some(name.into()),
                other => return Err(format!("{other}: --batch, --scale and --steps are known")),
            }
        }
        Ok(all)
    }
}

/// Where a model runs, and how large.
#[derive(Debug)]
pub struct Run {
    pub context: Context,
    pub toy: bool,
    pub arguments: Arguments,
}

/// Memory of the device since it was looked at first: what a model holds, since runs allocate nothing.
#[derive(Debug)]
pub struct Memory(Option<u64>);

impl Memory {
    pub fn before(context: &Context) -> Self {
        Memory(context.free_memory().ok())
    }

    /// In words.
    pub fn since(&self, context: &Context) -> String {
        match (self.0, context.free_memory().ok()) {
            (Some(before), Some(now)) => {
                format!(
                    "{:.1} MB of the device",
                    before.saturating_sub(now) as f64 / 1e6
                )
            }
            _ => "memory of the host".into(),
        }
    }
}

/// Milliseconds of one of `runs` runs: on a GPU as one CUDA graph, after a run that makes plans.
pub fn time(
    context: &Context,
    runs: usize,
    mut work: impl FnMut(&Stream) -> Result<()>,
) -> Result<f64> {
    let stream = context.stream()?;
    work(&stream)?;
    stream.synchronize()?;
    if !context.is_cuda() {
        let start = Instant::now();
        (0..runs).try_for_each(|_| work(&stream))?;
        return Ok(start.elapsed().as_secs_f64() * 1e3 / runs as f64);
    }
    let mut graph = Graph::capture(stream.raw(), |_| work(&stream))?;
    let mut replay = |times: usize| {
        for _ in 0..times {
            // SAFETY: what `work` names outlives this function, and only this stream uses it.
            unsafe { graph.launch(stream.raw())? };
        }
        stream.synchronize()
    };
    replay(3)?;
    let start = Instant::now();
    replay(runs)?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / runs as f64)
}

/// The largest difference, relative to the largest value.
pub fn largest_error(found: &[f64], wanted: &[f64]) -> f64 {
    let size = wanted.iter().fold(0.0f64, |size, x| size.max(x.abs()));
    let errors = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    // NaN is an error as well.
    let largest = errors.fold(0.0f64, |all, e| if e > all || e.is_nan() { e } else { all });
    largest / size.max(f64::MIN_POSITIVE)
}
