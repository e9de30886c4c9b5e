//! Times of tiles on a GPU: measured once, stored in a file, and multiplied by the number of tiles of a pattern.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Machine;
use crate::error::{Error, Result};

/// Environment variable with the path of the [`TileTimes`] file for all GPUs.
const CALIBRATION: &str = "EINSPARSE_CALIBRATION";

/// Constants of the `pit` kernels: micro-tiles of a step, micro-tiles of a stage, and columns of C of a tile.
const STEP: f64 = 16.0;
const STAGE: f64 = 64.0;
const COLUMNS: usize = einsparse_kernels::families::PIT_COLUMNS;

/// Times of the tiles of one height, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeightTimes {
    /// Detection and product of an empty matrix: launches, first loads.
    pub start: f64,
    /// One tile of C on every multiprocessor: its list and its output.
    pub tile: f64,
    /// One stage of 64 micro-tiles in each of these tiles.
    pub stage: f64,
}

/// Profiled times of one GPU. A plan uses them to predict the time of a product from its share of nonzero micro-tiles.
/// (PIT, arXiv 2301.10936, section 3.2: the cost of a tile is measured, the number of tiles is counted.) A file holds
/// one fact per line:
///
/// ```
/// use einsparse::dynamic::TileTimes;
/// let times: TileTimes = "height 128 start 8 tile 3 stage 0.8\ndetect 0.3\ndense 0.8".parse()?;
/// assert_eq!(times.heights[&128].tile, 3.0);
/// assert_eq!(times.to_string().parse::<TileTimes>()?, times);
/// let one_wave = times.product_us(128, [128, 6400, 256], 0.5, 132).unwrap();
/// // 8 to start, 0.3 for each of 1.6384 MB, a tile of 50 stages.
/// assert!((one_wave - (8.0 + 0.49152 + 3.0 + 50.0 * 0.8)).abs() < 1e-9);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TileTimes {
    /// Times by the rows of a micro-tile.
    pub heights: BTreeMap<usize, HeightTimes>,
    /// Detection, in microseconds per MB of the matrix.
    pub detect: f64,
    /// Measured time of a dense product divided by its predicted time.
    pub dense: f64,
}

impl TileTimes {
    /// Returns times fitted to products of 4096 x 4096 x 4096 on an H200 (benches/NOTES.md, "pit: dynamic micro-tiles",
    /// f16). They are the default without a file.
    pub fn built_in() -> TileTimes {
        let of = |start, tile, stage| HeightTimes { start, tile, stage };
        TileTimes {
            heights: BTreeMap::from([
                (128, of(8.0, 3.1, 0.83)),
                (64, of(8.0, 1.4, 0.58)),
                (32, of(8.0, 1.2, 0.54)),
            ]),
            detect: 0.3,
            dense: 0.83,
        }
    }

    /// Returns the default times for this GPU without a file. These are the [built-in](TileTimes::built_in) times. On a
    /// GPU without `wgmma` they are derived from the built-in times and the rate of `mma.sync`, not measured.
    pub(crate) fn on(machine: &Machine) -> TileTimes {
        TileTimes::built_in().slowed(machine, 1.0)
    }

    /// Derives the times on a GPU without `wgmma`, whose products run at `of_f16` times the f16 rate. A stage takes the
    /// max of its gathers through L2 and its products.
    fn slowed(mut self, machine: &Machine, of_f16: f64) -> TileTimes {
        /// Share of the instruction's peak rate that the products of a stage reach.
        const REACHED: f64 = 0.85;
        if machine.wgmma > 0.0 {
            return self;
        }
        let each = |rate: f64, machine: &Machine| rate / f64::from(machine.multiprocessors.max(1));
        let own = each(machine.l2, machine).max(1.0);
        let gathers = each(Machine::H200.l2, &Machine::H200) / own;
        let rate = each(machine.mma * of_f16 * REACHED, machine).max(1.0);
        for (&height, times) in &mut self.heights {
            // Heights below 64 rows are computed as 64 rows.
            let flops = 2.0 * height.max(64) as f64 * COLUMNS as f64 * STAGE;
            times.tile *= gathers;
            times.stage = (times.stage * gathers).max(flops / rate * 1e6);
        }
        self.detect *= Machine::H200.hbm / machine.hbm.max(1.0);
        self
    }

    /// Returns the times for f32 as TF32. They are derived from the L2 traffic of a stage (benches/NOTES.md,
    /// "pit_right, pit_tf32 and pit_few"), not measured.
    pub(crate) fn tf32(machine: &Machine) -> TileTimes {
        let of = |start, tile, stage| HeightTimes { start, tile, stage };
        let times = TileTimes {
            heights: BTreeMap::from([
                (128, of(8.0, 4.8, 1.5)),
                (64, of(8.0, 2.6, 1.24)),
                (32, of(8.0, 1.8, 1.16)),
            ]),
            // f32 has twice the bytes of 16-bit elements.
            detect: 0.6,
            dense: 1.0,
        };
        times.slowed(machine, 0.5)
    }

    /// Returns the path of the file for a GPU with this name: `EINSPARSE_CALIBRATION`, else `einsparse/<name>.times` in
    /// the user's cache directory (`XDG_CACHE_HOME` or `~/.cache`). Returns `None` if there is no such directory.
    pub fn file(gpu: &str) -> Option<PathBuf> {
        if let Some(file) = std::env::var_os(CALIBRATION).filter(|file| !file.is_empty()) {
            return Some(file.into());
        }
        let folder = match std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()) {
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from(std::env::var_os("HOME").filter(|home| !home.is_empty())?)
                .join(".cache"),
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = gpu.chars().map(plain).collect();
        Some(folder.join("einsparse").join(format!("{name}.times")))
    }

