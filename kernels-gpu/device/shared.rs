//! Typed addresses of the thread block's shared memory, and of its mbarriers. To make an address from an offset or from a
//! number is `unsafe`: a body does it once per area, and names the constant of the tile that the host launches with.
//! Arithmetic on addresses is safe and not checked: the promise includes its results.

use core::convert::identity;
use core::marker::PhantomData;

use super::memory::{Stored, Word};
use super::ptx::{barrier, cluster, copy, matrix};
use crate::frag;

/// A type that one instruction loads from shared memory, or two for `f64`.
pub trait SharedWord: Word {
    /// # Safety
    /// The bytes at `from` must be shared memory of the thread block, and `from` a multiple of their number.
    unsafe fn ld_shared(from: u32) -> Self::Value;
    /// # Safety
    /// As [`SharedWord::ld_shared`].
    unsafe fn st_shared(to: u32, value: Self::Value);
}

macro_rules! shared_words {
    ($($t:ty: $ld:ident($back:expr), $st:ident($to:expr);)+) => {$(
        impl SharedWord for $t {
            #[inline(always)]
            unsafe fn ld_shared(from: u32) -> Self::Value {
                // SAFETY: promised by the caller.
                $back(unsafe { copy::$ld(from) })
            }
            #[inline(always)]
            unsafe fn st_shared(to: u32, value: Self::Value) {
                // SAFETY: promised by the caller.
                unsafe { copy::$st(to, $to(value)) }
            }
        }
    )+};
}

shared_words! {
    u8: ld_shared_b8(identity), st_shared_b8(identity);
    u16: ld_shared_b16(identity), st_shared_b16(identity);
    u32: ld_shared_b32(identity), st_shared_b32(identity);
    f32: ld_shared_b32(f32::from_bits), st_shared_b32(f32::to_bits);
    [u32; 2]: ld_shared_v2(identity), st_shared_v2(identity);
    [u32; 4]: ld_shared_v4(identity), st_shared_v4(identity);
}

impl SharedWord for f64 {
    #[inline(always)]
    unsafe fn ld_shared(from: u32) -> f64 {
        // SAFETY: promised by the caller.
        let [high, low] = unsafe { [copy::ld_shared_b32(from + 4), copy::ld_shared_b32(from)] };
        f64::from_bits((high as u64) << 32 | low as u64)
    }
    #[inline(always)]
    unsafe fn st_shared(to: u32, value: f64) {
        let bits = value.to_bits();
        // SAFETY: promised by the caller.
        unsafe {
            copy::st_shared_b32(to, bits as u32);
            copy::st_shared_b32(to + 4, (bits >> 32) as u32);
        }
    }
}

/// Copies of an address, without a condition on the type there.
macro_rules! copied {
    ($($address:ident)+) => {$(
        impl<T> Clone for $address<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $address<T> {}
    )+};
}

copied! { Shared Remote }

/// Address of a `T` in shared memory, and of those around it.
pub struct Shared<T> {
    pub(in crate::device) address: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Shared<T> {
    /// Address of byte `offset` of dynamic shared memory.
    ///
    /// # Safety
    /// Every load and store of the body through this address, and through those computed from it, must be aligned to its
    /// size and inside of the shared memory that the host launches the kernel with (through [`Shared::remote`]: of a
    /// thread block of the cluster that has not exited). If it meets a store of another thread to the same bytes, both
    /// must be atomic or use an mbarrier, or a barrier, an mbarrier or a synchronization of the warp must order them.
    #[inline(always)]
    pub unsafe fn dynamic(offset: u32) -> Self {
        Shared { address: copy::dynamic_shared() + offset, of: PhantomData }
    }

    /// Address from a number, such as one that another lane has passed.
    ///
    /// # Safety
    /// As [`Shared::dynamic`].
    #[inline(always)]
    pub unsafe fn new(address: u32) -> Self {
        Shared { address, of: PhantomData }
    }

    #[inline(always)]
    pub(in crate::device) fn moved<U>(address: u32) -> Shared<U> {
        Shared { address, of: PhantomData }
    }

    /// The address as a number, for exchange between lanes.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.address
    }

