//! Kernel maps of sparse convolutions: for every output voxel and offset of the kernel the input voxel there, if any.
//! Rows are kept in an order in which neighbours in the list have neighbours at the same offsets.

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

/// Rows of a tile and of a mask, and what stands for no neighbour.
pub(crate) const ROWS: usize = einsparse_kernels::families::CONV_ROWS;
pub(crate) const HALF: usize = einsparse_kernels::families::CONV_HALF;
pub(crate) const ABSENT: u32 = einsparse_kernels::families::CONV_ABSENT;

/// Which input voxels meet which output voxels at which offset of a convolution's kernel, in a context.
///
/// Row o of the output is output voxel o. Offset t is that of `W[t,c,m]`, in the order of [`ConvGeometry::offsets`]; it
/// leads from an output voxel, times the stride, to an input voxel.
///
/// Inside, output voxels are sorted by the set of offsets that they have neighbours at, so that a tile of them shares
/// offsets and products of empty tiles are left out (Tang et al., TorchSparse++, MICRO 2023, section 4.1); here by the rank of
/// that set in a Gray code with the offsets farthest from the centre as highest bits: neighbours in the order differ in
/// few offsets.
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
    /// In front of the context, which outlives it.
    order: Arc<Mutex<Order>>,
    context: Context,
    inputs: usize,
    outputs: usize,
    volume: usize,
    /// Bits of an offset in the key of the order.
    ranks: Vec<u32>,
    arrays: Arrays,
    voxels: Vec<[i32; 4]>,
    turned: OnceLock<Arc<KernelMap>>,
    /// On a CPU context the same map of a GPU that is not there, once it is asked for.
    shadow: OnceLock<Arc<KernelMap>>,
}

/// What kernels walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapArrays<S> {
    /// For each offset and position the input row, or [`ABSENT`]; positions padded to tiles.
    pub neighbours: S,
    /// The output row of each position.
    pub order: S,
    /// For each 64 positions the offsets there, words of 32.
    pub masks: S,
    /// Tiles of 128 positions, those with the most offsets first.
    pub schedule: S,
}

#[derive(Debug)]
pub(crate) enum Arrays {
    Host(HostArrays),
    Device(MapArrays<DeviceMemory>, Arc<Device>),
}

/// Arrays of the CPU, in place of which a rebuild puts others.
#[derive(Debug)]
pub(crate) struct HostArrays(RwLock<Arc<MapArrays<Vec<u32>>>>);

impl HostArrays {
    fn new(arrays: MapArrays<Vec<u32>>) -> Self {
        HostArrays(RwLock::new(Arc::new(arrays)))
    }

    /// Those of now.
    pub(crate) fn get(&self) -> Arc<MapArrays<Vec<u32>>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, arrays: MapArrays<Vec<u32>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(arrays);
    }
}

impl KernelMap {
    /// The map of a submanifold convolution (Graham et al., arXiv 1711.10275): output voxels are the input voxels, each
    /// `[batch, x, y, z]`.
    ///
    /// # Errors
    /// [`Error::Operand`] if a voxel is there twice, lies beyond 2^30, or the kernel is empty.
    pub fn submanifold(context: &Context, voxels: &[[i32; 4]], kernel: [usize; 3]) -> Result<Self> {
        let geometry = ConvGeometry::new(kernel, [1; 3], [1; 3])?;
        Self::new(context, voxels, &geometry)
    }

    /// The map of a convolution of voxels `[batch, x, y, z]`. Without strides output voxels are the input voxels; with
    /// strides `s` they are `floor(voxel / s)`, each once, in the order of their first input voxel.
    ///
    /// # Errors
    /// As [`KernelMap::submanifold`].
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

    /// Of neighbours by output row and offset, on the CPU.
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

    /// Rows of the input.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Rows of the output.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Offsets of the kernel: the first extent of its weights.
    pub fn volume(&self) -> usize {
        self.volume
    }

    /// Voxels `[batch, x, y, z]` of the output rows; of transposed and rebuilt maps none are kept.
    pub fn voxels(&self) -> &[[i32; 4]] {
        match self.order().is_rebuilt() {
            false => &self.voxels,
            true => &[],
        }
    }

    /// Held while what reads or writes the arrays, or those of the transposed map, is queued.
    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Positions, whole tiles.
    pub(crate) fn stride(&self) -> usize {
        self.outputs.next_multiple_of(ROWS)
    }

    /// Words of a mask.
    pub(crate) fn words(&self) -> usize {
        self.volume.div_ceil(32)
    }

    /// The map of an absent GPU, on a CPU context.
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

    /// Device bytes, those of the transposed map included where it has been made.
    pub fn bytes(&self) -> usize {
        let own = match &self.arrays {
            Arrays::Host(_) => 0,
            Arrays::Device(a, _) => {
                [&a.neighbours, &a.order, &a.masks, &a.schedule].iter().map(|m| m.bytes()).sum()
            }
        };
        own + self.turned.get().map_or(0, |turned| turned.bytes())
    }

    /// The transposed map, which the gradient of the input walks: made when first asked for.
    ///
    /// # Errors
    /// [`Error::Operand`] if it is first asked for after a CUDA graph captured a rebuild, which does not reach it.
    pub fn transposed(&self) -> Result<&Arc<KernelMap>> {
        if let Some(shadow) = self.shadow.get() {
            shadow.transposed()?;
        }
        // No rebuild comes in between.
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

    /// The arrays on the host.
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

    /// Pairs of an input and an output voxel, and how many rows the kernels multiply for them: tiles of 64 positions
    /// and an offset that any of them has a neighbour at. Waits for all work on the GPU.
    pub fn pairs(&self) -> Result<(usize, usize)> {
        let host = self.to_host()?;
        let pairs = host.neighbours.iter().filter(|&&n| n != ABSENT).count();
        let tiles: usize = host.masks.iter().map(|m| m.count_ones() as usize).sum();
        Ok((pairs, tiles * HALF))
    }

    /// All arrays one behind the other, for tests that a map of a GPU is that of the CPU.
    #[doc(hidden)]
    pub fn to_words(&self) -> Result<[Vec<u32>; 4]> {
        let a = self.to_host()?;
        Ok([a.neighbours, a.order, a.masks, a.schedule])
    }
}
