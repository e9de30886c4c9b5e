//! `einsparse explain --svg`: picture of the steps from the expression to the kernel, with the predicted cost of each
//! candidate.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::picture::{Area, LETTER, Letters, Picture, fill, frame};

/// Maximum number of letters per line.
const WIDTH: usize = 100;
/// Maximum number of candidates in the picture.
const MOST: usize = 16;
/// Line height in pixels.
const LINE: i32 = 18;
/// Margin in pixels.
const MARGIN: i32 = 14;
/// Length of the longest bar in pixels.
const LONGEST: i32 = 260;
/// Gap between two boxes in pixels.
const GAP: i32 = 26;

/// Candidate of a choice.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Kernel or format.
    pub name: String,
    /// Predicted microseconds.
    pub us: f64,
    /// Additional text.
    pub note: String,
}

/// Candidates, cheapest first.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Title of the choice.
    pub title: String,
    /// Candidates.
    pub bars: Vec<Bar>,
    /// Index of the selected candidate.
    pub taken: Option<usize>,
}

/// Picture of a chain.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    steps: Vec<(&'static str, Vec<String>)>,
    groups: Vec<Bars>,
}

/// Splits a text into lines of up to [`WIDTH`] letters, at blanks, and inside words that are longer than a line.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(WIDTH) {
            let line = lines.len() - 1;
            let used = lines[line].chars().count();
            if used > 0 && used + 1 + piece.len() > WIDTH {
                lines.push(String::from_iter(piece));
            } else {
                let gap = if used > 0 { " " } else { "" };
                lines[line] += gap;
                lines[line].extend(piece);
            }
        }
    }
    lines
}

impl Chain {
    /// Adds a step.
    pub fn step(&mut self, name: &'static str, text: &str) {
        self.steps.push((name, lines(text)));
    }

    /// Adds candidates. An empty list is not drawn.
    pub fn bars(&mut self, mut bars: Bars) {
        if bars.bars.is_empty() {
            return;
        }
        let left = bars.bars.len().saturating_sub(MOST);
        if left > 0 {
            bars.bars.truncate(MOST);
            bars.title += &format!(" (the cheapest {MOST}, {left} more)");
        }
        self.groups.push(bars);
    }

    /// Width of the longest name of a step, in pixels.
    fn margin(&self) -> i32 {
        let names = self.steps.iter().map(|(name, _)| name.len());
        LETTER * (names.max().unwrap_or(0) as i32 + 2)
    }

    fn boxes<B: DrawingBackend>(&self, area: &Area<B>, letters: Letters) -> Result<i32, String> {
        let (left, mut y) = (MARGIN + self.margin(), MARGIN);
        let longest = self.steps.iter().flat_map(|(_, lines)| lines);
        let longest = longest.map(|line| line.chars().count()).max().unwrap_or(0);
        let right = left + LETTER * longest as i32 + 20;
        for (at, (name, lines)) in self.steps.iter().enumerate() {
            let bottom = y + LINE * lines.len() as i32 + 10;
            letters.write(area, name, (MARGIN, y + 5 + LINE / 2), HPos::Left)?;
            for (line, text) in (0..).zip(lines) {
                let place = (left + 10, y + 5 + LINE / 2 + LINE * line);
                letters.write(area, text, place, HPos::Left)?;
            }
            frame(area, [(left, y), (right, bottom)])?;
            y = bottom + GAP;
            if at + 1 < self.steps.len() {
                arrow(area, left + 40, (bottom, y))?;
            }
        }
        Ok(y)
    }
}

/// Draws a downward arrow from one height to another.
fn arrow<B: DrawingBackend>(
    area: &Area<B>,
    x: i32,
    (top, bottom): (i32, i32),
) -> Result<(), String> {
    fill(area, [(x, top), (x + 1, bottom - 6)], BLACK)?;
    for step in 0..6 {
        let y = bottom - 1 - step;
        fill(area, [(x - step / 2, y), (x + 1 + step / 2, y + 1)], BLACK)?;
    }
    Ok(())
}

impl Bars {
    /// Width of the longest name, in pixels.
    fn names(&self) -> i32 {
        let names = self.bars.iter().map(|bar| bar.name.chars().count());
        LETTER * (names.max().unwrap_or(0) as i32 + 4)
    }

    fn width(&self) -> i32 {
        let note = |bar: &Bar| bar.note.chars().count() as i32;
        let notes = self.bars.iter().map(note).max().unwrap_or(0);
        let of_bars = self.names() + LONGEST + LETTER * (notes + 14);
        of_bars.max(LETTER * self.title.chars().count() as i32)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        letters: Letters,
        top: i32,
    ) -> Result<i32, String> {
        letters.write(area, &self.title, (MARGIN, top + LINE / 2), HPos::Left)?;
        let left = MARGIN + self.names();
        let finite = self.bars.iter().map(|bar| bar.us).filter(|us| us.is_finite());
        let most = finite.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let mut y = top + LINE;
        for (at, bar) in self.bars.iter().enumerate() {
            let (taken, middle) = (self.taken == Some(at), y + LINE / 2);
            let mark = if taken { "->" } else { "" };
            letters.write(area, mark, (MARGIN, middle), HPos::Left)?;
            letters.write(area, &bar.name, (left - 8, middle), HPos::Right)?;
            let long = (f64::from(LONGEST) * (bar.us / most).clamp(0.0, 1.0)) as i32;
            let colour = if taken { RGBColor(0, 90, 181) } else { RGBColor(170, 185, 205) };
            fill(area, [(left, y + 3), (left + long, y + LINE - 3)], colour)?;
            let said = format!("{:.1} us{}", bar.us, bar.note);
            letters.write(area, &said, (left + long + 8, middle), HPos::Left)?;
            y += LINE;
        }
        Ok(y + GAP / 2)
    }
}

impl Picture for Chain {
    fn size(&self) -> (u32, u32) {
        let longest = self.steps.iter().flat_map(|(_, lines)| lines);
        let longest = longest.map(|line| line.chars().count()).max().unwrap_or(0);
        let of_steps = self.margin() + LETTER * longest as i32 + 20;
        let of_bars = self.groups.iter().map(Bars::width).max().unwrap_or(0);
        let boxes = self.steps.iter().map(|(_, lines)| lines.len() as i32);
        let boxes: i32 = boxes.map(|lines| LINE * lines + 10 + GAP).sum();
        let bars = self.groups.iter().map(|group| group.bars.len() as i32);
        let bars: i32 = bars.map(|bars| LINE * (bars + 1) + GAP / 2).sum();
        let width = of_steps.max(of_bars) + 2 * MARGIN;
        (width as u32, (boxes + bars + 2 * MARGIN) as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>, letters: Letters) -> Result<(), String> {
        let mut y = self.boxes(area, letters)?;
        for group in &self.groups {
            y = group.draw(area, letters, y)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_blanks() {
        let text = ["word"; 50].join("  ");
        let cut = lines(&text);
        assert!(cut.len() == 3 && cut.iter().all(|line| line.len() <= WIDTH));
        assert_eq!(cut.join(" "), ["word"; 50].join(" "));
    }

    #[test]
    fn long_words_are_cut_and_lose_nothing() {
        let word: String = ('a'..='z').cycle().take(250).collect();
        let cut = lines(&format!("before {word} behind"));
        let letters: Vec<usize> = cut.iter().map(|line| line.len()).collect();
        assert_eq!(letters, [6, 100, 100, 57]);
        assert_eq!(cut[1..].concat(), format!("{word} behind"));
    }
}
