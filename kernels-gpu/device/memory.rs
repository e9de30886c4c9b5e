//! Typed addresses of global memory. `buffers!` declares the addresses of a params struct once, with the promise that
//! every access through them is valid. To make an address from a number is `unsafe`. Arithmetic on addresses is safe and
//! not checked: the promise includes its results.

use core::convert::identity;
use core::marker::PhantomData;

use super::elem::{Elem, Raw};
use super::ptx::{bits, bulk, copy, global};
use super::shared::{Mbarrier, Shared, accesses};
use crate::abi::ElemInfo;

/// Kind of access: which threads may write the memory while this kernel runs. It selects the load instruction.
pub trait Access {
    /// # Safety
    /// Each load reads its bytes at `addr` if `ok`. They must be readable, and `addr` a multiple of their number.
    unsafe fn b8(addr: u64, ok: bool) -> u32;
    /// # Safety
    /// As [`Access::b8`].
    unsafe fn b16(addr: u64, ok: bool) -> u32;
    /// # Safety
    /// As [`Access::b8`].
    unsafe fn b32(addr: u64, ok: bool) -> u32;
    /// # Safety
    /// As [`Access::b8`].
    unsafe fn v2(addr: u64, ok: bool) -> [u32; 2];
    /// # Safety
    /// As [`Access::b8`].
    unsafe fn v4(addr: u64, ok: bool) -> [u32; 4];
    /// For data that is read once: it does not evict other data from L1.
    ///
    /// # Safety
    /// As [`Access::b8`].
    unsafe fn v4_once(addr: u64, ok: bool) -> [u32; 4];
}

/// Memory that this kernel may write.
pub trait Writable: Access {}

/// No kernel writes: neither this one, nor the preceding launch if it may still run. ptxas may move such a load before
/// the wait for that launch. Loads are `ld.global.nc`.
#[derive(Clone, Copy)]
pub struct ReadOnly;

/// The preceding launch, or the thread that reads, may write. Loads are `ld.global`.
#[derive(Clone, Copy)]
pub struct ReadWrite;

/// Other thread blocks of this launch, or the preceding launch, may write. Loads bypass L1: `ld.global.cg`.
#[derive(Clone, Copy)]
pub struct Fresh;

macro_rules! access {
    ($($access:ident: $($name:ident = $instruction:ident -> $ret:ty),+;)+) => {$(
        impl Access for $access {$(
            #[inline(always)]
            unsafe fn $name(addr: u64, ok: bool) -> $ret {
                // SAFETY: promised by the caller.
                unsafe { global::$instruction(addr, ok) }
            }
        )+}
    )+};
}

access! {
    ReadOnly:
        b8 = ld_nc_b8 -> u32, b16 = ld_nc_b16 -> u32, b32 = ld_nc_b32 -> u32,
        v2 = ld_nc_v2 -> [u32; 2], v4 = ld_nc_v4 -> [u32; 4], v4_once = ld_nc_no_allocate_v4 -> [u32; 4];
    ReadWrite:
        b8 = ld_global_b8 -> u32, b16 = ld_global_b16 -> u32, b32 = ld_global_b32 -> u32,
        v2 = ld_global_v2 -> [u32; 2], v4 = ld_global_v4 -> [u32; 4], v4_once = ld_no_allocate_v4 -> [u32; 4];
    Fresh:
        b8 = ld_cg_b8 -> u32, b16 = ld_cg_b16 -> u32, b32 = ld_cg_b32 -> u32,
        v2 = ld_cg_v2 -> [u32; 2], v4 = ld_cg_v4 -> [u32; 4], v4_once = ld_no_allocate_v4 -> [u32; 4];
}

impl Writable for ReadWrite {}
impl Writable for Fresh {}

/// A type that global memory stores.
pub trait Stored {
    /// Bytes in memory.
    const SIZE: u32;
}

impl<E: ElemInfo> Stored for E {
    const SIZE: u32 = E::DTYPE.bytes() as u32;
}

