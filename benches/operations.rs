//! Everything that can be measured, one by one or as the record of a GPU.

use crate::device::{Gpu, Result};
use crate::problems::Workload;
use crate::record::Recorder;
use crate::sweep::Tally;
use crate::timing::Effort;
use crate::*;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How an operation is measured.
pub enum Operation {
    /// Without a GPU.
    Host(fn(&mut Recorder) -> Result<()>),
    /// Its own cases.
    Own(fn(&Gpu, Effort, &mut Recorder) -> Result<()>),
    /// Its own cases, as the command line wants them.
    Asked(fn(&Gpu, &Arguments, &mut Recorder) -> Result<()>),
    /// Workloads of the tables.
    Table(fn(&Gpu, &Arguments, &[Workload], &mut Recorder) -> Result<Tally>),
}

use Operation::{Asked, Host, Own, Table};

/// Everything that can be measured, in the order of the record.
pub const OPERATIONS: &[(&str, Operation)] = &[
    (calibrate::OP, Own(calibrate::run)),
    ("spmm", Table(sweep::run)),
    ("block_spmm", Table(sweep::run)),
    ("nm_spmm", Table(sweep::run)),
    ("decode", Asked(decode::run)),
    (turned::OP, Asked(turned::run)),
    (epilogue::OP, Own(epilogue::run)),
    (sddmm::OP, Table(sddmm::run)),
    (softmax::OP, Table(softmax::run)),
    (dense::OP, Asked(dense::run)),
    ("narrow", Own(narrow::run)),
    ("nm_narrow", Own(nm_narrow::run)),
    ("int8", Own(int8::run)),
    ("layer", Own(layer::run)),
    ("attention", Own(attention::run)),
    ("attention_gradient", Own(attention_gradient::run)),
    ("attention_masks", Own(attention_masks::run)),
    ("encoder", Own(encoder::run)),
    ("conv", Own(conv::run)),
    ("mttkrp", Asked(tensors::run)),
    ("ttm", Asked(tensors::run)),
    ("sampled_tensor", Asked(tensors::run)),
    (tensor_product::OP, Own(tensor_product::run)),
    (einsum::OP, Own(einsum::run)),
    (messages::OP, Asked(messages::run)),
    (join::OP, Own(join::run)),
    ("detect", Own(dynamic::detect)),
    (marked::OP, Own(marked::run)),
    (channels::OP, Own(channels::run)),
    ("pit_matmul", Own(dynamic::matmul)),
    (pit_tf32::OP, Own(pit_tf32::run)),
    ("pit_turned", Own(pit_turned::run)),
    (pit_right::OP, Own(pit_right::run)),
    (pit_conv::OP, Own(pit_conv::run)),
    ("pit_choice", Own(pit_choice::run)),
    (ffn::OP, Own(ffn::run)),
    (ffn_layer::OP, Own(ffn_layer::run)),
    (moe::OP, Own(moe::run)),
    (training::OP, Own(training::run)),
    (problems::DENSE_TO_BLOCKS, Table(conversions::run)),
    (problems::CSR_TO_BLOCKS, Table(conversions::run)),
    ("convert_entries", Own(entries::conversions)),
    (determinism::OP, Own(determinism::run)),
    ("levels", Own(levels::run)),
    ("load", Own(host_ops::load)),
    ("first_result", Own(host_ops::first_result)),
    ("convert", Host(host_ops::convert)),
    ("read", Host(host_ops::read)),
];

/// Operations whose record is taken in so many parts.
const PARTS: &[(&str, usize)] = &[("spmm", 4), ("sddmm", 2)];

/// Refuses an operation that there is not.
pub fn known(op: &str) -> Result<()> {
    match OPERATIONS.iter().any(|(known, _)| *known == op) {
        true => Ok(()),
        false => Err(format!("no operation `{op}`; --list shows them")),
    }
}

/// What became of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was measured, or it has no case here.
    Right,
    /// Measured, and some result of ours is wrong or missing: its row says so.
    Wrong,
    /// Not measured to its end.
    Stopped,
}

/// What every operation needs.
pub struct Bench {
    /// Or why there is none.
    pub gpu: Result<Gpu>,
    /// The folder of real data.
    pub data: Option<PathBuf>,
}

impl Bench {
    /// Where rows go, stamped with this machine.
    pub fn recorder(&self, path: Option<&Path>) -> Result<Recorder> {
        let gpu = self.gpu.as_ref();
        let (name, driver) = gpu.map_or(("none", ""), |g| (g.name.as_str(), g.driver.as_str()));
        Recorder::create(path, name, driver)
    }

    /// Measures one operation. What stops it is printed; the others go on.
    pub fn operation(
        &self,
        (op, operation): (&str, &Operation),
        arguments: &Arguments,
        recorder: &mut Recorder,
    ) -> Outcome {
        let own = arguments.of(op);
        let outcome = match (operation, &self.gpu) {
            (Host(measure), _) => measure(recorder).map(|()| Tally::default()),
            (_, Err(reason)) => {
                println!("{op} skipped, no GPU: {reason}");
                let required = std::env::var("EINSPARSE_REQUIRE_GPU").is_ok_and(|v| v == "1");
                return if required {
                    Outcome::Stopped
                } else {
                    Outcome::Right
                };
            }
            (Own(measure), Ok(gpu)) => {
                measure(gpu, own.effort(), recorder).map(|()| Tally::default())
            }
            (Asked(measure), Ok(gpu)) => measure(gpu, &own, recorder).map(|()| Tally::default()),
            (Table(measure), Ok(gpu)) => {
                let workloads = selected(&own, self.data.as_deref());
                measure(gpu, &own, &workloads, recorder)
            }
        };
        match outcome {
            Err(reason) => {
                println!("{op} failed: {reason}");
                Outcome::Stopped
            }
            Ok(tally) if tally.faults > 0 => {
                println!(
                    "{op}: {} faults of ours in {} cases",
                    tally.faults, tally.cases
                );
                Outcome::Wrong
            }
            Ok(_) => Outcome::Right,
        }
    }

    /// Every operation into a file of its own, one for each part; what stands there from this commit stays.
    pub fn record(&self, arguments: &Arguments, folder: &Path) -> Result<bool> {
        let start = Instant::now();
        let text = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(folder).map_err(text)?;
        let (mut right, mut left) = (true, 0);
        for (op, operation) in OPERATIONS {
            let of = PARTS
                .iter()
                .find(|(name, _)| name == op)
                .map_or(1, |(_, of)| *of);
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
                let of_part = Arguments {
                    auto: true,
                    part: Part { own, of },
                    ..arguments.clone()
                };
                let mut recorder = self.recorder(Some(&unfinished))?;
                let outcome = self.operation((op, operation), &of_part, &mut recorder);
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
        println!(
            "record: {left} parts left, {:.0} s",
            start.elapsed().as_secs_f64()
        );
        Ok(right && left == 0)
    }
}
