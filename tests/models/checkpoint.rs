//! Models whose weights are read from `.safetensors` files, which the tests write.

use std::path::PathBuf;

use super::all::checkpoint::Checkpoint;
use super::all::common::{Arguments, Run};
use super::all::mobilenet_weights::{DENSITY, Sizes, images, layers, reference};
use super::all::pruned::Shape;
use super::all::{decode, encoder, mobilenet};
use einsparse::formats::{Csr, bf16, generate};
use einsparse::{Context, Error, Precision};

/// Names, shapes and values of tensors.
#[derive(Clone, Default)]
struct Tensors(Vec<(String, Vec<usize>, Vec<f32>)>);

impl Tensors {
    /// Adds seeded values of this size around a value.
    fn add(&mut self, name: &str, shape: &[usize], (size, around): (f32, f32)) {
        let count = shape.iter().product();
        let values = generate::random_values::<f32>(count, self.0.len() as u64);
        // Values are rounded to bf16, which f32 represents exactly.
        let values = values.iter().map(|x| bf16::from_f32(around + size * x).to_f32());
        self.0.push((name.into(), shape.to_vec(), values.collect()));
    }

    fn values(&self, name: &str) -> &[f32] {
        let own = self.0.iter().find(|(own, ..)| own == name);
        &own.unwrap_or_else(|| panic!("{name}")).2
    }

    /// Writes a separate file, in f32.
    fn write(&self, name: &str) -> PathBuf {
        let (mut fields, mut data) = (Vec::new(), Vec::new());
        for (name, shape, values) in &self.0 {
            let from = data.len();
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            let to = data.len();
            fields.push(format!(
                r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{to}]}}"#
            ));
        }
        let header = format!("{{{}}}", fields.join(","));
        let length = (header.len() as u64).to_le_bytes();
        let path = std::env::temp_dir();
        let path = path.join(format!("einsparse-{}-{name}.safetensors", std::process::id()));
        std::fs::write(&path, [&length, header.as_bytes(), &data[..]].concat()).unwrap();
        path
    }

    fn open(&self, name: &str) -> Checkpoint {
        let path = self.write(name);
        let file = Checkpoint::open(std::slice::from_ref(&path));
        std::fs::remove_file(path).unwrap();
        file.unwrap()
    }
}

const LLAMA: Shape =
    Shape { layers: 2, width: 128, hidden: 192, heads: [4, 2], vocabulary: 96, capacity: 16 };

fn llama(shape: &Shape) -> Tensors {
    let (width, hidden, keys) = (shape.width, shape.hidden, shape.heads[1] * shape.dim());
    let mut all = Tensors::default();
    all.add("model.embed_tokens.weight", &[shape.vocabulary, width], (1.0, 0.0));
    for at in 0..shape.layers {
        let mut product = |name: &str, outputs, inputs: usize| {
            let name = format!("model.layers.{at}.{name}.weight");
            all.add(&name, &[outputs, inputs], ((inputs as f32).powf(-0.5), 0.0));
        };
        product("self_attn.q_proj", width, width);
        product("self_attn.k_proj", keys, width);
        product("self_attn.v_proj", keys, width);
        product("self_attn.o_proj", width, width);
        product("mlp.gate_proj", hidden, width);
        product("mlp.up_proj", hidden, width);
        product("mlp.down_proj", width, hidden);
        for name in ["input_layernorm", "post_attention_layernorm"] {
            let name = format!("model.layers.{at}.{name}.weight");
            all.add(&name, &[width], (0.1, 1.0));
        }
    }
    all.add("model.norm.weight", &[width], (0.1, 1.0));
    all.add("lm_head.weight", &[shape.vocabulary, width], (1.0, 0.0));
    all
}

/// Checks that the kept weights of a row are unchanged and not smaller than the others.
fn kept_are_the_largest(csr: &Csr<bf16>, first: usize, dense: &[f32], kept: usize) {
    let columns = csr.pattern().cols();
    for (row, dense) in dense.chunks(columns).enumerate() {
        let entries = csr.pattern().row(first + row);
        assert_eq!(entries.len(), kept);
        let mut rest = dense.to_vec();
        let mut least = f32::INFINITY;
        for entry in entries {
            let at = csr.pattern().columns()[entry] as usize;
            assert_eq!(csr.values()[entry].to_f32(), dense[at]);
            least = least.min(dense[at].abs());
            rest[at] = 0.0;
        }
        assert!(rest.iter().all(|w| w.abs() <= least));
    }
}

