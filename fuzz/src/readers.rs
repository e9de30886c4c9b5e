//! Readers: they return an error of one line that names the input, or a matrix that is consistent with its parts.
//! Writing and reading it again must not change it.

use std::io::{Cursor, Write};

use einsparse_formats::io::{self, Loaded};
use einsparse_formats::{
    AnySparse, Coo, CooPattern, Csr, CsrPattern, Element, FormatError, Pattern, f16,
};

use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::outcome::{Outcome, outcome, refused};

/// Checks that an error is readable for users.
fn is_readable(error: &FormatError) -> Outcome {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 400, "{text}");
    if let FormatError::Io { path, .. } = error {
        assert_eq!(path, "input");
    }
    refused(error)
}

/// Checks a result that a reader created without checks, with the checks of the constructors.
fn is_sound<T: Element>(sparse: &AnySparse<T>) -> Outcome {
    match sparse {
        AnySparse::Coo(coo) => {
            let again = CooPattern::new(coo.shape().to_vec(), coo.pattern().coords().to_vec());
            assert_eq!(again.as_ref(), Ok(&**coo.pattern()));
            assert_eq!(coo.values().len(), coo.nnz());
        }
        AnySparse::Csr(csr) => assert_sound_csr(csr),
        other => {
            if other.shape()[0] < 1 << 16 {
                match other.to_csr() {
                    Ok(csr) => assert_sound_csr(&csr),
                    Err(error) => return refused(&error),
                }
            }
        }
    }
    outcome(&(sparse.format().to_string(), sparse.nnz().min(3)))
}

fn assert_sound_csr<T: Element>(csr: &Csr<T>) {
    let p = csr.pattern();
    let again = CsrPattern::new(p.rows(), p.cols(), p.offsets().to_vec(), p.columns().to_vec());
    assert_eq!(again.as_ref(), Ok(&**p));
    assert_eq!(csr.values().len(), p.nnz());
}

/// Bits of the values, so that NaN equals itself.
fn bits<T: Element>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.to_f64().to_bits()).collect()
}

fn loaded<T: Element>(loaded: Loaded<T>) -> Outcome {
    match loaded {
        Loaded::Dense(dense) => {
            let product = |n: u128, extent: &usize| n.saturating_mul(*extent as u128);
            assert_eq!(dense.len() as u128, dense.shape().iter().fold(1, product));
            let shape = outcome(&dense.shape().len());
            // Offsets of empty rows may fill the memory once, but not twice.
            if dense.is_empty() && dense.shape().first().is_some_and(|rows| *rows >= 1 << 16) {
                let _ = Loaded::Dense(dense).into_csr();
                return shape;
            }
            match (Loaded::Dense(dense.clone()).to_csr(), Loaded::Dense(dense).into_csr()) {
                (Ok(a), Ok(b)) => {
                    assert_sound_csr(&a);
                    assert_eq!((a.pattern(), bits(a.values())), (b.pattern(), bits(b.values())));
                }
                (a, b) => assert_eq!(a.map(drop).is_ok(), b.map(drop).is_ok()),
            }
            shape
        }
        Loaded::Sparse(sparse) => is_sound(&sparse),
    }
}

/// A Matrix Market text.
pub fn matrix_market(data: &[u8]) -> Outcome {
    let _ = io::read_matrix_market_from::<f16>(data, "input");
    let read = match io::read_matrix_market_from::<f64>(data, "input") {
        Ok(read) => read,
        Err(error) => return is_readable(&error),
    };
    if let Loaded::Sparse(AnySparse::Coo(coo)) = &read.matrix {
        let mut text = Vec::new();
        io::write_matrix_market_to(&mut text, "input", coo).expect("memory takes all");
        // Infinities are written as words. A sum of finite values may be infinite.
        let again = io::read_matrix_market_from::<f64>(&text, "input").expect("what was written");
        let Loaded::Sparse(AnySparse::Coo(again)) = again.matrix else {
            panic!("not COO any more");
        };
        same(coo, &again);
    }
    loaded(read.matrix)
}

