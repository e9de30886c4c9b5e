//! The choice of a kernel for a sampled product: by the blocks of the output, the order of the axes, and how rows lie.

use einsparse_kernels::abi::{A_COLUMNS, B_COLUMNS, Operation};
use einsparse_kernels::table::{Row, kernels};

use crate::error::Refusal;
use crate::indirect::SampledForm;
use crate::registry::Scalar;

/// The row with the widest pieces that the blocks can be cut into, or why each row is none. Rows of X and Y lie
/// `distances` elements apart.
pub(super) fn choose<T: Scalar>(
    form: &SampledForm,
    (bm, bk): (usize, usize),
    distances: [usize; 2],
    hopper: bool,
) -> std::result::Result<&'static Row, Vec<Refusal>> {
    let mut refused = Vec::new();
    let mut best: Option<&'static Row> = None;
    let rows = kernels()
        .iter()
        .filter(|r| r.operation == Operation::Sampled);
    for row in rows.filter(|row| row.dtype == T::DTYPE) {
        let (pm, pk) = (row.block.0 as usize, row.block.1 as usize);
        let (x, y) = (row.order & A_COLUMNS != 0, row.order & B_COLUMNS == 0);
        let reason = if !hopper {
            "is made of wgmma, which compute capability 9.0 has".into()
        } else if (form.x.columns, form.y.columns) != (x, y) {
            let order = if x {
                "[k,m] and [k,n]"
            } else {
                "[m,k] and [n,k]"
            };
            format!("reads {order}")
        } else if !bm.is_multiple_of(pm) || !bk.is_multiple_of(pk) {
            format!("is for blocks of multiples of {pm} x {pk}, the output has {bm} x {bk}")
        } else if distances
            .iter()
            .any(|d| !d.is_multiple_of(row.vector as usize))
        {
            let ([x, y], vector) = (distances, row.vector);
            format!("moves {vector} elements at once, rows of X lie {x} apart, rows of Y {y}")
        } else {
            if best.is_none_or(|b| b.block.1 < row.block.1) {
                best = Some(row);
            }
            continue;
        };
        refused.push(Refusal {
            name: row.name.into(),
            reason,
        });
    }
    if refused.is_empty() {
        refused.push(Refusal {
            name: "sampled".into(),
            reason: format!("no kernel of this family computes {}", T::DTYPE.name()),
        });
    }
    best.ok_or(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::einsum::Einsum;
    use half::f16;

    #[test]
    fn refusals_say_why() {
        let said = |text: &str, block, distances, hopper| {
            let form = SampledForm::of(&Einsum::parse(text).unwrap(), None).unwrap();
            let refused = choose::<f16>(&form, block, distances, hopper).map(|row| row.name);
            refused.map_err(|all| {
                all.iter()
                    .map(|r| r.reason.as_str())
                    .collect::<Vec<_>>()
                    .join("; ")
            })
        };
        let plain = "S[m,n] = X[m,k] * Y[n,k]";
        assert_eq!(said(plain, (128, 64), [64, 72], true), Ok("sampled_f16_64"));
        for (text, block, distances, hopper, words) in [
            (plain, (64, 64), [64, 64], false, "compute capability 9.0"),
            (
                "S[m,n] = X[m,k] * Y[k,n]",
                (64, 64),
                [64, 64],
                true,
                "reads [m,k] and [n,k]",
            ),
            (plain, (8, 64), [64, 64], true, "the output has 8 x 64"),
            (
                plain,
                (64, 64),
                [64, 60],
                true,
                "rows of X lie 64 apart, rows of Y 60",
            ),
        ] {
            let said = said(text, block, distances, hopper).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        let form = SampledForm::of(&Einsum::parse(plain).unwrap(), None).unwrap();
        let of_f32 = choose::<f32>(&form, (64, 64), [64, 64], true).unwrap_err();
        assert!(of_f32[0].reason.ends_with("computes f32"), "{of_f32:?}");
    }
}