    /// This address, as that of another type.
    #[inline(always)]
    pub fn cast<U>(self) -> Shared<U> {
        Self::moved(self.address)
    }

    /// Address `bytes` bytes further. For a negative distance, `bytes` is its two's complement.
    #[inline(always)]
    pub fn bytes(self, bytes: u32) -> Self {
        Self::moved(self.address.wrapping_add(bytes))
    }

    /// Flips the bits `mask` of the address: a swizzle whose tile begins at a multiple of its size.
    #[inline(always)]
    pub fn flipped(self, mask: u32) -> Self {
        Self::moved(self.address ^ mask)
    }

    /// Address at which the byte here is stored with the swizzle of the copy engine and `wgmma`: [`frag::swizzled`].
    #[inline(always)]
    pub fn swizzled(self, row_bytes: u32) -> Self {
        Self::moved(frag::swizzled(self.address, row_bytes))
    }

    /// Descriptor of an operand of `wgmma` that begins here: [`frag::descriptor`].
    #[inline(always)]
    pub fn descriptor(self, row_bytes: u32, between: u32) -> u64 {
        frag::descriptor(self.address, row_bytes, between)
    }

    /// This address, computed here: the compiler cannot move or combine its computation.
    #[inline(always)]
    pub fn opaque(self) -> Self {
        Self::moved(super::ptx::warp::opaque(self.address))
    }
}

impl<T: Stored> Shared<T> {
    /// Address `count` elements further.
    #[inline(always)]
    pub fn at(self, count: u32) -> Self {
        self.bytes(count.wrapping_mul(T::SIZE))
    }
}

impl<T: SharedWord> Shared<T> {
    #[inline(always)]
    pub fn ld(self) -> T::Value {
        // SAFETY: promised to `Shared::dynamic`.
        unsafe { T::ld_shared(self.address) }
    }

    #[inline(always)]
    pub fn st(self, value: T::Value) {
        // SAFETY: promised to `Shared::dynamic`.
        unsafe { T::st_shared(self.address, value) }
    }
}

/// Methods of one instruction on the address.
macro_rules! accesses {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $instruction:path;)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(self, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: promised to `new`, or to `dynamic`.
            unsafe { $instruction(self.address, $($arg),*) }
        }
    )+};
}

pub(super) use accesses;

impl Shared<u32> {
    accesses! {
        /// Loads the word at every call: ptxas does not use the register of an earlier load again.
        ld_volatile() -> u32 = copy::ld_volatile_shared_b32;
        /// Adds to the word. Atomic over the thread block.
        red_add(value: u32) = copy::red_shared_add;
        /// Adds to the word and returns its old value. Atomic over the thread block.
        atom_add(value: u32) -> u32 = copy::atom_shared_add;
        /// Sets bits of the word. Atomic over the thread block.
        red_or(bits: u32) = copy::red_shared_or;
        /// Sets the word to the maximum of it and `value`. Atomic over the thread block.
        red_max(value: u32) = copy::red_shared_max;
    }

    /// Stores the word if `yes` is not 0, and returns the address of the next word; otherwise returns this address.
    #[inline(always)]
    pub fn st_advance(self, value: u32, yes: u32) -> Self {
        // SAFETY: promised to `Shared::dynamic`.
        Self::moved(unsafe { copy::st_shared_b32_advance(self.address, value, yes) })
    }
}

impl Shared<[u32; 2]> {
    /// Stores two words if `yes` is not 0, and returns the address of the next two; otherwise returns this address.
    #[inline(always)]
    pub fn st_advance(self, value: [u32; 2], yes: u32) -> Self {
        // SAFETY: promised to `Shared::dynamic`.
        Self::moved(unsafe { copy::st_shared_v2_advance(self.address, value, yes) })
    }
}

