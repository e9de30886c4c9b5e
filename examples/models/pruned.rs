//! Pruned linear layers of a decoder, with seeded weights.

use einsparse::formats::convert::csr_to_bitmap;
use einsparse::formats::{Csr, Dense, bf16, generate};
use einsparse::{
    Context, Operand, Options, Plan, Result, Scalar, SparseTensor, Stream, Tensor, Weights,
};

/// Extents of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: usize,
    pub width: usize,
    pub hidden: usize,
    /// Query heads and key heads.
    pub heads: [usize; 2],
    pub vocabulary: usize,
    /// Max tokens of a cache.
    pub capacity: usize,
}

impl Shape {
    pub fn dim(&self) -> usize {
        self.width / self.heads[0]
    }

    /// Outputs and inputs of the products of a layer: queries, keys and values; output; gates and up; down.
    pub fn products(&self) -> [[usize; 2]; 4] {
        let (width, hidden) = (self.width, self.hidden);
        let qkv = (self.heads[0] + 2 * self.heads[1]) * self.dim();
        [[qkv, width], [width, width], [2 * hidden, width], [width, hidden]]
    }
}

/// Products of a layer, and the factors of its norms.
pub struct HostLayer {
    pub products: Vec<Csr<bf16>>,
    pub norms: [Dense<bf16>; 2],
}

/// Weights in host memory, in bf16.
pub struct HostWeights {
    /// All layers, or one layer that every layer copies to its own memory.
    pub layers: Vec<HostLayer>,
    pub last_norm: Dense<bf16>,
    /// Embedding table of the tokens.
    pub table: Dense<bf16>,
    /// Weights of the last product. `None` uses the table.
    pub head: Option<Dense<bf16>>,
}

impl HostWeights {
    /// Creates seeded weights.
    pub fn new(shape: &Shape, density: f64) -> Result<Self> {
        let mut products = Vec::new();
        for (seed, [outputs, inputs]) in shape.products().into_iter().enumerate() {
            let pattern = generate::uniform(outputs, inputs, density, seed as u64)?;
            let size = 1.0 / (inputs as f32 * density as f32).sqrt();
            let values = generate::random_values::<f32>(pattern.columns().len(), seed as u64);
            let values = values.iter().map(|x| bf16::from_f32(x * size)).collect();
            products.push(Csr::new(pattern, values)?);
        }
        let (rows, width) = (shape.vocabulary, shape.width);
        let table = generate::random_values::<bf16>(rows * width, 9);
        let ones = || Dense::new([width], vec![bf16::ONE; width]);
        let norms = [ones()?, ones()?];
        Ok(HostWeights {
            layers: vec![HostLayer { products, norms }],
            last_norm: ones()?,
            table: Dense::new([rows, width], table)?,
            head: None,
        })
    }
}

pub fn cast<T: Scalar>(values: &[bf16]) -> Vec<T> {
    values.iter().map(|x| T::from_f64(x.to_f64())).collect()
}

/// Returns the dense transpose of a sparse matrix, for dense products of tokens in rows.
fn transposed<T: Scalar>(csr: &Csr<bf16>) -> Result<Dense<T>> {
    let (rows, columns) = (csr.pattern().rows(), csr.pattern().cols());
    let mut values = vec![T::ZERO; rows * columns];
    let offsets = csr.pattern().offsets();
    for (row, span) in offsets.windows(2).enumerate() {
        for at in span[0] as usize..span[1] as usize {
            let column = csr.pattern().columns()[at] as usize;
            values[column * rows + row] = T::from_f64(csr.values()[at].to_f64());
        }
    }
    Ok(Dense::new([columns, rows], values)?)
}

/// Linear layer with sparse weights, stored as a bitmap, or with dense weights.
pub struct Product<T: Scalar> {
    weights: Matrix<T>,
    plan: Plan<T>,
    /// Bytes of the weights; those of sparse weights include the bitmap.
    pub bytes: usize,
}

/// Weights, sparse or dense.
pub enum Matrix<T: Scalar> {
    Sparse(SparseTensor<T>),
    Dense(Tensor<T>),
}

impl<T: Scalar> Product<T> {
    /// Creates a product for `tokens` tokens; `add` adds to the output.
    pub fn new(
        ctx: &Context,
        csr: &Csr<bf16>,
        (tokens, add): (usize, bool),
        dense: bool,
    ) -> Result<Self> {
        let inputs = csr.pattern().cols();
        let (weights, bytes, x, text) = if dense {
            let weights = transposed(csr)?;
            let bytes = size_of_val(weights.values());
            let weights = Matrix::Dense(ctx.upload_dense(&weights)?);
            let x = ctx.zeros(&[tokens, inputs])?;
            let text = ["Y[t,o] = X[t,i] * W[i,o]", "Y[t,o] += X[t,i] * W[i,o]"];
            (weights, bytes, x, text)
        } else {
            let csr = Csr::new(csr.pattern().clone(), cast(csr.values()))?;
            let bitmap = csr_to_bitmap(&csr)?;
            let bytes = size_of_val(bitmap.pattern().words()) + size_of_val(bitmap.values());
            let weights = Matrix::Sparse(ctx.upload(bitmap)?);
            let x = ctx.zeros(&[inputs, tokens])?;
            let text = ["Y[o,t] = W[o,i] * X[i,t]", "Y[o,t] += W[o,i] * X[i,t]"];
            (weights, bytes, x, text)
        };
        let operands = [("X", (&x).into()), ("W", weights.operand())];
        let options = Options::default().weights(Weights::Static);
        let plan = ctx.plan(text[usize::from(add)]).operands(&operands);
        let plan = plan.options(&options).build()?;
        Ok(Product { weights, plan, bytes })
    }

    pub fn run(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let operands = [("X", x.into()), ("W", self.weights.operand())];
        self.plan.run(&operands, y, stream)
    }

    pub fn variant(&self) -> &'static str {
        self.plan.variant()
    }
}

impl<T: Scalar> Matrix<T> {
    pub fn operand(&self) -> Operand<'_, T> {
        match self {
            Matrix::Sparse(weights) => weights.into(),
            Matrix::Dense(weights) => weights.into(),
        }
    }
}
