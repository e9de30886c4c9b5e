//! PTX text in which each register's number is a difference. A compiler numbers registers one after the other, so
//! unrolled code repeats everything but the numbers, and their differences repeat too. Packed text is less than half as
//! long for it.

extern crate std;

use std::collections::HashMap;
use std::io::Write;
use std::vec::Vec;

/// The numbers are differences from those of the last line that begins with the same words.
pub(super) fn to_differences(text: &[u8]) -> Vec<u8> {
    rewrite(text, |number, last| {
        let difference = number.wrapping_sub(*last);
        *last = number;
        difference
    })
}

/// The text of which [`to_differences`] made this one.
pub(super) fn from_differences(text: &[u8]) -> Vec<u8> {
    rewrite(text, |difference, last| {
        *last = last.wrapping_add(difference);
        *last
    })
}

/// Digits that a number has at the most.
const DIGITS: usize = 9;

/// Puts `new(number, last)` in place of each register's number. `last` is kept for each place behind the same words.
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
            // A `Vec` takes all that is written.
            let _ = write!(out, "{}", new(number, &mut lasts[place]));
            (place, rest) = (place + 1, behind);
        }
        out.extend(rest);
    }
    out
}

/// All up to the next register's number, the number, and what is behind it.
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
