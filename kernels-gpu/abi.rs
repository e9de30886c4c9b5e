//! Interface of host and device that the families share: markers for walks and elements, the trait [`Tile`], layouts
//! of operands, flags. Tiles and parameters of one family are in `families/<family>/abi`.

mod divisor;
mod needs;
mod order;
mod product;
mod quantized;
mod scan;
mod stage;
mod strips;

pub use divisor::*;
pub use needs::*;
pub use order::*;
pub use product::*;
pub use quantized::*;
pub use scan::*;
pub use stage::*;
pub use strips::*;

/// Declares the element types: [`Dtype`], and a marker of each type. A line is a type, its name, its bytes in memory and
/// the type in which kernels accumulate its products.
macro_rules! element_types {
    ($($(#[$doc:meta])+ $dtype:ident: $name:literal, $bytes:literal, $sum:ident;)+) => {
        /// Element type of a kernel, with the names of the benchmark records (`tf32` = f32 data, TF32 product).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Dtype {
            $($(#[$doc])+ $dtype,)+
        }

        impl Dtype {
            /// All element types.
            pub const ALL: &[Dtype] = &[$(Dtype::$dtype),+];

            /// Bytes of one element in memory.
            pub const fn bytes(self) -> usize {
                match self {
                    $(Dtype::$dtype => $bytes,)+
                }
            }

            /// Type in which kernels accumulate products.
            pub const fn accumulator(self) -> Dtype {
                match self {
                    $(Dtype::$dtype => Dtype::$sum,)+
                }
            }

            /// Bytes of one accumulator.
            pub const fn acc_bytes(self) -> usize {
                self.accumulator().bytes()
            }

            /// Name in the benchmark records and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$dtype => $name,)+
                }
            }
        }

        $(
            $(#[$doc])+
            #[derive(Clone, Copy, Debug)]
            pub struct $dtype;

            impl ElemInfo for $dtype {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )+
    };
}

element_types! {
    /// IEEE single.
    F32: "f32", 4, F32;
    /// IEEE double.
    F64: "f64", 8, F64;
    /// IEEE half.
    F16: "f16", 2, F32;
    /// bfloat16.
    Bf16: "bf16", 2, F32;
    /// f32 in memory, rounded to TF32 (`cvt.rna`) before the Tensor Core.
    Tf32: "tf32", 4, F32;
    /// 8-bit float with 4 bits of exponent and 3 of mantissa (OCP FP8).
    E4m3: "e4m3", 1, F32;
    /// 8-bit float with 5 bits of exponent and 2 of mantissa (OCP FP8).
    E5m2: "e5m2", 1, F32;
    /// 8-bit signed integer.
    Int8: "int8", 1, Int32;
    /// 32-bit signed integer: an output type of products of 8-bit integers.
    Int32: "int32", 4, Int32;
}

/// Operation that the kernels of a module compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// A product with one sparse operand, or of two dense operands. Plans choose from these kernels.
    Product,
    /// A product of dense matrices at the nonzeros of a pattern (SDDMM).
    Sampled,
    /// An operation that only its family launches, which finds its rows by their params (`table::rows_of`).
    Own,
    /// A product of 8-bit operands into a wider output.
    Narrow,
    /// A product of 8-bit operands at the nonzeros of a pattern, into a wider output.
    SampledNarrow,
    /// A dense product of the tutorial, which no plan chooses.
    Teaching,
    /// Softmax of a product at the entries of a mask, times another matrix.
    Attention,
    /// Rows gathered for every entry of a sparse tensor, multiplied and reduced by output row (MTTKRP, TTM).
    Rows,
    /// A small sparse tensor of order 3 against operands that share a batch of items.
    TensorProduct,
    /// A product of gathered rows with a stack of matrices, or a step around it.
    Convolution,
    /// An indirect Einsum of any form.
    Einsum,
    /// Detection of the nonempty micro-tiles of a matrix.
    Detection,
    /// A product with an operand whose nonempty micro-tiles are detected at run time.
    Dynamic,
    /// A product of rows, each with a matrix of a stack that is selected at run time.
    Grouped,
    /// A step of a layer over rows whose number is known only on the device.
    Live,
}

/// Order in which a kernel visits the sparse operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WalkKind {
    /// Rows that start at any entry: CSR, COO, ELL, GroupCOO with any group.
    Csr,
    /// Rows that start at a multiple of four entries: GroupCOO with a group divisible by four.
    GroupCoo,
    /// Dense blocks, block rows contiguous: BSR, BlockCOO, BlockGroupCOO.
    Block,
    /// Two of every four adjacent elements of a row, with their positions: N:M.
    Nm,
    /// Entries of a row as pairs of column and position; values are loaded by position: a transposed pattern.
    Permuted,
    /// Bits and values of tiles of 64 x 64: bitmap.
    Bitmap,
    /// Positions as bytes, and values, of tiles of 64 x 128: bytemap.
    Bytemap,
    /// Columns of eight rows, entries in row order: plans make them from CSR, COO, ELL and GroupCOO.
    Vector,
    /// Entries in row order, expanded to dense tiles of A: plans make them from CSR, COO, ELL and GroupCOO.
    Filled,
    /// Slices of 32 rows, a lane for each row: SELL.
    SlicedEll,
    /// Positions of terms as data, for any format.
    Listed,
    /// No sparse operand.
    Direct,
}

/// Treatment of implicit zeros by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Zeros {
    /// Implicit zeros are never multiplied: a NaN in row k of B reaches only rows of C with an entry in column k.
    Strict,
    /// Zeros inside a stored block, or next to an entry in a column of eight rows, are multiplied like any value.
    Dense,
}

