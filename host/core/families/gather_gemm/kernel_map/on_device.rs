//! Kernel maps on a GPU.

use std::sync::{Arc, Mutex, OnceLock};

use super::{Arrays, ConvGeometry, KernelMap, MapArrays, Order, build};
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::driver::DeviceMemory;
use crate::error::{Elsewhere, Error, Result};
use crate::families::gather_gemm::{MapSteps, StrideSteps, strided};
use crate::kernel::Queue;
use crate::tensor::Tensor;

/// Creates the map of validated voxels on a GPU. Returns after the GPU has finished.
pub(super) fn new(
    context: &Context,
    device: &Arc<Device>,
    voxels: &[[i32; 4]],
    geometry: &ConvGeometry,
) -> Result<KernelMap> {
    let own = device.upload(bytemuck::cast_slice::<[i32; 4], i32>(voxels))?;
    // SAFETY: the voxels were uploaded above; they and all memory created here live until the synchronization.
    let queue = unsafe { Queue::new(device.copies()) };
    // With strides of 1, the result is the number of distinct voxels.
    let once = ConvGeometry::new([1; 3], [1; 3], [1; 3])?;
    let (_, places) = strided(device, own.address(), voxels.len(), &once, queue)?;
    if places != voxels.len() {
        build::distinct(voxels)?;
    }
    let (out, outputs) = if geometry.is_submanifold() {
        (None, voxels.to_vec())
    } else {
        let (out, count) = strided(device, own.address(), voxels.len(), geometry, queue)?;
        let mut outputs = vec![[0; 4]; count];
        device.read(&out, bytemuck::cast_slice_mut::<[i32; 4], i32>(&mut outputs))?;
        (Some(out), outputs)
    };
    let (ranks, offsets) = (geometry.ranks(), geometry.offsets());
    let extents = (voxels.len(), outputs.len());
    let steps = MapSteps::new(device, extents, &offsets, &ranks, geometry.stride())?;
    let arrays = steps.arrays()?;
    let places = [&own, out.as_ref().unwrap_or(&own)].map(DeviceMemory::address);
    steps.run(places, voxels.len(), &arrays, queue)?;
    queue.stream().synchronize()?;
    Ok(made(context, extents, outputs, (ranks, Arc::default()), (arrays, device)))
}

fn made(
    context: &Context,
    (inputs, outputs): (usize, usize),
    voxels: Vec<[i32; 4]>,
    (ranks, order): (Vec<u32>, Arc<Mutex<Order>>),
    (arrays, device): (MapArrays<DeviceMemory>, &Arc<Device>),
) -> KernelMap {
    KernelMap {
        context: context.clone(),
        inputs,
        outputs,
        volume: ranks.len(),
        ranks,
        arrays: Arrays::Device(arrays, Arc::clone(device)),
        voxels,
        turned: OnceLock::new(),
        shadow: OnceLock::new(),
        order,
    }
}

/// Creates the transposed map on the GPU. Returns after the GPU has finished.
pub(super) fn transpose(
    map: &KernelMap,
    arrays: &MapArrays<DeviceMemory>,
    device: &Arc<Device>,
) -> Result<KernelMap> {
    let steps = MapSteps::new(device, (0, map.inputs), &[], &map.ranks, [1; 3])?;
    let to = steps.arrays()?;
    // SAFETY: both maps live until the synchronization.
    let queue = unsafe { Queue::new(device.after_all()?) };
    steps.transpose(arrays, map.stride(), &to, queue)?;
    queue.stream().synchronize()?;
    let extents = (map.outputs, map.inputs);
    Ok(made(
        &map.context,
        extents,
        Vec::new(),
        (map.ranks.clone(), Arc::clone(&map.order)),
        (to, device),
    ))
}

