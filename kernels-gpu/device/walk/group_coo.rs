//! GroupCOO with a group divisible by four: entries start aligned, so every lane reads the same
//! four entries by one vector load (a broadcast) and no shuffle is needed.

use super::Walk;
use crate::abi::GroupCoo;
use crate::device::elem::{Elem, Raw};
use crate::device::ptx::global;

/// Eight entries: columns, and values as they lie in memory (f64 fills all four vectors).
#[derive(Clone, Copy)]
pub struct Eight {
    columns: [Raw; 2],
    values: [Raw; 4],
}

#[inline(always)]
fn quad<E: Elem>(values: u64, at: u64, ok: bool) -> [Raw; 2] {
    let from = values + at * E::BYTES as u64;
    match E::BYTES {
        8 => [global::load_v4_stream(from, ok), global::load_v4_stream(from + 16, ok)],
        4 => [global::load_v4_stream(from, ok), [0; 4]],
        _ => {
            let [a, b] = global::load_v2(from, ok);
            [[a, b, 0, 0], [0; 4]]
        }
    }
}

impl Walk for GroupCoo {
    const ONE_BURST: bool = true;
    type Batch<E: Elem> = Eight;

    #[inline(always)]
    fn batch_len<const LANES: u32, const UNROLL: usize>() -> u32 {
        UNROLL as u32
    }

    #[inline(always)]
    fn fetch<E: Elem, const LANES: u32, const UNROLL: usize>(
        columns: u64,
        values: u64,
        start: u32,
        left: u32,
        _lane: u32,
    ) -> Self::Batch<E> {
        let at = start as u64;
        let (first, second) = (left > 0, UNROLL > 4 && left > 4);
        let [v0, v1] = quad::<E>(values, at, first);
        let [v2, v3] = quad::<E>(values, at + 4, second);
        Eight {
            columns: [
                global::load_v4_stream(columns + at * 4, first),
                global::load_v4_stream(columns + at * 4 + 16, second),
            ],
            values: [v0, v1, v2, v3],
        }
    }

    #[inline(always)]
    fn entry<E: Elem, const LANES: u32>(batch: &Self::Batch<E>, i: u32, _members: u32) -> (u32, E::Acc) {
        let i = i as usize;
        let (half, j) = (i / 4 & 1, i & 3);
        let value = match E::BYTES {
            8 => E::get(&batch.values[(half * 2 + j / 2) & 3], j % 2),
            _ => E::get(&batch.values[half * 2], j),
        };
        (batch.columns[half][j], value)
    }
}
