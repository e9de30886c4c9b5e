//! Extents and geometry of a convolution, and the axes that may be sparse for one step.

use crate::error::{Error, Result};

/// Axis that is sparse for one step.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{ConvolutionAxis, ConvolutionOptions, DynamicConvolution};
/// use einsparse::formats::f16;
/// let options = ConvolutionOptions {
///     axis: ConvolutionAxis::Filters,
///     ..ConvolutionOptions::default()
/// };
/// let of = DynamicConvolution::<f16>::new(&Context::cpu(), [2, 4, 4, 8], [3, 3, 8, 16], &options)?;
/// assert_eq!(of.index().panels(), 1); // of filters one list; of channels one for each image
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvolutionAxis {
    /// Channels of A, separately for each image. A micro-tile is a channel of an image, at all positions (the m axis).
    /// An image whose channels are all empty requires no products (the n axis).
    #[default]
    Channels,
    /// Filters of B. A micro-tile is a filter, at all taps and channels (the f axis).
    Filters,
}

/// Extents and geometry of a convolution in two dimensions, channels last: A `[images, size, channels]`, B `[window,
/// channels, filters]`, C `[images, out, filters]`. Index 0 of a pair is along x, the rows of an image; index 1 is
/// along y, its columns.
///
/// ```
/// use einsparse::dynamic::ConvolutionShape;
/// let shape = ConvolutionShape {
///     stride: [2, 2],
///     ..ConvolutionShape::new([1, 9, 7, 8], [3, 3], 16)
/// };
/// assert_eq!(shape.out()?, [4, 3]);
/// assert_eq!(shape.same().out()?, [5, 4]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Number of images.
    pub images: usize,
    /// Rows and columns of an image of A.
    pub size: [usize; 2],
    /// Channels of A and B.
    pub channels: usize,
    /// Filters of B and C.
    pub filters: usize,
    /// Rows and columns of the window.
    pub window: [usize; 2],
    /// Distance in A of adjacent positions of C.
    pub stride: [usize; 2],
    /// Distance in A of adjacent taps of the window.
    pub dilation: [usize; 2],
    /// Number of zeros around A, on each side.
    pub padding: [usize; 2],
}

impl ConvolutionShape {
    /// Creates a shape with stride 1, dilation 1 and no padding, for A `[n, h, w, m]` and B `[i, j, m, f]`: `C[n,x,y,f]
    /// = A[n,x+i,y+j,m] * B[i,j,m,f]`.
    pub fn new(a: [usize; 4], window: [usize; 2], filters: usize) -> Self {
        ConvolutionShape {
            images: a[0],
            size: [a[1], a[2]],
            channels: a[3],
            filters,
            window,
            stride: [1; 2],
            dilation: [1; 2],
            padding: [0; 2],
        }
    }

    /// Returns the shape with the padding that gives C the size of A, for windows of odd extents.
    pub fn same(self) -> Self {
        let padding =
            [0, 1].map(|axis| self.dilation[axis].saturating_mul(self.window[axis].max(1) - 1) / 2);
        ConvolutionShape { padding, ..self }
    }

    /// Returns the rows and columns of an image of C.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a window, stride or dilation of 0; [`Error::Shape`] if the window is larger than the
    /// padded image; [`Error::Overflow`] if the padded image exceeds `i32::MAX` positions along an axis.
    pub fn out(&self) -> Result<[usize; 2]> {
        for (name, pair) in
            [("window", self.window), ("stride", self.stride), ("dilation", self.dilation)]
        {
            if pair.contains(&0) {
                return Err(Error::range(name, format!("{pair:?}"), "at least 1 along both axes"));
            }
        }
        let along = |axis: usize| {
            let padded = self.size[axis] as u128 + 2 * self.padding[axis] as u128;
            let spanned = self.dilation[axis] as u128 * (self.window[axis] as u128 - 1) + 1;
            let out = padded.checked_sub(spanned).map(|rest| rest / self.stride[axis] as u128 + 1);
            match out {
                None => Err(Error::Shape {
                    index: ["x", "y"][axis].into(),
                    left: format!("the window spans {spanned}"),
                    right: format!("the padded image has {padded}"),
                }),
                Some(out) if padded > i32::MAX as u128 => Err(Error::Overflow {
                    what: "positions of a padded image".into(),
                    value: padded.max(out),
                    limit: i32::MAX as u128,
                }),
                Some(out) => Ok(out as usize),
            }
        };
        Ok([along(0)?, along(1)?])
    }

    pub(crate) fn shapes(&self) -> Result<[[usize; 4]; 3]> {
        let [x, y] = self.out()?;
        Ok([
            [self.images, self.size[0], self.size[1], self.channels],
            [self.window[0], self.window[1], self.channels, self.filters],
            [self.images, x, y, self.filters],
        ])
    }

    /// Returns items, rows and columns of the operand that is searched for nonempty columns.
    pub(crate) fn looked(&self, axis: ConvolutionAxis) -> [usize; 3] {
        match axis {
            ConvolutionAxis::Channels => {
                let positions = self.size[0].saturating_mul(self.size[1]);
                [self.images, positions, self.channels]
            }
            ConvolutionAxis::Filters => {
                let rows = self.taps().saturating_mul(self.channels);
                [1, rows, self.filters]
            }
        }
    }

    pub(crate) fn taps(&self) -> usize {
        self.window[0].saturating_mul(self.window[1])
    }

    /// Returns the position of A for a position of C and a tap; `None` in the padding.
    pub(crate) fn position(&self, place: [usize; 2], tap: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let padded = place[axis] * self.stride[axis] + tap[axis] * self.dilation[axis];
            let own = padded.checked_sub(self.padding[axis])?;
            (own < self.size[axis]).then_some(own)
        };
        Some([along(0)?, along(1)?])
    }
}
