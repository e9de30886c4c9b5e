//! Which degrees couple to which, and the coefficients of all of them as one sparse tensor.

use std::collections::BTreeSet;

use einsparse_formats::generate::clebsch_gordan;
use einsparse_formats::{Coo, CooPattern};

use crate::error::{Error, Result};
use crate::registry::Scalar;

/// Paths `(l1, l2, l3)`: the product of a part of degree `l1` of the first operand and one of degree `l2` of the second
/// has a part of degree `l3`. Operands hold every degree up to the largest that a path names, once: degree `l` stands
/// at components `l l .. (l + 1) (l + 1)`, from `m = -l` to `l`. Outputs are the paths', one behind the other: by `l3`,
/// then `l1`, then `l2`.
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
    paths: Vec<[usize; 3]>,
}

/// The largest degree whose coefficients the library computes.
const LARGEST: usize = 6;

impl Couplings {
    /// These paths; each may stand once.
    ///
    /// # Errors
    /// [`Error::Operand`] for none, for one twice, or one that is no triangle `|l1 - l2| <= l3 <= l1 + l2` of degrees
    /// up to 6.
    pub fn new(paths: &[[usize; 3]]) -> Result<Couplings> {
        let refuse = |reason: String| Err(Error::operand("paths", reason));
        for (at, &[l1, l2, l3]) in paths.iter().enumerate() {
            if l1.max(l2).max(l3) > LARGEST {
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
        let sorted: BTreeSet<_> = paths.iter().map(|&[l1, l2, l3]| [l3, l1, l2]).collect();
        if paths.is_empty() || sorted.len() < paths.len() {
            return refuse(format!(
                "{} paths, {} of them different",
                paths.len(),
                sorted.len()
            ));
        }
        let paths = sorted.into_iter().map(|[l3, l1, l2]| [l1, l2, l3]);
        Ok(Couplings {
            paths: paths.collect(),
        })
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

    /// The paths `(l1, l2, l3)`, in the order of their outputs.
    pub fn paths(&self) -> &[[usize; 3]] {
        &self.paths
    }

    /// Components of the first operand (0), the second (1), and of an output that holds every degree once (2).
    pub fn components(&self, of: usize) -> usize {
        let largest = self.paths.iter().map(|path| path[of]).max().unwrap_or(0);
        (largest + 1) * (largest + 1)
    }

    /// Components of all paths' outputs.
    pub fn rows(&self) -> usize {
        self.paths.iter().map(|path| 2 * path[2] + 1).sum()
    }

    /// The path of each component of the paths' outputs.
    pub fn path_of_row(&self) -> Vec<u32> {
        let paths = self.paths.iter().enumerate();
        paths
            .flat_map(|(at, path)| vec![at as u32; 2 * path[2] + 1])
            .collect()
    }

    /// The component, of an output that holds every degree once, that each component of the paths' outputs adds to.
    pub fn component_of_row(&self) -> Vec<u32> {
        let places = |path: &[usize; 3]| {
            let l = path[2];
            (l * l..(l + 1) * (l + 1)).map(|at| at as u32)
        };
        self.paths.iter().flat_map(places).collect()
    }

    /// The coefficients `C[i,j,k]`: components of the operands, and of the paths' outputs.
    ///
    /// # Errors
    /// None for paths that [`Couplings::new`] took.
    pub fn tensor<T: Scalar>(&self) -> Result<Coo<T>> {
        let mut entries = Vec::new();
        let mut row = 0;
        for &[l1, l2, l3] in &self.paths {
            let one = clebsch_gordan::<T>(l1, l2, l3)?;
            let offset = [l1 * l1, l2 * l2, row];
            let coords = one.pattern().coords();
            for (at, &value) in one.values().iter().enumerate() {
                let place = [0, 1, 2].map(|axis| coords[axis][at] + offset[axis] as u32);
                entries.push((place, value));
            }
            row += 2 * l3 + 1;
        }
        entries.sort_by_key(|&(place, _)| place);
        let coords = [0, 1, 2].map(|axis| entries.iter().map(|(place, _)| place[axis]).collect());
        let shape = vec![self.components(0), self.components(1), row];
        let values = entries.into_iter().map(|(_, value)| value).collect();
        Ok(Coo::new(CooPattern::new(shape, coords.into())?, values)?)
    }
}
