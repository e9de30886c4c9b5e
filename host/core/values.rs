//! Values whose type is known only at run time: bytes with a [`Dtype`]. Every cast checks the type.

mod foreign;

use std::borrow::Cow;

use einsparse_cuda::owner::Owner;
use einsparse_formats::{Accumulator, Element, FormatError};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::Result;
use crate::parallel;
use crate::registry::{Dtype, Scalar};

use foreign::Bytes;

pub use crate::{with_sums, with_type};

/// Runs `$body` with `$A` as the accumulator type of `$dtype`, as [`Element::Acc`] states it.
#[doc(hidden)]
#[macro_export]
macro_rules! with_sums {
    ($dtype:expr, $A:ident => $body:expr) => {
        $crate::with_type!($dtype, ElementOfSums => {
            type $A = <ElementOfSums as $crate::formats::Element>::Acc;
            $body
        })
    };
}

/// Number of values that a thread converts at once.
const CHUNK: usize = 1 << 14;

/// Accumulator type.
pub trait Sum: Accumulator {
    const DTYPE: Dtype;
}

impl Sum for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Sum for f64 {
    const DTYPE: Dtype = Dtype::F64;
}

/// Returns the type in which products of `operands` are accumulated on the CPU: the accumulator of their type, or f64 if
/// the output has another type.
pub(crate) fn sums_of(operands: Dtype, out: Dtype) -> Dtype {
    match operands == out {
        true => with_sums!(operands, A => <A as Sum>::DTYPE),
        false => Dtype::F64,
    }
}

/// Values of one type.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    dtype: Dtype,
    bytes: &'a [u8],
}

impl<'a> Slice<'a> {
    pub(crate) fn of<T: Scalar>(values: &'a [T]) -> Self {
        Slice { dtype: T::DTYPE, bytes: bytemuck::cast_slice(values) }
    }

    pub(crate) fn none(dtype: Dtype) -> Self {
        Slice { dtype, bytes: &[] }
    }

    pub(crate) fn dtype(self) -> Dtype {
        self.dtype
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn len(self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// The first `len` values.
    pub(crate) fn first(self, len: usize) -> Slice<'a> {
        let Slice { dtype, bytes } = self;
        let bytes = &bytes[..len * dtype.bytes()];
        Slice { dtype, bytes }
    }

    /// The values from index `first` on.
    pub(crate) fn from(self, first: usize) -> Slice<'a> {
        let Slice { dtype, bytes } = self;
        let bytes = &bytes[first * dtype.bytes()..];
        Slice { dtype, bytes }
    }

    /// Chunks of `size` values. The last one may be shorter.
    pub(crate) fn chunks(self, size: usize) -> impl Iterator<Item = Slice<'a>> {
        let Slice { dtype, bytes } = self;
        let pieces = bytes.chunks(size.max(1) * dtype.bytes());
        pieces.map(move |bytes| Slice { dtype, bytes })
    }

    /// The values, if they are of this type.
    pub(crate) fn typed<T: Scalar>(self) -> Option<&'a [T]> {
        (self.dtype == T::DTYPE).then(|| bytemuck::cast_slice(self.bytes))
    }

    /// The values as accumulators. The conversion is exact if `A` is the accumulator type of their type; f32 and f64
    /// are borrowed.
    pub fn widen<A: Sum>(self) -> Cow<'a, [A]> {
        if self.dtype == A::DTYPE {
            return Cow::Borrowed(bytemuck::cast_slice(self.bytes));
        }
        let mut wide = vec![A::ZERO; self.len()];
        parallel::chunks(&mut wide, CHUNK, &|at, wide| {
            let (from, bytes) = (at * CHUNK, self.dtype.bytes());
            let own = &self.bytes[from * bytes..(from + wide.len()) * bytes];
            with_type!(self.dtype, T => widen_into::<T, A>(bytemuck::cast_slice(own), wide));
        });
        Cow::Owned(wide)
    }
}

/// Converts through `half`, which uses vector instructions for slices but not for single elements.
fn widen_into<T: Scalar, A: Sum>(values: &[T], wide: &mut [A]) {
    match (T::DTYPE, A::DTYPE) {
        (Dtype::F16, Dtype::F32) => bytemuck::cast_slice::<T, f16>(values)
            .convert_to_f32_slice(bytemuck::cast_slice_mut(wide)),
        (Dtype::Bf16, Dtype::F32) => bytemuck::cast_slice::<T, bf16>(values)
            .convert_to_f32_slice(bytemuck::cast_slice_mut(wide)),
        _ => {
            let all = wide.iter_mut().zip(values);
            all.for_each(|(to, from)| *to = A::from_f64(from.to_f64()));
        }
    }
}

/// Mutable values of one type.
#[derive(Debug)]
pub struct SliceMut<'a> {
    dtype: Dtype,
    bytes: &'a mut [u8],
}

impl<'a> SliceMut<'a> {
    pub(crate) fn of<T: Scalar>(values: &'a mut [T]) -> Self {
        SliceMut { dtype: T::DTYPE, bytes: bytemuck::cast_slice_mut(values) }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.view().len()
    }

