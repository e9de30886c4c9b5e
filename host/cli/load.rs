//! Loading of operands in f64: from files (large ones with a progress bar), or generated.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use einsparse::einsum::{Access, Einsum, IndexExpr};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, FormatError, allocate, generate, io};
use indicatif::{ProgressBar, ProgressStyle};

use super::Result;
use super::operand::{self, Extent, Fill, Generator, Reading, Source};

/// Memory limits for reading; unset without `--memory`.
static LIMITS: OnceLock<io::Limits> = OnceLock::new();

/// Sets `--memory` for all files, conversions and plans.
pub fn set_memory(bytes: u64) {
    // Set once, before the first file is read.
    let _ = LIMITS.set(io::Limits { bytes, for_each_byte: 0 });
    allocate::set_limits(io::Limits { bytes, ..io::Limits::default() });
}

/// Memory limit for work on a file, as a function of its size.
pub fn limits() -> io::Limits {
    LIMITS.get().copied().unwrap_or_default()
}

/// Maximum size in bytes of arrays over all rows and columns.
pub fn bytes_of_rows(rows: usize, cols: usize) -> u64 {
    24_u64.saturating_mul((rows as u64).saturating_add(cols as u64))
}

/// Returns a message if arrays over all rows and columns exceed their memory limit. The limit depends on `file`, the
/// size of the file in bytes.
pub fn too_many_rows(rows: usize, cols: usize, file: u64) -> Option<String> {
    let (needed, room) = (bytes_of_rows(rows, cols), limits().of(file) / 8 * 3);
    (needed > room).then(|| {
        format!(
            "not counted: arrays of all rows and columns take {needed} bytes, {room} are left for them; `--memory` \
             gives more"
        )
    })
}

/// Adds the name of the operand to an error.
pub fn of_operand<E: std::fmt::Display>(name: &str) -> impl Fn(E) -> String {
    move |error| format!("operand `{name}`: {error}")
}

/// Parses a number of bytes with a unit: `500MB`, `8GB`, `8GiB`, `1000`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err("bytes expected, as 500MB or 8GiB".to_string()),
    };
    let number = text[..end].parse().ok().and_then(|n: u64| n.checked_mul(unit));
    number.ok_or_else(|| "bytes expected, as 500MB or 8GiB".to_string())
}

/// Minimum number of bytes of a file for a progress bar.
const LARGE: u64 = 16 << 20;

/// Value of an operand before it is rounded to the element type.
#[derive(Clone, Debug)]
pub enum Value {
    /// A sparse tensor.
    Sparse(AnySparse<f64>),
    /// A dense tensor.
    Dense(Dense<f64>),
    /// A number.
    Number(f64),
}

impl Value {
    /// Extents; empty for a number.
    pub fn shape(&self) -> &[usize] {
        match self {
            Value::Sparse(sparse) => sparse.shape(),
            Value::Dense(dense) => dense.shape(),
            Value::Number(_) => &[],
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Value::Sparse(sparse) => sparse.values().len() as u64 * 16,
            Value::Dense(dense) => dense.len() as u64 * 8,
            Value::Number(_) => 0,
        }
    }
}

/// Rejects a dense array with inferred extents if it exceeds the memory that is allowed for the product of operands of
/// `held` bytes.
pub fn check_elements(shape: &[usize], held: u64) -> Result<(), FormatError> {
    let product = |n: u128, &extent: &usize| n.saturating_mul(extent as u128);
    let count = shape.iter().fold(1, product);
    allocate::terms("dense elements", count, size_of::<f64>(), held)
}

/// Size in bytes of a file, also if the path names a tensor in it; 0 if the size cannot be read.
pub fn length_of(path: &Path) -> u64 {
    let file = io::Safetensors::split(path).map_or(path, |(file, _)| file);
    std::fs::metadata(file).map_or(0, |facts| facts.len())
}

/// Reads a file. Shows a progress bar on standard error for large files.
pub fn file(path: &Path) -> Result<io::Loaded<f64>> {
    let length = length_of(path);
    if length < LARGE {
        return Ok(io::read_any_within(path, limits(), &mut |_, _| {})?);
    }
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent}% {eta}")
        .map_err(|e| e.to_string())?;
    let bar = ProgressBar::new(2 * length).with_style(style);
    bar.set_message(path.display().to_string());
    let loaded = io::read_any_within(path, limits(), &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(loaded?)
}

