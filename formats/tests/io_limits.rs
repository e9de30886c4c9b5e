//! Memory of the readers: at most 64 MB and 16 bytes for each byte of the input, for any declared or real contents.
//! Writers that fail leave the old file. Patterns with few nonzeros in many rows take only the memory of their arrays.

use einsparse_formats::io::*;
use einsparse_formats::{
    CsrPattern, Dense, Element, FormatError, GroupClass, HybridGroupCooPattern,
};
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use zip::CompressionMethod;

mod files;
#[path = "../../fuzz/src/memory.rs"]
mod memory;

use files::{archive, npy, scratch};
use memory::{Counting, MOST, TAKEN};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allows one test at a time, so that each measures its own memory.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|held| held.into_inner())
}

/// Runs `read` over an input of `input` bytes and checks the bound of its memory; `held` bytes of the input are in
/// memory already.
fn within<R>(input: usize, held: usize, read: impl FnOnce() -> R) -> R {
    let before = TAKEN.load(Relaxed) - held;
    MOST.store(before + held, Relaxed);
    let start = Instant::now();
    let result = read();
    let most = MOST.load(Relaxed) - before;
    let bound = 64_000_000 + 16 * input;
    assert!(most <= bound, "{most} bytes for {input}, {bound} at most");
    assert!(start.elapsed() < Duration::from_secs(60));
    result
}

/// Reads through a file, as the command does.
fn from_file<T: Element>(name: &str, bytes: Vec<u8>) -> Result<Loaded<T>, FormatError> {
    let path = scratch(name);
    fs::write(&path, &bytes).unwrap();
    let length = bytes.len();
    drop(bytes);
    let read = within(length, 0, || read_any::<T>(&path));
    fs::remove_file(path).unwrap();
    read
}

fn named<'a>(format: &str, rows: i64, cols: i64) -> Vec<(&'static str, Vec<u8>, &'a [u8], usize)> {
    let mut shape = npy::<u8>("<i8", false, "(2,)", &[]);
    shape.extend(rows.to_le_bytes());
    shape.extend(cols.to_le_bytes());
    let mut text = npy::<u8>("|S3", false, "()", &[]);
    text.extend(format.as_bytes());
    vec![("shape", shape, b"", 0), ("format", text, b"", 0)]
}

/// A dense matrix of zeros in CSR, 24 MB, deflated to about ten thousand bytes.
fn bomb() -> Vec<u8> {
    const ENTRIES: usize = 12 << 20;
    let mut members = named("csr", 1, ENTRIES as i64);
    let shape = format!("({ENTRIES},)");
    members.push(("data", npy::<u8>("|i1", false, &shape, &[]), b"\0", ENTRIES));
    members.push(("indices", npy::<u8>("|u1", false, &shape, &[]), b"\0", ENTRIES));
    archive(&members, CompressionMethod::Deflated)
}

#[test]
fn a_deflated_member_stays_below_the_limit() {
    let _alone = alone();
    let bytes = bomb();
    assert!(bytes.len() < 100_000);
    let length = bytes.len();
    let error = within(length, length, || read_npz_from::<f64>(&bytes, "bomb")).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("bomb (data): 12582912 elements take 100663296 bytes"), "{text}");
    assert!(text.contains("over the limit of 64") && text.contains("`io::Limits`"), "{text}");
    // With more memory, the reader continues and finds the next fault.
    let generous = Limits { bytes: 1 << 30, ..Limits::default() };
    let error = read_npz_from_within::<f64>(&bytes, "bomb", generous).unwrap_err();
    assert!(error.to_string().contains("indptr): member missing"), "{error}");
}

