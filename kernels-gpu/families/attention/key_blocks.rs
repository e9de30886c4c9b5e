//! Builds the work list of the module `attention` from lists of key blocks, one for each 64 queries. A thread block
//! sets a bit for each block listed by either half of its 128 queries, so order and repetition do not matter. It lists
//! the blocks of each class in ascending order, and writes them as tiles. Groups of queries are distributed
//! round-robin, head by head, so that all multiprocessors process the keys of one head together, which L2 then holds.

use crate::device::prelude::*;
use crate::device::scan::scan;
use crate::families::attention::abi::*;

buffers! {
    // `ops::attention::dynamic` checks the shapes of blocks and lengths. `KeyBlocksLaunch`
    // allocates the lists for the max number of tiles and masks. Blocks past the last key are
    // ignored.
    unsafe KeyBlocksParams {
        blocks: u32, Fresh;
        lengths: u32, Fresh;
        tiles: [u32; 4], ReadWrite;
        masks: [u32; 2], ReadWrite;
        work: [u32; 4], ReadWrite;
    }
}

/// Block without keys, past the last one.
const NONE: u32 = u32::MAX;

struct View<'a> {
    p: &'a KeyBlocksParams,
    /// First query, and index of these 128 queries among those of all masks.
    top: u32,
    own: u32,
    length: u32,
    /// End of the keys visible to the first query of each half, and to its last query.
    ends: [[u32; 2]; 2],
}

impl<'a> View<'a> {
    #[inline(always)]
    fn new(p: &'a KeyBlocksParams) -> Self {
        let mask = gpu::block_y();
        let given = p.lengths().at(mask).ld_if(p.lengths != 0) as i32;
        let length = if p.lengths == 0 { p.n } else { (given.max(0) as u32).min(p.n) };
        let top = gpu::block_x() * STRIP as u32;
        let end = |query: u32| key_end(query.min(p.m - 1), length, p.causal);
        let ends = [0, 1].map(|half| {
            let first = top + half * MASK_PIECE;
            // A half without queries has no visible keys.
            let there = u32::from(first < p.m);
            [end(first) * there, end(first + MASK_PIECE - 1) * there]
        });
        View { p, top, own: mask * gpu::grid_x() + gpu::block_x(), length, ends }
    }

    /// Sets the bits of the listed blocks that are visible to the queries.
    #[inline(always)]
    fn mark(&self) {
        let p = self.p;
        let all = p.blocks().row(gpu::block_y(), p.mask_bytes);
        unroll!(half < 2, {
            let row = self.top / MASK_PIECE + half as u32;
            let seen = self.ends[half][1].div_ceil(MASK_PIECE);
            let mut i = gpu::thread();
            while i < p.most && seen > 0 {
                let block = all.row(row, p.row_bytes).at(i).ld();
                if block < seen {
                    word(half, block / 32).red_or(1 << (block % 32));
                }
                i += SCAN_THREADS;
            }
        });
    }

    /// Lists the blocks of each class, and returns their numbers.
    #[inline(always)]
    fn list(&self) -> [u32; MASK_CLASSES] {
        let own = gpu::thread();
        let (mut a, mut b) = (0, 0);
        if own < BLOCKS_MOST / 32 {
            a = word(0, own).ld();
            b = word(1, own).ld();
        }
        let mut counts = [0; MASK_CLASSES];
        unroll!(class < 3, {
            let mut bits = classes_of([a, b])[class];
            let (mut before, all) = scan(bits.count_ones());
            counts[class] = all;
            while bits != 0 {
                place(class, before).st(own * 32 + bits.trailing_zeros());
                bits &= bits - 1;
                before += 1;
            }
        });
        counts
    }

    /// Returns the two blocks of tile `index` of a class of `count` blocks.
    #[inline(always)]
    fn pair(&self, class: usize, index: u32, count: u32) -> [u32; 2] {
        let first = place(class, 2 * index).ld();
        let second = if 2 * index + 1 < count { place(class, 2 * index + 1).ld() } else { NONE };
        [first, second]
    }

    /// Returns whether every query of a half sees every key of the block.
    #[inline(always)]
    fn all(&self, half: usize, block: u32) -> bool {
        block != NONE && (block + 1) * MASK_PIECE <= self.ends[half][0]
    }

    /// Returns the [`KeyTile::masks`] of a half for the tile `back` tiles before the last of its class.
    #[inline(always)]
    fn mask(&self, class: usize, half: usize, pair: [u32; 2], back: u32) -> u32 {
        if class == 2 - half {
            MASK_NONE
        } else if self.all(half, pair[0]) && self.all(half, pair[1]) {
            MASK_ALL
        } else {
            // `back` is limited to the masks that are allocated; larger values do not occur.
            let end = class as u32 * BLOCK_ENDS + back.min(BLOCK_ENDS - 1);
            self.own * BLOCK_MASKS + end * 2 + half as u32
        }
    }

