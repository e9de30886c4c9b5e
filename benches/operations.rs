//! Everything that can be measured, one by one or as the record of a GPU.

use crate::device::{Gpu, Result};
use crate::families::{
    attention, convert, discover, gather_gemm, gemm, sddmm, softmax, spmm, tensor, tutorial,
};
use crate::layers::{encoder, ffn_layer, training};
use crate::problems::Workload;
use crate::record::Recorder;
use crate::sweep::Tally;
use crate::timing::Effort;
use crate::{Arguments, Part, calibrate, host_ops, problems, record, selected, sweep};
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
    ("decode", Asked(spmm::decode::run)),
    (spmm::turned::OP, Asked(spmm::turned::run)),
    (spmm::epilogue::OP, Own(spmm::epilogue::run)),
    (sddmm::OP, Table(sddmm::run)),
    (softmax::OP, Table(softmax::run)),
    (gemm::dense::OP, Asked(gemm::dense::run)),
    ("narrow", Own(gemm::narrow::run)),
    ("nm_narrow", Own(gemm::nm_narrow::run)),
    ("int8", Own(spmm::int8::run)),
    ("layer", Own(gemm::layer::run)),
    ("attention", Own(attention::entries::run)),
    ("attention_gradient", Own(attention::gradient::run)),
    ("attention_masks", Own(attention::masks::run)),
    ("encoder", Own(encoder::run)),
    ("conv", Own(gather_gemm::conv::run)),
    ("mttkrp", Asked(tensor::mttkrp::run)),
    ("ttm", Asked(tensor::mttkrp::run)),
    ("sampled_tensor", Asked(tensor::mttkrp::run)),
    (tensor::tensor_product::OP, Own(tensor::tensor_product::run)),
    (tensor::einsum::OP, Own(tensor::einsum::run)),
    (tensor::messages::OP, Asked(tensor::messages::run)),
    (tensor::join::OP, Own(tensor::join::run)),
    ("detect", Own(gather_gemm::pit_matmul::detect)),
    (gemm::marked::OP, Own(gemm::marked::run)),
    (discover::channels::OP, Own(discover::channels::run)),
    ("pit_matmul", Own(gather_gemm::pit_matmul::matmul)),
    (gather_gemm::pit_tf32::OP, Own(gather_gemm::pit_tf32::run)),
    ("pit_turned", Own(gather_gemm::pit_turned::run)),
    (gather_gemm::pit_right::OP, Own(gather_gemm::pit_right::run)),
    (gather_gemm::pit_conv::OP, Own(gather_gemm::pit_conv::run)),
    ("pit_choice", Own(discover::pit_choice::run)),
    (gather_gemm::ffn::OP, Own(gather_gemm::ffn::run)),
    (ffn_layer::OP, Own(ffn_layer::run)),
    (gather_gemm::moe::OP, Own(gather_gemm::moe::run)),
    (training::OP, Own(training::run)),
    (problems::DENSE_TO_BLOCKS, Table(convert::blocks::run)),
    (problems::CSR_TO_BLOCKS, Table(convert::blocks::run)),
    ("convert_entries", Own(convert::entries::conversions)),
    (spmm::determinism::OP, Own(spmm::determinism::run)),
    ("levels", Own(tutorial::run)),
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
