//! Prefetch of entries into shared memory: a warp copies its channels of later entries while it computes.

use core::marker::PhantomData;

use super::path::Component;
use super::{COMPONENTS, Part, channel_of, entry, has_degree};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// Positions whose entry indices a warp holds, one per lane. A load for each entry would stall at each entry.
const KNOWN: u32 = 32;
const _: () = assert!(KNOWN.is_multiple_of(EQUIVARIANT_BATCH));

/// The entries of a row that a warp has in shared memory or in flight. The gathered items are those of X; backward
/// those of the output's gradient.
#[derive(Clone, Copy)]
pub struct Entries<const BACKWARD: bool, const CHANNELS: usize, F> {
    /// Positions of the row: the first, the current one, and the end.
    first: u32,
    pub at: u32,
    end: u32,
    /// This lane's entry and other node, among the [`KNOWN`] positions that contain the next position to copy.
    known: [u32; 2],
    /// This lane's entry among the [`KNOWN`] positions that contain the current position.
    at_hand: u32,
    /// Shared address of the current entry.
    slot: Shared<u32>,
    /// Shared address of this warp's slots.
    slots: Shared<u32>,
    /// First channel that this lane copies, and whether it exists.
    channel: u32,
    inside: bool,
    /// Byte offset of the component of Y that this lane copies, and whether it exists.
    component: u32,
    has_component: bool,
    form: PhantomData<F>,
}

