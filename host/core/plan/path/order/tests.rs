//! Tests of orders against an exhaustive search, and of the number of evaluated pairs.

use std::cell::Cell;

use super::*;

/// Cost model in which a product of two terms costs its elements.
struct Products {
    extents: Vec<f64>,
    max_elements: f64,
    /// Number of evaluated pairs.
    pairs: Cell<usize>,
}

impl Products {
    fn new(extents: &[usize]) -> Self {
        Products {
            extents: extents.iter().map(|&n| n as f64).collect(),
            max_elements: f64::INFINITY,
            pairs: Cell::new(0),
        }
    }
}

impl Costs for Products {
    fn volume(&self, names: u128) -> f64 {
        let own = self.extents.iter().enumerate();
        let own = own.filter(|(name, _)| names >> name & 1 == 1);
        own.map(|(_, extent)| extent).product()
    }

    fn pair(&self, a: &Size, b: &Size, _: u128) -> f64 {
        self.pairs.set(self.pairs.get() + 1);
        self.volume(a.names | b.names)
    }

    fn max_elements(&self) -> f64 {
        self.max_elements
    }
}

/// Returns the cost of an order, and the maximum number of results stored at once. Panics if a term is missing.
fn cost(terms: &[Size], out: u128, pairs: &[(usize, usize)], costs: &Products) -> (f64, usize) {
    let mut all: Vec<Option<u128>> = terms.iter().map(|t| Some(t.names)).collect();
    let (mut sum, mut most) = (0.0, 0);
    assert_eq!(pairs.len(), terms.len() - 1);
    for (at, &(a, b)) in pairs.iter().enumerate() {
        let (a, b) = (all[a].take().unwrap(), all[b].take().unwrap());
        sum += costs.volume(a | b);
        let others = all.iter().flatten().fold(out, |all, own| all | own);
        all.push(Some((a | b) & others));
        let last = at + 1 == pairs.len();
        assert!(last || costs.volume((a | b) & others) <= costs.max_elements);
        most = most.max(all[terms.len()..].iter().flatten().count());
    }
    assert_eq!(all.into_iter().flatten().collect::<Vec<_>>(), [out]);
    (sum, most)
}

/// Returns the cost of the cheapest order, found by trying every pair at every step.
fn cheapest(terms: &[u128], out: u128, costs: &Products) -> f64 {
    if terms.len() == 1 {
        return 0.0;
    }
    let mut best = f64::INFINITY;
    for first in 0..terms.len() {
        for second in first + 1..terms.len() {
            let (a, b) = (terms[first], terms[second]);
            let mut rest = terms.to_vec();
            rest.remove(second);
            rest.remove(first);
            let kept = (a | b) & rest.iter().fold(out, |all, own| all | own);
            if !rest.is_empty() && costs.volume(kept) > costs.max_elements {
                continue;
            }
            rest.push(kept);
            best = best.min(costs.volume(a | b) + cheapest(&rest, out, costs));
        }
    }
    best
}

fn random(seed: usize, count: usize) -> (Vec<Size>, u128, Products) {
    let mut state = seed as u64 * 2_654_435_761 + 1;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
        (state >> 33) % n
    };
    let extents: Vec<usize> = (0..6).map(|_| 1 + below(9) as usize).collect();
    let mut names = || (0..1 + below(3)).fold(0u128, |names, _| names | 1 << below(6));
    let terms: Vec<Size> = (0..count).map(|_| Size::dense(names())).collect();
    let all = terms.iter().fold(0, |all, term| all | term.names);
    (terms, names() & all, Products::new(&extents))
}

#[test]
fn up_to_six_terms_in_the_order_of_a_search_over_all() {
    for seed in 0..300 {
        let (terms, out, mut costs) = random(seed, 2 + seed % 5);
        if seed % 3 == 0 {
            costs.max_elements = 40.0;
        }
        let names: Vec<u128> = terms.iter().map(|t| t.names).collect();
        let wanted = cheapest(&names, out, &costs);
        match order(&terms, out, &costs) {
            Some(pairs) => assert_eq!(cost(&terms, out, &pairs, &costs).0, wanted, "{seed}"),
            None => assert_eq!(wanted, f64::INFINITY, "{seed}"),
        }
    }
}

/// Chain of matrices `T0[0,1] * T1[1,2] * ...`.
fn chain(extents: &[usize]) -> (Vec<Size>, u128) {
    let terms = (0..extents.len() - 1).map(|at| Size::dense(3 << at));
    (terms.collect(), 1 | 1 << (extents.len() - 1))
}

/// Textbook recursion for the cost of matrix chains.
fn cheapest_chain(extents: &[usize]) -> f64 {
    let n = extents.len();
    let mut best: Vec<Vec<f64>> = (0..n).map(|_| (0..n).map(|_| 0.0).collect()).collect();
    for len in 2..n {
        for i in 0..n - len {
            let split = |k: usize| {
                let last = (extents[i] * extents[k] * extents[i + len]) as f64;
                best[i][k] + best[k][i + len] + last
            };
            best[i][i + len] = (i + 1..i + len).map(split).fold(f64::INFINITY, f64::min);
        }
    }
    best[0][n - 1]
}

#[test]
fn seven_and_eight_matrices_have_the_cheapest_order() {
    for seed in 0..100usize {
        let extents: Vec<usize> = (0..8 + seed % 2)
            .map(|at| 1 + (seed * 31 + at * at * 17 + seed / 3 * at) % 23)
            .collect();
        let ((terms, out), costs) = (chain(&extents), Products::new(&extents));
        let pairs = order(&terms, out, &costs).unwrap();
        assert_eq!(costs.pairs.get(), [966, 3025][seed % 2]);
        let found = cost(&terms, out, &pairs, &costs).0;
        assert_eq!(found, cheapest_chain(&extents), "{extents:?}");
    }
}

#[test]
fn sixty_matrices_are_ordered_in_few_steps() {
    let extents: Vec<usize> = (0..61).map(|at| 2 + at * 7 % 3).collect();
    let ((terms, out), costs) = (chain(&extents), Products::new(&extents));
    let pairs = order(&terms, out, &costs).unwrap();
    assert_eq!(costs.pairs.get(), 3481);
    let (found, held) = cost(&terms, out, &pairs, &costs);
    assert!(found < 2.0 * cheapest_chain(&extents), "{found}");
    assert!(held <= 6, "{held}");
    // The bound also holds for random terms.
    for seed in 0..20 {
        let (terms, out, costs) = random(seed, 60);
        let pairs = order(&terms, out, &costs).unwrap();
        assert!(cost(&terms, out, &pairs, &costs).1 <= 7);
    }
}
