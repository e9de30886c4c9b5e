//! The operands of a product with a dynamic one, bound to the tensors of a run.

use crate::error::Result;
use crate::families::convert::DenseMatrix;
use crate::indirect::SpmmForm;
use crate::offer::Run;
use crate::tensor::AnyTensor;

/// What the operands are called, and their extents.
#[derive(Debug)]
pub(super) struct Bound {
    names: [String; 2],
    extents: [[usize; 2]; 3],
}

impl Bound {
    /// The operands of a product of extents `[m, k, n]`; A as `of_a`.
    pub(super) fn new(form: &SpmmForm, [m, k, n]: [usize; 3], of_a: [usize; 2]) -> Self {
        Bound { names: [form.sparse.clone(), form.dense.clone()], extents: [of_a, [k, n], [m, n]] }
    }

    /// A, B and C of a run.
    pub(super) fn matrices(&self, run: &Run<'_>, out: &AnyTensor) -> Result<[DenseMatrix; 3]> {
        let [a, b] = &self.names;
        let [of_a, of_b, of_c] = self.extents;
        Ok([
            matrix(run.tensor(a)?, of_a),
            matrix(run.tensor(b)?, of_b),
            matrix(run.output(out)?, of_c),
        ])
    }
}

/// An operand on the device.
fn matrix((address, leading): (u64, usize), [rows, columns]: [usize; 2]) -> DenseMatrix {
    DenseMatrix { address, rows, columns, leading }
}
