//! Method of timing. It is fixed, so that tables of different days are comparable.
//!
//! cold = median over runs timed by events, L2 evicted by reading before each; warm = back to back between two events,
//! median of the series. All work is queued after a spin kernel, so times exclude the host. No overhead is subtracted.

use crate::device::{Gpu, Result};

/// Number of runs per time.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Cold runs for short and for long (> 1 ms) operations.
    pub cold: (usize, usize),
    /// Number of warm series.
    pub series: usize,
    /// Milliseconds of a series, and its min number of runs.
    pub warm: (f64, usize),
}

impl Effort {
    /// Effort of a record: medians of 25 (20) and 5.
    pub const FULL: Self = Self { cold: (25, 20), series: 5, warm: (1.0, 3) };
    /// Effort of a quick look.
    pub const QUICK: Self = Self { cold: (9, 5), series: 3, warm: (1.0, 3) };
}

/// Cold and warm time of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Median milliseconds with a cold L2.
    pub cold: f64,
    /// Median milliseconds back to back.
    pub warm: f64,
    /// Whether the operation synchronizes with the host. The times then include host time.
    pub host_inside: bool,
}

/// Times `run`, which queues the operation on the GPU's stream and returns at once.
pub fn measure(gpu: &Gpu, effort: Effort, run: &mut dyn FnMut() -> Result<()>) -> Result<Times> {
    // Lazy loading and first allocations would wait for the spin kernel, so they are done before.
    for _ in 0..3 {
        run()?;
    }
    gpu.wait()?;
    let (first, second) = gpu.events[0];
    gpu.record(first)?;
    run()?;
    gpu.record(second)?;
    gpu.wait()?;
    let estimate = gpu.elapsed(first, second)?;
    let runs = if estimate > 1.0 { effort.cold.1 } else { effort.cold.0 };
    let (cold, waited) = cold(gpu, runs, run)?;
    let mut host_inside = waited;
    let (ms, least) = effort.warm;
    let repeats = ((ms / estimate.max(1e-3)) as usize).clamp(least, 100);
    let mut series = Vec::with_capacity(effort.series);
    for _ in 0..effort.series {
        gpu.hold()?;
        gpu.record(first)?;
        for _ in 0..repeats {
            run()?;
        }
        gpu.record(second)?;
        host_inside |= gpu.release()?;
        series.push(gpu.elapsed(first, second)? / repeats as f64);
    }
    Ok(Times { cold, warm: median(&mut series), host_inside })
}

fn cold(gpu: &Gpu, runs: usize, run: &mut dyn FnMut() -> Result<()>) -> Result<(f64, bool)> {
    gpu.hold()?;
    for &(start, end) in gpu.events.iter().take(runs) {
        gpu.flush_l2()?;
        gpu.record(start)?;
        run()?;
        gpu.record(end)?;
    }
    let host_inside = gpu.release()?;
    let times = gpu.events.iter().take(runs).map(|&(start, end)| gpu.elapsed(start, end));
    let mut times = times.collect::<Result<Vec<_>>>()?;
    Ok((median(&mut times), host_inside))
}

/// Median of the values (mean of the two middle ones); NaN if there are no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
