//! Outcome of an input, as a number.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number that is equal for inputs with about the same code path.
pub type Outcome = u64;

/// Outcome of an error, by the words of its message without numbers and quotations.
pub fn refused(error: &impl Display) -> Outcome {
    let text = error.to_string();
    assert!(!text.is_empty(), "an error without words");
    // A parse error prints the expression first.
    let last = text.lines().next_back().unwrap_or_default();
    let own = last.split('`').next().unwrap_or_default();
    let is_word = |word: &&str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_lowercase());
    outcome(&own.split(' ').filter(is_word).collect::<Vec<_>>())
}

pub fn outcome(what: &impl Hash) -> Outcome {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
