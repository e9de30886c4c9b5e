//! Pictures of a record. Each shows how many times faster einsparse is than a baseline, with a cold L2 cache.

use super::{Comparison, PREPACKED, Result, geomean, words};
use plotters::prelude::*;
use std::fmt::Write;
use std::path::Path;

/// Question that one picture answers.
pub struct Question {
    file: &'static str,
    /// The question, as a sentence.
    title: &'static str,
    /// The baseline on the vertical axis.
    baseline: &'static str,
    /// The horizontal axis.
    along: &'static str,
    /// Line, and position along the axis, of a comparison.
    place: fn(&Comparison) -> Option<(String, String)>,
}

/// Density of pruned weights.
fn density(c: &Comparison) -> Option<String> {
    let sparsity: f64 = c.ours.workload.split('/').nth(3)?.parse().ok()?;
    Some(format!("{:.2}", 1.0 - sparsity))
}

/// SpMM with pruned weights against one baseline.
fn pruned(c: &Comparison, engine: &str) -> bool {
    c.ours.op == "spmm" && c.set == "DLMC" && c.baseline.engine == engine
}

pub const QUESTIONS: [Question; 6] = [
    Question {
        file: "spmm.svg",
        title: "How much faster than cuSPARSE does einsparse multiply pruned weights by a dense matrix?",
        baseline: "cuSPARSE",
        along: "density of the weights (DLMC)",
        place: |c| {
            let own = pruned(c, "cusparse") && c.ours.variant != PREPACKED;
            own.then(|| density(c)).flatten().map(|x| (c.ours.dtype.clone(), x))
        },
    },
    Question {
        file: "spmm_dense.svg",
        title: "At which density does einsparse multiply pruned weights faster than dense cuBLAS?",
        baseline: "dense cuBLAS",
        along: "density of the weights (DLMC)",
        place: |c| {
            if !pruned(c, "cublas") {
                return None;
            }
            let line = match (c.ours.dtype.as_str(), c.ours.variant == PREPACKED) {
                ("f16", true) => "f16, prepacked",
                ("f16", false) => "f16",
                ("f32", false) => "f32",
                _ => return None,
            };
            Some((line.into(), density(c)?))
        },
    },
    Question {
        file: "blocks.svg",
        title: "At which density does einsparse multiply block-sparse weights faster than dense cuBLAS?",
        baseline: "dense cuBLAS",
        along: "share of blocks that are stored (4096 x 4096, f16)",
        place: |c| {
            let own = c.ours.op == "block_spmm" && c.ours.dtype == "f16";
            let mut parts = c.ours.workload.strip_prefix("block")?.split('-');
            let (edge, density) = (parts.next()?, parts.next()?.strip_prefix('d')?);
            let plain = own && parts.next().is_none() && c.baseline.engine == "cublas";
            plain.then(|| (format!("{edge} x {edge}"), density.to_owned()))
        },
    },
    Question {
        file: "decode.svg",
        title: "How much faster is decoding with pruned weights in einsparse than with dense cuBLAS?",
        baseline: "dense cuBLAS",
        along: "tokens in a batch (weights of language models, f16)",
        place: |c| {
            let own = c.set == "decode" && c.ours.dtype == "f16" && c.baseline.engine == "cublas";
            let density = c.ours.workload.rsplit("-d").next()?;
            own.then(|| (format!("density {density}"), c.ours.n.to_string()))
        },
    },
    Question {
        file: "convolution.svg",
        title: "How much faster is a sparse convolution in einsparse than one dense product of the same size?",
        baseline: "one cuBLAS product",
        along: "channels (office scan, 3 x 3 x 3)",
        place: |c| {
            let own = c.ours.op == "conv" && c.baseline.engine.starts_with("cublas");
            own.then(|| (c.ours.dtype.clone(), c.ours.n.to_string()))
        },
    },
    Question {
        file: "experts.svg",
        title: "How much faster is a mixture of experts in einsparse than the products alone in PyTorch and cuBLAS?",
        baseline: "the baseline",
        along: "experts of a token, distribution (64 experts, 4096 tokens, bf16)",
        place: |c| {
            let choice = c.ours.workload.strip_prefix("moe-t4096-e64-")?;
            let line = words::baseline("", &c.baseline.engine);
            Some((line, choice.replace('-', ", ")))
        },
    },
];

/// Speed-ups at one position of a line.
type Point = Option<Vec<f64>>;

/// A picture's axis and its lines.
struct Lines {
    along: Vec<String>,
    lines: Vec<(String, Vec<Point>)>,
}

impl Lines {
    fn of(question: &Question, comparisons: &[Comparison]) -> Lines {
        let placed = comparisons.iter().filter_map(|d| Some(((question.place)(d)?, d.cold)));
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
        Lines { lines: names.into_iter().map(line).collect(), along }
    }

    /// Break-even: where a line falls below 1 for good, between two numbers of the axis.
    fn break_even(&self, points: &[Point]) -> Option<f64> {
        let numbers = self.along.iter().map(|x| x.parse::<f64>().ok());
        let placed = numbers.zip(points);
        let placed: Vec<(f64, f64)> =
            placed.filter_map(|(x, ratios)| Some((x?, geomean(ratios.as_ref()?)))).collect();
        let mut crossed = placed.windows(2).filter(|p| (p[0].1 > 1.0) != (p[1].1 > 1.0));
        let (first, next) = (crossed.next()?, crossed.next());
        let [(x0, y0), (x1, y1)] = [first[0], first[1]];
        let share = y0.ln() / (y0.ln() - y1.ln());
        (next.is_none() && y0 > y1).then(|| x0 * (x1 / x0).powf(share))
    }

