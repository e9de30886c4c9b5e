//! Kernel maps on a GPU.

use std::sync::{Arc, OnceLock};

use super::{Arrays, ConvGeometry, KernelMap, MapArrays, build};
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::driver::{DeviceMemory, Event, RawStream};
use crate::error::{Error, Result};
use crate::families::gather_gemm::{MapSteps, strided};
use crate::kernel::Queue;
use crate::tensor::Tensor;

impl KernelMap {
    /// Queues the wait for a rebuild on another stream.
    pub(crate) fn wait(&self, stream: RawStream<'_>) -> Result<()> {
        match &self.rebuilt {
            Some(rebuilt) if !stream.is_capturing()? => stream.wait(rebuilt),
            _ => Ok(()),
        }
    }
}

/// The map of voxels that were looked at, made on a GPU; returns when it is there.
pub(super) fn new(
    context: &Context,
    device: &Arc<Device>,
    voxels: &[[i32; 4]],
    geometry: &ConvGeometry,
) -> Result<KernelMap> {
    let own = device.upload(bytemuck::cast_slice::<[i32; 4], i32>(voxels))?;
    // SAFETY: the voxels were uploaded above; they and all that is made here are live until the wait.
    let queue = unsafe { Queue::new(device.copies()) };
    // With strides of 1 this says how many different voxels there are.
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
        device.read(
            &out,
            bytemuck::cast_slice_mut::<[i32; 4], i32>(&mut outputs),
        )?;
        (Some(out), outputs)
    };
    let (ranks, offsets) = (geometry.ranks(), geometry.offsets());
    let extents = (voxels.len(), outputs.len());
    let steps = MapSteps::new(device, extents, &offsets, &ranks, geometry.stride())?;
    let arrays = steps.arrays()?;
    let places = [&own, out.as_ref().unwrap_or(&own)].map(DeviceMemory::address);
    steps.run(places, voxels.len(), &arrays, queue)?;
    queue.stream().synchronize()?;
    Ok(made(context, extents, outputs, ranks, (arrays, device)))
}

fn made(
    context: &Context,
    (inputs, outputs): (usize, usize),
    voxels: Vec<[i32; 4]>,
    ranks: Vec<u32>,
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
        rebuilt: None,
    }
}

/// The transposed map, made on the GPU; returns when it is there.
pub(super) fn transpose(
    map: &KernelMap,
    arrays: &MapArrays<DeviceMemory>,
    device: &Arc<Device>,
) -> Result<KernelMap> {
    let steps = MapSteps::new(device, (0, map.inputs), &[], &map.ranks, [1; 3])?;
    let to = steps.arrays()?;
    // SAFETY: both maps are live until the wait.
    let queue = unsafe { Queue::new(device.after_all()?) };
    steps.transpose(arrays, map.stride(), &to, queue)?;
    queue.stream().synchronize()?;
    let extents = (map.outputs, map.inputs);
    Ok(made(
        &map.context,
        extents,
        Vec::new(),
        map.ranks.clone(),
        (to, device),
    ))
}

/// Makes submanifold maps of as many voxels again and again, for clouds that come one after the other: kernels and
/// workspace are kept, the host is not waited for.
///
/// ```
/// use einsparse::ops::{ConvGeometry, KernelMapBuilder};
/// let ctx = einsparse::Context::new();
/// let geometry = ConvGeometry::new([3, 3, 3], [1, 1, 1], [1, 1, 1])?;
/// assert_eq!(KernelMapBuilder::new(&ctx, 1000, &geometry).is_ok(), ctx.is_cuda());
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct KernelMapBuilder {
    device: Arc<Device>,
    steps: MapSteps,
    count: usize,
    volume: usize,
}

impl KernelMapBuilder {
    /// For maps of `count` voxels in a context on a GPU.
    ///
    /// # Errors
    /// [`Error::Operand`] for a kernel with strides; [`Error::Cuda`] on the CPU.
    pub fn new(context: &Context, count: usize, geometry: &ConvGeometry) -> Result<Self> {
        let device = context.expect_device()?;
        if !geometry.is_submanifold() {
            return Err(Error::operand(
                "geometry",
                "has strides: how many voxels its output has must be waited for",
            ));
        }
        let (ranks, offsets) = (geometry.ranks(), geometry.offsets());
        Ok(KernelMapBuilder {
            steps: MapSteps::new(device, (count, count), &offsets, &ranks, [1; 3])?,
            device: Arc::clone(device),
            count,
            volume: ranks.len(),
        })
    }

    /// Device bytes of the workspace.
    pub fn bytes(&self) -> usize {
        self.steps.bytes()
    }

    /// Queues the map of other voxels into a map of this builder's size. `voxels` is `[count, 4]`, batch, x, y, z, each
    /// place once and within 2^30: that is not looked at.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Operand`] for voxels, map or stream of other sizes or places.
    pub fn rebuild(
        &self,
        map: &mut KernelMap,
        voxels: &Tensor<i32>,
        stream: &Stream,
    ) -> Result<()> {
        let sizes = [map.inputs, map.outputs, map.volume];
        if voxels.shape() != [self.count, 4] || sizes != [self.count, self.count, self.volume] {
            return Err(Error::Shape {
                index: "voxels".into(),
                left: format!(
                    "the builder makes maps of {} voxels and {} offsets",
                    self.count, self.volume
                ),
                right: format!("voxels are {:?}, the map has {sizes:?}", voxels.shape()),
            });
        }
        let own = |device: Option<&Arc<Device>>| device.is_some_and(|d| d.is_same(&self.device));
        let whole = voxels.leading() == 4 && voxels.address().is_some_and(|a| a % 16 == 0);
        let Arrays::Device(arrays, _) = &map.arrays else {
            return Err(elsewhere());
        };
        if !own(voxels.device()) || !own(map.context.device()) || !whole {
            return Err(elsewhere());
        }
        if !stream.belongs_to(&self.device) {
            return Err(elsewhere());
        }
        let at = voxels.address().unwrap_or(0);
        // SAFETY: sizes and places were checked; the caller keeps both as long as the stream works.
        let queue = unsafe { Queue::new(stream.raw()) };
        self.steps.run([at, at], self.count, arrays, queue)?;
        if !stream.raw().is_capturing()? {
            let rebuilt = match map.rebuilt.take() {
                Some(event) => event,
                None => Event::for_order()?,
            };
            rebuilt.record(stream.raw())?;
            map.rebuilt = Some(rebuilt);
        }
        map.voxels = Vec::new();
        map.turned = OnceLock::new();
        Ok(())
    }
}

fn elsewhere() -> Error {
    let reason =
        "voxels, map and stream must belong to the builder's GPU, rows of voxels without gaps";
    Error::operand("voxels", reason)
}
