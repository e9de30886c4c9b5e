//! Compares pages with their sources: docs/levels.md with the code and the record that it quotes, and the figures of
//! docs/building.md, docs/checks.md and the minutes of the README with their records.

use crate::support::skipped;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE: &str = "docs/levels.md";

const BUILDING: &str = "docs/building.md";

/// Contents of a file of the project; `None` in a bundle, which has no sources.
fn file(path: &str) -> Option<String> {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        skipped("no sources in a bundle", path);
        return None;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path);
    Some(text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Fenced blocks that name a file after the language: the file and the lines.
fn quotations(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(path) = line.strip_prefix("```rust ") {
            let block = lines.by_ref().take_while(|line| *line != "```");
            found.push((path, block.collect()));
        }
    }
    found
}

/// Whether the lines occur consecutively in the source, all of them indented further by an equal amount.
fn holds(source: &str, block: &[&str]) -> bool {
    let source: Vec<&str> = source.lines().collect();
    source.windows(block.len().max(1)).any(|window| {
        let indent = window[0].len() - window[0].trim_start().len();
        window.iter().zip(block).all(|(line, quoted)| {
            let (margin, rest) = line.split_at(indent.min(line.len()));
            margin.trim().is_empty() && rest == *quoted
        })
    })
}

#[test]
fn quoted_code_is_in_the_sources() {
    let Some(page) = file(PAGE) else { return };
    let quotations = quotations(&page);
    assert!(quotations.len() >= 7, "a level without its code");
    for (path, block) in quotations {
        let source = file(path).unwrap();
        assert!(
            holds(&source, &block),
            "{PAGE} quotes what {path} does not hold:\n{}",
            block.join("\n")
        );
    }
}

