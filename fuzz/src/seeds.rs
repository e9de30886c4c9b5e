//! Valid inputs to start from. They are computed, because the project contains no data files.

use std::io::{Cursor, Write};

use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// Inputs of the target, and pieces of text that its parser recognizes.
pub fn seeds(target: &str) -> (Vec<Vec<u8>>, &'static [&'static str]) {
    match target {
        "matrix_market" => (matrix_market(), &MARKET_WORDS),
        "smtx" => (smtx(), &["0 ", "4294967295", ", ", "\n", "-1", "\r\n", "18446744073709551616"]),
        "npy" => (npy(), &NUMPY_WORDS),
        "npz" => (npz(), &NUMPY_WORDS),
        "safetensors" => (safetensors(), &TENSOR_WORDS),
        "format" => (crate::conversions::FORMATS.map(|f| f.into()).to_vec(), &FORMAT_WORDS),
        "einsum" => (einsum(), &EINSUM_WORDS),
        _ => ((0..8).map(random).collect(), &[]),
    }
}

const MARKET_WORDS: [&str; 26] = [
    "coordinate",
    "array",
    "real",
    "integer",
    "pattern",
    "general",
    "symmetric",
    "skew-symmetric",
    "complex",
    "hermitian",
    "%",
    "\n",
    "\r\n",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e400",
    "-1e-400",
    "nan",
    "-inf",
    "0",
    "1 1\n",
    "1 1 1\n",
    " ",
    "\u{feff}",
];

const NUMPY_WORDS: [&str; 30] = [
    "'<f8'",
    "'>f4'",
    "'|i1'",
    "'<i8'",
    "'>u2'",
    "'|b1'",
    "'|S3'",
    "'<U3'",
    "'|O'",
    "'<f2'",
    "True",
    "False",
    "(2,)",
    "()",
    "(0,)",
    "(4294967296, 0)",
    "(1099511627776,)",
    "(2, 2, 2)",
    "'shape': ",
    "18446744073709551615",
    "\u{93}NUMPY",
    "\u{1}\0",
    "\u{2}\0",
    "csr",
    "csc",
    "coo",
    "bsr",
    "PK\u{1}\u{2}",
    "PK\u{3}\u{4}",
    "PK\u{5}\u{6}",
];

const TENSOR_WORDS: [&str; 16] = [
    "\"dtype\":",
    "\"shape\":",
    "\"data_offsets\":",
    "\"__metadata__\":",
    "\"F32\"",
    "\"F16\"",
    "\"BF16\"",
    "\"F64\"",
    "\"I64\"",
    "[0,4]",
    "[]",
    "{}",
    ",",
    "18446744073709551615",
    "\\ud83d\\ude00",
    "\0\0\0\0",
];

const FORMAT_WORDS: [&str; 9] =
    [":", "x", "@", "1", "0", "4294967296", "groupcoo", "bsr", "nm:2:4"];

const EINSUM_WORDS: [&str; 24] = [
    "[",
    "]",
    ",",
    " * ",
    " + ",
    " = ",
    " += ",
    "relu(",
    "gelu(",
    "relu_grad(",
    ")",
    "A[m,k]",
    "I[p]",
    "2*x+i",
    "bias[m]",
    "0.5",
    "-3",
    "1e308",
    "1e999",
    "C",
    "[[",
    "[A[A[A[A[A[",
    "99999999999999999999*x",
    "\u{e9}",
];

fn matrix_market() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for symmetry in ["general", "symmetric", "skew-symmetric"] {
        let entries = "2 1 1.5\n3 1 -2\n4 3 8\n";
        all.push(format!(
            "%%MatrixMarket matrix coordinate real {symmetry}\n% x\n4 4 3\n{entries}"
        ));
        all.push(format!("%%MatrixMarket matrix array integer {symmetry}\n2 2\n1\n"));
    }
    all.push(
        "%%MatrixMarket matrix coordinate pattern symmetric\n9 9 4\n3 1\n2 2\n1 3\n9 8\n".into(),
    );
    all.push("%%MatrixMarket matrix array real general\n3 2\n1\n2\n3\n4\n5\n6\n".into());
    all.push("%%MatrixMarket matrix coordinate pattern general\n4294967295 3 1\n7 2\n".into());
    all.into_iter().map(String::into_bytes).collect()
}

