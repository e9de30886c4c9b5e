//! `einsparse inspect --storage`: prints the arrays that a format stores for a small matrix.

use einsparse::formats::stats::Slots;
use einsparse::formats::{AnySparse, AsSparse, Csr, Format, PAD, Role};
use einsparse::registry::block_of;

use super::Result;

/// Maximum number of rows and of columns. A tensor of another order has at most `SIDE`^2 elements.
const SIDE: usize = 32;
/// Maximum number of index slots and of value slots.
const SLOTS: usize = 8192;
/// Numbers per line.
const LINE: usize = 16;

/// Rejects tensors that are too large to print, before conversion.
pub fn check(shape: &[usize]) -> Result<()> {
    let places = shape.iter().fold(1, |n: usize, &e| n.saturating_mul(e));
    let fits = match shape {
        [rows, columns] => (*rows).max(*columns) <= SIDE,
        _ => places <= SIDE * SIDE,
    };
    if fits {
        return Ok(());
    }
    let extents = shape.iter().map(ToString::to_string);
    Err(format!(
        "--storage draws a matrix of up to {SIDE} x {SIDE}, or a tensor of up to {} places: this is {}",
        SIDE * SIDE,
        extents.collect::<Vec<_>>().join(" x ")
    )
    .into())
}

/// Rejects arrays that are too long to print, before they are created.
pub fn check_slots(slots: &Slots) -> Result<()> {
    if slots.index.max(slots.values) <= SLOTS as u128 {
        return Ok(());
    }
    Err(format!(
        "--storage lists arrays of up to {SLOTS} numbers: {} has {} indices and {} values here",
        slots.format, slots.index, slots.values
    )
    .into())
}

/// Prints the matrix, then every array of its format.
pub fn print(sparse: &AnySparse<f64>) -> Result<()> {
    let pattern = sparse.as_sparse().pattern();
    let (format, arrays) = (pattern.format(), pattern.arrays());
    let words: usize = arrays.iter().map(|array| array.data.len()).sum();
    if words.max(pattern.slots()) > SLOTS {
        return Err(format!(
            "--storage lists arrays of up to {SLOTS} numbers: {format} has {words} indices and {} values here",
            pattern.slots()
        )
        .into());
    }
    let extents: Vec<String> = pattern.shape().iter().map(ToString::to_string).collect();
    say!(
        "A   {format}, {}, {} entries, {} slots",
        extents.join(" x "),
        super::run::entries(sparse),
        pattern.slots()
    );
    if pattern.shape().len() == 2 {
        grid(&sparse.to_csr()?);
    }
    for array in &arrays {
        let (name, what) = named(array.role, format, pattern.shape().len());
        let packed = matches!(array.role, Role::Bits | Role::Positions { .. });
        let number = |&index: &u32| match index {
            0 => "0".to_owned(),
            _ if packed => format!("{index:08x}"),
            PAD => "-".to_owned(),
            _ => index.to_string(),
        };
        let numbers: Vec<String> = array.data.iter().map(number).collect();
        let line = if packed { LINE / 2 } else { LINE };
        list(name, &what, &array.shape, (&numbers, line));
    }
    unpacked(sparse);
    let values: Vec<String> = sparse.values().iter().map(|x| short(*x)).collect();
    list("AV", "values", &pattern.value_shape(), (&values, LINE));
    Ok(())
}

/// Prints the matrix, with a dot for each position without a nonzero.
fn grid(csr: &Csr<f64>) {
    let &[rows, columns] = csr.shape() else {
        return;
    };
    let (offsets, at) = (csr.pattern().offsets(), csr.pattern().columns());
    let shown: Vec<String> = csr.values().iter().map(|x| short(*x)).collect();
    let width = shown.iter().map(String::len).max().unwrap_or(1);
    for row in 0..rows {
        let mut line: Vec<String> = (0..columns).map(|_| ".".to_owned()).collect();
        for entry in offsets[row] as usize..offsets[row + 1] as usize {
            line[at[entry] as usize].clone_from(&shown[entry]);
        }
        let line: Vec<String> = line.iter().map(|x| format!("{x:>width$}")).collect();
        say!("      {}", line.join(" "));
    }
}

/// Prints a number exactly if its text is short. Otherwise prints four digits; trailing zeros show the rounding.
fn short(x: f64) -> String {
    const LONGEST: usize = 8;
    let exact = [format!("{x}"), format!("{x:e}")];
    if let Some(exact) = exact.into_iter().find(|text| text.len() <= LONGEST) {
        return exact;
    }
    let size = x.abs();
    if !(1e-3..1e4).contains(&size) {
        return format!("{x:.3e}");
    }
    // Round first: 0.99999 becomes 1.000, with one digit before the decimal point.
    let rounded: f64 = format!("{size:.3e}").parse().unwrap_or(size);
    let digits = 3 - rounded.log10().floor() as i32;
    format!("{x:.*}", digits.max(0) as usize)
}

