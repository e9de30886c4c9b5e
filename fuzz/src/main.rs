//! Runs the targets without a nightly compiler. Inputs are mutated at random, and those with a new outcome are kept.
//! Memory is limited to 64 MB and 16 bytes for each byte of the input, on a machine of 256 MB. Runs with one seed draw
//! identical inputs.
//!
//! `einsparse-fuzz [--seconds N] [--runs N] [--seed N] [--input FILE] [--corpus FOLDER] [TARGET ...]`
//!
//! `--input` runs only those files. `--corpus` only writes the seeds to that directory, for libFuzzer.

mod memory;
mod mutate;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use einsparse_fuzz::{TARGETS, Target, seeds};
use memory::{Counting, LIMIT, MOST, TAKEN};
use mutate::Random;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum time of an input; a longer one is a fault. Inputs have at most a few hundred kB.
const SLOW: Duration = Duration::from_secs(5);
/// Bytes that the allocator provides: larger requests are refused, or abort.
const MEMORY: usize = 256_000_000;
/// Maximum number of kept inputs of a target.
const KEPT: usize = 4096;

struct Arguments {
    time: Duration,
    runs: u64,
    seed: u64,
    inputs: Vec<PathBuf>,
    corpus: Option<PathBuf>,
    targets: Vec<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut given = Arguments {
        time: Duration::from_secs(60),
        runs: u64::MAX,
        seed: 1,
        inputs: Vec::new(),
        corpus: None,
        targets: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is not a number"));
        match word.as_str() {
            "--seconds" => given.time = Duration::from_secs(number(value()?)?),
            "--runs" => given.runs = number(value()?)?,
            "--seed" => given.seed = number(value()?)?,
            "--corpus" => given.corpus = Some(value()?.into()),
            "--input" => given.inputs.push(value()?.into()),
            _ if TARGETS.iter().any(|(name, _)| *name == word) => given.targets.push(word),
            _ => return Err(format!("{word} is no target and no option")),
        }
    }
    Ok(given)
}

/// Runs one input. The error is its fault.
fn one(target: &Target, input: &[u8]) -> Result<u64, String> {
    let before = TAKEN.load(Relaxed);
    MOST.store(before, Relaxed);
    let start = Instant::now();
    let seen = catch_unwind(AssertUnwindSafe(|| (target.1)(input)));
    let (took, most) = (start.elapsed(), MOST.load(Relaxed) - before);
    let seen = seen.map_err(|_| "a panic, see above".to_owned())?;
    let bound = 64_000_000 + 16 * input.len();
    if most > bound {
        return Err(format!("{most} bytes of memory for {} bytes, {bound} at most", input.len()));
    }
    if took > SLOW {
        return Err(format!("{} ms", took.as_millis()));
    }
    Ok(seen)
}

/// Reports a fault and stores its input.
fn fault(target: &Target, input: &[u8], reason: &str, count: usize) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/artifacts"));
    let path = folder.join(format!("{}-{count}", target.0));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
    let place = match written {
        Ok(()) => path.display().to_string(),
        Err(error) => error.to_string(),
    };
    eprintln!("{}: {reason}: {place}", target.0);
}

/// Writes the seeds of a target to a separate directory.
fn write_seeds(target: &Target, folder: &Path) -> std::io::Result<()> {
    let folder = folder.join(target.0);
    std::fs::create_dir_all(&folder)?;
    let (seeds, _) = seeds(target.0);
    let mut all = seeds.iter().enumerate();
    all.try_for_each(|(at, seed)| std::fs::write(folder.join(format!("seed-{at}")), seed))
}

/// Runs a target until its time is over. Returns the number of faults.
fn run(target: &Target, arguments: &Arguments, time: Duration) -> usize {
    let (mut corpus, words) = seeds(target.0);
    let mut random = Random::new(arguments.seed);
    let (mut seen, mut runs, mut faults) = (HashSet::new(), 0, 0);
    let mut most = 0;
    let start = Instant::now();
    let mut next = 0;
    while runs < arguments.runs && start.elapsed() < time && faults < 8 {
        // The unchanged seeds run first.
        let input = match corpus.get(next) {
            Some(seed) => seed.clone(),
            None => random.changed(&corpus, words),
        };
        let is_seed = next < corpus.len() && runs == next as u64;
        next += usize::from(is_seed);
        if !is_seed {
            next = usize::MAX;
        }
        runs += 1;
        match one(target, &input) {
            Ok(outcome) => {
                most = most.max(MOST.load(Relaxed).saturating_sub(TAKEN.load(Relaxed)));
                let new = seen.insert(outcome);
                if new && !is_seed && corpus.len() < KEPT && input.len() < 1 << 16 {
                    corpus.push(input);
                }
            }
            Err(reason) => {
                fault(target, &input, &reason, faults);
                faults += 1;
            }
        }
    }
    println!(
        "{:18} {runs:>9} runs, {:>5} outcomes, at most {most} bytes, {faults} faults",
        target.0,
        seen.len()
    );
    faults
}

fn main() -> ExitCode {
    LIMIT.store(MEMORY, Relaxed);
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let named = |target: &&Target| {
        arguments.targets.is_empty() || arguments.targets.iter().any(|name| name == target.0)
    };
    let chosen: Vec<&Target> = TARGETS.iter().filter(named).collect();
    let mut faults = 0;
    for target in &chosen {
        if let Some(folder) = &arguments.corpus {
            if let Err(error) = write_seeds(target, folder) {
                eprintln!("{}: {error}", folder.display());
                faults += 1;
            }
        } else if arguments.inputs.is_empty() {
            faults += run(target, &arguments, arguments.time / chosen.len() as u32);
        }
        for path in &arguments.inputs {
            let told = match std::fs::read(path) {
                Ok(input) => one(target, &input).map(drop),
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = told {
                eprintln!("{}: {}: {reason}", target.0, path.display());
                faults += 1;
            }
        }
    }
    ExitCode::from(u8::from(faults > 0))
}
