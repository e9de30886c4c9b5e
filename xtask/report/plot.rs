//! The plot of a record.

use super::{Duel, Result, geomean, performance};
use plotters::prelude::*;
use std::path::Path;

/// A line from the least to the most ratio of each group that the guide shows, a point at its geometric mean.
pub fn draw(path: &Path, duels: &[Duel]) -> Result<()> {
    let groups = performance::groups(duels);
    let low = groups.iter().map(|(_, g)| g.least()).fold(0.5, f64::min) / 1.2;
    let high = groups.iter().map(|(_, g)| g.most()).fold(2.0, f64::max) * 1.2;
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let size = (1000, 90 + 22 * groups.len() as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).map_err(|e| fail(&e))?;
    let rows = groups.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(360)
        .build_cartesian_2d((low..high).log_scale(), 0.0..rows)
        .map_err(|e| fail(&e))?;
    chart
        .configure_mesh()
        .x_desc("peer's time / ours, cold: right of 1 we are faster")
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .draw()
        .map_err(|e| fail(&e))?;
    let even = LineSeries::new([(1.0, 0.0), (1.0, rows)], BLACK.stroke_width(1));
    chart.draw_series(even).map_err(|e| fail(&e))?;
    let style = ("sans-serif", 13).into_text_style(&area);
    for (place, (name, group)) in groups.iter().enumerate() {
        let y = rows - place as f64 - 0.5;
        let mean = geomean(&group.cold());
        let colour = if mean < 1.0 { RED } else { BLUE };
        let span = [(group.least(), y), (group.most(), y)];
        let line = PathElement::new(span, colour.stroke_width(2));
        chart.draw_series([line]).map_err(|e| fail(&e))?;
        let point = Circle::new((mean, y), 4, colour.filled());
        chart.draw_series([point]).map_err(|e| fail(&e))?;
        let height = chart.backend_coord(&(mean, y)).1;
        let drawn = area.draw_text(name, &style, (16, height - 7));
        drawn.map_err(|e| fail(&e))?;
    }
    area.present().map_err(|e| fail(&e))
}