#[test]
fn what_a_header_claims_is_not_reserved() {
    let _alone = alone();
    for claim in ["(1099511627776,)", "(4294967295, 1000)"] {
        let mut bytes = npy::<u8>("<f8", false, claim, &[]);
        bytes.extend([0; 64]);
        let error = from_file::<f64>("claim.npy", bytes).unwrap_err();
        assert!(error.to_string().contains("over the limit"), "{error}");
    }
    let mut bytes = npy::<u8>("<f8", false, "(100000,)", &[]);
    bytes.extend([0; 64]);
    let error = from_file::<f64>("cut.npy", bytes).unwrap_err();
    assert!(error.to_string().contains("cut off: 64 of 800000 bytes"), "{error}");
    let none =
        from_file::<f64>("none.npy", npy::<u8>("<f8", false, "(4294967295, 0)", &[])).unwrap();
    assert_eq!(none.shape(), [u32::MAX as usize, 0]);
    for text in ["array real general\n0 4294967295\n", "array real general\n4294967295 0\n"] {
        let text = format!("%%MatrixMarket matrix {text}");
        assert_eq!(from_file::<f64>("none.mtx", text.into()).unwrap().shape().len(), 2);
    }
}

#[test]
fn rows_without_entries_take_no_memory() {
    let _alone = alone();
    let text = "%%MatrixMarket matrix coordinate pattern general\n4294967295 3 1\n7 2\n";
    let read = from_file::<f64>("rows.mtx", text.into()).unwrap();
    assert_eq!(read.shape(), [u32::MAX as usize, 3]);
    let error = within(text.len(), 0, || read.to_csr()).unwrap_err();
    let numbers = "arrays for 4294967295 rows take 17179869180 bytes, over the limit of 64000256 for a tensor of 16 bytes; \
                   `allocate::set_limits`, `--memory` or EINSPARSE_MEMORY=BYTES raises it";
    assert_eq!(error.to_string(), numbers);
    assert_eq!(within(text.len(), 0, || read.into_csr()).unwrap_err(), error);
}

/// The shortest possible lines, in an order that must be sorted, each with a mirrored entry.
#[test]
fn short_lines_are_read_within_the_bound() {
    let _alone = alone();
    const LINES: usize = 6 << 20;
    let head = |field: &str, symmetry: &str, lines: usize| {
        format!("%%MatrixMarket matrix coordinate {field} {symmetry}\n6000000 6000000 {lines}\n")
    };
    let mut text = head("pattern", "symmetric", LINES).into_bytes();
    text.extend(b"3 1\n2 1\n".repeat(LINES / 2));
    let read = from_file::<f64>("pattern.mtx", text).unwrap().into_sparse().unwrap();
    assert_eq!((read.nnz(), read.values()), (4, &[1.0; 4][..]));
    let mut text = head("integer", "symmetric", LINES).into_bytes();
    text.extend(b"3 1 1\n2 1 1\n".repeat(LINES / 2));
    let read = from_file::<f64>("integer.mtx", text).unwrap().into_sparse().unwrap();
    assert_eq!(read.values(), [(LINES / 2) as f64; 4]);
    let mut text = head("pattern", "symmetric", LINES).into_bytes();
    text.extend(b"3 1\n1 2\n".repeat(LINES / 2 - 1));
    text.extend(b"3 1\n2 1\n");
    let error = from_file::<f64>("halves.mtx", text).unwrap_err();
    let place = format!(".mtx:{}: (2, 1) mirrors (1, 2) of line 4", LINES + 2);
    assert!(error.to_string().contains(&place), "{error}");
}

