//! The header: one JSON object, `{"name": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}`. Nothing in
//! it nests deeper, so it is read from left to right without recursion.

use super::super::npy::Kind;
use super::super::{Fault, quote};
use super::TensorInfo;
use std::ops::Range;

/// Most axes of a tensor.
const AXES: usize = 8;

/// The tensors in the order of their data, which they fill without gaps.
pub(super) fn parse(text: &[u8], data: u64) -> Result<Vec<TensorInfo>, Fault> {
    let mut found = Vec::new();
    let mut text = Text { text, at: 0 };
    let wrong = |reason| Fault::member("header", reason);
    text.object(|text, name| {
        if name == "__metadata__" {
            return text.object(|text, _| text.string().map(drop).map_err(wrong));
        }
        found.push(stored(text, name, data)?);
        Ok(())
    })?;
    if text.peek().is_some() {
        return Err(wrong(text.expected("end of the header")));
    }
    in_order(&mut found, data)?;
    Ok(found)
}

/// What stands behind a name.
fn stored(text: &mut Text<'_>, name: String, data: u64) -> Result<TensorInfo, Fault> {
    let wrong = |reason| Fault::member(quote(name.as_bytes()), reason);
    let (mut dtype, mut shape, mut offsets) = (None, None, None);
    text.object(|text, field| {
        let twice = match field.as_str() {
            "dtype" => dtype.replace(text.string().map_err(wrong)?).is_some(),
            "shape" => shape.replace(text.numbers().map_err(wrong)?).is_some(),
            "data_offsets" => offsets.replace(text.numbers().map_err(wrong)?).is_some(),
            _ => {
                let field = quote(field.as_bytes());
                let reason = format!("field {field} is none of dtype, shape and data_offsets");
                return Err(wrong(reason));
            }
        };
        match twice {
            true => Err(wrong(format!("{field} is given twice"))),
            false => Ok(()),
        }
    })?;
    let missing = |field: &str| wrong(format!("{field} is missing"));
    let dtype = dtype.ok_or_else(|| missing("dtype"))?;
    let shape = shape.ok_or_else(|| missing("shape"))?;
    let &[start, end] = &offsets.ok_or_else(|| missing("data_offsets"))?[..] else {
        return Err(wrong("data_offsets are not two numbers".to_owned()));
    };
    if start > end || end > data {
        return Err(wrong(format!(
            "data_offsets {start} to {end} do not lie within the {data} bytes of data"
        )));
    }
    let stored = TensorInfo {
        shape: extents(&shape).map_err(wrong)?,
        bytes: start..end,
        dtype,
        name: name.clone(),
    };
    check_size(&stored).map_err(wrong)?;
    Ok(stored)
}

fn extents(shape: &[u64]) -> Result<Vec<usize>, String> {
    if shape.len() > AXES {
        return Err(format!("{} axes, {AXES} at most", shape.len()));
    }
    let extent = |&extent: &u64| usize::try_from(extent).ok();
    let extents = shape.iter().map(extent).collect::<Option<_>>();
    extents.ok_or_else(|| format!("shape {shape:?} is too large"))
}

/// As many bytes as the shape takes; types that are not known here may have any size.
fn check_size(stored: &TensorInfo) -> Result<(), String> {
    let TensorInfo {
        shape,
        bytes,
        dtype,
        ..
    } = stored;
    let Some((_, size)) = element(dtype) else {
        return Ok(());
    };
    let product = |n: u128, &extent: &usize| n.saturating_mul(extent as u128);
    let wanted = match shape.contains(&0) {
        true => 0,
        false => shape.iter().fold(size as u128, product),
    };
    let found = bytes.end - bytes.start;
    if wanted != found.into() {
        return Err(format!(
            "{dtype} {shape:?} takes {wanted} bytes, data_offsets {} to {} hold {found}",
            bytes.start, bytes.end
        ));
    }
    Ok(())
}

/// Kind of an element, if such arrays can be read, and its bytes.
pub(super) fn element(dtype: &str) -> Option<(Option<Kind>, usize)> {
    Some(match dtype {
        "F64" => (Some(Kind::Float), 8),
        "F32" => (Some(Kind::Float), 4),
        "F16" => (Some(Kind::Float), 2),
        "BF16" => (Some(Kind::Bfloat), 2),
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => (None, 1),
        "U16" | "I16" => (None, 2),
        "U32" | "I32" => (None, 4),
        "U64" | "I64" => (None, 8),
        _ => return None,
    })
}

