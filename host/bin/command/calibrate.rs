//! `einsparse calibrate`: measures times of tiles on this machine's GPUs and stores them for later plans.

use std::path::PathBuf;

use einsparse::dynamic::TileTimes;
use einsparse::{Context, driver};

use super::Result;

/// Measure the times of tiles by which dynamic sparsity is chosen for, and keep them
#[derive(clap::Args)]
pub struct Calibrate {
    /// The file to write; the default is the one that plans on this GPU read
    #[arg(long)]
    out: Option<PathBuf>,
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
}

impl Calibrate {
    /// Measures, prints and writes the times.
    pub fn execute(&self) -> Result<()> {
        let name = driver::device_facts(self.gpu)?.name;
        let file = match &self.out {
            Some(file) => file.clone(),
            None => TileTimes::file(&name)
                .ok_or("no folder of caches: set HOME, or name a file with --out")?,
        };
        let times = TileTimes::measure(&Context::cuda(self.gpu)?)?;
        say!("# {name}, microseconds");
        say!("{}", times.to_string().trim_end());
        times.save(&file)?;
        say!("written to {}", file.display());
        Ok(())
    }
}
