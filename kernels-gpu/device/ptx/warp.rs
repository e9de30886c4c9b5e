//! Exchange inside a warp.

use super::{instructions, ptx};

/// The value of lane `source` of this lane's segment of `LANES` lanes. Every lane of the segment must call it together;
/// `members` is the mask of those lanes.
#[inline(always)]
pub fn shfl_segment<const LANES: u32>(value: u32, source: u32, members: u32) -> u32 {
    let mut out = value;
    ptx!(
        "shfl.sync.idx.b32 {out}, {v}, {source}, {segment}, {members};",
        out = inout(reg32) out, v = in(reg32) value, source = in(reg32) source,
        segment = in(reg32) (32 - LANES) << 8 | 31, members = in(reg32) members,
        options(nostack)
    );
    out
}

/// The value of lane `source`. Every lane of the warp must call it together.
#[inline(always)]
pub fn shfl(value: u32, source: u32) -> u32 {
    shfl_segment::<32>(value, source, u32::MAX)
}

/// The value of lane 0. ptxas then knows that the result is the same in all lanes, and keeps it in a uniform register.
/// Every lane of the warp must call it together.
#[inline(always)]
pub fn uniform(value: u32) -> u32 {
    shfl(value, 0)
}

instructions! {
    /// The value of the lane whose number differs by the bits of `other`. Every lane of the warp must call it together.
    pub shfl_xor(value: u32, other: u32) -> u32 = out, out(reg32 out = value):
        "shfl.sync.bfly.b32 {out}, {value}, {other}, 31, 0xffffffff;", in(reg32 value other);
    /// The value of the lane `distance` in front; in the first ones, in front of which there is none, their own. Every
    /// lane of the warp must call it together.
    pub shfl_up(value: u32, distance: u32) -> u32 = out, out(reg32 out = value):
        "shfl.sync.up.b32 {out}, {value}, {distance}, 0, 0xffffffff;", in(reg32 value distance);
    /// The greatest value of the warp. Every lane must call it together.
    pub max(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.max.u32 {out}, {value}, 0xffffffff;", in(reg32 value);
    /// Waits for the lanes in `members` and makes their writes visible to each other.
    pub sync(members: u32): "bar.warp.sync {members};", in(reg32 members);
}

/// True in one lane of the warp, the same one each time. Every lane must call it together. Compute capability 9.0;
/// ptxas knows that what depends on it runs in one lane, and starts copies without asking how many there are.
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
    /// The value itself, unknown to the compiler.
    pub opaque(value: u32) -> u32 = out, out(reg32 out = value): "mov.u32 {out}, {out};";
    /// [`opaque`] of an address: sums of it are not taken apart, and their parts carried through a loop.
    pub opaque_address(address: u64) -> u64 = out, out(reg64 out = address): "mov.u64 {out}, {out};";
    /// First in a loop: its body stays one copy. What is fetched from memory once, instructions among it, should be
    /// short.
    pub nounroll(): ".pragma \"nounroll\";", options(nomem);
    /// The least of the values of all lanes. Every lane of the warp must call it together.
    pub min(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.min.u32 {out}, {value}, 0xffffffff;", in(reg32 value);
    /// The sum of the values of all lanes. Every lane of the warp must call it together.
    pub sum(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.add.u32 {out}, {value}, 0xffffffff;", in(reg32 value);
    /// The bits that any lane has. Every lane of the warp must call it together.
    pub or(value: u32) -> u32 = out, out(reg32 out = value):
        "redux.sync.or.b32 {out}, {value}, 0xffffffff;", in(reg32 value);
}

instructions! {
    /// Bit i: what lane i says. Every lane of the warp must call it together.
    pub ballot(yes: bool) -> u32 = out, out(reg32 out = 0):
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; vote.sync.ballot.b32 {out}, p, 0xffffffff; }}", in(; bool yes);
    /// The lanes that hold the same value. Every lane of the warp must call it together.
    pub match_any(value: u32) -> u32 = out, out(reg32 out = 0):
        "match.any.sync.b32 {out}, {value}, 0xffffffff;", in(reg32 value);
}