    /// Reads a file of times.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file cannot be read, or with the line if that line is not a valid time.
    pub fn load(file: &Path) -> Result<TileTimes> {
        let path = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|e| unreadable(&path, None, &e))?;
        parsed(&text, &path)
    }

    /// Writes the file and creates its directories.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the directory or the file cannot be written.
    pub fn save(&self, file: &Path) -> Result<()> {
        let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = made.and_then(|()| std::fs::write(file, self.to_string()));
        written.map_err(|e| unreadable(&file.display().to_string(), None, &e))
    }

    /// Predicts the microseconds of detection and product of `[m, k, n]` in 16-bit elements. `share` is the share of
    /// nonzero micro-tiles of `height` rows. Returns `None` if there are no times of this height.
    pub fn product_us(
        &self,
        height: usize,
        [m, k, n]: [usize; 3],
        share: f64,
        multiprocessors: u32,
    ) -> Option<f64> {
        let times = self.heights.get(&height)?;
        let waves = waves(height, [m, n], multiprocessors);
        let tile = times.tile + stages(k, share) * times.stage;
        Some(times.start + self.detect * megabytes([m, k]) + waves * tile)
    }
}

/// Number of tiles of C, of `height` rows, that a multiprocessor computes one after the other.
pub(crate) fn waves(height: usize, [m, n]: [usize; 2], multiprocessors: u32) -> f64 {
    let tiles = m.div_ceil(height) * n.div_ceil(COLUMNS);
    tiles.div_ceil(multiprocessors.max(1) as usize) as f64
}

/// Number of stages of a tile, if `share` of its `k` micro-tiles are nonzero.
pub(crate) fn stages(k: usize, share: f64) -> f64 {
    (k as f64 * share / STEP).ceil() * STEP / STAGE
}

/// Size of a matrix of 16-bit elements, in MB.
pub(crate) fn megabytes([rows, columns]: [usize; 2]) -> f64 {
    2e-6 * rows as f64 * columns as f64
}

impl fmt::Display for TileTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (height, HeightTimes { start, tile, stage }) in &self.heights {
            writeln!(f, "height {height} start {start} tile {tile} stage {stage}")?;
        }
        writeln!(f, "detect {}", self.detect)?;
        writeln!(f, "dense {}", self.dense)
    }
}

fn unreadable(path: &str, line: Option<usize>, reason: &dyn fmt::Display) -> Error {
    Error::Io { path: path.into(), line: line.map(|line| line as u64), reason: reason.to_string() }
}

impl FromStr for TileTimes {
    type Err = Error;

    fn from_str(text: &str) -> Result<TileTimes> {
        parsed(text, "tile times")
    }
}

fn parsed(text: &str, path: &str) -> Result<TileTimes> {
    let (mut heights, mut detect, mut dense) = (BTreeMap::new(), None, None);
    for (i, line) in text.lines().enumerate() {
        let wrong = || unreadable(path, Some(i + 1), &format!("{line:?} is not a time of a tile"));
        let time = |word: &str| {
            let time = word.parse::<f64>().ok();
            time.filter(|t| t.is_finite() && *t >= 0.0).ok_or_else(wrong)
        };
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["height", height, "start", start, "tile", tile, "stage", stage] => {
                let height = height.parse::<usize>().ok().filter(|h| *h > 0);
                let times =
                    HeightTimes { start: time(start)?, tile: time(tile)?, stage: time(stage)? };
                heights.insert(height.ok_or_else(wrong)?, times);
            }
            ["detect", each] => detect = Some(time(each)?),
            ["dense", factor] => dense = Some(time(factor)?),
            _ => return Err(wrong()),
        }
    }
    match (detect, dense) {
        (Some(detect), Some(dense)) if !heights.is_empty() => {
            Ok(TileTimes { heights, detect, dense })
        }
        _ => Err(unreadable(path, None, &"requires lines of `height`, `detect` and `dense`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_what_is_wrong_with_them() {
        for (text, said) in [
            ("", "requires lines"),
            ("detect 1\ndense 1", "requires lines"),
            ("height 128 start 1 tile 2 stage x", ":1:"),
            ("detect 1\nheight 0 start 1 tile 2 stage 3", ":2:"),
            ("detect -1", ":1:"),
            ("detect NaN", ":1:"),
        ] {
            let error = text.parse::<TileTimes>().unwrap_err().to_string();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn times_survive_a_file() {
        let folder = std::env::temp_dir().join(format!("einsparse-times-{}", std::process::id()));
        let file = folder.join("a").join("gpu.times");
        let times = TileTimes::built_in();
        times.save(&file).unwrap();
        assert_eq!(TileTimes::load(&file).unwrap(), times);
        std::fs::write(&file, "# by hand\nnonsense").unwrap();
        let error = TileTimes::load(&file).unwrap_err().to_string();
        assert!(error.contains("gpu.times:2"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Checks that half as many micro-tiles, or fewer columns, never take longer.
    #[test]
    fn more_work_takes_longer() {
        let times = TileTimes::built_in();
        for &height in times.heights.keys() {
            let us = |n, share| times.product_us(height, [4096, 4096, n], share, 132).unwrap();
            assert!(us(4096, 0.5) > us(4096, 0.25));
            assert!(us(4096, 0.25) > us(256, 0.25));
        }
        assert_eq!(times.product_us(48, [1, 1, 1], 1.0, 132), None);
    }
}
