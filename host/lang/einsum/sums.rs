//! Affine indices, such as `2*x+i` in `A[n,2*x+i,m]`: the extents that follow from their axes, and the index arrays
//! that executors read instead.

use std::collections::BTreeMap;
use std::fmt;

use einsparse_formats::FormatError;

use super::{Access, Einsum, Epilogue, Extents, IndexExpr};
use crate::error::{Error, Result};

/// Term of an affine index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Factor of the index, at least 1: the stride of the window positions, or the dilation of the window elements.
    pub factor: usize,
    /// Name of the index.
    pub index: String,
}

impl Term {
    /// Returns `factor * (extent - 1)`, saturating. `extent` must not be 0.
    fn reach(&self, extent: usize) -> u128 {
        (self.factor as u128).saturating_mul(extent as u128 - 1)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.factor {
            1 => f.write_str(&self.index),
            factor => write!(f, "{factor}*{}", self.index),
        }
    }
}

/// Displays an affine index as in the expression.
pub(super) struct Written<'a>(pub(super) &'a [Term]);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.0.iter().enumerate() {
            write!(f, "{}{term}", if at == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

/// Affine index as an index array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumArray {
    /// The sum in parentheses, such as `(2*x+i)`: a name that the parser never gives to an array.
    pub name: String,
    /// One axis per term, with the extent of its index.
    pub shape: Vec<usize>,
    /// Value of the sum at each position, row-major.
    pub slots: Vec<u32>,
}

/// Maximum number of slots of an index array.
const MOST_SLOTS: u128 = 1 << 31;

impl SumArray {
    fn new(name: String, terms: &[Term], extents: &Extents) -> Result<Self> {
        let extent = |term: &Term| {
            extents.get(&term.index).ok_or_else(|| {
                Error::operand(&name, format!("the extent of `{}` is not known", term.index))
            })
        };
        let shape = terms.iter().map(extent).collect::<Result<Vec<_>>>()?;
        let over = |what: &str, value: u128, limit: u128| Error::Overflow {
            what: format!("{what} `{}`", Written(terms)),
            value,
            limit,
        };
        let size = |n: u128, &extent: &usize| n.saturating_mul(extent as u128);
        let total = match shape.contains(&0) {
            true => 0,
            false => shape.iter().fold(1, size),
        };
        if total > MOST_SLOTS {
            return Err(over("the number of values of", total, MOST_SLOTS));
        }
        let bytes = total * size_of::<u32>() as u128;
        let what = "an index array of a sum of indices";
        let mut slots: Vec<u32> = bytemuck::allocation::try_zeroed_vec(total as usize)
            .map_err(|()| FormatError::Memory { what, bytes })?;
        if total > 0 {
            let reach = |(term, &extent): (&Term, &usize)| term.reach(extent);
            let last: u128 = terms.iter().zip(&shape).map(reach).sum();
            // The largest u32 is the padding marker, which reads nothing.
            if last >= u128::from(u32::MAX) {
                return Err(over("the last value of", last, u128::from(u32::MAX) - 1));
            }
            let mut each = total as usize;
            for (term, &extent) in terms.iter().zip(&shape) {
                each /= extent;
                for (run, places) in slots.chunks_mut(each).enumerate() {
                    let own = (term.factor * (run % extent)) as u32;
                    places.iter_mut().for_each(|slot| *slot += own);
                }
            }
        }
        Ok(SumArray { name, shape, slots })
    }
}

fn array_name(terms: &[Term]) -> String {
    format!("({})", Written(terms))
}

impl Access {
    /// Calls `visit` on every affine index in this access, including nested accesses, with the innermost access and its
    /// axis.
    pub fn for_each_sum<'a>(&'a self, visit: &mut impl FnMut(&'a Access, usize, &'a [Term])) {
        for (axis, index) in self.indices.iter().enumerate() {
            match index {
                IndexExpr::Name(_) => {}
                IndexExpr::Access(a) => a.for_each_sum(visit),
                IndexExpr::Sum(terms) => visit(self, axis, terms),
            }
        }
    }

