//! Kernel maps of lists: output row, input row and offset of each pair.

use einsparse_formats::PAD;
use rayon::prelude::*;

use super::{ABSENT, Arrays, HALF, KernelMap, MapArrays, ROWS};
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::families::gather_gemm::offers::convolution::NAME;
use crate::offer::refuse;

/// Number of offsets with a bit in the sort key of rows.
const RANKED: usize = 32;
/// Words of a map that are always allowed, independent of the lists.
const FEW: usize = 1 << 22;

/// Lists of output rows, input rows and offsets, with their names and extents.
pub(crate) struct MapLists<'a> {
    pub(crate) names: [&'a str; 3],
    pub(crate) lists: [&'a [u32]; 3],
    pub(crate) extents: [usize; 3],
}

/// Work of a kernel with a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapCounts {
    pub(crate) pairs: usize,
    /// Output rows multiplied: 64 for each half of a tile and each offset at which it has a pair.
    pub(crate) multiplied: usize,
    /// Pairs of a tile and an offset at which it has a pair.
    pub(crate) stages: usize,
}

impl MapLists<'_> {
    /// Returns the input row of each output row and offset, or [`ABSENT`]; or the reason why the lists are not
    /// supported.
    fn neighbours(&self) -> Result<Vec<u32>> {
        let [outputs, _, volume] = self.extents;
        let pairs = self.lists[0].len();
        let words = outputs.saturating_mul(volume);
        if words > FEW.max(pairs.saturating_mul(RANKED)) {
            let reason = format!(
                "keeps a word for each of {outputs} rows and {volume} matrices, too many for {pairs} terms"
            );
            return Err(refuse(NAME, reason));
        }
        let mut raw = vec![ABSENT; words];
        for p in 0..pairs {
            let [o, i, t] = self.lists.map(|list| list[p]);
            if [o, i, t].contains(&PAD) {
                continue;
            }
            for ((name, value), extent) in self.names.iter().zip([o, i, t]).zip(self.extents) {
                if value as usize >= extent {
                    return Err(Error::index(*name, (p, value.into()), "its axis", extent));
                }
            }
            let slot = &mut raw[o as usize * volume + t as usize];
            if *slot != ABSENT {
                let [rows, _, matrices] = self.names;
                let reason = format!(
                    "takes one term for each row and matrix: at {p} `{rows}` and `{matrices}` hold {o} and {t} once \
                     more"
                );
                return Err(refuse(NAME, reason));
            }
            *slot = i;
        }
        Ok(raw)
    }

    /// Returns the bit of each offset in the sort key. Rarer offsets have higher bits, so fewer tiles contain them.
    fn ranks(&self) -> Vec<u32> {
        let mut counts = vec![0usize; self.extents[2]];
        for &t in self.lists[2] {
            if let Some(count) = counts.get_mut(t as usize) {
                *count += 1;
            }
        }
        let mut often: Vec<usize> = (0..counts.len()).collect();
        often.sort_by_key(|&t| (std::cmp::Reverse(counts[t]), t));
        let mut ranks = vec![u32::MAX; counts.len()];
        for (rank, &t) in often.iter().enumerate().take(RANKED) {
            ranks[t] = rank as u32;
        }
        ranks
    }
}

impl KernelMap {
    /// Creates the map of lists on the CPU, or returns the reason why the lists are not supported.
    pub(crate) fn of_lists(lists: &MapLists<'_>) -> Result<KernelMap> {
        let [outputs, inputs, _] = lists.extents;
        let (raw, ranks) = (lists.neighbours()?, lists.ranks());
        let cpu = Context::unchecked_cpu();
        Self::from_raw(&cpu, inputs, outputs, Vec::new(), &raw, ranks)
    }

    /// Copies the map to a GPU.
    pub(crate) fn on(&self, device: &std::sync::Arc<Device>) -> Result<KernelMap> {
        let host = self.to_host()?;
        let arrays = MapArrays {
            neighbours: device.upload(&host.neighbours)?,
            order: device.upload(&host.order)?,
            masks: device.upload(&host.masks)?,
            schedule: device.upload(&host.schedule)?,
        };
        Ok(KernelMap {
            context: Context::of(device),
            inputs: self.inputs,
            outputs: self.outputs,
            volume: self.volume,
            ranks: self.ranks.clone(),
            arrays: Arrays::Device(arrays, std::sync::Arc::clone(device)),
            voxels: Vec::new(),
            turned: std::sync::OnceLock::new(),
            shadow: std::sync::OnceLock::new(),
            order: std::sync::Arc::default(),
        })
    }

    /// Returns the work of a kernel with this map on the CPU.
    pub(crate) fn counts(&self) -> Result<MapCounts> {
        let host = self.to_host()?;
        let words = self.words();
        let halves = host.masks.par_iter().map(|mask| mask.count_ones() as usize);
        let stages = host.masks.chunks(words.max(1) * (ROWS / HALF)).map(|tile| {
            let (a, b) = tile.split_at(words);
            a.iter().zip(b).map(|(a, b)| (a | b).count_ones() as usize).sum::<usize>()
        });
        Ok(MapCounts {
            pairs: host.neighbours.par_iter().filter(|&&n| n != ABSENT).count(),
            multiplied: halves.sum::<usize>() * HALF,
            stages: stages.sum(),
        })
    }
}
