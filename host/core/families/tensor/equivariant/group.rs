//! Distribution of paths to kernels.

use einsparse_kernels::families::DEGREES;

use super::PathPlace;

/// Paths of one kernel: at most one part of each degree of X and of Y. The sums of degrees are all even or all odd.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) odd: bool,
    /// First row of each degree of X and of Y.
    pub(super) parts: [[Option<usize>; DEGREES]; 2],
    pub(super) paths: Vec<PathPlace>,
}

impl Group {
    fn takes(&self, path: &PathPlace) -> bool {
        let [l1, l2, l3] = path.degrees;
        let fits = |of: usize, l: usize| self.parts[of][l].is_none_or(|row| row == path.rows[of]);
        self.odd == ((l1 + l2 + l3) % 2 == 1)
            && fits(0, l1)
            && fits(1, l2)
            && self.paths.iter().all(|own| own.degrees != path.degrees)
    }

    /// Distributes the paths to groups.
    pub(super) fn all(paths: &[PathPlace]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for path in paths {
            let [l1, l2, l3] = path.degrees;
            let at = match groups.iter().position(|group| group.takes(path)) {
                Some(at) => at,
                None => {
                    groups.push(Group {
                        odd: (l1 + l2 + l3) % 2 == 1,
                        parts: [[None; DEGREES]; 2],
                        paths: Vec::new(),
                    });
                    groups.len() - 1
                }
            };
            let group = &mut groups[at];
            group.parts[0][l1] = Some(path.rows[0]);
            group.parts[1][l2] = Some(path.rows[1]);
            group.paths.push(*path);
        }
        groups
    }

    /// Max degree of the kernel for this group. One kernel covers all odd sums.
    pub(super) fn largest(&self) -> usize {
        let degrees = self.paths.iter().flat_map(|path| path.degrees);
        if self.odd { 3 } else { degrees.max().unwrap_or(0).max(1) }
    }

    /// Number of rows of X (0) or Y (1) that the group reads.
    pub(super) fn covered(&self, of: usize) -> usize {
        let parts = self.parts[of].iter().enumerate();
        parts.filter(|(_, row)| row.is_some()).map(|(l, _)| 2 * l + 1).sum()
    }
}