/// Generates a sparse operand with seeded normal values, or with the values of the generator.
fn generated(generator: &Generator, seed: u64) -> Result<AnySparse<f64>> {
    let valued = |pattern: CsrPattern| -> Result<AnySparse<f64>> {
        let values = generate::random_values(pattern.columns().len(), seed);
        Ok(Csr::new(pattern, values)?.into())
    };
    match *generator {
        Generator::Uniform([rows, cols], density) => {
            valued(generate::uniform(rows, cols, density, seed)?)
        }
        Generator::Pruned([rows, cols], density) => {
            // Half the mean, as in the Transformer layers of the Deep Learning Matrix Collection.
            let spread = 0.5 * density * cols as f64;
            valued(generate::pruned(rows, cols, density, spread, 0.0, seed)?)
        }
        Generator::Blocks([rows, cols], [bm, bk], density) => {
            let pattern = generate::blocks(rows, cols, (bm, bk), density, seed)?;
            let slots = pattern.columns().len() * bm * bk;
            let blocks =
                einsparse::formats::Bsr::new(pattern, generate::random_values(slots, seed))?;
            // Edge blocks extend past the shape; the conversion to CSR drops elements outside of it.
            Ok(blocks.to_csr()?.into())
        }
        Generator::Rmat(scale, edges) => valued(generate::rmat(scale, edges, seed)?),
        Generator::Banded(rows, entries) => valued(generate::banded(rows, entries)?),
        Generator::Poisson2d([nx, ny]) => Ok(generate::poisson2d(nx, ny)?.into()),
        Generator::ClebschGordan([l1, l2, l3]) => Ok(generate::clebsch_gordan(l1, l2, l3)?.into()),
        Generator::Karate => {
            let pattern = generate::karate();
            let ones = vec![1.0; pattern.columns().len()];
            Ok(Csr::new(pattern, ones)?.into())
        }
        Generator::Example => Ok(example()?.into()),
    }
}

/// Eight nonzeros, 1 to 8, with an empty row, rows of odd and even length, and at most two nonzeros among four adjacent
/// columns.
fn example() -> Result<Csr<f64>> {
    let (offsets, columns) = (vec![0, 2, 2, 5, 8], vec![0, 1, 0, 4, 6, 1, 3, 4]);
    let values = (1..=8).map(f64::from).collect();
    Ok(Csr::new(CsrPattern::new(4, 8, offsets, columns)?, values)?)
}

/// Generates a dense operand. The allocation is checked before values are generated.
fn dense(fill: Fill, shape: Vec<usize>, seed: u64) -> Result<Dense<f64>> {
    let zeros = Dense::zeros(shape.clone())?;
    Ok(match fill {
        Fill::Constant(0.0) => zeros,
        Fill::Constant(x) => zeros.map(|_: f64| x),
        Fill::Random => Dense::new(shape, generate::random_values(zeros.len(), seed))?,
    })
}

/// Loads a file, or a source of [`operand::GRAMMAR`]. Returns the tensor, and its size in bytes for memory limits.
pub fn source(path: &Path, seed: u64) -> Result<(io::Loaded<f64>, u64)> {
    let text = path.display().to_string();
    let source = match path.to_str().map(str::parse) {
        Some(source) => source?,
        None => Source::File(path.into(), Reading::Natural),
    };
    if let Source::Dense(_, extents) = &source
        && extents.contains(&Extent::Inferred)
    {
        return Err(format!("`{text}`: there is no other operand that tells the extent `_`").into());
    }
    let of_file = match &source {
        Source::File(path, _) => length_of(path),
        _ => 0,
    };
    let loaded = match read(&source, known(&source, |_| None), seed)? {
        Value::Sparse(sparse) => io::Loaded::Sparse(sparse),
        Value::Dense(dense) => io::Loaded::Dense(dense),
        Value::Number(_) => return Err(format!("`{text}` is a number, and no tensor").into()),
    };
    let held = match &loaded {
        io::Loaded::Sparse(sparse) => sparse.values().len() as u64 * 32,
        io::Loaded::Dense(dense) => dense.len() as u64 * 8,
    };
    let bytes = if of_file > 0 { of_file } else { held };
    Ok((loaded, bytes))
}

/// Reads a source. Errors name the operand.
fn value(name: &str, source: &Source, shape: Option<Vec<usize>>, seed: u64) -> Result<Value> {
    Ok(read(source, shape, seed).map_err(of_operand(name))?)
}

