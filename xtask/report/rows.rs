//! `cargo xtask report --rows RECORD...`: lists the rows of the table that no case needs, from records of `--rows`.
//!
//! On each case one of two times decides: the cold time, or the warm time if the fastest cold time is below 10 us. A
//! case needs a row if every other row is more than 3 % slower by the deciding time, and slower by the other time too.
//! Rows are removed one by one, the least needed first, as long as no case becomes slower by more than 3 %. The f16 and
//! bf16 rows of one tile are removed together. Each case counts a second time with the rows that run on every GPU: the
//! others do not replace them there.
//!
//! `cases.csv` names the case that needs each row most, or an operation of the record that launches it if no case timed
//! it. A test fails for a row without either.

use super::Result;
use einsparse_kernels::table::kernels;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Max relative slow-down by the best other row.
const MARGIN: f64 = 0.03;
/// Cold time in microseconds below which the warm times decide.
const LAUNCH_BOUND: f64 = 10.0;

#[derive(Debug, Deserialize)]
struct Line {
    operation: String,
    case: String,
    row: String,
    family: String,
    chosen: u8,
    cold_us: Option<f64>,
    warm_us: Option<f64>,
    outcome: String,
}

/// Rows of one tile; f16 and bf16 count as one.
#[derive(Default)]
struct Unit {
    rows: BTreeSet<String>,
    family: String,
    operation: String,
    /// Whether every supported GPU runs it.
    everywhere: bool,
    /// Cases in which it ran.
    cases: BTreeSet<String>,
    /// How often a plan or a rule selected it.
    taken: usize,
    /// Operations of the record that launch it.
    launched: BTreeSet<String>,
    wrong: usize,
}

/// One case: the deciding and the other time of each unit.
type Case = BTreeMap<String, [f64; 2]>;

/// Content of the records.
#[derive(Default)]
struct Found {
    units: BTreeMap<String, Unit>,
    cases: BTreeMap<String, Case>,
    /// Cases in which the plan was slower than the best unit: the relative loss, the case and the unit. Sorted by the
    /// loss.
    losses: Vec<(f64, String, String)>,
}

/// Line of `cases.csv`.
#[derive(Serialize)]
struct Needed<'f> {
    row: &'f str,
    case: String,
    /// How much slower the case is without the row, percent; empty if no other row can run it.
    slower: String,
}

/// Reads records, writes the report and `cases.csv` next to the first one, and returns the report.
///
/// # Errors
/// A readable line if a record cannot be read or the report cannot be written.
pub fn report(records: &[PathBuf]) -> Result<String> {
    let mut lines = Vec::new();
    for record in records {
        lines.extend(read(record)?);
    }
    // Rows that the table no longer contains cannot replace others.
    let known: BTreeSet<&str> = kernels().iter().map(|row| row.name).collect();
    lines.retain(|line| line.row.is_empty() || known.contains(&*line.row));
    let found = Found::new(&lines);
    let text = written(&found).map_err(|e| e.to_string())?;
    let page = records[0].with_extension("md");
    std::fs::write(&page, &text).map_err(|e| format!("{}: {e}", page.display()))?;
    let cases = records[0].with_file_name("cases.csv");
    found.write_cases(&cases).map_err(|e| format!("{}: {e}", cases.display()))?;
    Ok(text)
}

fn read(record: &Path) -> Result<Vec<Line>> {
    let fail = |e: csv::Error| format!("{}: {e}", record.display());
    let mut reader = csv::Reader::from_path(record).map_err(fail)?;
    let lines = reader.deserialize().collect::<std::result::Result<_, _>>();
    lines.map_err(fail)
}

fn unit_of(row: &str) -> String {
    row.replace("bf16", "f16")
}

