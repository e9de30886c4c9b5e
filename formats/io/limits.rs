//! Memory limit of a reader, and the accounting of its memory.

use super::Fault;

/// Maximum memory for reading: a constant number of bytes, plus a number of bytes per byte of the input.
///
/// Text and uncompressed arrays stay below the default limit whatever they contain, because their memory is
/// proportional to their size in the file. A deflated member of an archive may inflate a thousandfold. If that exceeds
/// the limit, the reader returns an error with both numbers. [`read_npz_within`](super::read_npz_within) accepts a
/// higher limit.
///
/// ```
/// use einsparse_formats::io::Limits;
///
/// assert_eq!(Limits::default().of(1_000_000), 80_000_000);
/// let generous = Limits { bytes: 8_000_000_000, ..Limits::default() };
/// assert_eq!(generous.of(0), 8_000_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes independent of the size of the input. It is also the maximum length of an input without a size (a pipe, a
    /// device).
    pub bytes: u64,
    /// Additional bytes per byte of the input.
    pub for_each_byte: u64,
}

impl Default for Limits {
    /// 64 MB, plus 16 bytes per byte of the input.
    fn default() -> Self {
        Self { bytes: 64_000_000, for_each_byte: 16 }
    }
}

impl Limits {
    /// Limit in bytes for an input of `input` bytes.
    pub fn of(&self, input: u64) -> u64 {
        self.for_each_byte.saturating_mul(input).saturating_add(self.bytes)
    }
}

/// Memory limit of one input, and the bytes in use.
pub(super) struct Budget {
    limits: Limits,
    input: u64,
    taken: u64,
}

impl Budget {
    /// Budget for an input that is itself in memory.
    pub(super) fn new(limits: Limits, input: usize) -> Self {
        Self::holding(limits, input, input)
    }

    /// Budget for an input of which `held` bytes are in memory at once.
    pub(super) fn holding(limits: Limits, input: usize, held: usize) -> Self {
        Self { limits, input: input as u64, taken: held as u64 }
    }

    /// Reserves memory for `count` elements of `U`, or returns the reason why it does not fit.
    pub(super) fn take<U>(&mut self, count: usize) -> Result<(), String> {
        let bytes = (count as u64).saturating_mul(size_of::<U>() as u64);
        let taken = self.taken.saturating_add(bytes);
        let limit = self.limits.of(self.input);
        if taken > limit {
            return Err(format!(
                "{count} elements take {bytes} bytes, {taken} in all: over the limit of {limit} for a file of {} \
                 bytes, \
                 which `io::Limits` or `--memory` raises",
                self.input
            ));
        }
        self.taken = taken;
        Ok(())
    }

    /// Releases the memory of `count` elements.
    pub(super) fn give<U>(&mut self, count: usize) {
        let bytes = (count as u64).saturating_mul(size_of::<U>() as u64);
        self.taken = self.taken.saturating_sub(bytes);
    }
}

/// Makes space for one more element, up to `most` elements in total. The capacity doubles, so the reserved memory stays
/// proportional to the data that has been read.
pub(super) fn grow<U>(values: &mut Vec<U>, most: usize) -> Result<(), Fault> {
    const FIRST: usize = 1 << 12;
    if values.len() < values.capacity() {
        return Ok(());
    }
    let wanted = most.min((2 * values.len()).max(FIRST));
    let more = wanted.saturating_sub(values.len()).max(1);
    let none = |_| Fault::whole(format!("no memory for {wanted} elements"));
    values.try_reserve_exact(more).map_err(none)
}
