//! What came out, as a number.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A number that is the same for inputs that took about the same way.
pub type Outcome = u64;

/// Of a message by its words, without numbers and what it quotes.
pub fn refused(error: &impl Display) -> Outcome {
    let text = error.to_string();
    assert!(!text.is_empty(), "an error without words");
    // A parse error shows the expression first.
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
