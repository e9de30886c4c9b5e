//! Texts: a parsed value can be printed, and the printed text parses to an equal value.

use einsparse::einsum::Einsum;
use einsparse::indirect::{rewrite, rewrite_dense, rewrite_sampled};
use einsparse_formats::Format;

use super::outcome::{Outcome, outcome, refused};

/// Parses the name of a format.
pub fn format(data: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(data);
    match text.parse::<Format>() {
        Ok(format) => {
            let printed = format.to_string();
            assert_eq!(printed.parse(), Ok(format), "{text} -> {printed}");
            outcome(&std::mem::discriminant(&format))
        }
        Err(error) => outcome(&std::mem::discriminant(&error)),
    }
}

/// Parses an expression, and rewrites it for every format.
pub fn einsum(data: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(data);
    let einsum: Einsum = match text.parse() {
        Ok(einsum) => einsum,
        Err(error) => return refused(&error),
    };
    let printed = einsum.to_string();
    assert_eq!(printed.parse().as_ref(), Ok(&einsum), "{text} -> {printed}");
    let canonical = einsum.canonical();
    assert_eq!(canonical.canonical(), canonical, "{text}");
    let mut seen = match rewrite_dense(&einsum) {
        Ok(indirect) => outcome(&indirect.to_string().len().min(64)),
        Err(error) => refused(&error),
    };
    for name in einsum.factors.iter().take(3).map(|factor| &factor.tensor) {
        for format in crate::conversions::FORMATS {
            let format = format.parse().expect("a format");
            match rewrite(&einsum, name, &format) {
                Ok(indirect) => assert!(!indirect.to_string().is_empty()),
                Err(error) => seen = seen.wrapping_add(refused(&error)),
            }
            for mask in [None, Some(name.as_str())] {
                match rewrite_sampled(&einsum, &format, mask) {
                    Ok(indirect) => assert!(!indirect.to_string().is_empty()),
                    Err(error) => seen = seen.wrapping_add(refused(&error)),
                }
            }
        }
    }
    seen
}
