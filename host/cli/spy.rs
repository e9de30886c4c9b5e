//! Spy plot: positions of the nonzeros of a matrix. Denser regions are darker.

use einsparse::formats::CsrPattern;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::picture::{Area, LETTER, Letters, Percent, Picture, fill, frame};

/// Maximum number of pixels of the longer side.
const LONGEST: i32 = 800;
/// Minimum number of pixels of a cell: each cell is an element of an SVG.
const CELL: i32 = 2;
/// Pixels above the plot, for two lines and the name of the axis.
const ABOVE: i32 = 62;
/// Pixels below the plot, for numbers and the name of the axis.
const BELOW: i32 = 46;
/// Pixels between the plot and the scale.
const GAP: i32 = 24;

/// One axis of the matrix.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    pixels: i32,
    /// Number of rows or columns per cell.
    cell: usize,
}

impl Axis {
    fn new(extent: usize, longest: usize) -> Axis {
        // Small matrices get small plots. The minimum keeps vectors visible.
        let side = (longest.min(40) as i32 * 20).clamp(240, LONGEST);
        let share = extent as f64 / longest.max(1) as f64;
        let pixels = ((f64::from(side) * share).round() as i32).max(40);
        let cells = (pixels / CELL) as usize;
        let cell = extent.div_ceil(cells).max(1);
        Axis { extent, pixels, cell }
    }

    fn cells(self) -> usize {
        self.extent.div_ceil(self.cell)
    }

    /// Pixel of the plot at which a row or column begins.
    fn at(self, index: usize) -> i32 {
        let share = index.min(self.extent) as f64 / self.extent.max(1) as f64;
        (f64::from(self.pixels) * share) as i32
    }

    /// Marks at round numbers, at least `apart` pixels from each other, starting at 0, and a mark at the extent.
    fn marks(self, apart: i32) -> Vec<usize> {
        let most = (self.pixels / apart).max(1) as usize;
        let tens = (0..19).map(|tens| 10usize.pow(tens));
        let mut steps = tens.flat_map(|ten| [1, 2, 5].map(|step| ten.saturating_mul(step)));
        let enough = |step: &usize| self.extent / step <= most;
        let step = steps.find(enough).unwrap_or(usize::MAX);
        let last = self.at(self.extent);
        let mut marks: Vec<usize> = (0..self.extent).step_by(step).collect();
        marks.retain(|mark| *mark == 0 || last - self.at(*mark) >= apart);
        marks.push(self.extent);
        marks
    }
}

/// Spy plot of a pattern.
pub struct Spy<'a> {
    pattern: &'a CsrPattern,
    title: [String; 2],
    rows: Axis,
    columns: Axis,
}

impl<'a> Spy<'a> {
    /// Creates a plot of a pattern with a title.
    pub fn new(pattern: &'a CsrPattern, title: &str) -> Self {
        let (m, k) = (pattern.rows(), pattern.cols());
        let (entries, places) = (pattern.columns().len(), m as f64 * k as f64);
        let share = Percent(entries as f64 / places.max(1.0));
        Spy {
            pattern,
            title: [
                title.to_owned(),
                format!("{m} x {k}, {entries} entries, {share} of all places"),
            ],
            rows: Axis::new(m, m.max(k)),
            columns: Axis::new(k, m.max(k)),
        }
    }

    /// Pixels to the left of the plot, for row numbers.
    fn left(&self) -> i32 {
        LETTER * self.rows.extent.to_string().len().max(4) as i32 + 20
    }

    /// Title of the scale, if a cell covers more than one position.
    fn of_scale(&self) -> Option<String> {
        let (rows, columns) = (self.rows.cell, self.columns.cell);
        (rows * columns > 1).then(|| format!("fill of {rows} x {columns}"))
    }

    /// Fraction of positions with nonzeros of each cell, row-major, and the max.
    fn fills(&self) -> (Vec<f64>, f64) {
        let width = self.columns.cells();
        let mut counts = vec![0u64; self.rows.cells() * width];
        for (row, ends) in self.pattern.offsets().windows(2).enumerate() {
            for &column in &self.pattern.columns()[ends[0] as usize..ends[1] as usize] {
                counts[row / self.rows.cell * width + column as usize / self.columns.cell] += 1;
            }
        }
        // Cells at the ends may cover fewer positions.
        let places = |axis: Axis, cell: usize| axis.cell.min(axis.extent - cell * axis.cell);
        let fill = |(at, count): (usize, u64)| {
            let (row, column) = (at / width, at % width);
            count as f64 / (places(self.rows, row) * places(self.columns, column)) as f64
        };
        let fills: Vec<f64> = counts.into_iter().enumerate().map(fill).collect();
        let most = fills.iter().copied().fold(0.0, f64::max);
        (fills, most)
    }

