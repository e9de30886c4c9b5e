//! Paths between degrees, and their coefficients as one sparse tensor.

use std::collections::BTreeSet;

use einsparse_formats::generate::clebsch_gordan;
use einsparse_formats::{Coo, CooPattern};

use crate::error::{Error, Result};
use crate::registry::Scalar;

/// Paths of a tensor product. A part of degree `l1` of the first operand and a part of degree `l2` of the second have a
/// product of degree `l3`. A part of degree `l` has `2 l + 1` components, from `m = -l` to `l`. The outputs of the
/// paths are concatenated, sorted by the part of the output, then of the first operand, then of the second operand.
///
/// Coefficients are those of [`clebsch_gordan`]: Racah's formula (Edmonds, Angular Momentum in Quantum Mechanics,
/// 3.6.11) in the real basis. The squares of the coefficients of each output component add up to 1. e3nn's `wigner_3j`
/// (arXiv 2207.09453) divides them by `sqrt(2 l3 + 1)`. The sign of a path may differ, which weights absorb.
///
/// ```
/// use einsparse::ops::Couplings;
/// // Two vectors to a scalar and to a vector.
/// assert!(Couplings::new(&[[1, 1, 0], [1, 1, 1]]).is_ok());
/// assert!(Couplings::new(&[[1, 1, 3]]).unwrap_err().to_string().contains("path 0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Couplings {
    /// Degrees of the parts of the operands, and of an output that contains each part once.
    parts: [Vec<usize>; 3],
    /// Indices of the parts of each path.
    places: Vec<[usize; 3]>,
    /// Degrees of the parts of each path.
    paths: Vec<[usize; 3]>,
}

/// Largest degree for which the library computes coefficients.
const LARGEST: usize = 6;

impl Couplings {
    /// Creates the paths `(l1, l2, l3)`, each of which may appear once. Operands contain each degree up to the largest
    /// one in the paths once. Degree `l` has the components `l l .. (l + 1) (l + 1)`.
    ///
    /// # Errors
    /// [`Error::Operand`] for an empty list, for a duplicate path, and for degrees above 6 or outside of the triangle
    /// `|l1 - l2| <= l3 <= l1 + l2`.
    pub fn new(paths: &[[usize; 3]]) -> Result<Couplings> {
        let upto = |of: usize| 0..=paths.iter().map(|path| path[of]).max().unwrap_or(0);
        let parts = [0, 1, 2].map(|of| upto(of).take(LARGEST + 2).collect());
        Couplings::of(parts, paths)
    }

    /// Creates all paths of degrees up to `largest` whose degrees have an even sum. These paths couple spherical
    /// harmonics, of parity `(-1)^l`, to outputs of the same parity rule.
    ///
    /// # Errors
    /// See [`Couplings::new`].
    pub fn natural(largest: usize) -> Result<Couplings> {
        let degrees = || 0..=largest.min(LARGEST + 1);
        let mut paths = Vec::new();
        for (l1, l2) in degrees().flat_map(|l1| degrees().map(move |l2| (l1, l2))) {
            let to = l1.abs_diff(l2)..=(l1 + l2).min(largest);
            paths.extend(to.step_by(2).map(|l3| [l1, l2, l3]));
        }
        Couplings::new(&paths)
    }

    /// Creates all paths from parts of the first and of the second operand to the parts of `out`. The parts are irreps
    /// in e3nn's notation, such as `0e + 1o + 2e`: a degree, and `e` for even or `o` for odd parity. An operand stores
    /// its parts in this order; a part may appear more than once. Channels are set when products are planned.
    ///
    /// ```
    /// use einsparse::ops::Couplings;
    /// let couplings = Couplings::irreps("0e + 1o + 1e", "0e + 1o", "0e + 1o")?;
    /// // The cross product of 1e and 1o is 1o; that of 1o and 1o would be 1e.
    /// assert_eq!(couplings.paths(), [[0, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]]);
    /// assert!(Couplings::irreps("0e", "1x", "1o").unwrap_err().to_string().contains("1x"));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Operand`] for a text that is not an irrep, a degree above 6, and an empty list of paths.
    pub fn irreps(x: &str, y: &str, out: &str) -> Result<Couplings> {
        let [x, y, out] = [("X", x), ("Y", y), ("Out", out)].map(|(name, text)| irreps(name, text));
        let [x, y, out] = [x?, y?, out?];
        let mut places = Vec::new();
        for (k, &(l3, odd)) in out.iter().enumerate() {
            for (i, &(l1, p1)) in x.iter().enumerate() {
                let fits = |&(l2, p2): &(usize, bool)| {
                    (p1 != p2) == odd && l1.abs_diff(l2) <= l3 && l3 <= l1 + l2
                };
                let own = y.iter().enumerate().filter(|(_, part)| fits(part));
                places.extend(own.map(|(j, _)| [i, j, k]));
            }
        }
        let degrees = |parts: &[(usize, bool)]| parts.iter().map(|part| part.0).collect();
        Couplings::of([degrees(&x), degrees(&y), degrees(&out)], &places)
    }

