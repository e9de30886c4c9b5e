//! Operands of a product with a dynamic operand, bound to the tensors of a run.

use super::PitForm;
use crate::error::Result;
use crate::offer::{Run, Slot};
use crate::tensor::{AnyTensor, DenseMatrix};

/// Slots of A and B, and extents of A, B and C as stored.
#[derive(Debug)]
pub(super) struct Bound {
    slots: [Slot; 2],
    extents: [[usize; 2]; 3],
}

impl Bound {
    /// Creates the operands of a product. The items of a batch follow each other, as rows of one matrix.
    pub(super) fn new(pit: &PitForm) -> Self {
        let ([m, k, n], form) = (pit.extents, &pit.form);
        let of_a = if form.order.transposed { [k, m] } else { [m, k] };
        let all = |[rows, columns]: [usize; 2]| [pit.items.saturating_mul(rows), columns];
        Bound { slots: pit.slots, extents: [of_a, [k, n], [m, n]].map(all) }
    }

    pub(super) fn matrices(&self, run: &Run<'_>, out: &AnyTensor) -> Result<[DenseMatrix; 3]> {
        let [a, b] = self.slots;
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
