//! One function for each fuzz target. It accepts any bytes, and panics if the library violates its contract. The
//! contract includes results, so they are compared with references. Each returns its outcome, so that a runner without
//! coverage can distinguish outcomes.

mod conversions;
mod extents;
mod input;
mod outcome;
mod patterns;
mod plans;
mod readers;
mod reference;
mod seeds;
mod text;

pub use conversions::conversions;
pub use extents::extents;
pub use patterns::{mutated_patterns, patterns};
pub use plans::plans;
pub use readers::{matrix_market, npy, npz, safetensors, smtx};
pub use seeds::seeds;
pub use text::{einsum, format};

use outcome::Outcome;

/// A name and its function.
pub type Target = (&'static str, fn(&[u8]) -> Outcome);

/// All targets.
pub const TARGETS: [Target; 12] = [
    ("matrix_market", matrix_market),
    ("smtx", smtx),
    ("npz", npz),
    ("npy", npy),
    ("safetensors", safetensors),
    ("format", format),
    ("einsum", einsum),
    ("patterns", patterns),
    ("mutated_patterns", mutated_patterns),
    ("conversions", conversions),
    ("plans", plans),
    ("extents", extents),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_sound() {
        for (name, run) in TARGETS {
            let (seeds, _) = seeds(name);
            assert!(!seeds.is_empty());
            for seed in &seeds {
                run(seed);
            }
        }
        // An archive, then its members.
        let (archives, _) = seeds("npz");
        for pair in archives.chunks_exact(2) {
            assert_eq!(npz(&pair[0]), npz(&pair[1]));
        }
    }
}
