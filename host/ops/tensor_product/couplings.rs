//! Which degrees couple to which, and the coefficients of all of them as one sparse tensor.

use std::collections::BTreeSet;

use einsparse_formats::generate::clebsch_gordan;
use einsparse_formats::{Coo, CooPattern};

use crate::error::{Error, Result};
use crate::registry::Scalar;

/// Paths: the product of a part of degree `l1` of the first operand and one of degree `l2` of the second has a part of
/// degree `l3`, with `2 l + 1` components from `m = -l` to `l` each. Outputs are the paths', one behind the other: by
/// the output's part, then the first operand's, then the second's.
///
/// Coefficients are those of [`clebsch_gordan`]: Racah's formula (Edmonds, Angular Momentum in Quantum Mechanics,
/// 3.6.11) in the real basis, the squares of each output component's adding up to 1. e3nn's `wigner_3j` (arXiv
/// 2207.09453) has them divided by `sqrt(2 l3 + 1)`, up to a sign for each path, which weights absorb.
///
/// ```
/// use einsparse::ops::Couplings;
/// // Two vectors to a scalar and to a vector.
/// assert!(Couplings::new(&[[1, 1, 0], [1, 1, 1]]).is_ok());
/// assert!(Couplings::new(&[[1, 1, 3]]).unwrap_err().to_string().contains("path 0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Couplings {
    /// Degrees of the parts of the operands and of an output that holds each part once.
    parts: [Vec<usize>; 3],
    /// The parts of each path.
    places: Vec<[usize; 3]>,
    /// Their degrees.
    paths: Vec<[usize; 3]>,
}

/// The largest degree whose coefficients the library computes.
const LARGEST: usize = 6;

impl Couplings {
    /// The paths `(l1, l2, l3)`; each may stand once. Operands hold every degree up to the largest that a path names,
    /// once: degree `l` stands at components `l l .. (l + 1) (l + 1)`.
    ///
    /// # Errors
    /// [`Error::Operand`] for none, for one twice, or one that is no triangle `|l1 - l2| <= l3 <= l1 + l2` of degrees
    /// up to 6.
    pub fn new(paths: &[[usize; 3]]) -> Result<Couplings> {
        let upto = |of: usize| 0..=paths.iter().map(|path| path[of]).max().unwrap_or(0);
        let parts = [0, 1, 2].map(|of| upto(of).take(LARGEST + 2).collect());
        Couplings::of(parts, paths)
    }

    /// Every path of degrees up to `largest` whose degrees add up to an even number: what spherical harmonics, of
    /// parity `(-1)^l`, couple to of the same kind.
    ///
    /// # Errors
    /// As [`Couplings::new`].
    pub fn natural(largest: usize) -> Result<Couplings> {
        let degrees = || 0..=largest.min(LARGEST + 1);
        let mut paths = Vec::new();
        for (l1, l2) in degrees().flat_map(|l1| degrees().map(move |l2| (l1, l2))) {
            let to = l1.abs_diff(l2)..=(l1 + l2).min(largest);
            paths.extend(to.step_by(2).map(|l3| [l1, l2, l3]));
        }
        Couplings::new(&paths)
    }

    /// Every path from parts of the first operand and of the second to one of those wanted: irreps by degree and
    /// parity in e3nn's words, `0e + 1o + 2e`, `e` for even and `o` for odd. An operand has its parts one behind the
    /// other, as they are named; one may stand more than once. Channels are said where products are made.
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
    /// [`Error::Operand`] for what is no irrep, a degree over 6, and where no path is left.
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

    /// Paths between parts by their numbers.
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

    /// The degrees `(l1, l2, l3)` of the paths, in the order of their outputs.
    pub fn paths(&self) -> &[[usize; 3]] {
        &self.paths
    }

    /// Components of the first operand (0), the second (1), and of an output that holds every part once (2).
    pub fn components(&self, of: usize) -> usize {
        self.first_component(of, self.parts[of].len())
    }

    /// Components in front of a part.
    fn first_component(&self, of: usize, part: usize) -> usize {
        self.parts[of][..part].iter().map(|l| 2 * l + 1).sum()
    }

    /// For each path its first components in the operands, and its first among all paths' outputs.
    pub(super) fn first_rows(&self) -> Vec<[usize; 3]> {
        let mut row = 0;
        let one = |(place, path): (&[usize; 3], &[usize; 3])| {
            let [i, j] = [0, 1].map(|of| self.first_component(of, place[of]));
            row += 2 * path[2] + 1;
            [i, j, row - 2 * path[2] - 1]
        };
        self.places.iter().zip(&self.paths).map(one).collect()
    }

    /// Components of all paths' outputs.
    pub fn rows(&self) -> usize {
        self.paths.iter().map(|path| 2 * path[2] + 1).sum()
    }

    /// The path of each component of the paths' outputs.
    pub fn path_of_row(&self) -> Vec<u32> {
        let paths = self.paths.iter().enumerate();
        paths.flat_map(|(at, path)| vec![at as u32; 2 * path[2] + 1]).collect()
    }

    /// The component, of an output that holds every part once, that each component of the paths' outputs adds to.
    pub fn component_of_row(&self) -> Vec<u32> {
        let components = |place: &[usize; 3]| {
            let first = self.first_component(2, place[2]);
            (first..first + 2 * self.parts[2][place[2]] + 1).map(|at| at as u32)
        };
        self.places.iter().flat_map(components).collect()
    }

    /// The coefficients `C[i,j,k]`: components of the operands, and of the paths' outputs.
    ///
    /// # Errors
    /// None for paths that [`Couplings::new`] took.
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

/// Degree and whether the parity is odd, of each irrep of a text.
fn irreps(name: &str, text: &str) -> Result<Vec<(usize, bool)>> {
    let one = |word: &str| {
        let word = word.trim();
        let refuse = || {
            let reason = format!(
                "`{word}` is no irrep: a degree up to {LARGEST}, then `e` or `o`, as in `1o`"
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
