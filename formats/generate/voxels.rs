//! Voxelized surfaces: sorted cells of a solid that have an exposed face. All arithmetic is in integers and exact.

/// Returns the cells `[x, y, z]` in which `inside` holds but not in all six neighbors, ascending. Cells outside the
/// grid count as not inside.
pub fn voxel_surface(extent: [u32; 3], inside: impl Fn([i64; 3]) -> bool) -> Vec<[u32; 3]> {
    const FACES: [[i64; 3]; 6] =
        [[-1, 0, 0], [1, 0, 0], [0, -1, 0], [0, 1, 0], [0, 0, -1], [0, 0, 1]];
    let extent = extent.map(i64::from);
    let filled =
        |cell: [i64; 3]| (0..3).all(|axis| (0..extent[axis]).contains(&cell[axis])) && inside(cell);
    let mut surface = Vec::new();
    for x in 0..extent[0] {
        for y in 0..extent[1] {
            for z in 0..extent[2] {
                let cell = [x, y, z];
                let open = |face: &[i64; 3]| !filled([x + face[0], y + face[1], z + face[2]]);
                if filled(cell) && FACES.iter().any(open) {
                    surface.push(cell.map(|at| at as u32));
                }
            }
        }
    }
    surface
}

/// Returns the surface of a ball of `radius` cells, in a grid of `2 radius + 1` cells along each axis.
pub fn sphere_surface(radius: u32) -> Vec<[u32; 3]> {
    let r = i64::from(radius);
    voxel_surface([2 * radius + 1; 3], |cell| {
        cell.iter().map(|at| (at - r) * (at - r)).sum::<i64>() <= r * r
    })
}

/// Returns the surface of a torus around the z axis, with tube radius `minor` and distance `major` of the tube's center
/// from the axis, in cells.
pub fn torus_surface(major: u32, minor: u32) -> Vec<[u32; 3]> {
    let (big, small) = (i64::from(major), i64::from(minor));
    let side = 2 * (major + minor) + 1;
    voxel_surface([side, side, 2 * minor + 1], |[x, y, z]| {
        let (x, y, z) = (x - big - small, y - big - small, z - small);
        // (sqrt(x^2 + y^2) - R)^2 + z^2 <= r^2, rewritten without the square root.
        let left = x * x + y * y + z * z + big * big - small * small;
        left <= 0 || left * left <= 4 * big * big * (x * x + y * y)
    })
}
