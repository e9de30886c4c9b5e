//! How much memory a reader may take, and the account that it keeps of it.

use super::Fault;

/// The most memory that reading takes: a number of bytes, and some more for each byte of the input.
///
/// Text and uncompressed arrays stay below the default whatever they hold, because each of their bytes proves what it
/// says. A deflated member of an archive may be a thousand times its size in the file: where that is more than the
/// limit it is refused with both numbers, and [`read_npz_within`](super::read_npz_within) takes a higher limit.
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
    /// Bytes, whatever the size of the input. An input without a size (a pipe, a device) may be as long as this.
    pub bytes: u64,
    /// Bytes more for each byte of the input.
    pub for_each_byte: u64,
}

impl Default for Limits {
    /// 64 MB, and 16 bytes for each byte of the input.
    fn default() -> Self {
        Self { bytes: 64_000_000, for_each_byte: 16 }
    }
}

impl Limits {
    /// The limit for an input of so many bytes.
    pub fn of(&self, input: u64) -> u64 {
        self.for_each_byte.saturating_mul(input).saturating_add(self.bytes)
    }
}

/// What is left of a limit.
pub(super) struct Budget {
    limits: Limits,
    input: u64,
    taken: u64,
}

impl Budget {
    /// Of an input that is in memory itself.
    pub(super) fn new(limits: Limits, input: usize) -> Self {
        Self::holding(limits, input, input)
    }

    /// Of an input of which so many bytes are in memory at once.
    pub(super) fn holding(limits: Limits, input: usize, held: usize) -> Self {
        Self { limits, input: input as u64, taken: held as u64 }
    }

    /// Takes room for `count` elements of `U`; the reason if there is none.
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

    /// Gives back the room of `count` elements.
    pub(super) fn give<U>(&mut self, count: usize) {
        let bytes = (count as u64).saturating_mul(size_of::<U>() as u64);
        self.taken = self.taken.saturating_sub(bytes);
    }
}

/// Room for one more element, up to `most` in the end: it doubles, so that what is reserved follows what has come.
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
