//! Checks of shapes against an expression: ranks, extents, and missing or superfluous operands.

use std::collections::BTreeMap;

use super::sums::{Known, Placed, solve};
use super::{Access, Einsum, IndexExpr, Scalar};
use crate::error::{Error, Result};

/// Result of [`Einsum::check`]: the extent of every index, and the shape of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    indices: BTreeMap<String, usize>,
    out: Vec<usize>,
}

impl Extents {
    /// Returns the extent of an index; `None` if the index does not occur in the expression.
    pub fn get(&self, index: &str) -> Option<usize> {
        self.indices.get(index).copied()
    }

    /// Iterates over index names with their extents.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.indices.iter().map(|(n, e)| (n.as_str(), *e))
    }

    /// Returns the shape of the output.
    pub fn out(&self) -> &[usize] {
        &self.out
    }
}

impl Einsum {
    /// Validates the expression without shapes.
    ///
    /// # Errors
    /// - [`Error::Shape`] for an index that appears only on the left or only in the bias.
    /// - [`Error::Operand`] for an output that is read, or a name used both as a scalar and as a tensor.
    /// - One of these for an invalid affine index.
    pub fn validate(&self) -> Result<()> {
        self.validate_sums()?;
        let mut summed: Vec<&str> = Vec::new();
        for factor in &self.factors {
            factor.for_each_name(&mut |n| summed.push(n));
        }
        let mut left = Vec::new();
        self.out.for_each_name(&mut |n| left.push(n));
        if let Some(n) = left.iter().find(|n| !summed.contains(n)) {
            return Err(only_left(n, &self.out, self.factors.len()));
        }
        if let Some(bias) = &self.epilogue.bias {
            self.validate_bias(bias)?;
        }
        if let Some(gate) = &self.epilogue.gate {
            let plain = |i: &IndexExpr| matches!(i, IndexExpr::Name(_));
            if gate.indices != self.out.indices || !gate.indices.iter().all(plain) {
                return Err(Error::Shape {
                    index: gate.tensor.clone(),
                    left: format!("the gate is `{gate}`"),
                    right: format!(
                        "the output `{}`; both must have the same plain indices",
                        self.out
                    ),
                });
            }
        }
        self.validate_names()
    }

    fn validate_bias(&self, bias: &Access) -> Result<()> {
        for index in &bias.indices {
            if !matches!(index, IndexExpr::Name(_)) || !self.out.indices.contains(index) {
                return Err(Error::Shape {
                    index: index.to_string(),
                    left: format!("in the bias `{bias}`"),
                    right: format!(
                        "not a plain index of the output `{}`: `+` adds a bias, and no second product",
                        self.out
                    ),
                });
            }
        }
        Ok(())
    }

    fn validate_names(&self) -> Result<()> {
        let mut tensors: Vec<&str> = Vec::new();
        self.right().for_each(|a| a.for_each_access(&mut |a| tensors.push(&a.tensor)));
        for index in &self.out.indices {
            if let IndexExpr::Access(a) = index {
                a.for_each_access(&mut |a| tensors.push(&a.tensor));
            }
        }
        let out = self.out.tensor.as_str();
        for scalar in &self.scalars {
            if let Scalar::Name(n) = scalar
                && (n == out || tensors.contains(&n.as_str()))
            {
                let reason = "is a scalar in one place and has indices in another";
                return Err(Error::operand(n, reason));
            }
        }
        if tensors.contains(&out) {
            let reason = format!(
                "is the output of `{self}` and is read on the right; write to another tensor"
            );
            return Err(Error::operand(out, reason));
        }
        Ok(())
    }