    #[inline(always)]
    fn write_tiles(&self, counts: [u32; MASK_CLASSES], tiles: [u32; MASK_CLASSES]) {
        let p = self.p;
        unroll!(class < 3, {
            let mut index = gpu::thread();
            while index < tiles[class] {
                let pair = self.pair(class, index, counts[class]);
                let back = tiles[class] - 1 - index;
                let masks = [0, 1].map(|half| self.mask(class, half, pair, back));
                // A missing block begins past the last key.
                let keys = pair.map(|block| block.min(p.n.div_ceil(MASK_PIECE)) * MASK_PIECE);
                let number = self.own * p.capacity + class_place(tiles, class, index);
                p.tiles().at(number).st([keys[0], keys[1], masks[0], masks[1]]);
                index += SCAN_THREADS;
            }
        });
    }

    /// Writes the masks of the tiles that need one; four warps process a half.
    #[inline(always)]
    fn write_masks(&self, counts: [u32; MASK_CLASSES], tiles: [u32; MASK_CLASSES]) {
        let own = gpu::thread() % 128;
        unroll!(half < 2, {
            if gpu::thread() / 128 == half as u32 {
                let query = self.top + half as u32 * MASK_PIECE + own / 32 * 16 + own % 32 / 4;
                unroll!(class < 3, {
                    unroll!(back < 2, {
                        if (back as u32) < tiles[class] {
                            let index = tiles[class] - 1 - back as u32;
                            let pair = self.pair(class, index, counts[class]);
                            let mask = self.mask(class, half, pair, back as u32);
                            if mask < MASK_LIMIT {
                                let words = pair.map(|block| self.word(half, query, block));
                                let at = self.p.masks().row(mask, ATTENTION_MASK as u64);
                                at.at(own).st(words);
                            }
                        }
                    });
                });
            }
        });
    }

    /// Returns the bits of this thread's accumulators for a block.
    #[inline(always)]
    fn word(&self, half: usize, query: u32, block: u32) -> u32 {
        if block == NONE {
            return 0;
        }
        if self.all(half, block) {
            return u32::MAX;
        }
        let bits = |query: u32| {
            let end = key_end(query, self.length, self.p.causal);
            low_bits(end as i32 - (block * MASK_PIECE) as i32)
        };
        mask_word(bits(query), bits(query + 8), gpu::thread() % 4)
    }

    /// Writes the work items of these queries, for every head that shares the mask.
    #[inline(always)]
    fn write_work(&self, tiles: u32) {
        let p = self.p;
        let mut i = gpu::thread();
        while i < p.sharing {
            let head = gpu::block_y() * p.sharing + i;
            let item = head * gpu::grid_x() + gpu::block_x();
            let at = p.work().row(item, size_of::<Queries>() as u64);
            let key_head = head.checked_div(p.group).unwrap_or(0);
            at.st([self.top, head, key_head, self.own * p.capacity]);
            at.at(1u32).st([tiles, 0, 1 << 16, 0]);
            i += SCAN_THREADS;
        }
        let mut none = p.groups + gpu::thread();
        while none < p.room && self.own == 0 {
            p.work().row(none, size_of::<Queries>() as u64).cast::<u32>().st(NO_STRIP);
            none += SCAN_THREADS;
        }
    }
}

/// Returns the shared address of a word of the bits of a half.
#[inline(always)]
fn word(half: usize, word: u32) -> Shared<u32> {
    // SAFETY: `KeyBlocks::SHARED_BYTES` includes the bits of both halves.
    unsafe { Shared::<u32>::dynamic(BLOCK_BITS) }.at(half as u32 * (BLOCKS_MOST / 32) + word)
}

/// Returns the shared address of block `index` of a class.
#[inline(always)]
fn place(class: usize, index: u32) -> Shared<u32> {
    // SAFETY: `KeyBlocks::SHARED_BYTES` includes the lists of all classes.
    unsafe { Shared::<u32>::dynamic(BLOCK_LISTS) }.at(class as u32 * BLOCKS_MOST + index)
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, KeyBlocksParams> for KeyBlocks {
    #[inline(always)]
    unsafe fn run(p: &KeyBlocksParams, _: Maps) {
        grid::launch_dependents();
        if gpu::thread() < 2 * BLOCKS_MOST / 32 {
            word(0, gpu::thread()).st(0);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        let view = View::new(p);
        view.mark();
        gpu::sync_threads();
        let counts = view.list();
        gpu::sync_threads();
        let tiles = class_tiles(counts);
        view.write_tiles(counts, tiles);
        view.write_masks(counts, tiles);
        view.write_work(tiles[0] + tiles[1] + tiles[2]);
    }
}