/// Parts take memory in proportion to their nonzeros, independent of the size of the file. Rows that a header declares
/// take no memory.
#[test]
fn parts_of_rows_take_their_share() {
    let _alone = alone();
    const ROWS: usize = 100_000;
    const LINES: usize = 3_000_000;
    let mut text = format!("%%MatrixMarket matrix coordinate real general\n{ROWS} 99 {LINES}\n");
    (0..LINES).for_each(|at| text += &format!("{} {} 0.5\n", at * 7 % ROWS + 1, at % 99 + 1));
    let (mtx, npz) = (scratch("share.mtx"), scratch("share.npz"));
    fs::write(&mtx, text).unwrap();
    write_npz_compressed(&npz, &read_any::<f64>(&mtx).unwrap().to_csr().unwrap()).unwrap();
    // Pieces of text and their entries; archives contain no text.
    for (path, pieces) in [(mtx, 40_000_000), (npz, 1_000_000)] {
        let before = TAKEN.load(Relaxed);
        let most = || {
            let most = MOST.load(Relaxed) - before;
            MOST.store(TAKEN.load(Relaxed), Relaxed);
            most
        };
        MOST.store(before, Relaxed);
        let file = RowFile::open(&path).unwrap();
        let opened = most();
        assert!(opened < pieces + 4 * ROWS, "{opened}");
        for part in [ROWS / 4, ROWS / 100] {
            let csr = file.read::<f64>(0..part).unwrap();
            let (read, bound) = (most(), 4 * ROWS + pieces + 8 * part + 32 * (LINES / ROWS) * part);
            assert!(read < bound, "{read} bytes, {bound} at most");
            drop(csr);
            most();
        }
        fs::remove_file(path).unwrap();
    }
    for (name, bytes) in [
        (
            "claim.mtx",
            b"%%MatrixMarket matrix coordinate real general\n4294967295 1 1\n1 1 1\n".to_vec(),
        ),
        ("claim.npz", {
            let mut members = named("csr", i64::from(u32::MAX), 1);
            members.push(("indices", npy::<u8>("<i4", false, "(1,)", &[]), b"\0", 4));
            members.push(("data", npy::<u8>("<f4", false, "(1,)", &[]), b"\0", 4));
            members.push(("indptr", npy::<u8>("<i4", false, "(4294967296,)", &[]), b"\0", 64));
            archive(&members, CompressionMethod::Stored)
        }),
    ] {
        let path = scratch(name);
        fs::write(&path, &bytes).unwrap();
        let error = within(bytes.len(), 0, || RowFile::open(&path)).unwrap_err();
        assert!(error.to_string().contains("over the limit of 64"), "{error}");
    }
    // A line without an end.
    let path = scratch("line.mtx");
    fs::write(&path, vec![b'%'; 80 << 20]).unwrap();
    let error = within(80 << 20, 0, || RowFile::open(&path)).unwrap_err();
    assert!(error.to_string().contains("a line is longer than 64000000 bytes"), "{error}");
    fs::remove_file(path).unwrap();
}

#[test]
fn narrow_numbers_are_read_within_the_bound() {
    let _alone = alone();
    const COUNT: usize = 12 << 20;
    let mut text = format!("{COUNT}, 9, 0\n").into_bytes();
    text.extend(b"0 ".repeat(COUNT + 1));
    from_file::<f64>("zeros.smtx", text).unwrap();
    let mut text = format!("1, {COUNT}, {COUNT}\n0 {COUNT}\n").into_bytes();
    text.extend(b"0 ".repeat(COUNT));
    assert!(from_file::<f64>("columns.smtx", text).is_err());
    for (fortran, shape) in
        [(false, format!("({COUNT}, 1)")), (true, format!("({}, 4)", COUNT / 4))]
    {
        let mut bytes = npy::<u8>("|i1", fortran, &shape, &[]);
        bytes.extend([1].repeat(COUNT));
        let length = bytes.len();
        let read = from_file::<f64>("ones.npy", bytes).unwrap();
        let held = COUNT * 8;
        let csr = within(length, held, || read.into_csr()).unwrap();
        assert_eq!(csr.nnz(), COUNT);
    }
}

#[test]
fn archives_of_narrow_numbers_are_read_within_the_bound() {
    let _alone = alone();
    const COUNT: usize = 8 << 20;
    let shape = format!("({COUNT},)");
    let mut members = named("coo", 4, 4);
    for (name, bytes) in [("row", b"\x01\x00"), ("col", b"\x02\x01"), ("data", b"\x01\x01")] {
        members.push((name, npy::<u8>("|i1", false, &shape, &[]), bytes, COUNT / 2));
    }
    let bytes = archive(&members, CompressionMethod::Stored);
    let read = from_file::<f64>("coo.npz", bytes).unwrap().into_sparse().unwrap();
    assert_eq!(read.values(), [(COUNT / 2) as f64; 2]);
}

