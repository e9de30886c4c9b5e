//! Channel-wise tensor products with Clebsch-Gordan coefficients, of items or over the edges of a graph: module
//! `equivariant`. Paths are distributed to kernels. Over a graph, channels are split into strips. Each direction
//! launches one kernel for each group of paths and strip.

mod group;

use std::sync::Arc;

use einsparse_formats::allocate;
use einsparse_kernels::families::{
    DEGREES, EQUIVARIANT_WARPS, EdgeRows, EquivariantParams, FLAG_ADD_DX, FLAG_ADD_DY,
    FLAG_EVEN_GRADIENTS, FLAG_WHOLE_PIECES, MOST_EDGE_ROWS, MOST_PATHS, NO_ROW, Paths,
    equivariant_step, equivariant_warps,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, small, within};
use crate::registry::Dtype;

use group::Group;

/// Path: its degrees, its first row in X, Y and Out, and its row in W.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathPlace {
    pub(crate) degrees: [usize; 3],
    pub(crate) rows: [usize; 4],
}

/// Shape of the product.
#[derive(Clone, Debug)]
pub(crate) struct EquivariantShape {
    pub(crate) paths: Vec<PathPlace>,
    /// Rows per item of X, Y, Out and W.
    pub(crate) rows: [usize; 4],
    pub(crate) width: usize,
    /// Items of Out, items of X, and edges. Y and W have one item per edge.
    pub(crate) items: [usize; 3],
}

/// Addresses and row strides in elements; zeros for absent operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEquivariant {
    /// X, Y, W; Out or its gradient.
    pub(crate) operands: [(u64, usize); 4],
    /// Gradients of X, Y and W.
    pub(crate) gradients: [(u64, usize); 3],
}

/// Edges of each node, and the nodes at the other ends.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) starts: DeviceMemory,
    pub(super) entries: DeviceMemory,
    others: DeviceMemory,
}

impl Side {
    /// Groups the edges by `own`, whose values are below `rows`, and keeps their order.
    pub(super) fn new(device: &Device, own: &[u32], others: &[u32], rows: usize) -> Result<Side> {
        allocate::extent("nodes", rows as u128, 8, 8 * own.len() as u64)?;
        let mut starts: Vec<u32> = allocate::zeroed("starts of nodes", rows + 1)?;
        for &row in own {
            starts[row as usize + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut sorted = vec![[0u32; 2]; own.len()];
        for (entry, (&row, &other)) in own.iter().zip(others).enumerate() {
            let at = &mut next[row as usize];
            sorted[*at as usize] = [entry as u32, other];
            *at += 1;
        }
        let one = |which: usize| -> Vec<u32> { sorted.iter().map(|pair| pair[which]).collect() };
        Ok(Side {
            starts: device.upload(&starts)?,
            entries: device.upload(&one(0))?,
            others: device.upload(&one(1))?,
        })
    }

    /// Device memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.starts.bytes() + self.entries.bytes() + self.others.bytes()
    }
}

/// Kernels of a group, forward and backward, with their constants.
#[derive(Debug)]
struct Step {
    group: Group,
    kernels: [Kernel<EquivariantParams>; 2],
    /// Backward kernel with two channels per lane.
    pairs: Option<Kernel<EquivariantParams>>,
}

impl Step {
    /// Returns the kernel of the gradients of `width` channels and its channels per lane: two if the warps have enough
    /// channels. `whole`: see [`FLAG_WHOLE_PIECES`].
    fn backward(&self, whole: bool, width: usize) -> (&Kernel<EquivariantParams>, u32) {
        match &self.pairs {
            Some(kernel) if whole && width > 32 => (kernel, 2),
            _ => (&self.kernels[1], 1),
        }
    }
}

/// Kernels with the lists of a graph in device memory.
#[derive(Debug)]
pub(crate) struct EquivariantLaunch {
    device: Arc<Device>,
    shape: EquivariantShape,
    steps: Vec<Step>,
    /// Edges by receiver and by sender; `None` for products of items.
    sides: Option<[Side; 2]>,
    /// Whether the gradients of X and of Y are accumulated, and set to zero before.
    added: [bool; 2],
}

/// Channels of a launch over `rows` rows, which are gathered once per edge. The strip is as wide as L2 can hold beside
/// streamed data. It has all channels if L2 cannot hold even 32.
fn strip(rows: usize, l2: u64) -> usize {
    let bytes = (rows as u64).saturating_mul(32 * 4).max(1);
    match l2 / 5 * 3 / bytes {
        0 if bytes > l2 => usize::MAX,
        fit => (fit.max(1) as usize).saturating_mul(32),
    }
}

fn row_for(group: &Group, (backward, channels): (bool, u32), dtype: Dtype) -> Option<&'static Row> {
    let step = equivariant_step(backward, group.largest() as u32, group.odd, channels);
    rows_of::<EquivariantParams>().find(|row| (row.step, row.dtype) == (step, dtype))
}

