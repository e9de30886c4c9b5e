//! What tiles take on a GPU: measured once, kept in a file, multiplied with what a pattern covers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Machine;
use crate::error::{Error, Result};

/// A variable that names the file of [`TileTimes`] for every GPU.
const CALIBRATION: &str = "EINSPARSE_CALIBRATION";

/// Micro-tiles of a step of a stage, and columns of C of a tile, of the `pit` kernels.
const STEP: f64 = 16.0;
const STAGE: f64 = 64.0;
const COLUMNS: usize = einsparse_kernels::families::PIT_COLUMNS;

/// Times of the tiles of one height, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeightTimes {
    /// Detection and product of nothing: launches, first loads.
    pub start: f64,
    /// A tile of C on every multiprocessor: its list, its output.
    pub tile: f64,
    /// 64 micro-tiles of each of these.
    pub stage: f64,
}

/// Profiled times of one GPU, from which a plan tells what a product will take whose share of micro-tiles is known
/// (PIT, arXiv 2301.10936, section 3.2: the cost of a tile is measured, the number of tiles is counted). A file holds a
/// line for each fact:
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
    /// By the rows of a micro-tile.
    pub heights: BTreeMap<usize, HeightTimes>,
    /// Detection, microseconds for each MB of the matrix.
    pub detect: f64,
    /// A dense product's time over the one predicted.
    pub dense: f64,
}

impl TileTimes {
    /// Fitted to the products of 4096 x 4096 x 4096 on an H200 (benches/NOTES.md, "pit: dynamic micro-tiles", f16):
    /// what is taken where no file is.
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

    /// What is taken on this GPU where no file is: the [built-in](TileTimes::built_in) times, or where products are
    /// those of `mma.sync` what follows from them. Not measured.
    pub(crate) fn on(machine: &Machine) -> TileTimes {
        TileTimes::built_in().slowed(machine, 1.0)
    }

    /// These times on a GPU without `wgmma`, of products at this share of the f16 rate: a stage takes as long as its
    /// gathers through L2, or as its products.
    fn slowed(mut self, machine: &Machine, of_f16: f64) -> TileTimes {
        /// What products of a stage reach of the instruction's rate.
        const REACHED: f64 = 0.85;
        if machine.wgmma > 0.0 {
            return self;
        }
        let each = |rate: f64, machine: &Machine| rate / f64::from(machine.multiprocessors.max(1));
        let own = each(machine.l2, machine).max(1.0);
        let gathers = each(Machine::H200.l2, &Machine::H200) / own;
        let rate = each(machine.mma * of_f16 * REACHED, machine).max(1.0);
        for (&height, times) in &mut self.heights {
            // Fewer than 64 rows are multiplied as 64.
            let flops = 2.0 * height.max(64) as f64 * COLUMNS as f64 * STAGE;
            times.tile *= gathers;
            times.stage = (times.stage * gathers).max(flops / rate * 1e6);
        }
        self.detect *= Machine::H200.hbm / machine.hbm.max(1.0);
        self
    }

    /// The same for f32 as TF32: from what a stage pulls through L2 (benches/NOTES.md, "pit_right, pit_tf32 and
    /// pit_few"), not measured.
    pub(crate) fn tf32(machine: &Machine) -> TileTimes {
        let of = |start, tile, stage| HeightTimes { start, tile, stage };
        let times = TileTimes {
            heights: BTreeMap::from([
                (128, of(8.0, 4.8, 1.5)),
                (64, of(8.0, 2.6, 1.24)),
                (32, of(8.0, 1.8, 1.16)),
            ]),
            // Twice the bytes.
            detect: 0.6,
            dense: 1.0,
        };
        times.slowed(machine, 0.5)
    }

    /// The file of a GPU of this name: `EINSPARSE_CALIBRATION`, else `einsparse/<name>.times` in the user's folder of
    /// caches (`XDG_CACHE_HOME` or `~/.cache`); `None` where there is no such folder.
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

    /// What a file holds.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, and with the line if that is no time of a tile.
    pub fn load(file: &Path) -> Result<TileTimes> {
        let path = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|e| unreadable(&path, None, &e))?;
        parsed(&text, &path)
    }

    /// Writes the file, and the folders it lies in.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, file: &Path) -> Result<()> {
        let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = made.and_then(|()| std::fs::write(file, self.to_string()));
        written.map_err(|e| unreadable(&file.display().to_string(), None, &e))
    }

    /// Microseconds of detection and product of `[m, k, n]` in 16-bit elements when this share of the micro-tiles of so
    /// many rows holds something; `None` without times of that height.
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

/// Tiles of C, of so many rows, that a multiprocessor computes one after the other.
pub(crate) fn waves(height: usize, [m, n]: [usize; 2], multiprocessors: u32) -> f64 {
    let tiles = m.div_ceil(height) * n.div_ceil(COLUMNS);
    tiles.div_ceil(multiprocessors.max(1) as usize) as f64
}

/// Stages of a tile when this share of its `k` micro-tiles holds something.
pub(crate) fn stages(k: usize, share: f64) -> f64 {
    (k as f64 * share / STEP).ceil() * STEP / STAGE
}

/// Size of a matrix of 16-bit elements.
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
        let wrong = || unreadable(path, Some(i + 1), &format!("{line:?} is no time of a tile"));
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
        _ => Err(unreadable(path, None, &"wants lines of `height`, `detect` and `dense`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_what_is_wrong_with_them() {
        for (text, said) in [
            ("", "wants lines"),
            ("detect 1\ndense 1", "wants lines"),
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

    /// Half as many micro-tiles never take longer, nor do fewer columns.
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