/// Name of an array in the guide, and its contents.
fn named(role: Role, format: Format, order: usize) -> (&'static str, String) {
    let block = if block_of(&format) == (1, 1) { "" } else { "block " };
    let axis = |axis: usize| match (order, axis) {
        (2, 0) => "rows".to_owned(),
        (2, 1) => "columns".to_owned(),
        _ => format!("axis {axis}"),
    };
    let one = |at: usize| axis(at).trim_end_matches('s').to_owned();
    match role {
        Role::Coordinate { axis: at } if order != 2 => ("", axis(at)),
        Role::Coordinate { axis: 0 } => ("AM", format!("{block}{}", axis(0))),
        Role::Coordinate { axis: at } => ("AK", format!("{block}{}", axis(at))),
        Role::Offsets { axis: at } if format == Format::SlicedEll => {
            ("AP", format!("first chunk of each slice of {}", axis(at)))
        }
        Role::Offsets { axis: at } => ("AP", format!("{block}{} offsets", one(at))),
        Role::Bits if format == Format::Bytemap => {
            ("", "counts of the banks, places: a byte each".into())
        }
        Role::Bits => ("", "a bit for each place of a tile, then middles".into()),
        Role::Starts => ("", "where the values of each tile start".into()),
        Role::Order { axis: at } => ("AM", format!("{} of each slice, in order", axis(at))),
        Role::Windows { .. } => ("", "windows: first tile and end of each chunk".into()),
        Role::Positions { .. } if format == Format::SlicedEll => {
            ("AK", "columns in the window, 16 bits each".into())
        }
        Role::Positions { .. } => ("AK", "positions in groups, 2 bits each".into()),
    }
}

/// Prints the contents of packed arrays.
fn unpacked(sparse: &AnySparse<f64>) {
    let coordinates = match sparse {
        AnySparse::Bitmap(a) => a.pattern().coordinates(),
        AnySparse::Bytemap(a) => a.pattern().coordinates(),
        AnySparse::SlicedEll(a) => a.pattern().unpacked(),
        AnySparse::Nm(a) => {
            let shape = [a.shape()[0], a.pattern().groups(), 2];
            let places = a.pattern().unpacked();
            let places: Vec<String> = places.iter().map(ToString::to_string).collect();
            return list("", "unpacked: positions", &shape, (&places, LINE));
        }
        AnySparse::HybridGroupCoo(a) => {
            let classes = a.pattern().classes().iter();
            let classes: Vec<String> =
                classes.map(|class| format!("{} x {}", class.groups, class.group)).collect();
            say!("    classes of groups, groups x slots: {}", classes.join(", "));
            let starts = a.pattern().group_starts();
            let starts: Vec<String> = starts.iter().map(ToString::to_string).collect();
            return list("AG", "group offsets, not stored", &[starts.len()], (&starts, LINE));
        }
        _ => return,
    };
    for (what, indices) in ["unpacked: rows", "unpacked: columns"].into_iter().zip(coordinates) {
        let number = |&index: &u32| match index {
            PAD => "-".to_owned(),
            _ => index.to_string(),
        };
        let numbers: Vec<String> = indices.iter().map(number).collect();
        list("", what, &[numbers.len()], (&numbers, LINE));
    }
}

/// Prints an array with its extents: one line per run of its last axis, after the indices of the other axes. Repeated
/// lines are counted.
fn list(name: &str, what: &str, shape: &[usize], (numbers, line): (&[String], usize)) {
    say!("{name:3} {what} {shape:?}");
    let width = numbers.iter().map(String::len).max().unwrap_or(1);
    let last = shape.last().copied().unwrap_or(1).max(1);
    let mut lines: Vec<(String, String)> = Vec::new();
    for (run, all) in numbers.chunks(last).enumerate() {
        let mut outer = Vec::new();
        let mut rest = run;
        for extent in shape.iter().rev().skip(1) {
            outer.insert(0, (rest % extent).to_string());
            rest /= extent;
        }
        for (part, numbers) in all.chunks(line).enumerate() {
            let mut place = outer.clone();
            if last > line {
                place.push((part * line).to_string());
            }
            let numbers: Vec<String> = numbers.iter().map(|n| format!("{n:>width$}")).collect();
            lines.push((place.join(","), numbers.join(" ")));
        }
    }
    let margin = lines.iter().map(|line| line.0.len()).max().unwrap_or(0);
    for same in lines.chunk_by(|a, b| a.1 == b.1) {
        // Two equal lines are printed: a note would not be shorter.
        let (shown, more) = same.split_at(if same.len() > 2 { 1 } else { same.len() });
        for (place, numbers) in shown {
            let gap = if margin > 0 { "  " } else { "" };
            say!("      {place:margin$}{gap}{numbers}");
        }
        if let [.., (place, _)] = more {
            say!("      ... the same to {place}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tensors_are_refused_with_the_limit() {
        assert!(check(&[32, 32]).is_ok() && check(&[3, 3, 5]).is_ok());
        for shape in [&[33, 1][..], &[1, 33], &[usize::MAX, 2, 2]] {
            let error = check(shape).expect_err("too large").to_string();
            assert!(error.contains("32 x 32") && error.contains("33") || shape.len() > 2);
        }
    }

    #[test]
    fn numbers_are_short() {
        let texts = [1.0, -0.5, 0.12345, -0.0001, 1e-7, 1e300, -0.0, f64::NAN].map(short);
        let wanted = ["1", "-0.5", "0.12345", "-0.0001", "1e-7", "1e300", "-0", "NaN"];
        assert_eq!(texts, wanted);
        let rounded = [0.1_f32.into(), 0.999_999_99, 1_234.567_89, 1.234_567_8e-9].map(short);
        assert_eq!(rounded, ["0.1000", "1.000", "1235", "1.235e-9"]);
    }
}
