//! Pictures of a record, one question each: how many times faster than a peer, along one axis, cold.

use super::{Duel, PREPACKED, Result, geomean};
use plotters::prelude::*;
use std::path::Path;

/// What one picture answers.
pub struct Question {
    file: &'static str,
    title: &'static str,
    /// What lies along the axis.
    along: &'static str,
    /// The line and the place along the axis that a comparison belongs to.
    place: fn(&Duel) -> Option<(String, String)>,
}

pub const QUESTIONS: [Question; 5] = [
    Question {
        file: "spmm.svg",
        title: "Pruned weights (DLMC) times dense: the peer's time over ours",
        along: "density of the weights",
        place: |d| {
            if d.ours.op != "spmm" || d.set != "DLMC" {
                return None;
            }
            let prepacked = d.ours.variant == PREPACKED;
            let line = match (d.ours.dtype.as_str(), d.theirs.engine.as_str(), prepacked) {
                (dtype, "cusparse", false) => format!("{dtype} / cuSPARSE"),
                ("f32", "cublas", false) => "f32 / dense cuBLAS".into(),
                ("f16", "cublas", false) => "f16 / dense cuBLAS".into(),
                ("f16", "cublas", true) => "f16, prepacked / dense cuBLAS".into(),
                _ => return None,
            };
            let sparsity: f64 = d.ours.workload.split('/').nth(3)?.parse().ok()?;
            Some((line, format!("{:.2}", 1.0 - sparsity)))
        },
    },
    Question {
        file: "blocks.svg",
        title: "Block-sparse weights (4096 x 4096, f16): time of dense cuBLAS over ours",
        along: "share of blocks that are there",
        place: |d| {
            let own = d.ours.op == "block_spmm" && d.ours.dtype == "f16";
            let mut parts = d.ours.workload.strip_prefix("block")?.split('-');
            let (edge, density) = (parts.next()?, parts.next()?.strip_prefix('d')?);
            let plain = own && parts.next().is_none() && d.theirs.engine == "cublas";
            plain.then(|| (format!("{edge} x {edge}"), density.to_owned()))
        },
    },
    Question {
        file: "decode.svg",
        title: "Decoding (weights of language models, f16): time of dense cuBLAS over ours",
        along: "tokens in a batch",
        place: |d| {
            let own = d.set == "decode" && d.ours.dtype == "f16" && d.theirs.engine == "cublas";
            let density = d.ours.workload.rsplit("-d").next()?;
            own.then(|| (format!("density {density}"), d.ours.n.to_string()))
        },
    },
    Question {
        file: "convolution.svg",
        title: "Sparse convolution (office scan, 3 x 3 x 3): time of one dense product of the pairs over ours",
        along: "channels",
        place: |d| {
            let own = d.ours.op == "conv" && d.theirs.engine.starts_with("cublas");
            own.then(|| (d.ours.dtype.clone(), d.ours.n.to_string()))
        },
    },
    Question {
        file: "experts.svg",
        title: "Mixture of 64 experts (4096 tokens, bf16): the peer's time over ours",
        along: "experts of a token, and how they are chosen",
        place: |d| {
            let line = match d.theirs.engine.as_str() {
                "torch" => "PyTorch grouped_mm",
                "cublas" => "best of cuBLAS",
                _ => return None,
            };
            let choice = d.ours.workload.strip_prefix("moe-t4096-e64-")?;
            Some((line.to_owned(), choice.replace('-', ", ")))
        },
    },
];

/// Ratios at one place of a line.
type Point = Option<Vec<f64>>;

/// A picture's axis and its lines.
struct Lines {
    along: Vec<String>,
    lines: Vec<(String, Vec<Point>)>,
}

impl Lines {
    fn of(question: &Question, duels: &[Duel]) -> Lines {
        let placed = duels
            .iter()
            .filter_map(|d| Some(((question.place)(d)?, d.cold)));
        let placed: Vec<((String, String), f64)> = placed.collect();
        let mut along: Vec<String> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for ((name, x), _) in &placed {
            for (all, own) in [(&mut along, x), (&mut names, name)] {
                if !all.contains(own) {
                    all.push(own.clone());
                }
            }
        }
        let number = |text: &String| {
            let digits = text.split(' ').find_map(|word| word.parse().ok());
            digits.unwrap_or(0.0f64)
        };
        along.sort_by(|a, b| number(a).total_cmp(&number(b)));
        names.sort_by(|a, b| number(a).total_cmp(&number(b)));
        let at = |name: &String, x: &String| {
            let own = placed.iter().filter(|((n, own), _)| (n, own) == (name, x));
            let ratios: Vec<f64> = own.map(|(_, ratio)| *ratio).collect();
            (!ratios.is_empty()).then_some(ratios)
        };
        let line = |name: String| {
            let points = along.iter().map(|x| at(&name, x)).collect();
            (name, points)
        };
        Lines {
            lines: names.into_iter().map(line).collect(),
            along,
        }
    }

