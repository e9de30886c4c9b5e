//! Operands of tensor products, and their results by loops over the dense coefficients.

use crate::support::Rng;
use einsparse::Scalar;
use einsparse::formats::generate::clebsch_gordan;
use einsparse::ops::{Channels, Couplings};

/// Returns the numbers of channels of X and of the output.
pub fn widths(channels: Channels) -> (usize, usize) {
    match channels {
        Channels::One => (1, 1),
        Channels::Each(u) => (u, u),
        Channels::Connected(u, w) | Channels::ConnectedEach(u, w) => (u, w),
    }
}

/// X, Y, W and G in f64.
pub struct Case {
    couplings: Couplings,
    channels: Channels,
    items: usize,
    pub data: [Vec<f64>; 4],
}

impl Case {
    pub fn new<T: Scalar>(couplings: Couplings, channels: Channels, items: usize) -> Case {
        let rows = match channels {
            Channels::Connected(..) | Channels::ConnectedEach(..) => couplings.components(2),
            _ => couplings.rows(),
        };
        let paths = couplings.paths().len();
        let (u, w) = widths(channels);
        let weights = match channels {
            Channels::One => 0,
            Channels::Each(u) => items * paths * u,
            Channels::Connected(u, w) => paths * u * w,
            Channels::ConnectedEach(u, w) => items * paths * u * w,
        };
        let lens = [
            items * couplings.components(0) * u,
            items * couplings.components(1),
            weights,
            items * rows * w,
        ];
        let mut rng = Rng(items as u64 + 7);
        let data = lens.map(|n| rng.units::<T>(n).iter().map(|v| v.to_f64()).collect());
        Case { couplings, channels, items, data }
    }

    /// Visits every term: indices in X, Y, W, Out (W's is unused without weights), and the coefficient.
    fn terms(&self, visit: &mut impl FnMut([usize; 4], f64)) {
        let (u, w) = widths(self.channels);
        let [ni, nj, nc] = [0, 1, 2].map(|of| self.couplings.components(of));
        let (rows, paths) = (self.couplings.rows(), self.couplings.paths());
        let mut row = 0;
        for (path, &[l1, l2, l3]) in paths.iter().enumerate() {
            let c = clebsch_gordan::<f64>(l1, l2, l3).unwrap();
            let at = |axis: usize, e: usize| c.pattern().coords()[axis][e] as usize;
            for (e, &value) in c.values().iter().enumerate() {
                let (i, j) = (l1 * l1 + at(0, e), l2 * l2 + at(1, e));
                for b in 0..self.items {
                    for (p, q) in (0..u).flat_map(|p| (0..w).map(move |q| (p, q))) {
                        let x = (b * ni + i) * u + p;
                        let k = row + at(2, e);
                        let (weight, out) = match self.channels {
                            Channels::Connected(..) | Channels::ConnectedEach(..) => {
                                let shared = matches!(self.channels, Channels::Connected(..));
                                let own = if shared { 0 } else { b * paths.len() };
                                let component = l3 * l3 + at(2, e);
                                let weight = ((own + path) * u + p) * w + q;
                                (weight, (b * nc + component) * w + q)
                            }
                            _ if p != q => continue,
                            _ => ((b * paths.len() + path) * u + p, (b * rows + k) * u + p),
                        };
                        visit([x, b * nj + j, weight, out], value);
                    }
                }
            }
            row += 2 * l3 + 1;
        }
    }

    /// Returns the product (3), or the gradient of X, Y, W (0 to 2): sums, and sums of magnitudes.
    pub fn reference(&self, of: usize) -> Vec<(f64, f64)> {
        let mut sums = vec![(0.0, 0.0); self.data[of].len()];
        let weighted = !self.data[2].is_empty();
        self.terms(&mut |at, value| {
            let others = (0..4).filter(|&f| f != of && (f != 2 || weighted));
            let term = others.fold(value, |term, f| term * self.data[f][at[f]]);
            let sum = &mut sums[at[of]];
            *sum = (sum.0 + term, sum.1 + term.abs());
        });
        // The product omits G; a gradient omits its own operand.
        sums
    }
}
