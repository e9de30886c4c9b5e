//! Convolutions over 2-D images on a GPU, one launch each.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    CONV2D_OUTPUTS, CONV2D_RELU, CONV2D_TAPS, CONV2D_WINDOW, Conv2dParams, STEP_DEPTHWISE_ANY,
    STEP_DEPTHWISE_PLANE, STEP_DEPTHWISE_STRIDED, STEP_DEPTHWISE_UNIT, STEP_FEW_CHANNELS,
};
use einsparse_kernels::table::{Row, rows_of};

use super::Conv2dShape;
use crate::device::Device;
use crate::error::{Error, Refusal, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, small, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Max elements of one image plane: offsets within it are 32 bits, and so are the bytes of a window.
const MAX_PLANE: usize = 1 << 28;

/// Input and output, weights, and the bias (0 if there is no bias).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conv2dOperands {
    pub(crate) input: DenseMatrix,
    pub(crate) weights: u64,
    pub(crate) bias: u64,
    pub(crate) out: DenseMatrix,
}

/// Kernel of the convolution, and a vectorized kernel if rows are whole vectors.
#[derive(Debug)]
pub(crate) struct Conv2dLaunch {
    kernel: Kernel<Conv2dParams>,
    vectors: Option<Kernel<Conv2dParams>>,
    shape: Conv2dShape,
    params: Conv2dParams,
}

/// Returns the step that computes this shape, or the reason why no step does.
fn step(shape: &Conv2dShape) -> Result<u32> {
    if shape.depthwise && shape.whole_plane() {
        return Ok(STEP_DEPTHWISE_PLANE);
    }
    let [rows, columns] = shape.window;
    let most = CONV2D_WINDOW as usize;
    let reason = if rows > most || columns > most {
        format!(
            "has a window of {rows} x {columns}: they are of {most} x {most} at the most, and depthwise also of the \
             whole plane without padding"
        )
    } else if shape.depthwise {
        return Ok(match (shape.window, shape.stride) {
            ([3, 3], 1) => STEP_DEPTHWISE_UNIT,
            ([3, 3], 2) => STEP_DEPTHWISE_STRIDED,
            _ => STEP_DEPTHWISE_ANY,
        });
    } else {
        let taps = shape.channels.saturating_mul(rows) * width(shape) as usize;
        if taps <= CONV2D_TAPS as usize {
            return Ok(STEP_FEW_CHANNELS);
        }
        format!(
            "has {} input channels, {taps} taps for each output in rows of {}; the maximum is {CONV2D_TAPS}",
            shape.channels,
            width(shape)
        )
    };
    let text = "C[m,n,y,x] = A[c,n,y+i,x+j] * W[m,c,i,j]";
    Err(Error::no_kernel(text, [Refusal::of("conv2d", reason)]))
}

/// Returns the window extent of the smallest tile that supports this window, if all channels are summed.
fn width(shape: &Conv2dShape) -> u32 {
    match shape.window.iter().all(|extent| *extent <= 3) {
        true => 3,
        false => CONV2D_WINDOW,
    }
}

/// Whether the rows of input and output are whole vectors of `vector` elements, with a padding of 1 on each side.
fn in_vectors(shape: &Conv2dShape, vector: usize) -> bool {
    let whole = [shape.size[1], shape.out_size[1]].iter().all(|width| width.is_multiple_of(vector));
    whole && shape.padding[1] == 1
}

