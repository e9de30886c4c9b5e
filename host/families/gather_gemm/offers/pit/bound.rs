//! Operands of a product with a dynamic operand, bound to the tensors of a run.

use crate::error::Result;
use crate::families::convert::DenseMatrix;
use crate::indirect::SpmmForm;
use crate::offer::Run;
use crate::tensor::AnyTensor;

/// Names of the operands, and extents of A, B and C.
#[derive(Debug)]
pub(super) struct Bound {
    names: [String; 2],
    extents: [[usize; 2]; 3],
}

impl Bound {
    /// Creates the operands of a product of extents `[m, k, n]`; A is stored as `of_a`.
    pub(super) fn new(form: &SpmmForm, [m, k, n]: [usize; 3], of_a: [usize; 2]) -> Self {
        Bound { names: [form.sparse.clone(), form.dense.clone()], extents: [of_a, [k, n], [m, n]] }
    }

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

fn matrix((address, leading): (u64, usize), [rows, columns]: [usize; 2]) -> DenseMatrix {
    DenseMatrix { address, rows, columns, leading }
}
