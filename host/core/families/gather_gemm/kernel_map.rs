//! Kernel maps of sparse convolutions. For each output voxel and each offset of the kernel, a map holds the input voxel
//! at that position, if any. Rows are sorted so that adjacent rows have neighbours at the same offsets.

mod build;
mod geometry;
mod lists;
mod on_device;
mod order;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::context::Context;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};

pub use geometry::ConvGeometry;
pub(crate) use lists::MapLists;
pub use on_device::KernelMapBuilder;
use order::Order;

/// Rows of a tile, rows of a mask, and the index of a missing neighbour.
pub(crate) const ROWS: usize = einsparse_kernels::families::CONV_ROWS;
pub(crate) const HALF: usize = einsparse_kernels::families::CONV_HALF;
pub(crate) const ABSENT: u32 = einsparse_kernels::families::CONV_ABSENT;

/// Kernel map: the input voxel of each output voxel and each offset of a convolution's kernel, in a context.
///
/// Row o of the output is output voxel o. Offset t is that of `W[t,c,m]`, in the order of [`ConvGeometry::offsets`]. It
/// leads from an output voxel, times the stride, to an input voxel.
///
/// Output voxels are sorted by the set of offsets at which they have neighbours. A tile of them then shares offsets,
/// and products of empty tiles are skipped (Tang et al., TorchSparse++, MICRO 2023, section 4.1). The sort key is the
/// rank of that set in a Gray code, with the offsets farthest from the centre as highest bits. Voxels that are adjacent
/// in this order differ in few offsets.
///
/// ```
/// use einsparse::ops::KernelMap;
/// let voxels = [[0, 0, 0, 0], [0, 0, 0, 1], [0, 5, 5, 5]];
/// let map = KernelMap::submanifold(&einsparse::Context::cpu(), &voxels, [3, 3, 3])?;
/// assert_eq!((map.inputs(), map.outputs(), map.volume()), (3, 3, 27));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct KernelMap {
    /// Declared before `context`, because fields are dropped in this order.
    order: Arc<Mutex<Order>>,
    context: Context,
    inputs: usize,
    outputs: usize,
    volume: usize,
    /// Bit of each offset in the sort key.
    ranks: Vec<u32>,
    arrays: Arrays,
    voxels: Vec<[i32; 4]>,
    turned: OnceLock<Arc<KernelMap>>,
    /// On a CPU context, the same map on an absent GPU, created on first use.
    shadow: OnceLock<Arc<KernelMap>>,
}

/// Arrays that kernels read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapArrays<S> {
    /// Input row of each offset and position, or [`ABSENT`]. Positions are padded to whole tiles.
    pub neighbours: S,
    /// Output row of each position.
    pub order: S,
    /// Offsets with neighbours, per group of 64 positions, in words of 32 bits.
    pub masks: S,
    /// Tiles of 128 positions, sorted by decreasing number of offsets.
    pub schedule: S,
}

#[derive(Debug)]
pub(crate) enum Arrays {
    Host(HostArrays),
    Device(MapArrays<DeviceMemory>, Arc<Device>),
}

/// Arrays in host memory, which a rebuild replaces.
#[derive(Debug)]
pub(crate) struct HostArrays(RwLock<Arc<MapArrays<Vec<u32>>>>);

impl HostArrays {
    fn new(arrays: MapArrays<Vec<u32>>) -> Self {
        HostArrays(RwLock::new(Arc::new(arrays)))
    }

    /// Returns the current arrays.
    pub(crate) fn get(&self) -> Arc<MapArrays<Vec<u32>>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, arrays: MapArrays<Vec<u32>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(arrays);
    }
}

impl KernelMap {
    /// Creates the map of a submanifold convolution (Graham et al., arXiv 1711.10275). Output voxels are the input
    /// voxels, `[batch, x, y, z]` each.
    ///
    /// # Errors
    /// [`Error::Operand`] if a voxel occurs twice or a coordinate is not below 2^30; [`Error::OutOfRange`] if the
    /// kernel is empty.
    pub fn submanifold(context: &Context, voxels: &[[i32; 4]], kernel: [usize; 3]) -> Result<Self> {
        let geometry = ConvGeometry::new(kernel, [1; 3], [1; 3])?;
        Self::new(context, voxels, &geometry)
    }

    /// Creates the map of a convolution of voxels `[batch, x, y, z]`. Without strides, output voxels are the input
    /// voxels. With strides `s` they are `floor(voxel / s)`, each once, in the order of their first input voxel.
    ///
    /// # Errors
    /// As for [`KernelMap::submanifold`].
    pub fn new(context: &Context, voxels: &[[i32; 4]], geometry: &ConvGeometry) -> Result<Self> {
        build::check(voxels)?;
        let device = context.device();
        if let Some(device) = device.filter(|device| !device.is_absent()) {
            return on_device::new(context, device, voxels, geometry);
        }
        let out = build::outputs(voxels, geometry);
        let raw = build::neighbours(voxels, &out, geometry)?;
        let ranks = geometry.ranks();
        let made = Self::from_raw(context, voxels.len(), out.len(), out, &raw, ranks)?;
        match device {
            Some(absent) => made.on(absent),
            None => Ok(made),
        }
    }

