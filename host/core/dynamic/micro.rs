//! Micro-tiles: the dense tile of an operand with its PIT axis reduced to 1 (PIT, arXiv 2301.10936, section 3.2).

use std::collections::BTreeMap;
use std::fmt;

use einsparse_kernels::abi::{PANEL_BYTES, STRIP};

use super::axes::{AxisUse, operands, uses};
use crate::einsum::{Einsum, IndexExpr};
use crate::registry::{Dtype, Row, WalkKind, has_strips, products};
use crate::tensor::volume;

/// Min bytes of a micro-tile: the size of one memory access.
const MICRO_BYTES: usize = 32;

/// Tile of a matrix product that a kernel computes on Tensor Cores.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseTile {
    /// Name of the first row of the table with this tile.
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

/// All distinct tiles of the table's Tensor Core products for elements of this type.
#[doc(hidden)]
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

/// Rows of C and depth that a kernel multiplies at once.
fn tile_of(row: &Row) -> Option<(usize, usize)> {
    let (rows, depth) = (row.block.0 as usize, row.block.1 as usize);
    match row.walk {
        _ if has_strips(row) => Some((STRIP, PANEL_BYTES / row.dtype.bytes())),
        WalkKind::Direct | WalkKind::Block => Some((rows, depth)),
        _ => None,
    }
}

/// Extents that a matrix tile assigns to the indices of a product of two factors. The last index of the output that
/// only the first factor has gets `m`. The last one that only the second factor has gets `n`. The last summed index
/// gets `k`, every other index 1. `None` if the expression is not such a product.
#[doc(hidden)]
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
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroTile {
    /// Name of the operand.
    pub operand: String,
    /// PIT axis along which micro-tiles are gathered.
    pub index: String,
    /// Extent along each axis of the operand.
    pub extents: Vec<usize>,
}

impl MicroTile {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.extents.iter().product()
    }

    /// Whether the micro-tile is empty. Tiles of the table always have elements.
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

/// Micro-tiles of every operand, one per PIT axis, for a tile that assigns these extents to the indices (1 for all
/// others). If a micro-tile would be smaller than 32 bytes, with elements of `element` bytes, its PIT axis is extended.
/// Operands with an index array, with a sum of indices, or with a repeated index are omitted, because they cannot be
/// divided into boxes.
#[doc(hidden)]
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

/// The name of an index that is neither a sum nor an access.
fn plain(index: &IndexExpr) -> Option<&str> {
    match index {
        IndexExpr::Name(name) => Some(name),
        IndexExpr::Access(_) | IndexExpr::Sum(_) => None,
    }
}