/// A type that one instruction loads. `u8` and `u16` are loaded into the low bits of a word.
pub trait Word: Stored {
    /// Result of a load.
    type Value: Copy;
    /// # Safety
    /// As [`Access::b8`].
    unsafe fn ld<A: Access>(addr: u64, ok: bool) -> Self::Value;
    /// # Safety
    /// The bytes at `addr` must be writable, and `addr` a multiple of their number.
    unsafe fn st(addr: u64, value: Self::Value);
}

macro_rules! words {
    ($($t:ty: $bytes:literal -> $value:ty, $ld:ident($back:expr), $st:ident($to:expr);)+) => {$(
        impl Stored for $t {
            const SIZE: u32 = $bytes;
        }

        impl Word for $t {
            type Value = $value;
            #[inline(always)]
            unsafe fn ld<A: Access>(addr: u64, ok: bool) -> $value {
                // SAFETY: promised by the caller.
                $back(unsafe { A::$ld(addr, ok) })
            }
            #[inline(always)]
            unsafe fn st(addr: u64, value: $value) {
                // SAFETY: promised by the caller.
                unsafe { global::$st(addr, $to(value)) }
            }
        }
    )+};
}

words! {
    u8: 1 -> u32, b8(identity), st_b8(identity);
    u16: 2 -> u32, b16(identity), st_b16(identity);
    u32: 4 -> u32, b32(identity), st_b32(identity);
    f32: 4 -> f32, b32(f32::from_bits), st_b32(f32::to_bits);
    u64: 8 -> u64, v2(joined), st_v2(halves);
    f64: 8 -> f64, v2(|w| f64::from_bits(joined(w))), st_v2(|x: f64| halves(x.to_bits()));
    [u32; 2]: 8 -> [u32; 2], v2(identity), st_v2(identity);
    [u32; 4]: 16 -> [u32; 4], v4(identity), st_v4(identity);
}

#[inline(always)]
fn joined([low, high]: [u32; 2]) -> u64 {
    (high as u64) << 32 | low as u64
}

#[inline(always)]
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Address of a `T` in global memory, and of those around it.
pub struct Global<T, A> {
    address: u64,
    of: PhantomData<fn() -> (T, A)>,
}

impl<T, A> Clone for Global<T, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, A> Copy for Global<T, A> {}

impl<T, A> Global<T, A> {
    /// # Safety
    /// Every load and store of the body through this address, and through those computed from it, must be of memory
    /// that the host has checked for this access, and aligned to the size of the access. With [`ReadOnly`] no kernel
    /// may write the memory while this one runs.
    #[inline(always)]
    pub unsafe fn new(address: u64) -> Self {
        Global { address, of: PhantomData }
    }

    #[inline(always)]
    fn moved<U>(address: u64) -> Global<U, A> {
        Global { address, of: PhantomData }
    }

    /// The address as a number, for tests of its alignment.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.address
    }

    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.address == 0
    }

    /// This address, as that of another type.
    #[inline(always)]
    pub fn cast<U>(self) -> Global<U, A> {
        Self::moved(self.address)
    }

    /// This address, for another access.
    ///
    /// # Safety
    /// As [`Global::new`], for the new access.
    #[inline(always)]
    pub unsafe fn with<B>(self) -> Global<T, B> {
        Global { address: self.address, of: PhantomData }
    }

    /// Address `bytes` bytes further.
    #[inline(always)]
    pub fn bytes(self, bytes: impl Into<u64>) -> Self {
        Self::moved(self.address + bytes.into())
    }

    /// [`Global::bytes`] for a distance that may be negative, as two's complement.
    #[inline(always)]
    pub fn wrapping_bytes(self, bytes: u64) -> Self {
        Self::moved(self.address.wrapping_add(bytes))
    }

    /// Address of row `row`, for rows that are `bytes` bytes apart.
    #[inline(always)]
    pub fn row(self, row: u32, bytes: impl Into<u64>) -> Self {
        Self::moved(self.address + row as u64 * bytes.into())
    }

    /// [`Global::row`] in one instruction. The compiler would widen loop invariants first and multiply 64 bits.
    #[inline(always)]
    pub fn row_by_mad(self, row: u32, bytes: u32) -> Self {
        Self::moved(bits::at_row(self.address, row, bytes))
    }

    /// The last address at or before this one that is aligned for a `U`.
    #[inline(always)]
    pub fn aligned_down<U: Stored>(self) -> Global<U, A> {
        Self::moved(self.address & !(U::SIZE as u64 - 1))
    }

    /// This address, computed here: the compiler cannot move or combine its computation.
    #[inline(always)]
    pub fn opaque(self) -> Self {
        Self::moved(super::ptx::warp::opaque_address(self.address))
    }
}