    /// Creates paths between parts from the indices of the parts.
    fn of(parts: [Vec<usize>; 3], places: &[[usize; 3]]) -> Result<Couplings> {
        let refuse = |reason: String| Err(Error::operand("paths", reason));
        for (at, place) in places.iter().enumerate() {
            let degree = |of: usize| parts[of].get(place[of]).copied().unwrap_or(usize::MAX);
            let [l1, l2, l3] = [degree(0), degree(1), degree(2)];
            if l1.max(l2).max(l3) > LARGEST {
                let [l1, l2, l3] = place;
                return refuse(format!(
                    "path {at} couples {l1} and {l2} to {l3}; degrees go up to {LARGEST}"
                ));
            }
            if l3 < l1.abs_diff(l2) || l3 > l1 + l2 {
                return refuse(format!(
                    "path {at} couples {l1} and {l2} to {l3}, which is not in {}..={}",
                    l1.abs_diff(l2),
                    l1 + l2
                ));
            }
        }
        let sorted: BTreeSet<_> = places.iter().map(|&[i, j, k]| [k, i, j]).collect();
        if places.is_empty() || sorted.len() < places.len() {
            return refuse(format!("{} paths, {} of them different", places.len(), sorted.len()));
        }
        let places: Vec<_> = sorted.into_iter().map(|[k, i, j]| [i, j, k]).collect();
        let degrees = |place: &[usize; 3]| [0, 1, 2].map(|of| parts[of][place[of]]);
        let paths = places.iter().map(degrees).collect();
        Ok(Couplings { parts, places, paths })
    }

    /// Returns the degrees `(l1, l2, l3)` of the paths, in the order of their outputs.
    pub fn paths(&self) -> &[[usize; 3]] {
        &self.paths
    }

    /// Returns the number of components of the first operand (0), of the second (1), or of an output that contains
    /// every part once (2).
    pub fn components(&self, of: usize) -> usize {
        self.first_component(of, self.parts[of].len())
    }

    /// Returns the number of components before a part.
    fn first_component(&self, of: usize, part: usize) -> usize {
        self.parts[of][..part].iter().map(|l| 2 * l + 1).sum()
    }

    /// Returns, for each path, its first components in the operands and its first component in the outputs of all
    /// paths.
    pub(super) fn first_rows(&self) -> Vec<[usize; 3]> {
        let mut row = 0;
        let one = |(place, path): (&[usize; 3], &[usize; 3])| {
            let [i, j] = [0, 1].map(|of| self.first_component(of, place[of]));
            row += 2 * path[2] + 1;
            [i, j, row - 2 * path[2] - 1]
        };
        self.places.iter().zip(&self.paths).map(one).collect()
    }

    /// Returns the number of components of the outputs of all paths.
    pub fn rows(&self) -> usize {
        self.paths.iter().map(|path| 2 * path[2] + 1).sum()
    }

    /// Returns the path of each component of the outputs of all paths.
    pub fn path_of_row(&self) -> Vec<u32> {
        let paths = self.paths.iter().enumerate();
        paths.flat_map(|(at, path)| vec![at as u32; 2 * path[2] + 1]).collect()
    }

    /// Returns, for each component of the outputs of all paths, the component of an output that contains every part
    /// once. The former is added to the latter.
    pub fn component_of_row(&self) -> Vec<u32> {
        let components = |place: &[usize; 3]| {
            let first = self.first_component(2, place[2]);
            (first..first + 2 * self.parts[2][place[2]] + 1).map(|at| at as u32)
        };
        self.places.iter().flat_map(components).collect()
    }

    /// Returns the coefficients `C[i,j,k]`. The axes are the components of the operands and of the outputs of all
    /// paths.
    ///
    /// # Errors
    /// Does not fail for paths that [`Couplings::new`] accepted.
    pub fn tensor<T: Scalar>(&self) -> Result<Coo<T>> {
        let mut entries = Vec::new();
        for (&[l1, l2, l3], offset) in self.paths.iter().zip(self.first_rows()) {
            let one = clebsch_gordan::<T>(l1, l2, l3)?;
            let coords = one.pattern().coords();
            for (at, &value) in one.values().iter().enumerate() {
                let place = [0, 1, 2].map(|axis| coords[axis][at] + offset[axis] as u32);
                entries.push((place, value));
            }
        }
        entries.sort_by_key(|&(place, _)| place);
        let coords = [0, 1, 2].map(|axis| entries.iter().map(|(place, _)| place[axis]).collect());
        let shape = vec![self.components(0), self.components(1), self.rows()];
        let values = entries.into_iter().map(|(_, value)| value).collect();
        Ok(Coo::new(CooPattern::new(shape, coords.into())?, values)?)
    }
}

/// Parses irreps: returns the degree of each, and whether its parity is odd.
fn irreps(name: &str, text: &str) -> Result<Vec<(usize, bool)>> {
    let one = |word: &str| {
        let word = word.trim();
        let refuse = || {
            let reason = format!(
                "`{word}` is not an irrep: expected a degree up to {LARGEST}, then `e` or `o`, as in `1o`"
            );
            Error::operand(name, reason)
        };
        let (degree, odd) = match (word.strip_suffix('e'), word.strip_suffix('o')) {
            (Some(degree), _) => (degree, false),
            (_, Some(degree)) => (degree, true),
            _ => return Err(refuse()),
        };
        let degree: usize = degree.parse().map_err(|_| refuse())?;
        if degree > LARGEST {
            return Err(refuse());
        }
        Ok((degree, odd))
    };
    text.split('+').map(one).collect()
}