impl Found {
    fn new(lines: &[Line]) -> Self {
        let mut found = Found::default();
        let mut timed: BTreeMap<(&str, &str), Vec<&Line>> = BTreeMap::new();
        let demanding = kernels().iter().filter(|row| row.needs != 0);
        let demanding: BTreeSet<&str> = demanding.map(|row| row.name).collect();
        // Chains of plans and refused cases have no row.
        for line in lines.iter().filter(|line| !line.family.is_empty()) {
            let unit = found.units.entry(unit_of(&line.row)).or_default();
            unit.rows.insert(line.row.clone());
            unit.everywhere = !demanding.contains(&*line.row);
            unit.family.clone_from(&line.family);
            let chosen = usize::from(line.chosen);
            match line.operation.as_str() {
                "table" => unit.operation.clone_from(&line.outcome),
                own if line.outcome == "launched" => {
                    unit.launched.insert(own.into());
                }
                own => {
                    unit.taken += chosen;
                    unit.wrong += usize::from(line.outcome.starts_with("WRONG"));
                    if line.cold_us.is_some() && !line.outcome.starts_with("WRONG") {
                        unit.cases.insert(format!("{own}: {}", line.case));
                        timed.entry((own, &line.case)).or_default().push(line);
                    }
                }
            }
        }
        for ((operation, case), lines) in timed {
            found.case(format!("{operation}: {case}"), &lines);
        }
        found.losses.sort_by(|a, b| b.0.total_cmp(&a.0));
        found
    }

    fn case(&mut self, name: String, lines: &[&Line]) {
        let colds = lines.iter().filter_map(|line| line.cold_us);
        let launch_bound = colds.fold(f64::INFINITY, f64::min) < LAUNCH_BOUND;
        let mut case = Case::new();
        let mut taken = f64::INFINITY;
        for line in lines {
            let (Some(cold), Some(warm)) = (line.cold_us, line.warm_us) else {
                continue;
            };
            let figures = match launch_bound {
                true => [warm, cold],
                false => [cold, warm],
            };
            if line.chosen == 1 {
                taken = taken.min(figures[0]);
            }
            // Several records of a case: the min of each time counts.
            let own = case.entry(unit_of(&line.row)).or_insert(figures);
            *own = [own[0].min(figures[0]), own[1].min(figures[1])];
        }
        let best = case.iter().min_by(|a, b| a.1[0].total_cmp(&b.1[0]));
        if let Some((best, figures)) = best.filter(|_| taken.is_finite()) {
            let loss = taken / figures[0] - 1.0;
            self.losses.push((loss, name.clone(), best.clone()));
        }
        let older: Case = case
            .iter()
            .filter(|(unit, _)| self.units[*unit].everywhere)
            .map(|(unit, figures)| (unit.clone(), *figures))
            .collect();
        if older.len() < case.len() {
            let name = format!("{name} (before 9.0)");
            for unit in older.keys() {
                self.units.get_mut(unit).expect("a unit of the case").cases.insert(name.clone());
            }
            self.cases.insert(name, older);
        }
        self.cases.insert(name, case);
    }

    /// Max slow-down over the cases of `unit`, if the best of the other units in `stay` replaces it, and the case of
    /// this max. Infinite if a case has no other unit.
    fn margin(&self, unit: &str, stay: &BTreeSet<&str>) -> (f64, &str) {
        let mut most = (f64::NEG_INFINITY, "");
        for name in self.units.get(unit).into_iter().flat_map(|unit| &unit.cases) {
            let case = &self.cases[name];
            let Some(own) = case.get(unit) else { continue };
            let others =
                case.iter().filter(|(other, _)| *other != unit && stay.contains(other.as_str()));
            let best = others.min_by(|a, b| a.1[0].total_cmp(&b.1[0]));
            let margin = match best {
                None => f64::INFINITY,
                Some((_, other)) => {
                    let [decides, also] = [0, 1].map(|i| other[i] / own[i] - 1.0);
                    // A difference in one of the two times is noise.
                    if also > 0.0 { decides } else { decides.min(0.0) }
                }
            };
            if margin > most.0 {
                most = (margin, name);
            }
        }
        most
    }