impl<T: Stored, A> Global<T, A> {
    /// Address `count` elements further.
    #[inline(always)]
    pub fn at(self, count: impl Into<u64>) -> Self {
        Self::moved(self.address + count.into() * T::SIZE as u64)
    }

    /// [`Global::at`] for a distance that may be negative, as two's complement.
    #[inline(always)]
    pub fn wrapping_at(self, count: u64) -> Self {
        Self::moved(self.address.wrapping_add(count.wrapping_mul(T::SIZE as u64)))
    }
}

impl<T: Word, A: Access> Global<T, A> {
    #[inline(always)]
    pub fn ld(self) -> T::Value {
        self.ld_if(true)
    }

    /// Loads if `ok`, otherwise returns zero.
    #[inline(always)]
    pub fn ld_if(self, ok: bool) -> T::Value {
        // SAFETY: promised to `Global::new`.
        unsafe { T::ld::<A>(self.address, ok) }
    }
}

impl<T: Word, A: Writable> Global<T, A> {
    #[inline(always)]
    pub fn st(self, value: T::Value) {
        // SAFETY: promised to `Global::new`.
        unsafe { T::st(self.address, value) }
    }
}

impl<A: Writable> Global<u32, A> {
    accesses! {
        /// Stores `value` if `ok`.
        st_if(value: u32, ok: bool) = global::st_b32_if;
        /// Adds to the word and returns its old value. Atomic over the GPU, with acquire and release semantics.
        atom_add(value: u32) -> u32 = global::atom_add;
        /// Sets bits of the word. Atomic over the GPU, relaxed.
        red_or(bits: u32) = global::red_or;
        /// Sets the word to the minimum of it and `value`. Atomic over the GPU, relaxed.
        red_min(value: u32) = global::red_min;
        /// Sets the word to the maximum of it and `value`. Atomic over the GPU, relaxed.
        red_max(value: u32) = global::red_max;
        /// Replaces `expected` by `new` and returns the old value. Atomic over the GPU, relaxed.
        atom_cas(expected: u32, new: u32) -> u32 = global::atom_cas;
    }
}

impl<A: Writable> Global<u16, A> {
    accesses! {
        /// Stores the low 2 bytes if `ok`.
        st_if(value: u32, ok: bool) = global::st_b16_if;
    }
}

/// Words of 8 bytes that several thread blocks of a launch read and write, each in one access.
impl Global<u64, Fresh> {
    accesses! {
        /// Adds to the word and returns its old value. Atomic over the GPU, relaxed.
        atom_add(value: u64) -> u64 = global::atom_add_b64;
        ld_relaxed() -> u64 = global::ld_relaxed_b64;
        st_relaxed(value: u64) = global::st_relaxed_b64;
        /// Polls word `i` until its upper half equals `tag` in all but the lowest two bits. A thread block with a lower
        /// index writes it in this launch.
        poll(i: u32, tag: u32) -> u64 = global::poll_b64;
    }
}

impl<A: Access> Global<[u32; 4], A> {
    accesses! {
        /// [`Global::ld_if`] for data that is read once: it does not evict other data from L1.
        ld_once_if(ok: bool) -> [u32; 4] = A::v4_once;
    }
}