    fn with_arrays(&self) -> Access {
        let indices = self.indices.iter().map(|index| match index {
            IndexExpr::Name(n) => IndexExpr::Name(n.clone()),
            IndexExpr::Access(a) => IndexExpr::Access(a.with_arrays()),
            IndexExpr::Sum(terms) => IndexExpr::Access(Access {
                tensor: array_name(terms),
                indices: terms.iter().map(|term| IndexExpr::Name(term.index.clone())).collect(),
            }),
        });
        Access { tensor: self.tensor.clone(), indices: indices.collect() }
    }
}

impl Einsum {
    /// Whether the expression has an affine index, as in `A[x+i]`.
    pub fn has_sums(&self) -> bool {
        let mut found = false;
        self.right()
            .chain([&self.out])
            .for_each(|access| access.for_each_sum(&mut |_, _, _| found = true));
        found
    }

    /// Returns the expression with every affine index replaced by an index array: `A[2*x+i]` becomes `A[(2*x+i)[x,i]]`.
    /// [`Einsum::sum_arrays`] returns these arrays. The parser rejects their names, so the result cannot be parsed.
    ///
    /// ```
    /// use einsparse_lang::einsum::Einsum;
    /// let e = Einsum::parse("C[x] = A[2*x+i] * B[i]")?;
    /// let [a, b] = [("A", vec![7]), ("B", vec![3])].map(|(name, shape)| (name.to_string(), shape));
    /// let arrays = e.sum_arrays(&e.check(&[a, b].into())?)?;
    /// assert_eq!(e.with_arrays().to_string(), "C[x] = A[(2*x+i)[x,i]] * B[i]");
    /// assert_eq!(arrays[0].name, "(2*x+i)");
    /// assert_eq!(arrays[0].shape, [3, 3]);
    /// assert_eq!(arrays[0].slots, [0, 1, 2, 2, 3, 4, 4, 5, 6]);
    /// # Ok::<(), einsparse_lang::Error>(())
    /// ```
    pub fn with_arrays(&self) -> Einsum {
        let mut e = Einsum {
            out: self.out.with_arrays(),
            mode: self.mode,
            scalars: self.scalars.clone(),
            factors: self.factors.iter().map(Access::with_arrays).collect(),
            epilogue: Epilogue {
                bias: self.epilogue.bias.as_ref().map(Access::with_arrays),
                activation: self.epilogue.activation,
                gate: self.epilogue.gate.as_ref().map(Access::with_arrays),
            },
            text: String::new(),
        };
        e.text = e.to_string();
        e
    }

    /// Returns the index arrays of [`Einsum::with_arrays`], each once, for the extents that [`Einsum::check`] returned.
    ///
    /// # Errors
    /// [`Error::Overflow`] for an array of more than 2^31 slots, or for values that do not fit in 32 bits.
    pub fn sum_arrays(&self, extents: &Extents) -> Result<Vec<SumArray>> {
        let mut sums: Vec<&[Term]> = Vec::new();
        for access in self.right().chain([&self.out]) {
            access.for_each_sum(&mut |_, _, terms| {
                if !sums.contains(&terms) {
                    sums.push(terms);
                }
            });
        }
        sums.into_iter().map(|terms| SumArray::new(array_name(terms), terms, extents)).collect()
    }

    /// Checks that affine indices contain each index once.
    pub(super) fn validate_sums(&self) -> Result<()> {
        let mut found = Ok(());
        let mut visit = |access: &Access, _, terms: &[Term]| {
            let twice =
                |(at, term): (usize, &Term)| terms[..at].iter().any(|t| t.index == term.index);
            let single = matches!(terms, [] | [Term { factor: 1, .. }]);
            if single || terms.iter().any(|t| t.factor == 0) || terms.iter().enumerate().any(twice)
            {
                found = Err(Error::operand(
                    &access.tensor,
                    format!(
                        "`{}` in `{access}` is not an affine index: each index may occur once, with a factor of 1 or more",
                        Written(terms)
                    ),
                ));
            }
        };
        self.right().chain([&self.out]).for_each(|access| access.for_each_sum(&mut visit));
        found
    }
}

/// Known extents of indices, each with the access that determined it.
pub(super) type Known<'a> = BTreeMap<&'a str, (usize, String)>;

