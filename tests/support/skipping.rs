//! Products with a dynamic operand, by plans that name the kernel that skips its empty micro-tiles.

use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::Dense;
use einsparse::registry::{Dtype, Scalar};
use einsparse::{Context, Determinism, Operand, Options, Plan, Precision, Result, Stream, Tensor};

use super::Rng;
use super::dense::transposed;
use super::rows::{as_on_hopper, here};

/// Draws a matrix of values whose micro-tiles, `height` rows of a column, are full with a probability of `per_mille` in
/// 1000. Probabilities 0 and 1000 are exact; 1 gives one full micro-tile at most.
pub fn micro_tiles<T: Scalar>(
    [rows, columns]: [usize; 2],
    height: usize,
    per_mille: u64,
    (seed, value): (u64, fn(&mut Rng) -> f64),
) -> Dense<T> {
    let mut rng = Rng(seed);
    let mut values = vec![T::ZERO; rows * columns];
    for top in (0..rows).step_by(height) {
        for column in 0..columns {
            let full = match per_mille {
                1 => top == 0 && column == columns - 1,
                p => rng.word() % 1000 < p,
            };
            for row in top..(top + height).min(rows) {
                if full {
                    values[row * columns + column] = T::from_f64(value(&mut rng));
                }
            }
        }
    }
    Dense::new([rows, columns], values).unwrap()
}

/// [`micro_tiles`] of integers from -2 to 2.
pub fn dynamic<T: Scalar>(shape: [usize; 2], height: usize, per_mille: u64, seed: u64) -> Dense<T> {
    micro_tiles(shape, height, per_mille, (seed, Rng::integer))
}

/// [`dynamic`] with micro-tiles of 64 elements of a row.
pub fn pieces<T: Scalar>([rows, columns]: [usize; 2], per_mille: u64, seed: u64) -> Dense<T> {
    transposed(&dynamic::<T>([columns, rows], 64, per_mille, seed))
}

/// Product of dense matrices in f64.
pub fn dense_product<T: Scalar>(a: &Dense<T>, b: &Dense<T>) -> Vec<f64> {
    let ([m, k], n) = ([a.shape()[0], a.shape()[1]], b.shape()[1]);
    // Converted once: a conversion costs as much as many products.
    let b: Vec<f64> = b.values().iter().map(|x| x.to_f64()).collect();
    let mut c = vec![0.0; m * n];
    for (i, c) in c.chunks_mut(n.max(1)).enumerate() {
        for x in 0..k {
            let factor = a.values()[i * k + x].to_f64();
            if factor != 0.0 {
                for (c, b) in c.iter_mut().zip(&b[x * n..][..n]) {
                    *c += factor * b;
                }
            }
        }
    }
    c
}

/// A product, and the kernel of its plan. Names of kernels are valid for every element type: a plan of another type
/// refuses the kernel on a GPU, and the CPU multiplies all elements.
#[derive(Clone, Copy, Debug)]
pub struct Skipping {
    /// Whether B is dynamic, instead of A.
    pub right: bool,
    /// Whether A is stored as `[k, m]`.
    pub by_columns: bool,
    /// Rows of a micro-tile of an A of `[m, k]`.
    pub height: usize,
    /// Whether the kernel for few rows is named, which finds the nonzero columns itself.
    pub few: bool,
    pub threshold: f64,
    pub determinism: Determinism,
    pub precision: Precision,
}

/// A dynamic A of `[m, k]`, in micro-tiles of 128 rows.
pub const LEFT: Skipping = Skipping {
    right: false,
    by_columns: false,
    height: 128,
    few: false,
    threshold: 0.0,
    determinism: Determinism::Strict,
    precision: Precision::Full,
};
/// A dynamic A of at most 64 rows.
pub const FEW: Skipping = Skipping { few: true, ..LEFT };
/// A dynamic A of `[k, m]`.
pub const TRANSPOSED: Skipping = Skipping { by_columns: true, ..LEFT };
/// A dynamic B.
pub const RIGHT: Skipping = Skipping { right: true, ..LEFT };

/// A plan of a [`Skipping`].
#[derive(Debug)]
pub struct SkippingPlan<T: Scalar> {
    pub plan: Plan<T>,
    skipping: Skipping,
}

impl Skipping {
    /// Rows of a micro-tile of the dynamic operand of [`Self::draw`].
    pub fn tile(&self) -> usize {
        if self.right || self.by_columns { 64 } else { self.height }
    }

    /// Draws the dynamic operand `[e, k]` and the other one `[k, f]`, whose product is C, or its transpose for a
    /// dynamic B.
    pub fn draw<T: Scalar>(
        &self,
        [m, k, n]: [usize; 3],
        per_mille: u64,
        (seed, value): (u64, fn(&mut Rng) -> f64),
    ) -> [Dense<T>; 2] {
        let [e, f] = if self.right { [n, m] } else { [m, n] };
        let other = micro_tiles([k, f], k.max(1), 1000, (seed + 40, value));
        [micro_tiles([e, k], self.tile(), per_mille, (seed, value)), other]
    }