impl<const BACKWARD: bool, const CHANNELS: usize, F: EquivariantForm>
    Entries<BACKWARD, CHANNELS, F>
{
    const ROWS: EdgeRows = EdgeRows::of(BACKWARD, F::LARGEST as usize, F::ODD, CHANNELS as u32);
    /// Bytes of a row in shared memory.
    const ROW: u32 = Self::ROWS.row_bytes();
    /// Parts whose copies are committed after the part that is waited for.
    const LATER: usize = Self::ROWS.entries * Self::ROWS.parts - 1;

    /// Row offsets, followed by the slots of the warps.
    #[inline(always)]
    fn table() -> Shared<u32> {
        // SAFETY: the host launches with `SHARED_BYTES` of the tile, which includes `EdgeRows::shared_bytes`.
        unsafe { Shared::dynamic(0) }
    }

    /// Copies the row offsets from the parameters to shared memory, where each lane reads its own. Every thread must
    /// call it before anything else.
    #[inline(always)]
    pub fn prepare(p: &EquivariantParams) {
        if gpu::thread() == 0 {
            macro_rules! each {
                ($($piece:literal)*) => {$(
                    if $piece * 4 < Self::ROWS.count() {
                        let at = $piece * 4;
                        let rows = [p.rows_at[at], p.rows_at[at + 1], p.rows_at[at + 2], p.rows_at[at + 3]];
                        Self::table().at(at as u32).cast::<[u32; 4]>().st(rows);
                    }
                )*};
            }
            each!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
        }
        gpu::sync_threads();
    }

    /// Starts the copies of the first entries of a row. `first`: first channel of this warp.
    #[inline(always)]
    pub fn new<E: Elem>(p: &EquivariantParams, [at, end]: [u32; 2], first: u32) -> Self {
        let (lane, warp) = gpu::lane_and_warp();
        let channel = match p.flags & FLAG_WHOLE_PIECES {
            0 => first + lane,
            _ => first + lane % (8 * CHANNELS as u32) * 4,
        };
        let (mut component, mut has_component) = (0, false);
        unroll!(l < 4, {
            let first = (l * l) as u32;
            if (first..first + 2 * l as u32 + 1).contains(&lane) {
                component = p.parts[1][l] + (lane - first) * E::BYTES;
                has_component = has_degree(p, 1, l);
            }
        });
        let slots =
            Self::table().bytes(Self::ROWS.table_bytes()).bytes(warp * Self::ROWS.warp_bytes());
        let known = entry(p, at + lane, at + lane < end);
        let mut new = Entries {
            first: at,
            at,
            end,
            known,
            at_hand: known[0],
            slot: slots,
            slots,
            channel,
            inside: channel < p.width,
            component,
            has_component,
            form: PhantomData,
        };
        let mut asked = 0;
        while asked < Self::ROWS.entries as u32 {
            warp::nounroll();
            let ids = new.ids(asked);
            unroll!(part < 4, {
                if part < Self::ROWS.parts {
                    new.ask::<E>(p, part, ids, at + asked < end);
                }
            });
            new.turn_slot();
            asked += 1;
        }
        new
    }

    /// Whether there is a current entry.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.at < self.end
    }

    /// Whether the current entry is the last of the row.
    #[inline(always)]
    pub fn is_last(&self) -> bool {
        self.at + 1 == self.end
    }

    /// Advances to the next entry.
    #[inline(always)]
    pub fn turn(&mut self, p: &EquivariantParams) {
        self.at += 1;
        self.turn_slot();
        if (self.at - self.first).is_multiple_of(KNOWN) {
            self.at_hand = self.known[0];
        }
        let next = self.at + Self::ROWS.entries as u32;
        if (next - self.first).is_multiple_of(KNOWN) {
            let own = next + gpu::thread() % 32;
            // `shfl_xor` with the lane itself completes the load here, instead of at each entry.
            self.known = entry(p, own, own < self.end).map(|id| warp::shfl_xor(id, 0));
        }
    }

    /// Index of the current entry in its batch of `batch` entries.
    #[inline(always)]
    pub fn slot_of(&self, batch: u32) -> u32 {
        (self.at - self.first) % batch
    }

    /// Returns the entry at a position in the same [`EQUIVARIANT_BATCH`] as the current one. All lanes of the warp must
    /// call it together.
    #[inline(always)]
    pub fn entry(&self, position: u32) -> u32 {
        warp::shfl(self.at_hand, (position - self.first) % KNOWN)
    }

    /// Returns the entry and the other node at a position among the [`KNOWN`] ones.
    #[inline(always)]
    fn ids(&self, behind_first: u32) -> [u32; 2] {
        self.known.map(|known| warp::shfl(known, behind_first % KNOWN))
    }

    #[inline(always)]
    fn turn_slot(&mut self) {
        if Self::ROWS.entries > 1 {
            self.slot = self.slot.bytes(Self::ROWS.entry_bytes());
            if self.slot.address() == self.slots.bytes(Self::ROWS.warp_bytes()).address() {
                self.slot = self.slots;
            }
        }
    }

    /// Waits for a part of the current entry.
    #[inline(always)]
    pub fn wait(&self) {
        // Copies of all later parts may stay in flight.
        match const { Self::LATER } {
            1 => copy::cp_async_wait::<1>(),
            2 => copy::cp_async_wait::<2>(),
            3 => copy::cp_async_wait::<3>(),
            5 => copy::cp_async_wait::<5>(),
            _ => const { assert!(matches!(Self::LATER, 1 | 2 | 3 | 5)) },
        }
        warp::sync(u32::MAX);
    }

    /// Starts the copy of a part of the entry that replaces the current one, after all lanes have read that part.
    #[inline(always)]
    pub fn replace<E: Elem>(&self, p: &EquivariantParams, part: usize) {
        warp::sync(u32::MAX);
        let next = self.at + Self::ROWS.entries as u32;
        self.ask::<E>(p, part, self.ids(next - self.first), next < self.end);
    }

    /// Starts the copy of a part of an entry, if the entry exists. Commits a group in either case.
    #[inline(always)]
    fn ask<E: Elem>(
        &self,
        p: &EquivariantParams,
        part: usize,
        [entry, other]: [u32; 2],
        there: bool,
    ) {
        if there {
            let [of_item, of_w] = Self::ROWS.first[part];
            let [end, _] = Self::ROWS.first[part + 1];
            let item = channel_of::<E>(p, if BACKWARD { 3 } else { 0 }, other, self.channel);
            self.ask_rows(p, item, [of_item, of_w]);
            let w = channel_of::<E>(p, 2, entry, self.channel);
            self.ask_rows(p, w, [of_w, end]);
            if part == 0 && self.has_component {
                let y = p.y::<E>().row(entry, p.item_bytes[1]).bytes(self.component);
                y.cp_async_4(self.components().at(gpu::thread() % 32));
            }
        }
        copy::cp_async_commit();
    }

    /// Starts the copies of rows of an item. `from`: address of this lane's channels in the item.
    #[inline(always)]
    fn ask_rows<E>(
        &self,
        p: &EquivariantParams,
        from: Global<E, ReadWrite>,
        [first, end]: [usize; 2],
    ) {
        let lane = gpu::thread() % 32;
        if CHANNELS == 1 && p.flags & FLAG_WHOLE_PIECES == 0 {
            let mut row = first as u32;
            while row < end as u32 {
                warp::nounroll();
                let at = Self::table().at(row).ld();
                if self.inside && at != NO_ROW {
                    from.bytes(at).cp_async_4(self.lane_of(row));
                }
                // Hides the row from the compiler, which would unroll the loop.
                row = warp::opaque(row + 1);
            }
            return;
        }
        macro_rules! each {
            ($($piece:literal)*) => {$(
                if first + 4 / CHANNELS * $piece < end {
                    let row = first + 4 / CHANNELS * $piece;
                    let own = row as u32 + lane / (8 * CHANNELS as u32);
                    let at = Self::table().at(own).ld();
                    let to = self.slot.bytes(row as u32 * Self::ROW).bytes(lane * 16);
                    let yes = self.inside && at != NO_ROW;
                    from.bytes(at).cp_async_16_if(to, yes as u32);
                }
            )*};
        }
        each!(0 1 2 3 4 5 6 7 8 9 10);
    }

    /// Shared address of the components of Y of the current entry.
    #[inline(always)]
    fn components(&self) -> Shared<u32> {
        self.slot.bytes(Self::ROWS.count() as u32 * Self::ROW)
    }

    /// Shared address of this lane's channels of a row of the current entry.
    #[inline(always)]
    fn lane_of(&self, row: u32) -> Shared<u32> {
        self.slot.bytes(row * Self::ROW).bytes(gpu::thread() % 32 * (Self::ROW / 32))
    }

    /// Loads this lane's channels of a row.
    #[inline(always)]
    fn row<E: Elem>(&self, row: usize) -> [E::Acc; CHANNELS] {
        let mut own = [E::ZERO; CHANNELS];
        let at = self.lane_of(row as u32);
        if CHANNELS == 1 {
            own[0] = at.cast::<E::Acc>().ld();
        } else {
            let [a, b] = at.cast::<[u32; 2]>().ld();
            unroll!(c < CHANNELS, { own[c] = E::get(&[a, b, 0, 0], c) });
        }
        own
    }

    /// Loads this lane's channels of an item of X.
    #[inline(always)]
    pub fn x<E: Elem>(&self) -> [Part<E>; CHANNELS] {
        let mut x = [[E::ZERO; COMPONENTS]; CHANNELS];
        macro_rules! each {
            ($($row:literal)*) => {$(
                if $row < (F::LARGEST + 1) * (F::LARGEST + 1) {
                    let own = self.row::<E>($row);
                    unroll!(c < CHANNELS, { x[c][$row] = own[c] });
                }
            )*};
        }
        each!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        x
    }

    /// Loads this lane's channels of a path of a part: the output gradient's `count` components, and the weight.
    #[inline(always)]
    pub fn path<E: Elem>(
        &self,
        part: usize,
        path: usize,
        count: usize,
    ) -> ([Component<E>; CHANNELS], [E::Acc; CHANNELS]) {
        let mut g = [[E::ZERO; 7]; CHANNELS];
        let first = Self::ROWS.first[part][0] + path * count;
        unroll!(k < 7, {
            if k < count {
                let own = self.row::<E>(first + k);
                unroll!(c < CHANNELS, { g[c][k] = own[c] });
            }
        });
        (g, self.weight::<E>(part, path))
    }

    /// Loads this lane's channels of a row of W.
    #[inline(always)]
    pub fn weight<E: Elem>(&self, part: usize, row: usize) -> [E::Acc; CHANNELS] {
        self.row::<E>(Self::ROWS.first[part][1] + row)
    }

    /// Loads the components of Y.
    #[inline(always)]
    pub fn y<E: Elem>(&self) -> Part<E> {
        let mut y = [E::ZERO; COMPONENTS];
        let from = self.components().cast::<[u32; 4]>();
        unroll!(piece < 4, {
            if ((piece * 4) as u32) < (F::LARGEST + 1) * (F::LARGEST + 1) {
                let raw = from.at(piece as u32).ld();
                unroll!(i < 4, {
                    y[piece * 4 + i] = E::get(&raw, i);
                });
            }
        });
        y
    }
}