    pub(crate) fn into_bytes(self) -> &'a mut [u8] {
        self.bytes
    }

    pub(crate) fn view(&self) -> Slice<'_> {
        Slice { dtype: self.dtype, bytes: self.bytes }
    }

    /// `len` values from index `first` on.
    pub fn part(self, first: usize, len: usize) -> SliceMut<'a> {
        let SliceMut { dtype, bytes } = self;
        let size = dtype.bytes();
        let bytes = &mut bytes[first * size..(first + len) * size];
        SliceMut { dtype, bytes }
    }

    /// Chunks of `size` values. The last one may be shorter.
    pub(crate) fn chunks(self, size: usize) -> impl Iterator<Item = SliceMut<'a>> {
        let SliceMut { dtype, bytes } = self;
        let pieces = bytes.chunks_mut(size.max(1) * dtype.bytes());
        pieces.map(move |bytes| SliceMut { dtype, bytes })
    }

    /// The values, if they are of this type.
    pub(crate) fn typed<T: Scalar>(self) -> Option<&'a mut [T]> {
        (self.dtype == T::DTYPE).then(|| bytemuck::cast_slice_mut(self.bytes))
    }

    /// The values, if they have type `A`; otherwise `self` unchanged.
    pub(crate) fn sums<A: Sum>(self) -> std::result::Result<&'a mut [A], Self> {
        if self.dtype == A::DTYPE { Ok(bytemuck::cast_slice_mut(self.bytes)) } else { Err(self) }
    }

    /// Rounds the first `width` sums of each of `rows` rows into these values. Both have row stride `pitch`.
    pub fn narrow<A: Sum>(self, (rows, width, pitch): (usize, usize, usize), sums: &[A]) {
        let SliceMut { dtype, bytes } = self;
        let size = dtype.bytes();
        let end = bytes.len().min(rows * pitch * size);
        let (width, pitch) = if width == pitch { (CHUNK, CHUNK) } else { (width, pitch) };
        parallel::chunks(&mut bytes[..end], pitch * size, &|row, own| {
            let width = width.min(own.len() / size);
            let sums = &sums[row * pitch..row * pitch + width];
            let own = &mut own[..width * size];
            with_type!(dtype, T => narrow_into::<T, A>(sums, bytemuck::cast_slice_mut(own)));
        });
    }
}

/// Returns the function that rounds a number to this type.
pub fn rounding(dtype: Dtype) -> fn(f64) -> f64 {
    with_type!(dtype, T => |x| Element::to_f64(<T as Element>::from_f64(x)))
}

fn narrow_into<T: Scalar, A: Sum>(sums: &[A], values: &mut [T]) {
    match (T::DTYPE, A::DTYPE) {
        (Dtype::F16, Dtype::F32) => bytemuck::cast_slice_mut::<T, f16>(values)
            .convert_from_f32_slice(bytemuck::cast_slice(sums)),
        (Dtype::Bf16, Dtype::F32) => bytemuck::cast_slice_mut::<T, bf16>(values)
            .convert_from_f32_slice(bytemuck::cast_slice(sums)),
        _ => {
            let all = values.iter_mut().zip(sums);
            all.for_each(|(to, from)| *to = T::from_f64(from.to_f64()));
        }
    }
}

/// Owned values of one type, or values in memory of another owner.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    dtype: Dtype,
    len: usize,
    bytes: Bytes,
}

impl Buffer {
    /// Creates a buffer of zeros.
    pub(crate) fn zeros(dtype: Dtype, len: usize) -> Result<Self> {
        let bytes = len as u128 * dtype.bytes() as u128;
        let memory = FormatError::Memory { what: "a dense tensor", bytes };
        let words = usize::try_from(bytes.div_ceil(8)).map_err(|_| memory.clone())?;
        let words = bytemuck::allocation::try_zeroed_vec(words).map_err(|()| memory)?;
        let bytes = Bytes::Own(words);
        Ok(Buffer { dtype, len, bytes })
    }

    /// Offset in bytes of the memory from an alignment of 256 bytes. It is 0 for memory allocated here, whose copy on a
    /// GPU is aligned. `None` if the buffer is empty.
    pub(crate) fn misalignment(&self) -> Option<u64> {
        const VECTOR: usize = 256;
        let behind = match &self.bytes {
            Bytes::Own(_) => 0,
            Bytes::Foreign(_) => self.view().bytes().as_ptr().addr() % VECTOR,
        };
        (self.len > 0).then_some(behind as u64)
    }

    /// Refers to memory of another owner.
    ///
    /// # Safety
    /// `start` is not null and is aligned for the type. The `len` values from it on are initialized. Until the owner is
    /// dropped, no other code writes them, or reads them while they are written.
    pub(crate) unsafe fn foreign(dtype: Dtype, start: *mut u8, len: usize, owner: Owner) -> Self {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { Bytes::foreign(start, len * dtype.bytes(), owner) };
        Buffer { dtype, len, bytes }
    }

    pub(crate) fn of(values: Slice<'_>) -> Result<Self> {
        let mut own = Buffer::zeros(values.dtype, values.len())?;
        own.bytes_mut().copy_from_slice(values.bytes);
        Ok(own)
    }

    pub(crate) fn view(&self) -> Slice<'_> {
        Slice { dtype: self.dtype, bytes: &self.bytes.view()[..self.len * self.dtype.bytes()] }
    }

    pub(crate) fn view_mut(&mut self) -> SliceMut<'_> {
        SliceMut { dtype: self.dtype, bytes: self.bytes_mut() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes.view_mut()[..self.len * self.dtype.bytes()]
    }
}