impl<A: Writable> Global<[u32; 4], A> {
    accesses! {
        /// Stores with streaming eviction, for data that is not read again.
        st_streaming(value: [u32; 4]) = global::st_cs_v4;
        /// [`Global::ld_if`] with an L2 eviction policy of [`global::l2_evict_last`].
        ld_with_policy_if(ok: bool, policy: u64) -> [u32; 4] = global::ld_global_v4_with_policy;
    }
}

impl<A: Writable> Global<[u32; 2], A> {
    accesses! {
        /// [`Global::ld_if`] for data that is read once: it does not evict other data from L1.
        ld_once_if(ok: bool) -> [u32; 2] = global::ld_no_allocate_v2;
    }
}

impl Global<[u32; 2], ReadOnly> {
    /// Loads if `ok`, otherwise returns `other`. A load in a branch would be copied where the branches join, and the
    /// copy would wait for it.
    #[inline(always)]
    pub fn ld_or(self, other: [u32; 2], ok: bool) -> [u32; 2] {
        // SAFETY: promised to `Global::new`.
        unsafe { global::ld_nc_v2_or(other, self.address, ok) }
    }
}

/// Loads if `row < rows`, otherwise returns zeros. The comparison is part of the instruction's text: for a sequence of
/// loads, compilers move all comparisons to the start and run out of predicate registers.
impl<T> Global<T, Fresh> {
    /// Loads `BYTES` bytes: 2, 4, 8 or 16.
    #[inline(always)]
    pub fn ld_row<const BYTES: usize>(self, row: u32, rows: u32) -> Raw {
        // SAFETY: promised to `Global::new`.
        unsafe {
            match BYTES {
                16 => global::ld_cg_v4_row(self.address, row, rows),
                8 => global::ld_cg_v2_row(self.address, row, rows),
                4 => global::ld_cg_b32_row(self.address, row, rows),
                _ => global::ld_cg_b16_row(self.address, row, rows),
            }
        }
    }
}

/// Elements: up to 16 bytes of them in one access.
impl<E: Elem, A: Access> Global<E, A> {
    /// Loads `V` elements as stored; zeros if `ok` is false.
    #[inline(always)]
    pub fn ld_raw<const V: usize>(self, ok: bool) -> Raw {
        // SAFETY: promised to `Global::new`.
        unsafe {
            match V as u32 * E::SIZE {
                16 => A::v4(self.address, ok),
                8 => {
                    let [a, b] = A::v2(self.address, ok);
                    [a, b, 0, 0]
                }
                4 => [A::b32(self.address, ok), 0, 0, 0],
                _ => [A::b16(self.address, ok), 0, 0, 0],
            }
        }
    }
}

impl<E: Elem, A: Writable> Global<E, A> {
    /// Rounds and stores `V` elements.
    #[inline(always)]
    pub fn st_rounded<const V: usize>(self, values: &[E::Acc; V]) {
        let mut wide = [E::ZERO; 8];
        unroll!(i < V, { wide[i] = values[i] });
        let raw = E::put(&wide);
        // SAFETY: promised to `Global::new`.
        unsafe {
            match V as u32 * E::SIZE {
                16 => global::st_v4(self.address, raw),
                8 => global::st_v2(self.address, [raw[0], raw[1]]),
                4 => global::st_b32(self.address, raw[0]),
                _ => global::st_b16(self.address, raw[0]),
            }
        }
    }

    /// Stores the first element of a raw vector without conversion.
    #[inline(always)]
    pub fn st_raw(self, raw: Raw) {
        // SAFETY: promised to `Global::new`.
        unsafe {
            match E::SIZE {
                8 => global::st_v2(self.address, [raw[0], raw[1]]),
                4 => global::st_b32(self.address, raw[0]),
                _ => global::st_b16(self.address, raw[0]),
            }
        }
    }
}

/// Copies to shared memory, and prefetches.
impl<T, A> Global<T, A> {
    /// Copies `bytes` (0 to 16) to shared `to` and fills the rest of 16 bytes with zeros. Both addresses are aligned to
    /// 16 bytes.
    #[inline(always)]
    pub fn cp_async_16<U>(self, to: Shared<U>, bytes: u32) {
        // SAFETY: promised to `Global::new` and `Shared::dynamic`.
        unsafe { copy::cp_async_16(to.address, self.address, bytes) }
    }

