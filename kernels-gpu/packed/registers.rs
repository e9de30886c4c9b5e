//! PTX text in which each register's number is a difference. A compiler numbers registers consecutively, so unrolled
//! code repeats everything but the numbers. Their differences repeat too. Packed text is less than half as long.

extern crate std;

use std::collections::HashMap;
use std::io::Write;
use std::vec::Vec;

/// Replaces each number by its difference from the number in the last line that begins with the same words.
pub(super) fn to_differences(text: &[u8]) -> Vec<u8> {
    rewrite(text, |number, last| {
        let difference = number.wrapping_sub(*last);
        *last = number;
        difference
    })
}

/// Inverse of [`to_differences`].
pub(super) fn from_differences(text: &[u8]) -> Vec<u8> {
    rewrite(text, |difference, last| {
        *last = last.wrapping_add(difference);
        *last
    })
}

/// Max number of digits of a register number.
const DIGITS: usize = 9;

/// Replaces each register's number by `new(number, last)`. `last` is stored for each first part of a line and each
/// index of a register in the line.
fn rewrite(text: &[u8], new: impl Fn(i64, &mut i64) -> i64) -> Vec<u8> {
    let mut lasts: HashMap<&[u8], Vec<i64>> = HashMap::new();
    let mut out = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let Some(first) = line.iter().position(|byte| *byte == b'%') else {
            out.extend(line);
            continue;
        };
        let (words, mut rest) = line.split_at(first);
        out.extend(words);
        let lasts = lasts.entry(words).or_default();
        let mut place = 0;
        while let Some((name, number, behind)) = register(rest) {
            if place == lasts.len() {
                lasts.push(0);
            }
            out.extend(name);
            // Writing to a `Vec` cannot fail.
            let _ = write!(out, "{}", new(number, &mut lasts[place]));
            (place, rest) = (place + 1, behind);
        }
        out.extend(rest);
    }
    out
}

/// Returns the text up to the next register's number, the number, and the text after it.
fn register(text: &[u8]) -> Option<(&[u8], i64, &[u8])> {
    let mut from = 0;
    loop {
        from += text[from..].iter().position(|byte| *byte == b'%')? + 1;
        let letters = text[from..].iter().take_while(|byte| byte.is_ascii_lowercase()).count();
        from += letters;
        let sign = usize::from(text.get(from) == Some(&b'-'));
        let digits = text[from + sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if letters == 0 || !(1..=DIGITS).contains(&digits) {
            continue;
        }
        let (number, behind) = text[from..].split_at(sign + digits);
        let value = number[sign..].iter().fold(0, |all, digit| all * 10 + i64::from(digit - b'0'));
        return Some((&text[..from], if sign == 1 { -value } else { value }, behind));
    }
}
