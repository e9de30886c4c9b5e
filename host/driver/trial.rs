//! What tests ask of device memory and launches: that the n-th allocation fails, that nothing is written outside of
//! one, that none is left, which kernels ran. For the whole process; a flag is read for each, and nothing else is done
//! unless a test asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::synchronize_current;
use super::{DevicePtr, RawStream, check, check_allocation, sys};
use crate::error::Result;

/// Bytes in front of an allocation and behind it.
const BAND: usize = 4096;
/// In the bands.
const UNTOUCHED: u8 = 0xa5;
/// What memory holds before anything is written: NaN, and an index that is nowhere.
const POISON: u8 = 0xff;
/// CUDA_ERROR_OUT_OF_MEMORY
const OUT_OF_MEMORY: u32 = 2;
/// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
const OUT_OF_RESOURCES: u32 = 701;

static WATCHED: AtomicBool = AtomicBool::new(false);
static LISTED: AtomicBool = AtomicBool::new(false);
static GUARDED: AtomicBool = AtomicBool::new(false);
/// Allocations until one fails; 0: none does.
static UNTIL_REFUSED: AtomicU64 = AtomicU64::new(0);
/// Launches until one fails; 0: none does.
static UNTIL_LAUNCH_REFUSED: AtomicU64 = AtomicU64::new(0);
static STATE: Mutex<State> = Mutex::new(State {
    live: BTreeMap::new(),
    faults: Vec::new(),
    names: BTreeMap::new(),
    launched: BTreeSet::new(),
});

#[derive(Default)]
struct State {
    /// By address: bytes, and whether there are bands.
    live: BTreeMap<DevicePtr, (usize, bool)>,
    faults: Vec<String>,
    /// Of functions, by handle.
    names: BTreeMap<usize, String>,
    launched: BTreeSet<String>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on memory is poisoned and lies between bands; what was written there is found when it is freed.
pub fn guard() {
    GUARDED.store(true, Ordering::SeqCst);
    watch();
}

/// From now on allocations are counted.
pub fn watch() {
    WATCHED.store(true, Ordering::SeqCst);
}

/// From now on kernels that are loaded are listed when they are launched.
pub fn list() {
    LISTED.store(true, Ordering::SeqCst);
}

/// Kernels launched since [`list`], each told once.
pub fn launched() -> BTreeSet<String> {
    std::mem::take(&mut state().launched)
}

pub(super) fn on_load(handle: usize, name: &str) {
    if LISTED.load(Ordering::Relaxed) {
        state().names.insert(handle, name.to_owned());
    }
}

/// An error if it is this launch's turn to fail.
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

/// Counts down to the turn, if one was set; whether it has come.
fn is_turn(until: &AtomicU64) -> bool {
    let next = |n: u64| n.checked_sub(1);
    until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) == Ok(1)
}

/// The `n`-th launch from now fails, as if the GPU had not the registers for it; 0: none.
pub fn refuse_launch(n: u64) {
    UNTIL_LAUNCH_REFUSED.store(n, Ordering::SeqCst);
}

/// The `n`-th allocation from now fails, as if there was no memory; 0: none. Counts allocations from now on.
pub fn refuse(n: u64) {
    watch();
    UNTIL_REFUSED.store(n, Ordering::SeqCst);
}

/// Whether the allocation that [`refuse`] meant is still to come.
pub fn is_refusal_ahead() -> bool {
    UNTIL_REFUSED.load(Ordering::SeqCst) > 0
}

/// Allocations since [`watch`] that were not freed.
pub fn live() -> usize {
    state().live.len()
}

/// What was written outside of allocations that have been freed. Each is told once.
pub fn faults() -> Vec<String> {
    std::mem::take(&mut state().faults)
}

/// An error if it is this allocation's turn to fail.
pub(super) fn check_turn(call: &str, bytes: usize) -> Result<()> {
    if !WATCHED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let refused = is_turn(&UNTIL_REFUSED);
    check_allocation(call, if refused { OUT_OF_MEMORY } else { 0 }, bytes)
}

/// Allocates `bytes` bytes, more than none.
pub(super) fn alloc(bytes: usize) -> Result<DevicePtr> {
    check_turn("cuMemAlloc", bytes)?;
    let guarded = GUARDED.load(Ordering::Relaxed);
    let around = if guarded { 2 * BAND } else { 0 };
    let mut address = 0;
    // SAFETY: a place for one address.
    let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes + around) };
    check_allocation("cuMemAlloc", code, bytes)?;
    if guarded {
        address += BAND as u64;
        for (at, byte, count) in [
            (address - BAND as u64, UNTOUCHED, BAND),
            (address, POISON, bytes),
            (address + bytes as u64, UNTOUCHED, BAND),
        ] {
            // SAFETY: inside what was just allocated, which nothing else uses.
            let code = unsafe { sys::cuMemsetD8Async(at, byte, count, RawStream::LEGACY.handle()) };
            check("cuMemsetD8Async", code)?;
        }
        // Streams that do not wait for the legacy one write from here on.
        synchronize_current()?;
    }
    if WATCHED.load(Ordering::Relaxed) {
        state().live.insert(address, (bytes, guarded));
    }
    Ok(address)
}

/// The address to free in place of one that [`alloc`] gave.
pub(super) fn release(address: DevicePtr) -> Result<DevicePtr> {
    if !WATCHED.load(Ordering::Relaxed) {
        return Ok(address);
    }
    let known = state().live.remove(&address);
    let Some((bytes, true)) = known else {
        return Ok(address);
    };
    let first = address - BAND as u64;
    // What is queued may still write.
    synchronize_current()?;
    for (at, place) in [(first, "in front of"), (address + bytes as u64, "behind")] {
        let mut band = [0_u8; BAND];
        let stream = RawStream::LEGACY.handle();
        // SAFETY: a band of the allocation, and a place for it; a copy to pageable memory is done when the call
        // returns.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(band.as_mut_ptr().cast(), at, BAND, stream) };
        check("cuMemcpyDtoHAsync", code)?;
        if let Some(offset) = band.iter().position(|byte| *byte != UNTOUCHED) {
            let told = format!("byte {offset} of {BAND} {place} an allocation of {bytes} bytes");
            state().faults.push(told);
        }
    }
    Ok(first)
}