    fn axes<B: DrawingBackend>(&self, area: &Area<B>, letters: Letters) -> Result<(), String> {
        let (left, bottom) = (self.left(), ABOVE + self.rows.pixels);
        letters.write(area, "rows", (left - 8, ABOVE - 14), HPos::Right)?;
        for mark in self.rows.marks(24) {
            let y = ABOVE + self.rows.at(mark);
            fill(area, [(left - 5, y), (left, y)], BLACK)?;
            letters.write(area, &mark.to_string(), (left - 8, y), HPos::Right)?;
        }
        let middle = (left + self.columns.pixels / 2, bottom + 34);
        letters.write(area, "columns", middle, HPos::Center)?;
        let widest = self.columns.extent.to_string().len() as i32;
        for mark in self.columns.marks(LETTER * (widest + 2)) {
            let x = left + self.columns.at(mark);
            fill(area, [(x, bottom), (x, bottom + 5)], BLACK)?;
            letters.write(area, &mark.to_string(), (x, bottom + 15), HPos::Center)?;
        }
        Ok(())
    }

    /// Draws the scale to the right of the plot, from an empty cell to the fullest cell.
    fn scale<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        letters: Letters,
        (title, most): (&str, f64),
    ) -> Result<(), String> {
        const STEPS: i32 = 40;
        let (x, high) = (self.left() + self.columns.pixels + GAP, 160);
        letters.write(area, title, (x, ABOVE - 14), HPos::Left)?;
        for step in 0..STEPS {
            let share = f64::from(step + 1) / f64::from(STEPS);
            let (y, next) = (high * (STEPS - 1 - step) / STEPS, high * (STEPS - step) / STEPS);
            let corners = [(x, ABOVE + y), (x + 14, ABOVE + next)];
            fill(area, corners, grey(share))?;
        }
        frame(area, [(x - 1, ABOVE - 1), (x + 14, ABOVE + high)])?;
        for (share, y) in [(1.0, 0), (0.5, high / 2), (0.0, high)] {
            let text = Percent(share * most).to_string();
            letters.write(area, &text, (x + 20, ABOVE + y), HPos::Left)?;
        }
        Ok(())
    }
}

/// Color of a cell: darker for a larger fraction of the fullest cell. The square root keeps sparse cells visible next
/// to full cells.
fn grey(share: f64) -> RGBColor {
    let grey = 200.0 * (1.0 - share.sqrt());
    RGBColor(grey as u8, grey as u8, (grey + 40.0) as u8)
}

impl Picture for Spy<'_> {
    fn size(&self) -> (u32, u32) {
        let (beside, least) = match self.of_scale() {
            Some(title) => (GAP + LETTER * title.len() as i32 + 6, 170),
            None => (40, 0),
        };
        let letters = self.title.iter().map(|line| line.chars().count());
        let words = LETTER * letters.max().unwrap_or(0) as i32 + 20;
        let width = (self.left() + self.columns.pixels + beside).max(words);
        let height = ABOVE + self.rows.pixels.max(least) + BELOW;
        (width as u32, height as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>, letters: Letters) -> Result<(), String> {
        for (y, line) in [14, 32].into_iter().zip(&self.title) {
            letters.write(area, line, (10, y), HPos::Left)?;
        }
        let (left, width) = (self.left(), self.columns.cells());
        let (fills, most) = self.fills();
        let corner = |axis: Axis, cell: usize| axis.at(cell * axis.cell);
        for (at, &share) in fills.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            let (row, column) = (at / width, at % width);
            let place = |row, column| {
                let (x, y) = (corner(self.columns, column), corner(self.rows, row));
                (left + x, ABOVE + y)
            };
            let corners = [place(row, column), place(row + 1, column + 1)];
            fill(area, corners, grey(share / most))?;
        }
        let end = (left + self.columns.pixels, ABOVE + self.rows.pixels);
        frame(area, [(left - 1, ABOVE - 1), end])?;
        self.axes(area, letters)?;
        match self.of_scale() {
            Some(title) if most > 0.0 => self.scale(area, letters, (&title, most)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_apart() {
        assert_eq!(Axis::new(3, 3).marks(24), [0, 1, 2, 3]);
        assert_eq!(Axis::new(0, 3).marks(24), [0]);
        let long = Axis::new(1234, 1234);
        let marks = long.marks(64);
        assert_eq!(marks[..2], [0, 100]);
        assert_eq!(marks.last(), Some(&1234));
        let apart = marks.windows(2).all(|two| long.at(two[1]) - long.at(two[0]) >= 64);
        assert!(apart, "{marks:?}");
    }

    #[test]
    fn a_cell_is_as_full_as_its_places() {
        // 1000 rows in cells of 3, and one column: the last cell has one row.
        let offsets = (0..=1000u32).collect();
        let pattern = CsrPattern::new(1000, 1, offsets, vec![0; 1000]).expect("a pattern");
        let spy = Spy::new(&pattern, "a column");
        assert_eq!((spy.rows.cell, spy.columns.cell), (3, 1));
        let (fills, most) = spy.fills();
        assert!(most == 1.0 && fills.iter().all(|fill| *fill == 1.0));
    }
}
