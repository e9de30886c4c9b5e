//! Files of named tensors: their contents, and corrupted files, which are refused with position and numbers.

use einsparse_formats::io::*;
use einsparse_formats::{Dense, FormatError, bf16, f16};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

/// Creates a file: the length of the header, the header, then the data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), data].concat()
}

fn open(bytes: &[u8]) -> Result<Safetensors<Cursor<&[u8]>>, FormatError> {
    Safetensors::new(Cursor::new(bytes), "model")
}

/// Fields of a tensor.
fn tensor(name: &str, dtype: &str, shape: &str, from: usize, to: usize) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{from},{to}]}}"#)
}

/// Three types with two elements each, and one unsupported type.
fn sound() -> Vec<u8> {
    let tensors = [
        r#""__metadata__": {"format": "pt", "by": "\"\u00e9\""}"#.to_owned(),
        tensor("half", "F16", "1, 2", 8, 12),
        tensor("a.weight", "F32", "2", 0, 8),
        tensor(r"b\n\ud83d\ude00", "BF16", "2,1", 12, 16),
        tensor("empty", "F32", "0,18446744073709551615", 16, 16),
        tensor("step", "I64", "", 16, 24),
    ];
    let header = format!("{{{}}}  ", tensors.join(",\n"));
    let words = [f16::from_f32(-0.5), f16::from_f32(65504.0)].map(|x| x.to_bits());
    let bfloats = [bf16::from_f32(3.0), bf16::INFINITY].map(|x| x.to_bits());
    let mut data = [1.5_f32, f32::MIN_POSITIVE].map(f32::to_le_bytes).concat();
    data.extend([words, bfloats].concat().iter().flat_map(|w| w.to_le_bytes()));
    data.extend(7_u64.to_le_bytes());
    file(&header, &data)
}

#[test]
fn tensors_are_listed_and_read() {
    let bytes = sound();
    let mut model = open(&bytes).unwrap();
    let names: Vec<&str> = model.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a.weight", "half", "b\n\u{1f600}", "empty", "step"]);
    assert_eq!(model.tensors()[1].shape, [1, 2]);
    assert_eq!((&*model.tensors()[4].dtype, &model.tensors()[4].bytes), ("I64", &(16..24)));
    let read = |model: &mut Safetensors<_>, name: &str| model.read::<f32>(name).unwrap();
    let weight = read(&mut model, "a.weight");
    assert_eq!(weight, Dense::new([2], vec![1.5, f32::MIN_POSITIVE]).unwrap());
    assert_eq!(read(&mut model, "half").values(), [-0.5, 65504.0]);
    assert_eq!(read(&mut model, "b\n\u{1f600}").values(), [3.0, f32::INFINITY]);
    assert!(read(&mut model, "empty").is_empty());
}

#[test]
fn what_cannot_be_read_is_named() {
    let bytes = sound();
    let mut model = open(&bytes).unwrap();
    let step = model.read::<f32>("step").unwrap_err().to_string();
    assert_eq!(step, "model (`step`): type `I64` is not read: F64, F32, F16 and BF16 are");
    let none = model.read::<f32>("c").unwrap_err().to_string();
    assert_eq!(none, "model (`c`): no such tensor: there are 5, the first is `a.weight`");
    let large =
        file(&format!("{{{}}}", tensor("x", "F32", "2", 0, 8)), &[0, 0, 0, 0, 0, 0, 128, 71]);
    let error = open(&large).unwrap().read::<f16>("x").unwrap_err().to_string();
    assert_eq!(error, "model (`x`[1]): value 6.5536e4 is out of the range of f16");
    let none = open(&file("{}", &[])).unwrap().read::<f32>("a");
    assert_eq!(none.unwrap_err().to_string(), "model (`a`): it holds no tensor");
    let none = model.read_at::<f32>(5).unwrap_err().to_string();
    assert!(none.contains("(`5`): no such tensor: there are 5"), "{none}");
    let limits = Limits { bytes: 4, for_each_byte: 0 };
    let error = Safetensors::within(Cursor::new(&bytes[..]), "model", limits).unwrap_err();
    assert!(error.to_string().contains("over the limit of 4"), "{error}");
}