/// 8 x 8 matrices of 16-bit elements. Lanes 8r..8r+8 hold the addresses of the rows of matrix r. Every lane of the warp
/// must call these functions together.
impl<T> Shared<T> {
    accesses! {
        /// Loads four matrices.
        ldmatrix() -> [u32; 4] = matrix::ldmatrix_x4;
        /// Loads four matrices; zeros if `valid` is false. `valid` must be the same in all lanes.
        ldmatrix_if(valid: bool) -> [u32; 4] = matrix::ldmatrix_x4_if;
        /// Loads four matrices, each transposed.
        ldmatrix_trans() -> [u32; 4] = matrix::ldmatrix_x4_trans;
        /// Loads four matrices, each transposed; zeros if `valid` is false. `valid` must be the same in all lanes.
        ldmatrix_trans_if(valid: bool) -> [u32; 4] = matrix::ldmatrix_x4_trans_if;
        /// Stores four matrices.
        stmatrix(words: [u32; 4]) = matrix::stmatrix_x4;
        /// Stores four matrices, each transposed: the lanes hold the addresses of the columns.
        stmatrix_trans(words: [u32; 4]) = matrix::stmatrix_x4_trans;
    }
}

/// Barrier in shared memory. Its phases complete when all expected arrivals and bytes have come.
pub struct Mbarrier;

impl Stored for Mbarrier {
    const SIZE: u32 = 8;
}

impl Shared<Mbarrier> {
    accesses! {
        /// Initializes an mbarrier whose phase completes after `count` arrivals.
        init(count: u32) = barrier::init;
        /// Invalidates an mbarrier on which no thread waits. Its memory may then be used for other data.
        invalidate() = barrier::invalidate;
        arrive() = barrier::arrive;
        /// Arrives and adds `bytes` to the bytes that the phase expects of the copy engine.
        arrive_expect_tx(bytes: u32) = barrier::arrive_expect_tx;
        /// Adds `bytes` to the bytes that the phase expects of the copy engine, without an arrival.
        expect_tx(bytes: u32) = barrier::expect_tx;
        /// Arrives when all `cp.async` copies of this thread are complete. The arrival is part of the expected count.
        arrive_after_copies() = copy::cp_async_arrive;
        /// Returns whether the phase of this parity is complete. From compute capability 9.0 on, it waits for a short
        /// time before it returns false.
        try_wait(parity: u32) -> bool = barrier::try_wait;
        /// Waits until the phase of this parity is complete.
        wait(parity: u32) = barrier::wait;
    }
}

/// Address of a `T` in the shared memory of a thread block of the cluster.
pub struct Remote<T> {
    address: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Shared<T> {
    /// This address in thread block `rank` of the cluster. That thread block must not exit before the last access.
    #[inline(always)]
    pub fn remote(self, rank: u32) -> Remote<T> {
        Remote { address: cluster::mapa(self.address, rank), of: PhantomData }
    }
}

impl<T> Remote<T> {
    /// Address `bytes` bytes further.
    #[inline(always)]
    pub fn bytes(self, bytes: u32) -> Self {
        Remote { address: self.address + bytes, of: PhantomData }
    }
}

impl Remote<[u32; 4]> {
    accesses! {
        ld() -> [u32; 4] = cluster::ld_v4;
    }

    /// Stores asynchronously. The bytes complete `barrier`, an mbarrier of the same thread block.
    #[inline(always)]
    pub fn st_async(self, value: [u32; 4], barrier: Remote<Mbarrier>) {
        // SAFETY: promised to `Shared::dynamic`.
        unsafe { cluster::st_async_v4(self.address, value, barrier.address) }
    }
}

impl Remote<Mbarrier> {
    accesses! {
        arrive() = cluster::arrive_remote;
    }
}
