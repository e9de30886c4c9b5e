//! Geometry of edges on a GPU: kernels `edge_geometry`, one launch forward and one backward.

use std::sync::Arc;

use einsparse_kernels::families::{GeometryParams, STEP_GEOMETRY, STEP_GEOMETRY_GRADIENT};
use einsparse_kernels::table::rows_of;

use super::equivariant::Side;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, row_bytes, small, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Edges: their end points and the number of periodic cells that each edge crosses.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) atoms: usize,
    pub(crate) receivers: Vec<u32>,
    pub(crate) senders: Vec<u32>,
    /// Empty without periodic boundaries.
    pub(crate) shifts: Vec<[i32; 3]>,
    pub(crate) cell: [[f64; 3]; 3],
    pub(crate) cutoff: f64,
    pub(crate) degree: usize,
    pub(crate) functions: usize,
    pub(crate) exponent: usize,
}

/// Kernels with the lists of the edges in device memory.
#[derive(Debug)]
pub(crate) struct GeometryLaunch {
    kernels: [Kernel<GeometryParams>; 2],
    /// Receivers, senders, and shifts if the system is periodic.
    edges: [DeviceMemory; 3],
    sides: [Side; 2],
    params: GeometryParams,
    counts: [usize; 2],
}

impl GeometryLaunch {
    /// Creates the launch. Both ends of the edges are below the number of atoms, and their lists have equal lengths.
    pub(crate) fn new(device: &Arc<Device>, dtype: Dtype, of: &Geometry) -> Result<Self> {
        let load = |step: u32| {
            let own = rows_of::<GeometryParams>().filter(|row| row.step == step);
            let row = of_type(own, dtype, format!("geometry of edges in {}", dtype.name()))?;
            Kernel::load(device, row)
        };
        let [to, from] = [&of.receivers[..], &of.senders];
        let edges =
            [device.upload(to)?, device.upload(from)?, device.upload(of.shifts.as_flattened())?];
        let sides =
            [Side::new(device, to, from, of.atoms)?, Side::new(device, from, to, of.atoms)?];
        let mut cell = [0.0; 9];
        cell.copy_from_slice(of.cell.as_flattened());
        let params = GeometryParams {
            receivers: edges[0].address(),
            senders: edges[1].address(),
            shifts: if of.shifts.is_empty() { 0 } else { edges[2].address() },
            starts: sides.each_ref().map(|side| side.starts.address()),
            edges: sides.each_ref().map(|side| side.entries.address()),
            cell,
            cutoff: of.cutoff,
            inverse: 1.0 / of.cutoff,
            norm: (2.0 / of.cutoff).sqrt(),
            degree: small("degree", of.degree)?,
            functions: small("radial functions", of.functions)?,
            exponent: small("exponent", of.exponent)?,
            ..GeometryParams::default()
        };
        Ok(GeometryLaunch {
            kernels: [load(STEP_GEOMETRY)?, load(STEP_GEOMETRY_GRADIENT)?],
            edges,
            sides,
            params,
            counts: [to.len(), of.atoms],
        })
    }

    /// Names of the kernels, forward and backward.
    pub(crate) fn variants(&self) -> [&'static str; 2] {
        self.kernels.each_ref().map(|kernel| kernel.row().name)
    }

    /// Workspace in device memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        let lists: usize = self.edges.iter().map(DeviceMemory::bytes).sum();
        lists + self.sides.iter().map(Side::bytes).sum::<usize>()
    }

    /// Queues the harmonics and radial functions of all edges. If an output for the gradient of the positions is given,
    /// queues that gradient from the gradients of both instead.
    pub(crate) fn run(
        &self,
        [positions, harmonics, radial]: [DenseMatrix; 3],
        gradient: Option<DenseMatrix>,
        queue: Queue<'_>,
    ) -> Result<()> {
        let backward = usize::from(gradient.is_some());
        let kernel = &self.kernels[backward];
        let pitch =
            |matrix: &DenseMatrix, bytes: usize| row_bytes("a matrix", matrix.leading, bytes);
        let (own, wide) = (kernel.row().dtype.bytes(), size_of::<f64>());
        let to = gradient.unwrap_or(positions);
        let params = GeometryParams {
            positions: positions.address,
            harmonics: harmonics.address,
            radial: radial.address,
            gradient: gradient.map_or(0, |gradient| gradient.address),
            row_bytes: [
                pitch(&positions, wide)?,
                pitch(&harmonics, own)?,
                pitch(&radial, own)?,
                pitch(&to, wide)?,
            ],
            count: small("edges", self.counts[backward])?,
            ..self.params
        };
        let blocks = self.counts[backward].div_ceil(kernel.row().items as usize);
        let blocks = within("thread blocks", blocks, MAX_GRID_X)?;
        queue.launch(kernel, Grid::of([blocks, 1, 1]), &params)
    }
}
