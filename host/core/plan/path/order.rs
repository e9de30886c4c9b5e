//! Order in which terms are contracted: optimal for up to eight terms, greedy for more.

/// Maximum number of terms of the exact search, whose memory is exponential.
const MAX_EXACT: usize = 8;

/// Size of a factor or of an intermediate result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    /// Set of indices: bit i for index i.
    pub(super) names: u128,
    /// Number of nonzeros of a sparse factor; `None` for a dense term.
    pub(super) entries: Option<f64>,
}

impl Size {
    fn dense(names: u128) -> Self {
        let entries = None;
        Size { names, entries }
    }
}

/// Cost model of the search.
pub(super) trait Costs {
    /// Returns the number of elements of a tensor with these indices.
    fn volume(&self, names: u128) -> f64;

    /// Returns the microseconds of a contraction of two terms that keeps these indices; infinite if it is not possible.
    fn pair(&self, a: &Size, b: &Size, kept: u128) -> f64;

    /// Returns the maximum number of elements of an intermediate result.
    fn max_elements(&self) -> f64;
}

/// Returns the pairs to contract, in order. Terms are numbered as given, followed by the results of the pairs. `None`
/// if an intermediate result exceeds the limit in every order of the exact search, or in the greedy order.
pub(super) fn order(terms: &[Size], out: u128, costs: &impl Costs) -> Option<Vec<(usize, usize)>> {
    let pairs = match terms.len() {
        0 | 1 => None,
        count if count <= MAX_EXACT => Subsets::new(terms, out, costs).pairs(),
        _ => greedy(terms, out, costs),
    };
    Some(depth_first(terms.len(), &pairs?))
}

/// Cheapest order of each subset of the terms.
struct Subsets {
    count: usize,
    /// Per subset: microseconds, and one of the two parts that its last step multiplies.
    best: Vec<(f64, usize)>,
}

impl Subsets {
    fn new(terms: &[Size], out: u128, costs: &impl Costs) -> Self {
        let (count, all) = (terms.len(), (1 << terms.len()) - 1);
        let mut names = vec![0; all + 1];
        for set in 1..=all {
            let lowest = set.trailing_zeros() as usize;
            names[set] = names[set & (set - 1)] | terms[lowest].names;
        }
        let size = |set: usize| match set.is_power_of_two() {
            true => terms[set.trailing_zeros() as usize],
            false => Size::dense(names[set] & (out | names[all & !set])),
        };
        let sizes: Vec<Size> = (0..=all).map(size).collect();
        let mut best = vec![(0.0, 0); all + 1];
        for set in (1..=all).filter(|set| !set.is_power_of_two()) {
            best[set] = (f64::INFINITY, 0);
            if set != all && costs.volume(sizes[set].names) > costs.max_elements() {
                continue;
            }
            let lowest = set & set.wrapping_neg();
            // Only parts with the lowest term, so that each split is visited once.
            let mut half = (set - 1) & set;
            while half > 0 {
                if half & lowest != 0 {
                    let rest = set & !half;
                    let before = best[half].0 + best[rest].0;
                    let us = before + costs.pair(&sizes[half], &sizes[rest], sizes[set].names);
                    if us < best[set].0 {
                        best[set] = (us, half);
                    }
                }
                half = (half - 1) & set;
            }
        }
        Subsets { count, best }
    }

    fn pairs(&self) -> Option<Vec<(usize, usize)>> {
        let all = (1 << self.count) - 1;
        let mut pairs = Vec::new();
        self.best[all].0.is_finite().then(|| {
            self.add(all, &mut pairs);
            pairs
        })
    }

    /// Adds the pairs of a subset and returns the number of its result.
    fn add(&self, set: usize, pairs: &mut Vec<(usize, usize)>) -> usize {
        if set.is_power_of_two() {
            return set.trailing_zeros() as usize;
        }
        let half = self.best[set].1;
        let pair = (self.add(half, pairs), self.add(set & !half, pairs));
        pairs.push(pair);
        self.count + pairs.len() - 1
    }
}

