//! Sources of operands: `NAME=SOURCE`.

use std::path::PathBuf;
use std::str::FromStr;

use einsparse::formats::io::Safetensors;

use super::Result;

/// Grammar, for `--help`.
pub const GRAMMAR: &str = "\
Operands, NAME=SOURCE:
  A=FILE                      .mtx .smtx .npz: sparse; .npy and .mtx arrays: dense
  A=FILE.safetensors:TENSOR   dense; without :TENSOR the only tensor of the file
  A=dense:FILE  A=sparse:FILE the same, read as dense or as sparse
  B=random:RxC[x..]           dense, standard normal; also ones:RxC, zeros:RxC.
                              `_` for an extent that another operand tells: random:_x64
  x=2.5                       a number
  I=list:0,2,1                a short vector (or index array)
  A=uniform:RxC:DENSITY       sparse, made up; also pruned:RxC:DENSITY (rows as uneven as in
                              pruned weights), blocks:RxC:BxB:DENSITY, rmat:SCALE[:EDGES],
                              banded:N:ENTRIES, poisson2d:XxY, clebsch-gordan:L1xL2xL3, karate,
                              example (4 x 8, for pictures)

Formats: coo csr csc ell sell bsr:RxC groupcoo[:G][@AXIS] blockcoo:RxC blockgroupcoo:RxC[:G]
         nm:2:4 bitmap bytemap, or auto";

/// One extent of a generated dense operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A number.
    Known(usize),
    /// Inferred from the other operands.
    Inferred,
}

/// Values of a generated dense operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Standard normal values.
    Random,
    /// Constant value.
    Constant(f64),
}

/// Form in which a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Form of the file.
    Natural,
    /// Dense: every element.
    Dense,
    /// Sparse: the nonzeros.
    Sparse,
}

/// Generated sparse pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum Generator {
    /// Equal probability for all positions.
    Uniform([usize; 2], f64),
    /// Row lengths of pruned weights.
    Pruned([usize; 2], f64),
    /// Blocks at random positions.
    Blocks([usize; 2], [usize; 2], f64),
    /// Graph500 graph: scale, and edges per vertex.
    Rmat(u32, usize),
    /// Square band matrix.
    Banded(usize, usize),
    /// Five-point Laplacian.
    Poisson2d([usize; 2]),
    /// Coupling coefficients of three angular momenta, a tensor of order 3.
    ClebschGordan([usize; 3]),
    /// Zachary's karate club.
    Karate,
    /// Matrix that is small enough to be printed.
    Example,
}

/// Source of an operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// File.
    File(PathBuf, Reading),
    /// Generated dense operand.
    Dense(Fill, Vec<Extent>),
    /// Generated sparse operand.
    Sparse(Generator),
    /// Number.
    Number(f64),
    /// Short vector.
    List(Vec<f64>),
}

/// Splits `NAME=SOURCE`.
pub fn parse(text: &str) -> Result<(String, Source)> {
    let (name, source) =
        text.split_once('=').ok_or_else(|| format!("operand `{text}`: NAME=SOURCE expected"))?;
    let name = name.trim();
    if name.is_empty() {
        return Err(format!("operand `{text}` has no name").into());
    }
    let source = source.trim().parse().map_err(|reason| format!("operand `{name}`: {reason}"))?;
    Ok((name.to_string(), source))
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse::<f64>() {
            return Ok(Source::Number(number));
        }
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let parts: Vec<&str> = rest.split(':').collect();
        let source = match (kind, &parts[..]) {
            ("random", [shape]) => Source::Dense(Fill::Random, extents(shape)?),
            ("ones", [shape]) => Source::Dense(Fill::Constant(1.0), extents(shape)?),
            ("zeros", [shape]) => Source::Dense(Fill::Constant(0.0), extents(shape)?),
            ("dense", _) => Source::File(rest.into(), Reading::Dense),
            ("sparse", _) => Source::File(rest.into(), Reading::Sparse),
            ("list", [numbers]) => {
                Source::List(numbers.split(',').map(number).collect::<Result<_, _>>()?)
            }
            _ => match generator(kind, &parts)? {
                Some(generator) => Source::Sparse(generator),
                None => file(text)?,
            },
        };
        Ok(source)
    }
}

