//! Shuffles, votes and reductions of a warp; functions that hide values from optimizers.

use super::{instructions, ptx};

/// Returns the value of lane `source` of this lane's segment of `lanes` lanes. Every lane of the segment must call it
/// together; `members` is the mask of those lanes.
#[inline(always)]
pub fn shfl_segment(lanes: u32, value: u32, source: u32, members: u32) -> u32 {
    let mut out = value;
    ptx!(
        "shfl.sync.idx.b32 {out}, {v}, {source}, {segment}, {members};",
        out = inout(reg32) out, v = in(reg32) value, source = in(reg32) source,
        segment = in(reg32) (32 - lanes) << 8 | 31, members = in(reg32) members,
        options(nostack)
    );
    out
}

/// Returns the value of lane `source`. Every lane of the warp must call it together.
#[inline(always)]
pub fn shfl(value: u32, source: u32) -> u32 {
    shfl_segment(32, value, source, u32::MAX)
}

/// Returns the value of lane 0. ptxas infers that the result is equal in all lanes, and keeps it in a uniform register.
/// Every lane of the warp must call it together.
#[inline(always)]
pub fn uniform(value: u32) -> u32 {
    shfl(value, 0)
}

instructions! {
    /// Returns the value of lane `lane ^ other`. Every lane of the warp must call it together.
    pub shfl_xor(value: u32, other: u32) -> u32 = out, out(reg32 out = value):
        "shfl.sync.bfly.b32 {out}, {value}, {other}, 31, 0xffffffff;", in(reg32 value other);
    /// Returns the value of lane `lane - distance`; the first `distance` lanes get their own value. Every lane of the
    /// warp must call it together.
    pub shfl_up(value: u32, distance: u32) -> u32 = out, out(reg32 out = value):
        "shfl.sync.up.b32 {out}, {value}, {distance}, 0, 0xffffffff;", in(reg32 value distance);
    /// Maximum over the warp. Every lane must call it together.
    pub max(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.max.u32 {out}, {value}, 0xffffffff;", in(reg32 value);
    /// Synchronizes the lanes in `members` and makes their writes visible to each other.
    pub sync(members: u32): "bar.warp.sync {members};", in(reg32 members);
}

/// Returns true in one lane of the warp, always in the same lane. Every lane must call it together. Compute capability
/// 9.0. ptxas infers that code under this condition runs in one lane, and omits a loop over active lanes around copies.
#[inline(always)]
pub fn elect_one() -> bool {
    let mut out = 0u32;
    ptx!(
        "{{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 {out}, 1, 0, p; }}",
        out = inout(reg32) out,
        options(nostack)
    );
    out != 0
}

instructions! {
    /// Returns the value and hides it from optimizers.
    pub opaque(value: u32) -> u32 = out, out(reg32 out = value): "mov.u32 {out}, {out};";
    /// [`opaque`] for addresses: the compiler does not split sums of it into parts that stay in registers through a
    /// loop.
    pub(in crate::device) opaque_address(address: u64) -> u64 = out, out(reg64 out = address): "mov.u64 {out}, {out};";
    /// Disables unrolling of the loop that begins with it: code that runs once is fetched from memory, so it should be
    /// short.
    pub nounroll(): ".pragma \"nounroll\";", options(nomem);
    /// Minimum over the warp. Every lane must call it together.
    pub min(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.min.u32 {out}, {value}, 0xffffffff;", in(reg32 value);
    /// Sum over the warp. Every lane must call it together.
    pub sum(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.add.u32 {out}, {value}, 0xffffffff;", in(reg32 value);
    /// Bitwise OR over the warp. Every lane must call it together.
    pub or(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.or.b32 {out}, {value}, 0xffffffff;", in(reg32 value);
}

instructions! {
    /// Vote: bit i is the value of lane i. Every lane of the warp must call it together.
    pub ballot(yes: bool) -> u32 = out, out(reg32 out = 0):
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; vote.sync.ballot.b32 {out}, p, 0xffffffff; }}", in(; bool yes);
    /// Mask of the lanes that hold the same value as this lane. Every lane of the warp must call it together.
    pub match_any(value: u32) -> u32 = out, out(reg32 out = 0):
        "match.any.sync.b32 {out}, {value}, 0xffffffff;", in(reg32 value);
}