    /// Where a line falls below 1 for good, between two places that are numbers.
    fn even(&self, points: &[Point]) -> Option<f64> {
        let numbers = self.along.iter().map(|x| x.parse::<f64>().ok());
        let placed = numbers.zip(points);
        let placed: Vec<(f64, f64)> = placed
            .filter_map(|(x, ratios)| Some((x?, geomean(ratios.as_ref()?))))
            .collect();
        let mut crossed = placed
            .windows(2)
            .filter(|p| (p[0].1 > 1.0) != (p[1].1 > 1.0));
        let (first, next) = (crossed.next()?, crossed.next());
        let [(x0, y0), (x1, y1)] = [first[0], first[1]];
        let share = y0.ln() / (y0.ln() - y1.ln());
        (next.is_none() && y0 > y1).then(|| x0 * (x1 / x0).powf(share))
    }

    /// The least and the largest ratio, and some room.
    fn span(&self) -> (f64, f64) {
        let points = self.lines.iter().flat_map(|(_, points)| points);
        let all = points.flatten().flatten().copied();
        let (low, high) = all.fold((1.0, 1.0), |(low, high): (f64, f64), r| {
            (low.min(r), high.max(r))
        });
        (low / 1.15, high * 1.15)
    }
}

const COLOURS: [RGBColor; 6] = [
    RGBColor(60, 60, 60),
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(0, 130, 90),
    RGBColor(150, 90, 180),
    RGBColor(120, 110, 30),
];

/// The SVG of one picture.
fn svg(
    question: &Question,
    lines: &Lines,
) -> std::result::Result<String, Box<dyn std::error::Error>> {
    const SIZE: (u32, u32) = (860, 440);
    const LABELS: u32 = 210;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(question.title, ("sans-serif", 16))?;
        let (low, high) = lines.span();
        let last = lines.along.len() as f64 - 1.0;
        // Of a scale by tens few marks would lie within, and none below 1.
        let marks = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
        let within = marks.into_iter().filter(|mark| (low..high).contains(mark));
        let ratios = (low..high).log_scale().with_key_points(within.collect());
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(LABELS)
            .x_label_area_size(44)
            .y_label_area_size(50)
            .build_cartesian_2d(-0.25..last + 0.25, ratios)?;
        let place = |x: &f64| match (x.round() - x).abs() < 1e-9 && *x >= 0.0 {
            true => lines.along.get(*x as usize).cloned().unwrap_or_default(),
            false => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(format!(
                "{}; above 1 we are faster; bars: least to most",
                question.along
            ))
            .x_labels(2 * lines.along.len() + 1)
            .x_label_formatter(&place)
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        chart.draw_series(LineSeries::new(
            [(-0.25, 1.0), (last + 0.25, 1.0)],
            BLACK.stroke_width(2),
        ))?;
        let mut ends = Vec::new();
        for (number, (name, points)) in lines.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            // Beside each other, so that no bar hides another.
            let aside = (number as f64 - (lines.lines.len() as f64 - 1.0) / 2.0) * 0.04;
            let found = points.iter().enumerate();
            let found = found.filter_map(|(x, p)| Some((x as f64 + aside, p.as_ref()?)));
            let found: Vec<(f64, &Vec<f64>)> = found.collect();
            let means = found.iter().map(|(x, ratios)| (*x, geomean(ratios)));
            let means: Vec<(f64, f64)> = means.collect();
            for (x, ratios) in &found {
                let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                let most = ratios.iter().copied().fold(0.0, f64::max);
                let bar =
                    PathElement::new([(*x, least), (*x, most)], colour.mix(0.45).stroke_width(3));
                chart.draw_series([bar])?;
            }
            chart.draw_series(LineSeries::new(
                means.iter().copied(),
                colour.stroke_width(2),
            ))?;
            chart.draw_series(means.iter().map(|&at| Circle::new(at, 4, colour.filled())))?;
            if let Some(&(x, mean)) = means.last() {
                let even = lines.even(points).map(|x| format!(", even at {x:.2}"));
                let label = format!("{name}: {mean:.2}{}", even.unwrap_or_default());
                ends.push((chart.backend_coord(&(x, mean)), label, colour));
            }
        }
        ends.sort_by_key(|((_, y), ..)| *y);
        let mut free = i32::MIN;
        for ((x, y), label, colour) in ends {
            let y = (y - 7).max(free);
            free = y + 16;
            let style = ("sans-serif", 13).into_font().color(&colour);
            // Coordinates are those of the whole picture.
            area.draw_text(&label, &style, (x + 14, y - area.get_base_pixel().1))?;
        }
        area.present()?;
    }
    Ok(text)
}

/// A picture and its file.
pub struct Picture {
    pub file: &'static str,
    pub title: &'static str,
    pub svg: String,
}

/// Those that the comparisons have an answer for.
pub fn pictures(duels: &[Duel]) -> Result<Vec<Picture>> {
    let mut all = Vec::new();
    for question in &QUESTIONS {
        let lines = Lines::of(question, duels);
        if lines.along.len() < 2 {
            continue;
        }
        all.push(Picture {
            file: question.file,
            title: question.title,
            svg: svg(question, &lines).map_err(|e| format!("{}: {e}", question.file))?,
        });
    }
    Ok(all)
}

/// Writes them into a folder.
pub fn write(folder: &Path, pictures: &[Picture]) -> Result<()> {
    for picture in pictures {
        let path = folder.join(picture.file);
        std::fs::write(&path, &picture.svg).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
