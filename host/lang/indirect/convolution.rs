//! Detection of convolutions over lists in an indirect Einsum: each list entry combines an input row, a matrix and an
//! output row. Detection is by structure; names do not matter.

use super::{Access, Index, IndirectEinsum};
use crate::einsum::{Activation, Mode};

/// Convolution `out[Q[p],n] (= | +=) scalars * In[I[p],c] * W[T[p],c,n]`; W may also be `[T[p],n,c]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionForm {
    /// Name of the output.
    pub output: String,
    /// Name of the input.
    pub input: String,
    /// Name of the matrices.
    pub weights: String,
    /// Whether the matrices are stored transposed, as `[T[p],n,c]`.
    pub turned: bool,
    /// Names of the lists of output rows, input rows and matrices.
    pub lists: [String; 3],
    /// Mode of the output: `=` or `+=`.
    pub mode: Mode,
}

/// Returns the list and the loop index of `list[p]`.
fn listed(index: &Index) -> Option<(&str, &str)> {
    let Index::Access(Access { tensor, indices }) = index else {
        return None;
    };
    match indices.as_slice() {
        [Index::Name(p)] => Some((tensor, p)),
        _ => None,
    }
}

/// Returns the list, its loop index and the dense indices of `tensor[list[p], ...]`.
fn rows(access: &Access) -> Option<(&str, &str, Vec<&str>)> {
    let (first, others) = access.indices.split_first()?;
    let (list, p) = listed(first)?;
    let dense = |index: &'_ Index| match index {
        Index::Name(name) if name != p => Some(()),
        _ => None,
    };
    others.iter().map(dense).collect::<Option<Vec<()>>>()?;
    let names = others.iter().filter_map(|index| match index {
        Index::Name(name) => Some(name.as_str()),
        _ => None,
    });
    Some((list, p, names.collect()))
}

impl IndirectEinsum {
    /// Returns the convolution that this computes.
    ///
    /// # Errors
    /// The reason why it is not a convolution over lists.
    pub fn convolution(&self) -> Result<ConvolutionForm, String> {
        let bare = self.bias.is_none() && self.gate.is_none();
        if !bare || self.activation != Activation::Identity {
            return Err("has no epilogue in a line over lists".into());
        }
        if self.sparse.is_some() || !self.ranges.is_empty() || !self.equalities.is_empty() {
            return Err("takes lists of rows, no sparse operand".into());
        }
        let shape = "takes out[Q[p],n] = In[I[p],c] * W[T[p],c,n] over three lists";
        let (q, p, columns) = rows(&self.out).ok_or(shape)?;
        let [n] = columns[..] else {
            return Err(shape.into());
        };
        let values =
            |access: &Access| matches!(access.indices.as_slice(), [Index::Name(own)] if own == p);
        if let Some(access) = self.factors.iter().find(|access| values(access)) {
            return Err(format!(
                "multiplies rows as they are: `{access}` would have to scale each"
            ));
        }
        let found: Option<Vec<_>> = self.factors.iter().map(rows).collect();
        let found = found.ok_or(shape)?;
        let [first, second] = &found[..] else {
            return Err(shape.into());
        };
        let (input, weights) = match (first.2.len(), second.2.len()) {
            (1, 2) => (0, 1),
            (2, 1) => (1, 0),
            _ => return Err(shape.into()),
        };
        let (c, axes) = (found[input].2[0], &found[weights].2);
        let turned = axes[..] == [n, c];
        let fits = c != n && (turned || axes[..] == [c, n]);
        if !fits || found.iter().any(|(_, own, _)| *own != p) {
            return Err(shape.into());
        }
        let lists = [q, found[input].0, found[weights].0].map(str::to_owned);
        Ok(ConvolutionForm {
            output: self.out.tensor.clone(),
            input: self.factors[input].tensor.clone(),
            weights: self.factors[weights].tensor.clone(),
            turned,
            lists,
            mode: self.mode,
        })
    }
}