/// Returns the generator of this name, or `None` for an unknown name.
fn generator(kind: &str, parts: &[&str]) -> Result<Option<Generator>, String> {
    Ok(Some(match (kind, parts) {
        ("uniform", [shape, density]) => Generator::Uniform(sizes(shape)?, number(density)?),
        ("pruned", [shape, density]) => Generator::Pruned(sizes(shape)?, number(density)?),
        ("blocks", [shape, block, density]) => {
            Generator::Blocks(sizes(shape)?, sizes(block)?, number(density)?)
        }
        ("rmat", [scale]) => Generator::Rmat(number(scale)?, 16),
        ("rmat", [scale, edges]) => Generator::Rmat(number(scale)?, number(edges)?),
        ("banded", [rows, entries]) => Generator::Banded(size(rows)?, size(entries)?),
        ("poisson2d", [shape]) => Generator::Poisson2d(sizes(shape)?),
        ("clebsch-gordan", [degrees]) => Generator::ClebschGordan(sizes(degrees)?),
        ("karate", [""]) => Generator::Karate,
        ("example", [""]) => Generator::Example,
        (
            "uniform" | "pruned" | "blocks" | "rmat" | "banded" | "poisson2d" | "clebsch-gordan"
            | "karate" | "example" | "random" | "ones" | "zeros" | "list",
            _,
        ) => {
            return Err(format!("`{kind}` takes other parameters than `{}`", parts.join(":")));
        }
        _ => return Ok(None),
    }))
}

fn file(text: &str) -> Result<Source, String> {
    let path = PathBuf::from(text);
    let known = ["mtx", "smtx", "npz", "npy"];
    let extension =
        path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    if known.contains(&extension.as_str()) || Safetensors::split(&path).is_some() {
        return Ok(Source::File(path, Reading::Natural));
    }
    Err(format!(
        "`{text}` is neither a number, nor a file with the extension .mtx, .smtx, .npz, .npy or .safetensors[:TENSOR], \
         nor a source such as random:4x5 (`einsparse run --help` lists them)"
    ))
}

fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a valid number for this argument"))
}

/// Parses an extent. Patterns store extents as u32.
fn size(text: &str) -> Result<usize, String> {
    number::<u32>(text).map(|n| n as usize)
}

fn sizes<const N: usize>(text: &str) -> Result<[usize; N], String> {
    let all: Vec<usize> = text.split('x').map(size).collect::<Result<_, _>>()?;
    all.try_into().map_err(|_| format!("`{text}`: {N} sizes joined by x wanted"))
}

fn extents(text: &str) -> Result<Vec<Extent>, String> {
    let one = |part| match part {
        "_" => Ok(Extent::Inferred),
        _ => size(part).map(Extent::Known),
    };
    text.split('x').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse() {
        let source = |text: &str| text.parse::<Source>();
        assert_eq!(source("2.5"), Ok(Source::Number(2.5)));
        assert_eq!(source("a/b.mtx"), Ok(Source::File("a/b.mtx".into(), Reading::Natural)));
        assert_eq!(source("dense:b.npz"), Ok(Source::File("b.npz".into(), Reading::Dense)));
        let extents = vec![Extent::Inferred, Extent::Known(64)];
        assert_eq!(source("random:_x64"), Ok(Source::Dense(Fill::Random, extents)));
        assert_eq!(source("rmat:10"), Ok(Source::Sparse(Generator::Rmat(10, 16))));
        assert_eq!(
            source("blocks:64x32:16x8:0.5"),
            Ok(Source::Sparse(Generator::Blocks([64, 32], [16, 8], 0.5)))
        );
        assert_eq!(source("list:1,2"), Ok(Source::List(vec![1.0, 2.0])));
        for name in ["m.safetensors", "M.SafeTensors:a.safetensors"] {
            assert_eq!(source(name), Ok(Source::File(name.into(), Reading::Natural)));
        }
        for wrong in [
            "",
            "m.safetensor:w",
            "a.txt",
            "random",
            "random:4y5",
            "uniform:4x5",
            "uniform:4:0.1",
            "rmat:x",
            "random:99999999999",
        ] {
            let error = source(wrong).expect_err(wrong);
            assert!(!error.is_empty() && !error.contains('\n'), "{wrong}: {error}");
        }
        assert!(parse("A").is_err() && parse("=1").is_err());
    }
}