    /// The min and max speed-up, with a margin.
    fn span(&self) -> (f64, f64) {
        let points = self.lines.iter().flat_map(|(_, points)| points);
        let all = points.flatten().flatten().copied();
        let (low, high) =
            all.fold((1.0, 1.0), |(low, high): (f64, f64), r| (low.min(r), high.max(r)));
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

/// Each colour of a picture, and its colour in dark mode.
const DARK: [(&str, &str); 8] = [
    ("#FFFFFF", "#0D1117"),
    ("#000000", "#E6EDF3"),
    ("#3C3C3C", "#B1BAC4"),
    ("#005AB5", "#58A6FF"),
    ("#DC3220", "#FF7B72"),
    ("#00825A", "#3FB950"),
    ("#965AB4", "#D2A8FF"),
    ("#786E1E", "#D29922"),
];

/// The picture with a style that replaces its colours in dark mode.
fn with_dark_mode(svg: &str) -> String {
    let mut style = String::from("<style>@media (prefers-color-scheme: dark) {");
    for (light, dark) in DARK {
        for attribute in ["fill", "stroke"] {
            let _ = write!(style, "[{attribute}=\"{light}\"]{{{attribute}:{dark}}}");
        }
    }
    style.push_str("}</style>");
    match svg.find('>') {
        Some(end) => format!("{}\n{style}{}", &svg[..=end], &svg[end + 1..]),
        None => svg.to_owned(),
    }
}

/// SVG of one picture, with the name of the measured GPU.
fn svg(
    question: &Question,
    lines: &Lines,
    gpu: &str,
) -> std::result::Result<String, Box<dyn std::error::Error>> {
    const SIZE: (u32, u32) = (860, 460);
    const LABELS: u32 = 190;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(question.title, ("sans-serif", 16))?;
        let how = format!(
            "{gpu}, cold L2 cache. Points: geometric mean. Bars: min to max. Above 1 einsparse is faster."
        );
        let area = area.titled(&how, ("sans-serif", 12))?;
        let (low, high) = lines.span();
        let last = lines.along.len() as f64 - 1.0;
        // Powers of two: powers of ten would give one or two marks.
        let marks = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
        let within = marks.into_iter().filter(|mark| (low..high).contains(mark));
        let ratios = (low..high).log_scale().with_key_points(within.collect());
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(LABELS)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.25..last + 0.25, ratios)?;
        let place = |x: &f64| match (x.round() - x).abs() < 1e-9 && *x >= 0.0 {
            true => lines.along.get(*x as usize).cloned().unwrap_or_default(),
            false => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(question.along)
            .y_desc(format!("time of {} / time of einsparse (log scale)", question.baseline))
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
            // A small offset for each line keeps its bars visible.
            let offset = (number as f64 - (lines.lines.len() as f64 - 1.0) / 2.0) * 0.04;
            let found = points.iter().enumerate();
            let found = found.filter_map(|(x, p)| Some((x as f64 + offset, p.as_ref()?)));
            let found: Vec<(f64, &Vec<f64>)> = found.collect();
            let means = found.iter().map(|(x, ratios)| (*x, geomean(ratios)));
            let means: Vec<(f64, f64)> = means.collect();
            for (x, ratios) in &found {
                let min = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                let max = ratios.iter().copied().fold(0.0, f64::max);
                let bar =
                    PathElement::new([(*x, min), (*x, max)], colour.mix(0.45).stroke_width(3));
                chart.draw_series([bar])?;
            }
            chart.draw_series(LineSeries::new(means.iter().copied(), colour.stroke_width(2)))?;
            chart.draw_series(means.iter().map(|&at| Circle::new(at, 4, colour.filled())))?;
            if let Some(&(x, mean)) = means.last() {
                let even = lines.break_even(points).map(|x| format!(", break-even {x:.2}"));
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
            // `backend_coord` counts from the top of the picture, `draw_text` from the top of the area.
            area.draw_text(&label, &style, (x + 14, y - area.get_base_pixel().1))?;
        }
        area.present()?;
    }
    Ok(with_dark_mode(&text))
}

/// A picture, its file, and its alternative text for screen readers.
pub struct Picture {
    pub file: &'static str,
    pub alt: String,
    pub svg: String,
}

/// Alternative text: the question, and the first and last point of each line.
fn alt(question: &Question, lines: &Lines) -> String {
    let mut text =
        format!("{} Time of {} over time of einsparse:", question.title, question.baseline);
    for (number, (name, points)) in lines.lines.iter().enumerate() {
        let placed = lines.along.iter().zip(points);
        let mut placed = placed.filter_map(|(x, ratios)| Some((x, geomean(ratios.as_ref()?))));
        let first = placed.next();
        let ends = first.into_iter().chain(placed.next_back());
        let ends: Vec<String> = ends.map(|(x, mean)| format!("{mean:.2} at {x}")).collect();
        let separator = if number > 0 { ";" } else { "" };
        let _ = write!(text, "{separator} {name} {}", ends.join(" to "));
    }
    text + "."
}

/// Pictures of the questions that the comparisons answer.
pub fn pictures(comparisons: &[Comparison]) -> Result<Vec<Picture>> {
    let mut all = Vec::new();
    let gpu = comparisons.first().map_or("", |c| c.ours.gpu.as_str());
    for question in &QUESTIONS {
        let lines = Lines::of(question, comparisons);
        if lines.along.len() < 2 {
            continue;
        }
        all.push(Picture {
            file: question.file,
            alt: alt(question, &lines),
            svg: svg(question, &lines, gpu).map_err(|e| format!("{}: {e}", question.file))?,
        });
    }
    Ok(all)
}

/// Writes the pictures into a directory.
pub fn write(folder: &Path, pictures: &[Picture]) -> Result<()> {
    for picture in pictures {
        let path = folder.join(picture.file);
        std::fs::write(&path, &picture.svg).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