    /// Writes the case that needs each row most.
    fn write_cases(&self, file: &Path) -> csv::Result<()> {
        let mut stay: BTreeSet<&str> = self.units.keys().map(String::as_str).collect();
        self.go(&mut stay, |_| true);
        let mut writer = csv::Writer::from_path(file)?;
        for (name, unit) in self.units.iter().filter(|(name, _)| stay.contains(name.as_str())) {
            let (margin, case) = self.margin(name, &stay);
            let launched = unit.launched.first().map_or("", String::as_str);
            let timed = !case.is_empty();
            for row in &unit.rows {
                writer.serialize(Needed {
                    row,
                    case: if timed { case } else { launched }.to_owned(),
                    slower: match timed && margin.is_finite() {
                        true => format!("{:.1}", margin * 100.0),
                        false => String::new(),
                    },
                })?;
            }
        }
        Ok(writer.flush()?)
    }

    /// Removes units for which `may` returns true from `stay`, the least needed first. Returns each removed unit with
    /// its margin at its removal.
    fn go<'f>(
        &'f self,
        stay: &mut BTreeSet<&'f str>,
        may: impl Fn(&Unit) -> bool,
    ) -> Vec<(&'f str, f64, &'f str)> {
        let mut gone = Vec::new();
        let candidates = self.units.iter();
        let mut candidates: BTreeSet<&str> = candidates
            .filter(|(_, unit)| !unit.cases.is_empty() && may(unit))
            .map(|(name, _)| name.as_str())
            .collect();
        loop {
            let margins = candidates.iter().map(|name| (*name, self.margin(name, stay)));
            let least = margins.min_by(|a, b| a.1.0.total_cmp(&b.1.0));
            let Some((name, (margin, case))) = least.filter(|(_, (m, _))| *m <= MARGIN) else {
                return gone;
            };
            candidates.remove(name);
            stay.remove(name);
            gone.push((name, margin, case));
        }
    }
}

fn written(found: &Found) -> std::result::Result<String, std::fmt::Error> {
    let mut text = String::new();
    let rows: usize = found.units.values().map(|unit| unit.rows.len()).sum();
    writeln!(text, "{rows} rows of {} tiles, {} cases.\n", found.units.len(), found.cases.len())?;
    let all: BTreeSet<&str> = found.units.keys().map(String::as_str).collect();
    let mut stay = all.clone();
    let unwanted = found.go(&mut stay, |unit| unit.taken == 0);
    let taken = found.go(&mut stay, |_| true);
    list(&mut text, found, ("No plan takes them, no case wants them", &unwanted))?;
    list(&mut text, found, ("Plans take them, but no case wants them by 3 %", &taken))?;
    unrecorded(&mut text, found)?;
    by_family(&mut text, found, [&unwanted, &taken])?;
    writeln!(text, "\n## Rows\n\n| row | family | cases | taken | margin | where |")?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for (name, unit) in found.units.iter().filter(|(_, unit)| !unit.cases.is_empty()) {
        let (margin, case) = found.margin(name, &all);
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {case} |",
            unit.family,
            unit.cases.len(),
            unit.taken,
            percent(margin)
        )?;
    }
    writeln!(text, "\n## Where plans lose most\n")?;
    for (loss, case, best) in found.losses.iter().take(60) {
        writeln!(text, "- {} on {case}: {best}", percent(*loss))?;
    }
    let wrong = found.units.iter().filter(|(_, unit)| unit.wrong > 0);
    for (name, unit) in wrong {
        writeln!(text, "\nWRONG {} times: {name}", unit.wrong)?;
    }
    Ok(text)
}

fn percent(margin: f64) -> String {
    match margin.is_infinite() {
        true if margin > 0.0 => "alone".into(),
        true => "-".into(),
        false => format!("{:.1} %", margin * 100.0),
    }
}

type Gone<'f> = Vec<(&'f str, f64, &'f str)>;

fn list(text: &mut String, found: &Found, (title, gone): (&str, &Gone<'_>)) -> std::fmt::Result {
    let rows: usize = gone.iter().map(|(name, ..)| found.units[*name].rows.len()).sum();
    writeln!(text, "## {title}: {rows} rows\n")?;
    let mut families: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, margin, _) in gone {
        let unit = &found.units[*name];
        let own = families.entry(&unit.family).or_default();
        let rows: Vec<&str> = unit.rows.iter().map(String::as_str).collect();
        own.push(format!("{} ({})", rows.join(", "), percent(*margin)));
    }
    for (family, rows) in families {
        writeln!(text, "- **{family}**: {}", rows.join("; "))?;
    }
    writeln!(text)
}

