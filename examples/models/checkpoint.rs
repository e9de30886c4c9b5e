//! Weights of `.safetensors` files, by their usual names: Llama's and BERT's as written by Hugging Face, MobileNetV1's
//! as torchvision names such networks. Models are pruned here, by magnitude.

use std::cmp::Ordering;
use std::io::ErrorKind;
use std::path::PathBuf;

use einsparse::formats::io::Safetensors;
use einsparse::formats::{Csr, CsrPattern, Dense, bf16};
use einsparse::{Error, Result, Scalar};

use super::mobilenet_weights::{DENSITY, Layer};
use super::pruned::{HostLayer, HostWeights, Shape};

/// Files of a model: usually one, several for large models.
pub struct Checkpoint(Vec<(Safetensors, String)>);

impl Checkpoint {
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| Ok((Safetensors::open(path)?, path.display().to_string()));
        let files: Result<Vec<_>> = paths.iter().map(open).collect();
        Ok(Checkpoint(files?))
    }

    /// Returns the file that has a tensor of this name, and the tensor's shape.
    fn find(&self, name: &str) -> Option<(usize, &[usize])> {
        self.0.iter().enumerate().find_map(|(at, (file, _))| {
            let own = file.tensors().iter().find(|own| own.name == name)?;
            Some((at, &own.shape[..]))
        })
    }

    /// Reads a tensor, which must have the shape that the model requires.
    fn tensor<T: Scalar>(&mut self, name: &str, wanted: &[usize]) -> Result<Dense<T>> {
        let refused = |path: &str, reason: String| Error::Io {
            path: path.into(),
            line: None,
            kind: ErrorKind::InvalidData,
            reason,
        };
        let Some((at, shape)) = self.find(name) else {
            let paths: Vec<_> = self.0.iter().map(|(_, path)| &path[..]).collect();
            let reason = format!("no tensor `{name}`, which the model wants as {wanted:?}");
            return Err(refused(&paths.join(","), reason));
        };
        if shape != wanted {
            let reason = format!("tensor `{name}` is {shape:?}, the model wants {wanted:?}");
            return Err(refused(&self.0[at].1, reason));
        }
        Ok(self.0[at].0.read(name)?)
    }

    /// Reads matrices with the same number of columns, and concatenates their rows.
    fn below(&mut self, parts: &[(String, usize)], columns: usize) -> Result<Dense<bf16>> {
        let mut all = Vec::new();
        for (name, rows) in parts {
            all.extend(self.tensor::<bf16>(name, &[*rows, columns])?.into_values());
        }
        Ok(Dense::new([all.len() / columns, columns], all)?)
    }

    /// Number of layers, counted by the name of each layer's first tensor.
    fn count(&self, name: impl Fn(usize) -> String) -> usize {
        // Without layers the result is 1, so that the error names the missing tensor.
        (0..).take_while(|&at| self.find(&name(at)).is_some()).count().max(1)
    }

    /// Number of layers of a Llama model.
    pub fn llama_layers(&self) -> usize {
        self.count(|at| format!("model.layers.{at}.input_layernorm.weight"))
    }

    /// Reads a Llama model, and prunes its linear layers to this density.
    pub fn llama(&mut self, shape: &Shape, density: f64) -> Result<HostWeights> {
        let (width, hidden, dim) = (shape.width, shape.hidden, shape.dim());
        let [heads, key_heads] = shape.heads.map(|heads| heads * dim);
        let mut layers = Vec::new();
        for at in 0..shape.layers {
            let of = |name: &str| format!("model.layers.{at}.{name}.weight");
            let norms = ["input_layernorm", "post_attention_layernorm"];
            let [first, second] = norms.map(|name| self.tensor(&of(name), &[width]));
            let part = |name: &str, rows| (of(name), rows);
            let qkv = [
                part("self_attn.q_proj", heads),
                part("self_attn.k_proj", key_heads),
                part("self_attn.v_proj", key_heads),
            ];
            let up = [part("mlp.gate_proj", hidden), part("mlp.up_proj", hidden)];
            let products = [
                self.below(&qkv, width)?,
                self.tensor(&of("self_attn.o_proj"), &[width, heads])?,
                self.below(&up, width)?,
                self.tensor(&of("mlp.down_proj"), &[width, hidden])?,
            ];
            let products = products.iter().map(|own| pruned(own, density));
            layers.push(HostLayer {
                products: products.collect::<Result<_>>()?,
                norms: [first?, second?],
            });
        }
        let table = [shape.vocabulary, width];
        // Models that use one table for input and output omit it.
        let head = match self.find("lm_head.weight") {
            Some(_) => Some(self.tensor("lm_head.weight", &table)?),
            None => None,
        };
        Ok(HostWeights {
            layers,
            last_norm: self.tensor("model.norm.weight", &[width])?,
            table: self.tensor("model.embed_tokens.weight", &table)?,
            head,
        })
    }

    /// Reads the layers of a BERT model: matrices `[inputs, outputs]` and biases, then factors and summands of norms.
    pub fn bert<T: Scalar>(
        &mut self,
        [width, hidden]: [usize; 2],
    ) -> Result<Vec<[[Dense<T>; 2]; 6]>> {
        let first = "encoder.layer.0.attention.self.query.weight";
        // Names of the bare model start without a prefix.
        let prefix = if self.find(first).is_some() { "" } else { "bert." };
        let of = |at: usize, name: &str| format!("{prefix}encoder.layer.{at}.{name}");
        let layers = self.count(|at| of(at, "attention.self.query.weight"));
        let mut all = Vec::new();
        for at in 0..layers {
            let mut product = |names: &[&str], [inputs, outputs]: [usize; 2]| -> Result<_> {
                let (mut rows, mut bias) = (Vec::new(), Vec::new());
                for name in names {
                    let of = |kind: &str| of(at, &format!("{name}.{kind}"));
                    let each = outputs / names.len();
                    rows.extend(self.tensor::<T>(&of("weight"), &[each, inputs])?.into_values());
                    bias.extend(self.tensor::<T>(&of("bias"), &[each])?.into_values());
                }
                let turned = |i: &[usize]| rows[i[1] * inputs + i[0]];
                let matrix = Dense::from_fn([inputs, outputs], turned)?;
                Ok([matrix, Dense::new([outputs], bias)?])
            };
            let qkv = ["query", "key", "value"].map(|name| format!("attention.self.{name}"));
            let qkv = qkv.each_ref().map(|name| &name[..]);
            let products = [
                product(&qkv, [width, 3 * width])?,
                product(&["attention.output.dense"], [width; 2])?,
                product(&["intermediate.dense"], [width, hidden])?,
                product(&["output.dense"], [hidden, width])?,
            ];
            let mut norm = |name: &str| -> Result<_> {
                let part = |kind: &str| of(at, &format!("{name}.LayerNorm.{kind}"));
                let factor = self.tensor(&part("weight"), &[width])?;
                Ok([factor, self.tensor(&part("bias"), &[width])?])
            };
            let norms = [norm("attention.output")?, norm("output")?];
            let [qkv, out, up, down] = products;
            let [first, second] = norms;
            all.push([qkv, out, up, down, first, second]);
        }
        Ok(all)
    }

    /// Replaces the seeded weights of these layers. Batch norms are folded into them, 1x1 weights are pruned.
    pub fn mobilenet<T: Scalar>(&mut self, layers: &mut [Layer<T>]) -> Result<()> {
        for (at, layer) in layers.iter_mut().enumerate() {
            let of = |part: usize| format!("features.{at}.{part}");
            if let Some(bias) = &mut layer.bias {
                let name = format!("{}.weight", of(0));
                let taps = self.tensor(&name, &layer.window)?;
                (layer.taps, *bias) = self.folded(taps, &of(1))?;
            }
            let Some((weights, bias, relu)) = &mut layer.product else {
                continue;
            };
            let pattern = weights.pattern();
            let [outputs, inputs] = [pattern.rows(), pattern.cols()];
            if *relu {
                let dense = self.tensor(&format!("{}.weight", of(3)), &[outputs, inputs, 1, 1])?;
                let (dense, summand) = self.folded(dense, &of(4))?;
                let dense = Dense::new([outputs, inputs], dense.into_values())?;
                (*weights, *bias) = (pruned(&dense, DENSITY)?, summand);
            } else {
                let dense = self.tensor("classifier.weight", &[outputs, inputs])?;
                *weights = pruned(&dense, 1.0)?;
                *bias = self.tensor("classifier.bias", &[outputs])?;
            }
        }
        Ok(())
    }

    /// Folds the batch norm after a convolution into its weights, `[outputs, ..]`. Returns them and the resulting bias.
    fn folded<T: Scalar>(
        &mut self,
        mut weights: Dense<f64>,
        norm: &str,
    ) -> Result<(Dense<T>, Dense<T>)> {
        let outputs = weights.shape()[0];
        let mut vector = |kind: &str| -> Result<Vec<f64>> {
            let own = self.tensor(&format!("{norm}.{kind}"), &[outputs])?;
            Ok(own.into_values())
        };
        let (mut scales, mut biases) = (vector("weight")?, vector("bias")?);
        let (means, variances) = (vector("running_mean")?, vector("running_var")?);
        for (scale, variance) in scales.iter_mut().zip(variances) {
            *scale /= (variance + 1e-5).sqrt();
        }
        for ((bias, mean), scale) in biases.iter_mut().zip(means).zip(&scales) {
            *bias -= mean * scale;
        }
        let each = weights.values().len() / outputs;
        for (row, scale) in weights.values_mut().chunks_mut(each).zip(scales) {
            row.iter_mut().for_each(|w| *w *= scale);
        }
        let round = |from: &[f64]| from.iter().map(|x| T::from_f64(*x)).collect();
        let rounded = Dense::new(weights.shape(), round(weights.values()))?;
        Ok((rounded, Dense::new([outputs], round(&biases))?))
    }
}

/// Keeps the share `density` of each row's weights, those of largest magnitude.
fn pruned<T: Scalar>(dense: &Dense<T>, density: f64) -> Result<Csr<T>> {
    let [rows, columns] = [dense.shape()[0], dense.shape()[1]];
    let kept = ((columns as f64 * density).round() as usize).clamp(1, columns);
    let (mut offsets, mut places, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in dense.values().chunks(columns) {
        let mut order: Vec<u32> = (0..columns as u32).collect();
        let size = |at: &u32| row[*at as usize].to_f64().abs();
        let larger = |a: &u32, b: &u32| match size(b).total_cmp(&size(a)) {
            Ordering::Equal => a.cmp(b),
            order => order,
        };
        order.select_nth_unstable_by(kept - 1, larger);
        order.truncate(kept);
        order.sort();
        values.extend(order.iter().map(|at| row[*at as usize]));
        places.extend(order);
        offsets.push(places.len() as u32);
    }
    Ok(Csr::new(CsrPattern::new(rows, columns, offsets, places)?, values)?)
}
