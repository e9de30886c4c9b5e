//! In which order terms are contracted: the cheapest of all orders up to eight of them, a greedy one beyond.

/// Terms of which every order is tried; their subsets are numbered.
const MOST_EXACT: usize = 8;

/// A factor or an intermediate result, by the numbers of its indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    /// Bit by bit.
    pub(super) names: u128,
    /// Entries of a sparse one.
    pub(super) entries: Option<f64>,
}

/// What an order is chosen by.
pub(super) trait Costs {
    /// Elements of a tensor with these indices.
    fn volume(&self, names: u128) -> f64;

    /// Microseconds of a contraction of two terms that keeps these indices.
    fn pair(&self, a: &Size, b: &Size, kept: u128) -> f64;

    /// Elements that an intermediate result may have.
    fn limit(&self) -> f64;
}

/// The pairs to contract, one after the other: terms are numbered as given, and results follow them. `None` where every
/// order has an intermediate result above the limit, or a greedy one meets one.
pub(super) fn order(terms: &[Size], out: u128, costs: &impl Costs) -> Option<Vec<(usize, usize)>> {
    match terms.len() {
        0 | 1 => None,
        count if count <= MOST_EXACT => Subsets::new(terms, out, costs).pairs(),
        _ => greedy(terms, out, costs),
    }
}

/// The cheapest order of each subset of the terms, smaller subsets first.
struct Subsets {
    count: usize,
    /// Microseconds, and the half that a subset is split into.
    best: Vec<(f64, usize)>,
}

impl Subsets {
    fn new(terms: &[Size], out: u128, costs: &impl Costs) -> Self {
        let (count, all) = (terms.len(), (1 << terms.len()) - 1);
        let names = |set: usize| {
            let own = (0..count).filter(|term| set >> term & 1 == 1);
            own.fold(0, |names, term| names | terms[term].names)
        };
        let size = |set: usize| match set.is_power_of_two() {
            true => terms[set.trailing_zeros() as usize],
            false => Size {
                names: names(set) & (out | names(all & !set)),
                entries: None,
            },
        };
        let sizes: Vec<Size> = (0..=all)
            .map(|set: usize| match set {
                0 => Size {
                    names: 0,
                    entries: None,
                },
                _ => size(set),
            })
            .collect();
        let mut best = vec![(0.0, 0); all + 1];
        for set in (1..=all).filter(|set| !set.is_power_of_two()) {
            best[set] = (f64::INFINITY, 0);
            if set != all && costs.volume(sizes[set].names) > costs.limit() {
                continue;
            }
            let lowest = set & set.wrapping_neg();
            // Every half with the lowest term.
            let mut half = (set - 1) & set;
            while half > 0 {
                if half & lowest != 0 {
                    let (a, b) = (&sizes[half], &sizes[set & !half]);
                    let before = best[half].0 + best[set & !half].0;
                    let us = before + costs.pair(a, b, sizes[set].names);
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

    /// Adds the pairs of a subset; returns the number of its result.
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

/// The pair whose result has fewest elements beside what it takes away, again and again; of several the cheapest.
fn greedy(terms: &[Size], out: u128, costs: &impl Costs) -> Option<Vec<(usize, usize)>> {
    let mut left: Vec<(usize, Size)> = terms.iter().copied().enumerate().collect();
    let mut pairs = Vec::new();
    while left.len() > 1 {
        let last = left.len() == 2;
        // Names that one term has, those of more than one, and those of more than two.
        let mut times = [0u128; 3];
        for (_, term) in &left {
            times[2] |= times[1] & term.names;
            times[1] |= times[0] & term.names;
            times[0] |= term.names;
        }
        let held = |size: &Size| size.entries.unwrap_or_else(|| costs.volume(size.names));
        let mut best: Option<(f64, f64, usize, usize, u128)> = None;
        for first in 0..left.len() {
            for second in first + 1..left.len() {
                let (a, b) = (&left[first].1, &left[second].1);
                let (both, one) = (a.names & b.names, a.names ^ b.names);
                let kept = both & (times[2] | out) | one & (times[1] | out);
                let volume = costs.volume(kept);
                if !last && volume > costs.limit() {
                    continue;
                }
                let grown = volume - held(a) - held(b);
                let us = costs.pair(a, b, kept);
                if us.is_infinite() {
                    continue;
                }
                let before = best.map(|(grown, us, ..)| (grown, us));
                if before.is_none_or(|before| (grown, us) < before) {
                    best = Some((grown, us, first, second, kept));
                }
            }
        }
        let (.., first, second, kept) = best?;
        pairs.push((left[first].0, left[second].0));
        left.remove(second);
        let (names, entries) = (kept, None);
        left[first] = (terms.len() + pairs.len() - 1, Size { names, entries });
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of every product of two terms, of indices of these extents.
    struct Products(Vec<f64>);

    impl Costs for Products {
        fn volume(&self, names: u128) -> f64 {
            let own = self.0.iter().enumerate();
            let own = own.filter(|(name, _)| names >> name & 1 == 1);
            own.map(|(_, extent)| extent).product()
        }

        fn pair(&self, a: &Size, b: &Size, _: u128) -> f64 {
            self.volume(a.names | b.names)
        }

        fn limit(&self) -> f64 {
            1e9
        }
    }

    /// `T0[0,1] * T1[1,2] * ...`, and the products that an order takes.
    fn chain(extents: &[usize]) -> (f64, usize) {
        let costs = Products(extents.iter().map(|&n| n as f64).collect());
        let ends = 1 | 1 << (extents.len() - 1);
        let terms: Vec<Size> = (0..extents.len() - 1)
            .map(|at| Size {
                names: 3 << at,
                entries: None,
            })
            .collect();
        let pairs = order(&terms, ends, &costs).unwrap();
        let mut all: Vec<Option<u128>> = terms.iter().map(|t| Some(t.names)).collect();
        let mut products = 0.0;
        for &(a, b) in &pairs {
            let (a, b) = (all[a].take().unwrap(), all[b].take().unwrap());
            products += costs.volume(a | b);
            let others = all.iter().flatten().fold(ends, |all, own| all | own);
            all.push(Some((a | b) & others));
        }
        assert_eq!(all.into_iter().flatten().collect::<Vec<_>>(), [ends]);
        (products, pairs.len())
    }

    /// Matrix chains by the textbook's recursion.
    fn cheapest(extents: &[usize]) -> f64 {
        let n = extents.len();
        let mut best = vec![vec![0.0; n]; n];
        for len in 2..n {
            for i in 0..n - len {
                let split = |k: usize| {
                    best[i][k] + best[k][i + len] + (extents[i] * extents[k] * extents[i + len]) as f64
                };
                best[i][i + len] = (i + 1..i + len).map(split).fold(f64::INFINITY, f64::min);
            }
        }
        best[0][n - 1]
    }

    #[test]
    fn up_to_eight_terms_have_the_cheapest_order() {
        for seed in 0..200usize {
            let extents: Vec<usize> = (0..3 + seed % 7)
                .map(|at| 1 + (seed * 31 + at * at * 17 + seed / 3 * at) % 23)
                .collect();
            let (products, steps) = chain(&extents);
            assert_eq!((products, steps), (cheapest(&extents), extents.len() - 2), "{extents:?}");
        }
    }

    #[test]
    fn sixty_terms_have_an_order_of_few_products() {
        let extents: Vec<usize> = (0..61).map(|at| 2 + at * 7 % 3).collect();
        let (products, steps) = chain(&extents);
        assert_eq!(steps, 59);
        assert!(products < 2.0 * cheapest(&extents), "{products}");
    }
}
