//! Everything that can be measured, one by one or as the record of a GPU.

use crate::bench::{Bench, Place};
use crate::device::{Gpu, Result};
use crate::families::{
    attention, convert, discover, gather_gemm, gemm, sddmm, softmax, spmm, tensor, tutorial,
};
use crate::layers::{encoder, ffn_layer, training};
use crate::problems::{self, Workload};
use crate::record::{self, Recorder};
use crate::sweep::{self, Tally};
use crate::{Arguments, Part, calibrate, host_ops, selected};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How an operation is measured.
pub enum Operation {
    /// Without a GPU.
    Host(fn(&Recorder) -> Result<()>),
    /// On a GPU, without a context of ours.
    Bare(fn(&Place<'_>) -> Result<()>),
    /// Its own cases.
    Own(fn(&Bench<'_>) -> Result<()>),
    /// Workloads of the tables.
    Table(fn(&Place<'_>, &[Workload]) -> Result<Tally>),
}

use Operation::{Bare, Host, Own, Table};

/// Everything that can be measured, in the order of the record: the one place where a bench is entered.
pub const OPERATIONS: &[(&str, Operation)] = &[
    (calibrate::OP, Bare(calibrate::run)),
    ("spmm", Table(sweep::run)),
    ("block_spmm", Table(sweep::run)),
    ("nm_spmm", Table(sweep::run)),
    ("decode", Own(spmm::decode::run)),
    (spmm::turned::OP, Own(spmm::turned::run)),
    (spmm::epilogue::OP, Own(spmm::epilogue::run)),
    (sddmm::OP, Table(sddmm::run)),
    (softmax::OP, Table(softmax::run)),
    (gemm::dense::OP, Own(gemm::dense::run)),
    ("narrow", Own(gemm::narrow::run)),
    ("nm_narrow", Own(gemm::nm_narrow::run)),
    ("int8", Own(spmm::int8::run)),
    ("layer", Own(gemm::layer::run)),
    (attention::entries::OP, Own(attention::entries::run)),
    (attention::gradient::OP, Own(attention::gradient::run)),
    ("attention_masks", Own(attention::masks::run)),
    (encoder::OP, Own(encoder::run)),
    (gather_gemm::conv::OP, Own(gather_gemm::conv::run)),
    ("mttkrp", Own(tensor::mttkrp::run)),
    ("ttm", Own(tensor::mttkrp::run)),
    ("sampled_tensor", Own(tensor::mttkrp::run)),
    (tensor::tensor_product::OP, Own(tensor::tensor_product::run)),
    (tensor::einsum::OP, Own(tensor::einsum::run)),
    (tensor::messages::OP, Own(tensor::messages::run)),
    (tensor::join::OP, Own(tensor::join::run)),
    (discover::detect::OP, Own(discover::detect::run)),
    (gemm::marked::OP, Own(gemm::marked::run)),
    (discover::channels::OP, Own(discover::channels::run)),
    (
        gather_gemm::pit_matmul::OP,
        Own(gather_gemm::pit_matmul::run),
    ),
    (gather_gemm::pit_tf32::OP, Own(gather_gemm::pit_tf32::run)),
    (
        gather_gemm::pit_turned::OP,
        Own(gather_gemm::pit_turned::run),
    ),
    (gather_gemm::pit_right::OP, Own(gather_gemm::pit_right::run)),
    (gather_gemm::pit_conv::OP, Own(gather_gemm::pit_conv::run)),
    (discover::pit_choice::OP, Own(discover::pit_choice::run)),
    (gather_gemm::ffn::OP, Own(gather_gemm::ffn::run)),
    (ffn_layer::OP, Own(ffn_layer::run)),
    (gather_gemm::moe::OP, Own(gather_gemm::moe::run)),
    (training::OP, Own(training::run)),
    (problems::DENSE_TO_BLOCKS, Table(convert::blocks::run)),
    (problems::CSR_TO_BLOCKS, Table(convert::blocks::run)),
    (convert::entries::OP, Own(convert::entries::run)),
    (spmm::determinism::OP, Own(spmm::determinism::run)),
    (tutorial::OP, Own(tutorial::run)),
    ("load", Bare(host_ops::load)),
    ("first_result", Bare(host_ops::first_result)),
    ("convert", Host(host_ops::convert)),
    ("read", Host(host_ops::read)),
];

/// Operations whose record is taken in so many parts.
const PARTS: &[(&str, usize)] = &[("spmm", 4), ("sddmm", 2)];

/// Refuses an operation that there is not.
pub fn known(op: &str) -> Result<()> {
    match OPERATIONS.iter().any(|(known, _)| *known == op) {
        true => Ok(()),
        false => Err(format!("no operation `{op}`; --list shows them").into()),
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

/// What there is to measure on and with.
pub struct Machine {
    /// Or why there is none.
    pub gpu: Result<Gpu>,
    /// The folder of real data.
    pub data: Option<PathBuf>,
}

impl Machine {
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
        recorder: &Recorder,
    ) -> Outcome {
        let (arguments, wrong) = (&arguments.of(op), recorder.wrong());
        let place = self.gpu.as_ref().map(|gpu| Place {
            gpu,
            arguments,
            recorder,
        });
        let outcome = match (operation, place) {
            (Host(measure), _) => measure(recorder).map(|()| Tally::default()),
            (_, Err(reason)) => {
                println!("{op} skipped, no GPU: {reason}");
                let required = std::env::var("EINSPARSE_REQUIRE_GPU").is_ok_and(|v| v == "1");
                return match required {
                    true => Outcome::Stopped,
                    false => Outcome::Right,
                };
            }
            (Bare(measure), Ok(place)) => measure(&place).map(|()| Tally::default()),
            (Own(measure), Ok(place)) => {
                let outcome = Bench::new(place).and_then(|bench| measure(&bench));
                outcome.map(|()| Tally::default())
            }
            (Table(measure), Ok(place)) => {
                measure(&place, &selected(arguments, self.data.as_deref()))
            }
        };
        match outcome {
            Err(reason) => {
                println!("{op} failed: {reason}");
                Outcome::Stopped
            }
            Ok(Tally { cases, faults }) if faults > 0 => {
                println!("{op}: {faults} faults of ours in {cases} cases");
                Outcome::Wrong
            }
            Ok(_) if recorder.wrong() > wrong => {
                println!("{op}: {} rows of ours are wrong", recorder.wrong() - wrong);
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
                let of_part = Arguments {
                    auto: true,
                    part: Part { own, of },
                    ..arguments.clone()
                };
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
