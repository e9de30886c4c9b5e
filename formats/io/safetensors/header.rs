//! Header: one JSON object, `{"name": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}`.

use super::super::npy::Kind;
use super::super::{Fault, quote};
use super::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::fmt;
use std::ops::Range;

/// Maximum number of axes of a tensor.
const AXES: usize = 8;

/// Parses the tensors and returns them in the order of their data, which must have no gaps.
pub(super) fn parse(text: &[u8], data: u64) -> Result<Vec<TensorInfo>, Fault> {
    if text.first() != Some(&b'{') {
        let found = quote(&text[..text.len().min(12)]);
        let reason = format!("byte 0: `{{` expected, {found} found");
        return Err(Fault::member("header", reason));
    }
    let (mut found, mut name) = (Vec::new(), None);
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = json.deserialize_map(Tensors(&mut found, &mut name));
    read.and_then(|()| json.end()).map_err(|error| {
        let member = name.map_or("header".to_owned(), |name| quote(name.as_bytes()));
        Fault::member(member, shown(&error))
    })?;
    found.iter().try_for_each(|info| {
        let wrong = |reason| Fault::member(quote(info.name.as_bytes()), reason);
        check(info, data).map_err(wrong)
    })?;
    in_order(&mut found, data)?;
    Ok(found)
}

/// Position and text of a JSON error in one line. The text may contain words of the file.
fn shown(error: &serde_json::Error) -> String {
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    let place = format!(" at line {line} column {column}");
    let reason = text.strip_suffix(&place).unwrap_or(&text);
    let reason: String = reason.escape_debug().take(100).collect();
    format!("line {line}, column {column}: {reason}")
}

/// Visitor that appends each tensor to a list. A map would hide duplicate names. The second field is the name of the
/// current tensor.
struct Tensors<'a>(&'a mut Vec<TensorInfo>, &'a mut Option<String>);

impl<'de> Visitor<'de> for Tensors<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            let name = self.1.insert(name);
            if name == "__metadata__" {
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::custom("is there twice"));
                }
                map.next_value::<Texts>()?;
            } else {
                let info = map.next_value::<Info>()?;
                let (start, end) = info.data_offsets;
                self.0.push(TensorInfo {
                    name: std::mem::take(name),
                    dtype: info.dtype,
                    shape: info.shape,
                    bytes: start..end,
                });
            }
            *self.1 = None;
        }
        Ok(())
    }
}

/// JSON value of a tensor.
struct Info {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Info {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Info;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object of dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Info, A::Error> {
                let (mut dtype, mut shape, mut offsets) = (None, None, None);
                while let Some(field) = map.next_key::<String>()? {
                    let twice = match field.as_str() {
                        "dtype" => dtype.replace(map.next_value()?).is_some(),
                        "shape" => shape.replace(map.next_value()?).is_some(),
                        "data_offsets" => offsets.replace(map.next_value()?).is_some(),
                        _ => {
                            let field = quote(field.as_bytes());
                            let reason = "is none of dtype, shape and data_offsets";
                            return Err(A::Error::custom(format!("field {field} {reason}")));
                        }
                    };
                    if twice {
                        return Err(A::Error::custom(format!("{field} is given twice")));
                    }
                }
                let missing = |field| A::Error::custom(format!("{field} is missing"));
                Ok(Info {
                    dtype: dtype.ok_or_else(|| missing("dtype"))?,
                    shape: shape.ok_or_else(|| missing("shape"))?,
                    data_offsets: offsets.ok_or_else(|| missing("data_offsets"))?,
                })
            }
        }
        from.deserialize_map(Fields)
    }
}

/// Object of strings, which are discarded.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Texts)
    }
}

impl<'de> Visitor<'de> for Texts {
    type Value = Self;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<String, String>()?.is_some() {}
        Ok(self)
    }
}

/// Validates the number of axes, the range of the bytes within the data, and the number of bytes.
fn check(info: &TensorInfo, data: u64) -> Result<(), String> {
    let Range { start, end } = info.bytes;
    if start > end || end > data {
        return Err(format!(
            "data_offsets {start} to {end} do not lie within the {data} bytes of data"
        ));
    }
    match info.shape.len() {
        axes if axes > AXES => Err(format!("{axes} axes, {AXES} at most")),
        _ => check_size(info),
    }
}

/// Validates that the number of bytes matches the shape. Unknown types may have any size.
fn check_size(stored: &TensorInfo) -> Result<(), String> {
    let TensorInfo { shape, bytes, dtype, .. } = stored;
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

/// Kind of an element type, if arrays of this type can be read, and its size in bytes.
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

/// Sorts by offset. Validates that each byte of the data belongs to one tensor, and that names are distinct.
fn in_order(found: &mut [TensorInfo], data: u64) -> Result<(), Fault> {
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(twice) = found.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let name = quote(twice[0].name.as_bytes());
        return Err(Fault::member(name, "is there twice"));
    }
    found.sort_by_key(|stored| (stored.bytes.start, stored.bytes.end));
    let none = |bytes: Range<u64>| {
        let Range { start, end } = bytes;
        Fault::whole(format!("bytes {start} to {end} of the data belong to no tensor"))
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
