//! Times of one run, and the median of warm runs (CUDA events on a GPU, the clock on the CPU).

use std::fmt;
use std::time::{Duration, Instant};

use einsparse::driver::Event;
use einsparse::{Context, Operand, Plan, Scalar, Stream, Tensor};

use super::Result;

/// Duration that is printed with three digits.
pub struct Shown(pub Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_secs_f64() * 1e6;
        let (value, unit) = match us {
            ..1e3 => (us, "us"),
            1e3..1e6 => (us / 1e3, "ms"),
            _ => (us / 1e6, "s"),
        };
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        write!(f, "{value:.digits$} {unit}")
    }
}

/// Runs `step` and measures its time.
pub fn timed<R>(step: impl FnOnce() -> Result<R>) -> Result<(R, Duration)> {
    let start = Instant::now();
    let result = step()?;
    Ok((result, start.elapsed()))
}

/// Runs the plan once and waits for it.
pub fn once<T: Scalar>(
    plan: &Plan<T>,
    operands: &[(&str, Operand<'_, T>)],
    out: &mut Tensor<T>,
    stream: &Stream,
) -> Result<Duration> {
    let start = Instant::now();
    plan.run(operands, out, stream)?;
    stream.synchronize()?;
    Ok(start.elapsed())
}

/// Median time of `repeat` warm runs, without the first two.
pub fn median<T: Scalar>(
    context: &Context,
    plan: &Plan<T>,
    operands: &[(&str, Operand<'_, T>)],
    out: &mut Tensor<T>,
    repeat: usize,
) -> Result<Duration> {
    let stream = context.stream()?;
    let mut times = Vec::with_capacity(repeat.min(1 << 16));
    let events = match context.is_cuda() {
        true => Some((Event::new()?, Event::new()?)),
        false => None,
    };
    for run in 0..repeat.max(1) + 2 {
        let time = match &events {
            None => once(plan, operands, out, &stream)?,
            Some((start, end)) => {
                start.record(stream.raw())?;
                plan.run(operands, out, &stream)?;
                end.record(stream.raw())?;
                end.synchronize()?;
                Duration::from_secs_f64(f64::from(end.elapsed_ms(start)?.max(0.0)) * 1e-3)
            }
        };
        if run >= 2 {
            times.push(time);
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
