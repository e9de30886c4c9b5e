//! Files that are read in parts of rows: together, the parts equal the result of the readers of whole files, bit for
//! bit.

use einsparse_formats::io::*;
use einsparse_formats::{Csr, CsrPattern, Element, f16, generate};
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;
use zip::CompressionMethod;

mod files;

use files::{Numbers, members as archive, npy, scratch};

/// Cuts `rows` into `count` ranges, some of them possibly empty.
fn ranges(rows: usize, count: usize, numbers: &mut Numbers) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (1..count).map(|_| numbers.below(rows + 1)).collect();
    cuts.extend([0, rows]);
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

fn assert_same<T: Element>(part: &Csr<T>, whole: &Csr<T>, rows: Range<usize>) {
    let [p, all] = [part.pattern(), whole.pattern()];
    let ends = &all.offsets()[rows.start..=rows.end];
    let entries = ends[0] as usize..ends[rows.len()] as usize;
    let offsets: Vec<u32> = ends.iter().map(|end| end - ends[0]).collect();
    assert_eq!(part.shape(), [rows.len(), all.cols()]);
    assert_eq!(p.offsets(), offsets, "{rows:?}");
    assert_eq!(p.columns(), &all.columns()[entries.clone()]);
    let bits = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
    assert_eq!(bits(part.values()), bits(&whole.values()[entries]));
}

/// Reads all rows at once, and in 1 to 5 ranges.
fn check<T: Element>(path: &Path, numbers: &mut Numbers) {
    let whole = read_any::<T>(path).unwrap().to_csr().unwrap();
    let file = RowFile::open(path).unwrap();
    let rows = whole.shape()[0];
    assert_eq!(file.shape(), whole.shape());
    for (row, count) in file.row_counts().iter().enumerate() {
        assert!(*count as usize >= whole.pattern().row(row).len());
    }
    for count in 1..=5 {
        for range in ranges(rows, count, numbers) {
            assert_same(&file.read::<T>(range.clone()).unwrap(), &whole, range);
        }
    }
}

fn check_every_type(path: &Path, numbers: &mut Numbers) {
    check::<f32>(path, numbers);
    check::<f64>(path, numbers);
    check::<f16>(path, numbers);
    check::<i32>(path, numbers);
}

/// Entries in any order, some of them duplicate, with comments and blank lines between them.
fn random_text(field: &str, symmetry: &str, numbers: &mut Numbers) -> String {
    let rows = 1 + numbers.below(12);
    let general = symmetry == "general";
    let cols = if general { 1 + numbers.below(12) } else { rows };
    let end = ["\n", "\r\n", " \n"][numbers.below(3)];
    let mut lines = String::new();
    let mut count = 0;
    for _ in 0..numbers.below(3 * rows * cols / 4 + 1) {
        let (mut row, mut col) = (numbers.below(rows), numbers.below(cols));
        if !general {
            // The position alone determines the triangle that stores it.
            (row, col) = (row.max(col), row.min(col));
            if (row + col) % 3 == 0 {
                (row, col) = (col, row);
            }
        }
        if symmetry == "skew-symmetric" && row == col {
            continue;
        }
        count += 1;
        write!(lines, "{} {}", row + 1, col + 1).unwrap();
        match (field, numbers.below(9)) {
            ("pattern", _) => {}
            ("integer", _) => write!(lines, " {}", numbers.below(200) as i64 - 100).unwrap(),
            (_, 0) => lines += " -0.0",
            (_, 1) => lines += " nan",
            (_, 2) => lines += " -inf",
            _ => write!(lines, " {}", numbers.below(1 << 20) as f64 / 1e3).unwrap(),
        }
        lines += end;
        if numbers.below(9) == 0 {
            lines += ["% between\n", "\n", " \t\r\n"][numbers.below(3)];
        }
    }
    let mark = ["", "\u{feff}"][numbers.below(2)];
    let head = format!("{mark}%%MatrixMarket matrix coordinate {field} {symmetry}{end}");
    format!("{head}% first\n\n{rows} {cols} {count}{end}{lines}")
}

#[test]
fn parts_of_text_are_the_whole_to_the_bit() {
    let mut numbers = Numbers(1);
    let path = scratch("parts.mtx");
    for field in ["real", "integer", "pattern"] {
        for symmetry in ["general", "symmetric", "skew-symmetric"] {
            if (field, symmetry) == ("pattern", "skew-symmetric") {
                continue;
            }
            for _ in 0..20 {
                let text = random_text(field, symmetry, &mut numbers);
                fs::write(&path, text).unwrap();
                check_every_type(&path, &mut numbers);
            }
        }
    }
}