#[test]
fn a_decoder_of_a_file() {
    let tensors = llama(&LLAMA);
    let mut file = tensors.open("llama");
    assert_eq!(file.llama_layers(), 2);
    let weights = file.llama(&LLAMA, 0.5).unwrap();
    let (width, dim) = (LLAMA.width, LLAMA.dim());
    for (at, layer) in weights.layers.iter().enumerate() {
        let values = |name: &str| tensors.values(&format!("model.layers.{at}.{name}.weight"));
        let parts = [
            (0, 0, "self_attn.q_proj"),
            (0, 4 * dim, "self_attn.k_proj"),
            (0, 6 * dim, "self_attn.v_proj"),
            (1, 0, "self_attn.o_proj"),
            (2, 0, "mlp.gate_proj"),
            (2, LLAMA.hidden, "mlp.up_proj"),
            (3, 0, "mlp.down_proj"),
        ];
        for (product, first, name) in parts {
            let csr = &layer.products[product];
            kept_are_the_largest(csr, first, values(name), csr.pattern().cols() / 2);
        }
        let norm: Vec<f32> = layer.norms[1].values().iter().map(|x| x.to_f32()).collect();
        assert_eq!(norm, values("post_attention_layernorm"));
    }
    let head = weights.head.as_ref().unwrap();
    assert_eq!(head.values()[7].to_f32(), tensors.values("lm_head.weight")[7]);
    assert_eq!(head.shape(), [LLAMA.vocabulary, width]);
    let error = decode::error(&Context::unchecked_cpu(), LLAMA, &weights, 3, 3).unwrap();
    assert!(error < 0.03, "{error}");

    // The tensors are split into two files.
    let mut parts = [tensors.clone(), tensors.clone()];
    parts[0].0.truncate(9);
    parts[1].0.drain(..9);
    let paths = [0, 1].map(|at| parts[at].write(&format!("part-{at}")));
    let again = Checkpoint::open(&paths).and_then(|mut file| file.llama(&LLAMA, 0.5));
    for path in paths {
        std::fs::remove_file(path).unwrap();
    }
    assert!(again.unwrap().layers[1].products == weights.layers[1].products);

    // One table for the embedding and for the output.
    let mut tied = tensors.clone();
    tied.0.retain(|(name, ..)| name != "lm_head.weight");
    assert!(tied.open("tied").llama(&LLAMA, 0.5).unwrap().head.is_none());
}