fn smtx() -> Vec<Vec<u8>> {
    let all = ["4, 5, 6\n0 2 3 5 6 \n0 3 2 1 4 0 \n", "1, 1, 0\n0 0\n\n", "0, 7, 0\n0\n\n"];
    all.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn array(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    bytes
}

fn npy() -> Vec<Vec<u8>> {
    vec![
        array("<f8", false, "(2, 2)", &[63; 32]),
        array(">f4", true, "(2, 3, 2)", &[64; 48]),
        array("|i1", false, "(6,)", &[1, 2, 3, 4, 5, 255]),
        array("<f2", true, "(3, 2)", &[60; 12]),
        array("|b1", false, "()", &[1]),
        array("|S3", false, "()", b"csr"),
        array("<u8", false, "(0, 4)", b""),
    ]
}

fn safetensors() -> Vec<Vec<u8>> {
    let file = |header: &str, data: usize| {
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], header.as_bytes(), &vec![60; data]].concat()
    };
    vec![
        file("{}", 0),
        file(r#"{"w":{"dtype":"F32","shape":[4294967295,0],"data_offsets":[0,0]}}"#, 0),
        file(r#"{"w":{"dtype":"F32","shape":[0,4294967295],"data_offsets":[0,0]}}"#, 0),
        file(r#"{"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#, 12),
        file(
            r#"{"__metadata__":{"a\n":"b"}, "w": {"dtype": "BF16", "shape": [1], "data_offsets": [4, 6]},
                "v\ud83d\ude00": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}  "#,
            6,
        ),
        file(
            r#"{"x":{"shape":[],"data_offsets":[0,8],"dtype":"F64"},"y":{"dtype":"I64","shape":[0],"data_offsets":[8,8]}}"#,
            8,
        ),
    ]
}

fn npz() -> Vec<Vec<u8>> {
    let words = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let list =
        |values: &[i32]| array("<i4", false, &format!("({},)", values.len()), &words(values));
    let floats = |count: usize, shape: &str| {
        let values: Vec<u8> = (0..count).flat_map(|v| (v as f32 - 1.5).to_le_bytes()).collect();
        array("<f4", false, shape, &values)
    };
    let shape = array("<i8", false, "(2,)", &[4_i64, 6].map(i64::to_le_bytes).concat());
    let offsets = |values: &[i32]| vec![("indptr", list(values))];
    let mut all = Vec::new();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let coo = vec![
            ("row", list(&[3, 0, 1, 0])),
            ("col", list(&[1, 5, 2, 0])),
            ("data", floats(4, "(4,)")),
        ];
        let compressed = |at: &[i32]| {
            let mut members = offsets(at);
            members.extend([("indices", list(&[1, 0, 3, 2])), ("data", floats(4, "(4,)"))]);
            members
        };
        let mut bsr = offsets(&[0, 2, 3]);
        bsr.extend([("indices", list(&[2, 0, 1])), ("data", floats(12, "(3, 2, 2)"))]);
        let at = [3, 0, 1, 0, 1, 5, 2, 0];
        let coords = vec![
            ("coords", array("<i4", false, "(2, 4)", &words(&at))),
            ("data", floats(4, "(4,)")),
        ];
        let dia = vec![("offsets", list(&[-1, 2])), ("data", floats(10, "(2, 5)"))];
        let kinds = [
            ("coo", coo),
            ("coo", coords),
            ("dia", dia),
            ("csr", compressed(&[0, 2, 2, 3, 4])),
            ("csc", compressed(&[0, 2, 2, 3, 4, 4, 4])),
            ("bsr", bsr),
        ];
        for (format, members) in kinds {
            let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
            let options = SimpleFileOptions::default().compression_method(method);
            let text = array("|S3", false, "()", format.as_bytes());
            let named = [("shape", shape.clone()), ("format", text)];
            let all_members: Vec<_> = named.into_iter().chain(members).collect();
            for (name, bytes) in &all_members {
                zip.start_file(format!("{name}.npy"), options).expect("memory takes all");
                zip.write_all(bytes).expect("memory takes all");
            }
            all.push(zip.finish().expect("memory takes all").into_inner());
            // The members without the archive. Mutations of them still give a valid archive.
            all.push(crate::readers::joined(&all_members));
        }
    }
    all
}

fn einsum() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = crate::plans::TEXTS.map(|text| text.into()).to_vec();
    // Nesting deeper than any stack.
    all.push(format!("C[m] = {}m{}", "A[".repeat(100_000), "]".repeat(100_000)).into_bytes());
    all.push(format!("C[m] = {}A[m]", "A[m] * ".repeat(200)).into_bytes());
    all.push(format!("C[m] = A[{}]", vec!["m"; 200].join(",")).into_bytes());
    all.push(format!("C[m] = A[{}m]", "x+".repeat(200)).into_bytes());
    all.push(b"C[m,n] = gelu(3 * s * A[m,k] * B[k,n] + bias[n])".to_vec());
    all
}

/// Random choices for targets that generate their own input.
fn random(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..160).map(byte).collect()
}