/// Builder that recreates maps of the same sizes, for point clouds that follow one another. It keeps kernels and
/// workspace, does not synchronize with the host, and can be captured in a CUDA graph. Later convolutions with the map
/// use the new one.
///
/// A voxel of batch `i32::MIN` is padding: it is not a neighbour of any voxel, not even of itself. Smaller clouds are
/// padded to the size of the map. Output rows after the last voxel are without inputs: they contain bias and activation
/// alone.
///
/// ```
/// use einsparse::ops::{ConvGeometry, KernelMapBuilder};
/// let ctx = einsparse::Context::new();
/// let geometry = ConvGeometry::new([3, 3, 3], [1, 1, 1], [1, 1, 1])?;
/// let builder = KernelMapBuilder::new(&ctx, 1000, &geometry)?; // also on a CPU
/// # drop(builder);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct KernelMapBuilder {
    context: Context,
    geometry: ConvGeometry,
    /// Absent GPU on a CPU context.
    device: Arc<Device>,
    steps: MapSteps,
    /// Steps of maps with strides.
    strided: Option<StrideSteps>,
    /// Steps of transposed maps, created when one is first rebuilt.
    turned: OnceLock<MapSteps>,
    inputs: usize,
    outputs: usize,
    ranks: Vec<u32>,
}

impl KernelMapBuilder {
    /// Creates a builder of submanifold maps of `count` voxels.
    ///
    /// # Errors
    /// [`Error::Operand`] for a kernel with strides, which [`strided`](Self::strided) accepts.
    pub fn new(context: &Context, count: usize, geometry: &ConvGeometry) -> Result<Self> {
        if !geometry.is_submanifold() {
            let reason =
                "has strides: `KernelMapBuilder::strided` is told how many voxels come out";
            return Err(Error::operand("geometry", reason));
        }
        Self::of(context, [count, count], geometry, None)
    }

    /// Creates a builder of maps with strides, from `inputs` voxels to at most `outputs`.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::Dense;
    /// use einsparse::ops::{ConvGeometry, KernelMap, KernelMapBuilder};
    /// let ctx = Context::new();
    /// let halved = ConvGeometry::new([2, 2, 2], [2, 2, 2], [1, 1, 1])?;
    /// let map = KernelMap::new(&ctx, &[[0, 0, 0, 0], [0, 2, 0, 0], [0, 3, 0, 0]], &halved)?;
    /// // Another cloud, which has one voxel at half the resolution.
    /// let words = vec![0, 4, 4, 4, 0, 5, 4, 4, i32::MIN, 0, 0, 0];
    /// let voxels = ctx.upload_dense(&Dense::new([3, 4], words)?)?;
    /// let (mut coarse, stream) = (ctx.zeros(&[2, 4])?, ctx.stream()?);
    /// let builder = KernelMapBuilder::strided(&ctx, [3, 2], &halved)?;
    /// builder.rebuild_strided(&map, &voxels, &mut coarse, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(coarse.to_dense()?.values(), [0, 2, 2, 2, i32::MIN, 0, 0, 0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Operand`] for a kernel without strides, or if `outputs` exceeds `inputs`.
    pub fn strided(
        context: &Context,
        [inputs, outputs]: [usize; 2],
        geometry: &ConvGeometry,
    ) -> Result<Self> {
        if geometry.is_submanifold() || outputs > inputs {
            let reason = format!(
                "has strides {:?}, and {outputs} of {inputs} voxels are to come out: no more than go in",
                geometry.stride()
            );
            return Err(Error::operand("geometry", reason));
        }
        let steps = StrideSteps::new(context.planned_on()?, inputs, geometry)?;
        Self::of(context, [inputs, outputs], geometry, Some(steps))
    }

    fn of(
        context: &Context,
        [inputs, outputs]: [usize; 2],
        geometry: &ConvGeometry,
        strided: Option<StrideSteps>,
    ) -> Result<Self> {
        let (ranks, offsets) = (geometry.ranks(), geometry.offsets());
        let (device, extents) = (context.planned_on()?, (inputs, outputs));
        Ok(KernelMapBuilder {
            context: context.clone(),
            geometry: geometry.clone(),
            steps: MapSteps::new(device, extents, &offsets, &ranks, geometry.stride())?,
            device: Arc::clone(device),
            strided,
            turned: OnceLock::new(),
            inputs,
            outputs,
            ranks,
        })
    }

    /// Returns the bytes of the workspace in device memory.
    pub fn bytes(&self) -> usize {
        let turned = self.turned.get().map_or(0, MapSteps::bytes);
        self.steps.bytes() + self.strided.as_ref().map_or(0, StrideSteps::bytes) + turned
    }