    /// Creates a map on the CPU from neighbours by output row and offset.
    fn from_raw(
        context: &Context,
        inputs: usize,
        outputs: usize,
        voxels: Vec<[i32; 4]>,
        raw: &[u32],
        ranks: Vec<u32>,
    ) -> Result<Self> {
        let arrays = build::arrange(raw, outputs, &ranks);
        Ok(KernelMap {
            context: context.clone(),
            inputs,
            outputs,
            volume: ranks.len(),
            ranks,
            arrays: Arrays::Host(HostArrays::new(arrays)),
            voxels,
            turned: OnceLock::new(),
            shadow: OnceLock::new(),
            order: Arc::default(),
        })
    }

    /// Returns the number of input rows.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of output rows.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the number of offsets of the kernel, the first extent of its weights.
    pub fn volume(&self) -> usize {
        self.volume
    }

    /// Returns the voxels `[batch, x, y, z]` of the output rows. The slice is empty for transposed and rebuilt maps.
    pub fn voxels(&self) -> &[[i32; 4]] {
        match self.order().is_rebuilt() {
            false => &self.voxels,
            true => &[],
        }
    }

    /// Locks the order, while launches that read or write the arrays, or those of the transposed map, are queued.
    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of positions, a multiple of the rows of a tile.
    pub(crate) fn stride(&self) -> usize {
        self.outputs.next_multiple_of(ROWS)
    }

    pub(crate) fn words(&self) -> usize {
        self.volume.div_ceil(32)
    }

    /// Returns the map on an absent GPU, for a map in a CPU context.
    pub(crate) fn shadow(&self) -> Result<Option<&Arc<KernelMap>>> {
        if self.context.is_cuda() {
            return Ok(None);
        }
        if let Some(made) = self.shadow.get() {
            return Ok(Some(made));
        }
        let made = Arc::new(self.on(self.context.planned_on()?)?);
        if self.turned.get().is_some() {
            made.transposed()?;
        }
        Ok(Some(self.shadow.get_or_init(|| made)))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    /// Returns the bytes in device memory, including the transposed map if it exists.
    pub fn bytes(&self) -> usize {
        let own = match &self.arrays {
            Arrays::Host(_) => 0,
            Arrays::Device(a, _) => {
                [&a.neighbours, &a.order, &a.masks, &a.schedule].iter().map(|m| m.bytes()).sum()
            }
        };
        own + self.turned.get().map_or(0, |turned| turned.bytes())
    }

    /// Returns the transposed map, which the gradient of the input reads. The first call creates it.
    ///
    /// # Errors
    /// [`Error::Capture`] if the first call follows the capture of a rebuild in a CUDA graph: that rebuild would not
    /// update it.
    pub fn transposed(&self) -> Result<&Arc<KernelMap>> {
        if let Some(shadow) = self.shadow.get() {
            shadow.transposed()?;
        }
        // The lock excludes a rebuild until the transposed map is stored.
        let order = self.order();
        if let Some(made) = self.turned.get() {
            return Ok(made);
        }
        order.may_transpose()?;
        let map = match &self.arrays {
            Arrays::Host(arrays) => {
                let raw = build::transpose(&arrays.get(), self.inputs, self.volume);
                let (ranks, outputs) = (self.ranks.clone(), self.inputs);
                Self::from_raw(&self.context, self.outputs, outputs, Vec::new(), &raw, ranks)?
            }
            Arrays::Device(arrays, device) => on_device::transpose(self, arrays, device)?,
        };
        Ok(self.turned.get_or_init(|| Arc::new(map)))
    }

    /// Copies the arrays to the host.
    pub(crate) fn to_host(&self) -> Result<MapArrays<Vec<u32>>> {
        match &self.arrays {
            Arrays::Host(arrays) => Ok((*arrays.get()).clone()),
            Arrays::Device(arrays, device) => {
                let read = |memory: &DeviceMemory| {
                    let mut words = vec![0u32; memory.bytes() / 4];
                    device.read(memory, &mut words)?;
                    Ok::<_, Error>(words)
                };
                Ok(MapArrays {
                    neighbours: read(&arrays.neighbours)?,
                    order: read(&arrays.order)?,
                    masks: read(&arrays.masks)?,
                    schedule: read(&arrays.schedule)?,
                })
            }
        }
    }

    /// Returns the number of pairs of an input and an output voxel, and the number of rows that the kernels multiply.
    /// The second counts 64 rows for each group of 64 positions and each offset at which any of them has a neighbour.
    /// Synchronizes with all work on the GPU.
    pub fn pairs(&self) -> Result<(usize, usize)> {
        let host = self.to_host()?;
        let pairs = host.neighbours.iter().filter(|&&n| n != ABSENT).count();
        let tiles: usize = host.masks.iter().map(|m| m.count_ones() as usize).sum();
        Ok((pairs, tiles * HALF))
    }

    /// Returns all arrays, for tests that compare a map of a GPU with that of the CPU.
    #[doc(hidden)]
    pub fn to_words(&self) -> Result<[Vec<u32>; 4]> {
        let a = self.to_host()?;
        Ok([a.neighbours, a.order, a.masks, a.schedule])
    }
}
