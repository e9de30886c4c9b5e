//! Rows of the table, as values for the host.

extern crate std;

use super::arch::{ARCHS, Arch, archs_of};
use core::any::TypeId;
use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::vec::Vec;

/// One row of the table, as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Module that contains the entry.
    pub module: &'static str,
    /// Family of the module: the directory of its sources.
    pub family: &'static str,
    /// Params, walk, element and tile as text, as in the table.
    pub source: &'static str,
    /// Operation that the kernel computes.
    pub operation: crate::abi::Operation,
    /// Order in which the kernel visits the sparse operand.
    pub walk: crate::abi::WalkKind,
    /// Treatment of implicit zeros.
    pub zeros: crate::abi::Zeros,
    /// Element type.
    pub dtype: crate::abi::Dtype,
    /// Threads of a thread block.
    pub threads: u32,
    /// Min thread blocks per multiprocessor.
    pub min_blocks: u32,
    /// Columns of C per thread block.
    pub columns: u32,
    /// Work items per thread block.
    pub items: u32,
    /// Segments of lanes that share a work item.
    pub parts: u32,
    /// Entries of a segment whose loads are in flight together.
    pub burst: u32,
    /// Rows and columns of the pieces of A that the kernel copies; (1, 1) for unstructured walks.
    pub block: (u32, u32),
    /// Layouts of A's pieces and of B: `PLAIN`, or [`crate::abi::A_COLUMNS`] and the like.
    pub order: u32,
    /// Step of an operation of several kernels: `STEP_*` of [`crate::abi`].
    pub step: u32,
    /// Max rows of B; `u32::MAX` without a limit.
    pub depth: u32,
    /// Required GPU features beyond compute capability 8.0: [`crate::abi::TMA`] and the like.
    pub needs: u32,
    /// Whether the kernel replaces another row on GPUs without `wgmma`.
    pub stands_in: bool,
    /// Bytes of the params struct.
    pub params_bytes: usize,
    /// The params struct.
    pub params: TypeId,
    /// Elements per access to B and C.
    pub vector: u32,
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
}

impl Row {
    /// Whether the module of this architecture contains the kernel.
    pub fn built_for(&self, arch: &Arch) -> bool {
        let fits = |arch: &Arch| {
            let replaced = self.stands_in && arch.has & crate::abi::WGMMA != 0;
            let there = self.needs & !arch.has == 0 && self.shared_bytes <= arch.shared_bytes;
            there && !replaced
        };
        // GPUs of an architecture that is not exact also run the code of lower ones. Only kernels that no lower one
        // contains are built for it.
        let below = || ARCHS.iter().filter(|other| other.capability < arch.capability);
        fits(arch) && (arch.exact || !below().any(fits))
    }

    /// Whether a GPU of this compute capability runs the kernel. A GPU with `wgmma` does not run replacement kernels of
    /// lower architectures.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        let replaced =
            self.stands_in && archs_of(capability).any(|arch| arch.has & crate::abi::WGMMA != 0);
        !replaced && archs_of(capability).any(|arch| self.built_for(arch))
    }

    /// Whether `P` is the params struct of the kernel.
    pub fn takes<P: 'static>(&self) -> bool {
        self.params == TypeId::of::<P>()
    }

    /// Whether the kernel holds all rows of B at once.
    pub fn holds_b(&self) -> bool {
        self.depth != u32::MAX
    }

    /// Whether the kernel multiplies by A's transpose. Blocks of one column are column-major without a transpose.
    pub fn transposes(&self) -> bool {
        self.order & crate::abi::A_COLUMNS != 0 && self.block.1 > 1
    }

    /// Whether the kernel computes `C[m,n] = A[m,k] * B[k,n]` with no operand transposed.
    pub fn is_plain(&self) -> bool {
        !self.transposes() && self.order & crate::abi::ON_THE_LEFT == 0
    }
}

macro_rules! rows {
    ($($family:ident {
        $($module:literal $params:ident $operation:ident { $($($name:ident $elem:ident),+: $walk:ident, $tile:ty;)+ })+
    })+) => {
        /// Returns all rows of the table.
        pub fn kernels() -> &'static [Row] {
            use crate::abi::*;
            use crate::families::*;
            /// A row with zeros for the results of the tile's functions, and these functions. Constant data compiles
            /// much faster than code that builds rows.
            type Known = (Row, fn(Dtype) -> u32, fn(Dtype) -> u32);
            static KNOWN: &[Known] = &[$($($($((Row {
                name: stringify!($name),
                module: $module,
                family: stringify!($family),
                source: stringify!($params $walk $elem $tile),
                operation: Operation::$operation,
                walk: <$walk as WalkInfo>::WALK,
                zeros: <$walk as WalkInfo>::ZEROS,
                dtype: <$elem as ElemInfo>::DTYPE,
                threads: <$tile as Tile>::THREADS,
                min_blocks: <$tile as Tile>::MIN_BLOCKS,
                columns: <$tile as Tile>::COLUMNS,
                items: <$tile as Tile>::ITEMS,
                parts: <$tile as Tile>::PARTS,
                burst: <$tile as Tile>::BURST,
                block: <$tile as Tile>::BLOCK,
                order: <$tile as Tile>::ORDER,
                step: <$tile as Tile>::STEP,
                depth: <$tile as Tile>::DEPTH,
                needs: <$tile as Tile>::NEEDS,
                stands_in: <$tile as Tile>::STANDS_IN,
                params_bytes: size_of::<$params>(),
                params: TypeId::of::<$params>(),
                vector: 0,
                shared_bytes: 0,
            }, <$tile as Tile>::vector, <$tile as Tile>::shared_bytes),)+)+)+)+];
            static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
                let whole = |(row, vector, shared_bytes): &Known| Row {
                    vector: vector(row.dtype),
                    shared_bytes: shared_bytes(row.dtype),
                    ..*row
                };
                KNOWN.iter().map(whole).collect()
            });
            &ROWS
        }
    };
}

/// PTX modules, in table order.
pub static MODULE_NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut names: Vec<&str> = kernels().iter().map(|row| row.module).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    names
});

/// Modules that no plan chooses. A build contains them only if `EINSPARSE_MODULES` names them or is `all`. `levels` has
/// the kernels of docs/levels.md.
pub const ON_DEMAND: &[&str] = &["levels"];

/// Returns the rows with params struct `P`, of one module or several, in table order.
pub fn rows_of<P: 'static>() -> impl Iterator<Item = &'static Row> + Clone {
    kernels().iter().filter(|row| row.takes::<P>())
}

/// Returns the rows that compute products. Plans choose from these rows.
pub fn products() -> impl Iterator<Item = &'static Row> {
    let product = |row: &&Row| row.operation == crate::abi::Operation::Product;
    kernels().iter().filter(product)
}

crate::for_each_kernel!(rows);
