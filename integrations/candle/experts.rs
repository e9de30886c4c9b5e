//! Mixture of experts.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use einsparse::einsum::Activation;
use einsparse::formats::Dense;
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};
use einsparse::{Context, Scalar};

use crate::{elements, for_dtype, wrapped};

/// Mixture of experts: `out[t] = sum_j weights[t,j] act(x[t] * up[e]) * down[e]` with `e = choices[t,j]`. No token is
/// dropped. It has gradients of tokens, weights and both stacks of matrices. Other extents are those of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Columns between the two products of an expert.
    pub hidden: usize,
    /// Whether a ReLU is applied between the two products.
    pub relu: bool,
}

impl Experts {
    /// Runs the layer on tokens `x` `[tokens, model]`, `choices` (u32) and `weights` (f32) `[tokens, top_k]`, `up`
    /// `[experts, model, hidden]` and `down` `[experts, hidden, model]`. x, up and down have the same type: f32, f64,
    /// f16 or bf16.
    ///
    /// Operations of candle have at most three operands, so `up` and `down` are copied into one tensor. Hidden rows are
    /// not stored: the gradient runs the layer again. The gradient of the ReLU at 0 is 0.
    ///
    /// # Errors
    /// If shapes or types do not match, if operands are not on the CPU, or if a choice is not an expert.
    pub fn forward(
        &self,
        x: &Tensor,
        (choices, weights): (&Tensor, &Tensor),
        (up, down): (&Tensor, &Tensor),
    ) -> Result<Tensor> {
        let ((tokens, model), (experts, ..)) = (x.dims2()?, up.dims3()?);
        let (_, top_k) = choices.dims2()?;
        let hidden = self.hidden;
        for (name, tensor, wanted) in [
            ("choices", choices, &[tokens, top_k][..]),
            ("weights", weights, &[tokens, top_k]),
            ("up", up, &[experts, model, hidden]),
            ("down", down, &[experts, hidden, model]),
        ] {
            if tensor.dims() != wanted {
                let found = tensor.dims();
                return Err(wrapped(format!("`{name}` is {found:?}, {wanted:?} was wanted")));
            }
        }
        let chosen: Vec<u32> = choices.flatten_all()?.to_vec1()?;
        if let Some(wrong) = chosen.iter().find(|&&expert| expert as usize >= experts) {
            let text = format!("a choice is expert {wrong}, and there are {experts}");
            return Err(wrapped(text));
        }
        let activation = match self.relu {
            true => Activation::Relu,
            false => Activation::Identity,
        };
        let options = MoeOptions {
            tokens,
            experts,
            top_k,
            model,
            hidden,
            activation,
            ..MoeOptions::default()
        };
        let choices = chosen.into_iter().map(|expert| expert as i32).collect();
        let op = Mixture { options, choices };
        let matrices = Tensor::cat(&[up.flatten_all()?, down.flatten_all()?], 0)?;
        x.contiguous()?.apply_op3(&weights.contiguous()?, &matrices, op)
    }
}

/// The layer as an operation on tokens, weights and all matrices.
#[derive(Clone, Debug)]
struct Mixture {
    options: MoeOptions,
    /// `[tokens, top_k]`, below the number of experts. That number fits i32 because the matrices fit in memory.
    choices: Vec<i32>,
}

/// The layer, and its operands in a context.
struct Bound<T> {
    layer: Moe<T>,
    x: einsparse::Tensor<T>,
    choices: einsparse::Tensor<i32>,
    weights: einsparse::Tensor<f32>,
    up: einsparse::Tensor<T>,
    down: einsparse::Tensor<T>,
    stream: einsparse::Stream,
}

impl Mixture {
    fn bind<T: Scalar>(
        &self,
        context: &Context,
        x: &[T],
        weights: &[f32],
        matrices: &[T],
        training: bool,
    ) -> einsparse::Result<Bound<T>> {
        let MoeOptions { tokens, experts, top_k, model, hidden, .. } = self.options;
        let layer = match training {
            true => Moe::for_training(context, &self.options)?,
            false => Moe::new(context, &self.options)?,
        };
        let (up, down) = matrices.split_at(matrices.len() / 2);
        let chosen = Dense::new([tokens, top_k], self.choices.clone())?;
        let weights = Dense::new([tokens, top_k], weights.to_vec())?;
        Ok(Bound {
            layer,
            x: context.upload_dense(&Dense::new([tokens, model], x.to_vec())?)?,
            choices: context.upload_dense(&chosen)?,
            weights: context.upload_dense(&weights)?,
            up: context.upload_dense(&Dense::new([experts, model, hidden], up.to_vec())?)?,
            down: context.upload_dense(&Dense::new([experts, hidden, model], down.to_vec())?)?,
            stream: context.stream()?,
        })
    }

