//! Products with A's transpose and products of batches, by kernels of the modules `batched` and `spmm`. The transposed
//! pattern is made once per plan. Kernels of walk `Permuted` read values through the pattern. For other kernels the
//! values are first gathered in order: in every run, or once if A is constant.

use std::sync::Arc;

use einsparse_formats::allocate;
use einsparse_kernels::families::BatchedParams;
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::convert::entries::{Reorder, SortOut, Steps, Transpose, permute};
use crate::families::spmm::gather::Gather;
use crate::indirect::SpmmForm;
use crate::kernel::Queue;
use crate::launch::{Extents, MAX_GRID_Y, Matrix, Product, RawSpmm, SpmmConfig, Turns};
use crate::registry::{Dtype, WalkKind};
use crate::tensor::{TransposedPattern, Transposes, VECTOR_ENTRIES};
use crate::worklist::Runs;

/// Bytes of a pair of column and position.
const PAIR: usize = 8;

#[derive(Debug)]
pub(crate) struct Batched {
    gather: Gathers,
    form: SpmmForm,
    extents: Extents,
    turned: Option<Turned>,
}

/// Transposed pattern.
#[derive(Debug)]
struct Turned {
    transposed: Arc<TransposedPattern>,
    ordered: Option<Ordered>,
}

/// Positions of the values in the order of the transpose.
#[derive(Debug)]
pub(crate) enum Permutation {
    Own(DeviceMemory),
    /// That of a transpose, which holds one.
    Shared(Arc<TransposedPattern>),
}

impl Permutation {
    fn memory(&self) -> Option<&DeviceMemory> {
        match self {
            Permutation::Own(memory) => Some(memory),
            Permutation::Shared(transposed) => transposed.permutation.as_ref(),
        }
    }
}

/// Values in the order of the transpose. The kernel reads them after they are gathered.
#[derive(Debug)]
pub(crate) struct Ordered {
    /// End of the last run: runs share the values.
    pub(crate) turns: Turns,
    way: Way,
    pub(crate) values: DeviceMemory,
    steps: Steps,
    entries: usize,
    /// Whether values change only when [`Product::a_changed`] is called.
    kept: bool,
}

/// How values are put in order.
#[derive(Debug)]
enum Way {
    /// One by one, from their positions.
    Apart(Permutation),
    /// By tiles: for many values without padding between them.
    Tiles(Reorder),
}

/// Kernel, by the module of its row.
#[derive(Debug)]
enum Gathers {
    /// Module `batched`.
    Many(Box<Gather<BatchedParams>>),
    /// Module `spmm`.
    One(Box<Gather>),
}

/// Evaluates the expression for either variant.
macro_rules! either {
    ($own:expr, $gather:ident => $body:expr) => {
        match $own {
            Gathers::Many($gather) => $body,
            Gathers::One($gather) => $body,
        }
    };
}

impl Gathers {
    fn new(of: SpmmConfig<'_>, pattern: (&Runs, Option<&Arc<DeviceMemory>>)) -> Result<Self> {
        Ok(match of.row.module {
            "batched" => Gathers::Many(Box::new(Gather::new(of, pattern)?)),
            _ => Gathers::One(Box::new(Gather::new(of, pattern)?)),
        })
    }
}

impl Batched {
    pub(crate) fn new(of: SpmmConfig<'_>, matrix: Matrix<'_>) -> Result<Self> {
        let (form, extents) = (of.form.clone(), of.extents);
        let Matrix::Sparse { runs, spans, columns, address, transposes, .. } = matrix else {
            return Err(Error::kind(&form.sparse, "a sparse tensor", "a dense one"));
        };
        if !form.order.transposed {
            return Ok(Batched {
                gather: Gathers::new(of, (runs, spans))?,
                form,
                extents,
                turned: None,
            });
        }
        let turned = turn(&of, (runs, transposes), (columns.len(), address))?;
        Ok(Batched {
            gather: Gathers::new(of, (&turned.transposed.runs, None))?,
            form,
            extents,
            turned: Some(turned),
        })
    }

    fn gather_bytes(&self) -> usize {
        either!(&self.gather, gather => gather.bytes())
    }

