//! Kernel maps of a U-Net, and their rebuilding for other clouds.

use std::sync::Arc;

use einsparse::formats::Dense;
use einsparse::ops::{ConvGeometry, KernelMap, KernelMapBuilder};
use einsparse::{Context, Result, Stream, Tensor};

use super::wiring::LEVELS;

/// Kernel maps: 3 x 3 x 3 at each level, 2 x 2 x 2 from each level to the next, and from every voxel to itself.
pub struct Maps {
    pub same: Vec<Arc<KernelMap>>,
    pub down: Vec<Arc<KernelMap>>,
    pub each: Arc<KernelMap>,
}

fn cube() -> Result<ConvGeometry> {
    ConvGeometry::new([3; 3], [1; 3], [1; 3])
}

fn halved() -> Result<ConvGeometry> {
    ConvGeometry::new([2; 3], [2; 3], [1; 3])
}

impl Maps {
    pub fn new(ctx: &Context, voxels: &[[i32; 4]]) -> Result<Self> {
        let (mut same, mut down) = (Vec::new(), Vec::<Arc<KernelMap>>::new());
        for level in 0..LEVELS {
            let own = level.checked_sub(1).map_or(voxels, |at| down[at].voxels());
            same.push(Arc::new(KernelMap::new(ctx, own, &cube()?)?));
            if level + 1 < LEVELS {
                let next = KernelMap::new(ctx, own, &halved()?)?;
                // Builds the transposed map too, for the way up.
                next.transposed()?;
                down.push(Arc::new(next));
            }
        }
        let each = Arc::new(KernelMap::submanifold(ctx, voxels, [1; 3])?);
        Ok(Maps { same, down, each })
    }
}

/// Rebuilds the maps for other clouds of at most as many voxels, on the GPU.
pub struct Rebuild {
    same: Vec<KernelMapBuilder>,
    down: Vec<KernelMapBuilder>,
    /// Voxels of each level; the first level is the cloud.
    voxels: Vec<Tensor<i32>>,
}

impl Rebuild {
    pub fn new(ctx: &Context, maps: &Maps, voxels: &[[i32; 4]]) -> Result<Self> {
        let count = |level: usize| maps.same[level].inputs();
        let same = (0..LEVELS).map(|l| KernelMapBuilder::new(ctx, count(l), &cube()?));
        let down = (0..LEVELS - 1)
            .map(|l| KernelMapBuilder::strided(ctx, [count(l), count(l + 1)], &halved()?));
        let (same, down) = (same.collect::<Result<_>>()?, down.collect::<Result<_>>()?);
        let first = ctx.upload_dense(&Dense::new([voxels.len(), 4], voxels.concat())?)?;
        let rest = (1..LEVELS).map(|l| ctx.zeros(&[count(l), 4]));
        let voxels = [Ok(first)].into_iter().chain(rest).collect::<Result<_>>()?;
        Ok(Rebuild { same, down, voxels })
    }

    pub fn run(&mut self, maps: &Maps, stream: &Stream) -> Result<()> {
        for (level, builder) in self.same.iter().enumerate() {
            let (own, coarser) = self.voxels.split_at_mut(level + 1);
            builder.rebuild(&maps.same[level], &own[level], stream)?;
            if let (Some(down), Some(coarse)) = (self.down.get(level), coarser.first_mut()) {
                down.rebuild_strided(&maps.down[level], &own[level], coarse, stream)?;
            }
        }
        Ok(())
    }
}
