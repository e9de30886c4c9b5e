//! Allocation of arrays whose length a user or a file determines. Sizes are limited before the allocation, and a failed
//! allocation is an error.
//!
//! A matrix of 2^32 - 1 rows without entries is a file of 60 bytes, but an array of its row offsets has 17 GB. Arrays
//! over all rows, columns or tiles, and arrays with padding, are therefore limited by the size of the tensor for which
//! they are allocated. Lists of terms, which grow with products of entries, have a limit 64 times as high.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::IndexArray;
use crate::error::*;
use crate::io::Limits;
use crate::parallel;

/// 64 MB.
static BYTES: AtomicU64 = AtomicU64::new(64_000_000);
/// Additional bytes per byte of the tensor.
static FOR_EACH_BYTE: AtomicU64 = AtomicU64::new(16);

/// Runs before the limit is first read or set.
static FROM_ENVIRONMENT: Once = Once::new();

/// Ratio of the limit of lists of terms to that of arrays over an extent.
const TERMS: u64 = 64;

/// Memory limit of this process for arrays whose length follows an extent. It is [`Limits::default`], unless
/// [`set_limits`] was called or the environment variable `EINSPARSE_MEMORY` contains another number of bytes.
pub fn limits() -> Limits {
    FROM_ENVIRONMENT.call_once(|| {
        let text = std::env::var("EINSPARSE_MEMORY").unwrap_or_default();
        if let Ok(bytes) = text.parse() {
            BYTES.store(bytes, Relaxed);
        }
    });
    Limits { bytes: BYTES.load(Relaxed), for_each_byte: FOR_EACH_BYTE.load(Relaxed) }
}

/// Sets the memory limit for arrays whose length follows an extent. It applies to conversions and plans of all threads
/// of this process.
///
/// ```
/// use einsparse_formats::{allocate, io::Limits};
/// // Room for matrices of 10^9 rows with few entries.
/// allocate::set_limits(Limits { bytes: 32_000_000_000, ..Limits::default() });
/// assert_eq!(allocate::limits().bytes, 32_000_000_000);
/// # allocate::set_limits(Limits::default());
/// ```
pub fn set_limits(limits: Limits) {
    FROM_ENVIRONMENT.call_once(|| {});
    BYTES.store(limits.bytes, Relaxed);
    FOR_EACH_BYTE.store(limits.for_each_byte, Relaxed);
}

/// Total bytes of index arrays.
pub fn bytes_of(arrays: &[IndexArray<'_>]) -> u64 {
    arrays.iter().map(|array| 4 * array.data.len() as u64).sum()
}

fn within(what: &'static str, count: u128, bytes: u128, held: u64, limit: u64) -> Result<()> {
    if bytes <= u128::from(limit) {
        return Ok(());
    }
    Err(FormatError::Limit { what, count, bytes, held, limit })
}

/// Validates arrays of `each` bytes for each of `count` rows, columns, tiles or slots. Their size must not exceed
/// [`limits`] for a tensor of `held` bytes.
///
/// # Errors
/// Returns [`FormatError::Limit`] with the count, the bytes and the limit.
pub fn extent(what: &'static str, count: u128, each: usize, held: u64) -> Result<()> {
    extent_bytes(what, count, count.saturating_mul(each as u128), held)
}

/// [`extent`] for arrays of `bytes` bytes in total.
pub fn extent_bytes(what: &'static str, count: u128, bytes: u128, held: u64) -> Result<()> {
    within(what, count, bytes, held, limits().of(held))
}

/// [`extent`] for lists of terms. A product of tensors may have many more terms than the tensors have entries, so the
/// limit is 64 times as high.
pub fn terms(what: &'static str, count: u128, each: usize, held: u64) -> Result<()> {
    let limit = limits().of(held).saturating_mul(TERMS);
    let bytes = count.saturating_mul(each as u128);
    within(what, count, bytes, held, limit)
}

fn none<T>(what: &'static str, len: usize) -> FormatError {
    let bytes = len as u128 * size_of::<T>() as u128;
    FormatError::Memory { what, bytes }
}

/// Allocates zeros. The operating system provides zeroed pages, and the thread that writes a page first touches it.
///
/// # Errors
/// Returns [`FormatError::Memory`] if allocation fails.
pub fn zeroed<T: bytemuck::Zeroable>(what: &'static str, len: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| none::<T>(what, len))
}

/// Allocates an empty vector of capacity `len`.
///
/// # Errors
/// See [`zeroed`].
pub fn reserved<T>(what: &'static str, len: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    let found = room.try_reserve_exact(len);
    found.map_err(|_| none::<T>(what, len))?;
    Ok(room)
}

/// Allocates `len` copies of a value.
///
/// # Errors
/// See [`zeroed`].
pub fn filled<T: Clone>(what: &'static str, len: usize, value: T) -> Result<Vec<T>> {
    let mut all = reserved(what, len)?;
    all.resize(len, value);
    Ok(all)
}

/// Collects an iterator of known length.
///
/// # Errors
/// See [`zeroed`].
pub fn collected<T>(what: &'static str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = reserved(what, items.len())?;
    all.extend(items);
    Ok(all)
}

/// Computes `work(i)` for every `i` below `count` in parallel. The results are in order.
///
/// # Errors
/// See [`zeroed`].
pub fn each<T: Clone + Default + Send>(
    what: &'static str,
    count: usize,
    work: &(dyn Fn(usize) -> T + Sync),
) -> Result<Vec<T>> {
    const CHUNK: usize = 256;
    let mut all = filled(what, count, T::default())?;
    parallel::chunks(&mut all, CHUNK, &|at, chunk| {
        for (i, place) in chunk.iter_mut().enumerate() {
            *place = work(at * CHUNK + i);
        }
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_over_an_extent_are_compared_with_the_tensor() {
        assert_eq!(extent("rows", 16_000_000, 4, 0), Ok(()));
        let error = extent("rows", 4_294_967_295, 4, 10).unwrap_err();
        let text = error.to_string();
        let words = ["4294967295 rows", "17179869180 bytes", "64000160", "10 bytes"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(extent("rows", 4_294_967_295, 4, 1 << 30), Ok(()));
        // A product has more terms than its factors have entries.
        assert_eq!(terms("terms", 64 * 16_000_000, 4, 0), Ok(()));
        assert!(terms("terms", 64 * 16_000_000 + 1, 4, 0).is_err());
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let len = isize::MAX as usize / 4;
        let wanted = FormatError::Memory { what: "rows", bytes: 4 * len as u128 };
        assert_eq!(reserved::<u32>("rows", len), Err(wanted.clone()));
        assert_eq!(filled("rows", len, 1u32), Err(wanted.clone()));
        assert_eq!(zeroed::<u32>("rows", len), Err(wanted));
        assert_eq!(collected("rows", 0..3), Ok(vec![0, 1, 2]));
    }
}
