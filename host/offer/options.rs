//! What a plan may do.

use crate::registry::Dtype;

/// How f32 matrices are multiplied on Tensor Cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Full f32 everywhere.
    #[default]
    Full,
    /// f32 rounded to TF32 (10 bits of mantissa, `cvt.rna`) in front of the multiplication.
    Tf32,
}

/// Which treatment of implicit zeros is acceptable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZerosRule {
    /// Zeros of a stored block, those between entries that a kernel gathers into a tile, and all where A is kept dense
    /// may be multiplied: a NaN or Inf in B can reach rows that own no entry there.
    #[default]
    Dense,
    /// Implicit zeros are never multiplied.
    Strict,
}

/// Whether the same inputs must give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Determinism {
    /// Bit for bit the same result for the same inputs and plan.
    #[default]
    Strict,
    /// Kernels that add in any order are allowed: module `relaxed`, `+=` in f32 over single entries. What the default
    /// costs is measured against it; a plan takes it by its variant only.
    Relaxed,
}

/// From where a plan takes the values of a sparse factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// From the operand, at each run.
    #[default]
    EachRun,
    /// From the operand when planned, and again at each [`Plan::update_values`](crate::plan::Plan::update_values):
    /// weights that stay as they are for many runs. A plan over single entries may then keep a copy in another form,
    /// dense or of a format that a faster kernel reads.
    Static,
}

/// What a plan may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// See [`Precision`].
    pub precision: Precision,
    /// See [`ZerosRule`].
    pub zeros: ZerosRule,
    /// See [`Determinism`].
    pub determinism: Determinism,
    /// See [`Weights`].
    pub weights: Weights,
    /// Take this row of the table and no other.
    pub variant: Option<String>,
    /// Elements that addresses and leading dimensions of B and C are multiples of, when a run gets others than
    /// those planned with. `None`: those of the operands given.
    pub alignment: Option<usize>,
}

/// What the elements are multiplied as.
pub(crate) fn multiplied_as(dtype: Dtype, precision: Precision) -> Dtype {
    match (dtype, precision) {
        (Dtype::F32, Precision::Tf32) => Dtype::Tf32,
        _ => dtype,
    }
}
