//! Quantization to e4m3 with one scale per block of a matrix.

use crate::error::*;
use crate::{Dense, E4m3, Element, check};

/// Rows and columns of a block with one scale.
pub const SCALE_BLOCK: usize = 128;

/// Quantizes matrices `[.., rows, columns]` to e4m3. Each block of 128 x 128 has an f32 scale,
/// `[.., rows / 128, columns / 128]` rounded up; an element is its e4m3 value times the scale. The largest magnitude of
/// a block becomes 448, the largest e4m3 number. A block of zeros, or of elements too small for a scale, has scale 1.
///
/// ```
/// use einsparse_formats::{Dense, Element, scale_blocks};
/// let (codes, scales) = scale_blocks(&Dense::new([1, 3], vec![0.5f32, -1.0, 0.25])?)?;
/// assert_eq!(scales.values(), [1.0 / 448.0]);
/// assert_eq!(codes.values().iter().map(|c| c.to_f64()).collect::<Vec<_>>(), [224.0, -448.0, 112.0]);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns [`FormatError::Shape`] for fewer than two axes, [`FormatError::Unsupported`] for a block with an infinite
/// element, and [`FormatError::Overflow`] or [`FormatError::Memory`] if allocation fails.
pub fn scale_blocks<T: Element>(matrices: &Dense<T>) -> Result<(Dense<E4m3>, Dense<f32>)> {
    let [before @ .., rows, columns] = matrices.shape() else {
        return Err(two_axes("matrix", matrices.shape()));
    };
    let (rows, columns) = (*rows, *columns);
    let [down, across] = [rows, columns].map(|extent| extent.div_ceil(SCALE_BLOCK));
    let values = matrices.values();
    // Index of the matrix that contains an element.
    let matrix = |at: &[usize]| at.iter().zip(before).fold(0, |m, (&i, &n)| m * n + i);
    let blocks = [before, &[down, across]].concat();
    let scales = Dense::from_fn(blocks, |at| {
        let [.., i, j] = *at else { return 1.0 };
        let first = matrix(at) * rows;
        let lines = i * SCALE_BLOCK..rows.min((i + 1) * SCALE_BLOCK);
        let largest = lines
            .flat_map(|row| {
                let line = &values[(first + row) * columns..][..columns];
                &line[j * SCALE_BLOCK..columns.min((j + 1) * SCALE_BLOCK)]
            })
            .fold(0.0, |most: f64, value| most.max(value.to_f64().abs()));
        match (largest / E4m3::MAX.to_f64()) as f32 {
            // The elements are zero or too small for a scale.
            scale if scale < f32::MIN_POSITIVE => 1.0,
            scale => scale,
        }
    })?;
    if let Some(block) = scales.values().iter().position(|s| !s.is_finite()) {
        let [i, j] = [block / across % down, block % across];
        let matrix = block / across / down;
        return Err(FormatError::Unsupported {
            what: format!("block [{i}, {j}] of matrix {matrix}"),
            reason: "holds a number that no f32 scales to e4m3, such as infinity".into(),
        });
    }
    let codes = Dense::from_fn(matrices.shape().to_vec(), |at| {
        let [.., row, column] = *at else {
            return E4m3::ZERO;
        };
        let m = matrix(at);
        let value = values[(m * rows + row) * columns + column].to_f64();
        let block = (m * down + row / SCALE_BLOCK) * across + column / SCALE_BLOCK;
        E4m3::from_f64(value / f64::from(scales.values()[block]))
    })?;
    Ok((codes, scales))
}

fn two_axes(what: &'static str, shape: &[usize]) -> FormatError {
    check::shape(what, format!("{shape:?}"), "at least two axes")
}

