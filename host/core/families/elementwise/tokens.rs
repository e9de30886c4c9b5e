//! Token lookup (embedding) and token selection (argmax) on a GPU: one launch each.

use einsparse_kernels::families::{STEP_EMBED, STEP_GREEDY, TokensParams};

use super::{Layout, blocks, load, pitch, vectors};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, small, within};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Kernel of a lookup or of an argmax.
#[derive(Debug)]
pub struct TokensLaunch {
    kernel: Kernel<TokensParams>,
    layout: Layout,
    params: TokensParams,
}

impl TokensLaunch {
    /// Creates the lookup in a table of `vocabulary` rows. `layout` is that of the output.
    pub fn embed(device: &Device, dtype: Dtype, layout: Layout, vocabulary: usize) -> Result<Self> {
        Ok(TokensLaunch {
            kernel: load(device, dtype, STEP_EMBED, "a table of tokens")?,
            layout,
            params: TokensParams {
                count: small("tokens", layout.tokens)?,
                vocabulary: within("numbers of tokens", vocabulary, MAX_GRID_X)?,
                width: small("features of a token", layout.width)?,
                ..TokensParams::default()
            },
        })
    }

    /// Creates the argmax over as many logits as the width of the layout.
    pub fn greedy(device: &Device, dtype: Dtype, layout: Layout) -> Result<Self> {
        Ok(TokensLaunch {
            kernel: load(device, dtype, STEP_GREEDY, "logits")?,
            layout,
            params: TokensParams {
                count: within("tokens", layout.tokens, MAX_GRID_X)?,
                vocabulary: within("logits of a token", layout.width, MAX_GRID_X)?,
                ..TokensParams::default()
            },
        })
    }

    pub fn variant(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues the lookup; `tokens` is an address.
    pub fn run_embed(
        &self,
        table: DenseMatrix,
        tokens: u64,
        out: DenseMatrix,
        queue: Queue<'_>,
    ) -> Result<()> {
        let (row, layout) = (self.kernel.row(), self.layout);
        let mut flags = layout.flags();
        let mut threads = layout.tokens * layout.width;
        if !layout.columns && vectors(row, layout.width, &[table, out]) != 0 {
            flags |= vectors(row, layout.width, &[table, out]);
            threads /= 16 / row.dtype.bytes();
        }
        if threads == 0 {
            return Ok(());
        }
        let params = TokensParams {
            table: table.address,
            tokens,
            out: out.address,
            table_row: pitch(row, &table)?,
            out_row: pitch(row, &out)?,
            flags,
            ..self.params
        };
        queue.launch(&self.kernel, blocks(threads)?, &params)
    }

    /// Queues the argmax; `tokens` and `lengths` (or 0) are addresses.
    pub fn run_greedy(
        &self,
        logits: DenseMatrix,
        [tokens, lengths]: [u64; 2],
        queue: Queue<'_>,
    ) -> Result<()> {
        let (row, layout) = (self.kernel.row(), self.layout);
        if layout.tokens == 0 {
            return Ok(());
        }
        let mut flags = layout.flags();
        if !layout.columns {
            flags |= vectors(row, layout.width, &[logits]);
        }
        let params = TokensParams {
            table: logits.address,
            tokens,
            out: lengths,
            table_row: pitch(row, &logits)?,
            flags,
            ..self.params
        };
        queue.launch(&self.kernel, Grid::of([params.count, 1, 1]).early(), &params)
    }
}