    /// Checks the shapes of all operands and determines the extent of each index.
    ///
    /// `shapes` contains every operand on the right, and may contain the output. The output is required if one of its
    /// axes is a scatter or an affine index, because no operand determines that extent. Named scalars may be given with
    /// an empty shape or omitted.
    ///
    /// An index may appear only in affine indices, as `x` in `A[s*x+d*i]` over an axis of `e` elements. It has the
    /// largest extent for which every read is in bounds: `(e - 1 - d * (i - 1)) / s + 1`, and 0 if the axis or the
    /// window is empty. The shape of the output also determines extents; all reads must then be in bounds.
    ///
    /// ```
    /// use einsparse_lang::einsum::Einsum;
    /// let e = Einsum::parse("C[x,f] = A[2*x+i,m] * B[i,m,f]")?;
    /// let [a, b] = [("A", vec![224, 3]), ("B", vec![7, 3, 64])].map(|(name, shape)| (name.to_string(), shape));
    /// assert_eq!(e.check(&[a, b].into())?.out(), [109, 64]);
    /// # Ok::<(), einsparse_lang::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Shape`] for a rank or an extent that disagrees, with both sides and both numbers; for a window longer
    ///   than its axis; for an affine index with several indices of unknown extent; for an index that appears only on
    ///   the left.
    /// - [`Error::MissingOperand`] for a missing operand, [`Error::UnknownOperand`] for one that the expression does
    ///   not name.
    pub fn check(&self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<Extents> {
        self.validate()?;
        let mut found =
            Found { shapes, extents: BTreeMap::new(), sums: Vec::new(), used: Vec::new() };
        for access in self.right() {
            found.access(access)?;
        }
        self.check_scalars(&mut found)?;
        if shapes.contains_key(&self.out.tensor) {
            found.access(&self.out)?;
        }
        solve(std::mem::take(&mut found.sums), &mut found.extents)?;
        let out = self.check_out(&mut found)?;
        if let Some(name) = shapes.keys().find(|n| !found.used.contains(&n.as_str())) {
            return Err(Error::unknown(name, self));
        }
        let indices = found.extents.into_iter().map(|(n, (e, _))| (n.into(), e)).collect();
        Ok(Extents { indices, out })
    }

    fn check_scalars<'a>(&'a self, found: &mut Found<'a>) -> Result<()> {
        for scalar in &self.scalars {
            let Scalar::Name(n) = scalar else { continue };
            found.used.push(n);
            match found.shapes.get(n) {
                Some(shape) if !shape.is_empty() => return Err(rank(n, n, 0, shape)),
                _ => {}
            }
        }
        Ok(())
    }

    fn check_out<'a>(&'a self, found: &mut Found<'a>) -> Result<Vec<usize>> {
        if let Some(given) = found.shapes.get(&self.out.tensor) {
            return Ok(given.clone());
        }
        let mut shape = Vec::new();
        for (axis, index) in self.out.indices.iter().enumerate() {
            match index {
                IndexExpr::Name(n) => shape.push(found.extents[n.as_str()].0),
                IndexExpr::Sum(_) | IndexExpr::Access(_) => {
                    if let IndexExpr::Access(a) = index {
                        found.access(a)?;
                    }
                    let reason = format!("axis {axis} is written at `{index}`: give its shape");
                    return Err(Error::operand(&self.out.tensor, reason));
                }
            }
        }
        Ok(shape)
    }
}

struct Found<'a> {
    shapes: &'a BTreeMap<String, Vec<usize>>,
    /// Extents, each with the access that determined it.
    extents: Known<'a>,
    /// Affine indices, which are solved after all other indices.
    sums: Vec<Placed<'a>>,
    used: Vec<&'a str>,
}

impl<'a> Found<'a> {
    fn access(&mut self, access: &'a Access) -> Result<()> {
        let name = access.tensor.as_str();
        self.used.push(name);
        let Some(shape) = self.shapes.get(name) else {
            return Err(Error::missing_in(name, access));
        };
        if shape.len() != access.indices.len() {
            return Err(rank(name, &access.to_string(), access.indices.len(), shape));
        }
        for (axis, (index, &extent)) in access.indices.iter().zip(shape).enumerate() {
            match index {
                IndexExpr::Access(a) => self.access(a)?,
                IndexExpr::Name(n) => {
                    self.extent(n, extent, format!("axis {axis} of `{access}`"))?
                }
                IndexExpr::Sum(terms) => self.sums.push(Placed { access, axis, terms, extent }),
            }
        }
        Ok(())
    }

    fn extent(&mut self, index: &'a str, extent: usize, place: String) -> Result<()> {
        match self.extents.get(index) {
            Some((known, first)) if *known != extent => Err(Error::Shape {
                index: index.into(),
                left: format!("{known} in {first}"),
                right: format!("{extent} in {place}"),
            }),
            Some(_) => Ok(()),
            None => {
                self.extents.insert(index, (extent, place));
                Ok(())
            }
        }
    }
}

fn rank(name: &str, text: &str, indices: usize, shape: &[usize]) -> Error {
    Error::Shape {
        index: name.into(),
        left: format!("`{text}` has {indices} indices"),
        right: format!("the operand has {} axes, {shape:?}", shape.len()),
    }
}

fn only_left(index: &str, out: &Access, factors: usize) -> Error {
    let mut places = 0;
    out.for_each_name(&mut |n| places += usize::from(n == index));
    Error::Shape {
        index: index.into(),
        left: format!("{places} on the left, in `{out}`"),
        right: format!("0 in the {factors} factors on the right"),
    }
}
