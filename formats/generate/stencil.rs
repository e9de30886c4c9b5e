//! Matrices of discretized differential equations: Poisson by finite differences, plane elasticity by finite elements.

use crate::error::*;
use crate::{Bsr, BsrPattern, Csr, CsrPattern, Element, check};

/// Returns the five-point Laplacian on a grid of `nx` x `ny` points (row `x * ny + y`): 4 on the diagonal, -1 for each
/// neighbor. The boundary condition is zero.
///
/// # Errors
/// Returns [`FormatError::Overflow`] if a count exceeds the index type.
pub fn poisson2d<T: Element>(nx: usize, ny: usize) -> Result<Csr<T>> {
    poisson([1, nx, ny], 4.0)
}

/// Returns the seven-point Laplacian on `nx` x `ny` x `nz` points (row `(x * ny + y) * nz + z`): 6 on the diagonal, -1
/// for each neighbor. The boundary condition is zero.
///
/// # Errors
/// Returns [`FormatError::Overflow`] if a count exceeds the index type.
pub fn poisson3d<T: Element>(nx: usize, ny: usize, nz: usize) -> Result<Csr<T>> {
    poisson([nx, ny, nz], 6.0)
}

fn poisson<T: Element>(extent: [usize; 3], diagonal: f64) -> Result<Csr<T>> {
    let rows = check::product("points", &extent)?;
    check::fits("entries", 7 * rows as u128)?;
    let steps = [extent[1] * extent[2], extent[2], 1];
    let mut offsets = check::reserved("offsets", rows + 1)?;
    let mut columns = check::reserved("columns", 7 * rows)?;
    let mut values = check::reserved("values", 7 * rows)?;
    offsets.push(0);
    for row in 0..rows {
        let place = [row / steps[0], row / steps[1] % extent[1], row % extent[2]];
        let mut push = |column: usize, value: f64| {
            columns.push(column as u32);
            values.push(T::from_f64(value));
        };
        (0..3).filter(|axis| place[*axis] > 0).for_each(|axis| push(row - steps[axis], -1.0));
        push(row, diagonal);
        (0..3)
            .rev()
            .filter(|axis| place[*axis] + 1 < extent[*axis])
            .for_each(|axis| push(row + steps[axis], -1.0));
        offsets.push(columns.len() as u32);
    }
    Csr::new(CsrPattern::new(rows, rows, offsets, columns)?, values)
}

/// Poisson's ratio 0.3, with Young's modulus 1.
const RATIO: f64 = 0.3;

/// Returns the stiffness matrix of plane stress on `nx` x `ny` bilinear square elements with a free boundary. Blocks
/// are 2 x 2, displacements x then y. Each of the `(nx + 1) (ny + 1)` nodes (node `x * (ny + 1) + y`) has one block
/// row.
///
/// The matrix is symmetric, and zero on the three rigid motions. (Hughes, The Finite Element Method, 1987, chapter 3.)
///
/// # Errors
/// Returns [`FormatError::Overflow`] if a count exceeds the index type.
pub fn elasticity2d<T: Element>(nx: usize, ny: usize) -> Result<Bsr<T>> {
    let (width, height) = (nx.saturating_add(1), ny.saturating_add(1));
    let nodes = check::product("nodes", &[width, height])?;
    check::fits("values", 36 * nodes as u128)?;
    let stiffness = element_stiffness();
    let mut offsets = check::reserved("offsets", nodes + 1)?;
    let mut columns = check::reserved("columns", 9 * nodes)?;
    let mut values = check::reserved("values", 36 * nodes)?;
    offsets.push(0);
    for node in 0..nodes {
        let (x, y) = (node / height, node % height);
        for there_x in x.saturating_sub(1)..=(x + 1).min(nx) {
            for there_y in y.saturating_sub(1)..=(y + 1).min(ny) {
                let block = assemble(&stiffness, [x, y], [there_x, there_y], [nx, ny]);
                columns.push((there_x * height + there_y) as u32);
                values.extend(block.as_flattened().iter().map(|value| T::from_f64(*value)));
            }
        }
        offsets.push(columns.len() as u32);
    }
    let pattern = BsrPattern::new(2 * nodes, 2 * nodes, (2, 2), offsets, columns)?;
    Bsr::new(pattern, values)
}

/// Sum over the elements that touch both nodes.
fn assemble(
    stiffness: &[[Block; 4]; 4],
    here: [usize; 2],
    there: [usize; 2],
    extent: [usize; 2],
) -> Block {
    let mut block = [[0.0; 2]; 2];
    for corner in 0..4 {
        let [dx, dy] = CORNERS[corner];
        // Element (x, y) whose corner `corner` is `here`.
        let (Some(x), Some(y)) = (here[0].checked_sub(dx), here[1].checked_sub(dy)) else {
            continue;
        };
        if x >= extent[0] || y >= extent[1] {
            continue;
        }
        let Some(other) = CORNERS.iter().position(|[dx, dy]| [x + dx, y + dy] == there) else {
            continue;
        };
        let part = stiffness[corner][other].as_flattened();
        block.as_flattened_mut().iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    block
}

type Block = [[f64; 2]; 2];
const CORNERS: [[usize; 2]; 4] = [[0, 0], [1, 0], [1, 1], [0, 1]];

/// Stiffness of the unit square, a 2 x 2 block for each pair of corners: B^T D B integrated with 2 x 2 Gauss points,
/// which is exact for bilinear shape functions.
fn element_stiffness() -> [[Block; 4]; 4] {
    let normal = 1.0 / (1.0 - RATIO * RATIO);
    let (cross, shear) = (RATIO * normal, (1.0 - RATIO) / 2.0 * normal);
    let away = 0.5 / 3.0_f64.sqrt();
    let mut stiffness = [[[[0.0; 2]; 2]; 4]; 4];
    for (u, v) in [(-away, -away), (away, -away), (away, away), (-away, away)]
        .map(|(u, v)| (u + 0.5, v + 0.5))
    {
        // The shape function of a corner is a product of u or 1 - u and of v or 1 - v.
        let gradient = CORNERS.map(|[cx, cy]| {
            let (along_x, slope_x) = if cx == 1 { (u, 1.0) } else { (1.0 - u, -1.0) };
            let (along_y, slope_y) = if cy == 1 { (v, 1.0) } else { (1.0 - v, -1.0) };
            [slope_x * along_y, along_x * slope_y]
        });
        for (row, [ax, ay]) in stiffness.iter_mut().zip(gradient) {
            for (block, [bx, by]) in row.iter_mut().zip(gradient) {
                block[0][0] += (normal * ax * bx + shear * ay * by) / 4.0;
                block[0][1] += (cross * ax * by + shear * ay * bx) / 4.0;
                block[1][0] += (cross * ay * bx + shear * ax * by) / 4.0;
                block[1][1] += (normal * ay * by + shear * ax * bx) / 4.0;
            }
        }
    }
    stiffness
}
