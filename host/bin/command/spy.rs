//! A spy plot: where the entries of a matrix lie, denser is darker. No text, so no fonts are needed.

use std::path::Path;

use einsparse::formats::CsrPattern;
use plotters::prelude::*;

use super::Result;

/// Pixels of the longer side.
const SIDE: usize = 800;
/// Cells along the longer side: every cell of an SVG is an element of it.
const CELLS: usize = 400;
/// Pixels around the plot.
const MARGIN: i32 = 10;

/// Writes the plot as PNG or SVG, by the extension.
pub fn plot(pattern: &CsrPattern, path: &Path) -> Result<()> {
    let extension = path
        .extension()
        .map(|e| e.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default();
    let longest = pattern.rows().max(pattern.cols()).max(1);
    let cell = longest.div_ceil(CELLS);
    let scale = SIDE as f64 / longest as f64;
    let extent = |n: usize| (n as f64 * scale).ceil().max(1.0) as u32 + 2 * MARGIN as u32;
    let size = (extent(pattern.cols()), extent(pattern.rows()));
    let failed = |error: String| format!("{}: {error}", path.display());
    match extension.as_str() {
        "png" => draw(
            BitMapBackend::new(path, size).into_drawing_area(),
            pattern,
            cell,
            scale,
        )
        .map_err(failed)?,
        "svg" => draw(
            SVGBackend::new(path, size).into_drawing_area(),
            pattern,
            cell,
            scale,
        )
        .map_err(failed)?,
        _ => return Err(failed("extension .png or .svg expected".into()).into()),
    }
    Ok(())
}

/// Entries in each cell, row by row.
fn counts(pattern: &CsrPattern, cell: usize) -> (usize, Vec<u64>) {
    let (height, width) = (pattern.rows().div_ceil(cell), pattern.cols().div_ceil(cell));
    let mut counts = vec![0; height * width];
    for (row, ends) in pattern.offsets().windows(2).enumerate() {
        for &column in &pattern.columns()[ends[0] as usize..ends[1] as usize] {
            counts[row / cell * width + column as usize / cell] += 1;
        }
    }
    (width, counts)
}

fn draw<B: DrawingBackend>(
    area: DrawingArea<B, plotters::coord::Shift>,
    pattern: &CsrPattern,
    cell: usize,
    scale: f64,
) -> Result<(), String> {
    let text = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
    area.fill(&WHITE).map_err(text)?;
    let (width, counts) = counts(pattern, cell);
    let fullest = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let pixel = |at: usize| MARGIN + ((at * cell) as f64 * scale) as i32;
    for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (x, y) = (at % width, at / width);
        // The root keeps single entries visible beside full cells.
        let grey = 200.0 * (1.0 - (count as f64 / fullest).sqrt());
        let colour = RGBColor(grey as u8, grey as u8, (grey + 40.0) as u8);
        let end = |low: i32, high: i32| high.max(low + 1);
        let corners = [
            (pixel(x), pixel(y)),
            (end(pixel(x), pixel(x + 1)), end(pixel(y), pixel(y + 1))),
        ];
        area.draw(&Rectangle::new(corners, colour.filled()))
            .map_err(text)?;
    }
    let corner = |n: usize| MARGIN + (n as f64 * scale) as i32;
    let frame = [
        (MARGIN - 1, MARGIN - 1),
        (corner(pattern.cols()), corner(pattern.rows())),
    ];
    area.draw(&Rectangle::new(frame, BLACK.mix(0.5)))
        .map_err(text)?;
    area.present().map_err(text)
}
