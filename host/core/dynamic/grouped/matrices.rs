//! Storage of the matrices of a grouped product.

use einsparse_formats::{E4m3, SCALE_BLOCK, unscale_blocks};

use crate::context::Context;
use crate::error::{Error, Result, check_shape};
use crate::operator::Run;
use crate::registry::Scalar;
use crate::tensor::{DenseMatrix, Tensor, TensorView};

/// Matrices with which rows are multiplied, one per expert: `[experts, k, n]`, or `[experts, n, k]` if transposed.
///
/// Scaled matrices consist of 8-bit numbers and an f32 scale per block of 128 x 128 of a matrix,
/// `[experts, n / 128, k / 128]`, rounded up. This is the format of e4m3 weights of DeepSeek-V3 and Qwen3
/// (`weight_scale_inv`; arXiv 2412.19437, section 3.3). The factors of a product are number times scale in f32, rounded
/// to `T`. Results therefore have the same bits as with those matrices in `T`, if scales are finite and rows are not
/// [quantized](super::GroupedOptions::quantize). Scaled matrices are transposed, and `k` is a multiple of 16.
///
/// A `&Tensor<T>` converts to plain matrices, a pair of tensors to scaled ones.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{GroupedGemm, GroupedOptions, Routing};
/// use einsparse::formats::{Dense, f16, scale_blocks};
/// let ctx = Context::cpu();
/// let stream = ctx.stream()?;
/// // One expert, whose matrix is [n, k] = [8, 16]: seven in each place.
/// let (codes, scales) = scale_blocks(&Dense::from_fn(vec![1, 8, 16], |_| 7.0f32)?)?;
/// assert_eq!((codes.values()[0].to_bits(), scales.values()[0]), (0x7e, 7.0 / 448.0));
/// let (codes, scales) = (ctx.upload_dense(&codes)?, ctx.upload_dense(&scales)?);
///
/// let mut routing = Routing::new(&ctx, [1, 1], 1)?;
/// routing.run(&ctx.zeros(&[1, 1])?, &stream)?;
/// let options = GroupedOptions { k: 16, n: 8, transposed: true, scaled: true, ..Default::default() };
/// let product = GroupedGemm::<f16>::new(&routing, &options)?;
/// let a = ctx.upload_dense(&Dense::from_fn(vec![1, 16], |_| f16::ONE)?)?;
/// let mut c = ctx.zeros(&[1, 8])?;
/// product.forward(&routing, &a, (&codes, &scales), None, &mut c, &stream)?;
/// assert_eq!(c.to_dense()?.values(), [f16::from_f32(112.0); 8]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub enum Matrices<'a, T> {
    /// Matrices of the rows' type.
    Plain(&'a Tensor<T>),
    /// Numbers in e4m3, and the scales of their blocks.
    Scaled(&'a Tensor<E4m3>, &'a Tensor<f32>),
}

impl<T> Clone for Matrices<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrices<'_, T> {}

impl<'a, T> From<&'a Tensor<T>> for Matrices<'a, T> {
    fn from(plain: &'a Tensor<T>) -> Self {
        Matrices::Plain(plain)
    }
}

impl<'a, T> From<&'a TensorView<'_, T>> for Matrices<'a, T> {
    fn from(plain: &'a TensorView<'_, T>) -> Self {
        Matrices::Plain(plain)
    }
}

impl<'a, T> From<(&'a Tensor<E4m3>, &'a Tensor<f32>)> for Matrices<'a, T> {
    fn from((codes, scales): (&'a Tensor<E4m3>, &'a Tensor<f32>)) -> Self {
        Matrices::Scaled(codes, scales)
    }
}

impl<'a, T: Scalar> Matrices<'a, T> {
    /// Returns matrices without scales.
    #[doc(hidden)]
    pub fn plain(self, name: &str) -> Result<&'a Tensor<T>> {
        match self {
            Matrices::Plain(plain) => Ok(plain),
            Matrices::Scaled(..) => Err(Error::kind(name, T::NAME, "e4m3 with scales")),
        }
    }

    /// Refuses matrices of another shape than `[experts, rows, columns]`. Also refuses plain matrices if scaled ones
    /// are expected, and vice versa.
    #[doc(hidden)]
    pub fn check(&self, name: &str, shape: [usize; 3], scaled: bool) -> Result<()> {
        match *self {
            Matrices::Plain(plain) if !scaled => check_shape(name, &shape, plain.shape()),
            Matrices::Scaled(codes, scales) if scaled => {
                let [experts, rows, columns] = shape;
                let [down, across] = [rows, columns].map(|extent| extent.div_ceil(SCALE_BLOCK));
                check_shape(name, &shape, codes.shape())?;
                let of = format!("scales of {name}");
                check_shape(&of, &[experts, down, across], scales.shape())
            }
            Matrices::Plain(_) => Err(Error::kind(
                name,
                "e4m3 with scales (the product was created with `scaled`)",
                "a tensor without scales",
            )),
            Matrices::Scaled(..) => {
                let expected = format!("{} (the product was created without `scaled`)", T::NAME);
                Err(Error::kind(name, expected, "e4m3 with scales"))
            }
        }
    }

    /// Validates the matrices of a run, and returns them and the address of the scales.
    pub(crate) fn of_run<L>(
        &self,
        run: &Run<'_, L>,
        name: &str,
        shape: [usize; 3],
        scaled: bool,
    ) -> Result<(DenseMatrix, u64)> {
        self.check(name, shape, scaled)?;
        match self {
            Matrices::Plain(plain) => Ok((run.matrix(name, plain.any(), plain.shape())?, 0)),
            Matrices::Scaled(codes, scales) => {
                let address = run.contiguous("scales", scales.any(), scales.shape())?;
                Ok((run.matrix(name, codes.any(), codes.shape())?, address))
            }
        }
    }

    /// Passes the matrices to `then` for a product on the CPU, with each number scaled and rounded as on a GPU. Every
    /// call scales all of them.
    pub(crate) fn on_host(
        &self,
        context: &Context,
        then: impl FnOnce(&Tensor<T>) -> Result<()>,
    ) -> Result<()> {
        let (codes, scales) = match self {
            Matrices::Plain(plain) => return then(plain),
            Matrices::Scaled(codes, scales) => (codes.to_dense()?, scales.to_dense()?),
        };
        let dense = unscale_blocks::<T>(&codes, &scales)?;
        then(&context.upload_dense(&dense)?)
    }
}
