//! Launch of a kernel of the `levels` family, for its test and for the bench. No plan selects these kernels.

use einsparse::Result;
use einsparse::driver::{
    Function, LaunchConfig, Swizzle, TensorMap, TensorMapLayout, TensorMapType,
};
use einsparse::kernels::abi::{MapWords, Operation};
use einsparse::kernels::families::LevelsParams;
use einsparse::raw::{Device, RawStream};
use einsparse::registry::{Row, kernels};

/// Returns the levels in order.
pub fn levels() -> impl Iterator<Item = &'static Row> {
    let teaching = |row: &&Row| row.operation == Operation::Teaching;
    kernels().iter().filter(teaching)
}

/// A level with all that its launch requires.
pub struct Level {
    function: Function,
    config: LaunchConfig,
    params: LevelsParams,
}

impl Level {
    /// Prepares `C[m,n] = A[m,k] * B[k,n]` in f16 at these addresses. The extents are multiples of the level's tile.
    pub fn new(
        device: &Device,
        row: &Row,
        [m, k, n]: [usize; 3],
        [a, b, c]: [u64; 3],
    ) -> Result<Self> {
        let function = device.modules().function(row, row.shared_bytes)?;
        let (rows, columns) = (row.block.0, row.columns);
        assert!(m.is_multiple_of(rows as usize) && n.is_multiple_of(columns as usize));
        assert!(k.is_multiple_of(row.block.1 as usize));
        let (down, across) = (m as u32 / rows, n as u32 / columns);
        let grid = if row.items > 1 {
            let multiprocessors = device.machine().multiprocessors;
            [multiprocessors.min(down * across), 1, 1]
        } else {
            [across, down, 1]
        };
        let config = LaunchConfig {
            grid,
            block: [row.threads, 1, 1],
            smem_bytes: row.shared_bytes,
            cluster: None,
            overlap_previous: false,
        };
        let params = LevelsParams {
            a_map: map(a, [k, m], [64, 128])?,
            b_map: map(b, [n, k], [64, 64])?,
            a,
            b,
            c,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            reserved: 0,
        };
        Ok(Self { function, config, params })
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses must hold matrices of the extents until the work has finished.
    pub unsafe fn run(&self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the params are those of the family; the caller guarantees the addresses.
        unsafe { self.function.launch(&self.config, stream, &self.params) }
    }
}

/// Returns the map of an f16 matrix of `[columns, rows]` in tiles of `[columns, rows]`, swizzled over 128 bytes.
fn map(address: u64, [columns, rows]: [usize; 2], tile: [u32; 2]) -> Result<MapWords> {
    let layout = TensorMapLayout {
        element: TensorMapType::F16,
        extents: &[columns as u64, rows as u64],
        strides: &[columns as u64 * 2],
        tile: &tile,
        steps: &[],
        swizzle: Swizzle::B128,
    };
    Ok(*TensorMap::encode_tiled(address, &layout)?.words())
}