/// Several pieces of text: a comment longer than one piece, then lines in an order that must be sorted.
#[test]
fn long_text_is_read_in_pieces() {
    const SIZE: usize = 20_000;
    let mut numbers = Numbers(2);
    for symmetry in ["general", "symmetric"] {
        let head = format!("%%MatrixMarket matrix coordinate real {symmetry}\n");
        let comment = format!("%{}\n", "x".repeat(90)).repeat(60_000);
        let mut text = format!("{head}{comment}{SIZE} {SIZE} 500000\n");
        for _ in 0..500_000 {
            let (row, col) = (numbers.below(SIZE), numbers.below(SIZE));
            let value = numbers.below(1000) as f64 / 7.0;
            writeln!(text, "{} {} {value}", row.max(col) + 1, row.min(col) + 1).unwrap();
        }
        let path = scratch("pieces.mtx");
        fs::write(&path, &text).unwrap();
        check::<f32>(&path, &mut numbers);
        // The line number of a fault is counted over pieces.
        let line = text.lines().count();
        let cut = text.trim_end().rfind(' ').unwrap();
        fs::write(&path, &text[..cut]).unwrap();
        let error = RowFile::open(&path).unwrap_err().to_string();
        let fault = format!("pieces.mtx:{line}: row, column and value expected, two found");
        assert!(error.ends_with(&fault), "{error}");
        fs::remove_file(path).unwrap();
    }
}

/// Members of CSR with 64-bit offsets, 16-bit indices and float32 values.
fn members(
    [rows, cols]: [i64; 2],
    offsets: &[i64],
    indices: &[i16],
    values: &[f32],
) -> Vec<(&'static str, Vec<u8>)> {
    let shape = |len: usize| format!("({len},)");
    vec![
        ("format", npy("|S3", false, "()", b"csr")),
        ("shape", npy("<i8", false, "(2,)", &[rows, cols])),
        ("indptr", npy("<i8", false, &shape(offsets.len()), offsets)),
        ("indices", npy("<i2", false, &shape(indices.len()), indices)),
        ("data", npy("<f4", false, &shape(values.len()), values)),
    ]
}

const METHODS: [CompressionMethod; 2] = [CompressionMethod::Stored, CompressionMethod::Deflated];

