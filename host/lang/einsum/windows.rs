//! Detection of convolutions in an Einsum as written, by its structure; names do not matter.

use super::{Access, Einsum, IndexExpr, Term};

/// Convolution over two axes: `C[n,x,y,f] = A[n,s*x+d*i,t*y+e*j,m] * B[i,j,m,f]`. Names and the order of factors and
/// terms are arbitrary, and so are mode, scalar factors and epilogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Positions of A and B among the factors.
    pub factors: [usize; 2],
    /// Strides s and t.
    pub strides: [usize; 2],
    /// Dilations d and e.
    pub dilations: [usize; 2],
}

/// Returns the convolution that an expression computes as written; `None` for any other expression, including other
/// affine indices.
pub fn windows(e: &Einsum) -> Option<Windows> {
    let [n, x, y, f] = plain(&e.out)?[..] else {
        return None;
    };
    let [first, second] = e.factors.as_slice() else {
        return None;
    };
    let of = |a: &Access, b: &Access| {
        let [i, j, m, own] = plain(b)?[..] else {
            return None;
        };
        let [
            IndexExpr::Name(batch),
            IndexExpr::Sum(down),
            IndexExpr::Sum(across),
            IndexExpr::Name(channel),
        ] = a.indices.as_slice()
        else {
            return None;
        };
        let all = [n, x, y, f, i, j, m];
        let different = (1..all.len()).all(|at| !all[..at].contains(&all[at]));
        let fits = different && (batch, channel, own) == (n, m, f);
        let ([s, d], [t, e]) = (step(down, [x, i])?, step(across, [y, j])?);
        fits.then_some(([s, t], [d, e]))
    };
    let found = |(factors, (strides, dilations))| Windows { factors, strides, dilations };
    let one = of(first, second).map(|steps| ([0, 1], steps));
    one.or_else(|| Some(([1, 0], of(second, first)?))).map(found)
}

/// Returns the index names of an access; `None` if an index is not a plain name.
fn plain(access: &Access) -> Option<Vec<&String>> {
    let name = |index: &'_ IndexExpr| matches!(index, IndexExpr::Name(_));
    access.indices.iter().all(name).then(|| {
        let names = access.indices.iter().filter_map(|index| match index {
            IndexExpr::Name(name) => Some(name),
            _ => None,
        });
        names.collect()
    })
}

/// Returns the factors of window position and window element in a sum of these two indices.
fn step(terms: &[Term], [place, element]: [&String; 2]) -> Option<[usize; 2]> {
    match terms {
        [a, b] if (&a.index, &b.index) == (place, element) => Some([a.factor, b.factor]),
        [a, b] if (&a.index, &b.index) == (element, place) => Some([b.factor, a.factor]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<Windows> {
        windows(&Einsum::parse(text).unwrap())
    }

    #[test]
    fn convolutions_are_told_by_structure() {
        let windows = |factors, strides, dilations| Some(Windows { factors, strides, dilations });
        assert_eq!(
            found("C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]"),
            windows([0, 1], [1, 1], [1, 1])
        );
        assert_eq!(
            found("Y[b,p,q,o] += relu(2 * W[r,s,c,o] * X[b,5*r+2*p,3*q+s,c] + bias[o])"),
            windows([1, 0], [2, 3], [5, 1])
        );
    }

    #[test]
    fn other_sums_are_not() {
        for text in [
            "C[x] = A[x+i] * B[i]",
            "C[n,f,x,y] = A[n,m,x+i,y+j] * B[f,m,i,j]",
            "C[n,x,y,f] = A[n,x+j,y+i,m] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i,y+j,f] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i,y+i,m] * B[i,i,m,f]",
            "C[n,x,y,f] = A[n,x+i,2*y,m] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i+j,y+j,m] * B[i,j,m,f]",
            "C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f] * D[f]",
            "C[n,x,y,f] = A[n,X[x,i],Y[y,j],m] * B[i,j,m,f]",
            "C[m,n] = A[m,k] * B[k,n]",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