#[test]
fn quoted_figures_are_in_the_record() {
    let Some(page) = file(PAGE) else { return };
    let start = page.find("benches/record/").expect("no record is named");
    let end = start + page[start..].find(')').unwrap();
    let record = file(&page[start..end]).unwrap();
    let mut reader = csv::Reader::from_reader(record.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let (op, k, variant, ms) = (column("op"), column("k"), column("variant"), column("ms"));
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    let rows = rows.iter().filter(|row| &row[op] == "levels" && &row[k] == "4096");
    let figures: Vec<(&str, f64)> =
        rows.map(|row| (&row[variant], row[ms].parse().unwrap())).collect();
    let best = figures.iter().find(|(name, _)| *name == "dense").unwrap().1;
    for (name, ms) in &figures {
        let name = if *name == "dense" { "cuBLAS" } else { name };
        let rate = 2.0 * 4096f64.powi(3) / ms / 1e9;
        let wanted = format!("| {name} | {rate:.1} | {:.1} % |", best / ms * 100.0);
        assert!(page.contains(&wanted), "{PAGE} has no `{wanted}`");
    }
}

/// Figures in the tables of the page and minutes of the README that differ from the record or are missing in it.
fn differences(page: &str, readme: &str, record: &str) -> Vec<String> {
    let units = ["s", "ms", "MB"];
    let of_figure = |line: &&str| {
        let figure = line.trim_end_matches(" |").rsplit(' ').next();
        line.starts_with("| ") && figure.is_some_and(|unit| units.contains(&unit))
    };
    let page = page.replace('`', "");
    let mut lines: Vec<&str> = page.lines().filter(of_figure).collect();
    let mut wrong = Vec::new();
    for row in csv::Reader::from_reader(record.as_bytes()).into_records() {
        let row = row.unwrap();
        let (what, value, unit, machine, command) = (&row[0], &row[1], &row[2], &row[3], &row[5]);
        let figure: f64 = value.parse().unwrap_or_else(|_| panic!("{what}: {value}"));
        let start = match command {
            "cargo package" => format!("| {what} |"),
            _ => format!("| {what} | {command} | {machine} |"),
        };
        let end = format!("| {value} {unit} |");
        let same = |line: &&str| line.starts_with(&start) && line.ends_with(&end);
        match lines.iter().position(same) {
            Some(place) => {
                lines.remove(place);
            }
            None => wrong.push(format!("{start} .. {end}")),
        }
        let minutes = format!("{command}    # {:.1} minutes", figure / 60.0);
        if ["cargo xtask demo", "cargo xtask test"].contains(&command) && !readme.contains(&minutes)
        {
            wrong.push(format!("README: {minutes}"));
        }
    }
    wrong.extend(lines.into_iter().map(str::to_owned));
    wrong
}

#[test]
fn times_and_sizes_of_building_are_in_the_record() {
    let Some(page) = file(BUILDING) else { return };
    let start = page.find("benches/record/").expect("no record is named");
    let end = start + page[start..].find(')').unwrap();
    let record = file(&page[start..end]).unwrap();
    let wrong = differences(&page, &file("README.md").unwrap(), &record);
    assert!(wrong.is_empty(), "not as recorded:\n{}", wrong.join("\n"));
}

/// The totals over the modules that libNVVM compiled are those that docs/building.md states.
#[test]
fn registers_by_libnvvm_are_those_of_the_record() {
    let Some(page) = file(BUILDING) else { return };
    let record = file("benches/record/building/nvvm.csv").unwrap();
    let rows = csv::Reader::from_reader(record.as_bytes()).into_records();
    let rows: Vec<csv::StringRecord> = rows.map(Result::unwrap).collect();
    let sum = |column: usize| rows.iter().map(|row| row[column].parse::<usize>().unwrap()).sum();
    let [kernels, equal, fewer, more, spills]: [usize; 5] = [2, 3, 4, 5, 6].map(sum);
    assert_eq!(equal + fewer + more, kernels);
    let page: String = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for figure in [
        format!("all {} modules with {kernels} kernels", rows.len()),
        format!("{equal} kernels use as many registers"),
        format!("{fewer} fewer and {more} more"),
        format!("{spills} kernels spill"),
    ] {
        assert!(page.contains(&figure), "{BUILDING} has no `{figure}`");
    }
}

/// docs/building.md states how many GPU tests passed with the kernels of libNVVM.
#[test]
fn tests_of_libnvvm_are_those_of_the_record() {
    let Some(page) = file(BUILDING) else { return };
    let record = file("benches/record/building/nvvm-tests.csv").unwrap();
    let outcomes: Vec<&str> =
        record.lines().skip(1).map(|line| line.split_once(',').unwrap().1).collect();
    let passed = outcomes.iter().filter(|outcome| **outcome == "passed").count();
    let figure = format!("{passed} of {} GPU tests passed", outcomes.len());
    assert!(page.contains(&figure), "{BUILDING} has no `{figure}`");
}

/// The times of libNVVM's kernels in docs/building.md are those of the record, for each kind of kernel with 8 cases or
/// more.
#[test]
fn times_by_libnvvm_are_those_of_the_record() {
    let Some(page) = file(BUILDING) else { return };
    let record = file("benches/record/building/nvvm-times.csv").unwrap();
    let mut kinds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in csv::Reader::from_reader(record.as_bytes()).into_records().map(Result::unwrap) {
        let time = |column: usize| row[column].parse::<f64>().unwrap();
        let kernel = row[5].split('_').next().unwrap();
        let kind = match &row[1] {
            "spmm" => format!("`{kernel}` in `spmm`"),
            operation => format!("`{operation}`"),
        };
        kinds.entry(kind).or_default().push(time(6) / time(7));
    }
    kinds.retain(|_, ratios| ratios.len() >= 8);
    assert!(kinds.len() > 5);
    for (kind, ratios) in kinds {
        let mean = (ratios.iter().map(|x| x.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let line = format!("| {kind} | {} | {mean:.3} | {low:.3} | {high:.3} |", ratios.len());
        assert!(page.contains(&line), "{BUILDING} has no `{line}`");
    }
}

/// The lines of docs/checks.md are exactly those of its record.
#[test]
fn what_was_checked_is_in_the_record() {
    let Some(page) = file("docs/checks.md") else {
        return;
    };
    let start = page.find("benches/record/").expect("no record is named");
    let end = start + page[start..].find(')').unwrap();
    let record = file(&page[start..end]).unwrap();
    let line = |row: csv::StringRecord| format!("| {} | `{}` | {} |", &row[0], &row[3], &row[1]);
    let wanted = csv::Reader::from_reader(record.as_bytes()).into_records();
    let wanted: Vec<String> = wanted.map(|row| line(row.unwrap())).collect();
    let (_, table) = page.split_once("|---|---|---|\n").unwrap();
    let found: Vec<&str> = table.lines().take_while(|l| l.starts_with("| ")).collect();
    assert_eq!(found, wanted);
}

/// The statements of docs/checks.md about compute-sanitizer match the recorded list of runs.
#[test]
fn sanitizers_are_counted_in_the_record() {
    let Some(page) = file("docs/checks.md") else {
        return;
    };
    let (_, named) = page.split_once("[each test](../").unwrap();
    let (path, _) = named.split_once(')').unwrap();
    let record = file(path).unwrap();
    let rows: Vec<Vec<&str>> = record.lines().map(|l| l.split(',').collect()).collect();
    let tests: BTreeSet<&str> = rows.iter().skip(1).map(|row| row[1]).collect();
    for tool in ["memcheck", "synccheck", "initcheck", "racecheck"] {
        let own: Vec<&str> = rows.iter().filter(|r| r[0] == tool).map(|r| r[2]).collect();
        let clean = own.iter().filter(|outcome| **outcome == "clean").count();
        let ran = own.iter().filter(|outcome| **outcome != "no GPU").count();
        let line = page.lines().find(|line| line.starts_with(&format!("| {tool},")));
        let figure = format!("| {clean} of {ran} ");
        assert!(line.unwrap().contains(&figure), "{tool}: no `{figure}`");
        let left = tests.len() - own.len();
        let told = [" ", " tests "].map(|word| format!("{left}{word}under {tool}"));
        assert!(left == 0 || told.iter().any(|words| page.contains(words)), "{tool}: {left} left");
    }
}

#[test]
fn another_figure_is_found_out() {
    let record = "what,seconds_or_mb,unit,machine,commit,command\n\
        demo,216,s,\"2 cores, 24 GB\",0,cargo xtask demo\neinsparse,1.5,MB,\"2 cores, 24 GB\",0,cargo package\n";
    let page = "| demo | `cargo xtask demo` | 2 cores, 24 GB | 216 s |\n| `einsparse` | the library | 1.5 MB |\n";
    let readme = "cargo xtask demo    # 3.6 minutes: it";
    assert_eq!(differences(page, readme, record), [""; 0]);
    for (page, readme, faults) in [
        (page.replace("216", "200"), readme, 2),
        (page.replace("24 GB", "8 GB"), readme, 2),
        (page.replace("1.5 MB", "1 MB"), readme, 2),
        (page.to_owned() + "| more | `x` | here | 1 s |\n", readme, 1),
        (page.to_owned(), "cargo xtask demo    # 3 minutes", 1),
    ] {
        assert_eq!(differences(&page, readme, record).len(), faults, "{page}{readme}");
    }
}

#[test]
fn another_quotation_is_found_out() {
    let source = "fn f() {\n    one();\n\n    two();\n}\n";
    for (block, there) in [
        (vec!["one();", "", "two();"], true),
        (vec!["fn f() {", "    one();"], true),
        (vec!["one();", "two();"], false),
        (vec!["one();", "", "  two();"], false),
    ] {
        assert_eq!(holds(source, &block), there, "{block:?}");
    }
    let page = "text\n```rust a/b.rs\nlet x;\n```\n```sh\nls\n```\n";
    assert_eq!(quotations(page), [("a/b.rs", vec!["let x;"])]);
}

/// The table of whole models, line by line. A value that the record lacks is left empty.
#[test]
fn models_are_those_of_the_record() {
    const PAGE: &str = "docs/guide/models.md";
    let Some(page) = file(PAGE) else { return };
    let record = file("benches/record/h100/models.csv").unwrap();
    let mut reader = csv::Reader::from_reader(record.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let [workload, dtype, engine, ms] = ["workload", "dtype", "engine", "ms"].map(column);
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    let time = |row: &csv::StringRecord| row[ms].parse::<f64>().unwrap();
    let of = |name: &str| -> Vec<_> { rows.iter().filter(|row| &row[engine] == name).collect() };
    let (ours, twins, peers) = (of("einsparse"), of("twin"), of("torch"));
    let mut wanted: Vec<String> = Vec::new();
    for row in ours {
        let same = |i: usize, other: &&&csv::StringRecord| other[i] == row[i];
        let beside = |others: &[&csv::StringRecord]| {
            let mut others = others.iter();
            let found = others.find(|other| same(workload, other) && same(dtype, other));
            found.map(|other| time(other))
        };
        let twin = beside(&twins)
            .map_or("| |".into(), |twin| format!("{twin:.3} | {:.2} |", twin / time(row)));
        let torch = beside(&peers).map_or("|".into(), |torch| format!("{torch:.3} |"));
        let (name, dtype, own) = (&row[workload], &row[dtype], time(row));
        wanted.push(format!("| {name} | {dtype} | {own:.3} | {twin} {torch}"));
    }
    let (_, table) = page.split_once("|---|---|---|---|---|---|\n").expect("no table");
    let lines: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(lines, wanted, "{PAGE} against the record");
}

/// The fastest time of each case of a record, by operation and case.
fn fastest(path: &str) -> BTreeMap<(String, String), f64> {
    let record = file(path).unwrap();
    let mut reader = csv::Reader::from_reader(record.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let [op, engine, variant, ms] = ["op", "engine", "variant", "ms"].map(column);
    let case = ["workload", "m", "k", "n", "nnz", "dtype"].map(column);
    let mut times = BTreeMap::new();
    for row in reader.records().map(Result::unwrap) {
        let Ok(time) = row[ms].parse::<f64>() else { continue };
        if &row[engine] == "einsparse" && time > 0.0 {
            let mut case = case.map(|column| &row[column]).join(" ");
            // Gradients are cases of their own.
            if row[variant].ends_with("gradient") {
                case = format!("{case} {}", &row[variant]);
            }
            let least = times.entry((row[op].to_owned(), case)).or_insert(time);
            *least = time.min(*least);
        }
    }
    times
}

/// Speed of kernels without `wgmma` relative to Hopper's, for each operation.
#[test]
fn stand_ins_are_as_fast_as_the_record_says() {
    const PAGE: &str = "docs/kernels.md";
    let Some(page) = file(PAGE) else { return };
    let [own, others] =
        ["own", "sm_80"].map(|name| fastest(&format!("benches/record/stand_ins/{name}.csv")));
    let mut shares: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((op, case), time) in &own {
        if let Some(other) = others.get(&(op.clone(), case.clone())) {
            shares.entry(op).or_default().push(time / other);
        }
    }
    let wanted: Vec<String> = shares
        .into_iter()
        .map(|(op, shares)| {
            let mean = shares.iter().map(|share| share.ln()).sum::<f64>() / shares.len() as f64;
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            format!("| `{op}` | {} | {:.2} | {least:.2} |", shares.len(), mean.exp())
        })
        .collect();
    let (_, table) = page
        .split_once("| operation | cases | mean | least |\n|---|---|---|---|\n")
        .expect("no table");
    let lines: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(lines, wanted, "{PAGE} against the record:\n{}", wanted.join("\n"));
}

/// Times on two GPUs and of the same case on one GPU. The page marks cases that grow with the number of GPUs.
#[test]
fn ranks_are_those_of_the_record() {
    const PAGE: &str = "docs/guide/ranks.md";
    #[derive(serde::Deserialize)]
    struct Row {
        workload: String,
        m: usize,
        variant: String,
        ms: f64,
    }
    let Some(page) = file(PAGE) else { return };
    let record = file("benches/record/h100/ranks.csv").unwrap();
    let rows = csv::Reader::from_reader(record.as_bytes()).into_deserialize();
    let rows: Vec<Row> = rows.map(Result::unwrap).collect();
    let wanted = rows.iter().filter(|row| row.m > 0).filter_map(|row| {
        let name = row.variant.strip_suffix("+2")?;
        // Overlap exists only with several ranks.
        let names = [name, name.split('_').next()?].map(|name| format!("{name}+1"));
        let same = |one: &&Row| (&one.workload, one.m) == (&row.workload, row.m);
        let of = |alone: &String| rows.iter().filter(same).find(|one| one.variant == *alone);
        let one = names.iter().find_map(of)?;
        Some(format!(
            "| {} | {} | {name} | {:.2} | {:.2} | {:.2} |",
            row.workload,
            row.m,
            one.ms,
            row.ms,
            one.ms / row.ms
        ))
    });
    let sent = |name: &str| {
        let row = rows.iter().find(|row| row.workload == "exchange1MB" && row.variant == name);
        row.unwrap().ms * 1e3
    };
    let [direct, captured] = ["exchange+2", "exchange_graph+2"].map(sent);
    let told = format!("1 MB takes {direct:.0} us, in a graph {captured:.0} us.");
    assert!(page.contains(&told), "{PAGE}: no `{told}`");
    let (above, table) = page.split_once("|---|---|---|---|---|---|\n").expect("no table");
    assert!(above.contains("`force_field` is weak scaling"));
    let lines = table.lines().take_while(|line| line.starts_with('|'));
    assert_eq!(lines.collect::<Vec<_>>(), wanted.collect::<Vec<_>>(), "{PAGE} against the record");
}