    /// Returns A and B of these operands as the product reads them.
    pub fn stored<T: Scalar>(&self, [dynamic, other]: [&Dense<T>; 2]) -> [Dense<T>; 2] {
        let [a, b] = match self.right {
            true => [transposed(other), transposed(dynamic)],
            false => [dynamic.clone(), other.clone()],
        };
        [if self.by_columns { transposed(&a) } else { a }, b]
    }

    /// Product of these operands, in f64 and in the order of C.
    pub fn exact<T: Scalar>(&self, [dynamic, other]: [&Dense<T>; 2]) -> Vec<f64> {
        let product = dense_product(dynamic, other);
        match self.right {
            true => {
                let shape = [dynamic.shape()[0], other.shape()[1]];
                transposed(&Dense::new(shape, product).unwrap()).into_values()
            }
            false => product,
        }
    }

    fn text(&self, items: usize) -> &'static str {
        match (items, self.by_columns) {
            (1, false) => "C[m,n] = A[m,k] * B[k,n]",
            (1, true) => "C[m,n] = A[k,m] * B[k,n]",
            (_, false) => "C[z,m,n] = A[z,m,k] * B[z,k,n]",
            (_, true) => "C[z,m,n] = A[z,k,m] * B[z,k,n]",
        }
    }

    /// Shape of a matrix of the product: without the batch axis for one item.
    fn shape(items: usize, [rows, columns]: [usize; 2]) -> Vec<usize> {
        match items {
            1 => vec![rows, columns],
            _ => vec![items, rows, columns],
        }
    }

    /// The kernel with these micro-tiles on the GPU of the tests.
    fn kernel(&self, dtype: Dtype) -> &'static str {
        let of = match (dtype, self.precision) {
            (Dtype::Bf16, _) => "bf16",
            (Dtype::F32, Precision::Tf32) => "tf32",
            _ => "f16",
        };
        match (self.right, self.by_columns) {
            (true, _) => here(&format!("pit_right_{}_1x64", if of == "bf16" { of } else { "f16" })),
            (_, true) => here(&format!("pit_{}_1x64", if of == "bf16" { of } else { "f16" })),
            _ => here(&format!("pit_{of}_{}x1", self.height)),
        }
    }

    fn operands<'a, T: Scalar>(
        &self,
        [a, b]: [&'a Tensor<T>; 2],
    ) -> [(&'static str, Operand<'a, T>); 2] {
        // Kernels of every height are offered at this share.
        let expected = SparsityHint::MicroTiles(0.01);
        let dynamic = |x| Dynamic::new(x).expecting(expected).threshold(self.threshold).into();
        match self.right {
            false => [("A", dynamic(a)), ("B", b.into())],
            true => [("A", a.into()), ("B", dynamic(b))],
        }
    }

    /// Plans a batch of products of extents `[m, k, n]`, for any row strides.
    pub fn try_batch<T: Scalar>(
        self,
        context: &Context,
        items: usize,
        [m, k, n]: [usize; 3],
    ) -> Result<SkippingPlan<T>> {
        let of_a = if self.by_columns { [k, m] } else { [m, k] };
        // Rows begin at multiples of 16 bytes, which kernels require.
        let zeros = |matrix: [usize; 2]| {
            let dense = Dense::zeros(Self::shape(items, matrix))?;
            context.upload_strided::<T>(&dense, matrix[1].next_multiple_of(8), T::ZERO)
        };
        let (a, b) = (zeros(of_a)?, zeros([k, n])?);
        let operands = self.operands([&a, &b]);
        let built = |variant: Option<&str>| {
            let options = Options::default()
                .determinism(self.determinism)
                .precision(self.precision)
                .variant(variant);
            context.plan(self.text(items)).operands(&operands).options(&options).build()
        };
        let plan = match self.few {
            true => {
                let all = built(None)?;
                let few = |name: &&str| as_on_hopper(name).starts_with("pit_few");
                let mut names = all.choice().candidates().map(|(name, _)| name);
                let kernel = names.find(few).unwrap_or_else(|| here("pit_few_f16_64_n256"));
                built(Some(kernel))?
            }
            false => built(Some(self.kernel(T::DTYPE)))?,
        };
        if context.is_cuda() {
            assert!(plan.variant().starts_with("pit_"), "{plan}");
        }
        Ok(SkippingPlan { plan, skipping: self })
    }

    /// [`Self::try_batch`] of one product.
    pub fn try_plan<T: Scalar>(
        self,
        context: &Context,
        extents: [usize; 3],
    ) -> Result<SkippingPlan<T>> {
        self.try_batch(context, 1, extents)
    }

    #[track_caller]
    pub fn plan<T: Scalar>(self, context: &Context, extents: [usize; 3]) -> SkippingPlan<T> {
        self.batch(context, 1, extents)
    }

    #[track_caller]
    pub fn batch<T: Scalar>(
        self,
        context: &Context,
        items: usize,
        extents: [usize; 3],
    ) -> SkippingPlan<T> {
        match self.try_batch(context, items, extents) {
            Ok(made) => made,
            Err(error) => panic!("{items} of {extents:?}, {self:?}: {error}"),
        }
    }
}

impl<T: Scalar> SkippingPlan<T> {
    pub fn run(&self, ab: [&Tensor<T>; 2], c: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        self.plan.run(&self.skipping.operands(ab), c, stream)
    }
}