    /// Queues the rebuild of a map of this builder's size, and of its transposed map if that exists. `voxels` is
    /// `[count, 4]`: batch, x, y, z. Voxels must be distinct and within 2^30; this is not validated.
    ///
    /// A rebuild waits for rebuilds and convolutions of the map on other streams, and these wait for it. The first
    /// rebuild of a map also synchronizes with the GPU. Replays of a CUDA graph are not ordered this way: the caller
    /// must order them with work on other streams ([`Stream::wait_for`]).
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Operand`] if sizes or contexts of voxels, map or stream differ from the builder's,
    /// or if the builder makes maps with strides. Also if a graph captured a [gradient of
    /// weights](crate::ops::SparseConv3d::backward_weight) of the map before its first rebuild.
    pub fn rebuild(&self, map: &KernelMap, voxels: &Tensor<i32>, stream: &Stream) -> Result<()> {
        if self.context.is_cuda() {
            return self.queue_rebuild(map, voxels, stream);
        }
        let there = map.shadow()?.map_or(map, |shadow| shadow);
        self.queue_rebuild(there, &voxels.shadow(), stream.shadow())?;
        let voxels = rows_of(voxels).or_elsewhere("voxels")?;
        self.rebuild_on_host(map, &voxels, &voxels)
    }

    fn queue_rebuild(&self, map: &KernelMap, voxels: &Tensor<i32>, stream: &Stream) -> Result<()> {
        if self.strided.is_some() {
            let fix = "it makes maps with strides: call `rebuild_strided`, which also writes the output voxels";
            return Err(Error::not_planned("builder", fix));
        }
        let at = self.address("voxels", voxels, self.inputs)?;
        self.queue(map, [at, at], stream)
    }

    /// Queues the rebuild of a map with strides, and its output voxels in the order of their first input voxel:
    /// `[outputs, 4]`. If there are fewer, the rest is padding; if there are more, the rest is omitted.
    ///
    /// # Errors
    /// As for [`rebuild`](Self::rebuild), and if the builder makes submanifold maps.
    pub fn rebuild_strided(
        &self,
        map: &KernelMap,
        voxels: &Tensor<i32>,
        out: &mut Tensor<i32>,
        stream: &Stream,
    ) -> Result<()> {
        if self.context.is_cuda() {
            return self.queue_strided(map, voxels, out, stream);
        }
        let there = map.shadow()?.map_or(map, |shadow| shadow);
        self.queue_strided(there, &voxels.shadow(), &out.shadow(), stream.shadow())?;
        let voxels = rows_of(voxels).or_elsewhere("voxels")?;
        let made = build::outputs_of_any(&voxels, self.outputs, &self.geometry);
        let to = out.host_mut().or_elsewhere("out")?;
        to.copy_from_slice(&made.concat());
        self.rebuild_on_host(map, &voxels, &made)
    }

    /// Replaces the arrays in host memory, and those of the transposed map if it exists.
    fn rebuild_on_host(
        &self,
        map: &KernelMap,
        voxels: &[[i32; 4]],
        out: &[[i32; 4]],
    ) -> Result<()> {
        let raw = build::neighbours_of_any(voxels, out, &self.geometry)?;
        let arrays = build::arrange(&raw, self.outputs, &self.ranks);
        let mut order = map.order();
        order.set_rebuilt();
        if let Some(turned) = map.turned.get() {
            let raw = build::transpose(&arrays, self.inputs, self.ranks.len());
            turned.set_host(build::arrange(&raw, self.inputs, &self.ranks))?;
        }
        map.set_host(arrays)
    }

    fn queue_strided(
        &self,
        map: &KernelMap,
        voxels: &Tensor<i32>,
        out: &Tensor<i32>,
        stream: &Stream,
    ) -> Result<()> {
        let from = self.address("voxels", voxels, self.inputs)?;
        let to = self.address("out", out, self.outputs)?;
        self.check(map, stream)?;
        let Some(strided) = &self.strided else {
            return Err(Error::not_planned("builder", "it makes submanifold maps: call `rebuild`"));
        };
        // All later errors are detected before anything is queued.
        map.order().may_rebuild()?;
        self.turned(map)?;
        // SAFETY: sizes and contexts were validated; the caller keeps both tensors alive while the stream works.
        let queue = unsafe { Queue::new(stream.raw()) };
        strided.run([from, to], self.outputs, queue)?;
        self.queue(map, [from, to], stream)
    }

    /// Returns the address of voxels `[count, 4]`.
    fn address(&self, name: &str, voxels: &Tensor<i32>, count: usize) -> Result<u64> {
        if voxels.shape() != [count, 4] {
            return Err(Error::Shape {
                index: name.into(),
                left: format!("the builder takes [{count}, 4]"),
                right: format!("{name} are {:?}", voxels.shape()),
            });
        }
        let own = voxels.device().is_some_and(|d| d.is_same(&self.device));
        let whole = |a: &u64| own && voxels.leading() == 4 && a.is_multiple_of(16);
        Some(voxels.place()).filter(whole).ok_or_else(elsewhere)
    }

    fn check(&self, map: &KernelMap, stream: &Stream) -> Result<()> {
        let sizes = [map.inputs, map.outputs, map.volume];
        if sizes != [self.inputs, self.outputs, self.ranks.len()] {
            let (from, to, volume) = (self.inputs, self.outputs, self.ranks.len());
            return Err(Error::Shape {
                index: "map".into(),
                left: format!(
                    "the builder makes maps of {from} to {to} voxels and {volume} offsets"
                ),
                right: format!("the map has {sizes:?}"),
            });
        }
        let own = |device: Option<&Arc<Device>>| device.is_some_and(|d| d.is_same(&self.device));
        match own(map.context.device()) && stream.belongs_to(&self.device) {
            true => Ok(()),
            false => Err(elsewhere()),
        }
    }

    /// Returns the steps and the arrays of the transposed map, if it exists.
    fn turned<'m>(
        &self,
        map: &'m KernelMap,
    ) -> Result<Option<(&MapSteps, &'m MapArrays<DeviceMemory>)>> {
        let Some(turned) = map.turned.get() else {
            return Ok(None);
        };
        if turned.turned.get().is_some() {
            let reason =
                "and its transposed one were both transposed: a rebuild reaches only the first";
            return Err(Error::operand("map", reason));
        }
        let Arrays::Device(to, _) = &turned.arrays else {
            return Err(elsewhere());
        };
        let steps = match self.turned.get() {
            Some(made) => made,
            None => {
                let extents = (0, self.inputs);
                let made = MapSteps::new(&self.device, extents, &[], &self.ranks, [1; 3])?;
                self.turned.get_or_init(|| made)
            }
        };
        Ok(Some((steps, to)))
    }

    /// Queues the map of voxels at these addresses, and its transposed map.
    fn queue(&self, map: &KernelMap, at: [u64; 2], stream: &Stream) -> Result<()> {
        self.check(map, stream)?;
        let Arrays::Device(arrays, _) = &map.arrays else {
            return Err(elsewhere());
        };
        let mut order = map.order();
        let turned = self.turned(map)?;
        // SAFETY: sizes and contexts were validated; the caller keeps all tensors alive while the stream works.
        let queue = unsafe { Queue::new(stream.raw()) };
        order.rebuild((&self.device, stream.raw()), turned.is_none(), || {
            self.steps.run(at, self.inputs, arrays, queue)?;
            match turned {
                Some((steps, to)) => steps.transpose(arrays, map.stride(), to, queue),
                None => Ok(()),
            }
        })
    }
}

/// Returns the rows of voxels in host memory.
fn rows_of(voxels: &Tensor<i32>) -> Option<Vec<[i32; 4]>> {
    Some(voxels.host()?.as_chunks::<4>().0.to_vec())
}

impl KernelMap {
    fn set_host(&self, arrays: MapArrays<Vec<u32>>) -> Result<()> {
        let Arrays::Host(own) = &self.arrays else {
            return Err(elsewhere());
        };
        own.set(arrays);
        Ok(())
    }
}

fn elsewhere() -> Error {
    let reason =
        "voxels, map and stream must belong to the builder's context, rows of voxels without gaps";
    Error::operand("voxels", reason)
}
