//! Pictures as PNG or SVG. Text in an SVG refers to a font; text in a PNG is drawn pixel by pixel.

use std::fmt;
use std::path::Path;

use einsparse::formats::io;
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Result;

/// Maximum width of a letter in pixels.
pub const LETTER: i32 = 8;

/// Drawing area, in pixels.
pub type Area<B> = DrawingArea<B, Shift>;

/// Picture that either backend can draw.
pub trait Picture {
    /// Width and height in pixels.
    fn size(&self) -> (u32, u32);

    /// Draws the picture on a white area of that size.
    fn draw<B: DrawingBackend>(&self, area: &Area<B>, letters: Letters) -> Result<(), String>;
}

/// Writes the picture as PNG or SVG, by the extension of the path.
pub fn save(picture: &impl Picture, path: &Path) -> Result<()> {
    let extension = path.extension().map(|e| e.to_string_lossy());
    let extension = extension.unwrap_or_default().to_ascii_lowercase();
    let failed = |error: String| format!("{}: {error}", path.display());
    let write = |beside: &Path| -> Result<()> {
        let size = picture.size();
        let drawn = match extension.as_str() {
            "png" => on(picture, BitMapBackend::new(beside, size), Letters::Pixels),
            "svg" => on(picture, SVGBackend::new(beside, size), Letters::Named),
            _ => Err("extension .png or .svg expected".into()),
        };
        Ok(drawn.map_err(failed)?)
    };
    io::replace_file(path, write)
}

fn on<B: DrawingBackend>(
    picture: &impl Picture,
    backend: B,
    letters: Letters,
) -> Result<(), String> {
    let area = backend.into_drawing_area();
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    picture.draw(&area, letters)?;
    area.present().map_err(|e| e.to_string())
}

/// Draws a filled box from one corner to the other, at least one pixel wide and high.
pub fn fill<B: DrawingBackend>(
    area: &Area<B>,
    [(left, top), (right, bottom)]: [(i32, i32); 2],
    colour: RGBColor,
) -> Result<(), String> {
    let corners = [(left, top), (right.max(left + 1), bottom.max(top + 1))];
    let filled = Rectangle::new(corners, colour.filled());
    area.draw(&filled).map_err(|e| e.to_string())
}

/// Draws the outline of a box.
pub fn frame<B: DrawingBackend>(area: &Area<B>, corners: [(i32, i32); 2]) -> Result<(), String> {
    let outline = Rectangle::new(corners, BLACK.mix(0.5));
    area.draw(&outline).map_err(|e| e.to_string())
}

/// Fraction that is printed as a percentage with two or three digits.
pub struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        match percent {
            0.0 => f.write_str("0 %"),
            ..0.1 => write!(f, "{percent:.1e} %"),
            _ => write!(f, "{percent:.*} %", usize::from(percent < 9.95)),
        }
    }
}

/// Method of drawing text.
#[derive(Clone, Copy, Debug)]
pub enum Letters {
    /// Refers to a font by name.
    Named,
    /// Draws pixels.
    Pixels,
}

impl Letters {
    /// Writes a line of text. `at` states whether `place` is its start, middle or end; vertically `place` is its
    /// middle.
    pub fn write<B: DrawingBackend>(
        self,
        area: &Area<B>,
        text: &str,
        place: (i32, i32),
        at: HPos,
    ) -> Result<(), String> {
        match self {
            Letters::Named => {
                // plotters interprets the font size as the line height.
                let style = TextStyle::from(("monospace", 12.0 * 1.24).into_font());
                let style = style.pos(Pos::new(at, VPos::Center));
                area.draw_text(text, &style, place).map_err(|e| e.to_string())
            }
            Letters::Pixels => pixels(area, text, place, at),
        }
    }
}

fn pixels<B: DrawingBackend>(
    area: &Area<B>,
    text: &str,
    (x, y): (i32, i32),
    at: HPos,
) -> Result<(), String> {
    let letter = |c| get_raster(c, FontWeight::Regular, RasterHeight::Size16);
    let known = text.chars().filter_map(|c| letter(c).or_else(|| letter('?')));
    let known: Vec<_> = known.collect();
    let width: usize = known.iter().map(|l| l.width()).sum();
    let mut left = match at {
        HPos::Left => x,
        HPos::Center => x - width as i32 / 2,
        HPos::Right => x - width as i32,
    };
    for letter in known {
        let top = y - letter.height() as i32 / 2;
        for (down, row) in (top..).zip(letter.rows()) {
            for (across, &shade) in (left..).zip(row).filter(|(_, shade)| **shade > 0) {
                let colour = BLACK.mix(f64::from(shade) / 255.0);
                area.draw_pixel((across, down), &colour).map_err(|e| e.to_string())?;
            }
        }
        left += letter.width() as i32;
    }
    Ok(())
}
