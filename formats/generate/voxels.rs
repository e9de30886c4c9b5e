//! Voxelised surfaces: the sorted cells of a solid that have a face in the open. All in integers, so exact.

/// The cells in which `inside` holds and at least one of the six neighbours is outside (cells past the grid are), as
/// `[x, y, z]`, ascending.
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

/// The surface of a ball of `radius` cells, in a grid of `2 radius + 1` cells a side.
pub fn sphere_surface(radius: u32) -> Vec<[u32; 3]> {
    let r = i64::from(radius);
    voxel_surface([2 * radius + 1; 3], |cell| {
        cell.iter().map(|at| (at - r) * (at - r)).sum::<i64>() <= r * r
    })
}

/// The surface of a ring whose tube of radius `minor` runs at `major` cells around the z axis.
pub fn torus_surface(major: u32, minor: u32) -> Vec<[u32; 3]> {
    let (big, small) = (i64::from(major), i64::from(minor));
    let side = 2 * (major + minor) + 1;
    voxel_surface([side, side, 2 * minor + 1], |[x, y, z]| {
        let (x, y, z) = (x - big - small, y - big - small, z - small);
        // (sqrt(x^2 + y^2) - R)^2 + z^2 <= r^2, without the root.
        let left = x * x + y * y + z * z + big * big - small * small;
        left <= 0 || left * left <= 4 * big * big * (x * x + y * y)
    })
}
