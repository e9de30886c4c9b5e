//! Zachary's karate club.

use crate::CsrPattern;

/// Members who met outside the club, each pair once, in Zachary's numbering: `(first, seconds)`.
const FRIENDS: [(u32, &[u32]); 26] = [
    (1, &[2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 20, 22, 32]),
    (2, &[3, 4, 8, 14, 18, 20, 22, 31]),
    (3, &[4, 8, 9, 10, 14, 28, 29, 33]),
    (4, &[8, 13, 14]),
    (5, &[7, 11]),
    (6, &[7, 11, 17]),
    (7, &[17]),
    (9, &[31, 33, 34]),
    (10, &[34]),
    (14, &[34]),
    (15, &[33, 34]),
    (16, &[33, 34]),
    (19, &[33, 34]),
    (20, &[34]),
    (21, &[33, 34]),
    (23, &[33, 34]),
    (24, &[26, 28, 30, 33, 34]),
    (25, &[26, 28, 32]),
    (26, &[32]),
    (27, &[30, 34]),
    (28, &[34]),
    (29, &[32, 34]),
    (30, &[33, 34]),
    (31, &[33, 34]),
    (32, &[33, 34]),
    (33, &[34]),
];

/// Returns the friendships in a karate club: 34 vertices and 78 edges, each in both directions (156 entries).
///
/// W. W. Zachary, An Information Flow Model for Conflict and Fission in Small Groups, J. Anthropological Research 33
/// (1977).
pub fn karate() -> CsrPattern {
    let mut edges: Vec<(u32, u32)> = Vec::with_capacity(156);
    for (first, seconds) in FRIENDS {
        edges.extend(
            seconds.iter().flat_map(|second| [(first - 1, second - 1), (second - 1, first - 1)]),
        );
    }
    edges.sort_unstable();
    let offsets = (0..=34).map(|row| edges.partition_point(|edge| edge.0 < row) as u32).collect();
    let columns = edges.iter().map(|edge| edge.1).collect();
    CsrPattern::new(34, 34, offsets, columns)
        .expect("the list is symmetric, sorted and without duplicates")
}
