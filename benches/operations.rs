//! All operations that can be measured, one at a time or as the record of a GPU.

use crate::bench::Bench;
use crate::device::{Gpu, Result};
use crate::layers::{encoder, ffn_layer, gradients, models, ranks, training};
use crate::problems::Workload;
use crate::record::{self, Recorder};
use crate::{Arguments, Part, calibrate, families, host_ops, selected};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Kind of measurement of an operation.
pub enum Operation {
    /// Runs without a GPU.
    Host(fn(&Recorder) -> Result<()>),
    /// Runs its own cases.
    Own(fn(&Bench<'_>) -> Result<()>),
    /// Runs workloads of the tables.
    Table(fn(&Bench<'_>, &[Workload]) -> Result<()>),
}

pub use Operation::{Host, Own, Table};

/// Name in the record, and the operation.
pub type Entry = (&'static str, Operation);

/// Limits of the machine.
const LIMITS: &[Entry] = &[(calibrate::OP, Own(calibrate::run))];

/// Whole layers.
const LAYERS: &[Entry] = &[
    (encoder::OP, Own(encoder::run)),
    (ffn_layer::OP, Own(ffn_layer::run)),
    (gradients::OP, Table(gradients::run)),
    (training::OP, Own(training::run)),
    (models::OP, Own(models::run)),
    (ranks::OP, Own(ranks::run)),
];

/// Operations without a family. The first three need a GPU.
const OTHERS: &[Entry] = &[
    ("load", Own(host_ops::load)),
    ("first_result", Own(host_ops::first_result)),
    ("call", Own(host_ops::call)),
    ("convert", Host(host_ops::convert)),
    ("read", Host(host_ops::read)),
];

/// All operations, in the order of the record.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    let of_families = families::OPERATIONS.iter().copied();
    let parts = [LIMITS].into_iter().chain(of_families);
    parts.chain([LAYERS, OTHERS]).flatten()
}

/// Operations whose record is split into several parts, and the number of parts.
const PARTS: &[(&str, usize)] = &[("spmm", 4), ("sddmm", 2)];

/// Returns an error for an unknown operation.
pub fn known(op: &str) -> Result<()> {
    match all().any(|(known, _)| *known == op) {
        true => Ok(()),
        false => Err(format!("no operation `{op}`; --list shows them").into()),
    }
}

/// Outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All cases were measured with correct results, or there are no cases on this machine.
    Right,
    /// All cases were measured. A result of einsparse is wrong or missing, as its row states.
    Wrong,
    /// The measurement stopped early.
    Stopped,
}

/// GPU and data of a measurement.
pub struct Machine {
    /// The GPU, or the reason why it could not be opened.
    pub gpu: Result<Gpu>,
    /// Directory of real data.
    pub data: Option<PathBuf>,
}

impl Machine {
    /// Creates a recorder whose rows name this machine.
    pub fn recorder(&self, path: Option<&Path>) -> Result<Recorder> {
        let gpu = self.gpu.as_ref();
        let (name, driver) = gpu.map_or(("none", ""), |g| (g.name.as_str(), g.driver.as_str()));
        Recorder::create(path, name, driver)
    }

    /// Measures one operation. Its failure is printed, and other operations continue.
    pub fn operation(
        &self,
        (op, operation): (&str, &Operation),
        arguments: &Arguments,
        recorder: &Recorder,
    ) -> Outcome {
        let (arguments, wrong) = (&arguments.of(op), recorder.wrong());
        let bench = |gpu| Bench::new(gpu, arguments, recorder);
        let outcome = match (operation, &self.gpu) {
            (Host(measure), _) => measure(recorder),
            (_, Err(reason)) => {
                println!("{op} skipped, no GPU: {reason}");
                let required = std::env::var("EINSPARSE_REQUIRE_GPU").is_ok_and(|v| v == "1");
                return match required {
                    true => Outcome::Stopped,
                    false => Outcome::Right,
                };
            }
            (Own(measure), Ok(gpu)) => bench(gpu).and_then(|bench| measure(&bench)),
            (Table(measure), Ok(gpu)) => {
                let own = selected(arguments, self.data.as_deref());
                bench(gpu).and_then(|bench| measure(&bench, &own))
            }
        };
        match outcome {
            Err(reason) => {
                println!("{op} failed: {reason}");
                Outcome::Stopped
            }
            Ok(()) if recorder.wrong() > wrong => {
                println!("{op}: {} faults of ours", recorder.wrong() - wrong);
                Outcome::Wrong
            }
            Ok(()) => Outcome::Right,
        }
    }

    /// Writes every operation to files, one for each part. Files that exist from this commit are kept.
    pub fn record(&self, arguments: &Arguments, folder: &Path) -> Result<bool> {
        let start = Instant::now();
        let text = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(folder).map_err(text)?;
        let (mut right, mut left) = (true, 0);
        for (op, operation) in all() {
            let parts = PARTS.iter().find(|(name, _)| name == op);
            let of = parts.map_or(1, |(_, of)| *of);
            for own in 0..of {
                let name = match of {
                    1 => format!("{op}.csv"),
                    _ => format!("{op}-{}-of-{of}.csv", own + 1),
                };
                let path = folder.join(&name);
                if !arguments.wants_op(op) || record::is_of_this_commit(&path) {
                    continue;
                }
                let late = |most| start.elapsed().as_secs() >= most;
                if arguments.seconds.is_some_and(late) {
                    left += 1;
                    continue;
                }
                let from = Instant::now();
                let unfinished = folder.join(format!("{name}.unfinished"));
                let of_part = Arguments { auto: true, part: Part { own, of }, ..arguments.clone() };
                let recorder = self.recorder(Some(&unfinished))?;
                let outcome = self.operation((op, operation), &of_part, &recorder);
                right &= outcome == Outcome::Right;
                if outcome != Outcome::Stopped && recorder.rows() > 0 {
                    std::fs::rename(&unfinished, &path).map_err(text)?;
                } else {
                    std::fs::remove_file(&unfinished).map_err(text)?;
                    left += 1;
                }
                println!("== {name}: {:.0} s", from.elapsed().as_secs_f64());
            }
        }
        let took = start.elapsed().as_secs_f64();
        println!("record: {left} parts left, {took:.0} s");
        Ok(right && left == 0)
    }
}