/// Sorts by place. Each byte of the data belongs to one tensor, and each name is there once.
fn in_order(found: &mut [TensorInfo], data: u64) -> Result<(), Fault> {
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(twice) = found.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let name = quote(twice[0].name.as_bytes());
        return Err(Fault::member(name, "is there twice"));
    }
    found.sort_by_key(|stored| (stored.bytes.start, stored.bytes.end));
    let none = |bytes: Range<u64>| {
        let Range { start, end } = bytes;
        Fault::whole(format!(
            "bytes {start} to {end} of the data belong to no tensor"
        ))
    };
    let mut last: Option<&TensorInfo> = None;
    for stored in found.iter() {
        let before = last.map_or(0, |last| last.bytes.end);
        let Range { start, end } = stored.bytes;
        match last {
            Some(last) if start < before => {
                let reason = format!(
                    "data_offsets {start} to {end} overlap {} to {} of {}",
                    last.bytes.start,
                    last.bytes.end,
                    quote(last.name.as_bytes())
                );
                return Err(Fault::member(quote(stored.name.as_bytes()), reason));
            }
            _ if start > before => return Err(none(before..start)),
            _ => last = Some(stored),
        }
    }
    match last.map_or(0, |last| last.bytes.end) {
        end if end < data => Err(none(end..data)),
        _ => Ok(()),
    }
}

/// What is left of the text.
struct Text<'a> {
    text: &'a [u8],
    at: usize,
}

impl Text<'_> {
    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += rest.iter().take_while(space).count();
        self.text.get(self.at).copied()
    }

    /// Whether this comes next; then it is taken.
    fn takes(&mut self, mark: u8) -> bool {
        let is = self.peek() == Some(mark);
        self.at += usize::from(is);
        is
    }

    fn wants(&mut self, mark: u8) -> Result<(), String> {
        match self.takes(mark) {
            true => Ok(()),
            false => Err(self.expected(&format!("`{}`", char::from(mark)))),
        }
    }

    fn expected(&mut self, what: &str) -> String {
        let rest = &self.text[self.at.min(self.text.len())..];
        let found = match rest.is_empty() {
            true => "the end of the header".to_owned(),
            false => quote(&rest[..rest.len().min(12)]),
        };
        format!("byte {}: {what} expected, {found} found", self.at)
    }

    /// Hands over each name of an object; `value` takes what stands behind it.
    fn object(
        &mut self,
        mut value: impl FnMut(&mut Self, String) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let wrong = |reason| Fault::member("header", reason);
        self.wants(b'{').map_err(wrong)?;
        if self.takes(b'}') {
            return Ok(());
        }
        loop {
            let name = self.string().map_err(wrong)?;
            self.wants(b':').map_err(wrong)?;
            value(self, name)?;
            if !self.takes(b',') {
                return self.wants(b'}').map_err(wrong);
            }
        }
    }

    fn numbers(&mut self) -> Result<Vec<u64>, String> {
        let mut numbers = Vec::new();
        self.wants(b'[')?;
        if self.takes(b']') {
            return Ok(numbers);
        }
        loop {
            numbers.push(self.number()?);
            if !self.takes(b',') {
                self.wants(b']')?;
                return Ok(numbers);
            }
        }
    }

    fn number(&mut self) -> Result<u64, String> {
        self.peek();
        let rest = &self.text[self.at..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value = std::str::from_utf8(&rest[..digits]).ok();
        let value = value.and_then(|digits| digits.parse().ok());
        let value = value.ok_or_else(|| self.expected("a whole number below 2^64"))?;
        self.at += digits;
        Ok(value)
    }

    fn string(&mut self) -> Result<String, String> {
        self.wants(b'"')?;
        let mut bytes = Vec::new();
        loop {
            let byte = self.text.get(self.at).copied();
            match byte {
                Some(b'"') => break,
                Some(b'\\') => {
                    let character = self.escaped()?;
                    bytes.extend(character.encode_utf8(&mut [0; 4]).bytes());
                }
                Some(byte) => {
                    bytes.push(byte);
                    self.at += 1;
                }
                None => return Err(self.expected("`\"`")),
            }
        }
        self.at += 1;
        let end = self.at;
        String::from_utf8(bytes).map_err(|_| format!("byte {end}: text before it is not UTF-8"))
    }

    /// What a backslash and its letters stand for.
    fn escaped(&mut self) -> Result<char, String> {
        let plain = match self.text.get(self.at + 1) {
            Some(mark @ (b'"' | b'\\' | b'/')) => char::from(*mark),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => {
                let first = self.unit()?;
                // A character past 16 bits is a pair of them.
                let pair = match first {
                    0xd800..0xdc00 => vec![first, self.unit()?],
                    _ => vec![first],
                };
                let mut characters = char::decode_utf16(pair);
                let character = characters.next().and_then(Result::ok);
                return character.ok_or_else(|| self.expected("the other half of a character"));
            }
        };
        self.at += 2;
        Ok(plain)
    }

    /// `\uXXXX`.
    fn unit(&mut self) -> Result<u16, String> {
        let digits = self.text.get(self.at..self.at + 6);
        let digits = digits.and_then(|all| all.strip_prefix(b"\\u"));
        let digits = digits.filter(|all| all.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|all| std::str::from_utf8(all).ok());
        let unit = digits.and_then(|all| u16::from_str_radix(all, 16).ok());
        let unit = unit.ok_or_else(|| self.expected("an escape"))?;
        self.at += 6;
        Ok(unit)
    }
}