/// Columns of a row in any order, some of them duplicate.
#[test]
fn parts_of_archives_are_the_whole_to_the_bit() {
    let mut numbers = Numbers(3);
    let path = scratch("parts.npz");
    for round in 0..40 {
        let (rows, cols) = (1 + numbers.below(12), 1 + numbers.below(12));
        let (mut offsets, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for _ in 0..rows {
            let mut row: Vec<i16> =
                (0..numbers.below(8)).map(|_| numbers.below(cols) as i16).collect();
            if numbers.below(2) == 0 {
                row.sort_unstable();
                row.dedup();
            }
            indices.extend(row);
            offsets.push(indices.len() as i64);
        }
        values.resize_with(indices.len(), || numbers.below(1000) as f32 / 7.0 - 70.0);
        let members = members([rows as i64, cols as i64], &offsets, &indices, &values);
        fs::write(&path, archive(&members, METHODS[round % 2])).unwrap();
        check_every_type(&path, &mut numbers);
    }
}

#[test]
fn large_archives_are_read_in_parts() {
    let pattern = generate::uniform_rows(3000, 3000, 60, 1).unwrap();
    let csr = Csr::new(pattern, generate::random_values::<f64>(180_000, 2)).unwrap();
    let path = scratch("large.npz");
    write_npz(&path, &csr).unwrap();
    check::<f64>(&path, &mut Numbers(4));
    write_npz_compressed(&path, &csr).unwrap();
    check::<f64>(&path, &mut Numbers(5));
    let file = RowFile::open(&path).unwrap();
    assert_eq!(file.row_counts(), vec![60; 3000]);
}

fn opened(name: &str, bytes: &[u8]) -> Result<RowFile, String> {
    let path = scratch(name);
    fs::write(&path, bytes).unwrap();
    RowFile::open(&path).map_err(|error| error.to_string())
}

#[test]
fn text_that_is_no_matrix_is_refused() {
    let faults = [
        ("", ":1: empty file"),
        ("coordinate real general\n% x\n", ":2: size line missing"),
        ("coordinate real general\n2 2 2\n1 1 1\n", ":3: end of the file after 1 of 2"),
        ("coordinate real general\n2 2 1\n3 1 1\n", ":3: row index 3 is past 2"),
        ("coordinate real general\n2 2 1\n1 1 1\n2 2 2\n", ":4: text after the last of 1"),
        ("coordinate integer general\n2 2 1\n1 1 1.5\n", ":3: value is not an integer"),
        ("coordinate real skew-symmetric\n2 2 1\n1 1 1\n", ":3: a skew-symmetric matrix has no"),
        ("array real general\n1 1\n1\n", ":1: layout array is not read in parts of rows"),
    ];
    for (text, fault) in faults {
        let banner = if text.is_empty() { "" } else { "%%MatrixMarket matrix " };
        let error = opened("fault.mtx", format!("{banner}{text}").as_bytes()).unwrap_err();
        assert!(error.contains(&format!("fault.mtx{fault}")), "{error}");
    }
    for (name, fault) in
        [("fault.npy", "extension .mtx or .npz expected"), ("no-such.mtx", "No such file")]
    {
        let error = RowFile::open(scratch(name)).unwrap_err().to_string();
        assert!(error.contains(fault), "{error}");
    }
    // A value that only some types can represent is refused with the type, in a read of any row.
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 1e39\n";
    let file = opened("wide.mtx", text.as_bytes()).unwrap();
    assert_eq!(file.read::<f64>(0..1).unwrap().values(), [1.0]);
    let error = file.read::<f32>(0..1).unwrap_err().to_string();
    assert!(error.contains(":4: value `1e39` is out of the range of f32"), "{error}");
}

#[test]
fn a_place_and_its_mirror_are_refused_by_their_rows() {
    let head = "%%MatrixMarket matrix coordinate real symmetric\n";
    let text = format!("{head}4 4 4\n4 3 1\n1 2 5\n3 1 1\n2 1 5\n");
    let file = opened("mirror.mtx", text.as_bytes()).unwrap();
    assert_eq!(file.row_counts(), [3, 2, 2, 1]);
    assert_eq!(file.read::<f32>(2..4).unwrap().values(), [1.0; 3]);
    for rows in [0..1, 1..2, 0..4] {
        let error = file.read::<f32>(rows).unwrap_err();
        assert_eq!(error, read_any::<f32>(scratch("mirror.mtx")).unwrap_err());
    }
}

#[test]
fn ranges_that_are_not_within_the_rows_are_refused() {
    let text = "%%MatrixMarket matrix coordinate pattern general\n3 9 1\n2 9\n";
    let file = opened("ranges.mtx", text.as_bytes()).unwrap();
    assert_eq!(file.read::<f32>(3..3).unwrap().shape(), [0, 9]);
    for (start, end) in [(0, 4), (4, 4), (2, 1), (0, usize::MAX)] {
        let error = file.read::<f32>(start..end).unwrap_err().to_string();
        let text = format!("range of rows is {start}..{end}, one within 0..3 wanted");
        assert_eq!(error, text);
    }
}

#[test]
fn archives_that_are_no_matrix_are_refused() {
    let sound = || members([3, 4], &[0, 2, 2, 4], &[0, 1, 2, 3], &[1.0, 2.0, 3.0, 4.0]);
    let with = |name: &str, bytes: Vec<u8>| {
        let mut all = sound();
        all.iter_mut().find(|member| member.0 == name).unwrap().1 = bytes;
        all
    };
    let offsets = |numbers: &[i64]| npy("<i8", false, "(4,)", numbers);
    let huge = 1 << 33;
    for (members, fault) in [
        (
            with("format", npy("|S3", false, "()", b"csc")),
            "(format): format `csc` is not read in parts",
        ),
        (with("indptr", offsets(&[0, 3, 2, 4])), "(indptr[2]): row offset 2 is below 3"),
        (with("indptr", offsets(&[0, 2, 2, 3])), "(indptr[3]): last row offset 3 is not 4"),
        (with("indptr", offsets(&[0, huge, huge, huge])), "8589934592 entries are over the index"),
        (
            with("indptr", npy("<i8", false, "(4,)", &[0u8; 20])),
            "(indptr): cut off: 20 of 32 bytes",
        ),
        (with("data", npy("<f4", false, "(5,)", &[0u8; 20])), "(data): 5 values, 4 expected"),
        (
            with("data", npy("<f4", false, "(4, 1)", &[0u8; 16])),
            "(data): an array of order 1 expected",
        ),
        (sound()[..4].to_vec(), "(data): member missing"),
    ] {
        let error = opened("fault.npz", &archive(&members, METHODS[0])).unwrap_err();
        assert!(error.contains(fault), "{error}\nlacks {fault}");
    }
    // Members that a part does not require are not validated.
    for method in METHODS {
        for (members, fault) in [
            (
                with("data", npy("<f4", false, "(4,)", &[0u8; 12])),
                "(data[2..4]): cut off: 4 of 8 bytes",
            ),
            (with("data", npy("<f4", false, "(4,)", &[0u8; 4])), "(data[2..4]): cut off: "),
            (
                with("indices", npy("<i1", false, "(4,)", &[0u8, 1, 2, 4])),
                "(indices[3]): column index 4 is past 3",
            ),
            (
                with("indices", npy("<i1", false, "(4,)", &[0u8, 1, 255, 2])),
                "(indices[2]): column index is negative",
            ),
            (
                with("data", npy("<f8", false, "(4,)", &[0.0f64, 0.0, 0.0, 1e39])),
                "(data[3]): value 1e39",
            ),
        ] {
            let file = opened("fault.npz", &archive(&members, method)).unwrap();
            assert_eq!(file.read::<f32>(1..2).unwrap().nnz(), 0);
            let error = file.read::<f32>(2..3).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}\nlacks {fault}");
        }
    }
    let bytes = archive(&sound(), METHODS[0]);
    let error = opened("cut.npz", &bytes[..bytes.len() - 30]).unwrap_err();
    assert!(error.contains("cut.npz (archive): no end of central"), "{error}");
    let error = opened("cut.npz", &bytes[100..]).unwrap_err();
    assert!(error.contains("cut.npz ("), "{error}");
    // When a member is read whole, its checksum is compared.
    let mut bytes = archive(&sound(), METHODS[0]);
    let mut fours = bytes.windows(4);
    let at = fours.position(|four| four == 4_f32.to_le_bytes());
    bytes[at.unwrap()] ^= 1;
    let file = opened("sum.npz", &bytes).unwrap();
    let error = file.read::<f32>(0..3).unwrap_err().to_string();
    assert!(error.contains("sum.npz (data): Invalid checksum"), "{error}");
}

