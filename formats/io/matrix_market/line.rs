//! Parser of one entry line: a fast path for valid lines, and a slow path that finds the error of an invalid line.

use super::super::{bytes::words, quote};
use super::header::{Field, Header, Symmetry};
use crate::Element;
use std::any::TypeId;

/// Position in the text.
pub(super) struct Cursor<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    /// Skips blanks, but not line ends, and returns the next byte.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(&byte) = self.text.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c) {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// Returns the rest of the line and moves the cursor past the line.
    pub(super) fn rest_of_line(&mut self) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        self.at += (end + 1).min(rest.len());
        &rest[..end]
    }

    /// Accepts only blanks up to the line end and moves the cursor past it.
    pub(super) fn end_of_line(&mut self) -> Option<()> {
        let end = self.peek();
        self.at += usize::from(end.is_some());
        (end.is_none() || end == Some(b'\n')).then_some(())
    }

    /// Parses an index from 1 to `extent`, followed by whitespace, and converts it to start at 0.
    fn index(&mut self, extent: usize) -> Option<u64> {
        self.peek()?;
        let start = self.at;
        let mut index = 0_u64;
        while let Some(digit) =
            self.text.get(self.at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)
        {
            index = index.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        // Numbers of up to 18 digits cannot wrap.
        let sound = (1..=18).contains(&(self.at - start)) && (1..=extent as u64).contains(&index);
        let ended = self.text.get(self.at).is_none_or(u8::is_ascii_whitespace);
        (sound && ended).then(|| index - 1)
    }

    /// Parses a value followed by whitespace.
    pub(super) fn value<T: Element>(&mut self, field: Field) -> Option<T> {
        self.peek()?;
        let text = &self.text[self.at..];
        let (value, length) = parse_value::<T>(text)?;
        if !text.get(length).is_none_or(u8::is_ascii_whitespace) {
            return self.fortran_value(field);
        }
        let token = &text[..length];
        self.at += length;
        (has_field(token, field) && fits(value, token)).then_some(value)
    }

    /// Parses a value with a Fortran exponent.
    #[cold]
    fn fortran_value<T: Element>(&mut self, field: Field) -> Option<T> {
        let token = words(&self.text[self.at..]).next()?;
        let value = parse_fortran::<T>(token)?;
        self.at += token.len();
        (has_field(token, field) && fits(value, token)).then_some(value)
    }
}

/// Parses the entry at the cursor and moves the cursor past the line. After `None`, [`diagnose`] returns the error.
pub(super) fn entry<T: Element>(cursor: &mut Cursor<'_>, header: &Header) -> Option<(u64, u64, T)> {
    let row = cursor.index(header.rows)?;
    let col = cursor.index(header.cols)?;
    let value = if header.field == Field::Pattern { T::ONE } else { cursor.value(header.field)? };
    cursor.end_of_line()?;
    (header.symmetry != Symmetry::SkewSymmetric || row != col).then_some((row, col, value))
}

/// Parses the number at the start of `text` and returns it with its length. f32 is parsed as f32, so it is rounded
/// once.
fn parse_value<T: Element>(text: &[u8]) -> Option<(T, usize)> {
    if TypeId::of::<T>() == TypeId::of::<f32>() {
        let (value, length) = fast_float2::parse_partial::<f32, _>(text).ok()?;
        return Some((bytemuck::cast(value), length));
    }
    let (value, length) = fast_float2::parse_partial::<f64, _>(text).ok()?;
    Some((T::from_f64(value), length))
}

/// Maximum length of a number with a Fortran exponent.
const FORTRAN_LIMIT: usize = 64;