/// Fortran order, inside and outside of archives, for tensors of several orders.
#[test]
fn fortran_order_is_turned() {
    let _alone = alone();
    let mut bytes = npy::<u8>("<i2", true, "(2, 3, 2)", &[]);
    for k in 0..2_i16 {
        for j in 0..3 {
            (0..2).for_each(|i| bytes.extend((100 * i + 10 * j + k).to_le_bytes()));
        }
    }
    let read = read_npy_from::<f32>(&bytes, "here").unwrap();
    let wanted =
        Dense::from_fn([2, 3, 2], |at: &[usize]| (100 * at[0] + 10 * at[1] + at[2]) as f32);
    assert_eq!(read, wanted.unwrap());
}

#[cfg(unix)]
#[test]
fn an_endless_file_ends_at_the_limit() {
    let _alone = alone();
    for name in ["endless.mtx", "endless.smtx", "endless.npz", "endless.npy"] {
        let path = scratch(name);
        fs::remove_file(&path).ok();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let error = within(64_000_000, 0, || read_any::<f32>(&path)).unwrap_err();
        assert!(error.to_string().contains("longer than 64000000 bytes"), "{error}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let _alone = alone();
    let folder = scratch("replaced");
    fs::remove_dir_all(&folder).ok();
    fs::create_dir(&folder).unwrap();
    let path = folder.join("a.smtx");
    let pattern = |columns| CsrPattern::new(1, 9, vec![0, 2], columns).unwrap();
    write_smtx(&path, &pattern(vec![0, 1])).unwrap();
    let failed: Result<(), std::io::Error> = replace_file(&path, |beside| {
        fs::write(beside, "half")?;
        assert_eq!(beside.extension(), path.extension());
        Err(std::io::Error::other("no"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!(read_smtx(&path).unwrap(), pattern(vec![0, 1]));
    write_smtx(&path, &pattern(vec![3, 4])).unwrap();
    assert_eq!(read_smtx(&path).unwrap(), pattern(vec![3, 4]));
    // No temporary file remains.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert!(write_smtx(folder.join("none/a.smtx"), &pattern(vec![0, 1])).is_err());
    #[cfg(unix)]
    {
        let link = folder.join("link.smtx");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_smtx(&link, &pattern(vec![5, 6])).unwrap();
        assert_eq!(read_smtx(&path).unwrap(), pattern(vec![5, 6]));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write_smtx("/dev/null", &pattern(vec![5, 6])).unwrap();
        // Links to files that do not exist yet: relative links, a chain of two, and a circle.
        fs::create_dir(folder.join("data")).unwrap();
        for (to, from) in [
            ("data/first.smtx", "second.smtx"),
            ("../new.smtx", "data/first.smtx"),
            ("circle.smtx", "circle.smtx"),
        ] {
            std::os::unix::fs::symlink(to, folder.join(from)).unwrap();
        }
        for columns in [vec![7, 8], vec![6, 7]] {
            write_smtx(folder.join("second.smtx"), &pattern(columns.clone())).unwrap();
            assert_eq!(read_smtx(folder.join("new.smtx")).unwrap(), pattern(columns));
        }
        for link in ["second.smtx", "data/first.smtx", "circle.smtx"] {
            let found = fs::symlink_metadata(folder.join(link)).unwrap();
            assert!(found.is_symlink(), "{link}");
        }
        let error = write_smtx(folder.join("circle.smtx"), &pattern(vec![5, 6])).unwrap_err();
        assert!(error.to_string().contains("symbolic links"), "{error}");
    }
}

#[test]
fn a_pattern_takes_no_array_of_its_rows() {
    let _alone = alone();
    let rows = u32::MAX as usize - 1;
    let class = |group| GroupClass { group, groups: 2 };
    let pattern = |index: [u32; 4]| {
        let columns = vec![0, 1, 0, 1, 0, 1, 2, 2, 3, 4];
        within(56, 0, || {
            HybridGroupCooPattern::new(rows, 9, vec![class(2), class(3)], index.into(), columns)
        })
    };
    assert!(pattern([1, 7, 6, rows as u32 - 1]).is_ok());
    let twice = pattern([1, 7, 6, 7]).unwrap_err();
    assert!(twice.to_string().contains("row 7 in classes 0 and 1"), "{twice}");
}