/// The file changes its length, changes its content with equal length and time, and is deleted.
#[test]
fn a_file_that_changes_is_refused() {
    let text = |value: f64| {
        let text = format!("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 {value}\n");
        text.into_bytes()
    };
    let npz = |value: f32| archive(&members([1, 1], &[0, 1], &[0], &[value]), METHODS[0]);
    for (name, files) in [
        ("changed.mtx", [text(1.0), text(2.0), text(1.5)]),
        ("changed.npz", [npz(1.0), npz(2.0), [npz(1.0), vec![0; 9]].concat()]),
    ] {
        let path = scratch(name);
        let file = opened(name, &files[0]).unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let write = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let handle = fs::File::options().write(true).open(&path).unwrap();
            handle.set_modified(time).unwrap();
            handle
        };
        let changed = |bytes: &[u8]| {
            write(bytes);
            let error = file.read::<f32>(0..1).unwrap_err().to_string();
            assert!(error.contains("the file changed since it was opened: "), "{error}");
            error
        };
        assert!(changed(&files[1]).contains("its checksum was "));
        assert!(changed(&files[2]).contains(" bytes, now "));
        let handle = write(&files[0]);
        assert_eq!(file.read::<f32>(0..1).unwrap().values(), [1.0]);
        handle.set_modified(time + std::time::Duration::from_secs(1)).unwrap();
        let error = file.read::<f32>(0..1).unwrap_err().to_string();
        assert!(error.contains(" bytes were written again"), "{error}");
        fs::remove_file(path).unwrap();
        assert!(file.read::<f32>(0..1).is_err());
    }
}

/// A split by cost: ranges with about equal numbers of nonzeros.
#[test]
fn counts_are_those_of_the_rows() {
    let pattern = generate::uniform(50, 40, 0.2, 7).unwrap();
    let counts: Vec<u32> = pattern.offsets().windows(2).map(|ends| ends[1] - ends[0]).collect();
    let path = scratch("counts.mtx");
    write_matrix_market_pattern(&path, &pattern).unwrap();
    let file = RowFile::open(&path).unwrap();
    assert_eq!(file.row_counts(), counts);
    let empty = CsrPattern::new(0, 4, vec![0], Vec::new()).unwrap();
    write_matrix_market_pattern(&path, &empty).unwrap();
    let file = RowFile::open(&path).unwrap();
    assert_eq!(file.read::<f32>(0..0).unwrap().shape(), [0, 4]);
}
