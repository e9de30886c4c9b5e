//! Baselines of PyTorch that have no C interface: grouped products of experts (`grouped_mm`), attention over packed
//! sequences and an encoder layer with it, attention over a cache, and whole models. They run in another process on the
//! same GPU while this one waits. The method is that of `timing`.

use crate::device::Result;
use crate::timing::Times;
use std::process::Command;

const LAYERS: &str = concat!(include_str!("common.py"), include_str!("torch.py"));

const MODELS: &str = concat!(include_str!("common.py"), include_str!("models.py"));

/// Times of the script of layers, by name. Empty without Python or PyTorch; a line then states this.
pub fn measure(what: &str, arguments: &str) -> Vec<(String, Times)> {
    said(LAYERS, &[what, arguments])
}

/// Fastest of several implementations.
pub fn fastest(all: Vec<(String, Times)>) -> Option<(String, Times)> {
    all.into_iter().min_by(|a, b| a.1.cold.total_cmp(&b.1.cold))
}

/// Times of the script of models, by the comma-separated numbers of the cases, a colon and the variant.
pub fn models(cases: &str) -> Vec<(String, Times)> {
    said(MODELS, &[cases])
}

fn said(script: &str, arguments: &[&str]) -> Vec<(String, Times)> {
    let output = Command::new("python3").args(["-c", script]).args(arguments).output();
    let output = match output {
        Ok(output) => output,
        Err(reason) => {
            println!("engine torch left out: python3: {reason}");
            return Vec::new();
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines().filter(|line| line.starts_with('#')) {
        println!("engine torch: {line}");
    }
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        let mut lines = told.lines().rev().filter(|line| !line.trim().is_empty());
        let last = lines.next().unwrap_or("no reason given");
        println!("engine torch left out: {last}");
    }
    said.lines().filter_map(|line| row(line).ok()).collect()
}

fn row(line: &str) -> Result<(String, Times)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [name, cold, warm] = fields[..] else {
        return Err(format!("no row: {line}").into());
    };
    let number = |text: &str| text.parse::<f64>().map_err(|e| format!("{text}: {e}"));
    let times = Times { cold: number(cold)?, warm: number(warm)?, host_inside: false };
    Ok((name.to_owned(), times))
}
