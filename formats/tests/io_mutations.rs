//! Readers never panic: every file here is a valid one with a few bytes changed, removed or inserted.

use einsparse_formats::generate;
use einsparse_formats::io::*;
use einsparse_formats::{AnySparse, Csr, FormatError, Pattern};
use std::{io::Cursor, path::Path};

mod files;

use files::Numbers;

fn mutate(sound: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    const LIKELY: &[u8] = b"0123456789 -.\n\r\t%eEnai(),'<|\0\xff";
    let mut bytes = sound.to_vec();
    for _ in 0..1 + numbers.below(3) {
        let at = numbers.below(bytes.len());
        let byte = if numbers.below(4) == 0 {
            numbers.below(256) as u8
        } else {
            LIKELY[numbers.below(LIKELY.len())]
        };
        match numbers.below(5) {
            0 | 1 => bytes[at] = byte,
            2 => bytes.insert(at, byte),
            3 if bytes.len() > 1 => drop(bytes.remove(at)),
            _ => bytes.truncate(at + 1),
        }
    }
    bytes
}

/// Reads `rounds` corrupted files: each gives a matrix, or an error of one line that names the file.
fn check<R>(sound: &[u8], rounds: usize, read: impl Fn(&[u8]) -> Result<R, FormatError>) {
    let mut numbers = Numbers(rounds as u64);
    let mut refused = 0;
    for _ in 0..rounds {
        let bytes = mutate(sound, &mut numbers);
        if let Err(error) = read(&bytes) {
            refused += 1;
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 400, "{text}");
            assert!(
                matches!(error, FormatError::Io { .. }),
                "{error:?}\n{}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }
    assert!(refused > rounds / 4, "only {refused} of {rounds} refused");
}

fn scratch(name: &str, write: impl Fn(&Path) -> Result<(), FormatError>) -> Vec<u8> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    write(&path).unwrap();
    std::fs::read(path).unwrap()
}

/// Reads a file of these bytes in two parts.
fn rows(path: &Path, bytes: &[u8]) -> Result<(), FormatError> {
    std::fs::write(path, bytes).unwrap();
    let file = RowFile::open(path)?;
    let rows = file.shape()[0];
    file.read::<f32>(0..rows / 2)?;
    file.read::<f32>(rows / 2..rows).map(drop)
}

#[test]
fn broken_text_is_refused_or_read() {
    for symmetry in ["general", "symmetric", "skew-symmetric"] {
        let text = format!(
            "%%MatrixMarket matrix coordinate real {symmetry}\n% x\n4 4 3\n2 1 1.5\n3 1 -2\n4 3 8\n"
        );
        check(text.as_bytes(), 4000, |bytes| read_matrix_market_from::<f32>(bytes, "file"));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-rows.mtx");
        check(text.as_bytes(), 1500, |bytes| rows(&path, bytes));
        let text = format!("%%MatrixMarket matrix array integer {symmetry}\n2 2\n1\n");
        check(text.as_bytes(), 4000, |bytes| read_matrix_market_from::<f64>(bytes, "file"));
    }
    check(b"4, 5, 6\n0 2 3 5 6 \n0 3 2 1 4 0 \n", 10_000, |bytes| read_smtx_from(bytes, "file"));
}

#[test]
fn broken_tensors_are_refused_or_read() {
    let header = r#"{"__metadata__":{"a":"b"},"w":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},
        "v":{"dtype":"F64","shape":[],"data_offsets":[4,12]}}"#;
    let data = [0, 0x3c, 0, 0x3c, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];
    // The header length is adjusted, so that each change reaches the header or the data.
    let read = |text: &[u8]| {
        let header = text.len().saturating_sub(data.len()) as u64;
        let bytes = [&header.to_le_bytes()[..], text].concat();
        let mut file = Safetensors::new(Cursor::new(bytes), "file")?;
        (0..file.tensors().len()).try_for_each(|at| file.read_at::<f32>(at).map(drop))
    };
    let sound = [header.as_bytes(), &data].concat();
    read(&sound).unwrap();
    check(&sound, 10_000, read);
}

#[test]
fn broken_archives_are_refused_or_read() {
    let pattern = generate::uniform(4, 6, 0.4, 1).unwrap();
    let values = generate::random_values::<f32>(pattern.nnz(), 2);
    let any = AnySparse::Csr(Csr::new(pattern, values).unwrap());
    let loaded = |format: &str| Loaded::Sparse(any.convert(format.parse().unwrap()).unwrap());
    for format in ["csr", "csc", "coo", "bsr:2x2"] {
        let sound = scratch("sound.npz", |path| write_any(path, &loaded(format)));
        check(&sound, 3000, |bytes| {
            read_npz_from::<f32>(bytes, "file").and_then(|read| read.to_csr())
        });
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-rows.npz");
    let sound = scratch("sound-rows.npz", |path| write_any(path, &loaded("csr")));
    check(&sound, 3000, |bytes| rows(&path, bytes));
    let dense = any.to_dense().unwrap();
    let sound = scratch("sound.npy", |path| write_npy(path, &dense));
    check(&sound, 5000, |bytes| read_npy_from::<f32>(bytes, "file"));
}