/// Marker of an element type; device code implements its arithmetic for it.
pub trait ElemInfo {
    /// The element type.
    const DTYPE: Dtype;
}

/// Marker of a walk; device code implements the loads for it.
pub trait WalkInfo {
    /// The walk.
    const WALK: WalkKind;
    /// Treatment of implicit zeros.
    const ZEROS: Zeros;
}

/// Declares a marker of a walk, with its treatment of implicit zeros.
macro_rules! walks {
    ($($(#[$doc:meta])* $name:ident: $walk:ident, $zeros:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl WalkInfo for $name {
            const WALK: WalkKind = WalkKind::$walk;
            const ZEROS: Zeros = Zeros::$zeros;
        }
    )+};
}

walks! {
    /// See [`WalkKind::Csr`].
    Csr: Csr, Strict;
    /// See [`WalkKind::GroupCoo`].
    GroupCoo: GroupCoo, Strict;
    /// See [`WalkKind::Block`].
    Block: Block, Dense;
    /// See [`WalkKind::Nm`].
    Nm: Nm, Dense;
    /// See [`WalkKind::Permuted`].
    Permuted: Permuted, Strict;
    /// See [`WalkKind::Bitmap`].
    Bits: Bitmap, Dense;
    /// See [`WalkKind::Bytemap`].
    Bytes: Bytemap, Dense;
    /// See [`WalkKind::Vector`].
    Vector: Vector, Dense;
    /// [`WalkKind::Vector`] of integers: `Strict`, because an integer times zero is always zero.
    WholeVector: Vector, Strict;
    /// See [`WalkKind::Filled`].
    Filled: Filled, Dense;
    /// See [`WalkKind::SlicedEll`].
    SlicedEll: SlicedEll, Strict;
    /// See [`WalkKind::Listed`].
    Listed: Listed, Strict;
    /// See [`WalkKind::Direct`].
    Direct: Direct, Dense;
}

