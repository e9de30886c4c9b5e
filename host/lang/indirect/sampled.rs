//! Detection of SDDMM in an Einsum: a product of dense matrices at the nonzeros of a sparse output.

use einsparse_formats::Format;

use super::{IndirectEinsum, rewrite};
use crate::einsum::{Access, Einsum, Epilogue, IndexExpr, Mode};
use crate::error::{Error, Result};

/// Dense factor of an SDDMM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledFactor {
    /// Name of the factor.
    pub name: String,
    /// Whether its axes are `[k, m]` (`[k, n]`) instead of `[m, k]` (`[n, k]`).
    pub columns: bool,
}

/// SDDMM `out[m,n] (= | +=) scalars * mask[m,n] * x[m,k] * y[n,k]` at the nonzeros of `out`. The mask is optional and
/// has the pattern of `out`. The axes of x and y may be swapped.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledForm {
    /// Name of the output.
    pub output: String,
    /// Mode of the output: `=` or `+=`.
    pub mode: Mode,
    /// Factor with the rows of the output.
    pub x: SampledFactor,
    /// Factor with the columns of the output.
    pub y: SampledFactor,
    /// Sparse factor with the pattern of the output.
    pub mask: Option<String>,
}

fn names(access: &Access) -> Option<[&str; 2]> {
    match access.indices.as_slice() {
        [IndexExpr::Name(a), IndexExpr::Name(b)] if a != b => Some([a, b]),
        _ => None,
    }
}

impl SampledForm {
    /// Returns the form of an expression whose sparse tensors are the output and `mask`; `None` for another expression.
    pub fn of(e: &Einsum, mask: Option<&str>) -> Option<SampledForm> {
        let [m, n] = names(&e.out)?;
        if e.epilogue != Epilogue::default() {
            return None;
        }
        let (mut x, mut y, mut masks) = (None, None, 0);
        for factor in &e.factors {
            let [a, b] = names(factor)?;
            if Some(factor.tensor.as_str()) == mask {
                masks += 1;
                if [a, b] != [m, n] {
                    return None;
                }
                continue;
            }
            let (own, k, columns) = match (a == m || a == n, b == m || b == n) {
                (true, false) => (a, b, false),
                (false, true) => (b, a, true),
                _ => return None,
            };
            let place = if own == m { &mut x } else { &mut y };
            let name = factor.tensor.clone();
            if place.replace((SampledFactor { name, columns }, k)).is_some() {
                return None;
            }
        }
        let ((x, k), (y, y_k)) = (x?, y?);
        (k == y_k && masks == usize::from(mask.is_some())).then(|| SampledForm {
            output: e.out.tensor.clone(),
            mode: e.mode,
            x,
            y,
            mask: mask.map(String::from),
        })
    }
}

/// Rewrites an expression with a sparse output of this format: the result is the expression at each slot of the output.
///
/// ```
/// use einsparse_lang::einsum::Einsum;
/// use einsparse_formats::Format;
/// use einsparse_lang::indirect::rewrite_sampled;
/// let e = Einsum::parse("S[m,n] = X[m,k] * Y[n,k]")?;
/// let format = Format::BlockCoo { block: (32, 32) };
/// let indirect = rewrite_sampled(&e, &format, None)?;
/// assert_eq!(indirect.to_string(), "SV[p,bm,bn] = X[SM[p],bm,k] * Y[SN[p],bn,k]");
/// # Ok::<(), einsparse_lang::Error>(())
/// ```
///
/// # Errors
/// - Errors of `rewrite`.
/// - [`Error::Operand`] if the output is also a factor, or for a bias or `relu_grad`, which require a dense output.
pub fn rewrite_sampled(e: &Einsum, format: &Format, mask: Option<&str>) -> Result<IndirectEinsum> {
    if e.right().any(|a| a.tensor == e.out.tensor) {
        return Err(Error::operand(
            &e.out.tensor,
            format!("is the sparse output of `{e}` and cannot be read in it"),
        ));
    }
    let mut epilogue = e.epilogue.bias.iter().chain(&e.epilogue.gate);
    if let Some(access) = epilogue.next() {
        return Err(Error::operand(
            &access.tensor,
            format!("`{access}` is for a dense output, and that of `{e}` is sparse"),
        ));
    }
    // Treats the output as a factor, so that its coordinates replace the indices of all other factors.
    let mut as_factor = e.clone();
    as_factor.factors.retain(|f| Some(f.tensor.as_str()) != mask);
    let mut free = e.out.tensor.clone();
    while e.right().any(|a| a.tensor == free) || free == e.out.tensor {
        free.push('\'');
    }
    as_factor.out.tensor = free;
    as_factor.factors.push(e.out.clone());
    let mut indirect = rewrite(&as_factor, &e.out.tensor, format)?;
    let Some(values) = indirect.factors.pop() else {
        return Ok(indirect);
    };
    if let Some(mask) = mask {
        let mut own = values.clone();
        own.tensor = format!("{mask}V");
        indirect.factors.insert(0, own);
    }
    indirect.sparse = None;
    indirect.filled.clear();
    indirect.mode = e.mode;
    indirect.out = values;
    Ok(indirect)
}
