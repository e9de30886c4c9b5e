//! Ways in which the lanes of the general kernels can iterate, determined from the expression and the strides of its
//! operands.

use crate::indirect::{Access, Index, IndirectEinsum};

/// Loop that the lanes iterate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lanes {
    /// Vectors of an output index along which every tensor is contiguous.
    Vectors,
    /// Elements of an output index; without such an index, each lane computes its own element.
    Elements,
    /// Terms of an output element.
    Terms,
}

/// Way to iterate over an indirect Einsum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) lanes: Lanes,
    /// Axis of the output that lanes iterate.
    pub(crate) inner: Option<usize>,
    /// Order of the factors: factors without that index first, and within each part the factor of padded blocks first.
    pub(crate) order: Vec<usize>,
    /// Number of factors without that index.
    pub(crate) fixed: usize,
    /// Number of the other tensors, including the output, that are not contiguous along that index. If lanes iterate
    /// terms, number of factors that are not contiguous along the terms.
    pub(crate) strided: usize,
}

/// Returns the strides of a tensor in elements; `None` for the values of a sparse operand.
pub(crate) type StridesOf<'s> = &'s dyn Fn(&str) -> Option<Vec<usize>>;

/// Factor of padded blocks. Kernels test one factor: more than one is rejected ([`IndirectEinsum::filled`]).
pub(crate) fn filled(e: &IndirectEinsum) -> Option<usize> {
    e.filled.first().copied()
}

/// Returns all ways, first the one with vectors of `vector` elements, if it exists.
pub(crate) fn ways(
    e: &IndirectEinsum,
    (out_shape, out_strides): (&[usize], &[usize]),
    strides_of: StridesOf<'_>,
    vector: usize,
) -> Vec<Way> {
    let mut ways = Vec::new();
    let last = out_shape.len().wrapping_sub(1);
    let own: Vec<Way> =
        free_axes(e).into_iter().map(|axis| along(e, axis, out_strides, strides_of)).collect();
    for way in &own {
        let contiguous = way.inner == Some(last) && way.strided == 0;
        let moving = e.factors.len() - way.fixed;
        if contiguous
            && out_shape[last].is_multiple_of(vector)
            && (1..=2).contains(&moving)
            && multiples(out_strides, vector)
            && way.order[way.fixed..]
                .iter()
                .all(|&f| strides_of(&e.factors[f].tensor).is_some_and(|s| multiples(&s, vector)))
        {
            ways.push(Way { lanes: Lanes::Vectors, ..way.clone() });
        }
    }
    let narrow = |way: &&Way| {
        let axis = way.inner.unwrap_or(0);
        (out_shape[axis] < 8, way.strided, usize::MAX - axis)
    };
    ways.push(match own.iter().min_by_key(narrow) {
        Some(way) => way.clone(),
        None => without(e, Lanes::Elements),
    });
    ways.push(Way { strided: apart(e, strides_of), ..without(e, Lanes::Terms) });
    ways
}

/// Number of factors that are not contiguous along the terms: min over the summed loops. A gathered factor counts as
/// not contiguous. The values of a sparse operand count as contiguous.
fn apart(e: &IndirectEinsum, strides_of: StridesOf<'_>) -> usize {
    let in_out = |name: &str| {
        let mut found = false;
        for index in &e.out.indices {
            index.for_each_name(&mut |n| found |= n == name);
        }
        found
    };
    let mut summed: Vec<&str> = Vec::new();
    for index in e.factors.iter().flat_map(|f| &f.indices) {
        index.for_each_name(&mut |n| summed.push(n));
    }
    summed.retain(|name| !in_out(name));
    // `None` if the loop occurs inside a gather: the factor may then be read at any offset.
    let step = |access: &Access, name: &str| -> Option<usize> {
        let strides = strides_of(&access.tensor).unwrap_or_else(|| vec![1; access.indices.len()]);
        let mut step = 0;
        for (index, stride) in access.indices.iter().zip(strides) {
            match index {
                Index::Name(own) if own == name => step += stride,
                Index::Name(_) => {}
                other => {
                    let mut gathered = false;
                    other.for_each_name(&mut |n| gathered |= n == name);
                    if gathered {
                        return None;
                    }
                }
            }
        }
        Some(step)
    };
    let far = |name: &&str| {
        let steps = e.factors.iter().map(|f| step(f, name));
        steps.filter(|s| s.is_none_or(|s| s > 1)).count()
    };
    summed.iter().map(far).min().unwrap_or(0)
}

/// Whether one stride is 1 and all others are multiples of a vector.
fn multiples(strides: &[usize], vector: usize) -> bool {
    let ones = strides.iter().filter(|s| **s == 1).count();
    let others = strides.iter().filter(|s| **s != 1);
    ones == 1 && others.clone().all(|s| s.is_multiple_of(vector))
}

fn without(e: &IndirectEinsum, lanes: Lanes) -> Way {
    let mut order: Vec<usize> = (0..e.factors.len()).collect();
    order.sort_by_key(|f| filled(e) != Some(*f));
    let (inner, fixed, strided) = (None, order.len(), 0);
    Way { lanes, inner, order, fixed, strided }
}

/// Axes of the output whose index is used only as a plain index.
fn free_axes(e: &IndirectEinsum) -> Vec<usize> {
    let mut tied: Vec<&str> = Vec::new();
    let tie = |index: &Index| !matches!(index, Index::Name(_));
    let all = e.factors.iter().chain([&e.out]).flat_map(|a| &a.indices);
    let coordinates = e.sparse.iter().flat_map(|s| &s.coordinates);
    for index in all.filter(|i| tie(i)).chain(coordinates) {
        index.for_each_name(&mut |n| tied.push(n));
    }
    for range in &e.ranges {
        tied.extend([range.index.as_str(), range.over.as_str()]);
    }
    for (left, right) in &e.equalities {
        left.for_each_name(&mut |n| tied.push(n));
        right.for_each_name(&mut |n| tied.push(n));
    }
    let free = |axis: &usize| match &e.out.indices[*axis] {
        Index::Name(n) => {
            let same = |i: &&Index| matches!(i, Index::Name(other) if other == n);
            !tied.contains(&n.as_str()) && e.out.indices.iter().filter(same).count() == 1
        }
        _ => false,
    };
    (0..e.out.indices.len()).filter(free).collect()
}

/// Way with lanes along an axis of the output.
fn along(e: &IndirectEinsum, axis: usize, out_strides: &[usize], strides_of: StridesOf<'_>) -> Way {
    let name = &e.out.indices[axis];
    let stride = |access: &Access| -> Option<usize> {
        let axes: Vec<usize> =
            (0..access.indices.len()).filter(|&a| access.indices[a] == *name).collect();
        if axes.is_empty() {
            return None;
        }
        let strides = strides_of(&access.tensor);
        Some(strides.map_or(usize::MAX, |s| axes.iter().map(|&a| s[a]).sum()))
    };
    let along: Vec<Option<usize>> = e.factors.iter().map(stride).collect();
    let mut order: Vec<usize> = (0..along.len()).collect();
    order.sort_by_key(|&f| (along[f].is_some(), filled(e) != Some(f)));
    let moving = along.iter().flatten();
    let strided = moving.filter(|s| **s != 1).count() + usize::from(out_strides[axis] != 1);
    Way {
        lanes: Lanes::Elements,
        inner: Some(axis),
        fixed: along.iter().filter(|a| a.is_none()).count(),
        order,
        strided,
    }
}