/// Inverse of [`scale_blocks`]: each element times the scale of its block, in f32, then rounded to `T`.
///
/// ```
/// use einsparse_formats::{Dense, scale_blocks, unscale_blocks};
/// let whole = Dense::from_fn([2, 300, 130], |at| at[2] as f32 * 0.5)?;
/// let (codes, scales) = scale_blocks(&whole)?;
/// let back = unscale_blocks::<f32>(&codes, &scales)?;
/// assert!((back.values()[129] - 64.5).abs() < 1e-4);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns [`FormatError::Shape`] for fewer than two axes or if the number of scales does not match the blocks, and
/// [`FormatError::Overflow`] or [`FormatError::Memory`] if allocation fails.
pub fn unscale_blocks<T: Element>(codes: &Dense<E4m3>, scales: &Dense<f32>) -> Result<Dense<T>> {
    let [before @ .., rows, columns] = codes.shape() else {
        return Err(two_axes("codes", codes.shape()));
    };
    let [down, across] = [rows, columns].map(|extent| extent.div_ceil(SCALE_BLOCK));
    let blocks = [before, &[down, across]].concat();
    if scales.shape() != blocks {
        let found = format!("{:?}", scales.shape());
        return Err(check::shape("scales", found, format!("{blocks:?}")));
    }
    let (of_codes, of_scales) = (codes.values(), scales.values());
    Dense::from_fn(codes.shape().to_vec(), |at| {
        let [above @ .., row, column] = at else {
            return T::ZERO;
        };
        let matrix = above.iter().zip(before).fold(0, |m, (&i, &n)| m * n + i);
        let code = of_codes[(matrix * rows + row) * columns + column];
        let block = (matrix * down + row / SCALE_BLOCK) * across + column / SCALE_BLOCK;
        T::from_f64(f64::from(code.to_acc() * of_scales[block]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_largest_number_and_others_to_a_sixteenth() {
        // Partial blocks on both axes. The blocks have magnitudes of different order, and one is zero.
        let value = |at: &[usize]| match (at[1] / SCALE_BLOCK, at[2] / SCALE_BLOCK) {
            (0, 0) => 0.0,
            (i, j) => {
                (at[2] % 7 + 1) as f32 * 10f32.powi(3 * i as i32 - 2 * j as i32 + at[0] as i32)
            }
        };
        let dense = Dense::from_fn(vec![2, 130, 260], value).unwrap();
        let (codes, scales) = scale_blocks(&dense).unwrap();
        assert_eq!(scales.shape(), [2, 2, 3]);
        assert_eq!(scales.values()[0], 1.0);
        let back = unscale_blocks::<f32>(&codes, &scales).unwrap();
        for (place, &value) in dense.values().iter().enumerate() {
            let [m, row, column] = [place / 260 / 130, place / 260 % 130, place % 260];
            let scale = scales.values()[(m * 2 + row / 128) * 3 + column / 128];
            let found = codes.values()[place].to_acc() * scale;
            assert_eq!(back.values()[place], found);
            let bound = if column % 7 == 6 { 1e-6 } else { 1.0 / 16.0 };
            assert!((found - value).abs() <= bound * value, "{found} for {value}");
        }
    }

    #[test]
    fn what_has_no_scale_is_refused_with_its_block() {
        let mut dense = Dense::zeros([3, 200, 10]).unwrap();
        dense.values_mut()[(2 * 200 + 150) * 10] = f32::INFINITY;
        let said = scale_blocks(&dense).unwrap_err().to_string();
        assert!(said.contains("block [1, 0] of matrix 2"), "{said}");
        let vector = Dense::new([2], vec![1.0f32, 2.0]).unwrap();
        assert!(scale_blocks(&vector).is_err());
        assert!(unscale_blocks::<f32>(&Dense::zeros([2]).unwrap(), &vector).is_err());
        let codes = Dense::zeros([3, 200, 10]).unwrap();
        let said = unscale_blocks::<f32>(&codes, &Dense::zeros([3, 1, 1]).unwrap());
        let said = said.unwrap_err().to_string();
        assert!(said.contains("[3, 1, 1]") && said.contains("[3, 2, 1]"), "{said}");
        let (codes, scales) = scale_blocks(&Dense::<f32>::zeros([0, 4, 4]).unwrap()).unwrap();
        assert_eq!((codes.len(), scales.shape()), (0, &[0, 1, 1][..]));
        let mut dense = Dense::zeros([1, 2]).unwrap();
        dense.values_mut().copy_from_slice(&[f32::NAN, 448.0]);
        let (codes, scales) = scale_blocks(&dense).unwrap();
        assert!(codes.values()[0].is_nan() && scales.values() == [1.0]);
    }
}
