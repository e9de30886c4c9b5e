//! Programmatic dependent launch (PDL): a kernel may start while the preceding kernel of the stream ends. Compute
//! capability 9.0. On other GPUs kernels do not overlap, and both functions are empty.

use super::ptx;

/// Permits the next kernel to start when every thread block has called this. The next kernel may access results of this
/// one only after its [`wait_dependency`].
#[inline(always)]
pub fn launch_dependents() {
    if cfg!(since = "9.0") {
        ptx!("griddepcontrol.launch_dependents;", options(nostack));
    }
}

/// Waits until the preceding kernel has ended and its writes are visible to `ld.global` and `ld.global.cg`. They are
/// not visible to `ld.global.nc`, which states that no kernel writes the memory: ptxas may move such loads before the
/// wait.
#[inline(always)]
pub fn wait_dependency() {
    if cfg!(since = "9.0") {
        ptx!("griddepcontrol.wait;", options(nostack));
    }
}
