//! Files of named tensors: they are listed, and one of their tensors is converted and run.

use std::fs;
use std::path::Path;

use einsparse::formats::io;

use crate::{fails, folder, works, works_spmm};

/// Writes a model: a 2:4 matrix of f16 (32 x 64), integers, a tensor of three axes, an empty tensor, and an unsupported
/// matrix.
fn model(path: &Path) {
    let header = r#"{"layer.weight":{"dtype":"F16","shape":[32,64],"data_offsets":[0,4096]},
        "step":{"dtype":"I64","shape":[],"data_offsets":[4096,4104]},
        "conv":{"dtype":"F32","shape":[2,1,1],"data_offsets":[4104,4112]},
        "empty":{"dtype":"F32","shape":[0,3],"data_offsets":[4112,4112]},
        "wide":{"dtype":"F32","shape":[0,4294967296],"data_offsets":[4112,4112]}}"#;
    let value = |at: usize| if at % 4 < 2 { [0, 0x3c] } else { [0, 0] };
    let weight: Vec<u8> = (0..32 * 64).flat_map(value).collect();
    let length = (header.len() as u64).to_le_bytes();
    let all = [&length[..], header.as_bytes(), &weight, &[0; 12], &[0, 0, 0x80, 0x3f]].concat();
    fs::write(path, all).expect("a file");
}

#[test]
fn tensors_of_a_model_are_listed_and_converted() {
    let folder = folder("model");
    let place = |name: &str| folder.join(name).display().to_string();
    let (file, npz) = (place("model.safetensors"), place("w.npz"));
    model(Path::new(&file));
    let out = works(&["inspect", &file]);
    let line = |name: &str| out.lines().find(|l| l.starts_with(name)).expect(name);
    for word in ["F16", "[32, 64]", "5.00e-1", "yes", "bsr:"] {
        assert!(line("layer.weight").contains(word), "{word}: {out}");
    }
    assert!(line("step").contains("type `I64` is not read"), "{out}");
    assert!(line("conv").contains("[2, 1, 1]   5.00e-1  -"), "{out}");
    assert!(line("empty").contains("0.00e0"), "{out}");
    assert!(line("wide").contains("not counted"), "{out}");
    let spy = place("spy.svg");
    assert!(fails(&["inspect", &file, "--spy", &spy]).contains("--spy draws one tensor"));
    works(&["inspect", &format!("{file}:layer.weight"), "--spy", &spy]);
    let out = works(&["inspect", &file, "--memory", "1TB"]);
    let wide = out.lines().find(|l| l.starts_with("wide")).expect("wide");
    assert!(wide.contains("4294967296"), "{out}");
    let weight = format!("{file}:layer.weight");
    let out = works(&["convert", &weight, &npz, "--format", "bsr:16x16", "--dtype", "f32"]);
    assert!(out.contains("bsr:16x16 [32, 64]"), "{out}");
    let read = io::read_any::<f32>(&npz).expect("a matrix").to_csr();
    assert_eq!(read.expect("a matrix").nnz(), 1024);
    assert!(works(&["inspect", &weight]).contains("32 x 64, 1024 entries"));
    let operands = format!("A={weight} B=random:_x8 --device cpu --check");
    assert!(works_spmm("run", &operands).contains("0 of 256"));
    assert!(fails(&["convert", &file, &npz]).contains("5 tensors: name one"));
    assert!(fails(&["inspect", &format!("{file}:x")]).contains("no such tensor"));
}
