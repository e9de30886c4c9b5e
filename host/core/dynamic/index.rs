//! Micro-tile index: for each panel, a list of the nonempty micro-tiles.

use std::sync::Arc;

use einsparse_formats::allocate;

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result, elements};
use crate::families::discover::DeviceLists;

/// Output of a detector, in its memory: for each panel, a list of positions along the PIT axis, and its length. It is
/// created once for a shape. Runs do not allocate, and do not copy the number of micro-tiles to the host.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::Detector;
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let a = Dense::from_fn([2, 8], |i| if [1, 2].contains(&i[1]) { f16::ONE } else { f16::ZERO })?;
/// let a = ctx.upload_dense(&a)?;
/// let detector = Detector::<f16>::new(&ctx, [2, 8], (32, 1), &Default::default())?;
/// let mut index = detector.index()?;
/// detector.run(&a, &mut index, &ctx.stream()?)?;
/// assert_eq!((index.panels(), index.stride()), (1, 64));
/// assert_eq!(index.counts()?, [2]);
/// assert_eq!(index.to_lists()?, [vec![1, 2]]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct MicroIndex {
    pub(super) panels: usize,
    pub(super) stride: usize,
    pub(super) storage: Lists,
}

#[derive(Debug)]
pub(super) enum Lists {
    /// Lists, and those of the simulated GPU. The latter are `None` on a CPU context without checks.
    Host(Vec<Vec<u32>>, Option<Box<DeviceLists>>),
    Device(DeviceLists, Arc<Device>),
}

impl MicroIndex {
    /// Creates an index of `panels` lists of `stride` positions each, with the arrays that the kernels write.
    pub(super) fn new(
        context: &Context,
        [panels, stride]: [usize; 2],
        written: Option<DeviceLists>,
    ) -> Result<Self> {
        let storage = match (written, context.device()) {
            (Some(written), Some(device)) => Lists::Device(written, Arc::clone(device)),
            (written, _) => {
                allocate::extent("panels", panels as u128, size_of::<Vec<u32>>(), 0)?;
                let lists = allocate::filled("lists of panels", panels, Vec::new())?;
                Lists::Host(lists, written.map(Box::new))
            }
        };
        Ok(MicroIndex { panels, stride, storage })
    }

    /// Lists on a device.
    pub(super) fn lists(&self) -> Result<&DeviceLists> {
        match &self.storage {
            Lists::Device(lists, _) => Ok(lists),
            Lists::Host(_, Some(lists)) => Ok(lists),
            Lists::Host(_, None) => Err(Error::elsewhere("index")),
        }
    }

    /// Number of lists.
    pub fn panels(&self) -> usize {
        self.panels
    }

    /// Length of a list on a GPU, a multiple of 64. After its last position, a list is padded with `u32::MAX` up to the
    /// next multiple of 64.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Device addresses of the lists (`panels * stride` words) and of their lengths (`panels` words); `None` on a CPU.
    pub fn addresses(&self) -> Option<[u64; 2]> {
        match &self.storage {
            Lists::Host(..) => None,
            Lists::Device(lists, _) => Some([lists.lists.address(), lists.counts.address()]),
        }
    }

    /// Number of micro-tiles of each panel. Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails.
    pub fn counts(&self) -> Result<Vec<u32>> {
        match &self.storage {
            Lists::Host(lists, _) => Ok(lists.iter().map(|list| list.len() as u32).collect()),
            Lists::Device(lists, device) => {
                let mut counts = allocate::zeroed("counts of panels", self.panels)?;
                device.read(&lists.counts, &mut counts)?;
                Ok(counts)
            }
        }
    }

    /// The lists. Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy fails; [`Error::Operand`] if a list is not padded correctly.
    pub fn to_lists(&self) -> Result<Vec<Vec<u32>>> {
        let (lists, device) = match &self.storage {
            Lists::Host(lists, _) => return Ok(lists.clone()),
            Lists::Device(lists, device) => (lists, device),
        };
        let counts = self.counts()?;
        let count = elements("index", &[self.panels, self.stride])?;
        let mut words: Vec<u32> = allocate::zeroed("lists of panels", count)?;
        device.read(&lists.lists, &mut words)?;
        let mut all = allocate::reserved("lists of panels", self.panels)?;
        for (panel, &count) in counts.iter().enumerate() {
            let count = count as usize;
            let filled = crate::families::discover::list_stride(count);
            let list = words.get(panel * self.stride..panel * self.stride + filled);
            match list {
                Some(list) if list[count..].iter().all(|&x| x == u32::MAX) => {
                    all.push(list[..count].to_vec());
                }
                _ => {
                    return Err(Error::operand(
                        "index",
                        format!("list {panel} of {count} micro-tiles is not filled up"),
                    ));
                }
            }
        }
        Ok(all)
    }
}
