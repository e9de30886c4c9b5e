//! Along what the lanes of the general kernels may run, told from the expression and the strides of its operands.

use crate::indirect::{Access, Index, IndirectEinsum};

/// What lanes run along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lanes {
    /// Vectors of an index of the output that is contiguous wherever it stands.
    Vectors,
    /// Elements of an index of the output; without one, a lane has an element of its own.
    Elements,
    /// Terms of an element of the output.
    Terms,
}

/// A way to walk an indirect Einsum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) lanes: Lanes,
    /// The axis of the output that lanes run along.
    pub(crate) inner: Option<usize>,
    /// The factors, those without that index in front, and of them the one of filled blocks.
    pub(crate) order: Vec<usize>,
    /// How many have not that index.
    pub(crate) fixed: usize,
    /// How many of the others are not contiguous along it, or the output; where lanes run along terms, how many factors
    /// are not contiguous along those.
    pub(crate) strided: usize,
}

/// Strides of a tensor, in elements; `None` for the values of a sparse operand.
pub(crate) type StridesOf<'s> = &'s dyn Fn(&str) -> Option<Vec<usize>>;

/// The factor of filled blocks. The kernels test one: more are refused ([`IndirectEinsum::filled`]).
pub(crate) fn filled(e: &IndirectEinsum) -> Option<usize> {
    e.filled.first().copied()
}

/// Every way, the one with vectors first where there is one of `vector` elements.
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

/// How many factors do not lie one element behind the other along the terms: along the summed loop that moves them
/// least, and those behind the list of a sparse operand but its values.
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
    // None where an index is no plain name: behind a gather a factor may lie anywhere.
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

/// All strides but those of 1 are multiples of a vector.
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

/// Axes of the output whose index stands nowhere but as itself.
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

/// Lanes along an axis of the output.
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