/// Writes the rows that no case timed.
fn unrecorded(text: &mut String, found: &Found) -> std::fmt::Result {
    let own = found.units.values().filter(|unit| unit.cases.is_empty());
    let mut families: BTreeMap<(&str, &str), Vec<&Unit>> = BTreeMap::new();
    for unit in own {
        let key = (unit.family.as_str(), unit.operation.as_str());
        families.entry(key).or_default().push(unit);
    }
    writeln!(text, "## No case timed them\n")?;
    for ((family, operation), units) in families {
        let rows = units.iter().flat_map(|unit| {
            let by_rule = unit.taken > 0;
            let launched = unit.launched.first().map(|op| format!(" ({op})"));
            let mark = launched.unwrap_or(if by_rule { " (taken)".into() } else { String::new() });
            unit.rows.iter().map(move |row| format!("{row}{mark}"))
        });
        let rows: Vec<String> = rows.collect();
        writeln!(text, "- **{family}** ({operation}): {}", rows.join(", "))?;
    }
    writeln!(text)
}

fn by_family(text: &mut String, found: &Found, gone: [&Gone<'_>; 2]) -> std::fmt::Result {
    writeln!(text, "## Families\n\n| family | rows | timed | taken | go | could go |")?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    let mut families: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    for (name, unit) in &found.units {
        let count = unit.rows.len();
        let is_gone = |i: usize| gone[i].iter().any(|(gone, ..)| gone == name);
        let counts = [true, !unit.cases.is_empty(), unit.taken > 0, is_gone(0), is_gone(1)];
        let own = families.entry(&unit.family).or_default();
        for (sum, own) in own.iter_mut().zip(counts) {
            *sum += if own { count } else { 0 };
        }
    }
    for (family, [rows, timed, taken, go, could]) in families {
        writeln!(text, "| {family} | {rows} | {timed} | {taken} | {go} | {could} |")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(case: &str, row: &str, chosen: u8, figures: [f64; 2]) -> Line {
        Line {
            operation: "spmm".into(),
            case: case.into(),
            row: row.into(),
            family: "spmm".into(),
            chosen,
            cold_us: Some(figures[0]),
            warm_us: Some(figures[1]),
            outcome: "ok".into(),
        }
    }

    fn names<'f>(gone: &[(&'f str, f64, &'f str)]) -> Vec<&'f str> {
        gone.iter().map(|(name, ..)| *name).collect()
    }

    #[test]
    fn of_two_alike_one_stays() {
        let lines = [
            line("a", "taken", 1, [200.0, 190.0]),
            line("a", "one_f16", 0, [100.0, 90.0]),
            line("a", "other", 0, [101.0, 91.0]),
            // The bf16 row counts as the f16 row of case a.
            line("b", "one_bf16", 0, [300.0, 300.0]),
            line("b", "taken", 1, [310.0, 310.0]),
        ];
        let found = Found::new(&lines);
        let mut stay = found.units.keys().map(String::as_str).collect();
        let gone = found.go(&mut stay, |unit| unit.taken == 0);
        assert_eq!(names(&gone), ["other"]);
        assert_eq!(found.losses[0].0, 1.0);
    }

    #[test]
    fn launches_are_compared_warm_and_noise_is_no_wish() {
        let small = [line("a", "one", 1, [9.0, 5.0]), line("a", "other", 0, [12.0, 4.0])];
        let found = Found::new(&small);
        let all: BTreeSet<&str> = found.units.keys().map(String::as_str).collect();
        // `other` is slower cold, so its faster warm time does not count.
        assert_eq!(found.margin("other", &all).0, 0.0);
        assert!(found.margin("one", &all).0 < 0.0);
        let alone = [line("a", "one", 0, [50.0, 50.0])];
        let found = Found::new(&alone);
        let mut stay = found.units.keys().map(String::as_str).collect();
        assert_eq!(names(&found.go(&mut stay, |_| true)), [""; 0]);
    }
}
