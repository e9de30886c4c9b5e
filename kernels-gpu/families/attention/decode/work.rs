//! Who sees which keys. Chunks are counted through sequences, chunks of each, heads of keys; a thread block takes those
//! a grid apart. All warps look for themselves, 32 sequences at a time, and go on where they found the last one.

use crate::device::prelude::*;
use crate::device::scan::inclusive_by;
use crate::families::attention::abi::*;

/// Keys of a sequence and a head.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// Number of sequence and head together.
    pub pair: u32,
    /// Keys of the whole sequence.
    pub length: u32,
    /// First key, and the one behind the last.
    pub from: u32,
    pub to: u32,
    /// Number of the chunk.
    pub chunk: u32,
    /// Chunks of the sequence; 0 where there is no more work.
    pub chunks: u32,
}

pub(super) struct Work<'p> {
    p: &'p DecodeParams,
    unit: u32,
    /// The number that was looked for last.
    pub item: u32,
    /// The first sequence of those that are looked at, and what lies in front of it.
    first: u32,
    before: u32,
}

impl<'p> Work<'p> {
    #[inline(always)]
    pub(super) fn new(p: &'p DecodeParams, dim: u32) -> Self {
        Work { p, unit: decode_unit(dim), item: 0, first: 0, before: 0 }
    }

    /// Keys of a sequence: below 0 none, above the capacity as many as that.
    #[inline(always)]
    fn length(&self, sequence: u32) -> u32 {
        let at = self.p.lengths + sequence as u64 * 4;
        let length = global::ld_cg_b32(at, sequence < self.p.batch) as i32;
        (length.max(0) as u32).min(self.p.capacity)
    }

    /// Chunk number `item`, none in front of the last one that was looked for. The whole warp calls it.
    #[inline(always)]
    pub(super) fn find(&mut self, item: u32) -> Chunk {
        self.item = item;
        let lane = gpu::opaque_thread() % 32;
        let mut found = Chunk { pair: 0, length: 0, from: 0, to: 0, chunk: 0, chunks: 0 };
        while self.first < self.p.batch {
            let sequence = self.first + lane;
            let length = self.length(sequence);
            let (chunks, each) = decode_chunks(self.unit, length, self.p.split);
            let own = if sequence < self.p.batch { chunks * self.p.kv_heads } else { 0 };
            let through = inclusive_by(lane, own, |sum, before| sum + before);
            let rest = item - self.before;
            let vote = warp::ballot(rest < through);
            if vote == 0 {
                self.before += warp::shfl(through, 31);
                self.first += 32;
                continue;
            }
            let source = vote.trailing_zeros();
            let rest = rest - warp::shfl(through - own, source);
            let chunk = rest / self.p.kv_heads.max(1);
            let head = rest - chunk * self.p.kv_heads;
            let length = warp::shfl(length, source);
            let keys = warp::shfl(each, source) * self.unit;
            let from = chunk * keys;
            found = Chunk {
                pair: (self.first + source) * self.p.kv_heads + head,
                length,
                from,
                to: (from + keys).min(length),
                chunk,
                chunks: warp::shfl(chunks, source),
            };
            break;
        }
        found
    }
}
