//! Programmatic dependent launch: a kernel may start while the one ahead of it in the stream ends. Compute capability
//! 9.0; elsewhere nothing overlaps, and nothing is to be done.

use super::ptx;

/// Lets the next kernel start once every thread block has come here; what it may touch is told by [`wait_dependency`].
#[inline(always)]
pub fn launch_dependents() {
    if cfg!(since = "9.0") {
        ptx!("griddepcontrol.launch_dependents;", options(nostack));
    }
}

/// Waits until the kernel ahead has ended and its writes are visible. To loads through L2 (`fresh`), that is: `nc`
/// loads say that nothing writes while the kernel runs, and ptxas may move them in front of the wait.
#[inline(always)]
pub fn wait_dependency() {
    if cfg!(since = "9.0") {
        ptx!("griddepcontrol.wait;", options(nostack));
    }
}