    fn output<T: Scalar>(
        &self,
        x: &[T],
        weights: &[f32],
        matrices: &[T],
    ) -> einsparse::Result<Vec<T>> {
        let context = Context::unchecked_cpu();
        let mut of = self.bind(&context, x, weights, matrices, false)?;
        let mut out = context.zeros(of.x.shape())?;
        let inputs = MoeInputs {
            x: &of.x,
            choices: &of.choices,
            weights: &of.weights,
            up: (&of.up).into(),
            down: (&of.down).into(),
        };
        of.layer.forward(&inputs, &mut out, &of.stream)?;
        Ok(out.to_dense()?.into_values())
    }

    /// Returns the gradients of tokens, weights and matrices.
    fn gradients<T: Scalar>(
        &self,
        x: &[T],
        weights: &[f32],
        matrices: &[T],
        gradient: Vec<T>,
    ) -> einsparse::Result<(Vec<T>, Vec<f32>, Vec<T>)> {
        let context = Context::unchecked_cpu();
        let mut of = self.bind(&context, x, weights, matrices, true)?;
        let mut out = context.zeros(of.x.shape())?;
        let inputs = MoeInputs {
            x: &of.x,
            choices: &of.choices,
            weights: &of.weights,
            up: (&of.up).into(),
            down: (&of.down).into(),
        };
        of.layer.forward(&inputs, &mut out, &of.stream)?;
        out.write(&Dense::new(of.x.shape().to_vec(), gradient)?)?;
        let mut x = context.zeros(of.x.shape())?;
        let mut weights = context.zeros(of.weights.shape())?;
        let mut up = context.zeros(of.up.shape())?;
        let mut down = context.zeros(of.down.shape())?;
        let to = MoeGradients { x: &mut x, weights: &mut weights, up: &mut up, down: &mut down };
        of.layer.backward(&inputs, &out, to, &of.stream)?;
        let mut matrices = up.to_dense()?.into_values();
        matrices.extend(down.to_dense()?.into_values());
        let (x, weights) = (x.to_dense()?, weights.to_dense()?);
        Ok((x.into_values(), weights.into_values(), matrices))
    }

    fn gradients_of<T: Scalar + WithDType>(
        &self,
        [x, weights, matrices, gradient]: [&Tensor; 4],
    ) -> Result<[Tensor; 3]> {
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<T>();
        let of_weights = weights.flatten_all()?.to_vec1::<f32>()?;
        let (of_x, of_weights, of_matrices) = self
            .gradients(&flat(x)?, &of_weights, &flat(matrices)?, flat(gradient)?)
            .map_err(wrapped)?;
        Ok([
            Tensor::from_vec(of_x, x.shape(), x.device())?,
            Tensor::from_vec(of_weights, weights.shape(), weights.device())?,
            Tensor::from_vec(of_matrices, matrices.shape(), matrices.device())?,
        ])
    }
}

impl CustomOp3 for Mixture {
    fn name(&self) -> &'static str {
        "einsparse-experts"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weights: &CpuStorage,
        of_weights: &Layout,
        matrices: &CpuStorage,
        of_matrices: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let weights = elements::<f32>("weights", weights, of_weights)?;
        let out = for_dtype!(x.dtype(), T => {
            let x = elements::<T>("x", x, of_x)?;
            let matrices = elements::<T>("matrices", matrices, of_matrices)?;
            let out = self.output(x, weights, matrices).map_err(wrapped)?;
            Ok(T::to_cpu_storage_owned(out))
        })?;
        Ok((out, of_x.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weights: &Tensor,
        matrices: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let operands = [x, weights, matrices, gradient];
        let [x, weights, matrices] = for_dtype!(x.dtype(), T => self.gradients_of::<T>(operands))?;
        Ok((Some(x), Some(weights), Some(matrices)))
    }
}
