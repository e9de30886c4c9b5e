//! Lists that are not made from a matrix: rows of sequences of varying lengths, and choices of a router.

use std::marker::PhantomData;

use super::detect::{Detector, Kind};
use crate::context::Context;
use crate::error::Result;
use crate::families::discover::DetectLaunch;
use crate::operator::Operator;

impl Detector<i32> {
    /// Creates a detector that lists the rows of `count` sequences from their lengths. Sequences begin `distance` rows
    /// apart. The result is one ascending list. Lengths are clamped to the range 0 to `distance`.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::dynamic::Detector;
    /// use einsparse::formats::Dense;
    /// let ctx = Context::cpu();
    /// let lengths = ctx.upload_dense(&Dense::new([3], vec![2i32, 0, 1])?)?;
    /// let rows = Detector::lengths(&ctx, 3, 4)?; // sequences begin at rows 0, 4, 8
    /// let mut index = rows.index()?;
    /// rows.run(&lengths, &mut index, &ctx.stream()?)?;
    /// assert_eq!(index.to_lists()?, [vec![0, 1, 8]]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) for rows past 2^32; [`Error::Cuda`](crate::Error::Cuda) if the
    /// kernel cannot be loaded.
    pub fn lengths(context: &Context, count: usize, distance: usize) -> Result<Self> {
        let kind = Kind::Lengths { count, distance };
        let operator =
            Operator::new(context, |device| DetectLaunch::lengths(device, count, distance))?;
        Ok(Detector { kind, operator, element: PhantomData })
    }

    /// Creates a detector that lists, for each of up to 1024 experts, the choices (of `count`) that name it. If the
    /// best `k` of each token are adjacent, choice `c` belongs to token `c / k`. On a GPU, lists are in any order. A
    /// choice that names no expert is omitted.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::dynamic::Detector;
    /// use einsparse::formats::Dense;
    /// let ctx = Context::cpu();
    /// let choices = ctx.upload_dense(&Dense::new([4], vec![1i32, 0, 1, 1])?)?;
    /// let experts = Detector::choices(&ctx, 4, 2)?;
    /// let mut index = experts.index()?;
    /// experts.run(&choices, &mut index, &ctx.stream()?)?;
    /// assert_eq!(index.to_lists()?, [vec![1], vec![0, 2, 3]]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::Error::Overflow) for more than 1024 experts; [`Error::Cuda`](crate::Error::Cuda) if
    /// the kernel cannot be loaded.
    pub fn choices(context: &Context, count: usize, experts: usize) -> Result<Self> {
        let kind = Kind::Choices { count, experts };
        let operator =
            Operator::new(context, |device| DetectLaunch::choices(device, count, experts))?;
        Ok(Detector { kind, operator, element: PhantomData })
    }
}

impl Kind {
    /// Makes lists of rows on the CPU, from the planned number of numbers.
    pub(super) fn on_host(&self, numbers: &[i32], lists: &mut [Vec<u32>]) {
        lists.iter_mut().for_each(Vec::clear);
        let count = match *self {
            Kind::Tiles { .. } => 0,
            Kind::Lengths { count, .. } | Kind::Choices { count, .. } => count,
        };
        for (i, &number) in numbers.iter().take(count).enumerate() {
            match *self {
                Kind::Tiles { .. } => {}
                Kind::Lengths { distance, .. } => {
                    let length = usize::try_from(number).unwrap_or(0).min(distance);
                    let first = i * distance;
                    lists[0].extend((first..first + length).map(|row| row as u32));
                }
                Kind::Choices { .. } => {
                    let expert = usize::try_from(number).ok();
                    if let Some(list) = expert.and_then(|expert| lists.get_mut(expert)) {
                        list.push(i as u32);
                    }
                }
            }
        }
    }
}