fn same(a: &Coo<f64>, b: &Coo<f64>) {
    assert_eq!(a.pattern(), b.pattern());
    for (a, b) in a.values().iter().zip(b.values()) {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{a} {b}");
    }
}

/// A `.smtx` text.
pub fn smtx(data: &[u8]) -> Outcome {
    match io::read_smtx_from(data, "input") {
        Ok(pattern) => {
            let values = vec![1.0; pattern.nnz()];
            is_sound(&AnySparse::Csr(Csr::new(pattern, values).expect("one value each")))
        }
        Err(error) => is_readable(&error),
    }
}

const MEMBERS: [&str; 7] = ["shape", "format", "data", "indices", "indptr", "row", "col"];
/// Marker before each member of an input that is not an archive yet.
const MARK: &[u8] = b"MEMBER";

/// Joins members to one input of [`npz`].
pub fn joined(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let of = |name: &str| members.iter().find(|member| member.0 == name);
    let bytes = MEMBERS.iter().map(|name| of(name).map_or(&[][..], |member| &member.1));
    bytes.flat_map(|bytes| [MARK, bytes].concat()).collect()
}

/// Creates the archive of an input of members, with valid checksums.
fn packed(data: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut rest = data;
    for name in MEMBERS {
        let Some(next) = rest.strip_prefix(MARK) else {
            break;
        };
        let end = next.windows(MARK.len()).position(|piece| piece == MARK);
        let (bytes, more) = next.split_at(end.unwrap_or(next.len()));
        rest = more;
        if !bytes.is_empty() {
            zip.start_file(format!("{name}.npy"), options).expect("memory takes all");
            zip.write_all(bytes).expect("memory takes all");
        }
    }
    zip.finish().expect("memory takes all").into_inner()
}

/// A SciPy archive, or the members of one.
pub fn npz(data: &[u8]) -> Outcome {
    let archive;
    let data = match data.starts_with(MARK) {
        true => {
            archive = packed(data);
            &archive
        }
        false => data,
    };
    let _ = io::read_npz_from::<f16>(data, "input");
    match io::read_npz_from::<f64>(data, "input") {
        Ok(read) => loaded(Loaded::Sparse(read)),
        Err(error) => is_readable(&error),
    }
}

/// Reads a file of named tensors unchanged, and with a header length that ends at the last brace. Otherwise a wrong
/// length would hide most mutations.
pub fn safetensors(data: &[u8]) -> Outcome {
    let outcome = tensors(data);
    let Some(brace) = data.iter().rposition(|byte| *byte == b'}') else {
        return outcome;
    };
    let spaces = data[brace + 1..].iter().take_while(|byte| **byte == b' ');
    let Some(header) = (brace + 1 + spaces.count()).checked_sub(8) else {
        return outcome;
    };
    let mut fitting = data.to_vec();
    fitting[..8].copy_from_slice(&(header as u64).to_le_bytes());
    tensors(&fitting)
}

fn tensors(data: &[u8]) -> Outcome {
    let mut file = match io::Safetensors::new(Cursor::new(data), "input") {
        Ok(file) => file,
        Err(error) => return is_readable(&error),
    };
    let tensors = file.tensors().to_vec();
    let bytes = tensors.iter().map(|stored| stored.bytes.end - stored.bytes.start);
    let header = data[..8].try_into().map(u64::from_le_bytes).expect("8 bytes");
    assert_eq!(8 + header + bytes.sum::<u64>(), data.len() as u64);
    let mut seen = outcome(&tensors.len().min(3));
    for stored in tensors.iter().take(4) {
        let _ = file.read::<f16>(&stored.name);
        seen = match file.read::<f64>(&stored.name) {
            Ok(dense) => {
                assert_eq!(dense.shape(), stored.shape);
                loaded(Loaded::Dense(dense))
            }
            Err(error) => is_readable(&error),
        };
    }
    seen
}

/// A NumPy array.
pub fn npy(data: &[u8]) -> Outcome {
    let _ = io::read_npy_from::<f16>(data, "input");
    match io::read_npy_from::<f64>(data, "input") {
        Ok(read) => loaded(Loaded::Dense(read)),
        Err(error) => is_readable(&error),
    }
}
