//! `einsparse demo`: sparse matrix x dense matrix on included matrices, or on a file.

use std::path::PathBuf;
use std::time::Duration;

use einsparse::Options;
use einsparse::einsum::Einsum;

use super::problem::{FormatChoice, Place, Typed};
use super::run::Job;
use super::time::timed;
use super::{Result, load};

/// The main job, `C[m,n] = A[m,k] * B[k,n]`, with a check against the reference.
#[derive(clap::Args)]
pub struct Demo {
    /// Sparse matrix (.mtx, .smtx, .npz); the karate club and a pruned weight without it
    file: Option<PathBuf>,
    /// Columns of the dense operand
    #[arg(long, default_value_t = 128)]
    columns: u32,
    /// auto, gpu, cpu, or the number of a GPU
    #[arg(long, default_value = "auto")]
    device: Place,
}

const EXPRESSION: &str = "C[m,n] = A[m,k] * B[k,n]";

impl Demo {
    /// Runs the demo.
    pub fn execute(&self) -> Result<()> {
        let context = self.device.open()?;
        let columns = self.columns;
        let pieces: Vec<(String, String)> = match &self.file {
            Some(file) => {
                vec![(file.display().to_string(), format!("A=sparse:{}", file.display()))]
            }
            None => vec![
                ("Zachary's karate club, 34 members".into(), "A=karate".into()),
                (
                    "a weight matrix pruned to 10 %, generated".into(),
                    "A=pruned:2048x2048:0.1".into(),
                ),
            ],
        };
        for (title, a) in pieces {
            say!("== {title}");
            let einsum = Einsum::parse(EXPRESSION)?;
            let sources = [a, format!("B=random:_x{columns}")];
            let (values, read): (_, Duration) = timed(|| load::operands(&einsum, &sources, 1))?;
            let typed = Typed::<f32>::new(einsum, values)?;
            let job = Job {
                expression: EXPRESSION,
                format: FormatChoice::Auto,
                options: Options::default(),
                may_fall_back: false,
                check: true,
                repeat: 20,
                read,
            };
            job.run(&context, &typed)?;
        }
        say!("== all results are within the bounds of f32 rounding");
        Ok(())
    }
}
