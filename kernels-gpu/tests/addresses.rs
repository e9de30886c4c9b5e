//! The arithmetic of places that kernels and host share, against the plainest loops there are: all small cases, and
//! those at the edges of 32 bits.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    Arrays, EINSUM_DIM_BYTES, EINSUM_FACTORS, EINSUM_PAD, EinsumDim, EinsumFactor, EinsumParams,
    length_class, low_bits, pick, picked, piece_of,
};

/// The lowest, those around powers of two, and the highest.
fn edges(low: u32) -> Vec<u32> {
    let powers = (1..32).flat_map(|e| [(1u32 << e) - 1, 1 << e, (1 << e) + 1]);
    let highest = u32::MAX - 64..=u32::MAX;
    let mut all: Vec<u32> = (0..low).chain(powers).chain(highest).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn division_by_a_known_number_is_division() {
    for value in edges(1500).into_iter().filter(|value| *value > 0) {
        let divisor = Divisor::new(value);
        let around = |multiple: u64| [multiple.wrapping_sub(1), multiple, multiple + 1];
        let last = u64::from(u32::MAX / value);
        let multiples = [0, 1, 2, 3, last / 2, last.saturating_sub(1), last];
        let near = multiples.into_iter().flat_map(|times| around(times * u64::from(value)));
        let near = near.filter_map(|n| u32::try_from(n).ok());
        for n in near.chain(edges(300)) {
            assert_eq!(divisor.of(n), (n / value, n % value), "{n} / {value}");
        }
    }
}

#[test]
fn pieces_cover_their_row_and_are_no_longer_than_asked() {
    for len in edges(3000) {
        for limit in (0..300).chain([1000, 1 << 16, u32::MAX - 7, u32::MAX]) {
            let piece = piece_of(len, limit);
            if len <= limit.max(1) {
                assert_eq!(piece, len);
                continue;
            }
            let pieces = u64::from(len).div_ceil(u64::from(limit.max(1)));
            assert!(u64::from(piece) * pieces >= u64::from(len), "{len} by {limit}: {piece}");
            assert!(
                u64::from(piece) <= u64::from(limit.max(1)).next_multiple_of(8),
                "{len} by {limit}: {piece}"
            );
        }
    }
}

#[test]
fn classes_of_lengths_hold_them() {
    assert_eq!(length_class(0), 0);
    for len in edges(5000).into_iter().filter(|len| *len > 0) {
        let class = length_class(len);
        let above = class == 31 || u64::from(len) < 1 << class;
        assert!(class > 0 && 1u64 << (class - 1) <= len.into() && above, "{len}: {class}");
    }
}

#[test]
fn low_bits_are_as_many() {
    for count in (-70..140).chain([i32::MIN, i32::MAX]) {
        assert_eq!(low_bits(count).count_ones(), count.clamp(0, 64) as u32);
        assert_eq!(low_bits(count).trailing_ones(), count.clamp(0, 64) as u32);
    }
}

#[test]
fn picks_name_each_place_once() {
    for (columns, bytes) in [(64, 2), (128, 2), (256, 2), (64, 4), (128, 4)] {
        let mut seen = vec![false; 64 * columns as usize];
        for row in 0..64 {
            for column in 0..columns {
                let place = pick(row, column, columns, bytes);
                assert_eq!(picked(place, columns, bytes), (row, column));
                let place = (place & 0x7fff) as usize;
                assert!(!std::mem::replace(&mut seen[place], true), "{row}, {column} of {columns}");
            }
        }
    }
}

/// Device memory: words by address.
#[derive(Default)]
struct Memory(Vec<u32>);

/// Where [`Memory`] begins: an address of 0 is none.
const START: u64 = 1 << 33;

impl Memory {
    fn put(&mut self, words: &[u32]) -> u64 {
        let at = START + self.0.len() as u64 * 4;
        self.0.extend_from_slice(words);
        at
    }
}

impl Arrays for Memory {
    fn slot(&self, address: u64, ok: bool) -> u32 {
        match ok {
            true => self.0[((address - START) / 4) as usize],
            false => 0,
        }
    }

    fn word(&self, address: u64) -> u64 {
        u64::from(self.slot(address, true)) | u64::from(self.slot(address + 4, true)) << 32
    }
}

/// Numbers in no order, the same each time.
fn hash(seed: u64) -> u64 {
    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

const FACTORS: usize = 3;

/// A loop of this extent whose steps move further than 32 bits, for one factor by a table.
fn dim(memory: &mut Memory, extent: u32, seed: u64) -> (EinsumDim, Vec<u32>) {
    let table: Vec<u32> = (0..extent).map(|i| hash(seed + 100 + u64::from(i)) as u32).collect();
    let far = |k: u64| hash(seed + k) % (1 << 40);
    let mut dim = EinsumDim {
        extent: extent.into(),
        out: far(1),
        bias: far(2),
        gate: far(3),
        ..EinsumDim::default()
    };
    for f in 0..FACTORS {
        dim.strides[f] = far(4 + f as u64) % (1 << 31);
    }
    dim.tables[1] = memory.put(&table);
    (dim, table)
}

/// What step `at` moves factor `f` by.
fn moved((dim, table): &(EinsumDim, Vec<u32>), f: usize, at: u32) -> u64 {
    let index = if f == 1 { table[at as usize] } else { at };
    u64::from(index) * dim.strides[f]
}

fn described(memory: &mut Memory, dims: &[(EinsumDim, Vec<u32>)]) -> u64 {
    let mut words: Vec<u32> = Vec::new();
    for (dim, _) in dims {
        let all = [dim.extent, dim.out, dim.bias, dim.gate];
        for word in all.iter().chain(&dim.strides).chain(&dim.tables) {
            words.extend([*word as u32, (*word >> 32) as u32]);
        }
    }
    assert_eq!(words.len() as u64 * 4, dims.len() as u64 * EINSUM_DIM_BYTES);
    memory.put(&words)
}

/// All steps of nested loops, the last fastest.
fn steps(extents: &[u32]) -> Vec<Vec<u32>> {
    extents.iter().fold(vec![Vec::new()], |all, &extent| {
        let with = |steps: &Vec<u32>| {
            (0..extent).map(|at| [&steps[..], &[at]].concat()).collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}

/// Every unit of every item of small einsums lies where loops say.
#[test]
fn units_and_lines_lie_where_loops_say() {
    let small = [1u32, 2, 3];
    let all = steps(&[3, 3, 3, 3, 3]);
    for (case, extents) in all.into_iter().enumerate() {
        let extents: Vec<u32> = extents.into_iter().map(|i| small[i as usize]).collect();
        let mut memory = Memory::default();
        let of = |(i, &extent): (usize, &u32)| (extent, (case * 1000 + i * 200) as u64);
        let mut dims = Vec::new();
        for (extent, seed) in extents.iter().enumerate().map(of) {
            dims.push(dim(&mut memory, extent, seed));
        }
        // Two loops of places, one free, two summed of which the last is the line.
        let (parts, free, summed) = (&extents[..2], &extents[2..3], &extents[3..]);
        let list: Vec<u32> = [5, EINSUM_PAD, u32::MAX - 1, 0].to_vec();
        let mut params = EinsumParams {
            out: 1 << 50,
            bias: 1 << 51,
            gate: 1 << 52,
            dims: described(&mut memory, &dims),
            chunks: 2,
            parts: 2,
            free: 1,
            summed: 2,
            line: summed[1],
            ..EinsumParams::default()
        };
        for f in 0..EINSUM_FACTORS {
            params.factors[f] = EinsumFactor {
                address: (f as u64 + 1) << 53,
                stride: 0x0fff_fff0 - f as u64,
                ..EinsumFactor::default()
            };
        }
        params.factors[2].table = memory.put(&list);
        for (place, outer) in steps(parts).iter().enumerate() {
            for (unit, inner) in steps(&[free[0], 2]).iter().enumerate() {
                let spot = params.spot::<FACTORS>(&memory, place as u32, unit as u32);
                let sum = |of: fn(&EinsumDim) -> u64| -> u64 {
                    let walked = dims.iter().zip(outer.iter().chain(&inner[..1]));
                    walked.map(|((dim, _), &at)| of(dim) * u64::from(at)).sum()
                };
                assert_eq!(spot.out, params.out + sum(|d| d.out));
                assert_eq!(spot.bias, params.bias + sum(|d| d.bias));
                assert_eq!(spot.gate, params.gate + sum(|d| d.gate));
                assert_eq!(spot.chunk, inner[1]);
                for f in 0..FACTORS {
                    let base = params.factors[f].address + moved(&dims[2], f, inner[0]);
                    assert_eq!(spot.base[f], base);
                }
                for (term, &slot) in list.iter().enumerate() {
                    for number in 0..summed[0] {
                        let line = params.line_of(&memory, spot.base, term as u32, number);
                        assert_eq!(line.ok, slot != EINSUM_PAD);
                        assert_eq!((line.first, line.len), (0, summed[1]));
                        for f in 0..FACTORS {
                            let index = if f == 2 { slot } else { term as u32 };
                            let own = u64::from(index) * params.factors[f].stride;
                            let wanted = spot.base[f] + own + moved(&dims[3], f, number);
                            assert_eq!(line.base[f], wanted);
                            assert_eq!(line.strides[f], dims[4].0.strides[f]);
                            assert_eq!(line.tables[f], dims[4].0.tables[f]);
                        }
                    }
                }
            }
        }
    }
}
