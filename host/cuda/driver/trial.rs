//! Hooks in device memory and launches for tests: failure of the n-th allocation or launch, writes outside of an
//! allocation, leaks, and the kernels that ran. They apply to the whole process, and exist only with the feature
//! `testing`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::synchronize_current;
use super::{DevicePtr, RawStream, check, check_allocation, sys};
use crate::error::Result;

/// Bytes of the guard bands before and after an allocation.
const BAND: usize = 4096;
/// Fill byte of the guard bands.
const UNTOUCHED: u8 = 0xa5;
/// Fill byte of new memory: NaN as a value, out of range as an index.
const POISON: u8 = 0xff;
/// CUDA_ERROR_OUT_OF_MEMORY
const OUT_OF_MEMORY: u32 = 2;
/// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
const OUT_OF_RESOURCES: u32 = 701;

static WATCHED: AtomicBool = AtomicBool::new(false);
static LISTED: AtomicBool = AtomicBool::new(false);
static GUARDED: AtomicBool = AtomicBool::new(false);
/// Allocations until one fails; 0: none fails.
static UNTIL_REFUSED: AtomicU64 = AtomicU64::new(0);
/// Launches until one fails; 0: none fails.
static UNTIL_LAUNCH_REFUSED: AtomicU64 = AtomicU64::new(0);
static STATE: Mutex<State> = Mutex::new(State {
    live: BTreeMap::new(),
    faults: Vec::new(),
    names: BTreeMap::new(),
    launched: BTreeSet::new(),
});

#[derive(Default)]
struct State {
    /// Live allocations by address: bytes, and whether they have guard bands.
    live: BTreeMap<DevicePtr, (usize, bool)>,
    faults: Vec<String>,
    /// Names of functions, by handle.
    names: BTreeMap<usize, String>,
    launched: BTreeSet<String>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enables poisoned memory and guard bands for later allocations. A write to a band is detected at the free.
pub fn guard() {
    GUARDED.store(true, Ordering::SeqCst);
    watch();
}

/// Starts to count allocations.
pub fn watch() {
    WATCHED.store(true, Ordering::SeqCst);
}

/// Starts to record the names of kernels at their launch. Only kernels that are loaded after this call have names.
pub fn list() {
    LISTED.store(true, Ordering::SeqCst);
}

/// Returns and clears the names of the kernels launched since [`list`].
pub fn launched() -> BTreeSet<String> {
    std::mem::take(&mut state().launched)
}

pub(super) fn on_load(handle: usize, name: &str) {
    if LISTED.load(Ordering::Relaxed) {
        state().names.insert(handle, name.to_owned());
    }
}

/// Returns an error if this launch is the one that must fail.
pub(super) fn on_launch(handle: usize) -> Result<()> {
    if LISTED.load(Ordering::Relaxed) {
        let mut state = state();
        let name = state.names.get(&handle).cloned();
        state.launched.extend(name);
    }
    match UNTIL_LAUNCH_REFUSED.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ if is_turn(&UNTIL_LAUNCH_REFUSED) => check("cuLaunchKernel", OUT_OF_RESOURCES),
        _ => Ok(()),
    }
}

/// Decrements the counter, if it is not 0. Returns whether it reached 0.
fn is_turn(until: &AtomicU64) -> bool {
    let next = |n: u64| n.checked_sub(1);
    until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) == Ok(1)
}

/// Makes the `n`-th launch from now fail with the error of a GPU that lacks registers for it; 0: none fails.
pub fn refuse_launch(n: u64) {
    UNTIL_LAUNCH_REFUSED.store(n, Ordering::SeqCst);
}

/// Makes the `n`-th allocation from now fail with an out-of-memory error; 0: none fails. Also calls [`watch`].
pub fn refuse(n: u64) {
    watch();
    UNTIL_REFUSED.store(n, Ordering::SeqCst);
}

/// Whether the allocation selected by [`refuse`] has not happened yet.
pub fn is_refusal_ahead() -> bool {
    UNTIL_REFUSED.load(Ordering::SeqCst) > 0
}

/// Returns the number of allocations since [`watch`] that were not freed.
pub fn live() -> usize {
    state().live.len()
}

/// Returns and clears the reports of writes outside of allocations that have been freed.
pub fn faults() -> Vec<String> {
    std::mem::take(&mut state().faults)
}

/// Returns an error if this allocation is the one that must fail.
pub(super) fn check_turn(call: &str, bytes: usize) -> Result<()> {
    if !WATCHED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let refused = is_turn(&UNTIL_REFUSED);
    check_allocation(call, if refused { OUT_OF_MEMORY } else { 0 }, bytes)
}

/// Allocates `bytes` bytes, at least 1.
pub(super) fn alloc(bytes: usize) -> Result<DevicePtr> {
    check_turn("cuMemAlloc", bytes)?;
    let guarded = GUARDED.load(Ordering::Relaxed);
    let around = if guarded { 2 * BAND } else { 0 };
    let mut address = 0;
    // SAFETY: `address` can hold one address.
    let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes + around) };
    check_allocation("cuMemAlloc", code, bytes)?;
    if guarded {
        address += BAND as u64;
        for (at, byte, count) in [
            (address - BAND as u64, UNTOUCHED, BAND),
            (address, POISON, bytes),
            (address + bytes as u64, UNTOUCHED, BAND),
        ] {
            // SAFETY: the range is inside of the new allocation, which no other code uses yet.
            let code = unsafe { sys::cuMemsetD8Async(at, byte, count, RawStream::LEGACY.handle()) };
            check("cuMemsetD8Async", code)?;
        }
        // Streams that do not synchronize with the legacy stream may write from here on.
        synchronize_current()?;
    }
    if WATCHED.load(Ordering::Relaxed) {
        state().live.insert(address, (bytes, guarded));
    }
    Ok(address)
}

/// Returns the address to free for an address that [`alloc`] returned.
pub(super) fn release(address: DevicePtr) -> Result<DevicePtr> {
    if !WATCHED.load(Ordering::Relaxed) {
        return Ok(address);
    }
    let known = state().live.remove(&address);
    let Some((bytes, true)) = known else {
        return Ok(address);
    };
    let first = address - BAND as u64;
    // Queued work may still write.
    synchronize_current()?;
    for (at, place) in [(first, "in front of"), (address + bytes as u64, "behind")] {
        let mut band = [0_u8; BAND];
        let stream = RawStream::LEGACY.handle();
        // SAFETY: the range is a band of the allocation, and `band` has its size. A copy to pageable memory is complete
        // when the call returns.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(band.as_mut_ptr().cast(), at, BAND, stream) };
        check("cuMemcpyDtoHAsync", code)?;
        if let Some(offset) = band.iter().position(|byte| *byte != UNTOUCHED) {
            let told = format!("byte {offset} of {BAND} {place} an allocation of {bytes} bytes");
            state().faults.push(told);
        }
    }
    Ok(first)
}