fn read(source: &Source, shape: Option<Vec<usize>>, seed: u64) -> Result<Value> {
    Ok(match (source, shape) {
        (Source::File(path, reading), _) => match (file(path)?, reading) {
            (loaded, Reading::Dense) => Value::Dense(loaded.into_dense()?),
            (loaded, Reading::Sparse) => Value::Sparse(loaded.into_sparse()?),
            (io::Loaded::Sparse(sparse), Reading::Natural) => Value::Sparse(sparse),
            (io::Loaded::Dense(dense), Reading::Natural) => Value::Dense(dense),
        },
        (Source::Dense(fill, _), Some(shape)) => Value::Dense(dense(*fill, shape, seed)?),
        (Source::Dense(..), None) => return Err("an extent is not known".into()),
        (Source::Sparse(generator), _) => Value::Sparse(generated(generator, seed)?),
        (Source::Number(x), _) => Value::Number(*x),
        (Source::List(values), _) => Value::Dense(Dense::new(vec![values.len()], values.clone())?),
    })
}

/// Loads all operands. Operands with inferred extents are loaded last.
pub fn operands(einsum: &Einsum, texts: &[String], seed: u64) -> Result<Vec<(String, Value)>> {
    let mut loaded: BTreeMap<usize, (String, Value)> = BTreeMap::new();
    let mut waiting = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        let (name, source) = operand::parse(text)?;
        let twice = |n: &String| *n == name;
        if loaded.values().map(|(n, _)| n).any(twice)
            || waiting.iter().map(|(_, n, _)| n).any(twice)
        {
            return Err(format!("operand `{name}` is given twice").into());
        }
        match source {
            Source::Dense(_, ref extents) if extents.contains(&Extent::Inferred) => {
                waiting.push((at, name, source))
            }
            _ => {
                let shape = known(&source, |_| None);
                let value = value(&name, &source, shape, seed.wrapping_add(at as u64))?;
                loaded.insert(at, (name, value));
            }
        }
    }
    let mut extents = BTreeMap::new();
    for (name, value) in loaded.values() {
        note(einsum, name, value.shape(), &mut extents);
    }
    for (at, name, source) in waiting {
        let index = |axis: usize| accesses(einsum, &name).find_map(|a| name_at(a, axis));
        let shape = known(&source, |axis| extents.get(index(axis)?).copied());
        let shape = shape
            .ok_or_else(|| format!("operand `{name}`: no other operand tells its extent `_`"))?;
        let held = loaded.values().map(|(_, value)| value.bytes()).sum();
        check_elements(&shape, held).map_err(of_operand(&name))?;
        let value = value(&name, &source, Some(shape), seed.wrapping_add(at as u64))?;
        loaded.insert(at, (name, value));
    }
    Ok(loaded.into_values().collect())
}

/// Shape of a dense source, with unknown extents from `infer`.
fn known(source: &Source, infer: impl Fn(usize) -> Option<usize>) -> Option<Vec<usize>> {
    let Source::Dense(_, extents) = source else {
        return None;
    };
    let one = |(axis, extent): (usize, &Extent)| match extent {
        Extent::Known(n) => Some(*n),
        Extent::Inferred => infer(axis),
    };
    extents.iter().enumerate().map(one).collect()
}

fn accesses<'a>(einsum: &'a Einsum, name: &'a str) -> impl Iterator<Item = &'a Access> {
    einsum.right().chain([&einsum.out]).filter(move |access| access.tensor == name)
}

fn name_at(access: &Access, axis: usize) -> Option<&str> {
    match access.indices.get(axis)? {
        IndexExpr::Name(name) => Some(name),
        IndexExpr::Access(_) | IndexExpr::Sum(_) => None,
    }
}

/// Records the extents of index names that follow from an operand's shape. Disagreements are detected later.
fn note<'a>(
    einsum: &'a Einsum,
    name: &str,
    shape: &[usize],
    extents: &mut BTreeMap<&'a str, usize>,
) {
    let mut visit = |access: &'a Access| {
        if access.tensor != name {
            return;
        }
        for (axis, &extent) in shape.iter().enumerate() {
            if let Some(index) = name_at(access, axis) {
                extents.entry(index).or_insert(extent);
            }
        }
    };
    einsum.out.for_each_access(&mut visit);
    einsum.right().for_each(|access| access.for_each_access(&mut visit));
}
