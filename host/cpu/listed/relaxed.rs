//! Sums in any order (`Determinism::Relaxed`).

use einsparse_formats::Element;

use crate::einsum::{Activation, Mode};
use crate::indirect::IndirectEinsum;

/// Whether sums may be added to the output one by one, in any order: `+=` without an epilogue, into an element that holds an
/// accumulator (elements of 16 bits would be rounded at every addition).
pub(super) fn may_relax<T: Element>(e: &IndirectEinsum) -> bool {
    e.mode == Mode::Accumulate
        && e.activation == Activation::Identity
        && e.bias.is_none()
        && e.gate.is_none()
        && size_of::<T>() == size_of::<T::Acc>()
}

#[cfg(test)]
mod tests {
    use einsparse_formats::{Dense, bf16, f16};
    use einsparse_kernels::abi::{EINSUM_WHOLE, FLAG_RELAXED};

    use super::*;
    use crate::cpu::Operands;
    use crate::cpu::listed::{Listing, Offsets, Places, contiguous, ways};
    use crate::einsum::Einsum;
    use crate::indirect::rewrite_dense;

    /// Flags, items and number of tables of a listing of `C[I[p],n]` from `X[J[p],n]`.
    fn listed<T: Element>(
        text: &str,
        to: &[u32],
        relaxed: bool,
    ) -> (bool, Vec<[u32; 4]>, Vec<Vec<u32>>) {
        let e = rewrite_dense(&Einsum::parse(text).unwrap()).unwrap();
        let from: Vec<u32> = (0..to.len() as u32).rev().collect();
        let x = Dense::from_fn([to.len(), 8], |_| T::ZERO).unwrap();
        let (len, beside) = ([to.len()], Dense::from_fn([8], |_| T::ZERO).unwrap());
        let mut operands = Operands::new();
        operands.index("I", &len, to).unwrap();
        operands.index("J", &len, &from).unwrap();
        operands.dense("X", &x).dense("B", &beside);
        let shape = vec![5, 8];
        let places = Places {
            strides: contiguous(&shape),
            bias: if e.bias.is_some() {
                vec![1]
            } else {
                Vec::new()
            },
            gate: Vec::new(),
            shape,
        };
        let strides = |name: &str| Some(operands.tensor(name).ok()?.strides.clone());
        let way = &ways(&e, (&places.shape, &places.strides), &strides, 4)[0];
        let offsets = Offsets::new(&e, &operands).unwrap();
        let listing = Listing::new(&e, &operands, &offsets, &places, (way, relaxed)).unwrap();
        let tables = listing.tables.iter().map(|t| t.to_vec()).collect();
        let asked = listing.params.flags & FLAG_RELAXED != 0;
        (asked, listing.items, tables)
    }

    const ADDED: &str = "C[I[p],n] += X[J[p],n]";
    const UNSORTED: [u32; 6] = [3, 3, 0, 4, 4, 3];

    #[test]
    fn unsorted_places_are_taken_as_they_come() {
        let (relaxed, mut items, tables) = listed::<f32>(ADDED, &UNSORTED, true);
        assert!(relaxed);
        items.sort_unstable_by_key(|i| i[1]);
        let whole = |[place, start, len]: [u32; 3]| [place, start, len, EINSUM_WHOLE];
        let runs = [[3, 0, 2], [0, 2, 1], [4, 3, 2], [3, 5, 1]];
        assert_eq!(items, runs.map(whole));
        assert_eq!(tables, [vec![5, 4, 3, 2, 1, 0]], "the array as it is");
        assert!(listed::<f64>(ADDED, &UNSORTED, true).0);
    }

    #[test]
    fn other_sums_keep_their_order() {
        assert!(!listed::<f32>(ADDED, &UNSORTED, false).0, "not asked for");
        assert!(!listed::<f32>(ADDED, &[0, 0, 1, 3, 3, 4], true).0, "sorted");
        assert!(!listed::<f32>("C[I[p],n] = X[J[p],n]", &UNSORTED, true).0);
        let biased = "C[I[p],n] += X[J[p],n] + B[n]";
        assert!(!listed::<f32>(biased, &UNSORTED, true).0);
        assert!(!listed::<f16>(ADDED, &UNSORTED, true).0);
        assert!(!listed::<bf16>(ADDED, &UNSORTED, true).0);
    }
}