    /// Copies 16 bytes to shared `to` if `yes` is not 0. A byte count that is not a constant would cost a dozen
    /// instructions.
    #[inline(always)]
    pub fn cp_async_16_if<U>(self, to: Shared<U>, yes: u32) {
        // SAFETY: promised to `Global::new` and `Shared::dynamic`.
        unsafe { copy::cp_async_16_if(to.address, self.address, yes) }
    }

    /// Copies 16 bytes to shared `to`, or zeros if `valid` is false. It uses a predicate, because a byte count that is
    /// not a constant costs a dozen instructions.
    #[inline(always)]
    pub fn cp_async_16_or_zero<U>(self, to: Shared<U>, valid: bool) {
        // SAFETY: promised to `Global::new` and `Shared::dynamic`.
        unsafe { copy::cp_async_16_or_zero(to.address, self.address, valid) }
    }

    /// Copies 4 bytes to shared `to`, both aligned to 4 bytes.
    #[inline(always)]
    pub fn cp_async_4<U>(self, to: Shared<U>) {
        // SAFETY: promised to `Global::new` and `Shared::dynamic`.
        unsafe { copy::cp_async_4(to.address, self.address) }
    }

    /// Starts the copy of `bytes` bytes, a multiple of 16, to shared `to`. They complete `barrier`.
    #[inline(always)]
    pub fn bulk_load<U>(self, to: Shared<U>, bytes: u32, barrier: Shared<Mbarrier>) {
        // SAFETY: promised to `Global::new` and `Shared::dynamic`.
        unsafe { bulk::bulk_load(to.address, self.address, bytes, barrier.address) }
    }

    accesses! {
        /// Prefetches `bytes` bytes into L2, a multiple of 16. No effect below compute capability 9.0.
        bulk_prefetch(bytes: u32) = bulk::bulk_prefetch;
        /// Prefetches the line of 128 bytes into L2 if `ok`.
        prefetch_l2(ok: bool) = global::prefetch_l2;
    }
}

/// Declares the typed addresses of a params struct: for each field of that name a method that returns it with its type
/// and its access. `name<E: Elem>: E` is a method generic over the element type; `name[]` is an array of addresses, and the
/// method takes an index. The comment before it names the check of the host that makes every access of the bodies valid.
macro_rules! buffers {
    ($(unsafe $params:ident { $($fields:tt)+ })+) => {$(
        // Modules that share a params struct use different buffers of it.
        #[allow(dead_code)]
        impl $params { $crate::device::memory::buffers! { @ $($fields)+ } }
    )+};
    (@) => {};
    (@ $(#[$doc:meta])* $name:ident: $t:ty, $access:ident; $($rest:tt)*) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(&self) -> $crate::device::memory::Global<$t, $crate::device::memory::$access> {
            // SAFETY: promised where the buffers are declared.
            unsafe { $crate::device::memory::Global::new(self.$name) }
        }
        $crate::device::memory::buffers! { @ $($rest)* }
    };
    (@ $(#[$doc:meta])* $name:ident[]: $t:ty, $access:ident; $($rest:tt)*) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(&self, i: usize) -> $crate::device::memory::Global<$t, $crate::device::memory::$access> {
            // SAFETY: promised where the buffers are declared.
            unsafe { $crate::device::memory::Global::new(self.$name[i]) }
        }
        $crate::device::memory::buffers! { @ $($rest)* }
    };
    (@ $(#[$doc:meta])* $name:ident<$e:ident: $bound:ident>: $t:ty, $access:ident; $($rest:tt)*) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name<$e: $crate::device::elem::$bound>(&self) -> $crate::device::memory::Global<$t, $crate::device::memory::$access> {
            // SAFETY: promised where the buffers are declared.
            unsafe { $crate::device::memory::Global::new(self.$name) }
        }
        $crate::device::memory::buffers! { @ $($rest)* }
    };
}

pub(crate) use buffers;
