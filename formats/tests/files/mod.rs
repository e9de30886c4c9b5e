//! Paths of files, their contents, and random numbers to corrupt them. The data directory is `EINSPARSE_DATA`, or
//! `data/` in the project root; without it, tests that use it print one line.

// Each test uses some of these functions.
#![allow(dead_code)]

use einsparse_formats::io::Loaded;
use einsparse_formats::{AnySparse, Element};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// Path of a file or directory of the real data; `None` after a printed line if it does not exist.
pub fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EINSPARSE_DATA").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../data"));
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    // Writes to the stream directly: the harness captures the output of the print macros.
    writeln!(std::io::stderr(), "skipped: no {} (set EINSPARSE_DATA)", path.display()).ok();
    None
}

pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

pub fn sparse<T: Element>(loaded: Loaded<T>) -> AnySparse<T> {
    let Loaded::Sparse(sparse) = loaded else { panic!("a dense matrix") };
    sparse
}

/// Header of `.npy`, and the elements.
pub fn npy<T: bytemuck::NoUninit>(descr: &str, fortran: bool, shape: &str, data: &[T]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), bytemuck::cast_slice(data)].concat()
}

/// Archive of members: name, first bytes, and bytes that are repeated.
pub fn archive(members: &[(&str, Vec<u8>, &[u8], usize)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, header, bytes, count) in members {
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(header).unwrap();
        let block = bytes.repeat(1 << 12);
        let mut left = bytes.len() * count;
        while left > 0 {
            let now = left.min(block.len());
            zip.write_all(&block[..now]).unwrap();
            left -= now;
        }
    }
    zip.finish().unwrap().into_inner()
}

/// [`archive`] of members of these bytes.
pub fn members(members: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let members = members.iter().map(|(name, bytes)| (*name, bytes.clone(), &[][..], 0));
    archive(&members.collect::<Vec<_>>(), method)
}

/// A small random number generator, so that tests of readers do not depend on the tested code.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}
