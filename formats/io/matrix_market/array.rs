//! Array layout: every element, one per line, column by column. Symmetric matrices store the lower half.

use super::super::{Fault, bytes::words};
use super::header::{Body, Header, Symmetry};
use super::line::{Cursor, diagnose_value};
use crate::{Dense, Element};

pub(super) fn read<T: Element>(header: &Header, body: &Body<'_>) -> Result<Dense<T>, Fault> {
    let values = read_values::<T>(header, body)?;
    let (rows, cols) = (header.rows, header.cols);
    let size = Fault::whole(format!("no memory for {rows} x {cols} values"));
    let mut dense = Dense::zeros(vec![rows, cols]).map_err(|_| size)?;
    // Skip the loop over columns without rows: a header of a few bytes may state 2^32 columns.
    let cols = if rows == 0 { 0 } else { cols };
    let out = dense.values_mut();
    let mut next = values.iter();
    for col in 0..cols {
        let first = match header.symmetry {
            Symmetry::General => 0,
            Symmetry::Symmetric => col,
            Symmetry::SkewSymmetric => col + 1,
        };
        for (row, &value) in (first..rows).zip(next.by_ref().take(rows - first)) {
            out[row * cols + col] = value;
            match header.symmetry {
                Symmetry::Symmetric => out[col * cols + row] = value,
                Symmetry::SkewSymmetric => out[col * cols + row] = T::from_f64(-value.to_f64()),
                Symmetry::General => {}
            }
        }
    }
    Ok(dense)
}

/// Reads the values in file order. The header states their number, but the memory is limited by the size of the text.
fn read_values<T: Element>(header: &Header, body: &Body<'_>) -> Result<Vec<T>, Fault> {
    let mut values = Vec::new();
    let room = header.entries.min(body.text.len() / 2 + 1);
    let none = |_| Fault::whole(format!("no memory for {room} values"));
    values.try_reserve_exact(room).map_err(none)?;
    let mut cursor = Cursor { text: body.text, at: 0 };
    let mut number = body.lines_before;
    while cursor.at < body.text.len() {
        number += 1;
        let start = cursor.at;
        if matches!(cursor.peek(), None | Some(b'\n' | b'%')) {
            cursor.rest_of_line();
            continue;
        }
        if values.len() == header.entries {
            return Err(Fault::line(
                number,
                format!("text after the last of {} values", header.entries),
            ));
        }
        let value = cursor.value::<T>(header.field);
        let Some(value) = value.filter(|_| cursor.end_of_line().is_some()) else {
            let line = Cursor { text: body.text, at: start }.rest_of_line();
            return Err(Fault::line(number, diagnose::<T>(line, header)));
        };
        values.push(value);
    }
    if values.len() < header.entries {
        let reason = format!("end of the file after {} of {} values", values.len(), header.entries);
        return Err(Fault::line(number, reason));
    }
    Ok(values)
}

fn diagnose<T: Element>(line: &[u8], header: &Header) -> String {
    let mut found = words(line);
    let first = found.next().unwrap_or_default();
    let more = found.count();
    diagnose_value::<T>(first, header.field)
        .unwrap_or_else(|| format!("one value expected, {} found", more + 1))
}