/// Geometry of one kernel: the only source of launch bounds, grid and shared memory for host and device.
pub trait Tile {
    /// Threads of a thread block.
    const THREADS: u32;
    /// Min thread blocks per multiprocessor (register budget).
    const MIN_BLOCKS: u32 = 1;
    /// Columns of C that one thread block computes.
    const COLUMNS: u32;
    /// Work items of one thread block.
    const ITEMS: u32 = 1;
    /// Segments of lanes that share a work item.
    const PARTS: u32 = 1;
    /// Entries of a segment whose loads are in flight together.
    const BURST: u32 = 1;
    /// Rows and columns of the pieces of A that the kernel copies; (1, 1) for unstructured walks.
    const BLOCK: (u32, u32) = (1, 1);
    /// Layouts of A's pieces and of B: [`PLAIN`], or a combination of [`A_COLUMNS`], [`B_COLUMNS`] and the like.
    const ORDER: u32 = PLAIN;
    /// Step of an operation of several kernels: `STEP_*`.
    const STEP: u32 = STEP_NONE;
    /// Max rows of B.
    const DEPTH: u32 = u32::MAX;
    /// Required GPU features: `TMA` and the like.
    const NEEDS: u32 = 0;
    /// Whether the kernel replaces another row on GPUs without `wgmma`. It is not built for GPUs with `wgmma`.
    const STANDS_IN: bool = false;
    /// Dynamic shared memory in bytes, for every element type.
    const SHARED_BYTES: u32 = 0;
    /// Bytes of one access to B and C: 16 for vectors and the copy engine; 1 for single elements, and for tiles that
    /// count elements in [`Tile::vector`] instead.
    const ACCESS: u32;
    /// Dynamic shared memory in bytes for elements of the given type.
    fn shared_bytes(_dtype: Dtype) -> u32 {
        Self::SHARED_BYTES
    }
    /// Elements of one access to B and C. Pointers and leading dimensions must be multiples of this number.
    fn vector(dtype: Dtype) -> u32 {
        (Self::ACCESS / dtype.bytes() as u32).max(1)
    }
}

/// Declares the tiles of a module: first the constants of all tiles, then each tile with its step and further
/// constants. A number after a step declares the constant of this step.
macro_rules! tiles {
    ({ $($k:ident: $v:expr),* }) => { $(const $k: u32 = $v;)* };
    (
        $all:tt
        $(
            $(#[$doc:meta])*
            $name:ident $(<$aligned:ident>)? $(= $step:ident $($number:literal)?)? $(, $k:ident: $v:expr)*;
        )+
    ) => {$(
        $($(
            #[doc = concat!("Step of [`", stringify!($name), "`].")]
            pub const $step: u32 = $number;
        )?)?

        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name $(<const $aligned: bool>)?;

        impl $(<const $aligned: bool>)? $crate::abi::Tile for $name $(<$aligned>)? {
            $crate::abi::tiles! { $all }
            $(const STEP: u32 = $step;)?
            $(const $k: u32 = $v;)*
        }
    )+};
}

pub(crate) use tiles;

/// Adds to C instead of overwriting it (`+=`).
pub const FLAG_ACCUMULATE: u32 = 1;
/// Adds `bias[m]` of the row before the activation.
pub const FLAG_BIAS_ROWS: u32 = 2;
/// Adds `bias[n]` of the column before the activation.
pub const FLAG_BIAS_COLUMNS: u32 = 4;
/// ReLU: negative elements become zero; NaN is preserved.
pub const FLAG_RELU: u32 = 8;
/// C and a bias of columns are aligned for 16-byte accesses (modules `block` and `wgmma`).
pub const FLAG_VECTORS: u32 = 16;
/// GELU, x / 2 (1 + erf(x / sqrt 2)), in place of ReLU. Absolute error: 1.5e-7; for 16-bit results 2e-6.
pub const FLAG_GELU: u32 = 32;
/// Multiplies by the values of the mask (`P[m,n] * ...`).
pub const FLAG_MASK_VALUES: u32 = 64;
/// Sets an element of C to zero if that of the matrix `gate` is not positive (modules `wgmma`, `nm`).
pub const FLAG_GATE: u32 = 128;
/// No launch that precedes the kernel in its stream writes A. A may be loaded before the preceding launch has ended.
pub const FLAG_A_KEPT: u32 = 256;
/// C is f16. Without any of the three output flags C is i32, which only products of integers support.
pub const FLAG_OUT_F16: u32 = 1 << 16;
/// C is bf16.
pub const FLAG_OUT_BF16: u32 = 1 << 17;
/// C is f32.
pub const FLAG_OUT_F32: u32 = 1 << 18;

/// Step of kernels that compute a whole operation.
pub const STEP_NONE: u32 = 0;