    /// Queues the products with the pattern that the kernel reads.
    fn products(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let gather = match &self.gather {
            Gathers::One(gather) => return gather.run(raw, queue),
            Gathers::Many(gather) => gather,
        };
        let dtype = self.row().dtype;
        let [b, c, _] = raw.strides(self.form.order, self.extents, [dtype; 2]);
        if self.extents.items > 1 {
            // `params` validates only the addresses of the first product.
            crate::launch::aligned(self.row(), "B", raw.b.wrapping_add(b), raw.ldb)?;
            crate::launch::aligned(self.row(), "C", raw.c.wrapping_add(c), raw.ldc)?;
        }
        let [partial, counters] = gather.strides();
        let params = BatchedParams {
            product: gather.params(raw)?,
            values: (raw.value_stride as u64).saturating_mul(dtype.bytes() as u64),
            b,
            c,
            partial,
            counters,
        };
        let mut done = 0;
        while done < self.extents.items {
            // The grid has the same limit along z as along y.
            let depth = (self.extents.items - done).min(MAX_GRID_Y);
            let part = BatchedParams { product: params.item(done as u32), ..params };
            gather.launch(depth as u32, &part, queue)?;
            done += depth;
        }
        Ok(())
    }
}

impl Product for Batched {
    fn row(&self) -> &'static Row {
        either!(&self.gather, gather => gather.row())
    }

    fn bytes(&self) -> usize {
        self.gather_bytes() + self.turned.as_ref().map_or(0, Turned::bytes)
    }

    fn keeps_a(&mut self) -> bool {
        let turned = self.turned.as_mut();
        let ordered = turned.and_then(|own| own.ordered.as_mut());
        ordered.is_some_and(|own| {
            own.kept = true;
            true
        })
    }

    fn a_changed(&self, values: u64, queue: Queue<'_>) -> Result<()> {
        match self.turned.as_ref().and_then(|own| own.ordered.as_ref()) {
            Some(own) => own.turns.queue(true, queue.stream(), || own.fill_checked(values, queue)),
            None => Ok(()),
        }
    }

    fn describe(&self) -> String {
        let turned = match &self.turned {
            Some(own) => format!(", {} bytes of transposed pattern among them", own.bytes()),
            None => String::new(),
        };
        let batch = match self.extents.items {
            1 => String::new(),
            items => format!("{items} of a batch, "),
        };
        let more = self.bytes() - self.gather_bytes();
        let gather = either!(&self.gather, gather => gather.describe_with(more));
        format!("{batch}{gather}{turned}")
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let Some(turned) = &self.turned else {
            return self.products(raw, queue);
        };
        let own = RawSpmm { columns: turned.transposed.pattern.address(), ..*raw };
        let Some(ordered) = &turned.ordered else {
            return self.products(&own, queue);
        };
        ordered.turns.queue(true, queue.stream(), || {
            if !ordered.kept {
                ordered.fill_checked(raw.values, queue)?;
            }
            let own = RawSpmm { values: ordered.values.address(), ..own };
            self.products(&own, queue)
        })
    }
}

impl Turned {
    fn bytes(&self) -> usize {
        self.transposed.pattern.bytes() + self.ordered.as_ref().map_or(0, Ordered::bytes)
    }
}

impl Way {
    fn bytes(&self) -> usize {
        match self {
            Way::Apart(permutation) => permutation.memory().map_or(0, DeviceMemory::bytes),
            Way::Tiles(tiles) => tiles.bytes(),
        }
    }
}

impl Ordered {
    /// Prepares the order for the positions of `entries` out of `slots` values of `element` bytes. The positions are on
    /// the GPU when the work of `queue` is done.
    pub(crate) fn new(
        device: &Device,
        steps: Steps,
        permutation: Permutation,
        (slots, entries): (usize, usize),
        element: usize,
        queue: Queue<'_>,
    ) -> Result<Self> {
        let mut way = None;
        if let (true, Some(memory)) = (slots == entries, permutation.memory()) {
            way = Reorder::new(&steps, memory.address(), entries, element, queue)?;
        }
        Ok(Ordered {
            turns: Turns::new(device)?,
            way: way.map_or(Way::Apart(permutation), Way::Tiles),
            values: steps.zeros((entries + VECTOR_ENTRIES) * element)?,
            steps,
            entries,
            kept: false,
        })
    }

