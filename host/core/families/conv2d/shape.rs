//! Extents of a convolution over 2-D images.

use crate::error::{Error, Result, elements};

/// Extents and geometry. In a pair, index 0 is vertical and index 1 is horizontal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conv2dShape {
    pub(crate) channels: usize,
    pub(crate) batch: usize,
    pub(crate) size: [usize; 2],
    pub(crate) outputs: usize,
    /// Output channel c depends on input channel c only.
    pub(crate) depthwise: bool,
    pub(crate) window: [usize; 2],
    pub(crate) stride: usize,
    pub(crate) padding: [usize; 2],
    pub(crate) out_size: [usize; 2],
}

impl Conv2dShape {
    /// Derives the shape from input `[channels, batch, height, width]` and weights
    /// `[outputs, 1 or channels, rows, columns]`.
    pub(crate) fn new(
        [channels, batch, height, width]: [usize; 4],
        [outputs, each, rows, columns]: [usize; 4],
        stride: usize,
        padding: [usize; 2],
    ) -> Result<Self> {
        let depthwise = each == 1 && outputs == channels;
        if !depthwise && each != channels {
            let found = format!("{each} channels each, for {outputs} outputs");
            let expected =
                format!("all {channels} channels, or 1 of {channels} outputs, are expected");
            return Err(Error::shape("weights", found, expected));
        }
        let extents = [channels, height, width, outputs, rows, columns, stride];
        if extents.contains(&0) {
            let found = format!(
                "{channels} channels of {height} x {width} to {outputs}, window {rows} x {columns}, stride {stride}"
            );
            return Err(Error::range("extents of the convolution", found, "above 0"));
        }
        let (size, window) = ([height, width], [rows, columns]);
        let mut out_size = [0; 2];
        for axis in 0..2 {
            let padded = size[axis].saturating_add(padding[axis].saturating_mul(2));
            let Some(last) = padded.checked_sub(window[axis]) else {
                let window = format!("a window of {rows} x {columns}");
                let planes = format!("planes of {height} x {width}, padded by {padding:?}");
                return Err(Error::shape("convolution", window, planes));
            };
            out_size[axis] = (last / stride).saturating_add(1);
        }
        elements("input", &[channels, batch, height, width])?;
        elements("weights", &[outputs, each, rows, columns])?;
        elements("out", &[outputs, batch, out_size[0], out_size[1]])?;
        Ok(Conv2dShape {
            channels,
            batch,
            size,
            outputs,
            depthwise,
            window,
            stride,
            padding,
            out_size,
        })
    }

    /// Number of input channels per output channel.
    pub(crate) fn each(&self) -> usize {
        if self.depthwise { 1 } else { self.channels }
    }

    /// Elements of one channel of the input, and of the output, over the whole batch.
    pub(crate) fn places(&self) -> [usize; 2] {
        let of =
            |[height, width]: [usize; 2]| self.batch.saturating_mul(height.saturating_mul(width));
        [of(self.size), of(self.out_size)]
    }

    /// Whether the window covers the whole plane, without padding.
    pub(crate) fn whole_plane(&self) -> bool {
        self.window == self.size && self.padding == [0, 0]
    }
}