impl EquivariantLaunch {
    /// Creates the launch for items, or for edges given by their ends (receivers, senders). The ends are below the
    /// numbers of items of Out and of X. Returns `None` if no kernel supports these paths or this GPU.
    pub(crate) fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        shape: EquivariantShape,
        ends: Option<[&[u32]; 2]>,
    ) -> Result<Option<Self>> {
        let mut degrees = shape.paths.iter().flat_map(|path| path.degrees);
        if degrees.any(|l| l >= DEGREES) {
            return Ok(None);
        }
        let mut steps = Vec::new();
        for group in Group::all(&shape.paths) {
            let [forward, backward, pairs] =
                [(false, 1), (true, 1), (true, 2)].map(|kind| row_for(&group, kind, dtype));
            let (Some(forward), Some(backward)) = (forward, backward) else {
                return Ok(None);
            };
            if !device.modules().holds(forward) {
                return Ok(None);
            }
            let kernels = [Kernel::load(device, forward)?, Kernel::load(device, backward)?];
            let pairs = pairs.map(|row| Kernel::load(device, row)).transpose()?;
            steps.push(Step { group, kernels, pairs });
        }
        let whole =
            |of: usize| matches!(&steps[..], [one] if one.group.covered(of) == shape.rows[of]);
        let added = [!whole(0), !whole(1)];
        let sides = match ends {
            Some([receivers, senders]) => Some([
                Side::new(device, receivers, senders, shape.items[0])?,
                Side::new(device, senders, receivers, shape.items[1])?,
            ]),
            None => None,
        };
        Ok(Some(EquivariantLaunch { device: Arc::clone(device), shape, steps, sides, added }))
    }

    /// Names of the first kernels, forward and backward, for whole pieces of all channels.
    pub(crate) fn variants(&self) -> [&'static str; 2] {
        let names = self.steps.first().map(|step| {
            let (backward, _) = step.backward(true, self.shape.width);
            [step.kernels[0].row().name, backward.row().name]
        });
        names.unwrap_or_default()
    }

    /// Workspace in device memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.sides.iter().flatten().map(Side::bytes).sum()
    }

    /// Whether all rows of channels begin and end at multiples of `bytes` bytes. This then holds for strips of 32
    /// channels.
    fn aligned<const N: usize>(&self, operands: [(u64, usize); N], bytes: usize) -> bool {
        let element = self.steps[0].kernels[0].row().dtype.bytes();
        let multiple = |all: usize| all.is_multiple_of(bytes);
        multiple(self.shape.width * element)
            && operands.into_iter().all(|(address, leading)| {
                address.is_multiple_of(bytes as u64) && multiple(leading.saturating_mul(element))
            })
    }

    /// Iterates over the launches: first channel and number of channels.
    fn strips(&self, way: usize) -> impl Iterator<Item = [usize; 2]> {
        let [rows, items] = match way {
            0 => [self.shape.rows[0], self.shape.items[1]],
            _ => [self.shape.rows[2], self.shape.items[0]],
        };
        let all = self.shape.width;
        let wide = match self.sides {
            Some(_) => strip(rows.saturating_mul(items), self.device.machine().l2_bytes),
            None => all,
        };
        (0..all).step_by(wide.max(1)).map(move |first| [first, wide.min(all - first)])
    }

    fn params(
        &self,
        group: &Group,
        way: usize,
        raw: &RawEquivariant,
        [first, width]: [usize; 2],
    ) -> Result<EquivariantParams> {
        let element = self.steps[0].kernels[0].row().dtype.bytes();
        let [x, y, w, out] = raw.operands;
        let [dx, dy, dw] = raw.gradients;
        let row = |operand: (u64, usize)| operand.1.saturating_mul(element);
        let bytes = |what: &str, rows: usize, operand: (u64, usize)| {
            small(what, row(operand).saturating_mul(rows))
        };
        let [in_x, _, in_out, in_w] = self.shape.rows;
        let item = |rows: usize, operand| row(operand) as u64 * rows as u64;
        let side = self.sides.as_ref().map(|sides| &sides[way]);
        let address = |of: fn(&Side) -> &DeviceMemory| side.map_or(0, |side| of(side).address());
        let at = |operand: (u64, usize)| match operand.0 {
            0 => 0,
            address => address + (first * element) as u64,
        };
        // Offsets within an item must fit 32 bits.
        bytes("bytes of an item of X", in_x, x)?;
        bytes("bytes of an item of Out", in_out, out)?;
        let mut p = EquivariantParams {
            x: at(x),
            y: y.0,
            w: at(w),
            out: at(out),
            dx: at(dx),
            dy: dy.0,
            dw: at(dw),
            starts: address(|side| &side.starts),
            entries: address(|side| &side.entries),
            others: address(|side| &side.others),
            item_bytes: [
                item(in_x, x),
                item(1, y),
                item(in_w, w),
                item(in_out, out),
                item(in_x, dx),
                item(1, dy),
                item(in_w, dw),
            ],
            row_bytes: [
                bytes("bytes of a row of X", 1, x)?,
                bytes("bytes of a row of Out", 1, out)?,
                bytes("bytes of a row of dX", 1, dx)?,
            ],
            rows: small("items", self.shape.items[way])?,
            width: small("channels", width)?,
            degrees: 0,
            wanted: 0,
            parts: [[0; DEGREES]; 3],
            paths: [[0; 3]; MOST_PATHS],
            rows_at: [NO_ROW; MOST_EDGE_ROWS],
            flags: 0,
        };
        for l in 0..DEGREES {
            let [of_x, of_y] = [group.parts[0][l], group.parts[1][l]];
            if let Some(first) = of_x {
                p.degrees |= 1 << l;
                p.parts[0][l] = bytes("bytes of an item of X", first, x)?;
                p.parts[2][l] = bytes("bytes of an item of dX", first, dx)?;
            }
            if let Some(first) = of_y {
                p.degrees |= 1 << (DEGREES + l);
                p.parts[1][l] = small("bytes of an item of Y", first * element)?;
            }
        }
        let all = Paths::of(group.largest(), group.odd);
        for path in &group.paths {
            let number = all.number(path.degrees);
            let [_, _, row_out, row_w] = path.rows;
            p.wanted |= 1 << number;
            p.paths[number] = [
                bytes("bytes of an item of Out", row_out, out)?,
                bytes("bytes of an item of W", row_w, w)?,
                bytes("bytes of an item of dW", row_w, dw)?,
            ];
        }
        if self.aligned([[x, out][way], w], 16) {
            p.flags |= FLAG_WHOLE_PIECES;
        }
        if self.aligned([dx, dw], 2 * element) {
            p.flags |= FLAG_EVEN_GRADIENTS;
        }
        Ok(p)
    }

    /// Stores the offsets of an edge's copied rows in their items, for a kernel with `channels` channels per lane.
    fn place_rows(p: &mut EquivariantParams, group: &Group, way: usize, channels: u32) {
        let all = Paths::of(group.largest(), group.odd);
        let rows = EdgeRows::of(way == 1, group.largest(), group.odd, channels);
        if way == 0 {
            for l in (0..DEGREES).filter(|l| p.degrees >> l & 1 != 0) {
                for m in 0..2 * l + 1 {
                    p.rows_at[rows.first[0][0] + l * l + m] =
                        p.parts[0][l] + m as u32 * p.row_bytes[0];
                }
            }
        }
        for number in (0..all.count).filter(|number| p.wanted >> number & 1 != 0) {
            let degree = all.all[number][2];
            let [part, path] = match way {
                0 => [0, number],
                _ => [degree - group.odd as usize, number - all.below(degree)],
            };
            p.rows_at[rows.first[part][1] + path] = p.paths[number][1];
            for k in (0..2 * degree + 1).filter(|_| way == 1) {
                let row = rows.first[part][0] + path * (2 * degree + 1) + k;
                p.rows_at[row] = p.paths[number][0] + k as u32 * p.row_bytes[1];
            }
        }
    }

    /// Queues the forward product.
    pub(crate) fn forward(&self, raw: &RawEquivariant, queue: Queue<'_>) -> Result<()> {
        for strip in self.strips(0) {
            for step in &self.steps {
                let warps = self.shape.items[0].saturating_mul(strip[1].div_ceil(32));
                let blocks = warps.div_ceil(EQUIVARIANT_WARPS as usize);
                let grid = [within("thread blocks", blocks, MAX_GRID_X)?, 1, 1];
                let mut params = self.params(&step.group, 0, raw, strip)?;
                Self::place_rows(&mut params, &step.group, 0, 1);
                queue.launch(&step.kernels[0], Grid::of(grid), &params)?;
            }
        }
        Ok(())
    }

    /// Queues the gradients that have addresses.
    pub(crate) fn backward(&self, raw: &RawEquivariant, queue: Queue<'_>) -> Result<()> {
        self.device.context().set_current()?;
        let [in_x, in_y, ..] = self.shape.rows;
        let element = self.steps[0].kernels[1].row().dtype.bytes();
        let zero = |(address, leading): (u64, usize), extents: [usize; 2]| {
            let [width, rows] = extents;
            match address {
                0 => Ok(()),
                _ => queue.fill_rows(address, leading * element, 0, [width * element, rows]),
            }
        };
        if self.added[0] {
            zero(raw.gradients[0], [self.shape.width, self.shape.items[1] * in_x])?;
        }
        if self.added[1] || self.shape.width == 0 {
            zero(raw.gradients[1], [in_y, self.shape.items[2]])?;
        }
        for strip in self.strips(1) {
            for step in &self.steps {
                let mut params = self.params(&step.group, 1, raw, strip)?;
                let (kernel, channels) =
                    step.backward(params.flags & FLAG_WHOLE_PIECES != 0, strip[1]);
                Self::place_rows(&mut params, &step.group, 1, channels);
                let warps = equivariant_warps(channels) as usize;
                let team = strip[1].div_ceil(32 * channels as usize).clamp(1, warps);
                let blocks = self.shape.items[1].div_ceil(warps / team);
                let grid = [within("thread blocks", blocks, MAX_GRID_X)?, 1, 1];
                params.flags |= if self.added[0] { FLAG_ADD_DX } else { 0 };
                let added = self.added[1] || strip[0] > 0;
                params.flags |= if added { FLAG_ADD_DY } else { 0 };
                queue.launch(kernel, Grid::of(grid), &params)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::strip;

    #[test]
    fn strips_are_what_fits_into_l2() {
        let l2 = 50 << 20;
        assert_eq!(strip(0, l2), (l2 as usize / 5 * 3) * 32);
        // 35 rows of 3,000 vertices are 13.4 MB at 32 channels; 99 rows are 38 MB.
        assert_eq!([35, 99].map(|rows| strip(rows * 3_000, l2)), [64, 32]);
        assert_eq!(strip(99 * 10_000, l2), usize::MAX);
        assert_eq!(strip(usize::MAX, u64::MAX), 32);
    }
}