#[test]
fn tensors_that_are_not_those_of_the_model_are_named() {
    let refused = |tensors: &Tensors, words: &[&str]| {
        let error = tensors.open("refused").llama(&LLAMA, 0.5).map(drop);
        let text = error.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let mut short = llama(&LLAMA);
    let at = |all: &Tensors, name: &str| all.0.iter().position(|own| own.0 == name).unwrap();
    let key = at(&short, "model.layers.1.self_attn.k_proj.weight");
    short.0[key].1 = vec![32, 128];
    short.0[key].2.truncate(32 * 128);
    let words = ["`model.layers.1.self_attn.k_proj.weight` is [32, 128]", "wants [64, 128]"];
    refused(&short, &words);
    let mut without = llama(&LLAMA);
    without.0.remove(at(&without, "model.norm.weight"));
    refused(&without, &["no tensor `model.norm.weight`", "[128]", "einsparse-"]);
    refused(&Tensors::default(), &["no tensor `model.layers.0.self_attn.q_proj.weight`"]);
    let missing = Checkpoint::open(&["nowhere.safetensors".into()]).map(drop);
    assert!(matches!(missing, Err(Error::Format(_))), "{missing:?}");
}

/// Tensors of a BERT encoder with this number of layers.
fn bert(prefix: &str, layers: usize, [width, hidden]: [usize; 2]) -> Tensors {
    let mut all = Tensors::default();
    for at in 0..layers {
        for (name, [outputs, inputs]) in [
            ("attention.self.query", [width; 2]),
            ("attention.self.key", [width; 2]),
            ("attention.self.value", [width; 2]),
            ("attention.output.dense", [width; 2]),
            ("intermediate.dense", [hidden, width]),
            ("output.dense", [width, hidden]),
        ] {
            let name = format!("{prefix}encoder.layer.{at}.{name}");
            let size = (inputs as f32).powf(-0.5);
            all.add(&format!("{name}.weight"), &[outputs, inputs], (size, 0.0));
            all.add(&format!("{name}.bias"), &[outputs], (0.1, 0.0));
        }
        for name in ["attention.output", "output"] {
            let name = format!("{prefix}encoder.layer.{at}.{name}.LayerNorm");
            all.add(&format!("{name}.weight"), &[width], (0.1, 1.0));
            all.add(&format!("{name}.bias"), &[width], (0.1, 0.0));
        }
    }
    all
}

#[test]
fn an_encoder_of_a_file() {
    for prefix in ["", "bert."] {
        let tensors = bert(prefix, 2, [8, 12]);
        let layers = tensors.open("bert").bert::<f64>([8, 12]).unwrap();
        assert_eq!(layers.len(), 2);
        let values = |name: &str| tensors.values(&format!("{prefix}encoder.layer.1.{name}"));
        let [qkv, _, _, down, _, norm] = &layers[1];
        // Output 3 of the keys, input 5.
        let found = qkv[0].get(&[5, 8 + 3]).unwrap();
        let wanted = values("attention.self.key.weight")[3 * 8 + 5];
        assert_eq!((qkv[0].shape(), found), (&[8, 24][..], f64::from(wanted)));
        let wanted = values("attention.self.value.bias")[2];
        assert_eq!(qkv[1].values()[18], f64::from(wanted));
        let found = down[0].get(&[11, 1]).unwrap();
        assert_eq!(found, f64::from(values("output.dense.weight")[12 + 11]));
        let wanted = values("output.LayerNorm.bias")[4];
        assert_eq!(norm[1].values()[4], f64::from(wanted));
    }
    // The whole program, whose toy size fits this file.
    let path = bert("bert.", 2, [128, 256]).write("encoder");
    let run = Run {
        toy: true,
        context: Context::unchecked_cpu(),
        arguments: Arguments { file: Some(vec![path.clone()]), ..Arguments::default() },
        ..Run::default()
    };
    let done = encoder::run(&run);
    std::fs::remove_file(path).unwrap();
    done.unwrap();
    assert!(run.rows.borrow()[0].error.unwrap() < 3e-2);
}

#[test]
fn a_mobilenet_of_a_file() {
    let sizes = Sizes { edge: 32, eighths: 1, classes: 5 };
    let mut all = layers::<f64>(sizes).unwrap();
    let mut tensors = Tensors::default();
    let norm = |tensors: &mut Tensors, name: String, outputs: usize| {
        for (kind, size, around) in [
            ("weight", 0.1, 1.0),
            ("bias", 0.1, 0.0),
            ("running_mean", 0.1, 0.0),
            ("running_var", 0.1, 1.0),
        ] {
            tensors.add(&format!("{name}.{kind}"), &[outputs], (size, around));
        }
    };
    for (at, layer) in all.iter().enumerate() {
        if layer.bias.is_some() {
            let size = 9.0f32.powf(-0.5);
            tensors.add(&format!("features.{at}.0.weight"), &layer.window, (size, 0.0));
            norm(&mut tensors, format!("features.{at}.1"), layer.window[0]);
        }
        if let Some((weights, _, true)) = &layer.product {
            let [outputs, inputs] = [weights.pattern().rows(), weights.pattern().cols()];
            let (name, size) = (format!("features.{at}.3.weight"), (inputs as f32).powf(-0.5));
            tensors.add(&name, &[outputs, inputs, 1, 1], (size, 0.0));
            norm(&mut tensors, format!("features.{at}.4"), outputs);
        }
    }
    tensors.add("classifier.weight", &[5, 128], (0.1, 0.0));
    tensors.add("classifier.bias", &[5], (0.1, 0.0));
    tensors.open("mobilenet").mobilenet(&mut all).unwrap();

    // One row by hand: its largest weights, with the batch norm folded in.
    let (weights, bias, _) = all[3].product.as_ref().unwrap();
    let inputs = weights.pattern().cols();
    let vector = |kind: &str| f64::from(tensors.values(&format!("features.3.4.{kind}"))[2]);
    let scale = vector("weight") / (vector("running_var") + 1e-5).sqrt();
    let shift = vector("bias") - vector("running_mean") * scale;
    assert!((bias.values()[2] - shift).abs() < 1e-12);
    let row = &tensors.values("features.3.3.weight")[2 * inputs..][..inputs];
    let entries = weights.pattern().row(2);
    assert_eq!(entries.len(), (inputs as f64 * DENSITY).round() as usize);
    for entry in entries {
        let at = weights.pattern().columns()[entry] as usize;
        let wanted = f64::from(row[at]) * scale;
        assert!((weights.values()[entry] - wanted).abs() < 1e-12);
    }
    let error =
        mobilenet::error(&Context::unchecked_cpu(), &all, (2, Some(Precision::Full))).unwrap();
    assert!(error < 1e-12, "{error}");
    let said = reference(&all, &images(32, 2).unwrap(), 2);
    assert!(said.iter().any(|x| x.abs() > 0.05), "{said:?}");
}
