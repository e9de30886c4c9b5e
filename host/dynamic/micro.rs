//! Micro-tiles: the dense tile of an operand with its PIT axis shrunk to 1 (PIT, arXiv 2301.10936, section 3.2).

use std::collections::BTreeMap;
use std::fmt;

use einsparse_kernels::abi::{PANEL_BYTES, STRIP};

use super::axes::{AxisUse, operands, uses};
use crate::einsum::{Einsum, IndexExpr};
use crate::registry::{Dtype, Row, WalkKind, has_strips, products};
use crate::tensor::volume;

/// Bytes of a micro-tile at the least: what one access to memory brings.
const MICRO_BYTES: usize = 32;

/// The tile of a matrix product that a kernel computes on Tensor Cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseTile {
    /// The first row of the table that has it.
    pub name: &'static str,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Depth of a stage.
    pub k: usize,
}

impl fmt::Display for DenseTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DenseTile { m, n, k, .. } = self;
        write!(f, "{m} x {n} x {k}")
    }
}

/// Every tile of the table's Tensor Core products for elements of this type, each once.
pub fn dense_tiles(dtype: Dtype) -> Vec<DenseTile> {
    let mut tiles: Vec<DenseTile> = Vec::new();
    for row in products().filter(|row| row.dtype == dtype) {
        let Some((m, k)) = tile_of(row) else { continue };
        let n = row.columns as usize;
        if !tiles.iter().any(|t| (t.m, t.n, t.k) == (m, n, k)) {
            tiles.push(DenseTile { name: row.name, m, n, k });
        }
    }
    tiles
}

/// Rows of C and depth of what a kernel multiplies at once.
fn tile_of(row: &Row) -> Option<(usize, usize)> {
    let (rows, depth) = (row.block.0 as usize, row.block.1 as usize);
    match row.walk {
        _ if has_strips(row) => Some((STRIP, PANEL_BYTES / row.dtype.bytes())),
        WalkKind::Direct | WalkKind::Block => Some((rows, depth)),
        _ => None,
    }
}

/// The extents that a matrix tile gives the indices of a product of two factors: the last index of the output that only
/// the first factor has gets `m`, the last that only the second has `n`, the last summed one `k`, every other 1. `None`
/// where the expression is no such product.
pub fn matmul_extents<'a>(
    einsum: &'a Einsum,
    tile: &DenseTile,
) -> Option<BTreeMap<&'a str, usize>> {
    let [a, b] = einsum.factors.as_slice() else {
        return None;
    };
    let has = |access: &crate::einsum::Access, index: &str| {
        let mut found = false;
        access.for_each_name(&mut |name| found |= name == index);
        found
    };
    let uses = uses(einsum);
    let mut extents: BTreeMap<&str, usize> = uses.keys().map(|&name| (name, 1)).collect();
    let mut names = Vec::new();
    for access in operands(einsum) {
        access.for_each_name(&mut |name| names.push(name));
    }
    for (extent, usage, sides) in [
        (tile.m, AxisUse::Spatial, [true, false]),
        (tile.n, AxisUse::Spatial, [false, true]),
        (tile.k, AxisUse::Reduction, [true, true]),
    ] {
        let fits = |name: &&&str| uses[**name] == usage && [has(a, name), has(b, name)] == sides;
        let last = names.iter().rev().find(fits)?;
        extents.insert(last, extent);
    }
    Some(extents)
}

/// A micro-tile of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroTile {
    /// The operand.
    pub operand: String,
    /// The PIT axis that micro-tiles are gathered along.
    pub index: String,
    /// Extent along each axis of the operand.
    pub extents: Vec<usize>,
}

impl MicroTile {
    /// Elements.
    pub fn len(&self) -> usize {
        self.extents.iter().product()
    }

    /// Whether it has no element; a tile of the table's never is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for MicroTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.extents.iter().map(usize::to_string).collect();
        write!(f, "{}.{} {}", self.operand, self.index, extents.join(" x "))
    }
}

/// The micro-tiles of every operand, one for each PIT axis of it, for a tile that gives the indices these extents (1
/// where it names none). Where one would have less than 32 bytes of elements of `element` bytes, its PIT
/// axis is that much longer. An operand with an index array or a sum of indices, or with an index twice, has none: it
/// is not cut into boxes.
pub fn micro_tiles(
    einsum: &Einsum,
    extents: &BTreeMap<&str, usize>,
    element: usize,
) -> Vec<MicroTile> {
    let uses = uses(einsum);
    let mut tiles = Vec::new();
    for access in operands(einsum) {
        let names: Option<Vec<&str>> = access.indices.iter().map(plain).collect();
        let Some(names) = names else { continue };
        let twice = |i: usize| names[..i].contains(&names[i]);
        if (0..names.len()).any(twice) {
            continue;
        }
        for (axis, name) in names.iter().enumerate() {
            if !uses[name].is_pit() {
                continue;
            }
            let extent = |name: &&str| extents.get(name).copied().unwrap_or(1).max(1);
            let mut shape: Vec<usize> = names.iter().map(extent).collect();
            shape[axis] = 1;
            let bytes = volume(&shape).saturating_mul(element.max(1));
            shape[axis] = MICRO_BYTES.div_ceil(bytes).next_power_of_two();
            tiles.push(MicroTile {
                operand: access.tensor.clone(),
                index: (*name).into(),
                extents: shape,
            });
        }
    }
    tiles
}

/// The index, if it is one by itself.
fn plain(index: &IndexExpr) -> Option<&str> {
    match index {
        IndexExpr::Name(name) => Some(name),
        IndexExpr::Access(_) | IndexExpr::Sum(_) => None,
    }
}