    /// Device bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.way.bytes() + self.values.bytes()
    }

    /// Queues the gathering of the values. `values` holds a value for every slot of the pattern.
    pub(crate) fn fill(&self, values: u64, queue: Queue<'_>) -> Result<()> {
        let to = self.values.address();
        match &self.way {
            Way::Apart(permutation) => {
                let positions = permutation.memory().map_or(0, DeviceMemory::address);
                let from = [values, positions, to];
                permute(&self.steps, from, self.entries, queue)
            }
            Way::Tiles(tiles) => tiles.run(&self.steps, [values, to], queue),
        }
    }

    /// Queues `fill` for values that no launch validates: it reads vectors of 16 bytes with every kernel.
    fn fill_checked(&self, values: u64, queue: Queue<'_>) -> Result<()> {
        crate::launch::in_vectors("values of A", values)?;
        self.fill(values, queue)
    }
}

/// Returns the transpose of a pattern of `slots` slots, whose columns are stored at `address`, and its values if they are
/// gathered first. Extents are those of the product: A has k rows and m columns.
fn turn(
    &SpmmConfig { device, row, extents, .. }: &SpmmConfig<'_>,
    (runs, transposes): (&Runs, &Transposes),
    (slots, address): (usize, u64),
) -> Result<Turned> {
    let pairs = row.walk == WalkKind::Permuted;
    let make = || transposed((device, row.dtype), extents, runs, (slots, address), pairs);
    let transposed = transposes.get(pairs, make)?;
    let ordered = match pairs {
        true => None,
        false => {
            let counts = (slots, runs.total as usize);
            let (steps, element) = (Steps::new(device, row.dtype)?, row.dtype.bytes());
            let permutation = Permutation::Shared(Arc::clone(&transposed));
            // SAFETY: the permutation is made, and the result is stored with it.
            let queue = unsafe { Queue::new(device.after_all()?) };
            Some(Ordered::new(device, steps, permutation, counts, element, queue)?)
        }
    };
    Ok(Turned { transposed, ordered })
}

/// Transposes a pattern, with pairs or with columns and a permutation.
fn transposed(
    (device, dtype): (&Arc<Device>, Dtype),
    Extents { m, k, .. }: Extents,
    runs: &Runs,
    (slots, address): (usize, u64),
    pairs: bool,
) -> Result<TransposedPattern> {
    let entries = runs.total as usize;
    allocate::terms("rows of the transpose", m as u128, 12, 8 * slots as u64)?;
    let mut offsets = allocate::filled("offsets", k + 1, slots as u32)?;
    let mut next = slots as u32;
    for (offset, &(start, len)) in offsets[..k].iter_mut().zip(&runs.rows).rev() {
        next = if len > 0 { start } else { next };
        *offset = next;
    }
    let transpose = Transpose::new(device, (k, m), slots, slots > entries, dtype)?;
    let each = if pairs { PAIR } else { 4 };
    let pattern = device.zeros((entries + VECTOR_ENTRIES) * each)?;
    let positions = if pairs { 0 } else { entries };
    let permutation = DeviceMemory::alloc(device.context(), positions * 4)?;
    let starts = DeviceMemory::alloc(device.context(), (m + 1) * 4)?;
    let offsets = device.upload(&offsets)?;
    let [first, second] = match pairs {
        true => [pattern.address(), 0],
        false => [permutation.address(), pattern.address()],
    };
    let out = SortOut { first, second, pairs, capacity: entries, ..SortOut::default() };
    // SAFETY: the arrays have these sizes and live past the read below; the result owns the pattern.
    let queue = unsafe { Queue::new(device.after_all()?) };
    transpose.run([offsets.address(), address], starts.address(), out, queue)?;
    let mut turned = allocate::zeroed("offsets", m + 1)?;
    device.read(&starts, &mut turned)?;
    Ok(TransposedPattern {
        pattern,
        permutation: (!pairs).then_some(permutation),
        runs: Runs::of_offsets(&turned)?,
    })
}