impl Conv2dLaunch {
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        shape: Conv2dShape,
        relu: bool,
    ) -> Result<Self> {
        let step = step(&shape)?;
        let tile = match step {
            STEP_FEW_CHANNELS => width(&shape),
            _ => 1,
        };
        let own = move |row: &&Row| row.step == step && row.block.0 == tile;
        let what = || format!("convolutions over planes of {}", dtype.name());
        let load = |columns: u32| {
            let rows = rows_of::<Conv2dParams>().filter(own);
            let rows = rows.filter(move |row| row.columns == columns);
            Kernel::load(device, of_type(rows, dtype, what())?)
        };
        let three = [STEP_DEPTHWISE_UNIT, STEP_DEPTHWISE_STRIDED].contains(&step);
        let vectors = (three && in_vectors(&shape, 4)).then(|| load(4)).transpose()?;
        let extent = |what: &str, value: usize| within(what, value, MAX_PLANE);
        let plane = |what: &str, [height, width]: [usize; 2]| {
            extent(what, height.saturating_mul(width))?;
            Ok::<_, Error>([height as u32, width as u32])
        };
        within(
            "groups of output channels",
            shape.outputs.div_ceil(CONV2D_OUTPUTS as usize),
            MAX_GRID_Y,
        )?;
        let [of_input, of_out] = shape.places();
        within("places of a channel", of_input.max(of_out), MAX_GRID_X)?;
        let params = Conv2dParams {
            size: plane("places of a plane", shape.size)?,
            out_size: plane("places of a plane of the output", shape.out_size)?,
            batch: Divisor::new(small("images", shape.batch)?),
            channels: extent("channels", shape.channels)?,
            outputs: extent("outputs", shape.outputs)?,
            window: plane("places of a window", shape.window)?,
            padding: [extent("padding", shape.padding[0])?, extent("padding", shape.padding[1])?],
            stride: extent("stride", shape.stride)?,
            flags: if relu { CONV2D_RELU } else { 0 },
            ..Conv2dParams::default()
        };
        let kernel = load(1)?;
        let launch = Conv2dLaunch { kernel, vectors, shape, params };
        launch.pieces(launch.kernel.row())?;
        Ok(launch)
    }

    /// Name of the kernel for aligned operands.
    pub(crate) fn variant(&self) -> &'static str {
        self.vectors.as_ref().unwrap_or(&self.kernel).row().name
    }

    /// Number of pieces along height and width that a kernel cuts an output plane into, and the total number of pieces.
    fn pieces(&self, row: &Row) -> Result<([Divisor; 2], u32)> {
        let shape = &self.shape;
        let [height, width] = shape.out_size;
        let (down, channels) = match row.step {
            STEP_FEW_CHANNELS => (height, 1),
            _ => (height.div_ceil(row.items as usize), shape.channels),
        };
        let across = width.div_ceil(row.columns as usize);
        let all = (down * across).saturating_mul(shape.batch).saturating_mul(channels);
        let all = within("pieces of all planes", all, MAX_GRID_X)?;
        Ok(([down, across].map(|n| Divisor::new(n as u32)), all))
    }

    /// Queues the convolution.
    pub(crate) fn run(&self, operands: &Conv2dOperands, queue: Queue<'_>) -> Result<()> {
        let Conv2dOperands { input, out, .. } = operands;
        let aligned = |matrix: &DenseMatrix, row: &Row| {
            let bytes = u64::from(row.vector) * row.dtype.bytes() as u64;
            matrix.address.is_multiple_of(bytes)
                && matrix.leading.is_multiple_of(row.vector as usize)
        };
        let vectors = self
            .vectors
            .as_ref()
            .filter(|kernel| [input, out].iter().all(|matrix| aligned(matrix, kernel.row())));
        let kernel = vectors.unwrap_or(&self.kernel);
        let row = kernel.row();
        let bytes = row.dtype.bytes() as u64;
        let ([down, across], work) = self.pieces(row)?;
        let params = Conv2dParams {
            input: input.address,
            weights: operands.weights,
            bias: operands.bias,
            out: out.address,
            input_pitch: input.leading as u64 * bytes,
            out_pitch: out.leading as u64 * bytes,
            down,
            across,
            work,
            ..self.params
        };
        let of_block = match row.step {
            STEP_DEPTHWISE_PLANE => row.threads / 32,
            _ => row.threads,
        };
        let groups = match row.step {
            STEP_FEW_CHANNELS => self.params.outputs.div_ceil(CONV2D_OUTPUTS),
            _ => 1,
        };
        // The kernel waits for the previous kernel before it reads or writes.
        let grid = Grid::of([work.div_ceil(of_block), groups, 1]).early();
        queue.launch(kernel, grid, &params)
    }
}