/// Parses a number with an exponent letter other than `e`, such as `1D+3` or `1Q+3`, or without a letter: Fortran
/// writes `1.0-100` if the exponent has three digits.
fn parse_fortran<T: Element>(token: &[u8]) -> Option<T> {
    let end = token[1..].iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let (mantissa, exponent) = token.split_at(end + 1);
    let exponent = match exponent {
        [b'd' | b'D' | b'q' | b'Q', exponent @ ..] => exponent,
        [b'+' | b'-', ..] => exponent,
        _ => return None,
    };
    let length = mantissa.len() + 1 + exponent.len();
    let mut text = [0; FORTRAN_LIMIT];
    let text = text.get_mut(..length)?;
    text[..mantissa.len()].copy_from_slice(mantissa);
    text[mantissa.len()] = b'e';
    text[mantissa.len() + 1..].copy_from_slice(exponent);
    let (value, read) = parse_value::<T>(text)?;
    (read == length).then_some(value)
}

/// Whether the number has the type that the banner states.
fn has_field(token: &[u8], field: Field) -> bool {
    let unsigned = token.strip_prefix(b"+").unwrap_or(token);
    match field {
        Field::Integer => is_digits(token.strip_prefix(b"-").unwrap_or(unsigned)),
        Field::UnsignedInteger => is_digits(unsigned),
        Field::Real | Field::Pattern => true,
    }
}

fn is_digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// Whether the value is finite, or the text states infinity or NaN.
fn fits<T: Element>(value: T, token: &[u8]) -> bool {
    value.to_f64().is_finite() || !token.iter().any(u8::is_ascii_digit)
}

/// Error of an entry line for which [`entry`] returned `None`.
pub(super) fn diagnose<T: Element>(line: &[u8], header: &Header) -> String {
    const COUNT: [&str; 6] = ["none", "one", "two", "three", "four", "five"];
    let found: Vec<&[u8]> = words(line).collect();
    let wanted = if header.field == Field::Pattern { 2 } else { 3 };
    let count = COUNT.get(found.len()).copied().unwrap_or("more");
    if found.len() < wanted {
        let names = if wanted == 2 { "row and column" } else { "row, column and value" };
        return format!("{names} expected, {count} found");
    }
    if found.len() > wanted {
        return format!("{} numbers expected, {count} found", COUNT[wanted]);
    }
    let index = diagnose_index(found[0], "row", header.rows).or(diagnose_index(
        found[1],
        "column",
        header.cols,
    ));
    let value = || found.get(2).and_then(|word| diagnose_value::<T>(word, header.field));
    index
        .or_else(value)
        .unwrap_or_else(|| "a skew-symmetric matrix has no diagonal entries".to_owned())
}

fn diagnose_index(word: &[u8], name: &str, extent: usize) -> Option<String> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if !digits.iter().all(u8::is_ascii_digit) || digits.is_empty() {
        let number = fast_float2::parse::<f64, _>(word).is_ok();
        let what = if number { "an integer" } else { "a number" };
        return Some(format!("{name} index is not {what}: {}", quote(word)));
    }
    let text = String::from_utf8_lossy(word);
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let text =
        if digits.len() == word.len() && zeros < digits.len() { &text[zeros..] } else { &text };
    if digits.len() < word.len() || zeros == digits.len() {
        return Some(format!("{name} index {text} is below 1"));
    }
    if digits.len() > 18 && zeros == 0
        || text.parse::<u64>().is_ok_and(|index| index > extent as u64)
    {
        return Some(format!("{name} index {text} is past {extent}"));
    }
    (digits.len() > 18).then(|| format!("{name} index {text} has too many digits"))
}

/// Error of a value, if it is invalid.
pub(super) fn diagnose_value<T: Element>(word: &[u8], field: Field) -> Option<String> {
    let whole = parse_value::<T>(word).filter(|(_, length)| *length == word.len());
    let value = whole.map(|(value, _)| value).or_else(|| parse_fortran(word));
    match value {
        None => Some(format!("value is not a number: {}", quote(word))),
        Some(_) if !has_field(word, field) => {
            let signs = if field == Field::UnsignedInteger { " without a sign" } else { "" };
            let found = quote(word);
            Some(format!("value is not an integer{signs}: {found}"))
        }
        Some(value) if !fits(value, word) => {
            Some(format!("value {} is out of the range of {}", quote(word), T::NAME))
        }
        Some(_) => None,
    }
}