#[test]
fn paths_name_a_tensor() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("paths.SafeTensors");
    std::fs::write(&path, sound()).unwrap();
    let of = |tensor: &str| read_any::<f32>(format!("{}{tensor}", path.display()));
    let split = |name| Safetensors::split(Path::new(name));
    for (name, file, tensor) in [
        ("m.safetensors", "m.safetensors", None),
        ("a/m.SAFETENSORS", "a/m.SAFETENSORS", None),
        ("m.safetensors:w", "m.safetensors", Some("w")),
        ("M.Safetensors:w", "M.Safetensors", Some("w")),
        ("m.safetensors:", "m.safetensors", Some("")),
        ("m.safetensors:a.safetensors", "m.safetensors", Some("a.safetensors")),
        ("m.safetensors:a.safetensors:b", "m.safetensors", Some("a.safetensors:b")),
        ("a:b/m.safetensors", "a:b/m.safetensors", None),
    ] {
        assert_eq!(split(name), Some((Path::new(file), tensor)), "{name}");
    }
    assert_eq!(split("safetensors").or(split("m.npz:w")), None);
    let mut told = Vec::new();
    let weight = format!("{}:a.weight", path.display());
    read_any_with::<f32>(weight, &mut |done, total| told.push((done, total))).unwrap();
    assert_eq!(told.last(), Some(&(8, 8)));
    let Loaded::Dense(half) = of(":half").unwrap() else {
        panic!("a dense array");
    };
    assert_eq!(half.shape(), [1, 2]);
    let error = of("").unwrap_err().to_string();
    assert!(error.ends_with("5 tensors: name one behind a colon"), "{error}");
    assert!(of(":c").unwrap_err().to_string().contains("no such tensor"));
    std::fs::write(&path, file(&format!("{{{}}}", tensor("x", "F16", "1,1", 0, 2)), &[0; 2]))
        .unwrap();
    assert_eq!(of("").unwrap().shape(), [1, 1]);
    std::fs::remove_file(&path).unwrap();
}

/// Tensors whose order in the header differs from that of their data.
fn doubles() -> Vec<u8> {
    let tensors = [tensor("b", "F64", "1", 8, 16), tensor("a", "F64", "1", 0, 8)];
    let data = [1e300_f64, -0.1].map(f64::to_le_bytes).concat();
    file(&format!("{{{}}}", tensors.join(",")), &data)
}

#[test]
fn doubles_are_read_in_any_order() {
    let bytes = doubles();
    let mut model = open(&bytes).unwrap();
    let names: Vec<&str> = model.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(model.read::<f64>("b").unwrap().values(), [-0.1]);
    assert_eq!(model.read_at::<f64>(0).unwrap().values(), [1e300]);
    let over = model.read::<f32>("a").unwrap_err().to_string();
    assert_eq!(over, "model (`a`[0]): value 1e300 is out of the range of f32");
    assert_eq!(model.read::<i8>("a").unwrap().values(), [127]);
}

/// A file whose reported length exceeds its content.
#[derive(Debug)]
struct Shrunk<'a>(Cursor<&'a [u8]>, u64);

impl Read for Shrunk<'_> {
    fn read(&mut self, block: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(block)
    }
}

impl Seek for Shrunk<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        match to {
            SeekFrom::End(0) => Ok(self.1),
            to => self.0.seek(to),
        }
    }
}

#[test]
fn a_file_that_shrinks_is_refused() {
    let bytes = doubles();
    let cut = |by: usize| Shrunk(Cursor::new(&bytes[..bytes.len() - by]), bytes.len() as u64);
    let mut model = Safetensors::new(cut(3), "model").unwrap();
    assert_eq!(model.read::<f64>("a").unwrap().values(), [1e300]);
    let error = model.read::<f64>("b").unwrap_err().to_string();
    assert_eq!(error, "model (`b`): cut off: 5 of 8 bytes of data");
    let header = bytes.len() - 24;
    let error = Safetensors::new(cut(17), "model").unwrap_err().to_string();
    let says = format!("model (header): cut off: {} of {header} bytes", header - 1);
    assert_eq!(error, says);
}

#[test]
fn a_tensor_has_a_limit() {
    let bytes = file(&format!("{{{}}}", tensor("x", "BF16", "500", 0, 1000)), &[0; 1000]);
    let of = |bytes_limit| {
        let limits = Limits { bytes: bytes_limit, for_each_byte: 0 };
        Safetensors::within(Cursor::new(&bytes[..]), "model", limits)
            .and_then(|mut model| model.read::<f64>("x"))
    };
    // 500 f64 values, and one buffer of the file.
    assert_eq!(of(5000).unwrap().len(), 500);
    let error = of(4999).unwrap_err().to_string();
    assert!(error.starts_with("model (`x`): 500 elements take 4000 bytes, 5000 in all"), "{error}");
}

