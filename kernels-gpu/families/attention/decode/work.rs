//! Work distribution of `decode`. Chunks are numbered through sequences, chunks of a sequence, and key heads. A thread
//! block processes every `grid_x`th chunk. Each warp searches independently, 32 sequences at a time, and continues from
//! the last chunk found.

use crate::device::prelude::*;
use crate::device::scan::inclusive_by;
use crate::families::attention::abi::*;

/// Keys of a chunk of a sequence and a head.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// Index of the sequence and head: sequence x key heads + head.
    pub pair: u32,
    /// Keys of the whole sequence.
    pub length: u32,
    /// First key of the chunk, and one past the last.
    pub from: u32,
    pub to: u32,
    /// Index of the chunk in the sequence.
    pub chunk: u32,
    /// Chunks of the sequence; 0 if there is no more work.
    pub chunks: u32,
}

pub(super) struct Work<'p> {
    p: &'p DecodeParams,
    unit: u32,
    /// Chunk number of the last search.
    pub item: u32,
    /// First sequence of the current search, and the number of chunks before it.
    first: u32,
    before: u32,
}

impl<'p> Work<'p> {
    #[inline(always)]
    pub(super) fn new(p: &'p DecodeParams, dim: u32) -> Self {
        Work { p, unit: decode_unit(dim), item: 0, first: 0, before: 0 }
    }

    /// Returns the keys of a sequence: its length, clamped to 0 and the capacity.
    #[inline(always)]
    fn length(&self, sequence: u32) -> u32 {
        let length = self.p.lengths().at(sequence).ld_if(sequence < self.p.batch) as i32;
        (length.max(0) as u32).min(self.p.capacity)
    }

    /// Returns chunk number `item`, which must not be below the last one searched. The whole warp calls it.
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