/// Two terms that can be contracted next.
struct Candidate {
    terms: (usize, usize),
    kept: u128,
    elements: f64,
    /// Elements of the result minus those of both terms.
    growth: f64,
    us: f64,
}

/// Repeatedly contracts the pair with the smallest growth, and among equal ones the cheapest.
fn greedy(terms: &[Size], out: u128, costs: &impl Costs) -> Option<Vec<(usize, usize)>> {
    let mut sizes = terms.to_vec();
    let mut left: Vec<usize> = (0..terms.len()).collect();
    let mut pairs = Vec::new();
    // A contraction of other terms does not change a pair, because its result keeps their shared indices. Each pair is
    // therefore evaluated once.
    let mut candidates = Vec::new();
    for at in 1..left.len() {
        add_candidates(&mut candidates, &sizes, (&left, out), (at, &left[..at]), costs);
    }
    while left.len() > 1 {
        let last = left.len() == 2;
        let possible =
            |c: &&Candidate| c.us.is_finite() && (last || c.elements <= costs.max_elements());
        let order = |c: &Candidate, d: &Candidate| {
            let growth = c.growth.total_cmp(&d.growth);
            growth.then(c.us.total_cmp(&d.us))
        };
        let best = candidates.iter().filter(possible).min_by(|c, d| order(c, d))?;
        let (pair, kept) = (best.terms, best.kept);
        let touched = |term: usize| term == pair.0 || term == pair.1;
        candidates.retain(|c| !touched(c.terms.0) && !touched(c.terms.1));
        left.retain(|&term| !touched(term));
        pairs.push(pair);
        let result = sizes.len();
        sizes.push(Size::dense(kept));
        let others = left.clone();
        left.push(result);
        add_candidates(&mut candidates, &sizes, (&left, out), (result, &others), costs);
    }
    Some(pairs)
}

/// Adds the pairs of one term with others.
fn add_candidates(
    candidates: &mut Vec<Candidate>,
    sizes: &[Size],
    (left, out): (&[usize], u128),
    (term, others): (usize, &[usize]),
    costs: &impl Costs,
) {
    // Names in at least one, two and three terms.
    let mut times = [0u128; 3];
    for &term in left {
        let names = sizes[term].names;
        times[2] |= times[1] & names;
        times[1] |= times[0] & names;
        times[0] |= names;
    }
    let held = |size: &Size| size.entries.unwrap_or_else(|| costs.volume(size.names));
    for &other in others {
        let (a, b) = (&sizes[other], &sizes[term]);
        let (both, one) = (a.names & b.names, a.names ^ b.names);
        let kept = both & (times[2] | out) | one & (times[1] | out);
        let elements = costs.volume(kept);
        candidates.push(Candidate {
            terms: (other, term),
            kept,
            elements,
            growth: elements - held(a) - held(b),
            us: costs.pair(a, b, kept),
        });
    }
}

/// Sorts the pairs so that of two subtrees the one with the larger peak of intermediate results comes first. n terms
/// then have at most log2(n) + 1 intermediate results at once.
fn depth_first(count: usize, pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut held = vec![0usize; count];
    for &(a, b) in pairs {
        held.push(match held[a] == held[b] {
            true => held[a] + 1,
            false => held[a].max(held[b]),
        });
    }
    let mut ordered = Vec::new();
    if let Some(last) = (count + pairs.len()).checked_sub(1) {
        add_ordered(last, count, (pairs, &held), &mut ordered);
    }
    ordered
}

/// Adds the pairs that compute a term, and returns its new number.
fn add_ordered(
    term: usize,
    count: usize,
    (pairs, held): (&[(usize, usize)], &[usize]),
    ordered: &mut Vec<(usize, usize)>,
) -> usize {
    let Some(&(a, b)) = term.checked_sub(count).and_then(|at| pairs.get(at)) else {
        return term;
    };
    let mut add = |term| add_ordered(term, count, (pairs, held), ordered);
    let pair = if held[b] > held[a] {
        let b = add(b);
        (add(a), b)
    } else {
        (add(a), add(b))
    };
    ordered.push(pair);
    count + ordered.len() - 1
}

#[cfg(test)]
mod tests;