/// Affine index at an axis of a given extent.
pub(super) struct Placed<'a> {
    pub(super) access: &'a Access,
    pub(super) axis: usize,
    pub(super) terms: &'a [Term],
    pub(super) extent: usize,
}

impl<'a> Placed<'a> {
    fn error(&self, left: String) -> Error {
        Error::Shape {
            index: Written(self.terms).to_string(),
            left,
            right: format!("{} in {}", self.extent, self.place()),
        }
    }

    fn place(&self) -> String {
        format!("axis {} of `{}`", self.axis, self.access)
    }

    /// Returns the largest value of the sum without the term `open`, from the known extents; `None` if one of them is
    /// 0.
    fn last(&self, open: Option<&Term>, known: &Known<'a>) -> Option<u128> {
        let mut others = self.terms.iter().filter(|&term| Some(term) != open);
        others.try_fold(0u128, |sum, term| match known.get(term.index.as_str()) {
            Some((0, _)) => None,
            Some((extent, _)) => Some(sum.saturating_add(term.reach(*extent))),
            None => Some(sum),
        })
    }

    /// Lists the known extents for a message: `x` 30, `i` 3.
    fn extents(&self, open: Option<&Term>, known: &Known<'a>) -> String {
        let said = self.terms.iter().filter(|&term| Some(term) != open);
        let said = said.filter_map(|term| {
            let (extent, _) = known.get(term.index.as_str())?;
            Some(format!("`{}` {extent}", term.index))
        });
        said.collect::<Vec<_>>().join(", ")
    }

    /// Returns the largest extent of `term` for which all reads are in bounds. It is 0 if the axis or the window is
    /// empty.
    fn largest(&self, term: &Term, known: &Known<'a>) -> Result<usize> {
        let (Some(reach), Some(last)) = (self.last(Some(term), known), self.extent.checked_sub(1))
        else {
            return Ok(0);
        };
        if reach > last as u128 {
            let others = self.extents(Some(term), known);
            let elements = reach.saturating_add(1);
            return Err(self.error(format!("a window of {elements} elements ({others})")));
        }
        // At most `last`, because factors are at least 1.
        Ok((last - reach as usize) / term.factor.max(1) + 1)
    }

    /// Checks that all reads are in bounds.
    fn fits(&self, known: &Known<'a>) -> Result<()> {
        match self.last(None, known) {
            Some(last) if last >= self.extent as u128 => Err(self.error(format!(
                "reads up to index {last} ({}), which requires {} elements",
                self.extents(None, known),
                last.saturating_add(1)
            ))),
            _ => Ok(()),
        }
    }

    /// Error of a sum with several indices of unknown extent.
    fn open(&self, known: &Known<'a>) -> Error {
        let open = self.terms.iter().map(|term| term.index.as_str());
        let open: Vec<String> = open
            .filter(|index| !known.contains_key(index))
            .map(|index| format!("`{index}`"))
            .collect();
        self.error(format!(
            "the extents of {} are unknown: all but one must occur alone in an operand, or the shape of the output must be given",
            open.join(" and ")
        ))
    }
}

/// Determines the extents of indices that appear only in affine indices, and checks that all reads are in bounds. If
/// several sums determine the extent of one index, the smallest extent is used.
pub(super) fn solve<'a>(mut sums: Vec<Placed<'a>>, known: &mut Known<'a>) -> Result<()> {
    loop {
        let mut found: Known<'a> = BTreeMap::new();
        let mut rest = Vec::new();
        for sum in sums {
            let mut open = sum.terms.iter().filter(|t| !known.contains_key(t.index.as_str()));
            match (open.next(), open.next()) {
                (None, _) => sum.fits(known)?,
                (Some(term), None) => {
                    let own = (sum.largest(term, known)?, sum.place());
                    let entry = found.entry(&term.index).or_insert_with(|| own.clone());
                    if own.0 < entry.0 {
                        *entry = own;
                    }
                }
                _ => rest.push(sum),
            }
        }
        if found.is_empty() {
            return match rest.first() {
                Some(sum) => Err(sum.open(known)),
                None => Ok(()),
            };
        }
        known.append(&mut found);
        sums = rest;
    }
}