/// Header and number of data bytes of a corrupted file, and a part of its error.
#[rustfmt::skip]
const BROKEN: [(&str, usize, &str); 36] = [
    ("", 0, "(header): byte 0: `{` expected, `` found"),
    ("[]", 0, "byte 0: `{` expected, `[]` found"),
    (" {}", 0, "byte 0: `{` expected, ` {}` found"),
    (r#"{"a""#, 0, "(`a`): line 1, column 4: EOF while parsing an object"),
    (r#"{"a"#, 0, "line 1, column 3: EOF while parsing a string"),
    (r#"{"\x"#, 0, "line 1, column 4: invalid escape"),
    (r#"{"\ud800\u0041": {}}"#, 0, "line 1, column 14: lone leading surrogate in hex escape"),
    ("{} {", 0, "line 1, column 4: trailing characters"),
    (r#"{"a": {}}"#, 0, "(`a`): line 1, column 8: dtype is missing"),
    (r#"{"a": {"dtype": "F32", "shape": []}}"#, 0, "(`a`): line 1, column 35: data_offsets is missing"),
    (r#"{"a": {"dtype": "F32", "dtype": "F32"}}"#, 0, "dtype is given twice"),
    (r#"{"a": {"type": "F32"}}"#, 0, "field `type` is none of"),
    (r#"{"a": {"dtype": 4}}"#, 0, "(`a`): line 1, column 17: invalid type: integer `4`, expected a string"),
    (r#"{"a": {"shape": [2, -3]}}"#, 0, "line 1, column 22: invalid value: integer `-3`, expected usize"),
    (r#"{"a": {"shape": [2.0]}}"#, 0, "line 1, column 20: invalid type: floating point"),
    (r#"{"a": {"shape": [18446744073709551616]}}"#, 0, "line 1, column 37: invalid type: floating point"),
    (r#"{"a": {"shape": [[[["#, 0, "line 1, column 17: invalid type: sequence, expected usize"),
    (r#"{"a": {"shape": null}}"#, 0, "invalid type: null, expected a sequence"),
    (r#"{"a": ["F32", [1], [0, 4]]}"#, 4,
        "invalid type: sequence, expected an object of dtype, shape and data_offsets"),
    (r#"{"a": null}"#, 0, "invalid type: null, expected an object"),
    (r#"{"a": {"dtype":"F32","shape":[1],"data_offsets":[0]}}"#, 4, "invalid length 1, expected a tuple of size 2"),
    (r#"{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}"#, 4,
        "(`a`): line 1, column 54: trailing characters"),
    (r#"{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]},}"#, 4, "trailing comma"),
    (r#"{"a": {"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4,
        "data_offsets 4 to 0 do not lie within the 4 bytes"),
    (r#"{"a": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 7,
        "data_offsets 0 to 8 do not lie within the 7 bytes"),
    (r#"{"a": {"dtype":"F16","shape":[2,2],"data_offsets":[0,6]}}"#, 6,
        "F16 [2, 2] takes 8 bytes, data_offsets 0 to 6 hold 6"),
    (r#"{"a": {"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, 0,
        "takes 73786976294838206464 bytes"),
    (r#"{"a": {"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#, 4, "9 axes, 8 at most"),
    (r#"{"a": {"dtype":"U8","shape":[3],"data_offsets":[0,3]}, "b": {"dtype":"U8","shape":[3],"data_offsets":[2,5]}}"#,
        5,
        "(`b`): data_offsets 2 to 5 overlap 0 to 3 of `a`"),
    (r#"{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "b": {"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#,
        3,
        "model: bytes 1 to 2 of the data belong to no tensor"),
    (r#"{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 3, "bytes 1 to 3 of the data belong to no tensor"),
    (r#"{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": {"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
        2,
        "(`a`): is there twice"),
    (r#"{"__metadata__": {"a": {}}}"#, 0, "(`__metadata__`): line 1, column 23: invalid type: map, expected a string"),
    (r#"{"__metadata__": ["a"]}"#, 0, "invalid type: sequence, expected an object of texts"),
    (r#"{"__metadata__": {}, "__metadata__": {}}"#, 0, "(`__metadata__`): line 1, column 35: is there twice"),
    ("{\"a\nb\": {}}", 0, "line 2, column 0: control character"),
];

#[test]
fn broken_files_are_refused() {
    for (header, data, says) in BROKEN {
        let error = open(&file(header, &vec![0; data])).unwrap_err().to_string();
        assert!(error.starts_with("model") && error.contains(says), "{header}\n{error}\n{says}");
        assert!(!error.contains('\n') && error.len() < 400, "{error}");
    }
    let sound = sound();
    for length in 0..sound.len() {
        let error = open(&sound[..length]).unwrap_err().to_string();
        assert!(error.len() < 400, "{length}: {error}");
    }
    let refused = |bytes: &[u8]| open(bytes).unwrap_err().to_string();
    assert_eq!(refused(&sound[..5]), "model: 5 bytes: shorter than the 8 of the header's length");
    let cut = refused(&sound[..20]);
    assert!(cut.contains("bytes, 12 are left in the file"), "{cut}");
    let huge = refused(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    assert_eq!(huge, "model (header): 18446744073709551615 bytes, 2 are left in the file");
    let latin = refused(&[&4_u64.to_le_bytes()[..], b"{\"\xe9\""].concat());
    assert!(latin.contains("(header): line 1, column 3: invalid unicode code point"), "{latin}");
}

#[test]
fn a_header_past_the_limit_is_not_read() {
    // A sparse file of zeros, which takes no space on disk.
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("huge.safetensors");
    let length = 100_000_001_u64;
    std::fs::write(&path, length.to_le_bytes()).unwrap();
    let sparse = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    sparse.set_len(8 + length).unwrap();
    let error = Safetensors::open(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.ends_with("(header): 100000001 bytes, 100000000 at most"), "{error}");
}
